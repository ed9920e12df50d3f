"""Records as changes of rows: images of canonical text, in which a column that nobody knows is absent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

import orjson

from penstock.change import Image, TableName
from penstock.errors import ConfigError, MalformedInputError
from penstock.formats.debezium import headers
from penstock.formats.debezium.canonical import as_it_stands, text_itself
from penstock.formats.debezium.declared import DeclaredModes, plain_reader
from penstock.formats.debezium.envelope import (
    Boundary,
    ChangeLocation,
    Envelope,
    EnvelopeError,
    SkippedRecord,
    Topics,
    read_envelope,
)
from penstock.formats.debezium.parse import JsonParser, NotJsonError, ParsedMessage, is_wrapped
from penstock.formats.debezium.placeholders import DEFAULT, Placeholder
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.schema import ConnectSchema, parse_schema
from penstock.formats.debezium.source_types import COLUMNS_HEADER, SourceColumn, read_columns_header, told_by, told_of
from penstock.formats.debezium.types import logical_of, reader_of
from penstock.formats.debezium.value_reader import InexactError, Reader, UnfitError
from penstock.logical import Kind, LogicalType
from penstock.patterns import TablePattern
from penstock.text import printable

_ROUTED = "__dbz__"
"""How a field of a key begins that a routing transform adds, so that rows of merged tables stay apart."""

ROUTED = _ROUTED.encode()
"""The same, in the text of a key."""

_ABSENT = object()

_TEXTS = frozenset({str, type(None)})


class BeforeImage(StrEnum):
    """What of `before` is true. PostgreSQL makes values up for columns that its log does not hold.

    AUTO is FULL for every connector but PostgreSQL's. There it is KEY, unless the event itself shows that the table
    has REPLICA IDENTITY FULL: an update with a before image and the same key, or a delete of a table without a key.
    """

    AUTO = "auto"
    FULL = "full"
    KEY = "key"


@dataclass(frozen=True)
class DecodeSettings:
    """What events do not say of themselves.

    Attributes:
        declared: What columns are expected to hold: at the target, where messages have no schemas. It chooses the form
            of a plain value, and never says what another one means; see `declared.plain_reader`.
        columns: What columns are at the source, by patterns of their tables and as the pipeline file spells them.
        samples: The schemas of rows as they are elsewhere, by their tables, as JSON.
        before_image: For every table, unless `before_images` says otherwise.
        placeholder: `unavailable.value.placeholder` of the connector.
        modes: Further options of the connector.
        schema_of: Returns the text of a registered schema by its id, where messages are Avro; None where they are JSON.
        only: Tables whose rows are decoded; of other events only the place is told. None for all.
    """

    declared: Mapping[TableName, Mapping[str, LogicalType]] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    samples: Mapping[TableName, str] = field(default_factory=dict)
    before_image: BeforeImage = BeforeImage.AUTO
    before_images: Mapping[TableName, BeforeImage] = field(default_factory=dict)
    placeholder: str = DEFAULT
    modes: DeclaredModes = field(default_factory=DeclaredModes)
    topics: Topics = field(default_factory=Topics)
    schema_of: Callable[[int | str], str] | None = None
    only: Set[TableName] | None = None


@dataclass(frozen=True, slots=True)
class RowColumn:
    """A column as a message's schema tells of it.

    Attributes:
        has_default: With `replace.null.with.default`, which is on unless it was switched off, NULL arrives as the
            default; nothing in the event tells the two apart.
    """

    name: str
    logical: LogicalType
    is_optional: bool
    has_default: bool


@dataclass(frozen=True, slots=True, eq=False)
class RowType:
    """The columns of a row; the same object for all events of one schema, and compared as such."""

    columns: tuple[RowColumn, ...]

    @property
    def doubtful(self) -> Collection[str]:
        """Columns whose NULLs may have been replaced by a default."""
        return [column.name for column in self.columns if column.is_optional and column.has_default]


class DataEvent(NamedTuple):
    """A change of a row, a row of a snapshot, or a truncation.

    Attributes:
        key: The columns that the record's key names, in its order; None without a key.
        before: What is known of the row before; for an update or delete at least its key, where it has one.
        after: All that is known of the row after.
        old_key, new_key: From the headers of the two halves of a changed key.
        row_type: None where the message has no schema.
        ts_us: When the connector saw it.
    """

    record: TopicRecord
    location: ChangeLocation
    key: Image | None
    before: Image | None
    after: Image | None
    old_key: Image | None
    new_key: Image | None
    row_type: RowType | None
    ts_us: int | None


Decoded: TypeAlias = DataEvent | Boundary | SkippedRecord
Seen: TypeAlias = ChangeLocation | Boundary | SkippedRecord
Shape: TypeAlias = ConnectSchema | tuple[str | bytes, ...]
"""Of a row: its schema or, without one, the names of its columns, and the header that tells of them if there is one."""


class Parser(Protocol):
    """Turns the bytes of keys and values into payloads and schemas."""

    def parse_key(self, record: TopicRecord, *, exact: bool = False) -> ParsedMessage:
        """Parse the key, which is not null. Raises `NotJsonError` or `MalformedInputError`."""

    def parse_value(self, record: TopicRecord, *, exact: bool = False) -> ParsedMessage:
        """Parse the value, which is not null. Raises `NotJsonError` or `MalformedInputError`."""

    def may_hold(self, placeholder: Placeholder, record: TopicRecord) -> bool:
        """Whether the value may hold the placeholder; False is certain."""


class JsonMessages:
    """Implements `Parser` for JSON, with or without schemas, as each message comes."""

    def __init__(self) -> None:
        self.keys, self.values = JsonParser(of_keys=True), JsonParser()

    def parse_key(self, record: TopicRecord, *, exact: bool = False) -> ParsedMessage:
        """See `Parser`."""
        return self.keys.parse(record.key or b"null", record.topic, exact=exact)

    def parse_value(self, record: TopicRecord, *, exact: bool = False) -> ParsedMessage:
        """See `Parser`."""
        value = record.value or b"null"
        if value[0] == 0:
            raise MalformedInputError(
                "a record is not JSON, but looks like Avro with a schema registry",
                where=record.where,
                do="name the registry as capture.debezium.registry",
            )
        return self.values.parse(value, record.topic, exact=exact)

    def may_hold(self, placeholder: Placeholder, record: TopicRecord) -> bool:
        """See `Parser`."""
        return placeholder.may_be_in(record.value or b"")


class RowLayout(NamedTuple):
    """How a row, or a key, of one schema is read.

    Attributes:
        readers: Of all columns; where the message has no schema, of those whose types are known.
        to_convert: Those of them that are not texts already.
        row_type: None where the message has no schema.
    """

    readers: Mapping[str, Reader]
    to_convert: tuple[tuple[str, Reader], ...]
    row_type: RowType | None

    def reader(self, name: str) -> Reader:
        """Return the reader of a column."""
        if (read := self.readers.get(name)) is not None:
            return read
        if self.row_type is None:
            return as_it_stands
        raise UnfitError("is of none that the message's schema has")


class RecordDecoder:
    """Decodes records. Keeps what it has learned of schemas, so use one for as many records as possible."""

    def __init__(self, settings: DecodeSettings | None = None, parser: Parser | None = None) -> None:
        """Decode as `settings` say, unless another parser is given."""
        self._settings = settings or DecodeSettings()
        self._parser = parser or _parser_of(self._settings)
        self.messages = self._parser if isinstance(self._parser, JsonMessages) else None
        self.placeholder = Placeholder(self._settings.placeholder)
        self._inexact: set[str] = set()
        self._layouts: dict[tuple[ConnectSchema | None, TableName, str, bytes | None], RowLayout] = {}
        self._wholes: dict[tuple[RowType, RowType], RowType] = {}
        self._told: dict[tuple[TableName, str, bytes | None], Mapping[str, SourceColumn]] = {}
        self._patterns = [(TablePattern.parse(text), types) for text, types in self._settings.columns.items()]

    def location(self, record: TopicRecord) -> Seen:
        """Say what a record is and where it belongs, without looking at the values of its row.

        Raises:
            MalformedInputError: It is none of Debezium's, or breaks their form.
        """
        if _is_tombstone(record):
            return SkippedRecord.TOMBSTONE
        try:
            message = self._parse(record, is_key=False, exact=False)
        except InexactError:
            message = self._parse(record, is_key=False, exact=True)
        envelope = self._envelope(record, message)
        return envelope.location if type(envelope) is Envelope else envelope  # type: ignore[return-value]

    def scan(self, record: TopicRecord) -> tuple[Seen, Shape | None]:
        """Say the same, and what shape the row has: its schema or, where the message has none, its columns' names.

        Raises:
            MalformedInputError: As `location`.
        """
        if _is_tombstone(record):
            return SkippedRecord.TOMBSTONE, None
        envelope = self._envelope(record, self._parse(record, is_key=False, exact=False))
        if type(envelope) is Envelope:
            row = envelope.after if envelope.after is not None else envelope.before
            if envelope.row_schema is not None or row is None:
                return envelope.location, envelope.row_schema
            header = record.header(COLUMNS_HEADER) if record.headers else None
            return envelope.location, tuple(row) if header is None else (*row, header)
        return envelope, None  # type: ignore[return-value]

    def decode(self, record: TopicRecord) -> Decoded:
        """Say what a record is, with its rows.

        Raises:
            MalformedInputError: It is none of Debezium's, breaks their form, or holds a value that its column cannot.
        """
        if _is_tombstone(record):
            return SkippedRecord.TOMBSTONE
        if record.topic not in self._inexact:
            try:
                return self._decode(record, exact=False)
            except InexactError:
                # Other rows of the table have such numbers, too.
                self._inexact.add(record.topic)
        return self._decode(record, exact=True)

    def rows(self, record: TopicRecord) -> Sequence[dict[str, Any]]:
        """Return the rows of a change as the parser leaves them, without a schema; none where it has one.

        Values that the connector does not know are left out.

        Raises:
            MalformedInputError: As `location`.
        """
        envelope = self._envelope(record, self._parse(record, is_key=False, exact=True))
        if type(envelope) is not Envelope or envelope.row_schema is not None:
            return []
        is_absent = self.placeholder.stands_for
        return [
            {name: value for name, value in row.items() if value is not None and not is_absent(value)}
            for row in (envelope.before, envelope.after)
            if row is not None
        ]

    def told(self, record: TopicRecord, table: TableName, connector: str) -> Mapping[str, SourceColumn]:
        """Return what is told of the columns of a table: by the record's header, the pipeline file, or a sample.

        Raises:
            MalformedInputError: The header cannot be read.
            ConfigError: The file tells a type that there is not.
        """
        header = record.header(COLUMNS_HEADER) if record.headers else None
        place = table, connector, header
        if (told := self._told.get(place)) is None:
            told = self._told[place] = self._tell(record, *place)
        return told

    def _tell(
        self, record: TopicRecord, table: TableName, connector: str, header: bytes | None
    ) -> Mapping[str, SourceColumn]:
        modes = self._settings.modes
        told: dict[str, SourceColumn] = {}
        if (sample := self._settings.samples.get(table)) is not None:
            fields = parse_schema(sample.encode()).fields
            told |= {name: told_by(one, modes, connector) for name, one in fields.items()}
        for pattern, types in self._patterns:
            if pattern.matches(table):
                for name, text in types.items():
                    try:
                        told[name] = told_of(text, connector, modes)
                    except ValueError as exc:
                        raise ConfigError(f"capture.debezium.columns: {table}: {name} {exc}") from None
        if header is not None:
            try:
                told |= {name: told_by(one, modes, connector) for name, one in read_columns_header(header).items()}
            except ValueError:
                raise MalformedInputError(
                    f"the header {COLUMNS_HEADER} cannot be read", where=f"{record.where}, table {table}"
                ) from None
        return told

    def digest(self, record: TopicRecord) -> bytes:
        """Digest what a change does, and not when it was sent: equal for an event and its repetition.

        Raises:
            MalformedInputError: As `location`.
        """
        payload = self._parse(record, is_key=False, exact=True).payload
        content = [payload.get(name) for name in ("op", "before", "after")] if isinstance(payload, dict) else payload
        text = json.dumps([content, record.key and record.key.decode(errors="replace")], sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()

    def refuse_other(self, first: TopicRecord, second: TopicRecord) -> None:
        """Make sure that two events with one identity say the same.

        Raises:
            MalformedInputError: They differ.
        """
        if self.digest(first) != self.digest(second):
            raise MalformedInputError(
                "two different changes have the same place in the same transaction",
                where=f"{first.where}; {second.where}",
                do="the source was reset, or events of two connectors are mixed: read each from topics of its own",
            )

    def _decode(self, record: TopicRecord, *, exact: bool) -> Decoded:
        value = self._parse(record, is_key=False, exact=exact)
        envelope = self._envelope(record, value)
        if type(envelope) is not Envelope:
            return envelope  # type: ignore[return-value]
        location, row_before, row_after, row_schema, ts_us = envelope
        op, table = location.op, location.table
        if op == "t" or not self.reads(table):
            return DataEvent(record, location, None, None, None, None, None, None, ts_us)
        connector = location.source.connector
        key = old_key = new_key = key_type = None
        if record.key is not None:
            key_message = self._parse(record, is_key=True, exact=exact)
            if (payload := key_message.payload) is not None:
                if type(payload) is not dict:
                    raise MalformedInputError("the key of a record is not an object", where=record.where)
                layout = self.layout(key_message.schema, record, table, connector)
                key_type = layout.row_type
                key = self._image(record, payload, layout, may_be_absent=False)
                if record.headers:
                    old_key = self._header(record, headers.OLD_KEY, layout)
                    new_key = self._header(record, headers.NEW_KEY, layout)
                if ROUTED in record.key:
                    key = {name: text for name, text in key.items() if not name.startswith(_ROUTED)}
        layout = self.layout(row_schema, record, table, connector)
        may_be_absent = self._parser.may_hold(self.placeholder, record)
        after = None
        if row_after is not None:
            after = self._image(record, row_after, layout, may_be_absent=may_be_absent)
            if key:
                for name in key:
                    if name not in after:
                        after = {**key, **after}
                        break
        before = None
        if op in "ud":
            if row_before is not None:
                before = self._before(record, location, row_before, key, layout, may_be_absent=may_be_absent)
            before = key if before is None else before
            if before is None:
                raise MalformedInputError(
                    "a change has neither a key nor a before image, so that nothing tells its row",
                    where=f"{record.where}, table {table}",
                    do="give the table a primary key or, in PostgreSQL, REPLICA IDENTITY FULL",
                )
        row_type = layout.row_type
        if key and row_type is not None and not key.keys() <= layout.readers.keys():
            row_type = self._whole(row_type, key, key_type)
        return DataEvent(record, location, key, before, after, old_key, new_key, row_type, ts_us)

    def _whole(self, row_type: RowType, key: Image, key_type: RowType | None) -> RowType:
        """Add to a row those columns of its key that the connector leaves out of it (`column.exclude.list`)."""
        place = row_type, key_type or row_type
        if (whole := self._wholes.get(place)) is None:
            there = {column.name for column in row_type.columns}
            of_key = {column.name: column for column in key_type.columns} if key_type is not None else {}
            text = LogicalType(Kind.STRING)
            more = [of_key.get(name) or RowColumn(name, text, False, False) for name in key if name not in there]
            whole = self._wholes[place] = RowType((*more, *row_type.columns))
        return whole

    def is_inexact(self, topic: str) -> bool:
        """Whether numbers in a topic are parsed with all their digits."""
        return topic in self._inexact

    def reads(self, table: TableName) -> bool:
        """Whether rows of a table are decoded."""
        return self._settings.only is None or table in self._settings.only

    def trust(self, location: ChangeLocation, *, has_key: bool) -> tuple[bool, bool]:
        """Return whether `before` may be made up, and whether it is whole for all that if it has the key's values."""
        mode = self._settings.before_images.get(location.table, self._settings.before_image)
        is_invented = mode is BeforeImage.KEY or (
            # Events of old do not say their connector; of the others none makes values up.
            mode is BeforeImage.AUTO and location.source.connector in ("postgresql", "") and has_key
        )
        return is_invented, mode is BeforeImage.AUTO and location.op == "u"

    def _parse(self, record: TopicRecord, *, is_key: bool, exact: bool) -> ParsedMessage:
        try:
            parse = self._parser.parse_key if is_key else self._parser.parse_value
            return parse(record, exact=exact)
        except NotJsonError as exc:
            raise MalformedInputError(
                f"the {'key' if is_key else 'value'} of a record {exc}", where=record.where
            ) from None
        except MalformedInputError as exc:
            if exc.where.startswith(record.where):
                raise
            raise MalformedInputError(exc.what, where=record.where, do=exc.do) from None

    def _envelope(self, record: TopicRecord, message: ParsedMessage) -> Envelope | Boundary | SkippedRecord:
        try:
            return read_envelope(record, message.payload, message.schema, self._settings.topics)
        except EnvelopeError as exc:
            raise MalformedInputError(f"the value of a record {exc}", where=record.where) from None

    def _before(
        self,
        record: TopicRecord,
        location: ChangeLocation,
        row: dict[str, Any],
        key: Image | None,
        layout: RowLayout,
        *,
        may_be_absent: bool,
    ) -> Image | None:
        is_invented, is_whole = self.trust(location, has_key=key is not None)
        if not is_invented or is_whole:
            image = self._image(record, row, layout, may_be_absent=may_be_absent)
            if key is None:
                return image
            if not is_invented:
                return image if key.keys() <= image.keys() else {**key, **image}
            for name, text in key.items():
                if image.get(name, _ABSENT) != text:
                    return {**key, **{name: image[name] for name in key if name in image}}
            return image
        if key is None:
            return None
        row = {name: row[name] for name in key if name in row}
        return {**key, **self._image(record, row, layout, may_be_absent=may_be_absent)}

    def _image(
        self, record: TopicRecord, row: dict[str, Any], layout: RowLayout, *, may_be_absent: bool
    ) -> dict[str, str | None]:
        """Turn a row into its image, in place: most values are texts, and stay what they are.

        Values that did not come, see `placeholders`, are left out.
        """
        if may_be_absent:
            is_absent = self.placeholder.stands_for
            row = {name: value for name, value in row.items() if not is_absent(value)}
        name = ""
        try:
            if layout.row_type is not None and row.keys() != layout.readers.keys():
                for name in row:
                    layout.reader(name)
            for name, read in layout.to_convert:
                value = row.get(name)
                if value is not None:
                    row[name] = read(value)
            if not _TEXTS.issuperset(map(type, row.values())):
                for name, value in row.items():
                    if type(value) is not str and value is not None:
                        row[name] = layout.reader(name)(value)
        except (ValueError, OverflowError, ArithmeticError, RecursionError) as exc:
            why = str(exc) if isinstance(exc, ValueError) and _is_own(exc) else "cannot be read"
            raise MalformedInputError(f"the value of column {printable(name)} {why}", where=record.where) from None
        return row

    def _header(self, record: TopicRecord, name: str, layout: RowLayout) -> Image | None:
        """Return the key that a header holds; None without such a header.

        A text that cannot be read makes no difference: the two halves of a changed key also stand side by side.
        """
        data = record.header(name)
        if data is None:
            return None
        try:
            value = headers.read_header(data.decode())
            if is_wrapped(value, of_key=True):
                value = value["payload"]
            if not isinstance(value, dict):
                return {}
            return {
                column: None if one is None else layout.reader(column)(one)
                for column, one in value.items()
                if not column.startswith(_ROUTED)
            }
        except (ValueError, OverflowError, ArithmeticError, InexactError):
            return {}

    def layout(self, schema: ConnectSchema | None, record: TopicRecord, table: TableName, connector: str) -> RowLayout:
        """Return how rows, or keys, of a schema are read; raises MalformedInputError where that is not known."""
        header = record.header(COLUMNS_HEADER) if record.headers else None
        place = schema, table, connector, header
        layout = self._layouts.get(place)
        if layout is None:
            layout = self._layouts[place] = self._make_layout(schema, record, table, connector)
        return layout

    def _make_layout(
        self, schema: ConnectSchema | None, record: TopicRecord, table: TableName, connector: str
    ) -> RowLayout:
        types = self._settings.declared.get(table, {})
        told = self.told(record, table, connector)
        modes = self._settings.modes
        if schema is None:
            plain = {name: plain_reader(one, modes, connector) for name, one in types.items() if name not in told}
            return _layout(plain | {name: one.read for name, one in told.items()}, None)
        readers: dict[str, Reader] = {}
        columns = []
        for name, one in schema.fields.items():
            try:
                read, logical = _of_schema(one, told.get(name), types.get(name), modes, connector)
            except ValueError as exc:
                raise MalformedInputError(
                    f"the schema of column {printable(name)} {exc}", where=f"{record.where}, table {table}"
                ) from None
            readers[name] = read
            columns.append(RowColumn(name, logical, one.is_optional, one.has_default))
        return _layout(readers, RowType(tuple(columns)))


