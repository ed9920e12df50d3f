"""Publishing to a Kafka cluster: events, and the position that they reach, in one Kafka transaction.

`init_transactions` ends every earlier producer of the same transactional id, and has what it left open aborted, or what
it had decided to commit committed: it makes a publisher the only one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import OperatorError, RetryableError
from penstock.formats.debezium.writer import OutgoingRecord
from penstock.kafka import QUIET, SILENT, bad_settings, failure
from penstock.sinks.events.publisher import EventDestination, Publisher
from penstock.sinks.events.state import PublishedState, StateEntry, published_state_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

_ANSWER_S = 20.0
"""How long the brokers may take to answer."""

_COMMIT_S = 60.0

LARGE_TIMEOUT_MS = 900_000
"""How long a Kafka transaction of a large source transaction may take: the most that brokers allow by default."""

_LARGEST_BYTES = 1_000_000
"""What librdkafka takes where nothing else is said."""

_BATCH_BYTES = 90
"""The most that a batch of one record has beside its key, its value and its headers, which brokers count, too."""

_HEADER_BYTES = 10
"""The most that a header has beside its name and its value."""

_POLL_EVERY = 1_000

_BATCH_SIZE = 500_000
"""So many bytes of records go to a broker in one batch, whose size brokers hold against the topic's limit."""


