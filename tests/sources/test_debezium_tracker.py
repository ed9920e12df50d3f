"""What the tracker makes of records that come from one partition sooner than from another."""

import pickle
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import cast

import pytest

from penstock.errors import MalformedInputError
from penstock.formats.debezium.record import TopicRecord
from penstock.position import START, Limit
from penstock.sources.debezium import tracker as tracker_module
from penstock.sources.debezium.index import OffsetRange
from penstock.sources.debezium.log import LogLayout, Partition
from penstock.sources.debezium.scan import ScanResult, Stretch
from penstock.sources.debezium.tracker import Tracker
from tests.program import await_true
from tests.sources.memory_log import ENDS, ORDERS, MemoryLog, ended, event, tables

EVERYTHING = Limit(max_transactions=10_000, max_changes=10_000, max_bytes=1 << 30)
OTHERS = Partition("shop.public.others", 0)


@pytest.mark.parametrize("last_mark", ["true", "last"])
def test_rows_of_the_first_snapshot_are_waited_for_in_every_partition(last_mark: str) -> None:
    """A change has come, or the last row, while another partition is far behind."""
    others = [replace(one, topic=OTHERS.topic) for one in (event(0, "first"), event(0, last_mark), event(7))]
    ends = ended("7", counts={"public.orders": 1})
    log = MemoryLog({ENDS: ends, OTHERS: others, ORDERS: [event(0, "true") for _ in range(500)]})
    tracker = Tracker(log, LogLayout(ENDS.topic), tables(), "penstock.shop")
    with closing(tracker):
        tracker.start(START, is_new=True)
        rows = tracker.copy(threading.Event())
        numbers = {partition: number for number, partition in enumerate(tracker.partitions)}
        found = sorted((run for runs in rows.runs.values() for run in runs), key=lambda run: run.partition)
        assert found == sorted(
            [OffsetRange(numbers[OTHERS], 0, 2), OffsetRange(numbers[ORDERS], 0, 500)], key=lambda run: run.partition
        )


def in_tasks(stretches: Sequence[Stretch], look: Callable[[Stretch], ScanResult]) -> Sequence[ScanResult]:
    """Looks where nothing is known but what has travelled there."""
    there = pickle.dumps((list(stretches), look))
    done = [pickle.loads(there)[1](stretch) for stretch in pickle.loads(there)[0]]
    return cast(Sequence[ScanResult], pickle.loads(pickle.dumps(done)))


def a_shop(seed: int) -> MemoryLog:
    """Transactions over two topics, of many events or few; events told twice, and now and then a tombstone."""
    chance = random.Random(seed)
    topics = {ORDERS: list[TopicRecord](), OTHERS: list[TopicRecord]()}
    ends: list[TopicRecord] = []
    for txn in range(1, 60):
        counts = Counter[Partition]()
        for _ in range(chance.choice([1, 1, 2, 9])):
            topic = chance.choice([ORDERS, OTHERS])
            counts[topic] += 1
            record = event(txn, order=counts.total(), table=topic.topic.rpartition(".")[2])
            topics[topic] += [record] * chance.choice([1, 1, 1, 2])
            if chance.random() < 0.1:
                topics[topic].append(replace(record, value=None))
        ends += ended(str(txn), counts={f"public.{p.topic.rpartition('.')[2]}": n for p, n in counts.items()})
    return MemoryLog({ENDS: ends, **topics}, at_once=chance.choice([1, 7, 50]))


