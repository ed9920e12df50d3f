"""`format("penstock.trigger_queue")`: what Spark is promised by the source, in batches and in streams."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

from penstock import change as c
from penstock.errors import ConfigError, OperatorError
from penstock.spark.schemas import CHANGES
from penstock.wiring import TriggerQueue, register_sources
from tests.lab import Lab

FORMAT = "penstock.trigger_queue"
SCHEMA = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text);"
DEADLINE_S = 180

Batch = list[tuple[int, int, str | None]]
"""What one micro-batch brought: (commit_scn, change_seq, after)."""


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register_sources(spark)


@pytest.fixture
def queue(lab: Lab) -> Lab:
    """A captured source; nothing is applied from it."""
    lab.source.execute(SCHEMA)
    lab.pipeline().setup()
    return lab


def commit(lab: Lab, first: int, *sizes: int) -> None:
    """Commit one transaction for each size, of so many inserts; ids count on from `first`."""
    for size in sizes:
        lab.source.execute(f"INSERT INTO t SELECT n, 'x' FROM generate_series({first}, {first + size - 1}) n")
        first += size


def ids(rows: Iterable[Any]) -> list[int]:
    return [int(json.loads(after or "{}")["id"]) for _, _, after in rows]


def sizes(rows: Batch) -> list[int]:
    """How many changes each transaction of a batch has, in the order they came."""
    return [len(list(changes)) for _, changes in groupby(rows, key=lambda row: row[0])]


def read(spark: SparkSession, lab: Lab, **options: str | int) -> DataFrame:
    return spark.read.format(FORMAT).options(url=lab.source_url, set=lab.set_name, **options).load()


class Stream:
    """A streaming query from the log into a list of batches, restarted from its checkpoint as often as one likes."""

    def __init__(self, spark: SparkSession, lab: Lab, checkpoint: Path, **options: str | int) -> None:
        self._spark = spark
        self._options: dict[str, str | int] = {"url": lab.source_url, "set": lab.set_name, **options}
        self._checkpoint = checkpoint
        self.batches: dict[int, Batch] = {}
        self.attempts: list[int] = []
        self.before: Callable[[int], None] = lambda number: None

    @property
    def rows(self) -> Batch:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def start(self, **trigger: Any) -> StreamingQuery:
        changes = self._spark.readStream.format(FORMAT).options(**self._options).load()
        return (
            changes.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**(trigger or {"processingTime": "0 seconds"}))
            .start()
        )

    def drain(self) -> None:
        """Take what is committed by now."""
        query = self.start(availableNow=True)
        try:
            assert query.awaitTermination(DEADLINE_S), "the query did not come to an end"
        finally:
            query.stop()

    def _take(self, frame: DataFrame, number: int) -> None:
        self.attempts.append(number)
        self.before(number)
        rows = [(row[c.COMMIT_SCN], row[c.CHANGE_SEQ], row[c.AFTER]) for row in frame.collect()]
        if rows:
            # A batch that comes again, since the query ended before it was done, is the same batch.
            assert self.batches.setdefault(number, rows) == rows


def until(is_so: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    """Look again and again, until it is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert query is None or query.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def stream(spark: SparkSession, queue: Lab, tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    yield lambda **options: Stream(spark, queue, tmp_path / "checkpoint", **options)
    for query in spark.streams.active:
        query.stop()


def log_rows(lab: Lab) -> int:
    row = lab.source.execute(f"SELECT count(*) FROM {lab.set_name}.log").fetchone()
    assert row is not None
    return int(row[0])


def test_a_batch_holds_all_that_is_committed_and_nothing_else(spark: SparkSession, queue: Lab) -> None:
    queue.source.execute("BEGIN; INSERT INTO t VALUES (1, 'a'); UPDATE t SET v = NULL; COMMIT")
    queue.source.execute("BEGIN; INSERT INTO t VALUES (9, 'never'); ROLLBACK")
    with queue.session() as late:
        late.execute("INSERT INTO u VALUES (1, 'late')")
        frame = read(spark, queue, source="shop")
        rows = [row.asDict() for row in frame.collect()]

    assert frame.schema == CHANGES
    assert [(row[c.OP], row[c.KEY], row[c.BEFORE], row[c.AFTER]) for row in rows] == [
        ("insert", '{"id":"1"}', None, '{"id":"1","v":"a"}'),
        ("update", '{"id":"1"}', '{"id":"1","v":"a"}', '{"v":null}'),
    ]
    assert {(row[c.SOURCE], row[c.TXN_CHANGES], row[c.SCHEMA_NAME], row[c.TABLE_NAME]) for row in rows} == {
        ("shop", 2, "public", "t")
    }
    assert [row[c.CHANGE_SEQ] for row in rows] == [0, 1]


def test_reading_a_range_again_gives_the_same_rows_in_the_same_order(spark: SparkSession, queue: Lab) -> None:
    with queue.session() as long:
        long.execute("INSERT INTO u VALUES (1, 'long')")
        commit(queue, 1, 3, 1, 2)
        queue.log.tick()
        commit(queue, 10, 2)
        long.execute("INSERT INTO u VALUES (2, 'long')")
    commit(queue, 20, 4)
    first = read(spark, queue).collect()
    end = max(row[c.COMMIT_SCN] for row in first)

    commit(queue, 30, 5)
    again = read(spark, queue, endingPosition=end).collect()
    rest = read(spark, queue, startingPosition=end).collect()

    assert again == first
    assert [row[c.AFTER] for row in first if row[c.TABLE_NAME] == "u"] == [
        '{"id":"1","v":"long"}',
        '{"id":"2","v":"long"}',
    ]
    assert [row[c.TXN_CHANGES] for row in rest] == [5] * 5


def test_any_two_positions_cut_the_stream_between_transactions(spark: SparkSession, queue: Lab) -> None:
    commit(queue, 1, 2, 1, 3)
    whole = read(spark, queue).collect()
    scns = sorted({row[c.COMMIT_SCN] for row in whole})

    middle = read(spark, queue, startingPosition=scns[0], endingPosition=scns[1]).collect()

    assert middle == [row for row in whole if row[c.COMMIT_SCN] == scns[1]]


def test_partitions_share_the_transactions_and_cut_none(spark: SparkSession, queue: Lab) -> None:
    commit(queue, 1, *[1, 5, 2, 4] * 5)
    whole = read(spark, queue).collect()

    parts = read(spark, queue, readPartitions=3).withColumn("part", F.spark_partition_id()).collect()

    assert sorted(tuple(row)[:-1] for row in parts) == sorted(map(tuple, whole))
    assert len({row["part"] for row in parts}) == 3
    places: dict[int, set[int]] = {}
    for row in parts:
        places.setdefault(row[c.COMMIT_SCN], set()).add(row["part"])
    assert all(len(at) == 1 for at in places.values())
    for part in range(3):
        here = [(row[c.COMMIT_SCN], row[c.CHANGE_SEQ]) for row in parts if row["part"] == part]
        assert here == sorted(here)


def test_a_batch_read_frees_nothing(spark: SparkSession, queue: Lab) -> None:
    commit(queue, 1, 3)

    read(spark, queue).collect()

    assert log_rows(queue) == 3


def test_a_limit_cuts_batches_between_transactions(stream: Callable[..., Stream], queue: Lab) -> None:
    commit(queue, 1, 1, 4, 2, 1, 3)
    taken = stream(maxTransactionsPerTrigger=2)

    taken.drain()

    assert [sizes(taken.batches[number]) for number in sorted(taken.batches)] == [[1, 4], [2, 1], [3]]
    assert ids(taken.rows) == list(range(1, 12))


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        pytest.param({"maxTransactionsPerTrigger": 2}, [[1, 4], [2, 1], [3]], id="transactions"),
        pytest.param({"maxRowsPerTrigger": 5}, [[1, 4], [2, 1], [3]], id="rows"),
        pytest.param({"maxRowsPerTrigger": 3}, [[1], [4], [2, 1], [3]], id="fewer rows than one transaction has"),
        pytest.param({"maxTransactionsPerTrigger": 3, "maxRowsPerTrigger": 6}, [[1, 4], [2, 1, 3]], id="both"),
        pytest.param({}, [[1, 4, 2, 1, 3]], id="no limit"),
    ],
)
def test_each_limit_is_kept_and_no_transaction_is_cut(
    queue: Lab, option: dict[str, int], expected: list[list[int]]
) -> None:
    """As Spark calls the reader, batch after batch."""
    commit(queue, 1, 1, 4, 2, 1, 3)
    reader = stream_reader(queue, **option)
    batches = []
    start = reader.initialOffset()

    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        batches.append(rows_between(reader, start, end))
        start = end

    assert [sizes(batch) for batch in batches] == expected
    assert ids(chain.from_iterable(batches)) == list(range(1, 12))