@dataclass(frozen=True)
class Cluster:
    """A Kafka cluster to publish to, and where a pipeline keeps its position there; travels to tasks.

    Attributes:
        settings: Of librdkafka, secrets among them.
        pipeline: Its name, by which it is known in the whole cluster.
        partitions, replication: Of topics of tables that it makes; None leaves it to the brokers.
    """

    settings: Mapping[str, str] = field(repr=False)
    pipeline: str = ""
    partitions: int | None = None
    replication: int | None = None

    @property
    def label(self) -> str:
        """The brokers."""
        return f"kafka {self.settings['bootstrap.servers']}"

    @property
    def transactional_id(self) -> str:
        """What makes the cluster refuse an earlier run of the pipeline."""
        return f"penstock.{self.pipeline}"

    @property
    def position_topic(self) -> str:
        """The topic that says where the pipeline stands."""
        return f"penstock.{self.pipeline}.position"

    @property
    def where(self) -> str:
        """The position topic, for messages."""
        return f"{self.label}, topic {self.position_topic}"

    def missing(self, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that are not there; raises as `published_state` does."""
        heard = _Heard(self.label)
        with heard.told("list topics"):
            known = self._admin(heard).list_topics(timeout=_ANSWER_S).topics
        return [topic for topic in topics if topic not in known]

    def make_topics(self, topics: Iterable[str], *, in_order: Container[str] = ()) -> None:
        """Make the topics that are not there; those that are to be `in_order` get one partition.

        Raises:
            RetryableError: The brokers are out of reach.
            OperatorError: They refuse it.
        """
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        heard = _Heard(self.label)
        partitions, replication = self.partitions or -1, self.replication or -1
        wanted = [
            NewTopic(
                topic,
                num_partitions=1 if topic in in_order or topic == self.position_topic else partitions,
                replication_factor=replication,
                config=_COMPACTED if topic == self.position_topic else {},
            )
            for topic in self.missing(topics)
        ]
        if not wanted:
            return
        with heard.told("make topics"):
            # A client that is let go of answers nothing any more.
            admin = self._admin(heard)
            for made in admin.create_topics(wanted, request_timeout=_ANSWER_S).values():
                _made(made)

    def settings_of(self, topic: str) -> Mapping[str, str | None]:
        """Return the settings of a topic that is there; raises as `published_state` does."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        heard = _Heard(self.label)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        with heard.told("describe topics"):
            admin = self._admin(heard)
            asked = admin.describe_configs([resource], request_timeout=_ANSWER_S)
            return {name: entry.value for name, entry in asked[resource].result().items()}

    def refuse_forgetful(self) -> None:
        """Raise an `OperatorError` where the position topic is there, and may forget the position after a while."""
        topic = self.position_topic
        if self.missing([topic]):
            return
        policy = self.settings_of(topic).get("cleanup.policy") or ""
        if policy.strip() != "compact":
            raise OperatorError(
                f"the topic that keeps the pipeline's position has cleanup.policy {policy!r}, which may delete it",
                where=self.where,
                do="set its cleanup.policy to compact",
            )

    def open(self, *, is_large: bool = False) -> KafkaPublisher:
        """Become the one producer of the pipeline, and read where it stands."""
        return KafkaPublisher(self, is_large=is_large)

    def published_state(self) -> PublishedState:
        """Say where the pipeline stands by what was committed so far; that of one without a topic is empty.

        Raises:
            RetryableError: The brokers are out of reach.
            MalformedInputError: Others have written to the topic.
        """
        heard = _Heard(self.label)
        with heard.told("read the position"), closing(self._consumer(heard)) as client:
            return published_state_of(_records(client, self.position_topic), where=self.where)

    def _admin(self, heard: _Heard) -> AdminClient:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            settings: dict[str, Any] = {**QUIET, **self.settings, "error_cb": heard.note}
            return AdminClient(settings, logger=SILENT)
        except (KafkaException, TypeError, ValueError) as exc:
            raise bad_settings(exc) from exc

    def _consumer(self, heard: _Heard) -> Consumer:
        from confluent_kafka import Consumer, KafkaException

        settings: dict[str, Any] = {
            **QUIET,
            "fetch.wait.max.ms": 10,
            **self.settings,
            "group.id": self.transactional_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "error_cb": heard.note,
        }
        try:
            return Consumer(settings, logger=SILENT)
        except (KafkaException, TypeError, ValueError) as exc:
            raise bad_settings(exc) from exc


_COMPACTED = {
    "cleanup.policy": "compact",
    # It is read whole whenever a run begins: what was overwritten is to be gone soon.
    "segment.ms": "60000",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
}
"""Settings of the position topic."""


def _made(future: Future[None]) -> None:
    from confluent_kafka import KafkaError, KafkaException

    try:
        future.result(_ANSWER_S)
    except KafkaException as exc:
        if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _records(client: Consumer, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield the committed records of the only partition of a topic, all that are there now."""
    from confluent_kafka import KafkaException, TopicPartition

    first, end = _extent(client, topic)
    client.assign([TopicPartition(topic, 0, first)])
    deadline = time.monotonic() + _ANSWER_S
    while first < end:
        for message in client.consume(10_000, timeout=0.01):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            deadline = time.monotonic() + _ANSWER_S
            yield message.key(), message.value()
        # Marks of Kafka's own transactions have offsets, too, and may be the last thing there.
        (at,) = client.position([TopicPartition(topic, 0)])
        first = max(first, at.offset)
        if time.monotonic() > deadline:
            raise RetryableError(
                "the brokers do not go on answering", where=f"topic {topic}", do="see whether they are up"
            )


def _extent(client: Consumer, topic: str) -> tuple[int, int]:
    """The first offset of a topic, and the one behind its last committed record; none of a topic that is not there."""
    from confluent_kafka import KafkaError as E
    from confluent_kafka import KafkaException, TopicPartition

    deadline = time.monotonic() + _ANSWER_S
    while True:
        try:
            first, end = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=_ANSWER_S)
        except KafkaException as exc:
            code = exc.args[0].code()
            if code in (E.UNKNOWN_TOPIC_OR_PART, E._UNKNOWN_PARTITION, E._UNKNOWN_TOPIC):
                return 0, 0
            # A topic that was just made has no leader for a moment.
            is_new = code in (E.NOT_LEADER_FOR_PARTITION, E.LEADER_NOT_AVAILABLE)
            if not is_new or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return first, end


class _Heard:
    """What a client says besides its answers: why it cannot connect, and why a record was not taken."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._error: Any = None

    def note(self, error: Any) -> None:
        """Remember an error that explains others."""
        from confluent_kafka import KafkaError as E

        if error.code() in (E._AUTHENTICATION, E.SASL_AUTHENTICATION_FAILED, E._SSL):
            self._error = error

    def note_delivery(self, error: Any, _: object) -> None:
        """Remember why a record was refused; the transaction fails for it later."""
        from confluent_kafka import KafkaError as E

        if error is not None and error.code() not in (E._PURGE_QUEUE, E._PURGE_INFLIGHT):
            self._error = self._error or error

    @contextmanager
    def told(self, doing: str) -> Iterator[None]:
        """Raise an error of the client as what was heard before it, where that explains it."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as exc:
            raise failure(self._error or exc.args[0], where=self._label, doing=doing) from exc


class KafkaPublisher:
    """A producer that is the only one of its pipeline until another one is opened."""

    def __init__(self, cluster: Cluster, *, is_large: bool = False) -> None:
        """Become the one producer, and read where the pipeline stands.

        Args:
            is_large: Its Kafka transactions may take a quarter of an hour.

        Raises:
            RetryableError: The brokers are out of reach.
            PenstockError: They refuse something.
        """
        self._cluster = cluster
        self._heard = _Heard(cluster.label)
        self.topics: set[str] = set()
        self._limits: dict[str, Sequence[tuple[int, str]]] = {}
        self.token = secrets.token_hex(8)
        self._client = self._producer(is_large=is_large)
        with self._heard.told("begin transactions"):
            self._client.init_transactions(_ANSWER_S)
        self.published_state = cluster.published_state()

    @contextmanager
    def transaction(self) -> Iterator[KafkaTransaction]:
        """Publish what is sent inside the block, all of it or nothing; the block sets the published state.

        After an error the publisher is of no use any more.
        """
        client = self._client
        transaction = KafkaTransaction(self, client)
        try:
            with self._heard.told("publish"):
                client.begin_transaction()
                yield transaction
                transaction.send_entries()
                self._commit()
        except BaseException:
            with suppress(Exception):
                client.purge()
                client.abort_transaction(_ANSWER_S)
            raise
        self.published_state = transaction.published_state

    def limits(self, topic: str, *, anew: bool = False) -> Sequence[tuple[int, str]]:
        """How many bytes a record of a topic may have, each with the setting that says so."""
        if anew or topic not in self._limits:
            own = self._cluster.settings
            found = [(int(own.get("message.max.bytes", _LARGEST_BYTES)), "message.max.bytes of the connection")]
            if own.get("compression.type", own.get("compression.codec", "none")) == "none":
                # Brokers count what is compressed, whose size nobody knows before.
                found += self._limits_of_brokers(topic)
            self._limits[topic] = found
        return self._limits[topic]

    def known_limits(self, topic: str) -> Sequence[tuple[int, str]]:
        """The same as far as it was asked for; nothing otherwise."""
        return self._limits.get(topic, ())

    def _limits_of_brokers(self, topic: str) -> list[tuple[int, str]]:
        if topic not in self.topics:
            self.make_topic(topic)
        try:
            told = self._cluster.settings_of(topic).get("max.message.bytes")
        except OperatorError:
            # Whoever may publish may not be allowed to read settings.
            return []
        return [] if told is None else [(int(told) - _BATCH_BYTES, f"max.message.bytes of topic {topic}")]

    def make_topic(self, topic: str) -> None:
        """Make sure that a topic is there."""
        self._cluster.make_topics([topic])
        self.topics.add(topic)

    def close(self) -> None:
        """Let go of what was not sent."""
        with suppress(Exception):
            self._client.purge()

    def _commit(self) -> None:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + _COMMIT_S
        while True:
            try:
                self._client.commit_transaction(_ANSWER_S)
            except KafkaException as exc:
                if not exc.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _producer(self, *, is_large: bool) -> Producer:
        from confluent_kafka import KafkaException, Producer

        settings: dict[str, Any] = {
            "socket.connection.setup.timeout.ms": 10_000,
            "linger.ms": 20,
            "batch.size": _BATCH_SIZE,
            "queue.buffering.max.kbytes": 128 * 1024,
            **({"transaction.timeout.ms": LARGE_TIMEOUT_MS} if is_large else {}),
            **self._cluster.settings,
            "transactional.id": self._cluster.transactional_id,
            # As Java's clients do, so that the records of a key stay in one partition whoever writes them.
            "partitioner": "murmur2_random",
            "error_cb": self._heard.note,
            "on_delivery": self._heard.note_delivery,
            "delivery.report.only.error": True,
        }
        try:
            return Producer(settings, logger=SILENT)
        except (KafkaException, TypeError, ValueError) as exc:
            raise bad_settings(exc) from exc


class KafkaTransaction:
    """One Kafka transaction.

    Attributes:
        published_state: Where the pipeline stands once it is committed.
    """

    def __init__(self, publisher: KafkaPublisher, client: Producer) -> None:
        self._topic = publisher._cluster.position_topic
        self._client = client
        self._publisher = publisher
        self._sent = 0
        self._unsent_bytes = 0
        self._entries: list[StateEntry] = []
        self.published_state = publisher.published_state

    def send(self, records: Iterable[OutgoingRecord]) -> int:
        """Send records; returns how many there were."""
        before = self._sent
        known = self._publisher.topics
        for record in records:
            if record.topic not in known:
                # A partition that is truncated has a topic of its own then.
                self._publisher.make_topic(record.topic)
            self._keep_batches_small(record)
            partition = {} if record.partition is None else {"partition": record.partition}
            self._produce(record.topic, record.value, record.key, headers=list(record.headers) or None, **partition)
        return self._sent - before

    def refusal(self, record: OutgoingRecord) -> str | None:
        """Say whether a record is larger than the client or its topic takes."""
        size = _size(record)
        for most, setting in self._publisher.limits(record.topic):
            if size > most:
                # It may have been raised since it was read.
                now = {name: one for one, name in self._publisher.limits(record.topic, anew=True)}
                told = now.get(setting, most)
                if size > told:
                    return f"has {size:,} bytes, and {setting} allows {told:,}"
        return None

    def _keep_batches_small(self, record: OutgoingRecord) -> None:
        """Have what is waiting sent before a record, if a batch of both could be more than the topic takes."""
        # Limits are known where records are asked about, which is where they may be refused.
        limit = min((most for most, _ in self._publisher.known_limits(record.topic)), default=_BATCH_SIZE)
        if limit < _BATCH_SIZE:
            self._unsent_bytes += _size(record)
            if self._unsent_bytes > limit:
                self._client.flush(_ANSWER_S)
                self._unsent_bytes = _size(record)

    def stand(self, published_state: PublishedState, *entries: StateEntry) -> None:
        """Have the pipeline stand somewhere else afterwards; entries are what says so."""
        self.published_state = published_state
        self._entries += entries

    def send_entries(self) -> None:
        """Send what says where the pipeline stands."""
        for key, value in {entry.key: entry for entry in self._entries}.items():
            self._produce(self._topic, value.value_bytes, key.encode(), partition=0)

    def _produce(self, topic: str, value: bytes | None, key: bytes | None, **rest: Any) -> None:
        while True:
            try:
                self._client.produce(topic, value, key, **rest)
            except BufferError:
                self._client.poll(0.1)
            else:
                break
        self._sent += 1
        if self._sent % _POLL_EVERY == 0:
            self._client.poll(0)


def _size(record: OutgoingRecord) -> int:
    size = sum(len(part) for part in (record.key, record.value) if part is not None)
    return size + sum(len(name) + len(value) + _HEADER_BYTES for name, value in record.headers)


_: type[EventDestination] = Cluster
__: type[Publisher] = KafkaPublisher
