"""The log of a command that goes on for long: lines for people, or JSON for programs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum

from rich.status import Status

from penstock.cli.console import err, out, print_json, print_with_margin
from penstock.events import Event, logger

_LIVE = frozenset(
    {Event.COPY_STARTED, Event.COPY_PROGRESSED, Event.APPLY_STARTED, Event.APPLY_PROGRESSED, Event.APPLY_IDLE}
)


class LogFormat(StrEnum):
    """How the log is written."""

    TEXT = "text"
    JSON = "json"


@contextmanager
def logging_to_console(form: LogFormat, *, quiet: bool = False) -> Iterator[None]:
    """Write the log inside the block; if `quiet`, only warnings and errors, and all to standard error.

    Text goes to standard output, warnings and errors to standard error; on a terminal progress is one line that
    changes. JSON goes to standard output, an object to a line.
    """
    handler = _JsonLines(to_err=quiet) if form is LogFormat.JSON else _Lines(is_live=out.is_terminal and not quiet)
    handler.setLevel(logging.WARNING if quiet else logging.INFO)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        handler.close()


class _JsonLines(logging.Handler):
    def __init__(self, *, to_err: bool) -> None:
        super().__init__()
        self._to_err = to_err

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record: time, level, event, message, then the event's own facts."""
        line = {
            "time": _time(record),
            "level": record.levelname,
            "event": getattr(record, "event", Event.NOTE),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        print_json(line, is_line=True, to_err=self._to_err)


class _Lines(logging.Handler):
    def __init__(self, *, is_live: bool) -> None:
        super().__init__()
        self._live: Status | None = out.status("starting") if is_live else None
        if self._live is not None:
            self._live.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record as a line, or have the live line show it."""
        text = record.getMessage()
        if self._live is not None and record.levelno < logging.WARNING and getattr(record, "event", None) in _LIVE:
            self._live.update(text)
            return
        style = {logging.WARNING: "yellow", logging.ERROR: "red"}.get(record.levelno)
        # Above the live line, which only its own console knows of.
        console = out if record.levelno < logging.WARNING or self._live is not None else err
        # A person sees which day it is; what is kept in a file has to say.
        at = f"{datetime.fromtimestamp(record.created, UTC):%H:%M:%S}" if self._live is not None else _time(record)
        print_with_margin(f"{at} {record.levelname:<7} ", text, style=style, console=console)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        super().close()


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"
