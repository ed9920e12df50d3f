"""The plan of lanes: what depends on each other stays together and in order, the rest runs side by side."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apply.coordinator import Dependencies, connected_components, plan_lanes, with_followers


@dataclass(frozen=True)
class Use:
    """A transaction touches a value."""

    txn: int
    value: int
    writes: bool


def w(txn: int, value: int) -> Use:
    return Use(txn, value, True)


def r(txn: int, value: int) -> Use:
    return Use(txn, value, False)


def dependencies(*uses: Use, barriers: tuple[int, ...] = ()) -> Dependencies:
    return Dependencies(
        txn=np.array([use.txn for use in uses], np.int64),
        value=np.array([use.value for use in uses], np.uint64),
        is_written=np.array([use.writes for use in uses], bool),
        barriers=np.array(barriers, np.int64),
    )


def together(lane_of: np.ndarray) -> list[set[int]]:
    """The lanes with more than one transaction."""
    lanes = [set(np.flatnonzero(lane_of == lane).tolist()) for lane in np.unique(lane_of)]
    return [lane for lane in lanes if len(lane) > 1]


COUNT = 12
uses = st.lists(st.builds(Use, st.integers(0, COUNT - 1), st.integers(0, 15), st.booleans()), max_size=30)
sizes = st.lists(st.integers(1, 1000), min_size=COUNT, max_size=COUNT)


@pytest.mark.rule("A-29", "A-31")
@settings(deadline=None)
@given(uses, sizes, st.integers(1, 6))
def test_transactions_that_conflict_are_never_in_two_lanes(touched: list[Use], size: list[int], lanes: int) -> None:
    lane_of = plan_lanes(dependencies(*touched), np.array(size), lanes)

    # Inside a lane the commit order holds, so one lane is all the order there has to be.
    for one, other in combinations(touched, 2):
        if one.value == other.value and (one.writes or other.writes):
            assert lane_of[one.txn] == lane_of[other.txn]


@settings(deadline=None)
@given(uses, sizes, st.integers(1, 6))
def test_every_transaction_has_one_of_the_lanes_and_always_the_same(
    touched: list[Use], size: list[int], lanes: int
) -> None:
    lane_of = plan_lanes(dependencies(*touched), np.array(size), lanes)

    assert len(lane_of) == COUNT
    assert lane_of.min() >= 0
    assert lane_of.max() < lanes
    # A task that is retried must come to the same plan, in whichever order the values reach it.
    assert plan_lanes(dependencies(*reversed(touched)), np.array(size), lanes).tolist() == lane_of.tolist()


@settings(deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=2, max_size=200), st.integers(2, 8))
def test_independent_transactions_are_spread_evenly(size: list[int], lanes: int) -> None:
    lane_of = plan_lanes(dependencies(), np.array(size), lanes)

    load = np.bincount(lane_of, weights=size, minlength=lanes)
    assert load.max() <= sum(size) / lanes + max(size)


@pytest.mark.parametrize(
    ("touched", "expected"),
    [
        pytest.param([], [], id="nothing in common"),
        pytest.param([w(0, 1), w(1, 2), w(2, 3)], [], id="a value each"),
        pytest.param([w(0, 1), w(2, 1)], [{0, 2}], id="two write one value"),
        pytest.param([w(0, 1), r(2, 1)], [{0, 2}], id="one writes what a later one refers to"),
        pytest.param([r(0, 1), w(2, 1)], [{0, 2}], id="one refers to what a later one writes"),
        pytest.param([r(0, 1), r(1, 1), r(2, 1)], [], id="all only refer"),
        pytest.param([r(0, 1), r(1, 1), w(2, 1)], [{0, 1, 2}], id="two refer to what a third writes"),
        pytest.param([w(0, 1), w(1, 1), w(1, 2), w(2, 2)], [{0, 1, 2}], id="a chain"),
        pytest.param([w(0, 1), w(0, 1), r(0, 1)], [], id="one by itself"),
        pytest.param([w(0, 2**64 - 1), w(1, 2**64 - 1)], [{0, 1}], id="the largest hash"),
    ],
)
def test_what_stays_together(touched: list[Use], expected: list[set[int]]) -> None:
    lane_of = plan_lanes(dependencies(*touched), np.ones(3, np.int64), 3)

    assert together(lane_of) == expected


@pytest.mark.rule("A-54")
@pytest.mark.parametrize("barrier", [0, 1, 2])
def test_nothing_overtakes_a_barrier(barrier: int) -> None:
    lane_of = plan_lanes(dependencies(w(0, 1), w(1, 2), barriers=(barrier,)), np.ones(3, np.int64), 3)

    assert lane_of.tolist() == [0, 0, 0]


@pytest.mark.rule("A-27")
@pytest.mark.parametrize("size", [[], [1], [5, 5, 5]])
def test_one_lane_takes_everything(size: list[int]) -> None:
    assert plan_lanes(dependencies(), np.array(size, np.int64), 1).tolist() == [0] * len(size)


def test_a_large_group_does_not_hold_up_the_small_ones() -> None:
    lane_of = plan_lanes(dependencies(), np.array([1, 1, 1, 100, 1, 1]), 2)

    assert sorted(np.bincount(lane_of).tolist()) == [1, 5]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=30))
def test_components_are_what_paths_join(edges: list[tuple[int, int]]) -> None:
    left, right = (np.array([edge[side] for edge in edges], np.int64) for side in (0, 1))

    label = connected_components(20, left, right)

    reached = {node: {node} for node in range(20)}
    for a, b in edges:
        joined = reached[a] | reached[b]
        for node in joined:
            reached[node] = joined
    assert label.tolist() == [min(reached[node]) for node in range(20)]


def after(first: set[int], count: int, found: Dependencies) -> set[int]:
    return set(np.flatnonzero(with_followers(found, np.isin(np.arange(count), list(first)))).tolist())


def test_what_depends_on_a_chosen_transaction_follows_it_and_nothing_else() -> None:
    found = dependencies(w(0, 1), w(1, 2), w(2, 1), r(3, 3), w(3, 1), r(4, 3), w(5, 3), r(6, 4), r(7, 4))

    # 2 and 3 write what 1 has not touched; 5 writes what 3 refers to, which 4 refers to as well.
    assert after({0}, 8, found) == {0, 2, 3, 4, 5}
    assert after({1}, 8, found) == {1}
    # Two that only refer to a value that nobody writes do not follow each other.
    assert after({6}, 8, found) == {6}
    assert after(set(), 8, found) == set()


def test_everything_follows_a_chosen_transaction_where_there_is_a_barrier() -> None:
    assert after({1}, 4, dependencies(w(0, 1), barriers=(3,))) == {1, 2, 3}


@given(
    uses=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6), st.booleans()), max_size=40),
    first=st.sets(st.integers(0, 9), max_size=3),
)
def test_no_other_transaction_conflicts_with_one_that_is_put_behind_it(
    uses: list[tuple[int, int, bool]], first: set[int]
) -> None:
    behind = after(first, 10, dependencies(*(Use(*use) for use in uses)))

    assert first <= behind
    for txn, value, writes in uses:
        for other, other_value, other_writes in uses:
            if value == other_value and (writes or other_writes) and txn in behind and other > txn:
                assert other in behind
