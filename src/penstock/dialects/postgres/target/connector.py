"""PostgreSQL as the target of a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import psycopg

from penstock.apply.handlers.statement import Statement
from penstock.change import TableName
from penstock.config.apply import TriggerFiring
from penstock.database import (
    DatabasePlan,
    MissingPart,
    NativeForm,
    NotCompared,
    SourceTables,
    UncopiedRows,
)
from penstock.dialects.postgres.blueprint import Blueprint, Parts, lacking_parts, read_parts
from penstock.dialects.postgres.catalog import list_tables, read_tables
from penstock.dialects.postgres.connector import LOCK_WAIT, PostgresConnector
from penstock.dialects.postgres.large_objects import LargeObjects, unseen
from penstock.dialects.postgres.ownership import preamble, refuse_foreign
from penstock.dialects.postgres.post_data import PostData
from penstock.dialects.postgres.target import ledger_version, setup
from penstock.dialects.postgres.target.access import PostgresTarget
from penstock.dialects.postgres.target.compared import PostgresComparedTarget
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from penstock.dialects.postgres.target.handler_sql import fault_of
from penstock.dialects.postgres.target.ledger import PostgresLedger
from penstock.dialects.postgres.target.post_data_builder import PostgresPostDataBuilder
from penstock.dialects.postgres.target.session import PostgresSession
from penstock.dialects.postgres.target.teardown import teardown_steps
from penstock.dialects.postgres.waits import PostgresLockWatch
from penstock.errors import OperatorError
from penstock.external_values import ValueStore
from penstock.origins import DEFAULT_TAG
from penstock.patterns import TablePattern
from penstock.schema import TableSchema


class PostgresTargetConnector(PostgresConnector):
    """Implements `pipeline.connectors.TargetConnector`."""

    def __init__(
        self, url: str, pipeline: str, tag: str | None = DEFAULT_TAG, values: ValueStore | None = None
    ) -> None:
        """Stand for the database at `url`; what is written there carries the origin mark `tag`. Nothing is opened yet.

        Args:
            values: Where values are that are too large for their changes.

        Raises:
            ConfigError: The url cannot be read.
        """
        super().__init__(url, pipeline)
        self._tag = tag
        self._values = values

    @property
    def access(self) -> PostgresTarget:
        """How tasks reach it."""
        return PostgresTarget(self._url, self._pipeline, self._tag, self._values)

    def compared(self) -> PostgresComparedTarget:
        """This database as the target of a comparison."""
        return PostgresComparedTarget(self._url, self._pipeline, self._tag)

    def lock_watch(self) -> PostgresLockWatch:
        """Return a watch that finds our sessions that wait for a lock here."""
        return PostgresLockWatch(self._url, self._pipeline)

    def plan(
        self,
        tables: SourceTables,
        *,
        uncopied_rows: UncopiedRows,
        firing: Mapping[str, Mapping[str, TriggerFiring]] | None = None,
        keyed: Collection[TableName] = (),
    ) -> DatabasePlan:
        """Plan the ledger and the missing tables; check those that exist."""
        with self._connection("read the catalogue") as connection:
            return setup.plan_target(
                connection,
                self._url,
                process=self._pipeline,
                tables=tables,
                uncopied_rows=uncopied_rows,
                firing=firing or {},
                keyed=keyed,
            )

    def tables_like(self, patterns: Sequence[str]) -> Mapping[TableName, TableSchema]:
        """Describe the tables that patterns mean, as they are now; no partitions."""
        wanted = [TablePattern.parse(text) for text in patterns]
        with self._connection("read the catalogue") as connection:
            roots = [name for name, root in list_tables(connection).items() if name == root]
            return read_tables(connection, [name for name in roots if any(one.matches(name) for one in wanted)])

    def statement_faults(self, statements: Sequence[tuple[TableName, Statement]]) -> Sequence[str | None]:
        """Say of each statement of a table's handlers why it cannot be run here as it is now; None where it can."""
        with self._connection("read the catalogue") as connection:
            tables = read_tables(connection, {table for table, _ in statements})
            return [fault_of(connection, statement, tables.get(table)) for table, statement in statements]

    def unseen(self, source: NativeForm, *, of_all: bool) -> Sequence[NotCompared]:
        """Say what of the source's large objects a comparison of rows does not see."""
        if not isinstance(source, LargeObjects) or not (of_all or source.columns):
            return ()
        return unseen(source, self.beside(()))

    def post_data_builder(self, post_data: NativeForm) -> PostgresPostDataBuilder:
        """Return what makes what tables lack of `post_data`, and keeps their sequences in step."""
        return PostgresPostDataBuilder(
            self._url, self._pipeline, post_data if isinstance(post_data, PostData) else None
        )

    def lacking(self, parts: NativeForm) -> Sequence[MissingPart]:
        """Return what is missing here of the source's partitions and enum labels."""
        if not isinstance(parts, Parts):
            return []
        with self._connection("read the catalogue") as connection:
            connection.execute(f"SET lock_timeout = '{LOCK_WAIT}'")
            try:
                return lacking_parts(parts, read_parts(connection, parts.keys, parts.labels))
            except psycopg.errors.LockNotAvailable:
                return []

    def plan_parts(self, blueprint: NativeForm | None, tables: Sequence[TableName]) -> DatabasePlan:
        """Plan what tables lack here of the source's partitions and enum labels, and nothing else."""
        plan = DatabasePlan(self.label)
        if isinstance(blueprint, Blueprint):
            with self._connection("read the catalogue") as connection:
                setup.plan_parts(connection, plan, blueprint, tables)
        return plan

    def removal(self) -> DatabasePlan:
        """Plan to remove this pipeline's part of the ledger, and the ledger itself if nobody else uses it."""
        with self._connection("read the ledger") as connection:
            refuse_foreign(connection, "penstock")
            steps = teardown_steps(connection, self._url, self._pipeline)
            return DatabasePlan(self.label, steps, preamble=preamble("penstock"))

    def has_ledger(self) -> bool:
        """Whether setup has made a ledger here; one of another version is refused."""
        with self._connection("read the ledger") as connection:
            refuse_foreign(connection, "penstock")
            ledger_version.refuse_other_version(connection)
            return ledger_version.exists(connection)

    def ledger(self) -> PostgresLedger:
        """Open the ledger."""
        return PostgresLedger(self._url, self._pipeline, self._tag)

    def error_queue(self) -> PostgresErrorQueue:
        """Open the error queue."""
        return PostgresErrorQueue(self._url, self._pipeline, self._tag, values=self._values)

    def check(self) -> None:
        """Make sure that changes can be applied here at all."""
        if not self.has_ledger():
            raise OperatorError("there is no ledger", where=self.label, do="run `penstock setup`")
        PostgresSession(self._url, f"penstock {self._pipeline} check", self._tag).close()
