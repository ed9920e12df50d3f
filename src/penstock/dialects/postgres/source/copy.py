"""The source of a copy: one snapshot for all tables, pieces of them, and rows as they were at that snapshot."""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
import pyarrow as pa
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from penstock.change import TableName
from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.casts import text_sql
from penstock.dialects.postgres.catalog import read_tables, table_sizes
from penstock.dialects.postgres.connection import (
    COPY_LOCK_WAIT,
    RAW_FORM,
    WITHOUT_VIEWS,
    Connection,
    connect,
    label,
    literal,
    quote,
    speaking,
)
from penstock.dialects.postgres.rows import PostgresRows, RowsOrigin, origin_as_of, origin_now
from penstock.dialects.postgres.source.as_of import plain_rows_now
from penstock.dialects.postgres.source.change_log import PostgresChangeLog
from penstock.dialects.postgres.source.snapshots import Cut, Snapshot
from penstock.errors import OperatorError, RetryableError
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk, CopySource, KeyValues, Range
from penstock.snapshot.instantiate import HeldSnapshot
from penstock.snapshot.rows import RowsAside
from penstock.snapshot.task import ChunkLoader, about
from penstock.verify.bring import bring
from penstock.verify.compare_rows import at_target

_CHUNK_BYTES = 32 * 1024 * 1024
"""Some 0.3 s of copying. With 16 MB a million narrow rows took a tenth longer; 64 MB gained nothing more."""
_SAMPLED_PERCENT = 1
_BLOCK_BYTES = 256 * 1024


