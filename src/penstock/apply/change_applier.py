"""Applies single changes of rows: each as it is, or as resolvers and the rules for errors say."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace

from penstock.apply import row_lookup
from penstock.apply.apply_errors import (
    MORE_THAN_ONE_ROW,
    NOT_CAPTURED,
    NOT_INSTANTIATED,
    ROW_DIFFERS,
    ROW_MISSING,
    TABLE_MISSING,
    VALUE_MALFORMED,
    VALUE_MISSING,
    ApplyError,
)
from penstock.apply.conflict_methods import ConflictRules, ErrorAction, Resolution, ResolverOutcome, error_rule
from penstock.apply.conflict_prefetch import NOTHING_MET, Meeting
from penstock.apply.conflict_resolver import NOTHING_DONE, ConflictResolver, Done, Images, changed_columns, writable
from penstock.apply.deferred_rows import DeferredRows
from penstock.apply.handlers.matrix import FailedError, execute
from penstock.apply.ledger import Failure
from penstock.apply.row_lookup import RowLookup, concerns, differs, expects_columns, missing
from penstock.apply.session import TargetSession
from penstock.apply.target import ComparedRow, RowMatch, TargetCatalog, TargetTable
from penstock.change import Change, Image, Op, TableName, Transaction
from penstock.schema import Dictionary, ForeignKey


@dataclass
class Handled:
    """What the row path did about conflicts and errors of a transaction that it has applied.

    Attributes:
        resolutions: In the order of the changes.
        recorded: Changes that are to go to the error queue by themselves, each with why; their transaction goes on.
    """

    resolutions: list[Resolution] = field(default_factory=list)
    recorded: list[tuple[Change, Failure]] = field(default_factory=list)


@dataclass
class Effects:
    """What came of a change so far, besides what is at the target.

    Attributes:
        done: What was carried out, for the checks that `RowPath._check` makes in the end.
        recorded: Changes that are to go to the error queue by themselves, with why.
    """

    done: list[Done] = field(default_factory=list)
    resolutions: list[Resolution] = field(default_factory=list)
    recorded: list[tuple[Change, ApplyError]] = field(default_factory=list)

    @contextmanager
    def undone_with(self, savepoint: AbstractContextManager[None]) -> Iterator[None]:
        """Forget what the block adds if it raises, as a savepoint does at the target."""
        lengths = len(self.done), len(self.resolutions), len(self.recorded)
        try:
            with savepoint:
                yield
        except BaseException:
            for entries, length in zip((self.done, self.resolutions, self.recorded), lengths, strict=True):
                del entries[length:]  # type: ignore[attr-defined]  # three lists of different things
            raise


@dataclass(frozen=True)
class _Resolved:
    """What a change came to, and how the conflict was resolved that it met, if it met one."""

    done: Done | None
    resolutions: Sequence[Resolution] = ()
    error: ApplyError | None = None


class _NoConflictError(Exception):
    """There is nothing to resolve."""


class ChangeApplier:
    """Applies single changes through a session, inside the transaction that the caller has opened.

    Attributes:
        catalog: The target's tables as they are now; DDL of the open transaction alters them.
        lookup: Says which row a change is about.
    """

    def __init__(
        self,
        session: TargetSession,
        catalog: TargetCatalog,
        dictionary: Dictionary,
        conflicts: ConflictRules,
        *,
        allow_duplicate_rows: bool,
    ) -> None:
        """Apply to the catalog's tables changes of the tables in the dictionary; see `RowPath`."""
        self.catalog = catalog
        self.lookup = RowLookup(conflicts, allow_duplicate_rows=allow_duplicate_rows)
        self._session = session
        self._dictionary = dictionary
        self._conflicts = conflicts
        self._resolver = ConflictResolver(session, dictionary, conflicts)
        self._deferred_rows = DeferredRows(session)
        self._described: dict[TableName, TargetTable | None] = {}
        self._meeting: Meeting = NOTHING_MET

    def begin(self, transaction: Transaction, meeting: Meeting) -> None:
        """Begin with a transaction; see `RowPath.apply`."""
        self._meeting = meeting
        self._deferred_rows.begin(transaction, self.catalog)

    def put_back_due(self, number: int) -> Iterator[int]:
        """Put back the rows that have waited for a change; yields the number of the change of each before it is put."""
        for deferred in self._deferred_rows.due(number):
            yield deferred.number
            self._deferred_rows.put_back(deferred)

    def altered(self, catalog: TargetCatalog) -> None:
        """Go on with the tables as DDL has left them."""
        self.catalog = catalog
        self._described.clear()

    def references_found(self, number: int) -> Collection[ForeignKey]:
        """The foreign keys of a change whose parents were found when conflicts were looked for."""
        met = self._meeting.get(number)
        return met.references if met is not None else ()

    def savepoint(self) -> AbstractContextManager[None]:
        """Undo what the block did at the target if it raises."""
        return self._session.savepoint()

    def table_named(self, name: TableName) -> TargetTable:
        """Return a table of the target, also one that no changes come for."""
        table = self.catalog.tables.get(name)
        if table is None:
            if name not in self._described:
                schema = self._session.handler_sql.describe(name)
                self._described[name] = None if schema is None else TargetTable(schema)
            table = self._described[name]
        if table is None:
            raise ApplyError(TABLE_MISSING, f"table {name} does not exist at the target")
        return table

    def perform(self, number: int, change: Change, *, with_resolvers: bool) -> Effects:
        """Apply a change directly."""
        table = self.table_named(change.table)

        def apply() -> _Resolved:
            # Resolvers may help where the database refuses.
            with self._session.savepoint() if self._resolver.resolves_refusals(change, table) else nullcontext():
                return _Resolved(self._apply_row(number, change, table))

        def resolve(error: ApplyError) -> _Resolved | None:
            resolved = self._resolver.resolve(number, change, table, error)
            return None if resolved is None else _Resolved(*resolved, error)

        return _effects(change, execute(apply, resolve, with_resolvers=with_resolvers))

    def resolve(self, number: int, change: Change) -> Effects | None:
        """Have resolvers decide about a change."""
        try:
            with self._session.savepoint():
                effects = self.perform(number, change, with_resolvers=True)
                if not effects.resolutions:
                    raise _NoConflictError
        except (FailedError, _NoConflictError, ApplyError):
            return None
        return effects

    def follow_rule(self, number: int, change: Change, error: ApplyError, again: Callable[[], None]) -> Effects | None:
        """Do what the rules for errors say."""
        rule = error_rule(self._conflicts.of(change.table), error)
        if rule is None:
            return None
        if rule.then is ErrorAction.RETRY:
            for _ in range(rule.times):
                time.sleep(rule.delay_s)
                with suppress(FailedError):
                    again()
                    return Effects()
        if not rule.then.is_of_change or rule.then is ErrorAction.RETRY:
            raise FailedError(error, resolvers_asked=True)
        handled = Handled()
        done = self._leave_out(number, change, error, rule.then, handled)
        return Effects([done], handled.resolutions, [(one, failure.error) for one, failure in handled.recorded])

    def process(self, number: int, change: Change, handled: Handled) -> Done | None:
        """Process one change: apply it, or resolve its conflict, or do what is to be done about its error.

        Returns:
            What it came to, where the change itself does not tell all that is checked in the end.
        """
        table = copied_table(change.table, self.catalog)
        rules = self._conflicts.of(change.table)
        tries = 0
        while True:
            try:
                # What fails is undone alone only where something may be done about it: savepoints cost.
                is_apart = any(rule.then.is_of_change for rule in rules.on_error)
                with self._session.savepoint() if is_apart else nullcontext():
                    resolved = self._apply_or_resolve(number, change, table)
            except ApplyError as exc:
                rule = error_rule(rules, exc)
                if rule is None or not rule.then.is_of_change:
                    raise
                if rule.then is ErrorAction.RETRY:
                    if tries == rule.times:
                        raise
                    tries += 1
                    time.sleep(rule.delay_s)
                    continue
                return self._leave_out(number, change, exc, rule.then, handled)
            if resolved.error is not None and any(
                one.outcome is ResolverOutcome.RECORDED for one in resolved.resolutions
            ):
                handled.recorded.append((change, Failure(1, resolved.error)))
            handled.resolutions += resolved.resolutions
            return resolved.done

    def _leave_out(self, number: int, change: Change, error: ApplyError, then: ErrorAction, handled: Handled) -> Done:
        """Leave a change out, whose transaction goes on."""
        outcome = ResolverOutcome.DISCARDED
        if then is ErrorAction.RECORD:
            outcome = ResolverOutcome.RECORDED
            handled.recorded.append((change, Failure(1, error)))
        handled.resolutions.append(Resolution(number, change, error.number, None, then.value, outcome, ()))
        return NOTHING_DONE

    def _apply_or_resolve(self, number: int, change: Change, table: TargetTable) -> _Resolved:
        met = self._meeting.get(number)
        if met is not None and met.resolved is not None:
            return _Resolved(*met.resolved, met.error)
        if met is not None and (error := self.prefetched(change, table, met.rows)) is not None:
            resolved = self._resolver.resolve(number, change, table, error, met.rows)
            if resolved is not None:
                return _Resolved(*resolved, error)
            if error.number in (ROW_DIFFERS, ROW_MISSING):
                raise error
        try:
            with self._session.savepoint() if self._resolver.resolves_refusals(change, table) else nullcontext():
                return _Resolved(self._apply_row(number, change, table))
        except ApplyError as exc:
            resolved = self._resolver.resolve(number, change, table, exc)
            if resolved is None:
                raise
            return _Resolved(*resolved, exc)

    def prefetched(self, change: Change, table: TargetTable, rows: Sequence[ComparedRow] | None) -> ApplyError | None:
        """What a change would fail with that meets a row with its key; None where that cannot be told without trying.

        Of an insert it is only likely.
        """
        expects_columns(change, table, self._dictionary)
        match = self.lookup.prefetched(change, table)
        if match is not None and rows is None and change.op is not Op.INSERT:
            rows = self._session.compare_rows(table, match)
        return row_lookup.prefetched(change, table, rows, self.lookup)

    def _apply_row(self, number: int, change: Change, table: TargetTable) -> Done | None:
        """Apply a change; return its row before and after it where the change does not tell all that is checked."""
        if change.op is Op.GAP:
            image = _present(change.before)
            if "document" in image:
                # It has not come so far that it would be of a table.
                raise ApplyError(NOT_CAPTURED, image.get("reason") or "the document cannot be read")
            if "rule" in image:
                # It was captured, and a rule cannot make of it what the target is to have.
                raise ApplyError(VALUE_MALFORMED, image.get("reason") or "a rule has no value", where=_place(change))
            what = f"a change was not captured: {image.get('reason')}"
            raise ApplyError(NOT_CAPTURED, what, where=_place(change))
        expects_columns(change, table, self._dictionary)
        told = self._told(change, table)
        lacks_old = change.before is not None and not _referred(change, table) <= set(told.before)
        lacks_new = change.op is not Op.DELETE and not _checked(change, table) <= set(told.after)
        before = {**self._found(told.before, table), **told.before} if lacks_old else told.before
        waiting = self._wait(number, change, table)
        if waiting is not None:
            return Done(change, Images(before, {} if change.op is Op.DELETE else waiting))
        match change.op:
            case Op.INSERT:
                self._session.insert(table, writable(_present(change.after), table))
            case Op.UPDATE:
                self._update(change, table)
            case Op.DELETE:
                row = self.lookup.of_delete(change, table)
                self._expect_alike(row, table, change)
                self._expect_one(self._session.delete(table, row), row, table, change)
            case Op.SNAPSHOT:
                self._put(change, table)
            case _:
                raise ApplyError(VALUE_MISSING, f"operation {change.op} has no row to apply", where=_place(change))
        if not (lacks_old or lacks_new):
            return None
        after = {**self._found(told.after, table), **told.after} if lacks_new else told.after
        return Done(change, Images(before, after))

    def _wait(self, number: int, change: Change, table: TargetTable) -> Image | None:
        """Have the row of a change wait for what a later one gives up, or change one that waits; see `parking`."""
        if change.op is Op.INSERT:
            return self._deferred_rows.defer(number, change, table, None)
        if change.op not in (Op.UPDATE, Op.DELETE):
            return None
        waiting = self._deferred_rows.change(number, change, table)
        if waiting is not None or change.op is Op.DELETE:
            return waiting
        match = self.lookup.of_update(change, table)
        return None if match is None else self._deferred_rows.defer(number, change, table, match)

    def _told(self, change: Change, table: TargetTable) -> Images:
        """The row before and after a change, as far as it is sure to be so at the target, too."""
        images = told(change)
        compared = self.lookup.compared(change, table)
        if len(compared) == len(images.before):
            return images
        before = {n: v for n, v in images.before.items() if n in compared or n in table.key.columns}
        return Images(before, {} if change.op is Op.DELETE else {**before, **_present(change.after)})

    def _update(self, change: Change, table: TargetTable) -> None:
        row = self.lookup.of_update(change, table)
        if row is None:
            return
        self._expect_alike(row, table, change)
        count = self._session.update(table, row, writable(changed_columns(change), table))
        self._expect_one(count, row, table, change)

    def _put(self, change: Change, table: TargetTable) -> None:
        """Make the row with the key of the change what the change says, whether there is one or not."""
        after = _present(change.after)
        if not table.key.is_declared:
            what = "without a key, nothing shows whether a row of a snapshot is already there"
            raise ApplyError(VALUE_MISSING, what, where=_place(change))
        match = replace(self.lookup.match(after, {}, table, change), old={})
        rows = self._session.lock_rows(table, match)
        if len(rows) > 1:
            raise ApplyError(MORE_THAN_ONE_ROW, f"{change.op} matches several rows", where=_place(change))
        values = writable(after, table)
        if not rows:
            self._session.insert(table, values)
            return
        # What is as it should be is not written again.
        different = {name: value for name, value in values.items() if rows[0][name] != value}
        if different:
            self._session.update(table, match, different)

    def _found(self, image: Image, table: TargetTable) -> Image:
        """The row with the key that an image has; empty where there is none, or no key in the image."""
        if not table.key.is_declared or not set(table.key.columns) <= set(image):
            return {}
        rows = self._session.lock_rows(table, RowMatch({name: image[name] for name in table.key.columns}, {}))
        # A key that the user has named may have several rows: then it is not told which one this is.
        return rows[0] if len(rows) == 1 or (rows and table.key.is_unique) else {}

    def _expect_alike(self, row: RowMatch, table: TargetTable, change: Change) -> None:
        """Any one of several rows may only be taken if all that match are equal in every column.

        Without a key they are, as far as columns can be compared. A key that the user has named tells less of a row.
        """
        is_sure = table.key.is_unique or not table.substitute_key
        if row.only_one and not is_sure and self._session.do_rows_differ(table, row):
            what = f"{change.op} matches several rows by its key, and they are not equal"
            raise ApplyError(MORE_THAN_ONE_ROW, what, where=_place(change))

    def _expect_one(self, count: int, row: RowMatch, table: TargetTable, change: Change) -> None:
        if count == 1:
            return
        if count > 1:
            raise ApplyError(MORE_THAN_ONE_ROW, f"{change.op} matches {count} rows", where=_place(change))
        error = self._difference(row, table, change)
        raise error or missing(change)

    def _difference(self, row: RowMatch, table: TargetTable, change: Change) -> ApplyError | None:
        """Tell what the row with a change's key has that the change does not expect; None without such a row."""
        found = self._session.compare_rows(table, row) if table.key.is_declared else []
        return differs(change, found[0]) if found else None


