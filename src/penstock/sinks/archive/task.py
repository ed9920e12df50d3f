"""The two tasks of publishing: write the changes of a slice, and write chunks of a first copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
import pyarrow as pa

from penstock import change as c
from penstock.change import Op, TableName
from penstock.formats.archive_log import DataFile
from penstock.images import build_images
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.sinks.archive.files import FileWriter, WrittenFiles
from penstock.sinks.reading import in_commit_order, read_rows
from penstock.snapshot.chunk import Chunk, CopySource
from penstock.snapshot.task import SourceAccess, about
from penstock.stream import Reader, Slice

_WINDOW_CHANGES = 100_000
_WINDOW_BYTES = 32 * 1024 * 1024
"""How much of a slice is put in commit order at a time."""


def publish_slice(part: Slice, reader: Reader, writer: FileWriter) -> WrittenFiles:
    """Write the changes of a slice; raises what reading and writing do."""
    if part.is_large:
        return writer.write_changes(reader.read(part))
    windows = part.windows(repeat(_WINDOW_CHANGES), _WINDOW_BYTES)
    return writer.write_changes(chain.from_iterable(in_commit_order(reader.read(window)) for window in windows))


@dataclass(frozen=True)
class CopyTask:
    """What is the same for all chunks of a copy.

    Attributes:
        source_name: What the column `source` says.
        access: How tasks reach the source.
        tables: The tables as they are at the source.
        position: That the copy is as of.
    """

    source_name: str
    access: SourceAccess
    tables: Mapping[TableName, TableSchema]
    position: Scn
    writer: FileWriter

    def write(self, chunks: Sequence[Chunk], source: CopySource) -> list[tuple[TableName, list[DataFile]]]:
        """Write the rows of chunks as `snapshot` changes; returns the files of each chunk."""
        with closing(self.access.chunk_reader(source)) as reader:
            found = []
            for chunk in chunks:
                table = self.tables[chunk.table]
                rows = read_rows(reader, table, chunk)
                with about(chunk.table):
                    found.append((chunk.table, self.writer.write_copy(self._as_changes(table, rows))))
            return found

    def _as_changes(self, table: TableSchema, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if batch.num_rows:
                yield self._changes(table, batch)

    def _changes(self, table: TableSchema, rows: pa.RecordBatch) -> pa.RecordBatch:
        n = rows.num_rows
        texts = dict(zip(rows.schema.names, rows.columns, strict=True))
        key = {name: texts[name] for name in table.primary_key.columns} if table.primary_key else {}
        columns = {
            c.SOURCE: pa.repeat(self.source_name, n),
            c.TXN_ID: pa.repeat("snapshot", n),
            c.COMMIT_SCN: pa.repeat(pa.scalar(int(self.position), pa.int64()), n),
            c.CHANGE_SEQ: pa.array(np.arange(n), pa.int64()),
            c.OP: pa.repeat(Op.SNAPSHOT.value, n),
            c.SCHEMA_NAME: pa.repeat(table.name.schema, n),
            c.TABLE_NAME: pa.repeat(table.name.name, n),
            c.TABLE_VERSION: pa.repeat(pa.scalar(table.version, pa.int32()), n),
            c.KEY: build_images(key, {}) if key else pa.nulls(n, pa.string()),
            c.AFTER: build_images(texts, {}) if texts else pa.repeat("{}", n),
        }
        return pa.record_batch(
            [columns[f.name] if f.name in columns else pa.nulls(n, f.type) for f in c.ARROW_SCHEMA],
            schema=c.ARROW_SCHEMA,
        )
