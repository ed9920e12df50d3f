"""Table definitions: read whole or refused, and every version kept apart."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.schema import Column, Dictionary, Exclusion, ForeignKey, TableSchema, Unique

NAME = TableName("public", "emp")
DEPT = {"schema": "public", "name": "dept"}
EMP = {"schema": "public", "name": "emp"}

REFERENCE = {
    "name": "emp_dept_fkey",
    "child": EMP,
    "columns": ["dept_id"],
    "parent": DEPT,
    "parent_columns": ["id"],
    "is_match_full": False,
    "is_deferrable": True,
}
KEY = {
    "name": "emp_pkey",
    "columns": ["id"],
    "mentions": ["id"],
    "is_deferrable": False,
    "nulls_are_equal": False,
}
DEFINITION: dict[str, Any] = {
    **EMP,
    "columns": [
        {"name": "id", "type": "integer", "base_type": "integer", "is_nullable": False, "is_integer": True},
        {"name": "dept_id", "type": "integer", "base_type": "integer", "of_a_later_release": 1},
    ],
    "primary_key": KEY,
    "uniques": [{**KEY, "name": "u", "columns": [], "mentions": ["dept_id"], "nulls_are_equal": True}],
    "exclusions": [{"name": "x", "columns": ["id"], "operators": ["="], "is_deferrable": True}],
    "checks": ["id > 0"],
    "foreign_keys": [REFERENCE],
    "referenced_by": [],
    "is_partitioned": False,
    "fires_triggers": True,
    "has_row_security": False,
}


def test_a_definition_is_read_whole() -> None:
    table = TableSchema.from_definition(DEFINITION, version=3)

    reference = ForeignKey("emp_dept_fkey", NAME, ("dept_id",), TableName("public", "dept"), ("id",), False, True)
    assert table == TableSchema(
        name=NAME,
        columns=(
            Column("id", "integer", "integer", is_nullable=False, is_integer=True),
            Column("dept_id", "integer", "integer", native={"of_a_later_release": 1}),
        ),
        primary_key=Unique("emp_pkey", ("id",), ("id",)),
        uniques=(Unique("u", (), ("dept_id",), nulls_are_equal=True),),
        exclusions=(Exclusion("x", ("id",), ("=",), is_deferrable=True),),
        checks=("id > 0",),
        foreign_keys=(reference,),
        fires_triggers=True,
        version=3,
    )


def test_columns_are_found_by_name_and_kept_in_catalogue_order() -> None:
    table = TableSchema.from_definition(DEFINITION)

    assert table.column_names == ["id", "dept_id"]
    assert table.by_name["dept_id"] is table.columns[1]


@pytest.mark.parametrize(("has_key", "names"), [(True, ["emp_pkey", "u"]), (False, ["u"])])
def test_all_unique_indexes_begin_with_the_primary_key(has_key: bool, names: list[str]) -> None:
    table = TableSchema.from_definition({**DEFINITION, "primary_key": KEY if has_key else None})

    assert [unique.name for unique in table.all_uniques] == names


@pytest.mark.parametrize("part", sorted(DEFINITION))
def test_a_definition_without_one_of_its_parts_is_refused(part: str) -> None:
    definition = {name: value for name, value in DEFINITION.items() if name != part}

    with pytest.raises(MalformedInputError) as caught:
        TableSchema.from_definition(definition)

    assert str(caught.value) == f"table definition lacks {part!r}"


@pytest.mark.parametrize(
    ("inside", "part"),
    [
        *(("primary_key", part) for part in KEY),
        *(("foreign_keys", part) for part in REFERENCE),
        *(("exclusions", part) for part in DEFINITION["exclusions"][0]),
    ],
)
def test_a_constraint_without_one_of_its_parts_is_refused(inside: str, part: str) -> None:
    definition = copy.deepcopy(DEFINITION)
    holder = definition[inside] if inside == "primary_key" else definition[inside][0]
    del holder[part]

    with pytest.raises(MalformedInputError, match=f"lacks '{part}'"):
        TableSchema.from_definition(definition)


def test_a_change_is_read_with_the_version_it_was_written_under() -> None:
    old, new = (TableSchema.from_definition(DEFINITION, version=version) for version in (1, 2))

    dictionary = Dictionary([new, old])

    assert len(dictionary) == 2
    assert dictionary.get(NAME, 1) is old
    assert dictionary.get(NAME, 2) is new


@pytest.mark.parametrize(
    ("name", "version"), [(NAME, 2), (TableName("public", "EMP"), 1), (TableName("other", "emp"), 1)]
)
def test_a_version_that_was_never_described_is_refused(name: TableName, version: int) -> None:
    dictionary = Dictionary([TableSchema.from_definition(DEFINITION)])

    with pytest.raises(MalformedInputError) as caught:
        dictionary.get(name, version)

    assert caught.value.where == f"table {name}, version {version}"


@pytest.mark.parametrize("part", ["name", "type", "base_type"])
def test_a_column_without_one_of_its_parts(part: str) -> None:
    definition = copy.deepcopy(DEFINITION)
    del definition["columns"][0][part]
    with pytest.raises(MalformedInputError):
        TableSchema.from_definition(definition)
