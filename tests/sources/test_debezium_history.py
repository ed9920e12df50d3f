"""What a position proves is held against what is there; rows that no transaction takes along have a position, too."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pytest

from penstock.errors import MalformedInputError, PenstockError
from penstock.formats.debezium.record import TopicRecord
from penstock.history import CaptureOrigin, Consumer, History, HistoryError
from penstock.position import START, Anchor
from penstock.sources.debezium.history import Proof
from penstock.sources.debezium.log import LogLayout
from penstock.sources.debezium.source import DebeziumSource
from penstock.sources.debezium.tracker import Tracker
from tests.sources.memory_log import ENDS, ORDERS, MemoryLog, boundary, ended, event, tables
from tests.sources.test_debezium_tracker import EVERYTHING

COUNT = {"public.orders": 1}


def commit(log: MemoryLog, txn: int) -> None:
    log.append(ORDERS, event(txn, order=1))
    log.append(ENDS, *ended(str(txn), counts=COUNT))


def row(lsn: int) -> TopicRecord:
    return event(lsn, "incremental")


def of_other(record: TopicRecord, **source: str) -> TopicRecord:
    value = json.loads(record.value or b"")
    value["source"] |= source
    return replace(record, value=json.dumps(value).encode())


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog({ENDS: [], ORDERS: []}, at_once=50)
    commit(made, 7)
    return made


class Run:
    """What runs of one pipeline do, one after the other; the ledger is what they leave."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.anchor: Anchor | None = None
        self.position = START
        self.origin: CaptureOrigin | None = None

    def run(self) -> Sequence[int]:
        """Apply what is there; returns how many changes each transaction has."""
        found = tables()
        tracker = Tracker(self.log, LogLayout(ENDS.topic, settle_s=0.05), found, "penstock.shop")
        changes: list[int] = []
        with closing(DebeziumSource(self.log, tracker, found, ENDS.topic)) as source:
            is_new = self.origin is None
            joined = source.join(History(Consumer("c", "shop"), self.origin, self.position, self.anchor, None, is_new))
            self.origin, self.position, self.anchor = joined.origin, joined.position, joined.anchor
            end = source.tick()
            while self.position < end:
                source.wait(threading.Event(), 5)
                if (part := source.next_slice(self.position, EVERYTHING)) is not None:
                    changes += part.changes.tolist()
                    self.position, self.anchor = part.end, part.anchor
            source.free(self.position, "c")
        return changes

    @property
    def proof(self) -> Proof:
        assert self.anchor is not None
        return Proof.of(self.anchor.mark)


def test_a_position_proves_topics_and_server(log: MemoryLog) -> None:
    run = Run(log)
    assert run.run() == [1]
    assert run.proof == Proof(ENDS.topic, {ENDS.topic: ENDS.topic, ORDERS.topic: ORDERS.topic}, "postgresql/shop/shop")
    commit(log, 8)
    assert run.run() == [1]


def test_the_mark_of_an_earlier_version_is_read_and_replaced(log: MemoryLog) -> None:
    run = Run(log)
    run.run()
    run.anchor = Anchor(run.position, ENDS.topic)
    assert run.run() == []
    assert set(run.proof.read) == {ENDS.topic, ORDERS.topic}


def test_what_a_later_version_adds_to_a_mark_is_passed_over() -> None:
    mark = Proof("id", {"a": "b"}, "mysql/shop").text
    assert Proof.of(mark[:-1] + ',"more":1}') == Proof("id", {"a": "b"}, "mysql/shop")
    assert Proof().text == ""


@pytest.mark.parametrize("topic", [ENDS.topic, ORDERS.topic])
def test_a_topic_that_was_made_anew_is_refused_by_the_next_run(log: MemoryLog, topic: str) -> None:
    run = Run(log)
    run.run()
    log.ids[topic] = "another"
    commit(log, 8)
    with pytest.raises(HistoryError, match="was made anew"):
        run.run()


@pytest.mark.parametrize(("other", "is_other"), [({"name": "bob"}, True), ({"db": "old"}, True), ({"db": ""}, False)])
@pytest.mark.parametrize("is_row", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_events_of_another_server_are_refused(
    log: MemoryLog, other: dict[str, str], is_other: bool, is_row: bool, restarts: bool
) -> None:
    run = Run(log)
    if restarts:
        run.run()
        # Only the mark says who it was: all that it read is gone from the samples.
        log.records[ORDERS] = [of_other(one, name="", db="") for one in log.records[ORDERS]]
    log.append(ORDERS, of_other(row(8) if is_row else event(8, order=1), **other))
    log.append(ENDS, *ended("8", counts={} if is_row else COUNT))
    if is_other:
        with pytest.raises(HistoryError, match="their positions cannot be compared"):
            run.run()
    else:
        assert sum(run.run()) == 2 - restarts


def test_rows_that_no_transaction_takes_along_have_a_position_of_their_own(log: MemoryLog) -> None:
    run = Run(log)
    run.run()
    behind = run.position
    log.append(ORDERS, row(8), row(8))
    assert run.run() == [2]
    assert (run.position, run.proof.rows) == (behind + 1, run.position)
    assert run.run() == []
    # The BEGIN of the next transaction lies at that position, and its END behind it.
    commit(log, 9)
    assert run.run() == [1]
    assert (run.position, run.proof.rows) == (behind + 2, None)


def test_rows_behind_a_transaction_that_has_begun_are_applied_with_it(log: MemoryLog) -> None:
    run = Run(log)
    run.run()
    log.append(ENDS, boundary("BEGIN", "8"))
    log.append(ORDERS, row(8))
    assert run.run() == []
    log.append(ORDERS, event(8, order=1))
    log.append(ENDS, boundary("END", "8", COUNT))
    assert run.run() == [2]


def test_an_end_at_the_position_of_rows_is_refused_and_not_taken_for_applied(log: MemoryLog) -> None:
    run = Run(log)
    run.run()
    log.append(ORDERS, row(8))
    run.run()
    log.append(ORDERS, event(9, order=1))
    log.append(ENDS, boundary("END", "9", COUNT))
    with pytest.raises(MalformedInputError, match="transaction 9 ends without having begun"):
        run.run()


def test_rows_for_which_there_is_no_position_wait_and_are_told(
    log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(log)
    run.run()
    for _ in range(2):
        log.append(ORDERS, row(8))
        found = run.run()
    assert found == []
    assert "1 row of a snapshot waits for the next transaction" in caplog.text
    commit(log, 9)
    assert sum(run.run()) == 2


def test_a_tail_that_was_cut_off_is_refused(log: MemoryLog) -> None:
    run = Run(log)
    commit(log, 8)
    run.run()
    del log.records[ENDS][2:]
    with pytest.raises(PenstockError):
        run.run()
