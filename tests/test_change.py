"""The vocabulary of the stream: every reader and writer relies on these names, types and orders as they stand."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from penstock.change import ARROW_SCHEMA, Change, Op, TableName

CONTRACT = [
    ("source", pa.string(), False),
    ("txn_id", pa.string(), False),
    ("commit_scn", pa.int64(), False),
    ("change_seq", pa.int64(), False),
    ("txn_changes", pa.int64(), True),
    ("scn", pa.int64(), True),
    ("committed_at", pa.timestamp("us", tz="UTC"), True),
    ("op", pa.string(), False),
    ("schema_name", pa.string(), False),
    ("table_name", pa.string(), False),
    ("table_version", pa.int32(), False),
    ("key", pa.string(), True),
    ("before", pa.string(), True),
    ("after", pa.string(), True),
    ("ddl", pa.string(), True),
    ("tag", pa.string(), True),
    ("meta", pa.string(), True),
]


def test_the_stream_has_the_columns_of_the_design_in_its_order() -> None:
    assert [(field.name, field.type, field.nullable) for field in ARROW_SCHEMA] == CONTRACT


def test_operations_are_spelled_as_the_stream_spells_them() -> None:
    assert [op.value for op in Op] == ["insert", "update", "delete", "truncate", "gap", "snapshot", "ddl", "message"]
    assert [str(op) for op in Op] == [op.value for op in Op]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(TableName("public", "t"), TableName("Public", "t"), id="letter case of the schema"),
        pytest.param(TableName("public", "t"), TableName("public", "T"), id="letter case of the table"),
        pytest.param(TableName("a.b", "c"), TableName("a", "b.c"), id="a dot inside a name"),
        pytest.param(TableName("a\\", "b.c"), TableName("a\\.b", "c"), id="a dot behind a backslash"),
    ],
)
def test_names_that_the_database_keeps_apart_are_different(one: TableName, other: TableName) -> None:
    assert one.key != other.key
    assert one != other
    assert len({one, other}) == 2


def test_tables_sort_by_schema_then_name() -> None:
    names = [TableName("b", "a"), TableName("a", "z"), TableName("a", "b")]

    assert [str(name) for name in sorted(names)] == ["a.b", "a.z", "b.a"]


def test_a_change_stays_as_the_source_committed_it() -> None:
    change = Change(0, Op.INSERT, TableName("public", "t"), 1, None, {"id": "1"})

    with pytest.raises(dataclasses.FrozenInstanceError):
        change.op = Op.DELETE  # type: ignore[misc]  # what must not work
