"""What is said of the rows of a log that have no event, or whose event failed: their record_ids, and why."""

from __future__ import annotations

import logging

from penstock.events import Event, tell
from penstock.sources.event_log.poll import Polled
from penstock.sources.event_log.rows import RowOutcome, reasons
from penstock.text import count

_MOST_IDS = 20


def tell_settled(polled: Polled, where: str) -> None:
    """Log why rows have no event, a line for each reason."""
    for (outcome, reason), record_ids in reasons(polled.settled.items()).items():
        shown = ", ".join(map(str, record_ids[:_MOST_IDS])) + (", ..." if len(record_ids) > _MOST_IDS else "")
        get = "gets" if len(record_ids) == 1 else "get"
        text = f"{count(len(record_ids), 'row')} of the event log, record_id {shown}, {get} status {outcome}: {reason}"
        facts = {
            "status": str(outcome),
            "reason": reason,
            "rows": len(record_ids),
            "record_ids": record_ids[:_MOST_IDS],
        }
        level = logging.WARNING if outcome is not RowOutcome.SUCCESS else logging.INFO
        tell(Event.NOTE, f"{text} ({where})", facts, level=level)
