"""Which transactions of a lane wait behind the error queue (ADR 49).

The lane is told once a batch what the queue holds, as marks. What it puts there itself it adds. No other session adds
to the queue what could keep a transaction of this lane: other lanes share no value with it, and people only take
entries away, in the transactions that apply them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import change as c
from penstock.apply.blocked_keys import BlockedKeyIndex, BlockedKeys
from penstock.apply.coordinator import with_followers
from penstock.apply.dependency_keys import Uses, find_uses
from penstock.apply.group import COLUMNS, SCHEMA, Group
from penstock.apply.ledger import LaneLedger
from penstock.apply.target import TargetCatalog
from penstock.change import Change, Transaction
from penstock.values import encode_image

_CHUNK = 1_000
"""Changes that become Arrow rows at a time."""


class HeldTransactions:
    """What waits behind the error queue, as one lane sees it during one batch."""

    def __init__(self, ledger: LaneLedger, catalog: TargetCatalog, marked_by: int) -> None:
        """Ask `ledger` what the queue holds, whose marks were made by the keys that `marked_by` stands for."""
        self._ledger = ledger
        self._catalog = catalog
        self._marked_by = marked_by
        self._kept = BlockedKeyIndex(np.zeros(0, np.uint64), np.zeros(0, np.int8))
        self._ahead: tuple[Group, Uses] | None = None

    def begin(self) -> None:
        """Learn what the queue holds, inside an open transaction."""
        self._kept = self._ledger.queued(self._marked_by)

    def look_ahead(self, group: Group) -> Uses | None:
        """Find what a group uses before its turn comes, if that is likely to be asked."""
        return self._uses(group) if self._kept else None

    def expect(self, group: Group, uses: Uses | None) -> None:
        """Take what `look_ahead` has found of the group that is next."""
        self._ahead = None if uses is None else (group, uses)

    def find(self, group: Group) -> tuple[NDArray[np.bool_], BlockedKeys] | None:
        """Which transactions of a group wait: for the queue, or for one of these; and the marks of those that do.

        None where none does.
        """
        if not self._kept or not len(group):
            return None
        uses = self._ahead[1] if self._ahead is not None and self._ahead[0] is group else self._uses(group)
        found = self._kept.keeps(uses.marks(len(group), with_roles=self._kept.is_vague), len(group))
        if not found.any():
            return None
        # All that may wait, and some more: values that nobody knows tie together what only meets one of them.
        candidates = with_followers(uses.dependencies(), found)
        marks = uses.marks(len(group))
        waiting = self.behind_more()
        for number in np.flatnonzero(candidates).tolist():
            own = marks.of_one(number)
            if waiting.keeps(own):
                waiting.add(own)
            else:
                candidates[number] = False
        return candidates, marks.only(candidates)

    def of_group(self, group: Group) -> BlockedKeys:
        """The marks of each transaction of a group."""
        return self._uses(group).marks(len(group))

    def keeps(self, marks: BlockedKeys) -> bool:
        """Whether the one transaction with these marks waits."""
        return bool(self._kept) and bool(self._kept.keeps(marks, 1)[0])

    @property
    def keeps_any(self) -> bool:
        """Whether any transaction could have to wait."""
        return bool(self._kept)

    def behind_more(self) -> WaitingTransactions:
        """Ask about transactions one by one, of which some go to the queue in a transaction that may be rolled back."""
        return WaitingTransactions(self)

    def of_change(self, transaction: Transaction, change: Change) -> BlockedKeys:
        """The marks of one change of a transaction."""
        return blocked_keys_of(as_batches(replace(transaction, changes=(change,))), self._catalog)

    def of_batches(self, batches: Iterable[pa.RecordBatch]) -> BlockedKeys:
        """The marks of one transaction that cannot be held."""
        return blocked_keys_of(batches, self._catalog)

    def add(self, *marks: BlockedKeys) -> None:
        """Take in what has gone to the queue."""
        for one in marks:
            self._kept.add(one)

    def _uses(self, group: Group) -> Uses:
        txn_of = np.repeat(np.arange(len(group)), np.diff(group.starts))
        return find_uses(group.rows.to_batches(), txn_of, self._catalog.tables, self._catalog.virtual)


class WaitingTransactions:
    """What waits behind the queue, and behind what goes there in the open transaction."""

    def __init__(self, held_transactions: HeldTransactions) -> None:
        """Begin behind what `held_transactions` has."""
        self._held_transactions = held_transactions
        self._more = BlockedKeyIndex(np.zeros(0, np.uint64), np.zeros(0, np.int8))
        self.added: list[BlockedKeys] = []

    def keeps(self, marks: BlockedKeys) -> bool:
        """Whether the one transaction with these marks waits."""
        return self._held_transactions.keeps(marks) or bool(self._more.keeps(marks, 1)[0])

    def add(self, marks: BlockedKeys) -> None:
        """Take in what has gone to the queue."""
        self.added.append(marks)
        self._more.add(marks)


def blocked_keys_of(batches: Iterable[pa.RecordBatch], catalog: TargetCatalog) -> BlockedKeys:
    """The marks of one transaction, whose changes may be more than can be held."""
    values, uses = [np.zeros(0, np.uint64)], [np.zeros(0, np.int8)]
    for batch in batches:
        one = find_uses([batch], np.zeros(batch.num_rows, np.int64), catalog.tables, catalog.virtual).marks(1)
        values.append(one.value)
        uses.append(one.use)
    value = np.concatenate(values)
    return BlockedKeys.of(np.zeros(len(value), np.int64), value, np.concatenate(uses))


def as_batches(transaction: Transaction) -> Iterator[pa.RecordBatch]:
    """The changes of a transaction as Arrow rows, some at a time."""
    rows: list[dict[str, object]] = []
    for change in transaction.changes:
        rows.append(
            {
                c.COMMIT_SCN: transaction.commit_scn,
                c.CHANGE_SEQ: change.change_seq,
                c.TXN_ID: transaction.txn_id,
                c.COMMITTED_AT: transaction.committed_at_us,
                c.OP: change.op.value,
                c.SCHEMA_NAME: change.table.schema,
                c.TABLE_NAME: change.table.name,
                c.TABLE_VERSION: change.table_version,
                c.BEFORE: None if change.before is None else encode_image(change.before),
                c.AFTER: None if change.after is None else encode_image(change.after),
            }
        )
        if len(rows) == _CHUNK:
            yield pa.RecordBatch.from_pylist(rows, SCHEMA)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, SCHEMA).select(COLUMNS)
