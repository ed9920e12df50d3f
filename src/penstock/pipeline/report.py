"""Saying how a run is doing, as log records; see `penstock.events`."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, RetryableError
from penstock.events import AlikeLines, Event, SourceFacts, tell
from penstock.text import are, count, duration, how_far, printable, time_text

if TYPE_CHECKING:
    from penstock.apply.error_queue import ErrorEntry
    from penstock.apply.progress import Progress

_EVERY_S = 5.0

_SHARE = 0.99
"""The lag of a line is that which so many of its transactions stayed below."""


@dataclass
class CopyProgress:
    """How far a copy is.

    Attributes:
        of: How many chunks there are.
        chunks, rows: How many of them are committed, and with how many rows.
        began_at: When the copy began, by the clock of the report.
    """

    of: int = 0
    chunks: int = 0
    rows: int = 0
    began_at: float = 0.0

    def text(self, now: float) -> str:
        """How far it is in one line: `copying 3/5 chunks, 60 %, 1,200 rows, 4 s left`."""
        if self.chunks >= self.of:
            return f"copied {count(self.chunks, 'chunk')}, {count(self.rows, 'row')}"
        took_s = now - self.began_at
        return f"copying {how_far(self.chunks, self.of, 'chunk', took_s, more=count(self.rows, 'row'))}"


class Report:
    """A `RunListener` that logs: rare events at once, progress now and then, and the last progress always."""

    def __init__(
        self,
        *,
        every_s: float = _EVERY_S,
        publishes: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Log progress at most once in so many seconds; of a pipeline that publishes there are no errors to count."""
        self._every_s = every_s
        self._clock = clock
        self._failed = AlikeLines(_tell_failed_transaction, clock=clock)
        self._publishes = publishes
        self._told_at = 0.0
        self._told = 0, 0, 0
        self._untold: Progress | None = None
        self._idle_at: tuple[int, int] | None = None
        self._lost: set[str] = set()
        self._lost_at = 0.0
        self._copy = CopyProgress()
        self._lag_told: Counter[int] = Counter()

    def close(self) -> None:
        """Log the progress that was not logged yet: an error ends the run."""
        self._failed.say_all()
        if self._untold is not None:
            self._tell_progress(Event.APPLY_PROGRESSED, self._untold)

    def ended(self) -> None:
        """Log what was only counted: the run is over, and what it came to is about to be logged."""
        self._failed.say_all()

    def copying(self, chunks: int, tables: int) -> None:
        """So many chunks are about to be copied."""
        self._copy = CopyProgress(chunks, began_at=self._clock())
        text = f"copying {count(tables, 'table')} in {count(chunks, 'chunk')}"
        tell(Event.COPY_STARTED, text, {"tables": tables, "chunks": chunks})

    def copied(self, chunks: int, rows: int) -> None:
        """So many more chunks are committed, with so many rows."""
        self._copy.chunks += chunks
        self._copy.rows += rows
        plain: SourceFacts = {
            "chunks": chunks,
            "rows": rows,
            "of_chunks": self._copy.of,
            "done_chunks": self._copy.chunks,
        }
        tell(Event.COPY_PROGRESSED, self._copy.text(self._clock()), plain)

    def following(self) -> None:
        """Everything is ready; changes are applied, or published, from now on."""
        tell(Event.APPLY_STARTED, "following")

    def progressed(self, progress: Progress) -> None:
        """A batch is applied, or published."""
        self._failed.say_due()
        self._recovered()
        if _worth_a_line(progress) == self._told:
            return  # Only the position has moved.
        self._untold = progress
        if self._is_time():
            self._tell_progress(Event.APPLY_PROGRESSED, progress)

    def waiting(self, progress: Progress) -> None:
        """Nothing waits at the source."""
        self._failed.say_due()
        self._recovered()
        now = progress.transactions, progress.in_queue
        if self._idle_at != now and self._is_time():
            self._idle_at = now
            self._tell_progress(Event.APPLY_IDLE, progress)

    def queued(self, entry: ErrorEntry) -> None:
        """A transaction went to the error queue; those that fail alike are counted."""
        committed = f", committed {time_text(entry.committed_at)}" if entry.committed_at else ""
        failed = f"change {entry.message_number} of {entry.message_count}" if entry.message_number else "its commit"
        of = f", {entry.op} of {entry.table}" if entry.table else ""
        number = f"error {entry.error_number}, " if entry.error_number else ""
        text = (
            f"transaction {entry.id} ({entry.txn_id} at the source{committed}) went to the error queue:"
            f" {failed}{of}: {number}{entry.error_message}. `penstock errors show {entry.id}` shows it whole"
        )
        plain = {
            "id": entry.id,
            "txn_id": entry.txn_id,
            "commit_scn": entry.commit_scn,
            "committed_at": entry.committed_at,
            "message_number": entry.message_number,
            "message_count": entry.message_count,
            "table": str(entry.table) if entry.table else None,
            "op": entry.op,
            "error_number": entry.error_number,
            "error_code": entry.error_code,
            "error_message": entry.error_message,
        }
        self._failed.add((entry.error_number, entry.table), Event.TRANSACTION_QUEUED, printable(text), plain)

    def retrying(self, error: RetryableError, left_s: float | None) -> None:
        """Something is out of reach; it will be tried again for so many seconds, or without end.

        Each place is named once, until all are back.
        """
        if not self._lost:
            self._lost_at = time.monotonic()
        if error.where not in self._lost:
            text = f"{error}; trying again{'' if left_s is None else f' for at most {left_s:.0f} s more'}"
            parts = {"what": error.what, "where": error.where, "left_s": left_s}
            tell(Event.SERVER_LOST, text, parts, level=logging.WARNING)
        self._lost.add(error.where)

    def warned(self, text: str, event: Event = Event.NOTE, facts: SourceFacts | None = None) -> None:
        """Something a person should know."""
        tell(event, printable(text), facts, level=logging.WARNING)

    def _recovered(self) -> None:
        if self._lost:
            away_s = time.monotonic() - self._lost_at
            text = f"connected again after {duration(away_s)}"
            tell(Event.SERVER_BACK, text, {"where": sorted(self._lost), "away_s": round(away_s, 1)})
        self._lost.clear()

    def _is_time(self) -> bool:
        return self._clock() - self._told_at >= self._every_s

    def _tell_progress(self, event: Event, progress: Progress) -> None:
        now = self._clock()
        rate = (progress.changes - self._told[0]) / (now - self._told_at) if self._told_at else None
        self._told_at, self._told, self._untold = now, _worth_a_line(progress), None
        state = "up to date" if event is Event.APPLY_IDLE else "publishing" if self._publishes else "applying"
        lag = self._lag_since_told(progress)
        tell(event, f"{state}, {describe(progress, lag=lag, rate=rate, publishes=self._publishes)}", facts(progress))

    def _lag_since_told(self, progress: Progress) -> str | None:
        """The lag of what was applied since the last line; that of all the run would stay high for ever."""
        buckets = progress.lag.buckets
        found = replace(progress.lag, buckets=buckets - self._lag_told).quantile_s(_SHARE)
        self._lag_told = buckets.copy()
        return None if found is None else _lag(found)


