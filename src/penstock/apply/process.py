"""The apply process: takes slice after slice from the source, has each applied, and moves the low watermark.

It keeps no state that matters: after a crash the next run reads from the ledger where to go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from penstock.apply.error_queue import ErrorEntry
from penstock.apply.lag import LagHistogram
from penstock.apply.ledger import ProcessState, ProcessStatus
from penstock.apply.pace import Pace
from penstock.apply.patience import Patience, RetryListener
from penstock.apply.server import LaneResult
from penstock.change import TableName
from penstock.errors import OperatorError, PenstockError, RetryableError
from penstock.history import History, Joined
from penstock.position import Anchor, Limit, Scn


class CommitSerialization(StrEnum):
    """Which transactions must commit at the target in the source's order."""

    FULL = "FULL"
    DEPENDENT_TRANSACTIONS = "DEPENDENT_TRANSACTIONS"


@dataclass(frozen=True)
class ProcessConfig:
    """How an apply process works.

    Attributes:
        parallelism: Apply servers at work side by side.
        limit: Most that one batch takes.
    """

    parallelism: int = 2
    commit_serialization: CommitSerialization = CommitSerialization.DEPENDENT_TRANSACTIONS
    limit: Limit = field(default_factory=Limit)


@dataclass
class Progress:
    """What a run has done so far, for status and logs.

    Attributes:
        errors: Transactions that it put into the error queue.
        in_queue: How many transactions the error queue holds now, those of earlier runs included.
    """

    position: Scn
    transactions: int = 0
    changes: int = 0
    set_changes: int = 0
    row_changes: int = 0
    errors: int = 0
    conflicts: int = 0
    resolved: int = 0
    in_queue: int = 0
    lag: LagHistogram = field(default_factory=LagHistogram)

    def add(self, results: Sequence[LaneResult]) -> None:
        """Count the results of a batch."""
        for result in results:
            self.transactions += result.transactions
            self.changes += result.changes
            self.set_changes += result.set_changes
            self.row_changes += result.row_changes
            self.errors += result.errors
            self.conflicts += result.conflicts
            self.resolved += result.resolved
            self.lag.merge(result.lag.buckets)


class TablesAddedError(PenstockError):
    """The source has tables that were not there when the run began: they have to be copied before changes follow."""


class Batch(Protocol):
    """Transactions that the source delivers together, in commit order."""

    @property
    def end(self) -> Scn:
        """Position after the last of them."""

    @property
    def total_changes(self) -> int:
        """Number of changes in all of them together."""

    @property
    def anchor(self) -> Anchor | None:
        """The source's last cut at or before the end."""

    @property
    def last_committed_at(self) -> datetime | None:
        """When the last of them was committed at the source."""

    def __len__(self) -> int:
        """Number of transactions; none means that only the position moves."""

    def apply(self, *, lanes: int) -> Sequence[LaneResult]:
        """Apply them, side by side in at most so many lanes; returns one result per lane.

        Raises:
            TablesAddedError: Nothing was applied; the run has to get ready again.
        """


class Feed(Protocol):
    """The source, as the process drives it."""

    def join(self, history: History) -> Joined:
        """Make sure that the source still has the history that the process has followed, and keeps what follows.

        Raises:
            OperatorError: It has another one.
        """

    def start(self, state: ProcessState, known: Collection[TableName]) -> None:
        """Get ready to deliver batches to this run of the process, of `known` tables.

        Raises:
            TablesAddedError: There are more tables; so do `look_around` and a batch's `apply`.
        """

    def look_around(self) -> None:
        """Notice what has been added at the source; called now and then while nothing waits there."""

    def next_batch(self, after: Scn, limit: Limit) -> Batch | None:
        """Return the transactions that follow `after`; None when there are none yet."""

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

    def close(self) -> None:
        """Close sessions, which may be broken; `start` opens new ones."""


class Ledger(Protocol):
    """The process's own entries at the target."""

    def acquire(self, source: str, *, lanes: int) -> ProcessState:
        """Become the one run of this process."""

    def confirm(self) -> None:
        """Make sure that this is still the one run; raises FencedError otherwise."""

    def adopt(self, found: Joined) -> ProcessState:
        """Write down which history the process follows from now on, and from where."""

    def complete(self, end: Scn, consistent_at: datetime | None, anchor: Anchor | None) -> None:
        """Move the low watermark to the end of a batch; `anchor` is the source's last cut at or before that."""

    def note_idle(self, consistent_at: datetime) -> None:
        """Write down that nothing waited at the source at this time."""

    def set_status(self, status: ProcessStatus, reason: str, error: str | None = None) -> None:
        """Write down that the process stopped, and why; `error` is the one that it was to stop at."""

    def newly_queued(self) -> Sequence[ErrorEntry]:
        """Return some more of the transactions that went to the error queue since the last call, until there are none.

        The first call begins behind those that an earlier run has completed.
        """

    def queue_length(self) -> int:
        """Return how many transactions the error queue holds."""

    def close(self) -> None:
        """Give up being the one run."""


