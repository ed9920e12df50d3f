"""docs/first-hour.md is played: its files are written, its commands run in order, and what they print is in the page.

A fence says what becomes of it: `sql title="shop.sql"` is a file; `sh` is run in a terminal of 80 columns, and a
`text` fence behind it has what it prints; `sh {data-norun="why"}` is for people. `data-until="words"` has a command run
again until it prints these words.

`python -m scripts.reference.first_hour` plays it and docs/troubleshooting.md, and writes what came into both pages.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/first-hour.md"
FENCE = re.compile(r"^```(?P<language>\w+)(?P<more>[^\n]*)\n(?P<body>.*?)^```$", re.M | re.S)
WAIT_S = 180
# What differs from one time to the next.
VARYING = (
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.]*(Z|[+-]\d\d(:\d\d)?)?", "TIME"),
    # In a narrow column a time is broken into lines.
    (r"\d{4}-\d\d-\d\d|\d\d-\d\d \d\d:\d\d:\d\d|\bT?\d\d:\d\d:\d\d\b\.?|\b\d{6}\+\d\d:", "TIME"),
    (r"\d[\d,.]* ?(s|ms|min|h|MB|kB|GB|%)\b", "SIZE"),
    (r"\bin \d+ chunks?|\d+ chunks?", "CHUNKS"),
    (r"(?<=session )\d+|(?<=pg_terminate_backend\()\d+|(?<=R_penstock_shop_)\d+|(?<=time=)[\d.]+", "NUMBER"),
    (r"(low|high|position|transaction) +\d+|\(\d+ at the source", "NUMBER"),
)


@dataclass
class Fence:
    """A fenced block of the page.

    Attributes:
        start: Where its body begins in the page, and `end` where it ends.
        printed: What it printed, once it was run.
    """

    language: str
    more: str
    body: str
    start: int
    end: int
    printed: str = ""

    @property
    def title(self) -> str:
        """The file that it is; empty for none."""
        return self._attribute("title")

    @property
    def until(self) -> str:
        """The words that are waited for; empty for none."""
        return self._attribute("data-until")

    @property
    def not_run(self) -> str:
        """Why no test runs it; empty if one does."""
        return self._attribute("data-norun")

    @property
    def is_run(self) -> bool:
        """Whether it is a command that is run here."""
        return self.language == "sh" and not self.not_run

    def _attribute(self, name: str) -> str:
        found = re.search(rf'{name}="([^"]*)"', self.more)
        return found[1] if found else ""


@dataclass
class Terminal:
    """A folder and an environment in which commands run one after the other, as a person types them."""

    folder: Path
    environment: dict[str, str]
    groups: list[int] = field(default_factory=list)

    def play(self, fence: Fence) -> None:
        """Write a file, or run a command and keep what it prints."""
        if fence.title:
            (self.folder / fence.title).write_text(fence.body, encoding="utf-8")
        elif fence.is_run:
            for line in re.findall(r"^export (.+)$", fence.body, re.M):
                self.environment.update(word.split("=", 1) for word in shlex.split(line))
            end = time.monotonic() + WAIT_S
            fence.printed = self.run(fence.body)
            while fence.until not in fence.printed and time.monotonic() < end:
                time.sleep(0.2)
                fence.printed = self.run(fence.body)

    def close(self) -> None:
        """End what still runs in the background: the page ends it itself, unless it breaks off."""
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)

    def run(self, command: str) -> str:
        """What a command prints, from both of its streams."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
        process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,
        )
        os.close(theirs)
        self.groups.append(process.pid)
        printed = b""
        while (part := _read(ours)) is not None:
            printed += part
        process.wait()
        os.close(ours)
        return _plain(printed)


def fences(text: str) -> list[Fence]:
    """Every fenced block of a page, in order."""
    return [
        Fence(one["language"], one["more"], one["body"], one.start("body"), one.end("body"))
        for one in FENCE.finditer(text)
    ]


def outputs(found: list[Fence]) -> list[tuple[Fence, Fence]]:
    """Each command that is run with the block behind it that has what it prints."""
    return [(command, shown) for command, shown in pairwise(found) if command.is_run and shown.language == "text"]


def environment(programs: Path, port: int) -> dict[str, str]:
    """The environment of somebody whose server is at `port`, and who has just installed Penstock.

    Args:
        programs: The folder of psql and createdb.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), str(programs), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PG"))}
    server = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "postgres"}
    return kept | server | {"PATH": path, "TERM": "dumb", "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")}


def play(found: list[Fence], folder: Path, surroundings: Mapping[str, str]) -> None:
    """Play all blocks in order; each then has what it printed."""
    terminal = Terminal(folder, dict(surroundings))
    try:
        for fence in found:
            terminal.play(fence)
    finally:
        terminal.close()


def same(text: str) -> str:
    """A text without what differs from one time to the next."""
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    return " ".join(text.split())


def _read(terminal: int) -> bytes | None:
    """The next bytes; None once nobody writes any more, which Linux tells by an error."""
    try:
        return os.read(terminal, 65536) or None
    except OSError:
        return None


def _plain(printed: bytes) -> str:
    """What a person sees in the end: without colours, and of a line that changed its last state."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode(errors="replace")).replace("\r\n", "\n")
    # Where the page is played is nobody's business, and may be longer than the line has room for.
    text = re.sub(r"\s+\(pid\s+\d+\s+on\s+[^)]+\)", " (pid 4711 on db1)", text)
    lines = [line.rstrip().rpartition("\r")[2] for line in text.split("\n")]
    return "\n".join(lines).strip("\n") + "\n"


def main() -> None:
    """Play both pages on a server of its own, and write what was printed into them."""
    from scripts.reference import troubleshooting

    from penstock.demo.servers import EmbeddedPostgres

    for page, script in ((PAGE, fences), (troubleshooting.PAGE, troubleshooting.script)):
        text = page.read_text(encoding="utf-8")
        found = script(text)
        folder = Path(tempfile.mkdtemp(prefix="penstock-first-hour-"))
        with EmbeddedPostgres() as server:
            play(found, folder, environment(server.programs, server.port))
        shutil.rmtree(folder)
        for command, shown in reversed(outputs(found)):
            text = text[: shown.start] + command.printed + text[shown.end :]
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
