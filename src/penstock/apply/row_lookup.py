"""Which row a change is about, what that row is expected to have, and what is wrong where it has not."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.apply.apply_errors import (
    COLUMN_MISSING,
    OTHER,
    ROW_DIFFERS,
    ROW_MISSING,
    TYPE_DIFFERS,
    UNIQUE_VIOLATED,
    VALUE_MISSING,
    ApplyError,
)
from penstock.apply.conflict_methods import ConflictKind, ConflictRules, Method
from penstock.apply.conflict_resolver import changed_columns, row_in_the_way
from penstock.apply.target import ComparedRow, RowMatch, TargetTable
from penstock.change import NO_VERSION, Change, Image, Op
from penstock.schema import Column, Dictionary


class RowLookup:
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
        resolvers = self._conflicts.resolvers_for(table.name, Op.INSERT, ConflictKind.EXISTS)
        writes_all = any((one.method, one.columns) == (Method.OVERWRITE, None) for one in resolvers[:1])
        return writes_all and len(uniques) == 1 and not uniques[0].is_deferrable and not table.schema.exclusions

    def prefetched(self, change: Change, table: TargetTable) -> RowMatch | None:
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
            raise ApplyError(VALUE_MISSING, what, where=_place(change))
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


def prefetched(
    change: Change, table: TargetTable, rows: Sequence[ComparedRow] | None, lookup: RowLookup
) -> ApplyError | None:
    """What a change would fail with that meets a row with its key; None where that cannot be told without trying.

    Args:
        rows: What is found by `lookup.prefetched`; None, of an insert, where it was not looked for.
    """
    if change.op is Op.INSERT:
        if not lookup.overwrites(change, table):
            return None
        name = table.schema.all_uniques[0].name
        return ApplyError(UNIQUE_VIOLATED, "a row has the key", where=_place(change), constraint=name)
    if rows is not None and not rows:
        return missing(change)
    return differs(change, rows[0]) if rows and rows[0][1] else None


def missing(change: Change) -> ApplyError:
    """What is wrong where no row has a change's key."""
    return ApplyError(ROW_MISSING, f"{change.op} finds no row with its key", where=_place(change))


def differs(change: Change, row: ComparedRow) -> ApplyError:
    """What is wrong where the row with a change's key has other values than it expects, or is not changed by it."""
    current, differing = row
    if not differing:
        # No column is in conflict, so no resolver has a say.
        what = f"{change.op} leaves its row alone, which is as expected: a trigger or a rule of the target keeps it so"
        return ApplyError(OTHER, what, where=_place(change), found=current)
    columns = ", ".join(repr(name) for name in differing)
    error = ApplyError(
        ROW_DIFFERS, f"{change.op} finds other values in column {columns}", where=_place(change), found=current
    )
    return error.with_differing(differing)


def expects_columns(change: Change, table: TargetTable, dictionary: Dictionary) -> None:
    """Make sure that the target has the columns of a change, of types that take their values.

    Raises:
        ApplyError: It has not.
    """
    is_known = change.table_version != NO_VERSION
    captured = dictionary.get(change.table, change.table_version).by_name if is_known else {}
    waiting = table.unfollowed_at(change.table_version) if is_known else None
    for name in {**(change.before or {}), **(change.after or {})}:
        if waiting is not None and name in waiting.columns:
            what = f"column {name!r} is another one here until entry {waiting.entry} is applied, which alters the table"
            raise ApplyError(COLUMN_MISSING, f"{what}; retry that one first", where=_place(change))
        column = table.schema.by_name.get(name)
        if column is None:
            what = f"column {name!r} does not exist at the target: add it there, then retry"
            raise ApplyError(COLUMN_MISSING, what, where=_place(change))
        source = captured.get(name)
        if source is None or column.reads(source):
            continue
        values = [image[name] for image in (change.before, change.after) if image is not None and name in image]
        if not column.cuts(source) or column.cuts_one_of(source, values):
            raise ApplyError(TYPE_DIFFERS, _unlike(column, captured[name]), where=_place(change))


def _unlike(there: Column, captured: Column) -> str:
    """Say why a column does not take the values of another one, or of its own of an earlier time."""
    if there.cuts(captured):
        return (
            f"column {there.name!r} is {there.type} at the target, which would round or cut values of {captured.type},"
            " as it was when this was captured: give it a type that holds them, then retry"
        )
    return (
        f"column {there.name!r} was {captured.type} when this was captured, and is {there.type} at the target now:"
        " retry while it is of the old type"
    )


def concerns(change: Change, columns: Sequence[str]) -> bool:
    """Whether a change may have given these columns other values."""
    before, after = change.before or {}, change.after or {}
    return change.op is not Op.UPDATE or any(
        name in after and (name not in before or before[name] != after[name]) for name in columns
    )


def _place(change: Change) -> str:
    return f"table {change.table}"
