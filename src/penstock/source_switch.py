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


@dataclass(frozen=True)
class Mark:
    """An empty transaction of ours.

    Names are taken again and again, and by every database: so it says where in the log it was committed, too.

    Attributes:
        txn: Its name, as the database's log has it.
        after, upto: Positions of the log that its commit lies between.
    """

    txn: str
    after: int
    upto: int

    def is_told(self, txn: str, place: int | None) -> bool:
        """Whether it was committed under this name, at this place of the log; None where no place is told."""
        return txn == self.txn and (place is None or self.after <= place <= self.upto)


class SwitchSource(Protocol):
    """What is left. Transactions are named as the database's own log names them."""

    @property
    def first(self) -> Mark:
        """A transaction that is applied, and was committed when the switch began."""

    @property
    def last(self) -> Mark:
        """A transaction that was committed behind every one that is applied."""

    def is_applied(self, txn: str) -> bool:
        """Whether a transaction is applied, or was committed before all that is not; raises ValueError for no name."""


@dataclass(frozen=True)
class SwitchPosition:
    """Where a process goes on in another source.

    Attributes:
        applied: Positions behind `joined.position` of transactions that are applied already, in order.
        copy: What the source calls the rows that its changes follow on: those that are at the target.
    """

    joined: Joined
    applied: Sequence[Scn]
    copy: str
