"""The row path: one transaction, change by change, with every conflict told exactly.

Foreign keys and deferrable constraints are checked when all changes are in: the source committed them together,
so a constraint that is broken half-way does not matter (ADR 4).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, islice

from penstock.apply.apply_errors import (
    CHILD_EXISTS,
    FOREIGN_KEY_VIOLATED,
    MORE_THAN_ONE_ROW,
    NOT_CAPTURED,
    ROW_DIFFERS,
    ROW_MISSING,
    TABLE_MISSING,
    UNIQUE_VIOLATED,
    VALUE_MALFORMED,
    VALUE_MISSING,
    ApplyError,
    ContentionError,
)
from penstock.apply.conflict_prefetch import NOTHING_MET, Meeting
from penstock.apply.conflict_resolver import NOTHING_DONE, ConflictResolver, Done, Images, changed_columns, writable
from penstock.apply.ddl import ALL_DDL, DdlRules, is_drop
from penstock.apply.ddl_applier import DdlApplier, copied_table, not_instantiated
from penstock.apply.deferred_rows import DeferredRows
from penstock.apply.handlers.matrix import FailedError, execute
from penstock.apply.handlers.message import unhandled
from penstock.apply.handlers.runner import Effects, Handlers
from penstock.apply.ledger import Failure
from penstock.apply.resolve import (
    ConflictKind,
    ConflictRules,
    ErrorAction,
    ErrorRule,
    Resolution,
    ResolverOutcome,
    error_rule,
)
from penstock.apply.row_lookup import RowLookup, concerns, differs, expects_columns, missing, prefetched
from penstock.apply.target import ComparedRow, RowMatch, RowWriter, TargetCatalog, TargetTable
from penstock.change import Change, Image, Op, TableName, Transaction
from penstock.errors import PenstockError
from penstock.external_values import ExternalValue
from penstock.schema import Dictionary, ForeignKey


class TransactionError(PenstockError):
    """A transaction cannot be applied; `failure` says which change and why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error.what, where=failure.error.where)
        self.failure = failure


@dataclass
class Handled:
    """What the row path did about conflicts and errors of a transaction that it has applied.

    Attributes:
        resolutions: In the order of the changes.
        recorded: Changes that are to go to the error queue by themselves, each with why; their transaction goes on.
    """

    resolutions: list[Resolution] = field(default_factory=list)
    recorded: list[tuple[Change, Failure]] = field(default_factory=list)


@dataclass(frozen=True)
class _Resolved:
    """What a change came to, and how the conflict was resolved that it met, if it met one."""

    done: Done | None
    resolutions: Sequence[Resolution] = ()
    error: ApplyError | None = None


class _NoConflictError(Exception):
    """There is nothing to resolve."""


