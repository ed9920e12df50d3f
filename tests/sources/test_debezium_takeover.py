"""Where another reader was left: ENDs come in the order of commits, which is not that of becoming visible."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from penstock.errors import OperatorError
from penstock.formats.debezium.decode import Settings
from penstock.formats.debezium.record import Record
from penstock.sources.debezium.log import Extent, Partition
from penstock.sources.debezium.tables import Tables
from penstock.sources.debezium.takeover import find_point, first_needed

ENDS = Partition("shop.transaction", 0)
ORDERS = Partition("shop.public.orders", 0)


@dataclass(frozen=True)
class Left:
    applied: Collection[str]
    first: str = "1"
    last: str = "99"

    def is_applied(self, txn: str) -> bool:
        return int(txn) > 0 and txn in self.applied


class Log:
    """Records in memory."""

    label = "memory"
    ends = False

    def __init__(self, records: Mapping[Partition, Sequence[Record]]) -> None:
        self._records = {
            partition: [replace(record, offset=offset) for offset, record in enumerate(records_)]
            for partition, records_ in records.items()
        }

    def extents(self) -> Mapping[Partition, Extent]:
        return {partition: Extent(0, len(records)) for partition, records in self._records.items()}

    def follow(self, positions: Mapping[Partition, int]) -> "Follower":
        return Follower([record for partition in positions for record in self._records[partition]])

    def read(self, partition: Partition, first: int, end: int) -> Iterator[Record]:
        yield from self._records[partition][first:end]


class Follower:
    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def take(self, most: int, timeout_s: float) -> Sequence[Record]:
        taken, self._records = self._records[:2], self._records[2:]
        return taken

    def close(self) -> None:
        pass


def boundary(status: str, txn: str) -> Record:
    value = {"status": status, "id": f"{txn}:1", "event_count": 0, "data_collections": [], "ts_ms": 5}
    return Record(ENDS.topic, None, json.dumps(value).encode(), (), 0, None)


def ended(*txns: str) -> list[Record]:
    return [boundary(status, txn) for txn in txns for status in ("BEGIN", "END")]


def event(txn: int, snapshot: str = "false") -> Record:
    source = {
        "connector": "postgresql",
        "name": "shop",
        "db": "shop",
        "schema": "public",
        "table": "orders",
        "txId": txn,
        "lsn": txn,
        "snapshot": snapshot,
        "ts_ms": 5,
    }
    op = "c" if snapshot == "false" else "r"
    value = {"op": op, "source": source, "before": None, "after": {"id": txn}, "ts_ms": 5}
    return Record(ORDERS.topic, b'{"id": 1}', json.dumps(value).encode(), (), 0, None)


def tables() -> Tables:
    return Tables(Settings(), "shop", skips=False)


def point(txns: Sequence[str], applied: Collection[str]) -> tuple[int, list[int]]:
    found = find_point(Log({ENDS: ended(*txns)}), tables(), ENDS.topic, Left(applied), wait_s=0)  # type: ignore[arg-type]
    return found.position, list(found.applied)


def test_the_position_is_behind_the_last_transaction_that_is_applied() -> None:
    assert point(["1", "2", "3", "4", "99"], {"1", "2", "3"}) == (6, [])


def test_what_is_applied_behind_one_that_is_not_is_named() -> None:
    assert point(["1", "2", "3", "4", "5", "6", "99"], {"1", "2", "4", "6"}) == (4, [8, 12])


def test_a_connector_that_began_behind_the_first_mark_is_refused() -> None:
    with pytest.raises(OperatorError, match="began to read the database after the switch began"):
        point(["2", "3", "99"], {"1", "2"})


def test_a_connector_that_does_not_come_as_far_as_the_last_mark_is_refused() -> None:
    with pytest.raises(OperatorError, match="has not told of transaction 99"):
        point(["1", "2"], {"1", "2"})


def test_topics_of_another_kind_of_database_are_refused() -> None:
    with pytest.raises(OperatorError, match="another kind of database"):
        point(["1", "0a.1b.3c", "99"], {"1"})


def test_without_a_transaction_topic_there_is_no_point() -> None:
    log = Log({ORDERS: [event(2)]})
    with pytest.raises(OperatorError, match="no transaction topic"):
        find_point(log, tables(), ENDS.topic, Left({"1"}), wait_s=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("applied", "offset"), [({"2"}, 3), ({"2", "3"}, 4), ({"2", "3", "4"}, 5), ((), 1)])
def test_events_are_needed_from_the_first_on_that_is_not_applied(applied: Collection[str], offset: int) -> None:
    log = Log({ENDS: ended("1"), ORDERS: [event(0, "last"), event(2), event(0, "incremental"), event(3), event(4)]})
    assert first_needed(log, tables(), ENDS.topic, Left(applied)) == {ORDERS: offset}  # type: ignore[arg-type]
