"""When to poll a log: again and again while rows are found, else after an interval, or at times of day."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from penstock.sources.event_log.settings import EventLogSettings


class Timetable:
    """Says when the next poll is due; the first one is, unless there are times of day."""

    def __init__(self, settings: EventLogSettings, clock: Callable[[], datetime] = datetime.now) -> None:
        """Go by local time, as `clock` has it."""
        self._settings = settings
        self._clock = clock
        self._due: datetime = self._next_time_of_day() if settings.times_of_day else clock()

    def at_once(self) -> None:
        """Have the next poll due now."""
        self._due = self._clock()

    def polled(self, *, has_found: bool) -> None:
        """Note that a poll is over; `has_found` where it found rows, so more may wait or have come."""
        if has_found:
            self.at_once()
        elif self._settings.times_of_day:
            self._due = self._next_time_of_day()
        else:
            self._due = self._clock() + timedelta(seconds=self._settings.polling_interval_s)

    @property
    def left_s(self) -> float:
        """Seconds until the next poll is due; 0 if it is."""
        return max(0.0, (self._due - self._clock()).total_seconds())

    def _next_time_of_day(self) -> datetime:
        now = self._clock()
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        times = [
            midnight + timedelta(days=day, seconds=second) for day in (0, 1) for second in self._settings.times_of_day
        ]
        return min(time for time in times if time > now)
