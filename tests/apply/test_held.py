"""Transactions that wait behind the error queue: what waits, what flows, and what goes on when."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest

from penstock.apply.error_queue import EntryAction, EntryOutcome
from penstock.apply.group import COLUMNS
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.large import LargeTransaction
from penstock.apply.retry import RetryConfig, go_on
from penstock.apply.task import apply_large
from penstock.apply.virtual_dependencies import ObjectDependency, ValueDependency, VirtualDependencies
from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.position import Scn
from tests.hand_made import Lcr, T, Target, Txn, as_batch, delete, insert, truncate, update
from tests.program import await_true

WAYS = [(use_set, lanes) for use_set in (True, False) for lanes in (1, 4)]


@pytest.fixture(params=WAYS, ids=[f"{'set' if s else 'row'}-path-{n}-lanes" for s, n in WAYS])
def way(request: pytest.FixtureRequest) -> tuple[bool, int]:
    return request.param


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database)
    yield made
    made.close()


def acct(key: int, old: float, new: float) -> Lcr:
    return update("acct", {"id": key, "code": "XY"[key - 1], "bal": f"{old:.2f}"}, {"bal": f"{new:.2f}"})


def apply(target: Target, *transactions: Txn, way: tuple[bool, int] = (True, 1), **options: Any) -> list[LaneResult]:
    config = ServerConfig(use_set_path=way[0], hold_dependents=True, **options)
    return target.apply(*transactions, lanes=way[1], config=config, shuffle=random.Random(1))


def queue(target: Target) -> dict[int, str]:
    """What the queue holds: by position, whether the transaction failed, or the position of what it waits for."""
    at = {entry.id: entry.commit_scn for entry in target.errors()}
    return {
        e.commit_scn: f"behind {at[e.behind]}" if e.behind else "free" if e.is_held else "failed"
        for e in target.errors()
    }


def ids(target: Target) -> dict[int, str]:
    return {entry.commit_scn: entry.id for entry in target.errors()}


def balances(target: Target) -> list[int]:
    return [int(bal) for (bal,) in target.rows("SELECT bal FROM acct ORDER BY id")]


def mended(target: Target, key: int, bal: int) -> None:
    target.remember_versions()
    target.connection.execute("UPDATE acct SET bal = %s WHERE id = %s", [bal, key])


def large(target: Target, transaction: Txn) -> None:
    """Apply a transaction as one that cannot be held."""
    batch = as_batch([transaction]).select(COLUMNS)
    one = LargeTransaction(Scn(transaction.scn), np.zeros(1, np.int64), batch.num_rows, 1, lambda: iter([batch]))
    context = target.context(ServerConfig(hold_dependents=True, group_changes=2))
    result = apply_large(one, target._claim(0, moves_watermark=True), context)
    assert result.failure is None
    target.ledger.complete(Scn(transaction.scn), None, None)


CHAIN = [
    T(100, acct(1, 999, 110)),
    T(110, acct(2, 200, 210)),
    T(120, acct(1, 110, 120)),
    T(130, acct(2, 210, 220)),
    T(140, acct(1, 120, 130), insert("dept", id=30, name="N")),
    T(150, insert("emp", id=9, dept_id=30, name="z", job="A", sal=1, comm=None, ts="2024-01-02T00:00:00")),
]
"""The first fails; the third and the fifth depend on it, the sixth on the fifth; the others on each other."""


def test_what_depends_on_a_failed_one_waits_and_the_rest_flows(target: Target, way: tuple[bool, int]) -> None:
    apply(target, *CHAIN, way=way)

    assert queue(target) == {100: "failed", 120: "behind 100", 140: "behind 100", 150: "behind 140"}
    assert balances(target) == [100, 220]
    assert target.watermarks() == (150, 150)
    state = target.ledger.state()
    assert state is not None
    assert (state.errors, state.held, state.transactions) == (1, 3, 2)

    mended(target, 1, 999)
    retried = target.retried(ids(target)[100])

    assert [(one.outcome, one.has_gone_on) for one in retried] == [(EntryOutcome.APPLIED, False)] + 3 * [
        (EntryOutcome.APPLIED, True)
    ]
    assert queue(target) == {}
    assert balances(target) == [130, 220]
    assert target.one("SELECT count(*) FROM emp WHERE id = 9") == 1
    assert target.one("SELECT count(*) FROM penstock.error_mark") == 0
    assert [a.action for a in target.queue.history(most=9)] == [
        EntryAction.RETRY,
        EntryAction.GO_ON,
        EntryAction.GO_ON,
        EntryAction.GO_ON,
    ]


def test_batch_by_batch_is_the_same(target: Target, way: tuple[bool, int]) -> None:
    for transaction in CHAIN:
        apply(target, transaction, way=way)

    assert queue(target) == {100: "failed", 120: "behind 100", 140: "behind 100", 150: "behind 140"}
    assert target.watermarks() == (150, 150)


def test_delivered_again_what_waits_is_there_once(target: Target, way: tuple[bool, int]) -> None:
    use_set, lanes = way
    config = ServerConfig(use_set_path=use_set, hold_dependents=True)
    target.apply(*CHAIN, lanes=lanes, config=config, complete=False)
    target.apply(*CHAIN, lanes=lanes, config=config)

    assert queue(target) == {100: "failed", 120: "behind 100", 140: "behind 100", 150: "behind 140"}
    assert balances(target) == [100, 220]


def test_one_that_waited_fails_in_its_turn_and_keeps_the_rest(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        T(100, acct(1, 999, 110)),
        T(110, acct(1, 110, 120)),
        T(120, acct(1, 555, 130)),
        T(130, acct(1, 130, 140)),
        way=way,
    )
    mended(target, 1, 999)

    with pytest.raises(OperatorError, match="still cannot be applied"):
        target.retried(ids(target)[100])

    assert queue(target) == {120: "failed", 130: "behind 120"}
    assert balances(target)[0] == 120
    mended(target, 1, 555)
    target.retried(ids(target)[120])
    assert (queue(target), balances(target)[0]) == ({}, 140)


def test_what_comes_later_waits_for_what_waits(target: Target, way: tuple[bool, int]) -> None:
    apply(target, *CHAIN[:3], way=way)
    target.queue.delete(ids(target)[100])

    # The one at 120 waits for nothing, but nobody has let it go on yet.
    apply(target, T(200, acct(1, 120, 125)), way=way)

    assert queue(target) == {120: "free", 200: "behind 120"}
    mended(target, 1, 110)
    assert [one.outcome for one in go_on(target.queue, RetryConfig(allow_duplicate_rows=True))] == ["applied"] * 2
    assert balances(target)[0] == 125


def test_one_that_waits_cannot_be_retried_before_the_other(target: Target) -> None:
    apply(target, *CHAIN)
    first, second = ids(target)[100], ids(target)[120]

    with pytest.raises(OperatorError, match=f"{second} waits for {first}"):
        target.retried(second)
    (held,) = target.retried(second, go_on=True)

    assert held.outcome is EntryOutcome.WAITS
    assert len(queue(target)) == 4
    assert target.queue.history(most=9) == []


def test_all_are_retried_each_once(target: Target) -> None:
    apply(target, *CHAIN)
    mended(target, 1, 999)

    retried = target.retried()

    assert [one.outcome for one in retried] == ["applied"] * 4
    assert balances(target) == [130, 220]


def test_a_dry_run_tells_what_would_go_on_and_changes_nothing(target: Target) -> None:
    apply(target, *CHAIN)
    mended(target, 1, 999)
    before = queue(target)

    tried = target.retried(dry_run=True)

    assert [(one.outcome, one.has_gone_on) for one in tried] == [("would apply", False)] + 3 * [("would apply", True)]
    assert (queue(target), balances(target)) == (before, [999, 220])


def test_an_entry_is_given_up_and_those_behind_it_go_on(target: Target) -> None:
    apply(target, *CHAIN)
    mended(target, 1, 110)
    target.remember_versions()

    target.queue.delete(ids(target)[100])
    went_on = list(go_on(target.queue, RetryConfig(allow_duplicate_rows=True)))

    assert [one.outcome for one in went_on] == ["applied"] * 3
    assert (queue(target), balances(target)) == ({}, [130, 220])


def test_one_that_waits_is_given_up_and_what_waits_for_it_only_goes_on(target: Target) -> None:
    apply(target, *CHAIN)
    target.queue.delete(ids(target)[140])
    target.connection.execute("INSERT INTO dept VALUES (30, 'N')")
    target.remember_versions()

    assert [one.outcome for one in go_on(target.queue, RetryConfig(allow_duplicate_rows=True))] == ["applied"]
    assert queue(target) == {100: "failed", 120: "behind 100"}


def test_a_barrier_waits_for_everything_and_keeps_everything(target: Target, way: tuple[bool, int]) -> None:
    apply(target, T(100, acct(1, 999, 110)), T(110, truncate("hist")), T(120, acct(2, 200, 210)), way=way)
    apply(target, T(130, acct(2, 210, 220)), way=way)

    assert queue(target) == {100: "failed", 110: "behind 100", 120: "behind 110", 130: "behind 110"}
    mended(target, 1, 999)
    target.retried(ids(target)[100])
    assert (queue(target), balances(target)) == ({}, [110, 220])


def test_references_wait_for_the_row_and_not_for_each_other(target: Target, way: tuple[bool, int]) -> None:
    emp = {"name": "z", "job": "A", "sal": 1, "comm": None, "ts": "2024-01-02T00:00:00"}
    apply(target, T(100, update("dept", {"id": 10, "name": "WRONG"}, {"name": "R"}), insert("dept", id=30, name="N")))
    apply(
        target,
        T(110, insert("emp", id=8, dept_id=30, **emp)),
        T(120, insert("emp", id=9, dept_id=30, **emp)),
        T(130, insert("emp", id=7, dept_id=20, **emp)),
        way=way,
    )

    assert queue(target) == {100: "failed", 110: "behind 100", 120: "behind 100"}
    assert target.one("SELECT count(*) FROM emp WHERE id = 7") == 1
    target.queue.delete(ids(target)[110])
    assert queue(target) == {100: "failed", 120: "behind 100"}


def test_a_value_that_nobody_knows_meets_those_that_it_may_be(target: Target, way: tuple[bool, int]) -> None:
    # The log told no more of the deleted row than its key, so it may have had any code.
    apply(target, T(100, delete("acct", id=7)))
    apply(
        target,
        T(105, delete("acct", id=1)),
        T(110, insert("acct", id=3, code="Z", bal=1)),
        T(120, acct(2, 200, 210)),
        way=way,
    )

    assert queue(target) == {100: "failed", 110: "behind 100"}
    assert target.rows("SELECT id, bal FROM acct") == [(2, 210)]


def test_virtual_dependencies_are_kept_one_way_or_both(target: Target, way: tuple[bool, int]) -> None:
    names = {name: TableName("public", name) for name in ("acct", "dept", "hist")}
    target.virtual = VirtualDependencies(
        values=(ValueDependency("by id", {names["acct"]: ("id",), names["dept"]: ("id",)}),),
        objects=(ObjectDependency(names["hist"], names["dept"]),),
    )
    apply(target, T(100, update("dept", {"id": 10, "name": "WRONG"}, {"name": "R"})), way=way)
    apply(
        target,
        T(110, insert("acct", id=10, code="Z", bal=1)),
        T(120, insert("hist", emp_id=1, job="x", at="y")),
        T(130, acct(2, 200, 210)),
        way=way,
    )

    assert queue(target) == {100: "failed", 110: "behind 100", 120: "behind 100"}


def test_a_large_transaction_waits_and_keeps_others(target: Target) -> None:
    apply(target, T(100, acct(1, 999, 110)))
    large(target, T(110, acct(1, 110, 120), acct(2, 200, 210), insert("dept", id=30, name="N")))
    apply(target, T(120, acct(2, 210, 220)))

    assert queue(target) == {100: "failed", 110: "behind 100", 120: "behind 110"}
    mended(target, 1, 999)
    target.retried(ids(target)[100])
    assert (queue(target), balances(target)) == ({}, [120, 220])


def test_marks_are_made_anew_where_the_keys_have_changed(target: Target) -> None:
    target.apply(T(100, acct(1, 999, 110)))
    assert target.one("SELECT count(*) FROM penstock.error_mark") == 0

    # As a run does that begins with hold_dependents switched on, or whose target has another key by now.
    config = ServerConfig(hold_dependents=True)
    target.context(config).mark_queue()
    apply(target, T(110, acct(1, 110, 120)))
    assert queue(target) == {100: "failed", 110: "behind 100"}

    target.connection.execute("CREATE UNIQUE INDEX ON acct (bal)")
    target.context(config).mark_queue()
    apply(target, T(120, insert("acct", id=3, code="Z", bal="120.00")), T(130, insert("acct", id=4, code="A", bal=4)))
    assert queue(target) == {100: "failed", 110: "behind 100", 120: "behind 110"}


def test_with_disable_on_error_the_next_run_holds_what_depends_on_the_failed_one(target: Target) -> None:
    (result,) = apply(target, *CHAIN, disable_on_error=True)
    assert result.aborted_by is not None
    assert queue(target) == {100: "failed"}

    apply(target, *CHAIN, disable_on_error=True)

    assert queue(target) == {100: "failed", 120: "behind 100", 140: "behind 100", 150: "behind 140"}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_a_retry_is_just_applying_is_waited_for(target: Target, way: tuple[bool, int]) -> None:
    apply(target, T(100, acct(1, 999, 110)), T(110, acct(1, 110, 120)), way=way)
    mended(target, 1, 999)
    target.remember_versions()
    entry = ids(target)[100]
    with psycopg.connect(target.url) as blocker:
        # The retry has removed its entry, but has not committed: it waits for the row.
        blocker.execute("SELECT FROM acct WHERE id = 1 FOR UPDATE")
        retry = threading.Thread(target=target.retried, args=[entry])
        retry.start()
        await_true(lambda: bool(target.rows("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'")))

        apply(target, T(120, acct(1, 120, 130)), T(130, acct(2, 200, 210)), way=way)

        assert queue(target)[120] == "behind 100"
        assert balances(target)[1] == 210
    retry.join()

    list(go_on(target.queue, RetryConfig(allow_duplicate_rows=True)))
    assert (queue(target), balances(target)) == ({}, [130, 210])


def test_two_sessions_let_go_on_what_waits_each_once(target: Target) -> None:
    count = 40
    steps = [T(110 + n, acct(1, 110 + n, 111 + n)) for n in range(count)]
    apply(target, T(100, acct(1, 999, 110)), *steps)
    mended(target, 1, 110)
    target.remember_versions()
    target.queue.delete(ids(target)[100])

    done: list[str] = []

    def let_go() -> None:
        found = go_on(target.queue, RetryConfig(allow_duplicate_rows=True))
        done.extend(one.entry_id for one in found if one.outcome is EntryOutcome.APPLIED)

    threads = [threading.Thread(target=let_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (queue(target), balances(target)[0]) == ({}, 110 + count)
    assert len(done) == len(set(done)) == count
