"""The apply process: takes slice after slice from the source, has each applied, and moves the low watermark.

It also decides when a run stops, and writes the reason that `penstock status` shows.
It keeps no state that matters: after a crash the next run reads from the ledger where to go on.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NoReturn, Protocol

from penstock.apply.batch import AppliedBatch, Interval, phases_of
from penstock.apply.ddl_log import APPLIED, LoggedDdl
from penstock.apply.error_queue import ErrorEntry
from penstock.apply.lane import LaneResult
from penstock.apply.lane_sizing import LaneSizing
from penstock.apply.ledger import ProcessState, ProcessStatus, QueueState
from penstock.apply.limits import Limits
from penstock.apply.listener import RunListener
from penstock.apply.parameters import Parameters
from penstock.apply.progress import Progress
from penstock.apply.retry_policy import RetryPolicy
from penstock.apply.table_counts import TableCounts, sum_of
from penstock.change import TableName
from penstock.errors import OperatorError, PenstockError, RetryableError, TooManyErrorsError
from penstock.events import Event, tell
from penstock.history import History, Joined
from penstock.position import Anchor, Limit, Scn
from penstock.stream import Slice
from penstock.text import count, printable


@dataclass(frozen=True)
class ReleasedTransaction:
    """What came of a transaction that had waited; `error` says why it was not applied."""

    entry_id: str
    error: str | None = None


@dataclass(frozen=True)
class _Applied:
    """A batch that is applied, and not completed yet."""

    batch: Slice
    lanes: int
    work: Interval
    results: Sequence[LaneResult]

    def completed(self, read: Interval, complete: Interval) -> AppliedBatch:
        """What the batch came to, with how long it took before and after."""
        return AppliedBatch(
            self.batch.end,
            len(self.batch),
            self.batch.total_changes,
            self.lanes,
            phases_of(read, self.work, complete, self.results),
            self.results,
        )


class _AnewError(PenstockError):
    """A parameter was set that only takes effect where a run begins."""


class TablesAddedError(PenstockError):
    """The source has tables that were not there when the run began: they have to be copied before changes follow."""


class Feed(Protocol):
    """The source, as the process drives it: `pipeline.feed.SourceFeed`, and those of `sinks`."""

    @property
    def source(self) -> str:
        """Its name, which a process keeps for life."""

    def join(self, history: History) -> Joined:
        """Make sure that the source still has the history that the process has followed, and keeps what follows.

        Raises:
            OperatorError: It has another one.
        """

    def start(self, state: ProcessState, known: Collection[TableName]) -> None:
        """Get ready to deliver batches to this run of the process, of `known` tables.

        Raises:
            TablesAddedError: There are more tables; so do `look_around` and `apply`.
        """

    def look_around(self) -> None:
        """Notice what has been added at the source; called now and then while nothing waits there."""

    def next_batch(self, after: Scn, limit: Limit) -> Slice | None:
        """Return the transactions that follow `after`; None when there are none yet.

        A slice without transactions only moves the position.
        """

    def apply(self, part: Slice, lanes: int) -> Sequence[LaneResult]:
        """Apply a batch, side by side in at most so many lanes; returns one result per lane.

        Raises:
            TablesAddedError: Nothing was applied; the run has to get ready again.
        """

    @property
    def is_gathering(self) -> bool:
        """Whether `next_batch` returns none because changes gather, and there may be some all the same."""

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when the source may have something; when told to stop, or after the timeout, at the latest."""

    def tick(self) -> Scn:
        """Return a position that every transaction committed before the call lies at or before."""

    def reached(self, position: Scn) -> None:
        """Notice what the source holds at a position besides changes.

        Raises:
            TablesAddedError: It has a copy of tables there, which takes their place before changes follow.
        """

    def free(self, upto: Scn) -> None:
        """Let the source forget what lies at or before a position; may take effect later."""

    def go_on(self) -> Sequence[ReleasedTransaction]:
        """Apply what has waited behind entries of the error queue that are gone; returns what came of each."""

    def close(self) -> None:
        """Close sessions, which may be broken; `start` opens new ones."""


