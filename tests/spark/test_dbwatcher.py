"""`format("penstock.dbwatcher")`: DbWatcher's messages as Spark reads them, once and on and on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.wiring import register_sources
from tests.sources.dbwatcher.messages import CREATE, OPEN, message
from tests.sources.dbwatcher.test_source import Folder, put_in
from tests.spark.streams import take_what_is_there

FORMAT = "penstock.dbwatcher"


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register_sources(spark)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (path := tmp_path / "messages").mkdir()
    seven = message("7", put_in(1, 10, "7"), put_in(2, 11, "7"))
    return Folder(path, CREATE, seven, message("8", put_in(3, 12, "8"), desc=OPEN), message("8", put_in(4, 13, "8")))


def found(frame: DataFrame) -> list[tuple[str, int, str, str]]:
    rows = frame.select("txn_id", "change_seq", "op", "key").collect()
    return sorted((row.txn_id, row.change_seq, row.op, json.loads(row.key)["id"]) for row in rows)


FIRST = [("7", 0, "insert", "1"), ("7", 1, "insert", "2")]
SECOND = [("8", 0, "insert", "3"), ("8", 1, "insert", "4")]


def test_a_batch_reads_all_or_between_two_positions(spark: SparkSession, folder: Folder) -> None:
    reader = spark.read.format(FORMAT).option("path", str(folder.path))
    frame = reader.load()

    assert found(frame) == FIRST + SECOND
    assert {row.source for row in frame.select("source").collect()} == {"dbwatcher"}
    assert found(reader.option("startingPosition", "2").option("endingPosition", "4").load()) == SECOND


def test_a_stream_goes_on_where_it_stood_and_leaves_out_repeats(
    spark: SparkSession, tmp_path: Path, folder: Folder
) -> None:
    sink, checkpoint = str(tmp_path / "sink"), str(tmp_path / "checkpoint")

    def run() -> None:
        frame = spark.readStream.format(FORMAT).option("path", str(folder.path)).load()
        take_what_is_there(frame, sink=sink, checkpoint=checkpoint)

    run()
    folder.put(message("7", put_in(1, 10, "7"), put_in(2, 11, "7")), message("9", put_in(5, 14, "9")))
    run()
    run()

    assert found(spark.read.parquet(sink)) == [*FIRST, *SECOND, ("9", 0, "insert", "5")]

    folder.put(message("8", put_in(3, 12, "8")), name="000004.xml")
    with pytest.raises(PySparkException, match="checkpoint"):
        run()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "option 'path' of penstock.dbwatcher is missing"),
        ({"path": ".", "statements": "run"}, "option 'statements' must be one of refuse, rows, not 'run'"),
        ({"path": ".", "table": "t"}, "table"),
    ],
)
def test_wrong_options_are_refused(spark: SparkSession, options: dict[str, str], why: str) -> None:
    with pytest.raises(PySparkException, match=why):
        spark.read.format(FORMAT).options(**options).load().collect()
