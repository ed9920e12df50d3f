"""Which sessions keep ours waiting for a lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from penstock.change import TableName
from penstock.database import LockWait, WorkingSession
from penstock.dialects.postgres.connection import Connection, connect, label, speaking
from penstock.dialects.postgres.resources import sql_text
from penstock.dialects.sessions import LockWatch

# A run's own session also says where the run is; see `target.run_lock`.
_AT_WORK = r"""
SELECT a.pid, regexp_replace(substr(a.application_name, length(own.prefix) + 1), ' \d+@.*$', '') AS purpose,
  extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
  CASE WHEN a.state = 'active' AND a.wait_event_type <> 'Client' THEN concat_ws(' ', a.wait_event_type, a.wait_event)
    ELSE '' END AS waits_for
FROM pg_catalog.pg_stat_activity a
JOIN LATERAL (
  SELECT prefix FROM unnest(%s::text[]) prefix WHERE starts_with(a.application_name, prefix)
  ORDER BY length(prefix) DESC LIMIT 1
) own ON true
WHERE a.datname = current_database() AND a.usename = current_user AND a.xact_start IS NOT NULL
  AND a.pid <> pg_backend_pid()
ORDER BY a.xact_start, a.pid
"""

_PREPARED = "pg_prepared_xacts shows it; commit it, or roll it back"


class PostgresLockWatch(LockWatch):
    """Looks, on a session of its own, for sessions of a pipeline that work or wait."""

    def __init__(self, url: str, *names: str) -> None:
        """Watch the sessions whose application name begins with `penstock <name> `, for one of the names."""
        self._url = url
        self._prefixes = [f"penstock {name} " for name in names]
        self._connection: Connection | None = None

    def at_work(self) -> list[WorkingSession]:
        """Return our sessions that are inside a transaction, the oldest first.

        Raises:
            PenstockError: As of `waits`.
        """
        with self._asking("look for sessions") as connection:
            rows = connection.execute(_AT_WORK, [self._prefixes]).fetchall()
        return [
            WorkingSession(session, purpose, seconds, waits_for, label(self._url))
            for session, purpose, seconds, waits_for in rows
        ]

    def waits(self, longer_than_s: float) -> list[LockWait]:
        """Return our sessions that wait for longer than some seconds, the longest wait first.

        Raises:
            PenstockError: The database cannot be asked; the next call opens a new session.
        """
        with self._asking("look for locks") as connection:
            return self._look(connection, longer_than_s)

    def close(self) -> None:
        """Close the session."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _asking(self, what: str) -> Iterator[Connection]:
        if self._connection is None:
            self._connection = connect(self._url, "penstock lock watch")
        try:
            with speaking(what, self._url):
                yield self._connection
        except BaseException:
            self.close()
            raise

    def _look(self, connection: Connection, longer_than_s: float) -> list[LockWait]:
        # Reading all locks blocks the server's lock table for a moment, so do it only when a session of ours waits.
        row = connection.execute(
            "SELECT array_agg(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user"
            " AND wait_event_type = 'Lock'"
            " AND EXISTS (SELECT FROM unnest(%s::text[]) prefix WHERE starts_with(application_name, prefix))",
            [self._prefixes],
        ).fetchone()
        if row is None or row[0] is None:
            return []
        rows = psycopg.RawCursor(connection).execute(sql_text("waits"), [row[0], longer_than_s])
        return [
            LockWait(
                session=session,
                seconds=seconds,
                table=TableName(schema, table) if table else None,
                where=label(self._url),
                holder=holder or None,
                remedy=f"end its transaction, or SELECT pg_terminate_backend({holder})" if holder else _PREPARED,
                described=describe_session(user, program, state, open_s) if holder else "",
            )
            for session, seconds, schema, table, holder, user, program, state, open_s in rows
        ]


def describe_session(user: str | None, program: str | None, state: str | None, open_s: float | None) -> str:
    """Return what is known of a session, as part of a message; facts that the asking user may not see are null."""
    parts = [f"user {user!r}" if user else "", repr(program) if program else "", state or ""]
    if open_s is not None:
        parts.append(f"in a transaction for {open_s:.0f} s")
    return ", ".join(part for part in parts if part)
