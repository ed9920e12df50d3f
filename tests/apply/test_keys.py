"""The row key: which columns tell rows apart, the first rule that fits."""

from __future__ import annotations

import pytest

from penstock.apply.keys import RowKey, row_key
from penstock.change import TableName
from penstock.schema import Column, TableSchema, Unique


def column(name: str, *, null: bool = True, key: bool = True) -> Column:
    return Column(name, "text", "text", is_nullable=null, is_key_usable=key)


def unique(name: str, *columns: str, nulls_are_equal: bool = False) -> Unique:
    return Unique(name, columns, columns, nulls_are_equal=nulls_are_equal)


A, B, C, N, M, LOB = (
    column("a", null=False),
    column("b", null=False),
    column("c", null=False),
    column("n"),
    column("m"),
    column("lob", key=False),
)
ON_EXPRESSION = Unique("aaa", (), ("a",))


@pytest.mark.rule("A-67")
@pytest.mark.parametrize(
    ("primary", "uniques", "expected"),
    [
        pytest.param(unique("p", "b", "a"), [unique("u", "c")], RowKey(("b", "a"), True, True), id="primary key first"),
        pytest.param(None, [unique("u", "a", "b"), unique("v", "c")], RowKey(("c",), True, True), id="fewest columns"),
        pytest.param(None, [unique("v", "a"), unique("u", "b")], RowKey(("b",), True, True), id="then the name"),
        pytest.param(None, [unique("u", "n"), unique("v", "a", "b")], RowKey(("a", "b"), True, True), id="all null"),
        pytest.param(None, [unique("u", "n", "a")], RowKey(("n", "a"), False, True), id="one null admits two rows"),
        pytest.param(
            None,
            [unique("u", "n", "a", nulls_are_equal=True)],
            RowKey(("n", "a"), True, True),
            id="unless nulls are equal",
        ),
        pytest.param(None, [ON_EXPRESSION, unique("u", "a", "b")], RowKey(("a", "b"), True, True), id="no expressions"),
        pytest.param(None, [], RowKey(("a", "b", "c", "n", "m"), False, False), id="no key: what can be compared"),
        pytest.param(None, [unique("u", "n")], RowKey(("a", "b", "c", "n", "m"), False, False), id="only a null key"),
        pytest.param(None, [ON_EXPRESSION], RowKey(("a", "b", "c", "n", "m"), False, False), id="only an expression"),
    ],
)
def test_the_first_rule_that_fits(primary: Unique | None, uniques: list[Unique], expected: RowKey) -> None:
    table = TableSchema(TableName("public", "t"), (A, B, C, N, LOB, M), primary, tuple(uniques))

    assert row_key(table) == expected


@pytest.mark.rule("A-67")
def test_a_table_may_have_nothing_to_tell_rows_apart() -> None:
    assert row_key(TableSchema(TableName("public", "t"), (LOB,))) == RowKey((), False, False)
