"""Transactions of the change stream as DbWatcher messages: the XML is a record's value, its properties the headers.

REPL_KEY, which is unique and grows, is the transaction's position with the change's number in the lower bits; the rows
of a first copy have the highest number of the position that they are as of. TRANS_KEY is the transaction's id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import ClassVar

import pyarrow as pa

from penstock import change as c
from penstock.apply.apply_errors import NOT_CAPTURED, OTHER, VALUE_TOO_LONG
from penstock.change import Change, Image, Op, TableName
from penstock.errors import MalformedInputError, OperatorError, PenstockError
from penstock.formats.dbwatcher.compression import Compression, compress
from penstock.formats.dbwatcher.message import Attribute, Message, Property
from penstock.formats.dbwatcher.tables import Creation, cancel_message, content_messages, create_message
from penstock.formats.dbwatcher.transactions import KeyedTransaction, TransactionWriter, WriterSettings
from penstock.formats.dbwatcher.writer import write_message
from penstock.formats.debezium.writer import OutgoingRecord, UnpublishableError
from penstock.position import Scn
from penstock.schema import Dictionary, TableSchema
from penstock.sinks.dbwatcher.altered import alters, as_messages_tell
from penstock.sinks.dbwatcher.collector import Collector
from penstock.sinks.dbwatcher.keys import NUMBER_BITS, copy_id, copy_key, repl_key
from penstock.sinks.events.encoding import (
    CopyPlace,
    Encoder,
    NumberedRow,
    RecordFormat,
    Refusal,
    TransactionInfo,
    image_of,
    out_of_order,
    row_aside,
    rows_of,
    told_or_aside,
)
from penstock.sinks.events.put_aside import OnBadValue, PutAside

_OPS = {op.value: op for op in Op}

_ROWS_OF_LARGE = 10_000
"""So many rows go into a message of a transaction that is too large to be held in memory, if nothing else is said."""


@dataclass(frozen=True)
class MessageSettings:
    """How transactions are published as messages.

    Attributes:
        topic: Of Kafka; in files, what the records say that their topic is.
        writer: How messages are made.
        content_rows: How many rows of a first copy go into a message.
        compress_bytes: A body of so many bytes or more is compressed; 0 compresses none.
        compression: How.
    """

    topic: str
    writer: WriterSettings = field(default_factory=WriterSettings)
    content_rows: int = 250
    compress_bytes: int = 0
    compression: Compression = Compression.GZIP


@dataclass(frozen=True)
class MessageFormat(RecordFormat):
    """DbWatcher messages as a format of records."""

    settings: MessageSettings

    begins_tables_anew: ClassVar[bool] = True

    def encoder(self, tables: Dictionary, copied: Mapping[TableName, Scn]) -> MessageEncoder:
        """What makes messages of changes."""
        return MessageEncoder(self.settings, tables, copied)

    def faults(self, tables: Sequence[TableName]) -> Sequence[PenstockError]:
        """Return nothing: all tables are in one topic, under their names."""
        return ()


@dataclass(frozen=True)
class MessageEncoder(Encoder):
    """What tasks need to make messages of changes; travels to them."""

    settings: MessageSettings
    tables: Dictionary = field(default_factory=Dictionary)
    copied: Mapping[TableName, Scn] = field(default_factory=dict)

    _names: dict[tuple[str, str, int], TableName] = field(default_factory=dict, repr=False, compare=False)
    _writers: dict[int, TransactionWriter] = field(default_factory=dict, repr=False, compare=False)

    def of_changes(self, batches: Iterable[pa.RecordBatch], refusal: Refusal) -> Iterator[OutgoingRecord]:
        """Yield the messages of a transaction that is too large to be held in memory: of so many rows each.

        All but the last one keep the transaction open, so that it is applied as one.
        """
        most = self.settings.writer.most_rows or _ROWS_OF_LARGE
        at = Scn(0)
        for scn, of_one in groupby(rows_of(batches), key=lambda row: Scn(row[c.COMMIT_SCN])):
            if scn < at:
                raise out_of_order()
            at = scn
            # The last message so far, and its record where another one follows.
            last: tuple[Message, OutgoingRecord] | None = None
            numbered = enumerate(of_one, start=1)
            while rows := list(islice(numbered, most)):
                transaction = self._transaction(rows)
                if transaction is not None:
                    messages, records = self._fitting(transaction, scn, refusal, goes_on=True)
                    for pair in zip(messages, records, strict=True):
                        if last is not None:
                            yield last[1]
                        last = pair
            if last is not None:
                yield self._record(last[0])

    def of_transactions(
        self, batches: Iterable[pa.RecordBatch], refusal: Refusal, on_bad_value: OnBadValue
    ) -> Iterator[TransactionInfo]:
        """Yield what is told of one transaction after the other; see `Encoder`.

        Where transactions are collected, their record is told of with the last one.
        """
        messages: Sequence[Message] = ()

        def tell(rows: Sequence[NumberedRow]) -> TransactionInfo:
            nonlocal messages
            messages, transaction = (), self._transaction(rows)
            if transaction is None:
                return TransactionInfo((), 0)
            messages, records = self._fitting(transaction, rows[0][1][c.COMMIT_SCN], refusal)
            told = transaction.changes if records else ()
            by_table = Counter((change.table, change.op.value) for change in told)
            return TransactionInfo(records, len(told), by_table=by_table)

        def fault(row: NumberedRow) -> UnpublishableError | None:
            try:
                tell([row])
            except UnpublishableError as exc:
                return exc
            return None

        all_told = told_or_aside(batches, tell, fault, on_bad_value)
        if self.settings.writer.most_transactions <= 1:
            yield from all_told
            return
        collector = Collector(
            self.settings.writer, self._record, lambda record: refusal(_with_number(record, _LAST_NUMBER))
        )
        for told in all_told:
            yield replace(told, records=list(collector.take(messages)))
        yield TransactionInfo(list(collector.rest()), 0)

    def of_rows(
        self,
        table: TableSchema,
        batches: Iterable[pa.RecordBatch],
        place: CopyPlace,
        *,
        refusal: Refusal,
        aside: list[PutAside] | None,
    ) -> Iterator[OutgoingRecord]:
        """Yield the messages of rows of a first copy, the one that creates the table before all of them."""
        at = place.place.commit_scn
        key, txn_id = copy_key(at), copy_id(at, table.name, place.number)
        creation = Creation(table, key, txn_id, key)
        with _naming(f"table {table.name}, first copy"):
            created = [create_message(creation, self.settings.writer)]
        if place.drops:
            # Receivers would only empty it.
            gone = Change(0, Op.DDL, table.name, table.version, {}, None)
            created = [*self._messages_of(KeyedTransaction(txn_id, [gone], [key]), 0, at), *created]
        if place.before == 0:
            yield from (self._checked(message, at, refusal) for message in created)

        def unpublishable(row: Image, error: UnpublishableError) -> None:
            if aside is None:
                raise error
            aside.append(row_aside(table, row, place.place, error))

        # The message that creates it is number 0.
        counter = max(place.before - len(created), 0) + 1
        for batch in batches:
            for first in range(0, batch.num_rows, self.settings.content_rows):
                rows = batch.slice(first, self.settings.content_rows).to_pylist()
                for record in self._content(creation, rows, counter, refusal, unpublishable):
                    counter += 1
                    yield record

    def cancelled(self, table: TableName, at: Scn, number: int) -> Sequence[OutgoingRecord]:
        """Return the message that cancels the copy of a table; see `Encoder`."""
        creation = Creation(TableSchema(table, ()), copy_key(at), copy_id(at, table, number), copy_key(at))
        return [self._record(cancel_message(creation, self.settings.writer))]

    def _content(
        self,
        creation: Creation,
        rows: Sequence[Image],
        counter: int,
        refusal: Refusal,
        unpublishable: Callable[[Image, UnpublishableError], None],
    ) -> Iterator[OutgoingRecord]:
        """Yield one message with rows; several where it would be too large, or some of them cannot be told."""
        try:
            with _naming(f"table {creation.table.name}, rows of the first copy"):
                settings = self.settings.writer
                messages = content_messages(creation, rows, settings, rows_per_message=len(rows), first_counter=counter)
                record = self._checked(next(messages), creation.repl_key >> NUMBER_BITS, refusal)
        except UnpublishableError as exc:
            if len(rows) == 1:
                unpublishable(rows[0], exc)
                return
            half = len(rows) // 2
            for part in (rows[:half], rows[half:]):
                for found in self._content(creation, part, counter, refusal, unpublishable):
                    counter += 1
                    yield found
        else:
            yield record

    def again(
        self, entry: PutAside, changes: Sequence[tuple[int, Change]], refusal: Refusal
    ) -> Sequence[OutgoingRecord]:
        """Return the messages of an entry of the error queue, under the keys that its changes had; see `Encoder`."""
        for _, change in changes:
            if change.op is Op.GAP:
                raise _not_captured(change.table, entry.commit_scn)
        keys = [repl_key(entry.commit_scn, number) for number, _ in changes]
        txn_id = entry.txn_id
        # Receivers take a transaction with the name and keys of another one for that one.
        if entry.message_count > len(entry.numbers):
            # The rest of it was published.
            txn_id = f"{txn_id}.{entry.number}"
        if entry.is_of_copy:
            txn_id = f"{copy_id(entry.commit_scn, entry.table)}.{entry.number}"
            keys = [copy_key(entry.commit_scn)] * len(changes)
        transaction = KeyedTransaction(txn_id, [change for _, change in changes], keys)
        return self._fitting(transaction, entry.commit_scn, refusal)[1]

    def numbered(self, records: Iterable[OutgoingRecord], before: int) -> Iterator[OutgoingRecord]:
        """Yield records with their `_MESSAGE_SEQ`."""
        for number, record in enumerate(records, before + 1):
            yield _with_number(record, number)

    def _fitting(
        self, transaction: KeyedTransaction, scn: int, refusal: Refusal, *, goes_on: bool = False
    ) -> tuple[Sequence[Message], Sequence[OutgoingRecord]]:
        """Return the messages of a transaction, and their records: as many as it takes for the topic to take each.

        Args:
            goes_on: More messages of the transaction follow, so all the records keep it open.

        Raises:
            UnpublishableError: A change cannot be told, or has a message by itself that is too large.
        """
        changes = len(transaction.changes)
        most: int | None = self.settings.writer.most_rows
        while True:
            messages = self._one_by_one(transaction, scn) if most is None else self._messages_of(transaction, most, scn)
            records = [self._record(_kept_open(message) if goes_on else message) for message in messages]
            why = next((why for record in records if (why := refusal(_with_number(record, _LAST_NUMBER)))), None)
            if why is None:
                return messages, records
            if most is None or changes == 1:
                raise _too_large(why, transaction, scn)
            # A message has a row more than its limit.
            rows = min(most or changes, changes) - 1
            most = (rows + 1) // 2 or None

    def _one_by_one(self, transaction: KeyedTransaction, scn: int) -> Sequence[Message]:
        """Return the messages of a transaction that has one for each change."""
        pairs = zip(transaction.changes, transaction.repl_keys, strict=True)
        parts = [KeyedTransaction(transaction.txn_id, [change], [key]) for change, key in pairs]
        messages = [message for part in parts for message in self._messages_of(part, 0, scn)]
        return [*map(_kept_open, messages[:-1]), *messages[-1:]]

    def _checked(self, message: Message, scn: int, refusal: Refusal) -> OutgoingRecord:
        record = self._record(message)
        why = refusal(_with_number(record, _LAST_NUMBER))
        if why is not None:
            do = "raise that limit, or leave columns out by a rule"
            raise UnpublishableError(f"a message {why}", where=f"position {scn}", do=do, number=VALUE_TOO_LONG)
        return record

    def _messages_of(self, transaction: KeyedTransaction, most_rows: int, scn: int) -> Sequence[Message]:
        writer = self._writers.get(most_rows)
        if writer is None:
            settings = replace(self.settings.writer, most_rows=most_rows)
            writer = self._writers[most_rows] = TransactionWriter(self._find, settings)
        with _naming(f"transaction {transaction.txn_id}, position {scn}"):
            return list(writer.messages([transaction]))

    def _transaction(self, rows: Sequence[NumberedRow]) -> KeyedTransaction | None:
        """The changes of rows of one transaction; None without any, or where the copies of their tables hold all."""
        if not rows:
            return None
        scn = rows[0][1][c.COMMIT_SCN]
        changes, keys = list[Change](), list[int]()
        for number, row in rows:
            version, op = row[c.TABLE_VERSION], _OPS[row[c.OP]]
            name = self._table(row[c.SCHEMA_NAME], row[c.TABLE_NAME], version, op)
            if scn <= self.copied.get(name, 0):
                continue
            if op is Op.GAP:
                raise _not_captured(name, scn)
            change = Change(number, op, name, version, image_of(row[c.BEFORE]), image_of(row[c.AFTER]))
            if op is Op.DDL:
                if not alters(change):
                    continue
                change = as_messages_tell(change)
            changes.append(change)
            keys.append(repl_key(scn, number))
        return KeyedTransaction(rows[0][1][c.TXN_ID], changes, keys) if changes else None

    def _table(self, schema: str, table: str, version: int, op: Op) -> TableName:
        """Return a table's name, and make sure that its definition is known where images are written by it."""
        found = self._names.get((schema, table, version))
        if found is None:
            found = TableName(schema, table)
            if op is not Op.DDL and op is not Op.GAP:
                # Without a definition values would be sent as they are, and timestamps not be the receiver's.
                self.tables.get(found, version)
                self._names[schema, table, version] = found
        return found

    def _find(self, name: TableName, version: int) -> TableSchema | None:
        try:
            return self.tables.get(name, version)
        except MalformedInputError:
            return None

    def _record(self, message: Message) -> OutgoingRecord:
        body, properties = write_message(message), dict(message.properties)
        # It is known once the records before it are.
        properties.pop(Property.MESSAGE_SEQ, None)
        if self.settings.compress_bytes:
            compression, least = self.settings.compression, self.settings.compress_bytes
            body, said = compress(body, compression, least_bytes=least)
            properties |= said
        headers = tuple((name, value.encode()) for name, value in properties.items())
        return OutgoingRecord(self.settings.topic, None, body, headers, 0)


