"""Where messages lie: one after the other, each with a position; more may come behind the last one."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.position import Scn

DIGEST_BYTES = 8


class Place(NamedTuple):
    """Where a message lies.

    Attributes:
        position: Grows from message to message.
        file: Its name; empty in a topic.
        number: Which one of the file it is, from 0; in a topic, the offset.
        digest: Of the body, by which it is known again.
    """

    position: Scn
    file: str
    number: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it lies there.

    Attributes:
        where: What errors call its place.
        properties: What came beside the body.
        at_us: When it was written, microseconds since 1970: the message itself does not say.
    """

    place: Place
    where: str
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    at_us: int = 0


class MessageLog(ABC):
    """Messages in their order. It travels to tasks, so it holds nothing open."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Where they are, named without secrets."""

    def number_in(self, proof: str) -> int | None:
        """Return the number of the last message that a proof is of (`_MESSAGE_SEQ`); None where it does not say it."""
        return None

    def deleted_before(self) -> str | None:
        """Return where the messages begin of which the earlier ones were deleted; None where none were."""
        return None

    @property
    @abstractmethod
    def id(self) -> str:
        """What tells the place from every other."""

    @abstractmethod
    def later(self, after: Scn) -> Iterator[StoredMessage]:
        """Yield the messages behind a position that are there now, in order.

        Raises:
            OperatorError: One that was met before went away or was changed, or one came before it.
        """

    @abstractmethod
    def read(self, places: Iterable[Place]) -> Iterator[StoredMessage]:
        """Yield the messages at some places, in the order of these.

        Raises:
            HistoryError: One is not there any more, or is another one.
        """

    @abstractmethod
    def proof_at(self, position: Scn, open_since: Scn | None) -> str:
        """Return a text without blanks that tells the messages up to a position; see `Recording.proof_at`.

        Args:
            open_since: Where the oldest transaction has begun that is not over there; None where all are.
        """

    @abstractmethod
    def hold_against(self, proof: str, position: Scn) -> None:
        """Make sure that the messages up to a position are those that they were; raises a `HistoryError` otherwise."""


def digest_of(body: bytes) -> bytes:
    """Return what a body is known by."""
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()
