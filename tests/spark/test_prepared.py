"""What one run keeps so that the next starts sooner: the same Java, safe from others, gone with whoever began it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from penstock.spark import java, prepared
from penstock.spark.prepared import ARCHIVE, COMMAND
from penstock.spark.settings import settle
from tests.lab import Lab
from tests.program import Done, Program, await_true, prepared_start

SESSION = """
import json, os, psutil
from penstock.spark.session import start_session
spark = start_session("prepared", lanes=2)
assert spark.sparkContext.parallelize([1, 2], 2).map(lambda n: n + 1).collect() == [2, 3]
(java,) = [p for p in psutil.Process().children() if p.name() == "java"]
helpers = [p.pid for p in psutil.Process().children() if "penstock.spark.prepare" in p.cmdline()]
print(json.dumps([java.cmdline(), java.environ(), helpers]))
"""

FORKING = """
import json, os, psutil
from penstock import worker_daemon
from penstock.spark.java import beginning
with beginning("workers", lanes=2, settings={}) as java:
    from penstock.spark.session import start_session
    java.fork_workers(worker_daemon.run)
    spark = start_session("workers", lanes=2, settings={}, java=java)
    pids = spark.sparkContext.parallelize([0], 1).map(lambda _: (os.getpid(), os.getppid(), os.umask(0o077))).collect()
    forked = [p.pid for p in psutil.Process().children() if p.name() != "java"]
    print(json.dumps([pids[0], forked]))
"""


def start(cache: Path | str, **environment: str) -> Done:
    """Start Spark in a program of its own, which prints how its Java was called."""
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        env=os.environ | {"PENSTOCK_CACHE": str(cache)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def prepare(cache: Path) -> None:
    environment = os.environ | {"PENSTOCK_CACHE": str(cache)}
    command = [sys.executable, "-m", "penstock.spark.prepare", "--now"]
    subprocess.run(command, env=environment, check=True, timeout=300)


@pytest.fixture(scope="module", autouse=True)
def as_in_a_new_shell() -> Iterator[None]:
    """Spark leaves variables behind in a process that has started it, as other tests have."""
    left = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("SPARK_", "PYSPARK_"))}
    yield
    os.environ.update(left)


@pytest.fixture(scope="module")
def first_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a first run has prepared, for all programs of these tests."""
    folder = tmp_path_factory.mktemp("first") / "cache"
    shutil.copytree(prepared_start(), folder, ignore=shutil.ignore_patterns("tests"))
    return folder