class Ledger(Protocol):
    """The process's own entries at the target. PostgreSQL's are `PostgresLedger`; sinks have others."""

    def acquire(self, source: str, *, lanes: int) -> ProcessState:
        """Become the one run of this process."""

    def confirm(self) -> None:
        """Make sure that this is still the one run; raises FencedError otherwise."""

    def adopt(self, found: Joined) -> ProcessState:
        """Write down which history the process follows from now on, and from where."""

    def complete(self, end: Scn, consistent_at: datetime | None, anchor: Anchor | None) -> None:
        """Move the low watermark to the end of a batch, and see to it that all of the batch is on disk.

        A batch in one lane has moved the watermark with each commit; positions without transactions come here.
        `anchor` is the source's last cut at or before the end.
        """

    def note_idle(self, consistent_at: datetime) -> None:
        """Write down that nothing waited at the source at this time."""

    def set_status(self, status: ProcessStatus, reason: str, error: str | None = None) -> None:
        """Write down that the process stopped, and why; `error` is the one that it was to stop at."""

    def count(self, tables: TableCounts) -> None:
        """Add what was applied to the counters by table and operation, by which nothing is decided."""

    def newly_queued(self) -> Sequence[ErrorEntry]:
        """Return some more of the transactions that went to the error queue since the last call, until there are none.

        The first call begins behind those that an earlier run has completed.
        """

    def newly_altered(self) -> Sequence[LoggedDdl]:
        """Return some more of the DDL that was carried out, or left out, since the last call, until there is none.

        The first call begins behind that which an earlier run has completed.
        """

    def queue_state(self) -> QueueState:
        """Return what the error queue holds."""

    def close(self) -> None:
        """Give up being the one run."""


_IDLE_NOTE_S = 2.0

CAUGHT_UP = "it had caught up"

_TOLD_TO_STOP = "it was told to stop"

_QUEUE_EVERY_S = 2.0
"""How often to count the error queue while batch follows batch."""


