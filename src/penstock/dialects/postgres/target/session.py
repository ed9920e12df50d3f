"""A session at a PostgreSQL target: its transactions, single-row statements, and the checks apply makes itself.

Sessions run with `session_replication_role = replica`, so the target's ordinary triggers do not fire. That
also silences foreign keys and deferrable constraints, whose checks are triggers; apply makes them itself (ADR 4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.apply_errors import ApplyError, ContentionError
from penstock.apply.ddl import Alteration
from penstock.apply.ddl_log import LoggedDdl
from penstock.apply.handlers.sql import SqlResult
from penstock.apply.handlers.statement import Statement
from penstock.apply.ledger import Failed, Failure
from penstock.apply.net import NetChange
from penstock.apply.target import ComparedRow, RowMatch, TargetTable, Unexpected
from penstock.change import NO_VERSION, Change, Image, Op, TableName, Transaction
from penstock.dialects.postgres.casts import equal_sql, refers_sql, text_sql
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.connection import (
    COPY_LOCK_WAIT,
    RAW_FORM,
    WITHOUT_VIEWS,
    Connection,
    connect,
    label,
    quote,
    set_tag,
    speaking,
)
from penstock.dialects.postgres.errors import FailureScope, copied_column, refused, safe_message, translate, whose
from penstock.dialects.postgres.fit import widening
from penstock.dialects.postgres.rows import PostgresRowsAside
from penstock.dialects.postgres.source.as_of import digest_of_row
from penstock.dialects.postgres.target.ddl_executor import DdlSession
from penstock.dialects.postgres.target.ddl_log import write_ddl
from penstock.dialects.postgres.target.error_entries import put_errors
from penstock.dialects.postgres.target.external_values import Pieces, refuse_external
from penstock.dialects.postgres.target.handler_sql import PostgresHandlerSql
from penstock.dialects.postgres.target.ledger_entries import CLOSE_CHUNK, COPIED_AT, OPEN_CHUNK
from penstock.dialects.postgres.target.many_rows import (
    alike,
    compare_many_sql,
    compared,
    find_parents_sql,
    order_many_sql,
    shifted_many_sql,
    update_many_sql,
)
from penstock.dialects.postgres.target.row_sql import PARAMETER, condition_sql, mark_of, only, quoted
from penstock.dialects.postgres.target.set_path import MOST_STAGED_COLUMNS, SetPath
from penstock.errors import OperatorError, PenstockError
from penstock.external_values import ExternalValue, ValueStore
from penstock.position import START, Scn
from penstock.schema import Column, Exclusion, ForeignKey, TableSchema, Unique
from penstock.snapshot.chunk import Chunk

_APPLY_SETTINGS = (
    WITHOUT_VIEWS,
    "SET session_replication_role = replica",
    # The batch as a whole waits for the disk, see `PostgresLedger.complete`.
    "SET synchronous_commit = off",
    # A killed task must not keep its locks.
    "SET idle_in_transaction_session_timeout = '5min'",
    # Statements find rows by key; what they cost must not grow with the table.
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
)


OF_VALUES = (psycopg.Error, ValueError, ArithmeticError, MemoryError)
"""What the driver and Arrow raise for values on their way to the server; it is translated, see `errors.whose`."""

_FIRST_COPY = "first copy"
"""Stands where an entry of the error queue has the id of its transaction, for rows that were put aside."""

_IDLE = psycopg.pq.TransactionStatus.IDLE

_CUT_TYPES = frozenset({"character varying", "character", "bit", "bit varying"})
"""Types that have a length, which an explicit cast cuts a value to without a word."""


class PostgresSession:
    """Implements `apply.target.TargetSession`."""

    most_net_columns = MOST_STAGED_COLUMNS

    def __init__(
        self,
        url: str,
        application_name: str,
        tag: str | None,
        process: str = "",
        values: ValueStore | None = None,
    ) -> None:
        """Connect, and switch ordinary triggers off for this session; what it writes carries the origin mark `tag`.

        Args:
            process: Whose ledger follows where tables are dropped or renamed.
            values: Where values are that are too large for their changes; None where there are none.

        Raises:
            OperatorError: The user may not do that.
        """
        self._url = url
        self._application_name = application_name
        self.connection: Connection = connect(url, application_name)
        for statement in _APPLY_SETTINGS:
            try:
                self.connection.execute(statement)
            except psycopg.errors.InsufficientPrivilege as exc:
                user = self.connection.info.user
                raise OperatorError(
                    "cannot keep the target's triggers from firing: no right to set session_replication_role",
                    where=label(url),
                    do=f"as a superuser: GRANT SET ON PARAMETER session_replication_role TO {quote(user)}",
                ) from exc
        set_tag(self.connection, tag)
        self._set_path = SetPath(self.connection)
        self._described: dict[TableName, TableSchema] = {}
        self._handler_sql = PostgresHandlerSql(self.connection)
        self._process = process
        self._altering = DdlSession(self.connection, process, self.describe_anew, self._translate)
        self._pieces = Pieces(self.connection, values)

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open and outside a transaction."""
        return not self.connection.closed and self.connection.info.transaction_status == _IDLE

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin; commit at the end of the block, or roll back if it raises."""
        self._execute("BEGIN")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            self._set_path.forget_new_tables()
            if not self.connection.closed:
                try:
                    self.connection.execute("ROLLBACK")
                except psycopg.OperationalError:
                    # The connection is lost, and the server has rolled back; the first error says more.
                    self.connection.close()
            raise
        self._set_path.keep_new_tables()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what the block did if it raises, and nothing else.

        Not by psycopg's own `transaction()`: it forgets all prepared statements at a rollback, also at one to here.
        """
        self._at_once(b"SAVEPOINT penstock")
        made_before = self._set_path.new_tables
        try:
            yield
        except BaseException:
            self._set_path.forget_tables_since(made_before)
            # Where that fails, the connection is lost, or a handler has ended the transaction: what the block raised
            # says more, and the server refuses whatever comes next.
            if not self.connection.closed and self.connection.info.transaction_status != _IDLE:
                with suppress(PenstockError):
                    self._at_once(b"ROLLBACK TO penstock; RELEASE penstock")
            raise
        self._at_once(b"RELEASE penstock")

    def _at_once(self, statement: bytes) -> None:
        """Run a statement that psycopg does not see."""
        with self._translated(), self.connection.lock:
            result = self.connection.pgconn.exec_(statement)
            if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result, encoding=self.connection.info.encoding)

    def find_conflicts(self, nets: Sequence[NetChange]) -> list[Unexpected]:
        """See `apply.target.TargetSession.find_conflicts`."""
        with self._translated():
            return self._set_path.find_conflicts(nets)

    def apply_net(self, nets: Sequence[NetChange], *, unchecked: Collection[ForeignKey]) -> None:
        """See `apply.target.TargetSession.apply_net`."""
        with self._translated():
            self._set_path.apply(nets, unchecked=unchecked)

    def apply_found(self, left_out: Sequence[NDArray[np.int64]], *, unchecked: Collection[ForeignKey]) -> None:
        """See `apply.target.TargetSession.apply_found`."""
        with self._translated():
            self._set_path.apply_found(left_out, unchecked=unchecked)

    def load(self, table: TargetTable, rows: pa.Table) -> None:
        """Insert rows that need no further check."""
        try:
            self._set_path.load(table, rows)
        except OF_VALUES as exc:
            raise self._not_loaded(exc, table) from exc

    def replace(
        self, table: TargetTable, gone: pa.Table, rows: pa.Table, *, clears_the_way: Collection[tuple[str, ...]]
    ) -> None:
        """Delete the rows that have these keys, and insert rows; columns that only the target has keep their values.

        Args:
            gone: Key columns, of canonical text.
            rows: Whole rows, of canonical text.
            clears_the_way: Columns of unique keys: rows that hold such a value of one that is inserted are deleted,
                too, where the target has no columns of its own.

        Raises:
            ApplyError: The target refuses a row.
            SpeculationError: It did not take every row, as where a trigger of its own keeps one away.
        """
        with self._translated():
            self._set_path.replace(table, gone, rows, clears_the_way=clears_the_way)

    def rows_aside(self) -> PostgresRowsAside:
        """Open a session that reads beside this one."""
        return PostgresRowsAside(self._url, self._application_name)

    def delete_equal(self, table: TargetTable, columns: Sequence[str], counts: Mapping[str, int]) -> None:
        """Delete so many of the rows whose columns have a digest."""
        digest = digest_of_row([table.schema.by_name[name] for name in columns])
        # A join of all rows with all digests; without hashing it would take the product of the two.
        self._execute("SET LOCAL enable_hashjoin = on")
        self._run(
            f"WITH found AS (SELECT t.tableoid AS part, t.ctid AS place, {digest} AS digest FROM {only(table)} t),"
            " chosen AS (SELECT part, place, row_number() OVER (PARTITION BY digest) <= n AS is_gone FROM found"
            f" JOIN unnest({PARAMETER}::text[], {PARAMETER}::bigint[]) w (digest, n) USING (digest))"
            f" DELETE FROM {only(table)} t USING chosen c"
            " WHERE t.tableoid = c.part AND t.ctid = c.place AND c.is_gone",
            [list(counts), list(counts.values())],
        )
        self._execute("SET LOCAL enable_hashjoin = off")

    @property
    def raw_form(self) -> str:
        """Name of the form that `load_raw` takes."""
        return RAW_FORM

    def load_raw(self, table: TargetTable, columns: Sequence[str], blocks: Iterable[bytes]) -> int:
        """Insert rows as they come, and return how many there were."""
        names = ", ".join(quote(name) for name in columns)
        cursor = self.connection.cursor()
        try:
            with cursor.copy(f"COPY {quoted(table)} ({names}) FROM STDIN") as into:
                for block in blocks:
                    into.write(block)
        except psycopg.Error as exc:
            raise self._not_loaded(exc, table) from exc
        return cursor.rowcount

    def load_defaults(self, table: TargetTable, rows: int) -> None:
        """Insert so many rows of which the target makes every column itself."""
        self._execute(f"INSERT INTO {quoted(table)} SELECT FROM generate_series(1, %s)", [rows])

    def open_chunk(self, process: str, epoch: int, chunk: Chunk) -> bool | None:
        """Lock a chunk's mark; False when it is done already, None when this run is over or it is not a chunk."""
        # A table that another session keeps is not to keep the others from being copied.
        self._execute(f"SET LOCAL lock_timeout = '{COPY_LOCK_WAIT}'")
        row = self._execute(
            OPEN_CHUNK,
            [process, epoch, chunk.table.schema, chunk.table.name, chunk.number],
        ).fetchone()
        return None if row is None else bool(row[0])

    def close_chunk(self, process: str, chunk: Chunk, rows: int) -> None:
        """Mark a chunk as done."""
        self._execute(
            CLOSE_CHUNK,
            [rows, process, chunk.table.schema, chunk.table.name, chunk.number],
        )

    def widening(self, table: TargetTable, source: Column) -> str | None:
        """See `snapshot.task.ChunkLoader.widening`."""
        return widening(table.schema, source)

    def put_row_aside(self, process: str, table: TargetTable, row: Image, error: ApplyError) -> None:
        """See `snapshot.task.ChunkLoader.put_row_aside`."""
        found = self._execute(COPIED_AT, [process, table.name.schema, table.name.name]).fetchone()
        # A retry leaves out what the copy holds, and this it does not hold.
        scn = Scn(1 + (found[0] if found is not None else START))
        op = Op.SNAPSHOT if table.key.is_declared else Op.INSERT
        change = Change(1, op, table.name, NO_VERSION, None, row)
        whole = Transaction(scn, _FIRST_COPY, None, (change,))
        with speaking("write the error queue", self._url):
            put_errors(self.connection, process, [Failed(whole, Failure(1, error))], None)

    def describe(self, table: TableName) -> TableSchema | None:
        """Describe any table of the target."""
        with self._translated():
            return read_tables(self.connection, [table]).get(table)

    def run_statement(self, statement: Statement, values: Sequence[tuple[Column | None, str | None]]) -> None:
        """See `apply.handlers.sql.SqlRunner`; so is all that follows, up to `cancel`."""
        with self._translated():
            self._handler_sql.run_statement(statement, values)

    def query(self, statement: str, values: Sequence[Any]) -> SqlResult:
        """Run a statement of a user's own."""
        with self._translated():
            return self._handler_sql.query(statement, values)

    def set_savepoint(self, name: str) -> None:
        """Begin what `roll_back_to` undoes."""
        self._execute(f"SAVEPOINT {quote(name)}")

    def release(self, name: str) -> None:
        """Keep what was done since a savepoint."""
        self._execute(f"RELEASE SAVEPOINT {quote(name)}")

    def roll_back_to(self, name: str) -> None:
        """Undo what was done since a savepoint."""
        self._execute(f"ROLLBACK TO SAVEPOINT {quote(name)}")

    def prepare_bar(self) -> None:
        """Make what `bar_commit` needs, once in a session."""
        with self._translated():
            self._handler_sql.prepare_bar()

    def bar_commit(self) -> None:
        """Have the server refuse to commit the open transaction."""
        with self._translated():
            self._handler_sql.bar_commit()

    def unbar_commit(self) -> bool:
        """Allow it again; False where the transaction that was barred is no more."""
        with self._translated():
            return self._handler_sql.unbar_commit()

    def cancel(self) -> None:
        """End the statement that the session is at, from another thread."""
        with self._translated():
            self._handler_sql.cancel()

    def insert(self, table: TargetTable, values: Image) -> None:
        """Insert a row; an identity takes the given value."""
        with self._translated():
            marks, given = self._pieces.marks(table, values, is_insert=True)
        if marks:
            names = ", ".join(map(quote, marks))
            statement = (
                f"INSERT INTO {quoted(table)} ({names}) OVERRIDING SYSTEM VALUE VALUES ({', '.join(marks.values())})"
            )
        else:
            statement = f"INSERT INTO {quoted(table)} DEFAULT VALUES"
        self._run(statement, given)

    def update(self, table: TargetTable, match: RowMatch, values: Image) -> int:
        """Set columns of the rows that match."""
        if not values:
            return len(self._find(table, match))
        condition, wanted = condition_sql(table, match)
        if any(table.schema.by_name[name].is_identity_always for name in values):
            return self._replace(table, match, values)
        with self._translated():
            self._pieces.check_appended(table, values, f"{only(table)} t WHERE {condition}", wanted)
            marks, given = self._pieces.marks(table, values)
        settings = ", ".join(f"{quote(name)} = {mark}" for name, mark in marks.items())
        if match.only_one:
            statement = (
                f"WITH one AS (SELECT tableoid, ctid FROM {only(table)} t WHERE {condition} LIMIT 1 FOR UPDATE)"
                f" UPDATE {only(table)} t SET {settings} FROM one"
                " WHERE t.ctid = one.ctid AND t.tableoid = one.tableoid"
            )
            return self._run(statement, [*wanted, *given]).rowcount
        statement = f"UPDATE {only(table)} t SET {settings} WHERE {condition}"
        return self._run(statement, [*given, *wanted]).rowcount

    def _replace(self, table: TargetTable, match: RowMatch, values: Image) -> int:
        """Set columns of the rows that match, one of them an identity, which only an insert may write."""
        condition, wanted = condition_sql(table, match)
        limit = " LIMIT 1" if match.only_one else ""
        names = [column.name for column in table.schema.columns if not column.is_generated]
        with self._translated():
            self._pieces.check_appended(table, values, f"{only(table)} t WHERE {condition}", wanted)
            marks, given = self._pieces.marks(table, {n: values[n] for n in names if n in values}, row="gone")
        kept = ", ".join(marks.get(name, f"gone.{quote(name)}") for name in names)
        statement = (
            f"WITH one AS (SELECT tableoid, ctid FROM {only(table)} t WHERE {condition}{limit} FOR UPDATE),"
            f" gone AS (DELETE FROM {only(table)} t USING one WHERE t.ctid = one.ctid AND t.tableoid = one.tableoid"
            " RETURNING t.*)"
            f" INSERT INTO {quoted(table)} ({', '.join(map(quote, names))}) OVERRIDING SYSTEM VALUE"
            f" SELECT {kept} FROM gone"
        )
        return self._run(statement, [*wanted, *given]).rowcount

    def delete(self, table: TargetTable, match: RowMatch) -> int:
        """Delete the rows that match."""
        condition, wanted = condition_sql(table, match)
        if match.only_one:
            statement = (
                f"WITH one AS (SELECT tableoid, ctid FROM {only(table)} t WHERE {condition} LIMIT 1 FOR UPDATE)"
                f" DELETE FROM {only(table)} t USING one WHERE t.ctid = one.ctid AND t.tableoid = one.tableoid"
            )
        else:
            statement = f"DELETE FROM {only(table)} t WHERE {condition}"
        return self._run(statement, wanted).rowcount

    def truncate(self, tables: Sequence[TargetTable]) -> None:
        """Empty several tables at once; those that only refer to each other may be named together."""
        self._run("TRUNCATE " + ", ".join(only(table) for table in tables))

    def alter(self, table: TableName, wanted: Alteration, commit_scn: Scn) -> TableSchema | None:
        """See `apply.target.RowWriter.alter`."""
        return self._altering.alter(table, wanted, commit_scn)

    def drop(self, tables: Sequence[TableName]) -> None:
        """See `apply.target.RowWriter.drop`."""
        self._altering.drop(tables)

    def note_ddl(self, done: LoggedDdl) -> None:
        """See `apply.target.RowWriter.note_ddl`."""
        with self._translated():
            write_ddl(self.connection, self._process, done)

    def describe_anew(self, table: TableName) -> TableSchema | None:
        """See `apply.target.RowWriter.describe_anew`."""
        self.forget_tables()
        return self.describe(table)

    def forget_tables(self) -> None:
        """See `apply.target.TargetSession.forget_tables`."""
        self._described = {}

    def lock_rows(self, table: TargetTable, match: RowMatch) -> list[Image]:
        """Return and lock up to two rows that have the key."""
        return self._find(table, RowMatch(match.key, {}))

    def compare_rows(self, table: TargetTable, match: RowMatch) -> list[ComparedRow]:
        """Return and lock up to two rows that have the key, each with the columns of `match.old` that differ."""
        condition, wanted = condition_sql(table, RowMatch(match.key, {}))
        tests, values = [], []
        for name, value in match.old.items():
            test, used = condition_sql(table, RowMatch({}, {name: value}))
            tests.append(test)
            values += used
        texts = [text_sql(column, f"t.{quote(column.name)}") for column in table.schema.columns]
        rows = self._run(
            f"SELECT {', '.join(texts + tests)} FROM {only(table)} t WHERE {condition} LIMIT 2 FOR UPDATE",
            [*values, *wanted],
        )
        return [compared(table, match, row) for row in rows]

    def compare_many(
        self, asked: Sequence[tuple[TargetTable, RowMatch]], *, lock: bool = True
    ) -> list[list[ComparedRow]]:
        """See `RowWriter.compare_many`."""
        found: list[list[ComparedRow]] = [[] for _ in asked]
        for indexes in alike((table, match.key, match.old) for table, match in asked):
            table = asked[indexes[0]][0]
            for row in self._run(*compare_many_sql(table, [asked[index][1] for index in indexes], lock=lock)):
                index = indexes[row[0] - 1]
                found[index].append(compared(table, asked[index][1], row[1:]))
        return found

    def update_many(self, updates: Sequence[tuple[TargetTable, RowMatch, Image]]) -> int:
        """See `RowWriter.update_many`."""
        count = 0
        for indexes in alike((table, match.key, values) for table, match, values in updates):
            keys, rows = [updates[n][1].key for n in indexes], [updates[n][2] for n in indexes]
            count += self._run(*update_many_sql(updates[indexes[0]][0], keys, rows)).rowcount
        return count

    def find_parents(self, foreign_key: ForeignKey, values: Sequence[Sequence[str]]) -> list[bool]:
        """See `RowWriter.find_parents`."""
        described = self._columns(foreign_key.child)
        columns = [described[name] for name in foreign_key.columns]
        found = {row[0] for row in self._run(*find_parents_sql(foreign_key, columns, values))}
        return [number in found for number in range(1, len(values) + 1)]

    def order(self, table: TargetTable, match: RowMatch, column: str, value: str | None) -> int | None:
        """Compare a value with a column of the row with the key; the column's own collation applies."""
        condition, wanted = condition_sql(table, RowMatch(match.key, {}))
        field, given = f"t.{quote(column)}", mark_of(table.schema.by_name[column])
        row = self._run(
            f"SELECT CASE WHEN {given} > {field} THEN 1 WHEN {given} = {field} THEN 0 WHEN {given} < {field} THEN -1"
            f" END FROM {only(table)} t WHERE {condition} LIMIT 1",
            [*[value] * (3 * given.count(PARAMETER)), *wanted],
        ).fetchone()
        return None if row is None else row[0]

    def shifted(self, table: TargetTable, match: RowMatch, column: str, old: str | None, new: str | None) -> str | None:
        """Return what a number of the row with the key is after it moved by `new` - `old`."""
        condition, wanted = condition_sql(table, RowMatch(match.key, {}))
        described = table.schema.by_name[column]
        mark = mark_of(described)
        moved = text_sql(described, f"(t.{quote(column)} + ({mark} - {mark}))")
        row = self._run(
            f"SELECT {moved} FROM {only(table)} t WHERE {condition} LIMIT 1", [new, old, *wanted]
        ).fetchone()
        return None if row is None else row[0]

    def order_many(self, asked: Sequence[tuple[TargetTable, RowMatch, str, str | None]]) -> list[int | None]:
        """See `RowWriter.order_many`."""
        found: list[int | None] = [None] * len(asked)
        for indexes in alike((table, match.key, [column]) for table, match, column, _ in asked):
            table, _, column, _ = asked[indexes[0]]
            keys, values = [asked[n][1].key for n in indexes], [asked[n][3] for n in indexes]
            for number, order in self._run(*order_many_sql(table, keys, column, values)):
                found[indexes[number - 1]] = order
        return found

    def shifted_many(
        self, asked: Sequence[tuple[TargetTable, RowMatch, str, str | None, str | None]]
    ) -> list[str | None]:
        """See `RowWriter.shifted_many`."""
        found: list[str | None] = [None] * len(asked)
        for indexes in alike((table, match.key, [column]) for table, match, column, _, _ in asked):
            table, _, column, _, _ = asked[indexes[0]]
            keys, moves = [asked[n][1].key for n in indexes], [asked[n][3:] for n in indexes]
            for number, moved in self._run(*shifted_many_sql(table, keys, column, moves)):
                found[indexes[number - 1]] = moved
        return found

    def do_rows_differ(self, table: TargetTable, match: RowMatch) -> bool:
        """See `RowWriter.do_rows_differ`."""
        condition, wanted = condition_sql(table, match)
        texts = ", ".join(text_sql(column, f"t.{quote(column.name)}") for column in table.schema.columns)
        row = self._run(
            f"SELECT count(*) FROM (SELECT DISTINCT {texts} FROM {only(table)} t WHERE {condition} LIMIT 2) found",
            wanted,
        ).fetchone()
        return bool(row and row[0] > 1)

    def is_reference_broken(self, foreign_key: ForeignKey, values: Sequence[str], *, is_child: bool) -> bool:
        """Whether a child holds these values and no parent does; locks the parent against removal."""
        parents, children = map(quote, foreign_key.parent_columns), [quote(name) for name in foreign_key.columns]
        side, names = (
            (foreign_key.child, foreign_key.columns) if is_child else (foreign_key.parent, foreign_key.parent_columns)
        )
        columns = self._columns(side)
        # The two may be of different types: a date refers to a timestamp.
        given = [mark_of(columns[name]) for name in names]
        on_parent = refers_sql(foreign_key, parents, given)
        on_child = refers_sql(foreign_key, children, given) if is_child else refers_sql(foreign_key, given, children)
        found = self._run(
            f"SELECT FROM {quote(foreign_key.parent.schema, foreign_key.parent.name)} WHERE {on_parent} FOR KEY SHARE",
            values,
        )
        if found.fetchone() is not None:
            return False
        found = self._run(
            f"SELECT FROM {quote(foreign_key.child.schema, foreign_key.child.name)} WHERE {on_child} LIMIT 1",
            values,
        )
        return found.fetchone() is not None

    def is_unique_broken(self, table: TargetTable, image: Image) -> str | None:
        """Name a deferrable constraint that two rows now break, one of them with the values of `image`."""
        for unique in table.schema.all_uniques:
            if unique.is_deferrable and set(unique.columns) <= set(image):
                match = RowMatch({name: image[name] for name in unique.columns}, {})
                has_null = any(value is None for value in match.key.values())
                if (unique.nulls_are_equal or not has_null) and len(self._find(table, match, unique.equals)) > 1:
                    return unique.name
        for exclusion in table.schema.exclusions:
            if exclusion.is_deferrable and exclusion.columns and set(exclusion.columns) <= set(image):
                values = [image[name] for name in exclusion.columns]
                if None not in values and self._is_excluded(table, exclusion.columns, exclusion.operators, values):
                    return exclusion.name
        return None

    def unfit_column(self, table: TargetTable, image: Image) -> str | None:
        """See `RowWriter.unfit_column`; by the cast that a statement makes, then by the one to the column's length."""
        columns = [
            (table.schema.by_name[name], value)
            for name, value in image.items()
            if value is not None and not isinstance(value, ExternalValue)
        ]
        if self._takes(columns):
            # Only a length may still be too small, to which such a cast cuts without a word.
            columns = [(column, value) for column, value in columns if _has_length(column)]
        for column, value in columns:
            try:
                with self.savepoint():
                    is_cut = self._is_cut(column, value)
            except ApplyError:
                # Nothing but this value was asked about, so whatever is said is about it.
                return column.name
            if is_cut:
                return column.name
        return None

    def _takes(self, columns: Sequence[tuple[Column, str]]) -> bool:
        """Whether the types of these columns take their values, cut to their length."""
        marks = [f"({mark_of(column)})::{column.type}" for column, _ in columns]
        values = [value for (_, value), mark in zip(columns, marks, strict=True) for _ in range(mark.count(PARAMETER))]
        try:
            with self.savepoint():
                self._run(f"SELECT {', '.join(marks)}", values)
        except ApplyError:
            return False
        return True

    def _is_cut(self, column: Column, value: str | None) -> bool:
        """Whether a cast to the column's type cuts off more than blanks, which an assignment refuses."""
        given = mark_of(column)
        whole, cut = (
            f'pg_catalog.rtrim({text_sql(column, sql)}) COLLATE "C"' for sql in (given, f"({given})::{column.type}")
        )
        test = f"{whole} IS DISTINCT FROM {cut}"
        row = self._run(f"SELECT {test}", [value] * test.count(PARAMETER)).fetchone()
        return bool(row and row[0]) and _has_length(column)

    def rows_in_the_way(self, table: TargetTable, constraint: str, image: Image, *, lock: bool = False) -> list[Image]:
        """See `RowWriter.rows_in_the_way`."""
        rules: list[Unique | Exclusion] = [*table.schema.all_uniques, *table.schema.exclusions]
        # A partition's constraint has a name of its own.
        named = [rule for rule in rules if rule.name == constraint] or (rules if table.schema.is_partitioned else [])
        for rule in named:
            if not (rule.columns and set(rule.columns) <= set(image)):
                continue
            key = {name: image[name] for name in rule.columns}
            nulls_are_equal = isinstance(rule, Unique) and rule.nulls_are_equal
            if None not in key.values() or nulls_are_equal:
                found = self._find(table, RowMatch(key, {}), rule.equals, lock=lock)
                if found:
                    return found
        return []

    def _is_excluded(
        self, table: TargetTable, columns: Sequence[str], operators: Sequence[str], values: Sequence[str | None]
    ) -> bool:
        marks = [mark_of(table.schema.by_name[name]) for name in columns]
        tests = list(zip(columns, operators, marks, strict=True))
        with_rows = " AND ".join(equal_sql(quote(name), operator, mark) for name, operator, mark in tests)
        with_self = " AND ".join(equal_sql(mark, operator, mark) for _, operator, mark in tests)
        row = self._run(
            f"SELECT (SELECT count(*) FROM (SELECT FROM {only(table)} WHERE {with_rows} LIMIT 2) found)"
            f" > CASE WHEN {with_self} THEN 1 ELSE 0 END",
            [*values, *(value for value in values for _ in range(2))],
        ).fetchone()
        return bool(row and row[0])

    def _find(
        self, table: TargetTable, match: RowMatch, equals: Mapping[str, str] | None = None, *, lock: bool = True
    ) -> list[Image]:
        condition, wanted = condition_sql(table, match, equals)
        names = table.schema.column_names
        texts = ", ".join(text_sql(column, f"t.{quote(column.name)}") for column in table.schema.columns)
        rows = self._run(
            f"SELECT {texts} FROM {only(table)} t WHERE {condition} LIMIT 2{' FOR UPDATE' if lock else ''}", wanted
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _columns(self, name: TableName) -> Mapping[str, Column]:
        """The columns of any table at the target, also one that no change ever names."""
        if name not in self._described:
            self._described.update(read_tables(self.connection, [name]))
        return self._described[name].by_name

    def _run(self, statement: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._execute(statement.replace("%", "%%").replace(PARAMETER, "%s"), values)

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        refuse_external(values)
        try:
            return self.connection.execute(statement, values)
        except Exception as exc:
            # An adapter of the driver's may raise anything.
            raise self._translate(exc) from exc

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OF_VALUES as exc:
            raise self._translate(exc) from exc

    def _not_loaded(self, exc: Exception, table: TargetTable) -> PenstockError:
        error = self._translate(exc)
        if not isinstance(error, ApplyError) or error.column is not None or not isinstance(exc, psycopg.Error):
            return error
        column = copied_column(exc.diag, table.schema.column_names)
        return error if column is None else error.with_column(column, table.schema.by_name[column].type)

    def _translate(self, exc: Exception) -> PenstockError:
        """What an error means that came up while a statement of a change ran: see `errors.whose`."""
        match whose(exc, is_connected=not self.connection.closed):
            case FailureScope.CHANGE:
                return refused(exc)
            case FailureScope.CONTENTION:
                assert isinstance(exc, psycopg.Error)
                error = ContentionError(safe_message(exc.diag), where=label(self._url))
                error.is_lock = isinstance(exc, psycopg.errors.LockNotAvailable)
                return error
            case FailureScope.PROCESS:
                assert isinstance(exc, psycopg.Error)
                return translate(exc, doing="apply", where=label(self._url))


def _has_length(column: Column) -> bool:
    return column.base_type.removesuffix("[]") in _CUT_TYPES
