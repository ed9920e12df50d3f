"""Retry policy: how long a server that is out of reach is tried again, with which pauses, and who is told.

The pauses are constants, for which there is no setting; `retry_s` is the time in which attempts are made.
A run that has worked once outlives any outage, unless the pipeline file says for how long. One that has just begun
gives up within a minute, for its url may be wrong. And work that fails again and again while all servers answer is
given up, too: no outage is why it fails.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from penstock.apply.listener import RunListener
from penstock.errors import RetryableError
from penstock.text import duration

Result = TypeVar("Result")

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
_GROWTH = 1.5

_JITTER = 0.2
"""Pauses differ by this share, so that many runs do not meet a server that comes back at one moment."""

_LEAST_ATTEMPTS = 3
"""Work is tried so often at least, even when the time is up: two failures may both be bad luck."""

_AT_START_S = 60.0
"""How long to go on trying before anything has worked."""

_WORK_S = 60.0
"""How long to go on trying what fails though all servers answer."""

_LEAST_S = 10.0
"""Attempts are made up to the least number only as long as that takes no longer than this."""


@dataclass(frozen=True)
class Clock:
    """What patience reads the time from; tests have another one."""

    now: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = lambda: random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - no secret
    pause: Callable[[threading.Event, float], object] = threading.Event.wait


class RetryPolicy:
    """Counts the time since things last went well."""

    def __init__(
        self, retry_s: float | None, stop: threading.Event, listener: RunListener, clock: Clock = Clock()
    ) -> None:
        """Go on trying for `retry_s` seconds and at least three attempts, or until told to stop.

        Args:
            retry_s: 0: try once; None: without end, once `restore` has said that things went well.
        """
        self._retry_s = retry_s
        self._stop = stop
        self._listener = listener
        self._clock = clock
        self._has_worked = False
        self._began: float | None = None
        self._work_began: float | None = None
        self._failed_at = 0.0
        self._failures = 0

    def restore(self) -> None:
        """Things go well: the next failure starts a new count."""
        self._has_worked = True
        self._reset()

    def wait(self, error: RetryableError, *, is_away: bool = True, since: float | None = None) -> None:
        """Pause before the next attempt.

        Args:
            is_away: A server did not answer; otherwise all did, and the work has failed.
            since: When the attempt began, on the clock; None where it may have done good work until it failed.

        Raises:
            RetryableError: What `error` says, once the time is up.
        """
        now = self._clock.now()
        if self._began is None:
            self._began = now if since is None else since
        if not is_away:
            self._work_began = self._work_began or now
        elif self._work_began is not None:
            # An outage is no time in which the work has failed.
            self._work_began += now - self._failed_at
        self._failed_at = now
        self._failures += 1
        limit = self._limit()
        spent = now - self._began
        over = limit if limit is not None and self._is_over(spent, limit) else None
        if over is None and not is_away and self._work_began is not None:
            over = _WORK_S if self._is_over(now - self._work_began, _WORK_S) else None
        if over is not None:
            tried = f"{error.what}, after trying for {_told(over)}"
            raise RetryableError(tried, where=error.where, do=error.do) from error
        left = None if limit is None else max(0.0, limit - spent)
        self._listener.retrying(error, left)
        pause = min(_FIRST_PAUSE_S * _GROWTH ** (self._failures - 1), _LONGEST_PAUSE_S) * self._clock.jitter()
        self._clock.pause(self._stop, pause if not left else min(pause, left))

    def insist(self, work: Callable[[], Result]) -> Result | None:
        """Do `work`, again and again until it succeeds; None when told to stop first.

        Raises:
            RetryableError: It still fails when the time is up.
        """
        while not self._stop.is_set():
            began = self._clock.now()
            try:
                result = work()
            except RetryableError as exc:
                self.wait(exc, since=began)
            else:
                # That one server answers says nothing of the other.
                self._reset()
                return result
        return None

    def _reset(self) -> None:
        self._began = self._work_began = None
        self._failures = 0

    def _limit(self) -> float | None:
        if self._has_worked:
            return self._retry_s
        return _AT_START_S if self._retry_s is None else min(self._retry_s, _AT_START_S)

    def _is_over(self, spent: float, limit: float) -> bool:
        is_tried_enough = self._failures >= _LEAST_ATTEMPTS or spent >= _LEAST_S
        return spent >= limit and (is_tried_enough or self._retry_s == 0)


def _told(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 120 else duration(seconds)
