"""What the next poll of a log would find, for a person to look at; nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from penstock.change import Transaction
from penstock.formats.xds.values import UnreadableError
from penstock.formats.xds.writer import write_event
from penstock.sources.event_log.build import BuiltEvent
from penstock.sources.event_log.changes import changes_of
from penstock.sources.event_log.poll import LogTransaction, read_events
from penstock.sources.event_log.rows import Outcome, Settled
from penstock.sources.event_log.settings import EventLogSettings


class Readable(Protocol):
    """A log that is only read."""

    def transaction(self, *, is_alone: bool) -> AbstractContextManager[LogTransaction]:
        """Open a transaction that needs no journal, if it is not alone."""


@dataclass(frozen=True)
class Preview:
    """What a poll would find.

    Attributes:
        rows: How many rows it would read.
        settled: What would become of rows without an event, by record_id.
    """

    rows: int
    events: Sequence[BuiltEvent]
    settled: Mapping[int, Settled]

    def elements(self) -> list[str]:
        """The events as XDS elements."""
        return [write_event(event.event) for event in self.events]

    def transactions(self) -> tuple[list[Transaction], dict[int, Settled]]:
        """The events as apply would take them, an event a transaction, and the rows of those that it would not."""
        told: list[Transaction] = []
        refused: dict[int, Settled] = {}
        for number, event in enumerate(self.events, start=1):
            try:
                changes = changes_of(event.event, event.object)
            except UnreadableError as exc:
                refused |= dict.fromkeys(event.record_ids, Settled(Outcome.ERROR, str(exc)))
            else:
                told.append(Transaction(number, str(number), event.logged_at_us, changes))
        return told, refused


def preview(log: Readable, settings: EventLogSettings, *, limit: int | None = None) -> Preview:
    """Read at most so many rows that are due, and what would become of them."""
    with log.transaction(is_alone=False) as transaction:
        rows = transaction.window(None)[:limit]
        events, settled = read_events(transaction, settings, rows)
    return Preview(len(rows), events, settled)
