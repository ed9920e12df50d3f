"""Many events become few messages: one for a burst, one now and then while it lasts, one when it is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.alerts.message import Kind, Message, State

GATHER_S = 2.0
"""A message waits so long for others of its kind, since what fails seldom fails alone."""


@dataclass
class _Topic:
    """What is known of one kind, or of one consumer that holds the log.

    Attributes:
        first: The first event that no message has told of yet.
        due_at: When the next message of the topic may leave; None where there is nothing to tell.
        is_told: A message has said that a person is needed, and none that it is over.
    """

    count: int = 0
    first: tuple[str, Mapping[str, object]] | None = None
    due_at: float | None = None
    sent_at: float | None = None
    is_told: bool = False
    over: str | None = None


@dataclass
class Bursts:
    """Gathers events by topic; the caller says what time it is, in seconds of any clock that does not go back.

    Attributes:
        every_s: How long a topic is silent after a message that a person is needed.
    """

    pipeline: str
    every_s: float
    _topics: dict[tuple[Kind, str], _Topic] = field(default_factory=dict)

    def add(self, kind: Kind, text: str, facts: Mapping[str, object], *, now: float, topic: str = "") -> None:
        """Something happened that a person is to know of; `text` and `facts` of the first one are sent."""
        one = self._topics.setdefault((kind, topic), _Topic())
        one.count += 1
        one.over = None
        if one.first is None:
            one.first = text, facts
            silent_until = now if one.sent_at is None else one.sent_at + self.every_s
            one.due_at = max(now + GATHER_S, silent_until)

    def clear(self, kind: Kind, text: str, *, now: float, topic: str = "") -> None:
        """It is over; nothing is sent where nobody was told that it had begun."""
        one = self._topics.get((kind, topic))
        if one is None:
            return
        one.count, one.first, one.due_at = 0, None, None
        # What is over before anybody heard of it needs no word.
        if one.is_told:
            one.over, one.due_at = text, now

    def assume(self, kind: Kind) -> None:
        """People were told by an earlier run that they are needed."""
        self._topics.setdefault((kind, ""), _Topic()).is_told = True

    def next_due(self) -> float | None:
        """When there will be something to send; None while there is nothing."""
        return min((one.due_at for one in self._topics.values() if one.due_at is not None), default=None)

    def due(self, now: float, *, is_last: bool = False) -> list[Message]:
        """Take the messages whose time has come; `is_last` takes all of them, for there will be no other time."""
        found = []
        for (kind, _), one in list(self._topics.items()):
            if one.due_at is None or (one.due_at > now and not is_last):
                continue
            one.due_at = None
            if one.over is not None:
                found.append(Message(self.pipeline, kind, State.RESOLVED, one.over))
                one.over, one.is_told = None, False
            elif one.first is not None:
                text, facts = one.first
                more = f" (and {one.count - 1:,} more)" if one.count > 1 else ""
                found.append(Message(self.pipeline, kind, State.FIRING, text + more, one.count, facts))
                one.count, one.first, one.sent_at, one.is_told = 0, None, now, True
        return found
