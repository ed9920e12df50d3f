"""Which transactions another reader of the database is told to be applied: by the last 32 bits of their ids."""

import pytest

from penstock.dialects.postgres.source.snapshots import Cut, Snapshot
from penstock.dialects.postgres.source.source_switch import PostgresSwitchSource
from penstock.source_switch import Mark

ROUND = 1 << 32
FIRST, LAST = Mark("98", 1, 2), Mark("107", 3, 4)


@pytest.mark.parametrize(
    ("txn", "is_applied"),
    [(99, True), (100, False), (101, True), (102, False), (103, True), (104, True), (105, False), (106, True)],
)
@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_what_is_visible_or_lies_before_the_position_is_applied(txn: int, is_applied: bool, rounds: int) -> None:
    at = rounds * ROUND
    snapshot = Snapshot.parse(f"{at + 100}:{at + 105}:{at + 100},{at + 102}")
    left = PostgresSwitchSource(Cut(snapshot, [at + 106]), FIRST, LAST)
    assert left.is_applied(str(txn)) is is_applied


def test_ids_around_the_end_of_a_round_are_of_the_round_that_is_near() -> None:
    left = PostgresSwitchSource(Cut(Snapshot.parse(f"{ROUND - 2}:{ROUND + 1}:{ROUND - 2}")), FIRST, LAST)
    assert [left.is_applied(str(xid % ROUND)) for xid in (ROUND - 3, ROUND - 2, ROUND - 1, ROUND, ROUND + 1)] == [
        *(True, False, True, True),
        False,
    ]


def test_ids_of_an_earlier_round_are_not_taken_for_later_ones() -> None:
    left = PostgresSwitchSource(Cut(Snapshot.parse(f"{5 * ROUND + 10}:{5 * ROUND + 10}:")), FIRST, LAST)
    assert left.is_applied(str(ROUND // 2 - 1))
    assert not left.is_applied("4000")


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        PostgresSwitchSource(Cut(Snapshot.parse("1:1:")), FIRST, LAST).is_applied("5.6.7")
