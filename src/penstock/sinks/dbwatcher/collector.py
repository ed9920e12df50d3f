"""Transactions collected into messages (`dbWatcher.maxCollectedStatements`): several that follow each other in each.

Only whole transactions that have one message of rows by themselves are collected. A message about a table, and one that
keeps its transaction open, stays as it is: receivers ignore rows beside the former, and commit after the latter's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from penstock.formats.dbwatcher.message import Command, Message, Property
from penstock.formats.dbwatcher.transactions import WriterSettings, chars_of
from penstock.formats.debezium.writer import OutgoingRecord
from penstock.sinks.events.encoding import Refusal


class Collector:
    """Holds transactions until their message is full; nothing waits for a transaction that has not come yet."""

    def __init__(
        self, settings: WriterSettings, record_of: Callable[[Message], OutgoingRecord], refusal: Refusal
    ) -> None:
        """Collect nothing yet.

        Args:
            settings: Say how many transactions, rows and characters go into a message.
            record_of: Makes the record of a message.
            refusal: Says why a record cannot be published; the message of each transaction alone can.
        """
        self._settings = settings
        self._record_of = record_of
        self._refusal = refusal
        self._held: list[Message] = []
        self._rows = self._chars = 0

    def take(self, messages: Sequence[Message]) -> Iterator[OutgoingRecord]:
        """Take the messages of the next transaction, and yield the records that are complete by now, in order."""
        if not messages:
            return
        if len(messages) > 1 or messages[0].command is not Command.REPLICATION or messages[0].keeps_transaction_open:
            yield from self.rest()
            yield from map(self._record_of, messages)
            return
        (message,) = messages
        rows, chars = len(message.rows), sum(map(chars_of, message.rows))
        if self._held and not self._has_room(rows, chars):
            yield from self.rest()
        self._held.append(message)
        self._rows += rows
        self._chars += chars
        if len(self._held) >= self._settings.most_transactions:
            yield from self.rest()

    def rest(self) -> Iterator[OutgoingRecord]:
        """Yield the records of what is held."""
        held, self._held, self._rows, self._chars = self._held, [], 0, 0
        if held:
            yield from self._records(held)

    def _has_room(self, rows: int, chars: int) -> bool:
        most = self._settings.most_rows
        # A message has a row more than its limit.
        has_rows = not most or self._rows + rows <= most + 1
        return has_rows and self._chars + chars <= self._settings.most_chars

    def _records(self, messages: Sequence[Message]) -> Iterator[OutgoingRecord]:
        record = self._record_of(_joined(messages))
        if len(messages) == 1 or self._refusal(record) is None:
            yield record
            return
        half = len(messages) // 2
        for part in (messages[:half], messages[half:]):
            yield from self._records(part)


def _joined(messages: Sequence[Message]) -> Message:
    """One message with the rows of several: it has the key of the last row, and the name of the first transaction."""
    first, last = messages[0], messages[-1]
    counted = {Property.NUMBER_OF_TRANSACTIONS.value: str(len(messages))}
    rows = [row for message in messages for row in message.rows]
    return replace(first, rows=rows, properties={**last.properties, **counted})
