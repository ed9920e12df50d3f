"""What inputs of `tests.fuzz.histories` have in common that are files in a folder."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock import change as c
from penstock.change import Op
from penstock.errors import PenstockError
from penstock.history import CaptureOrigin, Consumer, History
from penstock.position import START, Anchor
from tests.fuzz.history import Input, Piece, Refused
from tests.sources.test_debezium_tracker import EVERYTHING


class Recording(Input):
    """Files in a folder, each written once, which a recorded source reads."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self._made = TemporaryDirectory(prefix="penstock-history-")
        self.folder = Path(self._made.name)
        self.position = START
        self.origin: CaptureOrigin | None = None
        self.anchor: Anchor | None = None
        self.written: list[Piece] = []

    @abstractmethod
    def side(self) -> Any:
        """What reads the folder, made anew for each run."""

    @abstractmethod
    def value(self, row: Mapping[str, Any]) -> str:
        """The value that a change of the stream carries."""

    def write(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            path = self.folder / piece.where
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.read_bytes() != piece.content:
                self.overwritten |= {piece.of, *(one.of for one in self.written if one.where == piece.where)}
            path.write_bytes(piece.content)
            self.written.append(piece)

    def damages(self) -> Mapping[str, Callable[[random.Random], Sequence[Piece]]]:
        return {"take the last files away": self._cut, "take a file away": self._hole, "change a file": self._change}

    def _cut(self, chance: random.Random) -> Sequence[Piece]:
        names = list(dict.fromkeys(piece.where for piece in self.written))
        return self._without(names[-chance.randint(1, 3) :])

    def _hole(self, chance: random.Random) -> Sequence[Piece]:
        return self._without([chance.choice(self.written).where])

    def _change(self, chance: random.Random) -> Sequence[Piece]:
        piece = chance.choice(self.written)
        (self.folder / piece.where).write_bytes(b"")
        self.overwritten |= {one.of for one in self.written if one.where == piece.where}
        return self.written

    def _without(self, names: Sequence[str]) -> Sequence[Piece]:
        for name in names:
            (self.folder / name).unlink()
        self.written = [piece for piece in self.written if piece.where not in names]
        return self.written

    def run(self) -> tuple[Sequence[Sequence[str]], bool]:
        found: list[Sequence[str]] = []
        try:
            side = self.side()
            source = side.open_source()
            source.open()
            history = History(Consumer("c", "shop"), self.origin, self.position, self.anchor, None, self.origin is None)
            joined = source.join(history)
            self.origin, self.position, self.anchor = joined.origin, joined.position, joined.anchor
            while (part := source.next_slice(self.position, EVERYTHING)) is not None:
                versions = source.tables()
                follows = [version.table.name for version in versions]
                reader = side.access.reader("shop", versions, follows=follows)
                reader.open()
                rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
                found += self._taken(rows)
                self.position, self.anchor = part.end, part.anchor
            at_end = bool(self.position >= source.tick())
        except PenstockError as exc:
            raise Refused(found, exc) from exc
        return found, at_end

    def _taken(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[str]]:
        taken: dict[int, list[str]] = {}
        for row in rows:
            if row[c.OP] == Op.GAP:
                self.named.add(self.number_of(row))
            else:
                taken.setdefault(row[c.COMMIT_SCN], []).append(self.value(row))
        return list(taken.values())

    def number_of(self, row: Mapping[str, Any]) -> int:
        """The number of the transaction that a change is of."""
        raise NotImplementedError

    def close(self) -> None:
        self._made.cleanup()