def test_a_limit_is_set_aside_when_all_that_is_there_is_asked_for(queue: Lab) -> None:
    commit(queue, 1, 1, 4, 2)
    queue.log.tick()
    commit(queue, 10, 1)
    reader = stream_reader(queue, maxTransactionsPerTrigger=1)
    start = reader.initialOffset()

    end = reader.latestOffset(start, ReadAllAvailable())

    assert sizes(rows_between(reader, start, end)) == [1, 4, 2, 1]


def test_an_offset_is_text_that_a_new_reader_goes_on_from(queue: Lab) -> None:
    commit(queue, 1, 1, 4, 2)
    reader = stream_reader(queue, maxTransactionsPerTrigger=1)
    start = reader.initialOffset()
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    reader.stop()

    again = stream_reader(queue)
    rest = again.latestOffset(end, again.getDefaultReadLimit())

    assert sizes(rows_between(again, start, end)) == [1]
    assert sizes(rows_between(again, end, rest)) == [4, 2]
    assert again.partitions(rest, rest) == []


def stream_reader(lab: Lab, **options: object) -> DataSourceStreamReader:
    given = {"url": lab.source_url, "set": lab.set_name, **{name: str(value) for name, value in options.items()}}
    return TriggerQueue(given).streamReader(CHANGES)


