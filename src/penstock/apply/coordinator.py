"""The coordinator's plan: which transactions may run side by side, and which must follow each other.

Transactions that share a dependency value, at least one of them writing it, go into one lane, where they
are applied in commit order. Lanes share no such value, so they may run at the same time in any interleaving.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dependencies:
    """Dependency values of a run of transactions, one entry per value and transaction that touches it.

    Attributes:
        txn: Index of the transaction, in commit order.
        value: 64-bit hash of the value. Two values with one hash cost parallelism, never order.
        is_written: The transaction writes the value; otherwise it only refers to it.
        barriers: Indexes of transactions that nothing may overtake in either direction.
    """

    txn: NDArray[np.int64]
    value: NDArray[np.uint64]
    is_written: NDArray[np.bool_]
    barriers: NDArray[np.int64]


def plan_lanes(dependencies: Dependencies, sizes: NDArray[np.int64], lanes: int) -> NDArray[np.int32]:
    """Assign each transaction to a lane; applying the lanes in any interleaving equals applying all in order.

    With a barrier among the transactions everything goes into lane 0, in commit order: barriers are rare, and
    the phases around one would each cost a Spark job.

    Args:
        sizes: Number of changes of each transaction, in commit order.
        lanes: How many lanes there are, at least 1. Some may stay empty.
    """
    count = len(sizes)
    if lanes == 1 or count <= 1 or len(dependencies.barriers):
        return np.zeros(count, np.int32)
    left, right = _links(dependencies)
    group = connected_components(count, left, right)
    return _balance(group, sizes, lanes)


def with_followers(
    dependencies: Dependencies, chosen: NDArray[np.bool_], *, keeping: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Add to the chosen transactions all later ones that depend on them, directly or through others.

    All others may be applied before them, in commit order, with the same outcome.

    Args:
        chosen: For each transaction, in commit order, whether it is one.
        keeping: For each transaction, whether the values that it writes are there without it, too: one that only refers
            to them does not depend on it.
    """
    found = chosen.copy()
    if len(dependencies.barriers):
        # Nothing may overtake a barrier, so nothing is told apart behind the first one that is chosen.
        return np.logical_or.accumulate(chosen)
    # One entry per use of a value that some use writes: the uses of one value stand together, in commit order.
    order = np.lexsort((dependencies.txn, dependencies.value))
    value, txn, writes = dependencies.value[order], dependencies.txn[order], dependencies.is_written[order]
    starts = np.flatnonzero(np.r_[True, value[1:] != value[:-1]]) if len(value) else np.zeros(0, np.int64)
    lengths = np.diff(np.r_[starts, len(value)])
    written = np.logical_or.reduceat(writes, starts) if len(starts) else np.zeros(0, bool)
    is_written = np.repeat(written, lengths)

    def follows(which: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """For each use, whether one of its value up to it is of such a transaction."""
        count = np.cumsum(which)
        before: NDArray[np.int64] = np.repeat(count[starts] - which[starts], lengths)
        return np.asarray(count > before)

    while True:
        is_found = found[txn]
        more = follows(is_found) & (is_written if keeping is None else writes)
        if keeping is not None:
            more |= follows(is_found & ~keeping[txn]) & is_written
        more &= ~is_found
        if not more.any():
            return found
        found[txn[more]] = True


def behind_writers(
    dependencies: Dependencies, among: NDArray[np.bool_], keeping: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Tell for each transaction whether it depends on one of `among` that comes before it.

    Args:
        keeping: As `with_followers` has it.
    """
    is_behind = np.zeros(len(among), bool)
    if len(dependencies.barriers):
        is_behind[1:] = np.logical_or.accumulate(among)[:-1]
        return is_behind
    txn, value, writes = dependencies.txn, dependencies.value, dependencies.is_written
    for writers, users in ((among, writes), (among & ~keeping, ~writes)):
        is_one = writes & writers[txn]
        # For each value that one of them writes, the first that does; none behind the last value.
        values, which = np.unique(value[is_one], return_inverse=True)
        first = np.full(len(values) + 1, len(among))
        np.minimum.at(first, which, txn[is_one])
        at = np.searchsorted(values, value)
        is_met = users & (first[at] < txn)
        is_met[is_met] = values[at[is_met]] == value[is_met]
        is_behind[txn[is_met]] = True
    return is_behind


def connected_components(count: int, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    """Label `count` nodes so that two nodes have the same label exactly if a path of edges joins them.

    The label of a component is its smallest node.
    """
    # label[n] is a node of n's component, never above n; at first each node is its own.
    label = np.arange(count)
    while len(left):
        # For each edge the labels of its two ends; edges whose ends agree are done.
        a, b = label[left], label[right]
        open_edges = a != b
        left, right, a, b = left[open_edges], right[open_edges], a[open_edges], b[open_edges]
        # The larger label of each edge now points to the smaller one; where several edges ask, to the smallest.
        np.minimum.at(label, np.maximum(a, b), np.minimum(a, b))
        # Follow the pointers until every label points to itself.
        while not np.array_equal(shorter := label[label], label):
            label = shorter
    return label


def _links(dependencies: Dependencies) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Edges that chain, in commit order, the transactions of each value that at least one of them writes.

    Two arrays that line up: an edge leads from `left[n]` to `right[n]`.
    """
    # One entry per use of a value, sorted so that the uses of one value stand together, in commit order.
    order = np.lexsort((dependencies.txn, dependencies.value))
    value, txn = dependencies.value[order], dependencies.txn[order]
    # Where the uses of the next value begin; `number` counts values from 0, one entry per use.
    starts = np.r_[True, value[1:] != value[:-1]] if len(value) else np.zeros(0, bool)
    number = np.cumsum(starts) - 1
    # One entry per value: does any of its uses write it?
    is_written = np.zeros(int(number[-1]) + 1 if len(number) else 0, bool)
    np.logical_or.at(is_written, number, dependencies.is_written[order])
    # One entry per pair of neighbouring uses: same value, which is written, in two different transactions.
    follows = ~starts[1:] & is_written[number[1:]] & (txn[1:] != txn[:-1]) if len(value) else np.zeros(0, bool)
    return txn[:-1][follows], txn[1:][follows]


def _balance(group: NDArray[np.int64], sizes: NDArray[np.int64], lanes: int) -> NDArray[np.int32]:
    """Spread groups over lanes: the large ones one by one, the many small ones by filling up."""
    # member[t] is the group of transaction t, counted from 0; weight[g] is the number of changes in group g.
    labels, member = np.unique(group, return_inverse=True)
    weight = np.bincount(member, weights=sizes)
    # Groups from the heaviest to the lightest; what each lane has to do so far; the lane of each group.
    order = np.argsort(-weight, kind="stable")
    load = np.zeros(lanes)
    lane_of = np.zeros(len(labels), np.int32)
    # A group above an eighth of a lane's fair share is large, and goes to the lane that has least to do.
    share = weight.sum() / lanes
    large = order[: int(np.searchsorted(-weight[order], -share / 8))]
    for index in large:
        lane = int(np.argmin(load))
        lane_of[index] = lane
        load[lane] += weight[index]
    small = order[len(large) :]
    if len(small):
        # Per lane, how much it lacks of the fullest one, or of the fair share if that is more.
        room = np.maximum(max(load.max(), (load.sum() + weight[small].sum()) / lanes) - load, 0)
        # Small groups laid end to end, cut where the lanes' room ends; a group goes where its middle lies.
        filled = np.cumsum(weight[small])
        bounds = np.cumsum(room) * filled[-1] / max(room.sum(), 1)
        lane_of[small] = np.minimum(np.searchsorted(bounds, filled - weight[small] / 2), lanes - 1)
    return lane_of[member]
