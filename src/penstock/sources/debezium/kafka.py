"""Topics of a Kafka cluster as a log of records."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import PenstockError, RetryableError
from penstock.formats.debezium.record import TopicRecord
from penstock.history import RESYNC, HistoryError
from penstock.kafka import ANSWER_S, QUIET, SILENT, Answering, ConnectionErrors, bad_settings, failure, patiently
from penstock.sources.debezium.log import ConsumerOffsets, Extent, Partition, RecordFollower, RecordLog

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message
    from confluent_kafka.admin import AdminClient

_TAKE = 10_000
"""Most records that are taken from the client at a time."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class KafkaLog:
    """Implements `log.RecordLog`. Records of aborted Kafka transactions are not seen.

    Attributes:
        settings: Of librdkafka, secrets among them.
        topics: Patterns with `*` and `?`.
        with_times: Records have their timestamps, too.
    """

    settings: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...] = ()
    with_times: bool = False
    _admins: list[_Admin] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def label(self) -> str:
        """The brokers."""
        return f"kafka {self.settings['bootstrap.servers']}"

    @property
    def ends(self) -> bool:
        """More may come at any time."""
        return False

    def partition_of(self, record: TopicRecord) -> Partition:
        """Return the partition of its topic."""
        return Partition(record.topic, record.partition)

    def identity(self) -> str:
        """Return the id of the cluster, and which topics are read of it."""
        with self._admin.answering("describe the cluster"):
            cluster = self._admin.patiently(
                lambda client, wait_s: client.describe_cluster(request_timeout=wait_s).result().cluster_id
            )
        return f"{cluster}/{','.join(self.topics)}"

    def topic_id(self, topic: str) -> str:
        """Return the id that the cluster has given a topic; empty where there is none of the name."""
        return self._topic_ids([topic], f"describe topic {topic}").get(topic, "")

    def proof(self, upto: Mapping[Partition, int]) -> Mapping[str, str]:
        """Return the id of each topic, which one that is made anew does not have."""
        return self._topic_ids(sorted({partition.topic for partition in upto}), "describe topics")

    def hold_against(self, proof: Mapping[str, str], is_needed: Callable[[str], bool]) -> Mapping[Partition, int]:
        """Compare the ids of topics; the offsets that were read are committed."""
        now = self._topic_ids(sorted(proof), "describe topics")
        for topic, known in sorted(proof.items()):
            if topic in now and now[topic] != known:
                raise HistoryError(
                    f"topic {topic} was made anew: what was not read of it is gone, and its offsets are others",
                    where=self.label,
                )
            if topic not in now and is_needed(topic):
                raise HistoryError(
                    f"topic {topic}, which was followed, is not there any more: what was not read of it is gone",
                    where=self.label,
                    do=f"leave its tables out of capture.tables; or {RESYNC}",
                )
        return {}

    def _topic_ids(self, topics: Sequence[str], doing: str) -> Mapping[str, str]:
        """Return the ids of those topics that are there."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        def ask(client: AdminClient, wait_s: float) -> Mapping[str, str]:
            found = {}
            for topic, asked in client.describe_topics(TopicCollection(list(topics)), request_timeout=wait_s).items():
                try:
                    found[topic] = str(asked.result().topic_id)
                except KafkaException as exc:
                    if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
            return found

        if not topics:
            return {}
        with self._admin.answering(doing):
            return self._admin.patiently(ask)

    def extents(self) -> Mapping[Partition, Extent]:
        """Return what every partition of every topic that a pattern means holds now."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        def offsets(parts: Sequence[TopicPartition], spec: Any, seen: IsolationLevel) -> Mapping[TopicPartition, int]:
            def ask(client: AdminClient, wait_s: float) -> Mapping[TopicPartition, int]:
                found = client.list_offsets(dict.fromkeys(parts, spec), isolation_level=seen, request_timeout=wait_s)
                return {part: result.result().offset for part, result in found.items()}

            return self._admin.patiently(ask)

        with self._admin.answering("list topics"):
            known = self._admin.patiently(lambda client, wait_s: client.list_topics(timeout=wait_s)).topics
            parts = [
                TopicPartition(name, number)
                for name in sorted(known)
                if any(fnmatchcase(name, pattern) for pattern in self.topics)
                for number in known[name].partitions
            ]
            if not parts:
                return {}
            committed, everything = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
            first = offsets(parts, OffsetSpec.earliest(), committed)  # type: ignore[no-untyped-call]
            # Before the end: a Kafka transaction that ends in between is none that is waited for.
            written = offsets(parts, OffsetSpec.latest(), everything)  # type: ignore[no-untyped-call]
            end = offsets(parts, OffsetSpec.latest(), committed)  # type: ignore[no-untyped-call]
        return {Partition(p.topic, p.partition): Extent(first[p], end[p], written[p]) for p in parts}

    def others(self) -> Sequence[str]:
        """Return the names of topics that no pattern means."""
        with self._admin.answering("list topics"):
            known = self._admin.patiently(lambda client, wait_s: client.list_topics(timeout=wait_s)).topics
        return [
            name
            for name in sorted(known)
            if not name.startswith("__") and not any(fnmatchcase(name, pattern) for pattern in self.topics)
        ]

    def readable(self, topics: Sequence[str]) -> Sequence[str]:
        """Return which of some topics this user may read, and not only describe."""
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

        def ask(client: AdminClient, wait_s: float) -> Sequence[str]:
            wanted = TopicCollection(list(topics))
            asked = client.describe_topics(wanted, include_authorized_operations=True, request_timeout=wait_s)
            allowed = {topic: described.result().authorized_operations for topic, described in asked.items()}
            return [topic for topic, operations in allowed.items() if not operations or AclOperation.READ in operations]

        if not topics:
            return ()
        with self._admin.answering("describe topics"):
            return self._admin.patiently(ask)

    def follow(self, positions: Mapping[Partition, int]) -> KafkaFollower:
        """Follow partitions, each from an offset on."""
        return KafkaFollower(self, positions)

    def read(self, partition: Partition, first: int, end: int) -> Iterator[TopicRecord]:
        """Yield the records of a range of offsets, in order."""
        with closing(self.follow({partition: first})) as follower:
            at = first
            while at < end:
                for record in follower.take(_TAKE, ANSWER_S):
                    assert record.offset is not None
                    if record.offset >= end:
                        return
                    yield record
                if follower.positions()[partition] == at:
                    raise follower.silence()
                at = follower.positions()[partition]

    def offsets(self, consumer: str) -> KafkaOffsets:
        """Open what is committed for a consumer group."""
        return KafkaOffsets(self, consumer)

    def consumer(
        self, heard: ConnectionErrors, *, group: str = "penstock", **callbacks: Callable[..., object]
    ) -> Consumer:
        """Open a client; its group is only looked at for committed offsets."""
        from confluent_kafka import Consumer, KafkaException

        settings: dict[str, Any] = {
            **QUIET,
            # Nobody joins the group. It is how long a commit waits for the group's broker, also when the client closes.
            "session.timeout.ms": 10_000,
            **self.settings,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # An offset that is gone is an error of its own, and never another offset.
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "error_cb": heard,
            **callbacks,
        }
        try:
            return Consumer(settings, logger=SILENT)
        except (KafkaException, TypeError, ValueError) as exc:
            raise bad_settings(exc) from exc

    @property
    def _admin(self) -> _Admin:
        """The one client of this process that asks for what there is."""
        if not self._admins:
            self._admins.append(_Admin(self))
        return self._admins[0]

    def __reduce__(self) -> tuple[object, ...]:
        return KafkaLog, (self.settings, self.topics)


