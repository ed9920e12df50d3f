"""`penstock run`: copy, then follow."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Annotated

import typer

from penstock.apply.process import Progress
from penstock.change import printable
from penstock.cli.console import (
    FileOption,
    JsonOption,
    MasterOption,
    count,
    err,
    open_file,
    out,
    print_json,
    say,
    warn,
)
from penstock.errors import RetryableError

_LINE_EVERY_S = 5.0
_LIVE_EVERY_S = 0.25


def run(
    file: FileOption = None,
    until_caught_up: Annotated[
        bool,
        typer.Option(
            "--until-caught-up", help="End once everything committed before the start is applied or put aside."
        ),
    ] = False,
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    """Copy what is not copied yet, then apply changes until SIGTERM or SIGINT."""
    pipeline = open_file(file, master=master)
    stop = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        if not stop.is_set():
            if out.is_terminal:
                err.print()
            err.print("stopping: what is being applied is finished first", markup=False)
        stop.set()

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    reporter = Reporter(quiet=json)
    try:
        progress = pipeline.run(stop, reporter, until_caught_up=until_caught_up)
    finally:
        reporter.close()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if json:
        print_json(as_json(progress))
    else:
        how = "caught up" if until_caught_up and not stop.is_set() else "stopped"
        say(f"{how}: {describe(progress)}")


class Reporter:
    """Shows how a run is doing: one line that changes on a terminal, a line now and then in a pipe."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Show nothing but warnings if `quiet`."""
        self._quiet = quiet
        self._live = out.status("starting") if out.is_terminal and not quiet else None
        if self._live is not None:
            self._live.start()
        self._shown_at = 0.0
        self._changes = 0
        self._lost: set[str] = set()
        self._idle_at = -1

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def copying(self, chunks: int, tables: int) -> None:
        """So many chunks are about to be copied."""
        self._show(f"copying {count(tables, 'table')} in {count(chunks, 'chunk')}", always=True)

    def copied(self, chunks: int, rows: int) -> None:
        """So many more chunks are committed, with so many rows."""
        self._show(f"copied {count(chunks, 'chunk')}, {count(rows, 'row')}", always=True)

    def following(self) -> None:
        """Everything is ready; changes are applied from now on."""
        self._show("following", always=True)

    def progressed(self, progress: Progress) -> None:
        """A batch is applied."""
        self._recovered()
        self._show(describe(progress, rate=self._rate(progress)), changes=progress.changes)

    def waiting(self, progress: Progress) -> None:
        """Nothing waits at the source."""
        self._recovered()
        if self._idle_at == progress.transactions and self._live is None:
            return  # Said already.
        self._idle_at = progress.transactions
        self._show(f"{describe(progress)}; up to date", changes=progress.changes)

    def retrying(self, error: RetryableError, left_s: float) -> None:
        """Something is out of reach; it will be tried again for so many seconds. Each place is named once."""
        if error.where not in self._lost:
            warn(f"{error}; trying again for {left_s:.0f} s")
        self._lost.add(error.where)

    def warned(self, text: str) -> None:
        """Something a person should know."""
        warn(f"note: {printable(text)}")

    def _recovered(self) -> None:
        if self._lost:
            warn("connected again")
        self._lost.clear()

    def _rate(self, progress: Progress) -> float | None:
        elapsed = time.monotonic() - self._shown_at
        return (progress.changes - self._changes) / elapsed if self._shown_at and elapsed > 0 else None

    def _show(self, text: str, *, changes: int = 0, always: bool = False) -> None:
        if self._quiet:
            return
        now = time.monotonic()
        every = _LINE_EVERY_S if self._live is None else _LIVE_EVERY_S
        if not always and now - self._shown_at < every:
            return
        self._shown_at = now
        self._changes = changes
        if self._live is not None:
            self._live.update(text)
        else:
            say(text)


def describe(progress: Progress, *, rate: float | None = None) -> str:
    """A run's progress in one line."""
    parts = [
        count(progress.errors, "error"),
        count(progress.conflicts, "conflict"),
        count(progress.transactions, "transaction"),
        count(progress.changes, "change"),
    ]
    if rate is not None:
        parts.append(f"{rate:,.0f}/s")
    p50, p99 = progress.lag.quantile_s(0.5), progress.lag.quantile_s(0.99)
    if p50 is not None and p99 is not None:
        parts.append(f"lag p50 {p50:.2f} s p99 {p99:.2f} s")
    return ", ".join(parts)


def as_json(progress: Progress) -> dict[str, object]:
    """A run's progress as plain data."""
    return {
        "position": progress.position,
        "transactions": progress.transactions,
        "changes": progress.changes,
        "set_changes": progress.set_changes,
        "row_changes": progress.row_changes,
        "conflicts": progress.conflicts,
        "errors": progress.errors,
        "lag_p50_s": progress.lag.quantile_s(0.5),
        "lag_p99_s": progress.lag.quantile_s(0.99),
    }
