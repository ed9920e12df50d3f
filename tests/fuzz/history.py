"""What a history is made of, and where it is written to and read."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PenstockError

Key = tuple[str, int]
"""A transaction: the server that committed it, and its number there."""


@dataclass(frozen=True)
class Piece:
    """What is written at once: a record, a file, a row. It carries one or more values of its transaction, or none."""

    of: Key
    number: int
    where: str
    content: Any = field(repr=False)
    values: tuple[str, ...] = ()


@dataclass
class Result:
    """What became of histories, and what is wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def report(self) -> str:
        counts = ", ".join(f"{number:,} {what}" for what, number in sorted(self.outcomes.items()))
        return "\n".join([counts, *self.wrong[:20], f"{len(self.wrong)} wrong"])


class Input(ABC):
    """What pieces are written to, and what reads it: runs of one pipeline, one after the other."""

    has_ends = True
    """Whether a transaction that lacks a piece can be told from a whole one."""

    tells_forks = True
    """Whether anything tells that another server goes on where its first piece is missing or comes late."""

    waits_for_ends = False
    """Whether a transaction whose last piece has not come is held back, where `has_ends` is off."""

    says_order = True
    """Whether anything but the order of what is there says in which order transactions were committed."""

    def __init__(self) -> None:
        """Write nothing yet."""
        # The numbers of transactions that a run has said it puts aside.
        self.named: set[int] = set()
        # Of which something was overwritten, or has overwritten something.
        self.overwritten: set[Key] = set()

    @abstractmethod
    def transaction(self, server: str, number: int, place: int, values: Sequence[str]) -> Sequence[Piece]:
        """The pieces of a transaction as a server writes them. Servers give out the same numbers and places."""

    @abstractmethod
    def write(self, pieces: Sequence[Piece]) -> None:
        """Put pieces behind what is there."""

    @abstractmethod
    def run(self) -> tuple[Sequence[Sequence[str]], bool]:
        """Read on to the end; returns the values of each transaction, and whether the run says that this is the end.

        Raises:
            PenstockError: The input is refused. What was read before counts.
        """

    def spoiled(self, piece: Piece, chance: random.Random) -> Piece:
        """The piece with something else in the place of what numbers it."""
        return piece

    def damages(self) -> Mapping[str, Callable[[random.Random], Sequence[Piece]]]:
        """What may happen to what was written, by name; each returns what is there afterwards."""
        return {}

    def close(self) -> None:  # noqa: B027 - most leave nothing behind
        """Remove what was written."""


class Refused(Exception):
    """A run was refused; with what it had read."""

    def __init__(self, read: Sequence[Sequence[str]], why: PenstockError) -> None:
        super().__init__(str(why))
        self.read, self.why = read, why
