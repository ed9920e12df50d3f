"""An event log table in PostgreSQL: a session with it, and its ten columns.

`event_log_rows` has what is done inside a transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import psycopg

from penstock.change import TableName
from penstock.dialects.postgres.catalog import catalog_names, list_tables
from penstock.dialects.postgres.connection import Connection, connect, label, quote, speaking
from penstock.dialects.postgres.logical import with_logical
from penstock.dialects.postgres.resources import sql_text
from penstock.dialects.postgres.source.event_log_columns import BoundColumns, bind, doubts_of_order
from penstock.dialects.postgres.source.event_log_post_poll import run_statements
from penstock.dialects.postgres.source.event_log_rows import PostgresLogTransaction, RowDigests, journal_schema
from penstock.dialects.postgres.source.event_log_setup import (
    is_journal_current,
    is_released,
    refuse_second_journal,
    released,
)
from penstock.errors import OperatorError, RetryableError
from penstock.events import Event, tell
from penstock.history import RESYNC
from penstock.patterns import TablePattern
from penstock.schema import TableSchema
from penstock.sources.event_log.poll import EventLog
from penstock.sources.event_log.settings import EventLogSettings
from penstock.text import count

_OIDS = """
SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s::text[], %s::text[]) w (schema, name) ON (n.nspname, c.relname) = (w.schema, w.name)
WHERE c.relkind IN ('r', 'p', 'v', 'm')
"""


_REWRITTEN = """
SELECT l.relation::regclass FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation
WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.relation >= 16384
  AND c.relkind IS DISTINCT FROM 'i'
  AND (c.oid IS NULL OR NULLIF(c.relfilenode, 0) IS DISTINCT FROM pg_relation_filenode(l.relation)) LIMIT 1
"""
"""Finds a table of this transaction that got a new file after its snapshot was taken: `pg_class` says what the snapshot
sees, and `pg_relation_filenode` what there is now. The server's own tables have lower numbers."""


