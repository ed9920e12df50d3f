"""Slices of an archive as change-stream batches: one data file at a time, whole transactions, nothing of a bad file.

That a file is there, and is the one that was published, `penstock.archive` checks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import change as c
from penstock.archive import Archive
from penstock.change import NO_VERSION, TableName
from penstock.errors import MalformedInputError
from penstock.formats.archive_log import CopiedPart, DataFile
from penstock.formats.change_file import decode
from penstock.position import Scn
from penstock.stream import Slice, TableVersion
from penstock.text import count


@dataclass(frozen=True)
class ArchiveSlice(Slice):
    """Transactions of an archive.

    Attributes:
        files: The data files that hold them, in commit order; perhaps with other transactions, too.
    """

    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class Era:
    """From a copy on, the changes under a name are those of the table that the copy is of.

    Attributes:
        position: The copy's position.
        versions: Ids of that table's versions; None where they are not told apart, as those of partitions.
    """

    position: Scn
    versions: frozenset[int] | None


Eras = Mapping[TableName, Sequence[Era]]
"""By the names of tables and partitions, oldest first; a name without any has no rows that changes could be of."""


def eras_of(tables: Iterable[TableVersion], copies: Iterable[CopiedPart]) -> Eras:
    """Say of which table the changes under each name are, from which position on.

    Another table may take a name, and a table another name: changes that were committed before their table was copied
    under the name would change rows that are not there, and the copy holds what they did.

    Args:
        copies: The parts of whole copies, oldest first.
    """
    tables = list(tables)
    versions: dict[int, set[int]] = {}
    for version in tables:
        versions.setdefault(version.id, set()).add(version.table.version)
    eras: dict[TableName, list[Era]] = {}
    for copy in copies:
        if copy.is_complete:
            eras.setdefault(copy.table, []).append(Era(copy.position, frozenset(versions.get(copy.id, ()))))
    partitions = {v.table.name: v.root for v in tables if v.is_partition}
    for name, root in partitions.items():
        if name not in eras:
            eras[name] = [Era(era.position, None) for era in eras.get(root, ())]
    return eras


class FileReader:
    """Reads the changes of an archive, in whichever process it has travelled to."""

    def __init__(
        self,
        archive: Archive,
        *,
        source: str | None = None,
        follows: Collection[TableName] | None = None,
        eras: Eras | None = None,
    ) -> None:
        """Read from an archive; nothing is touched yet.

        Args:
            source: What the column of that name says; what the archive says, if it is not given.
            follows: The tables whose changes `read` yields; all of them, if it is not given.
            eras: `read` leaves out changes that are not of the table whose copy stands under their name.
        """
        self._archive = archive
        self._source = source
        self._follows = follows
        self._eras = eras
        # Windows of a slice follow each other in the same file.
        self._last: tuple[str, pa.RecordBatch] | None = None

    def open(self) -> None:
        """Make sure that the archive can be read."""
        _ = self._archive.header

    @property
    def leaves_out(self) -> bool:
        """Whether some changes of a slice, which it counts, are of tables that this reader does not follow."""
        return self._follows is not None or self._eras is not None

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
            yield self._in_place(self._followed(batch), part.after)
        wrong = np.flatnonzero(seen != part.changes)
        if len(wrong):
            at = int(wrong[0])
            raise MalformedInputError(
                f"transaction has {count(seen[at], 'change')} in the archive's files where its record says"
                f" {part.changes[at]}",
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
        """The changes of the tables that the reader follows, under the name that it gives the source."""
        if (follows := self._follows) is not None:
            batch = only_tables(batch, lambda table: table in follows)
        if self._source is not None:
            at = batch.schema.get_field_index(c.SOURCE)
            batch = batch.set_column(at, batch.schema.field(at), pa.repeat(self._source, batch.num_rows))
        return batch

    def _in_place(self, batch: pa.RecordBatch, after: Scn) -> pa.RecordBatch:
        """The changes of copied tables in a batch that lies between a position and the next copy."""
        if (eras := self._eras) is None:
            return batch

        def is_meant(table: TableName, version: int) -> bool:
            era = next((era for era in reversed(eras.get(table, ())) if era.position <= after), None)
            return era is not None and (era.versions is None or version == NO_VERSION or version in era.versions)

        return _only(batch, is_meant)

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
    return _only(batch, lambda table, _: is_meant(table))


def _only(batch: pa.RecordBatch, is_meant: Callable[[TableName, int], bool]) -> pa.RecordBatch:
    """The changes of a batch whose table and version are meant."""
    schemas, names = (batch[name].dictionary_encode() for name in (c.SCHEMA_NAME, c.TABLE_NAME))
    # One number for each pair of schema and name, and below it the version's 32 bits.
    named = schemas.indices.to_numpy().astype(np.int64) * len(names.dictionary) + names.indices.to_numpy()
    code = (named << 32) | batch[c.TABLE_VERSION].to_numpy().astype(np.int64)
    distinct, inverse = np.unique(code, return_inverse=True)

    def meant_by(code: int) -> bool:
        schema, name = divmod(code >> 32, len(names.dictionary))
        table = TableName(schemas.dictionary[schema].as_py(), names.dictionary[name].as_py())
        return is_meant(table, code & 0xFFFFFFFF)

    meant = np.array([meant_by(int(value)) for value in distinct], bool)
    return batch if meant.all() else batch.filter(pa.array(meant[inverse]))


def _count(batch: pa.RecordBatch, scns: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many changes of a batch each of the transactions at `scns` has."""
    at = np.searchsorted(batch[c.COMMIT_SCN].to_numpy(), np.stack([scns - 1, scns]), side="right")
    counts: NDArray[np.int64] = at[1] - at[0]
    return counts
