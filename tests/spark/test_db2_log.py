"""`format("penstock.db2_log")`: buffers of Db2's log as Spark reads them, once and on and on."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import MalformedInputError, OperatorError
from penstock.external_values import ExternalValue
from penstock.sources.db2_log.buffers import file_of
from penstock.sources.db2_log.framing import BufferFormat, read_records
from penstock.sources.db2_log.lobs import LogValues
from penstock.sources.db2_log.spark_source import Db2LogSource
from penstock.storage import open_storage
from penstock.values import decode_image
from penstock.wiring import register_sources
from tests.sources.db2.encoder import OUT, Log, Varying, image, inline
from tests.sources.db2.test_round_trip import TABLE
from tests.spark.streams import take_what_is_there

FORMAT = "penstock.db2_log"
LONG = "long " * 300_000


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register_sources(spark)


class Folder:
    """Two files: of transaction 1, which is committed in the first, and of 2 and 3, which are in the second."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, Log()
        root.mkdir(exist_ok=True)
        (root / "catalog.json").write_text(json.dumps({"id": "SAMPLE"}) + json.dumps(TABLE))
        self._written = self._files = 0
        self.log.insert(1, 1, row(1, "one", inline(b"short")))
        self.log.insert(2, 2, row(2, "two", inline(b"")))
        self.log.commit(1)
        self.flush()
        self.log.update(2, 1, row(1, "one", inline(b"short")), row(1, "uno", inline(b"short")))
        self.log.commit(2)
        self.log.insert(3, 3, row(3, "three", inline(b"")))
        self.log.commit(3)
        self.flush()

    def flush(self) -> None:
        """Write what was added since as the next buffer."""
        self._files += 1
        (self.root / f"{self._files:09}.db2log").write_bytes(b"".join(self.log.records[self._written :]))
        self._written = len(self.log.records)

    def add(self, tid: int) -> None:
        """Commit one more row, in a file of its own."""
        self.log.insert(tid, tid, row(tid, "more", inline(b"")))
        self.log.commit(tid)
        self.flush()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "log")


def row(number: int, name: str, text: Varying) -> bytes:
    return image([struct.pack("<i", number), Varying(name.encode()), text])


def found(frame: DataFrame) -> list[tuple[int, int, str, str]]:
    """Return of each change which transaction of the log it is of, its place, what it does, and to which row."""
    rows = frame.select("txn_id", "change_seq", "op", "key").collect()
    return sorted((int(row.txn_id, 16), row.change_seq, row.op, json.loads(row.key)["ID"]) for row in rows)


FIRST = [(1, 0, "insert", "1")]
SECOND = [(2, 0, "insert", "2"), (2, 1, "update", "1"), (3, 0, "insert", "3")]


def test_a_batch_reads_all_and_each_file_is_a_task(spark: SparkSession, folder: Folder) -> None:
    frame = spark.read.format(FORMAT).option("path", str(folder.root)).load()

    assert found(frame) == FIRST + SECOND
    assert frame.rdd.getNumPartitions() == 2
    assert {row.source for row in frame.select("source").collect()} == {"SAMPLE"}
    assert {row.txn_changes for row in frame.where("txn_id like '%2'").select("txn_changes").collect()} == {2}


def test_a_batch_reads_between_two_positions(spark: SparkSession, folder: Folder) -> None:
    reader = spark.read.format(FORMAT).option("path", str(folder.root)).option("source", "mine")
    at = {int(row.txn_id, 16): str(row.commit_scn) for row in reader.load().select("txn_id", "commit_scn").collect()}

    frame = reader.option("startingPosition", at[1]).option("endingPosition", at[2]).load()
    assert found(frame) == SECOND[:2]
    assert {row.source for row in frame.select("source").collect()} == {"mine"}

    assert found(reader.option("startingPosition", at[3]).option("endingPosition", at[3]).load()) == []


def test_a_stream_goes_on_where_it_stood(spark: SparkSession, tmp_path: Path, folder: Folder) -> None:
    sink, checkpoint = str(tmp_path / "sink"), str(tmp_path / "checkpoint")

    def run() -> None:
        frame = spark.readStream.format(FORMAT).option("path", str(folder.root)).load()
        take_what_is_there(frame, sink=sink, checkpoint=checkpoint)

    run()
    folder.add(4)
    run()
    run()

    assert found(spark.read.parquet(sink)) == [*FIRST, *SECOND, (4, 0, "insert", "4")]


