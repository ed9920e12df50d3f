"""The rows of a connector's first snapshot, as the first copy of a target: a chunk is a range of offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

import pyarrow as pa

from penstock.change import TableName
from penstock.formats.debezium.decode import DecodeSettings
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk, Range
from penstock.snapshot.instantiate import CopyOrigin, HeldSnapshot
from penstock.snapshot.task import ChunkLoader, ChunkReader
from penstock.sources.debezium.index import OffsetRange
from penstock.sources.debezium.log import Partition, RecordLog
from penstock.sources.debezium.tables import EventDecoder
from penstock.stream import StoredCopy

_CHUNK_RECORDS = 50_000
_BATCH_ROWS = 10_000


class SnapshotRows:
    """Implements `snapshot.instantiate.CopyOrigin` for the rows of a snapshot, which stay where they are."""

    def __init__(
        self, copy: StoredCopy, rows: Mapping[TableName, Sequence[OffsetRange]], partitions: Sequence[Partition]
    ) -> None:
        """Stand for a snapshot whose rows lie in these ranges of offsets."""
        self._copy = copy
        self._rows = rows
        self._partitions = partitions

    @contextmanager
    def hold_snapshot(self) -> Iterator[HeldSnapshot]:
        """Name the copy; there is nothing that would have to be held."""
        yield HeldSnapshot(self._copy.id, "", self._copy.cut)

    def cut_into_chunks(self, tables: Sequence[TableName]) -> list[Chunk]:
        """Cut the ranges of each table into chunks, whose bounds are offsets; one for a table without rows."""
        return [
            Chunk(table, number, *bounds)
            for table in tables
            for number, bounds in enumerate([*self._bounds(self._rows.get(table, ()))] or [(None, None)])
        ]

    def can_resume(self, table: TableName, snapshot: str) -> bool:
        """Whether the chunks that are still missing are of this snapshot."""
        return snapshot == self._copy.id

    def _bounds(self, runs: Sequence[OffsetRange]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        for run in runs:
            topic, number = self._partitions[run.partition]
            for first in range(run.first, run.end, _CHUNK_RECORDS):
                end = min(first + _CHUNK_RECORDS, run.end)
                yield (topic, str(number), str(first)), (topic, str(number), str(end))


class EventChunks:
    """Implements `snapshot.task.ChunkReader`: the chunks are those that `SnapshotRows` cuts."""

    def __init__(self, log: RecordLog, settings: DecodeSettings, *, skips: bool) -> None:
        """Read from a log; nothing is touched yet.

        Args:
            skips: Records that are no events are passed over.
        """
        self._log = log
        self._settings = settings
        self._skips = skips

    def read_chunk(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of offsets, columns of canonical text.

        Raises:
            MalformedInputError: A record is not an event.
            OperatorError: Some of them are gone.
        """
        rows: list[Mapping[str, str | None]] = []
        for row in self._rows(table, chunk):
            rows.append(row)
            if len(rows) == _BATCH_ROWS:
                yield _batch(rows, columns)
                rows = []
        if rows:
            yield _batch(rows, columns)

    def count_rows(self, table: TableSchema, chunk: Chunk) -> int:
        """Return how many rows a range has."""
        return sum(1 for _ in self._rows(table, chunk))

    def raw_form(self, table: TableSchema) -> None:
        """No target takes events as they are."""

    def read_raw(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> NoReturn:
        """Raise: no target takes events as they are."""
        raise NotImplementedError

    def adopt(self, compared: Range, session: ChunkLoader) -> NoReturn:
        """Raise: rows that are at the target already are not compared with events."""
        raise NotImplementedError

    def close(self) -> None:
        """Close nothing."""

    def _rows(self, table: TableSchema, chunk: Chunk) -> Iterator[Mapping[str, str | None]]:
        if chunk.after is None or chunk.upto is None:
            return
        topic, number, first = chunk.after
        records = self._log.read(Partition(topic, int(number)), int(first), int(chunk.upto[2]))
        declared = {table.name: {column.name: column.logical for column in table.columns}}
        decoder = EventDecoder(replace(self._settings, declared=declared), {}, {}, {}, self._skips)
        yield from decoder.rows(records, table.name)


def _batch(rows: Sequence[Mapping[str, str | None]], columns: Sequence[str]) -> pa.RecordBatch:
    # A row of an earlier version of the table lacks some of its columns.
    return pa.record_batch(
        [pa.array([row.get(name) for row in rows], pa.string()) for name in columns], names=list(columns)
    )


_: type[CopyOrigin] = SnapshotRows
__: type[ChunkReader] = EventChunks
