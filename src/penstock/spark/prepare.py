"""Makes what `prepared` keeps: a program that a run starts if it found nothing, and that works when the run is over.

By hand, for example where the image of a container is made: `python -m penstock.spark.prepare --now`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark import java, prepared
from penstock.spark.prepared import Prepared
from penstock.spark.session import start_session
from penstock.spark.settings import settle

_NOW = "--now"
_AFTER_S = 30.0
_LIMIT_S = 300.0
_MAIN = "org.apache.spark.launcher.Main"
_RECORDER = "import json, os, sys; json.dump([sys.argv[2:], dict(os.environ)], open(sys.argv[1], 'w'))"
_SHELLS_OWN = ("_", "SHLVL", "PWD", "OLDPWD", "JAVA_HOME")


def main() -> None:
    """Prepare, with what the machine has to spare, and not for ever."""
    os.umask(0o077)
    if _NOW not in sys.argv:
        os.nice(10)
        _wait_for_run(os.getppid())
    limit = threading.Timer(_LIMIT_S, os._exit, [1])
    limit.daemon = True
    limit.start()
    prepare()


def prepare() -> None:
    """Make what is missing for this Java and this Spark; another process that does so is left to it."""
    found, folder = prepared.find_java(), prepared.cache()
    if found is None or folder is None or not prepared.is_plain():
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not prepared.is_private(folder):
        return
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        prepared.remove_unused(folder)
        for leftover in folder.glob("new-*"):
            shutil.rmtree(leftover)
        entry = folder / prepared.key(found)
        if not entry.exists():
            made = Path(tempfile.mkdtemp(prefix="new-", dir=folder))
            _make(made, found)
            made.rename(entry)
    os.close(lock)


def _make(folder: Path, found: str) -> None:
    kept = _record(folder / "recorder", found)
    (folder / prepared.COMMAND).write_text(json.dumps({"arguments": kept.arguments, "environment": kept.environment}))
    # A Java that makes no archive leaves none, and is not asked again.
    _train(kept, folder / prepared.ARCHIVE)


def _record(folder: Path, found: str) -> Prepared:
    """Run Spark's scripts with a Java that writes down how it was called."""
    stub, answer = folder / "bin" / "java", folder / "answer"
    stub.parent.mkdir(parents=True)
    record = shlex.join([sys.executable, "-c", _RECORDER, str(answer)])
    stub.write_text(f'#!/bin/sh\ncase " $* " in *{_MAIN}*) exec {shlex.quote(found)} "$@";; esac\nexec {record} "$@"\n')
    stub.chmod(0o700)
    script = prepared.spark_home() / "bin" / "spark-submit"
    settings = {"spark.driver.memory": prepared.MEMORY, "spark.driver.extraJavaOptions": prepared.OPTIONS}
    pairs = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, "JAVA_HOME": str(folder)}
    # With a pipe to read from, as PySpark has it: the script looks at that too.
    subprocess.run([script, *pairs, "pyspark-shell"], env=environment, input=b"", check=True, timeout=_LIMIT_S)
    arguments, variables = json.loads(answer.read_text())
    shutil.rmtree(folder)
    changed = {
        name: value for name, value in variables.items() if environment.get(name) != value and name not in _SHELLS_OWN
    }
    # What follows are Spark's settings, which are a run's own.
    return Prepared(found, arguments[: arguments.index("--conf")], changed)


def _train(kept: Prepared, archive: Path) -> None:
    """Do what a run does, and have Java write down the classes it took."""
    name = "penstock prepare"
    begun = java.begin(
        settle(name, lanes=2, settings={}), kept, [f"-XX:ArchiveClassesAtExit={archive}", *prepared.QUIET]
    )
    assert begun is not None
    spark = start_session(name, lanes=2, java=begun)
    _exercise(spark)
    spark.stop()
    begun.end(_LIMIT_S)


def _exercise(spark: SparkSession) -> None:
    """Run jobs of the kind that most batches are."""
    shared = spark.sparkContext.broadcast(1)
    for _ in range(3):
        spark.sparkContext.parallelize([[0], [1]], 2).map(lambda items: (items, shared.value)).collect()


def _wait_for_run(parent: int) -> None:
    """Wait until the run that asked for it is over, or has been up for a while."""
    deadline = time.monotonic() + _AFTER_S
    while os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
