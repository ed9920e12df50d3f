"""The ledger's entries about tables: their versions, and how far each is copied."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import psycopg

from penstock.change import TableName
from penstock.database import Emptying
from penstock.dialects.postgres.connection import COPY_LOCK_WAIT, Connection, connect, label, speaking
from penstock.dialects.postgres.target.resync import copied_by_others, empty, forget, plan_emptying, tables_with_rows
from penstock.origins import DEFAULT_TAG
from penstock.position import Scn
from penstock.snapshot.chunk import Chunk
from penstock.snapshot.instantiate import CopyState, HeldSnapshot, OpenCopy
from penstock.snapshot.task import about
from penstock.stream import TableVersion


class PostgresCopyLedger:
    """The half of a process's ledger that is about tables; `PostgresLedger` has what is about runs."""

    def __init__(self, url: str, process: str, tag: str | None = DEFAULT_TAG) -> None:
        """Use the ledger in the database at `url`; tables that are emptied are so under the origin mark `tag`."""
        self._url = url
        self._tag = tag
        self._process = process
        self._connection: Connection | None = None

    @property
    def label(self) -> str:
        """The database it is in, named without secrets."""
        return label(self._url)

    def note_brought(self, tables: Sequence[TableName], scn: Scn) -> None:
        """Write down that tables hold whatever the source had at a position: no earlier change has to be retried."""
        with speaking("write the ledger", self._url):
            # The mark is of the cut that the table was copied at, and this is not at a cut.
            self._sql().execute(
                "UPDATE penstock.instantiation SET scn = %(scn)s, mark = NULL WHERE process = %(process)s"
                " AND state = %(ready)s AND scn < %(scn)s"
                " AND (schema_name, table_name) IN (SELECT * FROM unnest(%(schemas)s::text[], %(names)s::text[]))",
                {
                    "scn": scn,
                    "process": self._process,
                    "ready": CopyState.READY,
                    "schemas": [table.schema for table in tables],
                    "names": [table.name for table in tables],
                },
            )

    def plan_emptying(self) -> Emptying:
        """Work out what a new first copy does away with. Changes nothing."""
        with speaking("read the ledger", self._url):
            return plan_emptying(self._sql(), self._process)

    def empty_and_forget(self) -> Emptying:
        """Empty the tables that a new first copy has to find empty, and forget what was copied and applied.

        This is the one run of the process, see `acquire`.
        """
        connection = self._sql()
        with speaking("empty the tables", self._url), connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '10s'")
            emptying = plan_emptying(connection, self._process)
            # Before the ledger's own foreign keys rest, too.
            forget(connection, self._process)
            empty(connection, emptying.tables, self._tag)
            return emptying

    def save_dictionary(self, versions: Iterable[TableVersion]) -> None:
        """Keep table versions, with the definitions they were read from, beside the rows they describe."""
        with speaking("write the ledger", self._url), self._sql().transaction():
            self._sql().cursor().executemany(
                "INSERT INTO penstock.dictionary (process, schema_name, table_name, version, definition)"
                " VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                [
                    [self._process, t.name.schema, t.name.name, t.version, json.dumps(definition)]
                    for t, definition in ((v.table, v.definition) for v in versions if not v.is_left_out)
                ],
            )

    def instantiated(self) -> dict[TableName, Scn]:
        """Return the tables whose copy is complete, and the position each was copied at."""
        with speaking("read the ledger", self._url):
            rows = self._sql().execute(
                "SELECT schema_name, table_name, scn FROM penstock.instantiation WHERE process = %s AND state = %s",
                [self._process, CopyState.READY],
            )
            return {TableName(schema, name): Scn(scn) for schema, name, scn in rows}

    def copied_from(self) -> dict[TableName, str]:
        """Return the tables whose copy is complete or begun, and the text of the snapshot that each is as of."""
        with speaking("read the ledger", self._url):
            rows = self._sql().execute(
                "SELECT schema_name, table_name, snapshot FROM penstock.instantiation WHERE process = %s",
                [self._process],
            )
            return {TableName(schema, name): snapshot for schema, name, snapshot in rows}

    def adopted(self) -> set[TableName]:
        """Return the tables whose rows at the target are to be compared, and brought where they differ."""
        with speaking("read the ledger", self._url):
            rows = self._sql().execute(
                "SELECT schema_name, table_name FROM penstock.adoption WHERE process = %s", [self._process]
            )
            return {TableName(schema, name) for schema, name in rows}

    def open_copies(self) -> Sequence[OpenCopy]:
        """Return the copies that were begun and not finished."""
        with speaking("read the ledger", self._url):
            rows = self._sql().execute(
                "SELECT i.schema_name, i.table_name, i.scn, i.snapshot,"
                " coalesce(json_agg(json_build_array(c.chunk, c.bounds) ORDER BY c.chunk)"
                " FILTER (WHERE c.chunk IS NOT NULL AND c.rows IS NULL), '[]')"
                " FROM penstock.instantiation i LEFT JOIN penstock.chunk c USING (process, schema_name, table_name)"
                " WHERE i.process = %s AND i.state = %s GROUP BY 1, 2, 3, 4 ORDER BY 1, 2",
                [self._process, CopyState.COPYING],
            )
            return [
                OpenCopy(
                    table := TableName(schema, name),
                    Scn(scn),
                    snapshot,
                    [Chunk(table, number, bounds["after"], bounds["upto"]) for number, bounds in todo],
                )
                for schema, name, scn, snapshot, todo in rows
            ]

    def begin_copies(self, chunks: Iterable[Chunk], held: HeldSnapshot) -> None:
        """Note copies of tables as of a snapshot, and all their chunks."""
        chunks = list(chunks)
        with speaking("write the ledger", self._url), self._sql().transaction():
            cursor = self._sql().cursor()
            cursor.executemany(
                "INSERT INTO penstock.instantiation (process, schema_name, table_name, scn, mark, snapshot, state)"
                # Without a cut there is nothing to recognise the source by.
                " VALUES (%s, %s, %s, %s, nullif(%s, ''), %s, %s)",
                [
                    [self._process, t.schema, t.name, held.anchor.scn, held.anchor.mark, held.text, CopyState.COPYING]
                    for t in sorted({c.table for c in chunks})
                ],
            )
            cursor.executemany(
                "INSERT INTO penstock.chunk (process, schema_name, table_name, chunk, bounds)"
                " VALUES (%s, %s, %s, %s, %s)",
                [[self._process, c.table.schema, c.table.name, c.number, json.dumps(c.bounds)] for c in chunks],
            )

    def take_as_they_are(self, tables: Sequence[TableName], held: HeldSnapshot) -> None:
        """Note that what tables hold is their copy as of a snapshot."""
        with speaking("write the ledger", self._url):
            self._sql().cursor().executemany(
                "INSERT INTO penstock.instantiation (process, schema_name, table_name, scn, mark, snapshot, state)"
                " VALUES (%s, %s, %s, %s, nullif(%s, ''), %s, %s)",
                [
                    [self._process, t.schema, t.name, held.anchor.scn, held.anchor.mark, held.text, CopyState.READY]
                    for t in tables
                ],
            )

    def finish_copies(self) -> None:
        """Mark every copy as complete whose chunks are all done."""
        with speaking("write the ledger", self._url), self._sql().transaction():
            self._sql().execute(
                "UPDATE penstock.instantiation i SET state = %s WHERE process = %s AND state = %s"
                " AND NOT EXISTS (SELECT FROM penstock.chunk c WHERE c.process = i.process"
                " AND (c.schema_name, c.table_name) = (i.schema_name, i.table_name) AND c.rows IS NULL)",
                [CopyState.READY, self._process, CopyState.COPYING],
            )
            # A table that takes its name later is another one.
            self._sql().execute(
                "DELETE FROM penstock.adoption a WHERE process = %s AND EXISTS (SELECT FROM penstock.instantiation i"
                " WHERE (i.process, i.schema_name, i.table_name) = (a.process, a.schema_name, a.table_name)"
                " AND i.state = %s)",
                [self._process, CopyState.READY],
            )

    def copied_by_others(self, tables: Sequence[TableName]) -> Mapping[TableName, str]:
        """Return those of the tables that other processes have copied, too, and one of these."""
        with speaking("read the ledger", self._url):
            return copied_by_others(self._sql(), self._process, tables)

    def with_rows(self, tables: Sequence[TableName]) -> Sequence[TableName]:
        """Return those of the tables that hold rows."""
        connection = self._sql()
        with speaking("look into the tables that are to be filled", self._url):
            try:
                with connection.transaction():
                    connection.execute(f"SET LOCAL lock_timeout = '{COPY_LOCK_WAIT}'")
                    return tables_with_rows(connection, tables)
            except psycopg.errors.LockNotAvailable:
                # Which one it is, the server does not say.
                return [table for table in tables if self._has_rows(table)]

    def _has_rows(self, table: TableName) -> bool:
        with about(table), speaking(f"look into table {table}", self._url), self._sql().transaction():
            self._sql().execute("SET LOCAL lock_timeout = '1s'")
            return bool(tables_with_rows(self._sql(), [table]))

    def give_up_copy(self, table: TableName) -> None:
        """Note that an unfinished copy cannot be gone on with."""
        with speaking("write the ledger", self._url):
            self._sql().execute(
                "UPDATE penstock.instantiation SET snapshot = '' WHERE process = %s AND state = %s"
                " AND (schema_name, table_name) = (%s, %s)",
                [self._process, CopyState.COPYING, table.schema, table.name],
            )

    def clear(self, table: TableName, *, keep_rows: bool) -> None:
        """Forget an unfinished copy, and delete what it has left in the table unless the rows are to be kept."""
        with speaking(f"clear table {table}", self._url), self._sql().transaction():
            self._sql().execute(f"SET LOCAL lock_timeout = '{COPY_LOCK_WAIT}'")
            if not keep_rows:
                empty(self._sql(), [table], self._tag)
            self._sql().execute(
                "DELETE FROM penstock.chunk WHERE process = %s AND (schema_name, table_name) = (%s, %s)",
                [self._process, table.schema, table.name],
            )
            self._sql().execute(
                "DELETE FROM penstock.instantiation WHERE process = %s AND (schema_name, table_name) = (%s, %s)",
                [self._process, table.schema, table.name],
            )

    def close(self) -> None:
        """Close the session, and with it the right to be the one run."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _sql(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, f"penstock {self._process} ledger")
        return self._connection
