"""`penstock run`: copy, then follow."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Annotated

import typer

from penstock.cli.console import (
    FileOption,
    JsonOption,
    MasterOption,
    opened_while_java_starts,
    out,
    print_json,
    show_traceback,
)
from penstock.cli.groups import takes_groups
from penstock.cli.logs import LogFormat, logging_to_console
from penstock.cli.watched import WatchOptions
from penstock.errors import ConfigError, PenstockError
from penstock.events import Event, tell
from penstock.pipeline.report import Report, facts

_LINE_EVERY_S = 5.0
_LIVE_EVERY_S = 0.25

ERRORS_QUEUED = 5
"""The exit code of a run that caught up, or ended where it was told to, and leaves transactions in the queue."""

TABLES_LEFT_OUT = 3
"""The exit code of such a run that went on without tables: a person must act, as for every `OperatorError`."""

LogFormatOption = Annotated[
    LogFormat,
    typer.Option("--log-format", help="How to write the log: for people, or as JSON, one object a line."),
]


@dataclass(frozen=True)
class EndOptions:
    """Where a run ends by itself."""

    until_caught_up: Annotated[
        bool,
        typer.Option(
            "--until-caught-up",
            help="End once everything committed before the start is applied, published or in the error queue; exit"
            " code 5 if the queue then holds anything.",
        ),
    ] = False
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="POSITION|TIME",
            help="End after the last transaction at or before this position, or commit time (change files only, UTC"
            " without an offset); exit codes as with --until-caught-up.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse two ends."""
        if self.until is not None and self.until_caught_up:
            raise ConfigError("a run ends at --until, or at --until-caught-up, not at both")

    @property
    def is_given(self) -> bool:
        """Whether the run ends by itself at all."""
        return self.until_caught_up or self.until is not None


@takes_groups
def run(
    context: typer.Context,
    *,
    file: FileOption = None,
    end: EndOptions,
    master: MasterOption = None,
    watched: WatchOptions,
    json: JsonOption = False,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Copy tables without a copy, then apply or publish changes until SIGTERM or SIGINT."""
    # First, so that a port that is taken is said before anything starts.
    watch = context.with_resource(watched.prepared())
    pipeline = context.with_resource(opened_while_java_starts(file, master=master))
    with logging_to_console(log_format, quiet=json), stopped_by_signals() as stop:
        every_s = _LIVE_EVERY_S if out.is_terminal else _LINE_EVERY_S
        report = Report(every_s=every_s, publishes=pipeline.config.publish is not None)
        try:
            progress = pipeline.run(
                stop,
                report,
                until_caught_up=end.until_caught_up,
                until=end.until,
                observers=watch.begin(pipeline.config),
            )
            is_done = not stop.is_set() and progress.ended_by is None
            has_ended = end.is_given and is_done
        except PenstockError as exc:
            # The log has it already.
            if log_format is LogFormat.JSON:
                raise
            show_traceback(exc)
            raise typer.Exit(exc.exit_code) from exc
    if json:
        print_json(facts(progress))
    if has_ended and progress.left_out:
        raise typer.Exit(TABLES_LEFT_OUT)
    if has_ended and progress.in_queue:
        raise typer.Exit(ERRORS_QUEUED)


@contextmanager
def stopped_by_signals(*, tells: bool = True) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set, and say so when they do, unless there is nothing to finish."""
    stop, is_over = threading.Event(), threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        stop.set()

    def say_so() -> None:
        # Not in the signal's handler, which may have cut short what writes the log.
        stop.wait()
        if tells and not is_over.is_set():
            tell(Event.RUN_STOPPING, "stopping: what was begun is finished first", level=logging.WARNING)

    threading.Thread(target=say_so, name="stopping", daemon=True).start()
    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        is_over.set()
        stop.set()
        for number, handler in previous.items():
            signal.signal(number, handler)
