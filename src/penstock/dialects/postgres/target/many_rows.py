"""Many rows at once: compared, written, or looked for, in one statement for all that are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from penstock.apply.target import ComparedRow, RowMatch, TargetTable
from penstock.change import Image
from penstock.dialects.postgres.casts import cast_sql, refers_sql, text_sql
from penstock.dialects.postgres.connection import quote
from penstock.dialects.postgres.target.row_sql import PARAMETER, condition_sql, only
from penstock.schema import Column, ForeignKey


def alike(rows: Iterable[tuple[TargetTable, Image, Iterable[str]]]) -> list[list[int]]:
    """Put together, by their indexes, what one statement can do.

    Args:
        rows: For each row its table, its key, and the other columns that the statement names.
    """
    found: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, (table, key, columns) in enumerate(rows):
        nulls = tuple((name, value is None) for name, value in key.items())
        found[table.name, nulls, tuple(columns)].append(index)
    return list(found.values())


def compare_many_sql(
    table: TargetTable, matches: Sequence[RowMatch], *, lock: bool
) -> tuple[str, list[list[str | None]]]:
    """SQL that finds the rows of matches that are alike, and its parameters: a list of texts for each column.

    A row that is returned begins with the number of its match, counted from 1; then come its columns as text, and for
    each column of `RowMatch.old` whether it is as expected.
    """
    given = _Given(len(matches))
    keys = [match.key for match in matches]
    conditions = [_is_of(table, name, given.add([key[name] for key in keys]), keys[0][name]) for name in keys[0]]
    tests = []
    for name in matches[0].old:
        # Of one that is not null: then a null is compared like any other value.
        test, _ = condition_sql(table, RowMatch({}, {name: ""}))
        tests.append(test.replace(PARAMETER, given.add([match.old[name] for match in matches])))
    texts = [text_sql(column, f"t.{quote(column.name)}") for column in table.schema.columns]
    return (
        f"SELECT {', '.join(['w.number', *texts, *tests])} FROM {given.rows}, {only(table)} t"
        f" WHERE {' AND '.join(conditions)}{' FOR UPDATE OF t' if lock else ''}",
        given.values,
    )


def update_many_sql(
    table: TargetTable, keys: Sequence[Image], rows: Sequence[Image]
) -> tuple[str, list[list[str | None]]]:
    """SQL that sets the same columns of rows, found by keys that are alike, and its parameters as above."""
    given = _Given(len(rows))
    conditions = [_is_of(table, name, given.add([key[name] for key in keys]), keys[0][name]) for name in keys[0]]
    settings = [
        f"{quote(name)} = {cast_sql(table.schema.by_name[name], given.add([row[name] for row in rows]))}"
        for name in rows[0]
    ]
    return (
        f"UPDATE {only(table)} t SET {', '.join(settings)} FROM {given.rows} WHERE {' AND '.join(conditions)}",
        given.values,
    )


def order_many_sql(
    table: TargetTable, keys: Sequence[Image], column: str, values: Sequence[str | None]
) -> tuple[str, list[list[str | None]]]:
    """SQL that compares values with a column of rows, found by keys that are alike, and its parameters as above.

    A row that is returned has the number of its key, counted from 1, and 1, 0 or -1, or null.
    """
    given = _Given(len(keys))
    conditions = [_is_of(table, name, given.add([key[name] for key in keys]), keys[0][name]) for name in keys[0]]
    value, field = cast_sql(table.schema.by_name[column], given.add(values)), f"t.{quote(column)}"
    return (
        f"SELECT w.number, CASE WHEN {value} > {field} THEN 1 WHEN {value} = {field} THEN 0"
        f" WHEN {value} < {field} THEN -1 END FROM {given.rows}, {only(table)} t WHERE {' AND '.join(conditions)}",
        given.values,
    )


def shifted_many_sql(
    table: TargetTable, keys: Sequence[Image], column: str, moves: Sequence[Sequence[str | None]]
) -> tuple[str, list[list[str | None]]]:
    """The same for what a number of each row is after it moved by the second value less the first."""
    given = _Given(len(keys))
    conditions = [_is_of(table, name, given.add([key[name] for key in keys]), keys[0][name]) for name in keys[0]]
    described = table.schema.by_name[column]
    old, new = (cast_sql(described, given.add([move[n] for move in moves])) for n in range(2))
    return (
        f"SELECT w.number, {text_sql(described, f'(t.{quote(column)} + ({new} - {old}))')}"
        f" FROM {given.rows}, {only(table)} t WHERE {' AND '.join(conditions)}",
        given.values,
    )


def find_parents_sql(
    foreign_key: ForeignKey, columns: Sequence[Column], values: Sequence[Sequence[str]]
) -> tuple[str, list[list[str | None]]]:
    """SQL that finds and locks what children refer to; returns the number of the child, counted from 1.

    Args:
        columns: The columns of the foreign key at the child.
        values: For each child, of these columns.
    """
    given = _Given(len(values))
    children = [cast_sql(column, given.add([row[n] for row in values])) for n, column in enumerate(columns)]
    parents = [f"t.{quote(name)}" for name in foreign_key.parent_columns]
    return (
        f"SELECT w.number FROM {given.rows}, {quote(foreign_key.parent.schema, foreign_key.parent.name)} t"
        f" WHERE {refers_sql(foreign_key, parents, children)} FOR KEY SHARE OF t",
        given.values,
    )


class _Given:
    """Rows of texts that are given to a statement, which it calls `w`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.values: list[list[str | None]] = []

    def add(self, column: Sequence[str | None]) -> str:
        """Add a column; returns what it is called."""
        assert len(column) == self._count
        self.values.append(list(column))
        return f"w.c{len(self.values)}"

    @property
    def rows(self) -> str:
        names = [f"c{n}" for n in range(1, len(self.values) + 1)]
        arrays = ", ".join([f"{PARAMETER}::pg_catalog.text[]"] * len(names))
        # Of several arrays it is no function, which pg_catalog would have, but a part of the language.
        return f"unnest({arrays}) WITH ORDINALITY w ({', '.join([*names, 'number'])})"


def _is_of(table: TargetTable, name: str, given: str, example: str | None) -> str:
    """SQL for whether a row has a value of its key; of each example that is null, all are."""
    condition, _ = condition_sql(table, RowMatch({name: example}, {}))
    return condition.replace(PARAMETER, given)


def compared(table: TargetTable, match: RowMatch, row: Sequence[object]) -> ComparedRow:
    """What is found of a row: its columns as text, and those of `match.old` that it has otherwise."""
    names = table.schema.column_names
    differing = [name for name, is_same in zip(match.old, row[len(names) :], strict=True) if not is_same]
    return dict(zip(names, row, strict=False)), differing  # type: ignore[arg-type]  # the first ones are text