@pytest.mark.parametrize("seed", range(20))
def test_tasks_find_what_is_found_without_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_shop(seed)
    chance = random.Random(seed)
    monkeypatch.setattr(tracker_module, "_FAR", chance.choice([1, 20, 100]))
    monkeypatch.setattr(tracker_module, "_STRETCH", chance.choice([1, 3, 40]))
    monkeypatch.setattr(tracker_module, "_STRETCHES", chance.choice([1, 2, 16]))
    found = []
    for tasks in (None, in_tasks):
        known = tables()
        tracker = Tracker(log, LogLayout(ENDS.topic), known, "penstock.shop")
        if tasks is not None:
            tracker.look_in(tasks)
        with closing(tracker):
            tracker.start(START, is_new=False)
            last = tracker.last()
            part = tracker.take(START, EVERYTHING, None)
            assert part is not None
            assert last == part.end == len(log.records[ENDS])
            # A repetition that came behind the END may be in a run, or not.
            where = {(partition, first) for partition, first, _ in part.runs.tolist()}
            changes = dict(zip(part.commit_scns.tolist(), part.changes.tolist(), strict=True))
            versions = {version.table.name: version.table.column_names for version in known.versions()}
            found.append((changes, where, versions, known.passed, known.has_ends))
    assert found[0] == found[1]
    assert len(found[0][0]) == 59


def test_a_record_that_is_no_event_ends_the_run_from_a_task_too(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog({ENDS: ended("7"), ORDERS: [event(7), replace(event(7), value=b'{"op": "z", "source": {}}')]})
    monkeypatch.setattr(tracker_module, "_FAR", 1)
    tracker = Tracker(log, LogLayout(ENDS.topic), tables(), "penstock.shop")
    tracker.look_in(in_tasks)
    with closing(tracker):
        tracker.start(START, is_new=False)
        with pytest.raises(MalformedInputError, match="an op that Debezium does not have") as refused:
            tracker.last()
    assert "`capture.debezium.on_malformed: skip` leaves such records out" in refused.value.do
    assert refused.value.where == "topic shop.public.orders, partition 0, offset 1"


def test_records_that_tasks_skip_are_counted_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = replace(event(7), value=b"{")
    log = MemoryLog({ENDS: ended("7"), ORDERS: [broken, event(7), *[broken] * 120]})
    monkeypatch.setattr(tracker_module, "_FAR", 1)
    known = tables(skips=True)
    tracker = Tracker(log, LogLayout(ENDS.topic), known, "penstock.shop")
    tracker.look_in(in_tasks)
    with closing(tracker):
        tracker.start(START, is_new=False)
        tracker.last()
    assert known.skipped == 121
    assert "a record was skipped, number 1: " in caplog.text
    assert "offset 0" in caplog.text


def test_a_record_that_is_looked_at_twice_is_skipped_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    ends = ended("7", counts={"public.orders": 1})
    log = MemoryLog({ENDS: ends, ORDERS: [replace(event(7), value=b"{"), event(7)]})
    known = tables(skips=True)
    # For its tables, and then to be followed.
    known.survey(log)
    tracker = Tracker(log, LogLayout(ENDS.topic), known, "penstock.shop")
    with closing(tracker):
        tracker.start(START, is_new=False)
        tracker.last()
    assert known.skipped == 1
    assert caplog.text.count("a record was skipped") == 1


def test_a_record_that_is_no_event_names_the_way_out_wherever_it_is_met() -> None:
    log = MemoryLog({ORDERS: [replace(event(7), value=b"{")]})
    with pytest.raises(MalformedInputError) as refused:
        tables().survey(log)
    assert "`capture.debezium.on_malformed: skip` leaves such records out" in refused.value.do


def test_a_partition_that_lies_behind_is_waited_for_however_long_nothing_comes_of_it() -> None:
    """Without a transaction topic; as when the broker that leads it is down."""
    log = MemoryLog({ORDERS: [event(n) for n in (1, 2, 3)], OTHERS: [event(2, table="others", lsn=20)]})
    held = threading.Event()
    log.hold(OTHERS, held)
    tracker = Tracker(log, LogLayout(ENDS.topic, settle_s=0.05), tables(), "penstock.shop")

    def changes() -> list[int] | None:
        part = tracker.take(START, EVERYTHING, None)
        return None if part is None else part.changes.tolist()

    with closing(tracker):
        tracker.start(START, is_new=False)
        time.sleep(0.5)
        assert changes() is None
        held.set()
        await_true(lambda: changes() == [1, 2, 1])
