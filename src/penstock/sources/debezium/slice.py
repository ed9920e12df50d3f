"""Slices of transactions whose events lie scattered: where they lie travels to tasks, the events themselves do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from penstock.position import Scn
from penstock.sources.debezium.index import CompleteTransaction, OffsetRange
from penstock.sources.debezium.log import Partition
from penstock.stream import Slice


@dataclass(frozen=True)
class EventSlice(Slice):
    """Transactions, and where their events lie.

    Attributes:
        groups: By which names the events of each transaction go; one entry for each transaction, a tuple of texts.
        run_counts, row_counts: How many of the runs below are of each transaction.
        runs: Where events lie, shape (n, 3): partition, first offset, offset behind the last.
        rows: The same for rows of snapshots that come before the transaction's own events.
        partitions: What the first column of both means.
    """

    PER_TRANSACTION: ClassVar[tuple[str, ...]] = (
        *Slice.PER_TRANSACTION,
        "groups",
        "run_counts",
        "row_counts",
    )

    groups: NDArray[np.object_] = None  # type: ignore[assignment]  # always given; the base class has defaults
    run_counts: NDArray[np.int64] = None  # type: ignore[assignment]
    row_counts: NDArray[np.int64] = None  # type: ignore[assignment]
    runs: NDArray[np.int64] = None  # type: ignore[assignment]
    rows: NDArray[np.int64] = None  # type: ignore[assignment]
    partitions: tuple[Partition, ...] = ()

    def _cut(self, a: int, b: int) -> Self:
        def part(runs: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
            ends = np.concatenate([[0], np.cumsum(counts)])
            return runs[ends[a] : ends[b]]

        runs, rows = part(self.runs, self.run_counts), part(self.rows, self.row_counts)
        return replace(super()._cut(a, b), runs=runs, rows=rows)


def slice_of(
    after: Scn, end: Scn, transactions: Sequence[CompleteTransaction], partitions: Sequence[Partition]
) -> EventSlice:
    """Put transactions, which come in commit order, into one slice."""

    def column(values: list[int]) -> NDArray[np.int64]:
        return np.array(values, np.int64)

    def places(runs: list[OffsetRange]) -> NDArray[np.int64]:
        return np.array([(run.partition, run.first, run.end) for run in runs], np.int64).reshape(-1, 3)

    groups = np.empty(len(transactions), object)
    groups[:] = [txn.groups for txn in transactions]
    return EventSlice(
        after=after,
        end=end,
        commit_scns=column([txn.scn for txn in transactions]),
        changes=column([txn.changes for txn in transactions]),
        size_bytes=column([txn.size_bytes for txn in transactions]),
        committed_at_us=column([txn.committed_at_us for txn in transactions]),
        groups=groups,
        run_counts=column([len(txn.runs) for txn in transactions]),
        row_counts=column([len(txn.rows) for txn in transactions]),
        runs=places([run for txn in transactions for run in txn.runs]),
        rows=places([run for txn in transactions for run in txn.rows]),
        partitions=tuple(partitions),
    )
