"""What is drawn over time: samples of a pipeline, in memory, as many as there is room for and no more."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from penstock.history import Consumer
from penstock.pipeline.observation import Observation

_MOST_CONSUMERS = 6
"""The furthest behind are drawn; a hundred curves show nothing."""


@dataclass(frozen=True)
class CurvePoint:
    """One point of every curve.

    Attributes:
        at_s: Unix time.
        lag_s: None where nobody can tell; the curve has a hole there.
        changes: Those that were ever applied, or published: between any two samples, what is more is the throughput.
        backlog: Changes that wait at the source; None while it is out of reach.
        held: Bytes that the source keeps, by consumer.
    """

    at_s: float
    lag_s: float | None = None
    changes: int | None = None
    backlog: int | None = None
    held: Mapping[str, int] | None = None

    def to_json(self) -> list[Any]:
        """The same as the page's script takes it."""
        lag_s = None if self.lag_s is None else round(self.lag_s, 2)
        return [round(self.at_s, 3), lag_s, self.changes, self.backlog, self.held]


def sample_of(seen: Observation) -> CurvePoint:
    """What an observation adds to the curves."""
    at_s, status = seen.at.timestamp(), seen.status
    if status is None:
        return CurvePoint(at_s)
    if status.source_lost is not None:
        return CurvePoint(at_s, status.lag_s, status.changes)
    held = {_name(one.consumer, status.consumer_id): one for one in status.consumers}
    sizes = {name: one.size_bytes for name, one in list(held.items())[:_MOST_CONSUMERS]}
    return CurvePoint(at_s, status.lag_s, status.changes, status.backlog_changes, sizes)


def _name(consumer: Consumer, own_id: str) -> str:
    return consumer.name if consumer.id == own_id else f"{consumer.name}, {consumer.target or 'reader'}"


@dataclass(frozen=True)
class CurveSpan:
    """One of the lengths of time that can be looked at: so many points, so far apart."""

    name: str
    every_s: float
    points: int


SPANS = (CurveSpan("30 min", 0, 900), CurveSpan("8 h", 30, 960), CurveSpan("3 days", 300, 864))
"""The first takes every sample as it comes. All of them together are a few hundred kilobytes for each pipeline."""


class Samples:
    """The samples of one pipeline, by span. One thread adds, others read."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: list[deque[CurvePoint]] = [deque(maxlen=span.points) for span in SPANS]

    def add(self, sample: CurvePoint) -> None:
        """Add a sample; each step of a longer span keeps the worst lag and backlog of its samples.

        Samples of after it go: the clock was set back.
        """
        for span, kept in zip(SPANS, self._kept, strict=True):
            while kept and kept[-1].at_s > sample.at_s:
                kept.pop()
            if span.every_s and kept and kept[-1].at_s // span.every_s == sample.at_s // span.every_s:
                kept[-1] = _together(kept[-1], sample)
            else:
                kept.append(sample)

    def of(self, span: int) -> Sequence[CurvePoint]:
        """Return the samples of a span, the oldest first."""
        return list(self._kept[span])


def _together(step: CurvePoint, sample: CurvePoint) -> CurvePoint:
    """One point for the samples of a step so far, and one more."""
    return replace(
        sample,
        lag_s=_worst(step.lag_s, sample.lag_s),
        backlog=_worst(step.backlog, sample.backlog),
        changes=step.changes if sample.changes is None else sample.changes,
    )


_Number = TypeVar("_Number", int, float)


def _worst(one: _Number | None, other: _Number | None) -> _Number | None:
    known = [number for number in (one, other) if number is not None]
    return max(known, default=None)
