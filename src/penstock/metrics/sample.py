"""One look at a pipeline, as its metrics are made of."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.apply.detail import QueuedCount
from penstock.apply.table_counts import TableOp
from penstock.errors import PenstockError
from penstock.pipeline.status import Status

if TYPE_CHECKING:
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.publication import Publication


@dataclass(frozen=True)
class PipelineSample:
    """What a look at a pipeline has found.

    Attributes:
        status: None where nothing can be asked, because the target is out of reach.
        queued: The error queue by table and error; empty where nobody asked.
        changes: What runs have applied, by table and operation; empty where the pipeline publishes.
        sampled_at: When the look ended, as a Unix time.
        took_s: How long it took.
    """

    pipeline: str
    status: Status | None
    queued: Sequence[QueuedCount] = ()
    sampled_at: float = field(default_factory=time.time)
    took_s: float = 0.0
    changes: Mapping[TableOp, int] = field(default_factory=dict)

    @classmethod
    def of(cls, status: Status, queued: Sequence[QueuedCount] = ()) -> PipelineSample:
        """A look that somebody else has taken, such as the page."""
        return cls(status.pipeline, status, queued)


def sample(pipeline: Pipeline | Publication) -> PipelineSample:
    """Look at a pipeline, over connections of its own; a server out of reach makes a sample that says so.

    Both databases are asked, so it takes some milliseconds, and up to a connection's timeout.
    """
    began = time.monotonic()
    status: Status | None = None
    queued: Sequence[QueuedCount] = ()
    changes: Mapping[TableOp, int] = {}
    try:
        status = pipeline.status()
        # An empty queue needs no second look.
        queued = pipeline.queued_counts() if status.errors or status.held else ()
        changes = pipeline.table_changes()
    except PenstockError:
        # `penstock_target_up 0` is how a metric says it; `penstock status` says why.
        pass
    return PipelineSample(pipeline.config.name, status, queued, took_s=time.monotonic() - began, changes=changes)
