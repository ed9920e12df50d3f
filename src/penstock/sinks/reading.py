"""What every output that publishes reads from a source: changes in commit order, and the rows of a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from penstock import change as c
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk
from penstock.snapshot.task import ChunkReader


def in_commit_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put changes into commit order; those of one transaction come in order."""
    rows = pa.Table.from_batches(batches, c.ARROW_SCHEMA).combine_chunks()
    order = np.argsort(rows[c.COMMIT_SCN].to_numpy(), kind="stable")
    yield from rows.take(pa.array(order)).to_batches()


def read_rows(reader: ChunkReader, table: TableSchema, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a chunk as columns of canonical text; a table without columns has rows, too."""
    if table.columns:
        yield from reader.read_chunk(table, table.column_names, chunk)
    else:
        rows = reader.count_rows(table, chunk)
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
