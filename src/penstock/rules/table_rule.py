"""One rule, made for one version of a table: rows of the source's shape in, rows of the target's out."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.schema import TableSchema


@dataclass(frozen=True)
class TableRule:
    """What becomes of one version of a table. Travels to tasks.

    Attributes:
        source: The version of the table at the source.
        table: What the target is to have: its name, columns and keys, and the version that changes come out with.
        keeps_key: The primary key of both is the same columns, at most under other names: what is a range of keys at
            the source is the same range at the target.
    """

    source: TableSchema
    table: TableSchema
    keeps_key: bool

    def changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what becomes of changes of this version of the table, in the same order; fewer may come out.

        Args:
            batch: Rows of the change stream (`change.ARROW_SCHEMA`).
        """
        raise NotImplementedError

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what becomes of rows of the table: the target's columns, of those rows that are to be there.

        Args:
            batch: Columns of canonical text under their names at the source.
        """
        raise NotImplementedError
