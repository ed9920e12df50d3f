"""A DbWatcher message as values: what its XML says, and the properties that travel beside the XML.

The XML is `<sql><desc>...</desc><row>...</row>...</sql>`; the reference is docs/dbwatcher.md. Rows are named tuples,
which are made by the million, in a third of the time of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

CONTENT_TYPE = "text/xml"

CANCELLED = "CANCELLED"
"""What `Attribute.INITIAL_UPDATE` says of a table of which no more content comes, though not all of it came."""

Value: TypeAlias = str | bytes | None
"""The value of a column: text; bytes where the XML has Base64, of bytes or of text that needs it; None is NULL."""

Columns: TypeAlias = Mapping[str, Value]
"""An image of a row, in the order of the XML. A column that is not there was not said, which is not NULL."""


class Command(StrEnum):
    """What a message is about, as `<command>` says it."""

    REPLICATION = "REPLICATION"
    CREATE = "CREATE"
    ALTER = "ALTER"
    DROP = "DROP"
    STATEMENT = "STATEMENT"
    TRUNCATE = "TRUNCATE"
    DUMP = "DUMP"
    INITIAL_DUMP_AS_XML = "INITIAL_DUMP_AS_XML"
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class Action(StrEnum):
    """What happened to a row or a table, as the attribute `action` says it."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CREATE = "CREATE"
    ALTER = "ALTER"
    DROP = "DROP"
    STATEMENT = "STATEMENT"
    TRUNCATE = "TRUNCATE"


class Attribute(StrEnum):
    """Names of attributes of a row or of `<desc>`."""

    ACTION = "action"
    TABLE_NAME = "tableName"
    SCHEMA = "schema"
    CATALOG = "catalog"
    REPL_KEY = "replKey"
    TRANSACTION = "transaction"
    DB_ID = "dbId"
    GUID = "guid"
    VERSION = "version"
    OLD_CONTENT = "oldContent"
    CREATE_COUNTER = "_createCounter"
    EXTRA_REPL_KEY = "extraReplKey"
    DESTINATION = "_destination"
    KEEP_TRANSACTION_OPEN = "_keepTransactionOpen"
    END_OF_TRANSITION = "_END_OF_TRANSITION"
    INITIAL_UPDATE = "_initialUpdate"
    STATEMENT = "statement"
    STATEMENT_PRIORITY = "statementPrio"
    STATEMENT_ID = "statementId"
    SQL_TOPIC = "sqlTopic"
    MAX_ENTRIES = "maxEntries"


class Property(StrEnum):
    """Names of properties beside the XML: headers of a record in Kafka."""

    REPL_KEY = "replKey"
    NUMBER_OF_TRANSACTIONS = "_NUM_OF_TRANSACTIONS"
    MESSAGE_SEQ = "_MESSAGE_SEQ"
    TRANSACTION_SEQ = "_TRANSACTION_SEQ"
    ABSOLUTE_COUNT = "absoluteCount"
    UNCOMPRESSED_SIZE = "_uncompressedSize"
    COMPRESSION_TYPE = "_compressionType"
    COMMAND = "_command"
    DESTINATION = "_destination"
    DUMP = "DUMP"


class MessageRow(NamedTuple):
    """One `<row>`.

    Attributes:
        columns: The image: the new one of an INSERT or UPDATE, the old one of a DELETE.
        attributes: By name, without `oldContent`.
        old: What `oldContent` holds, the old image of an UPDATE; None without one.
    """

    columns: Columns
    attributes: Mapping[str, str]
    old: Columns | None = None


class ColumnMetadata(NamedTuple):
    """One `<colname>`: a column of a table with what its database said of it, such as `type` and `precision`."""

    name: str
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Head:
    """The `<desc>` of a message.

    Attributes:
        ident: The transaction's key; the table's name in a CREATE, and in the messages that carry its content.
        attributes: They also count for each row that has none of the name.
        metadata: The columns of the table, in a CREATE and in messages with its content.
    """

    command: Command
    ident: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    metadata: Sequence[ColumnMetadata] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    Attributes:
        properties: What travels beside the XML, by name.
    """

    head: Head
    rows: Sequence[MessageRow] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> Command:
        """What the message is about."""
        return self.head.command

    @property
    def keeps_transaction_open(self) -> bool:
        """Whether a later message goes on with the same transaction, so that nothing may be committed yet."""
        return self.head.attributes.get(Attribute.KEEP_TRANSACTION_OPEN, "").strip().lower() == "true"

    def attribute(self, row: MessageRow, name: str) -> str | None:
        """Return an attribute of a row; where it has none, that of `<desc>`; None without either."""
        found = row.attributes.get(name)
        return self.head.attributes.get(name) if found is None else found


class Route(StrEnum):
    """What a receiver does with what comes from its queue."""

    XML = "xml"
    CONTROL = "control"
    DUMP = "dump"
    """The body is part of a file that the source's database has dumped."""
    END_OF_TRANSITION = "end_of_transition"
    """Nothing comes any more of an initial update by dump."""


class ControlCommand(StrEnum):
    """Commands between receiver, manager and watcher; a control message has no XML."""

    REQUEST_UPDATE = "REQUEST_UPDATE"
    REQUEST_CANCEL_UPDATE = "REQUEST_CANCEL_UPDATE"
    REQUEST_RECREATE_TRIGGERS = "REQUEST_RECREATE_TRIGGERS"
    STATEMENT = "STATEMENT"
    INITIAL_UPDATE_COLLECT = "_initialUpdateCollect"
    INITIAL_UPDATE_START_BATCH = "_initialUpdateStartBatch"
    INITIAL_DATA_RESPONSE = "INITIAL_DATA_RESPONSE"
    INITIATE_REPLICATION = "INITIATE_REPLICATION"
    BROADCAST_SQL = "broadcastSql"
    REMOVE_BROADCAST = "removeBroadcast"


IN_PROPERTY = frozenset(
    {
        ControlCommand.INITIAL_DATA_RESPONSE,
        ControlCommand.INITIATE_REPLICATION,
        ControlCommand.BROADCAST_SQL,
        ControlCommand.REMOVE_BROADCAST,
    }
)
"""Commands for the manager, which stand in the property `_command`; the others are the body."""

REQUIRED_PARAMETERS: Mapping[ControlCommand, tuple[str, ...]] = {
    ControlCommand.REQUEST_UPDATE: ("_slaveName", "_replVersion"),
    ControlCommand.REQUEST_CANCEL_UPDATE: ("_slaveName",),
    ControlCommand.STATEMENT: ("statement",),
    ControlCommand.INITIAL_DATA_RESPONSE: ("_slaveName", "_minReplKey", "_maxReplKey"),
    ControlCommand.INITIATE_REPLICATION: ("_slaveSessionName", "_prefixWithVersion"),
    ControlCommand.BROADCAST_SQL: ("requestId",),
    ControlCommand.REMOVE_BROADCAST: ("requestId",),
}
"""Parameters without which a command means nothing."""


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """A command with its parameters, which are properties."""

    command: ControlCommand
    parameters: Mapping[str, str] = field(default_factory=dict)
