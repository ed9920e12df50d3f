"""Saying who keeps a pipeline waiting: databases have a session wait for a lock for ever, without a word."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from penstock.dialects.base import LockWait
from penstock.errors import PenstockError

_LOOK_EVERY_S = 2.5
_LONG_S = 5.0
_AGAIN_S = 60.0


class LockWatch(Protocol):
    """Looks for sessions of a pipeline that wait for a lock in one database."""

    def waits(self, longer_than_s: float) -> Sequence[LockWait]:
        """Return who waits for longer than some seconds; raises a PenstockError where that cannot be told."""

    def close(self) -> None:
        """Close its session."""


@contextmanager
def told_of_locks(watches: Sequence[LockWatch], tell: Callable[[str], None]) -> Iterator[None]:
    """Inside the block, tell of what sessions have waited for, for 5 s, and once a minute while they go on waiting.

    `tell` is called from another thread.
    """
    over = threading.Event()

    def look() -> None:
        said: dict[tuple[str, str, int | None], float] = {}
        while not over.wait(_LOOK_EVERY_S):
            for watch in watches:
                # What is out of reach is the business of those who work there.
                with suppress(PenstockError):
                    for wait in watch.waits(_LONG_S):
                        # Several lanes may wait for one.
                        key = wait.where, str(wait.table), wait.holder
                        if time.monotonic() - said.get(key, -_AGAIN_S) >= _AGAIN_S:
                            said[key] = time.monotonic()
                            tell(str(wait))
        for watch in watches:
            watch.close()

    thread = threading.Thread(target=look, name="lock watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_LONG_S)