def rows_between(reader: DataSourceStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Batch:
    """What the tasks of a batch read."""
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]  # type: ignore[union-attr]
    return [(row[c.COMMIT_SCN], row[c.CHANGE_SEQ], row[c.AFTER]) for row in rows]


def test_available_now_stops_at_what_was_committed_at_its_start(stream: Callable[..., Stream], queue: Lab) -> None:
    commit(queue, 1, 2, 1)
    taken = stream(maxTransactionsPerTrigger=1)

    with queue.session() as late:
        late.execute("INSERT INTO t VALUES (50, 'open at the start')")

        def meanwhile(number: int) -> None:
            if number == 0:
                late.commit()
                commit(queue, 60, 1, 1)

        taken.before = meanwhile
        taken.drain()
        first = ids(taken.rows)
        taken.drain()

    assert first == [1, 2, 3]
    assert ids(taken.rows) == [1, 2, 3, 50, 60, 61]


def test_a_stream_goes_on_from_its_checkpoint_without_loss_or_doubling(
    stream: Callable[..., Stream], queue: Lab
) -> None:
    commit(queue, 1, 2, 3)
    taken = stream(maxTransactionsPerTrigger=1)
    taken.drain()
    commit(queue, 10, 1)
    query = taken.start()
    until(lambda: len(taken.rows) >= 6, query)
    commit(queue, 20, 2)
    until(lambda: len(taken.rows) >= 8, query)
    query.stop()
    commit(queue, 30, 1)
    taken.drain()

    assert ids(taken.rows) == [1, 2, 3, 4, 5, 10, 20, 21, 30]
    scns = [scn for scn, _, _ in taken.rows]
    assert scns == sorted(scns)


