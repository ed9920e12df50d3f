"""A session that is kept from one use to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg.pq import TransactionStatus

from penstock.dialects.postgres.connection import Connection, hold_settings
from penstock.errors import PenstockError


class KeptSession:
    """One session for those who need one now and then.

    What a server knows of its catalogue, each session reads anew: the first plan of a query takes several times as long
    as the second. A command asks the catalogue a dozen times, and a run every few seconds.
    """

    def __init__(self, url: str, open_: Callable[[], Connection]) -> None:
        """Keep a session at `url`, which `open_` opens; nothing is opened yet."""
        self._url = url
        self._open = open_
        self._lock = threading.Lock()
        self._kept: Connection | None = None

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """Give the session, or another one while it is in use; one that failed is not used again.

        Its settings are those it was opened with, whatever was set meanwhile; temporary tables and session-level locks
        are not to be left in it.

        Raises:
            RetryableError, OperatorError: There is none, as `connect`.
        """
        connection = self._take() or self._open()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._keep(connection)

    def _take(self) -> Connection | None:
        with self._lock:
            connection, self._kept = self._kept, None
        if connection is None:
            return None
        try:
            hold_settings(connection, self._url)
        except (psycopg.Error, PenstockError):
            # The server was started again meanwhile, or has ended it; what is wrong there, a new one says.
            connection.close()
            return None
        return connection

    def _keep(self, connection: Connection) -> None:
        is_idle = not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            if is_idle and self._kept is None:
                self._kept = connection
                return
        connection.close()
