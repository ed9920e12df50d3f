"""What changes will meet, looked for at once and, where it is sure to stay so, resolved at once.

A group that goes around its conflicts knows which changes meet rows that they do not expect. One by one each of them
costs two round trips or three: to find its row, to write it, to check what it refers to. Together they cost three.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from penstock.apply.apply_errors import ApplyError, SpeculationError
from penstock.apply.conflict_methods import ConflictKind, ConflictRules, Method, Resolution
from penstock.apply.conflict_resolver import ConflictResolver, Done, changed_columns
from penstock.apply.row_lookup import RowLookup, concerns, expects_columns, prefetched
from penstock.apply.session import TargetSession
from penstock.apply.target import ComparedRow, RowMatch, TargetCatalog, TargetTable
from penstock.change import Change, Image, Op, TableName, Transaction
from penstock.external_values import ExternalValue
from penstock.schema import Dictionary, Exclusion, ForeignKey, Unique

_WITHOUT_LOOKING = (Method.OVERWRITE, Method.DISCARD)
"""Methods that decide without asking the target."""

_WITHOUT_WRITING = (Method.DISCARD, Method.RECORD)
"""Methods that leave a row as it is."""


@dataclass(frozen=True)
class PrefetchedConflict:
    """What is known of a change that is likely to meet a row that it does not expect.

    Attributes:
        rows: What is found by its key; None where that was not looked for.
        resolved: What it came to and how it was resolved, where that is done.
        error: What it met, where it is resolved.
        references: Foreign keys that its row has parents for, which are locked.
    """

    rows: Sequence[ComparedRow] | None = None
    resolved: tuple[Done, Sequence[Resolution]] | None = None
    error: ApplyError | None = None
    references: frozenset[ForeignKey] = frozenset()


Meeting = Mapping[int, PrefetchedConflict]
"""By their numbers, counted from 1: the changes of a transaction that are likely to meet such rows."""

NOTHING_MET: Meeting = {}


@dataclass(frozen=True)
class PrefetchRequest:
    """A transaction of which some changes are likely to meet rows that they do not expect.

    Attributes:
        numbers: These changes, counted from 1.
        now: Those of them whose rows are looked for before anything is applied.
        early: Those of these that may be resolved out of turn: no earlier change that is still to be applied writes to
            their rows, and nothing undoes their transaction alone.
    """

    transaction: Transaction
    numbers: Sequence[int]
    now: Sequence[int]
    early: Collection[int] = ()


@dataclass
class _Case:
    """A change whose row is looked for.

    Attributes:
        is_asked: What its resolvers will ask of the row is known: `orders` and `shifted`, by column.
    """

    at: int
    number: int
    change: Change
    table: TargetTable
    match: RowMatch
    rows: Sequence[ComparedRow] | None = None
    resolved: tuple[Done, Sequence[Resolution]] | None = None
    error: ApplyError | None = None
    references: frozenset[ForeignKey] = frozenset()
    is_asked: bool = False
    orders: dict[str, int | None] = field(default_factory=dict)
    shifted: dict[str, str | None] = field(default_factory=dict)


class ConflictPrefetch:
    """Looks ahead for the row path, inside the open transaction of a session."""

    def __init__(
        self,
        session: TargetSession,
        catalog: TargetCatalog,
        dictionary: Dictionary,
        conflicts: ConflictRules,
        lookup: RowLookup,
    ) -> None:
        """Look through `session`, for changes of the tables in the dictionary."""
        self._session = session
        self._catalog = catalog
        self._dictionary = dictionary
        self._conflicts = conflicts
        self._lookup = lookup
        self._noted: list[tuple[TargetTable, RowMatch, Image]] = []
        self._case: _Case | None = None
        self._resolver = ConflictResolver(
            session, dictionary, conflicts, update=self._note, order=self._order, shifted=self._shifted
        )

    def look(self, asking: Sequence[PrefetchRequest]) -> list[Meeting]:
        """Find the rows that changes meet, and resolve what can be resolved out of turn.

        Rows that no resolver may be asked about are not locked: what is said of them was so at the time.

        Args:
            asking: In commit order; all that comes before them is applied.

        Raises:
            SpeculationError: Rows were not as they had to be; nothing may be concluded from that.
        """
        cases = list(self._cases(asking))
        if self._tried(lambda: self._compare(cases)):
            self._resolve([one for one in cases if one.number in asking[one.at].early], set(self._removing(asking)))
        found: list[dict[int, PrefetchedConflict]] = [
            dict.fromkeys(one.numbers, PrefetchedConflict()) for one in asking
        ]
        for one in cases:
            found[one.at][one.number] = PrefetchedConflict(one.rows, one.resolved, one.error, one.references)
        return list(found)

    def _cases(self, asking: Sequence[PrefetchRequest]) -> Iterator[_Case]:
        for at, one in enumerate(asking):
            now = frozenset(one.now)
            for number, change in enumerate(one.transaction.changes, start=1) if now else ():
                table = self._catalog.tables.get(change.table)
                if number not in now or table is None:
                    continue
                try:
                    expects_columns(change, table, self._dictionary)
                    match = self._lookup.prefetched(change, table)
                except ApplyError:
                    # It is said when the change is tried.
                    continue
                if match is not None:
                    yield _Case(at, number, change, table, match)

    def _removing(self, asking: Iterable[PrefetchRequest]) -> Iterator[TableName]:
        """Yield tables from which changes may take a row away, or what others refer to it by."""
        for asked in asking:
            for change in asked.transaction.changes:
                if change.op is Op.INSERT:
                    continue
                table = self._catalog.tables.get(change.table)
                if (
                    change.op is not Op.UPDATE
                    or table is None
                    or any(concerns(change, foreign_key.parent_columns) for foreign_key in table.schema.referenced_by)
                ):
                    yield change.table

    def _compare(self, cases: Sequence[_Case]) -> None:
        is_resolved = [
            bool(self._conflicts.resolvers_for(one.table.name, one.change.op, ConflictKind.EXISTS)) for one in cases
        ]
        for lock in (True, False):
            some = [one for one, is_locked in zip(cases, is_resolved, strict=True) if is_locked == lock]
            found = self._session.compare_many([(one.table, one.match) for one in some], lock=lock)
            for one, rows in zip(some, found, strict=True):
                one.rows = rows

    def _ask(self, cases: Iterable[_Case]) -> None:
        """Ask for all rows at once what resolvers will ask of them, which are locked."""
        orders: list[tuple[_Case, str, str | None]] = []
        moves: list[tuple[_Case, str, str | None, str | None]] = []
        for one in cases:
            resolvers = self._conflicts.resolvers_for(one.table.name, one.change.op, ConflictKind.EXISTS)
            if one.change.op is not Op.UPDATE or not one.rows or not one.rows[0][1]:
                continue
            before, changed = one.change.before or {}, changed_columns(one.change)
            incoming = {**before, **(one.change.after or {})}
            if any(isinstance(value, ExternalValue) for value in incoming.values()):
                continue
            one.is_asked = True
            by = {resolver.by for resolver in resolvers if resolver.method.compares and resolver.by is not None}
            orders += [(one, name, incoming.get(name)) for name in sorted(by)]
            deltas = [resolver for resolver in resolvers if resolver.method is Method.DELTA]
            moved = [name for name in changed if any(resolver.has(name) for resolver in deltas)]
            moves += [(one, name, before.get(name), changed[name]) for name in moved]
        found = self._session.order_many([(one.table, one.match, name, value) for one, name, value in orders])
        for (one, name, _), order in zip(orders, found, strict=True):
            one.orders[name] = order
        values = self._session.shifted_many([(one.table, one.match, name, old, new) for one, name, old, new in moves])
        for (one, name, _, _), value in zip(moves, values, strict=True):
            one.shifted[name] = value

    def _order(self, table: TargetTable, match: RowMatch, column: str, value: str | None) -> int | None:
        assert self._case is not None
        return self._case.orders[column]

    def _shifted(
        self, table: TargetTable, match: RowMatch, column: str, old: str | None, new: str | None
    ) -> str | None:
        assert self._case is not None
        return self._case.shifted[column]

    def _resolve(self, cases: Sequence[_Case], removing: Set[TableName]) -> None:
        self._noted, resolved = [], []
        can_ask = self._tried(lambda: self._ask(cases))
        for one in cases:
            self._case = one
            error = prefetched(one.change, one.table, one.rows, self._lookup)
            if error is None or one.rows is None or not self._decides_alone(one, one.rows, can_ask=can_ask):
                continue
            count = len(self._noted)
            made = self._resolver.resolve(one.number, one.change, one.table, error, one.rows)
            if made is None or not all(
                _may_be_early(table, values, removing) for table, _, values in self._noted[count:]
            ):
                del self._noted[count:]
                continue
            resolved.append((one, error, made))
        if not self._tried(self._write):
            return
        for one, error, made in resolved:
            one.error, one.resolved = error, made
        self._refer([one for one, _, _ in resolved])

    def _decides_alone(self, one: _Case, rows: Sequence[ComparedRow], *, can_ask: bool) -> bool:
        """Whether the resolvers of a change decide by what is known, and what they write can be noted."""
        if one.change.op is Op.INSERT and len(rows) != 1:
            # Its row may be inserted, or it does not say which one is meant.
            return False
        row = ConflictKind.EXISTS if rows else ConflictKind.MISSING
        resolvers = self._conflicts.resolvers_for(one.table.name, one.change.op, row)
        if one.change.op is Op.DELETE or row is ConflictKind.MISSING:
            return bool(resolvers) and resolvers[0].method in _WITHOUT_WRITING
        methods = [resolver.method for resolver in resolvers]
        if methods[:1] == [Method.RECORD]:
            return True
        is_asked = one.is_asked and can_ask
        return bool(methods) and (is_asked or all(method in _WITHOUT_LOOKING for method in methods))

    def _note(self, table: TargetTable, match: RowMatch, values: Image) -> int:
        self._noted.append((table, match, values))
        return 1

    def _write(self) -> None:
        if self._session.update_many(self._noted) != len(self._noted):
            raise SpeculationError("rows that were locked are not there")

    def _refer(self, cases: Sequence[_Case]) -> None:
        """Find the parents that rows refer to now. Whatever takes one away later looks for its children."""
        asked: dict[ForeignKey, list[tuple[_Case, Sequence[str]]]] = defaultdict(list)
        for one in cases:
            assert one.resolved is not None
            done = one.resolved[0]
            for foreign_key in one.table.schema.foreign_keys if done.change is not None else ():
                assert done.change is not None
                values = [done.images.after.get(name) for name in foreign_key.columns]
                if concerns(done.change, foreign_key.columns) and None not in values:
                    asked[foreign_key].append((one, [value for value in values if value is not None]))
        for foreign_key, rows in asked.items():
            found = self._session.find_parents(foreign_key, [values for _, values in rows])
            for (one, _), is_found in zip(rows, found, strict=True):
                if is_found:
                    one.references |= {foreign_key}

    def _tried(self, step: Callable[[], None]) -> bool:
        """Take a step for all changes; False where the target refuses it: one by one it is known who is to blame."""
        try:
            with self._session.savepoint():
                step()
        except ApplyError:
            return False
        return True


def _may_be_early(table: TargetTable, values: Image, removing: Set[TableName]) -> bool:
    """Whether a row may be written before changes that come first, as far as nothing tells what it has now.

    Not what a constraint looks at: it may free a value that one of them would take, or let go of a parent that one of
    them takes away.
    """
    schema = table.schema
    rules: list[Unique | Exclusion] = [*schema.all_uniques, *schema.exclusions]
    if not all(rule.columns for rule in rules):
        # It looks at an expression.
        return False
    looked_at = {name for rule in rules for name in rule.columns}
    looked_at |= {name for foreign_key in schema.referenced_by for name in foreign_key.parent_columns}
    looked_at |= {name for one in schema.foreign_keys if one.parent in removing for name in one.columns}
    if any(column.is_generated and column.name in looked_at for column in schema.columns):
        # It changes with columns that it is not told of.
        return False
    looked_at |= {column.name for column in schema.columns if column.is_identity_always}
    return not looked_at & values.keys()
