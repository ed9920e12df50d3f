"""Runs the `penstock` command in processes forked off one that has imported it already.

Importing takes a second and a half, and the tests run the command some hundred times. It is a process of its own all
the same, with its own environment, folder, streams and end. `python -m tests.forking` is the server; `run` asks it.

Spark's Java takes longer still, and is one for all runs of a server, which start their Spark in it as a program does
that spark-submit has started. Those that `program.Running` starts have one of their own.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from penstock import worker_daemon
from penstock.spark import workers

ROOT = Path(__file__).resolve().parent.parent


def run(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], timeout: float
) -> tuple[int, str, str]:
    """Run the command to its end; returns its exit code, and what it wrote to both streams.

    Raises:
        subprocess.TimeoutExpired: It did not end in time; it was killed.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-forked-") as streams:
        out, err = (Path(streams) / name for name in ("out", "err"))
        asked = {"arguments": [*arguments], "folder": str(folder), "environment": {**environment}}
        code = _server(os.getpid()).ask({**asked, "out": str(out), "err": str(err)}, timeout)
        return code, out.read_text(), err.read_text()


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Put a `penstock` into a folder, for a PATH, whose commands are forked off; not those that go on until killed.

    Its streams are the caller's: a terminal stays one.
    """
    python, address = sys.executable, str(folder / "address")
    (folder / "penstock").write_text(_INSTALLED.format(python=python, address=address))
    (folder / "penstock").chmod(0o755)
    with socketserver.ThreadingUnixStreamServer(address, _Asked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


_INSTALLED = """\
#!{python} -SE
import json, os, socket, sys

if sys.argv[1:2] in (["run"], ["web"]):
    os.execv({python!r}, [{python!r}, "-c", "from penstock.cli.main import main; main()", *sys.argv[1:]])
streams = {{name: f"/proc/{{os.getpid()}}/fd/{{number}}" for name, number in (("out", 1), ("err", 2))}}
asked = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ), **streams}}
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    server.sendall(json.dumps(asked).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.makefile().read()))
"""


class _Asked(socketserver.StreamRequestHandler):
    """Hands a command on to the server of this process, and its exit code back."""

    def handle(self) -> None:
        code = _server(os.getpid()).ask(json.loads(self.rfile.read()), timeout=300)
        self.wfile.write(str(code).encode())


class _Server:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()

    def ask(self, asked: Mapping[str, Any], timeout: float) -> int:
        with self._lock:
            pid = self._exchange(asked)
            killer = threading.Timer(timeout, os.kill, [pid, signal.SIGKILL])
            killer.start()
            try:
                code = self._exchange({})
            finally:
                killer.cancel()
        if killer.finished.is_set() and code == -signal.SIGKILL:
            raise subprocess.TimeoutExpired(asked["arguments"], timeout)
        return code

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _exchange(self, asked: Mapping[str, Any]) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        if asked:
            stdin.write(json.dumps(asked) + "\n")
            stdin.flush()
        return cast(int, json.loads(stdout.readline()))


@cache
def _server(_: int) -> _Server:
    """The server of this process."""
    from tests.program import plain_environment

    server = _Server(plain_environment())
    atexit.register(server.close)
    return server


def _serve() -> None:
    import penstock.wiring  # noqa: F401  (what every command needs)
    from penstock.cli.main import main

    java: _Java | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        needs_java = asked["arguments"][:1] == ["run"] and not _JAVAS & asked["environment"].keys()
        if needs_java:
            if java is None:
                # What a run's workers need, and what the first use of Spark's frames imports.
                worker_daemon.import_all()
                importlib.import_module("pyspark.testing")
                java = _Java()
            asked["environment"] |= java.environment
            java.fork_workers()
        pid = os.fork()
        if pid == 0:
            _become(asked)
            main()
            sys.exit()
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        if needs_java and java is not None:
            java.clear()
        print(os.waitstatus_to_exitcode(status), flush=True)


_JAVAS = {"JAVA_HOME", "SPARK_HOME"}
"""The variables of a command that is to have a Java of its own."""


class _Java:
    """Spark's Java process, which ends with this one."""

    def __init__(self) -> None:
        from pyspark import SparkConf
        from pyspark.java_gateway import launch_gateway

        logging = files("penstock.spark").joinpath("log4j2.properties")
        self._folder = tempfile.mkdtemp(prefix="penstock-java-")
        self._owner = os.getpid()
        atexit.register(self._remove)
        os.environ[workers.ADDRESS] = self._address = str(Path(self._folder, "workers"))
        options = f"-Dlog4j2.configurationFile={logging} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        settings = {"spark.master": "local[2]", "spark.driver.memory": "1g", "spark.driver.extraJavaOptions": options}
        gateway = launch_gateway(SparkConf(loadDefaults=False).setAll([*settings.items()]))
        told = gateway.java_parameters
        self.environment = {"PYSPARK_GATEWAY_PORT": str(told.port), "PYSPARK_GATEWAY_SECRET": told.auth_token}
        self._contexts = getattr(getattr(gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$")

    def fork_workers(self) -> None:
        """Fork what the next run's Python workers are forked from, as a run does that starts its Java itself."""
        Path(self._address).unlink(missing_ok=True)
        workers.fork(self._address, worker_daemon.run)

    def _remove(self) -> None:
        # Commands are forked with it, and end before.
        if os.getpid() == self._owner:
            shutil.rmtree(self._folder, ignore_errors=True)

    def clear(self) -> None:
        """Stop the Spark that a command has left behind, and workers that it did not need."""
        while workers._held:
            os.close(workers._held.pop())
        left = self._contexts.getActive()
        if left.isDefined():
            left.get().stop()


def _become(asked: Mapping[str, Any]) -> None:
    """Become the command that was asked for."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, stream in enumerate(
        [os.open(os.devnull, os.O_RDONLY), os.open(asked["out"], flags, 0o600), os.open(asked["err"], flags, 0o600)]
    ):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked["environment"])
    if os.isatty(1):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Where temporary files go is in the environment, too.
    tempfile.tempdir = None
    os.chdir(asked["folder"])
    sys.argv = ["penstock", *asked["arguments"]]


if __name__ == "__main__":
    _serve()