_LAST_NUMBER = 10**18


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Raise what a message cannot tell as the error for that, which never holds a value."""
    try:
        yield
    except UnpublishableError:
        raise
    except (OperatorError, MalformedInputError) as exc:
        raise UnpublishableError(exc.what, where=where, do=exc.do, number=OTHER) from None


def _with_number(record: OutgoingRecord, number: int) -> OutgoingRecord:
    return record._replace(headers=(*record.headers, (Property.MESSAGE_SEQ.value, b"%d" % number)))


def _not_captured(table: TableName, scn: int) -> UnpublishableError:
    return UnpublishableError(
        "a change could not be captured, and no message can tell that",
        where=f"table {table}, position {scn}",
        do="leave the table out by rules.exclude, or begin anew under another name, with another topic or folder",
        number=NOT_CAPTURED,
    )


def _kept_open(message: Message) -> Message:
    """The same message before another one of its transaction."""
    attributes = {**message.head.attributes, Attribute.KEEP_TRANSACTION_OPEN.value: "true"}
    properties = {**message.properties, Property.NUMBER_OF_TRANSACTIONS.value: "0"}
    return replace(message, head=replace(message.head, attributes=attributes), properties=properties)


def _too_large(why: str, transaction: KeyedTransaction, scn: int) -> UnpublishableError:
    (table,) = {change.table for change in transaction.changes} if len(transaction.changes) == 1 else {None}
    where = f"transaction {transaction.txn_id}, position {scn}"
    return UnpublishableError(
        f"a message {why}",
        where=where if table is None else f"table {table}, {where}",
        do="raise that limit, or leave columns out by a rule",
        number=VALUE_TOO_LONG,
    )
