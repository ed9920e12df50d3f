"""Transactions published as DbWatcher messages to a topic: properties are headers, and each message is there once."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import ConfigError
from penstock.formats.dbwatcher.message import Message
from penstock.formats.dbwatcher.reader import read_message
from penstock.pipeline.publication import Publication
from penstock.pipeline_file import parse
from tests.kafka.broker import KafkaBroker, Record
from tests.lab import Lab
from tests.program import await_true
from tests.stories.test_publish_anew import After, cut_small, outline

FILE = """
version: 1
name: {name}
connections:
  shop: {{type: postgres, url: "{url}"}}
  cluster: {{type: kafka, settings: {{bootstrap.servers: "{servers}"}}}}
capture: {{source: trigger_queue, connection: shop, tables: ["public.*"]}}
publish: {{to: kafka, connection: cluster, format: dbwatcher{more}}}
"""

numbers = count(1)


class Topic:
    """A pipeline of its own, and the topic that it publishes to."""

    def __init__(self, lab: Lab, kafka: KafkaBroker, folder: Path) -> None:
        self.lab, self.kafka, self.folder = lab, kafka, folder
        self.name = f"watched_{next(numbers)}"

    def open(self, more: str = "", **messages: object) -> Publication:
        more += f", dbwatcher: {json.dumps(messages)}"
        text = FILE.format(name=self.name, url=self.lab.source_url, servers=self.kafka.address, more=more)
        path = self.folder / "publish.yaml"
        path.write_text(text)
        publication = penstock.open(path)
        assert isinstance(publication, Publication)
        return publication

    def records(self, topic: str | None = None) -> list[Record]:
        return self.kafka.read(topic or f"{self.name}.dbwatcher")

    def messages(self) -> list[Message]:
        return [message_of(record) for record in self.records()]


def message_of(record: Record) -> Message:
    properties = {name: (value or b"").decode() for name, value in record.headers}
    return read_message(record.value or b"", properties)


def run(publication: Publication) -> Any:
    return publication.run(threading.Event(), until_caught_up=True)


@pytest.fixture
def topic(lab: Lab, kafka: KafkaBroker, tmp_path: Path, spark: object) -> Topic:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return Topic(lab, kafka, tmp_path)


def test_each_message_is_a_record_and_its_properties_are_headers(topic: Topic) -> None:
    topic.lab.source.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(1, 300) n")
    publication = topic.open(", topic: watched.shop")
    assert [step.summary for step in publication.plan().target.steps] == [
        f"topic penstock.{topic.name}.position",
        "topic watched.shop",
    ]
    publication.setup()
    run(publication)
    topic.lab.source.execute("UPDATE t SET v = 'y' WHERE id < 3")
    topic.lab.source.execute("DROP TABLE t")
    run(publication)
    run(publication)

    records = topic.records("watched.shop")
    messages = [message_of(record) for record in records]

    assert topic.kafka.topics("watched.shop") == {"watched.shop": 1}
    assert [(m.command.value, len(m.rows)) for m in messages] == [
        ("CREATE", 0),
        ("REPLICATION", 250),
        ("REPLICATION", 50),
        ("REPLICATION", 2),
        ("DROP", 0),
    ]
    assert [m.properties["_MESSAGE_SEQ"] for m in messages] == ["1", "2", "3", "4", "5"]
    assert [m.properties.get("_command") for m in messages] == ["CREATE"] * 3 + [None] * 2
    assert [m.properties.get("_NUM_OF_TRANSACTIONS") for m in messages] == [None] * 3 + ["1"] * 2
    assert messages[3].properties["replKey"] == messages[3].rows[1].attributes["replKey"]
    assert messages[3].head.attributes == {}
    assert {record.key for record in records} == {None}


def test_a_body_that_is_large_enough_is_compressed_and_says_so(topic: Topic) -> None:
    publication = topic.open(compress_size=3_000, compression="ZIP")
    publication.setup()
    run(publication)
    topic.lab.source.execute("INSERT INTO t VALUES (1, 'small')")
    topic.lab.source.execute("INSERT INTO t VALUES (2, repeat('large', 1000))")
    run(publication)

    small, large = topic.records()[-2:]

    assert (small.value or b"").startswith(b"<?xml ")
    headers = dict(large.headers)
    assert headers["_compressionType"] == b"ZIP"
    assert int(headers["_uncompressedSize"] or b"") > 5_000 > len(large.value or b"")
    assert message_of(large).rows[0].columns["v"] == "large" * 1_000


def test_a_transaction_that_is_too_large_for_a_record_is_several_and_a_row_that_is_goes_to_the_error_queue(
    topic: Topic,
) -> None:
    topic.kafka.topic(f"{topic.name}.dbwatcher", **{"max.message.bytes": "50000"})
    # 250 rows of the first copy do not fit either.
    topic.lab.source.execute("INSERT INTO t SELECT n, repeat('x', 300) FROM generate_series(1, 250) n")
    publication = topic.open()
    publication.setup()
    run(publication)
    copied = topic.messages()
    topic.lab.source.execute("UPDATE t SET v = repeat('y', 300)")
    topic.lab.source.execute("INSERT INTO t VALUES (900, repeat('z', 60000))")
    topic.lab.source.execute("INSERT INTO t VALUES (901, 'fits')")
    progress = run(publication)

    messages = topic.messages()[len(copied) :]
    (entry,) = publication.errors().entries()

    assert [message.head.attributes["_createCounter"] for message in copied] == list(map(str, range(len(copied))))
    assert ids(copied) == list(range(1, 251))
    assert len(copied) > 2
    *updated, last = messages
    assert sorted(ids(updated)) == list(range(1, 251))
    assert [message.keeps_transaction_open for message in updated] == [True] * (len(updated) - 1) + [False]
    assert len({message.head.ident for message in updated}) == 1
    assert ids([last]) == [901]
    assert progress.errors == 1
    assert "max.message.bytes" in entry.error_message
    assert "table public.t" in entry.error_message

    topic.kafka.set_topic(f"{topic.name}.dbwatcher", "max.message.bytes", "200000")
    assert [one.outcome.value for one in publication.retry([entry.id])] == ["applied"]
    retried = topic.messages()[-1]
    assert ids([retried]) == [900]
    assert retried.properties["_MESSAGE_SEQ"] == str(len(copied) + len(messages) + 1)


def ids(messages: Sequence[Message]) -> list[int]:
    return [int(str(row.columns["id"])) for message in messages for row in message.rows]


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (", debezium: {prefix: x}", "publish.debezium: DbWatcher messages are not change events"),
        (", path: x", "publish.path: events are published to a cluster"),
        (", dbwatcher: {max_rows: -1}", "publish.dbwatcher.max_rows: must be"),
        (", dbwatcher: {compression: LZ4}", "publish.dbwatcher.compression: must be 'GZIP' or 'ZIP'"),
        (", topic: penstock.x.position", "publish.topic: is a topic that keeps the position of a pipeline"),
    ],
)
def test_settings_that_do_not_go_with_messages_are_refused(more: str, wrong: str) -> None:
    text = FILE.format(name="x", url="postgresql:///x", servers="localhost:9", more=more)

    with pytest.raises(ConfigError) as raised:
        parse(text, name="pipeline.yaml", environment={})

    assert wrong in str(raised.value)


@pytest.mark.parametrize(
    ("publish", "wrong"),
    [
        (
            "{to: files, path: x, format: dbwatcher, dbwatcher: {compress_size: 9}}",
            "publish.dbwatcher.compress_size: files hold messages as they are",
        ),
        ("{to: files, path: x, format: dbwatcher, topic: x}", "publish.topic: goes with XDS documents or DbWatcher"),
        ("{to: files, path: x, dbwatcher: {max_rows: 9}}", "publish.dbwatcher: goes with publish.format dbwatcher"),
    ],
)
def test_settings_that_do_not_go_with_files_are_refused(publish: str, wrong: str) -> None:
    text = FILE.format(name="x", url="postgresql:///x", servers="localhost:9", more="")
    text = text[: text.index("publish:")] + f"publish: {publish}\n"

    with pytest.raises(ConfigError) as raised:
        parse(text, name="pipeline.yaml", environment={})

    assert wrong in str(raised.value)


def test_a_copy_is_requested_and_cancelled_while_the_run_is_at_work(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch.setattr)
    topic.lab.source.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 900) n; ANALYZE t")
    publication = topic.open(content_rows=50)
    publication.setup()
    cancelling = topic.open(content_rows=50)

    # The first copy of all is cancelled in the middle: nothing of the table is published until it is asked for.
    publication.run(threading.Event(), After(lambda: cancelling.cancel_copies(["public.t"])), until_caught_up=True)
    topic.lab.source.execute("UPDATE t SET v = 'y' WHERE id < 3")
    run(publication)
    first = topic.messages()
    assert publication.status().to_copy == 0
    assert outline(first) == [["CREATE", "t"], "content t", "cancelled t"]

    with publication.start():
        await_true(lambda: publication.status().backlog_changes == 0)
        topic.open(content_rows=50).request_copies(["public.t"])
        await_true(lambda: publication.status().copied == 1)
        topic.lab.source.execute("UPDATE t SET v = 'z' WHERE id = 1")
        await_true(lambda: outline(topic.messages())[-1:] == [["REPLICATION", "UPDATE"]])

    messages = topic.messages()[len(first) :]
    assert outline(messages) == [["CREATE", "t"], "content t", ["REPLICATION", "UPDATE"]]
    values = [row.columns["v"] for message in messages[:-1] for row in message.rows]
    assert (len(values), values.count("y")) == (900, 2)
    numbered = [message.properties["_MESSAGE_SEQ"] for message in (*first, *messages)]
    assert numbered == [str(number) for number in range(1, len(numbered) + 1)]
