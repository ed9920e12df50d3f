"""What the ledger tells of a process beyond its state."""

from __future__ import annotations

from dataclasses import replace

from psycopg.rows import dict_row

from penstock.apply.detail import Detail, ParameterDetail, QueuedCount, ServerDetail, TableDetail
from penstock.change import TableName
from penstock.dialects.postgres.connection import Connection
from penstock.dialects.postgres.target.table_changes import table_changes
from penstock.position import Scn

_SERVERS = """
SELECT lane AS server, transactions, changes, errors, held, conflicts, resolved FROM penstock.lane
WHERE process = %s ORDER BY 1
"""

_TABLES = """
WITH failed AS (
  SELECT c.schema_name, c.table_name, count(*) AS errors
  FROM penstock.error e JOIN penstock.error_change c
    ON (c.process, c.error_id, c.message_number) = (e.process, e.id, e.message_number)
  WHERE e.process = %(process)s AND NOT e.is_held GROUP BY 1, 2
), resolved AS (
  SELECT schema_name, table_name, count(*) AS conflicts FROM penstock.conflict WHERE process = %(process)s GROUP BY 1, 2
), copied AS (
  SELECT schema_name, table_name, scn, state FROM penstock.instantiation WHERE process = %(process)s
), chunk AS (
  SELECT schema_name, table_name, count(*) AS chunks, count(rows) AS chunks_copied, sum(rows) AS rows_copied
  FROM penstock.chunk WHERE process = %(process)s GROUP BY 1, 2
)
SELECT schema_name, table_name, scn, coalesce(state = 'READY', false), coalesce(errors, 0), coalesce(conflicts, 0),
  coalesce(chunks, 0), coalesce(chunks_copied, 0), coalesce(rows_copied, 0)::bigint, written
FROM copied FULL JOIN failed USING (schema_name, table_name) FULL JOIN resolved USING (schema_name, table_name)
LEFT JOIN chunk USING (schema_name, table_name)
LEFT JOIN LATERAL (
  -- What is counted of a partitioned table is counted of its partitions.
  SELECT sum(s.n_tup_ins + s.n_tup_upd + s.n_tup_del)::bigint AS written
  FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class k ON k.relnamespace = n.oid
  LEFT JOIN LATERAL pg_catalog.pg_partition_tree(k.oid) part ON true
  JOIN pg_catalog.pg_stat_all_tables s ON s.relid = coalesce(part.relid, k.oid)
  WHERE n.nspname = schema_name AND k.relname = table_name
) counted ON true
ORDER BY 1, 2
"""

_PARAMETERS = """
SELECT lower(parameter) AS name, value, set_by, set_at FROM penstock.dba_apply_parameters
WHERE apply_name = %s ORDER BY 1
"""


_QUEUED = """
SELECT c.schema_name, c.table_name, coalesce(nullif(e.error_number, 0)::text, e.error_code, ''),
  CASE WHEN e.is_held THEN 'held' ELSE 'failed' END, count(*)
FROM penstock.error e LEFT JOIN penstock.error_change c
  ON (c.process, c.error_id, c.message_number) = (e.process, e.id, e.message_number)
WHERE e.process = %s GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC, 1, 2, 3, 4 LIMIT %s
"""


def queued_counts(connection: Connection, process: str, most: int) -> list[QueuedCount]:
    """Count the error queue by table, error and state; the `most` frequent ones."""
    return [
        QueuedCount(None if name is None else TableName(schema, name), error, state, entries)
        for schema, name, error, state, entries in connection.execute(_QUEUED, [process, most])
    ]


def detail(connection: Connection, process: str) -> Detail:
    """Read it all."""
    changes: dict[TableName, dict[str, int]] = {}
    for (table, op), number in table_changes(connection, process).items():
        changes.setdefault(table, {})[op] = number
    rows = connection.cursor(row_factory=dict_row)
    return Detail(
        servers=[ServerDetail(**row) for row in rows.execute(_SERVERS, [process])],
        tables=[
            replace(
                TableDetail(TableName(schema, name), None if scn is None else Scn(scn), *counts),
                changes=changes.get(TableName(schema, name), {}),
            )
            for schema, name, scn, *counts in connection.execute(_TABLES, {"process": process})
        ],
        parameters=[ParameterDetail(**row) for row in rows.execute(_PARAMETERS, [process])],
    )
