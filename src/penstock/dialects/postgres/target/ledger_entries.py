"""Entries of the ledger that commands read and write; those of a run are in `ledger` and `lane_ledger`.

With `ledger`, `lane_ledger`, `error_queue`, `error_entries`, `conflict_log`, `resync` and `ledger_version` this is all
SQL that names its tables.
"""

from __future__ import annotations

from penstock.change import TableName
from penstock.database import SetupStep
from penstock.dialects.postgres.connection import Connection, literal, quote
from penstock.dialects.postgres.privileges import may
from penstock.snapshot.instantiate import CopyState

LOCK_LANES = "SELECT FROM penstock.lane WHERE process = %s ORDER BY lane FOR UPDATE"
"""Keeps every apply server of a process from beginning a transaction, and waits for those under way."""

OPEN_CHUNK = (
    "SELECT c.rows IS NULL FROM penstock.chunk c JOIN penstock.process p ON p.name = c.process"
    " WHERE c.process = %s AND p.epoch = %s AND (c.schema_name, c.table_name, c.chunk) = (%s, %s, %s)"
    " FOR NO KEY UPDATE OF c"
)
"""Locks the mark of a chunk of the run of an epoch, and says whether it is still to be copied."""

CLOSE_CHUNK = (
    "UPDATE penstock.chunk SET rows = %s WHERE process = %s AND (schema_name, table_name, chunk) = (%s, %s, %s)"
)
"""Marks a chunk as copied."""


_OLD = "process = %(process)s AND (schema_name, table_name) = (%(schema)s, %(name)s)"
_NEW = "process = %(process)s AND (schema_name, table_name) = (%(to_schema)s, %(to_name)s)"
_TO = "schema_name = %(to_schema)s, table_name = %(to_name)s"
_BY_TABLE = ("chunk", "instantiation", "emptied", "made", "adoption", "table_count")

FORGET_TABLE = tuple(f"DELETE FROM penstock.{table} WHERE {_OLD}" for table in (*_BY_TABLE, "held"))
"""Forget a table that is gone; entries of the error queue stay, and say what was of it."""

RENAME_TABLE = (
    # Whatever had the name before is gone.
    *(f"DELETE FROM penstock.{table} WHERE {_NEW}" for table in (*_BY_TABLE, "held")),
    # A retry of its changes must not meet the table that has its name now.
    f"UPDATE penstock.error_change c SET table_name = c.table_name || ', dropped' WHERE {_NEW} AND EXISTS (SELECT FROM"
    " penstock.error e WHERE e.process = c.process AND e.id = c.error_id AND e.commit_scn < %(scn)s)",
    *(f"UPDATE penstock.{table} SET {_TO} WHERE {_OLD}" for table in reversed(_BY_TABLE)),
    # Changes that are still to be retried are of the same table.
    f"INSERT INTO penstock.dictionary (process, schema_name, table_name, version, definition) SELECT process,"
    " %(to_schema)s, %(to_name)s, version,"
    " definition || jsonb_build_object('schema', %(to_schema)s::text, 'name', %(to_name)s::text)"
    f" FROM penstock.dictionary WHERE {_OLD} ON CONFLICT DO NOTHING",
    f"UPDATE penstock.error_change SET {_TO} WHERE {_OLD}",
    f"UPDATE penstock.held SET {_TO} WHERE {_OLD}",
)
"""Give a table another name in all that is known of it, by a transaction. Where the session checks no foreign keys."""

IS_KNOWN = f"SELECT FROM penstock.instantiation WHERE {_OLD}"
"""Whether the process has a copy of a table of this name."""


INHERITING = """
WITH RECURSIVE below AS (
  SELECT h.inhrelid FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhparent
  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) = (%s, %s) AND c.relkind = 'r'
  UNION SELECT h.inhrelid FROM below b JOIN pg_inherits h ON h.inhparent = b.inhrelid
)
SELECT n.nspname, c.relname
FROM below b JOIN pg_class c ON c.oid = b.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE EXISTS (SELECT FROM penstock.instantiation i WHERE (i.schema_name, i.table_name) = (n.nspname, c.relname))
ORDER BY 1, 2
"""
"""The copies that inherit from a table; what somebody else has made there is their own affair."""

