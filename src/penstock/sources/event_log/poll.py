"""One poll of a log: its rows become events, which are kept in a journal until it is known what came of them.

What the database holds *now* cannot be read a second time, so a poll is written down, in the same transaction in which
it was read, before anybody sees its events. From then on they are the same on every read. The rows behind them stay
`N` until they are settled, in one transaction that also takes their events out of the journal. So a crash between any
two of these steps repeats nothing that the journal does not say in the same words, and leaves no row behind.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from penstock.change import Change, TableName
from penstock.formats.xds.values import UnreadableError
from penstock.position import Scn
from penstock.sources.event_log.build import BuiltEvent, Current, Wanted, build, lives, wanted
from penstock.sources.event_log.classes import Classes, DatabaseClass
from penstock.sources.event_log.rows import LogRow, Object, RowOutcome, Settled, check
from penstock.sources.event_log.settings import EventLogSettings


@dataclass(frozen=True)
class JournalEvent:
    """An event as the journal keeps it: as an XDS element, as changes, or as both.

    Attributes:
        record_ids: The rows behind it.
        logged_at_us: When the first of them was logged, microseconds since 1970 in UTC.
    """

    record_ids: Sequence[int]
    logged_at_us: int
    element: str | None = None
    changes: Sequence[Change] = ()


class ChildRows(NamedTuple):
    """The rows of one object in a child table, by the values of the object's key."""

    table: TableName
    key: tuple[str, ...]


class Pending(NamedTuple):
    """An event of the journal."""

    position: Scn
    record_ids: Sequence[int]
    element: str | None


class LogTransaction(ABC):
    """An open transaction with the log and its journal, alone with both. Dialects implement it."""

    @abstractmethod
    def position(self) -> Scn:
        """Return the position of the last event that was ever kept."""

    @abstractmethod
    def move(self, position: Scn) -> None:
        """Leave out the positions up to this one."""

    @abstractmethod
    def classes(self) -> Classes:
        """Return the classes that the log may name, as they are now."""

    @abstractmethod
    def window(self, now: datetime | None, limit: int | None = None) -> Sequence[LogRow]:
        """Return the rows that are due, in order: as many as a poll takes, and the rest of the changes that this cuts.

        Args:
            now: What counts as now; None is the database's clock.
            limit: So many rows instead of as many as the settings say; 0 is all of them.
        """

    @abstractmethod
    def count_own(self) -> int:
        """Return how many new rows are not read because the driver's own user wrote them."""

    @abstractmethod
    def current(self, of: DatabaseClass, asked: Wanted) -> Mapping[Object, Current]:
        """Return what a table holds now of the objects that are there, by one query, and one for each child table.

        Where the database fails at some of them, it is asked for the others again, and what they have in its place is
        why they cannot be read.
        """

    @abstractmethod
    def keep(self, events: Sequence[JournalEvent]) -> None:
        """Add events to the journal, with the positions that follow."""

    @abstractmethod
    def child_rows(self, of: Iterable[ChildRows]) -> dict[ChildRows, list[str]]:
        """Return the rows of child tables that events have told of so far, by their values, as canonical text."""

    @abstractmethod
    def keep_child_rows(self, rows: Mapping[ChildRows, Sequence[str]]) -> None:
        """Write down the rows that these are now."""

    @abstractmethod
    def pending(self, upto: Scn | None = None) -> Sequence[Pending]:
        """Return the journal's events in order, those up to a position."""

    @abstractmethod
    def settle(self, outcomes: Mapping[RowOutcome, Sequence[int]]) -> None:
        """Write the outcomes of rows by their record_ids, or delete the rows where the settings say so."""

    @abstractmethod
    def settled(self) -> Scn:
        """Return the position of the last event that was taken out of the journal for its reader."""

    @abstractmethod
    def forget(self, upto: Scn | None = None) -> None:
        """Take the events up to a position out of the journal; all of them if None."""

    @abstractmethod
    def keep_failed(self, events: Iterable[Pending]) -> None:
        """Remember which rows are behind events that are in the error queue."""

    @abstractmethod
    def failed(self) -> Mapping[Scn, Sequence[int]]:
        """Return the rows behind each event that is remembered as failed, by its position."""

    @abstractmethod
    def mend(self, gone: Iterable[Scn], applied: Sequence[int]) -> None:
        """Forget failed events that are in the error queue no more, and give rows that were applied after all `S`.

        Rows that are not `E` any more stay as they are.

        Args:
            applied: The record_ids of those.
        """