class ApplyProcess:
    """One run of an apply process."""

    def __init__(
        self,
        *,
        feed: Feed,
        ledger: Ledger,
        prepare: Callable[[ProcessState, threading.Event], Collection[TableName]],
        parameters: Callable[[], Parameters],
        retry_policy: RetryPolicy,
        listener: RunListener,
        holds: bool = False,
    ) -> None:
        """Prepare a run; nothing is touched yet.

        Args:
            prepare: Called once this is the one run, before the first batch; copies what is not copied yet, and
                returns the tables it has seen.
            parameters: Says how to work, as it stands now; asked before each batch.
            retry_policy: How long to go on trying while a server is out of reach.
            holds: Whether transactions that depend on one in the error queue wait behind it.
        """
        self._holds = holds
        self._feed = feed
        self._ledger = ledger
        self._prepare = prepare
        self._parameters = parameters
        self._retry_policy = retry_policy
        self._listener = listener
        self._lanes = 1
        self._lane_sizing = LaneSizing(Limit(), self._lanes)
        self._limits = Limits()
        self._looked_at = 0.0
        self._errors = 0

    @property
    def errors(self) -> int:
        """How many transactions this run has put into the error queue."""
        return self._errors

    def run(self, stop: threading.Event, *, until_caught_up: bool = False, until: Scn | None = None) -> Progress:
        """Apply until told to stop; what is being applied then is finished first.

        Args:
            until_caught_up: Stop by itself once everything is applied, or in the error queue, that was committed
                at the source before the call, or while tables were copied.
            until: Stop by itself once this position is reached, which no batch of the feed goes beyond.

        Raises:
            OperatorError: Something that the user must change, or the process was told to stop at errors.
            RetryableError: A server stayed out of reach for longer than the configured time.
        """
        reason = CAUGHT_UP if until is None else f"it had reached position {until}"
        progress = Progress(Scn(0))
        self._limits.restart()
        while not stop.is_set():
            is_away = True
            try:
                self._set_lanes(self._parameters().lanes)
                state = self._ledger.acquire(self._feed.source, lanes=self._lanes)
                # Before anything is cut, copied or applied.
                state = self._ledger.adopt(self._feed.join(state.history))
                is_away = False
                progress.position = state.low_watermark
                known = self._prepare(state, stop)
                if until_caught_up and until is None:
                    # Consistent from the newest copy on: before that, tables were copied at different positions.
                    until = self._feed.tick()
                self._feed.start(state, known)
                self._listener.following()
                self._refuse_held(progress)
                self._follow(progress, stop, until)
                if not stop.is_set():
                    self._look_at_queue(progress, at_once=True)
            except (TablesAddedError, _AnewError):
                continue
            except RetryableError as exc:
                # The next run applies what this one did not finish; the ledger says what that is.
                if stop.is_set():
                    # What was cut short may still hold locks in the ledger; who had it stopped notes that.
                    break
                self._feed.close()
                # The ledger's session keeps the lock meanwhile: this run is alive, and no other one may begin.
                self._retry_policy.wait(exc, is_away=is_away)
                self._ledger.close()
                if stop.is_set():
                    # Where the ledger is what is out of reach, it can say nothing.
                    with suppress(RetryableError):
                        self._ledger.set_status(ProcessStatus.DISABLED, _TOLD_TO_STOP)
            else:
                self._tell_ddl()
                self._count_queue(progress)
                said = _TOLD_TO_STOP if stop.is_set() else progress.ended_by or reason
                self._ledger.set_status(ProcessStatus.DISABLED, said)
                break
        return progress

    def _set_lanes(self, lanes: int) -> None:
        if lanes != self._lanes:
            self._lanes = lanes
            self._lane_sizing = LaneSizing(Limit(), lanes)

    def _follow(self, progress: Progress, stop: threading.Event, until: Scn | None) -> None:
        noted_at = 0.0
        while not stop.is_set() and (until is None or progress.position < until):
            asked_at = datetime.now(UTC)
            parameters = self._parameters()
            if parameters.lanes != self._lanes:
                raise _AnewError("the number of lanes was set")
            progress.ended_by = self._reached(parameters, progress.position)
            if progress.ended_by is not None:
                return
            began_ns = time.time_ns()
            batch = self._next_batch(progress.position, self._limit_of(parameters))
            read = Interval(began_ns, time.time_ns())
            if batch is None:
                self._retry_policy.restore()
                if time.monotonic() - noted_at > _IDLE_NOTE_S:
                    noted_at = time.monotonic()
                    self._ledger.note_idle(asked_at)
                    self._look_at_queue(progress, at_once=True)
                    if not self._feed.is_gathering:
                        self._listener.waiting(progress)
                    self._feed.look_around()
                self._feed.wait(stop, min(_IDLE_NOTE_S, self._limits.seconds_left(parameters)))
                continue
            applied = self._apply(batch, progress, parameters) if len(batch) else None
            self._limits.count(len(batch))
            worked_ns = time.time_ns()
            self._ledger.complete(batch.end, batch.last_committed_at, batch.anchor)
            complete = Interval(worked_ns, time.time_ns())
            progress.last_batch = None if applied is None else applied.completed(read, complete)
            progress.position = batch.end
            # Only now, after success: a batch that fails each time must not be tried for ever.
            self._retry_policy.restore()
            self._feed.free(batch.end)
            self._look_at_queue(progress)
            self._listener.progressed(progress)
            self._feed.reached(batch.end)

    def _reached(self, parameters: Parameters, position: Scn) -> str | None:
        """Say which limit ends the run here; None if none does."""
        if parameters.maximum_scn is not None and position >= parameters.maximum_scn - 1:
            return f"it had reached maximum_scn {parameters.maximum_scn}"
        reached = self._limits.reached(parameters)
        if reached is None or parameters.disable_on_limit:
            return reached
        tell(Event.NOTE, f"{reached.removeprefix('it had ')}; counts begin anew, as disable_on_limit is off")
        self._limits.restart()
        return None

    def _limit_of(self, parameters: Parameters) -> Limit:
        """Most that the next batch is to take."""
        lane_sizing = self._lane_sizing.limit()
        left, threshold = self._limits.transactions_left(parameters), parameters.txn_lcr_spill_threshold
        return replace(
            lane_sizing,
            max_transactions=lane_sizing.max_transactions if left is None else min(lane_sizing.max_transactions, left),
            large_changes=sys.maxsize if threshold is None else threshold,
            # Behind it the next transaction would be the one at the maximum, or one beyond.
            until=None if parameters.maximum_scn is None else Scn(parameters.maximum_scn - 1),
        )

    def _next_batch(self, after: Scn, limit: Limit) -> Slice | None:
        with self._confirmed():
            return self._feed.next_batch(after, limit)

    @contextmanager
    def _confirmed(self) -> Iterator[None]:
        """Another run may have applied what the block reads, and the source freed it: then that is what is raised."""
        try:
            yield
        except OperatorError:
            self._ledger.confirm()
            raise

    def _apply(self, batch: Slice, progress: Progress, parameters: Parameters) -> _Applied:
        lanes = self._lane_sizing.lanes(transactions=len(batch), changes=batch.total_changes)
        began, began_ns = time.monotonic(), time.time_ns()
        with self._confirmed():
            results = self._feed.apply(batch, lanes)
        # Before anything ends the run: what the lanes have committed is applied, whatever becomes of the batch.
        self._ledger.count(sum_of(result.tables for result in results))
        took_s = time.monotonic() - began
        applied = _Applied(batch, lanes, Interval(began_ns, time.time_ns()), results)
        self._lane_sizing.note(lanes=lanes, changes=batch.total_changes, seconds=took_s)
        if parameters.trace_level > 0:
            _tell_batch(batch, lanes=lanes, took_s=took_s)
        progress.add(results, batch.last_committed_at)
        self._errors = progress.errors
        queued = self._tell_queued(progress)
        failures = [result.failure for result in results if result.failure is not None]
        if failures:
            with self._confirmed():
                raise failures[0]
        aborted_by = [result.aborted_by for result in results if result.aborted_by is not None]
        if parameters.max_errors is not None and progress.errors >= parameters.max_errors:
            self._stop_at_errors(parameters.max_errors, progress)
        if aborted_by:
            first = min(queued, key=lambda entry: entry.commit_scn, default=None)
            error = aborted_by[0] if first is None else f"transaction {first.id}: {first.error_message}"
            self._abort(error)
        return applied

    def _tell_queued(self, progress: Progress) -> list[ErrorEntry]:
        """Report what went to the error queue, in this attempt or in those that broke off; return it."""
        told: list[ErrorEntry] = []
        while entries := self._ledger.newly_queued():
            for entry in entries:
                self._listener.queued(entry)
            told += entries
        if told:
            self._look_at_queue(progress, at_once=True)
        return told

    def _look_at_queue(self, progress: Progress, *, at_once: bool = False) -> None:
        """Count the error queue, and let go on what waits for nothing any more: users retry and delete entries."""
        now = time.monotonic()
        if not at_once and now - self._looked_at < _QUEUE_EVERY_S:
            return
        self._looked_at = now
        self._tell_ddl()
        if not self._count_queue(progress).may_go_on:
            return
        went_on = self._feed.go_on()
        failed = [one for one in went_on if one.error is not None]
        progress.went_on += len(went_on) - len(failed)
        text = f"{count(len(went_on) - len(failed), 'transaction')} went on that had waited behind the error queue"
        tell(Event.NOTE, text, {"went_on": [one.entry_id for one in went_on if one.error is None]})
        # A line for each error: many may fail alike.
        for error in dict.fromkeys(one.error for one in failed):
            ids = [one.entry_id for one in failed if one.error == error]
            more = f" (and {count(len(ids) - 1, 'more transaction')})" if len(ids) > 1 else ""
            text = f"transaction {ids[0]}{more} had waited, and failed in its turn: {printable(error or '')}"
            tell(Event.NOTE, text, {"id": ids[0], "ids": ids}, level=logging.WARNING)
        self._count_queue(progress)
        if failed and self._parameters().disable_on_error:
            self._abort(f"transaction {failed[0].entry_id}: {failed[0].error}")

    def _tell_ddl(self) -> None:
        """Report what DDL has done to tables; a table or a column that went, as a warning."""
        while found := self._ledger.newly_altered():
            for one in found:
                event = Event.DDL_APPLIED if one.outcome == APPLIED else Event.DDL_LEFT_OUT
                facts = {"table": str(one.table), "done": list(one.done), "txn_id": one.txn_id, "is_loss": one.is_loss}
                level = logging.WARNING if one.is_loss and event is Event.DDL_APPLIED else logging.INFO
                tell(event, printable(str(one)), facts, level=level)

    def _count_queue(self, progress: Progress) -> QueueState:
        found = self._ledger.queue_state()
        progress.in_queue, progress.held = found.total, found.held
        return found

    def _refuse_held(self, progress: Progress) -> None:
        """Refuse to apply past transactions that wait.

        Raises:
            OperatorError: Some do, and `hold_dependents` was switched off since.
        """
        if self._holds:
            self._look_at_queue(progress, at_once=True)
        elif self._count_queue(progress).held:
            raise OperatorError(
                f"apply.hold_dependents is off, and {count(progress.held, 'transaction')} in the error queue"
                f" {'waits' if progress.held == 1 else 'wait'} behind others: what follows would overtake"
                f" {'it' if progress.held == 1 else 'them'}",
                do="switch it on again; or retry or delete what `penstock errors list` says they wait for, first",
            )

    def _stop_at_errors(self, most: int, progress: Progress) -> NoReturn:
        what = f"apply stopped: this run has put {count(progress.errors, 'transaction')} into the error queue"
        self._ledger.set_status(ProcessStatus.ABORTED, what)
        raise TooManyErrorsError(
            what,
            where=f"max_errors {most}",
            do="`penstock errors list` says what failed; fix the cause and retry them. The next run goes on behind"
            " them, and counts anew",
        )

    def _abort(self, error: str) -> NoReturn:
        what = f"apply stopped at the first error, as disable_on_error asks: {error}"
        self._ledger.set_status(ProcessStatus.ABORTED, what, error)
        raise OperatorError(
            what,
            do="`penstock errors list` shows it; fix and retry it; the next run goes on behind it",
        )


def _tell_batch(batch: Slice, *, lanes: int, took_s: float) -> None:
    what = f"{count(len(batch), 'transaction')}, {count(batch.total_changes, 'change')}, {count(lanes, 'lane')}"
    facts = {
        "position": batch.end,
        "transactions": len(batch),
        "changes": batch.total_changes,
        "lanes": lanes,
        "took_s": round(took_s, 3),
    }
    tell(Event.APPLY_BATCH, f"batch up to position {batch.end}: {what}, {took_s:.3f} s", facts)
