"""What a ledger tells of an apply process beyond its state: by apply server, by table, and its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from penstock.apply.table_counts import TableOp
from penstock.change import TableName
from penstock.position import Scn

MOST_QUEUED_COUNTS = 1000
"""A queue that holds more kinds of errors is a storm, and what counts kinds is to stay small."""


@dataclass(frozen=True)
class ServerDetail:
    """What one apply server has done, in all runs.

    Attributes:
        errors, held: Transactions that it put into the error queue, and behind entries of it.
        conflicts, resolved: Conflicts that it met, and resolved.
    """

    server: int
    transactions: int
    changes: int
    errors: int
    held: int
    conflicts: int
    resolved: int


@dataclass(frozen=True)
class TableDetail:
    """Where a table stands.

    Attributes:
        table: Its name at the target.
        copied_at: The position that its first copy is as of; None where it has none.
        is_copied: The copy is complete.
        errors: Transactions in the error queue that failed at a change of it.
        conflicts: Entries of the conflict log.
        chunks, chunks_copied: Of its first copy; 0 where it was not cut into chunks yet.
        rows_copied: How many rows these chunks had.
        changes: How many changes runs have applied to it, by operation; those of its partitions included.
        written: Rows that were inserted, updated and deleted in the target's table since the server counts them, its
            copy included, whoever did it; None where the server does not say.
    """

    table: TableName
    copied_at: Scn | None
    is_copied: bool
    errors: int
    conflicts: int
    chunks: int = 0
    chunks_copied: int = 0
    rows_copied: int = 0
    written: int | None = None
    changes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class QueuedCount:
    """How many transactions of the error queue have a table, an error and a state in common.

    Attributes:
        table: Of the change that failed, by its name at the target; None where none did.
        error: The error's number, or, where it has none, the target's own code.
        state: `failed`, or `held` behind another.
    """

    table: TableName | None
    error: str
    state: str
    entries: int


@dataclass(frozen=True)
class ParameterDetail:
    """A parameter as the next batch takes it: `set_by`, `set_at` where it was set by `penstock apply set`."""

    name: str
    value: str
    set_by: str | None
    set_at: datetime | None


@dataclass(frozen=True)
class Detail:
    """All of it, each in the order of its names."""

    servers: Sequence[ServerDetail]
    tables: Sequence[TableDetail]
    parameters: Sequence[ParameterDetail]

    @property
    def changes(self) -> Mapping[TableOp, int]:
        """How many changes runs have applied, by table and operation."""
        return {(one.table, op): number for one in self.tables for op, number in one.changes.items()}

    def to_json(self) -> dict[str, Any]:
        """The same as plain data; an interface, see docs/cli.md."""
        plain = asdict(self)
        for table, one in zip(plain["tables"], self.tables, strict=True):
            table["table"] = str(one.table)
        for parameter in plain["parameters"]:
            parameter["set_at"] = parameter["set_at"].isoformat() if parameter["set_at"] else None
        return plain
