"""Messages of changes in the form that the writer has, taken by the forms of their rows: several times as fast.

Nothing is guessed: what is here returns None for any other message, and `pieces` reads it, which can also say what is
wrong. A test asks both about messages that were altered at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from penstock.change import NO_VERSION, Change, Op, TableName
from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.forms import MOST_COLUMNS, RowForm, RowText, attributes_of, merged
from penstock.formats.dbwatcher.message import Attribute, Command, Head, Message, Property
from penstock.formats.dbwatcher.usual import DividedMessage, divide
from penstock.logical import LogicalType
from penstock.schema import TableSchema
from penstock.sources.dbwatcher.messages import StoredMessage
from penstock.sources.dbwatcher.pieces import BASE64, Asked, Piece, half_pair_in, row_said
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.tables import TableBook

_COMMANDS = frozenset({Command.REPLICATION, Command.INSERT, Command.UPDATE, Command.DELETE})
_OPS = {"INSERT": Op.INSERT, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE}
_OTHER_ROUTES = frozenset({Property.COMPRESSION_TYPE.value, Property.DUMP.value, Property.COMMAND.value})
"""Properties of messages that may be compressed, or none of XML."""

_SCHEMA, _TABLE_NAME = Attribute.SCHEMA.value, Attribute.TABLE_NAME.value

_MOST_ORDERS = 16
"""So many orders of columns are tried for a table whose rows come in ever others."""


class _Form(NamedTuple):
    """The form of a table's rows, as long as the table has one definition.

    Attributes:
        left: How often another order may still be learned.
    """

    schema: TableSchema | None
    rows: RowForm | None
    left: int


class _Table(NamedTuple):
    name: TableName
    version: int
    form: RowForm


class _Told(NamedTuple):
    """What rows with the same attributes say, but for their keys and transactions.

    Attributes:
        identifying: What each row of them says again when it is sent again.
    """

    table: _Table
    op: Op
    identifying: tuple[str | None, str | None, str | None]


class _Row(NamedTuple):
    """A row that a form has matched."""

    told: _Told
    txn_id: str
    repl_key: int | None
    text: RowText


class _OtherError(Exception):
    """The message has another form."""


class Outlines:
    """Keeps the forms of tables from message to message; not for two threads at once."""

    def __init__(self, reading: Reading) -> None:
        """Know no form yet."""
        self._reading = reading
        self._forms: dict[TableName, _Form] = {}

    def ask(self, stored: StoredMessage, book: TableBook) -> tuple[Head, Asked] | None:
        """Return the head of a message and what it asks for, without reading the values of its rows.

        The same as `pieces.ask` has; None where that is to tell.
        """
        divided = self._divided(stored)
        if divided is None:
            return None
        head = divided.head
        try:
            rows = list(_Rows(divided, self, lambda name: book.at(name, stored.place.position)))
        except _OtherError:
            return None
        if BASE64 in stored.body and any(map(_is_no_text, rows)):
            return None
        return head, Asked(_pieces(rows, head), Message(head).keeps_transaction_open)

    def changes(self, stored: StoredMessage, book: TableBook) -> Sequence[Sequence[Change]] | None:
        """Return the changes of each part of a message; the same as `pieces.changes_in`, or None."""
        divided = self._divided(stored)
        if divided is None:
            return None
        try:
            rows = _Rows(divided, self, lambda name: book.at(name, stored.place.position))
            parts = groupby(rows, _txn_id)
            return [[_change(number, row) for number, row in enumerate(part)] for _, part in parts]
        except _OtherError:
            return None

    def learn(self, message: Message, stored: StoredMessage, book: TableBook) -> None:
        """Learn in which order the columns of tables come, from a message that the forms of now do not match."""
        # Dictionaries for sets that keep their order.
        orders: dict[TableName, dict[tuple[str, ...], None]] = {}
        for row in message.rows:
            schema, name = _names({**message.head.attributes, **row.attributes})
            if name:
                orders.setdefault(self.table(schema, name), {})[tuple(row.columns)] = None
        for table, found in orders.items():
            for names in found:
                self._learn(table, book.at(table, stored.place.position), names)

    def table(self, schema: str, name: str) -> TableName:
        """Return a table by the attributes of a row."""
        return TableName(schema if schema.strip() else self._reading.default_schema, name)

    def form(self, table: TableName, schema: TableSchema | None) -> RowForm | None:
        """Return the form of a table's rows; None where there is none yet."""
        found = self._forms.get(table)
        if found is None or found.schema is not schema:
            names = () if schema is None else tuple(column.name for column in schema.columns)
            found = self._forms[table] = _Form(schema, _form_of(names, schema), _MOST_ORDERS)
        return found.rows

    def _divided(self, stored: StoredMessage) -> DividedMessage | None:
        if len(stored.body) > self._reading.most_bytes or not _OTHER_ROUTES.isdisjoint(stored.properties):
            return None
        divided = divide(stored.body)
        return divided if divided is not None and _has_changes(divided.head) else None

    def _learn(self, table: TableName, schema: TableSchema | None, names: Sequence[str]) -> None:
        rows = self.form(table, schema)
        left = self._forms[table].left - 1
        known = () if rows is None else rows.columns
        if left >= 0 and not _is_part(names, known):
            self._forms[table] = _Form(schema, _form_of(merged(names, known), schema), left)


