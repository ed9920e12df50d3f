"""Defaults, checks and indexes of a target's table that follow those of the source, inside an open transaction.

Their expressions come from the source, and whoever writes a row runs them; types bring casts and checks of their own.
So the catalogue is asked whose code that is before anything is altered (ADR 76).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock.apply.apply_errors import DDL_NOT_CARRIED_OUT, ApplyError
from penstock.apply.ddl import Alteration, ShapedColumn, ShapedObject, is_one_part
from penstock.change import TableName
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.ownership import called_code, others_sequences, types_named, unknown_names
from penstock.dialects.postgres.post_data import Found, PostDataKind, read_found
from penstock.dialects.postgres.target.alter_statements import (
    added_object,
    default_statement,
    dropped_object,
    renamed_object,
)
from penstock.dialects.postgres.target.retyped import converted_by_settings
from penstock.schema import TableSchema

_FOLLOWED = (PostDataKind.CHECK, PostDataKind.INDEX)

_CLONED = TableName("pg_temp", "penstock_clone")

_DO = "give that to a role you trust, or do it at the target yourself, and retry"

_NAME = r'"(?:[^"]|"")+"|[^\W\d][\w$]*'
_QUALIFIED = re.compile(rf"'(?:[^']|'')*'|(?P<schema>{_NAME})\.(?P<name>{_NAME}|[-+*/<>=~!@#%^&|`?]+)|{_NAME}")
"""A literal, which may hold anything; what has a schema, and so is not the server's own; or another name."""


