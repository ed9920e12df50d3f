"""How long a run goes on trying, on a clock of the test's own: no test waits for an hour."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import pytest

from penstock.apply.retry_policy import Clock, RetryPolicy
from penstock.errors import RetryableError
from penstock.pipeline.report import Report

REFUSED = RetryableError("cannot connect", where="127.0.0.1:5432/copy")


@dataclass
class Time:
    """A clock that pauses move on at once."""

    at: float = 1000.0
    pauses: list[float] = field(default_factory=list)

    def clock(self, jitter: float = 1.0) -> Clock:
        def pause(_: threading.Event, seconds: float) -> None:
            self.pauses.append(seconds)
            self.at += seconds

        return Clock(lambda: self.at, lambda: jitter, pause)


class Retries:
    def __init__(self) -> None:
        self.left: list[float | None] = []

    def retrying(self, error: RetryableError, left_s: float | None) -> None:
        self.left.append(left_s)


def retry_policy(
    time: Time, retry_s: float | None, heard: Retries | None = None, *, jitter: float = 1.0
) -> RetryPolicy:
    return RetryPolicy(retry_s, threading.Event(), heard or Retries(), time.clock(jitter))


def test_a_run_that_has_worked_outlives_an_outage_of_an_hour_and_does_not_hammer() -> None:
    time, heard = Time(), Retries()
    waiting = retry_policy(time, None, heard)
    waiting.restore()
    began = time.at
    while time.at < began + 3600:
        waiting.wait(REFUSED)

    assert set(heard.left) == {None}
    assert time.pauses[:4] == [1.0, 1.5, 2.25, 3.375]
    assert time.pauses[-1] == max(time.pauses) == 15
    # And once it is over, the next outage is met as quickly as the first.
    waiting.restore()
    waiting.wait(REFUSED)
    assert time.pauses[-1] == 1.0


def test_pauses_are_not_the_same_for_every_run() -> None:
    slow, quick = Time(), Time()
    for time, jitter in ((slow, 1.2), (quick, 0.8)):
        waiting = retry_policy(time, None, jitter=jitter)
        waiting.restore()
        waiting.wait(REFUSED)
    assert (slow.pauses, quick.pauses) == ([1.2], [0.8])
    assert all(0.8 <= Clock().jitter() <= 1.2 for _ in range(20))


@pytest.mark.parametrize("retry_s", [None, 3600.0])
def test_a_run_that_never_worked_gives_up_within_a_minute(retry_s: float | None) -> None:
    time = Time()
    waiting = retry_policy(time, retry_s)
    # One of two servers answers.
    assert waiting.insist(lambda: "here") == "here"

    def refuse() -> None:
        raise REFUSED

    began = time.at
    with pytest.raises(RetryableError, match="after trying for 60 s"):
        waiting.insist(refuse)
    assert 60 <= time.at - began <= 76


@pytest.mark.parametrize(("retry_s", "most_s"), [(4.0, 21), (30.0, 45)])
def test_what_attempts_take_counts(retry_s: float, most_s: float) -> None:
    time = Time()
    waiting = retry_policy(time, retry_s)

    def time_out() -> None:
        time.at += 20
        raise REFUSED

    began = time.at
    with pytest.raises(RetryableError, match=f"after trying for {retry_s:g} s"):
        waiting.insist(time_out)
    assert time.at - began <= most_s


def test_work_that_fails_though_all_servers_answer_is_given_up_whatever_was_said() -> None:
    time = Time()
    waiting = retry_policy(time, None)
    waiting.restore()
    began = time.at

    def fail_for_an_hour() -> None:
        while time.at < began + 3600:
            waiting.wait(RetryableError("a Spark task failed"), is_away=False)

    with pytest.raises(RetryableError, match="after trying for 60 s"):
        fail_for_an_hour()
    assert time.at < began + 90


def test_an_outage_is_no_time_in_which_work_has_failed() -> None:
    time = Time()
    waiting = retry_policy(time, None)
    waiting.restore()
    # A batch breaks off, the server is away for an hour, and not quite ready when it is back.
    waiting.wait(REFUSED, is_away=False)
    began = time.at
    while time.at < began + 3600:
        waiting.wait(REFUSED)
    waiting.wait(REFUSED, is_away=False)
    waiting.wait(REFUSED, is_away=False)


def test_an_outage_is_told_once_when_it_begins_and_once_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    time, report = Time(), Report()
    waiting = RetryPolicy(None, threading.Event(), report, time.clock())
    waiting.restore()
    for _ in range(50):
        waiting.wait(REFUSED)
    assert [record.getMessage() for record in caplog.records] == ["cannot connect (127.0.0.1:5432/copy); trying again"]

    report._recovered()
    assert caplog.records[-1].getMessage().startswith("connected again after 0.")
    assert caplog.records[-1].__dict__["facts"]["where"] == ["127.0.0.1:5432/copy"]


def test_being_told_to_stop_ends_a_pause_at_once() -> None:
    stop = threading.Event()
    waiting = RetryPolicy(None, stop, Retries())
    waiting.restore()

    def refuse() -> None:
        threading.Timer(0.05, stop.set).start()
        raise REFUSED

    assert waiting.insist(refuse) is None