class _Rows:
    """The rows of one message; raises `_OtherError` at one of another form."""

    def __init__(
        self, message: DividedMessage, outlines: Outlines, find: Callable[[TableName], TableSchema | None]
    ) -> None:
        self._head = message.head
        self._text = message.text
        self._outlines = outlines
        self._find = find
        self._tables: dict[tuple[str, str], _Table] = {}
        said = self._head.attributes
        # What counts for rows that do not say it themselves.
        self._txn_id = said.get("transaction") or self._head.ident
        key = said.get("replKey")
        if key is not None and not (key.isascii() and key.isdecimal() and len(key) <= 30):
            raise _OtherError
        self._repl_key = None if key is None else int(key)

    def __iter__(self) -> Iterator[_Row]:
        text, at, end = self._text, 0, len(self._text)
        said = self._head.attributes
        known: dict[str, _Told] = {}
        table: _Table | None = None
        while at < end:
            found = None if table is None else table.form.find(text, at)
            if found is None:
                table = self._table(_named_behind(text, at, said))
                found = table.form.find(text, at)
            if found is None:
                raise _OtherError
            others = f"{found.others_1}{found.others_2}{found.others_3}{found.others_4}"
            told = known.get(others) or known.setdefault(others, self._told(others))
            if told.table is not table:
                # It matched the form of another table, whose types may be others.
                table, found = told.table, told.table.form.find(text, at)
                if found is None:
                    raise _OtherError
            if (found.old is None) == (told.op is Op.UPDATE):
                raise _OtherError
            key = found.repl_key
            repl_key = self._repl_key if key is None else int(key)
            yield _Row(told, found.transaction or self._txn_id, repl_key, found)
            at = found.found.end()

    def _told(self, others: str) -> _Told:
        own, said = attributes_of(others), self._head.attributes
        op = _OPS.get(own.get("action", said.get("action", "")))
        if op is None:
            raise _OtherError
        get = own.get
        return _Told(
            self._table(_names({**said, **own} if said else own)), op, (get("action"), get(_SCHEMA), get(_TABLE_NAME))
        )

    def _table(self, names: tuple[str, str]) -> _Table:
        found = self._tables.get(names)
        if found is None:
            schema, name = names
            if not name:
                raise _OtherError
            table = self._outlines.table(schema, name)
            described = self._find(table)
            form = self._outlines.form(table, described)
            if form is None:
                raise _OtherError
            version = NO_VERSION if described is None else described.version
            found = self._tables[names] = _Table(table, version, form)
        return found


_txn_id = itemgetter(_Row._fields.index("txn_id"))


def _has_changes(head: Head) -> bool:
    said = head.attributes
    is_content = Attribute.CREATE_COUNTER.value in said
    return head.command in _COMMANDS and (not is_content or bool(said.get(_TABLE_NAME)))


def _names(said: Mapping[str, str]) -> tuple[str, str]:
    return said.get(_SCHEMA, ""), said.get(_TABLE_NAME, "")


def _named_behind(text: str, at: int, said: Mapping[str, str]) -> tuple[str, str]:
    """Return what the row at a place probably says of its table; what its attributes say is made sure of later."""
    schema, name = _names(said)
    return _behind(text, at, _SCHEMA) or schema, _behind(text, at, _TABLE_NAME) or name


def _behind(text: str, at: int, attribute: str) -> str:
    mark = f"     <attr name='{attribute}'>"
    begin = text.find(mark, at)
    return text[begin + len(mark) : text.find("<", begin + len(mark))] if begin >= 0 else ""


def _pieces(rows: Sequence[_Row], head: Head) -> list[Piece]:
    """Return the transactions of rows, one for each run of rows that name the same one."""
    counter = head.attributes.get(Attribute.CREATE_COUNTER, "").strip()
    pieces: list[Piece] = []
    for txn_id, found in groupby(rows, _txn_id):
        run = list(found)
        said = b"".join(
            [row_said(row.told.identifying, row.text.repl_key, row.text.content, row.text.old) for row in run]
        )
        tables = frozenset({row.told.table.name for row in run})
        keys = run[0].repl_key, run[-1].repl_key
        pieces.append(Piece(txn_id, len(pieces), len(run), *keys, counter, said, tables))
    return pieces


def _is_no_text(row: _Row) -> bool:
    form = row.told.table.form
    return form.has_untyped and any(half_pair_in(image) is not None for image in form.images(row.text))


def _change(number: int, row: _Row) -> Change:
    (name, version, form), op = row.told.table, row.told.op
    new, old = form.images(row.text)
    if op is Op.INSERT:
        return Change(number, op, name, version, None, new)
    if op is Op.DELETE:
        return Change(number, op, name, version, new, None)
    # A column that the old image lacks was not known before.
    changed = {name: value for name, value in new.items() if name not in old or old[name] != value}
    return Change(number, op, name, version, old, changed)


def _form_of(names: Sequence[str], schema: TableSchema | None) -> RowForm | None:
    types = {} if schema is None else {column.name: column.logical for column in schema.columns}
    return _cached_form(tuple((name, types.get(name)) for name in names))


@lru_cache(256)
def _cached_form(columns: tuple[tuple[str, LogicalType | None], ...]) -> RowForm | None:
    """Making an expression takes longer than reading a hundred rows, and a process reads many slices."""
    if not columns or len(columns) > MOST_COLUMNS:
        return None
    try:
        return RowForm(dict(columns))
    except MalformedInputError:
        # XML cannot carry the name of a column.
        return None


def _is_part(names: Sequence[str], known: Sequence[str]) -> bool:
    """Whether columns come in an order that is known, some of them absent."""
    left = iter(known)
    return all(name in left for name in names)
