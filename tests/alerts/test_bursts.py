"""Which events become a message, and when."""

from __future__ import annotations

from penstock.alerts.bursts import GATHER_S, Bursts
from penstock.alerts.message import Kind, State

QUEUE = Kind.ERROR_QUEUE


def texts(bursts: Bursts, now: float, *, is_last: bool = False) -> list[tuple[str, int, str]]:
    return [(one.text, one.count, one.state.value) for one in bursts.due(now, is_last=is_last)]


def test_a_burst_is_one_message_and_what_goes_on_one_in_a_while() -> None:
    bursts = Bursts("shop", 300)
    assert bursts.next_due() is None
    for number in range(1000):
        bursts.add(QUEUE, f"t{number}", {}, now=0)

    assert bursts.next_due() == GATHER_S
    assert texts(bursts, GATHER_S - 0.1) == []
    assert texts(bursts, GATHER_S) == [("t0 (and 999 more)", 1000, "firing")]
    assert texts(bursts, 10) == []

    for second in range(10, 900, 10):
        bursts.add(QUEUE, f"s{second}", {}, now=second)
        found = texts(bursts, second)
        assert bool(found) == (second in (310, 610)), second
    assert texts(bursts, 10_000) == [("s620 (and 27 more)", 28, "firing")]


def test_it_is_said_when_it_is_over_and_only_if_somebody_was_told() -> None:
    bursts = Bursts("shop", 300)
    bursts.clear(QUEUE, "empty", now=0)
    bursts.add(QUEUE, "t0", {}, now=0)
    bursts.clear(QUEUE, "empty", now=1)
    assert texts(bursts, 100) == []

    bursts.add(QUEUE, "t1", {}, now=100)
    assert texts(bursts, 102) == [("t1", 1, "firing")]
    bursts.clear(QUEUE, "empty", now=110)
    bursts.clear(QUEUE, "empty", now=111)
    assert texts(bursts, 111) == [("empty", 1, "resolved")]
    bursts.clear(QUEUE, "empty", now=112)
    assert texts(bursts, 500) == []


def test_what_comes_and_goes_tells_no_more_often_than_what_stays() -> None:
    bursts = Bursts("shop", 300)
    told = []
    for second in range(0, 1000, 10):
        bursts.add(QUEUE, "t", {}, now=second)
        told += texts(bursts, second + 5)
        bursts.clear(QUEUE, "empty", now=second + 6)
        told += texts(bursts, second + 6)
    firing = [one for one in told if one[2] == State.FIRING]
    assert len(firing) <= 4
    # Each that began has ended.
    assert len(told) == 2 * len(firing)


def test_consumers_are_told_apart_and_kinds_are() -> None:
    bursts = Bursts("shop", 300)
    bursts.add(Kind.LOG_HELD, "a holds", {}, now=0, topic="a")
    bursts.add(Kind.LOG_HELD, "b holds", {}, now=0, topic="b")
    bursts.add(QUEUE, "t", {}, now=0)
    assert {one[0] for one in texts(bursts, 5)} == {"a holds", "b holds", "t"}
    bursts.clear(Kind.LOG_HELD, "b is fine", now=9, topic="b")
    assert texts(bursts, 9) == [("b is fine", 1, "resolved")]


def test_the_end_of_a_run_takes_all_that_waits() -> None:
    bursts = Bursts("shop", 300)
    bursts.add(QUEUE, "t", {}, now=0)
    bursts.due(5)
    bursts.add(QUEUE, "u", {}, now=6)
    bursts.add(Kind.RUN, "failed", {}, now=6)
    assert {one[0] for one in texts(bursts, 6, is_last=True)} == {"u", "failed"}
    assert bursts.next_due() is None


def test_what_an_earlier_run_told_of_is_over_once() -> None:
    bursts = Bursts("shop", 300)
    bursts.assume(Kind.RUN)
    bursts.clear(Kind.RUN, "at work again", now=1)
    assert texts(bursts, 1) == [("at work again", 1, "resolved")]
