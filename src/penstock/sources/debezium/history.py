"""The history of a connector's events: what a position carries to prove it, and the errors where it is another one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Self

from penstock.errors import MalformedInputError
from penstock.history import HistoryError

ANEW = (
    "have the connector begin with a new snapshot, in topics that are empty or under another prefix; then `penstock"
    " resync --all` prepares a new first copy"
)
"""The way out where what was read contradicts itself: reading it once more would meet the same contradiction."""


@dataclass(frozen=True)
class Proof:
    """What the mark of a position holds: that which is read behind it is of the history that was read before it.

    Attributes:
        transactions: The id of the transaction topic; empty without one.
        read: What tells all that is read from anything else of its names, see `RecordLog.proof`.
        server: The connector, its name and the database, as events say it; empty before one did.
        rows: Rows of a snapshot that no transaction took along are applied at this position.
        left_out: The newest transactions that were left out on request, of which events may still come.
        last: Where no END counts them, how many events the transaction at the position had.
        names: Its name; several, where transactions share a position.
        copied: Of a first copy, by topic and number of the partition: below which offset it has all rows.
    """

    transactions: str = ""
    read: Mapping[str, str] = field(default_factory=dict)
    server: str = ""
    rows: int | None = None
    left_out: Sequence[str] = ()
    last: int = 0
    names: Sequence[str] = ()
    copied: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The proof as a mark; empty where it holds nothing."""
        held = {name: value for name, value in vars(self).items() if value}
        return json.dumps(held, sort_keys=True, separators=(",", ":")) if held else ""

    @classmethod
    def of(cls, mark: str) -> Self:
        """Read a mark; that of an earlier version is the id of the transaction topic alone."""
        if not mark.startswith("{"):
            return cls(mark)
        held = json.loads(mark)
        return cls(**{one.name: held[one.name] for one in fields(cls) if one.name in held})

    @property
    def is_of_earlier_version(self) -> bool:
        """Whether it says nothing of what was read."""
        return not self.read and not self.server


OTHER = "the source was reset, restored or failed over, or events of two connectors are mixed"
"""What has happened where events contradict those before them."""


def reused(txn: str, what: str, *, where: str) -> HistoryError:
    """The error for a transaction whose name was used before; `what` says how the two differ."""
    return HistoryError(f"transaction {txn} has the name of an earlier one, and {what}: {OTHER}", where=where, do=ANEW)


def differs(*, where: str) -> MalformedInputError:
    """The error for two events that cannot both be what they say."""
    what = f"two different changes have the same place in the same transaction: {OTHER}"
    return MalformedInputError(what, where=where, do=ANEW)


def again_at_once(table: str, *, where: str) -> HistoryError:
    """The error for a first snapshot that was begun again before anything had changed, over several partitions."""
    return HistoryError(
        f"the connector began its first snapshot twice at one place of the source's log, and rows of {table} lie in"
        " several partitions: those of the two attempts cannot be told apart",
        where=where,
        do=ANEW,
    )


def begun_before(table: str, *, where: str) -> HistoryError:
    """The error for a first snapshot that was begun again, and lies before the attempt that was given up."""
    return HistoryError(
        f"the connector began its first snapshot again, and its rows of {table} lie before those of the attempt before"
        f" it in the source's log: {OTHER}",
        where=where,
        do=ANEW,
    )


def made_twice(table: str, *, where: str) -> HistoryError:
    """The error for a table that is in two snapshots before it was copied."""
    return HistoryError(
        f"the connector has made two snapshots of {table} before its first copy: which rows of the first one were"
        " deleted in between is not known",
        where=where,
        do=ANEW,
    )


def other_server(known: str, found: str, *, where: str) -> HistoryError:
    """The error for events of another connector or database than those before them."""
    return HistoryError(
        f"an event is of {found}, and those before it are of {known}: their positions cannot be compared",
        where=where,
        do=f"have each connector write to topics of its own; where the source was moved, {ANEW}",
    )


def unheard(txn: str, *, where: str) -> HistoryError:
    """The error for an event that comes too late to be a new one, and repeats none."""
    return HistoryError(
        f"an event of transaction {txn} came, which lies before what is applied, and it repeats none that is there:"
        f" {OTHER}; or retention has deleted the one that it repeats",
        where=where,
        do=ANEW,
    )
