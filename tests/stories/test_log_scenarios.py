"""Scenarios of what the log has to keep, and of transactions that are not held in memory. On every path."""

from __future__ import annotations

import random

import pytest

from penstock.apply.lane import ServerConfig
from penstock.position import Limit
from tests.lab import Lab

WAYS = pytest.mark.parametrize(
    ("use_set", "lanes"),
    [(use_set, lanes) for use_set in (True, False) for lanes in (1, 4)],
    ids=[f"{path}-path-{lanes}-lanes" for path in ("set", "row") for lanes in (1, 4)],
)


def progress(lab: Lab) -> tuple[int, int]:
    """Up to where all is applied, and from where on the source must keep its changes."""
    (row,) = lab.target.execute(
        "SELECT applied_message_number, oldest_message_number FROM penstock.dba_apply_progress"
    ).fetchall()
    return row


def free(lab: Lab) -> int:
    """Let the log forget what the process needs no more; how many rows are left."""
    state = lab.ledger.state()
    assert state is not None
    lab.log.free(state.low_watermark, state.history.consumer.id)
    row = lab.source.execute("SELECT count(*) FROM penstock_lab.log").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.rule("A-167", "A-198")
@WAYS
def test_s31_the_log_is_kept_from_the_oldest_transaction_that_is_not_applied(
    lab: Lab, use_set: bool, lanes: int
) -> None:
    """A transaction has one position, where it commits; one that began earlier keeps its rows all the same."""
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1), (2, 2)")
    lab.target.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    config = ServerConfig(use_set_path=use_set)
    with lab.session() as early:
        early.execute("UPDATE t SET v = v + 10 WHERE id = 1")
        lab.source.execute("UPDATE t SET v = v + 10 WHERE id = 2")

        # It is read, and the run is forced to stop before it is completed: it is the oldest one then.
        part = lab.next_slice()
        assert part is not None
        start = progress(lab)
        assert start[0] == start[1] < part.end
        assert free(lab) == 1
        lab.apply(lanes=lanes, config=config, shuffle=random.Random(1))
        first = progress(lab)
        assert first[0] == first[1] == part.end
        free(lab)
        early.commit()
    lab.apply(lanes=lanes, config=config)

    last = progress(lab)
    assert last[0] == last[1] > first[0]
    lab.assert_identical("t")
    assert free(lab) == 0


@pytest.mark.rule("A-190")
@WAYS
def test_s35_a_transaction_that_is_not_held_in_memory(lab: Lab, use_set: bool, lanes: int) -> None:
    lab.setup("CREATE TABLE nk (a int, b text, c int)")
    threshold = Limit(large_changes=1000)
    lab.source.execute("INSERT INTO nk SELECT n, 'a', n FROM generate_series(1, 1000) n")
    lab.source.execute(
        "BEGIN; INSERT INTO nk SELECT n, 'b', n FROM generate_series(1, 1200) n;"
        " UPDATE nk SET c = c + 1 WHERE b = 'b' AND a <= 20; DELETE FROM nk WHERE b = 'b' AND c = 21; COMMIT"
    )
    # The transactions of two sessions, open at once: each counts for itself.
    with lab.session() as one, lab.session() as other:
        for session, name, rows in ((one, "c", 700), (other, "d", 800)):
            session.execute(f"INSERT INTO nk SELECT n, '{name}', n FROM generate_series(1, {rows}) n")
    large = []
    config = ServerConfig(use_set_path=use_set, group_changes=100)

    while (part := lab.next_slice(threshold)) is not None:
        large.append((int(part.changes.sum()), part.is_large))
        for result in lab.apply_slice(part, lanes=lanes, config=config):
            assert result.failure is None
            assert not part.is_large or (result.target_transactions, result.errors) == (1, 0)
        lab.ledger.complete(part.end, part.last_committed_at, part.anchor)

    # Exactly as many as the threshold says are held, and so are two that reach it only together.
    assert large == [(1000, False), (1222, True), (1500, False)]
    lab.assert_identical("nk")
    # Nothing was laid aside anywhere that would have to be removed.
    assert lab.target.execute("SELECT count(*) FROM pg_class WHERE relpersistence = 't'").fetchone() == (0,)
    assert lab.errors() == []
