"""Patience with a server that is out of reach: how long to go on trying, and whom to tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.errors import RetryableError

Result = TypeVar("Result")

_PAUSE_S = 1.0

_LEAST_ATTEMPTS = 3
"""Work is tried so often at least, even when the time is up: two failures may both be bad luck."""


class RetryListener(Protocol):
    """Hears that something has to be tried again."""

    def retrying(self, error: RetryableError, left_s: float) -> None:
        """A server cannot be reached; it will be tried again for so many seconds."""


class Patience:
    """Counts the time since things last went well."""

    def __init__(self, retry_s: float, stop: threading.Event, listener: RetryListener) -> None:
        """Go on trying for `retry_s` seconds and at least three attempts, or until told to stop; 0: try once."""
        self._retry_s = retry_s
        self._stop = stop
        self._listener = listener
        self._deadline: float | None = None
        self._failures = 0

    def restore(self) -> None:
        """Things go well: the next failure starts a new count."""
        self._deadline = None
        self._failures = 0

    def wait(self, error: RetryableError) -> None:
        """Pause before the next attempt.

        Raises:
            RetryableError: What `error` says, once the time is up.
        """
        now = time.monotonic()
        self._deadline = self._deadline or now + self._retry_s
        self._failures += 1
        if now >= self._deadline and (self._failures >= _LEAST_ATTEMPTS or not self._retry_s):
            tried = f"{error.what}, in spite of trying for {self._retry_s:g} s"
            raise RetryableError(tried, where=error.where, do=error.do) from error
        self._listener.retrying(error, max(0, self._deadline - now))
        self._stop.wait(_PAUSE_S)

    def insist(self, work: Callable[[], Result]) -> Result | None:
        """Do `work`, again and again until it succeeds; None when told to stop first.

        Raises:
            RetryableError: It still fails when the time is up.
        """
        while not self._stop.is_set():
            try:
                result = work()
            except RetryableError as exc:
                self.wait(exc)
            else:
                self.restore()
                return result
        return None