COPIED_AT = "SELECT scn FROM penstock.instantiation WHERE process = %s AND (schema_name, table_name) = (%s, %s)"
"""The position that a table is copied at."""


def applied_query(process: str) -> str:
    """A query for `scn`: the low watermark in the first row, then what is applied above it."""
    name = literal(process)
    return (
        f"SELECT low_watermark AS scn FROM penstock.process WHERE name = {name}"
        f" UNION ALL SELECT unnest(commit_scns) FROM penstock.applied WHERE process = {name}"
    )


def copied_query(process: str, low_watermark: int) -> str:
    """A query for the tables that are copied, and the position that their rows are of at least."""
    return (
        f"SELECT schema_name, table_name, greatest(scn, {low_watermark}) AS scn FROM penstock.instantiation"
        f" WHERE process = {literal(process)} AND state = {literal(CopyState.READY)}"
    )


def copied_or_begun(connection: Connection, process: str) -> set[TableName]:
    """Tables that the process has copied, or begun to copy; none where the user may not see that."""
    return _named_in(connection, "instantiation", process)


def adopted(connection: Connection, process: str) -> set[TableName]:
    """Tables whose rows the first copy compares, and keeps where they are right."""
    return _named_in(connection, "adoption", process)


def adoption(process: str, name: TableName) -> SetupStep:
    """The step that has the first copy compare the rows that a table holds."""
    return SetupStep(
        f"adopt the rows that {name} holds: the first copy compares them, and writes those that differ",
        "INSERT INTO penstock.adoption (process, schema_name, table_name)"
        f" VALUES ({literal(process)}, {literal(name.schema)}, {literal(name.name)}) ON CONFLICT DO NOTHING",
        tables=frozenset({name}),
    )


def made(connection: Connection, process: str) -> set[TableName]:
    """Tables that setup has made, and that are still there."""
    if not knows_made(connection):
        return set()
    rows = connection.execute(
        "SELECT m.schema_name, m.table_name FROM penstock.made m JOIN pg_class c ON c.oid = m.relid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) = (m.schema_name, m.table_name)"
        " AND m.process = %s",
        [process],
    )
    return {TableName(schema, name) for schema, name in rows}


def knows_made(connection: Connection) -> bool:
    """Whether the ledger is of a version that says which tables setup has made."""
    return _may_read(connection, "made")


def making(process: str, name: TableName) -> SetupStep:
    """The step that notes that setup has made a table."""
    return SetupStep(
        f"a note that table {name} is setup's own",
        "INSERT INTO penstock.made (process, schema_name, table_name, relid)"
        f" VALUES ({literal(process)}, {literal(name.schema)}, {literal(name.name)},"
        f" {literal(quote(name.schema, name.name))}::regclass)"
        " ON CONFLICT (process, schema_name, table_name) DO UPDATE SET relid = EXCLUDED.relid",
        tables=frozenset({name}),
    )


def forgetting(process: str, name: TableName) -> SetupStep:
    """The step after which a table is copied anew."""
    return SetupStep(
        f"forget the copy of {name}, which was made anew at the source",
        f"DELETE FROM penstock.instantiation WHERE process = {literal(process)}"
        f" AND (schema_name, table_name) = ({literal(name.schema)}, {literal(name.name)})",
        tables=frozenset({name}),
    )


def may_read_copies(connection: Connection) -> bool:
    """Whether there is a ledger, and the user may see which tables were copied."""
    return _may_read(connection, "instantiation")


def _named_in(connection: Connection, table: str, process: str) -> set[TableName]:
    if not _may_read(connection, table):
        return set()
    rows = connection.execute(f"SELECT schema_name, table_name FROM penstock.{table} WHERE process = %s", [process])
    return {TableName(schema, name) for schema, name in rows}


def _may_read(connection: Connection, table: str) -> bool:
    return may(
        connection, "SELECT coalesce(has_table_privilege(to_regclass(%s), 'SELECT'), false)", f"penstock.{table}"
    )
