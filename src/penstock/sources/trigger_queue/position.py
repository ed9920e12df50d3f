"""Slices: which transactions lie between two positions of a trigger queue, in commit order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import MalformedInputError
from penstock.position import Anchor, Limit, Scn


@dataclass(frozen=True)
class Slice:
    """A run of transactions in commit order: the same ones on every read, until they are freed.

    The i-th transaction has the source's own id `txn_ids[i]` and the `commit_scn` `first + i`.

    Attributes:
        after: Position before the first transaction.
        end: Position after the last one; at least its `commit_scn`.
        first: `commit_scn` of the first transaction.
        txn_ids: The source's transaction ids.
        changes: Number of changes of each transaction.
        size_bytes: Size of each transaction's images.
        committed_at_us: When each was committed, microseconds since 1970 in UTC.
        is_large: It is one transaction that must not be held in memory.
        start: The last cut of the log at or before `after`.
        cut: The cut behind its transactions, by which they got their positions.
    """

    after: Scn
    end: Scn
    first: Scn
    txn_ids: NDArray[np.int64]
    changes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    committed_at_us: NDArray[np.int64]
    is_large: bool = False
    start: Anchor | None = None
    cut: Anchor | None = None

    def __len__(self) -> int:
        return len(self.txn_ids)

    @classmethod
    def empty(cls, at: Scn) -> Slice:
        """No transactions, at a position."""
        none = np.zeros(0, np.int64)
        return cls(at, at, Scn(at + 1), none, none, none, none)

    @property
    def anchor(self) -> Anchor | None:
        """The last cut at or before its end."""
        return self.cut if self.cut is not None and self.cut.scn == self.end else self.start

    @property
    def last_committed_at(self) -> datetime | None:
        """When the last of them was committed; None without transactions."""
        if len(self) == 0:
            return None
        return datetime.fromtimestamp(int(self.committed_at_us.max()) / 1_000_000, UTC)

    @property
    def total_changes(self) -> int:
        """Number of changes in all transactions together."""
        return int(self.changes.sum())

    def has_next(self, position: Scn) -> bool:
        """Whether the transaction behind a position is among them."""
        return self.first - 1 <= position < self.first - 1 + len(self)

    def take(self, after: Scn, limit: Limit, until: Scn | None) -> Slice:
        """Return those behind a position, as many as the limit allows, and at most up to `until`; at least one."""
        skip = after - self.first + 1
        changes, size_bytes = self.changes[skip:], self.size_bytes[skip:]
        is_large = (changes > limit.large_changes) | (size_bytes > limit.large_bytes)
        count = min(
            limit.max_transactions,
            _fitting(changes, limit.max_changes),
            _fitting(size_bytes, limit.max_bytes),
            max(1, int(np.argmax(is_large))) if is_large.any() else len(is_large),
        )
        if until is not None:
            count = min(count, until - after)
        part = self._cut(skip, skip + count)
        end = part.end if until is None else min(part.end, until)
        return replace(part, end=end, is_large=bool(is_large[:1].any()))

    def split(self, parts: int) -> list[Slice]:
        """Cut into at most `parts` slices of about equal numbers of changes; no transaction is cut."""
        if len(self) == 0:
            return []
        ends = np.cumsum(self.changes)
        targets = ends[-1] * np.arange(1, parts) / parts
        cuts = [0, *sorted(set(np.searchsorted(ends, targets) + 1) - {0, len(self)}), len(self)]
        return [self._cut(a, b) for a, b in pairwise(cuts) if b > a]

    def windows(self, sizes: Iterable[int], max_bytes: int) -> Iterator[Slice]:
        """Cut into consecutive slices; each ends with the transaction that reaches one of the limits.

        Args:
            sizes: The number of changes for each slice; enough of them.
        """
        changes, size_bytes = np.cumsum(self.changes), np.cumsum(self.size_bytes)
        first = 0
        for max_changes in sizes:
            if first == len(self):
                return
            by_changes = np.searchsorted(changes, (changes[first - 1] if first else 0) + max_changes)
            by_bytes = np.searchsorted(size_bytes, (size_bytes[first - 1] if first else 0) + max_bytes)
            end = min(int(min(by_changes, by_bytes)) + 1, len(self))
            yield self._cut(first, end)
            first = end

    def _cut(self, a: int, b: int) -> Slice:
        is_last = b == len(self)
        return Slice(
            after=self.after if a == 0 else Scn(self.first + a - 1),
            end=self.end if is_last else Scn(self.first + b - 1),
            first=Scn(self.first + a),
            txn_ids=self.txn_ids[a:b],
            changes=self.changes[a:b],
            size_bytes=self.size_bytes[a:b],
            committed_at_us=self.committed_at_us[a:b],
            start=self.start,
            cut=self.cut,
        )


def _fitting(sizes: NDArray[np.int64], most: int) -> int:
    """How many of the first entries stay below `most` together; at least one."""
    return max(1, int(np.searchsorted(np.cumsum(sizes), most, side="right")))


def offset_json(position: Scn, anchor: Anchor) -> dict[str, Any]:
    """Write a position as a Spark offset that a person can read, with the cut that it is held against."""
    return {"commit_scn": int(position), "cut": int(anchor.scn), "mark": anchor.mark}


def offset_position(offset: dict[str, Any]) -> tuple[Scn, Anchor | None]:
    """Read what `offset_json` wrote; offsets of earlier versions have no cut.

    Raises:
        MalformedInputError: It is something else.
    """
    if isinstance(offset, dict):
        scn, cut, mark = (offset.get(name) for name in ("commit_scn", "cut", "mark"))
        if type(scn) is int and scn >= 0:
            if cut is None and mark is None:
                return Scn(scn), None
            if type(cut) is int and 0 <= cut <= scn and type(mark) is str:
                return Scn(scn), Anchor(Scn(cut), mark)
    raise MalformedInputError(
        "offset of a trigger queue must be {'commit_scn': integer, 'cut': integer, 'mark': text}", where=repr(offset)
    )
