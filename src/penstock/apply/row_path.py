"""The row path: one transaction, change by change, with every conflict told exactly.

Foreign keys and deferrable constraints are checked when all changes are in: the source committed them together,
so a constraint that is broken half-way does not matter (ADR 4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice

from penstock.apply.apply_errors import (
    CHILD_EXISTS,
    FOREIGN_KEY_VIOLATED,
    UNIQUE_VIOLATED,
    VALUE_MISSING,
    ApplyError,
    ContentionError,
)
from penstock.apply.change_applier import ChangeApplier, Handled, copied_table, not_instantiated, told
from penstock.apply.conflict_methods import (
    ConflictKind,
    ConflictRules,
    ErrorAction,
    ErrorRule,
    error_rule,
)
from penstock.apply.conflict_prefetch import NOTHING_MET, Meeting
from penstock.apply.conflict_resolver import Done, Images
from penstock.apply.ddl import ALL_DDL, DdlRules, is_drop
from penstock.apply.ddl_applier import DdlApplier
from penstock.apply.handlers.message import unhandled
from penstock.apply.handlers.runner import Handlers
from penstock.apply.ledger import Failure
from penstock.apply.row_lookup import RowLookup, concerns
from penstock.apply.session import TargetSession
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.change import Change, Image, Op, Transaction
from penstock.errors import PenstockError
from penstock.external_values import ExternalValue
from penstock.schema import Dictionary, ForeignKey


class TransactionError(PenstockError):
    """A transaction cannot be applied; `failure` says which change and why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error.what, where=failure.error.where)
        self.failure = failure


