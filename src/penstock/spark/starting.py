"""Spark as a run has it: started in a thread of its own, while the run asks its databases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

_SESSION_AFTER_S = 3.0
"""How long the session is left alone, so that a run's first batch has the machine for itself."""

Found = TypeVar("Found")


class Spark:
    """Spark, started when somebody needs it, or beforehand by `begin`. Threads may share it."""

    def __init__(
        self,
        start: Callable[[], SparkContext],
        start_session: Callable[[], SparkSession],
        on_started: Callable[[SparkContext], None] = lambda _: None,
    ) -> None:
        """Start nothing yet.

        Args:
            start: Starts Spark as far as jobs on RDDs need it.
            start_session: Called behind that; it takes Java another second.
            on_started: Gives workers what they need besides; called when the context is first asked for.
        """
        self._start = start
        self._start_session = start_session
        self._on_started = on_started
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None
        self._started_context: SparkContext | None = None

    @classmethod
    def of(cls, session: SparkSession) -> Spark:
        """Use a session that is there."""
        return cls(lambda: session.sparkContext, lambda: session)

    def begin(self) -> None:
        """Start it in the background. A program that comes to not using it need not wait for that to end."""
        self._begun()

    @property
    def context(self) -> SparkContext:
        """The context, as soon as it is there.

        Raises:
            OperatorError: Spark does not start; asking again tries again.
        """
        attempt = self._begun()
        attempt.has_context.wait()
        context = self._found(attempt.context, attempt)
        with self._lock:
            if self._started_context is not context:
                self._on_started(context)
                self._started_context = context
        return context

    @property
    def session(self) -> SparkSession:
        """The session, for frames; waits and raises as `context` does."""
        attempt = self._begun()
        attempt.wants_session.set()
        attempt.thread.join()
        return self._found(attempt.session, attempt)

    def cancel_jobs(self) -> None:
        """Cut off the jobs that are at work, if there can be any yet."""
        attempt = self._attempt
        if attempt is not None and attempt.context is not None:
            attempt.context.cancelAllJobs()

    def _begun(self) -> _Attempt:
        with self._lock:
            if self._attempt is None or self._attempt.is_stopped:
                self._attempt = _Attempt(self._start, self._start_session)
            return self._attempt

    def _found(self, value: Found | None, attempt: _Attempt) -> Found:
        if value is not None:
            return value
        with self._lock:
            if self._attempt is attempt:
                self._attempt = None
        assert attempt.error is not None
        raise attempt.error


class _Attempt:
    """One start of Spark, which may fail."""

    def __init__(self, start: Callable[[], SparkContext], start_session: Callable[[], SparkSession]) -> None:
        self._start = start
        self._start_session = start_session
        self.has_context = threading.Event()
        self.wants_session = threading.Event()
        self.context: SparkContext | None = None
        self.session: SparkSession | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, name="starting spark", daemon=True)
        self.thread.start()

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped what was started."""
        return self.context is not None and self.context._jsc is None

    def _work(self) -> None:
        try:
            self.context = self._start()
            self.has_context.set()
            self.wants_session.wait(_SESSION_AFTER_S)
            if self.is_stopped:
                # A session would start Spark once more, and by nobody's settings.
                raise RuntimeError("Spark was stopped before its session was made")
            self.session = self._start_session()
        except BaseException as exc:
            # Raised to whoever asks.
            self.error = exc
        finally:
            self.has_context.set()
