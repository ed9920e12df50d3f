"""What can happen to an archive of change files, and to runs on either side: nothing is lost, and it is said why."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import psycopg
import pytest

from penstock.errors import FencedError, OperatorError, PenstockError
from penstock.pipeline.background import BackgroundRun
from penstock.pipeline.report import Report
from tests.faults.relay import ArchiveWitness
from tests.faults.room import SmallDisk, can_mount
from tests.lab import Lab
from tests.program import await_true
from tests.stories.test_restore import Restoring, content

TABLES = """
CREATE TABLE item (id int PRIMARY KEY, at int NOT NULL);
INSERT INTO item SELECT n, 0 FROM generate_series(1, 2000) n;
"""

WRITTEN = "UPDATE item SET at = at + 1; INSERT INTO item SELECT max(id) + 1, 0 FROM item"
"""Two thousand changes and one, whose file and record find no room where there is hardly any."""

Fault = Callable[[], AbstractContextManager[None]]


@contextmanager
def refused_by_the_system(number: int) -> Iterator[None]:
    """Have every write of this process fail for that reason; those of tasks, which write data files, succeed."""

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        yield


FAULTS: dict[str, tuple[Callable[[SmallDisk | None], Fault], str]] = {
    "no space for a record": (lambda _: lambda: refused_by_the_system(errno.ENOSPC), "no space left"),
    "no right to write a record": (lambda _: lambda: refused_by_the_system(errno.EACCES), "no right to"),
}
if can_mount():
    FAULTS |= {
        "no space": (lambda disk: disk.full if disk else nullcontext, "no space left"),
        "no right to write": (lambda disk: disk.read_only if disk else nullcontext, "no right to"),
    }


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, SmallDisk | None]]:
    """A folder for the archive, and the disk that it is on, if that may be filled."""
    if not can_mount():
        yield tmp_path, None
        return
    with SmallDisk(megabytes=16) as disk:
        yield disk.folder, disk


def begun(lab: Lab, folder: Path) -> Restoring:
    """Both pipelines, set up; the copy is published, and in place at the target."""
    shop = Restoring(lab, folder, "changes")
    lab.source.execute(TABLES)
    shop.publication.setup()
    shop.publish()
    shop.pipeline.setup()
    return shop


def ended_with(run: BackgroundRun) -> PenstockError:
    """What a run ends with by itself."""
    with pytest.raises(PenstockError) as ended:
        run.wait(60)
    return ended.value


class Following(Report):
    """The report of one run, which is asked whether it follows: the log does not say which run a line is of."""

    def __init__(self) -> None:
        super().__init__(every_s=0)
        self.is_said = False

    def following(self) -> None:
        super().following()
        self.is_said = True


@pytest.fixture
def following(caplog: pytest.LogCaptureFixture) -> Callable[[Callable[[Report], BackgroundRun]], BackgroundRun]:
    """Starts a run, and returns it once it follows its source."""
    caplog.set_level(logging.INFO, "penstock")

    def start(begin: Callable[[Report], BackgroundRun]) -> BackgroundRun:
        report = Following()
        run = begin(report)
        await_true(lambda: report.is_said or not run.is_alive)
        return run

    return start


def assert_whole(shop: Restoring) -> None:
    """Whoever reads the archive finds nothing that is torn, missing or there twice, and nothing half written."""
    with ArchiveWitness(shop.archive) as witness:
        pass
    witness.assert_whole()
    assert not [path for path in (shop.folder / "archive").rglob(".*") if path.is_file()]


@pytest.mark.parametrize(("make", "said"), FAULTS.values(), ids=FAULTS)
def test_a_run_that_can_write_no_more_says_so_and_the_next_one_goes_on(
    lab: Lab,
    place: tuple[Path, SmallDisk | None],
    spark: object,
    following: Callable[..., BackgroundRun],
    make: Callable[[SmallDisk | None], Fault],
    said: str,
) -> None:
    folder, disk = place
    shop = begun(lab, folder)
    with shop.pipeline.start():
        publishing = following(shop.publication.start)
        lab.source.execute("UPDATE item SET at = 1 WHERE id = 1")
        await_true(lambda: content(lab.target) == content(lab.source))
        before, published = content(lab.target), shop.last
        with make(disk)():
            lab.source.execute(WRITTEN)
            ended = ended_with(publishing)

        assert isinstance(ended, OperatorError)
        assert said in str(ended)
        assert str(folder / "archive") in ended.where
        assert ended.do
        assert (shop.last, content(lab.target)) == (published, before)

        # It is mended, and somebody starts the run again.
        lab.source.execute("DELETE FROM item WHERE id = 7")
        shop.publish()
        await_true(lambda: content(lab.target) == content(lab.source))
    assert_whole(shop)


def test_a_data_file_that_vanished_is_missed_and_nothing_is_applied_without_it(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    shop = begun(lab, tmp_path)
    shop.restore()
    before = content(lab.target)
    lab.source.execute(WRITTEN)
    shop.publish()
    (file,) = shop.last.files
    newest = tmp_path / "archive" / file.name
    aside = newest.rename(tmp_path / "aside")

    for _ in range(2):
        with pytest.raises(OperatorError, match="a file of the archive is missing") as missed:
            shop.restore()
        assert newest.name in missed.value.where
        assert content(lab.target) == before
        # The source has forgotten what the file holds: later changes are published behind it all the same.
        lab.source.execute("INSERT INTO item SELECT max(id) + 1, 0 FROM item")
        shop.publish()

    aside.rename(newest)
    shop.restore()
    assert content(lab.target) == content(lab.source)
    assert_whole(shop)


def test_a_record_that_vanished_is_missed_on_both_sides(lab: Lab, tmp_path: Path, spark: object) -> None:
    shop = begun(lab, tmp_path)
    lab.source.execute(WRITTEN)
    shop.publish()
    shop.restore()
    newest = max((tmp_path / "archive" / "log").iterdir())
    aside = newest.rename(tmp_path / "aside")
    lab.source.execute("INSERT INTO item SELECT max(id) + 1, 0 FROM item")
    before = content(lab.target)

    with pytest.raises(OperatorError, match="the archive was restored to an older state"):
        shop.publish()
    with pytest.raises(
        OperatorError, match=r"restored to an older state.* The target is of position \d+; the log ends"
    ):
        shop.restore()

    # Nothing has taken its place, so it can be brought back.
    assert not newest.exists()
    assert content(lab.target) == before
    aside.rename(newest)
    shop.publish()
    shop.restore()
    assert content(lab.target) == content(lab.source)
    assert_whole(shop)


def test_a_second_run_of_either_half_is_refused_and_the_first_goes_on(
    lab: Lab, tmp_path: Path, spark: object, following: Callable[..., BackgroundRun]
) -> None:
    shop = begun(lab, tmp_path)
    with following(shop.publication.start), following(shop.pipeline.start):
        for second in (shop.publish, shop.restore):
            with pytest.raises(OperatorError, match="is running already"):
                second()
            lab.source.execute(WRITTEN)
            await_true(lambda: content(lab.target) == content(lab.source))
    assert_whole(shop)


def test_a_run_that_was_replaced_publishes_no_more(
    lab: Lab, tmp_path: Path, spark: object, following: Callable[..., BackgroundRun]
) -> None:
    shop = begun(lab, tmp_path)
    with shop.pipeline.start():
        first = following(shop.publication.start)
        # What happens to the hold of a machine that is out of reach for long enough.
        with psycopg.connect(lab.source_url, autocommit=True) as other:
            ended = other.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s",
                [f"penstock {lab.name} run"],
            )
            assert ended.fetchall() == [(True,)]
        with following(shop.publication.start):
            lab.source.execute(WRITTEN)
            said = ended_with(first)
            await_true(lambda: content(lab.target) == content(lab.source))
    assert isinstance(said, FencedError)
    assert "another run publishes to this archive" in str(said)
    assert_whole(shop)
