"""Transactions written as messages; `changes` is the other direction.

A transaction is one message, in the order of its changes. It is several where a change is one of a table (DDL or
TRUNCATE), which has a message of its own, or where it has more rows than fit one. Those before the last one have the
attribute `_keepTransactionOpen` and count no transaction in `_NUM_OF_TRANSACTIONS`; so a receiver commits once.

What an application said in the midst of its transaction (`Op.MESSAGE`) has no place in this format, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, TypeAlias

from penstock.change import Change, Image, Op, TableName
from penstock.errors import OperatorError
from penstock.formats.dbwatcher.message import (
    Action,
    Attribute,
    ColumnMetadata,
    Columns,
    Command,
    Head,
    Message,
    MessageRow,
    Property,
    Value,
)
from penstock.formats.dbwatcher.metadata import altered_metadata_of
from penstock.formats.dbwatcher.values import UnreadableValueError, Writer, writer_of
from penstock.schema import TableSchema


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How messages are made of transactions.

    Attributes:
        version: `replication.version`, the name of the version of the source's tables.
        db_id: What DBID says; None leaves it out.
        most_rows: `replication.maxRowsInTx`: a message that holds more rows takes no other, so it has one more at most;
            0 is without limit.
        most_chars: A message of many rows takes no other when its values have about so many characters, so that a
            receiver can hold it in memory. A row is never divided.
        most_transactions: `dbWatcher.maxCollectedStatements`: how many transactions that follow each other go into a
            message, 1 at least. Changes of tables are never among others.
        sends_unchanged: `replication.sendUnchangedUpdates`: whether updates that changed nothing are sent.
        sends_truncate: Receivers know TRUNCATE, which the original writer does not.
    """

    version: str = "0.0"
    db_id: str | None = None
    most_rows: int = 0
    most_chars: int = 8_000_000
    most_transactions: int = 1
    sends_unchanged: bool = True
    sends_truncate: bool = False


_MEASURED_ROWS = 64
"""After how many rows their size is looked at; most transactions have fewer."""

_COLUMN_CHARS = 40
"""What an element takes besides its value."""

DEFAULT_SETTINGS = WriterSettings()


class KeyedTransaction(NamedTuple):
    """A transaction to be sent.

    Attributes:
        txn_id: TRANS_KEY.
        changes: In order.
        repl_keys: The REPL_KEY of each.
    """

    txn_id: str
    changes: Collection[Change]
    repl_keys: Sequence[int]


