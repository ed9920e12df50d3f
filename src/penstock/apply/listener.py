"""What hears how a run is doing: the log by default, a command's progress, or a program of the user's."""

from __future__ import annotations

from typing import Protocol

from penstock.apply.error_queue import ErrorEntry
from penstock.apply.progress import Progress
from penstock.errors import PenstockError, RetryableError
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


class RunObserver(RunListener):
    """Hears how a run is doing, beside its listener; a subclass takes up what it needs, the rest is passed over.

    It is called on the run's own thread: what takes longer than to count belongs on a thread of its own. An error in
    it is warned of once, and ends nothing; see `pipeline.observers`.
    """

    def began(self) -> None:
        """The run begins; nothing is opened yet."""

    def copying(self, chunks: int, tables: int) -> None:
        """See `CopyListener`."""

    def copied(self, chunks: int, rows: int) -> None:
        """See `CopyListener`."""

    def retrying(self, error: RetryableError, left_s: float | None) -> None:
        """See `RunListener`."""

    def following(self) -> None:
        """See `RunListener`."""

    def queued(self, entry: ErrorEntry) -> None:
        """See `RunListener`."""

    def progressed(self, progress: Progress) -> None:
        """See `RunListener`; `progress.last_batch` is the batch."""

    def waiting(self, progress: Progress) -> None:
        """See `RunListener`."""

    def warned(self, text: str, event: Event = Event.NOTE, facts: SourceFacts | None = None) -> None:
        """See `RunListener`."""

    def ended(self) -> None:
        """See `RunListener`; `finished` follows."""

    def close(self) -> None:
        """See `RunListener`; `failed` follows."""

    def finished(self, progress: Progress, *, is_stopped: bool) -> None:
        """The run has ended as it should; `is_stopped` where it was told to, or a limit ended it."""

    def failed(self, error: PenstockError) -> None:
        """An error has ended the run; of an unforeseen one only its kind is told."""