def test_a_batch_that_failed_comes_again_as_it_was(stream: Callable[..., Stream], queue: Lab) -> None:
    commit(queue, 1, 1, 2)
    taken = stream(maxTransactionsPerTrigger=2)
    taken.drain()
    commit(queue, 10, 2, 1, 1)

    def fail(number: int) -> None:
        raise RuntimeError("the sink is down")

    taken.before = fail
    with pytest.raises(PySparkException, match="the sink is down"):
        taken.drain()
    # More than a batch is waiting by now; the one that was begun still ends where it ended.
    commit(queue, 20, 1)
    taken.before = lambda number: None
    taken.drain()

    seen = [ids(taken.batches[number]) for number in sorted(taken.batches)]
    assert seen[:2] == [[1, 2, 3], [10, 11, 12]]
    assert list(chain.from_iterable(seen[2:])) == [13, 20]
    assert len(taken.attempts) == len(set(taken.attempts)) + 1


def test_the_log_is_freed_when_a_batch_is_done_and_not_before(stream: Callable[..., Stream], queue: Lab) -> None:
    kept: dict[int, int] = {}
    taken = stream(freeOnCommit="true", consumer="lake")
    taken.before = lambda number: kept.__setitem__(number, log_rows(queue))
    query = taken.start()
    for first, size in ((1, 3), (10, 2), (20, 1)):
        commit(queue, first, size)
        until(lambda want=first: want in ids(taken.rows), query)

    # Spark says that a batch is done when it plans the next one.
    assert [kept[number] for number in sorted(taken.batches)] == [3, 2, 1]
    query.stop()
    assert log_rows(queue) == 1


@pytest.mark.parametrize(
    ("options", "kept"),
    [({}, 4), ({"freeOnCommit": "true", "consumer": "lake"}, 1)],
    ids=["kept", "freed"],
)
def test_a_log_is_kept_unless_the_reader_is_a_consumer(queue: Lab, options: dict[str, str], kept: int) -> None:
    commit(queue, 1, 1, 2)
    reader = stream_reader(queue, **options)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    commit(queue, 10, 1)

    reader.commit(end)

    assert log_rows(queue) == kept
    later = reader.latestOffset(end, ReadAllAvailable())
    assert ids(rows_between(reader, end, later)) == [10]


def test_a_consumer_frees_nothing_that_another_one_needs(queue: Lab) -> None:
    lake = stream_reader(queue, freeOnCommit="true", consumer="lake")
    swamp = stream_reader(queue, freeOnCommit="true", consumer="swamp")
    start = swamp.latestOffset(swamp.initialOffset(), ReadAllAvailable())
    commit(queue, 1, 1, 2)
    end = lake.latestOffset(lake.initialOffset(), ReadAllAvailable())

    lake.commit(end)
    assert ids(rows_between(swamp, start, swamp.latestOffset(start, ReadAllAvailable()))) == [1, 2, 3]
    swamp.commit(end)

    assert log_rows(queue) == 0


def test_a_stream_takes_no_change_from_a_pipeline(queue: Lab) -> None:
    queue.start()
    commit(queue, 1, 1, 2)
    lake = stream_reader(queue, freeOnCommit="true", consumer="lake")
    lake.commit(lake.latestOffset(lake.initialOffset(), ReadAllAvailable()))

    queue.apply()

    queue.assert_identical("t")


def test_a_stream_that_is_away_is_waited_for_and_shown(queue: Lab) -> None:
    queue.start()
    commit(queue, 1, 1)
    lake = stream_reader(queue, freeOnCommit="true", consumer="lake")
    start = lake.latestOffset(lake.initialOffset(), ReadAllAvailable())
    lake.commit(start)
    commit(queue, 10, 1, 2)

    queue.apply()
    state = queue.ledger.state()
    assert state is not None
    queue.log.free(state.low_watermark, state.history.consumer.id)

    assert log_rows(queue) == 3
    held = {one["name"]: one for one in queue.pipeline().status().to_json()["consumers"]}
    assert (held["lake"]["target"], held["lake"]["is_this"], held["lake"]["transactions"]) == (None, False, 2)
    assert held[queue.name]["transactions"] == 0
    back = stream_reader(queue, freeOnCommit="true", consumer="lake")
    end = back.latestOffset(start, ReadAllAvailable())
    assert ids(rows_between(back, start, end)) == [10, 11, 12]
    back.commit(end)
    assert log_rows(queue) == 0


