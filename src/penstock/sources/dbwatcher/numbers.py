"""The numbers of messages (`_MESSAGE_SEQ`): by them a message is missed that never came, or came in another place.

A watcher counts its messages. Not every message has a number: those about the content of a table have none as the
original writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.errors import OperatorError
from penstock.formats.dbwatcher.message import Message, Property
from penstock.sources.dbwatcher.messages import StoredMessage
from penstock.text import count

_LONGEST = 18

_MOST_SEEN = 200_000
"""So many of the last messages are known again by their numbers."""

_IN_BODY = re.compile(rb"name=['\"]_MESSAGE_SEQ['\"]>\s*([0-9]{1,18})\s*<")

_UNREAD = b""
"""The digest of a message that could not be read."""

_ACCEPT = "set capture.dbwatcher.missing_messages to accept"


class MissingMessagesError(OperatorError):
    """A message has not the number that follows."""


class MessageNumbers:
    """The numbers that came, of one watcher."""

    def __init__(self) -> None:
        """No message came yet."""
        self._last: int | None = None
        self._seen: dict[int, bytes] = {}
        # Messages that could not be read, and whose numbers are not known.
        self._unread = 0

    def take(self, message: Message, stored: StoredMessage) -> bool:
        """Take the next message; returns False for one that came already, whole and under its number.

        Raises:
            MissingMessagesError: Others are missing before it, or its number was another message's.
        """
        said = message.properties.get(Property.MESSAGE_SEQ, message.head.attributes.get(Property.MESSAGE_SEQ))
        number = _number(said)
        if number is None:
            return True
        last = number - 1 if self._last is None else self._last
        if number > last:
            missing = number - last - 1
            if missing > self._unread:
                raise _missing(last + 1, missing, stored.where)
            self._unread = 0 if missing else self._unread
        elif (found := self._seen.get(number)) == stored.place.digest:
            return False
        # One that could not be read may come again mended. What came too long ago is not known any more:
        # its transactions are compared all the same.
        elif found != _UNREAD and (found is not None or len(self._seen) < _MOST_SEEN):
            raise MissingMessagesError(
                f"message {number} (_MESSAGE_SEQ) comes when message {last} came already, and is no repeat",
                where=stored.where,
                do=f"if another watcher writes there, too, give it a place of its own, or {_ACCEPT}; if the source was"
                " reset or restored, have the watcher write into an empty folder or a new topic",
            )
        self._see(number, stored.place.digest)
        return True

    def take_unread(self, stored: StoredMessage) -> None:
        """Take a message that cannot be read: its number may be known all the same."""
        found = _IN_BODY.search(stored.body)
        properties: Mapping[str, str] = stored.properties
        number = _number(properties.get(Property.MESSAGE_SEQ, None if found is None else found[1].decode()))
        if number is None:
            self._unread += 1
        else:
            self._see(number, _UNREAD)

    def _see(self, number: int, digest: bytes) -> None:
        self._last = number if self._last is None else max(number, self._last)
        self._seen[number] = digest
        if len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]


def _missing(first: int, missing: int, where: str) -> MissingMessagesError:
    what = f"message {first} is" if missing == 1 else f"messages {first} to {first + missing - 1} are"
    return MissingMessagesError(
        f"{what} missing: {count(missing, 'message')} with these numbers (_MESSAGE_SEQ) never came",
        where=where,
        do=f"have the missing ones written there again; or, if the watcher has skipped these numbers, {_ACCEPT}",
    )


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST else None
