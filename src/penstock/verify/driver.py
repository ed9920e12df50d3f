"""The course of verify: are source and target identical, at one position both can be asked for? And of repair.

The target is read in one snapshot together with the ledger, which says what is applied in it. The source is read
as of exactly that, put right from its log where it has moved on. So a row in flight is never a difference, and
whatever differs is compared once more before it is reported, or brought. `task.Comparer` compares ranges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from penstock.change import TableName
from penstock.database import NotCompared
from penstock.errors import RetryableError
from penstock.position import Scn
from penstock.snapshot.chunk import Chunk, Range, bundles
from penstock.verify.compare_rows import Difference
from penstock.verify.task import Comparer, RangeResult

Work = TypeVar("Work")

_WAIT_S = 30
"""How long to wait for the consistency point before looking again at what differed."""


_FEW_BYTES = 64 * 1024 * 1024
"""So little is compared before Spark would have started."""


@dataclass
class TableResult:
    """How a table compares.

    Attributes:
        rows: How many the source has.
        differing: How many rows differ, those not counted that were brought.
        differences: Some of them, or of those that were brought.
        repaired: How many rows were brought.
        queued: Transactions in the error queue that change it: differences may be what they would have done.
    """

    table: TableName
    rows: int = 0
    differing: int = 0
    differences: list[Difference] = field(default_factory=list)
    repaired: int = 0
    queued: int = 0


@dataclass(frozen=True)
class VerifyResult:
    """How all tables compare.

    Attributes:
        unchecked: Tables that were meant and could not be compared, each with the reason.
        unseen: What no table holds, and is not compared.
    """

    tables: Sequence[TableResult]
    unchecked: Sequence[str] = ()
    unseen: Sequence[NotCompared] = ()

    @property
    def is_identical(self) -> bool:
        """Whether no row differs, no table is left out, and the target lacks nothing that was not compared."""
        return self.are_rows_identical and not any(one.is_lacking for one in self.unseen)

    @property
    def are_rows_identical(self) -> bool:
        """Whether no row differs, and no table is left out."""
        return not self.unchecked and not any(table.differing for table in self.tables)


@dataclass(frozen=True)
class CompareContext:
    """What is the same for all ranges.

    Attributes:
        tables: All rows of each table, by its name at the target.
    """

    comparer: Comparer
    tables: Mapping[TableName, Range]

    def compare(self, chunks: Sequence[Chunk]) -> list[RangeResult]:
        """Compare ranges, all at one position; raises as `Comparer` does."""
        return self.comparer.compare([self._range(chunk) for chunk in chunks])

    def repair(self, chunk: Chunk) -> RangeResult:
        """Bring what differs in a range; raises as `Comparer` does."""
        return self.comparer.repair(self._range(chunk))

    def _range(self, chunk: Chunk) -> Range:
        whole = self.tables[chunk.table]
        return replace(whole, chunk=replace(chunk, table=whole.chunk.table))


class RangeJobs(Protocol):
    """Compares ranges side by side."""

    @property
    def at_once(self) -> int:
        """How many bundles of ranges one call should be given."""

    def compare(self, bundles: Sequence[Sequence[Chunk]]) -> Sequence[RangeResult]:
        """Compare bundles of ranges, each at a position of its own; results in any order."""

    def repair(self, chunks: Sequence[Chunk]) -> Sequence[RangeResult]:
        """Bring what differs in ranges, each in a target transaction of its own; results in the order of the ranges."""


class LocalJobs:
    """Implements `RangeJobs` with a few threads: what is compared is done by the databases."""

    at_once = 8

    def __init__(self, context: CompareContext) -> None:
        """Compare with `context`."""
        self._context = context

    def compare(self, bundles: Sequence[Sequence[Chunk]]) -> Sequence[RangeResult]:
        """Compare ranges, a few at a time."""
        with ThreadPoolExecutor(max_workers=2) as threads:
            return [result for results in threads.map(self._context.compare, bundles) for result in results]

    def repair(self, chunks: Sequence[Chunk]) -> Sequence[RangeResult]:
        """Bring what differs, range by range: only one at a time can keep apply out."""
        return [self._context.repair(chunk) for chunk in chunks]


class VerifyListener(Protocol):
    """Hears how a comparison goes, and what keeps it waiting."""

    def compared(self, ranges: int, of: int) -> None:
        """So many ranges are compared, out of so many."""

    def repaired(self, ranges: int, of: int) -> None:
        """So many ranges are the same now, out of so many that were not."""

    def warned(self, text: str) -> None:
        """Something a person should know, though it stops nothing."""


def verify(
    chunks: Sequence[Chunk],
    jobs: RangeJobs,
    listener: VerifyListener,
    *,
    consistency_point: Callable[[], Scn],
    tick: Callable[[], Scn],
    is_running: Callable[[], bool],
    repair: bool = False,
) -> VerifyResult:
    """Compare tables by ranges.

    Args:
        chunks: Ranges that cover the tables.
        consistency_point: Up to which position the target has everything.
        tick: A position that everything committed at the source by now lies at or before.
        repair: Bring the rows that differ, range by range; what is applied waits for one range at a time.
    """
    results = _compare(chunks, jobs, listener, is_running)
    suspects = [result.chunk for result in results if result.differing]
    if suspects:
        _await(tick(), consistency_point, is_running)
        results = _replaced(results, _retrying(jobs.compare, bundles(suspects), is_running))
    tables: dict[TableName, TableResult] = {}
    if repair:
        wrong = [result.chunk for result in results if result.differing]
        for brought in _repair(wrong, jobs, listener, is_running):
            table = tables.setdefault(brought.chunk.table, TableResult(brought.chunk.table))
            table.repaired += brought.differing
            table.differences += brought.differences
        results = _replaced(results, _retrying(jobs.compare, bundles(wrong), is_running))
    for result in sorted(results, key=lambda r: (r.chunk.table, r.chunk.number)):
        table = tables.setdefault(result.chunk.table, TableResult(result.chunk.table))
        table.rows += result.rows
        table.differing += result.differing
        table.differences += result.differences
    return VerifyResult([tables[name] for name in sorted(tables)])


def with_queued(result: VerifyResult, queued: Mapping[TableName, int]) -> VerifyResult:
    """Add how many transactions in the error queue change each table."""
    return replace(result, tables=[replace(table, queued=queued.get(table.table, 0)) for table in result.tables])


def are_few(chunks: Sequence[Chunk]) -> bool:
    """Whether these are compared sooner than Spark starts."""
    sizes = [chunk.size_bytes for chunk in chunks]
    return None not in sizes and sum(size for size in sizes if size is not None) <= _FEW_BYTES


def _compare(
    chunks: Sequence[Chunk], jobs: RangeJobs, listener: VerifyListener, is_running: Callable[[], bool]
) -> list[RangeResult]:
    results: list[RangeResult] = []
    work, step = bundles(chunks), jobs.at_once
    listener.compared(0, len(chunks))
    for first in range(0, len(work), step):
        results += _retrying(jobs.compare, work[first : first + step], is_running)
        listener.compared(len(results), len(chunks))
    return results


def _repair(
    chunks: Sequence[Chunk], jobs: RangeJobs, listener: VerifyListener, is_running: Callable[[], bool]
) -> list[RangeResult]:
    results: list[RangeResult] = []
    for chunk in chunks:
        # By itself: what is tried again finds nothing to count in a range that was mended already.
        results += _retrying(jobs.repair, [chunk], is_running)
        listener.repaired(len(results), len(chunks))
    return results


def _replaced(results: Sequence[RangeResult], again: Iterable[RangeResult]) -> list[RangeResult]:
    """Results, with those that were got once more in the place of the first."""
    newer = {(result.chunk.table, result.chunk.number): result for result in again}
    return [newer.get((result.chunk.table, result.chunk.number), result) for result in results]


def _retrying(
    work_on: Callable[[Sequence[Work]], Sequence[RangeResult]], work: Sequence[Work], is_running: Callable[[], bool]
) -> Sequence[RangeResult]:
    attempts = 20
    for attempt in range(attempts):
        try:
            return work_on(work)
        except RetryableError:
            # If no run is active, the backlog will not shrink: stop waiting.
            if attempt == attempts - 1 or not is_running():
                raise
            time.sleep(0.2 * (attempt + 1))
    raise AssertionError


def _await(upto: Scn, consistency_point: Callable[[], Scn], is_running: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while is_running() and consistency_point() < upto and time.monotonic() < deadline:
        time.sleep(0.1)
