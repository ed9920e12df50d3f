"""Debezium events: how many two processes place, and make changes of, in a second, with schemas and without."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from penstock.change import TableName
from penstock.formats.debezium.decode import DecodeSettings
from penstock.formats.debezium.record import TopicRecord
from penstock.logical import Kind, LogicalType
from penstock.sources.debezium.bulk_reader import BulkReading
from penstock.sources.debezium.log import together, uncollected
from penstock.sources.debezium.slice import EventSlice
from penstock.sources.debezium.tables import EventDecoder

_PROCESSES = 2
_EVENTS = 150_000
"""How many each process decodes."""

_ROWS = 5_000
"""How many of them differ: the rest are the same ones again, so that they fit into memory."""

_TXN_EVENTS = 9
_FIRST_TXN = 161_587

_TOPIC = "shop.public.orders"
_TABLE = TableName("public", "orders")

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

_AT_SOURCE = {"public.orders": {"amount": "numeric(10,2)", "created": "timestamp"}}
"""What events without schemas do not say: as the pipeline file tells it."""

_DECLARED = {
    "id": LogicalType(Kind.INTEGER, bits=64),
    "customer": LogicalType(Kind.INTEGER, bits=32),
    "amount": LogicalType(Kind.DECIMAL, precision=10, scale=2),
    "created": LogicalType(Kind.TIMESTAMP, precision=6),
    "paid": LogicalType(Kind.BOOLEAN),
}


def measure() -> Iterator[dict[str, Any]]:
    """Read events of both forms; yields what was measured."""
    with ProcessPoolExecutor(_PROCESSES) as processes:
        # Let them import first.
        list(processes.map(_records, [True] * _PROCESSES))
        for with_schemas in (False, True):
            form = "with schemas" if with_schemas else "without schemas"
            records = _records(with_schemas)
            size = sum(len(one.key or b"") + len(one.value or b"") for one in records) / len(records)
            for verb, work in (("placed", _place), ("decoded", _decode)):
                spent = max(processes.map(partial(_run, work), [with_schemas] * _PROCESSES))
                rate = _EVENTS * _PROCESSES / spent
                yield {"workload": "debezium", "system": f"{verb}, {form}", "rate": rate, "bytes_per_event": size}


def _run(work: Callable[[Sequence[TopicRecord], EventDecoder], None], with_schemas: bool) -> float:
    records = _records(with_schemas)
    settings = DecodeSettings(declared={_TABLE: _DECLARED}, columns=_AT_SOURCE)
    decoder = EventDecoder(settings, {_TABLE: 1}, {_TABLE: 1}, {(_TABLE, 1): ("id",)})
    started = time.perf_counter()
    for _ in range(_EVENTS // len(records)):
        work(records, decoder)
    return time.perf_counter() - started


def _place(records: Sequence[TopicRecord], decoder: EventDecoder) -> None:
    """Say where events belong, as the tasks do that look through what lies ahead."""
    assert decoder.bulk is not None
    with uncollected():
        _, others = decoder.bulk.scan(records)
    assert not others


def _decode(records: Sequence[TopicRecord], decoder: EventDecoder) -> None:
    """Make a batch of the change stream of events, as the tasks do that apply them."""
    assert decoder.bulk is not None
    part = _slice(len(records))
    reading = BulkReading(part, decoder, decoder.bulk, frozenset({_TABLE}), decoder.keys)
    for some in together(iter(records)):
        reading.add(some)
    assert len(reading.changes("shop")) == len(records)


def _slice(events: int) -> EventSlice:
    """All transactions of that many events."""
    ids = [str(txn) for txn in range(_FIRST_TXN, _FIRST_TXN + -(-events // _TXN_EVENTS))]
    n = len(ids)
    groups = np.empty(n, object)
    groups[:] = [(txn,) for txn in ids]
    sizes = np.full(n, _TXN_EVENTS)
    sizes[-1] = events - _TXN_EVENTS * (n - 1)
    scns, none = np.arange(1, n + 1), np.zeros((0, 3), np.int64)
    return EventSlice(
        0, n, scns, sizes, sizes, scns, groups=groups, run_counts=sizes, row_counts=sizes, runs=none, rows=none
    )


def _records(with_schemas: bool) -> Sequence[TopicRecord]:
    return [_record(number, with_schemas=with_schemas) for number in range(_ROWS)]


def _record(number: int, *, with_schemas: bool) -> TopicRecord:
    """An insert or, one in three, an update with both images, as PostgreSQL's connector writes them."""
    txn = _FIRST_TXN + number // _TXN_EVENTS
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
        "txId": txn,
        "lsn": 1_322_341_312 + number,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }
    payload = {
        "before": {**row, "state": "new"} if number % 3 == 0 else None,
        "after": row,
        "source": source,
        "transaction": {
            "id": f"{_FIRST_TXN + number // _TXN_EVENTS}:1",
            "total_order": number % _TXN_EVENTS + 1,
            "data_collection_order": 1,
        },
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
    return TopicRecord(_TOPIC, _text(key), _text(value), offset=number)


def _struct(name: str, fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    members = [{**node, "field": field} for field, node in fields.items()]
    return {"type": "struct", "fields": members, "optional": False, "name": f"{_TOPIC}.{name}"}


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
