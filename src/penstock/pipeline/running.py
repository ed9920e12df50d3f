"""One run of a pipeline, whether it applies or publishes: how it goes on, how it is cut off, and why it ended.

What ends a run is decided in `apply.process` (a limit, errors, a stop that was asked for), which writes the reason to
the ledger with `set_status`; or it is an error, which `Run.carry_out` has written down. `pipeline.status` reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.apply.listener import CopyListener
from penstock.apply.progress import Progress
from penstock.apply.retry_policy import RetryPolicy
from penstock.errors import PenstockError
from penstock.pipeline.observers import Observed
from penstock.pipeline.report import redacted_error, tell_ended, tell_failed
from penstock.spark.starting import Spark

_GRACE_S = 20.0


class CopyWatch:
    """Passes on how a copy goes; as long as chunks are committed, failures may be tried again."""

    def __init__(self, listener: CopyListener, retry_policy: RetryPolicy) -> None:
        """Tell `listener`, and give back the time that `retry_policy` has counted."""
        self._listener = listener
        self._retry_policy = retry_policy

    def copying(self, chunks: int, tables: int) -> None:
        """So many chunks are about to be copied."""
        self._listener.copying(chunks, tables)

    def copied(self, chunks: int, rows: int) -> None:
        """So many more chunks are committed, with so many rows."""
        self._retry_policy.restore()
        self._listener.copied(chunks, rows)


@dataclass(frozen=True)
class Run:
    """One run: how it ended is logged in any case.

    Attributes:
        stop: Set to end it.
        until_caught_up: It ends by itself once it has caught up.
        until: It ends by itself at this position or time.
    """

    stop: threading.Event
    listener: Observed
    until_caught_up: bool
    until: str | None
    publishes: bool

    def carry_out(self, work: Callable[[], Progress], set_status: Callable[[PenstockError], None]) -> Progress:
        """Do the work of the run; `set_status` writes down which error ended it."""
        self.listener.began()
        try:
            progress = work()
        except BaseException as exc:
            self.listener.close()
            if isinstance(exc, Exception):
                failure = redacted_error(exc)
                tell_failed(failure)
                set_status(failure)
                self.listener.failed(failure)
            raise
        self.listener.ended()
        is_done = not self.stop.is_set() and progress.ended_by is None
        tell_ended(
            progress,
            has_caught_up=self.until_caught_up and is_done,
            has_arrived=self.until is not None and is_done,
            publishes=self.publishes,
        )
        self.listener.finished(progress, is_stopped=not is_done)
        return progress


@contextmanager
def not_for_ever(spark: Spark, stop: threading.Event) -> Iterator[None]:
    """Once told to stop, cut off what takes too long to be finished: the ledger knows what of it is done."""
    over = threading.Event()

    def watch() -> None:
        stop.wait()
        if not over.wait(_GRACE_S):
            spark.cancel_jobs()

    threading.Thread(target=watch, name="end", daemon=True).start()
    try:
        yield
    finally:
        over.set()
