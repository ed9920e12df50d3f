"""Chunks: the pieces in which a table is copied, each in one target transaction.

Where a table is cut is asked of its database: `dialects.postgres.source.copy.PostgresCopyOrigin.cut_into_chunks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.schema import TableSchema

_BUNDLE_BYTES = 4 * 1024 * 1024
_BUNDLE_CHUNKS = 32
"""A bundle takes a few tenths of a second, and no more locks than a server has room for."""

KeyValues = Sequence[str]
"""Canonical text of the values of a table's key columns, in the key's order."""


@dataclass(frozen=True)
class Chunk:
    """A range of a table's rows in the order of its primary key; all of it where there is no such key.

    Attributes:
        number: Counts the chunks of a table from 0.
        after: Key before the first row; None for no lower end.
        upto: Key of the last row; None for no upper end.
        is_by_text: Keys are in the order of their canonical text's code points, whatever their type.
        size_bytes: Roughly what its rows take up; None where that was not asked for.
    """

    table: TableName
    number: int
    after: KeyValues | None = None
    upto: KeyValues | None = None
    is_by_text: bool = False
    size_bytes: int | None = field(default=None, compare=False)

    @property
    def is_bounded(self) -> bool:
        """Whether it has an end at all."""
        return self.after is not None or self.upto is not None

    @property
    def bounds(self) -> Mapping[str, Any]:
        """The two ends as JSON."""
        return {"after": self.after, "upto": self.upto}

    @classmethod
    def between(cls, table: TableName, cuts: Sequence[KeyValues], size_bytes: int | None = None) -> list[Chunk]:
        """Cut a table of some size at these keys; every row is in exactly one of the chunks."""
        ends: list[KeyValues | None] = [None, *cuts, None]
        each = None if size_bytes is None else size_bytes // (len(cuts) + 1)
        return [cls(table, i, ends[i], ends[i + 1], size_bytes=each) for i in range(len(ends) - 1)]


def bundles(chunks: Iterable[Chunk]) -> list[list[Chunk]]:
    """Put small chunks that follow each other together; each bundle is worth a session and a transaction of its own.

    A chunk of unknown size stays alone.
    """
    found: list[list[Chunk]] = []
    room = -1
    for chunk in chunks:
        size = chunk.size_bytes
        if size is not None and size <= room and len(found[-1]) < _BUNDLE_CHUNKS:
            found[-1].append(chunk)
            room -= size
        else:
            found.append([chunk])
            room = -1 if size is None else _BUNDLE_BYTES - size
    return found


@dataclass(frozen=True)
class CopySource:
    """The moment as of which a chunk is read.

    Attributes:
        snapshot: The stored snapshot that the copy is as of, in the source's own text.
        exported: Name of that snapshot in a session that still holds it. Without it the rows are read as they
            are now, and those that were changed since are put back to what they were, from the log's images.
    """

    snapshot: str
    exported: str | None


class RowRule(Protocol):
    """What becomes of a table's rows on their way from the source to the target; rules, above this layer, say it."""

    @property
    def table(self) -> TableSchema:
        """The table as the target is to have it."""

    @property
    def keeps_key(self) -> bool:
        """Whether a row's key is the same at the target, by whatever names: a range of keys is one there, too."""

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what the target is to hold of rows of the source; columns of canonical text on both sides.

        Raises:
            OperatorError: There is no value for a row.
        """

    def told_rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, OperatorError]]:
        """The same without the rows that there is no value for; these by their index, each with why."""

    def at_source(self, columns: Sequence[str]) -> Sequence[str]:
        """Return what columns that are kept are called at the source."""


@dataclass(frozen=True)
class Range:
    """Rows of a table at the source, and at the target.

    Attributes:
        chunk: Which rows, by the source's own name of the table.
        rule: What becomes of the rows on their way; None where they are the same on both sides.
    """

    source: TableSchema
    target: TableSchema
    chunk: Chunk
    rule: RowRule | None = None

    @property
    def shape(self) -> TableSchema:
        """The table as the target is to have it."""
        return self.source if self.rule is None else self.rule.table
