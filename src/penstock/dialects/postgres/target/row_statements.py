"""Statements of single rows at a PostgreSQL target, and the checks that apply makes itself (ADR 4).

Many rows at once, each of them named by itself, are here, too; net changes of many are in `set_path`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from penstock.apply.apply_errors import ApplyError, ContentionError
from penstock.apply.session import TargetSession
from penstock.apply.target import ComparedRow, RowMatch, TargetTable
from penstock.change import Image, TableName
from penstock.dialects.postgres.casts import equal_sql, refers_sql, text_sql
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.connection import Connection, label, quote
from penstock.dialects.postgres.errors import FailureScope, redacted_message, refused, translate, whose
from penstock.dialects.postgres.target.external_values import Pieces, refuse_external
from penstock.dialects.postgres.target.many_rows import (
    alike,
    compare_many_sql,
    compared,
    find_parents_sql,
    order_many_sql,
    shifted_many_sql,
    update_many_sql,
)
from penstock.dialects.postgres.target.row_sql import PARAMETER, condition_sql, mark_of, only, quoted
from penstock.errors import PenstockError
from penstock.external_values import ExternalValue, ValueStore
from penstock.schema import Column, Exclusion, ForeignKey, TableSchema, Unique

OF_VALUES = (psycopg.Error, ValueError, ArithmeticError, MemoryError)
"""What the driver and Arrow raise for values on their way to the server; it is translated, see `errors.whose`."""

_CUT_TYPES = frozenset({"character varying", "character", "bit", "bit varying"})
"""Types that have a length, which an explicit cast cuts a value to without a word."""


class RowStatements(TargetSession):
    """The half of a session that runs statements, and says what their errors mean; `PostgresSession` is the other."""

    def __init__(self, url: str, connection: Connection, values: ValueStore | None) -> None:
        """Run statements through a connection to the database at `url`.

        Args:
            values: Where values are that are too large for their changes; None where there are none.
        """
        self._url = url
        self.connection = connection
        self._pieces = Pieces(connection, values)
        self._described: dict[TableName, TableSchema] = {}

    def insert(self, table: TargetTable, values: Image) -> None:
        """Insert a row; an identity takes the given value."""
        with self.translated():
            marks, given = self._pieces.marks(table, values, is_insert=True)
        if marks:
            names = ", ".join(map(quote, marks))
            statement = (
                f"INSERT INTO {quoted(table)} ({names}) OVERRIDING SYSTEM VALUE VALUES ({', '.join(marks.values())})"
            )
        else:
            statement = f"INSERT INTO {quoted(table)} DEFAULT VALUES"
        self.run(statement, given)

    def update(self, table: TargetTable, match: RowMatch, values: Image) -> int:
        """Set columns of the rows that match."""
        if not values:
            return len(self._find(table, match))
        condition, wanted = condition_sql(table, match)
        if any(table.schema.by_name[name].is_identity_always for name in values):
            return self._replace(table, match, values)
        with self.translated():
            self._pieces.check_appended(table, values, f"{only(table)} t WHERE {condition}", wanted)
            marks, given = self._pieces.marks(table, values)
        settings = ", ".join(f"{quote(name)} = {mark}" for name, mark in marks.items())
        if match.only_one:
            statement = (
                f"WITH one AS (SELECT tableoid, ctid FROM {only(table)} t WHERE {condition} LIMIT 1 FOR UPDATE)"
                f" UPDATE {only(table)} t SET {settings} FROM one"
                " WHERE t.ctid = one.ctid AND t.tableoid = one.tableoid"
            )
            return self.run(statement, [*wanted, *given]).rowcount
        statement = f"UPDATE {only(table)} t SET {settings} WHERE {condition}"
        return self.run(statement, [*given, *wanted]).rowcount

    def _replace(self, table: TargetTable, match: RowMatch, values: Image) -> int:
        """Set columns of the rows that match, one of them an identity, which only an insert may write."""
        condition, wanted = condition_sql(table, match)
        limit = " LIMIT 1" if match.only_one else ""
        names = [column.name for column in table.schema.columns if not column.is_generated]
        with self.translated():
            self._pieces.check_appended(table, values, f"{only(table)} t WHERE {condition}", wanted)
            marks, given = self._pieces.marks(table, {n: values[n] for n in names if n in values}, row="gone")
        kept = ", ".join(marks.get(name, f"gone.{quote(name)}") for name in names)
        statement = (
            f"WITH one AS (SELECT tableoid, ctid FROM {only(table)} t WHERE {condition}{limit} FOR UPDATE),"
            f" gone AS (DELETE FROM {only(table)} t USING one WHERE t.ctid = one.ctid AND t.tableoid = one.tableoid"
            " RETURNING t.*)"
            f" INSERT INTO {quoted(table)} ({', '.join(map(quote, names))}) OVERRIDING SYSTEM VALUE"
            f" SELECT {kept} FROM gone"
        )
        return self.run(statement, [*wanted, *given]).rowcount

    def delete(self, table: TargetTable, match: RowMatch) -> int:
        """Delete the rows that match."""
        condition, wanted = condition_sql(table, match)
        if match.only_one:
            statement = (
                f"WITH one AS (SELECT tableoid, ctid FROM {only(table)} t WHERE {condition} LIMIT 1 FOR UPDATE)"
                f" DELETE FROM {only(table)} t USING one WHERE t.ctid = one.ctid AND t.tableoid = one.tableoid"
            )
        else:
            statement = f"DELETE FROM {only(table)} t WHERE {condition}"
        return self.run(statement, wanted).rowcount

    def truncate(self, tables: Sequence[TargetTable]) -> None:
        """Empty several tables at once; those that only refer to each other may be named together."""
        self.run("TRUNCATE " + ", ".join(only(table) for table in tables))

    def describe(self, table: TableName) -> TableSchema | None:
        """Describe any table of the target."""
        with self.translated():
            return read_tables(self.connection, [table]).get(table)

    def describe_anew(self, table: TableName) -> TableSchema | None:
        """See `TargetSession.describe_anew`."""
        self.forget_tables()
        return self.describe(table)

    def forget_tables(self) -> None:
        """See `TargetSession.forget_tables`."""
        self._described = {}

    def lock_rows(self, table: TargetTable, match: RowMatch) -> list[Image]:
        """Return and lock up to two rows that have the key."""
        return self._find(table, RowMatch(match.key, {}))

    def compare_rows(self, table: TargetTable, match: RowMatch) -> list[ComparedRow]:
        """Return and lock up to two rows that have the key, each with the columns of `match.old` that differ."""
        condition, wanted = condition_sql(table, RowMatch(match.key, {}))
        tests, values = [], []
        for name, value in match.old.items():
            test, used = condition_sql(table, RowMatch({}, {name: value}))
            tests.append(test)
            values += used
        texts = [text_sql(column, f"t.{quote(column.name)}") for column in table.schema.columns]
        rows = self.run(
            f"SELECT {', '.join(texts + tests)} FROM {only(table)} t WHERE {condition} LIMIT 2 FOR UPDATE",
            [*values, *wanted],
        )
        return [compared(table, match, row) for row in rows]

    def compare_many(
        self, asked: Sequence[tuple[TargetTable, RowMatch]], *, lock: bool = True
    ) -> list[list[ComparedRow]]:
        """See `TargetSession.compare_many`."""
        found: list[list[ComparedRow]] = [[] for _ in asked]
        for indexes in alike((table, match.key, match.old) for table, match in asked):
            table = asked[indexes[0]][0]
            for row in self.run(*compare_many_sql(table, [asked[index][1] for index in indexes], lock=lock)):
                index = indexes[row[0] - 1]
                found[index].append(compared(table, asked[index][1], row[1:]))
        return found

    def update_many(self, updates: Sequence[tuple[TargetTable, RowMatch, Image]]) -> int:
        """See `TargetSession.update_many`."""
        count = 0
        for indexes in alike((table, match.key, values) for table, match, values in updates):
            keys, rows = [updates[n][1].key for n in indexes], [updates[n][2] for n in indexes]
            count += self.run(*update_many_sql(updates[indexes[0]][0], keys, rows)).rowcount
        return count

    def find_parents(self, foreign_key: ForeignKey, values: Sequence[Sequence[str]]) -> list[bool]:
        """See `TargetSession.find_parents`."""
        described = self._columns(foreign_key.child)
        columns = [described[name] for name in foreign_key.columns]
        found = {row[0] for row in self.run(*find_parents_sql(foreign_key, columns, values))}
        return [number in found for number in range(1, len(values) + 1)]

    def order(self, table: TargetTable, match: RowMatch, column: str, value: str | None) -> int | None:
        """Compare a value with a column of the row with the key; the column's own collation applies."""
        condition, wanted = condition_sql(table, RowMatch(match.key, {}))
        field, given = f"t.{quote(column)}", mark_of(table.schema.by_name[column])
        row = self.run(
            f"SELECT CASE WHEN {given} > {field} THEN 1 WHEN {given} = {field} THEN 0 WHEN {given} < {field} THEN -1"
            f" END FROM {only(table)} t WHERE {condition} LIMIT 1",
            [*[value] * (3 * given.count(PARAMETER)), *wanted],
        ).fetchone()
        return None if row is None else row[0]

    def shifted(self, table: TargetTable, match: RowMatch, column: str, old: str | None, new: str | None) -> str | None:
        """Return what a number of the row with the key is after it moved by `new` - `old`."""
        condition, wanted = condition_sql(table, RowMatch(match.key, {}))
        described = table.schema.by_name[column]
        mark = mark_of(described)
        moved = text_sql(described, f"(t.{quote(column)} + ({mark} - {mark}))")
        row = self.run(f"SELECT {moved} FROM {only(table)} t WHERE {condition} LIMIT 1", [new, old, *wanted]).fetchone()
        return None if row is None else row[0]

    def order_many(self, asked: Sequence[tuple[TargetTable, RowMatch, str, str | None]]) -> list[int | None]:
        """See `TargetSession.order_many`."""
        found: list[int | None] = [None] * len(asked)
        for indexes in alike((table, match.key, [column]) for table, match, column, _ in asked):
            table, _, column, _ = asked[indexes[0]]
            keys, values = [asked[n][1].key for n in indexes], [asked[n][3] for n in indexes]
            for number, order in self.run(*order_many_sql(table, keys, column, values)):
                found[indexes[number - 1]] = order
        return found

    def shifted_many(
        self, asked: Sequence[tuple[TargetTable, RowMatch, str, str | None, str | None]]
    ) -> list[str | None]:
        """See `TargetSession.shifted_many`."""
        found: list[str | None] = [None] * len(asked)
        for indexes in alike((table, match.key, [column]) for table, match, column, _, _ in asked):
            table, _, column, _, _ = asked[indexes[0]]
            keys, moves = [asked[n][1].key for n in indexes], [asked[n][3:] for n in indexes]
            for number, moved in self.run(*shifted_many_sql(table, keys, column, moves)):
                found[indexes[number - 1]] = moved
        return found

    def do_rows_differ(self, table: TargetTable, match: RowMatch) -> bool:
        """See `TargetSession.do_rows_differ`."""
        condition, wanted = condition_sql(table, match)
        texts = ", ".join(text_sql(column, f"t.{quote(column.name)}") for column in table.schema.columns)
        row = self.run(
            f"SELECT count(*) FROM (SELECT DISTINCT {texts} FROM {only(table)} t WHERE {condition} LIMIT 2) found",
            wanted,
        ).fetchone()
        return bool(row and row[0] > 1)

    def is_reference_broken(self, foreign_key: ForeignKey, values: Sequence[str], *, is_child: bool) -> bool:
        """Whether a child holds these values and no parent does; locks the parent against removal."""
        parents, children = map(quote, foreign_key.parent_columns), [quote(name) for name in foreign_key.columns]
        side, names = (
            (foreign_key.child, foreign_key.columns) if is_child else (foreign_key.parent, foreign_key.parent_columns)
        )
        columns = self._columns(side)
        # The two may be of different types: a date refers to a timestamp.
        given = [mark_of(columns[name]) for name in names]
        on_parent = refers_sql(foreign_key, parents, given)
        on_child = refers_sql(foreign_key, children, given) if is_child else refers_sql(foreign_key, given, children)
        found = self.run(
            f"SELECT FROM {quote(foreign_key.parent.schema, foreign_key.parent.name)} WHERE {on_parent} FOR KEY SHARE",
            values,
        )
        if found.fetchone() is not None:
            return False
        found = self.run(
            f"SELECT FROM {quote(foreign_key.child.schema, foreign_key.child.name)} WHERE {on_child} LIMIT 1",
            values,
        )
        return found.fetchone() is not None

    def is_unique_broken(self, table: TargetTable, image: Image) -> str | None:
        """Name a deferrable constraint that two rows now break, one of them with the values of `image`."""
        for unique in table.schema.all_uniques:
            if unique.is_deferrable and set(unique.columns) <= set(image):
                match = RowMatch({name: image[name] for name in unique.columns}, {})
                has_null = any(value is None for value in match.key.values())
                if (unique.nulls_are_equal or not has_null) and len(self._find(table, match, unique.equals)) > 1:
                    return unique.name
        for exclusion in table.schema.exclusions:
            if exclusion.is_deferrable and exclusion.columns and set(exclusion.columns) <= set(image):
                values = [image[name] for name in exclusion.columns]
                if None not in values and self._is_excluded(table, exclusion.columns, exclusion.operators, values):
                    return exclusion.name
        return None

    def unfit_column(self, table: TargetTable, image: Image) -> str | None:
        """See `TargetSession`; by the cast that a statement makes, then by the one to the column's length."""
        columns = [
            (table.schema.by_name[name], value)
            for name, value in image.items()
            if value is not None and not isinstance(value, ExternalValue)
        ]
        if self._takes(columns):
            # Only a length may still be too small, to which such a cast cuts without a word.
            columns = [(column, value) for column, value in columns if _has_length(column)]
        for column, value in columns:
            try:
                with self.savepoint():
                    is_cut = self._is_cut(column, value)
            except ApplyError:
                # Nothing but this value was asked about, so whatever is said is about it.
                return column.name
            if is_cut:
                return column.name
        return None

    def _takes(self, columns: Sequence[tuple[Column, str]]) -> bool:
        """Whether the types of these columns take their values, cut to their length."""
        marks = [f"({mark_of(column)})::{column.type}" for column, _ in columns]
        values = [value for (_, value), mark in zip(columns, marks, strict=True) for _ in range(mark.count(PARAMETER))]
        try:
            with self.savepoint():
                self.run(f"SELECT {', '.join(marks)}", values)
        except ApplyError:
            return False
        return True

    def _is_cut(self, column: Column, value: str | None) -> bool:
        """Whether a cast to the column's type cuts off more than blanks, which an assignment refuses."""
        given = mark_of(column)
        whole, cut = (
            f'pg_catalog.rtrim({text_sql(column, sql)}) COLLATE "C"' for sql in (given, f"({given})::{column.type}")
        )
        test = f"{whole} IS DISTINCT FROM {cut}"
        row = self.run(f"SELECT {test}", [value] * test.count(PARAMETER)).fetchone()
        return bool(row and row[0]) and _has_length(column)

    def rows_in_the_way(self, table: TargetTable, constraint: str, image: Image, *, lock: bool = False) -> list[Image]:
        """See `TargetSession.rows_in_the_way`."""
        rules: list[Unique | Exclusion] = [*table.schema.all_uniques, *table.schema.exclusions]
        # A partition's constraint has a name of its own.
        named = [rule for rule in rules if rule.name == constraint] or (rules if table.schema.is_partitioned else [])
        for rule in named:
            if not (rule.columns and set(rule.columns) <= set(image)):
                continue
            key = {name: image[name] for name in rule.columns}
            nulls_are_equal = isinstance(rule, Unique) and rule.nulls_are_equal
            if None not in key.values() or nulls_are_equal:
                found = self._find(table, RowMatch(key, {}), rule.equals, lock=lock)
                if found:
                    return found
        return []

    def _is_excluded(
        self, table: TargetTable, columns: Sequence[str], operators: Sequence[str], values: Sequence[str | None]
    ) -> bool:
        marks = [mark_of(table.schema.by_name[name]) for name in columns]
        tests = list(zip(columns, operators, marks, strict=True))
        with_rows = " AND ".join(equal_sql(quote(name), operator, mark) for name, operator, mark in tests)
        with_self = " AND ".join(equal_sql(mark, operator, mark) for _, operator, mark in tests)
        row = self.run(
            f"SELECT (SELECT count(*) FROM (SELECT FROM {only(table)} WHERE {with_rows} LIMIT 2) found)"
            f" > CASE WHEN {with_self} THEN 1 ELSE 0 END",
            [*values, *(value for value in values for _ in range(2))],
        ).fetchone()
        return bool(row and row[0])

    def _find(
        self, table: TargetTable, match: RowMatch, equals: Mapping[str, str] | None = None, *, lock: bool = True
    ) -> list[Image]:
        condition, wanted = condition_sql(table, match, equals)
        names = table.schema.column_names
        texts = ", ".join(text_sql(column, f"t.{quote(column.name)}") for column in table.schema.columns)
        rows = self.run(
            f"SELECT {texts} FROM {only(table)} t WHERE {condition} LIMIT 2{' FOR UPDATE' if lock else ''}", wanted
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _columns(self, name: TableName) -> Mapping[str, Column]:
        """The columns of any table at the target, also one that no change ever names."""
        if name not in self._described:
            self._described.update(read_tables(self.connection, [name]))
        return self._described[name].by_name

    def run(self, statement: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run a statement with `PARAMETER` for values."""
        return self.execute(statement.replace("%", "%%").replace(PARAMETER, "%s"), values)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run a statement with `%s` for values."""
        refuse_external(values)
        try:
            return self.connection.execute(statement, values)
        except Exception as exc:
            # An adapter of the driver's may raise anything.
            raise self.translate(exc) from exc

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise what the driver raises in the block as errors of ours."""
        try:
            yield
        except OF_VALUES as exc:
            raise self.translate(exc) from exc

    def translate(self, exc: Exception) -> PenstockError:
        """What an error means that came up while a statement of a change ran: see `errors.whose`."""
        match whose(exc, is_connected=not self.connection.closed):
            case FailureScope.CHANGE:
                return refused(exc)
            case FailureScope.CONTENTION:
                assert isinstance(exc, psycopg.Error)
                error = ContentionError(redacted_message(exc.diag), where=label(self._url))
                error.is_lock = isinstance(exc, psycopg.errors.LockNotAvailable)
                return error
            case FailureScope.PROCESS:
                assert isinstance(exc, psycopg.Error)
                return translate(exc, doing="apply", where=label(self._url))


def _has_length(column: Column) -> bool:
    return column.base_type.removesuffix("[]") in _CUT_TYPES
