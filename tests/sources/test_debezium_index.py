"""Transactions are put together from where their events lie: counts, repetitions, rows of snapshots, positions."""

from collections.abc import Mapping

import pytest

from penstock.errors import MalformedInputError, OperatorError
from penstock.position import START, Scn
from penstock.sources.debezium.index import CompleteTransaction, Index, OffsetRange, TransactionEnd

CUSTOMERS, ORDERS = "public.customers", "public.orders"


def index(*, done: int = START, unread: tuple[str, ...] = ()) -> Index:
    return Index(done=Scn(done), is_read=lambda table: table not in unread, now=lambda: 7.0)


def event(of: Index, partition: int, offset: int, group: str, order: int, table: str = CUSTOMERS) -> None:
    of.event(partition, offset, group=group, identity=order, table=table, size_bytes=10)


def end(of: Index, group: str, scn: int, counts: Mapping[str, int]) -> None:
    of.ended(TransactionEnd(group, Scn(scn), counts, 5))


def released(of: Index) -> list[CompleteTransaction]:
    return list(of.release())


def test_an_end_that_comes_before_its_events_waits_for_them() -> None:
    of = index()
    end(of, "X", 9, {CUSTOMERS: 2, ORDERS: 1})
    event(of, 1, 40, "X", 3, ORDERS)
    event(of, 0, 10, "X", 1)
    assert released(of) == []
    assert str(of.waiting) == "transaction X: public.customers 1 of 2"
    event(of, 0, 12, "X", 2)
    [txn] = released(of)
    assert (txn.scn, txn.groups, txn.events, txn.size_bytes, txn.committed_at_us) == (9, ("X",), 3, 30, 5)
    assert sorted((run.partition, run.first, run.end) for run in txn.runs) == [(0, 10, 13), (1, 40, 41)]
    assert of.waiting is None


def test_later_transactions_wait_for_one_that_is_not_whole() -> None:
    of = index()
    end(of, "X", 2, {CUSTOMERS: 1, ORDERS: 1})
    event(of, 0, 0, "X", 1)
    event(of, 0, 1, "Y", 1)
    end(of, "Y", 4, {CUSTOMERS: 1})
    assert released(of) == []
    event(of, 1, 0, "X", 2, ORDERS)
    assert [txn.groups for txn in released(of)] == [("X",), ("Y",)]


def test_what_a_connector_repeats_is_left_out() -> None:
    of = index()
    for offset in (0, 10):
        event(of, 0, offset, "X", 1)
        event(of, 0, offset + 1, "X", 2)
        end(of, "X", offset + 3, {CUSTOMERS: 2})
        if offset == 0:
            assert [txn.events for txn in released(of)] == [2]
    assert released(of) == []
    assert of.repeated == 3


def test_an_event_that_comes_twice_counts_once() -> None:
    of = index()
    event(of, 0, 0, "X", 1)
    event(of, 0, 1, "X", 1)
    end(of, "X", 3, {CUSTOMERS: 2})
    assert released(of) == []
    event(of, 0, 2, "X", 2)
    [txn] = released(of)
    assert (txn.events, txn.runs) == (2, (OffsetRange(0, 0, 3),))


def test_what_is_counted_and_not_read_is_not_waited_for() -> None:
    of = index(unread=("LogicalDecodingMessageId@1c",))
    event(of, 0, 0, "X", 2)
    end(of, "X", 3, {"LogicalDecodingMessageId@1c": 1, CUSTOMERS: 1})
    assert [txn.events for txn in released(of)] == [1]


def test_an_event_of_a_table_that_was_not_waited_for_is_refused_when_it_comes() -> None:
    of = index(unread=(ORDERS,))
    event(of, 0, 0, "X", 1)
    end(of, "X", 3, {CUSTOMERS: 1, ORDERS: 1})
    assert len(released(of)) == 1
    event(of, 0, 1, "X", 1)
    assert of.repeated == 1
    with pytest.raises(OperatorError, match=r"public\.orders came for transaction X, which was released without it"):
        event(of, 1, 0, "X", 2, ORDERS)


def test_what_is_applied_already_may_come_behind_its_end() -> None:
    of = index(done=3)
    end(of, "X", 3, {CUSTOMERS: 1, ORDERS: 1})
    assert released(of) == []
    event(of, 0, 0, "X", 1)
    event(of, 1, 0, "X", 2, ORDERS)
    assert (of.repeated, of.opened) == (2, 0)


def test_a_transaction_without_events_only_moves_the_position() -> None:
    of = index()
    end(of, "X", 3, {})
    assert released(of) == []
    assert of.end == 3


