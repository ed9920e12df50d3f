"""DbWatcher's messages in a topic, read back as transactions and applied."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from penstock.errors import OperatorError, RetryableError
from penstock.formats.dbwatcher.compression import Compression, compress
from penstock.history import HistoryError
from penstock.position import START, Scn
from penstock.sources.dbwatcher.numbers import MissingMessagesError
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.source import Messages
from penstock.sources.dbwatcher.topic import TopicMessages
from tests.kafka.broker import KafkaBroker, Record
from tests.lab import Lab
from tests.program import Program, await_true
from tests.sources.dbwatcher.messages import CREATE, OPEN, cols, message, row
from tests.sources.dbwatcher.test_source import insert, put_in, read

FILE = """\
version: 1
name: slave
connections:
  copy: {{type: postgres, url: "${{env:COPY_URL}}"}}
  cluster: {{type: kafka, settings: {{bootstrap.servers: "{servers}"}}}}
capture: {{source: dbwatcher, connection: cluster, tables: ["public.*"], dbwatcher: {{topic: {topic}}}}}
apply: {{connection: copy}}
"""

numbers = count(1)


class Topic:
    def __init__(self, kafka: KafkaBroker, *, partitions: int = 1) -> None:
        self.kafka = kafka
        self.name = kafka.topic(f"watched_{next(numbers)}", partitions)

    def put(self, *messages: str | Record) -> None:
        records = [one if isinstance(one, Record) else Record(self.name, 0, 0, None, one.encode()) for one in messages]
        self.kafka.produce(records)

    def open(self) -> Messages:
        log = TopicMessages({"bootstrap.servers": self.kafka.address}, self.name)
        return Messages(log, ["public.*"], Reading())


def test_messages_of_a_topic_are_applied_once_in_the_order_of_their_offsets(
    kafka: KafkaBroker, lab: Lab, tmp_path: Path
) -> None:
    topic = Topic(kafka)
    seven = message("7", row("INSERT", cols(id="2", name="b"), 20, "7"))
    eight = [
        message("8", row("UPDATE", cols(id="3", name="b"), 21, "8", old=cols(id="2", name="b")), desc=OPEN),
        message("8", row("INSERT", cols(id="1"), 22, "8")),
    ]
    topic.put(CREATE, seven, eight[0])
    program = Program(tmp_path, lab.source_url, lab.target_url, name="slave")
    (tmp_path / "pipeline.yaml").write_text(FILE.format(servers=kafka.address, topic=topic.name))
    assert program("setup").code == 0
    first = program("run", "--until-caught-up")
    assert first.code == 0, first.err
    assert lab.target.execute("SELECT id, name FROM t").fetchall() == [(2, "b")]

    topic.put(seven, *eight)
    again = program("run", "--until-caught-up")

    assert again.code == 0, again.err
    assert lab.target.execute("SELECT id, name FROM t ORDER BY id").fetchall() == [(1, None), (3, "b")]

    # Retention takes what was read, the CREATE among it: the target says what the table is like.
    assert "those before were deleted" not in program("plan").out
    kafka.delete_records(topic.name, before=6)
    assert "the messages begin at offset 6, those before were deleted" in program("plan").out
    topic.put(message("9", row("INSERT", cols(id="9", ts="2024-01-02 03:04:05.678"), 30, "9")))
    last = program("run", "--until-caught-up")
    assert last.code == 0, last.err
    assert lab.target.execute("SELECT ts::text FROM t WHERE id = 9").fetchall() == [("2024-01-02 03:04:05.678",)]


def test_headers_are_the_properties_and_control_messages_change_nothing(kafka: KafkaBroker) -> None:
    topic = Topic(kafka)
    body, properties = compress(message("8", put_in(2, 21, "8")).encode() + b" " * 200, Compression.GZIP)
    assert properties
    packed = Record(topic.name, 0, 0, None, body, tuple((name, value.encode()) for name, value in properties.items()))
    control = Record(topic.name, 0, 0, None, b"REQUEST_RECREATE_TRIGGERS")
    end = Record(topic.name, 0, 0, None, b"", ((("_END_OF_TRANSITION", b"true")),))
    topic.put(CREATE, message("7", put_in(1, 20, "7")), control, end, packed)
    messages = topic.open()

    assert read(messages) == [[insert(1)], [insert(2)]]
    part = messages.next_slice(START)
    assert part is not None
    assert part.commit_scns.tolist() == [2, 5]
    # The broker has noted when.
    assert part.committed_at_us.min() > 1_600_000_000_000_000
    topic.put(message("9", put_in(3, 22, "9")))
    assert read(messages, Scn(5)) == [[insert(3)]]


def test_a_topic_that_is_made_anew_or_has_another_message_is_refused(kafka: KafkaBroker) -> None:
    topic = Topic(kafka)
    topic.put(CREATE, message("7", put_in(1, 20, "7")))
    proof = topic.open().proof_at(Scn(2))
    topic.open().hold_against(proof, Scn(2))
    id_, _, digest = proof.partition(":")
    with pytest.raises(HistoryError, match="the message at offset 1 was read, and is another one now"):
        topic.open().hold_against(f"{id_}:{digest[::-1]}", Scn(2))

    kafka.delete_topic(topic.name)
    kafka.topic(topic.name)
    topic.put(CREATE, message("7", put_in(1, 20, "7")))

    with pytest.raises(HistoryError, match="was made anew"):
        topic.open().hold_against(proof, Scn(2))


def test_what_was_read_may_be_deleted(kafka: KafkaBroker) -> None:
    topic = Topic(kafka)
    topic.put(CREATE, message("7", put_in(1, 20, "7")), message("8", put_in(2, 21, "8")))
    proof = topic.open().proof_at(Scn(2))

    kafka.delete_records(topic.name, before=2)

    messages = topic.open()
    messages.hold_against(proof, Scn(2))
    assert read(messages, Scn(2)) == [[insert(2)]]


def test_what_was_not_read_may_not_be_deleted(kafka: KafkaBroker) -> None:
    topic = Topic(kafka)
    topic.put(CREATE, *(message(str(n), put_in(n, 20 + n, str(n))) for n in (7, 8, 9)))
    proof = topic.open().proof_at(Scn(2))

    kafka.delete_records(topic.name, before=3)

    with pytest.raises(HistoryError, match=r"from offset 2 on, which were not read, are gone; .* has offset 3"):
        topic.open().hold_against(proof, Scn(2))


def test_a_numbered_message_that_was_not_read_is_missed_by_its_number(kafka: KafkaBroker) -> None:
    topic = Topic(kafka)
    numbered = [
        Record(topic.name, 0, 0, None, message(str(n), put_in(n, n, str(n))).encode(), (("_MESSAGE_SEQ", b"%d" % n),))
        for n in (7, 8, 9, 10)
    ]
    topic.put(CREATE, *numbered[:3])
    opened = topic.open()
    proofs = {n: opened.proof_at(Scn(n)) for n in (2, 3, 4) if read(opened)}

    kafka.delete_records(topic.name, before=3)

    topic.open().hold_against(proofs[3], Scn(3))
    with pytest.raises(MissingMessagesError, match="message 8 is missing"):
        topic.open().hold_against(proofs[2], Scn(2))
    # Nothing is left to tell it by, until the next message comes.
    kafka.delete_records(topic.name, before=4)
    left = topic.open()
    left.hold_against(proofs[2], Scn(2))
    topic.put(numbered[3])
    with pytest.raises(MissingMessagesError, match="messages 8 to 9 are missing"):
        read(left, Scn(2))
    topic.open().hold_against(proofs[4], Scn(4))


def test_the_begin_of_a_transaction_that_is_not_over_may_not_be_deleted(kafka: KafkaBroker) -> None:
    """Its end would be applied alone."""
    topic = Topic(kafka)
    begun, ended = message("8", put_in(8, 20, "8"), desc=OPEN), message("8", put_in(9, 30, "8"))
    topic.put(CREATE, begun, message("9", put_in(1, 21, "9")))
    opened = topic.open()
    assert read(opened) == [[insert(1)]]
    proof = opened.proof_at(Scn(3))
    topic.put(ended, message("10", put_in(2, 31, "10")))
    # It is over by now, and was not then.
    assert topic.open().proof_at(Scn(3)) == proof
    over = topic.open().proof_at(Scn(4))

    kafka.delete_records(topic.name, before=1)
    topic.open().hold_against(proof, Scn(3))
    kafka.delete_records(topic.name, before=2)

    with pytest.raises(HistoryError, match="offset 1, which begins a transaction that had not ended"):
        topic.open().hold_against(proof, Scn(3))
    # From where it is over on nobody needs its begin.
    topic.open().hold_against(over, Scn(4))


def refused(topic: Topic) -> str:
    """Why a topic is refused; a partition that was made just now may have no leader yet."""
    said: list[str] = []

    def is_told() -> bool:
        with suppress(RetryableError):
            try:
                topic.open().end()
            except OperatorError as exc:
                said.append(str(exc))
                return True
        return False

    await_true(is_told)
    return said[0]


def test_a_topic_that_is_not_there_or_has_several_partitions_is_refused(kafka: KafkaBroker) -> None:
    several = Topic(kafka, partitions=2)
    assert f"topic {several.name} has 2 partitions, so its messages have no order" in refused(several)

    kafka.delete_topic(several.name)
    assert f"there is no topic {several.name}" in refused(several)
