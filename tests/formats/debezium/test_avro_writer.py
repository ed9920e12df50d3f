"""Avro as Confluent's converter writes it: schemas to the letter, and messages that read back as they were."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import fastavro
import pytest

from penstock.errors import OperatorError
from penstock.formats.debezium.avro import AvroMessages, _AvroSchema
from penstock.formats.debezium.avro_writer import AvroPacking, avro_schema
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.schema import ConnectSchema
from tests.formats.debezium.events import DATA

RECORDED = json.loads((DATA / "postgres_3.6.avro.schemas.json").read_text())
"""The schemas that a connector registered, by their ids."""


def connect_schema(text: str) -> ConnectSchema:
    """What the converter made a schema of."""
    return _AvroSchema(text, "test").connect


def without_docs(node: Any) -> Any:
    if isinstance(node, list):
        return [without_docs(one) for one in node]
    if isinstance(node, dict):
        return {name: without_docs(value) for name, value in node.items() if name != "connect.doc"}
    return node


@pytest.mark.parametrize("id_", RECORDED)
def test_schemas_are_those_that_the_connector_registered(id_: str) -> None:
    made = avro_schema(connect_schema(json.dumps(RECORDED[id_])))

    # As texts: another order of members would be another schema to a registry.
    assert json.dumps(made) == json.dumps(without_docs(RECORDED[id_]))


def test_messages_are_those_that_the_connector_sent() -> None:
    schemas = {id_: json.dumps(schema) for id_, schema in RECORDED.items()}
    packers: dict[int, Any] = {}
    lines = [json.loads(line) for line in (DATA / "postgres_3.6.avro.jsonl").read_text().splitlines()]
    checked = 0
    for line in lines:
        for part in ("key", "value"):
            if line[part] is None:
                continue
            sent = base64.b64decode(line[part])
            id_ = int.from_bytes(sent[1:5], "big")
            if id_ not in packers:
                node = connect_schema(schemas[str(id_)])
                packers[id_] = AvroPacking(lambda _, __, found=id_: found).packer("t", part, node)
            parsed = fastavro.parse_schema(plain(RECORDED[str(id_)]))
            value = fastavro.schemaless_reader(io.BytesIO(sent[5:]), parsed, None)
            assert packers[id_](value) == sent
            checked += 1
    assert checked > 100


def plain(node: Any) -> Any:
    if isinstance(node, list):
        return [plain(one) for one in node]
    if isinstance(node, dict):
        return {name: plain(value) for name, value in node.items() if name != "logicalType"}
    return node


def test_a_schema_is_registered_once_by_its_first_value() -> None:
    asked: list[tuple[str, str]] = []

    def register(subject: str, schema: str) -> int:
        asked.append((subject, schema))
        return 258

    pack = AvroPacking(register).packer("shop.public.t", "key", ConnectSchema("struct", name="shop.public.t.Key"))
    assert asked == []

    first, _ = pack({}), pack({})

    assert first == b"\0\0\0\x01\x02"
    assert [subject for subject, _ in asked] == ["shop.public.t-key"]
    read = AvroMessages(lambda _: asked[0][1]).parse_key(TopicRecord("t", first, None))
    assert (read.payload, read.schema and read.schema.name) == ({}, "shop.public.t.Key")


def test_names_that_avro_does_not_allow_are_adjusted_in_schemas_and_refused_in_columns() -> None:
    odd = ConnectSchema("struct", name="shop.we ird.T-x.Key", fields={"id": ConnectSchema("int32")})
    assert avro_schema(odd)["namespace"] == "shop.we_ird.T_x"
    with pytest.raises(OperatorError, match="column 'a b' has a name that Avro does not allow"):
        avro_schema(ConnectSchema("struct", name="a.Key", fields={"a b": ConnectSchema("int32")}))
