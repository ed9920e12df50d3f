"""Avro with a schema registry says the same as JSON with schemas, whichever way the schema is named."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from typing import Any

import fastavro
import pytest

from penstock.errors import MalformedInputError, OperatorError
from penstock.formats.debezium.avro import KEY_ID, VALUE_ID, AvroMessages, SchemaId
from penstock.formats.debezium.decode import DataEvent, RecordDecoder
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.types import logical_of
from tests.formats.debezium.events import SOURCES, block, envelope


def optional(type_: Any, **rest: Any) -> dict[str, Any]:
    return {"type": ["null", type_], "default": None, **rest}


def connect(type_: str, name: str | None = None, **rest: Any) -> dict[str, Any]:
    return {"type": type_, **({"connect.name": name, "connect.version": 1} if name else {}), **rest}


DECIMAL = connect(
    "bytes",
    "org.apache.kafka.connect.data.Decimal",
    **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "10"}},
    logicalType="decimal",
    scale=2,
    precision=10,
)
COLUMNS: Mapping[str, tuple[dict[str, Any], Any, str | None]] = {
    "id": ({"type": "int"}, 1, "1"),
    "small": (optional(connect("int", **{"connect.type": "int16"})), 7, "7"),
    "text": (optional("string"), "😀", "😀"),
    "none": (optional("string"), None, None),
    "bytes": (optional("bytes"), b"\xde\xad", "3q0="),
    "amount": (optional(DECIMAL), b"\x80", "-1.28"),
    "day": (optional(connect("int", "io.debezium.time.Date")), 19782, "2024-02-29"),
    "at": (
        optional(connect("long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis")),
        1709214359120,
        "2024-02-29T13:45:59.120000",
    ),
    "plain_at": (optional({"type": "long", "logicalType": "timestamp-micros"}), 1, "1970-01-01T00:00:00.000001"),
    "zoned": (
        optional(connect("string", "io.debezium.time.ZonedTimestamp")),
        "2024-02-29T11:45:59.1Z",
        "2024-02-29T11:45:59.100000+00:00",
    ),
    "real": (optional("float"), 0.1, "0.1"),
    "double": (optional("double"), 1e23, "1e+23"),
    "flag": (optional("boolean"), True, "true"),
    "bits": (
        optional(connect("bytes", "io.debezium.data.Bits", **{"connect.parameters": {"length": "9"}})),
        b"U\x01",
        "101010101",
    ),
    "array": (optional({"type": "array", "items": ["null", "int"]}), [1, None], "[1,null]"),
    "map": (optional({"type": "map", "values": ["null", "string"]}), {"a": None}, '{"a":null}'),
    "pairs": (
        optional(
            {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "MapEntry",
                    "namespace": "io.confluent.connect.avro.ConnectDefault",
                    "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "string"}],
                },
            }
        ),
        [{"key": 7, "value": "z"}],
        '{"7":"z"}',
    ),
    "vsd": (
        optional(
            {
                "type": "record",
                "name": "VariableScaleDecimal",
                "namespace": "io.debezium.data",
                "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
                "connect.name": "io.debezium.data.VariableScaleDecimal",
            }
        ),
        {"scale": 1, "value": b"\x1f"},
        "3.1",
    ),
}

SNAPSHOT = {
    "type": [connect("string", "io.debezium.data.Enum", **{"connect.default": "false"}), "null"],
    "default": "false",
}
SOURCE_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(SOURCES["postgresql"], optional("string")),
    **dict.fromkeys(("ts_ms", "ts_us", "ts_ns", "txId", "lsn", "xmin", "origin_lsn"), optional("long")),
    "snapshot": SNAPSHOT,
}


def record_type(name: str, fields: Mapping[str, Mapping[str, Any]], **rest: Any) -> dict[str, Any]:
    members = [{"name": field, **type_} for field, type_ in fields.items()]
    return {"type": "record", "name": name, "fields": members, **rest}


def envelope_type(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    row = record_type("Value", columns)
    source = record_type("Source", SOURCE_TYPES, namespace="io.debezium.connector.postgresql")
    transaction = record_type(
        "block",
        {"id": {"type": "string"}, "total_order": {"type": "long"}, "data_collection_order": {"type": "long"}},
        namespace="event",
    )
    fields: dict[str, Mapping[str, Any]] = {
        "before": optional(row),
        "after": optional("Value"),
        "source": {"type": source},
        "transaction": optional(transaction),
        "op": {"type": "string"},
        **dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), optional("long")),
    }
    return record_type(
        "Envelope", fields, namespace="server1.public.t", **{"connect.name": "server1.public.t.Envelope"}
    )


SCHEMAS: dict[SchemaId, Any] = {
    1: record_type("Key", {"id": {"type": "int"}}, namespace="server1.public.t"),
    2: envelope_type({name: type_ for name, (type_, _, _) in COLUMNS.items()}),
}


def schema_of(id_: SchemaId) -> str:
    if id_ not in SCHEMAS:
        raise OperatorError("the registry does not know a schema", where=f"schema {id_}")
    return json.dumps(SCHEMAS[id_])


def encode(id_: int, value: Any) -> bytes:
    out = io.BytesIO()
    bare = json.loads(json.dumps(SCHEMAS[id_]).replace('"logicalType"', '"_"'))
    fastavro.schemaless_writer(out, fastavro.parse_schema(bare), value)
    return out.getvalue()


def wire(id_: int, value: Any) -> bytes:
    return b"\0" + id_.to_bytes(4, "big") + encode(id_, value)


def event(**members: Any) -> dict[str, Any]:
    row = {name: value for name, (_, value, _) in COLUMNS.items()}
    return envelope("c", after=row, transaction=block("9", 1), **members)


def decode(record: TopicRecord) -> DataEvent:
    decoded = RecordDecoder(parser=AvroMessages(schema_of)).decode(record)
    assert isinstance(decoded, DataEvent)
    return decoded


def test_an_event_is_the_same_as_from_json() -> None:
    decoded = decode(TopicRecord("server1.public.t", wire(1, {"id": 1}), wire(2, event())))

    assert decoded.key == {"id": "1"}
    assert decoded.after == {name: expected for name, (_, _, expected) in COLUMNS.items()}
    assert (decoded.location.txn, decoded.location.total_order) == ("9", 1)
    assert decoded.location.source.position == (1322341000, 1322341312)
    assert not decoded.location.is_snapshot


def test_a_schema_of_avro_is_the_schema_that_connect_had() -> None:
    message = AvroMessages(schema_of).parse_value(TopicRecord("t", None, wire(2, event())))
    assert message.schema is not None
    assert message.schema.name == "server1.public.t.Envelope"
    row = message.schema.fields["after"]
    assert (row.fields["small"].type, row.fields["small"].is_optional) == ("int16", True)
    assert dict(row.fields["amount"].parameters) == {"scale": "2", "connect.decimal.precision": "10"}
    assert str(logical_of(row.fields["amount"]).kind) == "decimal"
    assert message.schema.fields["source"].fields["snapshot"].default == "false"
    assert not row.fields["text"].has_default


def test_a_schema_may_be_named_in_a_header() -> None:
    guid = uuid.UUID("b68a35a7-17ad-35b3-af2a-ae46edb4545a")
    SCHEMAS[str(guid)] = SCHEMAS[2]
    for id_ in (b"\x01" + guid.bytes, b"\x00" + (2).to_bytes(4, "big")):
        headers = ((VALUE_ID, id_), (KEY_ID, b"\x00\x00\x00\x00\x01"))
        decoded = decode(TopicRecord("t", encode(1, {"id": 1}), encode(2, event()), headers))
        assert (decoded.key, (decoded.after or {})["text"]) == ({"id": "1"}, "😀")


def test_the_placeholder_is_found_in_bytes_and_in_texts() -> None:
    row = {name: value for name, (_, value, _) in COLUMNS.items()}
    placeholder = "__debezium_unavailable_value"
    gone = {**row, "text": placeholder, "bytes": placeholder.encode()}
    after = decode(TopicRecord("t", None, wire(2, envelope("c", after=gone)))).after or {}

    assert "text" not in after
    assert "bytes" not in after
    assert after["id"] == "1"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b'{"op":"c"}', "looks like JSON"),
        (b"\x01\x00\x00\x00\x02", "not Avro with the id"),
        (b"\x00\x00", "not Avro with the id"),
        (b"\x00\x00\x00\x00\x02\xff", "cut off"),
        (wire(2, event())[:-1], "cut off"),
        (wire(2, event()) + b"x", "cut off"),
    ],
)
def test_what_is_not_of_its_schema_is_refused(value: bytes, says: str) -> None:
    with pytest.raises(MalformedInputError, match=says) as refused:
        decode(TopicRecord("t", None, value, offset=5))
    assert "topic t, partition 0, offset 5" in str(refused.value)


def test_a_schema_that_the_registry_does_not_know_is_its_error() -> None:
    with pytest.raises(OperatorError, match="schema 77"):
        decode(TopicRecord("t", None, b"\x00\x00\x00\x00\x4d"))


@pytest.mark.parametrize("schema", [7, {"type": "blob"}, {"type": "record"}, ["int", "string"], "Unknown"])
def test_a_registered_text_that_is_no_schema_is_refused(schema: Any) -> None:
    SCHEMAS[9] = schema
    with pytest.raises(MalformedInputError, match="schema 9"):
        decode(TopicRecord("t", None, b"\x00\x00\x00\x00\x09\x02"))
