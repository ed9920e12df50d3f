"""Resolves conflicts: carries out what `conflict_methods` decides about a change that met one in the row path.

Rows that are decided about are locked first, so what is found of them is so until the transaction ends. Values are
compared by the database, by the type and collation of their column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.apply.apply_errors import ROW_DIFFERS, ROW_MISSING, UNIQUE_VIOLATED, ApplyError
from penstock.apply.conflict_methods import (
    Conflict,
    ConflictKind,
    ConflictRules,
    Decision,
    Method,
    Order,
    Resolution,
    Resolver,
    ResolverOutcome,
    Shifted,
    decide,
)
from penstock.apply.session import TargetSession
from penstock.apply.target import ComparedRow, RowMatch, TargetTable
from penstock.change import NO_VERSION, Change, Image, Op
from penstock.external_values import ExternalValue
from penstock.schema import Dictionary


@dataclass(frozen=True)
class Images:
    """A row before and after a change, as far as they are known; empty where there is none."""

    before: Image
    after: Image


@dataclass(frozen=True)
class Done:
    """What a change came to at the target, for the checks that are made in the end.

    Attributes:
        change: The change as it was carried out; None where nothing was done.
    """

    change: Change | None
    images: Images


NOTHING_DONE = Done(None, Images({}, {}))


class ConflictResolver:
    """Resolves conflicts of single changes, inside the open transaction of a session."""

    def __init__(
        self,
        session: TargetSession,
        dictionary: Dictionary,
        conflicts: ConflictRules,
        *,
        update: Callable[[TargetTable, RowMatch, Image], int] | None = None,
        order: Order | None = None,
        shifted: Shifted | None = None,
    ) -> None:
        """Write through `session` changes of the tables in the dictionary.

        Args:
            update: Takes what is decided about a row that is there, in place of `session`.
            order, shifted: Tell what `session` would be asked for.
        """
        self._session = session
        self._update = update or session.update
        self._ask_order = order or session.order
        self._ask_shifted = shifted or session.shifted
        self._dictionary = dictionary
        self._conflicts = conflicts

    def resolves_refusals(self, change: Change, table: TargetTable) -> bool:
        """Whether a statement that the database refuses may be resolved, so that it has to be undone alone."""
        if change.op is Op.INSERT:
            return bool(self._conflicts.resolvers_for(table.name, Op.INSERT, ConflictKind.EXISTS))
        return self._conflicts.handle_collisions and _moves(change, table)

    def resolve(
        self,
        number: int,
        change: Change,
        table: TargetTable,
        error: ApplyError,
        seen: Sequence[ComparedRow] | None = None,
    ) -> tuple[Done, Sequence[Resolution]] | None:
        """Resolve the conflict that a change has met; None where no resolver is for it, or none can decide.

        Args:
            number: Of the change in its transaction, counted from 1.
            error: What the change met; the statement was undone if the database has refused it.
            seen: What was found by `row_in_the_way` of an insert, if that was looked for already.

        Raises:
            ApplyError: What was decided cannot be written.
        """
        match change.op, error.number:
            case Op.UPDATE, n if n == ROW_DIFFERS:
                row, act = ConflictKind.EXISTS, self._update_row
            case Op.UPDATE, n if n == ROW_MISSING:
                row, act = ConflictKind.MISSING, self._insert_missing
            case Op.DELETE, n if n == ROW_DIFFERS:
                row, act = ConflictKind.EXISTS, self._delete_row
            case Op.DELETE, n if n == ROW_MISSING:
                row, act = ConflictKind.MISSING, _leave
            case Op.INSERT, n if n == UNIQUE_VIOLATED:
                row, act = ConflictKind.EXISTS, partial(self._update_in_the_way, seen=seen)
            case Op.UPDATE, n if n == UNIQUE_VIOLATED:
                return self._move_onto(number, change, table, error)
            case _:
                return None
        resolvers = self._conflicts.resolvers_for(table.name, change.op, row)
        if not resolvers:
            return None
        if resolvers[0].method is Method.RECORD:
            made: _Made | None = (NOTHING_DONE, [(resolvers[0], ResolverOutcome.RECORDED, ())])
        else:
            made = act(change, table, error, resolvers)
        if made is None:
            return None
        done, outcomes = made
        return done, [
            Resolution(number, change, error.number, row, resolver.method.value, outcome, columns)
            for resolver, outcome, columns in outcomes
        ]

    def _update_row(
        self, change: Change, table: TargetTable, error: ApplyError, resolvers: Sequence[Resolver]
    ) -> _Made | None:
        """An update finds other values in its row."""
        assert error.found is not None
        assert change.before is not None
        current, changed = error.found, changed_columns(change)
        key = RowMatch({name: change.before[name] for name in table.key.columns}, {})
        incoming = {**change.before, **(change.after or {})}
        decision = self._decide(resolvers, Conflict(table, key, error.differing, changed, change.before, incoming))
        return None if decision is None else self._set(change, table, key, current, decision)

    def _update_in_the_way(
        self,
        change: Change,
        table: TargetTable,
        error: ApplyError,
        resolvers: Sequence[Resolver],
        *,
        seen: Sequence[ComparedRow] | None,
    ) -> _Made | None:
        """An insert finds a row that has one of its unique keys: that row becomes what the resolvers say."""
        assert change.after is not None
        if error.constraint is None or not table.key.is_declared:
            return None
        match = row_in_the_way(change, table) if _is_key(error.constraint, table) else None
        if match is None:
            found = self._session.rows_in_the_way(table, error.constraint, change.after, lock=True)
            if len(found) != 1:
                return None
            match = _whole_row(change.after, {name: found[0][name] for name in table.key.columns}, table)
        key = RowMatch(match.key, {})
        compared = self._session.compare_rows(table, match) if seen is None else seen
        if len(compared) != 1:
            # A key that the user has named, and that several rows have: it does not say which one is meant.
            return None
        unknown = [name for name, value in writable(change.after, table).items() if isinstance(value, ExternalValue)]
        current, differing = compared[0][0], [*compared[0][1], *unknown]
        # What is equal need not be set again.
        changed = {name: change.after[name] for name in differing}
        decision = self._decide(resolvers, Conflict(table, key, differing, changed, {}, change.after))
        return None if decision is None else self._set(change, table, key, current, decision)

    def _decide(self, resolvers: Sequence[Resolver], conflict: Conflict) -> Decision | None:
        return decide(
            resolvers,
            conflict,
            resolves_rows=self._conflicts.resolves_rows,
            order=self._ask_order,
            shifted=self._ask_shifted,
        )

    def _set(
        self, change: Change, table: TargetTable, key: RowMatch, current: Image, decision: Decision
    ) -> _Made | None:
        values = writable(decision.values, table)
        if not values:
            return NOTHING_DONE, decision.outcomes
        if self._update(table, key, values) != 1:
            # Rows that are equal in their key for a while, as a deferrable key has them.
            return None
        after = {**current, **values}
        done = Change(change.change_seq, Op.UPDATE, change.table, change.table_version, current, values)
        return Done(done, Images(current, after)), decision.outcomes

    def _insert_missing(
        self, change: Change, table: TargetTable, error: ApplyError, resolvers: Sequence[Resolver]
    ) -> _Made | None:
        """An update finds no row: it becomes an insert of the whole row, or nothing."""
        if resolvers[0].method is Method.DISCARD:
            return _leave(change, table, error, resolvers)
        image = {**(change.before or {}), **(change.after or {})}
        is_known = change.table_version != NO_VERSION
        captured = self._dictionary.get(change.table, change.table_version) if is_known else table.schema
        if not set(captured.column_names) <= set(image):
            return None
        self._session.insert(table, writable(image, table))
        done = Change(change.change_seq, Op.INSERT, change.table, change.table_version, None, image)
        return Done(done, Images({}, image)), [(resolvers[0], ResolverOutcome.APPLIED, tuple(image))]

    def _delete_row(
        self, change: Change, table: TargetTable, error: ApplyError, resolvers: Sequence[Resolver]
    ) -> _Made | None:
        """A delete finds other values in its row: the row is deleted all the same, or it stays."""
        if resolvers[0].method is Method.DISCARD:
            return _leave(change, table, error, resolvers)
        assert error.found is not None
        assert change.before is not None
        key = RowMatch({name: change.before[name] for name in table.key.columns}, {})
        if self._session.delete(table, key) != 1:
            return None
        done = Change(change.change_seq, Op.DELETE, change.table, change.table_version, error.found, None)
        return Done(done, Images(error.found, {})), [(resolvers[0], ResolverOutcome.APPLIED, ())]

    def _move_onto(
        self, number: int, change: Change, table: TargetTable, error: ApplyError
    ) -> tuple[Done, Sequence[Resolution]] | None:
        """While loading, a row moves to a key that a copied row has: that row becomes the moved one."""
        if not self._conflicts.handle_collisions or not _moves(change, table) or not table.key.is_declared:
            return None
        before = change.before or {}
        image = {**before, **(change.after or {})}
        there = self._session.lock_rows(table, RowMatch({name: image[name] for name in table.key.columns}, {}))
        if len(there) != 1:
            return None
        self._session.delete(table, RowMatch({name: before[name] for name in table.key.columns}, {}))
        key = RowMatch({name: image[name] for name in table.key.columns}, {})
        values = writable({n: v for n, v in image.items() if n not in table.key.columns}, table)
        if self._session.update(table, key, values) != 1:
            return None
        done = Change(change.change_seq, Op.UPDATE, change.table, change.table_version, before, image)
        method = Resolution(
            number,
            change,
            error.number,
            ConflictKind.EXISTS,
            Method.OVERWRITE.value,
            ResolverOutcome.APPLIED,
            tuple(values),
        )
        return Done(done, Images(before, {**there[0], **image})), [method]


_Outcomes = Sequence[tuple[Resolver, ResolverOutcome, tuple[str, ...]]]
_Made = tuple[Done, _Outcomes]


def changed_columns(change: Change) -> Image:
    """The columns that an update gives another value."""
    before, after = change.before or {}, change.after or {}
    return {name: value for name, value in after.items() if name not in before or before[name] != value}


def writable(image: Image, table: TargetTable) -> Image:
    """Leave out what the target computes by itself."""
    return {name: value for name, value in image.items() if not table.schema.by_name[name].is_generated}


def row_in_the_way(insert: Change, table: TargetTable) -> RowMatch | None:
    """By what the row is found and compared that has the key of an insert; None where the insert has no whole key."""
    after = insert.after or {}
    if not set(table.key.columns) <= set(after):
        return None
    return _whole_row(after, {name: after[name] for name in table.key.columns}, table)


def _whole_row(image: Image, key: Image, table: TargetTable) -> RowMatch:
    # Values that are not in the change are not compared with those of the row.
    return RowMatch(key, {n: v for n, v in writable(image, table).items() if not isinstance(v, ExternalValue)})


def _leave(change: Change, table: TargetTable, error: ApplyError, resolvers: Sequence[Resolver]) -> _Made:
    """Do nothing: there is nothing left to change, or it is to stay as it is."""
    return NOTHING_DONE, [(resolvers[0], ResolverOutcome.DISCARDED, ())]


def _is_key(constraint: str, table: TargetTable) -> bool:
    """Whether it is the row key that a constraint keeps apart, so that the row in the way is found by it."""
    named = (unique for unique in table.schema.all_uniques if unique.name == constraint)
    return any(unique.columns == table.key.columns and table.key.is_unique for unique in named)


def _moves(change: Change, table: TargetTable) -> bool:
    return change.op is Op.UPDATE and bool(changed_columns(change).keys() & set(table.key.columns))
