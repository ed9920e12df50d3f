"""Naming the session that keeps a pipeline waiting: a database lets ours wait for a lock for ever, without a word.

That a second run of one pipeline is refused is up to `dialects.postgres.target.ledger.PostgresLedger.refuse_second`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from penstock.database import LockWait, WorkingSession
from penstock.dialects.sessions import LockWatch
from penstock.errors import PenstockError

_LOOK_EVERY_S = 2.5
_LONG_S = 5.0
_AGAIN_S = 60.0

_GLANCE_EVERY_S = 0.03
_FRESH_S = 2.0
"""How often to look for waits that are over at once, and for how long a wait that was seen is believed."""


@contextmanager
def told_of_locks(watches: Sequence[LockWatch], tell: Callable[[LockWait], None]) -> Iterator[None]:
    """Inside the block, tell of what sessions have waited for, for 5 s, and once a minute while they go on waiting.

    `tell` is called from another thread.
    """
    said: dict[tuple[str, str, int | None], float] = {}

    def hear(wait: LockWait) -> None:
        # Several lanes may wait for one.
        key = wait.where, str(wait.table), wait.holder
        if time.monotonic() - said.get(key, -_AGAIN_S) >= _AGAIN_S:
            said[key] = time.monotonic()
            tell(wait)

    look = _Look(watches, hear, every_s=_LOOK_EVERY_S, longer_than_s=_LONG_S)
    try:
        yield
    finally:
        look.close()


class Holders:
    """Finds the session that holds a lock which a step waits for: each wait is too short to ask afterwards."""

    def __init__(self, watches: Sequence[LockWatch]) -> None:
        """Watch with these; nothing is done until `look`."""
        self._watches = watches
        self._look: _Look | None = None
        self._seen: dict[str, tuple[float, LockWait]] = {}

    def look(self) -> None:
        """Look from now on, often enough to see the shortest wait of a step."""
        if self._look is None:
            self._look = _Look(self._watches, self._hear, every_s=_GLANCE_EVERY_S, longer_than_s=0)

    def of(self, where: str) -> LockWait | None:
        """Return a session's last wait, in the database of that label; None if it was long ago, or was not seen."""
        seen_at, wait = self._seen.get(where, (0.0, None))
        return wait if time.monotonic() - seen_at < _FRESH_S else None

    def close(self) -> None:
        """Look no more."""
        if self._look is not None:
            self._look.close()

    def _hear(self, wait: LockWait) -> None:
        self._seen[wait.where] = time.monotonic(), wait


@dataclass(frozen=True)
class Work:
    """What sessions of a pipeline do at one moment.

    Attributes:
        sessions: Those that are inside a transaction, at the source and at the target.
        waits: Those that another session's lock keeps waiting, and which.
    """

    sessions: Sequence[WorkingSession] = ()
    waits: Sequence[LockWait] = ()


NO_WORK = Work()


class WorkWatch:
    """Looks at what sessions of a pipeline do and wait for, when it is asked."""

    def __init__(self, watches: Sequence[LockWatch]) -> None:
        """Watch with these; nothing is connected to yet."""
        self._watches = watches

    def look(self) -> Work:
        """Return what can be seen now; of a database that is out of reach, nothing."""
        sessions: list[WorkingSession] = []
        waits: list[LockWait] = []
        for watch in self._watches:
            # Whoever asks for the status hears that the database is out of reach.
            with suppress(PenstockError):
                sessions += watch.at_work()
                waits += watch.waits(0)
        return Work(sessions, waits)

    def close(self) -> None:
        """Close the sessions."""
        for watch in self._watches:
            watch.close()


class _Look:
    """Looks for waits again and again, in a thread of its own."""

    def __init__(
        self,
        watches: Sequence[LockWatch],
        hear: Callable[[LockWait], None],
        *,
        every_s: float,
        longer_than_s: float,
    ) -> None:
        self._watches = watches
        self._hear = hear
        self._every_s = every_s
        self._longer_than_s = longer_than_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lock watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(_LONG_S)

    def _work(self) -> None:
        while not self._over.wait(self._every_s):
            for watch in self._watches:
                # Sessions that work in a database report that it is out of reach; the watch does not.
                with suppress(PenstockError):
                    for wait in watch.waits(self._longer_than_s):
                        self._hear(wait)
        for watch in self._watches:
            watch.close()