def test_what_is_applied_already_is_passed_over_with_the_rows_before_it() -> None:
    of = index(done=5)
    of.row(0, 10)
    event(of, 0, 11, "X", 1)
    of.row(0, 12)
    end(of, "X", 5, {CUSTOMERS: 1})
    assert released(of) == []
    event(of, 0, 13, "Y", 1)
    end(of, "Y", 7, {CUSTOMERS: 1})
    [txn] = released(of)
    assert (txn.groups, txn.rows) == (("Y",), (OffsetRange(0, 12, 13),))


def test_rows_of_a_snapshot_come_behind_the_transactions_that_lie_before_them() -> None:
    of = index()
    event(of, 0, 0, "X", 1)
    of.row(0, 1)
    event(of, 1, 0, "Y", 1, ORDERS)
    end(of, "Y", 2, {ORDERS: 1})
    # X has begun before the row, and not ended.
    assert [txn.rows for txn in released(of)] == [()]
    end(of, "X", 4, {CUSTOMERS: 1})
    event(of, 0, 2, "Z", 1)
    end(of, "Z", 6, {CUSTOMERS: 1})
    first, second = released(of)
    assert (first.groups, second.groups) == (("X",), ("Z",))
    assert first.rows + second.rows == (OffsetRange(0, 1, 2),)


def test_transactions_of_one_position_are_one() -> None:
    of = index()
    for group, order in (("A", 1), ("B", 1)):
        event(of, 0, order, group, order)
        of.placed(group, 99, 1)
    event(of, 0, 9, "C", 1)
    of.placed("C", 100, 1)
    of.complete_before(100)
    [txn] = released(of)
    assert (txn.scn, txn.groups, txn.events) == (99, ("A", "B"), 2)


def test_an_event_of_a_transaction_that_was_taken_to_be_complete_is_refused() -> None:
    of = index()
    event(of, 0, 0, "A", 1)
    of.placed("A", 50, 1)
    of.complete_before(60)
    assert len(released(of)) == 1
    event(of, 0, 1, "B", 1)
    of.placed("B", 40, 1)
    with pytest.raises(MalformedInputError, match=r"B, which lies before what was taken to be complete"):
        of.complete_before(70)


def test_what_is_needed_begins_with_the_first_event_that_is_not_released() -> None:
    of = index()
    event(of, 0, 5, "X", 1)
    of.row(1, 3)
    positions = {0: 9, 1: 9}
    of.first_needed(positions)
    assert positions == {0: 5, 1: 3}


def test_a_transaction_that_is_put_aside_lets_others_pass() -> None:
    of = index()
    event(of, 0, 0, "X", 1)
    end(of, "X", 2, {CUSTOMERS: 2})
    event(of, 0, 1, "Y", 1)
    end(of, "Y", 4, {CUSTOMERS: 1})
    assert released(of) == []
    aside = of.put_aside()
    assert (aside.groups, aside.events) == (("X",), 1)
    assert [txn.groups for txn in released(of)] == [("Y",)]
    # What comes of it later is left out like the rest.
    event(of, 0, 2, "X", 2)
    assert (released(of), of.opened) == ([], 0)


def test_transactions_that_have_begun_and_not_ended_are_known_by_name() -> None:
    of = index()
    event(of, 0, 0, "X", 1)
    event(of, 0, 1, "Y", 1)
    event(of, 0, 2, "X", 2)
    end(of, "Y", 4, {CUSTOMERS: 2})
    assert of.open_groups == ["X"]


def test_a_transaction_whose_end_does_not_come_is_known_and_can_be_given_up() -> None:
    now = iter(range(10))
    of = Index(is_read=lambda _: True, now=lambda: float(next(now)))
    event(of, 0, 0, "X", 1)
    event(of, 0, 1, "Y", 1)
    event(of, 0, 2, "X", 2)
    end(of, "Z", 4, {})
    assert (of.stalled(1.0), of.stalled(2.0), of.stalled(3.0)) == ("", "Y", "X")
    of.forget("X")
    event(of, 0, 3, "X", 3)
    assert (of.open_groups, of.repeated) == (["Y"], 1)


def test_which_events_of_a_huge_transaction_are_there_costs_a_bit_each() -> None:
    of = index()
    for order in (*range(2, 100_001, 2), *range(1, 100_001, 2), 7, 100_000):
        event(of, 0, order, "X", order)
    [opened] = of._open.values()
    assert (opened.events, of.repeated) == (100_000, 2)
    assert sum(page.bit_length() for page in opened.orders.values()) < 110_000
