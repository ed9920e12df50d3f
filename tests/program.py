"""The `penstock` command as a user runs it: a program of its own, told to stop, or killed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests import forking
from tests.lab import FILE

PREPARED = "PENSTOCK_TESTS_PREPARED"
"""The variable that names a folder for it, which the first process of the tests makes and removes."""

COMMAND = [sys.executable, "-c", "from penstock.cli.main import main; main()"]


@cache
def prepared_start() -> str:
    """The folder in which the start of Spark is prepared, once for all programs of all processes of these tests.

    As it is for every run of a user's but the first. What no test waits for is half of what most tests would take.
    """
    folder = os.environ[PREPARED]
    environment = plain_environment() | {"PENSTOCK_CACHE": folder}
    with Path(folder, "tests").open("w") as lock:
        # Whoever comes second finds it made.
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, "-m", "penstock.spark.prepare", "--now"], env=environment, check=True)
    return folder


def plain_environment() -> dict[str, str]:
    """The environment without what Spark has left in it in this process."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Program:
    """`penstock`, with a pipeline file and an environment of its own."""

    def __init__(
        self,
        folder: Path,
        source_url: str,
        target_url: str,
        *,
        name: str,
        row_triggers: Sequence[str] = (),
        **apply: object,
    ) -> None:
        self.folder = folder
        self.environment = {"SHOP_URL": source_url, "COPY_URL": target_url, "PENSTOCK_CACHE": prepared_start()}
        text = FILE.format(name=name, tables=["public.*"], row_triggers=json.dumps(row_triggers))
        text += "".join(f"  {key}: {value}\n" for key, value in apply.items())
        (folder / "pipeline.yaml").write_text(text)

    def __call__(
        self, *arguments: str, env: Mapping[str, str] = {}, timeout: float = 400, command: Sequence[str] = COMMAND
    ) -> Done:
        environment = plain_environment() | self.environment | env
        if command is COMMAND:
            return Done(*forking.run(arguments, folder=self.folder, environment=environment, timeout=timeout))
        done = subprocess.run(
            [*command, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str, command: Sequence[str] = COMMAND) -> Running:
        return Running([*command, *arguments], self.folder, plain_environment() | self.environment)


class Running:
    """A run in the background, in a process group of its own."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._output = folder / f"output-{time.monotonic_ns()}"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()

    @property
    def said(self) -> str:
        return self._output.read_text()

    @property
    def pid(self) -> int:
        """Process id of the driver, which is also that of its process group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def await_line(self, text: str, seconds: float = 300) -> None:
        await_true(lambda: text in self.said or not self.is_alive, seconds, lambda: self.said)
        assert text in self.said, self.said

    def end(self, number: int = signal.SIGTERM, seconds: float = 120) -> int:
        """Tell it to stop, and wait until it has."""
        self._process.send_signal(number)
        return self._process.wait(seconds)

    def wait(self, seconds: float = 300) -> int:
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Kill the whole process group: driver, JVM, Python workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def await_true(is_true: Callable[[], bool], seconds: float = 180, tell: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"did not come true in {seconds} s {tell()}"
        time.sleep(0.05)
