"""PostgreSQL as the source of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg

from penstock.change import TableName
from penstock.database import CaptureBehind, DatabasePlan, NativeForm, Renamed, SetupStep, Uncaptured
from penstock.dialects.postgres.blueprint import Blueprint, Parts, read_blueprint, read_parts
from penstock.dialects.postgres.catalog_cache import CatalogCache, catalog_fingerprint
from penstock.dialects.postgres.connection import Connection, speaking
from penstock.dialects.postgres.connector import LOCK_WAIT, PostgresConnector
from penstock.dialects.postgres.ownership import PINNED, dump_steps, refuse_foreign, schema_faults
from penstock.dialects.postgres.post_data import PostData, read_post_data
from penstock.dialects.postgres.source import capture, documented, history, setup
from penstock.dialects.postgres.source.access import PostgresSource
from penstock.dialects.postgres.source.change_log import PostgresChangeLog
from penstock.dialects.postgres.source.compared import PostgresComparedSource
from penstock.dialects.postgres.source.copy import PostgresCopyOrigin
from penstock.dialects.postgres.source.cutover import PostgresSequenceReader, PostgresWriteFreeze
from penstock.dialects.postgres.source.hold_watch import PostgresHoldWatch
from penstock.dialects.postgres.source.source_switch import PostgresSwitchSource, mark
from penstock.dialects.postgres.source.teardown import teardown_statements
from penstock.dialects.postgres.waits import PostgresLockWatch
from penstock.errors import ConfigError, OperatorError
from penstock.history import CaptureOrigin, Consumer, History, HistoryError, LogHold, copied_here
from penstock.origins import USERS, Origins
from penstock.position import Scn
from penstock.source_switch import Mark
from penstock.sources.trigger_queue.config import DocumentedConfig

_MARK = """
SELECT (SELECT concat_ws(' ', count(*), max(inhrelid::bigint)) FROM pg_inherits),
  (SELECT concat_ws(' ', count(*), max(oid::bigint)) FROM pg_enum),
  (SELECT concat_ws(' ', count(*), max(oid::bigint)) FROM pg_constraint WHERE contype IN ('p', 'u', 'x', 'f')),
  (SELECT concat_ws(' ', count(*), max(indexrelid::bigint)) FROM pg_index WHERE indisunique)
