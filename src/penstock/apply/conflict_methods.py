"""Conflict methods: what the pipeline file may say of conflicts in a table, and what it decides about one change.

Only values and decisions: `decide` asks the methods, and `conflict_resolver` carries out the answer. Nothing here
touches a database; values of rows are compared and added by functions that the caller gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias, assert_never

from penstock.apply.apply_errors import CHILD_EXISTS, FOREIGN_KEY_VIOLATED, UNIQUE_VIOLATED, ApplyError
from penstock.apply.target import RowMatch, TargetTable
from penstock.change import Change, Image, Op, TableName

EVERY_COLUMN = "*"
"""In `compare_old_values`: all columns that are not part of the key, and not named themselves."""

_CODES = {UNIQUE_VIOLATED: "23505", FOREIGN_KEY_VIOLATED: "23503", CHILD_EXISTS: "23503"}
"""SQLSTATEs of what apply checks itself, so that one rule means the same whoever has found the error."""


class Method(StrEnum):
    """How a conflict is resolved."""

    OVERWRITE = "overwrite"
    DISCARD = "discard"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    MAXIMUM_AND_EQUAL = "maximum_and_equal"
    MINIMUM_AND_EQUAL = "minimum_and_equal"
    DELTA = "delta"
    RECORD = "record"

    @property
    def compares(self) -> bool:
        """Whether it looks at the values of a resolution column."""
        return self in _COMPARING


_COMPARING = (Method.MAXIMUM, Method.MINIMUM, Method.MAXIMUM_AND_EQUAL, Method.MINIMUM_AND_EQUAL)


class ConflictKind(StrEnum):
    """What was found where a change looked for its row, or for room for it."""

    EXISTS = "exists"
    """A row with other values or, for an insert, any row that has one of its unique keys."""
    MISSING = "missing"


class ResolverOutcome(StrEnum):
    """What became of the columns that a resolver decided about."""

    APPLIED = "applied"
    DISCARDED = "discarded"
    MERGED = "merged"
    RECORDED = "recorded"


@dataclass(frozen=True)
class Resolver:
    """Resolves one kind of conflict of one table, for a list of columns.

    Attributes:
        columns: The list; None stands for every column that a change holds.
        by: The column whose values decide.
    """

    op: Op
    row: ConflictKind
    method: Method
    columns: tuple[str, ...] | None = None
    by: str | None = None

    def has(self, column: str) -> bool:
        """Whether a column is in the list."""
        return self.columns is None or column in self.columns


class ErrorAction(StrEnum):
    """What is done about a change that fails, and that no resolver helps."""

    ABEND = "abend"
    RECORD = "record"
    RECORD_TRANSACTION = "record_transaction"
    IGNORE = "ignore"
    RETRY = "retry"
    RETRY_TRANSACTION = "retry_transaction"

    @property
    def is_of_change(self) -> bool:
        """Whether only the change is undone, and its transaction goes on."""
        return self in (ErrorAction.RECORD, ErrorAction.IGNORE, ErrorAction.RETRY)


@dataclass(frozen=True)
class ErrorRule:
    """What is done about an error.

    Attributes:
        error: A number of the error queue, or the database's own code, as text; None means any.
        times: How often is tried again; what fails then goes to the error queue.
        delay_s: How long before each time.
    """

    error: str | None
    then: ErrorAction
    times: int = 3
    delay_s: float = 60

    def is_for(self, error: ApplyError) -> bool:
        """Whether the rule is about an error."""
        return self.error in (None, str(error.number), error.code or _CODES.get(error.number, ""))


@dataclass(frozen=True)
class TableRules:
    """What is said of one table.

    Attributes:
        compared: By column, the operations that compare its old value with the row at the target; see `EVERY_COLUMN`.
    """

    compared: Mapping[str, frozenset[Op]] = field(default_factory=dict)
    resolvers: tuple[Resolver, ...] = ()
    on_error: tuple[ErrorRule, ...] = ()

    def resolvers_for(self, op: Op, row: ConflictKind) -> list[Resolver]:
        """The resolvers for a kind of conflict, in the order of the file."""
        return [one for one in self.resolvers if (one.op, one.row) == (op, row)]


_NOTHING_SAID = TableRules()

_WHILE_LOADING = (
    Resolver(Op.INSERT, ConflictKind.EXISTS, Method.OVERWRITE),
    Resolver(Op.UPDATE, ConflictKind.MISSING, Method.DISCARD),
    Resolver(Op.DELETE, ConflictKind.MISSING, Method.DISCARD),
)
"""What `handle_collisions` adds to tables that say nothing else of these conflicts."""


@dataclass(frozen=True)
class ConflictRules:
    """What is said of conflicts in all tables.

    Attributes:
        compare_key_only: No old value is compared; rows are found by their key.
        optimize_self_updates: A column set to the value it had is not compared.
        handle_collisions: While a copy catches up: changes that are in it already do no harm.
        resolves_rows: A conflict in one column calls the resolvers of all lists.
        tables: By name at the target.
    """

    compare_key_only: bool = False
    optimize_self_updates: bool = True
    handle_collisions: bool = False
    resolves_rows: bool = False
    tables: Mapping[TableName, TableRules] = field(default_factory=dict)

    def of(self, table: TableName) -> TableRules:
        """What is said of a table."""
        return self.tables.get(table, _NOTHING_SAID)

    @property
    def waits(self) -> bool:
        """Whether an error of a change may be waited for, with its transaction open."""
        return any(rule.then is ErrorAction.RETRY for said in self.tables.values() for rule in said.on_error)

    @property
    def without_recording(self) -> ConflictRules:
        """The same for a retry: what is to be recorded is in the error queue already, and nothing is waited for."""
        tables = {}
        for name, said in self.tables.items():
            resolvers = tuple(one for one in said.resolvers if one.method is not Method.RECORD)
            on_error = tuple(rule for rule in said.on_error if rule.then is ErrorAction.IGNORE)
            tables[name] = replace(said, resolvers=resolvers, on_error=on_error)
        return replace(self, tables=tables)

    def resolves(self, table: TableName) -> bool:
        """Whether there are resolvers for conflicts of a table."""
        return self.handle_collisions or bool(self.of(table).resolvers)

    def resolvers_for(self, table: TableName, op: Op, row: ConflictKind) -> list[Resolver]:
        """The resolvers for a kind of conflict of a table."""
        found = self.of(table).resolvers_for(op, row)
        if not found and self.handle_collisions:
            return [one for one in _WHILE_LOADING if (one.op, one.row) == (op, row)]
        return found

    def uncompared(self, table: TableName, columns: Collection[str], op: Op) -> frozenset[str]:
        """Those of the columns, none of them of the key, whose old values an operation does not compare."""
        if self.compare_key_only:
            return frozenset(columns)
        said = self.of(table).compared
        if not said:
            return frozenset()
        others = said.get(EVERY_COLUMN, frozenset({op}))
        return frozenset(name for name in columns if op not in said.get(name, others))


@dataclass(frozen=True)
class Resolution:
    """How one list of columns of one change was resolved; holds no value of a row.

    Attributes:
        message_number: The change, counted from 1 within its transaction.
        error_number: What it would have failed with.
        row: None where an error was handled that is no conflict with one row.
    """

    message_number: int
    change: Change
    error_number: int
    row: ConflictKind | None
    method: str
    outcome: ResolverOutcome
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Conflict:
    """What resolvers are asked about.

    Attributes:
        key: Finds the row, which is locked.
        differing: The columns in conflict.
        changed: What the change would set.
        old, incoming: The row before and after the change, as far as the change tells it.
    """

    table: TargetTable
    key: RowMatch
    differing: Sequence[str]
    changed: Image
    old: Image
    incoming: Image


@dataclass(frozen=True)
class Decision:
    """What resolvers decided: the columns to set, and how each list came out."""

    values: Image
    outcomes: Sequence[tuple[Resolver, ResolverOutcome, tuple[str, ...]]]


Order: TypeAlias = Callable[[TargetTable, RowMatch, str, "str | None"], "int | None"]
"""Compares a value with that of a row, as `TargetSession.order` does."""

Shifted: TypeAlias = Callable[[TargetTable, RowMatch, str, "str | None", "str | None"], "str | None"]
"""Adds a difference to a number of a row, as `TargetSession.shifted` does."""


def decide(
    resolvers: Sequence[Resolver], conflict: Conflict, *, resolves_rows: bool, order: Order, shifted: Shifted
) -> Decision | None:
    """Ask the resolvers what to set in a row; None where one of those that have a say cannot decide."""
    asked = called(resolvers, conflict.differing, resolves_rows=resolves_rows)
    if not asked:
        return None
    values, outcomes = dict(conflict.changed), []
    for resolver in asked:
        columns = columns_of(resolver, conflict.incoming)
        if columns is None:
            return None
        if resolver.method is Method.DELTA:
            moved = _moved(conflict, [name for name in columns if name in conflict.changed], shifted)
            if moved is None:
                return None
            values.update(moved)
            outcomes.append((resolver, ResolverOutcome.MERGED, columns))
            continue
        wins = incoming_wins(resolver.method, _order(conflict, resolver, order))
        if wins is None:
            return None
        for name in columns:
            if not wins:
                values.pop(name, None)
            elif name in conflict.changed or name not in conflict.table.key.columns:
                values[name] = conflict.incoming[name]
        outcomes.append((resolver, ResolverOutcome.APPLIED if wins else ResolverOutcome.DISCARDED, columns))
    return Decision(values, outcomes)


def _order(conflict: Conflict, resolver: Resolver, order: Order) -> int | None:
    """How the incoming value of the resolution column stands to the row's; see `TargetSession.order`."""
    if not resolver.method.compares or resolver.by is None:
        return None
    return order(conflict.table, conflict.key, resolver.by, conflict.incoming.get(resolver.by))