class RowPath:
    """Applies transactions through a session whose transaction the caller opens and closes, but for `explain`."""

    def __init__(
        self,
        writer: RowWriter,
        catalog: TargetCatalog,
        dictionary: Dictionary,
        *,
        allow_duplicate_rows: bool,
        conflicts: ConflictRules,
        handlers: Handlers | None = None,
        ddl: DdlRules = ALL_DDL,
    ) -> None:
        """Write to the catalog's tables changes of the tables in the dictionary.

        Args:
            allow_duplicate_rows: Where several rows are equal in every column, change one of them.
            conflicts: How conflicts are found and resolved, and what is done about errors.
            handlers: What users have done with changes.
            ddl: What becomes of alterations of tables.
        """
        self._writer = writer
        self._handlers = handlers
        self._catalog = self._before = catalog
        self._dictionary = dictionary
        self._conflicts = conflicts
        self.aim = RowLookup(conflicts, allow_duplicate_rows=allow_duplicate_rows)
        self._resolver = ConflictResolver(writer, dictionary, conflicts)
        self._following = DdlApplier(writer, ddl, handlers)
        self._deferred_rows = DeferredRows(writer)
        self._meeting: Meeting = {}

    def apply(self, transaction: Transaction, meeting: Meeting = NOTHING_MET) -> Handled:
        """Apply every change of a transaction, then make the checks that the database leaves to us.

        Args:
            meeting: Changes of which it is likely that they meet a row that they do not expect: it is looked for before
                they are tried, unless it was found already.

        Raises:
            TransactionError: A change conflicts or fails; the caller must roll back.
            OperatorError: A table was altered, and that is to stop the process.
        """
        self._before = self._catalog
        self._meeting = meeting
        try:
            return self._apply(transaction)
        except BaseException:
            self.rolled_back()
            raise

    def rolled_back(self) -> None:
        """The transaction that was applied last is not committed: tables that it has altered are as before."""
        self._catalog = self._before

    def _apply(self, transaction: Transaction) -> Handled:
        message_number = 0
        handled = Handled()
        # By the number of a change that does not tell all that is checked in the end: what it came to.
        special: dict[int, Sequence[Done]] = {}
        self._following.begin()
        self._deferred_rows.begin(transaction, self._catalog)
        if self._handlers is not None:
            self._handlers.begin()
        try:
            for run in _runs(transaction.changes):
                message_number += 1
                if run[0].op is Op.TRUNCATE:
                    self._writer.truncate([self._table(change) for change in run])
                    message_number += len(run) - 1
                elif run[0].op is Op.MESSAGE:
                    if self._handlers is None:
                        raise unhandled(run[0])
                    self._handlers.deliver(run[0], message_number, transaction)
                elif run[0].op is Op.DDL:
                    self._catalog = self._following.carry_out(message_number, run, transaction, self._catalog)
                    message_number += len(run) - 1
                else:
                    came_to = self._handle_or_process(message_number, run[0], transaction, handled)
                    if came_to is not None:
                        special[message_number] = came_to
                last = message_number
                for deferred in self._deferred_rows.due(last):
                    message_number = deferred.number
                    self._deferred_rows.put_back(deferred)
                message_number = last
            unchecked = self._catalog.unchecked(transaction.commit_scn)
            for number, change in enumerate(transaction.changes, start=1):
                message_number = number
                for done in special.get(number, (Done(change, _told(change)),)):
                    if done.change is not None and done.change.op not in (Op.TRUNCATE, Op.DDL, Op.MESSAGE):
                        self._check(number, done.change, done.images, unchecked)
            if self._handlers is not None:
                message_number = 0
                self._handlers.before_commit(transaction)
                self._handlers.end()
        except ApplyError as exc:
            raise TransactionError(Failure(message_number, exc)) from exc
        except ContentionError as exc:
            exc.message_number = message_number
            raise
        return handled

    def prefetched_failure(self, transaction: Transaction, meeting: Meeting) -> Failure | None:
        """What a transaction fails with because of the row that its first change meets; no statement is tried for it.

        Args:
            meeting: See `apply`.

        Returns:
            None where that is not known, or something is to be done about it.
        """
        change, met = _nth(transaction, 1), meeting.get(1)
        if met is None or met.rows is None or met.mended is not None or change.op not in (Op.UPDATE, Op.DELETE):
            return None
        if self._handlers is not None and self._handlers.of(change) is not None:
            return None
        try:
            error = self._prefetched(change, self._table(change), met.rows)
        except ApplyError:
            # It is said when the change is tried.
            return None
        if error is None:
            return None
        row = ConflictKind.EXISTS if met.rows else ConflictKind.MISSING
        rule = error_rule(self._conflicts.of(change.table), error)
        is_answered = rule is not None and rule.then is not ErrorAction.RECORD_TRANSACTION
        if is_answered or self._conflicts.resolvers_for(change.table, change.op, row):
            return None
        return Failure(1, error)

    def error_rule(self, transaction: Transaction, failure: Failure) -> ErrorRule | None:
        """What is to be done about a transaction that failed, where the pipeline file says it."""
        if failure.message_number == 0:
            return None
        change = _nth(transaction, failure.message_number)
        return error_rule(self._conflicts.of(change.table), failure.error)

    def explain(self, transaction: Transaction, failure: Failure, *, is_open: bool = False) -> Failure:
        """Add to a failure the column that does not take its value, or the row that stands in the way.

        To be called once the transaction is rolled back, so a row is told as it was before it. A fact that cannot be
        found out is left out.

        Args:
            is_open: A transaction of the session is open, and is not to be broken; otherwise opens one.
        """
        if failure.message_number == 0:
            return failure
        change = _nth(transaction, failure.message_number)
        table = self._catalog.tables.get(change.table)
        if table is None or not _can_be_explained(failure.error, change):
            return failure
        # Another session may have altered the table, or hold a lock on it; report the first failure.
        scope = self._writer.savepoint if is_open else self._writer.transaction
        with suppress(ApplyError, ContentionError), scope():
            return replace(failure, error=self._explained(failure.error, change, table))
        return failure

    def _explained(self, error: ApplyError, change: Change, table: TargetTable) -> ApplyError:
        if error.column is None and error.may_be_of_value:
            for image in (change.after, change.before):
                column = self._writer.unfit_column(table, _known(image, table))
                if column is not None:
                    return error.with_column(column, table.schema.by_name[column].type)
        elif error.constraint is not None:
            image = _known({**_present(change.before), **_present(change.after)}, table)
            for row in self._writer.rows_in_the_way(table, error.constraint, image):
                if not _is_own(row, change, table):
                    return error.with_found(row)
        return error

    def _table(self, change: Change) -> TargetTable:
        return copied_table(change.table, self._catalog)

    def _handle_or_process(
        self, number: int, change: Change, transaction: Transaction, handled: Handled
    ) -> Sequence[Done] | None:
        """Process one change, by its handlers if it has any; returns what it came to, as `_process`."""
        if self._handlers is None or self._handlers.of(change) is None:
            done = self._process(number, change, handled)
            return None if done is None else [done]
        if change.table not in self._catalog.instantiated:
            raise not_instantiated(change.table)
        for name, value in _present(change.after).items():
            if isinstance(value, ExternalValue):
                what = f"column {name!r} has a value that is too large for handlers, or that was appended to"
                raise ApplyError(VALUE_MISSING, what, where=_place(change))
        effects = self._handlers.process(self, number, change, transaction)
        handled.resolutions += effects.resolutions
        handled.recorded += [(recorded, Failure(1, error)) for recorded, error in effects.recorded]
        return effects.done

    def savepoint(self) -> AbstractContextManager[None]:
        """See `handlers.runner.Applier`; so is all that follows, up to `resolve`."""
        return self._writer.savepoint()

    def table_named(self, name: TableName) -> TargetTable:
        """Return a table of the target, also one that no changes come for."""
        table = self._catalog.tables.get(name)
        if table is None and self._handlers is not None:
            table = self._handlers.described(name)
        if table is None:
            raise ApplyError(TABLE_MISSING, f"table {name} does not exist at the target")
        return table

    def perform(self, number: int, change: Change, *, with_resolvers: bool) -> Effects:
        """Apply a change directly."""
        table = self.table_named(change.table)

        def apply() -> _Resolved:
            # Resolvers make good what the database refuses.
            with self._writer.savepoint() if self._resolver.mends_refusals(change, table) else nullcontext():
                return _Resolved(self._apply_row(number, change, table))

        def resolve(error: ApplyError) -> _Resolved | None:
            mended = self._resolver.mend(number, change, table, error)
            return None if mended is None else _Resolved(*mended, error)

        return _effects(change, execute(apply, resolve, with_resolvers=with_resolvers))

    def resolve(self, number: int, change: Change) -> Effects | None:
        """Have resolvers decide about a change."""
        try:
            with self._writer.savepoint():
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

    def _process(self, number: int, change: Change, handled: Handled) -> Done | None:
        """Process one change: apply it, or resolve its conflict, or do what is to be done about its error.

        Returns:
            What it came to, where the change itself does not tell all that is checked in the end.
        """
        table = self._table(change)
        rules = self._conflicts.of(change.table)
        tries = 0
        while True:
            try:
                # What fails is undone alone only where something may be done about it: savepoints cost.
                is_apart = any(rule.then.is_of_change for rule in rules.on_error)
                with self._writer.savepoint() if is_apart else nullcontext():
                    mended = self._apply_or_resolve(number, change, table)
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
            if mended.error is not None and any(one.outcome is ResolverOutcome.RECORDED for one in mended.resolutions):
                handled.recorded.append((change, Failure(1, mended.error)))
            handled.resolutions += mended.resolutions
            return mended.done

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
        if met is not None and met.mended is not None:
            return _Resolved(*met.mended, met.error)
        if met is not None and (error := self._prefetched(change, table, met.rows)) is not None:
            mended = self._resolver.mend(number, change, table, error, met.rows)
            if mended is not None:
                return _Resolved(*mended, error)
            if error.number in (ROW_DIFFERS, ROW_MISSING):
                raise error
        try:
            with self._writer.savepoint() if self._resolver.mends_refusals(change, table) else nullcontext():
                return _Resolved(self._apply_row(number, change, table))
        except ApplyError as exc:
            mended = self._resolver.mend(number, change, table, exc)
            if mended is None:
                raise
            return _Resolved(*mended, exc)

    def _prefetched(self, change: Change, table: TargetTable, rows: Sequence[ComparedRow] | None) -> ApplyError | None:
        """What a change would fail with that meets a row with its key; None where that cannot be told without trying.

        Of an insert it is only likely.
        """
        expects_columns(change, table, self._dictionary)
        match = self.aim.prefetched(change, table)
        if match is not None and rows is None and change.op is not Op.INSERT:
            rows = self._writer.compare_rows(table, match)
        return prefetched(change, table, rows, self.aim)

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
                self._writer.insert(table, writable(_present(change.after), table))
            case Op.UPDATE:
                self._update(change, table)
            case Op.DELETE:
                row = self.aim.of_delete(change, table)
                self._expect_alike(row, table, change)
                self._expect_one(self._writer.delete(table, row), row, table, change)
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
        match = self.aim.of_update(change, table)
        return None if match is None else self._deferred_rows.defer(number, change, table, match)

    def _told(self, change: Change, table: TargetTable) -> Images:
        """The row before and after a change, as far as it is sure to be so at the target, too."""
        told = _told(change)
        compared = self.aim.compared(change, table)
        if len(compared) == len(told.before):
            return told
        before = {n: v for n, v in told.before.items() if n in compared or n in table.key.columns}
        return Images(before, {} if change.op is Op.DELETE else {**before, **_present(change.after)})

    def _update(self, change: Change, table: TargetTable) -> None:
        row = self.aim.of_update(change, table)
        if row is None:
            return
        self._expect_alike(row, table, change)
        count = self._writer.update(table, row, writable(changed_columns(change), table))
        self._expect_one(count, row, table, change)

    def _put(self, change: Change, table: TargetTable) -> None:
        """Make the row with the key of the change what the change says, whether there is one or not."""
        after = _present(change.after)
        if not table.key.is_declared:
            what = "without a key it cannot be told whether a row of a snapshot is there already"
            raise ApplyError(VALUE_MISSING, what, where=_place(change))
        match = replace(self.aim.match(after, {}, table, change), old={})
        rows = self._writer.lock_rows(table, match)
        if len(rows) > 1:
            raise ApplyError(MORE_THAN_ONE_ROW, f"{change.op} matches several rows", where=_place(change))
        values = writable(after, table)
        if not rows:
            self._writer.insert(table, values)
            return
        # What is as it should be is not written again.
        different = {name: value for name, value in values.items() if rows[0][name] != value}
        if different:
            self._writer.update(table, match, different)

    def _found(self, image: Image, table: TargetTable) -> Image:
        """The row with the key that an image has; empty where there is none, or no key in the image."""
        if not table.key.is_declared or not set(table.key.columns) <= set(image):
            return {}
        rows = self._writer.lock_rows(table, RowMatch({name: image[name] for name in table.key.columns}, {}))
        # A key that the user has named may have several rows: then it is not told which one this is.
        return rows[0] if len(rows) == 1 or (rows and table.key.is_unique) else {}

    def _expect_alike(self, row: RowMatch, table: TargetTable, change: Change) -> None:
        """Any one of several rows may only be taken if all that match are equal in every column.

        Without a key they are, as far as columns can be compared. A key that the user has named tells less of a row.
        """
        is_sure = table.key.is_unique or not table.substitute_key
        if row.only_one and not is_sure and self._writer.do_rows_differ(table, row):
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
        found = self._writer.compare_rows(table, row) if table.key.is_declared else []
        return differs(change, found[0]) if found else None

    def _check(self, number: int, change: Change, images: Images, unchecked: Collection[ForeignKey]) -> None:
        name = self._following.name_now(change.table, number)
        if name is None:
            # The transaction has dropped the table, and its rows with it.
            return
        table = self.table_named(name)
        if change.op is not Op.DELETE:
            broken = self._writer.is_unique_broken(table, images.after)
            if broken is not None:
                what = f"two rows break constraint {broken!r}"
                raise ApplyError(UNIQUE_VIOLATED, what, where=_place(change), constraint=broken)
        # A row of a snapshot is put in place as a first copy does it: parents may come with later changes.
        if change.op is Op.SNAPSHOT:
            return
        met = self._meeting.get(number)
        found = met.references if met is not None else ()
        for foreign_key in table.schema.foreign_keys:
            if foreign_key in unchecked or change.op is Op.DELETE or foreign_key in found:
                continue
            if concerns(change, foreign_key.columns):
                self._check_reference(foreign_key, images.after, change, is_child=True)
        for foreign_key in table.schema.referenced_by:
            is_checked = change.before is not None and foreign_key not in unchecked
            if is_checked and concerns(change, foreign_key.parent_columns):
                self._check_reference(foreign_key, images.before, change, is_child=False)

    def _check_reference(self, foreign_key: ForeignKey, image: Image, change: Change, *, is_child: bool) -> None:
        columns = foreign_key.columns if is_child else foreign_key.parent_columns
        if not set(columns) <= set(image):
            # The change does not tell its row's key, or the row was gone when it was looked for.
            return
        values = [value for name in columns if (value := image.get(name)) is not None]
        if len(values) < len(columns):
            if is_child and foreign_key.is_match_full and values:
                what = f"foreign key {foreign_key.name!r} is half null"
                raise ApplyError(FOREIGN_KEY_VIOLATED, what, where=_place(change))
            return
        if not self._writer.is_reference_broken(foreign_key, values, is_child=is_child):
            return
        if is_child:
            what = f"no row of {foreign_key.parent} for foreign key {foreign_key.name!r}"
            raise ApplyError(FOREIGN_KEY_VIOLATED, what, where=_place(change))
        what = f"rows of {foreign_key.child} still refer by foreign key {foreign_key.name!r}"
        raise ApplyError(CHILD_EXISTS, what, where=_place(change))


