"""What the log takes, read on a session of its own while a run goes on: it reads all of the log, which may be long."""

from __future__ import annotations

import threading
from datetime import timedelta

from penstock.dialects.postgres.connection import Connection, connect, speaking
from penstock.dialects.postgres.source.history import log_hold
from penstock.dialects.sessions import HoldWatch
from penstock.history import LogHold


class PostgresHoldWatch(HoldWatch):
    """Opens a session for each look, and none in between: looks are a minute apart, or far more."""

    def __init__(self, url: str, pipeline: str, set_name: str) -> None:
        """Watch the log of a capture set; nothing is opened yet."""
        self._url = url
        self._name = f"penstock {pipeline} log watch"
        self._set_name = set_name
        self._lock = threading.Lock()
        self._is_over = False
        self._connection: Connection | None = None

    def look(self, older: timedelta) -> LogHold | None:
        """Say what disk the log takes, and for whom, see `history.log_hold`; None if it was closed meanwhile.

        Raises:
            PenstockError: The database cannot be asked; the next call opens a new session.
        """
        with speaking("see what the change log takes", self._url):
            connection = connect(self._url, self._name)
            try:
                with self._lock:
                    if self._is_over:
                        return None
                    self._connection = connection
                return log_hold(connection, self._set_name, older)
            except Exception:
                # It is cancelled when the run ends; nobody is there to hear of it.
                if self._is_over:
                    return None
                raise
            finally:
                with self._lock:
                    self._connection = None
                connection.close()

    def close(self) -> None:
        """End the look that another thread may be taking; there is none afterwards."""
        with self._lock:
            self._is_over = True
            if self._connection is not None:
                self._connection.cancel_safe(timeout=5)
