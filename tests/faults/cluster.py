"""A Spark standalone cluster on the loopback interface: a master and two workers, from the pip package."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pyspark

SPARK = Path(pyspark.__file__).parent

QUICK_TO_NOTICE = {
    "spark.executor.memory": "512m",
    # After so long an executor that says nothing counts as lost.
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
}


class Cluster:
    """Starts with the block, and ends with it."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port, self._web = _free_port(), _free_port()

    def __enter__(self) -> Cluster:
        self._start(
            "master", "master.Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._web)
        )
        for number in range(self._workers):
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", str(_free_port())]
            self._start(
                f"worker{number}",
                "worker.Worker",
                *options,
                "--work-dir",
                str(self._folder / f"work{number}"),
                self.url,
            )
        deadline = time.monotonic() + 60
        while self._alive() < self._workers:
            if time.monotonic() > deadline:
                self._end()
                raise AssertionError("the workers did not find their master")
            time.sleep(0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs, each with its Python workers below it."""
        found = []
        for process in self._processes:
            for child in psutil.Process(process.pid).children(recursive=True):
                # Some end while we look.
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                        found.append(child)
        return found

    def applications(self) -> list[str]:
        """Names of the applications that have ended, the last one first."""
        return [application["name"] for application in self._ask()["completedapps"]]

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        environment = os.environ | {
            "SPARK_HOME": str(SPARK),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_NO_DAEMONIZE": "1",
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *arguments],
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )

    def _end(self) -> None:
        for process in self._processes:
            for child in psutil.Process(process.pid).children(recursive=True):
                # Some end by themselves meanwhile.
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()
            process.wait()

    def _alive(self) -> int:
        try:
            return sum(worker["state"] == "ALIVE" for worker in self._ask()["workers"])
        except (OSError, json.JSONDecodeError):
            # It does not listen yet, or has nothing but its page yet.
            return 0

    def _ask(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/") as answer:
            return json.load(answer)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
