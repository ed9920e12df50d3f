"""Something that goes on in a thread of its own while a block runs, and does not fail unheard."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Watcher(ABC):
    """Watches while the block runs. What goes wrong in watching is raised at the end of the block."""

    def __init__(self, name: str) -> None:
        self.failure: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def watch(self, ended: threading.Event) -> None:
        """Watch until the event is set."""

    def end(self) -> None:
        """Stop watching, perhaps before the end of the block."""
        self._ended.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if kind is None and self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self.watch(self._ended)
        except Exception as exc:
            self.failure = exc
