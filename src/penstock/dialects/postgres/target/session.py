"""A session at a PostgreSQL target: its settings and transactions, and what it takes in bulk.

Sessions run with `session_replication_role = replica`, so the target's ordinary triggers do not fire. That
also silences foreign keys and deferrable constraints, whose checks are triggers; apply makes them itself, in
`SetPath` and in `RowPath._check` (ADR 4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import psycopg
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.apply_errors import ApplyError
from penstock.apply.ddl import Alteration
from penstock.apply.ddl_log import LoggedDdl
from penstock.apply.ledger import Failed, Failure, LaneClaim
from penstock.apply.net import NetChange
from penstock.apply.target import TargetTable, Unexpected
from penstock.change import NO_VERSION, Change, Image, Op, TableName, Transaction
from penstock.dialects.postgres.connection import (
    COPY_LOCK_WAIT,
    RAW_FORM,
    WITHOUT_VIEWS,
    connect,
    label,
    quote,
    set_tag,
    speaking,
)
from penstock.dialects.postgres.errors import copied_column
from penstock.dialects.postgres.fit import widening
from penstock.dialects.postgres.rows import PostgresRowsAside
from penstock.dialects.postgres.source.as_of import digest_of_row
from penstock.dialects.postgres.target import bulk_load
from penstock.dialects.postgres.target.blocked_keys import QueueCache
from penstock.dialects.postgres.target.ddl_executor import DdlSession
from penstock.dialects.postgres.target.ddl_log import write_ddl
from penstock.dialects.postgres.target.error_entries import put_errors
from penstock.dialects.postgres.target.handler_sql import PostgresHandlerSql
from penstock.dialects.postgres.target.lane_ledger import PostgresLaneLedger
from penstock.dialects.postgres.target.ledger_entries import CLOSE_CHUNK, COPIED_AT, OPEN_CHUNK
from penstock.dialects.postgres.target.row_sql import PARAMETER, only, quoted
from penstock.dialects.postgres.target.row_statements import OF_VALUES, RowStatements
from penstock.dialects.postgres.target.set_path import SetPath
from penstock.dialects.postgres.target.staging import MOST_STAGED_COLUMNS
from penstock.errors import OperatorError, PenstockError
from penstock.external_values import ValueStore
from penstock.position import START, Scn
from penstock.schema import Column, ForeignKey, TableSchema
from penstock.snapshot.chunk import Chunk
from penstock.snapshot.task import ChunkLoader

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


_FIRST_COPY = "first copy"
"""Stands where an entry of the error queue has the id of its transaction, for rows that were put aside."""

_IDLE = psycopg.pq.TransactionStatus.IDLE


class PostgresSession(RowStatements, ChunkLoader):
    """A connection to a PostgreSQL target."""

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
        super().__init__(url, connect(url, application_name), values)
        self._application_name = application_name
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
        self.handler_sql = PostgresHandlerSql(self)
        self._process = process
        self._ddl = DdlSession(self, process)
        self._queue_cache = QueueCache()

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open and outside a transaction."""
        return not self.connection.closed and self.connection.info.transaction_status == _IDLE

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def lane_ledger(self, claim: LaneClaim) -> PostgresLaneLedger:
        """Return the ledger of one lane, which writes through this session.

        What it has read of the error queue is kept for later lanes: it is as old as the session at most.
        """
        return PostgresLaneLedger(self._url, self.connection, claim, self._queue_cache)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin; commit at the end of the block, or roll back if it raises."""
        self.execute("BEGIN")
        try:
            yield
            self.execute("COMMIT")
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
        with self.translated(), self.connection.lock:
            result = self.connection.pgconn.exec_(statement)
            if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result, encoding=self.connection.info.encoding)

    def find_conflicts(self, nets: Sequence[NetChange]) -> list[Unexpected]:
        """See `TargetSession.find_conflicts`."""
        with self.translated():
            return self._set_path.find_conflicts(nets)

    def apply_net(self, nets: Sequence[NetChange], *, unchecked: Collection[ForeignKey]) -> None:
        """See `TargetSession.apply_net`."""
        with self.translated():
            self._set_path.apply(nets, unchecked=unchecked)

    def apply_found(self, left_out: Sequence[NDArray[np.int64]], *, unchecked: Collection[ForeignKey]) -> None:
        """See `TargetSession.apply_found`."""
        with self.translated():
            self._set_path.apply_found(left_out, unchecked=unchecked)

    def load(self, table: TargetTable, rows: pa.Table) -> None:
        """Insert rows that need no further check."""
        try:
            bulk_load.load(self._set_path, table, rows)
        except OF_VALUES as exc:
            raise self._not_loaded(exc, table) from exc

    def replace(
        self, table: TargetTable, gone: pa.Table, rows: pa.Table, *, clears_the_way: Collection[tuple[str, ...]]
    ) -> None:
        """See `snapshot.rows.DifferenceWriter.replace`."""
        with self.translated():
            bulk_load.replace(self._set_path, table, gone, rows, clears_the_way=clears_the_way)

    def rows_aside(self) -> PostgresRowsAside:
        """Open a session that reads beside this one."""
        return PostgresRowsAside(self._url, self._application_name)

    def delete_equal(self, table: TargetTable, columns: Sequence[str], counts: Mapping[str, int]) -> None:
        """Delete so many of the rows whose columns have a digest."""
        digest = digest_of_row([table.schema.by_name[name] for name in columns])
        # A join of all rows with all digests; without hashing it would take the product of the two.
        self.execute("SET LOCAL enable_hashjoin = on")
        self.run(
            f"WITH found AS (SELECT t.tableoid AS part, t.ctid AS place, {digest} AS digest FROM {only(table)} t),"
            " chosen AS (SELECT part, place, row_number() OVER (PARTITION BY digest) <= n AS is_gone FROM found"
            f" JOIN unnest({PARAMETER}::text[], {PARAMETER}::bigint[]) w (digest, n) USING (digest))"
            f" DELETE FROM {only(table)} t USING chosen c"
            " WHERE t.tableoid = c.part AND t.ctid = c.place AND c.is_gone",
            [list(counts), list(counts.values())],
        )
        self.execute("SET LOCAL enable_hashjoin = off")

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
        self.execute(f"INSERT INTO {quoted(table)} SELECT FROM generate_series(1, %s)", [rows])

    def open_chunk(self, process: str, epoch: int, chunk: Chunk) -> bool | None:
        """Lock a chunk's mark; False when it is done already, None when this run is over or it is not a chunk."""
        # A table that another session keeps is not to keep the others from being copied.
        self.execute(f"SET LOCAL lock_timeout = '{COPY_LOCK_WAIT}'")
        row = self.execute(
            OPEN_CHUNK,
            [process, epoch, chunk.table.schema, chunk.table.name, chunk.number],
        ).fetchone()
        return None if row is None else bool(row[0])

    def close_chunk(self, process: str, chunk: Chunk, rows: int) -> None:
        """Mark a chunk as done."""
        self.execute(
            CLOSE_CHUNK,
            [rows, process, chunk.table.schema, chunk.table.name, chunk.number],
        )

    def widening(self, table: TargetTable, source: Column) -> str | None:
        """See `snapshot.task.ChunkLoader.widening`."""
        return widening(table.schema, source)

    def put_row_aside(self, process: str, table: TargetTable, row: Image, error: ApplyError) -> None:
        """See `snapshot.task.ChunkLoader.put_row_aside`."""
        found = self.execute(COPIED_AT, [process, table.name.schema, table.name.name]).fetchone()
        # A retry leaves out what the copy holds, and this it does not hold.
        scn = Scn(1 + (found[0] if found is not None else START))
        op = Op.SNAPSHOT if table.key.is_declared else Op.INSERT
        change = Change(1, op, table.name, NO_VERSION, None, row)
        whole = Transaction(scn, _FIRST_COPY, None, (change,))
        with speaking("write the error queue", self._url):
            put_errors(self.connection, process, [Failed(whole, Failure(1, error))], None)

    def alter(self, table: TableName, wanted: Alteration, commit_scn: Scn) -> TableSchema | None:
        """See `TargetSession.alter`."""
        return self._ddl.alter(table, wanted, commit_scn)

    def drop(self, tables: Sequence[TableName]) -> None:
        """See `TargetSession.drop`."""
        self._ddl.drop(tables)

    def note_ddl(self, done: LoggedDdl) -> None:
        """See `TargetSession.note_ddl`."""
        with self.translated():
            write_ddl(self.connection, self._process, done)

    def _not_loaded(self, exc: Exception, table: TargetTable) -> PenstockError:
        error = self.translate(exc)
        if not isinstance(error, ApplyError) or error.column is not None or not isinstance(exc, psycopg.Error):
            return error
        column = copied_column(exc.diag, table.schema.column_names)
        return error if column is None else error.with_column(column, table.schema.by_name[column].type)
