"""The error queue of a pipeline, for the command line and for programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from penstock.apply.entry_rows import CurrentRow, stand
from penstock.apply.error_queue import EntryPlace, EntrySelection, ErrorEntry, ErrorQueue, PastAction
from penstock.change import TableName, Transaction
from penstock.errors import ConfigError
from penstock.patterns import TablePattern
from penstock.pipeline.shown import entries_html, entry_html


@dataclass(frozen=True)
class ErrorFilter:
    """Which entries are meant: those that fit everything that is said.

    Attributes:
        tables: Patterns; the entry changes a table that one of them means, by its name at the target or at the source.
        errors: Error numbers, or codes of the database; the entry has one of them.
        since, until: The transaction failed first at this time, or later; at this time, or earlier.
        text: The error message holds it, in large or in small letters.
        on_hold: The entry is on hold, or is not; None: either.
    """

    tables: Sequence[TablePattern] = ()
    errors: Collection[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    text: str = ""
    on_hold: bool | None = None

    def fits(self, entry: ErrorEntry, tables: Collection[TableName]) -> bool:
        """Whether an entry is meant, which changes these tables."""
        return (
            (not self.tables or any(pattern.matches(table) for pattern in self.tables for table in tables))
            and (not self.errors or str(entry.error_number) in self.errors or entry.error_code in self.errors)
            and (self.since is None or entry.created_at >= self.since)
            and (self.until is None or entry.created_at <= self.until)
            and self.text.casefold() in entry.error_message.casefold()
            and (self.on_hold is None or self.on_hold == (entry.on_hold is not None))
        )


@dataclass(frozen=True)
class ChangePage:
    """The page of a transaction's changes that holds one of them; without `number`, the one that failed."""

    size: int
    number: int | None = None

    def of(self, entry: ErrorEntry, transaction: Transaction) -> tuple[int, Transaction]:
        """Return the number of the page's first change, and the transaction with the page's changes alone."""
        number = entry.message_number if self.number is None else self.number
        before = max(0, (number - 1) // self.size * self.size)
        return before + 1, replace(transaction, changes=list(transaction.changes)[before : before + self.size])


@dataclass(frozen=True)
class ShownEntry:
    """An entry whole, with what its changes would find at the target now.

    Attributes:
        current_rows: Of all changes, or of the page of them that was asked for.
        first: The number of the first change among these; changes are numbered from 1.
    """

    entry: ErrorEntry
    transaction: Transaction
    current_rows: Sequence[CurrentRow]
    first: int = 1

    def _repr_html_(self) -> str:
        """How a notebook shows it: with row values, which is what was asked for."""
        return entry_html(self.entry, self.current_rows)


class Errors:
    """The entries of a pipeline's process. What applies them again is `Pipeline.retry`."""

    def __init__(
        self,
        queue: ErrorQueue,
        origins: Callable[[TableName], Sequence[TableName]],
        keys: Mapping[TableName, tuple[str, ...]],
    ) -> None:
        """Use a queue.

        Args:
            origins: Says what a table at the target may be called at the source.
            keys: Substitute keys of tables.
        """
        self._queue = queue
        self._origins = origins
        self._keys = keys

    def entries(self, wanted: ErrorFilter = ErrorFilter()) -> Sequence[ErrorEntry]:
        """Return the entries that are meant, in commit order."""
        return self._queue.entries(self._selection(wanted))

    def page(
        self,
        wanted: ErrorFilter = ErrorFilter(),
        *,
        most: int,
        after: EntryPlace | None = None,
        before: EntryPlace | None = None,
    ) -> Sequence[ErrorEntry]:
        """Return some of the entries that are meant, in commit order.

        Args:
            after, before: Return the first ones behind this place, or the last ones before this place.
        """
        return self._queue.entries(replace(self._selection(wanted), after=after, before=before, most=most))

    def count(self, wanted: ErrorFilter = ErrorFilter()) -> int:
        """Return how many entries are meant."""
        return self._queue.count(self._selection(wanted))

    def _repr_html_(self) -> str:
        """How a notebook shows the queue: without row values."""
        return entries_html(self.entries())

    def load(self, entry_id: str) -> tuple[ErrorEntry, Transaction]:
        """Return an entry and its changes.

        Raises:
            NoEntryError: There is no such entry.
        """
        return self._queue.load(entry_id)

    def show(self, entry_id: str, page: ChangePage | None = None) -> ShownEntry:
        """Return an entry with the rows that its changes would find at the target now. Raises as `load` does.

        Args:
            page: Look up the rows of these changes alone; each takes some queries.
        """
        entry, transaction = self._queue.load(entry_id)
        first, shown = (1, transaction) if page is None else page.of(entry, transaction)
        with self._queue.retry_session() as session:
            return ShownEntry(entry, transaction, stand(session, shown, self._keys), first)

    def delete(self, *entry_ids: str, skip_gone: bool = False) -> Sequence[str]:
        """Give transactions up, all of these or none; nothing is applied. See `apply.error_queue.ErrorQueue.delete`."""
        return self._queue.delete(*entry_ids, skip_gone=skip_gone)

    def hold(self, *entry_ids: str, note: str, skip_gone: bool = False) -> Sequence[str]:
        """Put entries on hold, so that nobody applies or deletes them. See `apply.error_queue.ErrorQueue.hold`."""
        return self._queue.hold(*entry_ids, note=checked_note(note), skip_gone=skip_gone)

    def release(self, *entry_ids: str, skip_gone: bool = False) -> Sequence[str]:
        """End the hold of entries; `Pipeline.go_on` applies what has waited. See `apply.error_queue.ErrorQueue`."""
        return self._queue.release(*entry_ids, skip_gone=skip_gone)

    def history(self, entry_id: str | None = None, *, most: int = 1000) -> Sequence[PastAction]:
        """Return the last things that people did with entries, or with one, the oldest of them first."""
        return self._queue.history(entry_id=entry_id, most=most)

    def _selection(self, wanted: ErrorFilter) -> EntrySelection:
        """What a person means, by the names that tables have at the target."""
        tables = None
        if wanted.tables:
            tables = [
                table
                for table in self._queue.tables()
                if any(pattern.matches(name) for pattern in wanted.tables for name in (table, *self._origins(table)))
            ]
        return EntrySelection(tables, wanted.errors, wanted.since, wanted.until, wanted.text, wanted.on_hold)


_LONGEST_NOTE = 1000


def checked_note(note: str) -> str:
    """Return why an entry is put on hold, without the blanks around it.

    Raises:
        ConfigError: It is empty, or long.
    """
    note = note.strip()
    if not note or len(note) > _LONGEST_NOTE or "\0" in note:
        raise ConfigError(
            "the note on an entry must say why it is on hold, in at most 1,000 characters",
            do="name the reason, or a ticket that does",
        )
    return note
