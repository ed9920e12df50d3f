"""The disk that the log at the source takes, held against what `capture.log` allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.apply.listener import RunListener
from penstock.config.log import LogConfig
from penstock.dialects.sessions import HoldWatch
from penstock.errors import OperatorError, PenstockError
from penstock.events import Event, SourceFacts
from penstock.history import RESYNC, Consumer, ConsumerState, LogHold, OpenTransaction
from penstock.text import duration, size

OPEN_FOR = timedelta(minutes=15)
"""Transactions that are open for longer are named."""

_FIRST_S = 10.0
"""A run has begun by then; one that ends sooner leaves it to the others, and to `status`."""

_EVERY_S = 60.0
_SHARE = 0.01
"""A look reads all of the log; so it is taken once a minute, and for no more than a hundredth of the time."""

_CLOSING_S = 5.0


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
    return f"{one.holder}{since} keeps {size(one.size_bytes)} of freed log rows on disk"


class LogWatch:
    """Looks now and then, during a run, at what the log at the source takes.

    A look reads all of the log, which takes minutes where it has many GB: so a thread of its own does that, and the run
    hears what it found, when it next asks.
    """

    def __init__(
        self,
        watch: Callable[[], HoldWatch | None],
        label: str,
        limits: LogConfig,
        give_up: Callable[[ConsumerState], None],
    ) -> None:
        """Watch a source.

        Args:
            watch: Returns what looks at the log; None where no log is kept for anybody.
            label: What messages call the source.
            give_up: Keeps the log for a consumer no more, and removes the capture set with the last one.
        """
        self._new_watch = watch
        self._label = label
        self._limits = limits
        self._give_up = give_up
        self._next_at = time.monotonic() + _FIRST_S
        self._told: set[str] = set()
        self._failed = False
        self._look: _Look | None = None

    def look(self, own: Callable[[], Consumer], listener: RunListener) -> None:
        """Say who keeps too much, once, and again when it is over; give up who keeps more than `give_up_gb`.

        Does not wait: it begins to look, or hears what was found since.

        Args:
            own: Returns the consumer that the run is of.

        Raises:
            OperatorError: The run's own consumer was given up.
        """
        if self._look is None:
            watch = self._new_watch() if time.monotonic() >= self._next_at else None
            self._look = None if watch is None else _Look(watch)
            return
        if not self._look.is_over:
            return
        look, self._look = self._look, None
        self._next_at = time.monotonic() + max(_EVERY_S, look.took_s / _SHARE)
        if look.error is not None:
            self._say_failed(look.error, listener)
        elif look.found is not None:
            self._failed = False
            self._hear(look.found, own, listener)

    def close(self) -> None:
        """End a look that goes on; the next call of `look` begins anew."""
        if self._look is not None:
            self._look.close()
            self._look = None

    def _say_failed(self, error: PenstockError, listener: RunListener) -> None:
        if not self._failed:
            text = f"what the log takes is not known, and nobody is given up: {error}"
            listener.warned(text, Event.LOG_HELD, {"error": type(error).__name__})
        self._failed = True

    def _hear(self, hold: LogHold, own: Callable[[], Consumer], listener: RunListener) -> None:
        for state in over_limit(hold, self._limits):
            is_own = state.consumer.id == own().id
            self._give_up(state)
            if is_own:
                raise OperatorError(given_up_text(state), where=self._label, do=after_giving_up())
            text = f"{given_up_text(state)} ({self._label})"
            listener.warned(text, Event.LOG_GIVEN_UP, {"consumer": state.consumer.name, "bytes": state.size_bytes})
        found = {one.key: one for one in held_too_much(hold, self._limits)}
        for key in sorted(found.keys() - self._told):
            facts = {**found[key].facts, "key": key}
            listener.warned(f"{found[key].text} ({self._label})", Event.LOG_HELD, facts)
        for key in sorted(self._told - found.keys()):
            text = f"{key} keeps no more of the log than it may ({self._label})"
            listener.warned(text, Event.LOG_HELD, {"over": key})
        self._told = set(found)


class _Look:
    """One look, in a thread of its own."""

    def __init__(self, watch: HoldWatch) -> None:
        self.found: LogHold | None = None
        self.error: PenstockError | None = None
        self.took_s = 0.0
        self._watch = watch
        self._thread = threading.Thread(target=self._work, name="log watch", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()

    def close(self) -> None:
        self._watch.close()
        self._thread.join(_CLOSING_S)

    def _work(self) -> None:
        began = time.monotonic()
        try:
            self.found = self._watch.look(OPEN_FOR)
        except PenstockError as exc:
            self.error = exc
        self.took_s = time.monotonic() - began


def over_limit(hold: LogHold, limits: LogConfig) -> list[ConsumerState]:
    """Return the consumers that keep more than `give_up_gb`."""
    most = limits.give_up_bytes
    return [] if most is None else [state for state in hold.consumers if state.size_bytes > most]


def given_up_text(state: ConsumerState) -> str:
    """Say that a consumer was given up."""
    where = f" ({state.consumer.target})" if state.consumer.target else ""
    return (
        f"the log is kept no more for {state.consumer.name}{where}, which kept {size(state.size_bytes)} of it, more"
        " than capture.log.give_up_gb: what it had not read is lost to it"
    )


def after_giving_up() -> str:
    """What to do for a pipeline, or for readers of ITEMS, that were given up."""
    return (
        "`penstock setup` installs the capture again where it was the last one, and begins ITEMS anew for its readers;"
        f" {RESYNC} of a pipeline"
    )


def _consumer(state: ConsumerState, age: timedelta) -> HeldTooMuch:
    name = state.consumer.name
    where = f" ({state.consumer.target})" if state.consumer.target else ""
    text = (
        f"the log keeps {size(state.size_bytes)}, the oldest of it {duration(age.total_seconds())} old, for consumer"
        f" {name}{where}: start it, or `penstock consumers remove {name}` if it will not return"
    )
    facts: SourceFacts = {"consumer": name, "bytes": state.size_bytes, "age_s": round(age.total_seconds(), 1)}
    return HeldTooMuch(f"consumer {name}{where}", text, facts)


def _age(since: datetime | None, now: datetime) -> timedelta:
    return timedelta() if since is None else max(now - since, timedelta())
