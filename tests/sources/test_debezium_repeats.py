"""A name that comes again is a repetition, or another transaction: what it repeats is looked up, and compared."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock.errors import MalformedInputError, PenstockError
from penstock.formats.debezium.record import TopicRecord
from penstock.history import HistoryError
from penstock.position import START, Scn
from penstock.sources.debezium import repeats as repeats_module
from penstock.sources.debezium.log import LogLayout, Partition
from penstock.sources.debezium.tracker import Tracker
from tests.formats.debezium.events import SOURCES
from tests.sources.memory_log import ENDS, MemoryLog, tables
from tests.sources.test_debezium_history import Run
from tests.sources.test_debezium_tracker import EVERYTHING

# What END calls a table, and how ids and places of a transaction are told, of each connector.
TABLES = {
    "postgresql": ("inv", "public.t"),
    "oracle": ("ORCLPDB1", "ORCLPDB1.DEBEZIUM.CUSTOMERS"),
    "mysql": ("inventory", "inventory.t"),
    "mariadb": ("inventory", "inventory.t"),
    "sqlserver": ("testDB", "testDB.dbo.t"),
    "db2": ("TESTDB", "TESTDB.DB2INST1.T"),
}


def places(connector: str, txn: int, at: int, order: int) -> tuple[str, dict[str, Any]]:
    """The id of an event's transaction, and where its source block says that it is; `at` grows with the log."""
    match connector:
        case "postgresql":
            source = {"txId": txn, "lsn": at + order, "sequence": json.dumps([str(at), str(at + order)])}
            return f"{txn}:{at + order}", source
        case "oracle":
            return f"{txn:016x}", {"txId": f"{txn:016x}", "scn": str(at), "commit_scn": str(at + 9), "txSeq": order}
        case "mysql" | "mariadb":
            return f"a0b1:{txn}", {"gtid": f"a0b1:{txn}", "pos": at, "row": order}
        case _:
            # The commit's place is the name; where the change lies is not.
            commit = f"00000027:{txn:08x}:0005"
            return commit, {"commit_lsn": commit, "change_lsn": f"00000027:{at:08x}:{order:04x}"}


class Shop:
    """What a connector writes of one table."""

    def __init__(self, connector: str, *, has_ends: bool = True, ends_come_last: bool = False) -> None:
        self.connector, self.has_ends = connector, has_ends
        self.topic = Partition(f"shop.{TABLES[connector][1]}", 0)
        topics = [ENDS, self.topic] if has_ends else [self.topic]
        self.log = MemoryLog({one: [] for one in (topics[::-1] if ends_come_last else topics)}, at_once=50)
        self.tables = tables()

    def event(self, txn: int, at: int, order: int, value: str) -> TopicRecord:
        id_, source = places(self.connector, txn, at, order)
        block = SOURCES["mysql" if self.connector == "mariadb" else self.connector]
        source = {**block, "connector": self.connector, "name": "shop", **source}
        payload: dict[str, Any] = {"op": "c", "before": None, "after": {"id": order, "v": value}, "source": source}
        if self.has_ends:
            payload["transaction"] = {"id": id_, "total_order": order, "data_collection_order": order}
        return TopicRecord(
            self.topic.topic, json.dumps({"id": order}).encode(), json.dumps(payload).encode(), (), 0, None
        )

    def end(self, txn: int, at: int, events: int) -> TopicRecord:
        id_, _ = places(self.connector, txn, at, 99)
        _, name = TABLES[self.connector]
        counts = [{"data_collection": name, "event_count": events}] if events else []
        value = {"status": "END", "id": id_, "event_count": events, "data_collections": counts, "ts_ms": 5}
        return TopicRecord(ENDS.topic, None, json.dumps(value).encode(), (), 0, None)

    def commit(self, txn: int, at: int, *values: str, events: int | None = None) -> None:
        made = [self.event(txn, at, order, value) for order, value in enumerate(values, 1)]
        self.log.append(self.topic, *made)
        if self.has_ends:
            self.log.append(ENDS, self.end(txn, at, len(made) if events is None else events))

    def tracker(self, **layout: Any) -> Tracker:
        return Tracker(self.log, LogLayout(ENDS.topic, settle_s=0.05, **layout), self.tables, "penstock.shop")

    def read(self, after: Scn = START, **layout: Any) -> tuple[Scn, list[int]]:
        """Read on as a run does; returns the position that is reached, and how many changes each transaction has."""
        changes: list[int] = []
        with closing(self.tracker(**layout)) as tracker:
            tracker.start(after, is_new=False)
            end = tracker.last()
            while after < end:
                tracker.wait(threading.Event(), after, 5)
                if (part := tracker.take(after, EVERYTHING, None)) is not None:
                    changes += part.changes.tolist()
                    after = part.end
            with closing(self.log.offsets("penstock.shop")) as offsets:
                offsets.commit(tracker.offsets(after))
        return after, changes


