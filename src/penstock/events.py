"""What Penstock says while it works: records of the standard `logging` module, logger `penstock`.

Each record has a text for people, and for programs the name of what happened (`record.event`, one of `Event`) with its
facts (`record.facts`, plain data). Neither ever holds a row value or a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

logger = logging.getLogger("penstock")

Facts: TypeAlias = Mapping[str, object]
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
    TABLE_NOT_CAPTURED = "table.not_captured"
    TARGET_LACKS = "target.lacks"
    FITTING_MADE = "fitting.made"
    DDL_APPLIED = "ddl.applied"
    DDL_LEFT_OUT = "ddl.left_out"
    NOTE = "note"
    RUN_STOPPING = "run.stopping"
    RUN_CAUGHT_UP = "run.caught_up"
    RUN_ARRIVED = "run.arrived"
    RUN_STOPPED = "run.stopped"
    RUN_FAILED = "run.failed"


def tell(event: Event, text: str, facts: Facts | None = None, *, level: int = logging.INFO) -> None:
    """Log what happened."""
    logger.log(level, "%s", text, extra={"event": event.value, "facts": facts or {}})
