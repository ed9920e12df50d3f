"""Transactions that wait behind the error queue: what waits, what flows, and what goes on when."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.apply.error_queue import Deed, Outcome
from penstock.apply.retry import RetryConfig, go_on
from penstock.apply.server import LaneResult, ServerConfig
from penstock.apply.virtual_dependencies import ObjectDependency, ValueDependency, VirtualDependencies
from penstock.change import TableName
from penstock.errors import OperatorError
from tests.hand_made import Lcr, T, Target, Txn, delete, insert, truncate, update
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
    target.connection.execute("UPDATE acct SET bal = %s WHERE id = %s", [bal, key])


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

    assert [(one.outcome, one.has_gone_on) for one in retried] == [(Outcome.APPLIED, False)] + 3 * [
        (Outcome.APPLIED, True)
    ]
    assert queue(target) == {}
    assert balances(target) == [130, 220]
    assert target.one("SELECT count(*) FROM emp WHERE id = 9") == 1
    assert target.one("SELECT count(*) FROM penstock.error_mark") == 0
    assert [a.action for a in target.queue.history(most=9)] == [Deed.RETRY, Deed.GO_ON, Deed.GO_ON, Deed.GO_ON]


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
