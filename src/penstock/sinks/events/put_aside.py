"""What cannot be told as events, and is kept beside the position until a person has decided: the error queue.

An entry is written with the position that is reached with it, in one Kafka transaction or file. So whatever ends a run,
a transaction is either published, or in the queue, and never both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from penstock.apply.error_queue import EntryHold
from penstock.change import Change, Image, Op, TableName, Transaction
from penstock.formats.debezium.source_block import ChangePlace

_PART = 60_000
"""So many characters of an entry go into one record: well below the smallest limit that brokers have."""


class OnBadValue(StrEnum):
    """What becomes of a value that the format of the events, or the place that they go to, does not carry."""

    STOP = "stop"
    """The run ends, and names it; in a first copy the table is left out."""
    PUT_ASIDE_TRANSACTION = "put_aside_transaction"
    """The whole transaction goes to the error queue."""
    PUT_ASIDE_CHANGE = "put_aside_change"
    """The change alone goes there; the others of its transaction are published."""


class KeptChange(NamedTuple):
    """A change of an entry, and its place; of a row of a first copy, `op` is a snapshot's."""

    op: Op
    table: TableName
    version: int
    before: Image | None
    after: Image | None
    scn: int
    more: Mapping[str, Any]


@dataclass(frozen=True)
class PutAside:
    """An entry of the error queue.

    Attributes:
        number: Counts the entries of the pipeline from 1.
        txn_id, commit_scn, committed_at_us: The transaction; of a row of a first copy, the moment that it is as of.
        message_number: The change that failed first, counted from 1 in the transaction.
        message_count: How many changes the transaction had.
        numbers: Those of `changes` in the transaction.
        changes: All of the transaction's, or those alone that cannot be told.
        column: The column of the value; empty where it is not one value's.
        on_hold: By whom it was put on hold, and why; None where it was not.
    """

    number: int
    txn_id: str
    commit_scn: int
    committed_at_us: int
    message_number: int
    message_count: int
    error_number: int
    error_message: str
    table: TableName
    op: Op
    created_at_us: int
    column: str = ""
    numbers: tuple[int, ...] = ()
    changes: tuple[KeptChange, ...] = field(default=(), repr=False)
    on_hold: EntryHold | None = None

    @property
    def is_of_copy(self) -> bool:
        """Whether it is a row of a first copy."""
        return self.op is Op.SNAPSHOT

    @property
    def transaction(self) -> Transaction:
        """Its changes, as other parts know them."""
        changes = [
            Change(number, change.op, change.table, change.version, change.before, change.after)
            for number, change in zip(self.numbers, self.changes, strict=True)
        ]
        return Transaction(self.commit_scn, self.txn_id, self.committed_at_us, changes)

    def place(self, change: KeptChange, snapshot: str) -> ChangePlace:
        """Where one of its changes is in the change stream."""
        return ChangePlace(self.txn_id, self.commit_scn, self.committed_at_us, change.scn, 0, snapshot, change.more)

    def numbered(self, number: int) -> PutAside:
        """The same under a number."""
        return replace(self, number=number)

    @property
    def keys(self) -> list[str]:
        """The keys under which it is kept."""
        return [key for key, _ in self.records()]

    def records(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return it as it is kept: keys and values, none of which is large."""
        body = json.dumps([_plain(change) for change in self.changes], ensure_ascii=False)
        parts = [body[first : first + _PART] for first in range(0, len(body), _PART)]
        head: dict[str, Any] = {
            "txn_id": self.txn_id,
            "commit_scn": self.commit_scn,
            "committed_at_us": self.committed_at_us,
            "message_number": self.message_number,
            "message_count": self.message_count,
            "error_number": self.error_number,
            "error_message": self.error_message,
            "schema": self.table.schema,
            "name": self.table.name,
            "column": self.column,
            "op": self.op.value,
            "created_at_us": self.created_at_us,
            "numbers": list(self.numbers),
            "parts": len(parts),
        }
        if self.on_hold is not None:
            at_us = round(self.on_hold.at.timestamp() * 1_000_000)
            head["on_hold"] = {"at_us": at_us, "by": self.on_hold.by, "note": self.on_hold.note}
        return [
            (f"error {self.number}", head),
            *((f"part {self.number} {n}", {"text": part}) for n, part in enumerate(parts)),
        ]


def read_entries(last: Mapping[str, Any]) -> Iterator[PutAside]:
    """Read entries from all that is kept; raises ValueError, KeyError or TypeError where that is not one's own."""
    for key, head in last.items():
        if not key.startswith("error "):
            continue
        number = int(key.removeprefix("error "))
        body = "".join(last[f"part {number} {n}"]["text"] for n in range(head["parts"]))
        yield PutAside(
            number=number,
            txn_id=head["txn_id"],
            commit_scn=int(head["commit_scn"]),
            committed_at_us=int(head["committed_at_us"]),
            message_number=int(head["message_number"]),
            message_count=int(head["message_count"]),
            error_number=int(head["error_number"]),
            error_message=head["error_message"],
            table=TableName(head["schema"], head["name"]),
            op=Op(head["op"]),
            created_at_us=int(head["created_at_us"]),
            column=head["column"],
            numbers=tuple(head["numbers"]),
            changes=tuple(_kept(one) for one in json.loads(body)),
            on_hold=_hold(head.get("on_hold")),
        )


def in_order(entries: Iterable[PutAside]) -> Sequence[PutAside]:
    """Entries in commit order."""
    return sorted(entries, key=lambda entry: (entry.commit_scn, entry.number))


def _hold(plain: Mapping[str, Any] | None) -> EntryHold | None:
    if plain is None:
        return None
    return EntryHold(datetime.fromtimestamp(plain["at_us"] / 1_000_000, UTC), plain["by"], plain["note"])


def _plain(change: KeptChange) -> Sequence[Any]:
    named = [change.op.value, change.table.schema, change.table.name, change.version]
    return [*named, change.before, change.after, change.scn, change.more]


def _kept(value: Sequence[Any]) -> KeptChange:
    op, schema, name, version, before, after, scn, more = value
    return KeptChange(Op(op), TableName(schema, name), version, before, after, scn, more)
