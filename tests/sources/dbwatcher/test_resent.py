"""Whatever a watcher sends again, and however it cuts transactions into messages, each one is read once and whole."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.dbwatcher.messages import CONTENT, CREATE, OPEN, message
from tests.sources.dbwatcher.test_source import Folder, insert, put_in, read

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


class Watcher:
    """Sends transactions in order; one that dies sends from the first on that nobody has acknowledged."""

    def __init__(self, rows: Sequence[int], draw: st.DataObject) -> None:
        self._draw = draw
        first = [sum(rows[:n]) for n in range(len(rows))]
        self.transactions = [list(range(a + 1, a + 1 + size)) for a, size in zip(first, rows, strict=True)]
        self._acknowledged = 0
        self.sent: list[str] = []

    def work(self, *, dies: bool) -> None:
        messages = []
        for number in range(self._acknowledged, len(self.transactions)):
            messages += [(number, *one) for one in self._messages(number)]
        if dies:
            messages = messages[: self._draw.draw(st.integers(0, len(messages)))]
        self.sent += [text for _, _, text in messages]
        whole = [number for number, is_end, _ in messages if is_end]
        self._acknowledged += self._draw.draw(st.integers(0, len(whole)))

    def _messages(self, number: int) -> list[tuple[bool, str]]:
        left, found = self.transactions[number], list[tuple[bool, str]]()
        while left:
            size = self._draw.draw(st.integers(1, len(left)))
            rows, left = left[:size], left[size:]
            text = [put_in(key, key, f"x{number}") for key in rows]
            found.append((not left, message(f"x{number}", *text, desc=OPEN if left else "")))
        return found


@settings(deadline=None, max_examples=60)
@given(rows=sizes, deaths=st.integers(0, 4), draw=st.data())
def test_each_transaction_is_read_once_and_whole(rows: Sequence[int], deaths: int, draw: st.DataObject) -> None:
    watcher = Watcher(rows, draw)
    for _ in range(deaths):
        watcher.work(dies=True)
    watcher.work(dies=False)

    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path), CREATE, *watcher.sent)

        assert read(folder.open()) == [[insert(key) for key in keys] for keys in watcher.transactions]


def test_a_cancelled_initial_update_is_told_once_and_the_next_one_is_read_whole(tmp_path: Path) -> None:
    cancelled = CONTENT.format(counter=9, rows="").replace("_createCounter'>9", "_initialUpdate'>CANCELLED")
    content = CONTENT.format(counter=1, rows=put_in(1, 1, "0.1"))
    # The same position, and so the same keys, in another transaction.
    again = [text.replace("0.1", "0.2") for text in (CREATE, content)]

    folder = Folder(tmp_path, CREATE, content, cancelled, CREATE, content, cancelled, *again)
    (first, told, empties, second) = read(folder.open())

    assert (first, second) == ([insert(1)], [insert(1)])
    ((op, before, _),) = told
    assert op == "gap"
    assert "initial update of table public.t was cancelled" in before["reason"]
    assert [op for op, *_ in empties] == ["truncate"]
