"""When a log is polled."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.change import TableName
from penstock.sources.event_log.settings import EventLogSettings
from penstock.sources.event_log.timetable import Timetable


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, 11, 59, 50)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def test_polls_follow_each_other_while_rows_are_found_and_then_after_the_interval() -> None:
    clock = Clock()
    timetable = Timetable(EventLogSettings(TableName("s", "log"), polling_interval_s=10), clock)

    assert timetable.left_s == 0
    timetable.polled(has_found=True)
    assert timetable.left_s == 0
    timetable.polled(has_found=False)
    assert timetable.left_s == 10
    clock.forward(11)
    assert timetable.left_s == 0


def test_with_times_of_day_nothing_is_polled_before_them() -> None:
    clock = Clock()
    noon, midnight = 12 * 3600, 0
    settings = EventLogSettings(TableName("s", "log"), times_of_day=(noon, midnight))
    timetable = Timetable(settings, clock)

    assert timetable.left_s == 10
    clock.forward(10)
    assert timetable.left_s == 0
    timetable.polled(has_found=False)
    assert timetable.left_s == 12 * 3600
    timetable.at_once()
    assert timetable.left_s == 0
