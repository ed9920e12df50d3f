"""What a Kafka cluster does not let a user do is told by its cause, at once, and without the password."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.errors import OperatorError, RetryableError
from penstock.sources.debezium.kafka import KafkaLog
from penstock.sources.debezium.log import Partition
from tests.kafka import jars
from tests.kafka.broker import KafkaBroker
from tests.kafka.events import event, record


@pytest.fixture(scope="module")
def guarded(kafka_jars: Path) -> Iterator[KafkaBroker]:
    """A broker with users: one may read what begins with `open.`, and another nothing."""
    with KafkaBroker(jars.broker_path(kafka_jars), users={"reader": "right", "stranger": "right"}) as broker:
        broker.produce([record(event("c", "t", {"id": 1}, 1, 1, prefix=prefix)) for prefix in made(broker)])
        broker.allow("reader", "open.")
        broker.allow("reader", "penstock", group=True)
        broker.allow("stranger", "open.")
        yield broker


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.kafka.ANSWER_S", 3)
    monkeypatch.setattr("penstock.sources.debezium.kafka.ANSWER_S", 3)


def made(broker: KafkaBroker) -> list[str]:
    return [broker.topic(f"{prefix}.public.t").split(".")[0] for prefix in ("open", "closed")]


def log_of(broker: KafkaBroker, user: str, password: str = "right", *topics: str, **settings: str) -> KafkaLog:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user}
    given |= {"bootstrap.servers": broker.sasl_address, "sasl.password": password}
    return KafkaLog({**given, **{name.replace("_", "."): value for name, value in settings.items()}}, topics)


def test_credentials_that_are_refused_do_not_read_as_a_broker_out_of_reach(guarded: KafkaBroker) -> None:
    log = log_of(guarded, "reader", "hushed", "open.*")
    began = time.monotonic()
    for ask in (
        log.extents,
        log.identity,
        lambda: log.topic_id("open.transaction"),
        lambda: log.follow({Partition("open.public.t", 0): 0}),
        lambda: log.offsets("penstock.x").committed([Partition("open.public.t", 0)]),
    ):
        with pytest.raises(OperatorError, match="it refuses the credentials") as refused:
            ask()
        assert "hushed" not in str(refused.value)
        assert refused.value.__cause__ is None or "hushed" not in str(refused.value.__cause__)
    assert time.monotonic() - began < 20


def test_a_pipeline_file_with_wrong_credentials_ends_with_them(
    guarded: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hushed")
    path = tmp_path / "pipeline.yaml"
    path.write_text(f"""
version: 1
name: refused
connections:
  events:
    type: kafka
    settings:
      bootstrap.servers: {guarded.sasl_address}
      security.protocol: SASL_PLAINTEXT
      sasl.mechanism: PLAIN
      sasl.username: reader
      sasl.password: ${{env:KAFKA_PASSWORD}}
  target: {{type: postgres, url: "postgresql://nowhere/x"}}
capture: {{source: debezium, connection: events, tables: ["public.*"], debezium: {{prefix: open}}}}
apply: {{connection: target}}
""")
    with pytest.raises(OperatorError) as refused:
        penstock.open(path).setup()
    assert str(refused.value) == (
        f"Kafka cannot list topics: it refuses the credentials (kafka {guarded.sasl_address}). Correct sasl.*"
    )


def test_topics_that_a_user_may_not_see_are_not_there(guarded: KafkaBroker) -> None:
    assert [p.topic for p in log_of(guarded, "reader", "right", "*.public.t").extents()] == ["open.public.t"]


def test_a_topic_that_a_user_may_no_longer_read_is_named(guarded: KafkaBroker) -> None:
    log = log_of(guarded, "reader", "right", "closed.*")
    with pytest.raises(OperatorError, match=r"uthorization failed.*Allow this user to read and describe") as refused:
        list(log.read(Partition("closed.public.t", 0), 0, 1))
    assert "topic closed.public.t" in str(refused.value)


def test_a_group_that_a_user_may_not_use_is_told(guarded: KafkaBroker) -> None:
    log = log_of(guarded, "stranger", "right", "open.*")
    with pytest.raises(OperatorError, match="Allow this user to read and describe the topics and its group"):
        log.offsets("penstock.x").committed([Partition("open.public.t", 0)])


def test_a_protocol_that_the_listener_does_not_speak_is_hinted_at(guarded: KafkaBroker) -> None:
    log = KafkaLog({"bootstrap.servers": guarded.sasl_address}, ("open.*",))
    with pytest.raises(RetryableError, match=r"speak this security\.protocol"):
        log.extents()


def test_a_broker_that_is_not_there_says_why() -> None:
    with pytest.raises(RetryableError, match=r"Connection refused \(kafka 127\.0\.0\.1:1\)"):
        KafkaLog({"bootstrap.servers": "127.0.0.1:1"}, ("a.*",)).extents()
