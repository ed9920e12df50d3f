"""Rows that wait, inside a transaction, for a value of a unique key that a later change of it gives up.

Foreign keys are another matter: `RowPath._check` checks them once all changes of a transaction are in.

A source whose key is checked at commit lets two rows swap their values; a target whose key is checked at once refuses
the first of the two changes. So its row is taken out of the table, and put back with its new values once the other row
has given them up. At the end of the transaction the rows are the same as at the source. Of an exclusion constraint the
same holds as of a unique key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.apply.conflict_resolver import changed_columns, writable
from penstock.apply.row_lookup import concerns
from penstock.apply.session import TargetSession
from penstock.apply.target import RowMatch, TargetCatalog, TargetTable
from penstock.change import Change, Image, Op, TableName, Transaction
from penstock.external_values import ExternalValue
from penstock.schema import Exclusion, Unique

_MOST_CHANGES = 100_000
"""Of a larger transaction nothing waits: what its changes give up would have to be held in memory."""

_Value = tuple[TableName, str, tuple[str | None, ...]]
"""A table, the name of one of its unique keys or exclusion constraints, and values of its columns."""


@dataclass
class DeferredRow:
    """A row that is not in its table for now.

    Attributes:
        number: The change that it waits with, counted from 1.
        image: The row as it is to be.
        until: The change after which it may be put back.
    """

    number: int
    table: TargetTable
    image: Image
    until: int


class DeferredRows:
    """The rows of one transaction that wait."""

    def __init__(self, session: TargetSession) -> None:
        """Take rows out of their tables, and put them back, through a session's open transaction."""
        self._session = session
        self._given_up: dict[_Value, int] = {}
        self._last: dict[tuple[TableName, str], int] = {}
        self._rows: list[DeferredRow] = []

    def begin(self, transaction: Transaction, catalog: TargetCatalog) -> None:
        """Look at what the changes of a transaction give up, by the last of them that does."""
        self._given_up, self._last, self._rows = {}, {}, []
        if not 1 < len(transaction.changes) <= _MOST_CHANGES:
            return
        for number, change in enumerate(transaction.changes, start=1):
            table = catalog.tables.get(change.table)
            if table is None or change.before is None or change.op not in (Op.UPDATE, Op.DELETE):
                continue
            for rule in _checked_at_once(table):
                if set(rule.columns) <= set(change.before) and concerns(change, rule.columns):
                    self._given_up[_value(table, rule, change.before)] = number
                    self._last[table.name, rule.name] = number

    def defer(self, number: int, change: Change, table: TargetTable, match: RowMatch | None) -> Image | None:
        """Have the row of a change wait, where a value that it takes is held, and given up later.

        Args:
            match: Finds the row that an update changes; None for an insert.

        Returns:
            The row as it is to be; None where the change may be applied, or fails for another reason.
        """
        if not self._given_up:
            return None
        new = {**(change.before or {}), **(change.after or {})}
        if any(isinstance(value, ExternalValue) for value in new.values()):
            return None
        taken = [rule for rule in _checked_at_once(table) if change.op is Op.INSERT or concerns(change, rule.columns)]
        until = max((self._until(rule, new, table, number) for rule in taken), default=0)
        if until <= number:
            return None
        image = dict(new)
        if match is not None:
            found = self._session.compare_rows(table, match)
            if len(found) != 1 or found[0][1]:
                return None
            self._session.delete(table, match)
            image = {**found[0][0], **changed_columns(change)}
        self._rows.append(DeferredRow(number, table, image, until))
        return image

    def change(self, number: int, change: Change, table: TargetTable) -> Image | None:
        """Change a row that waits; returns it as it is to be, or was, and None where the change is of another row."""
        deferred = self._of(change, table)
        # While two rows have one key, the change is of the one that is in the table.
        if deferred is None or self._session.lock_rows(table, RowMatch(_key(change.before, table), {})):
            return None
        if change.op is Op.DELETE:
            self._rows.remove(deferred)
            return deferred.image
        deferred.image = {**deferred.image, **changed_columns(change)}
        rules = _checked_at_once(table)
        deferred.until = max(number, *(self._until(rule, deferred.image, table, number) for rule in rules))
        return deferred.image

    def due(self, number: int) -> Iterator[DeferredRow]:
        """Yield the rows that may be put back behind a change; they do not wait any more."""
        due = [row for row in self._rows if row.until <= number]
        self._rows = [row for row in self._rows if row.until > number]
        yield from due

    def put_back(self, deferred: DeferredRow) -> None:
        """Write a row that has waited."""
        self._session.insert(deferred.table, writable(deferred.image, deferred.table))

    def _until(self, rule: Unique | Exclusion, new: Image, table: TargetTable, number: int) -> int:
        """The last change that gives up what is in the way of a row; 0 where nothing is, or no later change does.

        What is equal, or excludes each other, the target says: 2 and 2.00 are the same value of a key.
        """
        if self._last.get((table.name, rule.name), 0) <= number or not set(rule.columns) <= set(new):
            return 0
        rows = self._session.rows_in_the_way(table, rule.name, new)
        values = [_value(table, rule, row) for row in rows]
        values += [_value(table, rule, new)] if rows else []
        return max((self._given_up.get(value, 0) for value in values), default=0)

    def _of(self, change: Change, table: TargetTable) -> DeferredRow | None:
        if not self._rows or change.before is None or not set(table.key.columns) <= set(change.before):
            return None
        key = _key(change.before, table)
        mine = (row for row in self._rows if row.table.name == table.name and _key(row.image, table) == key)
        return next(mine, None)


def _checked_at_once(table: TargetTable) -> list[Unique | Exclusion]:
    rules: list[Unique | Exclusion] = [*table.schema.all_uniques, *table.schema.exclusions]
    return [rule for rule in rules if rule.columns and not rule.is_deferrable]


def _value(table: TargetTable, rule: Unique | Exclusion, image: Image) -> _Value:
    return table.name, rule.name, tuple(image.get(name) for name in rule.columns)


def _key(image: Image | None, table: TargetTable) -> Image:
    return {name: (image or {})[name] for name in table.key.columns}
