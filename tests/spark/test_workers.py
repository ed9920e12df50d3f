"""Workers forked from the run: who takes whose streams over, and what ends with what."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock.spark import workers
from tests.program import await_true

RUN = """
import os, sys
from penstock.spark import workers

def be_daemon():
    print(os.environ.get("MINE"), os.environ.get("RUNS"), sys.argv, os.getppid(), flush=True)
    for line in sys.stdin:
        print("heard", line.strip(), flush=True)
    print("is over", file=sys.stderr, flush=True)
    sys.exit(3)

inherited = open(os.devnull)
workers.fork({address!r}, be_daemon)
print("forked", flush=True)
sys.stdin.read()
"""

DAEMON = """
import sys
from penstock.spark import workers
sys.argv = ["daemon", "pyspark.worker"]
print(workers.hand_over({address!r}), flush=True)
"""


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "workers")


@pytest.fixture
def run(address: str) -> Iterator[subprocess.Popen[str]]:
    """A run that has forked, and lives until its input is closed."""
    with _python(RUN.format(address=address), RUNS="yes") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        yield process
        process.kill()


def _python(text: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def test_the_forked_process_has_the_streams_environment_and_arguments_of_the_daemon(
    run: subprocess.Popen[str], address: str
) -> None:
    with _python(DAEMON.format(address=address), MINE="1") as daemon:
        out, err = daemon.communicate("one\ntwo\n", timeout=60)

    first, *rest = out.splitlines()
    assert first == f"1 None ['daemon', 'pyspark.worker'] {run.pid}"
    assert rest == ["heard one", "heard two", "True"]
    assert err == "is over\n"
    assert run.poll() is None


def test_the_daemon_waits_as_long_as_the_forked_process_lives(run: subprocess.Popen[str], address: str) -> None:
    with _python(DAEMON.format(address=address)) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        daemon.stdout.readline()
        (forked,) = psutil.Process(run.pid).children()
        assert daemon.poll() is None

        forked.kill()

        assert daemon.stdout.readline() == "True\n"


def test_the_daemon_goes_on_without_the_run(run: subprocess.Popen[str], address: str) -> None:
    with _python(DAEMON.format(address=address)) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        daemon.stdout.readline()

        run.kill()
        run.wait()
        daemon.stdin.write("later\n")
        daemon.stdin.flush()

        assert daemon.stdout.readline() == "heard later\n"
        daemon.stdin.close()


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_a_forked_process_that_nobody_asks_for_ends_with_the_run(run: subprocess.Popen[str], how: str) -> None:
    (forked,) = psutil.Process(run.pid).children()

    if how == "ends":
        assert run.stdin is not None
        run.stdin.close()
    else:
        run.kill()
    run.wait(60)

    await_true(lambda: not forked.is_running())


def test_a_forked_process_keeps_none_of_the_runs_files_open(run: subprocess.Popen[str]) -> None:
    (forked,) = psutil.Process(run.pid).children()

    await_true(lambda: len([*Path(f"/proc/{forked.pid}/fd").iterdir()]) == 5)  # its streams, the socket, the run's pipe


def test_an_interrupt_of_the_run_is_not_one_of_the_forked_process(run: subprocess.Popen[str]) -> None:
    (forked,) = psutil.Process(run.pid).children()

    await_true(lambda: os.getpgid(forked.pid) == forked.pid)


def test_where_no_process_listens_nothing_is_handed_over(address: str) -> None:
    assert not workers.hand_over(address)


def test_only_one_daemon_is_served(run: subprocess.Popen[str], address: str) -> None:
    with _python(DAEMON.format(address=address)) as first:
        assert first.stdout is not None
        first.stdout.readline()

        assert not workers.hand_over(address)

        first.kill()


def test_a_path_that_is_too_long_for_a_socket_leaves_it_to_the_daemon(tmp_path: Path) -> None:
    address = str(tmp_path / ("x" * 120))
    before = len(psutil.Process().children())

    workers.fork(address, lambda: None)

    assert len(psutil.Process().children()) == before
    assert not workers.hand_over(address)
