"""Who hears how a run is doing beside its listener: metrics, alerts, traces. None of them can end a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.apply.error_queue import ErrorEntry
from penstock.apply.listener import RunListener, RunObserver
from penstock.apply.progress import Progress
from penstock.errors import PenstockError, RetryableError
from penstock.events import Event, SourceFacts, tell


class Observed:
    """A `RunListener` that passes everything on: to the run's listener, and then to each observer."""

    def __init__(self, listener: RunListener, observers: Sequence[RunObserver]) -> None:
        """Pass on to `listener`, whose errors are the run's, and to `observers`, whose errors are not."""
        self._listener = listener
        self._observers = list(observers)

    def began(self) -> None:
        """The run begins."""
        self._each(lambda one: one.began())

    def copying(self, chunks: int, tables: int) -> None:
        """So many chunks are about to be copied."""
        self._listener.copying(chunks, tables)
        self._each(lambda one: one.copying(chunks, tables))

    def copied(self, chunks: int, rows: int) -> None:
        """So many more chunks are committed."""
        self._listener.copied(chunks, rows)
        self._each(lambda one: one.copied(chunks, rows))

    def retrying(self, error: RetryableError, left_s: float | None) -> None:
        """A server cannot be reached."""
        self._listener.retrying(error, left_s)
        self._each(lambda one: one.retrying(error, left_s))

    def following(self) -> None:
        """Changes are applied from now on."""
        self._listener.following()
        self._each(lambda one: one.following())

    def queued(self, entry: ErrorEntry) -> None:
        """A transaction went to the error queue."""
        self._listener.queued(entry)
        self._each(lambda one: one.queued(entry))

    def progressed(self, progress: Progress) -> None:
        """A batch is applied."""
        self._listener.progressed(progress)
        self._each(lambda one: one.progressed(progress))

    def waiting(self, progress: Progress) -> None:
        """Nothing waits at the source."""
        self._listener.waiting(progress)
        self._each(lambda one: one.waiting(progress))

    def warned(self, text: str, event: Event = Event.NOTE, facts: SourceFacts | None = None) -> None:
        """Tell the user something that stops nothing."""
        self._listener.warned(text, event, facts)
        self._each(lambda one: one.warned(text, event, facts))

    def ended(self) -> None:
        """The run has ended as it should."""
        self._listener.ended()
        self._each(lambda one: one.ended())

    def close(self) -> None:
        """An error ends the run."""
        self._listener.close()
        self._each(lambda one: one.close())

    def finished(self, progress: Progress, *, is_stopped: bool) -> None:
        """The run has ended as it should, and this is what it came to."""
        self._each(lambda one: one.finished(progress, is_stopped=is_stopped))

    def failed(self, error: PenstockError) -> None:
        """This error has ended the run."""
        self._each(lambda one: one.failed(error))

    def _each(self, do: Callable[[RunObserver], None]) -> None:
        for one in list(self._observers):
            try:
                do(one)
            except Exception as exc:
                # A run does not end because nobody can watch it. The text of the error may hold a value.
                with suppress(ValueError):
                    # What watches for locks calls from a thread of its own, and may have been first.
                    self._observers.remove(one)
                text = f"{type(one).__name__} failed with {type(exc).__name__}, and hears no more of this run"
                tell(Event.NOTE, text, level=logging.WARNING)
