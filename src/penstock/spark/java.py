"""Spark's Java process, started by the command that `prepared` knows, and before anything of Spark is imported.

Java takes seconds until it can be spoken to, in which the program that needs it can get on with other things.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.spark import prepared, scratch, workers
from penstock.spark.prepared import Prepared
from penstock.spark.settings import DRIVER_OPTIONS, SparkSettings, settle

_NOISE = (b"Using incubator modules",)
"""What the JVM says on its standard error that nobody needs to read."""

_CONCERNS_JAVA = re.compile(rb"spark|xds")
"""What a pipeline file has in it that sets Spark's settings, or needs no Spark; elsewhere it costs only time."""

_PAUSE_S = 0.01
_SHELL = "pyspark-shell"
"""Has Java wait for a Python program to tell it what to do."""


class Java:
    """A Java process that begins to listen. It ends when this program does."""

    def __init__(self, process: subprocess.Popen[bytes], folders: str) -> None:
        """Take over a process that works in folders of its own; see `scratch.make_folders`."""
        self.folders = folders
        self.process = process
        self._is_kept = self._is_closed = False

    def connect(self) -> Mapping[str, str] | None:
        """Wait until it listens.

        Returns:
            The variables by which PySpark finds it; None where it ended instead.

        Raises:
            RuntimeError: It was closed meanwhile.
        """
        answer = _answer(self.folders)
        # Java writes the file under another name first.
        while not answer.exists():
            if self.process.poll() is not None:
                if self._is_closed:
                    raise RuntimeError("Java was ended before Spark had started")
                return None
            time.sleep(_PAUSE_S)
        told = answer.read_bytes()
        answer.unlink()
        port, length = (int.from_bytes(told[at : at + 4], "big") for at in (0, 4))
        return {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": told[8 : 8 + length].decode()}

    def fork_workers(self, be_daemon: Callable[[], None]) -> None:
        """Fork the process that its Python workers will be forked from; see `workers.fork`."""
        workers.fork(_workers(self.folders), be_daemon)

    def keep(self) -> None:
        """Have it end with this program, which is using Spark now, and not with `close`."""
        self._is_kept = True

    def close(self) -> None:
        """End it, unless it is kept; a start of Spark that is under way fails."""
        self._is_closed = True
        if not self._is_kept:
            self.process.kill()
            self.process.communicate()
            for folder in self.folders.split(","):
                shutil.rmtree(folder, ignore_errors=True)

    def end(self, timeout_s: float) -> None:
        """Let it end, which it does of its own accord.

        Raises:
            subprocess.TimeoutExpired: It did not in time, and was killed.
        """
        try:
            self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def begin(settings: SparkSettings, found: Prepared | None = None, options: Sequence[str] = ()) -> Java | None:
    """Begin to start Java; returns None where only Spark's own scripts can.

    Args:
        found: What to start it with, instead of what is in the cache.
        options: More of Java's own.
    """
    if not (settings.can_be_prepared and prepared.is_plain()):
        return None
    found = found or prepared.find()
    if found is None:
        return None
    folders = scratch.make_folders(settings.parents)
    arguments = settings.arguments(folders)
    pairs = [part for key, value in arguments.items() for part in ("--conf", f"{key}={value}")]
    command = found.command(arguments["spark.driver.memory"], [*options, *arguments[DRIVER_OPTIONS].split()])
    environment = {**found.environment, **settings.environment(folders)}
    environment |= {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(_answer(folders))}
    environment |= {workers.ADDRESS: _workers(folders)}
    with without_noise():
        process = subprocess.Popen(
            [*command, *pairs, _SHELL],
            stdin=subprocess.PIPE,
            env={"PYSPARK_PYTHON": sys.executable, **os.environ, **environment},
            umask=0o077,
            # An interrupt is for this program, which ends Java when it is done.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509, as PySpark does it
        )
    return Java(process, folders)


def begin_for(file: Path) -> Java | None:
    """Begin to start Java for a pipeline file that is not read yet, unless the file might have a say in how.

    What its process is started with is the same for every file that does not speak of Spark: the application's name and
    the master are told to it later.
    """
    try:
        # What comes through a pipe can be read only once, and is left to whoever reads the file.
        text = file.read_bytes() if file.is_file() else None
    except OSError:
        text = None
    has_java = "PYSPARK_GATEWAY_PORT" in os.environ
    if text is None or has_java or _CONCERNS_JAVA.search(text):
        return None
    return begin(settle("penstock", lanes=2, settings={}))


@contextmanager
def beginning(name: str, *, lanes: int, settings: Mapping[str, str]) -> Iterator[Java | None]:
    """Have Java start while the block runs, and end with it if the block came to not using it."""
    has_java = "PYSPARK_GATEWAY_PORT" in os.environ
    java = None if has_java else begin(settle(name, lanes=lanes, settings=settings))
    try:
        yield java
    finally:
        if java is not None:
            java.close()


@contextmanager
def without_noise() -> Iterator[None]:
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


def _answer(folders: str) -> Path:
    return Path(folders.split(",", maxsplit=1)[0], "answer")


def _workers(folders: str) -> str:
    return str(Path(folders.split(",", maxsplit=1)[0], "workers"))
