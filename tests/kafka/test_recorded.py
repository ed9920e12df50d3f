"""The recorded events agree with each other and with what the database said its rows were."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import fastavro
import pytest

from tests.kafka.record import AVRO, CONNECTORS, FOLDER, ROWS, _file

JSON = sorted(CONNECTORS.keys() - {AVRO})
OPS = {"insert": ["c"], "update": ["u"], "delete": ["d"], "truncate": ["t"]}


@pytest.mark.parametrize("name", JSON)
def test_each_transaction_holds_the_changes_that_were_made(name: str) -> None:
    events = [each for each in map(_payload, _lines(name)) if each and each.get("transaction")]
    ends = [each for each in map(_payload, _lines(name)) if each and each.get("status") == "END"]
    tables = {each["source"]["table"] for each in events}
    made: dict[int, Counter[str]] = {}
    for change in _lines(ROWS):
        if change.get("xid") and change["table"].partition(".")[2] in tables:
            ops = _ops(change)
            made.setdefault(change["xid"], Counter()).update(f"{op} {change['table']}" for op in ops)

    sent: dict[int, Counter[str]] = {}
    for each in events:
        if each["op"] != "m":
            source = each["source"]
            where = f"{each['op']} {source['schema']}.{source['table']}"
            sent.setdefault(int(each["transaction"]["id"].split(":")[0]), Counter())[where] += 1

    assert sent == made
    messages = Counter(each["transaction"]["id"].split(":")[0] for each in events)
    assert {end["id"].split(":")[0]: end["event_count"] for end in ends if end["event_count"]} == messages


@pytest.mark.parametrize("connector", ["oracle", "mysql", "sqlserver", "db2"])
def test_what_other_connectors_write_is_the_same_with_and_without_schemas(connector: str) -> None:
    plain = [json.loads(line) for line in (FOLDER / f"{connector}_3.6.jsonl").read_text().splitlines()]
    lines = (FOLDER / f"{connector}_3.6.schemas.jsonl").read_text().splitlines()

    assert [
        {**line, "key": _bare(line["key"]), "value": _bare(line["value"])} for line in map(json.loads, lines)
    ] == plain


def test_avro_says_the_same_as_json() -> None:
    schemas = json.loads((FOLDER / "postgres_3.6.avro.schemas.json").read_text())

    assert [_essence(_decoded(line["value"], schemas)) for line in _lines(AVRO)] == [
        _essence(line["value"]) for line in _lines("plain") if not line["topic"].startswith("__")
    ]


def _essence(value: Any) -> Any:
    if value is None or "op" not in value:
        return value and value["status"]
    parts = [value["op"], value["source"]["schema"], value["source"]["table"], value["source"]["snapshot"]]
    if value["source"]["table"] == "customers":
        parts += [value["before"], value["after"]]
    return parts


def _decoded(text: str | None, schemas: Mapping[str, Any]) -> Any:
    if text is None:
        return None
    content = base64.b64decode(text)
    _, number = struct.unpack(">bI", content[:5])
    return fastavro.schemaless_reader(io.BytesIO(content[5:]), _without_decimals(schemas[str(number)]), None)


def _without_decimals(schema: Any) -> Any:
    """The schema with bytes as what they are: `numeric(5,-2)` has scale 2046, which fastavro refuses."""
    if isinstance(schema, dict):
        return {name: _without_decimals(part) for name, part in schema.items() if name != "logicalType"}
    return [_without_decimals(part) for part in schema] if isinstance(schema, list) else schema


def _ops(change: Mapping[str, Any]) -> list[str]:
    """The letters of the events for a change: two where it moves the row to another key, or to another partition."""
    if change["op"] == "update":
        key = _keys()[change["table"]]
        if [change["before"][name] for name in key] != [change["after"][name] for name in key]:
            return ["d", "c"]
    return OPS[change["op"]]


@cache
def _keys() -> dict[str, list[str]]:
    """The columns that identify a row of each table to the connector: its key, or else the index that it names."""
    keys = {line["table"]: line["key"] or [] for line in _lines(ROWS) if "columns" in line}
    return keys | {"public.by_index": ["b", "a"]}


@cache
def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _file(name).read_text().splitlines()]


def _payload(line: Mapping[str, Any]) -> Any:
    return _bare(line["value"])


def _bare(value: Any) -> Any:
    return value["payload"] if value and value.keys() == {"schema", "payload"} else value
