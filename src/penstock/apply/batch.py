"""What one batch of a run came to: what metrics and traces are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.apply.lane import LaneResult
from penstock.position import Scn


class Phase(StrEnum):
    """What the driver waits for, one after the other."""

    READ = "read"
    """The source cuts the batch from its log: positions and sizes, no rows."""
    PLAN = "plan"
    """Definitions are brought up to date, Spark starts the job, and, for several lanes, tasks plan them."""
    APPLY = "apply"
    """Lanes read, decode and apply, from the first that begins until the last is done."""
    COMPLETE = "complete"
    """The low watermark moves, and all of the batch is on disk."""


@dataclass(frozen=True)
class Interval:
    """From when to when, in nanoseconds of Unix time."""

    began_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        """How long it was."""
        return max(0, self.ended_ns - self.began_ns) / 1e9


@dataclass(frozen=True)
class AppliedBatch:
    """A batch that is applied, or published, and completed.

    Attributes:
        position: The end of the batch.
        lanes: How many it was to take at most.
        results: One for each lane that had something to do.
    """

    position: Scn
    transactions: int
    changes: int
    lanes: int
    phases: Mapping[Phase, Interval]
    results: Sequence[LaneResult]


def phases_of(
    read: Interval, work: Interval, complete: Interval, results: Sequence[LaneResult]
) -> dict[Phase, Interval]:
    """Part the work of a batch at the moment its first lane began, as far as the lanes say when that was.

    A lane's machine may have another clock: what lies outside the work is moved to its edge.
    """
    began = min((one.began_ns for one in results if one.began_ns), default=work.began_ns)
    began = min(max(began, work.began_ns), work.ended_ns)
    return {
        Phase.READ: read,
        Phase.PLAN: Interval(work.began_ns, began),
        Phase.APPLY: Interval(began, work.ended_ns),
        Phase.COMPLETE: complete,
    }
