"""Pages: the transactions of an interval as a database lists them, and slices of these that keep to a limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.position import Limit, Scn
from penstock.sources.trigger_queue.position import Slice

PAGE = 1_000_000
"""Most transactions of one interval held in memory at once."""


@dataclass
class Page:
    """Transactions of one interval of a trigger queue, in commit order.

    Attributes:
        first: `commit_scn` of the first one.
        end: Position once all of the interval are delivered.
    """

    first: Scn
    end: Scn
    txn_ids: NDArray[np.int64]
    changes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    committed_at_us: NDArray[np.int64]

    def follows(self, after: Scn) -> bool:
        """Whether the transaction behind a position is among them."""
        return self.first - 1 <= after < self.first - 1 + len(self.txn_ids)

    def slice(self, after: Scn, limit: Limit, until: Scn | None) -> Slice:
        """Return those behind a position, as many as the limit allows, and at most up to `until`; at least one."""
        skip = after - self.first + 1
        is_large = (self.changes[skip:] > limit.large_changes) | (self.size_bytes[skip:] > limit.large_bytes)
        count = min(
            limit.max_transactions,
            _fitting(self.changes[skip:], limit.max_changes),
            _fitting(self.size_bytes[skip:], limit.max_bytes),
            max(1, int(np.argmax(is_large))) if is_large.any() else len(is_large),
            len(self.txn_ids) - skip,
        )
        if until is not None:
            count = min(count, until - after)
        # A full page may not be the interval's last one.
        is_end = skip + count == len(self.txn_ids) < PAGE
        end = self.end if is_end else Scn(after + count)
        return Slice(
            after=after,
            end=end if until is None else min(end, until),
            first=Scn(after + 1),
            txn_ids=self.txn_ids[skip : skip + count],
            changes=self.changes[skip : skip + count],
            size_bytes=self.size_bytes[skip : skip + count],
            committed_at_us=self.committed_at_us[skip : skip + count],
            is_large=bool(is_large[:1].any()),
        )


def _fitting(sizes: NDArray[np.int64], most: int) -> int:
    """How many of the first entries stay below `most` together; at least one."""
    return max(1, int(np.searchsorted(np.cumsum(sizes), most, side="right")))