def _of_schema(
    schema: ConnectSchema, told: SourceColumn | None, expected: LogicalType | None, modes: DeclaredModes, connector: str
) -> tuple[Reader, LogicalType]:
    """Say how a column is read that has a schema, and what it holds; what is told adds what the schema leaves out."""
    if told is None:
        return reader_of(schema, expected, modes), logical_of(schema, connector)
    if schema.type == "int64" and schema.name is None and told.is_unsigned:
        return told.read, told.logical
    if told.logical.kind is Kind.BITS and told.logical.length is None and logical_of(schema).kind is Kind.BITS:
        # A length says how many there are at most of `bit varying`, and how many of `bit`.
        return told.read, told.logical
    is_bare = schema.type == "string" and schema.name is None
    return reader_of(schema, told.logical, modes), told.logical if is_bare else logical_of(schema, connector)


def image_text(image: Image | None) -> str | None:
    """Write an image as the change stream holds it; as `values.encode_image`, in a fraction of the time."""
    return None if image is None else orjson.dumps(image).decode()


def _parser_of(settings: DecodeSettings) -> Parser:
    if settings.schema_of is None:
        return JsonMessages()
    from penstock.formats.debezium.avro import AvroMessages

    return AvroMessages(settings.schema_of)


def _layout(readers: Mapping[str, Reader], row_type: RowType | None) -> RowLayout:
    to_convert = tuple((name, read) for name, read in readers.items() if read is not text_itself)
    return RowLayout(readers, to_convert, row_type)


def _is_tombstone(record: TopicRecord) -> bool:
    return not record.value or record.value == b"null"


def _is_own(exc: ValueError) -> bool:
    """Whether the text of an error is ours: others may repeat the value."""
    text = str(exc)
    return isinstance(exc, UnfitError) or text.startswith(("is ", "has ", "does not "))


_: Callable[[], Parser] = JsonMessages
