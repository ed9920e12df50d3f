"""Looks at Kafka clusters: brokers, what the user may do, and how long topics keep what a pipeline has to read."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from penstock.config import PipelineConfig
from penstock.config.connections import KafkaConfig
from penstock.config.registry import SchemaRegistry
from penstock.doctor.looks import Look
from penstock.examination import Finding, Severity
from penstock.kafka import QUIET, SILENT, Answering, ConnectionErrors, bad_settings
from penstock.text import are, count, duration, size

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

_ANSWER_S = 3.0
_CONNECT_S = 1.5
_SHORT_S = 24 * 3600
"""Topics that keep records for less are named: a pipeline may stand still for a night."""

_SKEW_S = 60.0
_MOST_SENT = 1_000_000
"""librdkafka's own `message.max.bytes`."""

_MOST_RECEIVED = 100_000_000
"""librdkafka's own `receive.message.max.bytes`."""

_MOST_TOPICS = 200
_CONFIGS = "kafka-configs.sh --bootstrap-server {} --alter --entity-type topics --entity-name {} {}"
_ACLS = "kafka-acls.sh --bootstrap-server {} --add --allow-principal 'User:{}' --operation {} {}"


@dataclass(frozen=True)
class ClusterPart:
    """What a pipeline has to do with a cluster.

    Attributes:
        reads: Patterns of the topics that it captures from.
        writes: Patterns of those that it publishes to.
        group: The consumer group whose offsets say how far it has read; None where it keeps none.
    """

    reads: Sequence[str] = ()
    writes: Sequence[str] = ()
    group: str | None = None

    @classmethod
    def of(cls, config: PipelineConfig, name: str) -> ClusterPart:
        """What the pipeline of a file has to do with its connection `name`."""
        capture, publish = config.capture, config.publish
        if capture.connection == name and capture.source == "dbwatcher" and capture.dbwatcher is not None:
            return cls(reads=[capture.dbwatcher.topic or ""])
        if capture.connection == name and capture.debezium is not None:
            events = capture.debezium
            topics = [*(events.topics or [f"{events.prefix}.*"]), events.transactions]
            return cls(reads=topics, group=f"penstock.{config.name}")
        if publish is None or publish.connection != name:
            return cls()
        position = f"penstock.{config.name}.position"
        if publish.debezium is not None:
            events_to = publish.debezium
            return cls(writes=[f"{events_to.prefix}.*", events_to.transaction_topic or position, position])
        return cls(writes=[publish.topic or f"{config.name}.{publish.form}", position])


def look_at(name: str, connection: KafkaConfig, part: ClusterPart) -> Look:
    """Return a look at the cluster that a pipeline file calls `name`."""
    where = f"connections.{name}, {connection.client_settings['bootstrap.servers']}"
    return Look("kafka", where, lambda: _ask(connection, part, where))


def look_at_registry(registry: SchemaRegistry) -> Look:
    """Return a look at a schema registry."""

    def ask() -> Iterator[Finding]:
        subjects = registry.open().ask("/subjects")
        yield Finding(Severity.OK, "registry", f"schema registry: {count(len(subjects), 'subject')}", registry.url)

    return Look("registry", registry.url, ask)


def _ask(connection: KafkaConfig, part: ClusterPart, where: str) -> Iterator[Finding]:
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError:
        # What extras are missing is looked at already.
        return
    heard = ConnectionErrors()
    settings: dict[str, Any] = {**QUIET, **connection.client_settings, "error_cb": heard}
    try:
        client = AdminClient(settings, logger=SILENT)
    except (KafkaException, TypeError, ValueError) as exc:
        raise bad_settings(exc) from exc
    with Answering(where, "list the brokers", heard):
        try:
            found = client.list_topics(timeout=2 * _ANSWER_S)
        finally:
            # Calls its error callback, which has the reason where no broker answers.
            client.poll(0)
    what = f"{count(len(found.brokers), 'broker')}, {count(len(found.topics), 'topic')}"
    yield Finding(Severity.OK, "kafka", what, where)
    yield from _unreachable([(str(one.host), one.port) for one in found.brokers.values()], where)
    look = _ClusterLook(client, connection.client_settings, part, where)
    names = sorted(found.topics)
    reads, writes = (
        [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)][:_MOST_TOPICS]
        for patterns in (part.reads, part.writes)
    )
    if part.reads and not reads:
        yield look.unseen()
    partitions = {name: len(found.topics[name].partitions) for name in reads}
    with Answering(where, "describe the topics", heard):
        yield from look.rights(reads, writes)
    try:
        configs = look.configs([*reads, *writes])
    except KafkaException:
        if reads or writes:
            what = "retention and sizes of the topics cannot be seen: DescribeConfigs is not allowed"
            yield look.found(Severity.WARNING, "rights", what, look.acl("DescribeConfigs", reads or writes))
        return
    yield from look.kept(reads, configs)
    yield from look.sizes(reads, writes, configs)
    try:
        yield from look.read_so_far(partitions, configs)
    except KafkaException as exc:
        what = f"how far the pipeline has read cannot be seen: {exc.args[0].name()}"
        do = _ACLS.format(look.brokers, look.user, "Read", f"--group {part.group}") if part.group else ""
        yield look.found(Severity.WARNING, "rights", what, do)


