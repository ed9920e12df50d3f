"""A session at a PostgreSQL target that applies entries of the error queue, and reads rows to show beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from penstock.apply.conflict_methods import Resolution
from penstock.apply.error_queue import Actor, Emptied, EntryOutcome, Note, RetrySession
from penstock.apply.target import RowMatch, TargetCatalog, TargetTable
from penstock.change import Image, TableName, Transaction
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.connection import label, quote, speaking
from penstock.dialects.postgres.target.blocked_keys import WAITS_FOR, next_to_go_on
from penstock.dialects.postgres.target.conflict_log import log_resolutions
from penstock.dialects.postgres.target.error_entries import WaitingDdl
from penstock.dialects.postgres.target.error_history import write_action
from penstock.dialects.postgres.target.session import PostgresSession
from penstock.errors import OperatorError, PenstockError
from penstock.external_values import ValueStore
from penstock.position import START, Scn
from penstock.schema import Dictionary, TableSchema
from penstock.snapshot.instantiate import CopyState


class PostgresRetrySession(PostgresSession, RetrySession):
    """A session that applies entries, each in a transaction of its own."""

    def __init__(self, url: str, process: str, tag: str | None, actor: Actor, values: ValueStore | None = None) -> None:
        """Open a session that writes like an apply server: ordinary triggers do not fire."""
        super().__init__(url, f"penstock {process} retry", tag, process, values)
        # Wait for the disk at commit: the user is about to be told "applied", and no later batch would wait for us.
        self.execute(
            "SELECT set_config('synchronous_commit', CASE reset_val WHEN 'off' THEN 'on' ELSE reset_val END, false)"
            " FROM pg_settings WHERE name = 'synchronous_commit'"
        )
        self._process = process
        self._waiting_ddl = WaitingDdl(self.connection, process)
        self._actor = actor
        row = self.execute("SELECT current_user").fetchone()
        assert row is not None
        self._user = row[0]
        self._depth = 0
        """How many transactions are open, one in the other: all but the outermost are savepoints."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin; commit at the end of the block, or roll back if it raises. Inside another one it is a savepoint."""
        if self._depth == 0:
            self._depth = 1
            try:
                with super().transaction():
                    yield
            finally:
                self._depth = 0
            return
        name = f"s{self._depth}"
        self.execute(f"SAVEPOINT {name}")
        self._depth += 1
        try:
            yield
        except BaseException:
            if self._is_open:
                self.execute(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        finally:
            self._depth -= 1
        self.execute(f"RELEASE SAVEPOINT {name}")

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Have all transactions in the block see what those before them did, and none of them stay."""
        self.execute("BEGIN")
        self._depth = 1
        try:
            yield
        finally:
            self._depth = 0
            if self._is_open:
                self.connection.execute("ROLLBACK")

    @contextmanager
    def acting_as(self, role: str | None) -> Iterator[None]:
        """Use the rights of a role, inside the open transaction."""
        if role in (None, self._user):
            yield
            return
        assert role is not None
        try:
            self.connection.execute(f"SET LOCAL ROLE {quote(role)}")
        except psycopg.Error as exc:
            raise self._no_role(exc, role) from exc
        yield
        # Where the block fails, rolling back gives the rights back.
        self.execute("RESET ROLE")

    def check_now(self) -> None:
        """Have the target check what it would check at commit: triggers that always fire may be deferred."""
        self.execute("SET CONSTRAINTS ALL IMMEDIATE")
        self.execute("SET CONSTRAINTS ALL DEFERRED")

    def note(self, note: Note) -> None:
        """Write down a deed inside the open transaction."""
        with speaking("write the error queue", self._url):
            write_action(self.connection, self._process, self._actor, note)

    def rows_now(self, table: TargetTable, key: Image) -> Sequence[Image]:
        """Return up to two rows that have a key, without a lock."""
        return self._find(table, RowMatch(key, {}), lock=False)

    @property
    def _is_open(self) -> bool:
        idle = (psycopg.pq.TransactionStatus.INTRANS, psycopg.pq.TransactionStatus.INERROR)
        return not self.connection.closed and self.connection.info.transaction_status in idle

    def _no_role(self, exc: psycopg.Error, role: str) -> PenstockError:
        if exc.sqlstate is None or exc.sqlstate[:2] not in ("22", "42"):
            return self.translate(exc)
        return OperatorError(
            f"cannot apply with the rights of {role!r}: there is no such role, or {self._user!r} is not a member of it",
            where=label(self._url),
            do=f"GRANT {quote(role)} TO {quote(self._user)}; or apply with the rights of {self._user!r}, by `--as-me`",
        )

    def note_resolutions(self, transaction: Transaction, resolutions: Sequence[Resolution]) -> None:
        """Write down how conflicts of an entry were resolved."""
        if resolutions:
            log_resolutions(self.connection, self._process, [(transaction, resolutions)])

    def remove_entry(self, entry_id: str, *, even_on_hold: bool = False) -> EntryOutcome | None:
        """Delete an entry inside the open transaction; gone or on hold when that cannot be done."""
        number = int(entry_id.rpartition(".")[2])
        # The entry first, as `PostgresErrorQueue.delete` does: two sessions that remove it wait for each other here.
        deleted = self.execute(
            "DELETE FROM penstock.error WHERE process = %s AND id = %s AND (on_hold_at IS NULL OR %s)",
            [self._process, number, even_on_hold],
        )
        if deleted.rowcount == 0:
            there = self.execute("SELECT FROM penstock.error WHERE process = %s AND id = %s", [self._process, number])
            return EntryOutcome.ON_HOLD if there.rowcount else EntryOutcome.GONE
        # By hand: this session's settings keep the foreign key, whose trigger would do it, from acting.
        for table in ("error_change", "held", "error_mark"):
            self.execute(f"DELETE FROM penstock.{table} WHERE process = %s AND error_id = %s", [self._process, number])
        return None

    def waits_for(self, entry_id: str) -> str | None:
        """Return the first entry that a held one waits for; None where it may go on, or is not held."""
        row = self.execute(
            f"SELECT {WAITS_FOR} FROM penstock.error e WHERE e.process = %s AND e.id = %s AND e.is_held",
            [self._process, int(entry_id.rpartition(".")[2])],
        ).fetchone()
        return None if row is None or row[0] is None else f"{self._process}.{row[0]}"

    def next_to_go_on(self, after: tuple[int, int] = (-1, 0)) -> tuple[int, int] | None:
        """Return position and number of the first held entry behind a position that waits for nothing."""
        with speaking("read the error queue", self._url):
            return next_to_go_on(self.connection, self._process, after)

    def held(self, entry_id: str, tables: Collection[TableName]) -> Collection[TableName]:
        """Return those of the tables that hold already what an entry did to them."""
        rows = self.execute(
            "SELECT schema_name, table_name FROM penstock.held WHERE process = %s AND error_id = %s",
            [self._process, int(entry_id.rpartition(".")[2])],
        )
        held = {TableName(schema, name) for schema, name in rows}
        return {table for table in tables if table in held} | {p for p, root in self._ancestors(tables) if root in held}

    def emptied(self, tables: Collection[TableName]) -> Sequence[Emptied]:
        """Return where each of these tables, or a partition of it, was truncated last."""
        rows = self.execute(
            "SELECT schema_name, table_name, scn FROM penstock.emptied WHERE process = %s", [self._process]
        )
        at = {TableName(schema, name): Scn(scn) for schema, name, scn in rows}
        own = [Emptied(table, table, at[table]) for table in tables if table in at]
        parts = [Emptied(root, part, at[part]) for part, root in self._ancestors(at) if root in tables and root != part]
        # What holds for a root holds for its partitions.
        roots = [Emptied(part, part, at[root]) for part, root in self._ancestors(tables) if root in at]
        return [*own, *roots, *parts]

    def dictionary(self, transaction: Transaction) -> Dictionary:
        """Return the versions that the changes of a transaction were captured under."""
        versions = {(change.table, change.table_version) for change in transaction.changes}
        rows = self.execute(
            "SELECT version, definition FROM penstock.dictionary WHERE process = %s"
            " AND (schema_name, table_name, version) IN (SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[]))",
            [
                self._process,
                [table.schema for table, _ in versions],
                [table.name for table, _ in versions],
                [version for _, version in versions],
            ],
        )
        return Dictionary(TableSchema.from_definition(definition, version=version) for version, definition in rows)

    def catalog(self, transaction: Transaction) -> TargetCatalog:
        """Describe the tables that a transaction changes."""
        names = {change.table for change in transaction.changes}
        tables = read_tables(self.connection, names)
        copied = self._copied()
        # A partition was copied with its root.
        roots = {part: root for part, root in self._ancestors(names) if root in copied}
        parts = {part: copied[root] for part, root in roots.items()}
        waiting = self._waiting_ddl.unfollowed(transaction.commit_scn)
        return TargetCatalog(
            tables={
                name: TargetTable(table, unfollowed=waiting.get(roots.get(name, name), ()))
                for name, table in tables.items()
            },
            instantiated=dict.fromkeys(names, START) | parts | copied,
            checks_all_references=True,
        )

    def _ancestors(self, names: Collection[TableName]) -> Iterator[tuple[TableName, TableName]]:
        """Yield (partition, ancestor) for each of the tables that is a partition."""
        rows = self.execute(
            "SELECT n.nspname, c.relname, pn.nspname, p.relname FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace, pg_partition_ancestors(c.oid) a"
            " JOIN pg_class p ON p.oid = a.relid JOIN pg_namespace pn ON pn.oid = p.relnamespace"
            " WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
            [[name.schema for name in names], [name.name for name in names]],
        )
        for schema, name, root_schema, root_name in rows:
            yield TableName(schema, name), TableName(root_schema, root_name)

    def _copied(self) -> dict[TableName, Scn]:
        rows = self.execute(
            "SELECT schema_name, table_name, scn FROM penstock.instantiation WHERE process = %s AND state = %s",
            [self._process, CopyState.READY],
        )
        return {TableName(schema, name): Scn(scn) for schema, name, scn in rows}
