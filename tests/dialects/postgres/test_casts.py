"""SQL of a column's values is what its definition says, also one that an earlier version has stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.change import TableName
from penstock.dialects.postgres.casts import (
    cast_sql,
    is_copied_as_text,
    refers_sql,
    same_text_sql,
    staging_type,
    text_sql,
    value_sql,
)
from penstock.dialects.postgres.logical import with_logical
from penstock.logical import LogicalType
from penstock.schema import Column, ForeignKey, TableSchema

STORED: dict[str, Any] = json.loads((Path(__file__).parent / "earlier_definitions.json").read_text(encoding="utf-8"))
"""Definitions as they were stored when casts were fields of a column: as a change log, and as a ledger or an archive
has one of a table of PostgreSQL's; of a table that rules have changed; of one of no database."""

DECODE = {"from_text": "decode({}, 'base64')"}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (text_sql(Column("c", "text", "text"), "t.c"), "t.c::text"),
        (text_sql(Column("c", "bytea", "bytea", native={"to_text": "encode({}, 'hex')"}), "t.c"), "encode(t.c, 'hex')"),
        (value_sql(Column("c", "int", "int"), "s.c"), "s.c"),
        (value_sql(Column("c", "bytea", "bytea", native=DECODE), "s.c"), "decode(s.c, 'base64')"),
        (cast_sql(Column("c", "int", "int", native={"cast_type": "integer"}), "%s"), "%s::integer"),
        (cast_sql(Column("c", "bytea", "bytea", native=DECODE), "%s"), "decode(%s::text, 'base64')"),
        (
            same_text_sql(Column("c", "text", "text"), "a", "b"),
            'a::text COLLATE "C" IS NOT DISTINCT FROM b::text COLLATE "C"',
        ),
        (staging_type(Column("c", "int", "int")), "text"),
        (staging_type(Column("c", "money", "money", native={"staging_type": "numeric"})), "numeric"),
    ],
)
def test_a_column_is_cast_as_its_definition_says(sql: str, expected: str) -> None:
    assert sql == expected


def test_text_is_copied_into_a_column_that_reads_it_as_it_stands() -> None:
    assert is_copied_as_text(Column("c", "int", "int"))
    assert not is_copied_as_text(Column("c", "bytea", "bytea", native=DECODE))


def test_the_columns_of_a_foreign_key_are_compared_as_its_definition_says() -> None:
    key = ForeignKey("k", TableName("s", "child"), ("x", "y"), TableName("s", "parent"), ("a", "b"))
    told = {"operators": ["=", "pg_catalog.enum_eq ::mood"], "child_casts": ["::date", ""]}

    described_long_ago = refers_sql(key, ["p.a", "p.b"], ["c.x", "c.y"])
    described = refers_sql(ForeignKey("k", key.child, key.columns, key.parent, ("a", "b"), native=told), "ab", "xy")

    assert described_long_ago == "p.a = c.x AND p.b = c.y"
    assert described == "a = x::date AND pg_catalog.enum_eq(b::mood, y::mood)"


def test_a_definition_from_an_earlier_change_log_is_read_with_its_casts() -> None:
    table = TableSchema.from_definition(with_logical(STORED["captured"]))

    assert table == TableSchema.from_definition(STORED["kept"])
    assert_casts(table)
    raw = table.by_name["raw"]
    assert (str(raw.logical), raw.dialect, raw.is_domain) == ("binary", "postgres", True)


@pytest.mark.parametrize("by", ["kept", "ruled"])
def test_a_definition_from_an_earlier_ledger_or_archive_is_read_with_its_casts(by: str) -> None:
    assert_casts(TableSchema.from_definition(STORED[by]))


def assert_casts(table: TableSchema) -> None:
    columns = table.by_name
    assert text_sql(columns["born"], "t.b") == "pg_catalog.btrim(pg_catalog.to_json(t.b)::pg_catalog.text, '\"')"
    assert text_sql(columns["mood"], "m") == "CASE WHEN m IS DISTINCT FROM NULL THEN pg_catalog.concat(m) END"
    assert value_sql(columns["raw"], "s.r") == "pg_catalog.decode(s.r, 'base64')"
    assert cast_sql(columns["cash"], "%s") == "%s::numeric::pg_catalog.money"
    assert cast_sql(columns["flags"], "%s") == '%s::"bit"'
    assert [staging_type(columns[name]) for name in ("id", "price", "raw", "cash", "code", "mood")] == [
        "integer", "numeric(8,2)", "text", "numeric", "character(3)", "public.mood",
    ]  # fmt: skip
    assert [name for name, column in columns.items() if not is_copied_as_text(column)] == ["raw", "cash"]
    assert table.uniques[0].equals == {"mood": "pg_catalog.enum_eq ::public.mood"}
    (key,) = table.foreign_keys
    assert refers_sql(key, "a", "b") == "pg_catalog.enum_eq(a::public.mood, b::public.mood)"


@pytest.mark.parametrize("by", ["kept", "ruled"])
def test_a_definition_is_written_as_an_earlier_version_reads_it(by: str) -> None:
    written = TableSchema.from_definition(STORED[by]).to_definition()

    assert json.loads(json.dumps(written)) == STORED[by]


def test_a_definition_of_no_database_says_nothing_of_casts() -> None:
    told = (("id", "integer(32)", False), ("raw", "binary", True))
    columns = [Column.of(name, LogicalType.parse(type_), is_nullable=null) for name, type_, null in told]
    table = TableSchema(TableName("public", "odd"), tuple(columns))

    read = TableSchema.from_definition(STORED["told"])

    # What stood in earlier definitions without need is kept, and is what is meant where nothing is said.
    assert [column.native.pop("to_text") for column in read.columns] == ["{}::text"] * 2
    assert [text_sql(column, "c") for column in read.columns] == ["c::text"] * 2
    assert table.to_definition()["columns"][1] == {
        name: value
        for name, value in STORED["told"]["columns"][1].items()
        if name not in ("to_text", "from_text", "staging_type", "cast_type")
    }