class PostgresEventLog(EventLog):
    """An event log in a database, and its journal in the schema of the pipeline."""

    def __init__(self, url: str, pipeline: str, settings: EventLogSettings, patterns: Sequence[str]) -> None:
        """Stand for a log; nothing is opened yet.

        Args:
            patterns: Mean the tables that the log may name.
        """
        self._url = url
        self._pipeline = pipeline
        self._settings = settings
        self._patterns = [TablePattern.parse(text) for text in patterns]
        self._connection: Connection | None = None
        self._bound: BoundColumns | None = None
        self._digests = RowDigests()
        self._told: set[str] = set()

    @property
    def label(self) -> str:
        """The log and its database, named without secrets."""
        return f"{self._settings.table}, {label(self._url)}"

    @property
    def settings(self) -> EventLogSettings:
        """How the log is read."""
        return self._settings

    def refuse_unfit(self) -> None:
        """Make sure that the log can be read, and its rows written; rows that cannot be are told, and so is what may
        have others read out of order.

        Raises:
            OperatorError: The log, a column of it, or a right to it is missing.
        """
        self._bound = None
        with self.transaction(is_alone=False) as transaction:
            lost = transaction.count_lost()
            connection = self._open()
            doubts = list(doubts_of_order(connection, self._settings, self._binding(connection)))
        for doubt in doubts:
            if doubt not in self._told:
                self._told.add(doubt)
                tell(Event.NOTE, f"{doubt} ({self.label})", level=logging.WARNING)
        if lost:
            what = f"{count(lost, 'row')} of the event log cannot be read, as record_id is not a whole number"
            text = f"{what} of 64 bits there: give them another one ({self.label})"
            tell(Event.NOTE, text, {"rows": lost}, level=logging.WARNING)

    def claim(self, reader_id: str, reader: str) -> None:
        """Make sure that whoever reads here is the only one to do so, now and later; the first one has the journal.

        Raises:
            OperatorError: Another pipeline has a journal of this log, or this journal has another reader, or was taken
                from this one.
        """
        connection = self._open()
        with speaking("read the event log", self._url), connection.transaction():
            self._lock(connection)
            if not is_journal_current(connection, self._pipeline):
                where = f"schema {journal_schema(self._pipeline)}, {label(self._url)}"
                raise OperatorError("the journal is of another version", where=where, do="run `penstock setup`")
            refuse_second_journal(connection, self._pipeline, self._settings.table, where=self.label)
            journal = quote(journal_schema(self._pipeline), "journal")
            known = connection.execute(f"SELECT reader_id, reader FROM {journal}").fetchone()
            if known is not None and known[0] == released(reader_id):
                raise OperatorError(
                    "a new first copy was begun and not finished: the journal has begun anew, and the tables of the"
                    " target were not emptied",
                    where=self.label,
                    do=RESYNC,
                )
            if known is None or known[0] is None or is_released(known[0]):
                connection.execute(f"UPDATE {journal} SET reader_id = %s, reader = %s", [reader_id, reader])
            elif known[0] != reader_id:
                raise OperatorError(
                    f"the journal of this event log is read by another pipeline of this name, which {known[1]}: each"
                    " event is handed out once, so the two would take events from each other",
                    where=self.label,
                    do="use one pipeline for one log; or, if that one is gone for good, `penstock teardown` and"
                    " `penstock setup` begin with the rows that are N",
                )

    @contextmanager
    def transaction(self, *, is_alone: bool = True) -> Iterator[PostgresLogTransaction]:
        """Open a transaction; commits at the end of the block.

        Args:
            is_alone: Keep other transactions with the journal out, which has to be there.
        """
        connection = self._open()
        try:
            with speaking("read the event log", self._url), connection.transaction():
                # All queries of a poll see the same rows; a lock that comes first takes no snapshot yet.
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                if is_alone:
                    self._lock(connection)
                bound = self._binding(connection)
                yield PostgresLogTransaction(
                    connection, self._settings, bound, self.tables, self._pipeline, self._digests
                )
                self._refuse_rewritten(connection)
        except BaseException:
            # A table may have been altered or dropped; or the session is lost.
            self.close()
            raise

    def tables(self) -> Sequence[TableSchema]:
        """Describe the tables that the log may name."""
        connection = self._open()
        with speaking("read the catalogue", self._url):
            meant = set(self._settings.keys)
            for name, root in list_tables(connection).items():
                if name == root and any(pattern.matches(name) for pattern in self._patterns):
                    meant.add(name)
            return _described(connection, sorted(meant - {self._settings.table}))

    def run_post_poll(self) -> None:
        """Run the statements that the settings have for after a poll; one that fails is told."""
        if self._settings.post_poll:
            run_statements(self._url, self._pipeline, self._settings.post_poll)

    def close(self) -> None:
        """Close the session; a later call opens another one."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = self._bound = None
        self._digests = RowDigests()

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, f"penstock {self._pipeline} event log")
        return self._connection

    def _refuse_rewritten(self, connection: Connection) -> None:
        """Make sure that no table was empty for this transaction's snapshot alone, and roll back otherwise.

        That is what one looks like after TRUNCATE, and after ALTER TABLE that writes it anew: rows would be taken for
        gone, and a status written to none. All that was read or written is locked, so it stays as it is until the end.
        """
        found = connection.execute(_REWRITTEN).fetchone()
        if found is not None:
            what = f"table {found[0]} was emptied, replaced or written anew while it was read"
            raise RetryableError(what, where=self.label)

    def _lock(self, connection: Connection) -> None:
        schema = journal_schema(self._pipeline)
        try:
            connection.execute(f"LOCK TABLE {quote(schema, 'journal')} IN EXCLUSIVE MODE")
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as exc:
            where = f"schema {schema}, {label(self._url)}"
            raise OperatorError("there is no journal", where=where, do="run `penstock setup`") from exc

    def _binding(self, connection: Connection) -> BoundColumns:
        if self._bound is None:
            self._bound = bind(connection, self._settings, where=self.label)
            if self._settings.is_login_driver and self._settings.driver_user is None:
                row = connection.execute("SELECT session_user").fetchone()
                assert row is not None
                self._settings = replace(self._settings, driver_user=row[0])
        return self._bound


def _described(connection: Connection, names: Sequence[TableName]) -> list[TableSchema]:
    """Describe tables and views by their names; those that are not there are left out."""
    with catalog_names(connection):
        oids = connection.execute(_OIDS, [[n.schema for n in names], [n.name for n in names]]).fetchall()
        rows = psycopg.RawCursor(connection).execute(sql_text("describe"), [[oid for (oid,) in oids], False])
        return [TableSchema.from_definition(with_logical(definition)) for _, definition in rows.fetchall()]
