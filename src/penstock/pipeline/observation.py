"""All that can be seen of a pipeline at one moment: what shows it again and again asks for this one value."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from penstock.apply.conflict_log import ConflictFilter, LoggedConflict
from penstock.apply.detail import Detail, QueuedCount
from penstock.errors import PenstockError
from penstock.history import LogHold
from penstock.pipeline.locks import NO_WORK, Work
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.pipeline.status import PipelineState, Status

_HOLD_SHARE = 0.01
"""To find out what the log takes reads all of it: that takes no more than this part of the time."""

_CONFLICTS = 20
"""How many of the last conflicts are seen."""


@dataclass(frozen=True)
class Observation:
    """A pipeline at one moment.

    Attributes:
        at: When it was looked at.
        status: None where it cannot be asked for; then `lost` says why.
        detail: By apply server and by table; None where there is no apply process.
        queued: What the error queue holds, by table and error.
        took_s: How long it took to look.
        conflicts: The last that were resolved, the newest first.
    """

    at: datetime
    status: Status | None = None
    lost: str | None = None
    detail: Detail | None = None
    work: Work = NO_WORK
    conflicts: Sequence[LoggedConflict] = ()
    queued: Sequence[QueuedCount] = ()
    took_s: float = 0.0


class Observer:
    """Looks at a pipeline again and again; a database that is out of reach is a part of what is seen, and no error."""

    def __init__(self, pipeline: Pipeline | Publication) -> None:
        """Look at this pipeline; nothing is connected to yet."""
        self._pipeline = pipeline
        self._watch = pipeline.watch_work()
        self._hold: LogHold | None = None
        self._hold_due_at = 0.0

    def look(self) -> Observation:
        """Look at it now; what the log takes is as old as a hundred times what it took to find out."""
        began = time.monotonic()
        return replace(self._observed(), took_s=time.monotonic() - began)

    def close(self) -> None:
        """Close the sessions that are kept from one look to the next."""
        self._watch.close()

    def _observed(self) -> Observation:
        at = datetime.now(UTC)
        pipeline = self._pipeline
        try:
            status = pipeline.status(self._log_hold)
            if status.state is PipelineState.NOT_SET_UP:
                return Observation(at, status)
            # An empty queue needs no second look.
            queued = pipeline.queued_counts() if status.errors or status.held else ()
            if not isinstance(pipeline, Pipeline):
                return Observation(at, status, work=self._watch.look(), queued=queued)
            return Observation(
                at,
                status,
                detail=pipeline.detail(),
                work=self._watch.look(),
                conflicts=pipeline.conflicts(ConflictFilter(most=_CONFLICTS)),
                queued=queued,
            )
        except PenstockError as exc:
            return Observation(at, lost=str(exc))

    def _log_hold(self) -> LogHold:
        began = time.monotonic()
        if self._hold is None or began >= self._hold_due_at:
            self._hold = self._pipeline.log_hold()
            now = time.monotonic()
            self._hold_due_at = now + (now - began) / _HOLD_SHARE
        return self._hold
