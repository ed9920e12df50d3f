"""What a run has done so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.apply.batch import AppliedBatch
from penstock.apply.lag_histogram import LagHistogram
from penstock.apply.lane import LaneResult
from penstock.apply.table_counts import TableCounts
from penstock.position import Scn


@dataclass
class Progress:
    """What a run has done so far, for status and logs.

    Attributes:
        errors: Transactions that it put into the error queue.
        in_queue: How many transactions the error queue holds now, those of earlier runs and those held included.
        held: How many of these wait behind others.
        went_on: Transactions that had waited, and were applied by this run.
        left_out: Tables that the run went on without, as they cannot be copied, or setup has not taken them in.
        ended_by: The limit that ended the run before it had done what it was to do; None otherwise.
        lag: Of transactions that were committed while the run was at work. Of earlier ones it would tell how long ago
            somebody made them, and not how long apply takes.
        tables: What was applied, by table and operation.
        resolutions: Conflicts by what was met and what became of it, see `LaneResult.resolutions`.
        last_batch: What the last batch came to; None where it had no transaction.
        as_of: When the last transaction that was applied was committed at the source.
    """

    position: Scn
    transactions: int = 0
    changes: int = 0
    set_changes: int = 0
    row_changes: int = 0
    errors: int = 0
    conflicts: int = 0
    resolved: int = 0
    in_queue: int = 0
    held: int = 0
    went_on: int = 0
    left_out: Sequence[str] = ()
    ended_by: str | None = None
    lag: LagHistogram = field(default_factory=LagHistogram)
    tables: TableCounts = field(default_factory=TableCounts)
    resolutions: Counter[tuple[str, str]] = field(default_factory=Counter)
    last_batch: AppliedBatch | None = None
    as_of: datetime | None = None
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def is_behind_its_start(self) -> bool:
        """Whether what is applied is of a time before the run began."""
        return self.as_of is not None and self.as_of < self.began_at

    def add(self, results: Sequence[LaneResult], as_of: datetime | None = None) -> None:
        """Count the results of a batch, whose last transaction was committed at `as_of`."""
        age_s = (datetime.now(UTC) - self.began_at).total_seconds()
        self.as_of = as_of or self.as_of
        for result in results:
            self.transactions += result.transactions
            self.changes += result.changes
            self.set_changes += result.set_changes
            self.row_changes += result.row_changes
            self.errors += result.errors
            self.conflicts += result.conflicts
            self.resolved += result.resolved
            self.tables.add(result.tables)
            self.resolutions.update(result.resolutions)
            self.lag.merge(result.lag.buckets, most_s=age_s)
