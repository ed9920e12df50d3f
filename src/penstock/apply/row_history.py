"""Row history: what the changes of a group did to each row, one after another, and what each column held meanwhile.

The set path nets changes by it. A change may tell a part of its row only; an unchanged out-of-line value, for example,
is absent. What it does not tell of the old row may have been told by a change before it, and what nobody has told
since the row was there is as the target has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.apply.apply_errors import SpeculationError


@dataclass(frozen=True)
class RowEvents:
    """Changes by key and, under each key, in order; one entry per event in each array.

    Attributes:
        row: Which change it is.
        has_before, has_after: Whether a row has this key before it, and after it.
        is_first, is_last: Whether it is the first, and the last, of its key.
    """

    row: NDArray[np.int64]
    has_before: NDArray[np.bool_]
    has_after: NDArray[np.bool_]
    is_first: NDArray[np.bool_]
    is_last: NDArray[np.bool_]

    @classmethod
    def sorted(
        cls,
        *,
        key: NDArray[np.uint64],
        order: NDArray[np.int64],
        row: NDArray[np.int64],
        has_before: NDArray[np.bool_],
        has_after: NDArray[np.bool_],
    ) -> RowEvents:
        """Sort events by the hash of their key and, under each key, by `order`."""
        by_key = np.lexsort((order, key))
        # `differs` has one entry per pair of neighbours.
        key = key[by_key]
        differs = key[1:] != key[:-1]
        is_any = np.ones(min(len(key), 1), bool)
        return cls(
            row=row[by_key],
            has_before=has_before[by_key],
            has_after=has_after[by_key],
            is_first=np.r_[is_any, differs],
            is_last=np.r_[differs, is_any],
        )

    def putting(self, is_put: NDArray[np.bool_]) -> RowEvents:
        """The events where, for some changes, it is the one before that says whether there is a row: they put one.

        Of the first event of a key nothing says it, and `has_before` is False.
        """
        if not is_put.any():
            return self
        had_one = np.r_[False, self.has_after[:-1]] & ~self.is_first
        return replace(self, has_before=np.where(is_put[self.row], had_one, self.has_before))


@dataclass(frozen=True)
class RowHistory:
    """Where the values of a column are told.

    Attributes:
        first: For each key, the change whose old value the row had before all of them; -1 where nobody knows it.
        after: For each event, the change whose new value the row has after it; -1 where nobody knows it.
        earlier, later: Pairs of changes; the new value of the earlier one has to be the old value of the later one.
    """

    first: NDArray[np.int64]
    after: NDArray[np.int64]
    earlier: NDArray[np.int64]
    later: NDArray[np.int64]


def follow(events: RowEvents, *, tells_old: NDArray[np.bool_], tells_new: NDArray[np.bool_]) -> RowHistory:
    """Find out what is known of a column.

    Args:
        tells_old, tells_new: For each change, whether it tells the column's value before it, and after it.

    Raises:
        SpeculationError: Only the target can know the value: it fills in what an insert does not tell.
    """
    row, is_first = events.row, events.is_first
    # One entry per event: does it tell the value that the row has before it, and the one after it?
    knows_old, knows_new = events.has_before & tells_old[row], events.has_after & tells_new[row]
    followers = np.flatnonzero(~is_first & knows_old)
    if np.array_equal(knows_new, events.has_after):
        after = np.where(knows_new, row, -1)
        first = np.where(knows_old, row, -1)[is_first]
        return RowHistory(first, after, after[followers - 1], row[followers])
    at = np.arange(len(row))
    # For each event the last one, itself or before it, that tells the value or before which the row was not there.
    begins = ~events.has_before
    last = np.maximum.accumulate(np.where(knows_new | begins | is_first, at, 0))
    is_known = knows_new[last] & events.has_after
    is_filled_in = begins[last] & ~is_known & events.has_after
    after = np.where(is_known, row[last], -1)
    existed = events.has_before[is_first]
    key_of = np.cumsum(is_first) - 1
    if is_filled_in[followers - 1].any() or (is_filled_in & existed[key_of]).any():
        raise SpeculationError("the target has filled in what an insert does not tell")
    followers = followers[after[followers - 1] >= 0]
    # For each key the first event that tells a value, or before which the row was gone; one too many for none.
    is_telling = knows_old | knows_new | (begins & ~is_first)
    starts = np.flatnonzero(is_first)
    teller = np.minimum.reduceat(np.where(is_telling, at, len(at)), starts) if len(starts) else starts
    first = np.where(np.r_[knows_old, False][teller], np.r_[row, -1][teller], -1)
    return RowHistory(first, after, after[followers - 1], row[followers])