class Listener(RetryListener, Protocol):
    """Hears how a run is doing."""

    def following(self) -> None:
        """Everything is ready; changes are applied from now on."""

    def queued(self, entry: ErrorEntry) -> None:
        """A transaction went to the error queue."""

    def progressed(self, progress: Progress) -> None:
        """A batch is applied."""

    def waiting(self, progress: Progress) -> None:
        """Nothing waits at the source."""


_IDLE_NOTE_S = 2.0

_QUEUE_EVERY_S = 2.0
"""How often to count the error queue while batch follows batch."""


class ApplyProcess:
    """One run of an apply process."""

    def __init__(
        self,
        *,
        source: str,
        feed: Feed,
        ledger: Ledger,
        prepare: Callable[[ProcessState, threading.Event], Collection[TableName]],
        config: ProcessConfig,
        patience: Patience,
        listener: Listener,
    ) -> None:
        """Prepare a run; nothing is touched yet.

        Args:
            source: Name of the source, which a process keeps for life.
            prepare: Called once this is the one run, before the first batch; copies what is not copied yet, and
                returns the tables it has seen.
            patience: How long to go on trying while a server is out of reach.
        """
        self._source = source
        self._feed = feed
        self._ledger = ledger
        self._prepare = prepare
        self._config = config
        self._patience = patience
        self._listener = listener
        self._lanes = 1 if config.commit_serialization is CommitSerialization.FULL else config.parallelism
        self._pace = Pace(config.limit, self._lanes)
        self._looked_at = 0.0

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
        reason = "it had caught up" if until is None else f"it had reached position {until}"
        progress = Progress(Scn(0))
        while not stop.is_set():
            try:
                state = self._ledger.acquire(self._source, lanes=self._lanes)
                # Before anything is cut, copied or applied.
                state = self._ledger.adopt(self._feed.join(state.history))
                progress.position = state.low_watermark
                known = self._prepare(state, stop)
                if until_caught_up and until is None:
                    # Consistent from the newest copy on: before that, tables were copied at different positions.
                    until = self._feed.tick()
                self._feed.start(state, known)
                self._listener.following()
                self._follow(progress, stop, until)
            except TablesAddedError:
                continue
            except RetryableError as exc:
                if stop.is_set():
                    # The next run applies what this one did not finish; the ledger says what that is.
                    break
                self._feed.close()
                self._ledger.close()
                self._patience.wait(exc)
            else:
                progress.in_queue = self._ledger.queue_length()
                said = "it was told to stop" if stop.is_set() else reason
                self._ledger.set_status(ProcessStatus.DISABLED, said)
                break
        return progress

    def _follow(self, progress: Progress, stop: threading.Event, until: Scn | None) -> None:
        noted_at = 0.0
        while not stop.is_set() and (until is None or progress.position < until):
            asked_at = datetime.now(UTC)
            batch = self._next_batch(progress.position)
            if batch is None:
                self._patience.restore()
                if time.monotonic() - noted_at > _IDLE_NOTE_S:
                    noted_at = time.monotonic()
                    self._ledger.note_idle(asked_at)
                    self._look_at_queue(progress, at_once=True)
                    if not self._feed.is_gathering:
                        self._listener.waiting(progress)
                    self._feed.look_around()
                self._feed.wait(stop, _IDLE_NOTE_S)
                continue
            if len(batch):
                self._apply(batch, progress)
            self._ledger.complete(batch.end, batch.last_committed_at, batch.anchor)
            progress.position = batch.end
            # Only now, after success: a batch that fails each time must not be tried for ever.
            self._patience.restore()
            self._feed.free(batch.end)
            self._look_at_queue(progress)
            self._listener.progressed(progress)
            self._feed.reached(batch.end)

    def _next_batch(self, after: Scn) -> Batch | None:
        try:
            return self._feed.next_batch(after, self._pace.limit())
        except OperatorError:
            # Another run may have applied these changes, and the source freed them: then that is the error to report.
            self._ledger.confirm()
            raise

    def _apply(self, batch: Batch, progress: Progress) -> None:
        lanes = self._pace.lanes(transactions=len(batch), changes=batch.total_changes)
        began = time.monotonic()
        results = batch.apply(lanes=lanes)
        self._pace.note(lanes=lanes, changes=batch.total_changes, seconds=time.monotonic() - began)
        progress.add(results)
        queued = self._tell_queued(progress)
        failures = [result.failure for result in results if result.failure is not None]
        if failures:
            if isinstance(failures[0], OperatorError):
                self._ledger.confirm()
            raise failures[0]
        aborted_by = [result.aborted_by for result in results if result.aborted_by is not None]
        if aborted_by:
            first = min(queued, key=lambda entry: entry.commit_scn, default=None)
            error = aborted_by[0] if first is None else f"transaction {first.id}: {first.error_message}"
            what = f"apply stopped at the first error, as disable_on_error asks: {error}"
            self._ledger.set_status(ProcessStatus.ABORTED, what, error)
            raise OperatorError(
                what,
                do="`penstock errors list` shows it; mend and retry it; the next run goes on behind it",
            )

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
        """Count the error queue: users retry and delete entries while this runs."""
        now = time.monotonic()
        if at_once or now - self._looked_at >= _QUEUE_EVERY_S:
            self._looked_at = now
            progress.in_queue = self._ledger.queue_length()