CONNECTORS = sorted(TABLES)
MODES = pytest.mark.parametrize("has_ends", [True, False], ids=["ends", "no ends"])
EACH = pytest.mark.parametrize("connector", CONNECTORS)
RESTARTS = pytest.mark.parametrize("offsets", ["kept", "lost", "in one run"])


def read_on(shop: Shop, offsets: str, *more: tuple[int, int, tuple[str, ...]]) -> list[int]:
    """Write two transactions, and more; these are met by the next run, or by the same one."""
    shop.commit(700, 1000, "a", "b")
    shop.commit(701, 2000, "x")
    after, first = (START, []) if offsets == "in one run" else shop.read()
    if offsets == "lost":
        shop.log.committed.clear()
    for txn, at, values in more:
        shop.commit(txn, at, *values)
    return first + shop.read(after)[1]


@EACH
@MODES
@RESTARTS
def test_what_a_connector_repeats_is_passed_over(connector: str, has_ends: bool, offsets: str) -> None:
    again = (700, 1000, ("a", "b")), (701, 2000, ("x",))

    changes = read_on(Shop(connector, has_ends=has_ends), offsets, *again, (702, 3000, ("z", "z", "z")), *again)

    assert changes == [2, 1, 3]


@EACH
@MODES
@RESTARTS
@pytest.mark.parametrize(
    ("at", "values"),
    [(9000, ("a", "b")), (1000, ("a", "c")), (1000, ("a", "b", "c"))],
    ids=["elsewhere", "other contents", "one more"],
)
def test_another_transaction_of_the_same_name_is_refused(
    connector: str, has_ends: bool, offsets: str, at: int, values: tuple[str, ...]
) -> None:
    more = (700, at, values), (703, 9900, ("later",))
    shop = Shop(connector, has_ends=has_ends)
    if not has_ends and offsets == "kept" and at > 2000 and connector not in ("sqlserver", "db2"):
        # Nothing says which names there were before: a place tells it from all others, as it does any transaction.
        assert read_on(shop, offsets, *more) == [2, 1, len(values), 1]
        return

    with pytest.raises(PenstockError) as refused:
        read_on(shop, offsets, *more)

    assert "the source was reset, restored or failed over" in str(refused.value) or "was taken to be complete" in str(
        refused.value
    )
    assert refused.value.do


@EACH
def test_events_that_come_before_an_end_which_is_applied_are_checked_with_it(connector: str) -> None:
    shop = Shop(connector, ends_come_last=True)
    shop.commit(700, 1000, "a", "b")
    after, _ = shop.read()
    shop.commit(700, 1000, "a", "b")
    shop.commit(701, 2000, "x")
    after, changes = shop.read(after)
    assert changes == [1]
    # As many events, and the same END.
    shop.log.append(shop.topic, shop.event(700, 9000, 1, "new"), shop.event(700, 9000, 2, "new"))
    shop.log.append(ENDS, shop.end(700, 1000, 2))
    shop.commit(702, 9900, "later")

    with pytest.raises(HistoryError, match=r"transaction .* has the name of an earlier one"):
        shop.read(after)


def test_what_lies_behind_a_transaction_that_has_not_ended_is_no_repetition() -> None:
    """The offset that is committed is that of its first event, and others that are applied follow."""
    shop = Shop("postgresql")
    shop.commit(700, 1000, "a")
    shop.log.append(shop.topic, shop.event(701, 2000, 1, "open"))
    shop.commit(702, 3000, "x", "y")
    after, changes = shop.read()
    assert changes == [1, 2]
    shop.log.append(ENDS, shop.end(701, 2000, 1))

    assert shop.read(after)[1] == [1]


@EACH
def test_a_repetition_that_begins_in_the_middle_is_one(connector: str) -> None:
    shop = Shop(connector)
    shop.commit(700, 1000, "a", "b", "c")
    after, _ = shop.read()
    shop.log.append(shop.topic, shop.event(700, 1000, 2, "b"), shop.event(700, 1000, 3, "c"))
    shop.log.append(ENDS, shop.end(700, 1000, 3))
    shop.commit(701, 2000, "x")

    assert shop.read(after)[1] == [1]


