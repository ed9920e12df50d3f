"""Changes read from messages: each row is one change again, of the transaction that the message is of.

`transactions` is the other direction. What a receiver has to know beside it:

- A message is applied as a whole or not at all; with `keeps_open`, the next one belongs to the same transaction.
- An INSERT has no columns that were NULL, so the target's defaults fill them.
- An UPDATE has every column twice; here `after` holds those that differ, so one that changed nothing has an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.change import NO_VERSION, Change, Image, Op, TableName
from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.message import (
    CANCELLED,
    Action,
    Attribute,
    ColumnMetadata,
    Columns,
    Command,
    Message,
    MessageRow,
)
from penstock.formats.dbwatcher.values import Reader, UnreadableValueError, reader_of, untyped_text
from penstock.schema import TableSchema
from penstock.text import count, printable

_LONGEST_NAME = 60

_ROW_COMMANDS = frozenset({Command.REPLICATION, Command.STATEMENT, Command.INSERT, Command.UPDATE, Command.DELETE})
_TABLE_COMMANDS = frozenset({Command.CREATE, Command.ALTER, Command.DROP})
_ROW_ACTIONS = {Action.INSERT.value: Op.INSERT, Action.UPDATE.value: Op.UPDATE, Action.DELETE.value: Op.DELETE}
_STATEMENT_ATTRIBUTES = (
    Attribute.STATEMENT,
    Attribute.STATEMENT_PRIORITY,
    Attribute.STATEMENT_ID,
    Attribute.SQL_TOPIC,
    Attribute.MAX_ENTRIES,
)


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """Changes of one transaction: all of it, or what one of its messages holds.

    Attributes:
        txn_id: TRANS_KEY at the source; the ident of the message where no row says one.
        repl_keys: The REPL_KEY of each change; None where the message has none.
    """

    txn_id: str
    changes: Sequence[Change]
    repl_keys: Sequence[int | None]


@dataclass(frozen=True, slots=True)
class TableEvent:
    """A table was created, altered or dropped; or its creation, with its content, was cancelled.

    Attributes:
        metadata: Of a CREATE, the columns, see `metadata.table_of`; of an ALTER, if it has them.
    """

    action: Action
    table: TableName
    repl_key: int | None
    txn_id: str
    metadata: Sequence[ColumnMetadata] = ()


@dataclass(frozen=True, slots=True)
class MessageChanges:
    """What a message asks of a receiver.

    Attributes:
        parts: Changes of rows, by transaction, in order. Beside a statement they are what the statement did where it
            was sent from: who executes it must not apply them, and who applies them must not execute it.
        event: DDL; such a message has no rows.
        statement: A statement for every receiver to execute, by the names of its attributes.
        content_of: The rows are not changes, but part of what this table holds.
        cancelled: No more content of this table comes, though not all of it came.
        keeps_open: The next message goes on with the same transaction.
    """

    parts: Sequence[TransactionPart] = ()
    event: TableEvent | None = None
    statement: Mapping[str, str] = field(default_factory=dict)
    content_of: TableName | None = None
    cancelled: TableEvent | None = None
    keeps_open: bool = False


def changes_of(
    message: Message,
    tables: Mapping[TableName, TableSchema] | Callable[[TableName], TableSchema | None],
    *,
    default_schema: str = "",
    first_seq: int = 0,
) -> MessageChanges:
    """Return what a message says as changes.

    Args:
        message: One that was read whole.
        tables: Definitions, from which the types of columns come. Values of columns that no definition has are their
            text as it is, and Base64 where they are not text.
        default_schema: Of rows that name none.
        first_seq: The `change_seq` of the first change of a transaction; that of a later message of one goes on.

    Raises:
        MalformedInputError: An action is missing or unknown, the rows do not go with the command, an UPDATE has no old
            image, a value is none of its column's type. The error names row, table and column, and never the value.
    """
    find = tables.get if isinstance(tables, Mapping) else tables
    try:
        return _changes_of(message, _RowReader(message, find, default_schema, first_seq))
    except MalformedInputError as exc:
        if exc.where:
            raise
        raise MalformedInputError(
            exc.what, where=f"message with ident {_shown(message.head.ident)}", do=exc.do
        ) from exc


def _changes_of(message: Message, reader: _RowReader) -> MessageChanges:
    command, keeps_open = message.command, message.keeps_transaction_open
    if command is Command.REPLICATION and message.head.attributes.get(Attribute.INITIAL_UPDATE) == CANCELLED:
        if message.rows:
            raise MalformedInputError(f"a message that cancels an initial update has {count(len(message.rows), 'row')}")
        return MessageChanges(cancelled=reader.event(Action.CREATE), keeps_open=keeps_open)
    if command in _ROW_COMMANDS:
        counter = message.head.attributes.get(Attribute.CREATE_COUNTER)
        return MessageChanges(
            reader.parts(),
            statement=_statement(message) if command is Command.STATEMENT else {},
            content_of=reader.table(MessageRow({}, {})) if counter is not None else None,
            keeps_open=keeps_open,
        )
    if message.rows:
        raise MalformedInputError(
            f"a message with the command {command} has {count(len(message.rows), 'row')}, which nobody applies",
            do="let the source send them apart (dbWatcher.maxCollectedStatements 0), and send the message again",
        )
    if command is Command.TRUNCATE:
        return MessageChanges([reader.truncation()], keeps_open=keeps_open)
    if command in _TABLE_COMMANDS:
        return MessageChanges(event=reader.event(Action(command.value)), keeps_open=keeps_open)
    raise MalformedInputError(
        f"a message with the command {command} is part of a dump, which is not read",
        do="copy the tables in another way",
    )


class _RowReader:
    """Reads the rows of one message."""

    def __init__(
        self,
        message: Message,
        find: Callable[[TableName], TableSchema | None],
        default_schema: str,
        first_seq: int,
    ) -> None:
        self._message = message
        self._default_schema = default_schema
        self._first_seq = first_seq
        self._find = find
        self._tables: dict[tuple[str, str], _TableReader] = {}

    def parts(self) -> Sequence[TransactionPart]:
        parts: list[TransactionPart] = []
        txn_id: str | None = None
        changes: list[Change] = []
        keys: list[int | None] = []
        said = self._message.head.attributes
        for number, row in enumerate(self._message.rows):
            own = row.attributes if not said else {**said, **row.attributes}
            row_txn = own.get("transaction") or self._message.head.ident
            if row_txn != txn_id:
                txn_id, changes, keys = row_txn, [], []
                parts.append(TransactionPart(txn_id, changes, keys))
            try:
                key = _key(own.get("replKey"))
                changes.append(self._change(row, own, len(changes) + (self._first_seq if len(parts) == 1 else 0)))
                keys.append(key)
            except UnreadableValueError as exc:
                raise MalformedInputError(str(exc), where=self._where(number, own)) from None
            except MalformedInputError as exc:
                raise MalformedInputError(exc.what, where=self._where(number, own), do=exc.do) from None
        return parts

    def table(self, row: MessageRow) -> TableName:
        return self._table({**self._message.head.attributes, **row.attributes}).name

    def truncation(self) -> TransactionPart:
        said = self._message.head.attributes
        table = self._table(said)
        change = Change(self._first_seq, Op.TRUNCATE, table.name, table.version, None, None)
        return TransactionPart(
            said.get("transaction") or self._message.head.ident, [change], [_key(said.get("replKey"))]
        )

    def event(self, action: Action) -> TableEvent:
        head = self._message.head
        said = head.attributes
        # The original writer takes the name of a table that is to be created from the ident.
        table = self._table({"tableName": head.ident, **said} if action is Action.CREATE else said)
        txn_id = said.get("transaction") or head.ident
        return TableEvent(action, table.name, _key(said.get("replKey")), txn_id, head.metadata)

    def _change(self, row: MessageRow, said: Mapping[str, str], seq: int) -> Change:
        action = said.get("action")
        op = _ROW_ACTIONS.get(action or "") or _ROW_ACTIONS.get((action or "").upper())
        if op is None:
            raise UnreadableValueError(
                "a row has no action" if action is None else f"the action {_shown(action)} of a row is not known"
            )
        table = self._table(said)
        if op is Op.INSERT:
            table.refuse_empty(op, row)
            return Change(seq, op, table.name, table.version, None, table.image(row.columns))
        if op is Op.DELETE:
            return Change(seq, op, table.name, table.version, table.image(row.columns), None)
        if row.old is None:
            raise UnreadableValueError("an UPDATE has no oldContent, so the row cannot be found")
        table.refuse_empty(op, row)
        raw, old = row.old, table.image(row.old)
        # A column that the old image lacks was not known before.
        told = table.image(
            {name: value for name, value in row.columns.items() if name not in raw or raw[name] != value}
        )
        # What is written in two ways may be the same value: bytes and their text, 0.5 and .5.
        changed = {name: value for name, value in told.items() if name not in old or old[name] != value}
        return Change(seq, op, table.name, table.version, old, changed)

    def _table(self, said: Mapping[str, str]) -> _TableReader:
        name = said.get("tableName")
        if not name:
            raise MalformedInputError("there is no tableName")
        schema = said.get("schema", "")
        table = self._tables.get((schema, name))
        if table is None:
            # Where a vendor has no schemas, a blank stands for one.
            found = TableName(schema if schema.strip() else self._default_schema, name)
            table = self._tables[schema, name] = _TableReader(found, self._find(found))
        return table

    def _where(self, number: int, said: Mapping[str, str]) -> str:
        key = said.get("replKey", "")
        told = f", replKey {key}" if key.isdecimal() else ""
        table = printable(f"{said.get('schema', '')}.{said.get('tableName', '')}"[: 2 * _LONGEST_NAME])
        return f"table {table}, row {number}{told}"


class _TableReader:
    """Reads images of one table."""

    def __init__(self, name: TableName, schema: TableSchema | None) -> None:
        self.name = name
        self.version = NO_VERSION if schema is None else schema.version
        columns = schema.columns if schema is not None else ()
        self._readers: Mapping[str, Reader] = {column.name: reader_of(column.logical) for column in columns}

    def refuse_empty(self, op: Op, row: MessageRow) -> None:
        """Raise an `UnreadableValueError` for a new row without columns: in ITEMS it means that it is to be fetched."""
        if not row.columns and self._readers:
            raise UnreadableValueError(f"the new row of an {op.value.upper()} has no columns")

    def image(self, columns: Columns) -> Image:
        readers = self._readers
        try:
            return {name: None if value is None else readers[name](value) for name, value in columns.items()}
        except (KeyError, UnreadableValueError, MalformedInputError):
            return {name: None if value is None else self._text(name, value) for name, value in columns.items()}

    def _text(self, name: str, value: str | bytes) -> str:
        """Return canonical text, of a column without definition, too; an error names the column."""
        try:
            return self._readers.get(name, untyped_text)(value)
        except UnreadableValueError as exc:
            raise UnreadableValueError(f"the value of column {_shown(name)} {exc}") from None
        except MalformedInputError as exc:
            raise UnreadableValueError(f"the value of column {_shown(name)} cannot be read: {exc.what}") from None


def _statement(message: Message) -> Mapping[str, str]:
    said = message.head.attributes
    if not said.get(Attribute.STATEMENT):
        raise MalformedInputError("a message with the command STATEMENT has no statement")
    return {name.value: said[name] for name in _STATEMENT_ATTRIBUTES if name in said}


def _key(text: str | None) -> int | None:
    if text is None:
        return None
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdecimal() and len(stripped) <= 30):
        raise MalformedInputError("a replKey is not a whole number")
    return int(stripped)


def _shown(name: str) -> str:
    return repr(printable(name[:_LONGEST_NAME]))
