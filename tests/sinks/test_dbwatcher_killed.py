"""A program that publishes DbWatcher messages to files is killed at boundaries and at random, and another one reads."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.change import TableName
from penstock.formats.dbwatcher.reader import read_message
from penstock.position import Anchor, Scn
from penstock.schema import Column, Dictionary, TableSchema
from penstock.sinks.dbwatcher.encoder import MessageFormat, MessageSettings
from penstock.sinks.dbwatcher.folder import MessageFolder
from penstock.sinks.events import task
from penstock.sinks.events.publisher import begin_run, make_position
from penstock.sinks.events.task import EventTask
from penstock.storage import LocalStorage
from penstock.stream import Slice
from tests.archives import stream, transaction
from tests.contracts.outputs import messages_in

LAST = 400
"""The position of the last transaction; every one that is divisible by 7 is missing."""


def size(position: int) -> int:
    return 300 if position % 100 == 0 else position % 5 + 1


WANTED = [(scn, size(scn)) for scn in range(1, LAST + 1) if scn % 7]

COLUMNS = (Column("id", "integer", "integer", is_nullable=False), Column("name", "text", "text"))
ITEM = TableSchema(TableName("public", "item"), COLUMNS, version=1)


class Made:
    """A reader of transactions that are made up, the same ones on every read."""

    leaves_out = False

    def open(self) -> None:
        """Nothing is opened."""

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        yield stream(*(transaction(int(scn), size(int(scn))) for scn in part.commit_scns))


def publish_on(path: Path) -> None:
    """Go on where the folder says, as a run does, with a few transactions to a file."""
    task._AT_ONCE_CHANGES = 40
    folder = MessageFolder(LocalStorage(path), "shop")
    began = begin_run(folder, "shop")
    state, token = began.published_state, began.token
    records = MessageFormat(MessageSettings("t")).encoder(Dictionary([ITEM]), {})
    publishing = EventTask(folder, state.epoch, records)
    print("begun", flush=True)
    while state.position < LAST:
        after, end = state.position, min(LAST, state.position + random.randint(1, 60))
        scns = np.array([scn for scn in range(after + 1, end + 1) if scn % 7], np.int64)
        sizes, zeros = np.array([size(int(scn)) for scn in scns], np.int64), np.zeros(len(scns), np.int64)
        part = Slice(after, Scn(end), scns, sizes, zeros, zeros, cut=Anchor(Scn(end), f"m{end}"))
        done = publishing.publish(part, Made(), token)
        state, token = done.published_state, done.token


def dying(do: Callable[..., Any], turn: int, *, before: bool) -> Callable[..., Any]:
    """The same, but the program is killed at its n-th call."""
    calls = count(1)

    def called(*args: Any, **kwargs: Any) -> Any:
        number = next(calls)
        if before and number == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        found = do(*args, **kwargs)
        if number == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return called


POINTS = {
    "between two messages": (MessageFolder, "record", 77, True),
    "before the position": (MessageFolder, "end", 5, True),
    "before the file appears": (LocalStorage, "create", 5, True),
    "after the file has appeared": (LocalStorage, "create", 5, False),
}


def read_on(path: Path) -> list[tuple[int, int]]:
    """Check all that is there; returns the positions of the transactions and their sizes."""
    messages = [message for body in messages_in(path) if (message := read_message(body)).rows]
    found = [(int(message.rows[0].attributes["replKey"]) >> 26, len(message.rows)) for message in messages]
    assert found == WANTED[: len(found)], "lost, doubled, torn or in another order"
    numbers = [message.head.attributes["_MESSAGE_SEQ"] for message in messages]
    assert numbers == [str(number) for number in range(1, len(messages) + 1)]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_position(MessageFolder(LocalStorage(tmp_path), "shop"), "shop")
    return tmp_path


def program(path: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", __name__, str(path), *arguments]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_a_boundary_loses_doubles_and_tears_nothing(folder: Path, point: str) -> None:
    killed = subprocess.run(
        program(folder, point), cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(read_on(folder)) < len(WANTED)

    publish_on(folder)

    assert read_on(folder) == WANTED
    state = MessageFolder(LocalStorage(folder), "shop").published_state()
    assert (state.transactions, state.changes, state.records) == (
        len(WANTED),
        sum(changes for _, changes in WANTED),
        len(WANTED),
    )


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.soak)])
def test_kills_at_random_lose_double_and_tear_nothing(folder: Path, kills: int) -> None:
    drawn = random.Random()
    for _ in range(kills):
        with subprocess.Popen(program(folder), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as run:
            assert run.stdout is not None
            run.stdout.readline()
            time.sleep(drawn.uniform(0, 0.2))
            run.kill()
        read_on(folder)

    publish_on(folder)

    assert read_on(folder) == WANTED


if __name__ == "__main__":
    if len(sys.argv) > 2:
        kind, name, turn, is_before = POINTS[sys.argv[2]]
        setattr(kind, name, dying(getattr(kind, name), turn, before=is_before))
    publish_on(Path(sys.argv[1]))