class _Admin:
    """A client that asks for what there is; may be used by several threads."""

    def __init__(self, log: KafkaLog) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        self._label = log.label
        self._heard = ConnectionErrors()
        settings: dict[str, Any] = {**QUIET, **log.settings, "error_cb": self._heard}
        try:
            self._client = AdminClient(settings, logger=SILENT)
        except (KafkaException, TypeError, ValueError) as exc:
            raise bad_settings(exc) from exc

    def patiently(self, ask: Callable[[AdminClient, float], _Answer]) -> _Answer:
        """Ask until there is an answer, or it is clear that there will be none."""
        self._heard.error = None
        client = self._client
        return patiently(lambda wait_s: ask(client, wait_s), self._heard, lambda: client.poll(0))

    def answering(self, doing: str) -> Answering:
        """Turn what the client raises into our errors."""
        return Answering(self._label, doing, self._heard)


class KafkaOffsets:
    """Implements `log.ConsumerOffsets` with one client."""

    def __init__(self, log: KafkaLog, group: str) -> None:
        """Open the client."""
        self._log = log
        self._heard = ConnectionErrors()
        # What became of a commit, once it is known.
        self._commits: list[KafkaError | None] = []
        self._client = log.consumer(self._heard, group=group, on_commit=lambda error, _: self._commits.append(error))

    def committed(self, partitions: Collection[Partition]) -> Mapping[Partition, tuple[int, str]]:
        """Return what was last committed."""
        from confluent_kafka import TopicPartition

        with self._answering("read committed offsets"):
            asked = [TopicPartition(*partition) for partition in partitions]
            found = patiently(lambda wait_s: self._client.committed(asked, timeout=wait_s), self._heard, self._poll)
        return {Partition(p.topic, p.partition): (p.offset, p.metadata or "") for p in found if p.offset >= 0}

    def commit(self, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        """Keep offsets, each with a note: a hint that makes the next start shorter.

        Where a run goes on is the low watermark in the target's ledger, `PostgresLedger.complete`.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        kept = [TopicPartition(*partition, offset, metadata=note) for partition, (offset, note) in offsets.items()]
        with self._answering("commit offsets"):
            # One that is waited for inside the client comes back when the brokers do.
            self._commits.clear()
            self._client.commit(offsets=kept, asynchronous=True)
            deadline = time.monotonic() + ANSWER_S
            while not self._commits and not self._heard.is_final and time.monotonic() < deadline:
                self._poll(0.05)
            error = self._commits[0] if self._commits else KafkaError(KafkaError._TIMED_OUT)
            if error is not None:
                raise KafkaException(error)

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def _poll(self, wait_s: float = 0) -> None:
        # What is wrong with the group comes like a record.
        message = self._client.poll(wait_s)
        if message is not None and message.error() is not None:
            self._heard(message.error())

    def _answering(self, doing: str) -> Answering:
        return Answering(self._log.label, doing, self._heard)


class KafkaFollower:
    """Implements `log.RecordFollower` with one client for all partitions."""

    def __init__(self, log: KafkaLog, positions: Mapping[Partition, int]) -> None:
        """Begin at offsets."""
        from confluent_kafka import TopicPartition

        self._log = log
        self._positions = dict(positions)
        self._heard = ConnectionErrors()
        self._client = log.consumer(self._heard)
        with Answering(log.label, "read", self._heard):
            # A client that is assigned topics which it has not heard of yet waits half a second before it reads.
            known = self._topics()
            for topic in {partition.topic for partition in positions} - known.keys():
                # It never says of its own accord that a topic is not there, or may not be read.
                if (error := self._topics(topic)[topic].error) is not None:
                    raise failure(error, where=f"{log.label}, topic {topic}", doing="read")
            self._client.assign([TopicPartition(*partition, offset) for partition, offset in positions.items()])

    def take(self, most: int, timeout_s: float) -> Sequence[TopicRecord]:
        """Return records behind those that were returned before; waits up to the timeout for the first of them."""
        deadline = time.monotonic() + timeout_s
        while True:
            with Answering(self._log.label, "read", self._heard):
                # `consume` waits for as many as it was asked for, unless it may not wait at all.
                first = self._client.poll(max(0.0, deadline - time.monotonic()))
                messages = [first, *self._client.consume(min(most, _TAKE), timeout=0)] if first is not None else []
            records, has_moved = self._records(messages)
            if first is not None:
                self._heard.error = None
            elif self._heard.is_final:
                # Whoever begins again is told so as well, if it is still true then.
                silence = self.silence()
                raise RetryableError(silence.what, where=silence.where, do=silence.do)
            if records or has_moved or time.monotonic() >= deadline:
                return records

    def positions(self) -> Mapping[Partition, int]:
        """Return, for each partition, the offset below which everything was returned."""
        return self._positions

    def silence(self) -> PenstockError:
        """Why nothing comes, as far as it is known."""
        if self._heard.error is not None:
            return failure(self._heard.error, where=self._log.label, doing="read")
        return RetryableError(
            "Kafka cannot read: records that are there do not come",
            where=self._log.label,
            do="see whether the brokers that lead their partitions are up",
        )

    def close(self) -> None:
        """Read no more."""
        self._client.close()

    def _topics(self, topic: str | None = None) -> Mapping[str, Any]:
        """Ask for what the client is to know of a topic, or of all that there are."""
        client = self._client
        # The client's types lack the name of a topic.
        ask: Callable[..., Any] = client.list_topics
        return patiently(lambda wait_s: ask(topic=topic, timeout=wait_s).topics, self._heard, lambda: client.poll(0))

    def _records(self, messages: Sequence[Message]) -> tuple[list[TopicRecord], bool]:
        """The records among messages, and whether a partition moved on without any."""
        from confluent_kafka import KafkaError

        records = []
        has_moved = False
        ends: dict[tuple[str, int], int] = {}
        with_times = self._log.with_times
        for message in messages:
            error = message.error()
            topic, number, offset = message.topic(), message.partition(), message.offset()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise failure(error, where=self._where(topic, number), doing="read")
            assert topic is not None
            assert number is not None
            assert offset is not None
            if error is None:
                ends[topic, number] = offset + 1
                record = TopicRecord(topic, message.key(), message.value(), _Headers(message), number, offset)
                records.append(replace(record, timestamp_ms=message.timestamp()[1]) if with_times else record)
            else:
                # Marks of Kafka's own transactions have offsets, too, and may be the last thing there.
                end = ends.get((topic, number), self._positions[Partition(topic, number)])
                has_moved |= offset > end
                ends[topic, number] = max(end, offset)
        self._positions.update((Partition(*partition), end) for partition, end in ends.items())
        return records, has_moved

    def _where(self, topic: str | None, number: int | None) -> str:
        return self._log.label if topic is None else f"{self._log.label}, {Partition(topic, number or 0)}"


class _Headers(Sequence[tuple[str, bytes | None]]):
    """The headers of a message. A connector writes several to each, and few are ever looked at: made when they are."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    def _made(self) -> tuple[tuple[str, bytes | None], ...]:
        given: Any = self._message.headers()
        return tuple((str(name), _bytes(value)) for name, value in given or ())

    def __len__(self) -> int:
        return len(self._made())

    def __getitem__(self, at: Any) -> Any:
        return self._made()[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._made())

    def __repr__(self) -> str:
        return repr(self._made())

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (self._made(),)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


_: type[RecordLog] = KafkaLog
__: type[RecordFollower] = KafkaFollower
___: type[ConsumerOffsets] = KafkaOffsets
