"""Logical database classes: tables with a key, and the child tables that hold the values of further attributes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from penstock.change import TableName
from penstock.formats.xds.event import Value
from penstock.formats.xds.table_key import behind_key, write_key
from penstock.formats.xds.values import (
    BLANKS,
    Converter,
    TimeSyntax,
    UnreadableError,
    canonical,
    converter,
    normal_integer,
)
from penstock.formats.xds.writer import NOT_XML
from penstock.logical import Kind
from penstock.schema import Column, ForeignKey, TableSchema


@dataclass(frozen=True)
class Child:
    """A table without a key of its own, whose rows are values of attributes of its parent's rows.

    Attributes:
        links: Its columns that refer to the parent, in the order of the parent's key.
    """

    table: TableSchema
    links: tuple[str, ...]

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The columns that are attributes."""
        return [column for column in self.table.columns if column.name not in self.links]


@dataclass(frozen=True, eq=False)
class ClassAttribute:
    """What a column is as an attribute of a class, which has one of these for each column.

    Attributes:
        name: As events have it: that of the column, behind that of the child table where it is one's.
        child: The child table that it is a column of; None for a column of the class's own table.
    """

    name: str
    column: Column
    child: Child | None
    convert: Converter


@dataclass(frozen=True)
class DatabaseClass:
    """A table with a key, and its child tables, by their names.

    Attributes:
        key: Its key columns, in the order of the table's columns.
    """

    table: TableSchema
    key: tuple[Column, ...]
    children: tuple[Child, ...]
    syntax: TimeSyntax
    _found: dict[tuple[str | None, str], ClassAttribute | None] = field(default_factory=dict, compare=False, repr=False)
    _made: dict[tuple[str | None, str], ClassAttribute] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> TableName:
        """The table's name."""
        return self.table.name

    @cached_property
    def own_attributes(self) -> Sequence[ClassAttribute]:
        """What a whole row is shown as, of the table itself: all columns but the key's."""
        key = {column.name for column in self.key}
        return [self._attribute(None, column) for column in self.table.columns if column.name not in key]

    @cached_property
    def child_attributes(self) -> Sequence[ClassAttribute]:
        """The same of the child tables, by their names, then in the order of their columns."""
        return [self._attribute(child, column) for child in self.children for column in child.columns]

    @cached_property
    def key_attributes(self) -> Sequence[ClassAttribute]:
        """The key columns as attributes, which a row about one of them shows."""
        return [self._attribute(None, column) for column in self.key]

    def association(self, key: Sequence[str]) -> str:
        """Write what names an object in events, by the values of its key; see `table_key.Association`."""
        return write_key(zip(self._key_names, key, strict=True)) + self._behind_key

    @cached_property
    def _key_names(self) -> Sequence[str]:
        return [column.name for column in self.key]

    @cached_property
    def _behind_key(self) -> str:
        return behind_key(self.name.name, self.name.schema)

    def bind(self, pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        """Return the values of the key's columns, in the order of the table's.

        Raises:
            UnreadableError: Another column is named, one is missing or named twice, or a value does not fit.
        """
        names = self._key_names
        values: dict[str, str] = {}
        for given, value in pairs:
            name = one_named(given, names)
            if name is None:
                raise UnreadableError("the key names a column that is not of the table's key")
            if name in values:
                raise UnreadableError("the key names a column twice")
            values[name] = value
        if len(values) < len(names):
            raise UnreadableError("the key lacks a column of the table's key")
        return tuple(_key_value(column, values[column.name]) for column in self.key)

    def attribute(self, child: Child | None, text: str) -> ClassAttribute | None:
        """Return the attribute that a log's `column_name` means in rows about a table; None if it means none.

        Args:
            child: The child table that the rows are about; None if they are about the class's own.
        """
        said = (None if child is None else child.table.name.name, text)
        if said not in self._found:
            self._found[said] = self._find(child, text)
        return self._found[said]

    def _find(self, child: Child | None, text: str) -> ClassAttribute | None:
        found = self._column_of(child, text)
        if found is not None:
            return found
        parts = text.split(".")
        for at in range(1, len(parts)):
            prefix, column = ".".join(parts[:at]), ".".join(parts[at:])
            for table in self._prefixed(child, prefix):
                found = self._column_of(table, column)
                if found is not None:
                    return found
        return None

    def _prefixed(self, child: Child | None, prefix: str) -> Iterable[Child | None]:
        """The tables of the class that a prefix before a column names, in rows about one of them."""
        tables: dict[str, Child | None] = {}
        if child is None:
            tables = {one.table.name.name: one for one in self.children}
            tables[self.name.name] = None
        else:
            tables[child.table.name.name] = child
        name = one_named(prefix, tables)
        if name is None:
            schema, dot, rest = prefix.partition(".")
            if dot and one_named(schema, [self.name.schema]) is not None:
                name = one_named(rest, tables)
        return [] if name is None else [tables[name]]

    def _column_of(self, child: Child | None, text: str) -> ClassAttribute | None:
        columns = {column.name: column for column in (self.table.columns if child is None else child.table.columns)}
        name = one_named(text, columns)
        # The columns by which a child's row refers to its parent are no attributes.
        if name is None or (child is not None and name in child.links):
            return None
        return self._attribute(child, columns[name])

    def _attribute(self, child: Child | None, column: Column) -> ClassAttribute:
        of = (None if child is None else child.table.name.name, column.name)
        if of not in self._made:
            name = column.name if child is None else f"{child.table.name.name}.{column.name}"
            self._made[of] = ClassAttribute(name, column, child, converter(column.logical, self.syntax))
        return self._made[of]


class Classes:
    """The classes of a schema, found by what a log's `table_name` says."""

    def __init__(
        self,
        tables: Iterable[TableSchema],
        *,
        schema: str,
        keys: Mapping[TableName, tuple[str, ...]] | None = None,
        syntax: TimeSyntax = TimeSyntax.SECONDS,
    ) -> None:
        """Sort tables into classes and their children.

        Args:
            schema: Where tables are that are named without one; those of others are not taken.
            keys: Key columns of tables that have no primary key, such as views.
        """
        known = {table.name: table for table in tables if table.name.schema == schema}
        key_names = {name: _key_of(table, keys or {}) for name, table in known.items()}
        children: dict[TableName, list[Child]] = {}
        self._schema = schema
        self._tables: dict[str, tuple[TableName, Child | None]] = {}
        for name, table in sorted(known.items()):
            if key_names[name]:
                self._tables[name.name] = (name, None)
                continue
            for foreign_key in table.foreign_keys:
                links = _links(foreign_key, known, key_names)
                if links:
                    child = Child(table, links)
                    children.setdefault(foreign_key.parent, []).append(child)
                    self._tables[name.name] = (foreign_key.parent, child)
                    break
        self.by_name = {
            name: DatabaseClass(
                known[name],
                tuple(column for column in known[name].columns if column.name in key),
                tuple(children.get(name, ())),
                syntax,
            )
            for name, key in key_names.items()
            if key
        }
        self.without_key = sorted(name for name in known if name.name not in self._tables)

    def find(self, text: str) -> tuple[DatabaseClass, Child | None] | None:
        """Return the class that a log's `table_name` means, and the child table if it is one; None if it means none."""
        name = one_named(text, self._tables)
        if name is None:
            schema, dot, rest = text.partition(".")
            if dot and one_named(schema, [self._schema]) is not None:
                name = one_named(rest, self._tables)
        if name is None:
            return None
        parent, child = self._tables[name]
        return self.by_name[parent], child


_NUMBER = re.compile(r"[+-]?([0-9]{1,300}(\.[0-9]{0,300})?|\.[0-9]{1,300})([eE][+-]?[0-9]{1,3})?")

_FORMS = {
    Kind.DECIMAL: _NUMBER,
    Kind.FLOAT: _NUMBER,
    Kind.UUID: re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
}
"""What a database surely reads as a value of these types."""


def one_named(text: str, names: Iterable[str]) -> str | None:
    """Return the name that a text means: exactly, or else in another case if that is only one."""
    known = list(names)
    if text in known:
        return text
    folded = text.casefold()
    found = [name for name in known if name.casefold() == folded]
    return found[0] if len(found) == 1 else None


def _key_of(table: TableSchema, keys: Mapping[TableName, tuple[str, ...]]) -> tuple[str, ...]:
    return keys.get(table.name) or (table.primary_key.columns if table.primary_key is not None else ())


def _links(
    foreign_key: ForeignKey, known: Mapping[TableName, TableSchema], keys: Mapping[TableName, tuple[str, ...]]
) -> tuple[str, ...]:
    """The columns of a child in the order of its parent's table; none if they do not refer to the parent's key."""
    key = keys.get(foreign_key.parent, ())
    if not key or set(foreign_key.parent_columns) != set(key):
        return ()
    child_of = dict(zip(foreign_key.parent_columns, foreign_key.columns, strict=True))
    return tuple(child_of[column.name] for column in known[foreign_key.parent].columns if column.name in child_of)


def _key_value(column: Column, text: str) -> str:
    if column.logical.kind is Kind.INTEGER:
        return normal_integer(text)
    if column.logical.kind in (Kind.DECIMAL, Kind.FLOAT):
        text = text.strip(BLANKS)
    if NOT_XML.search(text) is not None:
        raise UnreadableError("the key holds a character that XML cannot carry")
    if column.logical.kind in _FORMS and _FORMS[column.logical.kind].fullmatch(text) is None:
        raise UnreadableError(f"the key holds a text that is no {column.logical.kind}")
    # Refuses what the database could not compare with the column.
    canonical(column.logical, Value("string", text))
    return text