class EventForm(Protocol):
    """Makes of the events of one poll what is kept of them."""

    def prepare(self, log: LogTransaction, events: Sequence[BuiltEvent]) -> None:
        """Read what is needed beside the events."""

    def make(self, event: BuiltEvent) -> JournalEvent:
        """Make of an event, each in its turn, what is kept; raises `UnreadableError` where it cannot be told so."""

    def finish(self, log: LogTransaction) -> None:
        """Write what the next poll has to know."""


class EventLog(ABC):
    """A log in a database, and the journal of a pipeline beside it; dialects implement it."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Where it is, named without secrets."""

    @abstractmethod
    def refuse_unfit(self) -> None:
        """Make sure that the log can be read.

        Raises:
            OperatorError: The log, a column of it, or a right to it is missing.
        """

    @abstractmethod
    def claim(self, reader_id: str, reader: str) -> None:
        """Make sure that whoever reads here is the only one to do so, now and later; the first one has the journal.

        Args:
            reader_id: Tells it from every other reader.
            reader: What it does, for a person, as `applies to ...`.

        Raises:
            OperatorError: Another pipeline has a journal of this log, or this journal has another reader.
        """

    @abstractmethod
    def transaction(self, *, is_alone: bool = True) -> AbstractContextManager[LogTransaction]:
        """Open a transaction; commits at the end of the block.

        Args:
            is_alone: Keep other transactions with the journal out, which has to exist; else it need not.
        """

    @abstractmethod
    def run_post_poll(self) -> None:
        """Run the statements that the settings have for after a poll.

        One that fails is told, and raises nothing: the rows of the poll are settled by then.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what was opened; a later call opens it again."""


@dataclass(frozen=True)
class Polled:
    """What a poll has found.

    Attributes:
        rows: How many rows it read.
        kept: The events that came of them, as they are in the journal.
        settled: What became of the rows that have no event, by record_id.
    """

    rows: int
    kept: Sequence[JournalEvent]
    settled: Mapping[int, Settled]


def poll(log: LogTransaction, settings: EventLogSettings, form: EventForm, *, now: datetime | None = None) -> Polled:
    """Read the rows that are due, keep their events, and settle the rows that have none.

    The journal is empty before.
    """
    with _many_objects():
        return _polled(log, settings, form, now)


def _polled(log: LogTransaction, settings: EventLogSettings, form: EventForm, now: datetime | None) -> Polled:
    rows = log.window(now)
    if not rows:
        return Polled(0, (), {})
    kept: list[JournalEvent] = []
    events, settled = read_events(log, settings, rows)
    form.prepare(log, events)
    for event in events:
        try:
            made = form.make(event)
            if made.element is None and not made.changes:
                settled |= dict.fromkeys(event.record_ids, Settled(RowOutcome.SUCCESS))
            else:
                kept.append(made)
        except UnreadableError as exc:
            settled |= dict.fromkeys(event.record_ids, Settled(RowOutcome.ERROR, str(exc)))
    log.keep(kept)
    form.finish(log)
    log.settle(by_outcome(settled))
    return Polled(len(rows), kept, settled)


def read_events(
    log: LogTransaction, settings: EventLogSettings, rows: Sequence[LogRow]
) -> tuple[list[BuiltEvent], dict[int, Settled]]:
    """Make events of rows, with what the database holds now; changes nothing."""
    classes = log.classes()
    usable, unusable = check(rows, classes, needs_time=settings.future_events)
    found = lives(usable)
    current: dict[Object, Current] = {}
    for name, asked in wanted(found).items():
        current |= log.current(classes.by_name[name], asked)
    events, without = build(found, current, event_ids=settings.event_ids)
    return events, unusable | without


@contextmanager
def _many_objects() -> Iterator[None]:
    """Make many objects that all stay until the end: looking for some that could go would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def by_outcome(settled: Mapping[int, Settled]) -> dict[RowOutcome, list[int]]:
    """Return record_ids by outcome."""
    found: dict[RowOutcome, list[int]] = {}
    for record_id, one in settled.items():
        found.setdefault(one.outcome, []).append(record_id)
    return found
