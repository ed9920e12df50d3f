"""Starting Spark, with settings that suit small batches of Arrow data."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import OperatorError
from penstock.spark import prepared, scratch
from penstock.spark.java import Java, begin, without_noise
from penstock.spark.java_version import check_java
from penstock.spark.settings import DRIVER_OPTIONS, SparkSettings, settle


def start_session(name: str, *, lanes: int, settings: Mapping[str, str] = {}, java: Java | None = None) -> SparkSession:
    """Start Spark as `start_context` does, with a session."""
    start_context(name, lanes=lanes, settings=settings, java=java)
    if java is not None:
        java.keep()
    return make_session(settings)


def make_session(settings: Mapping[str, str] = {}) -> SparkSession:
    """Make the session on a context that was started, or give the one that is there these settings of frames."""
    builder = SparkSession.builder
    for key, value in settle("", lanes=1, settings=settings).all.items():
        if key.startswith("spark.sql."):
            builder = builder.config(key, value)
    return builder.getOrCreate()


def start_context(name: str, *, lanes: int, settings: Mapping[str, str] = {}, java: Java | None = None) -> SparkContext:
    """Start Spark: on this machine, unless the settings, spark-submit or the environment's MASTER name a cluster.

    Args:
        name: Application name.
        lanes: Tasks that should run side by side on this machine.
        settings: Spark's own settings. They win over what spark-submit was given, and that over ours.
        java: The process to use, if one was begun for the same name, lanes and settings.

    Raises:
        OperatorError: There is no Java that Spark can run on, or Spark refuses the settings or finds no master.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = _submitted()
    settled = settle(name, lanes=lanes, settings=settings, submitted=submitted)
    # What was begun has its standard error filtered already, and this may be another thread than the one that says
    # there what went wrong.
    with nullcontext() if java else without_noise(), _keeping_interrupts(), _told_in_one_line(settled.master):
        conf = dict(settled.all)
        if SparkContext._gateway is None:
            _start_java(settled, java or begin(settled))
            # It belongs to that process.
            del conf[DRIVER_OPTIONS]
        elif submitted and settled.is_local:
            conf["spark.local.dir"] = _kept_by_java(scratch.make_folders(settled.parents))
        return SparkContext.getOrCreate(SparkConf().setAll([*conf.items()]))


def _start_java(settings: SparkSettings, java: Java | None) -> None:
    """Start Spark's Java process, if none was begun, or that one ended."""
    found = java.connect() if java is not None else None
    if java is not None and found is not None:
        with scratch.private_files(found):
            SparkContext._ensure_initialized()
        assert SparkContext._gateway is not None
        # Java ends when nothing refers to its process any more.
        SparkContext._gateway.proc = java.process
        _kept_by_java(java.folders)
        return
    check_java()
    if java is not None:
        java.close()
    elif settings.can_be_prepared:
        prepared.have_made()
    folders = scratch.make_folders(settings.parents)
    start = SparkConf(loadDefaults=False).setAll([*settings.arguments(folders).items()])
    with scratch.private_files(settings.environment(folders)):
        SparkContext._ensure_initialized(conf=start)
    _kept_by_java(folders)


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


@contextmanager
def _told_in_one_line(master: str) -> Iterator[None]:
    """Say why Spark does not start; what else there is to know of it stands in Spark's own log."""
    try:
        yield
    except (Py4JError, PySparkException) as exc:
        raise OperatorError(
            f"Spark does not start: {_reason(exc)}",
            where=f"master {master}",
            do="correct `--master`, or the section `spark` of the pipeline file, or start the cluster",
        ) from exc


def _reason(error: Py4JError | PySparkException) -> str:
    if not isinstance(error, Py4JJavaError):
        return "its Java process ended, and what it said stands above"
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    message = str(cause.getMessage()).strip().partition("\n")[0]
    if "stopped SparkContext" in message:
        # Spark gives up in another thread, and what began meanwhile only finds that it did.
        return "no master answers, or it has no place for this application"
    return f"{cause.getClass().getSimpleName()}: {message}"


@contextmanager
def _keeping_interrupts() -> Iterator[None]:
    """Spark takes SIGINT over, to cancel jobs; what is being applied has to be finished first."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
