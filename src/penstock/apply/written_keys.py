"""Which rows that were looked at are still as they were seen, while transactions are applied one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.apply.coordinator import Dependencies, behind_writers
from penstock.apply.group import Group


class WrittenKeys:
    """The dependency values that transactions of a group have written so far; changes are counted from 1 in each."""

    def __init__(self, group: Group, by_change: Dependencies) -> None:
        """Begin before the first transaction.

        Args:
            by_change: The values of each change of the group, see `around.dependencies_of_changes`.
        """
        count = len(group.rows)
        order = np.argsort(by_change.txn, kind="stable")
        self._starts: list[int] = group.starts.tolist()
        self._bounds: list[int] = np.searchsorted(by_change.txn[order], np.arange(count + 1)).tolist()
        self._values: list[int] = by_change.value[order].tolist()
        self._writes: list[bool] = by_change.is_written[order].tolist()
        self._has_barriers = bool(len(by_change.barriers))
        everything = np.ones(count, bool)
        self._is_first: NDArray[np.bool_] = ~behind_writers(by_change, everything, ~everything)
        self._written: set[int] = set()
        self._is_anything = False

    def not_behind_own(self, index: int) -> list[int]:
        """The changes of a transaction that depend on no earlier one of it."""
        if self._has_barriers:
            return []
        numbers, written = [], set[int]()
        first, end = self._starts[index], self._starts[index + 1]
        for number, change in enumerate(range(first, end), start=1):
            low, high = self._bounds[change], self._bounds[change + 1]
            if not written or written.isdisjoint(self._values[low:high]):
                numbers.append(number)
            if change + 1 < end:
                written.update(self._written_by(change))
        return numbers

    def not_behind_any(self, index: int) -> list[int]:
        """The changes of a transaction that depend on no earlier change of the group."""
        if self._has_barriers:
            return []
        first, end = self._starts[index], self._starts[index + 1]
        numbers: list[int] = (np.flatnonzero(self._is_first[first:end]) + 1).tolist()
        return numbers

    def begin(self) -> None:
        """Rows are looked at now: what was written before is seen."""
        self._written.clear()
        self._is_anything = False

    def note(self, index: int) -> None:
        """A transaction is applied."""
        for change in range(self._starts[index], self._starts[index + 1]):
            self._written.update(self._written_by(change))

    def note_anything(self) -> None:
        """A transaction has written to rows that its values do not tell of."""
        self._is_anything = True

    def concerns(self, index: int, number: int) -> bool:
        """Whether what is written by now may be a row that a change depends on."""
        if self._is_anything:
            return True
        change = self._starts[index] + number - 1
        return not self._written.isdisjoint(self._values[self._bounds[change] : self._bounds[change + 1]])

    def _written_by(self, change: int) -> list[int]:
        low, high = self._bounds[change], self._bounds[change + 1]
        return [value for value, writes in zip(self._values[low:high], self._writes[low:high], strict=True) if writes]