def _tell_failed_transaction(event: Event, text: str, facts: SourceFacts) -> None:
    tell(event, text, facts, level=logging.WARNING)


def _worth_a_line(progress: Progress) -> tuple[int, int, int]:
    """The figures of which a change is worth another line."""
    return progress.changes, progress.errors, progress.in_queue


class VerifyReport:
    """A `VerifyListener` that logs what keeps it waiting."""

    def compared(self, ranges: int, of: int) -> None:
        """So many ranges are compared, out of so many."""

    def repaired(self, ranges: int, of: int) -> None:
        """So many ranges are the same now, out of so many that were not."""

    def warned(self, text: str) -> None:
        """Something a person should know."""
        tell(Event.NOTE, printable(text), level=logging.WARNING)


def tell_ended(progress: Progress, *, has_caught_up: bool, has_arrived: bool = False, publishes: bool = False) -> None:
    """Log that a run has ended as it should, and what it leaves in the error queue; `has_arrived` where it was told."""
    event, how = (Event.RUN_CAUGHT_UP, "caught up") if has_caught_up else (Event.RUN_STOPPED, "stopped")
    if has_arrived:
        event, how = Event.RUN_ARRIVED, f"arrived at position {progress.position}"
    elif progress.ended_by is not None:
        how = f"stopped, for {progress.ended_by}"
    tell(event, f"{how}: {describe(progress, publishes=publishes)}", facts(progress))
    if progress.left_out:
        names = f"{count(len(progress.left_out), 'table')} {are(len(progress.left_out))} left out"
        tell(Event.NOTE, printable(f"{names}: {', '.join(progress.left_out)}"), level=logging.WARNING)
    if progress.in_queue:
        held = f"the error queue holds {count(progress.in_queue, 'transaction')}"
        tell(Event.NOTE, f"{held}; `penstock errors list` says why", level=logging.WARNING)


