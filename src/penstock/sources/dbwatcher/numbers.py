"""The numbers of messages (`_MESSAGE_SEQ`): by them a message is missed that never came.

A watcher counts its messages, also those that it sends again. Several writers may share a place, each with numbers of
its own, and not every message has one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.errors import OperatorError
from penstock.formats.dbwatcher.message import Message, Property
from penstock.text import count

_MOST_WRITERS = 64
_LONGEST = 18

_IN_BODY = re.compile(rb"name=['\"]_MESSAGE_SEQ['\"]>\s*([0-9]{1,18})\s*<")

_DO = (
    "have the missing ones written there again; or, if the watcher has skipped these numbers, set"
    " capture.dbwatcher.missing_messages to accept"
)


class MissingMessagesError(OperatorError):
    """A message has not the number that follows."""


class MessageNumbers:
    """The last number of each writer, as far as messages tell."""

    def __init__(self) -> None:
        """No message came yet."""
        self._last: list[int] = []
        # Messages that could not be read, and whose numbers are not known.
        self._unread = 0

    def take(self, message: Message, where: str) -> None:
        """Take the next message.

        Raises:
            MissingMessagesError: Others are missing before it.
        """
        said = message.properties.get(Property.MESSAGE_SEQ, message.head.attributes.get(Property.MESSAGE_SEQ))
        number = _number(said)
        if number is not None:
            self._take(number, where)

    def take_unread(self, body: bytes, properties: Mapping[str, str]) -> None:
        """Take a message that cannot be read: its number may be known all the same."""
        found = _IN_BODY.search(body)
        number = _number(properties.get(Property.MESSAGE_SEQ, None if found is None else found[1].decode()))
        if number is None:
            self._unread += 1
        else:
            self._follow(number, self._before(number))

    def _take(self, number: int, where: str) -> None:
        before = self._before(number)
        if before is None and self._last and number > (highest := max(self._last)):
            missing = number - highest - 1
            if missing > self._unread:
                what = f"message {highest + 1} is" if missing == 1 else f"messages {highest + 1} to {number - 1} are"
                raise MissingMessagesError(
                    f"{what} missing: {count(missing, 'message')} with these numbers (_MESSAGE_SEQ) never came",
                    where=where,
                    do=_DO,
                )
            before, self._unread = highest, 0
        self._follow(number, before)

    def _before(self, number: int) -> int | None:
        """The last number of the writer whose message this is; None where it is a repeat, or of another writer."""
        return next((one for one in (number - 1, number) if one in self._last), None)

    def _follow(self, number: int, before: int | None) -> None:
        if before is not None:
            self._last.remove(before)
        if number not in self._last:
            self._last.append(number)
        del self._last[:-_MOST_WRITERS]


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST else None
