"""Starting Spark, with settings that suit small batches of Arrow data."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from penstock.errors import OperatorError
from penstock.spark import scratch

_NEEDED_JAVA = 17

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    # The plan of a batch is fixed and tiny; re-planning it costs more than it could gain.
    "spark.sql.adaptive.enabled": "false",
    # A second copy of an apply task would only be fenced off.
    "spark.speculation": "false",
    # Batches live for seconds on local disk; packing them costs more than it saves.
    "spark.shuffle.compress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.python.worker.reuse": "true",
    # What Spark remembers for a page that nobody opens; a run has several jobs a second, for weeks.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.python.daemon.module": "penstock.spark.daemon",
}


# The JVM only passes Arrow data on; compiling it thoroughly would take more of a core than it gives back.
_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # By a secret that Spark makes up itself, and that no other process gets to see.
    "spark.authenticate": "true",
}
"""What can be had without asking where Spark and its tasks are one process, which nobody else has to reach."""

_IS_LOCAL = re.compile(r"local(\[.*\])?")
_IS_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)

_NOISE = (b"Using incubator modules",)
"""What the JVM says on its standard error that nobody needs to read."""


def start_session(name: str, *, lanes: int, settings: Mapping[str, str] = {}) -> SparkSession:
    """Start Spark: on this machine, unless the settings, spark-submit or the environment's MASTER name a cluster.

    Args:
        name: Application name.
        lanes: Tasks that should run side by side on this machine.
        settings: Spark's own settings. They win over what spark-submit was given, and that over ours.

    Raises:
        OperatorError: There is no Java that Spark can run on.
    """
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log_settings = files(__package__).joinpath("log4j2.properties")
    java_options = f"-Dlog4j2.configurationFile={log_settings} {_JAVA_OPTIONS}"
    submitted = _submitted()
    given = {**submitted, "spark.app.name": name, **settings}
    master = given.get("spark.master") or os.environ.get("MASTER")
    ours = {**_SETTINGS, "spark.driver.extraJavaOptions": java_options}
    if submitted:
        # Java runs already, and logs as spark-submit has it log: every job, several times a second.
        ours |= {"spark.log.level": "WARN"}
    if master is None:
        ours |= {"spark.master": f"local[{max(2, lanes)}]"}
    is_local = master is None or _IS_LOCAL.fullmatch(master) is not None
    if is_local:
        ours |= _LOCAL
    conf = {**ours, **given}
    with _without_noise(), _keeping_interrupts():
        parents = os.environ.get("SPARK_LOCAL_DIRS") or conf.get("spark.local.dir", "")
        if SparkContext._gateway is None:
            is_reached = "spark.driver.bindAddress" in given or not is_local
            conf = _start_java(conf, scratch.make_folders(parents), is_reached=is_reached)
        elif submitted and is_local:
            conf["spark.local.dir"] = _kept_by_java(scratch.make_folders(parents))
        builder = SparkSession.builder
        for key, value in conf.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()


def _start_java(conf: Mapping[str, str], folders: str, *, is_reached: bool) -> dict[str, str]:
    """Start Spark's Java process; returns the settings without what belongs to that process.

    Args:
        conf: Spark's settings.
        folders: Where Java, Spark and its workers are to put files; see `scratch.make_folders`.
        is_reached: Others have to reach it, at an address that the user or Spark finds.
    """
    first = folders.split(",", maxsplit=1)[0]
    environment = {"SPARK_LOCAL_DIRS": folders, "TMPDIR": first}
    if not is_reached and "SPARK_LOCAL_IP" not in os.environ:
        # The address of Spark's page, which asks nobody who they are.
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    options = f"{conf['spark.driver.extraJavaOptions']} -Djava.io.tmpdir={first}"
    # They become arguments of a command, which everybody on the machine can read; secrets follow by another way.
    arguments = {key: value for key, value in conf.items() if not _IS_SECRET.search(key)}
    start = SparkConf(loadDefaults=False).setAll([*{**arguments, "spark.driver.extraJavaOptions": options}.items()])
    with scratch.private_files(environment):
        SparkContext._ensure_initialized(conf=start)
    _kept_by_java(folders)
    return {key: value for key, value in conf.items() if key != "spark.driver.extraJavaOptions"}


def _kept_by_java(folders: str) -> str:
    """Have Java remove folders when it ends: it is the last to write there, also when this program was killed."""
    jvm = SparkContext._jvm
    assert jvm is not None
    for folder in folders.split(","):
        getattr(jvm, "org.apache.spark.util.ShutdownHookManager").registerShutdownDeleteDir(jvm.java.io.File(folder))
    return folders


def _submitted() -> Mapping[str, str]:
    """What spark-submit was given, if it started this program; Java knows it, and is running already."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    threading.Thread(target=_end_with, args=[os.getppid()], name="spark-submit", daemon=True).start()
    return dict(SparkConf().getAll())


def _end_with(parent: int) -> None:
    """Tell this program to stop once spark-submit is gone: without Spark it could only keep others from running."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)


def check_java() -> None:
    """Make sure that a Java which Spark can run on is found.

    Raises:
        OperatorError: None is installed, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = f"install a Java {_NEEDED_JAVA} runtime (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    advice += "macOS: brew install openjdk@17), or point JAVA_HOME at one"
    try:
        found = subprocess.run([java or "java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as exc:
        raise OperatorError("no Java found, and Spark runs on it", where=home or "PATH", do=advice) from exc
    version = re.search(r'version "(?:1\.)?(\d+)', found)
    if version is None or int(version.group(1)) < _NEEDED_JAVA:
        which = version.group(1) if version else "of an unknown version"
        raise OperatorError(f"Java {which} is too old for Spark", where=java or "", do=advice)


@contextmanager
def _keeping_interrupts() -> Iterator[None]:
    """Spark takes SIGINT over, to cancel jobs; what is being applied has to be finished first."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _without_noise() -> Iterator[None]:
    """Start the JVM inside with a standard error of its own, from which only what matters is passed on."""
    sys.stderr.flush()
    real = os.dup(2)
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.close(write_end)

    def pass_on() -> None:
        with os.fdopen(read_end, "rb") as lines, os.fdopen(real, "wb", buffering=0) as out:
            for line in lines:
                if not any(noise in line for noise in _NOISE):
                    out.write(line)

    threading.Thread(target=pass_on, name="jvm stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
