"""How many changes and transactions were applied, by table and operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock import change as c
from penstock.apply.group import Group
from penstock.change import Change, TableName

TableOp: TypeAlias = tuple[TableName, str]
"""A table by its name at the target, and an operation's."""

_MARKS = 10_000_000
"""So many bytes at most are taken to mark which transactions have which operations."""


def sum_of(counts: Iterable[TableCounts]) -> TableCounts:
    """Add up the counts of lanes."""
    total = TableCounts()
    for one in counts:
        total.add(one)
    return total


@dataclass
class TableCounts:
    """Counts of what was applied; they can be added up across lanes and batches.

    Attributes:
        changes: Changes of each table by operation.
        transactions: Transactions that had at least one of them.
    """

    changes: Counter[TableOp] = field(default_factory=Counter)
    transactions: Counter[TableOp] = field(default_factory=Counter)

    def add(self, other: TableCounts) -> None:
        """Add the counts of another lane or batch."""
        self.changes.update(other.changes)
        self.transactions.update(other.transactions)

    def add_group(self, group: Group) -> None:
        """Count the transactions of a group."""
        if not len(group):
            return
        names, ops = group.operations
        tables = group.tables
        # For each change, the number of its table version; together with its operation that is a code.
        table_of = np.empty(len(ops), np.int64)
        for number, (_, _, is_here) in enumerate(tables):
            table_of[is_here] = number
        codes = table_of * len(names) + ops
        most = len(tables) * len(names)
        changes = np.bincount(codes, minlength=most)
        if len(group) * most <= _MARKS:
            # One mark for each transaction and code, which is cheaper than to sort them.
            marks = np.zeros(len(group) * most, bool)
            marks[group.txn_of * most + codes] = True
            transactions = marks.reshape(len(group), most).sum(axis=0)
        else:
            transactions = np.bincount(np.unique(group.txn_of * most + codes) % most, minlength=most)
        for code in np.flatnonzero(changes).tolist():
            key = tables[code // len(names)][0], names[code % len(names)]
            self.changes[key] += int(changes[code])
            self.transactions[key] += int(transactions[code])

    def add_changes(self, changes: Iterable[Change], *, times: int = 1) -> None:
        """Count one transaction by its changes; `times` -1 takes it back."""
        found = Counter((change.table, change.op.value) for change in changes)
        for key, number in found.items():
            self.changes[key] += times * number
            self.transactions[key] += times

    def as_one_transaction(self) -> TableCounts:
        """The same changes, counted as those of one transaction."""
        return TableCounts(self.changes, Counter(dict.fromkeys(self.changes, 1)))

    def add_rows(self, rows: pa.Table) -> None:
        """Count rows of the change stream."""
        found = rows.group_by([c.SCHEMA_NAME, c.TABLE_NAME, c.OP]).aggregate(
            [(c.COMMIT_SCN, "count"), (c.COMMIT_SCN, "count_distinct")]
        )
        for row in found.to_pylist():
            key = TableName(row[c.SCHEMA_NAME], row[c.TABLE_NAME]), row[c.OP]
            self.changes[key] += row[f"{c.COMMIT_SCN}_count"]
            self.transactions[key] += row[f"{c.COMMIT_SCN}_count_distinct"]

    def to_plain(self) -> list[list[object]]:
        """The counts as plain data, which `of_plain` reads in another process."""
        return [
            [table.schema, table.name, op, number, self.transactions[table, op]]
            for (table, op), number in self.changes.items()
        ]

    @classmethod
    def of_plain(cls, rows: Iterable[Sequence[object]]) -> TableCounts:
        """Read what `to_plain` wrote."""
        counts = cls()
        for schema, name, op, changes, transactions in rows:
            key = TableName(str(schema), str(name)), str(op)
            counts.changes[key] += int(str(changes))
            counts.transactions[key] += int(str(transactions))
        return counts
