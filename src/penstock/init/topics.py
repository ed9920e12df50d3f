"""What the topics of a Kafka cluster hold, by their newest records: connectors' events, and DbWatcher's messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum

from penstock.errors import MalformedInputError, OperatorError
from penstock.formats.dbwatcher.message import Property
from penstock.formats.debezium.decode import RecordDecoder
from penstock.formats.debezium.envelope import Boundary, ChangeLocation, Topics
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.source_types import COLUMNS_HEADER
from penstock.sources.debezium.config import DebeziumConfig
from penstock.sources.debezium.decoding import decode_settings
from penstock.sources.debezium.kafka import KafkaLog
from penstock.text import count

_NEWEST = 20
"""So many records of each partition are looked at; marks of Kafka's transactions are among them."""

_LONGEST_S = 8.0
_OWN = ".position"


class Form(StrEnum):
    """How a connector writes its events."""

    WITH_SCHEMAS = "JSON with schemas"
    WITH_TYPES = "JSON without schemas, but with Penstock's types"
    WITHOUT_SCHEMAS = "JSON without schemas"
    AVRO = "Avro"


@dataclass
class ConnectorFacts:
    """What one connector writes.

    Attributes:
        prefix: Its `topic.prefix`.
        database: Which kind of database it reads; empty where events do not say.
        tables: As events name them; topics, where their events could not be read.
        topics: Of the tables.
        transactions: The transaction topic; None where none was found.
    """

    prefix: str
    form: Form
    database: str = ""
    tables: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    transactions: str | None = None

    @property
    def is_routed(self) -> bool:
        """Whether its topics are called otherwise than the connector calls them."""
        return not all(topic.startswith(f"{self.prefix}.") for topic in self.topics)

    def __str__(self) -> str:
        of = f" of {self.database}" if self.database else ""
        ends = f"transaction topic {self.transactions}" if self.transactions else "no transaction topic"
        return f"connector {self.prefix}{of}: {count(len(self.tables), 'table')}, {self.form}, {ends}"


@dataclass(frozen=True)
class RecordFacts:
    """What records hold.

    Attributes:
        connectors: By their prefixes.
        messages: Topics of DbWatcher's messages.
    """

    connectors: Mapping[str, ConnectorFacts]
    messages: Sequence[str]


@dataclass(frozen=True)
class ClusterFacts(RecordFacts):
    """What the topics of a cluster hold.

    Attributes:
        topics: All that there are, without the cluster's own and those of Penstock's positions.
    """

    label: str
    topics: Sequence[str]


def look_at_topics(settings: Mapping[str, str], events: DebeziumConfig) -> ClusterFacts:
    """Read some of the newest records of each topic; no offset is committed.

    Args:
        settings: Of librdkafka, secrets among them.
        events: Says where schemas are, if events are Avro.

    Raises:
        OperatorError: The cluster refuses, or has no topics.
        RetryableError: No broker answers.
    """
    log = KafkaLog(settings)
    known = [name for name in log.others() if not (name.startswith("penstock.") and name.endswith(_OWN))]
    names = log.readable(known)
    if not names:
        what = "the cluster has no topics, or none that this user may read"
        do = "start the connector; or allow this user to describe and read its topics"
        raise OperatorError(what, where=log.label, do=do)
    found = look_at_records(_newest(KafkaLog(settings, tuple(names))), events)
    for prefix, connector in found.connectors.items():
        # It is empty as long as there was only the first snapshot.
        if connector.transactions is None and f"{prefix}.transaction" in names:
            connector.transactions = f"{prefix}.transaction"
    return ClusterFacts(found.connectors, found.messages, log.label, names)


def look_at_records(records: Iterable[TopicRecord], events: DebeziumConfig) -> RecordFacts:
    """Say which connectors have written records, and which are DbWatcher's messages; other records are passed over."""
    # No prefix is known yet: transaction topics are recognized by the ends of their names.
    decoder = RecordDecoder(replace(decode_settings(events), topics=Topics()))
    connectors: dict[str, ConnectorFacts] = {}
    messages: set[str] = set()
    ends: dict[str, str] = {}
    for record in records:
        value = record.value
        if not value:
            continue
        if _is_message(record):
            messages.add(record.topic)
            continue
        try:
            seen = decoder.location(record)
        except MalformedInputError:
            if value[:1] == b"\0" and events.registry is None:
                _note_avro(connectors, record.topic)
            continue
        if isinstance(seen, Boundary):
            ends[record.topic] = seen.prefix
        elif isinstance(seen, ChangeLocation):
            _note(connectors, seen, record, is_avro=events.registry is not None)
    for topic, prefix in ends.items():
        known = connectors.get(prefix) or (next(iter(connectors.values())) if len(connectors) == 1 else None)
        if known is not None:
            known.transactions = topic
    return RecordFacts(dict(sorted(connectors.items())), sorted(messages))


def _newest(log: KafkaLog) -> Iterator[TopicRecord]:
    """Yield the last records of each partition, for some seconds at most."""
    extents = {partition: extent for partition, extent in log.extents().items() if extent.first < extent.end}
    if not extents:
        return
    starts = {partition: max(one.first, one.end - _NEWEST) for partition, one in extents.items()}
    deadline = time.monotonic() + _LONGEST_S
    with closing(log.follow(starts)) as follower:
        while time.monotonic() < deadline:
            yield from follower.take(10_000, max(0.0, deadline - time.monotonic()))
            at = follower.positions()
            if all(at[partition] >= extent.end for partition, extent in extents.items()):
                return


def _is_message(record: TopicRecord) -> bool:
    value = record.value or b""
    is_packed = record.header(Property.COMPRESSION_TYPE.value) is not None
    return is_packed or (value.lstrip()[:1] == b"<" and b"<sql" in value[:4096])


def _note(connectors: dict[str, ConnectorFacts], seen: ChangeLocation, record: TopicRecord, *, is_avro: bool) -> None:
    prefix = seen.source.name or record.topic.partition(".")[0]
    facts = connectors.setdefault(prefix, ConnectorFacts(prefix, Form.AVRO if is_avro else _form(record)))
    facts.database = seen.source.connector
    facts.tables.add(str(seen.table))
    facts.topics.add(record.topic)


def _form(record: TopicRecord) -> Form:
    value = json.loads(record.value or b"null")
    if isinstance(value, dict) and value.get("schema") is not None and "payload" in value:
        return Form.WITH_SCHEMAS
    return Form.WITHOUT_SCHEMAS if record.header(COLUMNS_HEADER) is None else Form.WITH_TYPES


def _note_avro(connectors: dict[str, ConnectorFacts], topic: str) -> None:
    """Avro cannot be read without its registry: the names of topics must do."""
    prefix, _, table = topic.partition(".")
    facts = connectors.setdefault(prefix, ConnectorFacts(prefix, Form.AVRO))
    if table == "transaction":
        facts.transactions = topic
    else:
        facts.tables.add(table)
        facts.topics.add(topic)
