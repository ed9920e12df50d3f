"""Logical types: their text forms, the names of SQL, and columns that are made of them alone."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.logical import Kind, LogicalType, array, decimal, floating, integer, of_sql_name, other, string
from penstock.schema import Column, TableSchema

NUMBERS = st.integers(1, 99)
SIMPLE = [Kind.BOOLEAN, Kind.BINARY, Kind.DATE, Kind.INTERVAL, Kind.JSON, Kind.UUID, Kind.XML]
TIMES = [Kind.TIME, Kind.TIMETZ, Kind.TIMESTAMP, Kind.TIMESTAMPTZ]

TYPES = st.recursive(
    st.one_of(
        st.sampled_from(SIMPLE).map(LogicalType),
        st.builds(integer, st.sampled_from([8, 16, 24, 32, 64])),
        st.builds(floating, st.sampled_from([32, 64])),
        st.builds(decimal, NUMBERS, st.none() | st.integers(-5, 99)) | st.just(decimal()),
        st.builds(string, st.none() | NUMBERS, is_padded=st.booleans()),
        st.builds(LogicalType, st.sampled_from(TIMES), precision=st.none() | st.integers(0, 9)),
        st.builds(LogicalType, st.just(Kind.BITS), length=st.none() | NUMBERS),
        st.builds(LogicalType, st.just(Kind.ENUM), values=st.lists(st.text(), min_size=1).map(tuple)),
        st.builds(other, st.text(min_size=1)),
    ),
    lambda inner: st.builds(array, inner),
)


@given(TYPES)
def test_the_text_form_reads_back(type_: LogicalType) -> None:
    assert LogicalType.parse(str(type_)) == type_
    assert pickle.loads(pickle.dumps(type_)) == type_


@pytest.mark.parametrize(
    "text",
    ["", "integer(x)", "decimal(1,2,3)", "enum('a''", "array", "array(string", "date(3", "other(1)", "string(2))", "Ä"],
)
def test_what_is_no_type_is_refused_by_name(text: str) -> None:
    with pytest.raises(MalformedInputError) as caught:
        LogicalType.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("numeric(10,2)", "decimal(10,2)"),
        ("numeric", "decimal"),
        ("DECIMAL(5)", "decimal(5,0)"),
        ("varchar(20)", "string(20)"),
        ("character(3)", "string(3,padded)"),
        ("timestamp(3) with time zone", "timestamptz(3)"),
        ("time without time zone", "time"),
        ("interval day to second(3)", "interval"),
        ("integer[]", "array(integer(32))"),
        ("double precision", "float(64)"),
        ("bit varying(5)", "bits"),
    ],
)
def test_names_of_sql_are_read(name: str, text: str) -> None:
    assert str(LogicalType.parse(name)) == text


def test_names_that_only_one_database_has_are_not() -> None:
    assert of_sql_name("public.mood") is None
    assert str(Column("c", "inet", "inet").logical) == "other('inet')"


def test_a_definition_keeps_what_columns_hold() -> None:
    column = Column.of("c", array(decimal(10, 2)), is_nullable=False)
    table = TableSchema(TableName("s", "t"), (column, Column("old", "numeric(5,1)", "numeric")))

    read = TableSchema.from_definition(table.to_definition())

    assert read == table
    assert [str(c.logical) for c in read.columns] == ["array(decimal(10,2))", "decimal(5,1)"]


def test_a_definition_of_an_earlier_version_tells_it_by_the_name() -> None:
    definition = TableSchema(
        TableName("s", "t"), (Column("c", "timestamp with time zone", "timestamp"),)
    ).to_definition()
    for column in definition["columns"]:
        del column["logical"], column["dialect"], column["is_domain"]

    assert str(TableSchema.from_definition(definition).by_name["c"].logical) == "timestamptz"


def test_columns_of_two_databases_take_each_other_by_what_they_hold() -> None:
    ours = Column("c", "numeric(10,2)", "numeric", dialect="postgres", notation="")
    told = Column.of("c", decimal(10, 2))

    assert ours.takes(told)
    assert not ours.takes(Column.of("c", decimal(12, 2)))
    assert not replace(ours, type="public.price", is_domain=True).takes(told)
    moment = Column(
        "c", "timestamp with time zone", "timestamp with time zone", dialect="postgres", notation="timestamptz?"
    )
    assert moment.reads(Column.of("c", LogicalType(Kind.TIMESTAMPTZ)))
    assert not ours.reads(Column.of("c", LogicalType(Kind.BINARY)))
