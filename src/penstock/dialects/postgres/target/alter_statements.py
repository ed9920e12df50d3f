"""An alteration of a table as PostgreSQL's statements."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.apply.ddl import Alteration, ShapedColumn, ShapedObject
from penstock.change import TableName
from penstock.dialects.postgres.connection import literal, quote
from penstock.dialects.postgres.logical import spelling
from penstock.logical import LogicalType


def in_own_words(wanted: Alteration) -> Alteration:
    """Return an alteration whose columns have types of PostgreSQL's, where the source only says what they hold."""

    def spelled(columns: Sequence[ShapedColumn]) -> tuple[ShapedColumn, ...]:
        return tuple(
            one if one.logical is None else replace(one, type=spelling(LogicalType.parse(one.logical)))
            for one in columns
        )

    return replace(wanted, added=spelled(wanted.added), retyped=spelled(wanted.retyped))


def alter_statements(name: TableName, left: Alteration, *, is_partitioned: bool) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the statements that do what is left of an alteration, in order, each with the columns that it is about."""
    table = f"ALTER TABLE {quote(name.schema, name.name)}"
    # What the source's tables that inherit from it drop as well is in alterations of their own.
    only = table if is_partitioned else f"ALTER TABLE ONLY {quote(name.schema, name.name)}"
    for old, new in left.renamed:
        yield f"{table} RENAME COLUMN {quote(old)} TO {quote(new)}", [old]
    for dropped in left.dropped:
        yield f"{only} DROP COLUMN {quote(dropped)}", [dropped]
    for column in left.added:
        yield from ((statement, [column.name]) for statement in _added(table, column))
    defaults = dict(left.defaults)
    for column in left.retyped:
        if column.name in defaults:
            # The old one may not fit the new type.
            yield f"{table} ALTER COLUMN {quote(column.name)} DROP DEFAULT", [column.name]
    if left.retyped:
        # All at once, as at the source: a check of two columns may hold for no type of one and another of the other.
        parts = [f"ALTER COLUMN {quote(column.name)} TYPE {_type(column)}" for column in left.retyped]
        yield f"{table} {', '.join(parts)}", [column.name for column in left.retyped]
    for column_name, is_nullable in left.nullable:
        yield f"{table} ALTER COLUMN {quote(column_name)} {'DROP' if is_nullable else 'SET'} NOT NULL", [column_name]


def default_statement(name: TableName, column: str, default: str | None, *, is_partitioned: bool = False) -> str:
    """Return the statement that gives a column a default, or takes it away; tables that inherit have their own."""
    to = "DROP DEFAULT" if default is None else f"SET DEFAULT {default}"
    only = "" if is_partitioned else "ONLY "
    return f"ALTER TABLE {only}{quote(name.schema, name.name)} ALTER COLUMN {quote(column)} {to}"


def added_object(name: TableName, item: ShapedObject) -> str:
    """Return the statement that makes a check or an index."""
    table, called = quote(name.schema, name.name), quote(item.name)
    if item.kind == "index":
        return f"CREATE INDEX {called} ON {table} {item.definition}"
    return f"ALTER TABLE {table} ADD CONSTRAINT {called} {item.definition}{'' if item.is_valid else ' NOT VALID'}"


def dropped_object(name: TableName, item: ShapedObject) -> str:
    """Return the statement that drops a check or an index."""
    if item.kind == "index":
        return f"DROP INDEX {quote(name.schema, item.name)}"
    return f"ALTER TABLE {quote(name.schema, name.name)} DROP CONSTRAINT {quote(item.name)}"


def renamed_object(name: TableName, item: ShapedObject, called: str) -> str:
    """Return the statement that gives a check or an index another name."""
    if item.kind == "index":
        return f"ALTER INDEX {quote(name.schema, item.name)} RENAME TO {quote(called)}"
    table = quote(name.schema, name.name)
    return f"ALTER TABLE {table} RENAME CONSTRAINT {quote(item.name)} TO {quote(called)}"


def rename_statements(name: TableName, called: TableName) -> Iterator[str]:
    """Yield the statements that give a table another name, another schema, or both."""
    between = name
    if called.schema != name.schema and called.name != name.name:
        # By way of a name that is free in both: the new one may be taken in the old schema, and the old one in the new.
        between = TableName(name.schema, f"penstock renames {zlib.crc32(repr((name, called)).encode())}")
        yield f"ALTER TABLE {quote(name.schema, name.name)} RENAME TO {quote(between.name)}"
    if called.schema != name.schema:
        yield f"ALTER TABLE {quote(between.schema, between.name)} SET SCHEMA {quote(called.schema)}"
        between = TableName(called.schema, between.name)
    if between.name != called.name:
        yield f"ALTER TABLE {quote(between.schema, between.name)} RENAME TO {quote(called.name)}"


def _added(table: str, column: ShapedColumn) -> Iterator[str]:
    # Rows that are there get what the source's got, whatever the default would be now.
    filled = "" if column.filled is None else f" DEFAULT {literal(column.filled)}"
    yield (
        f"{table} ADD COLUMN {quote(column.name)} {_type(column)}{filled}{'' if column.is_nullable else ' NOT NULL'}"
    )
    if column.default is not None:
        yield f"{table} ALTER COLUMN {quote(column.name)} SET DEFAULT {column.default}"
    elif filled:
        yield f"{table} ALTER COLUMN {quote(column.name)} DROP DEFAULT"


def _type(column: ShapedColumn) -> str:
    return column.type if column.collation is None else f"{column.type} COLLATE {column.collation}"
