"""`format("penstock.change_files")`: an archive as Spark reads it, once and on and on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import OperatorError
from penstock.formats.change_file import Encoding
from penstock.position import Scn
from penstock.sinks.archive.files import ArchiveWriter, FileWriter
from penstock.sources.change_files.spark_source import ChangeFilesSource
from penstock.storage import LocalStorage
from penstock.wiring import register_sources
from tests.archives import EVERYTHING, publish, stream, transaction
from tests.spark.streams import take_what_is_there

FORMAT = "penstock.change_files"


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    register_sources(spark)


def found(frame: DataFrame) -> list[tuple[int, int]]:
    rows = frame.where("op <> 'snapshot'").select("commit_scn", "change_seq").collect()
    return sorted((row.commit_scn, row.change_seq) for row in rows)


@pytest.mark.parametrize("encoding", Encoding)
def test_a_batch_reads_copies_and_changes(spark: SparkSession, tmp_path: Path, encoding: Encoding) -> None:
    publish(LocalStorage(tmp_path), encoding)

    frame = spark.read.format(FORMAT).option("path", str(tmp_path)).option("source", "mine").load()

    assert found(frame) == EVERYTHING
    assert frame.where("op = 'snapshot'").count() == 3
    assert [row.source for row in frame.select("source").distinct().collect()] == ["mine"]


def test_a_batch_reads_between_two_positions(spark: SparkSession, tmp_path: Path) -> None:
    publish(LocalStorage(tmp_path))

    reader = spark.read.format(FORMAT).option("path", str(tmp_path))
    frame = reader.option("startingPosition", "2").option("endingPosition", "11").load()

    assert found(frame) == [(scn, seq) for scn, seq in EVERYTHING if 2 < scn <= 11]
    assert frame.where("op = 'snapshot'").count() == 0


def test_a_stream_goes_on_where_it_stood(spark: SparkSession, tmp_path: Path) -> None:
    folder, sink, checkpoint = (str(tmp_path / name) for name in ("archive", "sink", "checkpoint"))
    writer = publish(LocalStorage(Path(folder)))

    def run() -> None:
        frame = spark.readStream.format(FORMAT).option("path", folder).load()
        take_what_is_there(frame, sink=sink, checkpoint=checkpoint)

    run()
    files = FileWriter(LocalStorage(Path(folder)), Encoding.CHANGES, writer.last.epoch)
    writer.commit(Scn(20), files.write_changes([stream(transaction(20, 2))]))
    run()

    frame = spark.read.parquet(sink)
    assert found(frame) == [*EVERYTHING, (20, 0), (20, 1)]
    assert frame.where("op = 'snapshot'").count() == 3


def test_a_checkpoint_of_another_archive_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    publish(LocalStorage(folder))
    offset = {"archive": "another", "commit_scn": 1}
    reader = ChangeFilesSource({"path": str(folder)}).streamReader(ChangeFilesSource({}).schema())

    with pytest.raises(Exception, match="the checkpoint is of another archive"):
        reader.partitions(offset, offset)


def stream_of(folder: Path) -> Any:
    return ChangeFilesSource({"path": str(folder)}).streamReader(ChangeFilesSource({}).schema())


def test_a_stream_waits_where_the_archive_is_shorter_than_what_it_has_read(tmp_path: Path) -> None:
    folder, mirror = tmp_path / "archive", tmp_path / "mirror"
    writer = publish(LocalStorage(folder))
    shutil.copytree(folder, mirror)
    files = FileWriter(LocalStorage(folder), Encoding.CHANGES, writer.last.epoch)
    writer.commit(Scn(20), files.write_changes([stream(transaction(20, 2))]))
    start = stream_of(folder).initialOffset()
    end = stream_of(folder).latestOffset(start, None)
    assert end["commit_scn"] == 20

    # A mirror that lags behind.
    assert stream_of(mirror).latestOffset(end, None) == end
    with pytest.raises(OperatorError, match="the archive ends before position 20, which the checkpoint has reached"):
        stream_of(mirror).partitions(start, end)
    shutil.copytree(folder, mirror, dirs_exist_ok=True)

    assert stream_of(mirror).latestOffset(end, None) == end
    assert stream_of(mirror).partitions(start, end)
    # As Penstock wrote it before there was a digest.
    old = {name: value for name, value in end.items() if name != "digest"}
    assert stream_of(mirror).latestOffset(old, None) == old
    assert stream_of(mirror).partitions(old, old) == []


def test_a_stream_does_not_go_on_in_an_older_archive_that_was_written_to_since(tmp_path: Path) -> None:
    folder, backup = tmp_path / "archive", tmp_path / "backup"
    writer = publish(LocalStorage(folder))
    shutil.copytree(folder, backup)
    files = FileWriter(LocalStorage(folder), Encoding.CHANGES, writer.last.epoch)
    writer.commit(Scn(20), files.write_changes([stream(transaction(20, 2))]))
    start = stream_of(folder).initialOffset()
    end = stream_of(folder).latestOffset(start, None)
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    restored = ArchiveWriter(LocalStorage(folder))
    restored.acquire()
    files = FileWriter(LocalStorage(folder), Encoding.CHANGES, restored.last.epoch)
    restored.commit(Scn(20), files.write_changes([stream(transaction(19, 1), transaction(20, 1))]))
    restored.commit(Scn(30), files.write_changes([stream(transaction(30, 1))]))

    for asked in (lambda: stream_of(folder).latestOffset(end, None), lambda: stream_of(folder).partitions(start, end)):
        with pytest.raises(OperatorError, match=r"up to position 20, .* is not what was read: an older state"):
            asked()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option 'path' of penstock.change_files is missing"),
        ({"path": "nowhere", "startingPosition": "x"}, "'startingPosition' of penstock.change_files must be a whole"),
        ({"path": "/nowhere/at/all"}, "there is no change archive"),
        ({"pth": "nowhere"}, "no option of penstock.change_files: 'pth'; did you mean 'path'?"),
        ({"path": "nowhere", "startingPositoin": "1"}, "'startingpositoin'; did you mean 'startingPosition'?"),
    ],
    ids=["no path", "no number", "no archive", "unknown", "misspelled"],
)
def test_what_is_wrong_is_said(spark: SparkSession, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format(FORMAT).options(**options).load().count()

    assert said in str(caught.value)