def test_a_checkpoint_over_a_log_of_another_history_is_refused(queue: Lab) -> None:
    commit(queue, 1, 1, 2)
    reader = stream_reader(queue)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    # What a restored source looks like: the cut is another one, and another transaction is behind it.
    queue.source.execute(f"UPDATE {queue.set_name}.tick SET mark = gen_random_uuid() WHERE scn = {end['cut']}")
    commit(queue, 10, 1)

    again = stream_reader(queue)
    with pytest.raises(OperatorError, match="the checkpoint is of"):
        again.latestOffset(end, ReadAllAvailable())
    with pytest.raises(OperatorError, match="the checkpoint is of"):
        again.partitions(start, end)


def test_a_stream_that_was_removed_does_not_free(queue: Lab) -> None:
    commit(queue, 1, 1)
    reader = stream_reader(queue, freeOnCommit="true", consumer="lake")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    queue.source.execute(f"DELETE FROM {queue.set_name}.consumer")

    with pytest.raises(OperatorError, match="was removed from those"):
        reader.commit(end)

    assert log_rows(queue) == 1


def test_a_stream_starts_where_it_is_told_to(spark: SparkSession, stream: Callable[..., Stream], queue: Lab) -> None:
    commit(queue, 1, 1, 1, 1)
    first = min(row[c.COMMIT_SCN] for row in read(spark, queue).collect())
    taken = stream(startingPosition=first)

    taken.drain()

    assert ids(taken.rows) == [2, 3]


BAD_OPTIONS: dict[str, tuple[dict[str, str | None], str]] = {
    "unknown": (
        {"freeOnComit": "true"},
        "no option of penstock.trigger_queue: 'freeOnComit'; did you mean 'freeOnCommit'?",
    ),
    "no set": ({"set": None}, "option 'set' of penstock.trigger_queue is missing"),
    "nothing": ({"url": None, "set": None}, "option 'url' and 'set' of penstock.trigger_queue is missing"),
    "type": ({"type": "oracle"}, "option 'type' must be one of postgres, not 'oracle'"),
    "limit": (
        {"maxRowsPerTrigger": "many"},
        "option 'maxRowsPerTrigger' of penstock.trigger_queue must be a whole number",
    ),
    "no name": (
        {"freeOnCommit": "true"},
        "option 'freeOnCommit' of penstock.trigger_queue needs option 'consumer'",
    ),
    "a name for nothing": (
        {"consumer": "lake"},
        "option 'consumer' of penstock.trigger_queue needs option 'freeOnCommit'",
    ),
    "position": (
        {"startingPosition": "latest"},
        "option 'startingPosition' of penstock.trigger_queue must be a whole number",
    ),
}


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_a_bad_option_is_named_before_anything_is_connected_to(options: dict[str, str | None], message: str) -> None:
    given = {"url": "postgresql://nobody@nowhere.invalid/none", "set": "penstock_none", **options}
    source = TriggerQueue({name: value for name, value in given.items() if value is not None})

    for reader in (source.reader, source.streamReader):
        with pytest.raises(ConfigError) as caught:
            reader(CHANGES)
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"type": "oracle"}, "option 'type' must be one of postgres, not 'oracle'", id="type"),
        pytest.param({"url": "nonsense"}, "connection url is not a libpq url", id="url"),
        pytest.param({"set": "penstock_other"}, "penstock_other", id="set"),
    ],
)
def test_spark_passes_on_what_is_wrong_and_no_password(
    spark: SparkSession, queue: Lab, options: dict[str, str | int], message: str
) -> None:
    given = {"url": queue.source_url.replace("postgres@", "postgres:hush@"), "set": queue.set_name, **options}

    with pytest.raises(PySparkException) as caught:
        spark.read.format(FORMAT).options(**given).load().collect()

    assert message in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_plan_does_not_show_the_password(spark: SparkSession, queue: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    url = queue.source_url.replace("postgres@", "postgres:hush@")

    spark.read.format(FORMAT).options(url=url, set=queue.set_name).load().explain(extended=True)

    shown = capsys.readouterr().out
    assert FORMAT in shown
    assert "hush" not in shown
