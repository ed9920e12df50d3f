"""Verify: are source and target identical, at one position both can be asked for?

The target is read in one snapshot together with the ledger, which says what is applied in it. The source is read
as of exactly that, put right from its log where it has moved on. So a row in flight is never a difference, and
whatever differs is compared once more before it is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.change import Image, TableName
from penstock.errors import OperatorError, RetryableError
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk

MOST_KEYS = 100
"""Keys named for each range; all differences are counted."""

_WAIT_S = 30
"""How long to wait for the consistency point before looking again at what differed."""


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


class RangeComparer(Protocol):
    """Compares a range in both databases, inside a task."""

    def compare(self, source: TableSchema, target: TableSchema, chunk: Chunk) -> RangeResult:
        """Compare the rows of a range at one position.

        Raises:
            RetryableError: The source cannot tell how it was at that position; a moment later it can.
        """


class RangeJobs(Protocol):
    """Compares ranges side by side."""

    @property
    def at_once(self) -> int:
        """How many ranges one call should be given."""

    def compare(self, chunks: Sequence[Chunk]) -> Sequence[RangeResult]:
        """Compare ranges; results in any order."""


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
        again = {(r.chunk.table, r.chunk.number): r for r in _retrying(jobs, suspects, is_running)}
        results = [again.get((r.chunk.table, r.chunk.number), r) for r in results]
    tables: dict[TableName, TableResult] = {}
    for result in sorted(results, key=lambda r: (r.chunk.table, r.chunk.number)):
        table = tables.setdefault(result.chunk.table, TableResult(result.chunk.table))
        table.rows += result.rows
        table.differing += result.differing
        table.differences += result.differences
    return VerifyResult(list(tables.values()))


def _compare(
    chunks: Sequence[Chunk], jobs: RangeJobs, listener: Listener, is_running: Callable[[], bool]
) -> list[RangeResult]:
    results: list[RangeResult] = []
    step = jobs.at_once
    for first in range(0, len(chunks), step):
        results += _retrying(jobs, chunks[first : first + step], is_running)
        listener.compared(len(results), len(chunks))
    return results


def _retrying(jobs: RangeJobs, chunks: Sequence[Chunk], is_running: Callable[[], bool]) -> Sequence[RangeResult]:
    attempts = 20
    for attempt in range(attempts):
        try:
            return jobs.compare(chunks)
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
