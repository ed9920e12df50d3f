"""Buffers of Db2's log in a folder, applied to PostgreSQL, by runs that end and begin in the middle of transactions."""

from __future__ import annotations

import json
import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock import pipeline_file
from penstock.errors import MalformedInputError, OperatorError
from penstock.pipeline.pipeline import Pipeline
from penstock.wiring import open_pipeline
from tests.sources.db2.encoder import OUT, Log, Varying, image, inline
from tests.sources.db2.test_round_trip import TABLE

PIPELINE = """\
version: 1
name: db2
connections: {{copy: {{type: postgres, url: "{url}"}}}}
capture: {{source: db2_log, path: log, tables: ["S.*"]}}
apply: {{connection: copy}}
"""

LONG = "long " * 300_000
"""A LOB that is too large for its change."""


class Folder:
    """What a collector fills, and the pipeline that reads it."""

    def __init__(self, root: Path, url: str) -> None:
        self.root, self.url, self.log = root, url, Log()
        self.buffers = root / "log"
        self.buffers.mkdir()
        self.say({"id": "SAMPLE, restored never"}, TABLE)
        (root / "pipeline.yaml").write_text(PIPELINE.format(url=url))
        self._written = 0

    def say(self, *catalog: dict[str, Any]) -> None:
        (self.buffers / "catalog.json").write_text("\n".join(map(json.dumps, catalog)))

    def flush(self) -> Path:
        """Write what was added since as the next buffer."""
        file = self.buffers / f"{len(list(self.buffers.glob('*.db2log'))) + 1:09}.db2log"
        file.write_bytes(b"".join(self.log.records[self._written :]))
        self._written = len(self.log.records)
        return file

    def pipeline(self) -> Pipeline:
        made = open_pipeline(pipeline_file.load(self.root / "pipeline.yaml"))
        assert isinstance(made, Pipeline)
        return made

    def run(self) -> None:
        progress = self.pipeline().run(threading.Event(), until_caught_up=True)
        assert (progress.in_queue, progress.conflicts) == (0, 0)

    def rows(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute('SELECT "ID", "NAME", "TEXT" FROM "S"."T" ORDER BY 1').fetchall()


@pytest.fixture
def folder(tmp_path: Path, database: str, spark: SparkSession) -> Folder:
    return Folder(tmp_path, database)


def row(number: int, name: str, text: Varying) -> bytes:
    return image([struct.pack("<i", number), Varying(name.encode()), text])


def test_a_target_becomes_what_the_log_says_and_goes_on_with_the_buffers_that_come(folder: Folder) -> None:
    log = folder.log
    log.insert(1, 1, row(1, "one", inline(b"short")))
    # Begun here, committed in the next buffer.
    log.start(2)
    log.lob(2, 2, b"long " * 300_000)
    log.insert(3, 3, row(3, "never", inline(b"")))
    log.commit(1)
    folder.flush()
    folder.pipeline().setup()
    folder.run()
    assert folder.rows() == [(1, "one", "short")]

    log.insert(2, 2, row(2, "two", OUT))
    log.update(2, 1, row(1, "one", inline(b"short")), row(1, "uno", inline(b"short")))
    log.abort(3)
    log.commit(2)
    folder.flush()
    status = folder.pipeline().status()
    assert status.backlog_changes == 2
    folder.run()
    assert folder.rows() == [(1, "uno", "short"), (2, "two", LONG)]

    # What is known of the files is made again where it is gone.
    shutil.rmtree(folder.buffers / "index")
    log.delete(4, 1, row(1, "uno", inline(b"short")))
    log.start(4)
    log.lob(4, 2, b"and more", original=8)
    log.update(4, 2, row(2, "two", OUT), row(2, "duo", OUT))
    log.commit(4)
    folder.flush()
    folder.run()
    assert folder.rows() == [(2, "duo", LONG + "and more")]


def test_what_is_wrong_in_the_folder_is_said_before_anything_is_applied(folder: Folder) -> None:
    folder.log.insert(1, 1, row(1, "one", inline(b"")))
    folder.log.commit(1)
    first = folder.flush()
    folder.pipeline().setup()
    content = first.read_bytes()

    first.write_bytes(content[:-7])
    with pytest.raises(MalformedInputError, match=r"000000001\.db2log, offset"):
        folder.run()
    first.write_bytes(content)

    folder.log.insert(2, 2, row(2, "two", inline(b"")))
    folder.log.commit(2)
    second = folder.flush()
    second.rename(folder.buffers / "000000003.db2log")
    with pytest.raises(OperatorError, match=r"file 000000002\.db2log is missing, and there are later ones"):
        folder.run()
    assert folder.rows() == []

    (folder.buffers / "000000003.db2log").rename(second)
    folder.run()
    assert [one[0] for one in folder.rows()] == [1, 2]
