"""What is wrong with a pipeline, for what watches over it: `penstock status --check`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from penstock.pipeline.status import PipelineState, Status
from penstock.text import count, duration, time_text


class ProblemKind(StrEnum):
    """What is wrong. The names stay as they are: alarms are built on them; docs/cli.md lists them."""

    NOT_SET_UP = "not_set_up"
    NOT_RUNNING = "not_running"
    ABORTED = "aborted"
    REFUSED = "refused"
    SOURCE_LOST = "source_lost"
    LAG = "lag"
    ERROR_QUEUE = "error_queue"
    ATTENTION = "attention"
    UNKNOWN = "unknown"
    """Where the pipeline stands cannot be asked at all."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in one line."""

    kind: ProblemKind
    text: str

    def to_json(self) -> dict[str, str]:
        """The same for programs."""
        return {"kind": self.kind, "text": self.text}


def problems(found: Status, *, max_lag_s: float, max_errors: int) -> Iterator[Problem]:
    """Yield what is wrong with a pipeline that is to run all the time.

    Args:
        max_lag_s: More seconds of lag than this are wrong.
        max_errors: More transactions in the error queue than this are wrong.
    """
    if found.state is PipelineState.NOT_SET_UP:
        yield Problem(ProblemKind.NOT_SET_UP, "the pipeline is not set up; run `penstock setup`")
        return
    if found.state is not PipelineState.RUNNING:
        yield _not_running(found)
    if found.refused is not None:
        yield Problem(ProblemKind.REFUSED, f"the next run is refused: {found.refused}")
    if found.source_lost is not None:
        yield Problem(ProblemKind.SOURCE_LOST, f"the source is out of reach: {found.source_lost}")
    if found.lag_s is not None and found.lag_s > max_lag_s:
        waiting = count(found.backlog_changes, "change")
        what = f"the lag is {duration(found.lag_s)}, more than {duration(max_lag_s)}: {waiting} at the source"
        yield Problem(ProblemKind.LAG, what)
    if found.consistent_but_for > max_errors:
        held = f"the error queue holds {count(found.consistent_but_for, 'transaction')}"
        on_hold = f", {found.on_hold:,} of them on hold" if found.on_hold else ""
        yield Problem(ProblemKind.ERROR_QUEUE, f"{held}{on_hold}; `penstock errors list` says why")
    for line in found.attention:
        yield Problem(ProblemKind.ATTENTION, line)


def _not_running(found: Status) -> Problem:
    if found.state is PipelineState.SET_UP:
        return Problem(ProblemKind.NOT_RUNNING, "no run has begun yet; start `penstock run`")
    at = f" at {time_text(found.stopped_at)}" if found.stopped_at else ""
    reason = f": {found.reason}" if found.reason else ""
    if found.state is PipelineState.ABORTED:
        return Problem(ProblemKind.ABORTED, f"the run aborted{at}{reason}")
    return Problem(ProblemKind.NOT_RUNNING, f"the run stopped{at}{reason}")
