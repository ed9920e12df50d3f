"""What one message asks for, by transaction: the same in the driver, which counts it, and in tasks, which apply it."""

from __future__ import annotations

import marshal
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.change import Change, Image, TableName
from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.changes import MessageChanges, TableEvent, changes_of
from penstock.formats.dbwatcher.forms import row_text
from penstock.formats.dbwatcher.message import CANCELLED, Attribute, Message, MessageRow, Route
from penstock.formats.dbwatcher.parser import MessageLimits
from penstock.formats.dbwatcher.reader import read_message, route_of
from penstock.sources.dbwatcher.messages import StoredMessage
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.tables import TableBook
from penstock.text import printable

BASE64 = b"base64"
_SURROGATE = re.compile("[\ud800-\udfff]")

_DETERMINISTIC = 2
"""The newest form of marshal in which equal values are equal bytes."""


class Piece(NamedTuple):
    """What a message says of one transaction.

    Attributes:
        part: Which of the message's parts it is; of DDL, 0.
        changes: How many it has; of DDL that is decided where the order of messages is known.
        first_key, last_key: REPL_KEY of its first and last change; None where the message has none.
        counter: `_createCounter`, which tells messages of one CREATE from each other; empty in others.
        said: All that its rows say, one behind the other, however they are cut into messages.
        tables: Those that its rows are of.
        event: DDL, in place of rows.
        is_cancelled: The event, which is a CREATE, has come before, and no more of the table's content comes.
    """

    txn_id: str
    part: int
    changes: int
    first_key: int | None
    last_key: int | None
    counter: str
    said: bytes
    tables: frozenset[TableName] = frozenset()
    event: TableEvent | None = None
    is_cancelled: bool = False


class Asked(NamedTuple):
    """What a message asks for.

    Attributes:
        keeps_open: The last piece belongs to a transaction that a later message goes on with.
    """

    pieces: Sequence[Piece]
    keeps_open: bool = False


def read(stored: StoredMessage, reading: Reading) -> Message | None:
    """Read a message; None for one that asks for no change: a control message, or the end of an initial update.

    Raises:
        MalformedInputError: It is none, or part of a dump; the error names the place.
    """
    route = route_of(stored.body, stored.properties)
    if route is Route.DUMP:
        raise MalformedInputError(
            "the message is part of a dump, which is not read", where=stored.where, do="copy the tables in another way"
        )
    if route is not Route.XML:
        return None
    return read_message(
        stored.body, stored.properties, name=stored.where, limits=MessageLimits(bytes=reading.most_bytes)
    )


def ask(message: Message, stored: StoredMessage, book: TableBook, reading: Reading) -> Asked:
    """Say what a message asks for.

    Raises:
        MalformedInputError: That is not applied, or a value is none of its column. The error names the place.
    """
    found = _changes_of(message, stored, book, reading)
    if found.statement and not reading.applies_statement_rows:
        raise MalformedInputError(
            "the message asks to execute a statement, which is never done",
            where=stored.where,
            do="set capture.dbwatcher.statements to rows, and the rows that the statement has changed are applied; or"
            " on_malformed to put_aside",
        )
    if BASE64 in stored.body:
        _refuse_surrogates(found, stored)
    counter = message.head.attributes.get(Attribute.CREATE_COUNTER, "").strip()
    if (event := found.event) is not None:
        told = (event.action.value, str(event.table), [(c.name, list(c.attributes.items())) for c in event.metadata])
        piece = Piece(event.txn_id, 0, 0, event.repl_key, event.repl_key, counter, _plain(told), event=event)
        return Asked([piece], found.keeps_open)
    if (event := found.cancelled) is not None:
        key, said = event.repl_key, _plain((CANCELLED, str(event.table)))
        piece = Piece(event.txn_id, 0, 0, key, key, CANCELLED, said, event=event, is_cancelled=True)
        return Asked([piece], found.keeps_open)
    pieces, at = [], 0
    for number, part in enumerate(found.parts):
        rows = message.rows[at : at + len(part.changes)]
        said = b"".join([_row_said(row) for row in rows]) or message.command.value.encode()
        tables = frozenset({change.table for change in part.changes})
        keys = part.repl_keys
        pieces.append(Piece(part.txn_id, number, len(part.changes), keys[0], keys[-1], counter, said, tables))
        at += len(part.changes)
    return Asked(pieces, found.keeps_open)


def _refuse_surrogates(found: MessageChanges, stored: StoredMessage) -> None:
    """Refuse what is not text to any database: the format carries it, in Base64, and the change stream does not."""
    tables = [change.table for part in found.parts for change in part.changes]
    for table in {*tables, *([] if found.event is None else [found.event.table])}:
        if _SURROGATE.search(str(table)):
            raise MalformedInputError("the name of a table has half of a surrogate pair", where=stored.where)
    for part in found.parts:
        for change in part.changes:
            for image in (change.before or {}, change.after or {}):
                if (name := half_pair_in(image)) is not None:
                    what = f"the value of column {printable(name)!r} has half of a surrogate pair, which is not text"
                    raise MalformedInputError(what, where=f"{stored.where}, table {change.table}")


def half_pair_in(image: Image) -> str | None:
    """Return a column whose value has half of a surrogate pair, if there is one."""
    for name, value in image.items():
        if value is not None and not value.isascii() and _SURROGATE.search(value):
            return name
    return None


def changes_in(stored: StoredMessage, book: TableBook, reading: Reading) -> tuple[Message, Sequence[Sequence[Change]]]:
    """Return a message that `ask` had nothing against, and the changes of each of its parts."""
    message = read(stored, reading)
    assert message is not None
    return message, [part.changes for part in _changes_of(message, stored, book, reading).parts]


def _changes_of(message: Message, stored: StoredMessage, book: TableBook, reading: Reading) -> MessageChanges:
    position = stored.place.position
    try:
        return changes_of(message, lambda table: book.at(table, position), default_schema=reading.default_schema)
    except MalformedInputError as exc:
        where = f"{stored.where}, {exc.where}" if exc.where else stored.where
        raise MalformedInputError(exc.what, where=where, do=exc.do) from exc


def row_said(
    identifying: tuple[str | None, str | None, str | None], repl_key: str | None, content: str, old: str | None
) -> bytes:
    """Return what a row says each time that it is sent.

    Args:
        identifying: Its own attributes `action`, `schema` and `tableName`.
        content, old: Its columns and its old image as `row_text` has them.
    """
    return _plain((identifying, repl_key, content, old))


def _row_said(row: MessageRow) -> bytes:
    get = row.attributes.get
    return row_said((get("action"), get("schema"), get("tableName")), get("replKey"), *row_text(row))


def _plain(told: Any) -> bytes:
    return marshal.dumps(told, _DETERMINISTIC)
