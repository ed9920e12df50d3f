"""Debezium events: how many two processes look at, and decode, in a second, with schemas and without."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from penstock.change import TableName
from penstock.formats.debezium.decode import DataEvent, Decoder, Settings, image_text
from penstock.formats.debezium.record import Record
from penstock.logical import Kind, LogicalType

_PROCESSES = 2
_EVENTS = 150_000
"""How many each process decodes."""

_ROWS = 5_000
"""How many of them differ: the rest are the same ones again, so that they fit into memory."""

_TOPIC = "shop.public.orders"

_COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "id": {"type": "int64", "optional": False},
    "customer": {"type": "int32", "optional": False},
    "state": {"type": "string", "optional": True},
    "note": {"type": "string", "optional": True},
    "amount": {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
    },
    "created": {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp", "version": 1},
    "paid": {"type": "boolean", "optional": True},
}

_DECLARED = {
    "id": LogicalType(Kind.INTEGER, bits=64),
    "customer": LogicalType(Kind.INTEGER, bits=32),
    "amount": LogicalType(Kind.DECIMAL, precision=10, scale=2),
    "created": LogicalType(Kind.TIMESTAMP, precision=6),
    "paid": LogicalType(Kind.BOOLEAN),
}


def measure() -> Iterator[dict[str, Any]]:
    """Decode events of both forms; yields what was measured."""
    with ProcessPoolExecutor(_PROCESSES) as processes:
        # Let them import first.
        list(processes.map(_records, [True] * _PROCESSES))
        for with_schemas in (False, True):
            form = "with schemas" if with_schemas else "without schemas"
            records = _records(with_schemas)
            size = sum(len(one.key or b"") + len(one.value or b"") for one in records) / len(records)
            for verb in ("glanced at", "decoded"):
                spent = max(processes.map(partial(_run, with_schemas), [verb] * _PROCESSES))
                rate = _EVENTS * _PROCESSES / spent
                yield {"workload": "debezium", "system": f"{verb}, {form}", "rate": rate, "bytes_per_event": size}


def _run(with_schemas: bool, verb: str) -> float:
    records = _records(with_schemas)
    decoder = Decoder(Settings(declared={TableName("public", "orders"): _DECLARED}))
    started = time.perf_counter()
    for _ in range(_EVENTS // len(records)):
        if verb == "decoded":
            for event in decoder.decode_batch(records):
                assert isinstance(event, DataEvent)
                # What a batch of the change stream is made of.
                image_text(event.key), image_text(event.before), image_text(event.after)
        else:
            for record in records:
                decoder.glance(record)
    return time.perf_counter() - started


def _records(with_schemas: bool) -> Sequence[Record]:
    return [_record(number, with_schemas=with_schemas) for number in range(_ROWS)]


def _record(number: int, *, with_schemas: bool) -> Record:
    """An insert or, one in three, an update with both images, as PostgreSQL's connector writes them."""
    row = {
        "id": number,
        "customer": number % 997,
        "state": "packed",
        "note": "left at the back door " * 3,
        "amount": "MDk=",
        "created": 1_709_214_359_100_000 + number,
        "paid": True,
    }
    source = {
        "version": "3.6.3.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_795_223_124_748,
        "snapshot": "false",
        "db": "shop",
        "sequence": f'["1322341000","{1322341312 + number}"]',
        "ts_us": 1_795_223_124_748_001,
        "ts_ns": 1_795_223_124_748_001_000,
        "schema": "public",
        "table": "orders",
        "txId": 161_587 + number // 9,
        "lsn": 1_322_341_312 + number,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }
    payload = {
        "before": {**row, "state": "new"} if number % 3 == 0 else None,
        "after": row,
        "source": source,
        "transaction": {"id": f"{161587 + number // 9}:1", "total_order": number % 9 + 1, "data_collection_order": 1},
        "op": "c" if number % 3 else "u",
        "ts_ms": 1_795_223_125_000,
        "ts_us": 1_795_223_125_000_123,
        "ts_ns": 1_795_223_125_000_123_456,
    }
    key: Any = {"id": number}
    value: Any = payload
    if with_schemas:
        key = {"schema": _struct("Key", {"id": _COLUMNS["id"]}), "payload": key}
        rows = {side: {**_struct("Value", _COLUMNS), "optional": True} for side in ("before", "after")}
        own = {name: {"type": "string", "optional": True} for name in source}
        rest = {name: {"type": "int64", "optional": True} for name in ("ts_ms", "ts_us", "ts_ns")}
        value = {"schema": _struct("Envelope", {**rows, "source": _struct("Source", own), **rest}), "payload": payload}
    return Record(_TOPIC, _text(key), _text(value), offset=number)


def _struct(name: str, fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    members = [{**node, "field": field} for field, node in fields.items()]
    return {"type": "struct", "fields": members, "optional": False, "name": f"{_TOPIC}.{name}"}


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
