"""The chain of a transaction: each of its records, for readers or not, says where the one before it lies.

A log that was read without a filter has every record of a chain, so one that is named and not there is missing. A
filter leaves some out; there a chain tells only that its transaction was open where the log begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.sources.db2_log.framing import LogRecord
from penstock.sources.db2_log.positions import position_of

TxnKey = tuple[int, bytes]
"""A transaction: the log stream, and its identifier there."""

_TID_BYTES = 6


class LogBeginning(NamedTuple):
    """Where a log begins: the log sequence offset of its first record, and the stream that this is of."""

    stream: int
    lso: int

    def is_before(self, record: LogRecord) -> bool:
        """Whether a record names one as that before it of its transaction which lies before the log."""
        return record.stream == self.stream and 0 < (record.previous_lso or 0) < self.lso


class Chain(NamedTuple):
    """The records of an open transaction, as far as they were read.

    Attributes:
        first: The position of the first one.
        last: The log sequence offset of the last one.
        is_cut: The transaction was open already where the log begins.
        begins_again: Inside it lies a record that names none before it, as the first one of a transaction does.
    """

    first: int
    last: int
    is_cut: bool
    begins_again: bool = False


@dataclass(frozen=True)
class OpenChains:
    """What is known of chains at a place in the log, which a later process goes on with.

    Attributes:
        floors: The log sequence offset, in each stream, from which on every record was read.
        open: The chains of the transactions that are open there.
    """

    floors: Mapping[int, int]
    open: Mapping[TxnKey, Chain]

    def pack(self) -> dict[str, NDArray[np.uint64]]:
        """Return what `unpack` reads, as arrays by name."""
        chains = [
            (stream, int.from_bytes(tid, "big"), chain.first, chain.last, chain.is_cut + 2 * chain.begins_again)
            for (stream, tid), chain in self.open.items()
        ]
        return {
            "floors": np.array(list(self.floors.items()), np.uint64).reshape(-1, 2),
            "chains": np.array(chains, np.uint64).reshape(-1, 5),
        }

    @classmethod
    def unpack(cls, found: Mapping[str, Any]) -> OpenChains | None:
        """Read what `pack` has made; None where an earlier version has written no such thing."""
        if "floors" not in found:
            return None
        chains = {
            (stream, tid.to_bytes(_TID_BYTES, "big")): Chain(first, last, bool(is_ & 1), bool(is_ & 2))
            for stream, tid, first, last, is_ in found["chains"].tolist()
        }
        return cls(dict(found["floors"].tolist()), chains)


@dataclass
class Chains:
    """Follows the chains of open transactions, record by record. Records without a place in the log are in none.

    Attributes:
        beginning: Where the log begins; None where that is not known.
        is_whole: The log was read without a filter.
    """

    beginning: LogBeginning | None
    is_whole: bool
    open: dict[TxnKey, Chain] = field(default_factory=dict)
    _floors: dict[int, int] = field(default_factory=dict)

    def resume(self, known: OpenChains) -> None:
        """Go on from what is known at a place, whatever was followed before."""
        self.open, self._floors = dict(known.open), dict(known.floors)

    def known(self) -> OpenChains:
        """Return what is known by now."""
        return OpenChains(dict(self._floors), dict(self.open))

    def follow(self, record: LogRecord, *, is_chained: bool) -> None:
        """Take the next record.

        Args:
            is_chained: It is of a type that names the one before it.

        Raises:
            MalformedInputError: The log has all records, and lacks the one that this one names. Or it lacks the end of
                a transaction, whose identifier another one has.
        """
        if record.lso is None:
            return
        key = (record.stream, record.tid)
        floor = self._floors.setdefault(record.stream, record.lso)
        chain = self.open.get(key)
        if self.is_whole and is_chained and record.previous_lso and any(record.tid):
            is_next = chain is not None and chain.last == record.previous_lso
            # What lies before the first record that was read is no matter: the reading began behind it.
            if not is_next and (chain is not None or record.previous_lso >= floor):
                record.refuse(
                    f"the record before it of its transaction, at log sequence offset {record.previous_lso}, is not in"
                    " the log that was recorded",
                    do="bring back the buffers that are missing between the files, or begin anew, with a copy",
                )
        if chain is not None and is_chained and any(record.tid):
            if chain.begins_again and record.previous_lso:
                record.refuse(
                    "an earlier transaction with this identifier has not ended: the record of its commit or rollback is"
                    " not in the log that was recorded",
                    do="bring back the buffers that are missing, or begin anew, with a copy",
                )
            # In a log without chains no record names another one.
            chain = chain._replace(begins_again=not record.previous_lso)
        if chain is None:
            is_cut = self.beginning is not None and self.beginning.is_before(record)
            chain = Chain(position_of(record), record.lso, is_cut)
        self.open[key] = chain._replace(last=record.lso)

    def end(self, key: TxnKey) -> Chain | None:
        """Forget the chain of a transaction that has ended, and return it; None where it has none."""
        return self.open.pop(key, None)
