"""What a run of this process has counted: an observer that does nothing but count."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.apply.batch import Phase
from penstock.apply.error_queue import ErrorEntry
from penstock.apply.lag_histogram import LagHistogram
from penstock.apply.listener import RunObserver
from penstock.apply.progress import Progress
from penstock.apply.table_counts import TableOp
from penstock.change import TableName
from penstock.errors import RetryableError

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of all histograms."""

MOST_SERIES = 1000
"""Labels of errors beyond so many combinations are counted together, as `other`."""


@dataclass
class Histogram:
    """Counts of durations; `buckets[n]` are those of at most `SECONDS[n]`, and the last one holds all longer ones."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.buckets[bisect_left(SECONDS, seconds)] += 1
        self.total_s += seconds


@dataclass(frozen=True)
class RunCounts:
    """The numbers of one moment; nobody changes them any more.

    Attributes:
        lanes: Of the last batch.
        busy_s: How long lanes were at work, by their numbers.
        errors: Transactions that went to the error queue, by table and error.
        chunks, copied_chunks, copied_rows: Of first copies: to copy, and copied.
        retries: How often a server was found out of reach.
    """

    changes: dict[TableOp, int]
    transactions: dict[TableOp, int]
    resolutions: dict[tuple[str, str], int]
    phases: dict[Phase, Histogram]
    lag: dict[int, int]
    lanes: int
    busy_s: dict[int, float]
    errors: dict[tuple[str, str], int]
    chunks: int
    copied_chunks: int
    copied_rows: int
    retries: int


class RunMetrics(RunObserver):
    """Counts what a run does; any thread may ask for `counts`."""

    def __init__(self, pipeline: str) -> None:
        """Count a run of the pipeline of this name."""
        self.pipeline = pipeline
        self.began_at = time.time()
        self._lock = threading.Lock()
        self._changes: dict[TableOp, int] = {}
        self._transactions: dict[TableOp, int] = {}
        self._resolutions: dict[tuple[str, str], int] = {}
        self._lag: dict[int, int] = {}
        self._phases = {phase: Histogram() for phase in Phase}
        self._lanes = 0
        self._busy_s: dict[int, float] = {}
        self._errors: Counter[tuple[str, str]] = Counter()
        self._chunks = self._copied_chunks = self._copied_rows = 0
        self._retries = 0

    def counts(self) -> RunCounts:
        """Return the numbers as they stand; waits for no batch."""
        with self._lock:
            return RunCounts(
                # The dictionaries of a moment are replaced, and not changed.
                changes=self._changes,
                transactions=self._transactions,
                resolutions=self._resolutions,
                phases={phase: Histogram(list(one.buckets), one.total_s) for phase, one in self._phases.items()},
                lag=self._lag,
                lanes=self._lanes,
                busy_s=dict(self._busy_s),
                errors=dict(self._errors),
                chunks=self._chunks,
                copied_chunks=self._copied_chunks,
                copied_rows=self._copied_rows,
                retries=self._retries,
            )

    def by_table(self) -> dict[TableName, dict[str, int]]:
        """Return how many changes of each table the run has applied, or published, by operation."""
        found: dict[TableName, dict[str, int]] = {}
        for (table, op), number in sorted(self.counts().changes.items()):
            found.setdefault(table, {})[op] = number
        return found

    def copying(self, chunks: int, tables: int) -> None:
        """So many more chunks are to be copied."""
        with self._lock:
            # What an attempt that broke off has left is counted again.
            self._chunks = self._copied_chunks + chunks

    def copied(self, chunks: int, rows: int) -> None:
        """So many more chunks are committed."""
        with self._lock:
            self._copied_chunks += chunks
            self._copied_rows += rows

    def retrying(self, error: RetryableError, left_s: float | None) -> None:
        """A server is out of reach."""
        with self._lock:
            self._retries += 1

    def queued(self, entry: ErrorEntry) -> None:
        """A transaction went to the error queue."""
        key = str(entry.table) if entry.table else "", str(entry.error_number or entry.error_code or "")
        with self._lock:
            if key not in self._errors and len(self._errors) >= MOST_SERIES:
                key = "other", "other"
            self._errors[key] += 1

    def progressed(self, progress: Progress) -> None:
        """A batch is applied; the run changes `progress` later on, so what counts is copied."""
        changes, transactions = dict(progress.tables.changes), dict(progress.tables.transactions)
        resolutions, lag = dict(progress.resolutions), dict(progress.lag.buckets)
        batch = progress.last_batch
        with self._lock:
            self._changes, self._transactions = changes, transactions
            self._resolutions, self._lag = resolutions, lag
            if batch is None:
                return
            self._lanes = len(batch.results)
            for phase, interval in batch.phases.items():
                self._phases[phase].add(interval.seconds)
            for one in batch.results:
                self._busy_s[one.lane] = self._busy_s.get(one.lane, 0.0) + (one.ended_ns - one.began_ns) / 1e9


def lag_histogram(buckets: dict[int, int]) -> Histogram:
    """Put the fine buckets of a run's lag into those of the metric; a lag counts as the upper end of its bucket."""
    found = Histogram()
    for number, count in buckets.items():
        seconds = LagHistogram.upper_s(number)
        found.buckets[bisect_left(SECONDS, seconds)] += count
        found.total_s += seconds * count
    return found


def cumulated(histogram: Histogram) -> Sequence[tuple[str, float]]:
    """The buckets as Prometheus has them: each holds all shorter ones."""
    bounds = [*map(str, SECONDS), "+Inf"]
    found, total = [], 0
    for bound, count in zip(bounds, histogram.buckets, strict=True):
        total += count
        found.append((bound, float(total)))
    return found
