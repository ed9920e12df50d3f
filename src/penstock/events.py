"""What Penstock says while it works: records of the standard `logging` module, logger `penstock`.

Each record has a text for people, and for programs the name of what happened (`record.event`, one of `Event`) with its
facts (`record.facts`, plain data). Neither ever holds a row value or a secret.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

logger = logging.getLogger("penstock")

SourceFacts: TypeAlias = Mapping[str, object]
"""What a record holds for programs: plain data."""


class Event(StrEnum):
    """What happened. The names stay as they are: alarms are built on them; docs/cli.md lists them."""

    COPY_STARTED = "copy.started"
    COPY_PROGRESSED = "copy.progressed"
    APPLY_STARTED = "apply.started"
    APPLY_PROGRESSED = "apply.progressed"
    APPLY_IDLE = "apply.idle"
    APPLY_BATCH = "apply.batch"
    TRANSACTION_QUEUED = "transaction.queued"
    SERVER_LOST = "server.lost"
    SERVER_BACK = "server.back"
    LOCK_WAITING = "lock.waiting"
    CAPTURE_BEHIND = "capture.behind"
    LOG_HELD = "log.held"
    LOG_GIVEN_UP = "log.given_up"
    TABLE_NOT_CAPTURED = "table.not_captured"
    TARGET_LACKS = "target.lacks"
    POST_DATA_MADE = "fitting.made"
    DDL_APPLIED = "ddl.applied"
    DDL_LEFT_OUT = "ddl.left_out"
    NOTE = "note"
    RUN_STOPPING = "run.stopping"
    RUN_CAUGHT_UP = "run.caught_up"
    RUN_ARRIVED = "run.arrived"
    RUN_STOPPED = "run.stopped"
    RUN_FAILED = "run.failed"


class AlikeLines:
    """Lines of a run's log that are alike: the first is said at once, later ones once in a while, with a count.

    Every line is said or counted: the counts of all that is said add up to what there was.
    """

    def __init__(
        self,
        say: Callable[[Event, str, SourceFacts], None],
        *,
        every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Say lines through `say`; facts have `more`, how many lines like this one were not said."""
        self._say = say
        self._every_s = every_s
        self._clock = clock
        self._kinds: dict[Hashable, _Kind] = {}

    def add(self, kind: Hashable, event: Event, text: str, facts: SourceFacts) -> None:
        """Say a line, or count it where one of its kind was said a moment ago."""
        self.say_due()
        known = self._kinds.get(kind)
        if known is None:
            self._say(event, text, {**facts, "more": 0})
            self._kinds[kind] = _Kind(self._clock())
            return
        known.count += 1
        known.last = event, text, facts

    def say_due(self) -> None:
        """Say what was counted of kinds of which nothing was said for long enough."""
        now = self._clock()
        due = [kind for kind, known in self._kinds.items() if now - known.said_at >= self._every_s]
        for kind in due:
            self._say_last(kind, now)

    def say_all(self) -> None:
        """Say all that was counted."""
        now = self._clock()
        for kind in list(self._kinds):
            self._say_last(kind, now)
        self._kinds.clear()

    def _say_last(self, kind: Hashable, now: float) -> None:
        known = self._kinds.pop(kind)
        if known.last is None:
            # For so long there was no more of it: the next one is said at once.
            return
        event, text, facts = known.last
        more = known.count - 1
        counted = f" (and {more:,} more like it in the last {now - known.said_at:.1f} s)" if more else ""
        self._say(event, text + counted, {**facts, "more": more})
        self._kinds[kind] = _Kind(now)


@dataclass
class _Kind:
    """What became of one kind of lines since one was said."""

    said_at: float
    count: int = 0
    last: tuple[Event, str, SourceFacts] | None = None


def tell(event: Event, text: str, facts: SourceFacts | None = None, *, level: int = logging.INFO) -> None:
    """Log what happened."""
    logger.log(level, "%s", text, extra={"event": event.value, "facts": facts or {}})
