"""What a user may do in a PostgreSQL database, and the grants that are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import NamedTuple

import psycopg

from penstock.change import TableName
from penstock.database import DatabasePlan
from penstock.dialects.postgres.catalog import catalog_names, current_user
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.resources import sql_text
from penstock.schema import TableSchema


class Grant(NamedTuple):
    """A statement that a superuser must run, and the tables that wait for it; none: all of them do."""

    sql: str
    tables: frozenset[TableName] = frozenset()


def plan_grants(plan: DatabasePlan, missing: Iterable[Grant]) -> None:
    """Note what is missing, and for which tables."""
    for grant in missing:
        if grant.sql not in plan.grants:
            plan.grants.append(grant.sql)
        for table in sorted(grant.tables):
            plan.table_grants.setdefault(table, []).append(grant.sql)


def missing_source_grants(
    connection: Connection, name: str, tables: Sequence[TableName], *, of_apply: bool
) -> Iterator[Grant]:
    """Statements that a superuser must run before the user may install capture set `name` for `tables`.

    Args:
        of_apply: Their triggers are to fire for apply processes, too, which only a table's owner may say.
    """
    user = quote(current_user(connection))
    if not may(connection, "SELECT has_database_privilege(current_database(), 'CREATE')") and not may(
        connection, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", name
    ):
        yield Grant(f"GRANT CREATE ON DATABASE {quote(connection.info.dbname)} TO {user}")
    everything = _with_partitions(connection, tables)
    yield from _missing_table_grants(connection, everything, ("SELECT", "TRIGGER"))
    if of_apply:
        owners = connection.execute(
            "SELECT r.rolname, array_agg(n.nspname), array_agg(c.relname) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN pg_roles r ON r.oid = c.relowner WHERE NOT pg_has_role(r.oid, 'USAGE')"
            " AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
            " GROUP BY 1 ORDER BY 1",
            [[table.schema for table in everything], [table.name for table in everything]],
        )
        for owner, schemas, names in owners.fetchall():
            owned = map(TableName, schemas, names)
            yield Grant(f"GRANT {quote(owner)} TO {user}", frozenset(everything[table] for table in owned))


def missing_schema_grants(connection: Connection, schema: str) -> Iterator[Grant]:
    """Statements that a superuser must run before the user may make things in a schema that there is."""
    has_all = "SELECT has_schema_privilege(%s, 'CREATE') AND has_schema_privilege(%s, 'USAGE')"
    if not may(connection, has_all, schema, schema):
        yield Grant(f"GRANT CREATE, USAGE ON SCHEMA {quote(schema)} TO {quote(current_user(connection))}")


def missing_target_grants(
    connection: Connection,
    existing: Mapping[TableName, TableSchema],
    missing: Sequence[TableName],
    new_parents: Mapping[TableName, Collection[TableName]],
) -> Iterator[Grant]:
    """Statements that a superuser must run before the user may apply to `existing` tables, and make `missing` ones.

    Args:
        connection: A session of the user.
        existing: Tables that are there, with their foreign keys, which apply checks itself.
        missing: Tables that setup will make.
        new_parents: Tables that are there, and those of setup that will refer to each.
    """
    user = quote(current_user(connection))
    database = quote(connection.info.dbname)
    for privilege in ("CREATE", "TEMPORARY"):
        if not may(connection, "SELECT has_database_privilege(current_database(), %s)", privilege):
            yield Grant(f"GRANT {privilege} ON DATABASE {database} TO {user}")
    for schema in sorted({name.schema for name in missing}):
        # A schema that is not there yet will be this user's own.
        if not may(
            connection,
            "SELECT NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s"
            " AND NOT has_schema_privilege(oid, 'CREATE'))",
            schema,
        ):
            waiting = frozenset(name for name in missing if name.schema == schema)
            yield Grant(f"GRANT CREATE, USAGE ON SCHEMA {quote(schema)} TO {user}", waiting)
    own = {name: name for name in existing}
    yield from _missing_table_grants(connection, own, ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE"))
    parents = {key.parent: name for name, table in existing.items() for key in table.foreign_keys}
    children = {key.child: name for name, table in existing.items() for key in table.referenced_by}
    # A row that is referred to is locked against removal, which takes the right to update.
    for parent in sorted(new_parents.keys() - existing.keys()):
        for grant in _missing_table_grants(connection, {parent: parent}, ("SELECT", "UPDATE", "REFERENCES")):
            yield Grant(grant.sql, frozenset(new_parents[parent]))
    others = {parent: name for parent, name in parents.items() if parent not in (existing.keys() | new_parents.keys())}
    yield from _missing_table_grants(connection, others, ("SELECT", "UPDATE"))
    known = existing.keys() | new_parents.keys() | parents.keys()
    others = {child: name for child, name in children.items() if child not in known}
    yield from _missing_table_grants(connection, others, ("SELECT",))
    if connection.info.server_version < 150000:
        # Nobody else may set session_replication_role there.
        yield Grant(f"ALTER ROLE {user} SUPERUSER")
    elif not may(connection, "SELECT has_parameter_privilege('session_replication_role', 'SET')"):
        yield Grant(f"GRANT SET ON PARAMETER session_replication_role TO {user}")


def plain_role(
    connection: Connection,
    existing: Mapping[TableName, TableSchema],
    missing: Sequence[TableName],
    new_parents: Collection[TableName],
    *,
    made: Collection[TableName],
) -> Iterator[str]:
    """Statements by which a superuser makes a role without further rights that can do all of this in its place.

    What Penstock has made for the superuser, its ledger included, becomes the role's own. None where only a superuser
    may set `session_replication_role`.

    Args:
        connection: A session of the superuser.
        existing: Tables that are there, with their foreign keys, which apply checks itself.
        missing: Tables that setup will make.
        new_parents: Tables that are there, and that those of setup will refer to.
        made: Tables that setup has made.
    """
    if connection.info.server_version < 150000:
        return
    rows = connection.execute("SELECT rolname, rolsuper FROM pg_roles WHERE rolname LIKE 'penstock%'")
    taken: dict[str, bool] = dict(rows.fetchall())
    candidates = chain(["penstock"], (f"penstock_{n}" for n in count(2)))
    name = next(name for name in candidates if not taken.get(name))
    role = quote(name)
    if name not in taken:
        yield f"CREATE ROLE {role} LOGIN PASSWORD 'CHOOSE ONE'"
    yield f"GRANT CREATE, TEMPORARY ON DATABASE {quote(connection.info.dbname)} TO {role}"
    yield f"GRANT SET ON PARAMETER session_replication_role TO {role}"
    keys = [key for table in existing.values() for key in (*table.foreign_keys, *table.referenced_by)]
    parents = {key.parent for key in keys}.union(new_parents) - existing.keys()
    children = {key.child for key in keys} - parents - existing.keys()
    schemas = sorted({table.schema for table in (*existing, *missing, *parents, *children)})
    found = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname = ANY (%s) ORDER BY 1", [schemas])
    for (schema,) in found.fetchall():
        yield f"GRANT CREATE, USAGE ON SCHEMA {quote(schema)} TO {role}"
    own = sorted(existing.keys() & set(made))
    with catalog_names(connection):
        owned = psycopg.RawCursor(connection).execute(
            sql_text("owned"), [[table.schema for table in own], [table.name for table in own]]
        )
        handed_over = [f"ALTER {kind} {named} OWNER TO {role}" for kind, named in owned.fetchall()]
    yield from handed_over
    for rights, tables in (
        ("SELECT, INSERT, UPDATE, DELETE, TRUNCATE", existing),
        ("SELECT, UPDATE, REFERENCES", parents),
        ("SELECT", children),
    ):
        if tables:
            names = ", ".join(quote(table.schema, table.name) for table in sorted(tables))
            yield f"GRANT {rights} ON {names} TO {role}"
    if _hides_rows(connection, existing):
        yield f"ALTER ROLE {role} BYPASSRLS"


def _hides_rows(connection: Connection, tables: Collection[TableName]) -> bool:
    return may(
        connection,
        "SELECT bool_or(c.relrowsecurity) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
        [table.schema for table in tables],
        [table.name for table in tables],
    )


def may(connection: Connection, question: str, *values: str | list[str]) -> bool:
    """Ask the server a yes-or-no question, as a query of one value."""
    row = connection.execute(question, values).fetchone()
    return bool(row and row[0])


def _missing_table_grants(
    connection: Connection, tables: Mapping[TableName, TableName], privileges: Sequence[str]
) -> Iterator[Grant]:
    """What the user lacks in tables, each with the table that is left out without it."""
    user = quote(current_user(connection))
    for schema in sorted({table.schema for table in tables}):
        if not may(connection, "SELECT has_schema_privilege(%s, 'USAGE')", schema):
            waiting = frozenset(root for table, root in tables.items() if table.schema == schema)
            yield Grant(f"GRANT USAGE ON SCHEMA {quote(schema)} TO {user}", waiting)
    found = connection.execute(
        "SELECT n.nspname, c.relname,"
        " ARRAY(SELECT p FROM unnest(%s::text[]) p WHERE NOT has_table_privilege(c.oid, p)),"
        " row_security_active(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[])) ORDER BY 1, 2",
        [list(privileges), [table.schema for table in tables], [table.name for table in tables]],
    ).fetchall()
    for schema, name, missing, _ in found:
        if missing:
            waiting = frozenset({tables[TableName(schema, name)]})
            yield Grant(f"GRANT {', '.join(missing)} ON {quote(schema, name)} TO {user}", waiting)
    hidden = frozenset(tables[TableName(schema, name)] for schema, name, _, hides_rows in found if hides_rows)
    if hidden:
        yield Grant(f"ALTER ROLE {user} BYPASSRLS", hidden)


def _with_partitions(connection: Connection, tables: Sequence[TableName]) -> dict[TableName, TableName]:
    """Tables and their partitions, each with its table."""
    rows = connection.execute(
        "SELECT pn.nspname, p.relname, n.nspname, c.relname FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace, pg_partition_tree(c.oid) t"
        " JOIN pg_class p ON p.oid = t.relid JOIN pg_namespace pn ON pn.oid = p.relnamespace"
        " WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
        [[table.schema for table in tables], [table.name for table in tables]],
    )
    parts = {TableName(schema, name): TableName(*root) for schema, name, *root in rows}
    return {table: table for table in tables} | parts
