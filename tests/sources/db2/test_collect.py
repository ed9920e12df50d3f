"""The collector fills a folder that the source reads, through a library that is built here in place of the vendor's."""

from __future__ import annotations

import json
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import ConfigError, MalformedInputError, OperatorError, RetryableError
from penstock.sources.db2_log.buffers import Buffers
from penstock.sources.db2_log.client import Db2Client, Returned
from penstock.sources.db2_log.collector import collect
from penstock.sources.db2_log.framing import Lri
from penstock.sources.db2_log.source import Db2Log
from penstock.storage import LocalStorage
from tests.sources.db2.encoder import Log, Varying, image
from tests.sources.db2.test_round_trip import TABLE


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    made = tmp_path_factory.mktemp("fake") / "libfake_db2.so"
    source = Path(__file__).with_name("fake_db2.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(source)], check=True, timeout=60)
    return str(made)


class Collected:
    """A database's log in a file, and the folder that it is collected into."""

    def __init__(self, root: Path, library: str) -> None:
        self.log, self.file, self.library = Log(), root / "database.log", library
        self.folder = root / "log"
        self.folder.mkdir()
        (self.folder / "catalog.json").write_text(json.dumps({"id": "SAMPLE"}) + json.dumps(TABLE))

    def write(self, tid: int, rows: int) -> None:
        """Add a transaction to the log."""
        for number in range(rows):
            self.log.insert(tid, number, image([struct.pack("<i", number), Varying(b"name"), Varying(None)]))
        self.log.commit(tid)
        self.file.write_bytes(b"".join(self.log.records))

    def collect(self, *, buffer_bytes: int = 1 << 20) -> list[str]:
        client = Db2Client(f"DSN={self.file}", library=self.library, buffer_bytes=buffer_bytes)
        try:
            storage = LocalStorage(self.folder)
            return [name for name, _ in collect(client, storage, threading.Event(), until_end=True)]
        finally:
            client.close()

    def content(self) -> bytes:
        return b"".join(file.read_bytes() for file in sorted(self.folder.glob("*.db2log")))

    def changes(self) -> int:
        log, after, found = Db2Log(Buffers(LocalStorage(self.folder))), 0, 0
        while (part := log.next_slice(after)) is not None:
            found, after = found + sum(batch.num_rows for batch in log.read(part)), part.end
        return found


@pytest.fixture
def collected(tmp_path: Path, library: str) -> Collected:
    return Collected(tmp_path, library)


def test_what_the_log_holds_is_in_files_and_a_new_process_goes_on_behind_them(collected: Collected) -> None:
    collected.write(1, rows=20)

    names = collected.collect(buffer_bytes=1500)
    assert len(names) > 2
    assert names[0] == "000000001.db2log"
    assert collected.content() == collected.file.read_bytes()
    assert collected.collect() == []

    collected.write(2, rows=5)
    assert collected.collect() == [f"{len(names) + 1:09}.db2log"]
    assert collected.content() == collected.file.read_bytes()
    assert collected.changes() == 25


@pytest.fixture
def _signals_restored() -> Iterator[None]:
    handlers = {told: signal.getsignal(told) for told in (signal.SIGINT, signal.SIGTERM)}
    yield
    for told, handler in handlers.items():
        signal.signal(told, handler)


@pytest.mark.usefixtures("_signals_restored")
def test_the_command_says_what_it_wrote(collected: Collected, monkeypatch: pytest.MonkeyPatch) -> None:
    collected.write(1, rows=2)
    monkeypatch.setenv("DB2_CONNECTION", f"DSN={collected.file}")

    done = CliRunner().invoke(
        app, ["db2-collect", str(collected.folder), "--library", collected.library, "--until-end"]
    )

    assert done.exit_code == 0, done.output
    assert "000000001.db2log: 3 records" in done.stdout
    assert "not run against a live Db2 server" in done.stderr


@pytest.mark.parametrize(
    ("sqlcode", "said"),
    [(-2651, "circular logs"), (-2657, "archived log files"), (2653, "restored or rolled forward"), (-9, "SQL9N")],
)
def test_an_error_says_what_to_do(
    collected: Collected, monkeypatch: pytest.MonkeyPatch, sqlcode: int, said: str
) -> None:
    collected.write(1, rows=1)
    monkeypatch.setenv("FAKE_DB2_SQLCODE", str(sqlcode))

    with pytest.raises(OperatorError, match=said):
        collected.collect()
    assert collected.content() == b""


def test_a_database_that_refuses_is_told_without_the_password(library: str) -> None:
    with pytest.raises(RetryableError, match="SQLSTATE 08001") as refused:
        Db2Client("DATABASE=x;UID=me;PWD=hunter2", library=library)
    assert "hunter2" not in str(refused.value)


def test_a_library_that_is_not_there_or_another_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="no Db2 client library 'libdb2-of-nobody"):
        Db2Client("DSN=x", library="libdb2-of-nobody.so")
    with pytest.raises(ConfigError, match="lacks the read-log interface"):
        Db2Client("DSN=x", library="libc.so.6")


class Answers:
    """A reader that gives one answer."""

    def __init__(self, answer: Returned) -> None:
        self.answer = answer

    def begin(self) -> Lri:
        return Lri(0, 0)

    def read(self, start: Lri) -> Returned:
        return self.answer

    def close(self) -> None:
        pass


def test_an_answer_that_is_not_what_it_says_is_not_written(collected: Collected) -> None:
    collected.write(1, rows=2)
    content = collected.file.read_bytes()
    storage, stop = LocalStorage(collected.folder), threading.Event()

    for answer in (Returned(content, 4, Lri(9, 9), True), Returned(content[:-3], 3, Lri(9, 9), True)):
        with pytest.raises(MalformedInputError, match="what db2ReadLog returned"):
            list(collect(Answers(answer), storage, stop))
    with pytest.raises(OperatorError, match="not at the end of the log"):
        list(collect(Answers(Returned(b"", 0, Lri(0, 0), False)), storage, stop))
    assert collected.content() == b""


def test_a_catalogue_of_another_way_to_read_is_refused(collected: Collected) -> None:
    said = json.dumps({"id": "SAMPLE", "framing": "raw"}) + json.dumps(TABLE)
    (collected.folder / "catalog.json").write_text(said)

    with pytest.raises(ConfigError, match="the catalogue says something else"):
        list(collect(Answers(Returned(b"", 0, Lri(0, 0), True)), LocalStorage(collected.folder), threading.Event()))
