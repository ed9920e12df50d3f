"""What others than the process's driver, its lanes and the error queue read and write in the ledger.

With `ledger`, `lane_ledger`, `error_queue`, `conflict_log`, `resync` and `ledger_version` this is all SQL that names
its tables.
"""

from __future__ import annotations

from penstock.change import TableName
from penstock.dialects.base import Step
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


def adoption(process: str, name: TableName) -> Step:
    """The step that has the first copy compare the rows that a table holds."""
    return Step(
        f"adopt the rows that {name} holds: the first copy compares them, and writes those that differ",
        "INSERT INTO penstock.adoption (process, schema_name, table_name)"
        f" VALUES ({literal(process)}, {literal(name.schema)}, {literal(name.name)}) ON CONFLICT DO NOTHING",
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


def making(process: str, name: TableName) -> str:
    """The statement that notes that setup has made a table."""
    return (
        "INSERT INTO penstock.made (process, schema_name, table_name, relid)"
        f" VALUES ({literal(process)}, {literal(name.schema)}, {literal(name.name)},"
        f" {literal(quote(name.schema, name.name))}::regclass)"
        " ON CONFLICT (process, schema_name, table_name) DO UPDATE SET relid = EXCLUDED.relid"
    )


def forgetting(process: str, name: TableName) -> Step:
    """The step after which a table is copied anew."""
    return Step(
        f"forget the copy of {name}, which was made anew at the source",
        f"DELETE FROM penstock.instantiation WHERE process = {literal(process)}"
        f" AND (schema_name, table_name) = ({literal(name.schema)}, {literal(name.name)})",
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
