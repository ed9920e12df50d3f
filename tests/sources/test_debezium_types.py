"""Events without schemas: no table is made of columns whose types nobody has told, unless the file says so."""

from __future__ import annotations

import pytest

from penstock.change import TableName
from penstock.database import DatabasePlan
from penstock.errors import OperatorError
from penstock.formats.debezium.declared import DeclaredModes
from penstock.formats.debezium.decode import DecodeSettings
from penstock.formats.debezium.source_types import check_type
from penstock.logical import Kind, LogicalType
from penstock.schema import Column, TableSchema
from penstock.sources.debezium.connector import DebeziumConnector, Untyped
from penstock.sources.debezium.log import LogLayout
from penstock.sources.debezium.tables import Tables
from tests.sources.memory_log import ENDS, ORDERS, MemoryLog, ended, event

NAME = TableName("public", "orders")


def plan(*known: str, untyped: Untyped = Untyped()) -> DatabasePlan:
    """What is planned for events with column `id`, where the target has a table of these columns."""

    def described(name: TableName) -> TableSchema | None:
        number = LogicalType(Kind.INTEGER, bits=32)
        columns = tuple(Column.of(column, number, is_nullable=True) for column in known)
        return TableSchema(name, columns, None) if known else None

    log = MemoryLog({ORDERS: [event(5, order=1)], ENDS: ended("5")})
    tables = Tables(DecodeSettings(), "shop", skips=False, described=described)
    side = DebeziumConnector(log, LogLayout(ENDS.topic), tables, "shop", untyped=untyped)
    return side.plan([NAME], [])


class OtherTopics(MemoryLog):
    """A cluster of other topics."""

    def others(self) -> list[str]:
        return ["pub.public.t", "shop.public.items", "shop.public.orders", "shop.transaction", "plain"]


def side_of(log: MemoryLog, prefix: str) -> DebeziumConnector:
    tables = Tables(DecodeSettings(), prefix, skips=False)
    return DebeziumConnector(log, LogLayout(f"{prefix}.transaction"), tables, "shop")


def test_a_wrong_prefix_is_told_with_those_that_there_are() -> None:
    with pytest.raises(OperatorError) as refused:
        side_of(OtherTopics({}), "shopp").match(["public.*"])
    assert refused.value.what == "no topic begins with 'shopp.'; there are shop.* (3 topics), pub.* (1 topic)"
    assert "capture.debezium.prefix" in refused.value.do
    with pytest.raises(OperatorError, match=r"no topic begins with 'shopp\.', or none that this user may see"):
        side_of(MemoryLog({}), "shopp").match(["public.*"])


def test_a_pattern_that_means_no_table_is_told_with_those_that_there_are() -> None:
    log = MemoryLog({ORDERS: [event(5, order=1)], ENDS: ended("5")})
    with pytest.raises(OperatorError) as refused:
        side_of(log, "shop").match(["app.*"])
    assert refused.value.do.endswith("; there is public.orders")


def test_a_table_that_is_not_at_the_target_is_refused_with_the_ways_out() -> None:
    (fault,) = plan().faults
    assert str(fault) == (
        "events of public.orders tell no types (memory). Make the table at the target first; or write the types"
        " that the source's columns have as capture.debezium.columns; or have the connector write schemas"
        " (key.converter.schemas.enable and value.converter.schemas.enable); or set"
        " capture.debezium.untyped to text, which makes every such column text"
    )


def test_of_a_table_at_the_target_only_the_columns_are_refused_that_it_lacks() -> None:
    assert not plan("id").faults
    (fault,) = plan("other").faults
    assert fault.what == "events of public.orders tell no type of column id"


def test_a_file_that_wants_text_gets_it_and_a_note() -> None:
    found = plan(untyped=Untyped(as_text=True))
    assert not found.faults
    assert any("the target gets text" in note for note in found.notes)


def test_where_rules_keep_the_target_from_being_asked_it_is_no_way_out() -> None:
    (fault,) = plan(untyped=Untyped(by_target=False)).faults
    assert "Make the table" not in str(fault)
    assert "capture.debezium.untyped" in str(fault)


@pytest.mark.parametrize("text", ["smallint unsigned", "SERIAL", "smallmoney", "varint", "duration", "xmltype"])
def test_a_type_of_one_connector_s_database_alone_is_one(text: str) -> None:
    check_type(text, DeclaredModes())


def test_a_type_of_no_database_is_none() -> None:
    with pytest.raises(ValueError, match="which is no type; write it as the source has it"):
        check_type("intt", DeclaredModes())
