"""What others on the machine may read of a run, reach of it, and find when it is gone: nothing."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from penstock.spark.scratch import make_folders
from tests.program import await_true

WORK = """
import sys, tempfile
from penstock.spark.session import start_session

def work(batches):
    for batch in batches:
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write("row text")
        open(file.name + ".open", "w").write("row text")
        yield batch

spark = start_session("scratch", lanes=2, settings={"spark.ui.enabled": "true", "spark.our.secret": "s3cret"})
rows = spark.range(1000).selectExpr("id", "concat('row text ', id) AS text")
rows.repartition(2, "id").mapInArrow(work, "id long, text string").collect()
conf = spark.sparkContext.getConf()
print(conf.get("spark.authenticate"), conf.get("spark.our.secret"), spark.sparkContext.uiWebUrl, flush=True)
sys.stdin.read()
"""


@contextmanager
def at_work(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A program with a Spark session that has done a job with a shuffle; and what it printed."""
    # The mask that lets others read whatever does not say otherwise.
    program = subprocess.Popen(
        [sys.executable, "-c", WORK],
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        umask=0o022,
        start_new_session=True,
    )
    assert program.stdout is not None
    try:
        yield program, program.stdout.readline().split()
    finally:
        program.communicate()


def arguments(process: psutil.Process) -> str:
    """What the process was called with, for everyone to see; nothing of one that is gone."""
    try:
        return " ".join(process.cmdline()[3:])
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def processes_of(program: subprocess.Popen[str]) -> list[psutil.Process]:
    first = psutil.Process(program.pid)
    return [first, *first.children(recursive=True)]


def test_a_run_leaves_nothing_to_others_and_nothing_behind(tmp_path: Path) -> None:
    with at_work(tmp_path) as (program, (authenticate, secret, page)):
        processes = processes_of(program)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        listening = {
            (connection.laddr.ip, connection.laddr.port)
            for process in processes
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }

        assert [path for path in files if path.name.startswith("shuffle_") and b"row text" in path.read_bytes()]
        assert [path for path in files if path.suffix == ".open"]
        assert not [path for path in tmp_path.rglob("*") if stat.S_IMODE(path.lstat().st_mode) & 0o077]
        assert int(page.rpartition(":")[2]) in {port for _, port in listening}
        # Java speaks of the loopback interface as an IPv6 socket does.
        assert all(ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback for ip, _ in listening), listening
        assert (authenticate, secret) == ("true", "s3cret")
        told = [arguments(process) for process in processes]
        assert any("SparkSubmit" in one for one in told)
        assert not any("s3cret" in one for one in told)
    await_true(lambda: not list(tmp_path.iterdir()), tell=lambda: str(list(tmp_path.iterdir())))


@pytest.mark.soak
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    with at_work(tmp_path) as (program, _):
        killed = processes_of(program)
        for process in killed:
            process.kill()
        psutil.wait_procs(killed)
    left = list(tmp_path.iterdir())
    assert [path for folder in left for path in folder.rglob("*.open")]

    with at_work(tmp_path):
        assert not set(left) & set(tmp_path.iterdir())


def test_only_folders_of_dead_runs_of_this_user_are_removed(tmp_path: Path) -> None:
    living = Path(make_folders(str(tmp_path)))
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "lock").touch()
    (link := tmp_path / "penstock-run-link").symlink_to(elsewhere)
    (dead := tmp_path / "penstock-run-dead").mkdir()
    (dead / "lock").touch()
    (dead / "rows").touch()
    (other := tmp_path / "other").mkdir()
    (other / "lock").touch()

    made = Path(make_folders(str(tmp_path)))

    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert set(tmp_path.iterdir()) == {living, elsewhere, link, other, made}
    assert (elsewhere / "lock").exists()


def test_a_folder_per_disk(tmp_path: Path) -> None:
    made = [Path(one) for one in make_folders(f"{tmp_path}/a, {tmp_path}/b").split(",")]

    assert [one.parent for one in made] == [tmp_path / "a", tmp_path / "b"]
    for one in made:
        with (one / "lock").open("r+") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