class TransactionWriter:
    """Makes messages of transactions."""

    def __init__(
        self,
        find: Callable[[TableName, int], TableSchema | None],
        settings: WriterSettings = DEFAULT_SETTINGS,
        *,
        first_message: int = 1,
    ) -> None:
        """Begin with the message that has the number `first_message`.

        Args:
            find: Returns the definition of a version of a table; None: each value is written as it is.
        """
        self._settings = settings
        self._find = find
        self._tables: dict[tuple[TableName, int], MessageTableWriter] = {}
        self._numbers = count(first_message)

    def messages(self, transactions: Iterable[KeyedTransaction]) -> Iterator[Message]:
        """Yield the messages of transactions, which come in commit order.

        A transaction of which nothing is to be sent has no message.

        Raises:
            OperatorError: A change cannot be told in this format: a TRUNCATE that nobody would understand, changes
                that were not captured, a value that is not in its image.
        """
        held: _Rows = []
        held_of, whole = "", 0
        most = self._settings.most_rows
        for transaction in transactions:
            pieces = self._pieces(transaction)
            first, second = next(pieces, None), next(pieces, None)
            if first is None:
                continue
            is_plain = second is None and isinstance(first, list)
            if whole and (not is_plain or (most and len(held) + len(first) > most + 1)):
                yield self._of_rows(held_of, held, whole)
                held, whole = [], 0
            if second is not None or not isinstance(first, list):
                yield from self._in_pieces(transaction.txn_id, first, second, pieces)
                continue
            held_of = held_of if whole else transaction.txn_id
            held += first
            whole += 1
            if whole >= self._settings.most_transactions:
                yield self._of_rows(held_of, held, whole)
                held, whole = [], 0
        if whole:
            yield self._of_rows(held_of, held, whole)

    def _in_pieces(
        self, txn_id: str, piece: _Piece, following: _Piece | None, rest: Iterator[_Piece]
    ) -> Iterator[Message]:
        """Yield the messages of a transaction that is more than one run of rows; only two pieces are held at a time."""
        while True:
            is_open = following is not None
            if isinstance(piece, list):
                yield self._of_rows(txn_id, piece, int(not is_open), is_open=is_open)
            else:
                yield self._of_table(piece, is_open=is_open)
            if following is None:
                return
            piece, following = following, next(rest, None)

    def _pieces(self, transaction: KeyedTransaction) -> Iterator[_Piece]:
        """Yield runs of rows, and changes of tables by themselves."""
        rows: _Rows = []
        size = 0
        most = self._settings.most_rows
        for change, key in zip(transaction.changes, transaction.repl_keys, strict=True):
            if change.op in (Op.DDL, Op.TRUNCATE, Op.GAP):
                if rows:
                    yield rows
                    rows, size = [], 0
                yield self._table_change(change, key, transaction.txn_id)
            elif change.op is not Op.MESSAGE:
                row = self._row(change, key, transaction.txn_id)
                if row is None:
                    continue
                if len(rows) % _MEASURED_ROWS == 0:
                    size += sum(chars_of(of_them) for of_them, _ in rows[-_MEASURED_ROWS:])
                if (most and len(rows) > most) or size > self._settings.most_chars:
                    yield rows
                    rows, size = [], 0
                rows.append((row, key))
        if rows:
            yield rows

    def _row(self, change: Change, key: int, txn_id: str) -> MessageRow | None:
        table = self._table(change)
        if change.op in (Op.UPDATE, Op.DELETE) and not change.before:
            raise OperatorError(
                f"a change of table {change.table} has no old image, so receivers could not find its row",
                where=f"transaction {txn_id}",
                do="give the table a key at the source, or let the source log whole rows",
            )
        match change.op:
            case Op.UPDATE:
                old = table.image(change.before or {})
                full = {**old, **table.image(change.after or {})}
                if not self._settings.sends_unchanged and full == old:
                    return None
                return MessageRow(full, table.attributes(Action.UPDATE, key, txn_id), old)
            case Op.DELETE:
                return MessageRow(table.image(change.before or {}), table.attributes(Action.DELETE, key, txn_id))
            case _:
                return MessageRow(table.inserted(change.after or {}), table.attributes(Action.INSERT, key, txn_id))

    def _table_change(self, change: Change, key: int, txn_id: str) -> _TableChange:
        said = change.before or {}
        if change.op is Op.DDL:
            action = (
                Action.DROP if said.get("is") is None else Action.CREATE if said.get("was") is None else Action.ALTER
            )
        elif change.op is Op.GAP:
            raise OperatorError(
                f"changes of table {change.table} were not captured, so they cannot be sent",
                where=f"transaction {txn_id}",
                do="let the receivers copy the table again",
            )
        elif not self._settings.sends_truncate:
            raise OperatorError(
                f"table {change.table} was truncated, which receivers of this format do not know",
                where=f"transaction {txn_id}",
                do="let them copy the table again, or say that they know TRUNCATE",
            )
        else:
            action = Action.TRUNCATE
        return _TableChange(action, change, key, txn_id)

    def _of_rows(self, ident: str, rows: _Rows, whole: int, *, is_open: bool = False) -> Message:
        told = {Attribute.KEEP_TRANSACTION_OPEN.value: "true"} if is_open else {}
        return Message(
            Head(Command.REPLICATION, ident, told),
            [row for row, _ in rows],
            self._properties(rows[-1][1], whole),
        )

    def _of_table(self, piece: _TableChange, *, is_open: bool) -> Message:
        told = dict(self._table(piece.change).attributes(piece.action, piece.key, piece.txn_id))
        ident = piece.change.table.name if piece.action is Action.CREATE else piece.txn_id
        if is_open:
            told[Attribute.KEEP_TRANSACTION_OPEN.value] = "true"
        head = Head(Command(piece.action.value), ident, told, self._metadata(piece))
        return Message(head, (), self._properties(piece.key, int(not is_open)))

    def _metadata(self, piece: _TableChange) -> Sequence[ColumnMetadata]:
        """Return the columns of a table that was altered, so that receivers can follow."""
        change = piece.change
        schema = self._find(change.table, change.table_version) if piece.action is Action.ALTER else None
        return () if schema is None else altered_metadata_of(schema, change.before or {})

    def _properties(self, last_key: int, whole: int) -> Mapping[str, str]:
        return {
            Property.REPL_KEY.value: str(last_key),
            Property.NUMBER_OF_TRANSACTIONS.value: str(whole),
            Property.MESSAGE_SEQ.value: str(next(self._numbers)),
        }

    def _table(self, change: Change) -> MessageTableWriter:
        found = self._tables.get((change.table, change.table_version))
        if found is None:
            schema = self._find(change.table, change.table_version)
            found = self._tables[change.table, change.table_version] = MessageTableWriter(
                change.table, schema, self._settings
            )
        return found


class _TableChange(NamedTuple):
    action: Action
    change: Change
    key: int
    txn_id: str


_Rows: TypeAlias = list[tuple[MessageRow, int]]
"""Rows with their keys."""

_Piece: TypeAlias = _Rows | _TableChange


def chars_of(row: MessageRow) -> int:
    """Return about how many characters the columns of a row take."""
    images = (row.columns, row.old or {})
    return sum(_COLUMN_CHARS + len(value or "") for image in images for value in image.values())


class MessageTableWriter:
    """Writes images of one version of a table."""

    def __init__(self, name: TableName, schema: TableSchema | None, settings: WriterSettings) -> None:
        """Write values as they are where there is no definition."""
        self._name = name
        self._settings = settings
        columns = schema.columns if schema is not None else ()
        writers = [(column.name, writer_of(column.logical)) for column in columns]
        self._writers: Sequence[tuple[str, Writer]] = [(n, writer) for n, writer in writers if writer is not None]

    def attributes(self, action: Action, key: int, txn_id: str) -> Mapping[str, str]:
        """Return what a row says of itself, or `<desc>` of a change of the table."""
        said = {
            "schema": self._name.schema,
            "action": str(action),
            "replKey": str(key),
            "version": self._settings.version,
            "transaction": txn_id,
            "tableName": self._name.name,
        }
        if self._settings.db_id is not None:
            said["dbId"] = self._settings.db_id
        return said

    def image(self, image: Image) -> Columns:
        """Write the values of an image; raises an `OperatorError` at one that is no canonical text of its type."""
        found: dict[str, Value] = dict(image)
        for name, writer in self._writers:
            text = image.get(name)
            if text is not None:
                try:
                    found[name] = writer(text)
                except UnreadableValueError as exc:
                    raise OperatorError(f"the value of column {name!r} of table {self._name} {exc}") from None
        return found

    def inserted(self, image: Image) -> Columns:
        """Write the image of an INSERT, without columns that are NULL."""
        new = self.image(image)
        # A receiver takes an image without columns for one that it has to fetch.
        return {name: value for name, value in new.items() if value is not None} or new
