"""Many events at once: those that are made alike are read column by column, at a fraction of the cost of one by one.

Most events of a topic have the same shape for a long time: the same schemas, the same members, rows with the same
columns. `RecordDecoder` decodes the first event of a shape, and `BulkDecoder` learns the shape from it. It reads an
event in bulk only if `RecordDecoder` would certainly return the same, and leaves every other event to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

import orjson

from penstock.change import Image, TableName
from penstock.errors import MalformedInputError
from penstock.formats.debezium import headers
from penstock.formats.debezium.canonical import text_itself
from penstock.formats.debezium.decode import ROUTED, DataEvent, JsonMessages, RecordDecoder, RowType, Shape
from penstock.formats.debezium.envelope import ChangeLocation
from penstock.formats.debezium.parse import has_each_once
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.schema import ConnectSchema
from penstock.formats.debezium.source import Key, SourceForm, group_of
from penstock.formats.debezium.source_types import COLUMNS_HEADER
from penstock.formats.debezium.value_reader import InexactError, Reader, UnfitError, column_texts

_MOST_FORMS = 4096
"""So many are kept; tables without schemas may have as many as they have sets of columns."""

_MEMBERS = itemgetter("before", "after", "source", "transaction", "op")
_BLOCK = itemgetter("id", "total_order")

_OPS = frozenset("cud")
_TEXTS = frozenset({str, type(None)})
_UNUSUAL = (ValueError, ArithmeticError, RecursionError, LookupError, TypeError, InexactError, MalformedInputError)

_Form = TypeVar("_Form", "EventShape", "EventOutline")
_Names: TypeAlias = tuple[str, ...] | None


class _Mark(NamedTuple):
    """By what events of one form are recognised: names are those of the columns, in order; None without a row.

    `columns` is the header that tells what they are.
    """

    topic: str
    schema: ConnectSchema | None
    key_schema: ConnectSchema | None
    op: str
    before: _Names
    after: _Names
    key: _Names
    columns: bytes | None = None


class _Opened(NamedTuple):
    """An event as it was parsed."""

    at: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    source: dict[str, Any]
    block: dict[str, Any]
    key: dict[str, Any] | None


class _Before(Enum):
    """What the image before is made of, see `decode.BeforeImage`."""

    NOTHING = "nothing"
    ROW = "row"
    ROW_OF_KEY = "row, if it has the values of the key"
    KEY = "key"
    KEY_OF_ROW = "key, if it has the values of the row"


@dataclass(frozen=True, slots=True)
class _Columns:
    """How rows are read: the readers of all their columns, in order."""

    readers: Mapping[str, Reader]

    def read(self, rows: Sequence[dict[str, Any]]) -> None:
        """Turn rows into images, in place; raises one of `_UNUSUAL` where a value does not fit."""
        for name, read in self.readers.items():
            values = [row[name] for row in rows]
            if read is not text_itself:
                for row, text in zip(rows, column_texts(read, values), strict=True):
                    row[name] = text
            elif not _TEXTS.issuperset(map(type, values)):
                raise UnfitError("is not a text")


@dataclass(frozen=True, slots=True, eq=False)
class EventShape:
    """What events have in common.

    Attributes:
        op: One of `c u d`.
        key: The columns of the key, in its order; none without a key.
        is_read: Its rows are read; otherwise only the places of the events are.
    """

    op: str
    table: TableName
    key: tuple[str, ...]
    row_type: RowType | None
    is_read: bool
    _source: SourceForm
    _before: _Before
    _key_columns: _Columns
    _before_columns: _Columns
    _after_columns: _Columns

    def read(self, opened: Sequence[_Opened]) -> EventBatch:
        """Read events of this form; raises one of `_UNUSUAL` where one of them is another than it seemed."""
        ats, old_images, afters, sources, blocks, keys = zip(*opened, strict=True)
        self._source.read(sources)
        txns, orders = _numbered(blocks)
        if not self.is_read:
            nothing = [None] * len(ats)
            return EventBatch(self, ats, txns, orders, nothing, nothing)
        if keys[0] is not None:
            self._key_columns.read(keys)
        if afters[0] is not None:
            self._after_columns.read(afters)
        return EventBatch(self, ats, txns, orders, self._read_before(old_images, keys), afters)

    def _read_before(self, rows: Sequence[Any], keys: Sequence[Any]) -> Sequence[Image | None]:
        if self._before is _Before.NOTHING:
            return [None] * len(rows)
        if self._before is _Before.KEY:
            return keys
        self._before_columns.read(rows)
        if self._before is _Before.ROW:
            return rows
        names = self.key if self._before is _Before.ROW_OF_KEY else self._before_columns.readers
        if any(row[name] != key[name] for name in names for row, key in zip(rows, keys, strict=True)):
            raise UnfitError("differs between key and row")
        return rows if self._before is _Before.ROW_OF_KEY else keys


class EventBatch(NamedTuple):
    """Events of one form: sequences that line up, one entry for each.

    Attributes:
        at: Which of the records each is, ascending.
        txns: As `ChangeLocation.txn`.
        orders: As `ChangeLocation.total_order`.
        before, after: As `DataEvent` has them; all None where the form says that rows are not read.
    """

    form: EventShape
    at: Sequence[int]
    txns: Sequence[str]
    orders: Sequence[int]
    before: Sequence[Image | None]
    after: Sequence[Image | None]


@dataclass(frozen=True, slots=True, eq=False)
class EventOutline:
    """What events have in common, their rows left alone; `server` is name and database, all as in `Source`."""

    table: TableName
    collection: str
    connector: str
    server: tuple[str, str]
    shape: Shape | None
    _source: SourceForm

    def read(self, opened: Sequence[_Opened]) -> EventOutlines:
        """Read events of this form; raises one of `_UNUSUAL` where one of them is another than it seemed."""
        ats, _, _, sources, blocks, _ = zip(*opened, strict=True)
        txns, orders = _numbered(blocks)
        return EventOutlines(self, ats, txns, orders, self._source.read(sources))


class EventOutlines(NamedTuple):
    """What was seen of events of one form: as `EventBatch`, and position and time of each as `Source` has them."""

    form: EventOutline
    at: Sequence[int]
    txns: Sequence[str]
    orders: Sequence[int]
    places: Sequence[tuple[Key, int | None]]


class BulkDecoder:
    """Decodes what it can of many records; remembers the forms that it has met."""

    def __init__(self, decoder: RecordDecoder, messages: JsonMessages) -> None:
        """Learn from a decoder, whose parser this is."""
        self._decoder = decoder
        self._messages = messages
        # None for what is no form: each event that bears such a mark is decoded by itself.
        self._forms: dict[_Mark, EventShape | None] = {}
        self._sights: dict[_Mark, EventOutline | None] = {}

    def decode(self, records: Sequence[TopicRecord]) -> tuple[list[EventBatch], list[int]]:
        """Decode those that are changes of rows, numbered in their transactions, and nothing unusual.

        Returns:
            Their events, form by form, and which of the records are left to `RecordDecoder.decode`, ascending.
        """
        return _in_bulk(records, self._open, self._forms, self._learn)

    def scan(self, records: Sequence[TopicRecord]) -> tuple[list[EventOutlines], list[int]]:
        """Say of the same records what they are and where they belong, without looking at the values of their rows.

        Returns:
            What was seen, form by form, and which of the records are left to `RecordDecoder.scan`, ascending.
        """
        return _in_bulk(records, self._open_value, self._sights, self._learn_sight)

    def _value(self, record: TopicRecord) -> tuple[ConnectSchema | None, str, bytes, Any, Any, Any, Any]:
        """Return schema, operation, the text of the payload, and its members before, after, source and transaction."""
        if not record.value:
            raise UnfitError
        body, schema = self._messages.values.split(record.value, record.topic)
        payload = orjson.loads(body)
        before, after, source, block, op = _MEMBERS(payload)
        if op not in _OPS or not has_each_once(body, (payload, before, after, source, block)):
            raise UnfitError
        return schema, op, body, before, after, source, block

    def _open_value(self, at: int, record: TopicRecord) -> tuple[_Mark, _Opened]:
        """Parse a value as far as its form tells; raises one of `_UNUSUAL` where it has none."""
        schema, op, _, before, after, source, block = self._value(record)
        mark = _Mark(record.topic, schema, None, op, _names(before), _names(after), None, _told_columns(record))
        return mark, _Opened(at, before, after, source, block, None)

    def _open(self, at: int, record: TopicRecord) -> tuple[_Mark, _Opened]:
        """Parse a record as far as its form tells; raises one of `_UNUSUAL` where it has none."""
        schema, op, body, before, after, source, block = self._value(record)
        topic, raw = record.topic, record.key
        if self._decoder.is_inexact(topic) or self._decoder.placeholder.may_be_in(body):
            raise UnfitError
        # Only a delete is known for half of a changed key by itself.
        if op == "d" and any(name == headers.NEW_KEY for name, _ in record.headers):
            raise UnfitError
        key_schema, key = None, None
        if raw is not None:
            key_body, key_schema = self._messages.keys.split(raw, topic)
            key = orjson.loads(key_body)
            if ROUTED in key_body or not has_each_once(key_body, (key,)):
                raise UnfitError
        columns = _told_columns(record)
        mark = _Mark(topic, schema, key_schema, op, _names(before), _names(after), _names(key), columns)
        return mark, _Opened(at, before, after, source, block, key)

    def _learn(self, record: TopicRecord, mark: _Mark) -> EventShape | None:
        """Learn the form of events that bear a mark from the first of them; None where it has none."""
        event = self._decoder.decode(record)
        return self._form(event, mark) if isinstance(event, DataEvent) else None

    def _learn_sight(self, record: TopicRecord, mark: _Mark) -> EventOutline | None:
        location, shape = self._decoder.scan(record)
        if not isinstance(location, ChangeLocation) or (form := self._source_form(location, record)) is None:
            return None
        source = location.source
        return EventOutline(
            location.table, source.collection, source.connector, (source.name, source.database), shape, form
        )

    def _source_form(self, location: ChangeLocation, record: TopicRecord) -> SourceForm | None:
        """What source blocks have in common with that of a change; None where it has no number or is none."""
        if location.is_snapshot or location.total_order is None or not record.value:
            return None
        body, _ = self._messages.values.split(record.value, record.topic)
        return SourceForm.of(orjson.loads(body)["source"])

    def _form(self, event: DataEvent, mark: _Mark) -> EventShape | None:
        location, decoder = event.location, self._decoder
        source = self._source_form(location, event.record)
        if source is None:
            return None
        key, after = mark.key or (), mark.after or ()
        if not decoder.reads(location.table):
            none = _Columns({})
            return EventShape(
                location.op, location.table, key, event.row_type, False, source, _Before.NOTHING, none, none, none
            )
        if mark.after is not None and not set(key) <= set(after):
            # What a row lacks of its key is added to it.
            return None
        kind, before = self._before(event, mark), mark.before or ()
        if kind is _Before.ROW and not set(key) <= set(before):
            return None
        if kind is _Before.KEY_OF_ROW:
            before = tuple(name for name in before if name in key)
        rows = mark.schema and mark.schema.fields.get("before" if mark.after is None else "after")
        return EventShape(
            location.op,
            location.table,
            key,
            event.row_type,
            True,
            source,
            kind,
            self._columns(event, mark.key_schema, key),
            self._columns(event, rows, before if kind is not _Before.NOTHING else ()),
            self._columns(event, rows, after),
        )

    def _columns(self, event: DataEvent, schema: ConnectSchema | None, names: Sequence[str]) -> _Columns:
        layout = self._decoder.layout(schema, event.record, event.location.table, event.location.source.connector)
        return _Columns({name: layout.reader(name) for name in names})

    def _before(self, event: DataEvent, mark: _Mark) -> _Before:
        if mark.op == "c":
            return _Before.NOTHING
        if mark.before is None:
            return _Before.KEY
        is_invented, is_whole = self._decoder.trust(event.location, has_key=mark.key is not None)
        if not is_invented:
            return _Before.ROW
        return _Before.ROW_OF_KEY if is_whole else _Before.KEY_OF_ROW


def _told_columns(record: TopicRecord) -> bytes | None:
    return record.header(COLUMNS_HEADER) if record.headers else None


def _names(row: dict[str, Any] | None) -> _Names:
    return None if row is None else tuple(row)


def _numbered(blocks: Sequence[dict[str, Any]]) -> tuple[Sequence[str], Sequence[int]]:
    """Return the transactions of events and their numbers in them; raises where one has none."""
    ids, orders = zip(*map(_BLOCK, blocks), strict=True)
    txns = list(map(group_of, ids))
    if set(map(type, orders)) != {int} or min(orders) < 1 or not all(txns):
        raise UnfitError("has no number in its transaction")
    return txns, orders


def _in_bulk(
    records: Sequence[TopicRecord],
    open_: Callable[[int, TopicRecord], tuple[_Mark, _Opened]],
    forms: dict[_Mark, _Form | None],
    learn: Callable[[TopicRecord, _Mark], _Form | None],
) -> tuple[list[Any], list[int]]:
    """Sort records by their forms, and read those of each; returns what was read, and which records are left."""
    alike: dict[_Form, list[_Opened]] = {}
    others = []
    for at, record in enumerate(records):
        try:
            mark, opened = open_(at, record)
            if mark not in forms:
                if len(forms) == _MOST_FORMS:
                    forms.clear()
                # Where learning fails, whoever looks at the record next is told; it says nothing of others.
                forms[mark] = learn(record, mark)
            form = forms[mark]
        except _UNUSUAL:
            form = None
        if form is None:
            others.append(at)
        elif form in alike:
            alike[form].append(opened)
        else:
            alike[form] = [opened]
    made = []
    for form, some in alike.items():
        try:
            made.append(form.read(some))
        except _UNUSUAL:
            others += [one.at for one in some]
    return made, sorted(others)
