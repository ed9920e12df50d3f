"""Reading query results as Arrow record batches, by COPY in binary form, without a Python object per value."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing

import adbc_driver_manager
import pyarrow as pa

from penstock.dialects.postgres.connection import WITHOUT_VIEWS, asked, connect, conninfo, label, repair
from penstock.dialects.postgres.errors import condition, from_sqlstate
from penstock.dialects.postgres.session_check import check_query, differing, not_held
from penstock.errors import PenstockError

_PRIMARY_MESSAGE = re.compile(r"(?:ERROR|FATAL):\s+(.*)")


class ArrowReader:
    """One session that only reads. Not for use by two threads at once."""

    def __init__(self, url: str, application_name: str, settings: Mapping[str, str] = {}) -> None:
        """Connect; `settings` are session settings beyond those for canonical text."""
        # Imported here because it imports pandas, which no command that only asks for a status should wait for.
        from adbc_driver_postgresql import dbapi

        self._where = label(url)
        try:
            self._connection = dbapi.connect(conninfo(url, application_name, settings), autocommit=True)
        except adbc_driver_manager.Error as exc:
            raise self._translate(exc, "connect") from exc
        # Also at exit: a session that is still open when Python takes itself apart is answered by a traceback.
        self._finish = weakref.finalize(self, self._connection.close)
        self._check(url, application_name, settings)
        self.table(WITHOUT_VIEWS, doing="connect")

    def _check(self, url: str, application_name: str, settings: Mapping[str, str]) -> None:
        """Make sure that the session has the settings that were asked for; see `session_check`."""
        if not self._differing(settings):
            return
        # This driver does not tell what a pooler is known by; the other one refuses where it pools by transaction.
        connect(url, application_name).close()
        self.table(repair(url, settings), doing="connect")
        if lost := self._differing(settings):
            raise not_held(lost, self._where)

    def _differing(self, settings: Mapping[str, str]) -> list[str]:
        held = self.table(check_query(asked(settings)), doing="connect")["held"][0].as_py()
        return differing(asked(settings), held)

    def execute(self, statement: str) -> None:
        """Run a statement that yields no rows; raises as `stream` does."""
        with closing(self._connection.cursor()) as cursor:
            try:
                cursor.execute(statement)
            except (adbc_driver_manager.Error, OSError) as exc:
                raise self._translate(exc, "begin reading") from exc

    def stream(self, query: str, *, doing: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query without parameters, batch by batch, as the server sends them.

        Raises:
            RetryableError: The connection was lost.
            OperatorError: The query cannot be run by this user on this database.
        """
        with closing(self._connection.cursor()) as cursor:
            try:
                cursor.execute(query)
                yield from cursor.fetch_record_batch()
            except (adbc_driver_manager.Error, OSError) as exc:
                raise self._translate(exc, doing) from exc

    def table(self, query: str, *, doing: str) -> pa.Table:
        """Return all rows of a query; raises as `stream` does."""
        with closing(self._connection.cursor()) as cursor:
            try:
                cursor.execute(query)
                return cursor.fetch_arrow_table()
            except (adbc_driver_manager.Error, OSError) as exc:
                raise self._translate(exc, doing) from exc

    def close(self) -> None:
        """Close the session."""
        self._finish()

    def _translate(self, exc: Exception, doing: str) -> PenstockError:
        # Only the server's primary message: the rest of the driver's text repeats the query.
        found = _PRIMARY_MESSAGE.search(str(exc))
        sqlstate = getattr(exc, "sqlstate", None) or None
        if sqlstate and sqlstate[:2] == "22":
            reason = condition(sqlstate)
        else:
            reason = found.group(1) if found else "connection lost"
        return from_sqlstate(sqlstate, doing=doing, where=self._where, reason=reason)
