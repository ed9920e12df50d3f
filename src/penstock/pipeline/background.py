"""A run in a thread of its own, for programs that have other things to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from penstock.apply.progress import Progress


class BackgroundRun:
    """A run at work; as a context manager it is stopped at the end of the block."""

    def __init__(self, run: Callable[[threading.Event], Progress]) -> None:
        """Begin at once; `run` ends when its event is set, or by itself."""
        self._run = run
        self._stop = threading.Event()
        self._progress: Progress | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="penstock run")
        self._thread.start()

    def __enter__(self) -> BackgroundRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if exc is None:
            self.wait()

    @property
    def is_alive(self) -> bool:
        """Whether it is at work still."""
        return self._thread.is_alive()

    def stop(self) -> Progress:
        """Tell it to stop, and wait until it has: what is being applied is finished first, for at most 20 s.

        Returns and raises as `wait` does.
        """
        self._stop.set()
        return self.wait()

    def wait(self, timeout_s: float | None = None) -> Progress:
        """Wait until it has ended; returns what it has done.

        Raises:
            PenstockError: The error that the run ended with.
            TimeoutError: It has not ended within the time.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the run has not ended within {timeout_s} s")
        if self._error is not None:
            raise self._error
        assert self._progress is not None
        return self._progress

    def _work(self) -> None:
        try:
            self._progress = self._run(self._stop)
        except BaseException as exc:
            # `wait` raises it.
            self._error = exc
