"""SQL of single rows: how one is found, and how a value is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.apply.target import RowMatch, TargetTable
from penstock.dialects.postgres.casts import cast_sql, equal_sql, same_text_sql
from penstock.dialects.postgres.connection import quote
from penstock.schema import Column

PARAMETER = "\0"
"""Stands for a value in a statement built from names, which may hold a % but no zero byte."""


def condition_sql(
    table: TargetTable, match: RowMatch, equals: Mapping[str, str] | None = None
) -> tuple[str, list[str | None]]:
    """SQL that finds the rows of a match, and its values in order; `equals` are operators other than the row key's."""
    equals = table.key.equals if equals is None else equals
    tests, values = [], []

    def add(test: str, value: str | None) -> None:
        tests.append(test)
        values.extend([value] * test.count(PARAMETER))

    for name, value in match.key.items():
        column, field = table.schema.by_name[name], f"t.{quote(name)}"
        if value is None:
            # A test for null, which IS NULL is not of rows; and an index can be used.
            add(f"{field} IS NOT DISTINCT FROM NULL", value)
        elif name in equals or column.is_builtin:
            add(equal_sql(field, equals.get(name, "="), mark_of(column)), value)
        else:
            # A cast that an enum's owner made may leave it open which `=` is meant; compare the text.
            add(same_text_sql(column, field, mark_of(column)), value)
    for name, value in match.old.items():
        column, field = table.schema.by_name[name], f"t.{quote(name)}"
        if value is None:
            add(f"{field} IS NOT DISTINCT FROM NULL", value)
        elif column.is_exact and column.is_builtin:
            add(f"{field} IS NOT DISTINCT FROM {mark_of(column)}", value)
        else:
            add(same_text_sql(column, field, mark_of(column)), value)
    return all_of(tests), values


def mark_of(column: Column) -> str:
    """SQL for a value of a column from a parameter."""
    return cast_sql(column, PARAMETER)


def quoted(table: TargetTable) -> str:
    """The table's name."""
    return quote(table.name.schema, table.name.name)


def only(table: TargetTable) -> str:
    """The table without those that inherit from it, unless they are its partitions."""
    return quoted(table) if table.schema.is_partitioned else f"ONLY {quoted(table)}"


def all_of(tests: Iterable[str]) -> str:
    """SQL for whether all tests hold."""
    return " AND ".join(tests) or "true"
