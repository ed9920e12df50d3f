"""What a user may do in a PostgreSQL database, and the grants that are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from penstock.change import TableName
from penstock.dialects.postgres.catalog import current_user
from penstock.dialects.postgres.connection import Connection, quote
from penstock.schema import TableSchema


def missing_source_grants(
    connection: Connection, name: str, tables: Sequence[TableName], *, of_apply: bool
) -> Iterator[str]:
    """Statements that a superuser must run before the user may install capture set `name` for `tables`.

    Args:
        of_apply: Their triggers are to fire for apply processes, too, which only a table's owner may say.
    """
    user = quote(current_user(connection))
    if not may(connection, "SELECT has_database_privilege(current_database(), 'CREATE')") and not may(
        connection, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", name
    ):
        yield f"GRANT CREATE ON DATABASE {quote(connection.info.dbname)} TO {user}"
    everything = _with_partitions(connection, tables)
    yield from _missing_table_grants(connection, everything, ("SELECT", "TRIGGER"))
    if of_apply:
        owners = connection.execute(
            "SELECT DISTINCT r.rolname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN pg_roles r ON r.oid = c.relowner WHERE NOT pg_has_role(r.oid, 'USAGE')"
            " AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[])) ORDER BY 1",
            [[table.schema for table in everything], [table.name for table in everything]],
        )
        for (owner,) in owners.fetchall():
            yield f"GRANT {quote(owner)} TO {user}"


def missing_target_grants(
    connection: Connection,
    existing: Mapping[TableName, TableSchema],
    missing: Sequence[TableName],
    new_parents: Collection[TableName],
) -> Iterator[str]:
    """Statements that a superuser must run before the user may apply to `existing` tables, and make `missing` ones.

    Args:
        connection: A session of the user.
        existing: Tables that are there, with their foreign keys, which apply checks itself.
        missing: Tables that setup will make.
        new_parents: Tables that are there and that those of setup will refer to.
    """
    user = quote(current_user(connection))
    database = quote(connection.info.dbname)
    for privilege in ("CREATE", "TEMPORARY"):
        if not may(connection, "SELECT has_database_privilege(current_database(), %s)", privilege):
            yield f"GRANT {privilege} ON DATABASE {database} TO {user}"
    for schema in sorted({name.schema for name in missing}):
        # A schema that is not there yet will be this user's own.
        if not may(
            connection,
            "SELECT NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s"
            " AND NOT has_schema_privilege(oid, 'CREATE'))",
            schema,
        ):
            yield f"GRANT CREATE, USAGE ON SCHEMA {quote(schema)} TO {user}"
    yield from _missing_table_grants(connection, existing, ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE"))
    parents = {key.parent for table in existing.values() for key in table.foreign_keys} - set(existing)
    children = {key.child for table in existing.values() for key in table.referenced_by} - set(existing)
    new_parents = set(new_parents) - set(existing)
    # A row that is referred to is locked against removal, which takes the right to update.
    yield from _missing_table_grants(connection, new_parents, ("SELECT", "UPDATE", "REFERENCES"))
    yield from _missing_table_grants(connection, parents - new_parents, ("SELECT", "UPDATE"))
    yield from _missing_table_grants(connection, children - parents - new_parents, ("SELECT",))
    if connection.info.server_version < 150000:
        # Nobody else may set session_replication_role there.
        yield f"ALTER ROLE {user} SUPERUSER"
    elif not may(connection, "SELECT has_parameter_privilege('session_replication_role', 'SET')"):
        yield f"GRANT SET ON PARAMETER session_replication_role TO {user}"


def may(connection: Connection, question: str, *values: str) -> bool:
    """Ask the server a yes-or-no question, as a query of one value."""
    row = connection.execute(question, values).fetchone()
    return bool(row and row[0])


def _missing_table_grants(
    connection: Connection, tables: Collection[TableName], privileges: Sequence[str]
) -> Iterator[str]:
    user = quote(current_user(connection))
    for schema in sorted({table.schema for table in tables}):
        if not may(connection, "SELECT has_schema_privilege(%s, 'USAGE')", schema):
            yield f"GRANT USAGE ON SCHEMA {quote(schema)} TO {user}"
    found = connection.execute(
        "SELECT n.nspname, c.relname,"
        " ARRAY(SELECT p FROM unnest(%s::text[]) p WHERE NOT has_table_privilege(c.oid, p)),"
        " row_security_active(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[])) ORDER BY 1, 2",
        [list(privileges), [table.schema for table in tables], [table.name for table in tables]],
    ).fetchall()
    for schema, name, missing, _ in found:
        if missing:
            yield f"GRANT {', '.join(missing)} ON {quote(schema, name)} TO {user}"
    if any(hides_rows for *_, hides_rows in found):
        yield f"ALTER ROLE {user} BYPASSRLS"


def _with_partitions(connection: Connection, tables: Sequence[TableName]) -> list[TableName]:
    rows = connection.execute(
        "SELECT pn.nspname, p.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,"
        " pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid JOIN pg_namespace pn ON pn.oid = p.relnamespace"
        " WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
        [[table.schema for table in tables], [table.name for table in tables]],
    )
    return sorted({TableName(schema, name) for schema, name in rows} | set(tables))
