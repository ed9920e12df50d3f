"""The error queue of a pipeline that publishes events: it is kept beside the position, and changes with it at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn

from penstock.apply.entry_edits import EntryEdit, Numbered, as_committed
from penstock.apply.entry_rows import CurrentRow
from penstock.apply.error_queue import (
    Actor,
    EntryHold,
    EntryOutcome,
    EntryPlace,
    ErrorEntry,
    NoEntryError,
    on_hold_error,
)
from penstock.apply.retry import Retried
from penstock.apply.target import TargetCatalog, TargetTable
from penstock.change import TableName, Transaction
from penstock.errors import OperatorError, PenstockError
from penstock.formats.debezium.writer import UnpublishableError
from penstock.pipeline.errors import ChangePage, ErrorFilter, ShownEntry, checked_note
from penstock.position import Scn
from penstock.schema import Dictionary, TableSchema
from penstock.sinks.events.encoding import RecordFormat, takes_all
from penstock.sinks.events.publisher import EventDestination, open_for_run
from penstock.sinks.events.put_aside import PutAside, in_order
from penstock.sinks.events.state import PublishedState
from penstock.stream import TableVersion

_ALL = ErrorFilter()


class PublishedQueue:
    """What a pipeline could not publish. Who retries or deletes entries becomes the only publisher for a moment.

    A run that is at work notices that, looks where the pipeline stands, and goes on.
    """

    def __init__(self, log: EventDestination, form: RecordFormat) -> None:
        """Use the queue of a log; nothing is touched yet.

        Args:
            form: The format that changes are published in.
        """
        self._log = log
        self._form = form

    def entries(self, wanted: ErrorFilter = _ALL) -> Sequence[ErrorEntry]:
        """Return the entries that are meant, in commit order."""
        found = in_order(self._log.published_state().errors.values())
        pairs = [(entry_of(self._log.pipeline, one), {change.table for change in one.changes}) for one in found]
        return [entry for entry, tables in pairs if wanted.fits(entry, tables)]

    def page(
        self,
        wanted: ErrorFilter = _ALL,
        *,
        most: int,
        after: EntryPlace | None = None,
        before: EntryPlace | None = None,
    ) -> Sequence[ErrorEntry]:
        """Return some of the entries that are meant; see `Errors.page`."""
        found = self.entries(wanted)
        if after is not None:
            found = [entry for entry in found if entry.place > after]
        if before is not None:
            return [entry for entry in found if entry.place < before][-most:]
        return found[:most]

    def count(self, wanted: ErrorFilter = _ALL) -> int:
        """Return how many entries are meant."""
        return len(self.entries(wanted))

    def load(self, entry_id: str) -> tuple[ErrorEntry, Transaction]:
        """Return an entry and its changes.

        Raises:
            NoEntryError: There is no such entry.
        """
        found = self._find(self._log.published_state().errors, entry_id)
        return entry_of(self._log.pipeline, found), found.transaction

    def show(self, entry_id: str, page: ChangePage | None = None) -> ShownEntry:
        """Return an entry whole; there is no target whose rows its changes would meet. Raises as `load` does."""
        entry, transaction = self.load(entry_id)
        first, shown = (1, transaction) if page is None else page.of(entry, transaction)
        return ShownEntry(entry, transaction, [CurrentRow(change) for change in shown.changes], first)

    def delete(self, *entry_ids: str, skip_gone: bool = False) -> Sequence[str]:
        """Give transactions up, all of these or none; they are never published. Raises as `load` does.

        Args:
            skip_gone: Skip those that are on hold, and those that another session has published or deleted.

        Returns:
            The ids of those that were removed, in full.

        Raises:
            OnHoldError: One of them is on hold.
        """
        with closing(open_for_run(self._log, self._log.published_state().epoch)) as publisher:
            published_state = publisher.published_state
            chosen = self._chosen(published_state.errors, entry_ids, skip_gone=skip_gone)
            if not skip_gone:
                self._refuse_on_hold(chosen.values())
            chosen = {number: one for number, one in chosen.items() if one.on_hold is None}
            if chosen:
                with publisher.transaction() as transaction:
                    published_state, entries = published_state.without_errors(chosen)
                    transaction.stand(published_state, *entries)
        return [entry_of(self._log.pipeline, one).id for one in chosen.values()]

    def hold(self, *entry_ids: str, note: str, skip_gone: bool = False) -> Sequence[str]:
        """Put entries on hold, all of these or none, for a reason. Raises as `load` does.

        Args:
            skip_gone: Skip those that are on hold already, which otherwise get the new note, and those that are gone.

        Returns:
            The ids of those that were put on hold, in full.
        """
        actor = Actor.here()
        hold = EntryHold(datetime.now(UTC), f"{actor.os_user} on {actor.host}", checked_note(note))
        return self._mark(
            entry_ids, lambda one: hold if one.on_hold is None or not skip_gone else one.on_hold, skip_gone=skip_gone
        )

    def release(self, *entry_ids: str, skip_gone: bool = False) -> Sequence[str]:
        """End the hold of entries, all of these or none; returns the ids of those that were on hold until now.

        Raises as `load` does.
        """
        return self._mark(entry_ids, lambda _: None, skip_gone=skip_gone)

    def _mark(
        self, entry_ids: Sequence[str], hold_of: Callable[[PutAside], EntryHold | None], *, skip_gone: bool
    ) -> Sequence[str]:
        """Put entries on the hold that `hold_of` returns; returns the ids of those for which it is another one."""
        with closing(open_for_run(self._log, self._log.published_state().epoch)) as publisher:
            chosen = self._chosen(publisher.published_state.errors, entry_ids, skip_gone=skip_gone)
            marked = [replace(one, on_hold=hold_of(one)) for one in chosen.values() if hold_of(one) != one.on_hold]
            if marked:
                with publisher.transaction() as transaction:
                    published_state, entries = publisher.published_state.with_holds(marked)
                    transaction.stand(published_state, *entries)
        return [entry_of(self._log.pipeline, one).id for one in marked]

    def _refuse_on_hold(self, entries: Collection[PutAside]) -> None:
        on_hold = [entry_of(self._log.pipeline, one).id for one in entries if one.on_hold is not None]
        if on_hold:
            raise on_hold_error(on_hold, where=self._log.where)

    def history(self, entry_id: str | None = None, *, most: int = 1000) -> NoReturn:
        """Refuse: what people did with entries is written down nowhere."""
        raise OperatorError("no history is kept of an error queue beside published events", where=self._log.where)

    def retry(
        self,
        entry_ids: Sequence[str],
        versions: Sequence[TableVersion],
        *,
        edit: EntryEdit | None = None,
        go_on: bool = False,
        dry_run: bool = False,
        skip_gone: bool = False,
    ) -> Iterator[Retried]:
        """Publish entries, in commit order, one by one as they are asked for: each with its removal, or neither.

        Where a copy begins its table anew, changes that it holds are not published once more.

        Args:
            versions: Every version of every table that a change may name.
            edit: Says what to publish of an entry; by default all that the source committed.
            go_on: Go on behind an entry that cannot be published still.
            dry_run: Only see whether each could be told as events.
            skip_gone: The ids were read from the queue: one that is not there any more, or is on hold, is yielded as
                such.

        Raises:
            NoEntryError: There is no entry of one of these names; then nothing is published.
            OnHoldError: An entry that is named is on hold, and this is no dry run; then nothing is published.
        """
        known = self._log.published_state().errors
        chosen = in_order(self._chosen(known, entry_ids, skip_gone=skip_gone).values())
        if skip_gone:
            there = {entry_of(self._log.pipeline, one).id for one in chosen}
            yield from (Retried(entry_id, EntryOutcome.GONE) for entry_id in entry_ids if entry_id not in there)
        elif not dry_run:
            self._refuse_on_hold(chosen)
        tables = [version.table for version in versions]
        roots = {version.table.name: version.root for version in versions}
        events = self._form.encoder(Dictionary(tables), {})

        def left(one: PutAside, changes: Sequence[Numbered], state: PublishedState) -> Sequence[Numbered]:
            if not self._form.begins_tables_anew:
                return changes
            return [
                (number, change)
                for number, change in changes
                if not state.has_copied_since(roots.get(change.table, change.table), one)
            ]

        newest = {table.name: table for table in sorted(tables, key=lambda table: table.version)}
        for one in chosen:
            entry_id = entry_of(self._log.pipeline, one).id
            try:
                edited = (edit or as_committed)(entry_of(self._log.pipeline, one), one.transaction, _catalog(newest))
                if dry_run:
                    changes = left(one, edited.changes, self._log.published_state())
                    if changes:
                        events.again(one, changes, takes_all)
                    yield Retried(entry_id, EntryOutcome.WOULD_APPLY, edits=edited.edits)
                    continue
                with closing(open_for_run(self._log, self._log.published_state().epoch)) as publisher:
                    if one.number not in publisher.published_state.errors:
                        yield Retried(entry_id, EntryOutcome.GONE)
                        continue
                    if publisher.published_state.errors[one.number].on_hold is not None:
                        yield Retried(entry_id, EntryOutcome.ON_HOLD)
                        continue
                    with publisher.transaction() as transaction:
                        changes = left(one, edited.changes, publisher.published_state)
                        records = events.again(one, changes, transaction.refusal) if changes else ()
                        sent = transaction.send(events.numbered(records, publisher.published_state.records))
                        published_state, entries = publisher.published_state.without_errors([one.number])
                        published_state = published_state.with_records(sent)
                        transaction.stand(published_state, *entries, published_state.position_entry)
                yield Retried(entry_id, EntryOutcome.APPLIED, edits=edited.edits)
            except UnpublishableError as exc:
                yield Retried(
                    entry_id, EntryOutcome.WOULD_FAIL if dry_run else EntryOutcome.FAILED, error=_untold(entry_id, exc)
                )
                if not (go_on or dry_run):
                    raise _untold(entry_id, exc) from exc

    def _chosen(
        self, errors: Mapping[int, PutAside], entry_ids: Sequence[str], *, skip_gone: bool
    ) -> Mapping[int, PutAside]:
        """The entries of these names by their numbers, each once."""
        there = {f"{self._log.pipeline}.{number}" for number in errors}
        given = [entry_id for entry_id in entry_ids if not skip_gone or entry_id in there]
        return {one.number: one for one in (self._find(errors, entry_id) for entry_id in given)}

    def _find(self, errors: Mapping[int, PutAside], entry_id: str) -> PutAside:
        number = entry_id.removeprefix(f"{self._log.pipeline}.")
        found = errors.get(int(number)) if number.isdecimal() else None
        if found is None:
            raise NoEntryError(
                f"there is no entry {entry_id!r} in the error queue",
                where=self._log.where,
                do="`penstock errors list` names those that there are",
            )
        return found


def entry_of(pipeline: str, one: PutAside) -> ErrorEntry:
    """An entry as people and programs see it."""
    return ErrorEntry(
        id=f"{pipeline}.{one.number}",
        source=pipeline,
        txn_id=one.txn_id,
        commit_scn=Scn(one.commit_scn),
        committed_at=_time(one.committed_at_us),
        message_number=one.message_number,
        message_count=one.message_count,
        error_number=one.error_number,
        error_code=None,
        error_message=one.error_message,
        found=None,
        table=one.table,
        op=one.op.value,
        created_at=_time(one.created_at_us),
        recipient=None,
        on_hold=one.on_hold,
    )


def _catalog(tables: Mapping[TableName, TableSchema]) -> TargetCatalog:
    """The tables of the source, which edits are held against."""
    return TargetCatalog(tables={name: TargetTable(table) for name, table in tables.items()}, instantiated={})


def _untold(entry_id: str, error: UnpublishableError) -> PenstockError:
    where = f"{error.where}, entry {entry_id}" if error.where else f"entry {entry_id}"
    return OperatorError(error.what, where=where, do=error.do)


def _time(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)
