"""What lanes count by table and operation is what they have applied, whichever way it went."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from penstock.apply.detail import QueuedCount
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.table_counts import TableCounts
from penstock.change import TableName
from penstock.position import Limit
from tests.hand_made import T, as_batch, insert
from tests.lab import Lab

TABLES = "CREATE TABLE a (id int PRIMARY KEY, n int); CREATE TABLE b (id int PRIMARY KEY, n int)"
A, B = TableName("public", "a"), TableName("public", "b")


@pytest.fixture
def shop(lab: Lab) -> Lab:
    lab.setup(TABLES)
    return lab


def work(lab: Lab) -> None:
    """Four transactions: 6 inserts in a, 1 in b; 1 update in a; 1 delete in b."""
    lab.source.execute("INSERT INTO a SELECT n, n FROM generate_series(1, 5) n")
    with lab.source.transaction():
        lab.source.execute("INSERT INTO a VALUES (6, 0)")
        lab.source.execute("INSERT INTO b VALUES (1, 0)")
    lab.source.execute("UPDATE a SET n = 9 WHERE id = 2")
    lab.source.execute("DELETE FROM b")


CHANGES = {(A, "insert"): 6, (A, "update"): 1, (B, "insert"): 1, (B, "delete"): 1}
TRANSACTIONS = {(A, "insert"): 2, (A, "update"): 1, (B, "insert"): 1, (B, "delete"): 1}


def summed(results: list[LaneResult]) -> TableCounts:
    counts = TableCounts()
    for one in results:
        # As it comes back from a task.
        found = LaneResult.from_json(one.to_json())
        assert found.tables.changes.total() == found.changes
        counts.add(found.tables)
    return counts


@pytest.mark.parametrize(
    ("lanes", "config", "limit"),
    [
        (1, ServerConfig(), Limit()),
        (3, ServerConfig(), Limit()),
        (1, ServerConfig(use_set_path=False), Limit()),
        (1, ServerConfig(group_changes=2), Limit()),
        (1, ServerConfig(group_changes=2), Limit(large_changes=5)),
        (1, ServerConfig(use_set_path=False), Limit(large_changes=5)),
    ],
    ids=["set path", "lanes", "row path", "small groups", "large", "large by the row path"],
)
def test_every_way_counts_the_same(shop: Lab, lanes: int, config: ServerConfig, limit: Limit) -> None:
    work(shop)

    counts = summed(shop.apply(lanes=lanes, config=config, limit=limit))

    assert counts.changes == CHANGES
    assert counts.transactions == TRANSACTIONS


def test_what_goes_to_the_error_queue_is_not_counted_as_applied(shop: Lab) -> None:
    shop.target.execute("INSERT INTO a VALUES (3, 77)")
    shop.target.execute("INSERT INTO b VALUES (1, 77)")
    work(shop)

    results = shop.apply()

    # The first two conflict; the others meet the rows that are in the way, or none.
    counts = summed(results)
    assert sum(one.errors for one in results) == 4
    assert +counts.changes == +counts.transactions == {}
    met: Counter[tuple[str, str]] = Counter()
    for one in results:
        met.update(LaneResult.from_json(one.to_json()).resolutions)
    assert met == {("exists", "queued"): 3, ("missing", "queued"): 1}


def test_a_group_that_conflicts_in_part_counts_the_rest(shop: Lab) -> None:
    for number in range(200):
        shop.source.execute("INSERT INTO a VALUES (%s, 0)", [number])
    shop.target.execute("INSERT INTO a VALUES (7, 77), (8, 77)")

    results = shop.apply()

    assert summed(results).changes == {(A, "insert"): 198}
    assert sum(one.errors for one in results) == 2


def test_lanes_say_when_they_were_at_work(shop: Lab) -> None:
    work(shop)

    (result,) = shop.apply()

    assert 0 < result.began_ns < result.ended_ns


def test_the_error_queue_is_counted_by_table_and_error(shop: Lab) -> None:
    assert shop.pipeline().queued_counts() == []
    shop.target.execute("INSERT INTO a VALUES (3, 77)")
    work(shop)
    shop.apply()

    found = shop.pipeline().queued_counts()

    assert [(one.table, one.state, one.entries) for one in found] == [(A, "failed", 1), (A, "failed", 1)]
    assert len({one.error for one in found}) == 2
    assert shop.ledger.queued_counts(1) == found[:1]
    assert all(isinstance(one, QueuedCount) and one.error.isdigit() for one in found)


def test_what_runs_have_applied_adds_up_in_the_ledger_and_a_partition_is_its_table(lab: Lab) -> None:
    lab.setup("CREATE TABLE a (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    lab.target.execute("CREATE TABLE low PARTITION OF a FOR VALUES FROM (0) TO (9)")
    assert lab.pipeline().table_changes() == {}
    counts = TableCounts()
    counts.changes.update({(A, "insert"): 2, (TableName("public", "low"), "insert"): 3, (B, "delete"): 4})
    counts.changes[A, "update"] = 0

    lab.ledger.count(counts)
    lab.ledger.count(counts)
    lab.ledger.count(TableCounts())

    assert lab.pipeline().table_changes() == {(A, "insert"): 10, (B, "delete"): 8}
    detail = lab.pipeline().detail()
    assert detail is not None
    assert [(one.table, one.changes) for one in detail.tables] == [(A, {"insert": 10})]
    assert detail.to_json()["tables"][0]["changes"] == {"insert": 10}


def test_rows_of_the_change_stream_are_counted_like_changes() -> None:
    rows = as_batch([T(1, insert("emp", id=1), insert("emp", id=2)), T(2, insert("emp", id=3), insert("dept", id=4))])
    counts = TableCounts()

    counts.add_rows(pa.Table.from_batches([rows]))

    emp, dept = (TableName("public", "emp"), "insert"), (TableName("public", "dept"), "insert")
    assert counts.changes == {emp: 3, dept: 1}
    assert counts.transactions == {emp: 2, dept: 1}
