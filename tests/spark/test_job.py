"""The job of a batch on Spark: one lane, several lanes, or a transaction that nobody holds whole."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from penstock.apply.lane import LaneResult, ServerConfig
from penstock.errors import RetryableError
from penstock.position import Limit
from penstock.spark.job import BatchJobs, _carried, for_each
from penstock.spark.starting import Spark
from tests.lab import Lab

SCHEMA = """
CREATE TABLE parent (id int PRIMARY KEY, v int);
CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent, v text);
"""
CONFIG = ServerConfig(group_changes=10)


def work(lab: Lab) -> None:
    for n in range(40):
        with lab.source.transaction():
            lab.source.execute("INSERT INTO parent VALUES (%s, 0)", [n])
            lab.source.execute("INSERT INTO child VALUES (%s, %s, 'x')", [n, n])
            lab.source.execute("UPDATE parent SET v = v + 1 WHERE id IN (%s, %s)", [n, n - n % 10])


def run(spark: SparkSession, lab: Lab, *, lanes: int, limit: Limit = Limit()) -> Sequence[LaneResult]:
    assert lab.state is not None
    jobs = BatchJobs(Spark.of(spark), process=lab.name, epoch=lab.state.epoch)
    jobs.share(lab.reader(), lab.context(CONFIG))
    results: list[LaneResult] = []
    while (part := lab.next_slice(limit)) is not None:
        if len(part):
            results += jobs.run(part, lanes=lanes)
        lab.ledger.complete(part.end, part.last_committed_at, part.anchor)
    return results


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_every_lane_applies_its_transactions(spark: SparkSession, lab: Lab, lanes: int) -> None:
    lab.setup(SCHEMA)
    work(lab)

    results = run(spark, lab, lanes=lanes)

    assert sorted(result.lane for result in results) == list(range(lanes))
    assert sum(result.transactions for result in results) == 40
    assert all(result.changes for result in results)
    assert not any(result.errors or result.failure for result in results)
    lab.assert_identical("parent", "child")


def test_a_large_transaction_is_one_target_transaction(spark: SparkSession, lab: Lab) -> None:
    lab.setup(SCHEMA)
    lab.source.execute(
        "WITH p AS (INSERT INTO parent SELECT n, 0 FROM generate_series(1, 100) n RETURNING id) SELECT count(*) FROM p"
    )
    with lab.source.transaction():
        lab.source.execute("INSERT INTO child SELECT n, n, 'x' FROM generate_series(1, 100) n")
        lab.source.execute("UPDATE child SET v = v || id")
        lab.source.execute("DELETE FROM child WHERE id % 3 = 0")

    results = run(spark, lab, lanes=2, limit=Limit(large_changes=50))

    assert [(r.transactions, r.target_transactions, r.row_changes) for r in results] == [(1, 1, 0), (1, 1, 0)]
    lab.assert_identical("parent", "child")


@pytest.mark.rule("A-88")
def test_a_large_transaction_that_conflicts_is_put_aside_whole(spark: SparkSession, lab: Lab) -> None:
    lab.setup(SCHEMA)
    lab.target.execute("INSERT INTO parent VALUES (70, 7)")
    lab.source.execute("INSERT INTO parent SELECT n, 0 FROM generate_series(1, 100) n")

    run(spark, lab, lanes=1, limit=Limit(large_changes=50))

    assert [(entry.message_number, entry.message_count) for entry in lab.errors()] == [(70, 100)]
    assert lab.rows("parent") == [(70, 7)]


def test_no_room_for_what_travels_to_workers_is_tried_again(
    spark: SparkSession, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.setup(SCHEMA)
    jobs = BatchJobs(Spark.of(spark), process=lab.name, epoch=1)

    def full(*_: object) -> None:
        # What PySpark makes of a full disk.
        raise pickle.PicklingError("Could not serialize broadcast: OSError: [Errno 28] No space left on device")

    monkeypatch.setattr(spark.sparkContext, "broadcast", full)
    with pytest.raises(RetryableError, match=r"cannot hand work to Spark: .*No space left on device"):
        jobs.share(lab.reader(), lab.context(CONFIG))


def test_what_cannot_travel_is_not_taken_for_a_full_disk(spark: SparkSession) -> None:
    with pytest.raises(pickle.PicklingError):
        for_each(Spark.of(spark), [threading.Lock()], str)


def test_a_lost_spark_is_not_taken_for_a_full_disk(
    spark: SparkSession, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.setup(SCHEMA)
    jobs = BatchJobs(Spark.of(spark), process=lab.name, epoch=1)
    jobs.share(lab.reader(), lab.context(CONFIG))

    def gone(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(spark.sparkContext, "parallelize", gone)
    with pytest.raises(RetryableError, match="lost Spark's Java process"):
        jobs.warm_up()


@pytest.mark.parametrize("items", [1, 3, 16, 23])
def test_every_item_is_done_once_and_results_come_in_order(spark: SparkSession, items: int) -> None:
    assert for_each(Spark.of(spark), range(items), lambda item: 10 * item) == [10 * item for item in range(items)]


def test_what_a_driver_said_of_a_row_stays_in_the_task() -> None:
    def fail() -> None:
        try:
            raise ValueError("Failing row contains (42)")
        except ValueError as exc:
            raise RetryableError("cannot copy") from exc

    with pytest.raises(RuntimeError) as caught, _carried():
        fail()
    written = "".join(traceback.format_exception(caught.value))
    assert "cannot copy" in written
    assert "Failing row" not in written