def test_a_large_lob_is_said_where_it_is_and_read_there(spark: SparkSession, folder: Folder) -> None:
    folder.log.start(4)
    folder.log.lob(4, 2, LONG.encode())
    folder.log.insert(4, 4, row(4, "large", OUT))
    folder.log.commit(4)
    folder.flush()

    reader = spark.read.format(FORMAT).option("path", str(folder.root))
    (after,) = (row.after for row in reader.load().where("txn_id like '%4'").select("after").collect())

    assert len(after) < 200
    value: Any = decode_image(after)["TEXT"]
    assert isinstance(value, ExternalValue)
    assert value.place is not None
    assert b"".join(LogValues(open_storage(str(folder.root))).pieces(value.place)) == LONG.encode()


def test_a_checkpoint_of_another_log_or_of_files_that_are_gone_is_refused(folder: Folder) -> None:
    def reader() -> Any:
        return Db2LogSource({"path": str(folder.root)}).streamReader(Db2LogSource({}).schema())

    start, end = reader().initialOffset(), reader().latestOffset(reader().initialOffset(), None)
    assert len(reader().partitions(start, end)) == 2

    with pytest.raises(OperatorError, match="the checkpoint is of another log"):
        reader().partitions(start, {**end, "log": "another"})
    with pytest.raises(MalformedInputError, match="offset of Db2's log must be"):
        reader().partitions(start, {"log": "SAMPLE", "commit_scn": "5"})
    (folder.root / "000000002.db2log").unlink()
    with pytest.raises(OperatorError, match=r"the log ends before position \d+, which the checkpoint has reached"):
        reader().partitions(start, end)
    # A checkpoint never goes back by itself.
    assert reader().latestOffset(end, None) == end


def test_a_stream_does_not_go_on_in_another_history_of_the_log(folder: Folder) -> None:
    def reader() -> Any:
        return Db2LogSource({"path": str(folder.root)}).streamReader(Db2LogSource({}).schema())

    start = reader().initialOffset()
    end = reader().latestOffset(start, None)
    old = {name: value for name, value in end.items() if name != "digest"}
    number, offset = file_of(end["commit_scn"])
    file = folder.root / f"{number:09}.db2log"
    record = next(read_records(file.read_bytes(), BufferFormat(), "", start=offset))
    content = bytearray(file.read_bytes())
    # A commit of the same length at the same place, at another time.
    content[record.payload] ^= 1
    file.write_bytes(content)

    for asked in (lambda: reader().latestOffset(end, None), lambda: reader().partitions(start, end)):
        with pytest.raises(OperatorError, match=r"up to position \d+, .* is not what was read: an older state"):
            asked()
    assert reader().latestOffset(old, None) == old


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option 'path' of penstock.db2_log is missing"),
        ({"startingPosition": "x"}, "option 'startingPosition' must be a position or a time, not 'x'"),
        ({"endingPosition": "99999999999999"}, "option 'endingPosition' 99999999999999 lies behind the end"),
        ({"startingPositoin": "1"}, "'startingpositoin'; did you mean 'startingPosition'?"),
        ({"path": "/nowhere/at/all"}, "catalog.json"),
    ],
    ids=["no path", "no position", "behind the end", "misspelled", "no folder"],
)
def test_what_is_wrong_is_said(spark: SparkSession, folder: Folder, options: dict[str, str], said: str) -> None:
    given = options and {"path": str(folder.root), **options}
    with pytest.raises(PySparkException) as caught:
        spark.read.format(FORMAT).options(**given).load().count()

    assert said in str(caught.value)


def test_a_file_that_breaks_the_format_is_named(spark: SparkSession, folder: Folder) -> None:
    file = folder.root / "000000002.db2log"
    file.write_bytes(file.read_bytes()[:-7])

    with pytest.raises(PySparkException) as caught:
        spark.read.format(FORMAT).option("path", str(folder.root)).load().count()

    assert "000000002.db2log, offset" in str(caught.value)