@pytest.fixture
def cache(first_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, to do to as a test likes."""
    folder = tmp_path / "cache"
    shutil.copytree(first_cache, folder)
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


@pytest.fixture
def entry(cache: Path) -> Path:
    (found,) = cache.glob("java-*")
    return found


def without_folders(arguments: list[str]) -> list[str]:
    """Arguments, in no order, without the folder that each run has of its own."""
    return sorted(part for text in arguments for part in text.split(" ") if "-Djava.io.tmpdir=" not in part)


def test_the_next_start_is_the_same_but_for_the_archive(first_cache: Path) -> None:
    (entry,) = first_cache.glob("java-*")

    script = start("")
    done = start(first_cache)

    by_script, by_script_environment, _ = json.loads(script.out)
    quick, quick_environment, helpers = json.loads(done.out)
    assert not helpers, "it is prepared already"
    assert quick[1] == f"-XX:SharedArchiveFile={entry / ARCHIVE}"
    assert quick[2:4] == ["-Xshare:auto", *prepared.QUIET]
    assert Path(quick[0]).resolve() == Path(by_script[0]).resolve()
    assert without_folders(quick[4:]) == without_folders(by_script[1:])
    own = {
        "SPARK_LOCAL_DIRS",
        "TMPDIR",
        "_PYSPARK_DRIVER_CONN_INFO_PATH",
        "PENSTOCK_CACHE",
        "PENSTOCK_WORKERS",
        "_",
        "SHLVL",
        "OLDPWD",
        "PS1",
        "PWD",
    }
    assert {k: v for k, v in quick_environment.items() if k not in own} == {
        k: v for k, v in by_script_environment.items() if k not in own
    }
    assert done.err == script.err


def test_a_first_start_has_the_next_one_prepared_when_it_is_over(tmp_path: Path) -> None:
    *_, helpers = json.loads(start(tmp_path / "cache").out)

    (helper,) = [psutil.Process(pid) for pid in helpers]
    assert helper.environ()["PENSTOCK_CACHE"] == str(tmp_path / "cache")
    for process in (helper, *helper.children(recursive=True)):
        process.kill()


def test_a_start_without_a_cache_has_nothing_prepared() -> None:
    *_, helpers = json.loads(start("").out)

    assert not helpers


def test_what_is_prepared_is_for_this_user_alone(first_cache: Path) -> None:
    kept = [first_cache, *first_cache.rglob("*")]

    assert {path.name for path in kept if path.is_file()} == {"lock", COMMAND, ARCHIVE}
    assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in kept)


def test_a_folder_that_others_may_write_to_is_not_used(entry: Path) -> None:
    assert prepared.find() is not None

    for folder in (entry, entry.parent):
        before = folder.stat().st_mode
        folder.chmod(0o777)
        assert prepared.find() is None
        folder.chmod(before)

    assert prepared.find() is not None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("which", ["entry", "cache"])
def test_a_folder_that_is_somebody_elses_is_not_used(entry: Path, which: str) -> None:
    os.chown(entry if which == "entry" else entry.parent, 4711, -1)

    assert prepared.find() is None


def test_a_folder_by_another_name_is_not_used(entry: Path) -> None:
    moved = entry.rename(entry.with_name("elsewhere"))
    entry.symlink_to(moved)

    assert prepared.find() is None


def test_nothing_is_kept_where_others_may_write(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)

    prepare(cache)

    assert not any(cache.iterdir())


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"spark.master": "spark://host:7077"}, id="a cluster"),
        pytest.param({"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}, id="Java's options"),
        pytest.param({"spark.driver.extraClassPath": "/jars/own.jar"}, id="classes"),
    ],
)
def test_what_only_sparks_scripts_understand_is_left_to_them(cache: Path, settings: Mapping[str, str]) -> None:
    assert java.begin(settle("any", lanes=2, settings=settings)) is None


@pytest.mark.parametrize("name", ["SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR"])
def test_a_spark_that_the_environment_speaks_of_is_started_by_its_scripts(
    cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "/opt/spark")

    assert java.begin(settle("any", lanes=2, settings={})) is None


def test_a_program_that_spark_submit_started_has_its_java(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    with java.beginning("any", lanes=2, settings={}) as begun:
        assert begun is None


def test_a_runs_own_settings_win(cache: Path, tmp_path: Path) -> None:
    own = {"spark.driver.memory": "777m", "spark.local.dir": str(tmp_path / "own"), "spark.ui.retainedJobs": "7"}

    with java.beginning("any", lanes=3, settings=own) as begun:
        assert begun is not None
        arguments = psutil.Process(begun.process.pid).cmdline()

    assert "-Xmx777m" in arguments
    assert {"spark.ui.retainedJobs=7", "spark.master=local[3]"} <= set(arguments)
    assert begun.folders.startswith(str(tmp_path / "own"))


def test_java_ends_with_a_block_that_came_to_not_using_it(cache: Path) -> None:
    with java.beginning("any", lanes=2, settings={}) as begun:
        assert begun is not None
        assert begun.process.poll() is None

    assert begun.process.poll() == -signal.SIGKILL
    assert not Path(begun.folders).exists()


def test_a_run_forks_its_workers_from_itself(cache: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        env=os.environ | {"PENSTOCK_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (pid, parent, mask), forked = json.loads(done.stdout)
    assert parent in forked
    assert pid != parent
    assert mask == 0o077
    await_true(lambda: not psutil.pid_exists(parent))


def test_secrets_are_not_in_the_command(cache: Path) -> None:
    with java.beginning("any", lanes=2, settings={"spark.our.secret": "s3cret"}) as begun:
        assert begun is not None
        arguments = psutil.Process(begun.process.pid).cmdline()

    assert not any("s3cret" in argument for argument in arguments)


def test_a_command_that_java_refuses_is_made_up_for(cache: Path, entry: Path, tmp_path: Path) -> None:
    kept = json.loads((entry / COMMAND).read_text())
    kept["arguments"][-1] = "no.such.Main"
    (entry / COMMAND).write_text(json.dumps(kept))
    folder = tmp_path / "temporary"
    folder.mkdir()

    arguments, *_ = json.loads(start(cache, TMPDIR=str(folder)).out)

    assert "no.such.Main" not in arguments
    await_true(lambda: not list(folder.iterdir()))


@pytest.mark.parametrize(
    "damage", [pytest.param(b"", id="empty"), pytest.param(b"\0" * 100_000, id="overwritten", marks=pytest.mark.soak)]
)
def test_a_damaged_archive_is_ignored_without_a_word(cache: Path, entry: Path, damage: bytes) -> None:
    (entry / ARCHIVE).unlink()
    (entry / ARCHIVE).write_bytes(damage)

    assert start(cache).err == start("").err


def test_another_java_or_spark_is_prepared_for_anew(tmp_path: Path) -> None:
    other = tmp_path / "java"
    other.write_text("another")
    first = prepared.key(str(other))
    other.write_text("a newer one")

    assert prepared.key(str(other)) != first


def test_what_nothing_uses_any_more_is_removed(cache: Path, entry: Path) -> None:
    used = entry.with_name("java-used")
    used.mkdir()
    os.utime(entry, (0, 0))

    prepared.remove_unused(cache)

    assert not entry.exists()
    assert used.exists()


@pytest.fixture
def program(lab: Lab, cache: Path) -> Iterator[Program]:
    """The program, with what is prepared, and with a folder for temporary files that is its own."""
    with tempfile.TemporaryDirectory() as folder:
        made = Program(Path(folder), lab.source_url, lab.target_url, name=lab.name)
        made.environment["TMPDIR"] = folder
        yield made


def javas_of(program: Program) -> list[psutil.Process]:
    # Asked for by name, so that a process which ends meanwhile is left out.
    found = psutil.process_iter(["name", "cmdline"])
    return [p for p in found if p.info["name"] == "java" and str(program.folder) in " ".join(p.info["cmdline"] or [])]


def test_a_run_that_is_refused_leaves_no_java_behind(program: Program) -> None:
    refused = program("run")

    assert refused.code == 3
    assert "penstock setup" in refused.err
    assert not javas_of(program)
    assert not list(program.folder.glob("penstock-run-*"))


def test_a_run_that_is_stopped_while_java_starts_ends_cleanly(program: Program, lab: Lab) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    assert program("setup").code == 0

    with program.start("run") as run:
        await_true(lambda: bool(javas_of(program)))
        (begun,) = javas_of(program)
        await_true(lambda: hears(run.pid, signal.SIGTERM))
        code = run.end()

    assert code == 0, run.said
    assert "stopped" in run.said
    begun.wait(60)
    assert not list(program.folder.glob("penstock-run-*"))


def hears(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    (caught,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")]
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
