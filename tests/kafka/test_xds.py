"""An event log published to a topic as XDS documents: each event once, whatever breaks off."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, OperatorError, RetryableError
from penstock.formats.xds.reader import read_document
from penstock.pipeline_file import parse
from penstock.position import Scn
from penstock.sinks.xds.publication import EventLogPublication
from penstock.sources.event_log.channel import Channel
from penstock.wiring import open_pipeline
from tests.kafka.broker import KafkaBroker
from tests.lab import Lab
from tests.stories.test_event_log import Log

FILE = """\
version: 1
name: {name}
connections:
  people: {{type: postgres, url: "${{env:SHOP_URL}}"}}
  cluster: {{type: kafka, settings: {{bootstrap.servers: "{servers}"}}}}
capture:
  source: event_log
  connection: people
  tables: ["indirect.*"]
  event_log: {{table: indirect.event_log, create: true, driver_user: idm, query_limit: 2{more}}}
publish: {{to: kafka, connection: cluster, format: xds{to}}}
"""

numbers = count(1)


class Topic:
    """A log, and the topic that a pipeline of its own publishes it to."""

    def __init__(self, lab: Lab, kafka: KafkaBroker, folder: Path) -> None:
        self.kafka, self.log = kafka, Log(lab, folder)
        self.name = f"people_{next(numbers)}"

    def open(self, *, servers: str | None = None, more: str = "", to: str = "") -> EventLogPublication:
        text = FILE.format(name=self.name, servers=servers or self.kafka.address, more=more, to=to)
        made = open_pipeline(parse(text, name="pipeline.yaml", environment={"SHOP_URL": self.log.lab.source_url}))
        assert isinstance(made, EventLogPublication)
        return made

    def read(self, topic: str | None = None) -> list[tuple[str, str]]:
        """Key, and kind of the event in the document, of each record."""
        found = []
        for record in self.kafka.read(topic or f"{self.name}.xds"):
            (event,) = read_document(record.value or b"")
            assert (record.key or b"").decode() == event.association
            found.append((event.kind.value, event.association.partition(",")[0]))
        return sorted(found)


@pytest.fixture
def topic(lab: Lab, kafka: KafkaBroker, tmp_path: Path) -> Topic:
    return Topic(lab, kafka, tmp_path)


def run(publication: EventLogPublication) -> Any:
    return publication.run(threading.Event(), until_caught_up=True)


@pytest.mark.rule("E-21")
def test_each_event_is_a_record_under_its_association(topic: Topic) -> None:
    publication = topic.open()
    steps = publication.setup().target.steps
    assert [step.summary for step in steps] == [f"topic penstock.{topic.name}.position", f"topic {topic.name}.xds"]
    assert publication.plan().target.steps == []
    topic.log.lab.source.execute("INSERT INTO indirect.usr VALUES (1, 'A&<>n', 'Lee')")
    topic.log.lab.source.execute("CREATE TABLE indirect.doc (pkey text PRIMARY KEY)")
    topic.log.write(5, "idu=1")
    topic.log.write(4, 'pkey=", ; \' + \\" = \\\\ < >&"', table="doc")
    topic.log.write(9, "idu=1")
    topic.log.write(4, "idu=2")

    progress = run(publication)

    keys = {record.key for record in topic.kafka.read(f"{topic.name}.xds")}
    assert b'pkey=", ; \' + \\" = \\\\ < >&",table=doc,schema=indirect' in keys
    assert topic.read() == [("add", "idu=1"), ("delete", "idu=2"), ("delete", 'pkey="')]
    assert topic.log.statuses == "SSES"
    assert (progress.transactions, progress.position) == (3, 3)
    assert run(topic.open()).transactions == 0
    assert len(topic.read()) == 3


class BrokeOffError(Exception):
    pass


@pytest.mark.rule("E-15", "E-21")
def test_what_was_published_before_a_crash_is_not_published_again(topic: Topic) -> None:
    publication = topic.open()
    publication.setup()
    for key in range(1, 5):
        topic.log.write(4, f"idu={key}")
    documents: Any = publication._documents
    journal = publication._log.journal  # type: ignore[attr-defined]

    def break_off(of_cycle: Sequence[tuple[Scn, Sequence[str]]]) -> None:
        documents.put_all(of_cycle)
        raise BrokeOffError

    with closing(documents), pytest.raises(BrokeOffError):
        Channel(journal.open_log(), journal.settings, break_off).cycle()
    assert (topic.read(), topic.log.statuses) == ([("delete", "idu=1"), ("delete", "idu=2")], "NNNN")

    run(topic.open())

    assert topic.read() == [("delete", f"idu={key}") for key in range(1, 5)]
    assert topic.log.statuses == "SSSS"


def test_a_record_that_is_refused_leaves_its_rows_new_and_nothing_published(topic: Topic) -> None:
    publication = topic.open(to=", topic: too.small." + topic.name)
    topic.kafka.topic("too.small." + topic.name, max_message_bytes="2000")
    publication.setup()
    topic.log.write(4, "idu=1")
    topic.log.write(2, "idu=2", "fname", None, "x" * 5_000)

    with pytest.raises(OperatorError, match="an event is larger than it takes"):
        run(publication)

    assert topic.log.statuses == "NN"
    assert topic.read("too.small." + topic.name) == []


def test_a_topic_of_another_journal_is_not_gone_on_with(topic: Topic) -> None:
    publication = topic.open()
    publication.setup()
    topic.log.write(4, "idu=1")
    run(publication)
    publication.teardown()
    topic.open().setup()
    topic.log.write(4, "idu=2")

    with pytest.raises(OperatorError, match=f"another journal.*Delete topic penstock.{topic.name}.position"):
        run(topic.open())
    assert topic.log.statuses == "SN"
    topic.kafka.delete_topic(f"penstock.{topic.name}.position")
    topic.open().setup()
    run(topic.open())

    assert topic.read() == [("delete", "idu=1"), ("delete", "idu=2")]


@pytest.mark.parametrize("more", [1, 3])
def test_a_log_that_was_restored_to_an_older_state_is_refused(topic: Topic, more: int) -> None:
    """Also where the first poll finds so much that the positions go beyond those that were published."""
    publication = topic.open()
    publication.setup()
    topic.log.write(4, "idu=1")
    topic.log.write(4, "idu=2")
    run(publication)
    topic.log.lab.source.execute(f"UPDATE penstock_{topic.name}_events.journal SET position = 0")
    for key in range(3, 3 + more):
        topic.log.write(4, f"idu={key}")

    with pytest.raises(OperatorError, match="from this one in a later state"):
        run(topic.open())

    assert topic.log.statuses == "SS" + "N" * more
    assert len(topic.read()) == 2


def test_brokers_that_do_not_answer_leave_everything_as_it_was(topic: Topic, monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.sinks.events.kafka._ANSWER_S", 0.5)
    topic.log.publication().setup()
    topic.log.write(4, "idu=1")
    documents: Any = topic.open(servers="127.0.0.1:1")._documents

    with pytest.raises(RetryableError, match="Kafka cannot"):
        documents.put(Scn(1), ["<delete/>"])

    assert topic.log.statuses == "N"


@pytest.mark.parametrize(
    ("more", "to", "why"),
    [
        (", batch_size: 2", "", "capture.event_log.batch_size: a record of Kafka holds one event"),
        ("", ", debezium: {prefix: x}", "publish.debezium: XDS documents are not change events"),
        ("", ", path: x", "publish.path: events are published to a cluster"),
        ("", ", topic: 'a b'", "publish.topic: must be letters, digits"),
        ("", ", topic: penstock.people.position", "publish.topic: is a topic that keeps the position of a pipeline"),
    ],
)
def test_what_does_not_go_with_a_topic_is_refused(more: str, to: str, why: str) -> None:
    text = FILE.format(name="people", servers="host:1", more=more, to=to)

    with pytest.raises(ConfigError) as raised:
        parse(text, name="pipeline.yaml", environment={"SHOP_URL": "host=a"})

    assert why in str(raised.value)


def test_a_topic_of_documents_is_for_documents() -> None:
    text = FILE.format(name="people", servers="host:1", more="", to=", topic: a").replace(
        "format: xds", "format: debezium-json"
    )

    with pytest.raises(ConfigError) as raised:
        parse(text, name="pipeline.yaml", environment={"SHOP_URL": "host=a"})

    assert "publish.topic: goes with XDS documents or DbWatcher messages in Kafka" in str(raised.value)
