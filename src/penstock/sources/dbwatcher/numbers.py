"""The numbers of messages (`_MESSAGE_SEQ`): by them a message is missed that never came, or came in another place.

A watcher counts its messages. Not every message has a number: those about the content of a table have none as the
original writes them. These are counted for each table by themselves (`_createCounter`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.formats.dbwatcher.message import Message, Property
from penstock.position import Scn
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
        # The first message with a number.
        self._first: tuple[int, StoredMessage] | None = None
        self._seen: dict[int, bytes] = {}
        # Messages that could not be read, and whose numbers are not known.
        self._unread = 0

    def take(self, message: Message, stored: StoredMessage) -> bool:
        """Take the next message; returns False for one that came already, whole and under its number.

        Raises:
            MissingMessagesError: Others are missing before it, or its number was another message's.
        """
        said = message.properties.get(Property.MESSAGE_SEQ, message.head.attributes.get(Property.MESSAGE_SEQ))
        number = number_of(said)
        if number is None:
            return True
        if self._first is None:
            self._first = number, stored
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
                f"message {number} (_MESSAGE_SEQ) comes when message {last} came already, and is not a repeat",
                where=stored.where,
                do=f"if another watcher writes there, too, give it a place of its own, or {_ACCEPT}; if the source was"
                " reset or restored, have the watcher write into an empty folder or a new topic",
            )
        self._see(number, stored.place.digest)
        return True

    def follow(self, number: int, position: Scn) -> None:
        """Make sure that the message with a number, which is at a position, is not followed by a later one.

        Raises:
            MissingMessagesError: It is.
        """
        if self._first is None:
            self._last = max(number, self._last or 0)
        elif self._first[1].place.position > position and self._first[0] > number + 1:
            raise _missing(number + 1, self._first[0] - number - 1, self._first[1].where)

    def take_unread(self, stored: StoredMessage) -> None:
        """Take a message that cannot be read: its number may be known all the same."""
        found = _IN_BODY.search(stored.body)
        properties: Mapping[str, str] = stored.properties
        number = number_of(properties.get(Property.MESSAGE_SEQ, None if found is None else found[1].decode()))
        if number is None:
            self._unread += 1
        else:
            self._see(number, _UNREAD)

    def _see(self, number: int, digest: bytes) -> None:
        self._last = number if self._last is None else max(number, self._last)
        self._seen[number] = digest
        if len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]


class ContentNumbers:
    """The numbers of the messages with the content of tables: the CREATE is number 0, the first rows are number 1."""

    def __init__(self) -> None:
        """No message came yet."""
        self._last: dict[tuple[str, int | None, TableName], int] = {}
        # Messages that could not be read.
        self._unread = 0

    def take(self, txn_id: str, repl_key: int | None, table: TableName, counter: str, where: str) -> None:
        """Take the next message with content of a table.

        Args:
            txn_id, repl_key: Of the row of ITEMS that asked for it: they are those of no other content of the table.

        Raises:
            MissingMessagesError: Others are missing before it.
        """
        number = number_of(counter)
        if number is None:
            return
        content = txn_id, repl_key, table
        last = self._last.get(content, 0)
        # The CREATE may not be there, where tables are made by hand.
        missing = number - last - 1
        if missing > self._unread:
            raise _missing(last + 1, missing, where, of=f" of the content of table {table}", by="_createCounter")
        self._unread = 0 if missing > 0 else self._unread
        # One that could not be read may come again mended.
        self._last[content] = max(last, number)

    def take_unread(self) -> None:
        """Take a message that cannot be read, which may have been one with content."""
        self._unread += 1


def _missing(
    first: int, missing: int, where: str, *, of: str = "", by: str = Property.MESSAGE_SEQ.value
) -> MissingMessagesError:
    what = f"message {first}{of} is" if missing == 1 else f"messages {first} to {first + missing - 1}{of} are"
    return MissingMessagesError(
        f"{what} missing: {count(missing, 'message')} with these numbers ({by}) never came",
        where=where,
        do=f"have the missing ones written there again; or, if the watcher has skipped these numbers, {_ACCEPT}",
    )


def number_of(text: str | None) -> int | None:
    """Read a number; None where the text is none."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST else None
