"""A first snapshot that the connector began again: only the rows of the attempt that counts are copied."""

import json
import threading
from contextlib import closing
from dataclasses import replace

import pytest

from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.formats.debezium.record import TopicRecord
from penstock.history import Consumer, History, HistoryError
from penstock.position import EVERYTHING, START
from penstock.sources.debezium.connector import DebeziumConnector
from penstock.sources.debezium.log import LogLayout, Partition
from penstock.sources.debezium.tracker import Tracker
from tests.sources.memory_log import ENDS, ORDERS, MemoryLog, ended, event, tables

ORDERS_TABLE = TableName("public", "orders")
OTHERS = Partition("shop.public.others", 0)
SECOND = Partition("shop.public.orders", 1)


def row(mark: str, lsn: int, table: str = "orders", partition: int = 0) -> TopicRecord:
    return replace(event(lsn, mark, table=table), partition=partition)


def of_version(version: str, record: TopicRecord) -> TopicRecord:
    value = json.loads(record.value or b"")
    value["source"]["version"] = version
    return replace(record, value=json.dumps(value).encode())


def copied(records: dict[Partition, list[TopicRecord]]) -> dict[str, list[tuple[int, int]]]:
    """By table, the partition and offset of each row that is copied."""
    tracker = Tracker(MemoryLog(records), LogLayout(ENDS.topic, settle_s=0.05), tables(), "penstock.shop")
    with closing(tracker):
        tracker.start(START, is_new=True)
        rows = tracker.copy(threading.Event())
        numbers = tracker.partitions
        return {
            name.name: sorted((numbers[r.partition].number, at) for r in runs for at in range(r.first, r.end))
            for name, runs in rows.runs.items()
            if isinstance(name, TableName)
        }


def test_rows_of_an_attempt_that_was_given_up_are_not_copied() -> None:
    rows = [row("first", 10), row("true", 10), row("first", 50), row("last", 50)]
    ends = ended("70", counts={"public.orders": 1})
    assert copied({ENDS: ends, ORDERS: [*rows, event(70, order=1)]}) == {"orders": [(0, 2), (0, 3)]}


def test_an_attempt_that_was_given_up_is_known_in_the_other_tables_topics_too() -> None:
    """The others are empty by the second attempt: nothing comes of them any more."""
    rows = [row("first", 50), row("last", 50)]
    others = [row("first", 10, "others"), row("last_in_data_collection", 10, "others")]
    found = copied({ENDS: ended("70"), OTHERS: others, ORDERS: [row("true", 10), *rows]})
    assert found == {"orders": [(0, 1), (0, 2)], "others": []}


def test_the_first_table_may_be_empty_in_the_second_attempt() -> None:
    """Then no row is marked as the first of all."""
    others = [row("first", 10, "others"), row("true", 10, "others")]
    rows = [row("first_in_data_collection", 50), row("last", 50)]
    assert copied({ENDS: ended("70"), OTHERS: others, ORDERS: rows}) == {"orders": [(0, 0), (0, 1)], "others": []}


def test_attempts_at_one_place_are_told_apart_by_their_marks() -> None:
    """Nothing was written at the source in between."""
    rows = [row("first", 10), row("true", 10), row("first", 10), row("true", 10), row("last", 10)]
    assert copied({ENDS: ended("70"), ORDERS: rows}) == {"orders": [(0, 2), (0, 3), (0, 4)]}


def test_attempts_at_one_place_that_cannot_be_told_apart_are_refused() -> None:
    first = [row("first", 10), row("first", 10), row("last", 10)]
    second = [row("true", 10, partition=1), row("true", 10, partition=1)]
    with pytest.raises(HistoryError, match=r"public\.orders lie in several partitions"):
        copied({ENDS: ended("70"), ORDERS: first, SECOND: second})


def test_each_partition_leaves_out_what_was_given_up() -> None:
    first = [row("first", 10), row("true", 10), row("true", 50), row("last", 50)]
    second = [row("true", 10, partition=1), row("first", 50, partition=1), row("true", 50, partition=1)]
    found = copied({ENDS: ended("70"), ORDERS: first, SECOND: second})
    assert found == {"orders": [(0, 2), (0, 3), (1, 1), (1, 2)]}


