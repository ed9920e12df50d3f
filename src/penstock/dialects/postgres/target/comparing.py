"""Rows at the target held against what many changes expect of them, in one statement for all that expect it alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from penstock.apply.target import ComparedRow, RowMatch, TargetTable
from penstock.dialects.postgres.casts import text_sql
from penstock.dialects.postgres.connection import quote
from penstock.dialects.postgres.target.row_sql import PARAMETER, condition_sql, only

_Shape = tuple[TargetTable, tuple[tuple[str, bool], ...], tuple[str, ...]]
"""A table, its key columns and whether each is null, and the columns that are compared."""


def alike(asked: Sequence[tuple[TargetTable, RowMatch]]) -> list[list[int]]:
    """Put together, by their indexes, what one statement can ask for."""
    found: dict[_Shape | tuple[object, ...], list[int]] = defaultdict(list)
    for index, (table, match) in enumerate(asked):
        nulls = tuple((name, value is None) for name, value in match.key.items())
        found[table.name, nulls, tuple(match.old)].append(index)
    return list(found.values())


def compare_many_sql(table: TargetTable, matches: Sequence[RowMatch]) -> tuple[str, list[list[str | None]]]:
    """SQL that finds and locks the rows of matches that are alike, and its parameters: a list of texts for each column.

    A row that is returned begins with the number of its match, counted from 1; then come its columns as text, and for
    each column of `RowMatch.old` whether it is as expected.
    """
    first = matches[0]
    conditions, tests, columns = [], [], []

    def value(name: str, values: Sequence[str | None]) -> str:
        columns.append(values)
        return f"w.{name}"

    for n, (name, given) in enumerate(first.key.items()):
        condition, _ = condition_sql(table, RowMatch({name: given}, {}))
        conditions.append(condition.replace(PARAMETER, value(f"k{n}", [match.key[name] for match in matches])))
    for n, name in enumerate(first.old):
        # Of one that is not null: then a null is compared like any other value.
        test, _ = condition_sql(table, RowMatch({}, {name: ""}))
        tests.append(test.replace(PARAMETER, value(f"o{n}", [match.old[name] for match in matches])))
    texts = [text_sql(column, f"t.{quote(column.name)}") for column in table.schema.columns]
    names = [*(f"k{n}" for n in range(len(first.key))), *(f"o{n}" for n in range(len(first.old))), "number"]
    given = ", ".join([f"{PARAMETER}::pg_catalog.text[]"] * len(columns))
    return (
        f"SELECT {', '.join(['w.number', *texts, *tests])}"
        f" FROM unnest({given}) WITH ORDINALITY w ({', '.join(names)}), {only(table)} t"
        f" WHERE {' AND '.join(conditions)} FOR UPDATE OF t",
        [list(values) for values in columns],
    )


def compared(table: TargetTable, match: RowMatch, row: Sequence[object]) -> ComparedRow:
    """What is found of a row: its columns as text, and those of `match.old` that it has otherwise."""
    names = table.schema.column_names
    differing = [name for name, is_same in zip(match.old, row[len(names) :], strict=True) if not is_same]
    return dict(zip(names, row, strict=False)), differing  # type: ignore[arg-type]  # the first ones are text
