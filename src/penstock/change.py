"""The change stream's vocabulary: one row change, its transaction, and the stream's columns.

Images hold canonical text (see `values`). A column that is *absent* from an image was not captured or
did not change; a column that is *present with None* is SQL NULL. The two are never mixed up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import pyarrow as pa

from penstock.text import printable

SOURCE = "source"
TXN_ID = "txn_id"
COMMIT_SCN = "commit_scn"
CHANGE_SEQ = "change_seq"
TXN_CHANGES = "txn_changes"
SCN = "scn"
COMMITTED_AT = "committed_at"
OP = "op"
SCHEMA_NAME = "schema_name"
TABLE_NAME = "table_name"
TABLE_VERSION = "table_version"
KEY = "key"
BEFORE = "before"
AFTER = "after"
DDL = "ddl"
TAG = "tag"
META = "meta"

ARROW_SCHEMA = pa.schema(
    [
        pa.field(SOURCE, pa.string(), nullable=False),
        pa.field(TXN_ID, pa.string(), nullable=False),
        pa.field(COMMIT_SCN, pa.int64(), nullable=False),
        pa.field(CHANGE_SEQ, pa.int64(), nullable=False),
        pa.field(TXN_CHANGES, pa.int64()),
        pa.field(SCN, pa.int64()),
        pa.field(COMMITTED_AT, pa.timestamp("us", tz="UTC")),
        pa.field(OP, pa.string(), nullable=False),
        pa.field(SCHEMA_NAME, pa.string(), nullable=False),
        pa.field(TABLE_NAME, pa.string(), nullable=False),
        pa.field(TABLE_VERSION, pa.int32(), nullable=False),
        pa.field(KEY, pa.string()),
        pa.field(BEFORE, pa.string()),
        pa.field(AFTER, pa.string()),
        pa.field(DDL, pa.string()),
        pa.field(TAG, pa.string()),
        pa.field(META, pa.string()),
    ]
)
"""The stream as Arrow record batches; `spark.schemas.CHANGES` is the same for Spark."""


NO_VERSION = 0
"""The table version of a gap, which has no image that it would have to tell of."""

Image: TypeAlias = Mapping[str, str | None]


class Op(StrEnum):
    """What happened to the row, or to the table; a gap says that something did, and why it was not captured.

    A message is what an application said in the midst of its transaction.
    """

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    GAP = "gap"
    SNAPSHOT = "snapshot"
    DDL = "ddl"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table as its database spells it; never folded, never quoted. As text it is for people only."""

    schema: str
    name: str

    def __str__(self) -> str:
        return printable(f"{self.schema}.{self.name}")

    @property
    def key(self) -> str:
        """A text that no other table has: a schema may be called `a.b`, and a table `b.c`."""
        schema = self.schema.replace("\\", "\\\\").replace(".", "\\.")
        return f"{schema}.{self.name}"


MESSAGES = TableName("penstock", "message")
"""Stands where a change has its table, for messages, which are of none; no table of a user has this name."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row change, as the source committed it (an LCR).

    `before` is None for inserts, `after` is None for deletes, both are None for truncates. An update's
    `after` holds the columns that changed; `before` holds every column the source captured. A message has no row: its
    `before` holds what it says.
    """

    change_seq: int
    op: Op
    table: TableName
    table_version: int
    before: Image | None
    after: Image | None


@dataclass(frozen=True, slots=True)
class Transaction:
    """Changes that committed together, in the order the source made them.

    `commit_scn` orders the transactions of one source and never repeats.
    """

    commit_scn: int
    txn_id: str
    committed_at_us: int | None
    changes: Collection[Change]
