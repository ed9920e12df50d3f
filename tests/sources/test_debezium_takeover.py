"""Where another reader was left: ENDs come in the order of commits, which is not that of becoming visible."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pytest

from penstock.errors import OperatorError
from penstock.source_switch import Mark
from penstock.sources.debezium.switch_point import find_point, first_needed
from tests.sources.memory_log import ENDS, ORDERS, MemoryLog, ended, event, tables

FIRST, LAST = Mark("1", 1, 1), Mark("99", 1, 1)


@dataclass(frozen=True)
class AppliedTransactions:
    applied: Collection[str]
    first: Mark = FIRST
    last: Mark = LAST

    def is_applied(self, txn: str) -> bool:
        return int(txn) > 0 and txn in self.applied


def point(txns: Sequence[str], applied: Collection[str]) -> tuple[int, list[int]]:
    found = find_point(MemoryLog({ENDS: ended(*txns)}), tables(), ENDS.topic, AppliedTransactions(applied), wait_s=0)
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


def test_transactions_of_another_database_that_have_our_names_are_not_taken_for_ours() -> None:
    log = MemoryLog({ENDS: ended("1", "2", "99")})
    left = AppliedTransactions({"1", "2"}, first=Mark("1", 5, 9), last=Mark("99", 5, 9))
    with pytest.raises(OperatorError, match="has not told of transaction 99"):
        find_point(log, tables(), ENDS.topic, left, wait_s=0)


def test_topics_of_another_kind_of_database_are_refused() -> None:
    with pytest.raises(OperatorError, match="another kind of database"):
        point(["1", "0a.1b.3c", "99"], {"1"})


def test_without_a_transaction_topic_there_is_no_point() -> None:
    log = MemoryLog({ORDERS: [event(2)]})
    with pytest.raises(OperatorError, match="no transaction topic"):
        find_point(log, tables(), ENDS.topic, AppliedTransactions({"1"}), wait_s=0)


@pytest.mark.parametrize(("applied", "offset"), [({"2"}, 3), ({"2", "3"}, 4), ({"2", "3", "4"}, 5), ((), 1)])
def test_events_are_needed_from_the_first_on_that_is_not_applied(applied: Collection[str], offset: int) -> None:
    log = MemoryLog(
        {ENDS: ended("1"), ORDERS: [event(0, "last"), event(2), event(0, "incremental"), event(3), event(4)]}
    )
    assert first_needed(log, tables(), ENDS.topic, AppliedTransactions(applied)) == {ORDERS: offset}
