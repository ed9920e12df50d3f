"""How the page says things: states in a word, numbers and times short. Nothing here is HTML."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from penstock.pipeline.health import Problem, ProblemKind, problems
from penstock.pipeline.observation import Observation
from penstock.pipeline.status import PipelineState, Status
from penstock.text import count, printable
from penstock.text import duration as duration_of

_LATE_S = 30.0
"""More lag than this is shown as such; what wakes a person up is a longer one, see `status --check`."""

_HELD_UP_S = 5.0
"""A session of ours that waits for a lock for longer is held up by somebody."""

_WIDEST = 2000
"""The most characters of a value that are shown; a form to edit has all of them."""


class Mood(StrEnum):
    """What colour a state has. The word beside it says the same to those who see none."""

    GOOD = "good"
    BUSY = "busy"
    LATE = "late"
    BAD = "bad"
    OFF = "off"


@dataclass(frozen=True)
class ShownState:
    """A pipeline's state in a word or two."""

    word: str
    mood: Mood


def state_of(seen: Observation | None) -> ShownState:
    """Say in a word how a pipeline is doing."""
    if seen is None:
        return ShownState("looking", Mood.OFF)
    status = seen.status
    if status is None:
        return ShownState("out of reach", Mood.BAD)
    if status.state is not PipelineState.RUNNING:
        is_bad = status.state is PipelineState.ABORTED or status.refused is not None
        return ShownState(str(status.state), Mood.BAD if is_bad else Mood.OFF)
    if status.source_lost is not None:
        return ShownState("source out of reach", Mood.BAD)
    if any(wait.seconds > _HELD_UP_S for wait in seen.work.waits):
        return ShownState("waits for a lock", Mood.LATE)
    if status.to_copy:
        return ShownState("copying", Mood.BUSY)
    is_late = status.lag_s is not None and status.lag_s > _LATE_S
    word, mood = ("catching up", Mood.LATE) if is_late else ("following", Mood.GOOD)
    return ShownState(f"{word}, with errors", Mood.BAD) if status.errors else ShownState(word, mood)


@dataclass(frozen=True)
class CopyBar:
    """How far a first copy is: `share` is of the chunks that are known, 0 to 1."""

    chunks_copied: int
    chunks: int
    rows: int

    @property
    def share(self) -> float:
        """How much of it is done."""
        return self.chunks_copied / self.chunks


def copy_progress(seen: Observation | None) -> CopyBar | None:
    """How far the first copy is that is under way; None where there is none, or it is not cut into chunks yet."""
    if seen is None or seen.status is None or not seen.status.to_copy or seen.detail is None:
        return None
    tables = [one for one in seen.detail.tables if not one.is_copied]
    chunks = sum(one.chunks for one in tables)
    if not chunks:
        return None
    return CopyBar(sum(one.chunks_copied for one in tables), chunks, sum(one.rows_copied for one in tables))


def problems_of(seen: Observation) -> list[Problem]:
    """What is wrong, a line each, the worst first."""
    if seen.status is None:
        return [Problem(ProblemKind.UNKNOWN, f"cannot tell where the pipeline stands: {seen.lost}")]
    return list(problems(seen.status, max_lag_s=300, max_errors=0))


def consistent(status: Status) -> str:
    """What the consistency point is, where it is no time."""
    if status.state is PipelineState.NOT_SET_UP:
        return "not set up"
    if status.consistent_at is None and status.lag_s is not None:
        return "all that is recorded"
    return "unknown" if status.refused or status.source_lost else "not yet"


def number(value: int | float | None) -> str:
    """A number with its thousands apart; a dash where there is none."""
    return "–" if value is None else f"{value:,.0f}"


def rate(now: Observation, before: Observation | None) -> float | None:
    """Changes per second between two looks; None where that is unknown."""
    if before is None or before.status is None or now.status is None:
        return None
    seconds = (now.at - before.at).total_seconds()
    done = now.status.changes - before.status.changes
    return done / seconds if seconds > 0 and done >= 0 else None


def size(value: int | None) -> str:
    """Bytes in a unit that leaves few digits."""
    if value is None:
        return "–"
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:,.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:,.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"


def duration(seconds: float | None) -> str:
    """A span of time; a dash where it is unknown."""
    return "–" if seconds is None else duration_of(seconds)


def clock(at: datetime | None, now: datetime | None = None) -> str:
    """A time of today as 14:03:22, another one with its day; UTC."""
    if at is None:
        return "–"
    at = at.astimezone(UTC)
    is_today = at.date() == (now or datetime.now(UTC)).astimezone(UTC).date()
    return f"{at:%H:%M:%S}" if is_today else f"{at:%Y-%m-%d %H:%M:%S}"


def value(text: str | None) -> str:
    """A value of a row, short enough for a table."""
    if text is None:
        return "NULL"
    text = str(text)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}… ({count(len(text), 'character')})"


def begun(text: str) -> str:
    """A message as a sentence begins."""
    return text[:1].upper() + text[1:]


FILTERS = {
    "number": number,
    "size": size,
    "duration": duration,
    "clock": clock,
    "value": value,
    "printable": printable,
    "count": count,
    "begun": begun,
}