def test_a_snapshot_of_a_table_that_was_added_later_takes_no_rows_from_the_others() -> None:
    rows = [row("first", 10), row("last", 10), event(20, order=1)]
    others = [row("first", 50, "others"), row("last", 50, "others")]
    log = {ENDS: ended("20", counts={"public.orders": 1}), ORDERS: rows, OTHERS: others}
    assert copied(log) == {"orders": [(0, 0), (0, 1)], "others": [(0, 0), (0, 1)]}


def test_a_snapshot_without_a_last_row_came_to_its_end_when_changes_followed() -> None:
    """The last one of its tables was empty."""
    rows = [row("first", 10), row("last_in_data_collection", 10), event(20, order=1)]
    others = [row("first", 50, "others"), row("last", 50, "others")]
    log = {ENDS: ended("20", counts={"public.orders": 1}), ORDERS: rows, OTHERS: others}
    assert copied(log) == {"orders": [(0, 0), (0, 1)], "others": [(0, 0), (0, 1)]}


def test_a_snapshot_begun_again_at_a_lower_place_is_refused() -> None:
    """The source was restored in between: the rows of the attempt that was given up are of another history."""
    rows = [row("first", 90), row("true", 90), row("first", 50), row("last", 50)]
    with pytest.raises(HistoryError, match=r"its rows of public\.orders lie before those of the attempt before it"):
        copied({ENDS: ended("70"), ORDERS: rows})


@pytest.mark.parametrize("begins", ["first", "first_in_data_collection", "last"])
def test_two_snapshots_of_a_table_before_its_copy_are_refused(begins: str) -> None:
    """Rows that were deleted in between are in the first one alone."""
    rows = [row("first", 10), row("last", 10), row(begins, 50), row("last", 50)]
    with pytest.raises(HistoryError, match=r"the connector has made two snapshots of public\.orders"):
        copied({ENDS: ended("70"), ORDERS: rows})


def test_a_connector_that_marks_no_first_row_begins_again_at_another_place() -> None:
    rows = [of_version("1.9.7.Final", row(*one)) for one in (("true", 10), ("true", 10), ("true", 50), ("last", 50))]
    assert copied({ENDS: ended("70"), ORDERS: rows}) == {"orders": [(0, 2), (0, 3)]}


def test_rows_without_marks_are_all_copied_wherever_they_are_said_to_be() -> None:
    rows = [row("true", lsn) for lsn in (0, 7, 7, 3)] + [row("last", 9)]
    assert copied({ENDS: ended("70"), ORDERS: rows}) == {"orders": [(0, n) for n in range(5)]}


@pytest.mark.parametrize("mark", ["last", "true"])
def test_rows_that_come_when_the_copy_is_made_are_refused_by_a_later_run(mark: str) -> None:
    """Also where a broker has forgotten what was committed, or files keep none: the ledger says what the copy has."""
    log, table, consumer = MemoryLog({ORDERS: [row("true", 10), row(mark, 10)]}), ORDERS_TABLE, Consumer("c", "shop")
    first = DebeziumConnector(log, LogLayout(ENDS.topic, settle_s=0.05), tables(), "shop")
    with closing(first.open_source()) as source:
        joined = source.join(History(consumer, None, START, None, None, is_new=True))
        (copy,) = first.copies_at([table], START)
        with first.stored(copy, threading.Event()).hold_snapshot() as held:
            known = History(consumer, joined.origin, START, joined.anchor, None, is_new=False, copies=[held.anchor])
    log.committed.clear()

    assert _waits(log, known)
    for late in (row("true", 10), row("last", 10)):
        log.append(ORDERS, late)
    with pytest.raises(OperatorError, match="came after it was taken to be over: the copy lacks them"):
        _waits(log, known)


def _waits(log: MemoryLog, known: History) -> bool:
    """Whether a run finds nothing to do."""
    side = DebeziumConnector(log, LogLayout(ENDS.topic, settle_s=0.05), tables(), "shop")
    with closing(side.open_source()) as source:
        source.join(known)
        source.tick()
        return source.next_slice(START, EVERYTHING) is None
