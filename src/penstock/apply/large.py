"""Large transactions, which are never held in memory: read again for every attempt, and handed on piece by piece.

`stream.Slice.take` marks a slice of one as large (`position.Limit.large_changes`, `large_bytes`; the setting
`txn_lcr_spill_threshold`), `spark.job` then takes the way through `apply_large` (`task.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.group import COLUMNS, Group
from penstock.change import Change, Transaction
from penstock.position import Scn


@dataclass(frozen=True)
class LargeTransaction:
    """One transaction, as a stream that can be read any number of times.

    Attributes:
        read: Reads its changes, in order and from the first one.
        committed_at_us: When it was committed at the source, one value; 0 where that is not known.
        changes: How many changes there are.
        size_bytes: Size of their images together.
    """

    commit_scn: Scn
    committed_at_us: NDArray[np.int64]
    changes: int
    size_bytes: int
    read: Callable[[], Iterator[pa.RecordBatch]]

    def pieces(self, *, max_changes: int, max_bytes: int) -> Iterator[Group]:
        """Yield its changes in runs that end with the change that reaches a limit, or less than one limit later."""
        held: list[pa.RecordBatch] = []
        for batch in self.read():
            for start in range(0, batch.num_rows, max_changes):
                held.append(batch.slice(start, max_changes).select(COLUMNS))
                if sum(map(len, held)) >= max_changes or sum(piece.nbytes for piece in held) >= max_bytes:
                    yield _group(held)
                    held = []
        if held:
            yield _group(held)

    def transaction(self) -> Transaction:
        """Return it as values; its changes are read again on each pass over them."""
        # One change says what all of them say of their transaction.
        first = next(_values(self.read()))
        return Transaction(first.commit_scn, first.txn_id, first.committed_at_us, _Changes(self))


@dataclass(frozen=True)
class _Changes(Collection[Change]):
    large: LargeTransaction

    def __len__(self) -> int:
        return self.large.changes

    def __iter__(self) -> Iterator[Change]:
        return (change for part in _values(self.large.read()) for change in part.changes)

    def __contains__(self, change: object) -> bool:
        return any(change == each for each in self)


_VALUES = 1_000
"""Changes held as Python values at a time."""


def _values(batches: Iterator[pa.RecordBatch]) -> Iterator[Transaction]:
    for batch in batches:
        for start in range(0, batch.num_rows, _VALUES):
            yield from _group([batch.slice(start, _VALUES).select(COLUMNS)]).transactions()


def _group(batches: list[pa.RecordBatch]) -> Group:
    rows = pa.Table.from_batches(batches)
    return Group(rows, np.array([0, len(rows)]))
