"""Windows of a slice: each is a group, and is applied as soon as it is read."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from penstock.apply.ledger import LaneClaim
from penstock.apply.task import apply_windows, in_commit_order
from tests.hand_made import T, Target, Txn, as_batch, insert

_PATIENCE_S = 10.0


def rows(*transactions: Txn) -> pa.Table:
    return in_commit_order([as_batch(transactions)], {})


def test_a_window_is_applied_while_the_next_one_is_not_read_yet(database: str) -> None:
    target = Target(database)
    found: list[int] = []

    def windows() -> Iterator[pa.Table]:
        yield rows(T(20, insert("nk", a=1, b="x", c=1)), T(21, insert("nk", a=2, b="x", c=2)))
        deadline = time.monotonic() + _PATIENCE_S
        while target.one("SELECT count(*) FROM nk WHERE b = 'x'") == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        found.append(target.one("SELECT count(*) FROM nk WHERE b = 'x'"))
        yield rows()
        yield rows(T(22, insert("nk", a=3, b="x", c=3)))

    result = apply_windows(windows(), LaneClaim("A1", target.state.epoch, 0, 1, True), target.context())

    assert result.failure is None
    assert found == [2]
    assert (result.transactions, result.target_transactions) == (3, 2)
    assert target.watermarks()[0] == 22
    target.close()
