"""Messages about tables and for all receivers: CREATE with the table's columns, what it contains, STATEMENT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice

from penstock.change import Image
from penstock.formats.dbwatcher.message import (
    CANCELLED,
    Action,
    Attribute,
    Command,
    Head,
    Message,
    MessageRow,
    Property,
)
from penstock.formats.dbwatcher.metadata import metadata_of
from penstock.formats.dbwatcher.transactions import DEFAULT_SETTINGS, MessageTableWriter, WriterSettings
from penstock.schema import TableSchema

ROWS_PER_MESSAGE = 250
"""`replication.maxRowsOnCreate`."""


@dataclass(frozen=True, slots=True)
class Creation:
    """What the messages that bring a table have in common.

    Attributes:
        repl_key: REPL_KEY of the row of ITEMS that asked for them.
        txn_id: TRANS_KEY of that row.
        extra_repl_key: The number drawn from SEQ before the rows were read.
        destination: The receivers, in a list with commas; empty for all of them.
    """

    table: TableSchema
    repl_key: int
    txn_id: str
    extra_repl_key: int
    destination: str = ""


def create_message(creation: Creation, settings: WriterSettings = DEFAULT_SETTINGS) -> Message:
    """Return the message that creates a table; receivers that have it empty it instead."""
    head = _head(creation, settings, Command.CREATE, Action.CREATE, 0)
    return Message(head, (), _properties(creation))


def content_messages(
    creation: Creation,
    rows: Iterable[Image],
    settings: WriterSettings = DEFAULT_SETTINGS,
    *,
    rows_per_message: int = ROWS_PER_MESSAGE,
    first_counter: int = 1,
) -> Iterator[Message]:
    """Yield the messages with the rows of a table, which follow the one that creates it; none without rows.

    Args:
        rows: Images of canonical text, of any order and number.
        first_counter: `_createCounter` of the first of them.
    """
    table = MessageTableWriter(creation.table.name, creation.table, settings)
    remaining = iter(rows)
    for counter in count(first_counter):
        # As in a change, what is NULL is left out.
        taken = [MessageRow(table.inserted(row), {}) for row in islice(remaining, rows_per_message)]
        if not taken:
            return
        yield Message(
            _head(creation, settings, Command.REPLICATION, Action.INSERT, counter), taken, _properties(creation)
        )


def cancel_message(creation: Creation, settings: WriterSettings = DEFAULT_SETTINGS) -> Message:
    """Return the message that says that no more content of a table comes: its initial update was cancelled.

    The original has none: its manager notes that the receiver is inconsistent. A receiver of the original's takes this
    one for a transaction without rows.
    """
    table = creation.table
    said = dict(
        MessageTableWriter(table.name, table, settings).attributes(Action.INSERT, creation.repl_key, creation.txn_id)
    )
    said[Attribute.INITIAL_UPDATE.value] = CANCELLED
    told = {Property.REPL_KEY.value: str(creation.repl_key), Property.COMMAND.value: Command.REPLICATION.value}
    return Message(Head(Command.REPLICATION, table.name.name, said), (), told)


def statement_message(attributes: Mapping[Attribute, str], txn_id: str, repl_key: int) -> Message:
    """Return the message with a statement for every receiver to execute.

    Args:
        attributes: `STATEMENT` and `STATEMENT_ID`; also the priority, the topic for answers, how many rows they hold.
    """
    said = {
        Attribute.ACTION.value: Action.STATEMENT.value,
        Attribute.REPL_KEY.value: str(repl_key),
        Attribute.TRANSACTION.value: txn_id,
        **{name.value: value for name, value in attributes.items()},
    }
    properties = {Property.REPL_KEY.value: str(repl_key), Property.NUMBER_OF_TRANSACTIONS.value: "1"}
    return Message(Head(Command.STATEMENT, txn_id, said), (), {**properties, Property.COMMAND.value: "STATEMENT"})


def _head(creation: Creation, settings: WriterSettings, command: Command, action: Action, counter: int) -> Head:
    table = creation.table
    said = dict(MessageTableWriter(table.name, table, settings).attributes(action, creation.repl_key, creation.txn_id))
    said |= {
        Attribute.EXTRA_REPL_KEY.value: str(creation.extra_repl_key),
        Attribute.CREATE_COUNTER.value: str(counter),
    }
    if creation.destination:
        said[Attribute.DESTINATION.value] = creation.destination
    return Head(command, table.name.name, said, metadata_of(table))


def _properties(creation: Creation) -> Mapping[str, str]:
    told = {Property.REPL_KEY.value: str(creation.repl_key), Property.COMMAND.value: Command.CREATE.value}
    return {**told, Property.DESTINATION.value: creation.destination} if creation.destination else told
