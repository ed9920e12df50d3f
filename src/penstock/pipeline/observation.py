"""All that can be seen of a pipeline at one moment: what shows it again and again asks for this one value."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from penstock.apply.conflict_log import ConflictFilter, LoggedConflict
from penstock.apply.detail import Detail, QueuedCount
from penstock.errors import PenstockError
from penstock.pipeline.locks import NO_WORK, Work, WorkWatch
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.pipeline.status import PipelineState, Status

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


def observe(pipeline: Pipeline | Publication, watch: WorkWatch) -> Observation:
    """Look at a pipeline; a database that is out of reach is a part of what is seen, and no error.

    Args:
        watch: Of the same pipeline; it keeps its sessions from one call to the next.
    """
    began = time.monotonic()
    return replace(_observed(pipeline, watch), took_s=time.monotonic() - began)


def _observed(pipeline: Pipeline | Publication, watch: WorkWatch) -> Observation:
    at = datetime.now(UTC)
    try:
        status = pipeline.status()
        if status.state is PipelineState.NOT_SET_UP:
            return Observation(at, status)
        # An empty queue needs no second look.
        queued = pipeline.queued_counts() if status.errors or status.held else ()
        if not isinstance(pipeline, Pipeline):
            return Observation(at, status, work=watch.look(), queued=queued)
        return Observation(
            at,
            status,
            detail=pipeline.detail(),
            work=watch.look(),
            conflicts=pipeline.conflicts(ConflictFilter(most=_CONFLICTS)),
            queued=queued,
        )
    except PenstockError as exc:
        return Observation(at, lost=str(exc))
