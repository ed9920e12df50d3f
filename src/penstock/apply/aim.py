"""Which row a change is about, and what that row is expected to have."""

from __future__ import annotations

from penstock.apply.conflicts import VALUE_MISSING, ApplyError
from penstock.apply.mender import changed_columns, row_in_the_way
from penstock.apply.resolve import ConflictRules, Method, RowIs
from penstock.apply.target import RowMatch, TargetTable
from penstock.change import Change, Image, Op


class Aim:
    """Tells of single changes which row they are about; nothing is looked for."""

    def __init__(self, conflicts: ConflictRules, *, allow_duplicate_rows: bool) -> None:
        """See `RowPath`."""
        self._conflicts = conflicts
        self._allow_duplicate_rows = allow_duplicate_rows

    def compared(self, change: Change, table: TargetTable) -> Image:
        """The old values of a change that the row at the target must have."""
        before = change.before or {}
        if change.op not in (Op.UPDATE, Op.DELETE):
            return before
        others = before if self._conflicts.compare_key_only else [n for n in before if n not in table.key.columns]
        uncompared = self._conflicts.uncompared(table.name, others, change.op)
        return {n: v for n, v in before.items() if n not in uncompared} if uncompared else before

    def of_update(self, change: Change, table: TargetTable) -> RowMatch | None:
        """Which row an update is about; None where it changes nothing."""
        after = change.after or {}
        # A column set to the value it had is not written, and compared only where that is asked for.
        changed = changed_columns(change)
        if not changed and (self._conflicts.optimize_self_updates or not after):
            return None
        compared = self.compared(change, table)
        if self._conflicts.optimize_self_updates:
            compared = {name: value for name, value in compared.items() if name not in after or name in changed}
        return self.match(change.before or {}, compared, table, change)

    def of_delete(self, change: Change, table: TargetTable) -> RowMatch:
        """Which row a delete is about."""
        return self.match(change.before or {}, self.compared(change, table), table, change)

    def at_one(self, change: Change, table: TargetTable) -> RowMatch | None:
        """The one row that an update or a delete is about; None where any of several will do."""
        found = self.of_update(change, table) if change.op is Op.UPDATE else self.of_delete(change, table)
        return None if found is None or found.only_one else found

    def overwrites(self, insert: Change, table: TargetTable) -> bool:
        """Whether the row that is in the way of an insert takes all of it, and is known without trying the insert.

        The statement would tell of values that the table does not take; so does one that writes all of them.
        """
        uniques = table.schema.all_uniques
        resolvers = self._conflicts.resolvers_for(table.name, Op.INSERT, RowIs.EXISTS)
        writes_all = any((one.method, one.columns) == (Method.OVERWRITE, None) for one in resolvers[:1])
        return writes_all and len(uniques) == 1 and not uniques[0].is_deferrable and not table.schema.exclusions

    def foreseen(self, change: Change, table: TargetTable) -> RowMatch | None:
        """By what the row that a change is known to meet is found and compared; None where that is not known yet.

        Raises:
            ApplyError: The change does not say.
        """
        if not (table.key.is_declared and table.key.is_unique):
            return None
        match change.op:
            case Op.INSERT:
                return row_in_the_way(change, table) if self.overwrites(change, table) else None
            case Op.UPDATE | Op.DELETE:
                return self.at_one(change, table)
        return None

    def match(self, before: Image, compared: Image, table: TargetTable, change: Change) -> RowMatch:
        """Find a row by its key columns in `before`, which must have the values of `compared`.

        Raises:
            ApplyError: A key column is not there.
        """
        missing = [name for name in table.key.columns if name not in before]
        if missing:
            what = f"key column {missing[0]!r} is not in the change"
            raise ApplyError(VALUE_MISSING, what, where=f"table {change.table}")
        return RowMatch(
            key={name: before[name] for name in table.key.columns},
            # Values that a key's index calls equal, as 1.0 and 1.00, may be written in different ways.
            old={
                name: value
                for name, value in compared.items()
                if name not in table.key.columns or not table.schema.by_name[name].is_exact
            },
            # Rows that a key keeps apart only in the end may be equal for a while, and any of them will do.
            only_one=table.key.is_deferrable or (not table.key.is_unique and self._allow_duplicate_rows),
        )