def redacted_error(error: Exception) -> PenstockError:
    """Return an error as it may be told: of an unforeseen one only its kind, for its text may hold a value."""
    if isinstance(error, PenstockError):
        return error
    kind = type(error).__name__
    return PenstockError(f"an unexpected error ended the run: {kind}", do="its traceback says where")


def tell_failed(error: PenstockError) -> None:
    """Log which error a run has ended with."""
    parts = {"what": error.what, "where": error.where, "do": error.do}
    tell(Event.RUN_FAILED, f"penstock: {error}", parts, level=logging.ERROR)


def describe(progress: Progress, *, lag: str | None = None, rate: float | None = None, publishes: bool = False) -> str:
    """A run's progress in one line, the most important first: a terminal of 80 columns cuts the rest off.

    Args:
        lag: Of what was applied last; left out where it is not known.
        rate: Changes a second, of late.
        publishes: There are no errors and conflicts, which are of a target.
    """
    parts = []
    if progress.is_behind_its_start and progress.as_of is not None:
        parts.append(f"as of {time_text(progress.as_of)}")
    elif lag is not None:
        parts.append(f"lag {lag}")
    if not publishes and (progress.errors or progress.in_queue):
        held = f", {progress.held:,} of them waiting behind others" if progress.held else ""
        queued = f"{progress.in_queue:,} in the error queue{held}"
        parts.append(f"{count(progress.errors, 'error')} ({queued})" if progress.errors else queued)
    if rate is not None:
        parts.append(f"{rate:,.0f}/s")
    parts += [count(progress.transactions, "transaction"), count(progress.changes, "change")]
    if progress.conflicts and not publishes:
        parts.append(count(progress.conflicts, "conflict"))
    if progress.resolved:
        parts.append(f"{progress.resolved:,} resolved")
    return ", ".join(parts)


def _lag(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 60 else duration(seconds)


def facts(progress: Progress) -> dict[str, object]:
    """A run's progress as plain data."""
    return {
        "position": progress.position,
        "transactions": progress.transactions,
        "changes": progress.changes,
        "set_changes": progress.set_changes,
        "row_changes": progress.row_changes,
        "conflicts": progress.conflicts,
        "resolved": progress.resolved,
        "errors": progress.errors,
        "in_queue": progress.in_queue,
        "held": progress.held,
        "went_on": progress.went_on,
        "left_out": list(progress.left_out),
        "as_of": progress.as_of,
        "lag_p50_s": progress.lag.quantile_s(0.5),
        "lag_p99_s": progress.lag.quantile_s(0.99),
    }
