"""`penstock doctor` on a real broker: what a user may not do, what retention takes away, and no secret in a bundle."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AclOperation

from penstock.config.connections import KafkaConfig
from penstock.config.registry import SchemaRegistry
from penstock.doctor.bundle import write_bundle
from penstock.doctor.clusters import ClusterPart, _unreachable, look_at, look_at_registry
from penstock.doctor.diagnosis import diagnose
from penstock.doctor.looks import look_side_by_side
from penstock.examination import Finding
from tests.kafka import jars
from tests.kafka.broker import KafkaBroker
from tests.kafka.events import event, record
from tests.kafka.java import free_port
from tests.kafka.registry import SchemaRegistry as RealRegistry
from tests.lab import Lab

PASSWORD = "planted-Tr0ub4dor="
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def guarded(kafka_jars: Path) -> Iterator[KafkaBroker]:
    with KafkaBroker(jars.broker_path(kafka_jars), users={"reader": PASSWORD}) as broker:
        yield broker


def found(settings: dict[str, str], part: ClusterPart) -> Sequence[Finding]:
    return look_side_by_side([look_at("events", KafkaConfig(type="kafka", settings=settings), part)], timeout_s=30)


def login(broker: KafkaBroker) -> dict[str, str]:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "reader"}
    return {"bootstrap.servers": broker.sasl_address, "sasl.password": PASSWORD, **given}


def named(findings: Sequence[Finding], look: str) -> list[str]:
    return [f"{one.severity}: {one.what}: {one.do}" for one in findings if one.look == look]


def test_what_a_user_may_not_do_is_named_with_the_command_that_allows_it(guarded: KafkaBroker) -> None:
    for name in ("acl.public.t", "acl.out"):
        guarded.topic(name)
    (unseen,) = named(found(login(guarded), ClusterPart(["acl.public.*"], group="penstock.acl")), "rights")
    assert unseen.startswith("fault: there is no topic acl.public.*, or user 'reader' may not see it: kafka-acls.sh")
    assert unseen.endswith("--operation Read --topic 'acl.public.' --resource-pattern-type prefixed")
    guarded.allow("reader", "acl.", operations=[AclOperation.DESCRIBE])
    part = ClusterPart(["acl.public.*"], ["acl.out"], "penstock.acl")

    read, written, group, configs = named(found(login(guarded), part), "rights")

    assert read.startswith("fault: user 'reader' may not read 1 topic: acl.public.t: kafka-acls.sh")
    assert "--allow-principal 'User:reader' --operation Read --topic 'acl.public.t'" in read
    assert written.startswith("fault: user 'reader' may not write 1 topic: acl.out")
    assert group.startswith("fault: user 'reader' may not use consumer group 'penstock.acl'")
    assert "--operation Read --group penstock.acl" in group
    assert configs.startswith("warning: retention and sizes of the topics cannot be seen")

    rights = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS)
    guarded.allow("reader", "acl.", operations=rights)
    guarded.allow("reader", "penstock", group=True)
    assert named(found(login(guarded), part), "rights") == []


def test_retention_that_is_shorter_than_the_lag_is_named(guarded: KafkaBroker) -> None:
    for name in ("old.public.t", "gone.public.t"):
        guarded.topic(name, retention_ms=str(3 * HOUR_MS))
    producer = Producer({"bootstrap.servers": guarded.address})
    now = int(time.time() * 1000)
    for topic, at in (
        ("old.public.t", now - 2 * HOUR_MS),
        ("gone.public.t", now),
        ("gone.public.t", now + HOUR_MS // 6),
    ):
        producer.produce(topic, b"{}", timestamp=at)
    producer.flush(30)
    consumer = guarded.consumer(**{"group.id": "penstock.kept"})
    parts = [TopicPartition(topic, 0, 0) for topic in ("old.public.t", "gone.public.t")]
    consumer.commit(offsets=parts, asynchronous=False)
    consumer.close()
    guarded.delete_records("gone.public.t", 1)

    seen = found({"bootstrap.servers": guarded.address}, ClusterPart(["*.public.t"], group="penstock.kept"))

    short, *rest = named(seen, "retention")
    assert "kept for 3 h 0 min only: a pipeline that stands still for longer loses records" in short
    assert "--add-config retention.ms=604800000" in short
    assert [one.partition(":")[0] for one in rest] == ["fault", "warning"]
    assert "topic gone.public.t, partition 0: retention has deleted 1 record that were not read" in rest[0]
    assert rest[0].endswith("penstock resync --all")
    assert "topic old.public.t, partition 0: what is read next has passed half of its retention" in rest[1]
    assert "the newest record of topic gone.public.t is" in named(seen, "clock")[0]


def test_compacted_topics_and_sizes_that_differ_are_named(guarded: KafkaBroker) -> None:
    guarded.topic("odd.a", cleanup_policy="compact", max_message_bytes="2000000")
    guarded.topic("odd.b", cleanup_policy="compact")
    settings = {
        "bootstrap.servers": guarded.address,
        "receive.message.max.bytes": "1500000",
        "fetch.max.bytes": "1000000",
    }
    settings |= {"message.max.bytes": "1000000"}

    seen = found(settings, ClusterPart(["odd.*"]))
    (sent,) = named(
        found(
            {**settings, "receive.message.max.bytes": "9000000", "message.max.bytes": "3000000"},
            ClusterPart(writes=["odd.a"]),
        ),
        "message_size",
    )

    assert "topic odd.a and 1 other are compacted" in named(seen, "retention")[0]
    assert (
        "topic odd.a takes messages of 2.0 MB, and the client receives up to 1.5 MB" in named(seen, "message_size")[0]
    )
    assert "the client sends messages of up to 3.0 MB, and topic odd.a takes 2.0 MB" in sent
    assert "--add-config max.message.bytes=3000000" in sent


def test_a_broker_that_is_advertised_at_another_address_is_named() -> None:
    (finding,) = _unreachable([("127.0.0.1", free_port())], "here")
    assert "which does not answer: Connection refused" in finding.what
    assert "advertised.listeners" in finding.do


def test_a_registry_answers_or_is_named(registry: RealRegistry) -> None:
    (well,) = look_side_by_side([look_at_registry(SchemaRegistry(url=registry.url))], timeout_s=30)
    assert well.severity == "ok"
    (away,) = look_side_by_side([look_at_registry(SchemaRegistry(url="http://127.0.0.1:1"))], timeout_s=30)
    assert "out of reach" in away.what


def test_a_bundle_of_a_pipeline_from_topics_holds_no_secret_and_no_row(
    guarded: KafkaBroker, lab: Lab, tmp_path: Path
) -> None:
    guarded.topic("bundled.public.t")
    guarded.produce([record(event("c", "t", {"id": 1, "name": "planted-row"}, 1, 1, prefix="bundled"))])
    guarded.allow("reader", "bundled.")
    guarded.allow("reader", "penstock", group=True)
    lab.target.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"""
version: 1
name: bundled
connections:
  events:
    type: kafka
    settings:
      bootstrap.servers: {guarded.sasl_address}
      security.protocol: SASL_PLAINTEXT
      sasl.mechanism: PLAIN
      sasl.username: reader
      sasl.password: "${{env:KAFKA_PASSWORD}}"
  target: {{type: postgres, url: "{lab.target_url}"}}
capture:
  source: debezium
  connection: events
  tables: ["*.*"]
  debezium:
    prefix: bundled
    registry: {{url: "http://127.0.0.1:1", user: u, password: "${{env:REGISTRY_PASSWORD}}"}}
apply: {{connection: target}}
""")
    environment = {"KAFKA_PASSWORD": PASSWORD, "REGISTRY_PASSWORD": "planted-registry="}

    diagnosis = diagnose(file, timeout_s=60, environment=environment)
    write_bundle(diagnosis, tmp_path / "report.zip", environment)

    assert diagnosis.config is not None
    assert {"kafka", "registry", "connection"} <= {one.look for one in diagnosis.findings}
    with zipfile.ZipFile(tmp_path / "report.zip") as bundle:
        whole = "\n".join(bundle.read(name).decode() for name in bundle.namelist())
    assert "bundled" in whole
    assert "planted" not in whole
