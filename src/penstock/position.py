"""Positions: where one source's stream stands.

A position is the `commit_scn` of a transaction, an integer that only grows inside one source and means nothing
in another. "At 4711" is always *after* transaction 4711: a reader that starts there delivers what follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

Scn = NewType("Scn", int)

START = Scn(0)
"""Before the first transaction a source ever delivered."""


@dataclass(frozen=True)
class Limit:
    """How much a reader takes at a time.

    Attributes:
        large_changes: A transaction of more changes is large: it comes alone, and whole, whatever the other limits.
        large_bytes: The same for one of larger images.
        until: No further than this position; whoever asks a source for a slice sees to it.
    """

    max_transactions: int = 500_000
    max_changes: int = 1_000_000
    max_bytes: int = 256 * 1024 * 1024
    large_changes: int = 200_000
    large_bytes: int = 64 * 1024 * 1024
    until: Scn | None = None


_NO_LIMIT = 2**62

EVERYTHING = Limit(_NO_LIMIT, _NO_LIMIT, _NO_LIMIT, _NO_LIMIT, _NO_LIMIT)
"""All at once, and none of it by itself."""


@dataclass(frozen=True)
class Anchor:
    """A cut of the log, by which its history is recognised.

    Attributes:
        scn: Where it cuts.
        mark: Drawn at random when the cut was made, so another history has another one, or none, at this position.
    """

    scn: Scn
    mark: str
