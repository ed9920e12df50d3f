"""What hears how a run is doing: the log by default, a command's progress, or a program of the user's."""

from __future__ import annotations

from typing import Protocol

from penstock.apply.error_queue import ErrorEntry
from penstock.apply.progress import Progress
from penstock.errors import RetryableError
from penstock.events import Event, SourceFacts


class CopyListener(Protocol):
    """Hears how the copying goes."""

    def copying(self, chunks: int, tables: int) -> None:
        """So many chunks are about to be copied."""

    def copied(self, chunks: int, rows: int) -> None:
        """So many more chunks are committed, with so many rows."""


class RunListener(CopyListener, Protocol):
    """Hears how a run is doing, the first copy included."""

    def retrying(self, error: RetryableError, left_s: float | None) -> None:
        """A server cannot be reached; it will be tried again for so many seconds, or without end."""

    def following(self) -> None:
        """Everything is ready; changes are applied from now on."""

    def queued(self, entry: ErrorEntry) -> None:
        """A transaction went to the error queue."""

    def progressed(self, progress: Progress) -> None:
        """A batch is applied."""

    def waiting(self, progress: Progress) -> None:
        """Nothing waits at the source."""

    def warned(self, text: str, event: Event = Event.NOTE, facts: SourceFacts | None = None) -> None:
        """Tell the user something that stops nothing; `facts` say the same for programs."""

    def ended(self) -> None:
        """The run has ended as it should: report now what was only counted."""

    def close(self) -> None:
        """An error ends the run: report now what was not reported yet."""