def _can_be_explained(error: ApplyError, change: Change) -> bool:
    """Whether more may be found out of an error at the target."""
    is_taken = error.number == UNIQUE_VIOLATED and error.constraint is not None and change.op is not Op.DELETE
    return (error.column is None and error.may_be_of_value) or is_taken


def _effects(change: Change, mended: _Resolved) -> Effects:
    """What a change came to; the checks in the end are told even what the change itself tells."""
    done = mended.done if mended.done is not None else Done(change, _told(change))
    is_recorded = any(one.outcome is ResolverOutcome.RECORDED for one in mended.resolutions)
    recorded = [(change, mended.error)] if is_recorded and mended.error is not None else []
    return Effects([done], list(mended.resolutions), recorded)


def _runs(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Yield the changes one by one, but neighbouring truncates together, and drops: one statement may name them all."""
    for shared, run in groupby(changes, _shared):
        if shared is None:
            yield from ([change] for change in run)
        else:
            yield list(run)


def _shared(change: Change) -> Op | None:
    return change.op if change.op is Op.TRUNCATE or is_drop(change) else None


def _told(change: Change) -> Images:
    """The row before and after a change, as far as the change tells them."""
    before = _present(change.before)
    return Images(before, {} if change.op is Op.DELETE else {**before, **_present(change.after)})


def _present(image: Image | None) -> Image:
    return {} if image is None else image


def _known(image: Image | None, table: TargetTable) -> Image:
    """Leave out what the target has no column for."""
    return {name: value for name, value in _present(image).items() if name in table.schema.by_name}


def _is_own(row: Image, change: Change, table: TargetTable) -> bool:
    """Whether a row is the one that an update or a snapshot changes."""
    old = change.after if change.op is Op.SNAPSHOT else change.before
    return old is not None and all(row[name] == old.get(name) for name in table.key.columns)


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


def _nth(transaction: Transaction, number: int) -> Change:
    return next(islice(transaction.changes, number - 1, None))


def _place(change: Change) -> str:
    return f"table {change.table}"
