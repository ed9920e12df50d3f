"""The log of conflicts that were resolved, as it is read; holds no value of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from penstock.change import TableName
from penstock.position import Scn


@dataclass(frozen=True)
class LoggedConflict:
    """What a resolver, or a rule for an error, did to one list of columns of one change.

    Attributes:
        resolved_at: When the target transaction began that did it.
        table: By its name at the target.
        row_is: `exists` or `missing`, see `conflict_methods.ConflictKind`; None for an error.
        outcome: `applied`, `discarded`, `merged` or `recorded`.
        message_number: The change in its transaction, counted from 1.
    """

    id: int
    resolved_at: datetime
    table: TableName
    op: str
    error_number: int
    row_is: str | None
    method: str
    outcome: str
    columns: Sequence[str]
    txn_id: str
    commit_scn: Scn
    message_number: int

    def to_json(self) -> dict[str, Any]:
        """The same as plain data; an interface, see docs/cli.md."""
        return asdict(self) | {"table": str(self.table), "resolved_at": self.resolved_at.isoformat()}


@dataclass(frozen=True)
class ConflictFilter:
    """Which entries are meant, the newest first.

    Attributes:
        is_meant: Tables, by their names at the target.
        since, until: Resolved at this time, or later; at this time, or earlier.
        methods, outcomes: One of them; empty means any.
        most: At most so many; None: all.
    """

    is_meant: Callable[[TableName], bool] = lambda _: True
    since: datetime | None = None
    until: datetime | None = None
    methods: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    most: int | None = None
