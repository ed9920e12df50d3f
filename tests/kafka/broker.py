"""One Kafka node in KRaft mode, broker and controller in one process, and what tests ask of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.kafka.java import JavaProgram, free_port, is_listening

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Record:
    """One record as it lies on its topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def key_json(self) -> Any:
        return None if self.key is None else json.loads(self.key)

    @property
    def value_json(self) -> Any:
        return None if self.value is None else json.loads(self.value)

    @property
    def payload(self) -> Any:
        """The value without its schema, if it has one."""
        value = self.value_json
        return value["payload"] if isinstance(value, dict) and value.keys() == {"schema", "payload"} else value


class KafkaBroker:
    """A broker on a free port of the loopback interface, in a directory of its own that goes with it."""

    def __init__(
        self, class_path: str, *, settings: Mapping[str, str] = {}, users: Mapping[str, str] | None = None
    ) -> None:
        """Make the files of a new node, without starting it.

        Args:
            class_path: Of `jars.broker_path`.
            settings: More for its server.properties. Topics are not created by being named, unless this says so.
            users: Names and passwords; there is a second listener for them then, `sasl_address` (SASL_PLAINTEXT,
                PLAIN), where they may do nothing that `allow` does not allow them.
        """
        self._home = Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        self.port, controller = free_port(), free_port()
        self._properties = self._home / "server.properties"
        made = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._home / "data"),
            "auto.create.topics.enable": "false",
            # One node, and the topics of its own as small as they can be: they are made when first needed.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # What retention may delete is looked for often, so that a test need not wait for it.
            "log.retention.check.interval.ms": "200",
            "log.initial.task.delay.ms": "200",
            "file.delete.delay.ms": "100",
            # After a crash the controller waits this long before it lets the same node in again.
            "broker.session.timeout.ms": "1000",
            "broker.heartbeat.interval.ms": "200",
            **(self._for_users(controller, users) if users is not None else {}),
            **settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in made.items()))
        self.program = JavaProgram(self._home, "kafka", class_path)
        self._admin = AdminClient({"bootstrap.servers": self.address, "logger": _SILENT})
        self._format(class_path)

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def address(self) -> str:
        """What clients call `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_address(self) -> str:
        """The same for clients with a user and a password."""
        return f"127.0.0.1:{self.sasl_port}"

    def allow(
        self,
        user: str,
        what: str,
        *,
        group: bool = False,
        operations: Sequence[AclOperation] = (AclOperation.READ, AclOperation.DESCRIBE),
    ) -> None:
        """Let a user read and describe topics whose names begin like this, or use groups of consumers that do."""
        kind = ResourceType.GROUP if group else ResourceType.TOPIC
        rules = [
            AclBinding(
                kind, what, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation, AclPermissionType.ALLOW
            )
            for operation in operations
        ]
        for made in self._admin.create_acls(rules).values():
            made.result(_TIMEOUT_S)

    def start(self) -> None:
        """Start it, or start it again with what it had; returns when it answers."""
        self.program.start("kafka.Kafka", str(self._properties))
        self.program.wait_until(self._is_ready)

    def stop(self) -> None:
        """Have it stop in good order; topics stay."""
        self.program.stop()

    def kill(self) -> None:
        """Stop it hard."""
        self.program.kill()

    def remove(self) -> None:
        """End it and remove its files."""
        self.program.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Create a topic; returns its name.

        Args:
            config: Its settings, with `_` for the dots in their names: `retention_ms="1000"`.
        """
        settings = {setting.replace("_", "."): value for setting, value in config.items()}
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        self._admin.create_topics([wanted])[name].result(_TIMEOUT_S)
        return name

    def set_topic(self, name: str, setting: str, value: str) -> None:
        """Set something for a topic."""
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        for done in self._admin.incremental_alter_configs([resource]).values():
            done.result(_TIMEOUT_S)

    def delete_topic(self, *names: str) -> None:
        """Delete topics; returns when the broker no longer knows them."""
        for deleted in self._admin.delete_topics(list(names)).values():
            deleted.result(_TIMEOUT_S)
        _wait(lambda: not self.topics().keys() & set(names), f"topics {names} are still there")

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, `total` in all."""
        self._admin.create_partitions([NewPartitions(name, total)])[name].result(_TIMEOUT_S)
        _wait(lambda: self.topics().get(name) == total, f"{name} does not have {total} partitions")

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Cut a partition as its retention would: what lies below this offset is gone."""
        cut = TopicPartition(topic, partition, before)
        for deleted in self._admin.delete_records([cut]).values():
            deleted.result(_TIMEOUT_S)

    def topics(self, beginning: str = "") -> dict[str, int]:
        """Say which topics there are that begin like this, and how many partitions each has."""
        found = _partitions(self._admin.list_topics(timeout=_TIMEOUT_S))
        return {name: count for name, count in found.items() if name.startswith(beginning)}

    def oldest(self, topic: str, partition: int = 0) -> int:
        """Return the offset of the first record that is still there."""
        consumer = self.consumer()
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)[0])
        finally:
            consumer.close()

    def produce(self, records: Iterable[Record]) -> None:
        """Write records as they are, each to the partition that it names; offsets are given by the broker."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 1, "logger": _SILENT})
        failures: list[KafkaError] = []

        def note(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failures.append(error)

        for record in records:
            producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers) or None,
                on_delivery=note,
            )
            producer.poll(0)
        producer.flush(_TIMEOUT_S)
        if failures:
            raise KafkaException(failures[0])

    def read(
        self,
        *topics: str,
        count: int | None = None,
        until: Callable[[Sequence[Record]], bool] | None = None,
        timeout_s: float = _TIMEOUT_S,
        committed_only: bool = True,
    ) -> list[Record]:
        """Read topics from their beginning, all that is there now, partition by partition.

        Args:
            topics: Those to read; they need not exist yet if something is waited for.
            count: Wait until at least this many records have come.
            until: Wait until this is true of the records that have come.
            committed_only: Leave out records of Kafka transactions that are open or were aborted.

        Raises:
            TimeoutError: What was waited for did not come.
        """
        consumer = self.consumer(committed_only=committed_only)
        deadline = time.monotonic() + timeout_s
        found: list[Record] = []
        try:
            assigned: set[tuple[str, int]] = set()
            ended: set[tuple[str, int]] = set()
            while True:
                # Asked of the consumer itself: one that assigns what it has not heard of yet waits half a second.
                have = _partitions(consumer.list_topics(timeout=_TIMEOUT_S))
                wanted = {(topic, number) for topic in topics for number in range(have.get(topic, 0))}
                if wanted != assigned:
                    # All anew, so that a topic that came later is read in the same pass.
                    found.clear()
                    ended.clear()
                    consumer.assign([TopicPartition(*each, OFFSET_BEGINNING) for each in sorted(wanted)])
                    assigned = wanted
                self._read_to_end(consumer, found, ended, deadline)
                if _is_enough(found, count, until) and assigned <= ended:
                    return sorted(found, key=lambda each: (each.topic, each.partition, each.offset))
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(found)} records came from {topics} in {timeout_s} s")
        finally:
            consumer.close()

    def consumer(self, *, committed_only: bool = True, **settings: Any) -> Consumer:
        """Make a consumer without a group's offsets; the caller assigns and closes it."""
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": f"reader-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed_only else "read_uncommitted",
                "fetch.wait.max.ms": 20,
                "logger": _SILENT,
                **settings,
            }
        )

    def _read_to_end(self, consumer: Consumer, found: list[Record], ended: set[tuple[str, int]], until: float) -> None:
        """Take what is there, until each partition has said that there is no more, or the time is up."""
        assigned = {(each.topic, each.partition) for each in consumer.assignment()}
        is_first = True
        while (is_first or not assigned <= ended) and time.monotonic() < until:
            # A partition that has ended says so again after a further record only, so nobody waits for that.
            for message in consumer.consume(500, timeout=0.05):
                error = message.error()
                where = (message.topic(), message.partition())
                if error is None:
                    found.append(_record(message))
                    ended.discard(where)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(where)
                elif not error.retriable() and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise KafkaException(error)
            is_first = False

    def _for_users(self, controller: int, users: Mapping[str, str]) -> Mapping[str, str]:
        self.sasl_port = free_port()
        known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
        places = {"PLAINTEXT": self.port, "SASL_PLAINTEXT": self.sasl_port, "CONTROLLER": controller}
        return {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in places.items()),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def _format(self, class_path: str) -> None:
        """Write what a node must find in its directory: who it is, and the newest version of each feature."""
        # Its usual form may begin with a dash, which the tool would take for an option.
        cluster = uuid.uuid4().hex[:22]
        command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", class_path]
        command += ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"cannot format the directory of a broker: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _is_ready(self) -> bool:
        # Before it listens, a client would only wait longer between its attempts.
        if not is_listening(self.port):
            return False
        try:
            return bool(self._admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False


def _is_enough(found: Sequence[Record], count: int | None, until: Callable[[Sequence[Record]], bool] | None) -> bool:
    return (count is None or len(found) >= count) and (until is None or until(found))


def _partitions(cluster: ClusterMetadata) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in cluster.topics.items()}


def _record(message: Any) -> Record:
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def _wait(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.05)


def _silent() -> Any:
    import logging

    logger = logging.getLogger("tests.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


_SILENT = _silent()
