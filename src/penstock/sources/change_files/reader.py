"""Slices of an archive as change-stream batches: one data file at a time, whole transactions, nothing of a bad file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import change as c
from penstock.archive import Archive
from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.formats.archive_log import DataFile
from penstock.formats.change_file import decode
from penstock.position import Scn
from penstock.stream import Slice


@dataclass(frozen=True)
class ArchiveSlice(Slice):
    """Transactions of an archive.

    Attributes:
        files: The data files that hold them, in commit order; perhaps with other transactions, too.
    """

    files: tuple[DataFile, ...] = ()


class FileReader:
    """Reads the changes of an archive, in whichever process it has travelled to."""

    def __init__(
        self, archive: Archive, *, source: str | None = None, follows: Collection[TableName] | None = None
    ) -> None:
        """Read from an archive; nothing is touched yet.

        Args:
            source: What the column of that name says; what the archive says, if it is not given.
            follows: The tables whose changes `read` yields; all of them, if it is not given.
        """
        self._archive = archive
        self._source = source
        self._follows = follows
        # Windows of a slice follow each other in the same file.
        self._last: tuple[str, pa.RecordBatch] | None = None

    def open(self) -> None:
        """Make sure that the archive can be read."""
        _ = self._archive.header

    @property
    def leaves_out(self) -> bool:
        """Whether some changes of a slice, which it counts, are of tables that this reader does not follow."""
        return self._follows is not None

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice in commit order; their keys are in the files, and cost nothing.

        Raises:
            MalformedInputError: A file was altered or cut short, or holds other changes than its record says.
            OperatorError: A file is missing, or this user may not read it.
        """
        if not isinstance(part, ArchiveSlice):
            raise TypeError(part)
        seen = np.zeros(len(part), np.int64)
        for batch in self.read_files(part.files, part.after, part.end):
            seen += _count(batch, part.commit_scns)
            yield self._followed(batch)
        wrong = np.flatnonzero(seen != part.changes)
        if len(wrong):
            at = int(wrong[0])
            raise MalformedInputError(
                f"transaction has {seen[at]} changes in the archive's files where its record says {part.changes[at]}",
                where=f"{self._archive.label}, position {part.commit_scns[at]}",
                do="publish to a new path, with a new first copy",
            )

    def read_files(self, files: Iterable[DataFile], after: Scn, upto: Scn) -> Iterator[pa.RecordBatch]:
        """Yield the changes of data files that lie behind a position, and not behind another; raises as `read` does."""
        for file in files:
            if after < file.last and file.first <= upto:
                batch = self._decoded(file)
                # Rows come in commit order.
                low, high = np.searchsorted(batch[c.COMMIT_SCN].to_numpy(), [after, upto], side="right").tolist()
                if low < high:
                    yield batch.slice(low, high - low)

    def read_followed(self, files: Iterable[DataFile], after: Scn, upto: Scn) -> Iterator[pa.RecordBatch]:
        """Yield the same, of the tables that the reader follows and under the name that it gives the source."""
        return map(self._followed, self.read_files(files, after, upto))

    def _followed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What of a batch is of the tables that the reader follows, under the name that it gives the source."""
        if (follows := self._follows) is not None:
            batch = only_tables(batch, lambda table: table in follows)
        if self._source is not None:
            at = batch.schema.get_field_index(c.SOURCE)
            batch = batch.set_column(at, batch.schema.field(at), pa.repeat(self._source, batch.num_rows))
        return batch

    def _decoded(self, file: DataFile) -> pa.RecordBatch:
        if self._last is None or self._last[0] != file.name:
            where = f"{self._archive.label}/{file.name}, positions {file.first} to {file.last}"
            batch = decode(self._archive.read_file(file), self._archive.header.encoding, where=where)
            scns = batch[c.COMMIT_SCN].to_numpy()
            is_whole = len(scns) == file.changes and bool((np.diff(scns) >= 0).all())
            if not is_whole or (int(scns[0]), int(scns[-1])) != (file.first, file.last):
                raise MalformedInputError("file holds other changes than its record says", where=where)
            self._last = file.name, batch
        return self._last[1]


def only_tables(batch: pa.RecordBatch, is_meant: Callable[[TableName], bool]) -> pa.RecordBatch:
    """The changes of a batch that are of tables which are meant."""
    schemas, names = (batch[name].dictionary_encode() for name in (c.SCHEMA_NAME, c.TABLE_NAME))
    # One number for each pair of schema and name.
    code = schemas.indices.to_numpy().astype(np.int64) * len(names.dictionary) + names.indices.to_numpy()
    distinct, inverse = np.unique(code, return_inverse=True)
    pairs = (divmod(int(value), len(names.dictionary)) for value in distinct)
    tables = (TableName(schemas.dictionary[schema].as_py(), names.dictionary[name].as_py()) for schema, name in pairs)
    meant = np.array([is_meant(table) for table in tables], bool)
    return batch if meant.all() else batch.filter(pa.array(meant[inverse]))


def _count(batch: pa.RecordBatch, scns: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many changes of a batch each of the transactions at `scns` has."""
    at = np.searchsorted(batch[c.COMMIT_SCN].to_numpy(), np.stack([scns - 1, scns]), side="right")
    counts: NDArray[np.int64] = at[1] - at[0]
    return counts
