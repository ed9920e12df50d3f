"""A PostgreSQL database with an event log table as the source of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from types import MappingProxyType

from penstock.change import TableName
from penstock.database import CaptureBehind, DatabasePlan, NativeForm, SetupStep, Uncaptured
from penstock.dialects.postgres.blueprint import Parts
from penstock.dialects.postgres.connection import Connection
from penstock.dialects.postgres.connector import PostgresConnector
from penstock.dialects.postgres.ownership import (
    PINNED,
    Doing,
    hosted_code,
    refuse_foreign,
    schema_faults,
)
from penstock.dialects.postgres.source.event_journal import PostgresJournal
from penstock.dialects.postgres.source.event_log_columns import (
    BoundColumns,
    bind,
    doubts_of_order,
    faults_of_triggers,
    has_log,
    made_columns,
)
from penstock.dialects.postgres.source.event_log_now import unreadable
from penstock.dialects.postgres.source.event_log_rows import journal_schema
from penstock.dialects.postgres.source.event_log_setup import (
    has_journal,
    is_journal_current,
    journal_step,
    log_step,
    refuse_second_journal,
    release_step,
    removal_step,
    upgrade_step,
)
from penstock.dialects.postgres.source.event_log_triggers import (
    Mode,
    Writer,
    trigger_steps,
    unnameable_keys,
    unwatched_partitions,
)
from penstock.dialects.postgres.waits import PostgresLockWatch
from penstock.errors import OperatorError
from penstock.history import CaptureOrigin, Consumer, History, HistoryError, LogHold
from penstock.patterns import TablePattern
from penstock.schema import TableSchema
from penstock.sources.event_log.classes import Classes, DatabaseClass
from penstock.sources.event_log.failures import Failures
from penstock.sources.event_log.settings import EventLogSettings
from penstock.sources.event_log.source import EventLogSource
from penstock.sources.recorded import RecordedConnector


class PostgresEventLogConnector(PostgresConnector, RecordedConnector):
    """Implements `pipeline.connectors.Installable` and `SourceWithCopies`: its tables begin empty."""

    def __init__(
        self,
        url: str,
        pipeline: str,
        settings: EventLogSettings,
        patterns: Sequence[str],
        *,
        creates_log: bool = False,
        triggers: Mapping[str, Mode] = MappingProxyType({}),
        failures: Failures | None = None,
    ) -> None:
        """Stand for the database at `url`; nothing is opened yet.

        Args:
            patterns: Mean the tables that the log may name.
            creates_log: Setup makes the log where there is none.
            triggers: What setup makes triggers of tables write, by patterns.
            failures: Which events the target's error queue has; None where nothing is applied.

        Raises:
            ConfigError: The url cannot be read.
        """
        PostgresConnector.__init__(self, url, pipeline)
        self.journal = PostgresJournal(url, pipeline, settings, tuple(patterns))
        RecordedConnector.__init__(self, self.journal)
        self._settings = settings
        self._creates_log = creates_log
        self._triggers = triggers
        self._failures = failures or Failures()

    @property
    def label(self) -> str:
        """The log and its database, named without secrets."""
        return self.journal.label

    def describe(self, tables: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Describe tables as they are now."""
        return PostgresConnector.describe(self, tables)

    def plan(self, tables: Sequence[TableName], row_triggers: Sequence[str]) -> DatabasePlan:
        """Plan the journal, and the log where setup is to make it."""
        plan = DatabasePlan(self.label, preamble=[PINNED])
        columns: BoundColumns | None = None
        with self._connection("read the catalogue") as connection:
            plan.faults += schema_faults(connection, journal_schema(self._pipeline))
            if has_log(connection, self._settings):
                try:
                    columns = bind(connection, self._settings, where=self.label)
                    plan.notes += doubts_of_order(connection, self._settings, columns)
                    if self._triggers:
                        plan.faults += faults_of_triggers(connection, self._settings, columns, where=self.label)
                except OperatorError as exc:
                    plan.faults.append(exc)
            elif self._creates_log:
                plan.steps.append(log_step(self._settings))
                columns = made_columns(self._settings)
            else:
                do = "correct capture.event_log.table, or set capture.event_log.create to true"
                plan.faults.append(OperatorError("there is no such event log table", where=self.label, do=do))
            try:
                refuse_second_journal(connection, self._pipeline, self._settings.table, where=self.label)
            except OperatorError as exc:
                plan.faults.append(exc)
            if not has_journal(connection, self._pipeline):
                plan.steps.append(journal_step(self._pipeline, self._settings.table))
            elif not is_journal_current(connection, self._pipeline):
                plan.steps.append(upgrade_step(self._pipeline, self._settings.table))
        with closing(self.journal.open_log()) as log:
            classes = Classes(log.tables(), schema=self._settings.schema, keys=self._settings.keys)
        with self._connection("read the catalogue") as connection:
            if self._triggers and columns is not None:
                writer = Writer(self._settings.table, columns, journal_schema(self._pipeline))
                plan.steps += trigger_steps(connection, writer, classes, self._triggers)
            parts = [part for of in classes.by_name.values() for part in (of.table, *(c.table for c in of.children))]
            plan.notes += hosted_code(connection, [self._settings.table], Doing.WRITING)
            plan.notes += hosted_code(connection, sorted(table.name for table in parts), Doing.READING)
            for name in unreadable(connection, sorted(table.name for table in parts)):
                plan.notes.append(f"{name} may not be read: rows that ask for what it holds now get status E")
        for of in classes.by_name.values():
            if names := unnameable_keys(of):
                self._note_unnameable(plan, of, names)
        for name in classes.without_key:
            plan.notes.append(f"{name} has neither a key nor a foreign key to one: rows that name it get status E")
        return plan

    def _note_unnameable(self, plan: DatabasePlan, of: DatabaseClass, names: Sequence[str]) -> None:
        what = f"a log cannot name key column {', '.join(map(repr, names))}: none of ,;'+\"=\\<> may be in its name"
        if any(TablePattern.parse(text).matches(of.name) for text in self._triggers):
            do = "rename the column, or leave the table out of capture.event_log.triggers and of capture.tables"
            plan.refuse(of.name, OperatorError(what, where=f"{self.label}, table {of.name}", do=do))
        else:
            plan.notes.append(f"{of.name}: {what}; rows about it get status E")

    def has_capture(self) -> bool:
        """Whether setup has made the journal."""
        with self._connection("read the catalogue") as connection:
            refuse_foreign(connection, journal_schema(self._pipeline))
            return has_journal(connection, self._pipeline)

    def open_source(self) -> EventLogSource:
        """Open what the driver follows events by."""
        return EventLogSource(self.journal, self._failures)

    def lock_watch(self) -> PostgresLockWatch:
        """Return a watch that finds our sessions that wait for a lock here."""
        return PostgresLockWatch(self._url, self._pipeline)

    def parts(self, patterns: Sequence[str], leaves_out: Callable[[TableName], bool] = lambda _: False) -> NativeForm:
        """Nothing: partitions of the target are its own."""
        return Parts({}, {}, {})

    def removal(self, consumer: Consumer, *, is_given_up: bool = False) -> DatabasePlan:
        """Plan to remove the journal; the log stays. Nobody is given up: `capture.log` is for triggers."""
        with self._connection("read the catalogue") as connection:
            steps = [removal_step(self._pipeline)] if has_journal(connection, self._pipeline) else []
        plan = DatabasePlan(self.label, steps, preamble=[PINNED])
        plan.notes.append(f"the event log {self._settings.table} stays as it is")
        return plan

    def release(self, consumer: Consumer) -> Sequence[SetupStep]:
        """Have the journal begin with empty tables, for the same process anew; rows that are N are polled again."""
        with self._connection("read the catalogue") as connection:
            if not is_journal_current(connection, self._pipeline):
                return []
        return [release_step(self._pipeline, consumer.id)]

    def remove_consumer(self, id_: str) -> None:
        """Do nothing: a log has one reader."""

    def log_hold(self, older: timedelta) -> LogHold:
        """Say nothing: the log is another product's, and its rows stay."""
        return LogHold()

    def hold_watch(self) -> None:
        """There is nothing to watch."""

    def history_fault(self, followed: History | None = None) -> HistoryError | None:
        """Return why a process cannot go on with this journal."""
        if followed is not None:
            try:
                with closing(self.open_source()) as source:
                    source.hold_against(followed)
            except HistoryError as exc:
                return exc
        return None

    def other_pipeline(self, origin: CaptureOrigin) -> str | None:
        """Return None: a journal is found by its pipeline alone."""
        return None

    def lock_run(self, consumer: str, *, wait_s: float) -> Connection | None:
        """Become the one run that polls this log; None where another run is it after so many seconds."""
        return self._lock_run(f"event log {self._settings.table}", wait_s=wait_s)

    def replaced_tables(self) -> Sequence[TableName]:
        """None: a log names tables, not which one of that name."""
        return ()

    def follow(self) -> Sequence[CaptureBehind]:
        """Return the tables with triggers of setup whose new partitions may be truncated without a row in the log."""
        if not self._triggers:
            return []
        with self._connection("read the catalogue") as connection:
            found = unwatched_partitions(connection, journal_schema(self._pipeline))
        return [
            CaptureBehind(table, f"TRUNCATE of {', '.join(partitions)} alone is not logged; run `penstock setup`")
            for table, partitions in found.items()
        ]

    def not_captured(self, patterns: Sequence[str]) -> Sequence[Uncaptured]:
        """Return nothing: which tables have triggers, the log does not say."""
        return ()
