"""One side of a comparison: the rows of a table at one moment, as keys and digests; and the side that is written to.

Two sides are compared by what they say, each about itself, so they may be databases of different kinds. Therefore all
of them have to make the same digests of the same canonical texts. `digest_of` says how, and `checksum_of` how digests
are put together; databases do the same in SQL.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk

_NEEDS_QUOTES = re.compile(r'[\s"\\(),]', re.ASCII)


class Checksum(NamedTuple):
    """How many rows there are, and a checksum of their digests."""

    rows: int
    checksum: str


class TableRows(Protocol):
    """The rows of one table at one moment. Columns are named in the order in which they are digested."""

    def key_order(self) -> str:
        """Return what decides, besides its type, the order of the table's key, as its collations.

        Two sides that return the same order keys in the same way. For two that do not, a range is asked for by text:
        `Chunk.is_by_text`, in the order of the code points of the keys' canonical texts.
        """

    def checksum(self, columns: Sequence[str], chunk: Chunk) -> Checksum:
        """Return `checksum_of` the digests of the rows of a range, in the order of the digests."""

    def digests(self, columns: Sequence[str], chunk: Chunk) -> pa.Table:
        """Return a row for each row of a range: the canonical text of each column of its key, then its digest."""

    def bucket_checksums(self, columns: Sequence[str]) -> Mapping[str, Checksum]:
        """Return a checksum of all rows of a table without a key, by the first two digits of their digests.

        Each digest stands in it once, in order, as `digest:count`, and a comma between two.
        """

    def digest_counts(self, columns: Sequence[str], buckets: Collection[str]) -> Mapping[str, int]:
        """Return how many rows have each digest that begins with one of these two digits."""

    def read(self, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; columns of canonical text."""

    def read_with_digests(self, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the same rows, with their digest in one more column at the end."""


class RowsAside(ABC):
    """Reads tables of the target beside the session that writes them: what others have committed."""

    @abstractmethod
    def rows(self, table: TableSchema, like: TableSchema) -> TableRows:
        """The rows of a table as they are whenever they are asked for; values are written as `like` has its own."""

    @abstractmethod
    def close(self) -> None:
        """Close its session."""


def digest_of(texts: Iterable[str | None]) -> str:
    """Return the digest of a row: MD5, in hexadecimal, of the UTF-8 of its canonical texts put together.

    They stand between round brackets, and a comma stands between two. NULL is nothing at all. A text that is empty, or
    that holds a blank, tab, line break (or vertical tab, form feed, carriage return), quotation mark, backslash, round
    bracket or comma, stands between quotation marks, and each quotation mark and backslash in it is doubled.
    """
    together = ",".join("" if text is None else _quoted(text) for text in texts)
    return hashlib.md5(f"({together})".encode(), usedforsecurity=False).hexdigest()


def checksum_of(parts: Iterable[str], joined_by: str = "") -> str:
    """Return MD5, in hexadecimal, of parts that are put together."""
    return hashlib.md5(joined_by.join(parts).encode(), usedforsecurity=False).hexdigest()


def _quoted(text: str) -> str:
    if text and not _NEEDS_QUOTES.search(text):
        return text
    doubled = text.replace("\\", "\\\\").replace('"', '""')
    return f'"{doubled}"'
