"""What tables hold now of the objects that an event log names, read inside the transaction of a poll.

A table that cannot be read is the fault of the log's rows that ask for it, and so is a key or a row that the database
fails at. It never keeps others from being read: they would wait behind it for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psycopg

from penstock.change import TableName
from penstock.dialects.postgres.casts import cast_sql, text_sql
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.errors import condition, is_data_error
from penstock.errors import RetryableError
from penstock.formats.xds.values import unbroken
from penstock.logical import Kind
from penstock.schema import Column, TableSchema
from penstock.sources.event_log.build import Current, Wanted
from penstock.sources.event_log.classes import Child, ClassAttribute, DatabaseClass
from penstock.sources.event_log.rows import Object

_CAST_KINDS = {
    Kind.INTEGER,
    Kind.STRING,
    Kind.DECIMAL,
    Kind.FLOAT,
    Kind.UUID,
    Kind.BOOLEAN,
    Kind.BINARY,
    Kind.DATE,
    Kind.TIME,
    Kind.TIMESTAMP,
    Kind.TIMESTAMPTZ,
}
"""Kinds of key columns whose values are compared as such, by an index: `classes` has made sure that texts are values.
Those of others are compared by their text."""

_NO_RIGHT = "42501"

_ALTERED = ("42P01", "42703", "42883", "42804")
"""What a query says of a table that is not what the catalogue said a moment ago."""


class _Read(NamedTuple):
    """The columns of the rows that belong to objects, and why those of others cannot be read."""

    rows: list[tuple[Object, Sequence[str | None]]]
    faults: dict[Object, str]


def read_current(connection: Connection, of: DatabaseClass, asked: Wanted) -> Mapping[Object, Current]:
    """Return what a table and its child tables hold of the objects that are there, or why that cannot be read.

    Raises:
        RetryableError: A table was dropped or altered meanwhile.
    """
    objects = [one for one in asked.objects if _can_be_there(one)]
    if not objects:
        return {}
    own = [attribute for attribute in asked.attributes if attribute.child is None]
    read = _Question(of, of.table, [column.name for column in of.key], own).ask(connection, objects)
    values: dict[Object, dict[ClassAttribute, list[str]]] = {
        one: {attribute: [text] for attribute, text in zip(own, texts, strict=True) if text is not None}
        for one, texts in read.rows
    }
    faults: dict[Object, dict[Child | None, str]] = {one: {None: why} for one, why in read.faults.items()}
    by_child: dict[Child, list[ClassAttribute]] = {}
    for attribute in asked.attributes:
        if attribute.child is not None:
            by_child.setdefault(attribute.child, []).append(attribute)
    for child, attributes in by_child.items() if values else ():
        read = _Question(of, child.table, child.links, attributes).ask(connection, list(values))
        for one, texts in read.rows:
            for attribute, text in zip(attributes, texts, strict=True):
                if text is not None:
                    values[one].setdefault(attribute, []).append(text)
        for one, why in read.faults.items():
            faults.setdefault(one, {})[child] = why
    return {one: Current(values.get(one, {}), faults.get(one, {})) for one in values.keys() | faults.keys()}


def unreadable(connection: Connection, tables: Sequence[TableName]) -> Sequence[TableName]:
    """Return those of tables that this user may read no column of."""
    rows = connection.execute(
        "SELECT schema, name FROM unnest(%s::text[], %s::text[]) t (schema, name)"
        " WHERE NOT has_any_column_privilege(format('%%I.%%I', schema, name), 'SELECT') ORDER BY schema, name",
        [[table.schema for table in tables], [table.name for table in tables]],
    )
    return [TableName(schema, name) for schema, name in rows]


@dataclass(frozen=True)
class _Question:
    """Asks a table for some columns of all rows that belong to objects of a class.

    Attributes:
        links: The table's columns that hold the key, in its order.
    """

    of: DatabaseClass
    table: TableSchema
    links: Sequence[str]
    attributes: Sequence[ClassAttribute]

    def ask(self, connection: Connection, objects: Sequence[Object]) -> _Read:
        try:
            # A savepoint, so that what fails does not take the poll with it.
            with connection.transaction():
                rows = connection.execute(*self._query(objects)).fetchall()
        except psycopg.Error as exc:
            why = _fault(exc, self.table)
            if len(objects) == 1 or exc.sqlstate == _NO_RIGHT:
                return _Read([], dict.fromkeys(objects, why))
            # Some of the objects are to blame: halves of halves leave those alone in the end.
            middle = len(objects) // 2
            first, second = (self.ask(connection, half) for half in (objects[:middle], objects[middle:]))
            return _Read(first.rows + second.rows, first.faults | second.faults)
        return _Read([(objects[number - 1], texts) for number, *texts in rows], {})

    def _query(self, objects: Sequence[Object]) -> tuple[str, list[list[str]]]:
        """SQL and its parameters; a row has the number of its object, from 1, before the columns."""
        key = self.of.key
        names = [f"k{at}" for at in range(len(key))]
        wanted = ", ".join(["k.number", *(text_sql(a.column, f"t.{quote(a.column.name)}") for a in self.attributes)])
        on = " AND ".join(
            _same_sql(column, f"t.{quote(link)}", f"k.{name}")
            for column, link, name in zip(key, self.links, names, strict=True)
        )
        arrays = ", ".join(["%s::text[]"] * len(key))
        query = (
            f"SELECT {wanted} FROM unnest({arrays}) WITH ORDINALITY k ({', '.join(names)}, number)"
            f" JOIN {quote(self.table.name.schema, self.table.name.name)} t ON {on}"
        )
        return query, [[_key_text(column, one.key[at]) for one in objects] for at, column in enumerate(key)]


def _fault(exc: psycopg.Error, table: TableSchema) -> str:
    """Why rows of a table cannot be read; raises where that is no fault of theirs."""
    if exc.sqlstate == _NO_RIGHT:
        return (
            f"cannot be read: the user who reads the log may not SELECT from table {table.name}, or what it is made of"
        )
    # What a function of a view says is no sign of a change: it has a context.
    if exc.sqlstate in _ALTERED and not exc.diag.context:
        # The next poll finds the catalogue without it, and gives rows that name it status E.
        raise RetryableError(f"table {table.name} was dropped or altered while it was read") from exc
    if exc.sqlstate is None or not is_data_error(exc.sqlstate):
        raise exc
    return f"cannot be read from table {table.name}: {condition(exc.sqlstate)}"


def _same_sql(column: Column, value: str, text: str) -> str:
    """SQL for whether a column's value is what a text stands for."""
    if column.logical.kind in _CAST_KINDS:
        return f"{value} = {cast_sql(column, text)}"
    return f"{text_sql(column, value)} = {text}"


def _key_text(column: Column, text: str) -> str:
    # As `decode` reads it.
    return unbroken(text) if column.logical.kind is Kind.BINARY else text


def _can_be_there(of: Object) -> bool:
    """Whether the key's columns can hold these values at all; the database would refuse to compare with others."""
    return all(
        column.logical.kind is not Kind.INTEGER or _fits(int(value), column.logical.bits or 64)
        for column, value in zip(of.of.key, of.key, strict=True)
    )


def _fits(value: int, bits: int) -> bool:
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)