class RowPath:
    """Applies transactions through a session whose transaction the caller opens and closes, but for `explain`."""

    def __init__(
        self,
        session: TargetSession,
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
        self._session = session
        self._handlers = handlers
        self._before = catalog
        self._conflicts = conflicts
        self._changes = ChangeApplier(
            session, catalog, dictionary, conflicts, allow_duplicate_rows=allow_duplicate_rows
        )
        self._ddl = DdlApplier(session, ddl, handlers)

    def apply(self, transaction: Transaction, meeting: Meeting = NOTHING_MET) -> Handled:
        """Apply every change of a transaction, then make the checks that the database leaves to us.

        Args:
            meeting: Changes of which it is likely that they meet a row that they do not expect: it is looked for before
                they are tried, unless it was found already.

        Raises:
            TransactionError: A change conflicts or fails; the caller must roll back.
            OperatorError: A table was altered, and that is to stop the process.
        """
        self._before = self._changes.catalog
        try:
            return self._apply(transaction, meeting)
        except BaseException:
            self.rolled_back()
            raise

    def rolled_back(self) -> None:
        """The transaction that was applied last is not committed: tables that it has altered are as before."""
        self._changes.altered(self._before)

    @property
    def lookup(self) -> RowLookup:
        """Says which row a change is about."""
        return self._changes.lookup

    def _apply(self, transaction: Transaction, meeting: Meeting) -> Handled:
        message_number = 0
        handled = Handled()
        # By the number of a change that does not tell all that is checked in the end: what it came to.
        special: dict[int, Sequence[Done]] = {}
        self._ddl.begin()
        self._changes.begin(transaction, meeting)
        if self._handlers is not None:
            self._handlers.begin()
        try:
            for run in _runs(transaction.changes):
                message_number += 1
                if run[0].op is Op.TRUNCATE:
                    self._session.truncate([copied_table(change.table, self._changes.catalog) for change in run])
                    message_number += len(run) - 1
                elif run[0].op is Op.MESSAGE:
                    if self._handlers is None:
                        raise unhandled(run[0])
                    self._handlers.deliver(run[0], message_number, transaction)
                elif run[0].op is Op.DDL:
                    self._changes.altered(self._ddl.carry_out(message_number, run, transaction, self._changes.catalog))
                    message_number += len(run) - 1
                else:
                    came_to = self._handle_or_process(message_number, run[0], transaction, handled)
                    if came_to is not None:
                        special[message_number] = came_to
                last = message_number
                for number in self._changes.put_back_due(last):
                    message_number = number
                message_number = last
            unchecked = self._changes.catalog.unchecked(transaction.commit_scn)
            for number, change in enumerate(transaction.changes, start=1):
                message_number = number
                for done in special.get(number, (Done(change, told(change)),)):
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
        if met is None or met.rows is None or met.resolved is not None or change.op not in (Op.UPDATE, Op.DELETE):
            return None
        if self._handlers is not None and self._handlers.of(change) is not None:
            return None
        try:
            error = self._changes.prefetched(change, copied_table(change.table, self._changes.catalog), met.rows)
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
        table = self._changes.catalog.tables.get(change.table)
        if table is None or not _can_be_explained(failure.error, change):
            return failure
        # Another session may have altered the table, or hold a lock on it; report the first failure.
        scope = self._session.savepoint if is_open else self._session.transaction
        with suppress(ApplyError, ContentionError), scope():
            return replace(failure, error=self._explained(failure.error, change, table))
        return failure

    def _explained(self, error: ApplyError, change: Change, table: TargetTable) -> ApplyError:
        if error.column is None and error.may_be_of_value:
            for image in (change.after, change.before):
                column = self._session.unfit_column(table, _known(image, table))
                if column is not None:
                    return error.with_column(column, table.schema.by_name[column].type)
        elif error.constraint is not None:
            image = _known({**(change.before or {}), **(change.after or {})}, table)
            for row in self._session.rows_in_the_way(table, error.constraint, image):
                if not _is_own(row, change, table):
                    return error.with_found(row)
        return error

    def _handle_or_process(
        self, number: int, change: Change, transaction: Transaction, handled: Handled
    ) -> Sequence[Done] | None:
        """Process one change, by its handlers if it has any; returns what it came to, as `_process`."""
        if self._handlers is None or self._handlers.of(change) is None:
            done = self._changes.process(number, change, handled)
            return None if done is None else [done]
        if change.table not in self._changes.catalog.instantiated:
            raise not_instantiated(change.table)
        for name, value in (change.after or {}).items():
            if isinstance(value, ExternalValue):
                what = f"column {name!r} has a value that is too large for handlers, or that was appended to"
                raise ApplyError(VALUE_MISSING, what, where=_place(change))
        effects = self._handlers.process(self._changes, number, change, transaction)
        handled.resolutions += effects.resolutions
        handled.recorded += [(recorded, Failure(1, error)) for recorded, error in effects.recorded]
        return effects.done

    def _check(self, number: int, change: Change, images: Images, unchecked: Collection[ForeignKey]) -> None:
        name = self._ddl.name_now(change.table, number)
        if name is None:
            # The transaction has dropped the table, and its rows with it.
            return
        table = self._changes.table_named(name)
        if change.op is not Op.DELETE:
            broken = self._session.is_unique_broken(table, images.after)
            if broken is not None:
                what = f"two rows break constraint {broken!r}"
                raise ApplyError(UNIQUE_VIOLATED, what, where=_place(change), constraint=broken)
        # A row of a snapshot is put in place as a first copy does it: parents may come with later changes.
        if change.op is Op.SNAPSHOT:
            return
        found = self._changes.references_found(number)
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
        if not self._session.is_reference_broken(foreign_key, values, is_child=is_child):
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


def _runs(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Yield the changes one by one, but neighbouring truncates together, and drops: one statement may name them all."""
    for shared, run in groupby(changes, _shared):
        if shared is None:
            yield from ([change] for change in run)
        else:
            yield list(run)


def _shared(change: Change) -> Op | None:
    return change.op if change.op is Op.TRUNCATE or is_drop(change) else None


def _known(image: Image | None, table: TargetTable) -> Image:
    """Leave out what the target has no column for."""
    return {name: value for name, value in (image or {}).items() if name in table.schema.by_name}


def _is_own(row: Image, change: Change, table: TargetTable) -> bool:
    """Whether a row is the one that an update or a snapshot changes."""
    old = change.after if change.op is Op.SNAPSHOT else change.before
    return old is not None and all(row[name] == old.get(name) for name in table.key.columns)


def _nth(transaction: Transaction, number: int) -> Change:
    return next(islice(transaction.changes, number - 1, None))


def _place(change: Change) -> str:
    return f"table {change.table}"