class PostDataDdl:
    """Carries out what an alteration says of defaults, checks and indexes."""

    def __init__(self, connection: Connection, run: Callable[[str], None]) -> None:
        """Work through a connection; `run` runs a statement, and raises ApplyError where the target refuses it."""
        self._connection = connection
        self._run = run

    def drop(self, table: TableName, wanted: Alteration) -> None:
        """Drop what the source has no more, before its columns change; what is only called otherwise is renamed.

        Raises:
            ApplyError: The target calls it otherwise, so it cannot be told whether it is the one.
        """
        if not wanted.post_data_dropped:
            return
        there = self._found(table)
        again = {new.key: new for new in wanted.post_data_added}
        for old in wanted.post_data_dropped:
            new = again.get(old.key)
            if old.key not in there:
                others = [one for key, one in there.items() if key not in again and old.unworded is None]
                twin = next((one for one in others if _is_alike(one, old)), None)
                if twin is not None and new is None:
                    what = f"{old.kind} {old.name!r} was dropped, and is called {twin.name!r} here; drop it, and retry"
                    raise _refused(table, what)
            elif new is not None:
                if new.looks != old.looks and new.unworded is None and not _is_alike(there[old.key], new):
                    self._run(dropped_object(table, old))
            elif (other := _renamed(old, wanted)) is not None and other.key not in there:
                self._run(renamed_object(table, old, other.name))
                there[other.key] = there.pop(old.key)
            else:
                self._run(dropped_object(table, old))

    def add(self, table: TableName, wanted: Alteration, *, is_partitioned: bool) -> None:
        """Set defaults, and make what the source has now, once its columns are as they are to be.

        Raises:
            ApplyError: It calls code of a role that is not trusted, or cannot be put into the target's words.
        """
        for column, default in wanted.defaults:
            if default is not None:
                self._check_default(table, column, default)
            self._run(default_statement(table, column, default, is_partitioned=is_partitioned))
        if not wanted.post_data_added:
            return
        there = self._found(table)
        before = {old.key: old.looks for old in wanted.post_data_dropped}
        for item in wanted.post_data_added:
            found = there.get(item.key)
            if found is None:
                self._make(table, item)
            elif _is_alike(found, item) or before.get(item.key) == item.looks:
                if item.is_valid and not found.is_valid:
                    self._run(f"ALTER TABLE {_named(table)} VALIDATE CONSTRAINT {quote(item.name)}")
            elif item.unworded is None:
                what = f"the target has another {item.kind} {item.name!r}; make it what it is to be, and retry"
                raise _refused(table, what)
            elif item.key in before and not wanted.retyped:
                # With a column's type the server has worded it anew; a new one is what a person has made.
                what = f"{item.kind} {item.name!r} was altered, and {item.unworded}: put it right at the target"
                raise _refused(table, f"{what}, and leave this change out of the retry")

    def _make(self, table: TableName, item: ShapedObject) -> None:
        what = f"{item.kind} {item.name!r}"
        if item.unworded is not None:
            raise _refused(table, f"{what} cannot be made: {item.unworded}; make it at the target, and retry")
        # By a name that nothing in the schema of clones has; a check that is not valid is not planned.
        part = replace(item, name="penstock_part", is_valid=False)
        self._refuse_code(table, item.definition, added_object(_CLONED, part), what)
        self._run(added_object(table, item))

    def check_defaults(self, table: TableName, columns: Sequence[ShapedColumn]) -> None:
        """Refuse the defaults of columns that were added, if they call code of a role that is not trusted."""
        for column in columns:
            if column.default is not None:
                self._check_default(table, column.name, column.default)

    def _check_default(self, table: TableName, column: str, default: str) -> None:
        what = f"the default of column {column!r}"
        self._refuse_code(table, default, default_statement(_CLONED, column, default), what)

    def _found(self, table: TableName) -> dict[tuple[str, str], Found]:
        with self._aside():
            found = read_found(self._connection, [table])
        return {(one.kind, one.name): one for one in found if one.table == table and one.kind in _FOLLOWED}

    def check_types(self, table: TableName, there: TableSchema, wanted: Alteration) -> None:
        """Refuse types whose casts, checks or functions are those of a role that is not trusted, before they run.

        Args:
            there: The table as it is: where a column gets another type, the one that it has counts, too.

        Raises:
            ApplyError: A column that is added, or gets another type, has such a one; or what is called a type, or a
                definition, is none; or values would become others than the source has made of them.
        """
        self._refuse_other_sql(table, wanted)
        called = {new: old for old, new in wanted.renamed}
        for column in (*wanted.added, *wanted.retyped):
            old = there.by_name.get(called.get(column.name, column.name))
            calls = types_named(self._connection, [column.type, *([] if old is None else [old.type])])
            for fault in called_code(self._connection, calls):
                raise _refused(table, f"type {column.type} of column {column.name!r}: {fault.what}; {_DO}")
        self._refuse_by_settings(table, there, wanted, called)
        for column in wanted.added:
            if column.default is not None:
                # The server reads a literal of a type, and so runs its checks, when a default is only set.
                self._refuse_named(table, column.default, f"the default of column {column.name!r}")

    def _refuse_by_settings(
        self, table: TableName, there: TableSchema, wanted: Alteration, called: Mapping[str, str]
    ) -> None:
        """Refuse another type for values that the source's session has converted in a way that is not known here."""
        types = {called.get(column.name, column.name): column.type for column in wanted.retyped}
        pairs = {name: (there.by_name[name].type, type_) for name, type_ in types.items() if name in there.by_name}
        for name in converted_by_settings(self._connection, table, pairs):
            what = (
                f"column {name!r} became {types[name]} as the settings of the session say that altered it, such as its"
                " time zone: the values of its rows are not known; do it at the target, and retry"
            )
            raise ApplyError(DDL_NOT_CARRIED_OUT, what, where=f"table {table}", column=name)

    def _refuse_other_sql(self, table: TableName, wanted: Alteration) -> None:
        """Refuse texts of the source's that are not what they should be: in a statement they could do anything."""
        columns = (*wanted.added, *wanted.retyped)
        types = unknown_names(self._connection, "type", (column.type for column in columns))
        collations = {column.collation for column in columns if column.collation is not None}
        lost = unknown_names(self._connection, "collation", collations)
        for column in columns:
            if column.type in types:
                what = f"the target has no type {column.type!r}, which column {column.name!r} is of"
                raise _refused(table, f"{what}; make it there, and retry")
            if column.collation in lost:
                what = f"the target has no collation {column.collation!r}, which column {column.name!r} has"
                raise _refused(table, f"{what}; make it there, and retry")
        defaults = [*((column.name, column.default) for column in wanted.added), *wanted.defaults]
        parts = [(f"the default of column {name!r}", default) for name, default in defaults if default is not None]
        parts += [(f"{item.kind} {item.name!r}", item.definition) for item in wanted.post_data_added]
        for what, text in parts:
            if not is_one_part(text):
                raise _refused(table, f"{what} is more than one expression; make it at the target, and retry")

    def _refuse_code(self, table: TableName, expression: str, statement: str, what: str) -> None:
        """Refuse an expression that would run other roles' code, or what is not known to be harmless.

        An empty clone of the table gets it by `statement`. Since the server may compute what depends on no row even
        then, whatever has the names in it must be trusted before.
        """
        self._refuse_named(table, expression, what)
        with self._aside():
            self._run(f"CREATE TEMP TABLE {quote(_CLONED.name)} (LIKE {_named(table)})")
            self._run(statement)
            row = self._connection.execute("SELECT pg_my_temp_schema()::regnamespace::text").fetchone()
            assert row is not None
            (found,) = read_found(self._connection, [TableName(row[0], _CLONED.name)])
            if found.refused:
                calls = ", ".join(found.refused)
                raise _refused(
                    table, f"{what} calls {calls}, which would run with the rights of whoever applies; {_DO}"
                )
            self._refuse_calls(table, what, found.calls)
            for name, role in others_sequences(self._connection, found.sequences).items():
                why = f"{what} draws from sequence {name}, which belongs to role {role!r}, and would be moved"
                raise _refused(table, f"{why}; {_DO}")

    def _refuse_named(self, table: TableName, expression: str, what: str) -> None:
        """Refuse an expression that has the name of another role's function, operator or type in it."""
        named = list(_named_in(expression))
        self._refuse_calls(table, what, [(kind, name) for kind in ("function", "operator", "type") for name in named])

    def _refuse_calls(self, table: TableName, what: str, calls: Sequence[tuple[str, TableName]]) -> None:
        for fault in called_code(self._connection, calls):
            raise _refused(table, f"{what}: {fault.what}; {_DO}")

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Undo whatever the block did, the settings that it made included."""
        with self._connection.transaction(force_rollback=True):
            yield


def _renamed(old: ShapedObject, wanted: Alteration) -> ShapedObject | None:
    """What looks the same, and is called otherwise now."""
    return next((new for new in wanted.post_data_added if (new.kind, new.looks) == (old.kind, old.looks)), None)


def _is_alike(found: Found, item: ShapedObject) -> bool:
    return (found.kind, found.definition) == (item.kind, item.definition)


def _named_in(expression: str) -> Iterator[TableName]:
    """Yield what an expression calls by qualified names: the server leaves out the schema of its own only."""
    for found in _QUALIFIED.finditer(expression):
        if found["schema"] is not None:
            yield TableName(_unquoted(found["schema"]), _unquoted(found["name"]))


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _named(table: TableName) -> str:
    return quote(table.schema, table.name)


def _refused(table: TableName, why: str) -> ApplyError:
    return ApplyError(DDL_NOT_CARRIED_OUT, why, where=f"table {table}")
