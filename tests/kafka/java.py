"""A Java program of the tests: its own process, which does not outlive the one that started it."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_LOGGING = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""
# They live for seconds: compiling thoroughly would cost more than it gains, and one thread collects the garbage.
_QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
_PR_SET_PDEATHSIG = 1
_PAUSE_S = 0.02


class JavaProgram:
    """A main class that runs until it is stopped or killed, and can be started again. It writes a log file."""

    def __init__(self, folder: Path, name: str, class_path: str, *, memory: str = "512m") -> None:
        """Describe the program; it is not running yet.

        Args:
            folder: Where its log goes, `<name>.log`, and its settings for logging.
            memory: What Java calls the size of the heap.
        """
        self.log = folder / f"{name}.log"
        self._logging = folder / "log4j2.properties"
        self._class_path = class_path
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *arguments: str, options: Sequence[str] = ()) -> None:
        """Start it, which does not wait until it is of any use.

        It is killed when the thread that called this ends, which in a test run is the main thread.
        """
        self._logging.write_text(_LOGGING)
        command = ["java", f"-Xmx{self._memory}", *_QUICK, f"-Dlog4j2.configurationFile={self._logging}", *options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", self._class_path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # An interrupt at the terminal is for the tests, which then stop it.
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509, nothing in the function takes a lock
            )

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float = 60) -> None:
        """Wait for something that the running program makes true.

        Raises:
            RuntimeError: It ended first; the message holds the end of its log.
            TimeoutError: It took too long; the same.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running:
                raise RuntimeError(f"{self.log.stem} ended:\n{self.end_of_log()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.log.stem} took longer than {timeout_s} s:\n{self.end_of_log()}")
            time.sleep(_PAUSE_S)

    def stop(self, timeout_s: float = 30) -> None:
        """Tell it to stop and wait until it has; kill it where it does not stop in time."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """Kill it as the kernel does when memory runs out: it finishes nothing."""
        self._end(signal.SIGKILL, 30)

    def suspend(self) -> None:
        """Let it hang: it keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `suspend`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def end_of_log(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _end(self, with_signal: signal.Signals, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(with_signal)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
