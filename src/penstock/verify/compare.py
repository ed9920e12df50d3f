"""Verify: are source and target identical, at one position both can be asked for?

The target is read in one snapshot together with the ledger, which says what is applied in it. The source is read
as of exactly that, put right from its log where it has moved on. So a row in flight is never a difference, and
whatever differs is compared once more before it is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from penstock.change import Image, TableName
from penstock.errors import OperatorError, RetryableError
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk, bundles

MOST_KEYS = 100
"""Keys named for each range; all differences are counted."""

_WAIT_S = 30
"""How long to wait for the consistency point before looking again at what differed."""


Range = tuple[TableSchema, TableSchema, Chunk]
"""Rows of a table at the source and at the target."""

_FEW_BYTES = 64 * 1024 * 1024
"""So little is compared before Spark would have started."""


@dataclass(frozen=True)
class Difference:
    """A row that is not the same on both sides.

    Attributes:
        kind: `missing` at the target, `extra` at the target, or `different`.
        key: Its key; a digest of the row where the table has none.
    """

    kind: str
    key: Image


@dataclass(frozen=True)
class RangeResult:
    """How one range of a table compares."""

    chunk: Chunk
    rows: int
    differing: int
    differences: Sequence[Difference]


@dataclass
class TableResult:
    """How a table compares."""

    table: TableName
    rows: int = 0
    differing: int = 0
    differences: list[Difference] = field(default_factory=list)


@dataclass(frozen=True)
class VerifyResult:
    """How all tables compare.

    Attributes:
        unchecked: Tables that were meant and could not be compared, each with the reason.
    """

    tables: Sequence[TableResult]
    unchecked: Sequence[str] = ()

    @property
    def is_identical(self) -> bool:
        """Whether no row differs, and no table is left out."""
        return not self.unchecked and not any(table.differing for table in self.tables)


@dataclass(frozen=True)
class CompareContext:
    """What is the same for all ranges."""

    comparer: RangeComparer
    source_tables: Mapping[TableName, TableSchema]
    target_tables: Mapping[TableName, TableSchema]

    def compare(self, chunks: Sequence[Chunk]) -> list[RangeResult]:
        """Compare ranges, all at one position; raises as `RangeComparer` does."""
        return self.comparer.compare([(self.source_tables[c.table], self.target_tables[c.table], c) for c in chunks])


class RangeComparer(Protocol):
    """Compares ranges in both databases, inside a task."""

    def compare(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Compare the rows of ranges, all at one position.

        Raises:
            RetryableError: The source cannot tell how it was at that position; a moment later it can.
        """


class RangeJobs(Protocol):
    """Compares ranges side by side."""

    @property
    def at_once(self) -> int:
        """How many bundles of ranges one call should be given."""

    def compare(self, bundles: Sequence[Sequence[Chunk]]) -> Sequence[RangeResult]:
        """Compare bundles of ranges, each at a position of its own; results in any order."""


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


class Listener(Protocol):
    """Hears how a comparison goes."""

    def compared(self, ranges: int, of: int) -> None:
        """So many ranges are compared, out of so many."""


def verify(
    chunks: Sequence[Chunk],
    jobs: RangeJobs,
    listener: Listener,
    *,
    consistency_point: Callable[[], Scn],
    tick: Callable[[], Scn],
    is_running: Callable[[], bool],
) -> VerifyResult:
    """Compare tables by ranges.

    Args:
        chunks: Ranges that cover the tables.
        consistency_point: Up to which position the target has everything.
        tick: A position that everything committed at the source by now lies at or before.
    """
    results = _compare(chunks, jobs, listener, is_running)
    suspects = [result.chunk for result in results if result.differing]
    if suspects:
        _await(tick(), consistency_point, is_running)
        again = {(r.chunk.table, r.chunk.number): r for r in _retrying(jobs, bundles(suspects), is_running)}
        results = [again.get((r.chunk.table, r.chunk.number), r) for r in results]
    tables: dict[TableName, TableResult] = {}
    for result in sorted(results, key=lambda r: (r.chunk.table, r.chunk.number)):
        table = tables.setdefault(result.chunk.table, TableResult(result.chunk.table))
        table.rows += result.rows
        table.differing += result.differing
        table.differences += result.differences
    return VerifyResult(list(tables.values()))


def are_few(chunks: Sequence[Chunk]) -> bool:
    """Whether these are compared sooner than Spark starts."""
    sizes = [chunk.size_bytes for chunk in chunks]
    return None not in sizes and sum(size for size in sizes if size is not None) <= _FEW_BYTES


def _compare(
    chunks: Sequence[Chunk], jobs: RangeJobs, listener: Listener, is_running: Callable[[], bool]
) -> list[RangeResult]:
    results: list[RangeResult] = []
    work, step = bundles(chunks), jobs.at_once
    for first in range(0, len(work), step):
        results += _retrying(jobs, work[first : first + step], is_running)
        listener.compared(len(results), len(chunks))
    return results


def _retrying(
    jobs: RangeJobs, work: Sequence[Sequence[Chunk]], is_running: Callable[[], bool]
) -> Sequence[RangeResult]:
    attempts = 20
    for attempt in range(attempts):
        try:
            return jobs.compare(work)
        except RetryableError:
            # What waits to be applied goes on waiting when nobody applies.
            if attempt == attempts - 1 or not is_running():
                raise
            time.sleep(0.2 * (attempt + 1))
    raise AssertionError


def _await(upto: Scn, consistency_point: Callable[[], Scn], is_running: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while is_running() and consistency_point() < upto and time.monotonic() < deadline:
        time.sleep(0.1)


def not_copied(tables: Sequence[TableName]) -> OperatorError:
    """The error for tables that cannot be compared yet."""
    names = ", ".join(map(str, tables))
    return OperatorError(f"{names} is not copied yet", do="let `penstock run` copy it first")
