"""The publisher channel: documents of events are delivered to a sink, and rows settled by what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import islice

from penstock.errors import OperatorError
from penstock.formats.xds.writer import write_event
from penstock.position import START, Scn
from penstock.sources.event_log.build import BuiltEvent
from penstock.sources.event_log.poll import EventLog, JournalEvent, LogTransaction, Pending, Polled, poll
from penstock.sources.event_log.row_messages import tell_settled
from penstock.sources.event_log.rows import RowOutcome
from penstock.sources.event_log.settings import EventLogSettings
from penstock.sources.event_log.timetable import Timetable


class Answer(StrEnum):
    """What a sink says of an event."""

    SUCCESS = "success"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"
    RETRY = "retry"


_OUTCOMES = {
    Answer.SUCCESS: RowOutcome.SUCCESS,
    Answer.WARNING: RowOutcome.WARNING,
    Answer.ERROR: RowOutcome.ERROR,
    Answer.FATAL: RowOutcome.FATAL,
}

_READER = "publication"
"""What a journal calls whoever publishes from it; that only one does so at a time, a lock says."""

Sink = Callable[[Scn, Sequence[str]], Sequence[Answer]]
"""Takes a document: the position of its first event, which names it for good, and its events as XDS elements.

A document may come again, word for word, after a crash; a sink that knows its name has it once. Returns an answer for
each event, or for those up to the first `FATAL` or `RETRY`.
"""


Document = tuple[Scn, Sequence[str]]
"""The position of the first event, and the events as XDS elements."""


@dataclass
class Delivered:
    """What a cycle has done.

    Attributes:
        polled: What the poll has found; None where the cycle delivered what an earlier one had left.
        documents: How many events each document held.
        answers: How many events were answered how.
        is_fatal: The sink has answered `FATAL`: the channel stops.
        is_retry: It has answered `RETRY`: the rows stay as they are for the next poll.
        position: The last event that was ever kept.
    """

    polled: Polled | None
    documents: list[int] = field(default_factory=list)
    answers: dict[Answer, int] = field(default_factory=dict)
    is_fatal: bool = False
    is_retry: bool = False
    position: Scn = START


class AsElements:
    """Implements `poll.EventForm`: events as XDS elements, which need nothing else."""

    def prepare(self, log: LogTransaction, events: Sequence[BuiltEvent]) -> None:
        """Read nothing."""

    def make(self, event: BuiltEvent) -> JournalEvent:
        """Write an event's element."""
        return JournalEvent(event.record_ids, event.logged_at_us, write_event(event.event))

    def finish(self, log: LogTransaction) -> None:
        """Write nothing."""


def cycle(
    log: EventLog,
    settings: EventLogSettings,
    sink: Sink,
    *,
    begin: Callable[[Sequence[Document]], object] = lambda _: None,
    now: datetime | None = None,
) -> Delivered:
    """Deliver what the journal holds, or else what a new poll finds, and settle the rows behind it.

    Why rows of a poll have no event is logged.

    Args:
        begin: Is shown all documents before the sink gets the first.
        now: What counts as now; None is the database's clock.
    """
    polled = None
    with log.transaction() as transaction:
        pending = transaction.pending()
        if not pending:
            polled = poll(transaction, settings, AsElements(), now=now)
        delivered = Delivered(polled, position=transaction.position())
    if polled is not None:
        # Before anything is delivered, which may fail: these rows are settled, and no later poll finds them.
        tell_settled(polled, log.label)
        first = delivered.position - len(polled.kept) + 1
        pending = [
            Pending(Scn(position), kept.record_ids, kept.element) for position, kept in enumerate(polled.kept, first)
        ]
    if not pending:
        return delivered
    if any(event.element is None for event in pending):
        raise OperatorError(
            "the journal holds changes that a pipeline of this name was to apply, and no documents",
            where=log.label,
            do="apply them first; or `penstock teardown`, after which their rows are polled again",
        )
    documents = _documents(pending, settings.batch_size)
    begin(documents)
    outcomes = _deliver(pending, documents, sink, delivered)
    with log.transaction() as transaction:
        transaction.settle(outcomes)
        # What was not delivered is polled again, with whatever is logged for it until then.
        transaction.forget()
    log.run_post_poll()
    return delivered


class Channel:
    """Polls by a timetable for a sink that keeps what it took."""

    def __init__(
        self,
        log: EventLog,
        settings: EventLogSettings,
        put_all: Callable[[Sequence[Document]], object],
        *,
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        """Deliver to `put_all`, which takes the documents of a cycle, and raises where it cannot.

        Args:
            let_go: Closes what `put_all` has opened; a later call opens it again.
        """
        self._log = log
        self._settings = settings
        self._put_all = put_all
        self._let_go = let_go
        self._timetable = Timetable(settings)

    def open(self) -> None:
        """Make sure that the log can be read, and is read here alone."""
        self._log.refuse_unfit()
        self._log.claim(_READER, "publishes documents")

    def cycle(self) -> tuple[int, int, Scn]:
        """Deliver once; returns how many rows were read, how many events delivered, and the position then."""
        found = cycle(self._log, self._settings, _taken, begin=self._put_all)
        events = sum(found.answers.values())
        rows = found.polled.rows if found.polled is not None else events
        self._timetable.polled(has_found=rows > 0)
        return rows, events, found.position

    def at_once(self) -> None:
        """Have the next cycle due now."""
        self._timetable.at_once()

    @property
    def left_s(self) -> float:
        """Seconds until the next cycle is due."""
        return self._timetable.left_s

    def position(self) -> Scn:
        """Return the position of the last event; without tearing down and setting up, so many there were."""
        with self._log.transaction() as log:
            return log.position()

    def close(self) -> None:
        """Close the session with the log, and what documents go to; a later call opens both again."""
        self._log.close()
        self._let_go()


def _taken(first: Scn, elements: Sequence[str]) -> Sequence[Answer]:
    """Implements `Sink`: what `begin` has taken is there for good."""
    return [Answer.SUCCESS] * len(elements)


def _documents(pending: Sequence[Pending], batch_size: int) -> list[Document]:
    parts = (pending[first : first + batch_size] for first in range(0, len(pending), batch_size))
    return [(part[0].position, [event.element or "" for event in part]) for part in parts]


def _deliver(
    pending: Sequence[Pending], documents: Sequence[Document], sink: Sink, delivered: Delivered
) -> dict[RowOutcome, list[int]]:
    outcomes: dict[RowOutcome, list[int]] = {}
    events = iter(pending)
    for first, elements in documents:
        delivered.documents.append(len(elements))
        answers = sink(first, elements)
        for event, answer in zip(islice(events, len(elements)), answers, strict=False):
            delivered.answers[answer] = delivered.answers.get(answer, 0) + 1
            if answer is Answer.RETRY:
                delivered.is_retry = True
                return outcomes
            outcomes.setdefault(_OUTCOMES[answer], []).extend(event.record_ids)
            if answer is Answer.FATAL:
                delivered.is_fatal = True
                return outcomes
    return outcomes
