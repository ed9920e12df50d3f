"""Entries of the error queue applied again, as the source committed them or as a person edited them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from penstock.apply.apply_errors import ApplyError
from penstock.apply.conflict_methods import ConflictRules
from penstock.apply.ddl import ALL_DDL, DdlRules
from penstock.apply.entry_edits import EditedEntry, EntryEdit, Numbered, as_committed
from penstock.apply.error_queue import (
    Emptied,
    EntryAction,
    EntryOutcome,
    ErrorEntry,
    ErrorQueue,
    NoEntryError,
    Note,
    RetrySession,
)
from penstock.apply.handlers.runner import handlers_of
from penstock.apply.handlers.settings import NO_HANDLERS, HandlerSettings
from penstock.apply.ledger import Failure
from penstock.apply.row_path import RowPath, TransactionError
from penstock.apply.target import TargetCatalog
from penstock.change import Change, Op, TableName, Transaction
from penstock.errors import MalformedInputError, OperatorError, PenstockError
from penstock.text import count, printable, were


@dataclass(frozen=True)
class RetryConfig:
    """How entries are applied again.

    Attributes:
        allow_duplicate_rows: See `RowPath`.
        conflicts: As they stand in the pipeline file now; what they would record stays in the queue.
        keys: Substitute keys of tables.
        handlers: As they are configured now.
        ddl: What becomes of DDL, as the pipeline file says now.
        edit: Gives the changes to apply in place of those that the source committed.
        as_me: Use the rights of the connection, not those of the role that could not apply the entry.
        role: Use the rights of this role instead.
        go_on: Go on behind one that fails again.
        dry_run: Roll everything back. Each entry is tried with what those before it would do.
    """

    allow_duplicate_rows: bool
    conflicts: ConflictRules = field(default_factory=ConflictRules)
    keys: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    handlers: HandlerSettings = NO_HANDLERS
    ddl: DdlRules = ALL_DDL
    edit: EntryEdit | None = None
    as_me: bool = False
    role: str | None = None
    go_on: bool = False
    dry_run: bool = False


class RetryOptions(TypedDict, total=False):
    """What a person may ask for; see `RetryConfig`."""

    mend: EntryEdit | None
    as_me: bool
    role: str | None
    go_on: bool
    dry_run: bool


@dataclass(frozen=True)
class Retried:
    """What came of one entry.

    Attributes:
        outcome: Applied, failed, gone or on hold; in a dry run what would have come of it.
        error: Why it failed.
        failure: Which change failed, and why, where it was one that the target refused.
        edits: See `Note`.
        has_gone_on: It was not asked for: it had waited for one that was.
    """

    entry_id: str
    outcome: EntryOutcome
    error: PenstockError | None = None
    failure: Failure | None = None
    edits: Sequence[str] = ()
    has_gone_on: bool = False

    @property
    def is_failed(self) -> bool:
        """Whether the entry failed, or would."""
        return self.error is not None


def retry(
    queue: ErrorQueue,
    entry_ids: Sequence[str],
    config: RetryConfig,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Retried]:
    """Apply entries, in the order given, each in a target transaction that also removes it.

    Those that have waited for one that is applied go on behind it, in commit order, and each may fail in its turn. One
    that waits for an entry that is still there is not applied.

    Changes of a table that was copied, or truncated, after them are left out: they would undo it. An entry that another
    session has applied or deleted is skipped, and so is one that is on hold, except in a dry run.

    Args:
        tell: Called with a sentence for each transaction of which changes were left out, or hold no old values to
            compare.

    Yields:
        What came of each entry; in a dry run of all of them once all are tried.

    Raises:
        OperatorError: One failed again, and `go_on` and `dry_run` are off; it stays, with the new reason, and so do
            those after it.
    """
    with queue.retry_session() as session:
        attempts = _Attempts(queue, session, config, tell)
        if config.dry_run:
            with session.rehearsal():
                tried = [one for entry_id in entry_ids for one in attempts.attempt(entry_id)]
            queue.note(*(note for _, note in tried if note is not None))
            yield from (retried for retried, _ in tried)
            return
        for entry_id in entry_ids:
            error = None
            for retried, _ in attempts.attempt(entry_id):
                error = error or retried.error
                yield retried
            if error is not None and not config.go_on:
                raise error


def go_on(queue: ErrorQueue, config: RetryConfig, *, tell: Callable[[str], None] = lambda _: None) -> Iterator[Retried]:
    """Apply held entries that wait for nothing any more, in commit order; each may fail in its turn, and then stays.

    Yields:
        What came of each entry.
    """
    with queue.retry_session() as session:
        for retried, _ in _Attempts(queue, session, replace(config, edit=None), tell).go_on((-1, 0)):
            yield retried


def in_commit_order(queue: ErrorQueue, entry_ids: Collection[str], *, skip_gone: bool = False) -> list[str]:
    """Put entries into the order in which the source committed them, each once, however its name was written.

    Args:
        skip_gone: The names are ids that the queue had a moment ago: one that it lacks by now comes last, and `retry`
            finds that another session has applied or deleted it.

    Raises:
        NoEntryError: There is no entry of one of these names.
    """
    given = {entry_id if skip_gone else queue.find(entry_id) for entry_id in entry_ids}
    places = queue.places(given)
    return sorted((one for one in given if one in places), key=lambda one: places[one]) + sorted(given - places.keys())


class _Attempts:
    def __init__(
        self, queue: ErrorQueue, session: RetrySession, config: RetryConfig, tell: Callable[[str], None]
    ) -> None:
        self._queue = queue
        self._session = session
        self._config = config
        self._tell = tell
        self._went_on: set[str] = set()

    def attempt(self, entry_id: str) -> Iterator[tuple[Retried, Note | None]]:
        """Try one entry, and if it is applied, those that have waited for it.

        Whatever comes of it is written down, but for what comes of it in a dry run.
        """
        if entry_id in self._went_on:
            return
        behind = self._session.waits_for(entry_id)
        if behind is not None:
            yield Retried(entry_id, EntryOutcome.WAITS, _still_waits(entry_id, behind)), None
            return
        try:
            entry, whole = self._queue.load(entry_id)
        except NoEntryError:
            yield Retried(entry_id, EntryOutcome.GONE), None
            return
        if entry.on_hold is not None and not self._config.dry_run:
            yield Retried(entry_id, EntryOutcome.ON_HOLD), None
            return
        retried, note = self._try(entry, whole, self._config.edit)
        yield retried, note
        if retried.outcome in (EntryOutcome.APPLIED, EntryOutcome.WOULD_APPLY):
            yield from self.go_on((whole.commit_scn, int(entry_id.rpartition(".")[2])))

    def go_on(self, after: tuple[int, int]) -> Iterator[tuple[Retried, Note | None]]:
        """Apply held entries behind a position that wait for nothing any more.

        One pass is enough: whatever an entry waits for comes before it. And whatever waits for nothing goes on waiting
        for nothing, because no entry is added before it, so it does not matter when it is looked at.
        """
        place: tuple[int, int] | None = after
        while (place := self._session.next_to_go_on(place or after)) is not None:
            try:
                entry, whole = self._queue.load(str(place[1]))
            except NoEntryError:
                # Another session applies what may go on, too.
                continue
            retried, note = self._try(entry, whole, None, has_gone_on=True)
            self._went_on.add(entry.id)
            if retried.outcome not in (EntryOutcome.GONE, EntryOutcome.ON_HOLD):
                yield retried, note

    def _try(
        self, entry: ErrorEntry, whole: Transaction, edit: EntryEdit | None, *, has_gone_on: bool = False
    ) -> tuple[Retried, Note | None]:
        entry_id = entry.id
        is_dry = self._config.dry_run
        deed = EntryAction.DRY_RUN if is_dry else EntryAction.RETRY if edit is None else EntryAction.EDIT
        deed = EntryAction.GO_ON if has_gone_on and not is_dry else deed
        role = None if self._config.as_me else self._config.role or entry.recipient
        note = Note(entry, deed, EntryOutcome.WOULD_APPLY if is_dry else EntryOutcome.APPLIED, role)
        failure: Failure | None = None
        error: PenstockError
        try:
            catalog = self._session.catalog(whole).with_keys(self._config.keys)
            edited = (edit or as_committed)(entry, whole, catalog)
            note = replace(note, edits=edited.edits)
            if deed is EntryAction.EDIT and not edited.edits:
                # A function has looked at it, and found nothing to edit.
                note = replace(note, deed=EntryAction.RETRY)
            kept = self._apply(note, whole, edited, catalog)
            if kept is not None:
                return Retried(entry_id, kept), None
        except _RefusedError as exc:
            failure, error = exc.failure, exc.error
            note = replace(note, error=str(failure.error), error_number=failure.error.number)
        except (OperatorError, MalformedInputError) as exc:
            error = exc
            note = replace(note, error=str(exc))
            if has_gone_on and role is None:
                # It is the entry's fault, and a person's business, as of any that fails.
                failure = Failure(0, ApplyError(0, exc.what, where=exc.where))
        else:
            return Retried(entry_id, note.outcome, edits=note.edits, has_gone_on=has_gone_on), note
        note = replace(note, outcome=EntryOutcome.WOULD_FAIL if is_dry else EntryOutcome.FAILED)
        if failure is not None and note.deed in (EntryAction.RETRY, EntryAction.GO_ON):
            self._queue.note_failure(note, failure)
        elif not is_dry:
            # An edit's failure is about values that the entry does not hold, so it is not written into the entry.
            self._queue.note(note)
        return Retried(entry_id, note.outcome, error, failure, note.edits, has_gone_on), note

    def _apply(
        self, note: Note, whole: Transaction, edited: EditedEntry, catalog: TargetCatalog
    ) -> EntryOutcome | None:
        """Apply the changes and remove the entry in one transaction; gone or on hold when that cannot be done."""
        entry_id = note.entry.id
        numbered = self._wanted(note.entry, whole, edited.changes, catalog)
        transaction = replace(whole, changes=[change for _, change in numbered])
        rows = RowPath(
            self._session,
            catalog,
            self._session.dictionary(transaction),
            allow_duplicate_rows=self._config.allow_duplicate_rows,
            conflicts=self._config.conflicts.without_recording,
            handlers=handlers_of(self._config.handlers, self._session.handler_sql),
            ddl=self._config.ddl,
        )
        try:
            with self._session.transaction():
                kept = self._session.remove_entry(entry_id, even_on_hold=self._config.dry_run)
                if kept is not None:
                    return kept
                if not self._config.dry_run:
                    self._session.note(note)
                with self._session.acting_as(note.role):
                    handled = rows.apply(transaction)
                    # Not left to the commit: that would run deferred triggers with the connection's rights.
                    self._session.check_now()
                if not self._config.dry_run:
                    self._session.note_resolutions(transaction, handled.resolutions)
        except (TransactionError, ApplyError) as exc:
            failure = exc.failure if isinstance(exc, TransactionError) else Failure(0, exc)
            failure = rows.explain(transaction, failure)
            if failure.message_number:
                failure = replace(failure, message_number=numbered[failure.message_number - 1][0])
            raise _RefusedError(failure, _still_failing(entry_id, failure, len(whole.changes))) from exc
        return None

    def _wanted(
        self, entry: ErrorEntry, whole: Transaction, changes: Sequence[Numbered], catalog: TargetCatalog
    ) -> Sequence[Numbered]:
        """Leave out what the target holds already, or what was truncated since."""
        # A table may have been copied since, with what the change did.
        held = self._session.held(entry.id, {change.table for _, change in changes})
        late = [
            (number, change)
            for number, change in changes
            if catalog.instantiated[change.table] < whole.commit_scn
            # DDL is of the table, and not of the rows that were repaired or truncated.
            and (change.table not in held or change.op is Op.DDL)
        ]
        emptied = _emptied_since(self._session.emptied({change.table for _, change in late}), entry.id, whole)
        wanted = [pair for pair in late if pair[1].table not in emptied or pair[1].op is Op.DDL]
        if len(wanted) < len(changes):
            number = len(changes) - len(wanted)
            left_out = {c.table for _, c in changes} - {c.table for _, c in wanted}
            names = ", ".join(sorted(map(str, left_out)))
            self._tell(
                f"{entry.id}: {number} of its changes {'is' if number == 1 else 'are'} left out: {names}"
                f" {were(len(left_out))} copied, repaired or truncated later"
            )
        blind = sum(_is_blind(change, catalog) for _, change in wanted)
        if blind:
            self._tell(
                f"{entry.id}: {count(blind, 'change')} of {len(wanted)} told nothing of an old row but its key:"
                " what later transactions have set in these rows is overwritten"
            )
        return wanted


def _still_waits(entry_id: str, behind: str) -> OperatorError:
    return OperatorError(
        f"transaction {entry_id} waits for {behind}, on which it depends",
        do=f"retry, edit or delete {behind}; then this one goes on by itself",
    )


class _RefusedError(Exception):
    def __init__(self, failure: Failure, error: OperatorError) -> None:
        super().__init__(error)
        self.failure = failure
        self.error = error


def _still_failing(entry_id: str, failure: Failure, most: int) -> OperatorError:
    number = failure.message_number
    return OperatorError(
        # The target's words may hold a name as it is.
        f"transaction {entry_id} still cannot be applied: {printable(str(failure.error))}",
        where=f"change {number} of {most}" if number else "at commit",
        do=f"`penstock errors show {entry_id}` shows it whole",
    )


def _is_blind(change: Change, catalog: TargetCatalog) -> bool:
    """Whether a change holds nothing that would show that its row was changed since."""
    table = catalog.tables.get(change.table)
    if table is None or change.op not in (Op.UPDATE, Op.DELETE, Op.SNAPSHOT):
        return False
    others = set(table.schema.column_names) - set(table.key.columns)
    return bool(others) and others.isdisjoint(change.before or ())


def _emptied_since(found: Sequence[Emptied], entry_id: str, transaction: Transaction) -> set[TableName]:
    """Tables that were truncated after a transaction.

    Raises:
        OperatorError: Only a partition was, and it cannot be told whether a row of the transaction was in it.
    """
    since = [one for one in found if one.scn > transaction.commit_scn]
    whole = {one.table for one in since if one.part == one.table}
    partly = [one for one in since if one.table not in whole]
    if partly:
        raise OperatorError(
            f"partition {partly[0].part} of {partly[0].table} was truncated after transaction {entry_id}, whose rows"
            " may have been in it",
            do=f"see `penstock errors show {entry_id}`, put right by hand what is missing, and delete the entry",
        )
    return whole