def copied_table(name: TableName, catalog: TargetCatalog) -> TargetTable:
    """Return a table that changes come for.

    Raises:
        ApplyError: The target has none of this name, or it was never copied.
    """
    table = catalog.tables.get(name)
    if table is None:
        raise ApplyError(TABLE_MISSING, f"table {name} does not exist at the target")
    if name not in catalog.instantiated:
        raise not_instantiated(name)
    return table


def not_instantiated(table: TableName) -> ApplyError:
    """What is wrong with changes of a table that this process has not copied."""
    return ApplyError(NOT_INSTANTIATED, f"table {table} was never copied to this target")


def _effects(change: Change, resolved: _Resolved) -> Effects:
    """What a change came to; the checks in the end are told even what the change itself tells."""
    done = resolved.done if resolved.done is not None else Done(change, told(change))
    is_recorded = any(one.outcome is ResolverOutcome.RECORDED for one in resolved.resolutions)
    recorded = [(change, resolved.error)] if is_recorded and resolved.error is not None else []
    return Effects([done], list(resolved.resolutions), recorded)


def told(change: Change) -> Images:
    """The row before and after a change, as far as the change tells them."""
    before = _present(change.before)
    return Images(before, {} if change.op is Op.DELETE else {**before, **_present(change.after)})


def _present(image: Image | None) -> Image:
    return {} if image is None else image


def _referred(change: Change, table: TargetTable) -> set[str]:
    """Columns that rows of other tables refer to, and that a change takes other values from."""
    keys = (fk.parent_columns for fk in table.schema.referenced_by if concerns(change, fk.parent_columns))
    return {name for columns in keys for name in columns}


def _checked(change: Change, table: TargetTable) -> set[str]:
    """Columns whose new values are checked once all changes are in."""
    if change.op is Op.SNAPSHOT:
        keys = []
    else:
        keys = [fk.columns for fk in table.schema.foreign_keys if concerns(change, fk.columns)]
    keys += [unique.columns for unique in table.schema.all_uniques if unique.is_deferrable]
    keys += [rule.columns for rule in table.schema.exclusions if rule.is_deferrable]
    return {name for columns in keys for name in columns}


def _place(change: Change) -> str:
    return f"table {change.table}"
