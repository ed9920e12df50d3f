"""The settings of an apply server, and the result of a lane."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.apply.conflict_methods import ConflictRules
from penstock.apply.ddl import DdlRules
from penstock.apply.handlers.settings import NO_HANDLERS, HandlerSettings
from penstock.apply.lag_histogram import LagHistogram
from penstock.apply.table_counts import TableCounts
from penstock.change import TableName
from penstock.errors import PenstockError, from_json


@dataclass(frozen=True)
class ServerConfig:
    """How an apply server works.

    Attributes:
        group_changes: A target transaction takes whole source transactions until it holds so many changes; the first
            ones of a batch fewer, see `group_sizes`.
        disable_on_error: Stop after the first transaction that goes to the error queue.
        max_errors: Stop after so many of them; None: never.
        allow_duplicate_rows: See `RowPath`.
        use_set_path: Off, every transaction goes by the row path; the outcome is the same.
        conflicts: How conflicts are found and resolved, and what is done about errors.
        ignored: Ids of transactions at the source whose changes are left out; they count as applied.
        handlers: What users have done with changes.
        hold_dependents: Transactions that depend on one in the error queue wait behind it.
        ddl: What becomes of alterations of tables.
    """

    group_changes: int = 100_000
    disable_on_error: bool = False
    max_errors: int | None = None
    allow_duplicate_rows: bool = True
    use_set_path: bool = True
    conflicts: ConflictRules = field(default_factory=ConflictRules)
    ignored: frozenset[str] = frozenset()
    handlers: HandlerSettings = NO_HANDLERS
    hold_dependents: bool = False
    ddl: DdlRules = field(default_factory=DdlRules)


@dataclass
class LaneResult:
    """What one lane of one batch came to."""

    lane: int = 0
    transactions: int = 0
    changes: int = 0
    set_changes: int = 0
    row_changes: int = 0
    target_transactions: int = 0
    errors: int = 0
    held: int = 0
    conflicts: int = 0
    resolved: int = 0
    already_applied: int = 0
    lag: LagHistogram = field(default_factory=LagHistogram)
    aborted_by: str | None = None
    failure: PenstockError | None = None
    failed_tables: set[TableName] = field(default_factory=set)
    """The tables of the transactions that went to the error queue."""
    tables: TableCounts = field(default_factory=TableCounts)
    resolutions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Conflicts by what was met (`exists`, `missing`, `error`) and what became of it; `queued` of those that failed."""
    began_ns: int = 0
    ended_ns: int = 0
    """When the lane was at work, by its machine's clock."""

    def count(self, transactions: int, changes: int, committed_at_us: NDArray[np.int64]) -> None:
        """Count what a target transaction has applied."""
        self.target_transactions += 1
        self.transactions += transactions
        self.changes += changes
        known = committed_at_us[committed_at_us > 0]
        if len(known):
            self.lag.add(time.time_ns() // 1_000 - known)

    def to_json(self) -> str:
        """Write the result as a line that `from_json` reads in another process."""
        plain = {**self.__dict__, "lag": dict(self.lag.buckets), "failure": None, "tables": self.tables.to_plain()}
        plain["resolutions"] = [[*key, number] for key, number in self.resolutions.items()]
        plain["failed_tables"] = [[table.schema, table.name] for table in sorted(self.failed_tables)]
        if self.failure is not None:
            plain["failure"] = self.failure.to_json()
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> LaneResult:
        """Read what `to_json` wrote."""
        plain = json.loads(text)
        lag = LagHistogram()
        lag.merge(plain.pop("lag"))
        failure = plain.pop("failure")
        plain["tables"] = TableCounts.of_plain(plain["tables"])
        plain["resolutions"] = Counter({(met, came): number for met, came, number in plain["resolutions"]})
        plain["failed_tables"] = {TableName(schema, name) for schema, name in plain["failed_tables"]}
        return cls(**plain, lag=lag, failure=from_json(failure) if failure else None)
