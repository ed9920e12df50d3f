"""What a target's error queue says of the events of a log, each of which is a transaction there."""

from __future__ import annotations

from collections.abc import Callable, Set

from penstock.apply.error_queue import EntryOutcome, ErrorQueue

_MOST_DEEDS = 100_000


class Failures:
    """Which events failed, by their positions."""

    def __init__(self, queue: Callable[[], ErrorQueue] | None = None) -> None:
        """Ask a queue, which is opened anew for each question: they are rare. Without one nothing fails."""
        self._queue = queue

    def waiting(self) -> Set[int]:
        """Return those that are in the queue."""
        return {entry.commit_scn for entry in self._queue().entries()} if self._queue is not None else frozenset()

    def applied(self) -> Set[int]:
        """Return those that have left it as they were applied after all, as far as its history goes back."""
        deeds = self._queue().history(most=_MOST_DEEDS) if self._queue is not None else ()
        return {deed.commit_scn for deed in deeds if deed.outcome is EntryOutcome.APPLIED}

    def deleted(self, first: int, last: int) -> Set[int]:
        """Return those from one position to another that have left it as they were given up."""
        return self._queue().deleted(first, last) if self._queue is not None else frozenset()