def _unreachable(brokers: Sequence[tuple[str, int]], where: str) -> Iterator[Finding]:
    """Name brokers whose advertised address does not answer: records could not be read from, or written to, them."""

    def reason(address: tuple[str, int]) -> str:
        try:
            socket.create_connection(address, timeout=_CONNECT_S).close()
        except OSError as exc:
            return exc.strerror or type(exc).__name__
        return ""

    with ThreadPoolExecutor(max(1, len(brokers))) as pool:
        for (host, port), why in zip(brokers, pool.map(reason, brokers), strict=True):
            if why:
                what = f"a broker is advertised as {host}:{port}, which does not answer: {why}"
                do = f"nc -vz {host} {port}; then correct advertised.listeners of the broker, or the firewall"
                yield Finding(Severity.FAULT, "kafka", what, where, do)


@dataclass(frozen=True)
class _ClusterLook:
    """One client of a cluster that is looked at."""

    client: AdminClient
    settings: Mapping[str, str]
    part: ClusterPart
    where: str

    def found(self, severity: Severity, look: str, what: str, do: str = "") -> Finding:
        return Finding(severity, look, what, self.where, do)

    @property
    def brokers(self) -> str:
        return self.settings["bootstrap.servers"]

    @property
    def user(self) -> str:
        return self.settings.get("sasl.username", "ANONYMOUS")

    def acl(self, operation: str, topics: Sequence[str]) -> str:
        """The command that allows an operation on topics."""
        return _ACLS.format(self.brokers, self.user, operation, " ".join(f"--topic '{topic}'" for topic in topics[:3]))

    def unseen(self) -> Finding:
        """Say that no topic is seen of those that are read."""
        pattern = self.part.reads[0]
        topics = f"--topic '{pattern}'"
        if pattern.endswith("*"):
            topics = f"--topic '{pattern.rstrip('*')}' --resource-pattern-type prefixed"
        what = f"there is no topic {pattern}, or user {self.user!r} may not see it"
        return self.found(Severity.FAULT, "rights", what, _ACLS.format(self.brokers, self.user, "Read", topics))

    def rights(self, reads: Sequence[str], writes: Sequence[str]) -> Iterator[Finding]:
        """Say what the user may not do with the topics, and with the group of the pipeline."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection
        from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

        for topics, needed in ((reads, AclOperation.READ), (writes, AclOperation.WRITE)):
            if not topics:
                continue
            asked = self.client.describe_topics(
                TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=_ANSWER_S
            )
            allowed = {topic: described.result().authorized_operations for topic, described in asked.items()}
            lacking = [topic for topic, operations in allowed.items() if operations and needed not in operations]
            name = needed.name.title()
            if lacking:
                what = f"user {self.user!r} may not {name.lower()} {count(len(lacking), 'topic')}: {lacking[0]}"
                yield self.found(Severity.FAULT, "rights", what, self.acl(name, lacking))
        if self.part.group is None or not reads:
            return
        groups = self.client.describe_consumer_groups(
            [self.part.group], include_authorized_operations=True, request_timeout=_ANSWER_S
        )
        try:
            operations = groups[self.part.group].result().authorized_operations
            is_allowed = not operations or AclOperation.READ in operations
        except KafkaException as exc:
            # A group that was never used is not there.
            is_allowed = exc.args[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED
        if not is_allowed:
            what = f"user {self.user!r} may not use consumer group {self.part.group!r}"
            do = _ACLS.format(self.brokers, self.user, "Read", f"--group {self.part.group}")
            yield self.found(Severity.FAULT, "rights", what, do)

    def configs(self, topics: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """The settings of topics, by their names. Raises a `KafkaException` where they may not be seen."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        if not resources:
            return {}
        asked = self.client.describe_configs(resources, request_timeout=_ANSWER_S)
        return {
            resource.name: {name: str(entry.value) for name, entry in described.result().items()}
            for resource, described in asked.items()
        }

    def kept(self, topics: Sequence[str], configs: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
        """Name topics that delete records soon, or compact them."""
        compacted = [topic for topic in topics if "compact" in configs[topic].get("cleanup.policy", "")]
        if compacted:
            what = f"{_named(compacted)} compacted, which removes changes of transactions"
            do = _CONFIGS.format(self.brokers, compacted[0], "--add-config cleanup.policy=delete")
            yield self.found(Severity.WARNING, "retention", what, do)
        kept = {topic: kept_s for topic in topics if (kept_s := _retention_s(configs[topic])) is not None}
        short = [topic for topic, kept_s in kept.items() if kept_s < _SHORT_S]
        if short:
            shortest = duration(min(kept[topic] for topic in short))
            what = f"{_named(short)} kept for {shortest} only: a pipeline that stands still for longer loses records"
            do = _CONFIGS.format(self.brokers, short[0], f"--add-config retention.ms={7 * _SHORT_S * 1000}")
            yield self.found(Severity.WARNING, "retention", what, do)

    def sizes(
        self, reads: Sequence[str], writes: Sequence[str], configs: Mapping[str, Mapping[str, str]]
    ) -> Iterator[Finding]:
        """Name topics that take smaller messages than the client sends, or larger ones than it receives."""
        sent = int(self.settings.get("message.max.bytes", _MOST_SENT))
        received = int(self.settings.get("receive.message.max.bytes", _MOST_RECEIVED))
        most = {topic: int(configs[topic].get("max.message.bytes", _MOST_SENT)) for topic in (*reads, *writes)}
        small = [topic for topic in writes if most[topic] < sent]
        if small:
            what = f"the client sends messages of up to {size(sent)}, and topic {small[0]} takes {size(most[small[0]])}"
            do = _CONFIGS.format(self.brokers, small[0], f"--add-config max.message.bytes={sent}")
            yield self.found(Severity.WARNING, "message_size", what, do)
        large = [topic for topic in reads if most[topic] > received]
        if large:
            taken = most[large[0]]
            what = f"topic {large[0]} takes messages of {size(taken)}, and the client receives up to {size(received)}"
            do = f"set receive.message.max.bytes: {taken + (1 << 20)} in the connection's settings"
            yield self.found(Severity.WARNING, "message_size", what, do)

    def read_so_far(self, partitions: Mapping[str, int], configs: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
        """Hold what is not read yet against retention, and the newest record's time against this machine's clock."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        parts = [TopicPartition(topic, number) for topic, of in partitions.items() for number in range(of)]
        if not parts:
            return
        newest = self._offsets(dict.fromkeys(parts, OffsetSpec.max_timestamp()))  # type: ignore[no-untyped-call]
        yield from self._clock({part.topic: one.timestamp for part, one in newest.items()})
        if self.part.group is None:
            return
        asked = [ConsumerGroupTopicPartitions(self.part.group, parts)]
        (answer,) = self.client.list_consumer_group_offsets(asked, request_timeout=_ANSWER_S).values()
        read = {(one.topic, one.partition): one.offset for one in answer.result().topic_partitions if one.offset >= 0}
        parts = [part for part in parts if (part.topic, part.partition) in read]
        if not parts:
            return
        first = self._offsets(dict.fromkeys(parts, OffsetSpec.earliest()))  # type: ignore[no-untyped-call]
        end = self._offsets(dict.fromkeys(parts, OffsetSpec.latest()))  # type: ignore[no-untyped-call]
        halves = {part: kept_s for part in parts if (kept_s := _retention_s(configs[part.topic])) is not None}
        now_ms = int(time.time() * 1000)
        young = self._offsets(
            {part: OffsetSpec.for_timestamp(now_ms - int(kept_s * 500)) for part, kept_s in halves.items()}
        )
        for part in parts:
            at = read[part.topic, part.partition]
            place = f"topic {part.topic}, partition {part.partition}"
            if at < first[part].offset:
                what = f"{place}: retention has deleted {count(first[part].offset - at, 'record')} that were not read"
                yield self.found(Severity.FAULT, "retention", what, "penstock resync --all")
            elif part in young and at < end[part].offset and not 0 <= young[part].offset <= at:
                what = f"{place}: what is read next has passed half of its retention of {duration(halves[part])}"
                do = _CONFIGS.format(self.brokers, part.topic, f"--add-config retention.ms={int(halves[part] * 4000)}")
                yield self.found(Severity.WARNING, "retention", what, f"penstock run; or {do}")

    def _clock(self, times_ms: Mapping[str, int]) -> Iterator[Finding]:
        topic = max(times_ms, key=lambda name: times_ms[name])
        ahead_s = times_ms[topic] / 1000 - time.time()
        if ahead_s > _SKEW_S:
            what = f"the newest record of topic {topic} is {duration(ahead_s)} ahead of this machine's clock"
            do = "sudo timedatectl set-ntp true, here and where the records are written"
            yield self.found(Severity.WARNING, "clock", what, do)

    def _offsets(self, asked: Mapping[TopicPartition, Any]) -> Mapping[TopicPartition, Any]:
        """Offsets of partitions, each with a timestamp where it was asked for by one."""
        if not asked:
            return {}
        answers = self.client.list_offsets(dict(asked), request_timeout=_ANSWER_S)
        return {part: answer.result() for part, answer in answers.items()}


def _named(topics: Sequence[str]) -> str:
    others = f" and {count(len(topics) - 1, 'other')}" if topics[1:] else ""
    return f"topic {topics[0]}{others} {are(len(topics))}"


def _retention_s(config: Mapping[str, str]) -> float | None:
    """For how long a topic keeps records, in seconds; None: for ever, as far as their age goes."""
    milliseconds = int(config.get("retention.ms", -1))
    return None if milliseconds < 0 or config.get("cleanup.policy") == "compact" else milliseconds / 1000
