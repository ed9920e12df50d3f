"""What a record is: a change of a row, an end of a transaction, or one of those that say nothing of rows."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from penstock.change import TableName
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.schema import ConnectSchema
from penstock.formats.debezium.source import SourceBlock, SourceError, group_of, place_of, read_source, table_of
from penstock.text import count

OPS = frozenset("cudrtm")


class SkippedRecord(StrEnum):
    """Why a record says nothing of rows; such records are counted and passed over."""

    TOMBSTONE = "tombstone"
    HEARTBEAT = "heartbeat"
    SCHEMA_CHANGE = "schema change"
    SIGNAL = "signal"
    NOTIFICATION = "notification"
    MESSAGE = "message"


class Boundary(NamedTuple):
    """A record of the transaction topic.

    Attributes:
        txn: As `ChangeLocation.txn` of the transaction's events.
        events: How many the transaction has, on all topics; None for its beginning.
        collections: How many of each table, named as `SourceBlock.collection`. What is no table is counted, too.
        prefix: The prefix of the connector's topics, as far as the topic tells.
        place: The record's position in the source's log, where its id says it.
    """

    is_end: bool
    txn: str
    events: int | None
    collections: Mapping[str, int]
    ts_us: int | None
    prefix: str
    place: int | None = None


class ChangeLocation(NamedTuple):
    """Where a change of rows belongs: all that ordering and grouping need, at a fraction of the cost of its values.

    Attributes:
        op: One of `c u d r t`.
        txn: The transaction, as its boundaries name it too; None for rows of a snapshot, and where nothing says.
        total_order: The place among all events of its transaction, from 1; None without transaction metadata.
        shows_full: The event proves that its table's before images are whole, see `BeforeImage`.
        size_bytes: Of key and value.
    """

    op: str
    table: TableName
    source: SourceBlock
    txn: str | None
    total_order: int | None
    shows_full: bool
    size_bytes: int

    @property
    def is_snapshot(self) -> bool:
        """Whether the row was read by a snapshot, and is not a change."""
        return self.op == "r" or bool(self.source.snapshot)


@dataclass(frozen=True)
class Topics:
    """Which topics, and which table, hold what is no row; recognised by their names, or by the schemas' own names.

    Attributes:
        transaction: How names of transaction topics end, or whole names.
        heartbeat: How names of heartbeat topics begin.
        signal_tables: As `SourceBlock.collection` or `schema.table` names them.
    """

    transaction: tuple[str, ...] = (".transaction",)
    heartbeat: tuple[str, ...] = ("__debezium-heartbeat",)
    signal_tables: Set[str] = frozenset()


class EnvelopeError(ValueError):
    """A message is no envelope, or a broken one; the text says how, and holds no value of a row."""


class Envelope(NamedTuple):
    """A change of rows, its rows as the parser left them.

    Attributes:
        row_schema: Of both rows; None where the message has none.
    """

    location: ChangeLocation
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    row_schema: ConnectSchema | None
    ts_us: int | None


def read_envelope(
    record: TopicRecord, payload: Any, schema: ConnectSchema | None, topics: Topics
) -> Envelope | Boundary | SkippedRecord:
    """Say what a value is.

    Args:
        payload: The value, parsed.

    Raises:
        EnvelopeError: It is none of Debezium's, or breaks their form.
    """
    if payload is None:
        return SkippedRecord.TOMBSTONE
    if type(payload) is not dict:
        raise EnvelopeError("is not an object")
    if {"specversion", "datacontenttype", "type"} <= payload.keys() and "op" not in payload:
        raise EnvelopeError(
            "is a CloudEvents message; have the connector write the plain event"
            " (value.converter=org.apache.kafka.connect.json.JsonConverter)"
        )
    op = payload.get("op")
    # A table that looks like a heartbeat is one of rows: only an envelope has an op and a source.
    if op is None or type(payload.get("source")) is not dict:
        return _other(record, payload, schema, topics)
    if type(op) is not str or (op := op.lower()) not in OPS:
        raise EnvelopeError("has an op that Debezium does not have")
    if op == "m":
        return SkippedRecord.MESSAGE
    if payload["source"].get("connector") == "mongodb" or ("collection" in payload["source"] and op != "m"):
        raise EnvelopeError("is of MongoDB's connector, whose rows are documents: only tables are read")
    try:
        source = read_source(payload["source"])
    except SourceError as exc:
        raise EnvelopeError(f"has a source that {exc}") from None
    table = source.table or _named(record, source, schema)
    if source.collection in topics.signal_tables or (
        topics.signal_tables and f"{table.schema}.{table.name}" in topics.signal_tables
    ):
        return SkippedRecord.SIGNAL
    before, after = payload.get("before"), payload.get("after")
    _check_rows(op, before, after)
    block_txn, total_order = _block(payload.get("transaction"))
    is_snapshot = op == "r" or source.snapshot
    txn = None if is_snapshot else block_txn or source.txn
    shows_full = op == "u" and before is not None and source.connector == "postgresql"
    size = len(record.value or b"") + len(record.key or b"")
    location = ChangeLocation(op, table, source, txn, None if is_snapshot else total_order, shows_full, size)
    ts_ms = payload.get("ts_ms")
    ts_us = payload.get("ts_us") or (ts_ms * 1000 if type(ts_ms) is int else None)
    rows = schema and schema.fields.get("before" if after is None else "after")
    return Envelope(location, before, after, rows, ts_us)


def _check_rows(op: str, before: Any, after: Any) -> None:
    if not ((before is None or type(before) is dict) and (after is None or type(after) is dict)):
        raise EnvelopeError("has a row that is not an object")
    if after is None and op in "cur":
        raise EnvelopeError("has no row to apply: op and after contradict each other")


def _block(block: Any) -> tuple[str | None, int | None]:
    if block is None:
        return None, None
    id_, total_order = (block.get("id"), block.get("total_order")) if type(block) is dict else (None, None)
    if type(id_) is not str or type(total_order) is not int or total_order < 1:
        raise EnvelopeError("has a transaction block without id or total_order")
    return group_of(id_), total_order


def _named(record: TopicRecord, source: SourceBlock, schema: ConnectSchema | None) -> TableName:
    """Return the table of an event whose source does not say it: versions of old left it to the names around."""
    name = schema.name.removesuffix(".Envelope") if schema is not None and schema.name else ""
    for known in (name, record.topic):
        if known and (found := table_of(known, source.name)) is not None:
            return found
    raise EnvelopeError("names no table, nor does its topic")


def _other(
    record: TopicRecord, payload: Mapping[str, Any], schema: ConnectSchema | None, topics: Topics
) -> Boundary | SkippedRecord:
    own = ((schema.name or "") if schema is not None else "").rpartition(".")[2]
    fields = payload.keys()
    if own == "MessageValue" or ("op" in fields and "message" in fields and payload["op"] == "m"):
        return SkippedRecord.MESSAGE
    if own == "TransactionMetadataValue" or ("status" in fields and "id" in fields and "event_count" in fields):
        return _boundary(record, payload, topics)
    if own == "Heartbeat" or (record.topic.startswith(topics.heartbeat) and "ts_ms" in fields):
        return SkippedRecord.HEARTBEAT
    if own == "SchemaChangeValue" or ("ddl" in fields and "source" in fields):
        return SkippedRecord.SCHEMA_CHANGE
    if own == "Notification" or {"aggregate_type", "additional_data", "type"} <= fields:
        return SkippedRecord.NOTIFICATION
    if fields == {"ts_ms"}:
        return SkippedRecord.HEARTBEAT
    if ("schema" in fields) != ("payload" in fields) and len(fields) == 1:
        raise EnvelopeError("has a schema without payload, or a payload without schema")
    if "op" in fields:
        raise EnvelopeError("has an op, but no source")
    raise EnvelopeError("is no Debezium event: it has no op")


def _boundary(record: TopicRecord, payload: Mapping[str, Any], topics: Topics) -> Boundary:
    status, id_, events = payload.get("status"), payload.get("id"), payload.get("event_count")
    collections = payload.get("data_collections") or []
    if status not in ("BEGIN", "END") or type(id_) is not str or not isinstance(collections, list):
        raise EnvelopeError("is neither begin nor end of a transaction, although it should be")
    counts: dict[str, int] = {}
    for one in collections:
        name, number = (one.get("data_collection"), one.get("event_count")) if isinstance(one, dict) else (None, None)
        if type(name) is not str or type(number) is not int or number < 0:
            raise EnvelopeError("ends a transaction without saying how many events each table has")
        counts[name] = counts.get(name, 0) + number
    if status == "END":
        if type(events) is not int or events < 0:
            raise EnvelopeError("ends a transaction without saying how many events it has")
        if events != (counted := sum(counts.values())):
            raise EnvelopeError(
                f"ends a transaction of {count(events, 'event')}, and counts {counted} by table: it contradicts itself"
            )
    ts_ms = payload.get("ts_ms")
    prefix = next((record.topic.removesuffix(end) for end in topics.transaction if record.topic.endswith(end)), "")
    return Boundary(
        is_end=status == "END",
        txn=group_of(id_),
        events=events if status == "END" else None,
        collections=counts,
        ts_us=ts_ms * 1000 if type(ts_ms) is int else None,
        prefix=prefix,
        place=place_of(id_),
    )
