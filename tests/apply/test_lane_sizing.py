"""Batches are sized by how fast the last ones were, and take the lanes that were quicker."""

from __future__ import annotations

from penstock.apply.lane_sizing import LaneSizing
from penstock.position import Limit

LIMIT = Limit(max_changes=1_000_000)


def drive(lane_sizing: LaneSizing, *, one: float, planned: float, batches: int) -> list[int]:
    """Apply full batches at a rate for each way, in changes per second; returns how many lanes each took."""
    taken = []
    for _ in range(batches):
        changes = lane_sizing.limit().max_changes
        lanes = lane_sizing.lanes(transactions=changes, changes=changes)
        lane_sizing.note(lanes=lanes, changes=changes, seconds=changes / (planned if lanes > 1 else one))
        taken.append(lanes)
    return taken


def test_several_lanes_are_kept_where_they_are_quicker() -> None:
    assert drive(LaneSizing(LIMIT, 4), one=50_000, planned=90_000, batches=30) == [1] * 3 + [4] * 27


def test_several_lanes_are_left_where_they_are_slower() -> None:
    assert drive(LaneSizing(LIMIT, 4), one=90_000, planned=50_000, batches=30) == [1] * 3 + [4] * 2 + [1] * 25


def test_what_was_slower_is_tried_again() -> None:
    lane_sizing = LaneSizing(LIMIT, 4)
    drive(lane_sizing, one=90_000, planned=50_000, batches=5)

    taken = drive(lane_sizing, one=90_000, planned=200_000, batches=60)

    assert taken == [1] * 30 + [4] * 30


def test_the_first_batch_of_a_trial_does_not_count() -> None:
    lane_sizing = LaneSizing(LIMIT, 4)
    drive(lane_sizing, one=50_000, planned=90_000, batches=3)

    drive(lane_sizing, one=50_000, planned=10_000, batches=1)

    assert set(drive(lane_sizing, one=50_000, planned=90_000, batches=20)) == {4}


def test_one_lane_stays_one() -> None:
    assert set(drive(LaneSizing(LIMIT, 1), one=50_000, planned=0, batches=50)) == {1}


def test_a_batch_takes_about_five_seconds() -> None:
    lane_sizing = LaneSizing(LIMIT, 2)
    assert lane_sizing.limit() == LIMIT

    lane_sizing.note(lanes=1, changes=50_000, seconds=1)
    assert lane_sizing.limit().max_changes == 250_000

    lane_sizing.note(lanes=1, changes=10, seconds=60)
    assert lane_sizing.limit().max_changes == 1_000

    lane_sizing.note(lanes=1, changes=1_000, seconds=0.001)
    assert lane_sizing.limit() == LIMIT


def test_small_and_single_transactions_take_one_lane() -> None:
    lane_sizing = LaneSizing(LIMIT, 4)
    drive(lane_sizing, one=50_000, planned=90_000, batches=5)

    assert lane_sizing.lanes(transactions=100, changes=100_000) == 4
    assert lane_sizing.lanes(transactions=100, changes=19_999) == 1
    assert lane_sizing.lanes(transactions=1, changes=50_000) == 1
    assert lane_sizing.lanes(transactions=2, changes=300_000) == 1
