"""A program that publishes is killed at random, again and again, while another one reads."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import change as c
from penstock.archive import Archive
from penstock.formats.change_file import Encoding
from penstock.position import START, Limit, Scn
from penstock.sinks.archive.files import ArchiveWriter, FileWriter, make_archive
from penstock.sources.change_files.reader import FileReader
from penstock.sources.change_files.source import ChangeFiles
from penstock.storage import LocalStorage
from tests.archives import stream, transaction

LAST = 3_000
"""The position of the last transaction; every one that is divisible by 7 is missing."""


def size(position: int) -> int:
    return 300 if position % 100 == 0 else position % 5 + 1


WANTED = [(scn, seq) for scn in range(1, LAST + 1) if scn % 7 for seq in range(size(scn))]


def publish_on(folder: Path) -> None:
    """Go on where the archive stands, with a few transactions to a record."""
    storage = LocalStorage(folder)
    make_archive(storage, "shop", Encoding.CHANGES)
    writer = ArchiveWriter(storage)
    files = FileWriter(storage, Encoding.CHANGES, writer.acquire().epoch, max_bytes=10_000)
    print("begun", flush=True)
    while (after := writer.last.end) < LAST:
        end = min(LAST, after + random.randint(1, 20))
        batch = stream(*(transaction(scn, size(scn)) for scn in range(after + 1, end + 1) if scn % 7))
        writer.commit(Scn(end), files.write_changes([batch]))


class Follower:
    """Reads on, slice by slice, as a program does that stays."""

    def __init__(self, folder: Path) -> None:
        self._archive = Archive(LocalStorage(folder))
        self._source = ChangeFiles(self._archive)
        self._position = START
        self.found: list[tuple[int, int]] = []

    def read_on(self) -> None:
        while (part := self._source.next_slice(self._position, Limit(max_changes=50))) is not None:
            rows = pa.Table.from_batches(FileReader(self._archive).read(part), c.ARROW_SCHEMA)
            self.found += zip(rows[c.COMMIT_SCN].to_pylist(), rows[c.CHANGE_SEQ].to_pylist(), strict=True)
            self._position = part.end

    def assert_whole(self) -> None:
        assert self.found == WANTED[: len(self.found)]
        last = [len(list(changes)) for _, changes in groupby(self.found, key=lambda change: change[0])][-1:]
        assert not last or last == [size(self.found[-1][0])]


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_nothing_is_lost_doubled_or_torn(kills: int, tmp_path: Path) -> None:
    make_archive(LocalStorage(tmp_path), "shop", Encoding.CHANGES)
    follower, drawn = Follower(tmp_path), random.Random()
    for _ in range(kills):
        command = [sys.executable, "-m", __name__, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as program:
            assert program.stdout is not None
            program.stdout.readline()
            until = time.monotonic() + drawn.uniform(0, 0.3)
            while time.monotonic() < until:
                follower.read_on()
            program.kill()
        follower.read_on()
        follower.assert_whole()

    publish_on(tmp_path)

    follower.read_on()
    assert follower.found == WANTED
    late = Follower(tmp_path)
    late.read_on()
    assert late.found == WANTED


def publish_beyond_its_limit(folder: Path, most_bytes: int) -> None:
    """Add one record, whose file grows beyond a limit at which the system kills the process in the middle of it."""
    storage = LocalStorage(folder)
    writer = ArchiveWriter(storage)
    files = FileWriter(storage, Encoding.CHANGES, writer.acquire().epoch)
    first = writer.last.end + 1
    written = files.write_changes([stream(*(transaction(scn) for scn in range(first, first + 200)))])
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    writer.commit(Scn(first + 199), written)


@pytest.mark.parametrize("most_bytes", [0, 1, 700])
def test_a_run_that_is_killed_within_a_record_leaves_none_and_the_next_one_goes_on(
    most_bytes: int, tmp_path: Path
) -> None:
    archive = make_archive(LocalStorage(tmp_path), "shop", Encoding.CHANGES)

    command = [sys.executable, "-m", __name__, str(tmp_path), str(most_bytes)]
    killed = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)

    assert killed.returncode == -signal.SIGXFSZ
    (half,) = (tmp_path / "log").glob(".*")
    assert half.stat().st_size == most_bytes
    log = Archive(LocalStorage(tmp_path))
    assert (log.header, log.count_records(), log.record(1).end) == (archive, 1, START)
    publish_on(tmp_path)
    follower = Follower(tmp_path)
    follower.read_on()
    assert follower.found == WANTED


if __name__ == "__main__":
    if len(sys.argv) == 2:
        publish_on(Path(sys.argv[1]))
    else:
        publish_beyond_its_limit(Path(sys.argv[1]), int(sys.argv[2]))
