"""The error queue in a PostgreSQL target."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg.rows import DictRow, dict_row

from penstock.apply.error_queue import Emptied, ErrorEntry
from penstock.apply.ledger import Failure
from penstock.apply.resolve import Resolution
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.change import Change, Op, TableName, Transaction
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.connection import Connection, connect, label, speaking
from penstock.dialects.postgres.target.conflict_log import log_resolutions
from penstock.dialects.postgres.target.session import PostgresSession
from penstock.errors import OperatorError
from penstock.origins import DEFAULT_TAG
from penstock.position import START, Scn
from penstock.schema import Dictionary, TableSchema
from penstock.snapshot.instantiate import CopyState
from penstock.values import encode_image

_ENTRY = """
SELECT e.id, e.txn_id, e.commit_scn, e.committed_at, e.message_number, e.message_count, e.error_number, e.error_code,
  e.error_message, e.found, c.schema_name, c.table_name, c.op, e.created_at
FROM penstock.error e LEFT JOIN penstock.error_change c
  ON c.process = e.process AND c.error_id = e.id AND c.message_number = e.message_number
WHERE e.process = %s
"""


def put_error(connection: Connection, process: str, transaction: Transaction, failure: Failure) -> None:
    """Insert a transaction with all its changes into the error queue."""
    error = failure.error
    row = connection.execute(
        "INSERT INTO penstock.error (process, txn_id, commit_scn, committed_at, message_number, message_count,"
        " error_number, error_code, error_message, found)"
        " VALUES (%s, %s, %s, to_timestamp(%s / 1000000.0), %s, %s, %s, %s, %s, %s) RETURNING id",
        [
            process,
            transaction.txn_id,
            transaction.commit_scn,
            transaction.committed_at_us,
            failure.message_number,
            len(transaction.changes),
            error.number,
            error.code,
            str(error),
            None if error.found is None else encode_image(error.found, is_ascii=True),
        ],
    ).fetchone()
    assert row is not None
    with connection.cursor().copy(
        "COPY penstock.error_change (process, error_id, message_number, op, schema_name, table_name, table_version,"
        " change_seq, before, after) FROM STDIN"
    ) as copy:
        for number, change in enumerate(transaction.changes, start=1):
            images = (
                None if image is None else encode_image(image, is_ascii=True) for image in (change.before, change.after)
            )
            copy.write_row(
                [
                    process,
                    row[0],
                    number,
                    change.op.value,
                    change.table.schema,
                    change.table.name,
                    change.table_version,
                    change.change_seq,
                    *images,
                ]
            )


def _entry(process: str, row: DictRow) -> ErrorEntry:
    table = TableName(row["schema_name"], row["table_name"]) if row["table_name"] else None
    shared = {k: v for k, v in row.items() if k not in ("id", "schema_name", "table_name")}
    return ErrorEntry(id=f"{process}.{row['id']}", table=table, **shared)


def entries_behind(connection: Connection, process: str, number: int, most: int) -> list[tuple[int, ErrorEntry]]:
    """Return the entries of a process that came after one, with their numbers, the oldest first."""
    rows = connection.cursor(row_factory=dict_row).execute(
        _ENTRY + " AND e.id > %s ORDER BY e.id LIMIT %s", [process, number, most]
    )
    return [(row["id"], _entry(process, row)) for row in rows]


def note_held(connection: Connection, process: str, table: TableName) -> None:
    """Write down, inside an open transaction, that a table holds what each transaction in the queue did to it.

    Rows that have no key would be there twice after a retry, and nothing would tell.
    """
    connection.execute(
        "INSERT INTO penstock.held (process, error_id, schema_name, table_name)"
        " SELECT process, id, %s, %s FROM penstock.error WHERE process = %s ON CONFLICT DO NOTHING",
        [table.schema, table.name, process],
    )


class PostgresErrorQueue:
    """Implements `apply.error_queue.ErrorQueue`."""

    def __init__(self, url: str, process: str, tag: str | None = DEFAULT_TAG) -> None:
        """Open the entries of a process in the database at `url`; what is tried again carries the origin mark `tag`."""
        self._url = url
        self._tag = tag
        self._process = process
        self._connection: Connection | None = None

    def entries(self) -> Sequence[ErrorEntry]:
        """Return all entries, in commit order."""
        with speaking("read the error queue", self._url):
            rows = self._rows().execute(_ENTRY + " ORDER BY e.commit_scn, e.id", [self._process])
            return [_entry(self._process, row) for row in rows]

    def count_by_table(self, root_of: Mapping[TableName, TableName]) -> Mapping[TableName, int]:
        """Return how many transactions hold changes of each table, or of its partitions."""
        pairs = list(root_of.items())
        with speaking("read the error queue", self._url):
            rows = self._sql().execute(
                "SELECT coalesce(r.root_schema, c.schema_name), coalesce(r.root_name, c.table_name),"
                " count(DISTINCT c.error_id) FROM penstock.error_change c"
                " LEFT JOIN unnest(%s::text[], %s::text[], %s::text[], %s::text[])"
                "   r (schema_name, table_name, root_schema, root_name) USING (schema_name, table_name)"
                " WHERE c.process = %s GROUP BY 1, 2",
                [
                    [table.schema for table, _ in pairs],
                    [table.name for table, _ in pairs],
                    [root.schema for _, root in pairs],
                    [root.name for _, root in pairs],
                    self._process,
                ],
            )
            return {TableName(schema, name): number for schema, name, number in rows}

    def load(self, entry_id: str) -> tuple[ErrorEntry, Transaction]:
        """Return an entry and its changes."""
        number = self._number(entry_id)
        with speaking("read the error queue", self._url):
            row = self._rows().execute(_ENTRY + " AND e.id = %s", [self._process, number]).fetchone()
            if row is None:
                raise self._unknown(entry_id)
            changes = self._rows().execute(
                "SELECT * FROM penstock.error_change WHERE process = %s AND error_id = %s ORDER BY message_number",
                [self._process, number],
            )
            entry = _entry(self._process, row)
            committed = None if entry.committed_at is None else round(entry.committed_at.timestamp() * 1_000_000)
            return entry, Transaction(entry.commit_scn, entry.txn_id, committed, [_change(c) for c in changes])

    def delete(self, entry_id: str) -> None:
        """Remove an entry; nothing is applied."""
        with speaking("write the error queue", self._url):
            deleted = self._sql().execute(_DELETE, [self._process, self._number(entry_id)])
        if deleted.rowcount == 0:
            raise self._unknown(entry_id)

    def update_failure(self, entry_id: str, failure: Failure) -> None:
        """Note why an entry failed again."""
        error = failure.error
        with speaking("write the error queue", self._url):
            self._sql().execute(
                "UPDATE penstock.error SET message_number = %s, error_number = %s, error_code = %s,"
                " error_message = %s, found = %s WHERE process = %s AND id = %s",
                [
                    failure.message_number,
                    error.number,
                    error.code,
                    str(error),
                    None if error.found is None else encode_image(error.found, is_ascii=True),
                    self._process,
                    self._number(entry_id),
                ],
            )

    @contextmanager
    def retry_session(self) -> Iterator[PostgresRetrySession]:
        """Open a session to apply entries through."""
        session = PostgresRetrySession(self._url, self._process, self._tag)
        try:
            yield session
        finally:
            session.close()

    def _number(self, entry_id: str) -> int:
        process, _, number = entry_id.rpartition(".")
        if process not in ("", self._process) or not number.isdecimal():
            raise self._unknown(entry_id)
        return int(number)

    def _unknown(self, entry_id: str) -> OperatorError:
        return OperatorError(
            f"no transaction {entry_id!r} in the error queue",
            where=label(self._url),
            do="`penstock errors list` names those that are there",
        )

    def _rows(self) -> Any:
        return self._sql().cursor(row_factory=dict_row)

    def _sql(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, f"penstock {self._process} errors")
        return self._connection


class PostgresRetrySession(PostgresSession):
    """Implements `apply.error_queue.RetrySession`."""

    def __init__(self, url: str, process: str, tag: str | None) -> None:
        """Open a session that writes like an apply server: ordinary triggers do not fire."""
        super().__init__(url, f"penstock {process} retry", tag)
        # Wait for the disk at commit: the user is about to be told "applied", and no later batch would wait for us.
        self._execute(
            "SELECT set_config('synchronous_commit', CASE reset_val WHEN 'off' THEN 'on' ELSE reset_val END, false)"
            " FROM pg_settings WHERE name = 'synchronous_commit'"
        )
        self._process = process

    def note_resolutions(self, transaction: Transaction, resolutions: Sequence[Resolution]) -> None:
        """Write down how conflicts of an entry were resolved."""
        if resolutions:
            log_resolutions(self.connection, self._process, [(transaction, resolutions)])

    def remove_entry(self, entry_id: str) -> bool:
        """Delete an entry inside the open transaction; False when another session has."""
        number = int(entry_id.rpartition(".")[2])
        # By hand: this session's settings keep the foreign key, whose trigger would do it, from acting.
        for table in ("error_change", "held"):
            self._execute(f"DELETE FROM penstock.{table} WHERE process = %s AND error_id = %s", [self._process, number])
        return self._execute(_DELETE, [self._process, number]).rowcount == 1

    def held(self, entry_id: str, tables: Collection[TableName]) -> Collection[TableName]:
        """Return those of the tables that hold already what an entry did to them."""
        rows = self._execute(
            "SELECT schema_name, table_name FROM penstock.held WHERE process = %s AND error_id = %s",
            [self._process, int(entry_id.rpartition(".")[2])],
        )
        held = {TableName(schema, name) for schema, name in rows}
        return {table for table in tables if table in held} | {p for p, root in self._ancestors(tables) if root in held}

    def emptied(self, tables: Collection[TableName]) -> Sequence[Emptied]:
        """Return where each of these tables, or a partition of it, was truncated last."""
        rows = self._execute(
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
        rows = self._execute(
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
        parts = {part: copied[root] for part, root in self._ancestors(names) if root in copied}
        return TargetCatalog(
            tables={name: TargetTable(table) for name, table in tables.items()},
            instantiated=dict.fromkeys(names, START) | parts | copied,
            references_from=START,
        )

    def _ancestors(self, names: Collection[TableName]) -> Iterator[tuple[TableName, TableName]]:
        """Yield (partition, ancestor) for each of the tables that is a partition."""
        rows = self._execute(
            "SELECT n.nspname, c.relname, pn.nspname, p.relname FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace, pg_partition_ancestors(c.oid) a"
            " JOIN pg_class p ON p.oid = a.relid JOIN pg_namespace pn ON pn.oid = p.relnamespace"
            " WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
            [[name.schema for name in names], [name.name for name in names]],
        )
        for schema, name, root_schema, root_name in rows:
            yield TableName(schema, name), TableName(root_schema, root_name)

    def _copied(self) -> dict[TableName, Scn]:
        rows = self._execute(
            "SELECT schema_name, table_name, scn FROM penstock.instantiation WHERE process = %s AND state = %s",
            [self._process, CopyState.READY],
        )
        return {TableName(schema, name): Scn(scn) for schema, name, scn in rows}


_DELETE = "DELETE FROM penstock.error WHERE process = %s AND id = %s"


def _change(row: DictRow) -> Change:
    return Change(
        change_seq=row["change_seq"],
        op=Op(row["op"]),
        table=TableName(row["schema_name"], row["table_name"]),
        table_version=row["table_version"],
        before=row["before"],
        after=row["after"],
    )
