"""Waiting for the next commit at a PostgreSQL source without asking for it.

Notifying is dear: PostgreSQL lets one notifying transaction commit at a time, in all databases of a server. So a reader
that has nothing to do takes an advisory lock, which every transaction that logs a change also tries to take, to share
it with the others: it has to notify when it does not get it. A working reader costs its writers no more than that lock.
"""

from __future__ import annotations

import hashlib
import threading
import time

from penstock.dialects.postgres.connection import Connection, quote

_POLL_S = 0.05
"""How long to wait where no commit will notify."""

_STOP_S = 0.1
"""How often a sleeper looks whether it is told to stop."""


def wake_key(set_name: str) -> int:
    """The advisory lock of a capture set's reader."""
    return int.from_bytes(hashlib.sha256(set_name.encode()).digest()[:8], "big", signed=True)


class Sleeper:
    """Waits on one session. It is asleep, and holds the lock, while it listens and for the last look before that."""

    def __init__(self, session: Connection, set_name: str) -> None:
        """Listen on `session` for what the named set logs."""
        self._session = session
        self._key = wake_key(set_name)
        self._is_asleep = False
        session.execute(f"LISTEN {quote(set_name)}")
        row = session.execute(
            "SELECT current_setting('max_prepared_transactions') = '0' AND EXISTS (SELECT FROM pg_attrdef"
            # A set that an older version installed does not notify.
            " WHERE adrelid = %s::regclass AND strpos(pg_get_expr(adbin, adrelid), %s) > 0)",
            [f"{quote(set_name)}.log", str(self._key)],
        ).fetchone()
        assert row is not None
        self._is_notified = bool(row[0])

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when the log may hold more than was found before; after the timeout at the latest.

        The first call only goes to sleep: commits until then have not notified, so the caller has to look once
        more. While a writer is at work the reader cannot go to sleep, and the call returns after a moment.
        """
        if self._is_asleep:
            self._listen(stop, timeout_s)
            # The caller's next work may take long; writers need not notify meanwhile.
            self.rise()
        elif self._is_notified and self._lock():
            self._is_asleep = True
        else:
            stop.wait(_POLL_S)

    def rise(self) -> None:
        """Have commits notify no more."""
        if self._is_asleep:
            self._session.execute("SELECT pg_advisory_unlock(%s)", [self._key])
            self._is_asleep = False

    def _listen(self, stop: threading.Event, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not stop.is_set() and (left := deadline - time.monotonic()) > 0:
            if any(True for _ in self._session.notifies(timeout=min(left, _STOP_S), stop_after=1)):
                return

    def _lock(self) -> bool:
        row = self._session.execute("SELECT pg_try_advisory_lock(%s)", [self._key]).fetchone()
        return bool(row and row[0])
