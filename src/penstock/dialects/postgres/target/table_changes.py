"""How many changes runs have applied, by table and operation: counters for people, by which nothing is decided."""

from __future__ import annotations

from penstock.apply.table_counts import TableCounts, TableOp
from penstock.change import TableName
from penstock.dialects.postgres.connection import Connection

_CHANGES = """
SELECT coalesce(rn.nspname, t.schema_name), coalesce(r.relname, t.table_name), t.op, sum(t.changes)::bigint
FROM penstock.table_count t
-- What is counted of a partition is counted of its table.
LEFT JOIN (pg_catalog.pg_namespace n JOIN pg_catalog.pg_class k ON k.relnamespace = n.oid AND k.relispartition
  JOIN pg_catalog.pg_class r ON r.oid = pg_catalog.pg_partition_root(k.oid)
  JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace) ON n.nspname = t.schema_name AND k.relname = t.table_name
WHERE t.process = %s GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""

_ADD = """
WITH quick AS (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO penstock.table_count AS t (process, schema_name, table_name, op, changes)
SELECT %s, a.schema_name, a.table_name, a.op, a.changes
FROM quick, unnest(%s::text[], %s::text[], %s::text[], %s::bigint[]) a (schema_name, table_name, op, changes)
ON CONFLICT (process, schema_name, table_name, op) DO UPDATE SET changes = t.changes + excluded.changes
"""
"""One statement, and so one round trip, which does not wait for the disk."""


def add_table_changes(connection: Connection, process: str, tables: TableCounts) -> None:
    """Add what a batch has applied."""
    changes = [(table, op, number) for (table, op), number in tables.changes.items() if number]
    if changes:
        names, ops, numbers = zip(*changes, strict=True)
        values = [[table.schema for table in names], [table.name for table in names], list(ops), list(numbers)]
        connection.execute(_ADD, [process, *values])


def table_changes(connection: Connection, process: str) -> dict[TableOp, int]:
    """Return how many changes runs have applied, by table and operation; a partition's are its table's."""
    rows = connection.execute(_CHANGES, [process])
    return {(TableName(schema, name), op): changes for schema, name, op, changes in rows}
