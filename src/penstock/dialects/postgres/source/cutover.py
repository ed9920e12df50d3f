"""What a cutover asks of its source: where the sequences stand, and that nothing writes any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import psycopg

from penstock.change import TableName
from penstock.database import NativeForm, SequenceValue
from penstock.dialects.postgres.connection import WITHOUT_VIEWS, Connection, connect, label, quote, speaking
from penstock.dialects.postgres.post_data import PostData
from penstock.dialects.postgres.sequences import read_values
from penstock.dialects.postgres.waits import describe_session
from penstock.dialects.sessions import SequenceReader, WriteFreeze
from penstock.errors import OperatorError, RetryableError

_WRITERS = """
WITH RECURSIVE relation (oid) AS (
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN unnest($1::text[], $2::text[]) w (schema, name) ON (n.nspname, c.relname) = (w.schema, w.name)
  UNION SELECT inhrelid FROM relation JOIN pg_inherits ON inhparent = relation.oid
)
SELECT l.pid, a.usename, a.application_name, a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
  min(l.relation::regclass::text)
FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation IN (SELECT oid FROM relation) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1
"""
"""Which transactions hold a lock that goes with writing, until they end. A prepared one has no session."""


class PostgresSequenceReader(SequenceReader):
    """Reads sequences by one query each time; nothing that a writer would notice."""

    def __init__(self, url: str, process: str, post_data: NativeForm) -> None:
        """Read the sequences that columns of the target go on with."""
        links = post_data.links if isinstance(post_data, PostData) else ()
        self._url = url
        self._process = process
        self._names = sorted({link.source for link in links if link.may_read})
        self._grants = post_data.grants if isinstance(post_data, PostData) else ()
        self._session: Connection | None = None

    @property
    def hidden(self) -> Sequence[str]:
        """What a superuser has to run before all of them may be read."""
        return self._grants

    def read(self) -> Mapping[TableName, SequenceValue]:
        """Return where the sequences stand that may be read."""
        if not self._names:
            return {}
        with speaking("read where sequences stand", self._url):
            if self._session is None or self._session.closed:
                self._session = connect(self._url, f"penstock {self._process} sequences")
                self._session.execute(WITHOUT_VIEWS)
                # Planning a query of hundreds of sequences, every second, takes longer than running it.
                self._session.prepare_threshold = 1
            return read_values(self._session, self._names)

    def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            self._session.close()
        self._session = None


class PostgresWriteFreeze(WriteFreeze):
    """Sees writers by the locks that go with writing, and takes one that keeps them waiting."""

    def __init__(self, url: str, process: str, tables: Sequence[TableName]) -> None:
        """Watch tables of the database at `url`, their partitions included."""
        self._url = url
        self._process = process
        self._tables = tables
        self._session: Connection | None = None

    def writers(self) -> list[str]:
        """Describe the transactions that have written to the tables, and are not over."""
        with speaking("see who writes", self._url):
            rows = psycopg.RawCursor(self._sql()).execute(
                _WRITERS, [[table.schema for table in self._tables], [table.name for table in self._tables]]
            )
            return [
                f"a prepared transaction, on {table}"
                if pid is None
                else f"session {pid} ({describe_session(*session) or 'it cannot be seen'}), on {table}"
                for pid, *session, table in rows.fetchall()
            ]

    def lock(self, wait_s: float) -> None:
        """Have everything that would write wait, until `close`; waits so long for transactions that are open.

        Raises:
            RetryableError: One of them is still open.
            OperatorError: The user may not lock the tables.
        """
        connection = self._sql()
        names = ", ".join(quote(table.schema, table.name) for table in sorted(self._tables))
        try:
            connection.execute(f"BEGIN; SET LOCAL lock_timeout = '{max(1, round(wait_s * 1000))}ms'")
            psycopg.RawCursor(connection).execute(f"LOCK TABLE {names} IN SHARE MODE")
        except psycopg.errors.LockNotAvailable as exc:
            self.close()
            raise RetryableError(
                f"the captured tables cannot be locked: {'; '.join(self.writers()) or 'others hold a lock'}",
                where=label(self._url),
                do="end these transactions, or give more time by --wait",
            ) from exc
        except psycopg.errors.InsufficientPrivilege as exc:
            self.close()
            raise OperatorError(
                "no right to lock the captured tables against writers",
                where=label(self._url),
                do="grant it (MAINTAIN from PostgreSQL 17 on, before that UPDATE), or stop the application and leave"
                " out --lock",
            ) from exc
        except psycopg.Error:
            self.close()
            raise

    @property
    def is_locked(self) -> bool:
        """Whether the lock is still held: a session may be lost, and its lock with it."""
        if self._session is None:
            return False
        with suppress(psycopg.Error):
            return self._session.execute("SELECT 1").fetchone() is not None
        return False

    def close(self) -> None:
        """Let writers go on."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def _sql(self) -> Connection:
        if self._session is None or self._session.closed:
            self._session = connect(self._url, f"penstock {self._process} cutover")
        return self._session
