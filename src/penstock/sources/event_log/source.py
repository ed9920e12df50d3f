"""An event log as what the driver follows: it polls, hands out what the journal holds, and settles what is applied."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from penstock.history import History, HistoryError, Joined
from penstock.position import START, Anchor, Limit, Scn
from penstock.sources.event_log.changes import AsChanges
from penstock.sources.event_log.failures import Failures
from penstock.sources.event_log.poll import EventForm, EventLog, LogTransaction, by_outcome, poll
from penstock.sources.event_log.row_messages import tell_settled
from penstock.sources.event_log.rows import RowOutcome, Settled
from penstock.sources.event_log.settings import EventLogSettings
from penstock.sources.event_log.timetable import Timetable
from penstock.sources.recorded import RecordedSource, Recording
from penstock.stream import Backlog, Slice, Source


class Journal(Recording):
    """The journal of a log: what it holds stays the same until it is settled. Dialects implement it."""

    settings: EventLogSettings
    """How the log is read."""

    @abstractmethod
    def open_log(self) -> EventLog:
        """Open the log that it belongs to."""

    @abstractmethod
    def waiting(self) -> Backlog:
        """Count the rows of the log that are due."""

    @abstractmethod
    def make(self) -> None:
        """Make the journal where there is none; `penstock setup` does so itself, a Spark stream calls this.

        Raises:
            OperatorError: The log is that of another journal.
        """

    @abstractmethod
    def elements(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the events of a slice, in order, as XDS elements (`elements.ELEMENTS`)."""


class EventLogSource(RecordedSource):
    """Implements `stream.Source`.

    An event is a transaction. Whoever asks for what follows a position has applied, for good, what lies before it: so
    that is settled before anything is polled, and a crash in between is made up for by the next `join`.
    """

    def __init__(self, journal: Journal, failures: Failures, *, form: Callable[[], EventForm] = AsChanges) -> None:
        """Follow a log; nothing is touched yet.

        Args:
            form: Makes, for each poll, what the journal keeps of events.
        """
        super().__init__(journal)
        self._journal = journal
        self._log = journal.open_log()
        self._failures = failures
        self._form = form
        self._timetable = Timetable(journal.settings)
        self._settled = START
        self._ticked = START

    def open(self) -> None:
        """Make sure that the log can be read."""
        super().open()
        self._log.refuse_unfit()

    def join(self, history: History) -> Joined:
        """Make sure that a process goes on with the journal it has followed, and settle what it has applied."""
        found = super().join(history)
        self.claim(history.consumer.id, f"applies to {history.consumer.target or 'another target'}")
        if not history.is_new:
            self._refuse_settled(history.position)
            self.settle(history.position)
        return found

    def _refuse_settled(self, position: Scn) -> None:
        """Make sure that no event behind a position was settled for whoever stands there: it will not come again."""
        if position < (settled := self.settled()):
            raise HistoryError(
                f"the journal does not hold what follows position {position}: events up to {settled} were applied, and"
                " their rows have their status, which means that the target was restored to an older state",
                where=self._log.label,
            )

    def settled(self) -> Scn:
        """Return the position of the last event that was taken out of the journal for its reader."""
        with self._log.transaction() as log:
            return log.settled()

    def claim(self, reader_id: str, reader: str) -> None:
        """Make sure that the log can be read, and is read here alone; see `EventLog.claim`."""
        self._log.refuse_unfit()
        self._log.claim(reader_id, reader)

    def hold_against(self, history: History) -> None:
        """Make sure that a process's history is that of the journal; otherwise raise as `join` does."""
        super().join(history)
        if not history.is_new:
            self._refuse_settled(history.position)

    def next_slice(
        self, after: Scn, limit: Limit, *, until: Scn | None = None, anchor: Anchor | None = None
    ) -> Slice | None:
        """Return the events that follow `after`; polls where the journal holds none and the time has come."""
        self.settle(after)
        part = super().next_slice(after, limit, until=until, anchor=anchor)
        while part is None and (until is None or after < until) and not self._timetable.left_s:
            with self._log.transaction() as log:
                mend(log, self._failures)
                found = poll(log, self._journal.settings, self._form())
                is_over = found.rows == 0 and self._ticked > after
                if is_over:
                    # Nothing is left of what was there at the tick: the position goes there, across no event.
                    log.move(self._ticked)
            tell_settled(found, self._log.label)
            self._timetable.polled(has_found=found.rows > 0)
            if is_over:
                end = self._ticked if until is None else min(self._ticked, until)
                id_ = self._journal.id
                return replace(Slice.empty(after), end=Scn(end), start=Anchor(after, id_), cut=Anchor(Scn(end), id_))
            if not found.rows:
                return None
            part = super().next_slice(after, limit, until=until, anchor=anchor)
        return part

    def settle(self, upto: Scn) -> None:
        """Write the outcome of the rows behind events up to a position, which are applied or in the error queue."""
        if upto <= self._settled:
            return
        with self._log.transaction() as log:
            is_poll_over = settle(log, upto, self._failures)
        self._settled = upto
        if is_poll_over:
            self._log.run_post_poll()

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when the next poll is due; after the timeout at the latest."""
        stop.wait(min(timeout_s, self._timetable.left_s))

    def tick(self) -> Scn:
        """Return a position that the events of all rows that are due now lie at or before; polls for them at once."""
        self._ticked = self.last_due()
        return self._ticked

    def last_due(self) -> Scn:
        """Return a position as `tick` does; a poll that finds nothing leaves the position where it is, though."""
        with self._log.transaction() as log:
            # At most one event for each row.
            last = Scn(log.position() + self._journal.waiting().changes)
        self._timetable.at_once()
        return last

    def free(self, upto: Scn, consumer: str) -> int:
        """Settle what is applied."""
        self.settle(upto)
        return 0

    def backlog(self, after: Scn) -> Backlog:
        """Count the rows that are due."""
        return self._journal.waiting()

    def close(self) -> None:
        """Close the session with the log; a later call opens it again."""
        self._log.close()


def settle(log: LogTransaction, upto: Scn, failures: Failures) -> bool:
    """Settle the rows behind the journal's events up to a position, and take the events out of it.

    Returns:
        Whether the last event of a poll was among them.
    """
    pending = log.pending(upto)
    if not pending:
        return False
    waiting = frozenset(failures.waiting())
    # Asked for after the queue: an entry that is deleted leaves it in the same transaction that says so.
    failed = waiting.union(failures.deleted(pending[0].position, pending[-1].position))
    outcomes: dict[int, Settled] = {}
    for event in pending:
        outcome = RowOutcome.ERROR if event.position in failed else RowOutcome.SUCCESS
        outcomes |= dict.fromkeys(event.record_ids, Settled(outcome))
    log.settle(by_outcome(outcomes))
    log.keep_failed(event for event in pending if event.position in waiting)
    log.forget(upto)
    return upto >= log.position()


def mend(log: LogTransaction, failures: Failures) -> None:
    """Give the rows behind events that failed first, and were applied by a retry since, the status of those applied.

    An event that was deleted from the error queue was never applied: its rows stay `E`.
    """
    failed = log.failed()
    if not failed:
        return
    gone = failed.keys() - frozenset(failures.waiting())
    if gone:
        # Asked for after the queue: an entry that is applied leaves it in the same transaction that says so.
        applied = frozenset(failures.applied())
        log.mend(gone, [record_id for at in sorted(gone) if at in applied for record_id in failed[at]])


_: type[Source] = EventLogSource
