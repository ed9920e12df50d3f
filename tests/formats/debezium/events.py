"""Events as Debezium sends them, made by hand: an event of each connector, with what a test changes in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.formats.debezium.record import TopicRecord

DATA = Path(__file__).parents[2] / "data" / "debezium"

GOLDEN_KEY = (DATA / "golden_key.json").read_bytes()
GOLDEN_VALUE = (DATA / "golden_value.json").read_bytes()
GOLDEN_END = (DATA / "golden_end.json").read_bytes()
GOLDEN: Mapping[str, Any] = json.loads(GOLDEN_VALUE)["payload"]
"""An insert of Oracle's connector, byte for byte what version 3.6.3 and Connect's JSON converter write."""

ORACLE_TOPIC = "server1.DEBEZIUM.CUSTOMERS"

ANNE = {"ID": 1004, "FIRST_NAME": "Anne", "LAST_NAME": "Kretchmar", "EMAIL": "annek@noanswer.org"}

SOURCES: Mapping[str, Mapping[str, Any]] = {
    "oracle": GOLDEN["source"],
    "postgresql": {
        "version": "3.6.3.Final",
        "connector": "postgresql",
        "name": "server1",
        "ts_ms": 1795223124748,
        "snapshot": "false",
        "db": "inv",
        "sequence": '["1322341000","1322341312"]',
        "ts_us": 1795223124748001,
        "ts_ns": 1795223124748001000,
        "schema": "public",
        "table": "t",
        "txId": 161587,
        "lsn": 1322341312,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    },
    "mysql": {
        "version": "3.6.3.Final",
        "connector": "mysql",
        "name": "server1",
        "ts_ms": 1795223124000,
        "snapshot": "false",
        "db": "inventory",
        "sequence": None,
        "table": "t",
        "server_id": 223344,
        "gtid": "a0b1:23",
        "file": "mysql-bin.000003",
        "pos": 484,
        "row": 2,
        "thread": 7,
        "query": None,
    },
    "sqlserver": {
        "version": "3.6.3.Final",
        "connector": "sqlserver",
        "name": "server1",
        "ts_ms": 1795223124000,
        "snapshot": "false",
        "db": "testDB",
        "sequence": None,
        "schema": "dbo",
        "table": "t",
        "change_lsn": "00000027:00000758:0003",
        "commit_lsn": "00000027:00000758:0005",
        "event_serial_no": 1,
    },
    "db2": {
        "version": "3.6.3.Final",
        "connector": "db2",
        "name": "server1",
        "ts_ms": 1795223124000,
        "snapshot": "false",
        "db": "TESTDB",
        "sequence": None,
        "schema": "DB2INST1",
        "table": "T",
        "change_lsn": "00000000:00000000:0000000004461410",
        "commit_lsn": "00000000:00000000:000000000446140f",
    },
}


def text(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def envelope(
    op: str, *, connector: str = "postgresql", source: Mapping[str, Any] = {}, **members: Any
) -> dict[str, Any]:
    """The payload of an event, members in today's order."""
    made = {
        "before": None,
        "after": None,
        "source": {**SOURCES[connector], **source},
        "transaction": None,
        "op": op,
        "ts_ms": 1795223125000,
        "ts_us": 1795223125000123,
        "ts_ns": 1795223125000123456,
    }
    return made | members


def block(id_: str, total_order: int) -> dict[str, Any]:
    return {"id": id_, "total_order": total_order, "data_collection_order": 1}


def record(value: object, *, key: object = None, topic: str = "server1.public.t", **headers: str) -> TopicRecord:
    """A record without schemas; bytes and None are taken as they are."""
    return TopicRecord(
        topic,
        key if isinstance(key, bytes | None) else text(key),
        value if isinstance(value, bytes | None) else text(value),
        tuple((f"__debezium.{name}", value.encode()) for name, value in headers.items()),
        partition=0,
        offset=7,
    )


def with_schema(payload: Mapping[str, Any], columns: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The value with a schema: of the rows as it is given, of the rest as far as anybody looks at it."""
    fields = [{**node, "field": name} for name, node in columns.items()]
    row = {"type": "struct", "fields": fields, "optional": True, "name": "server1.public.t.Value"}
    schema = {
        "type": "struct",
        "fields": [{**row, "field": "before"}, {**row, "field": "after"}],
        "optional": False,
        "name": "server1.public.t.Envelope",
        "version": 2,
    }
    return text({"schema": schema, "payload": payload})


def node(type_: str, name: str | None = None, *, optional: bool = True, **rest: Any) -> dict[str, Any]:
    """A schema node, members in Connect's order."""
    made: dict[str, Any] = {"type": type_, "optional": optional}
    if name is not None:
        made |= {"name": name, "version": 1}
    return made | rest


def struct(fields: Sequence[tuple[str, str]], name: str) -> dict[str, Any]:
    members = [{"type": type_, "optional": True, "field": field} for field, type_ in fields]
    return {"type": "struct", "fields": members, "optional": True, "name": name, "version": 1}
