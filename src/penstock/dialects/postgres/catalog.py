"""Reading the catalogue: which tables there are, what they look like, who the user is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import psycopg

from penstock.change import TableName
from penstock.dialects.postgres.connection import Connection
from penstock.dialects.postgres.logical import with_logical
from penstock.dialects.postgres.resources import sql_text
from penstock.schema import TableSchema

_USER_TABLES = """
SELECT c.oid, n.nspname, c.relname, pg_partition_root(c.oid)::oid AS root
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND n.nspname <> ALL (%s)
ORDER BY n.nspname, c.relname
"""

_PARTS = """
WITH RECURSIVE part (root, oid) AS (
  SELECT r, r FROM unnest(%s::oid[]) r
  UNION ALL
  SELECT root, inhrelid FROM pg_inherits JOIN part ON inhparent = part.oid
  JOIN pg_class c ON c.oid = inhrelid AND c.relispartition)
"""
"""Tables with all partitions below them."""

_OWN_SCHEMAS = """
SELECT n.nspname FROM pg_namespace n
WHERE obj_description(n.oid, 'pg_namespace') ~ '^penstock:'
"""


def list_tables(connection: Connection) -> Mapping[TableName, TableName]:
    """Return every ordinary and partitioned table, each with the topmost table it is a partition of, or itself.

    System schemas and our own are left out.
    """
    own = [row[0] for row in connection.execute(_OWN_SCHEMAS)]
    rows = connection.execute(_USER_TABLES, [own]).fetchall()
    names = {oid: TableName(schema, name) for oid, schema, name, _ in rows}
    return {names[oid]: names.get(root, names[oid]) for oid, _, _, root in rows}


def read_tables(connection: Connection, names: Iterable[TableName]) -> dict[TableName, TableSchema]:
    """Describe the tables among `names` that exist. Type names come out qualified."""
    with catalog_names(connection):
        oids = list(table_oids(connection, names).values())
        described = psycopg.RawCursor(connection).execute(sql_text("describe"), [oids, True]).fetchall()
    tables = (TableSchema.from_definition(with_logical(definition)) for _, definition in described)
    return {table.name: table for table in tables}


def computed_columns(connection: Connection, names: Iterable[TableName]) -> dict[tuple[TableName, str], str]:
    """Return the expressions of the generated columns of tables, as the server words them, names qualified."""
    with catalog_names(connection):
        by_oid = {oid: name for name, oid in table_oids(connection, names).items()}
        rows = connection.execute(
            "SELECT a.attrelid, a.attname, pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a"
            " JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)"
            " WHERE a.attrelid = ANY (%s::oid[]) AND a.attgenerated <> '' ORDER BY a.attrelid, a.attnum",
            [list(by_oid)],
        ).fetchall()
    return {(by_oid[oid], column): expression for oid, column, expression in rows}


def list_casts(connection: Connection) -> set[tuple[str, str]]:
    """Return which types can be cast to which, as `Column.base_type` has them, but for those to and from texts."""
    with catalog_names(connection):
        rows = connection.execute("SELECT format_type(castsource, NULL), format_type(casttarget, NULL) FROM pg_cast")
        return set(rows.fetchall())


def table_oids(connection: Connection, names: Iterable[TableName]) -> dict[TableName, int]:
    """Return the oids of the ordinary and partitioned tables among `names` that exist."""
    wanted = sorted(set(names))
    rows = connection.execute(
        "SELECT n.nspname, c.relname, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN unnest(%s::text[], %s::text[]) w (schema, name) ON (n.nspname, c.relname) = (w.schema, w.name)"
        " WHERE c.relkind IN ('r', 'p')",
        [[name.schema for name in wanted], [name.name for name in wanted]],
    )
    return {TableName(schema, name): oid for schema, name, oid in rows}


def table_sizes(connection: Connection, names: Iterable[TableName]) -> dict[TableName, int]:
    """Return how many bytes the tables among `names` that exist take up, partitions included, indexes left out."""
    oids = table_oids(connection, names)
    rows = connection.execute(
        f"{_PARTS} SELECT root, sum(pg_table_size(oid))::bigint FROM part GROUP BY root",
        [list(oids.values())],
    )
    sizes: dict[int, int | None] = dict(rows.fetchall())
    return {name: sizes[oid] or 0 for name, oid in oids.items()}


def unlogged_tables(connection: Connection, names: Iterable[TableName]) -> list[TableName]:
    """Return the tables among `names` that are unlogged, or have a partition that is."""
    oids = table_oids(connection, names)
    rows = connection.execute(
        f"{_PARTS} SELECT DISTINCT root FROM part JOIN pg_class k ON k.oid = part.oid WHERE k.relpersistence = 'u'",
        [list(oids.values())],
    )
    found = {row[0] for row in rows}
    return [name for name, oid in oids.items() if oid in found]


@contextmanager
def catalog_names(connection: Connection) -> Iterator[None]:
    """Have the catalogue qualify every name that is not its own, for the statements inside."""
    with connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog")
        yield


def is_superuser(connection: Connection) -> bool:
    """Whether the session's user is one."""
    row = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    return bool(row and row[0])


def current_user(connection: Connection) -> str:
    """The session's user."""
    row = connection.execute("SELECT current_user").fetchone()
    assert row is not None
    return str(row[0])