"""

_DIGITS = 18
"""Any position of so many fits into the ledger."""


class PostgresSourceConnector(PostgresConnector):
    """Implements `pipeline.connectors.SourceConnector`."""

    def __init__(
        self,
        url: str,
        pipeline: str,
        origins: Origins = USERS,
        *,
        with_ddl: bool = False,
        with_messages: bool = False,
        takes_up_new: bool = False,
        documented: DocumentedConfig | None = None,
    ) -> None:
        """Stand for the database at `url`, as far as its changes are of `origins`; nothing is opened yet.

        Args:
            with_ddl: That a table was altered is a change, too.
            with_messages: So are messages.
            takes_up_new: A run takes up tables that are made later, so a pattern may mean none yet.
            documented: The documented tables that setup makes beside the log.

        Raises:
            ConfigError: The url cannot be read.
        """
        super().__init__(url, pipeline)
        self._origins = origins
        self._with_ddl = with_ddl
        self._with_messages = with_messages
        self._followed: str | None = None
        self._post_data: CatalogCache[str, PostData] = CatalogCache()
        self._takes_up_new = takes_up_new
        self._wanted = documented
        self._unmatched: Sequence[str] = ()

    @property
    def _set_name(self) -> str:
        return capture.set_name(self._pipeline)

    @property
    def access(self) -> PostgresSource:
        """How tasks reach it."""
        return PostgresSource(self._url, self._set_name, self._with_ddl, self._with_messages)

    def lock_watch(self) -> PostgresLockWatch:
        """Return a watch that finds our sessions that wait for a lock here."""
        return PostgresLockWatch(self._url, self._pipeline, self._set_name)

    def hold_watch(self) -> PostgresHoldWatch:
        """Return a watch that looks at what the log takes, on a session of its own."""
        return PostgresHoldWatch(self._url, self._pipeline, self._set_name)

    def match(self, patterns: Sequence[str]) -> Sequence[TableName]:
        """Return the tables that patterns mean.

        Raises:
            OperatorError: A pattern means none, and no run would take up one that is made later.
        """
        with self._connection("read the catalogue") as connection:
            self._unmatched = setup.unmatched(connection, patterns) if self._takes_up_new else ()
            known = [pattern for pattern in patterns if pattern not in self._unmatched]
            return setup.match_tables(connection, self._url, known)

    def explain(self, tables: Sequence[TableName]) -> Sequence[str]:
        """No rule concerns any of the tables."""
        return ()

    def plan(self, tables: Sequence[TableName], row_triggers: Sequence[str]) -> DatabasePlan:
        """Plan the capture of tables; those that a pattern of `row_triggers` means by row triggers."""
        with self._connection("read the catalogue") as connection:
            plan = setup.plan_source(
                connection,
                self._url,
                self._pipeline,
                tables,
                row_triggers,
                of_apply=self._origins.of_apply,
                wanted=self._wanted,
            )
        plan.notes += [
            f"no table matches {pattern!r} yet; the run takes up one that is made later" for pattern in self._unmatched
        ]
        return plan

    def blueprint(self, tables: Sequence[TableName], *, types_of: Sequence[TableName] = ()) -> Blueprint:
        """Say how to make tables like these, and the types of `types_of`."""
        with self._connection("read the catalogue") as connection:
            return read_blueprint(connection, tables, types_of)

    def post_data(self, tables: Sequence[TableName]) -> PostData:
        """What tables have that applying does not need."""
        return self.post_data_as([Renamed(name, name) for name in tables])

    def post_data_as(self, tables: Sequence[Renamed]) -> PostData:
        """The same by the names that tables and columns get."""
        with self._connection("read the catalogue") as connection:
            key = repr(tables)
            return self._post_data.read(connection, [key], lambda _: {key: read_post_data(connection, tables)})[key]

    def sequence_reader(self, post_data: NativeForm) -> PostgresSequenceReader:
        """Return what reads where the sequences stand that `post_data` speaks of."""
        return PostgresSequenceReader(self._url, self._pipeline, post_data)

    def write_freeze(self, tables: Sequence[TableName]) -> PostgresWriteFreeze:
        """Return what watches that nothing writes to tables, or sees to it."""
        return PostgresWriteFreeze(self._url, self._pipeline, tables)

    def parts(self, patterns: Sequence[str], leaves_out: Callable[[TableName], bool] = lambda _: False) -> Parts:
        """What the tables that patterns mean have gained without their definition changing."""
        with self._connection("read the catalogue") as connection:
            # Do not wait for a session that is altering a table.
            connection.execute(f"SET lock_timeout = '{LOCK_WAIT}'")
            try:
                meant = setup.meant_tables(connection, patterns)
                return read_parts(connection, [table for table in meant if not leaves_out(table)])
            except psycopg.errors.LockNotAvailable:
                return Parts({}, {}, {})

    @contextmanager
    def marks_of_ddl(self) -> Iterator[Callable[[], object]]:
        """Open a session that returns another value after partitions, labels or keys were made."""
        with self._connection("see what was made") as connection:

            def mark() -> object:
                with speaking("see what was made", self._url):
                    return connection.execute(_MARK).fetchone()

            yield mark

    def removal(self, consumer: Consumer, *, is_given_up: bool = False) -> DatabasePlan:
        """Plan to remove a consumer, and the capture set with the last one.

        It does not matter who owns the set: dropping it runs none of its code.

        Args:
            is_given_up: Readers of the documented tables go on reading, so the set stays for them. Otherwise these
                tables are the pipeline's, and go with it.
        """
        return DatabasePlan(self.label, list(self._removing(consumer, is_given_up)), preamble=[PINNED])

    def _removing(self, consumer: Consumer, is_given_up: bool) -> Sequence[SetupStep]:
        with self._connection("read the catalogue") as connection:
            # A later version may have installed more, which would be left behind.
            capture.refuse_newer(connection, self._set_name)
            if not history.has_history(connection, self._set_name):
                return self._teardown_steps(connection)
            others = [
                other
                for other in history.consumers(connection, self._set_name)
                if not history.is_same(other.consumer, consumer)
                and (is_given_up or other.consumer.id != documented.CONSUMER_ID)
            ]
            if not others:
                return self._teardown_steps(connection)
            if history.places(connection, self._set_name, consumer.id)[0] is None:
                return []
            return [SetupStep("keep the log for this process no more", history.removal(self._set_name, consumer))]

    def release(self, consumer: Consumer) -> Sequence[SetupStep]:
        """The steps after which a process may join the log anew; a set that was copied here is removed whole."""
        with self._connection("read the catalogue") as connection:
            if not history.is_in_place(connection, self._set_name):
                return self._teardown_steps(connection)
            return [SetupStep("keep the log for this process no more", history.removal(self._set_name, consumer))]

    def mark(self) -> Mark:
        """Commit a transaction that changes no row, and that logical decoding tells of."""
        with self._connection("mark the write-ahead log") as connection:
            return mark(connection)

    def hand_over(self, position: Scn, first: Mark) -> PostgresSwitchSource:
        """Say which transactions lie at or before a position, once `first` does, and mark the log behind them."""
        with closing(self.open_source()) as log:
            cut = log.cut(position)
        return PostgresSwitchSource(cut, first, self.mark())

    def remove_consumer(self, id_: str) -> None:
        """Keep the log for a consumer no more."""
        with self._connection("remove a consumer") as connection:
            connection.execute(history.removal(self._set_name, Consumer(id_, "")))

    def log_hold(self, older: timedelta) -> LogHold:
        """Say what disk the log takes, and for whom, readers of the documented tables among them."""
        with self._connection("see what the change log takes") as connection:
            hold = history.log_hold(connection, self._set_name, older)
            return documented.told_of_readers(connection, self._set_name, hold)

    def copies_asked(self) -> Mapping[int, int]:
        """Return the tables that the documented tables ask to be copied anew; see `documented.copies_asked`."""
        if self._wanted is None:
            return {}
        with self._connection("read the documented tables") as connection:
            return documented.copies_asked(connection, self._set_name)

    def forget_asked(self, asked: Mapping[int, int]) -> None:
        """Note that a run knows of copies that were asked for; see `documented.forget_asked`."""
        with self._connection("write to the documented tables") as connection:
            documented.forget_asked(connection, self._set_name, asked)

    def other_pipeline(self, origin: CaptureOrigin) -> str | None:
        """Return the name of the pipeline whose set an origin is; None if it is this one, or not in this database."""
        with self._connection("read the catalogue") as connection:
            name = history.set_of(connection, origin)
        found = None if name is None else capture.pipeline_of(name)
        return None if found == self._pipeline else found

    def history_fault(self, followed: History | None = None) -> HistoryError | None:
        """Return what is wrong with the set as a whole: it was copied here, or the process has followed another one."""
        with self._connection("read the catalogue") as connection:
            if not history.has_history(connection, self._set_name):
                return None
            if not history.is_in_place(connection, self._set_name):
                return copied_here(where=f"capture set {self._set_name}, {self.label}")
        if followed is not None:
            try:
                with closing(self.open_source()) as log:
                    log.hold_against(followed)
            except HistoryError as exc:
                return exc
        return None

    def _teardown_steps(self, connection: Connection) -> list[SetupStep]:
        statements = teardown_statements(connection, self._set_name)
        return [SetupStep(sql[0].lower() + sql[1:].replace("ROP", "rop", 1), sql) for sql in statements]

    def has_capture(self) -> bool:
        """Whether setup has made a capture set here."""
        with self._connection("read the catalogue") as connection:
            refuse_foreign(connection, self._set_name)
            capture.refuse_newer(connection, self._set_name)
            return capture.is_installed(connection, self._set_name)

    def open_source(self) -> PostgresChangeLog:
        """Open the change log."""
        return PostgresChangeLog(
            self._url, self._set_name, self._origins, with_ddl=self._with_ddl, with_messages=self._with_messages
        )

    def position_of(self, text: str, *, option: str) -> Scn:
        """Read the position that a person gave for an option, and make sure that the log has been so far."""
        if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
            raise ConfigError(
                f"{option} must be a position, not {text!r}",
                do="`penstock status` shows positions as watermarks; only change files are searched for a time, too",
            )
        position = Scn(int(text))
        with closing(self.open_source()) as source:
            if position > (end := source.tick()):
                raise OperatorError(
                    f"{option} {text} lies behind the end of the change log, position {end}",
                    where=self.label,
                    do="name a point that was reached already",
                )
        return position

    def lock_run(self, consumer: str, *, wait_s: float) -> Connection | None:
        """Become the one run of a consumer of the source; None where another run is it after so many seconds."""
        return self._lock_run(f"{self._set_name} {consumer}", wait_s=wait_s)

    def replaced_tables(self) -> Sequence[TableName]:
        """Tables that were made anew, or renamed, under a captured name, and are not captured yet."""
        with self._connection("read the captured tables") as connection:
            # The plan names faults; nothing of such a set is read.
            if schema_faults(connection, self._set_name) or capture.newer_fault(connection, self._set_name):
                return []
            if not capture.is_installed(connection, self._set_name):
                return []
            return capture.replaced_tables(connection, self._set_name)

    def follow(self) -> Sequence[CaptureBehind]:
        """Build the capture anew of tables that were altered; no writer waits for it.

        Where it does not succeed, changes are captured all the same, more slowly; the next call tries again.

        Returns:
            Tables of which the user has to change something first.
        """
        with self._connection("follow what was altered") as connection:
            refuse_foreign(connection, self._set_name)
            capture.refuse_newer(connection, self._set_name)
            if not capture.has_current_log(connection, self._set_name):
                raise OperatorError(
                    "the capture set is not as this version of penstock makes it",
                    where=self.label,
                    do="run `penstock setup`, which upgrades it",
                )
            if self._origins.of_apply and not capture.captured_of_apply(connection, self._set_name):
                raise OperatorError(
                    "capture.changes_of wants what apply processes write, which the capture set leaves out",
                    where=self.label,
                    do="run `penstock setup`; what they have written until then has to be copied, see `penstock plan`",
                )
            captured = capture.tables(connection, self._set_name)
            for step in dump_steps(connection, self._set_name, captured, is_new=False):
                # Take back what the database's owner must not read any more; setup grants what it may read now.
                if step.sql.startswith("REVOKE"):
                    connection.execute(step.sql)
            # Whoever alters a table, or notes its new version, makes this another text.
            state = catalog_fingerprint(connection, capture.state_tables(self._set_name))
            if state == self._followed:
                return []
            behind = capture.behind(connection, self._set_name)
            if not behind:
                self._followed = state
            return capture.rebuild(connection, self._set_name, behind)

    def not_captured(self, patterns: Sequence[str]) -> Sequence[Uncaptured]:
        """Tables that patterns mean, and whose changes are not captured, with the reason."""
        with self._connection("read the captured tables") as connection:
            refuse_foreign(connection, self._set_name)
            return setup.uncaptured_tables(connection, self._set_name, patterns, of_apply=self._origins.of_apply)

    def origin(self) -> PostgresCopyOrigin:
        """The source of a first copy."""
        return PostgresCopyOrigin(self._url, self._set_name)

    def compared(self) -> PostgresComparedSource:
        """This database as the source of a comparison."""
        return PostgresComparedSource(self._url, self._set_name, self._pipeline)
