"""Marks: the dependency values by which a transaction in the error queue keeps later ones back (ADR 49).

A mark is the hash of a value and how it is used. Marks are kept in the ledger, so what waits behind the queue is found
without reading a change of it. Two transactions whose marks meet must keep their order; others are independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Use(IntEnum):
    """How a transaction uses a value; the numbers stand in the ledger."""

    REFERS = 0
    """Shared: a foreign key to it, or a role in a space of values, see `MEETS`."""
    WRITES = 1
    """Exclusive."""
    MEETS = 2
    """The transaction does something with a value that its images do not hold, so it meets all that refer here."""
    PARENT = 3
    """It changes the parent of an object dependency."""
    CHILD = 4
    """It changes a table that follows its parent, as an object dependency says."""


KEPT_BY: Mapping[Use, tuple[Use, ...]] = {
    Use.REFERS: (Use.WRITES, Use.MEETS),
    Use.WRITES: (Use.REFERS, Use.WRITES),
    Use.MEETS: (Use.REFERS,),
    Use.PARENT: (),
    Use.CHILD: (Use.PARENT,),
}
"""By how a later transaction uses a value: the uses of an earlier one in the queue that it waits for."""


@dataclass(frozen=True)
class BlockedKeys:
    """Marks of transactions; three arrays that line up, in the order of `txn`.

    Attributes:
        txn: Which transaction it is of, by the caller's numbers, ascending.
        value: The hash.
        use: A `Use`.
    """

    txn: NDArray[np.int64]
    value: NDArray[np.uint64]
    use: NDArray[np.int8]

    @classmethod
    def of(cls, txn: NDArray[np.int64], value: NDArray[np.uint64], use: NDArray[np.int8]) -> BlockedKeys:
        """Put marks that come in any order, some more than once, into order, each once."""
        order = np.lexsort((use, value, txn))
        txn, value, use = txn[order], value[order], use[order]
        is_new = np.ones(len(txn), bool)
        is_new[1:] = (np.diff(txn) != 0) | (value[1:] != value[:-1]) | (np.diff(use) != 0)
        return cls(txn[is_new], value[is_new], use[is_new])

    def __len__(self) -> int:
        return len(self.txn)

    def of_one(self, txn: int) -> BlockedKeys:
        """The marks of one transaction, which gets the number 0."""
        low, high = np.searchsorted(self.txn, [txn, txn + 1])
        return BlockedKeys(np.zeros(high - low, np.int64), self.value[low:high], self.use[low:high])

    def only(self, wanted: NDArray[np.bool_]) -> BlockedKeys:
        """The marks of the transactions for which `wanted` is true, which are numbered anew."""
        is_here = wanted[self.txn]
        return BlockedKeys((np.cumsum(wanted) - 1)[self.txn[is_here]], self.value[is_here], self.use[is_here])


class BlockedKeyIndex:
    """Marks by their use, to ask whether others meet them. Adding is cheap; so is asking, for few or for many."""

    def __init__(self, value: NDArray[np.uint64], use: NDArray[np.int8]) -> None:
        """Begin with these marks, which line up."""
        self._base = {kind: np.unique(value[use == kind]) for kind in Use}
        self._added: dict[Use, set[int]] = {kind: set() for kind in Use}

    def __bool__(self) -> bool:
        return any(map(len, self._base.values())) or any(self._added.values())

    @property
    def is_vague(self) -> bool:
        """Whether something in it uses values that nobody knows."""
        return bool(len(self._base[Use.MEETS]) or self._added[Use.MEETS])

    def add(self, marks: BlockedKeys) -> None:
        """Take in the marks of one more transaction."""
        for kind in Use:
            self._added[kind].update(marks.value[marks.use == kind].tolist())

    def keeps(self, marks: BlockedKeys, count: int) -> NDArray[np.bool_]:
        """For each of `count` transactions, whether one of its marks meets one of these."""
        found = np.zeros(count, bool)
        for kind, kept_by in KEPT_BY.items():
            asked = np.flatnonzero(marks.use == kind)
            for other in kept_by if len(asked) else ():
                found[marks.txn[asked[self._holds(other, marks.value[asked])]]] = True
        return found

    def _holds(self, kind: Use, values: NDArray[np.uint64]) -> NDArray[np.bool_]:
        base, added = self._base[kind], self._added[kind]
        is_here = np.zeros(len(values), bool)
        if len(base):
            place = np.minimum(np.searchsorted(base, values), len(base) - 1)
            is_here = base[place] == values
        if added and len(values) < len(added):
            is_here |= np.fromiter((value in added for value in values.tolist()), bool, len(values))
        elif added:
            is_here |= np.isin(values, np.fromiter(added, np.uint64, len(added)))
        return is_here
