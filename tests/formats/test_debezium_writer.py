"""Events to the byte: those that Kafka Connect's converter and Debezium 3.6.3 made of the same changes."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import orjson
import pytest

from penstock.change import Image, Op, TableName
from penstock.errors import OperatorError
from penstock.formats.debezium.columns import Connector, ConnectorModes, field_type
from penstock.formats.debezium.java_text import connect_json, decimal_bytes, float_text
from penstock.formats.debezium.source_block import STREAMING, ChangePlace
from penstock.formats.debezium.writer import (
    EventSettings,
    EventWriter,
    JsonPacking,
    OutgoingRecord,
    TableWriter,
    topic_faults,
)
from penstock.schema import Column, TableSchema, Unique

NOW_NS = 1532592105975123456

CUSTOMERS = TableName("DEBEZIUM", "CUSTOMERS")
ORDERS = TableName("DEBEZIUM", "ORDERS")

ANNE = {"ID": "1004", "FIRST_NAME": "Anne", "LAST_NAME": "Kretchmar", "EMAIL": "annek@noanswer.org"}
ANNE_MOVED = ANNE | {"EMAIL": "anne@example.com"}


def made_table(name: TableName, key: tuple[str, ...], **types: str) -> TableSchema:
    columns = []
    for column, type_ in types.items():
        text = type_.removesuffix("?")
        base = text.partition("(")[0] + text.partition(")")[2] if "(" in text else text
        columns.append(Column(column, text, base.strip(), is_nullable=type_.endswith("?")))
    return TableSchema(name, tuple(columns), primary_key=Unique("pk", key, key) if key else None)


TABLES = {
    CUSTOMERS: made_table(
        CUSTOMERS, ("ID",), ID="integer", FIRST_NAME="text", LAST_NAME="text", EMAIL="character varying(255)"
    ),
    ORDERS: made_table(ORDERS, ("id",), id="integer"),
}


def settings(**given: Any) -> EventSettings:
    packing = JsonPacking(given.pop("with_schemas", False))
    modes = ConnectorModes(given.pop("connector", Connector.ORACLE))
    made = {"prefix": "server1", "database": "ORCLPDB1", "with_transactions": False, "packing": packing} | given
    return EventSettings(modes=modes, **made)


def writer(tables: dict[TableName, TableSchema] = TABLES, **given: Any) -> EventWriter:
    return EventWriter(settings(**given), lambda name, _: tables[name], lambda: NOW_NS)


PLACE = ChangePlace(
    txn_id="06001c0027030000",
    commit_scn=2122190,
    committed_at_us=1520085154000000,
    scn=2122185,
    seq=1,
    snapshot=STREAMING,
    more={"redo_thread": 1, "user_name": "DEBEZIUM", "start_scn": "2122180", "start_ts_ms": 1520085153000, "txSeq": 1},
)


def change(made: EventWriter, op: Op, before: Image | None, after: Image | None, **given: Any) -> list[OutgoingRecord]:
    name, place = given.get("table", CUSTOMERS), given.get("place", PLACE)
    return list(made.change(op, made.table(name, 1), before, after, place))


def digest(content: bytes | None) -> str:
    assert content is not None
    return sha256(content).hexdigest()


def test_an_insert_with_schemas_is_the_golden_one_to_the_byte() -> None:
    begin, insert = change(writer(with_schemas=True, with_transactions=True), Op.INSERT, None, ANNE)

    assert begin.topic == "server1.transaction"
    assert (insert.topic, insert.headers) == ("server1.DEBEZIUM.CUSTOMERS", ())
    assert insert.key is not None
    assert (len(insert.key), digest(insert.key)[:16]) == (165, "723e1970d866755e")
    assert digest(insert.value) == "21dc4f6296229971734f965ce1c8d2c20c0263e68eca1f22b1118188d8de1de0"


def test_an_insert_without_schemas_is_the_payload_alone() -> None:
    _, insert = change(writer(with_transactions=True), Op.INSERT, None, ANNE)

    assert insert.key == b'{"ID":1004}'
    assert digest(insert.value) == "8b9aa11a7117aa70b8d46e5764dfea11e95d58e992136ccdf96e7dd8d51fc8b8"


def test_an_update_a_delete_and_a_truncate_are_the_golden_ones() -> None:
    made = writer()

    (update,) = change(made, Op.UPDATE, ANNE, {"EMAIL": "anne@example.com"})
    delete, tombstone = change(made, Op.DELETE, ANNE_MOVED, None)
    (truncate,) = change(made, Op.TRUNCATE, None, None)

    assert digest(update.value) == "cb51f7f733892297f431328d701122cd86e7c4f1213260b53f6f00a682dc579a"
    assert digest(delete.value) == "2a191c8c3c6e5044081c3f214a2ff8dde73b759d39bdcd5ae6c5987329ee4f5b"
    assert digest(truncate.value) == "a51e9bd487893ae99e8ed6232a30b05cbbc4c4d48463ff671a367712f72c55db"
    assert (tombstone.key, tombstone.value) == (delete.key, None)
    assert truncate.key is None


def test_a_transaction_counts_its_events_and_ends() -> None:
    made = writer(with_transactions=True)
    first = change(made, Op.INSERT, None, ANNE)
    second = change(made, Op.INSERT, None, {"id": "1"}, table=ORDERS)
    third = change(made, Op.UPDATE, ANNE, ANNE_MOVED)
    (end,) = made.end()

    blocks = [orjson.loads(r.value or b"")["transaction"] for r in [*first[1:], *second, *third]]
    assert [(b["total_order"], b["data_collection_order"]) for b in blocks] == [(1, 1), (2, 1), (3, 2)]
    assert orjson.loads(first[0].value or b"") == {
        "status": "BEGIN",
        "id": "06001c0027030000",
        "event_count": None,
        "data_collections": None,
        "ts_ms": 1520085154000,
    }
    assert (end.key, end.partition) == (b'{"id":"06001c0027030000"}', 0)
    assert digest(end.value) == "7386f5bb07732d93b21ef8af4e46e3e68a7474488a7c8ae236a451acd5cde6c6"
    assert list(made.end()) == []


def test_a_changed_key_is_a_delete_a_tombstone_and_a_create_with_headers() -> None:
    made = writer({ORDERS: made_table(ORDERS, ("id", "b"), id="integer", b="text")})

    records = change(made, Op.UPDATE, {"id": "1", "b": 'a"b\\c\nd'}, {"id": "2"}, table=ORDERS)

    old, new = b'{"id":1,"b":"a\\"b\\\\c\nd"}', b'{"id":2,"b":"a\\"b\\\\c\nd"}'
    assert [r.headers for r in records] == [
        (("__debezium.newkey", new),),
        (("__debezium.newkey", new),),
        (("__debezium.oldkey", old),),
    ]
    assert [r.value and orjson.loads(r.value)["op"] for r in records] == ["d", None, "c"]
    assert [orjson.loads(r.key or b"")["id"] for r in records] == [1, 1, 2]


def test_without_tombstones_a_delete_is_one_record() -> None:
    assert len(change(writer(tombstones=False), Op.DELETE, ANNE, None)) == 1


def test_a_skipped_operation_is_in_no_count() -> None:
    made = writer(with_transactions=True, skipped=frozenset("t"))

    assert change(made, Op.TRUNCATE, None, None) == []
    change(made, Op.INSERT, None, ANNE)
    (end,) = made.end()
    assert orjson.loads(end.value or b"")["event_count"] == 1


def test_a_table_without_a_key_has_null_keys_and_a_unique_index_is_one() -> None:
    plain = made_table(ORDERS, (), id="integer", body="text?")
    indexed = TableSchema(
        ORDERS, plain.columns, uniques=(Unique("b", ("body",), ("body",)), Unique("a", ("id",), ("id",)))
    )

    keyless = change(writer({ORDERS: plain}), Op.DELETE, {"id": "1", "body": None}, None, table=ORDERS)
    keyed = change(writer({ORDERS: indexed}), Op.INSERT, None, {"id": "1", "body": None}, table=ORDERS)

    assert [r.key for r in keyless] == [None, None]
    assert [r.key for r in keyed] == [b'{"id":1}']


def test_what_was_not_captured_is_a_placeholder_or_an_error() -> None:
    table = made_table(ORDERS, ("id",), id="integer", t="text?", b="bytea?", ia="integer[]?", ua="uuid[]?")
    made = writer({ORDERS: table}, connector=Connector.POSTGRESQL)

    (update,) = change(made, Op.UPDATE, {"id": "1"}, {}, table=ORDERS)

    after = orjson.loads(update.value or b"")["after"]
    assert after["t"] == "__debezium_unavailable_value"
    assert after["b"] == "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
    assert (after["ia"][:3], len(after["ia"])) == ([95, 95, 100], 28)
    assert after["ua"] == ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]
    lacking = made_table(ORDERS, ("id",), id="integer", n="integer?")
    with pytest.raises(OperatorError, match=r"column 'n' was not captured.*DEBEZIUM\.ORDERS"):
        change(writer({ORDERS: lacking}), Op.INSERT, None, {"id": "1"}, table=ORDERS)


def test_a_value_that_does_not_fit_is_named_by_its_column_alone() -> None:
    table = made_table(ORDERS, ("id",), id="integer", n="numeric(9,2)?", d="date?")
    for image in ({"id": "1", "n": "NaN", "d": None}, {"id": "1", "n": "4711.123", "d": None}, {"id": "oops"}):
        with pytest.raises(OperatorError) as caught:
            change(writer({ORDERS: table}), Op.INSERT, None, image, table=ORDERS)
        assert not any(value in str(caught.value) for value in ("4711", "oops"))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("\U0001f600", rb'"\uD83D\uDE00"'),
        ("\x01\x1f\\u001f\b\f", rb'"\u0001\u001F\\u001f\b\f"'),
        ("\x7f/<é\u2028", '"\x7f/<é\u2028"'.encode()),
    ],
    ids=["astral", "control", "raw"],
)
def test_text_is_escaped_as_java_does(value: str, written: bytes) -> None:
    assert connect_json(value) == written


@pytest.mark.parametrize(
    ("text", "java"),
    [
        ("1e+07", "1.0E7"),
        ("1e-05", "1.0E-5"),
        ("100", "100.0"),
        ("0.001", "0.001"),
        ("0.000999", "9.99E-4"),
        ("9999999", "9999999.0"),
        ("-0", "-0.0"),
        ("5e-324", "5.0E-324"),
        ("-1.5", "-1.5"),
        ("NaN", "NaN"),
    ],
)
def test_floats_are_laid_out_as_java_does(text: str, java: str) -> None:
    assert float_text(text) == java


def test_decimals_are_the_fewest_bytes() -> None:
    wanted = {0: "00", 127: "7f", 128: "0080", -128: "80", -129: "ff7f", 12345: "3039"}
    assert {number: decimal_bytes(number).hex() for number in wanted} == wanted


# Of a row of PostgreSQL's, as Debezium's connector wrote it.
VALUES = [
    ("boolean", "true", True, "boolean"),
    ("bigint", "-9223372036854775808", -9223372036854775808, "int64"),
    ("double precision", "NaN", "NaN", "double"),
    ("numeric(10,2)", "-1.28", "gA==", "bytes Decimal"),
    ("numeric(10,2)", "1", "ZA==", "bytes Decimal"),
    ("numeric", "3.10", {"scale": 1, "value": "Hw=="}, "struct VariableScaleDecimal"),
    ("numeric", "1000", {"scale": 0, "value": "A+g="}, "struct VariableScaleDecimal"),
    ("money", "3.14", "ATo=", "bytes Decimal"),
    ("bytea", "3q2+7wA=", "3q2+7wA=", "bytes"),
    ("bytea", "", "", "bytes"),
    ("bit(9)", "101010101", "VQE=", "bytes Bits"),
    ("bit(1)", "1", True, "boolean"),
    ("date", "2024-02-29", 19782, "int32 Date"),
    ("date", "0044-03-15 BC", -735160, "int32 Date"),
    ("time(3) without time zone", "24:00:00.000000", 86400000, "int32 Time"),
    ("time without time zone", "13:45:59.123456", 49559123456, "int64 MicroTime"),
    ("timestamp without time zone", "2024-02-29T13:45:59.100000", 1709214359100000, "int64 MicroTimestamp"),
    ("timestamp(3) without time zone", "2024-02-29T13:45:59.120000", 1709214359120, "int64 Timestamp"),
    ("timestamp without time zone", "infinity", 9223372036825200000, "int64 MicroTimestamp"),
    (
        "timestamp with time zone",
        "2024-02-29T11:45:59.100000+00:00",
        "2024-02-29T11:45:59.100000Z",
        "string ZonedTimestamp",
    ),
    (
        "timestamp(3) with time zone",
        "2024-02-29T11:45:59.120000+00:00",
        "2024-02-29T11:45:59.120Z",
        "string ZonedTimestamp",
    ),
    (
        "timestamp with time zone",
        "0044-03-15T00:00:00.000000+00:00 BC",
        "-0043-03-15T00:00:00.000000Z",
        "string ZonedTimestamp",
    ),
    ("time with time zone", "11:45:59.123456+00:00", "11:45:59.123456Z", "string ZonedTime"),
    ("interval", "P1Y2M3DT4H5M6.78S", 37091106780000, "int64 MicroDuration"),
    ("jsonb", '{"b": null}', '{"b": null}', "string Json"),
    ("uuid", "b68a35a7-17ad-35b3-af2a-ae46edb4545a", "b68a35a7-17ad-35b3-af2a-ae46edb4545a", "string Uuid"),
    ("text[]", '{a,"b,\\"c",NULL,""}', ["a", 'b,"c', None, ""], "array"),
    ("integer[]", "{1,NULL,-3}", [1, None, -3], "array"),
    ("point", "(1.5,-2)", {"x": 1.5, "y": -2.0, "wkb": "AQEAAAAAAAAAAAD4PwAAAAAAAADA", "srid": None}, "struct Point"),
    ("inet", "10.0.0.1", "10.0.0.1", "string"),
    ("character(5)", "ab", "ab   ", "string"),
]


@pytest.mark.parametrize(("type_", "text", "written", "schema"), VALUES, ids=[f"{v[0]} {v[1]}" for v in VALUES])
def test_values_are_written_as_the_connector_does(type_: str, text: str, written: Any, schema: str) -> None:
    (column,) = made_table(ORDERS, (), v=f"{type_}?").columns
    made = field_type(column, ConnectorModes(Connector.POSTGRESQL))

    assert orjson.loads(connect_json(made.to_json(text))) == written
    name = (made.schema.name or "").rpartition(".")[2]
    assert f"{made.schema.type} {name}".strip() == schema
    assert made.schema.is_optional


@pytest.mark.parametrize("connector", Connector)
def test_each_connector_tells_two_changes_apart_and_their_order(connector: Connector) -> None:
    from penstock.formats.debezium.source import read_source

    made = writer(connector=connector)
    found = []
    for scn in (41, 42, 2**33):
        place = PLACE._replace(commit_scn=scn, scn=scn, txn_id=str(scn), more={})
        for _ in range(2):
            (event,) = change(made, Op.UPDATE, ANNE, ANNE_MOVED, place=place)
            found.append(read_source(orjson.loads(event.value or b"")["source"]))
    positions = [source.position for source in found]
    assert positions == sorted(set(positions))
    assert {source.ts_us for source in found} == {PLACE.committed_at_us}


def test_a_key_of_a_wide_oracle_number_is_a_decimal() -> None:
    table = made_table(ORDERS, ("ID",), ID="numeric(38,0)", n="numeric(9,0)?")
    made = TableWriter(settings(), table)

    assert made.key({"ID": "1004"}) == b'{"ID":"A+w="}'
    assert made.row({"ID": "1", "n": "7"})["n"] == 7


def test_tables_that_would_share_a_topic_are_refused() -> None:
    assert not topic_faults(settings(), [CUSTOMERS, ORDERS])
    odd = TableName("DEBEZIUM", "a b")
    (fault,) = topic_faults(settings(), [TableName("DEBEZIUM", "a_b"), odd])
    assert TableName(*fault.table) == odd
    assert "DEBEZIUM.a b would have the topic of table DEBEZIUM.a_b" in str(fault)