class PostgresCopyOrigin:
    """Implements `snapshot.instantiate.CopyOrigin`."""

    def __init__(self, url: str, set_name: str) -> None:
        """Copy from the database at `url`, whose changes the named set captures."""
        self._url = url
        self._set_name = set_name

    @contextmanager
    def hold_snapshot(self) -> Iterator[HeldSnapshot]:
        """Take a snapshot, cut the log at it, and keep it readable for other sessions until the end."""
        log = PostgresChangeLog(self._url, self._set_name)
        holder = connect(self._url, f"penstock {self._set_name} snapshot")
        held: list[str] = []

        def take() -> Snapshot:
            holder.rollback()
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = holder.execute("SELECT pg_current_snapshot()::text, pg_export_snapshot()").fetchone()
            assert row is not None
            held[:] = row
            return Snapshot.parse(row[0])

        try:
            anchor = log.tick_at(take)
            yield HeldSnapshot(held[0], held[1], anchor)
        finally:
            holder.close()
            log.close()

    def cut_into_chunks(self, tables: Sequence[TableName]) -> list[Chunk]:
        """Cut each of the tables into pieces of roughly equal size, by a sample of its primary key."""
        with connect(self._url, f"penstock {self._set_name} chunks") as connection, speaking("cut tables", self._url):
            connection.execute(f"{WITHOUT_VIEWS}; SET lock_timeout = '{COPY_LOCK_WAIT}'")
            sizes = self._sizes(connection, tables)
            lost = [str(table) for table in tables if table not in sizes]
            large = [table for table, size in sizes.items() if size >= _CHUNK_BYTES]
            described = read_tables(connection, large)
            lost += [str(table) for table in large if table not in described]
            if lost:
                raise RetryableError(
                    f"table {', '.join(lost)} was dropped or renamed while its first copy was about to begin",
                    where=label(self._url),
                    do="the copy begins anew",
                )
            chunks: list[Chunk] = []
            for table in tables:
                schema, size, cuts = described.get(table), sizes[table], []
                if schema is not None and schema.has_builtin_key:
                    with about(table), speaking(f"cut table {table}", self._url):
                        cuts = self._cuts(connection, schema, size // _CHUNK_BYTES + 1)
                chunks += Chunk.between(table, cuts, size)
            return chunks

    def _sizes(self, connection: Connection, tables: Sequence[TableName]) -> Mapping[TableName, int]:
        """Return the sizes of tables.

        Raises:
            TableError: Another session keeps one locked.
        """
        try:
            return table_sizes(connection, tables)
        except psycopg.errors.LockNotAvailable:
            # Which one it is, the server does not say.
            connection.execute("SET lock_timeout = '1s'")
            found: dict[TableName, int] = {}
            for table in tables:
                with about(table), speaking(f"read the size of table {table}", self._url):
                    found |= table_sizes(connection, [table])
            return found

    def can_resume(self, table: TableName, snapshot: str) -> bool:
        """Whether the log says how every row was at a snapshot."""
        with connect(self._url, f"penstock {self._set_name} chunks") as connection, speaking("read the log", self._url):
            captured = f"{quote(self._set_name)}.captured"
            versions = connection.execute(
                f"SELECT DISTINCT relid, definition -> 'primary_key' <> 'null', definition -> 'columns' FROM {captured}"
                " WHERE (definition ->> 'schema', definition ->> 'name') = (%s, %s)",
                [table.schema, table.name],
            ).fetchall()
            if len(versions) != 1 or not versions[0][1]:
                return False
            emptied = connection.execute(
                f"SELECT FROM {quote(self._set_name)}.log WHERE op IN ('T', '!')"
                f" AND relid IN (SELECT relid FROM {captured} WHERE root = %s)"
                " AND NOT pg_visible_in_snapshot(xid, %s::pg_snapshot) LIMIT 1",
                [versions[0][0], snapshot],
            ).fetchone()
            return emptied is None

    def _cuts(self, connection: Connection, table: TableSchema, pieces: int) -> list[KeyValues]:
        assert table.primary_key is not None
        key = [table.by_name[name] for name in table.primary_key.columns]
        names = ", ".join(quote(column.name) for column in key)
        texts = ", ".join(text_sql(column, quote(column.name)) for column in key)
        rows = connection.execute(
            f"SELECT {texts} FROM (SELECT {names}, row_number() OVER (ORDER BY {names}) AS penstock_n,"
            f" count(*) OVER () AS penstock_count"
            f" FROM {quote(table.name.schema, table.name.name)} TABLESAMPLE SYSTEM ({_SAMPLED_PERCENT})) s"
            f" WHERE penstock_n % greatest(1, penstock_count / {pieces}) = 0 ORDER BY penstock_n"
        ).fetchall()
        return [list(row) for row in rows[:-1]]


class PostgresChunkReader:
    """Implements `snapshot.task.ChunkReader`."""

    def __init__(self, url: str, set_name: str, source: CopySource) -> None:
        """Read at `url`; chunks that are read after the fact are put right from the named set's log."""
        self._url = url
        self._set_name = set_name
        self._source = source
        self._arrow: ArrowReader | None = None
        self._raw: Connection | None = None
        self._at_target: RowsAside | None = None

    def read_chunk(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk; columns of canonical text."""
        query = self._origin(table).rows([table.by_name[name] for name in columns], chunk)
        with self._reading(table) as reader:
            yield from reader.stream(query, doing=f"copy table {table.name}")

    def count_rows(self, table: TableSchema, chunk: Chunk) -> int:
        """Return how many rows a chunk has."""
        query = self._origin(table).rows(table.columns, chunk)
        with self._reading(table) as reader:
            counted = f"SELECT count(*) AS n FROM ({query}) counted"
            return int(reader.table(counted, doing=f"copy table {table.name}")["n"][0].as_py())

    def adopt(self, compared: Range, session: ChunkLoader) -> int:
        """See `snapshot.task.ChunkReader.adopt`."""
        if self._at_target is None:
            self._at_target = session.rows_aside()
        there = self._at_target.rows(at_target(compared), compared.shape)
        with self._reading(compared.source) as reader:
            rows = PostgresRows(reader, compared.source, self._origin(compared.source))
            return bring(session, rows, there, compared, clears_the_way=True).rows

    def _origin(self, table: TableSchema) -> RowsOrigin:
        """How to read what the copy is as of."""
        if self._source.exported is not None:
            return origin_now(table)
        cut = Cut(Snapshot.parse(self._source.snapshot))
        return origin_as_of(table, self._set_name, cut)

    @contextmanager
    def _reading(self, table: TableSchema) -> Iterator[ArrowReader]:
        """A session that sees the snapshot, where it is still held; it refuses a table that was rewritten since."""
        exported = self._source.exported
        if self._arrow is None:
            self._arrow = ArrowReader(self._url, f"penstock {self._set_name} copy")
            if exported is not None:
                with self._taking_up_the_snapshot():
                    for statement in _under(exported):
                        self._arrow.execute(statement)
            self._arrow.execute(f"SET lock_timeout = '{COPY_LOCK_WAIT}'")
        yield self._arrow
        if exported is not None:
            found = self._arrow.table(_rewritten(table), doing=f"copy table {table.name}")
            self._refuse_rewritten(table, found["n"][0].as_py())

    def raw_form(self, table: TableSchema) -> str | None:
        """Name of the form in which `read_raw` yields rows; the same for all tables."""
        return RAW_FORM

    def read_raw(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> Iterator[bytes]:
        """Yield the rows as COPY writes them; a block holds many rows, and ends anywhere."""
        with speaking(f"copy table {table.name}", self._url):
            session = self._raw_session()
            yield from _copy_out(session, plain_rows_now(table, columns, chunk))
            found = session.execute(_rewritten(table)).fetchone()
        assert found is not None
        self._refuse_rewritten(table, found[0])

    def close(self) -> None:
        """Close the session."""
        for reader in (self._arrow, self._at_target):
            if reader is not None:
                reader.close()
        if self._raw is not None:
            self._raw.close()

    def _raw_session(self) -> Connection:
        if self._raw is None:
            assert self._source.exported is not None
            self._raw = connect(self._url, f"penstock {self._set_name} copy")
            self._raw.execute(f"{WITHOUT_VIEWS}; SET lock_timeout = '{COPY_LOCK_WAIT}'")
            with self._taking_up_the_snapshot():
                for statement in _under(self._source.exported):
                    self._raw.execute(statement)
        return self._raw

    @contextmanager
    def _taking_up_the_snapshot(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject, OperatorError) as exc:
            raise RetryableError(
                "the session that holds the copy's snapshot was ended",
                where=label(self._url),
                do="what is missing is put right from the log",
            ) from exc

    def _refuse_rewritten(self, table: TableSchema, files: int) -> None:
        if files:
            raise RetryableError(
                f"table {table.name} was truncated or rewritten while it was copied",
                where=label(self._url),
                do="its copy begins anew",
            )


def _under(exported: str) -> tuple[str, str]:
    return "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", f"SET TRANSACTION SNAPSHOT {literal(exported)}"


def _copy_out(connection: Connection, query: str) -> Iterator[bytes]:
    """Run a COPY and yield what it writes; many rows to a block. `Cursor.copy` takes twice as long for each row.

    Raises:
        psycopg.Error: The COPY failed.
    """
    session = connection.pgconn
    _expect(session.exec_(f"COPY ({query}) TO STDOUT".encode()), ExecStatus.COPY_OUT)
    get_row, held = session.get_copy_data, bytearray()
    while True:
        length, row = get_row(1)
        if length > 0:
            # A third quicker than a list of rows that is joined.
            held += row
            if len(held) > _BLOCK_BYTES:
                yield bytes(held)
                held.clear()
        elif length == 0:
            select.select([session.socket], [], [])
            session.consume_input()
        else:
            break
    while (ended := session.get_result()) is not None:
        _expect(ended, ExecStatus.COMMAND_OK)
    yield bytes(held)


def _expect(result: PGresult, status: ExecStatus) -> None:
    if result.status != status:
        raise psycopg.errors.error_from_result(result)


def _rewritten(table: TableSchema) -> str:
    """A query for the number of files of a table that are not those of the session's snapshot any more.

    An old snapshot sees no row of a new file, which TRUNCATE and some forms of ALTER TABLE make. The catalogue's rows
    are those of the snapshot, its functions know the file of today; and a session that has read the table has locked
    it until the end of its transaction.
    """
    name = literal(quote(table.name.schema, table.name.name))
    return (
        f"WITH RECURSIVE parts AS (SELECT {name}::regclass::oid AS oid UNION ALL"
        " SELECT inhrelid FROM pg_inherits JOIN parts ON inhparent = parts.oid)"
        " SELECT count(*) AS n FROM pg_class JOIN parts USING (oid) WHERE relkind = 'r'"
        " AND relfilenode IS DISTINCT FROM pg_relation_filenode(oid)"
    )
