"""What PostgreSQL is to a pipeline on either side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

import psycopg

from penstock.change import TableName
from penstock.database import LockedError, SetupStep
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.catalog_cache import CatalogCache
from penstock.dialects.postgres.connection import Connection, connect, label, speaking
from penstock.dialects.postgres.errors import translate
from penstock.dialects.postgres.kept_session import KeptSession
from penstock.dialects.postgres.large_objects import LargeObjects, read_large_objects
from penstock.dialects.postgres.ownership import PINNED
from penstock.dialects.sessions import SetupSession
from penstock.errors import OperatorError
from penstock.schema import TableSchema

LOCK_WAIT = "100ms"
"""Writers queue behind our wait, so it is short. It is also shorter than the server's wait for deadlocks (a second), so
that our session is the one that gives up, not one that the server chooses."""

_PAUSE_S = 0.2
"""How often a run asks again for the lock that an earlier one may still hold."""


class PostgresSetupSession(SetupSession):
    """A connection in which setup or teardown changes a database."""

    def __init__(self, connection: Connection, url: str, printer: str) -> None:
        """Run steps on `connection`; `printer` is the command that prints them."""
        self._connection = connection
        self._url = url
        self._printer = printer

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a transaction; commits at the end of the block."""
        with speaking("change the database", self._url), self._connection.transaction():
            self._connection.execute(
                f"{PINNED}; SET LOCAL lock_timeout = '{LOCK_WAIT}'; SET LOCAL penstock.rebuilding = 'on'"
            )
            yield

    def take(self, step: SetupStep) -> None:
        """Carry out a step, inside a transaction; waits only so long for a table that another session holds."""
        undone = "this table is left as it was" if step.is_apart or step.tables else "nothing was changed"
        try:
            # What may be refused must not take the transaction along.
            with self._connection.transaction() if step.is_optional else nullcontext():
                psycopg.ClientCursor(self._connection).execute(step.sql)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as exc:
            raise LockedError(
                f"cannot take this step: {step.summary}: another session holds a lock",
                where=label(self._url),
                do=f"{undone}; try again when no transaction keeps the table for long",
            ) from exc
        except psycopg.errors.InsufficientPrivilege as exc:
            raise OperatorError(
                f"no right to take this step: {step.summary}",
                where=label(self._url),
                do=f"{undone}; `penstock {self._printer} --print-sql` prints the SQL for a superuser to run",
            ) from exc
        except psycopg.Error as exc:
            error = translate(exc, doing=f"take this step: {step.summary}", where=label(self._url))
            if isinstance(error, OperatorError):
                advice = f"fix that{', or ' + step.remedy if step.remedy else ''}; {undone}"
                error = OperatorError(error.what, where=error.where, do=advice)
            raise error from exc


class PostgresConnector:
    """A database that is one side of a pipeline."""

    def __init__(self, url: str, pipeline: str) -> None:
        """Stand for the database at `url`; nothing is opened yet.

        Raises:
            ConfigError: The url cannot be read.
        """
        self._label = label(url)
        self._url = url
        self._pipeline = pipeline
        self._session = KeptSession(url, lambda: connect(url, f"penstock {pipeline} setup"))
        self._described: CatalogCache[TableName, TableSchema] = CatalogCache()

    @property
    def label(self) -> str:
        """The database, named without secrets."""
        return self._label

    def identity(self) -> str:
        """Return an id that is unique to this database while its server runs."""
        with self._connection("tell databases apart") as connection:
            row = connection.execute(
                "SELECT concat_ws(' ', pg_postmaster_start_time()::text, oid, current_setting('port'))"
                " FROM pg_database WHERE datname = current_database()"
            ).fetchone()
            assert row is not None
            return str(row[0])

    def describe(self, tables: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Describe tables as they are now."""
        with self._connection("read the catalogue") as connection:
            return self._described.read(connection, tables, lambda names: read_tables(connection, names))

    def beside(self, tables: Iterable[TableName]) -> LargeObjects:
        """Read the large objects that there are, and which columns of tables may refer to them."""
        with self._connection("look for large objects") as connection:
            return read_large_objects(connection, list(tables))

    @contextmanager
    def setup(self, *, printer: str = "plan") -> Iterator[PostgresSetupSession]:
        """Open a session for setup or teardown."""
        with self._connection("change the database") as connection:
            yield PostgresSetupSession(connection, self._url, printer)

    @contextmanager
    def _connection(self, doing: str) -> Iterator[Connection]:
        with speaking(doing, self._url), self._session.use() as connection:
            yield connection

    def _lock_run(self, name: str, *, wait_s: float) -> Connection | None:
        """Hold the advisory lock `name` as long as the session lives; None if another session has it after `wait_s`."""
        deadline = time.monotonic() + wait_s
        with speaking("become the one run", self._url):
            session = connect(self._url, f"penstock {self._pipeline} run")
            while True:
                row = session.execute(
                    "SELECT pg_try_advisory_lock(hashtext('penstock'), hashtext(%s))", [name]
                ).fetchone()
                if row is not None and row[0]:
                    return session
                # The server may not have noticed yet that an earlier run has ended.
                if time.monotonic() > deadline:
                    session.close()
                    return None
                time.sleep(_PAUSE_S)
