"""DbWatcher's messages as inputs of `tests.fuzz.histories`: files of a folder, with numbers or, as of old, without."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock import change as c
from penstock.sources.dbwatcher.folder import FolderMessages
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.source import MessageConnector, Messages
from penstock.storage import LocalStorage
from tests.fuzz.history import Piece
from tests.fuzz.history_files import Recording
from tests.sources.dbwatcher.messages import CREATE, OPEN, cols, message, row


class Watched(Recording):
    """Messages, each of which is a file. Another watcher goes on with the numbers that the first one had then."""

    tells_forks = False

    def __init__(self, chance: random.Random, *, is_numbered: bool = True) -> None:
        super().__init__(chance)
        self.is_numbered = self.has_ends = is_numbered
        self.waits_for_ends = True
        # Without numbers nothing tells that a message did not come, or came before another one.
        self.says_order = is_numbered
        self.files = 0
        self.reached: dict[int, int] = {0: 0}
        self.last: dict[str, int] = {}
        self._put(CREATE.encode())

    def transaction(self, server: str, number: int, place: int, values: Sequence[str]) -> Sequence[Piece]:
        if server not in self.last:
            self.last[server] = self.reached.get(number - 1, number * 2)
        parts = self._cut_up(values)
        if self.is_numbered and self.chance.random() < 0.2:
            # It ends with a message that has no row; nothing but its number says where that belongs.
            parts.append([])
        pieces = []
        for order, part in enumerate(parts):
            self.last[server] += 1
            rows = [put_in(one, number, values.index(one)) for one in part]
            desc = OPEN if order < len(parts) - 1 else ""
            if self.is_numbered:
                desc += f"<attr name='_MESSAGE_SEQ'>{self.last[server]}</attr>"
            content = message(f"x{number}", *rows, desc=desc).encode()
            pieces.append(Piece((server, number), order, "", content, tuple(part)))
        if server == "a":
            self.reached[number] = self.last[server]
        return pieces

    def _cut_up(self, values: Sequence[str]) -> list[Sequence[str]]:
        parts: list[Sequence[str]] = []
        while values:
            size = self.chance.randint(1, len(values))
            parts, values = [*parts, values[:size]], values[size:]
        return parts

    def write(self, pieces: Sequence[Piece]) -> None:
        """Add a file for each piece."""
        for piece in pieces:
            self.written.append(replace(piece, where=self._put(piece.content)))

    def _put(self, content: bytes) -> str:
        self.files += 1
        name = f"{self.files:06}.xml"
        (self.folder / name).write_bytes(content)
        return name

    def spoiled(self, piece: Piece, chance: random.Random) -> Piece:
        content: bytes = piece.content
        match chance.choice(["cut", "double", "number"]):
            case "cut":
                return replace(piece, content=content[: chance.randrange(len(content))])
            case "double":
                return replace(piece, content=content + b"\n" + content)
            case _:
                begin, _, rest = content.partition(b"_MESSAGE_SEQ'>")
                number, end, tail = rest.partition(b"<")
                if not end:
                    return piece
                other = b"%d" % (int(number) + chance.choice([-1, 1, 7]))
                return replace(piece, content=b"".join((begin, b"_MESSAGE_SEQ'>", other, end, tail)))

    def damages(self) -> Mapping[str, Callable[[random.Random], Sequence[Piece]]]:
        more = {
            "rename a file": self._rename,
            "put a file back below": self._below,
            "restore the folder": self._restore,
        }
        return {**super().damages(), **more}

    def _rename(self, chance: random.Random) -> Sequence[Piece]:
        name = chance.choice(self.written).where
        (self.folder / name).rename(self.folder / name.replace(".", f"{chance.choice('ab')}."))
        return self.written

    def _below(self, chance: random.Random) -> Sequence[Piece]:
        name = chance.choice(self.written).where
        (self.folder / name.replace(".", "x.")).write_bytes((self.folder / name).read_bytes())
        return self.written

    def _restore(self, chance: random.Random) -> Sequence[Piece]:
        """The folder is as it was some files ago, and goes on from there."""
        kept = self._cut(chance)
        self.files = max((int(piece.where[:6]) for piece in kept), default=1)
        return kept

    def side(self) -> Any:
        return MessageConnector(Messages(FolderMessages(LocalStorage(self.folder)), ["public.*"], Reading()))

    def value(self, row: Mapping[str, Any]) -> str:
        return str(json.loads(row[c.AFTER])["name"])


def put_in(value: str, number: int, order: int) -> str:
    return row("INSERT", cols(id=str(number * 10 + order), name=value), number * 1000 + order, f"x{number}")