@EACH
def test_a_transaction_that_never_ended_is_not_mixed_with_a_later_one_of_its_name(connector: str) -> None:
    shop = Shop(connector)
    shop.log.append(shop.topic, shop.event(700, 1000, 1, "lost"), shop.event(700, 1000, 2, "lost"))
    shop.commit(700, 9000, "a")

    with pytest.raises(PenstockError, match="the source was reset, restored or failed over"):
        shop.read()


def test_more_events_than_an_end_counts_are_refused() -> None:
    shop = Shop("postgresql")
    shop.commit(700, 1000, "a", "b", "c", events=2)

    with pytest.raises(MalformedInputError, match=r"3 of public\.t came, where its END counts 2"):
        shop.read()


def test_an_event_whose_number_lies_beyond_the_count_of_the_end_is_refused() -> None:
    shop = Shop("postgresql")
    shop.log.append(shop.topic, shop.event(700, 1000, 1, "a"), shop.event(700, 1000, 7, "b"))
    shop.log.append(ENDS, shop.end(700, 1000, 2))

    with pytest.raises(MalformedInputError, match="number 7, where its END counts 2 in all"):
        shop.read()


def test_what_is_repeated_is_found_however_far_it_lies_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats_module, "_LOOK_BACK", 3)
    shop = Shop("postgresql")
    for txn in range(1, 201):
        shop.commit(txn, txn * 100, "a", "b")
    after, _ = shop.read()
    for txn in range(20, 201):
        shop.commit(txn, txn * 100, "a", "b")
    shop.commit(201, 30_000, "x")

    assert shop.read(after)[1] == [1]


def test_each_repetition_costs_reading_the_first_one_once_more() -> None:
    shop = Shop("postgresql")
    for txn in range(1, 2001):
        shop.commit(txn, txn * 100, "a", "b")
    after, _ = shop.read()
    for txn in range(1, 2001):
        shop.commit(txn, txn * 100, "a", "b")
    read = list[int]()
    of_log = shop.log.read

    def counted(partition: Partition, first: int, end: int) -> Iterator[TopicRecord]:
        read.append(end - first)
        return of_log(partition, first, end)

    shop.log.at_once = 1000
    shop.log.read = counted  # type: ignore[method-assign]
    assert shop.read(after)[1] == []

    # The repetitions, what they repeat, and a little beside it: nothing is read once for each of them.
    assert sum(read) < 40_000


def test_what_comes_of_a_transaction_that_was_put_aside_repeats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop("postgresql")
    shop.log.append(shop.topic, shop.event(700, 1000, 1, "a"))
    shop.log.append(ENDS, shop.end(700, 1000, 2))
    aside = {"incomplete": "put_aside", "incomplete_after_s": 0.05}
    after, _ = shop.read(**aside)
    shop.log.append(shop.topic, shop.event(700, 1000, 2, "b"))
    shop.commit(701, 2000, "x")

    assert shop.read(after, **aside)[1] == [1]


def test_a_second_server_in_a_topic_without_transaction_topic_is_not_taken_for_what_is_applied() -> None:
    shop = Shop("postgresql", has_ends=False)
    shop.commit(700, 5000, "a")
    after, _ = shop.read()
    shop.commit(90, 100, "of another server")

    with pytest.raises(HistoryError, match="an event of transaction 90 came, which lies before what is applied"):
        shop.read(after)


@pytest.mark.parametrize("offsets", ["kept", "lost"])
@pytest.mark.parametrize("more", ["at its place", "behind it"])
def test_what_comes_of_the_last_transaction_after_it_was_taken_to_be_complete_is_refused(
    offsets: str, more: str
) -> None:
    """Without ENDs one is complete once nothing has come for a while, and a connector may be slower."""
    shop = Shop("mysql", has_ends=False)
    shop.commit(700, 1000, "a")
    shop.log.append(shop.topic, shop.event(701, 2000, 1, "b"))
    run = Run(shop.log)
    assert run.run() == [1, 1]
    if offsets == "lost":
        shop.log.committed.clear()
    place = (2000, 2) if more == "at its place" else (2500, 1)
    shop.log.append(shop.topic, shop.event(701, *place, "c"))
    shop.commit(702, 3000, "d")

    with pytest.raises(PenstockError, match=r"transaction a0b1:701.*(was taken to be complete|repeats none)"):
        run.run()
