"""From one way of reading a database to another: both know its transactions by name, and neither knows positions of the
other.

The one that is left says which transactions are applied, and the one that takes over finds these among its own. Two
empty transactions of ours, one on either side of the point, show that it has read the database there without a hole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.history import Joined
from penstock.position import Scn


class Handover(Protocol):
    """What is left. Transactions are named as the database's own log names them."""

    @property
    def first(self) -> str:
        """A transaction that is applied, and was committed when the switch began."""

    @property
    def last(self) -> str:
        """A transaction that was committed behind every one that is applied."""

    def is_applied(self, txn: str) -> bool:
        """Whether a transaction is applied, or was committed before all that is not; raises ValueError for no name."""


@dataclass(frozen=True)
class TakenOver:
    """Where a process goes on in another source.

    Attributes:
        applied: Positions behind `joined.position` of transactions that are applied already, in order.
        copy: What the source calls the rows that its changes follow on: those that are at the target.
    """

    joined: Joined
    applied: Sequence[Scn]
    copy: str
