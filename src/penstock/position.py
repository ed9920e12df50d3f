"""Positions: where one source's stream stands.

A position is the `commit_scn` of a transaction, an integer that only grows inside one source and means nothing
in another. "At 4711" is always *after* transaction 4711: a reader that starts there delivers 4712 next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

Scn = NewType("Scn", int)

START = Scn(0)
"""Before the first transaction a source ever delivered."""


@dataclass(frozen=True)
class Limit:
    """How much a reader takes at a time. A transaction that is larger by itself comes alone, whole."""

    max_transactions: int = 50_000
    max_changes: int = 200_000
    max_bytes: int = 64 * 1024 * 1024
