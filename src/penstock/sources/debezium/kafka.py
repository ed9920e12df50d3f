"""Topics of a Kafka cluster as a log of records."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from penstock.formats.debezium.record import Record
from penstock.kafka import QUIET, SILENT, Answering, bad_settings, failure
from penstock.sources.debezium.log import Extent, Partition, RecordFollower, RecordLog

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

_ANSWER_S = 20.0
"""How long a broker may take to answer."""

_TAKE = 10_000
"""Most records that are taken from the client at a time."""


@dataclass(frozen=True)
class KafkaLog:
    """Implements `log.RecordLog`. Records of aborted Kafka transactions are not seen.

    Attributes:
        settings: Of librdkafka, secrets among them.
        topics: Patterns with `*` and `?`.
    """

    settings: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The brokers."""
        return f"kafka {self.settings['bootstrap.servers']}"

    @property
    def ends(self) -> bool:
        """More may come at any time."""
        return False

    def partition_of(self, record: Record) -> Partition:
        """Return the partition of its topic."""
        return Partition(record.topic, record.partition)

    def identity(self) -> str:
        """Return the id of the cluster, and which topics are read of it."""
        with self._answering("describe the cluster"):
            # A client that is let go of answers nothing any more.
            admin = self._admin()
            cluster = admin.describe_cluster(request_timeout=_ANSWER_S).result().cluster_id
        return f"{cluster}/{','.join(self.topics)}"

    def topic_id(self, topic: str) -> str:
        """Return the id that the cluster has given a topic; empty where there is none of the name."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        with self._answering(f"describe topic {topic}"):
            admin = self._admin()
            asked = admin.describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_S)
            try:
                return str(asked[topic].result().topic_id)
            except KafkaException as exc:
                if exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return ""
                raise

    def extents(self) -> Mapping[Partition, Extent]:
        """Return what every partition of every topic that a pattern means holds now."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        with self._answering("list topics"):
            admin = self._admin()
            known = admin.list_topics(timeout=_ANSWER_S).topics
            parts = [
                TopicPartition(name, number)
                for name in sorted(known)
                if any(fnmatchcase(name, pattern) for pattern in self.topics)
                for number in known[name].partitions
            ]
            if not parts:
                return {}
            found = [
                admin.list_offsets(
                    dict.fromkeys(parts, spec), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_S
                )
                for spec in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
            ]
            first, end = ({part: result.result().offset for part, result in of.items()} for of in found)
        return {Partition(p.topic, p.partition): Extent(first[p], end[p]) for p in parts}

    def follow(self, positions: Mapping[Partition, int]) -> KafkaFollower:
        """Follow partitions, each from an offset on."""
        return KafkaFollower(self, positions)

    def read(self, partition: Partition, first: int, end: int) -> Iterator[Record]:
        """Yield the records of a range of offsets, in order."""
        with closing(self.follow({partition: first})) as follower:
            at = first
            while at < end:
                for record in follower.take(_TAKE, _ANSWER_S):
                    assert record.offset is not None
                    if record.offset >= end:
                        return
                    yield record
                at = follower.positions()[partition]

    def committed(self, consumer: str, partitions: Collection[Partition]) -> Mapping[Partition, tuple[int, str]]:
        """Return what was last committed for a consumer group."""
        from confluent_kafka import TopicPartition

        with self._answering("read committed offsets"), closing(self.consumer(group=consumer)) as client:
            asked = [TopicPartition(*partition) for partition in partitions]
            found = client.committed(asked, timeout=_ANSWER_S)
        return {Partition(p.topic, p.partition): (p.offset, p.metadata or "") for p in found if p.offset >= 0}

    def commit(self, consumer: str, positions: Mapping[Partition, int], note: str) -> None:
        """Keep offsets for a consumer group."""
        from confluent_kafka import TopicPartition

        with self._answering("commit offsets"), closing(self.consumer(group=consumer)) as client:
            offsets = [TopicPartition(*partition, offset, metadata=note) for partition, offset in positions.items()]
            client.commit(offsets=offsets, asynchronous=False)

    def consumer(self, *, group: str = "penstock") -> Consumer:
        """Open a client; its group is only looked at for committed offsets."""
        from confluent_kafka import Consumer, KafkaException

        settings: dict[str, Any] = {
            **QUIET,
            **self.settings,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # An offset that is gone is an error of its own, and never another offset.
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        try:
            return Consumer(settings, logger=SILENT)
        except (KafkaException, TypeError, ValueError) as exc:
            raise bad_settings(exc) from exc

    def _admin(self) -> AdminClient:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            return AdminClient({**QUIET, **self.settings}, logger=SILENT)
        except (KafkaException, TypeError, ValueError) as exc:
            raise bad_settings(exc) from exc

    def _answering(self, doing: str) -> Answering:
        return Answering(self.label, doing)


class KafkaFollower:
    """Implements `log.RecordFollower` with one client for all partitions."""

    def __init__(self, log: KafkaLog, positions: Mapping[Partition, int]) -> None:
        """Begin at offsets."""
        from confluent_kafka import TopicPartition

        self._log = log
        self._positions = dict(positions)
        self._client = log.consumer()
        with Answering(log.label, "read"):
            self._client.assign([TopicPartition(*partition, offset) for partition, offset in positions.items()])

    def take(self, most: int, timeout_s: float) -> Sequence[Record]:
        """Return records behind those that were returned before; waits up to the timeout for the first of them."""
        deadline = time.monotonic() + timeout_s
        while True:
            with Answering(self._log.label, "read"):
                # `consume` waits for as many as it was asked for, unless it may not wait at all.
                first = self._client.poll(max(0.0, deadline - time.monotonic()))
                messages = [first, *self._client.consume(min(most, _TAKE), timeout=0)] if first is not None else []
            records, has_moved = self._records(messages)
            if records or has_moved or time.monotonic() >= deadline:
                return records

    def positions(self) -> Mapping[Partition, int]:
        """Return, for each partition, the offset below which everything was returned."""
        return self._positions

    def close(self) -> None:
        """Read no more."""
        self._client.close()

    def _records(self, messages: Sequence[Message]) -> tuple[list[Record], bool]:
        """The records among messages, and whether a partition moved on without any."""
        from confluent_kafka import KafkaError

        records = []
        has_moved = False
        for message in messages:
            error = message.error()
            topic, number, offset = message.topic(), message.partition(), message.offset()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise failure(error, where=self._where(topic, number), doing="read")
            assert topic is not None
            assert number is not None
            assert offset is not None
            partition = Partition(topic, number)
            if error is not None:
                # Marks of Kafka's own transactions have offsets, too, and may be the last thing there.
                has_moved |= offset > self._positions[partition]
                self._positions[partition] = max(self._positions[partition], offset)
                continue
            self._positions[partition] = offset + 1
            headers = tuple((str(name), _bytes(value)) for name, value in _pairs(message.headers()))
            records.append(Record(topic, message.key(), message.value(), headers, number, offset))
        return records, has_moved

    def _where(self, topic: str | None, number: int | None) -> str:
        return self._log.label if topic is None else f"{self._log.label}, {Partition(topic, number or 0)}"


def _pairs(headers: Any) -> Sequence[tuple[str, str | bytes | None]]:
    """The headers of a message; the client's types say less of them than it does."""
    return headers or ()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


_: type[RecordLog] = KafkaLog
__: type[RecordFollower] = KafkaFollower
