"""Events made by hand, as lines of a file or records of a topic."""

from __future__ import annotations

import json
from typing import Any

from tests.formats.debezium.events import block, envelope
from tests.kafka.broker import Record

Line = dict[str, Any]


def event(
    op: str, table: str, row: dict[str, Any], xid: int, order: int, *, prefix: str = "server1", **members: Any
) -> Line:
    """An event of PostgreSQL's connector, without schema; of a delete, `row` is what was there before."""
    images = {"before": row} if op == "d" else {"after": row}
    source = {"txId": xid, "schema": "public", "table": table, "sequence": f'["{xid * 100}","{xid * 100 + order}"]'}
    source |= {"name": prefix}
    value = envelope(op, **{**images, "transaction": block(f"{xid}:{order}", order), "source": source, **members})
    return line(f"{prefix}.public.{table}", {"id": row["id"]}, value)


def begin(xid: int, *, prefix: str = "server1") -> Line:
    """The BEGIN of a transaction."""
    value = {"status": "BEGIN", "id": f"{xid}:0", "event_count": None, "data_collections": None, "ts_ms": 1000}
    return line(f"{prefix}.transaction", {"id": str(xid)}, value)


def end(xid: int, *, prefix: str = "server1", **counts: int) -> Line:
    """The END of a transaction, with the number of its events by table."""
    collections = [{"data_collection": f"public.{table}", "event_count": n} for table, n in counts.items()]
    total = sum(counts.values())
    value = {"status": "END", "id": f"{xid}:9", "event_count": total, "data_collections": collections, "ts_ms": 1000}
    return line(f"{prefix}.transaction", {"id": str(xid)}, value)


def line(topic: str, key: Any, value: Any) -> Line:
    """A line of a file."""
    return {"topic": topic, "partition": 0, "key": key, "value": value, "headers": []}


def record(made: Line) -> Record:
    """The same as a record of its topic."""
    key, value = (None if made[part] is None else json.dumps(made[part]).encode() for part in ("key", "value"))
    return Record(made["topic"], made["partition"], 0, key, value)