def _moved(conflict: Conflict, columns: Sequence[str], shifted: Shifted) -> Image | None:
    """Numbers of the row after the change has added its difference; None where one is null or not told."""
    moved = {}
    for name in columns:
        value = shifted(conflict.table, conflict.key, name, conflict.old.get(name), conflict.changed[name])
        if value is None:
            return None
        moved[name] = value
    return moved


def called(resolvers: Sequence[Resolver], conflicting: Collection[str], *, resolves_rows: bool) -> list[Resolver]:
    """Choose the resolvers that have a say: those whose list holds a column in conflict.

    Args:
        conflicting: The columns in conflict; none where the row as a whole is in the way.

    Returns:
        None of them where a column in conflict is in no list: it is as if there were no resolver at all.
    """
    if any(not any(one.has(name) for one in resolvers) for name in conflicting):
        return []
    is_whole = resolves_rows or not conflicting
    return [one for one in resolvers if is_whole or any(one.has(name) for name in conflicting)]


def incoming_wins(method: Method, order: int | None) -> bool | None:
    """Decide between the incoming values of a list and those at the target.

    Args:
        order: Of the resolution column: 1 if the incoming value is above the one at the target, 0 if they are equal,
            -1 if it is below; None where one of them is NULL.

    Returns:
        None where the method cannot decide.
    """
    match method:
        case Method.OVERWRITE:
            return True
        case Method.DISCARD:
            return False
        case Method.MAXIMUM:
            return order > 0 if order else None
        case Method.MINIMUM:
            return order < 0 if order else None
        case Method.MAXIMUM_AND_EQUAL:
            return None if order is None else order >= 0
        case Method.MINIMUM_AND_EQUAL:
            return None if order is None else order <= 0
        case Method.DELTA | Method.RECORD:
            return None
        case _:
            assert_never(method)


def columns_of(resolver: Resolver, incoming: Image) -> tuple[str, ...] | None:
    """The columns of a resolver's list, as far as it needs their values; None where the change lacks one of them."""
    if resolver.columns is None:
        return tuple(incoming)
    if resolver.method is Method.DISCARD or set(resolver.columns) <= set(incoming):
        return resolver.columns
    return None


def error_rule(rules: TableRules, error: ApplyError) -> ErrorRule | None:
    """The first rule that is about an error."""
    return next((rule for rule in rules.on_error if rule.is_for(error)), None)
