"""The copies of tables that an archive holds, as the first copy of a target: a data file is a chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from penstock import change as c
from penstock.archive import Archive
from penstock.change import Op, TableName
from penstock.errors import MalformedInputError
from penstock.formats.archive_log import DataFile
from penstock.formats.change_file import decode
from penstock.images import parse_images
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk, Range
from penstock.snapshot.instantiate import CopyOrigin, HeldSnapshot
from penstock.snapshot.task import ChunkLoader, ChunkReader
from penstock.stream import StoredCopy
from penstock.values import decode_image


class StoredOrigin:
    """Implements `snapshot.instantiate.CopyOrigin` for one copy, whose files never change."""

    def __init__(self, archive: Archive, copy: StoredCopy) -> None:
        """Read a copy of an archive."""
        self._archive = archive
        self._copy = copy

    @contextmanager
    def hold_snapshot(self) -> Iterator[HeldSnapshot]:
        """Name the copy; there is nothing that would have to be held."""
        yield HeldSnapshot(self._copy.id, "", self._copy.cut)

    def cut_into_chunks(self, tables: Sequence[TableName]) -> list[Chunk]:
        """Return a chunk for each file of each of the tables; one for a table that had no rows."""
        files = _files(self._archive, self._copy.id)
        return [
            Chunk(table, number, size_bytes=file.size_bytes if file is not None else 0)
            for table in tables
            for number, file in enumerate(files[table] or [None])
        ]

    def can_resume(self, table: TableName, snapshot: str) -> bool:
        """Whether the files that are still missing are those of a copy that is there."""
        return snapshot == self._copy.id


class CopyReader:
    """Implements `snapshot.task.ChunkReader`: the chunks are those that `StoredOrigin` cuts."""

    def __init__(self, archive: Archive, copy: str) -> None:
        """Read the copy of this id; nothing is touched yet."""
        self._archive = archive
        self._copy = copy
        self._known: Mapping[TableName, Sequence[DataFile]] | None = None

    def read_chunk(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file; of the columns those that the table had when it was copied.

        Raises:
            MalformedInputError: The file was altered or cut short, or holds something else.
            OperatorError: It is missing.
        """
        rows = self._rows(table, chunk)
        if rows is None:
            return
        images = rows[c.AFTER]
        first = decode_image(images[0].as_py())
        # A table that had no columns: one of those that it has now, for the rows to be counted by.
        there = [name for name in columns if name in first] or columns[:1]
        texts = parse_images(images, there)
        yield pa.record_batch([texts[name] for name in there], names=there)

    def count_rows(self, table: TableSchema, chunk: Chunk) -> int:
        """Return how many rows a file has."""
        rows = self._rows(table, chunk)
        return 0 if rows is None else int(rows.num_rows)

    def raw_form(self, table: TableSchema) -> None:
        """No target takes change files as they are."""

    def read_raw(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> NoReturn:
        """Raise: no target takes change files as they are."""
        raise NotImplementedError

    def adopt(self, compared: Range, session: ChunkLoader) -> NoReturn:
        """Raise: rows that are at the target already are not compared with an archive."""
        raise NotImplementedError

    def close(self) -> None:
        """Close nothing: no file stays open."""

    def _rows(self, table: TableSchema, chunk: Chunk) -> pa.RecordBatch | None:
        if self._known is None:
            self._known = _files(self._archive, self._copy)
        files = self._known[chunk.table]
        if not files:
            return None
        file = files[chunk.number]
        where = f"{self._archive.label}/{file.name}, copy of {table.name} at position {file.first}"
        batch = decode(self._archive.read_file(file), self._archive.header.encoding, where=where)
        is_copy = pc.all(
            pc.and_(
                pc.equal(batch[c.OP], Op.SNAPSHOT.value),
                pc.and_(
                    pc.equal(batch[c.SCHEMA_NAME], table.name.schema), pc.equal(batch[c.TABLE_NAME], table.name.name)
                ),
            )
        ).as_py()
        if batch.num_rows != file.changes or not is_copy or batch[c.AFTER].null_count:
            raise MalformedInputError("file holds other rows than its record says", where=where)
        return batch


def _files(archive: Archive, copy: str) -> Mapping[TableName, Sequence[DataFile]]:
    """The files of a copy, in the order of the log, for each table that it is of."""
    found: dict[TableName, list[DataFile]] = {}
    for part in archive.newest_definitions().copies:
        if part.copy == copy:
            found.setdefault(part.table, []).extend(part.files)
    return found


_: type[CopyOrigin] = StoredOrigin
__: type[ChunkReader] = CopyReader
