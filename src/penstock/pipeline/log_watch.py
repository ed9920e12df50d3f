"""The disk that the log at the source takes, held against what `capture.log` allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.apply.listener import RunListener
from penstock.config.log import LogConfig
from penstock.errors import OperatorError
from penstock.events import Event, SourceFacts
from penstock.history import RESYNC, Consumer, ConsumerState, LogHold, OpenTransaction
from penstock.pipeline.connectors import Installable
from penstock.text import duration

OPEN_FOR = timedelta(minutes=15)
"""Transactions that are open for longer are named."""

_FIRST_S = 10.0
"""A run has begun by then; one that ends sooner leaves it to the others, and to `status`."""

_EVERY_S = 60.0
_SHARE = 0.01
"""A look reads all of the log; so it is taken once a minute, and for no more than a hundredth of the time."""


@dataclass(frozen=True)
class HeldTooMuch:
    """Something that keeps more of the log, or for longer, than the pipeline file finds normal.

    Attributes:
        key: What it is recognised by at the next look.
    """

    key: str
    text: str
    facts: SourceFacts

    def __str__(self) -> str:
        return self.text


def held_too_much(hold: LogHold, limits: LogConfig) -> Iterator[HeldTooMuch]:
    """Yield who keeps more than the limits say, or for longer."""
    now = datetime.now(UTC)
    for state in hold.consumers:
        age = _age(state.oldest_at, now)
        if state.size_bytes > limits.warn_bytes or age > limits.warn_age:
            yield _consumer(state, age)
    for one in hold.open:
        if _age(one.since, now) > limits.warn_age or one.size_bytes > limits.warn_bytes:
            yield HeldTooMuch(f"open {one.holder}", f"{open_text(one, now)}: end it", {"holder": one.holder})


def open_text(one: OpenTransaction, now: datetime) -> str:
    """Say what a transaction that is open keeps from being used again."""
    since = "" if one.since is None else f" is open for {duration(_age(one.since, now).total_seconds())} and"
    return f"{one.holder}{since} keeps {_size(one.size_bytes)} of freed log rows on disk"


class LogWatch:
    """Looks now and then, during a run, at what the log at the source takes."""

    def __init__(self, source: Installable, limits: LogConfig, give_up: Callable[[ConsumerState], None]) -> None:
        """Watch a source.

        Args:
            give_up: Keeps the log for a consumer no more, and removes the capture set with the last one.
        """
        self._source = source
        self._limits = limits
        self._give_up = give_up
        self._next_at = time.monotonic() + _FIRST_S
        self._told: set[str] = set()

    def look(self, own: Callable[[], Consumer], listener: RunListener) -> None:
        """Say who keeps too much, once, and again when it is over; give up who keeps more than `give_up_gb`.

        Args:
            own: Returns the consumer that the run is of.

        Raises:
            OperatorError: The run's own consumer was given up.
        """
        began = time.monotonic()
        if began < self._next_at:
            return
        hold = self._source.log_hold(OPEN_FOR)
        self._next_at = time.monotonic() + max(_EVERY_S, (time.monotonic() - began) / _SHARE)
        for state in over_limit(hold, self._limits):
            is_own = state.consumer.id == own().id
            self._give_up(state)
            if is_own:
                raise OperatorError(given_up_text(state), where=self._source.label, do=after_giving_up())
            text = f"{given_up_text(state)} ({self._source.label})"
            listener.warned(text, Event.LOG_GIVEN_UP, {"consumer": state.consumer.name, "bytes": state.size_bytes})
        found = {one.key: one for one in held_too_much(hold, self._limits)}
        for key in sorted(found.keys() - self._told):
            listener.warned(
                f"{found[key].text} ({self._source.label})", Event.LOG_HELD, {**found[key].facts, "key": key}
            )
        for key in sorted(self._told - found.keys()):
            text = f"{key} keeps no more of the log than it may ({self._source.label})"
            listener.warned(text, Event.LOG_HELD, {"over": key})
        self._told = set(found)


def over_limit(hold: LogHold, limits: LogConfig) -> list[ConsumerState]:
    """Return the consumers that keep more than `give_up_gb`."""
    most = limits.give_up_bytes
    return [] if most is None else [state for state in hold.consumers if state.size_bytes > most]


def given_up_text(state: ConsumerState) -> str:
    """Say that a consumer was given up."""
    where = f" ({state.consumer.target})" if state.consumer.target else ""
    return (
        f"the log is kept no more for {state.consumer.name}{where}, which kept {_size(state.size_bytes)} of it, more"
        " than capture.log.give_up_gb: what it had not read is lost to it"
    )


def after_giving_up() -> str:
    """What a pipeline that was given up does next."""
    return f"`penstock setup` installs the capture again where it was the last one; {RESYNC}"


def _consumer(state: ConsumerState, age: timedelta) -> HeldTooMuch:
    name = state.consumer.name
    where = f" ({state.consumer.target})" if state.consumer.target else ""
    text = (
        f"the log keeps {_size(state.size_bytes)}, the oldest of it {duration(age.total_seconds())} old, for consumer"
        f" {name}{where}: start it, or `penstock consumers remove {name}` if it will not return"
    )
    facts: SourceFacts = {"consumer": name, "bytes": state.size_bytes, "age_s": round(age.total_seconds(), 1)}
    return HeldTooMuch(f"consumer {name}{where}", text, facts)


def _age(since: datetime | None, now: datetime) -> timedelta:
    return timedelta() if since is None else max(now - since, timedelta())


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 10**9 else f"{size_bytes / 1e6:,.1f} MB"
