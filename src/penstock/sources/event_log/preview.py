"""What the next poll of a log would find, for a person to look at; nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.change import Transaction
from penstock.formats.xds.values import UnreadableError
from penstock.sources.event_log.poll import EventForm, EventLog, JournalEvent, read_events
from penstock.sources.event_log.rows import RowOutcome, Settled
from penstock.sources.event_log.settings import EventLogSettings


@dataclass(frozen=True)
class Preview:
    """What a poll would find.

    Attributes:
        rows: How many rows it would read.
        settled: What would become of rows without an event, by record_id.
        own: How many new rows it would not read, because the driver's own user wrote them.
    """

    rows: int
    kept: Sequence[JournalEvent]
    settled: Mapping[int, Settled]
    own: int = 0

    def elements(self) -> list[str]:
        """The events as XDS elements."""
        return [kept.element for kept in self.kept if kept.element is not None]

    def transactions(self) -> list[Transaction]:
        """The events as apply would take them, an event a transaction."""
        numbered = enumerate(self.kept, start=1)
        return [Transaction(number, str(number), kept.logged_at_us, kept.changes) for number, kept in numbered]


def preview(log: EventLog, settings: EventLogSettings, form: EventForm, *, limit: int | None = None) -> Preview:
    """Read so many rows that are due, with all of a change that has one among them, and what would become of them."""
    kept: list[JournalEvent] = []
    if limit is not None and settings.query_limit:
        limit = min(limit, settings.query_limit)
    with log.transaction(is_alone=False) as transaction:
        rows, own = transaction.window(None, limit), transaction.count_own()
        events, settled = read_events(transaction, settings, rows)
        form.prepare(transaction, events)
        for event in events:
            try:
                kept.append(form.make(event))
            except UnreadableError as exc:
                settled |= dict.fromkeys(event.record_ids, Settled(RowOutcome.ERROR, str(exc)))
    return Preview(len(rows), kept, settled, own)
