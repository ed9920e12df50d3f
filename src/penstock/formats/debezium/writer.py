"""Changes as the records of a Debezium connector: topic, key, value and headers of each, to the byte.

Pure: changes in, records out. A `TableWriter` is made once for each version of a table, an `EventWriter` goes through
transactions in commit order.
"""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import orjson

from penstock.change import Image, Op, TableName
from penstock.errors import OperatorError, TableError
from penstock.formats.debezium.columns import Connector, ConnectorModes, FieldType, FieldUnfitError, field_type
from penstock.formats.debezium.java_text import connect_json, float_text
from penstock.formats.debezium.schema import ConnectSchema
from penstock.formats.debezium.source_block import (
    ChangePlace,
    collection,
    source_schema,
    source_writer,
    topic_path,
    transaction_id,
)
from penstock.formats.debezium.source_types import COLUMNS_HEADER, columns_header
from penstock.schema import TableSchema, Unique

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"

FORMAT_VERSION = "3.6.3.Final"
"""The version of Debezium whose events these are."""

_LONGEST_TOPIC = 249
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_MALFORMED = 1722
"""`apply.apply_errors.VALUE_MALFORMED`, for values that have no place in an event."""

_ABSENT = "\0"
"""Stands for the text of a column that an image lacks; no database has such a text."""


class UnpublishableError(OperatorError):
    """A change cannot be told as an event, though others of its table can.

    Attributes:
        column: Whose value it is; empty where it is not one value's.
        number: What the error queue calls it by.
    """

    def __init__(self, what: str, *, where: str = "", do: str = "", column: str = "", number: int = _MALFORMED) -> None:
        super().__init__(what, where=where, do=do)
        self.column = column
        self.number = number


class OutgoingRecord(NamedTuple):
    """One record of a topic.

    Attributes:
        key, value: None for a null, which is not text.
        partition: Where it must go; None leaves that to the hash of its key.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None


class Packing(Protocol):
    """How keys and values become bytes: JSON with or without schemas, or Avro."""

    @property
    def is_json(self) -> bool:
        """Whether it takes values as JSON has them."""

    @property
    def has_schemas(self) -> bool:
        """Whether a reader has the schemas of what was packed."""

    def packer(self, topic: str, part: str, schema: ConnectSchema) -> Callable[[Any], bytes]:
        """Return what packs the values of one schema; `part` is `key` or `value`.

        Such a value holds what JSON takes if `is_json`, and otherwise what Avro takes.
        """


@dataclass(frozen=True)
class JsonPacking:
    """Kafka Connect's JSON converter."""

    with_schemas: bool = True

    @property
    def is_json(self) -> bool:
        """True."""
        return True

    @property
    def has_schemas(self) -> bool:
        """Whether they stand in the messages."""
        return self.with_schemas

    def packer(self, topic: str, part: str, schema: ConnectSchema) -> Callable[[Any], bytes]:
        """Return what writes the values of one schema."""
        if not self.with_schemas:
            return connect_json
        head = b'{"schema":' + connect_json(schema.to_json()) + b',"payload":'
        return lambda value: b"".join((head, connect_json(value), b"}"))


@dataclass(frozen=True)
class EventSettings:
    """What is the same for all events of a pipeline.

    Attributes:
        prefix: The connector's `topic.prefix`.
        database: What the source block calls the database.
        tombstones: A delete is followed by a record without a value, for compaction.
        skipped: Operations that are left out: letters of `c`, `u`, `d`, `t`.
        with_transactions: Events say which transaction they are of, and the transaction topic tells its BEGIN and END.
        transactions: What that topic is called; None is the connector's own name for it.
    """

    prefix: str
    database: str
    modes: ConnectorModes = field(default_factory=ConnectorModes)
    tombstones: bool = True
    skipped: frozenset[str] = frozenset()
    with_transactions: bool = True
    transactions: str | None = None
    version: str = FORMAT_VERSION
    packing: Packing = field(default_factory=JsonPacking)

    @property
    def connector(self) -> Connector:
        """Whose source block the events have."""
        return self.modes.connector

    @property
    def placeholder(self) -> str:
        """What stands for a value that was not captured."""
        return self.modes.placeholder

    def topic_of(self, table: TableName) -> str:
        """Return the topic of a table.

        Raises:
            OperatorError: Kafka has no topics of such long names.
        """
        topic = _ODD.sub("_", f"{self.prefix}.{topic_path(self.connector, self.database, table)}")
        if len(topic) > _LONGEST_TOPIC:
            raise OperatorError(
                f"the topic's name would have {len(topic)} characters, and Kafka allows {_LONGEST_TOPIC}",
                where=f"table {table}",
                do="give publish.debezium.prefix a shorter text, or the table another name by a rule",
            )
        return topic

    @property
    def transaction_topic(self) -> str:
        """The topic of BEGIN and END."""
        return self.transactions or _ODD.sub("_", f"{self.prefix}.transaction")


def topic_faults(settings: EventSettings, tables: Sequence[TableName]) -> list[TableError]:
    """Say which tables have no topic of their own: its name is too long, or is that of another one."""
    known: dict[str, str] = {settings.transaction_topic: "the transactions"} if settings.with_transactions else {}
    found = []
    for table in tables:
        try:
            topic = settings.topic_of(table)
        except OperatorError as exc:
            found.append(TableError.of(exc, (table.schema, table.name)))
            continue
        if topic in known:
            error = TableError(
                f"table {table} would have the topic of {known[topic]}: Kafka allows letters, digits, '.', '_' and '-',"
                " and any other character becomes '_'",
                where=f"topic {topic}",
                do="give one of them another name by a rule",
                table=(table.schema, table.name),
            )
            found.append(error)
        known.setdefault(topic, f"table {table}")
    return found


_BLOCK = ConnectSchema(
    "struct",
    is_optional=True,
    name="event.block",
    version=1,
    fields=MappingProxyType(
        {
            "id": ConnectSchema("string"),
            "total_order": ConnectSchema("int64"),
            "data_collection_order": ConnectSchema("int64"),
        }
    ),
)

_NUMBER = ConnectSchema("int64", is_optional=True)

_TRANSACTION_KEY = ConnectSchema(
    "struct",
    name="io.debezium.connector.common.TransactionMetadataKey",
    version=1,
    fields=MappingProxyType({"id": ConnectSchema("string")}),
)

_TRANSACTION_VALUE = ConnectSchema(
    "struct",
    name="io.debezium.connector.common.TransactionMetadataValue",
    version=1,
    fields=MappingProxyType(
        {
            "status": ConnectSchema("string"),
            "id": ConnectSchema("string"),
            "event_count": _NUMBER,
            "data_collections": ConnectSchema(
                "array",
                is_optional=True,
                items=ConnectSchema(
                    "struct",
                    name="event.collection",
                    version=1,
                    fields=MappingProxyType(
                        {"data_collection": ConnectSchema("string"), "event_count": ConnectSchema("int64")}
                    ),
                ),
            ),
            "ts_ms": ConnectSchema("int64"),
        }
    ),
)


def key_columns(table: TableSchema) -> tuple[str, ...]:
    """Return the columns of a table's key, in the key's order; none where nothing tells its rows apart.

    Without a primary key it is a unique index whose columns are all NOT NULL: of several, the first by its name.
    """

    def identifies(unique: Unique) -> bool:
        return bool(unique.columns) and all(
            name in table.by_name and not table.by_name[name].is_nullable for name in unique.columns
        )

    if table.primary_key is not None and table.primary_key.columns:
        return table.primary_key.columns
    return next((u.columns for u in sorted(table.uniques, key=lambda u: u.name) if identifies(u)), ())


class TableWriter:
    """Writes the events of one version of a table."""

    def __init__(self, settings: EventSettings, table: TableSchema) -> None:
        """Work out the schemas once; raises an `OperatorError` where the table has no topic."""
        self.topic = settings.topic_of(table.name)
        self.collection = collection(settings.connector, settings.database, table.name)
        self.source = source_writer(
            settings.connector,
            version=settings.version,
            prefix=settings.prefix,
            database=settings.database,
            table=table.name,
        )
        self.name = table.name
        self._table = table
        types = {column.name: field_type(column, settings.modes) for column in table.columns}
        fields = MappingProxyType({name: type_.schema for name, type_ in types.items()})
        row = ConnectSchema("struct", is_optional=True, name=f"{self.topic}.Value", fields=fields)
        is_json = settings.packing.is_json
        self._columns = [(name, t.to_json if is_json else t.to_value, t) for name, t in types.items()]
        self._converts = {name: convert for name, convert, _ in self._columns}
        envelope = ConnectSchema(
            "struct",
            name=f"{self.topic}.Envelope",
            version=2,
            fields=MappingProxyType(
                {
                    "before": row,
                    "after": row,
                    "source": source_schema(settings.connector),
                    "transaction": _BLOCK,
                    "op": ConnectSchema("string"),
                    "ts_ms": _NUMBER,
                    "ts_us": _NUMBER,
                    "ts_ns": _NUMBER,
                }
            ),
        )
        # Keys and values stay those of a connector; a header tells our own readers what no schema does.
        columns = b"" if settings.packing.has_schemas else columns_header(fields)
        self.headers = ((COLUMNS_HEADER, columns),) if columns else ()
        self.pack = settings.packing.packer(self.topic, "value", envelope)
        self._is_json = is_json
        self.key_names = key_columns(table)
        self._key: list[tuple[str, Callable[[str], Any], FieldType]] = []
        self._pack_key: Callable[[Any], bytes] | None = None
        if self.key_names:
            of_key = {name: types[name] for name in self.key_names}
            key_fields = MappingProxyType({name: _required(t.schema) for name, t in of_key.items()})
            key = ConnectSchema("struct", name=f"{self.topic}.Key", fields=key_fields)
            self._key = [(name, t.to_json if is_json else t.to_value, t) for name, t in of_key.items()]
            self._pack_key = settings.packing.packer(self.topic, "key", key)

    def row(self, image: Image) -> dict[str, Any]:
        """Return a row as the envelope holds it.

        Raises:
            OperatorError: A value does not fit, or is not known and nothing can stand for it.
        """
        row: dict[str, Any] = {}
        name = ""
        try:
            for name, convert, type_ in self._columns:
                text = image.get(name, _ABSENT)
                if text is _ABSENT:
                    row[name] = self._absent(name, type_)
                else:
                    row[name] = None if text is None else convert(text)
        except _OF_VALUES as exc:
            raise self._misfit(name, exc) from None
        return row

    def changed(self, row: Mapping[str, Any], old: Image, new: Image) -> dict[str, Any]:
        """Return a row that was changed; what its image lacks is as it was in the old one, which `row` is made of."""
        made = dict(row)
        name = ""
        try:
            for name, text in new.items():
                # Most of a captured row is the same text as before, and is not looked at twice.
                if text != old.get(name, _ABSENT) and name in made:
                    made[name] = None if text is None else self._converts[name](text)
        except _OF_VALUES as exc:
            raise self._misfit(name, exc) from None
        return made

    def key(self, image: Image) -> bytes | None:
        """Return the key of a row as bytes; None where the table has none."""
        if self._pack_key is None:
            return None
        try:
            return self._pack_key({name: convert(image[name]) for name, convert, _ in self._key})  # type: ignore[arg-type]  # no column of a key is null
        except KeyError as exc:
            raise self._unfit(str(exc.args[0]), "is of the key, and was not captured") from None
        except (ValueError, TypeError, AttributeError):
            raise self._unfit(", ".join(self.key_names), "is of the key, and is null or of another type") from None

    def key_text(self, image: Image) -> bytes:
        """Return the key of a row as Kafka Connect's `SimpleHeaderConverter` writes it."""
        members = (f'"{_in_quotes(name)}":{_header(image[name], t)}' for name, _, t in self._key)
        return f"{{{','.join(members)}}}".encode()

    def _absent(self, name: str, type_: FieldType) -> Any:
        absent = type_.absent
        if absent is None:
            raise self._unfit(name, "was not captured, and nothing can stand for a value of its type")
        if self._is_json or not isinstance(absent, str):
            return absent
        return type_.to_value(absent)

    def _misfit(self, column: str, cause: Exception) -> UnpublishableError:
        if isinstance(cause, UnpublishableError):
            return cause
        # The text of another cause may repeat the value.
        is_said = isinstance(cause, FieldUnfitError)
        return self._unfit(column, str(cause) if is_said else "is not written as a value of its type is")

    def _unfit(self, column: str, why: str) -> UnpublishableError:
        return UnpublishableError(
            f"a value of column {column!r} {why}",
            where=f"table {self._table.name}, version {self._table.version}",
            do="leave the column out by a rule, or compute another one in its place",
            column=column,
        )


_OF_VALUES = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""What converting a value raises that its type does not foresee."""


def _required(schema: ConnectSchema) -> ConnectSchema:
    return ConnectSchema(
        schema.type,
        name=schema.name,
        version=schema.version,
        doc=schema.doc,
        parameters=schema.parameters,
        fields=schema.fields,
        items=schema.items,
    )


def _in_quotes(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _header(text: str | None, type_: FieldType) -> str:
    """Write one value of a key as text like JSON: line feeds stay as they are, decimals stand bare."""
    if text is None:
        return "null"
    schema = type_.schema
    if schema.name == "org.apache.kafka.connect.data.Decimal":
        return text
    if schema.type in ("float", "double"):
        return float_text(text)
    value = type_.to_value(text)
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case bytes():
            return f'"{b64encode(value).decode()}"'
        case str():
            return f'"{_in_quotes(value)}"'
        case _:
            # A struct or an array: none of its texts holds what would have to stay as it is.
            return connect_json(type_.to_json(text)).decode()


_Images: TypeAlias = "tuple[dict[str, Any] | None, dict[str, Any] | None]"
"""A row before and after its change."""


@dataclass
class _Open:
    """The transaction that is being written."""

    place: ChangePlace
    id: str
    total: int = 0
    by_table: Counter[str] = field(default_factory=Counter)


class EventWriter:
    """Goes through changes in commit order, and says what records they make."""

    def __init__(
        self,
        settings: EventSettings,
        find_table: Callable[[TableName, int], TableSchema],
        clock_ns: Callable[[], int] = time.time_ns,
        known: dict[tuple[TableName, int], TableWriter] | None = None,
    ) -> None:
        """Write as `settings` say.

        Args:
            find_table: Returns the version of a table that a change names.
            clock_ns: When an event is written, in nanoseconds since 1970.
            known: Tables whose writers were made, and those that will be: for several that write as the same settings
                say, one after the other.
        """
        self._settings = settings
        self._find_table = find_table
        self._clock_ns = clock_ns
        self._tables = {} if known is None else known
        topic = settings.transaction_topic
        self._pack_id = settings.packing.packer(topic, "key", _TRANSACTION_KEY)
        self._pack_boundary = settings.packing.packer(topic, "value", _TRANSACTION_VALUE)
        self._is_json = settings.packing.is_json
        self._open: _Open | None = None

    def table(self, name: TableName, version: int) -> TableWriter:
        """Return the writer of one version of a table."""
        found = self._tables.get((name, version))
        if found is None:
            found = self._tables[name, version] = TableWriter(self._settings, self._find_table(name, version))
        return found

    def change(
        self, op: Op, table: TableWriter, before: Image | None, after: Image | None, place: ChangePlace
    ) -> Iterator[OutgoingRecord]:
        """Yield the records of a change, whose transaction's BEGIN comes before its first, and END after the last."""
        if self._open is not None and self._open.place.commit_scn != place.commit_scn:
            yield from self.end()
        letter = _LETTERS[op]
        if letter in self._settings.skipped:
            return
        if self._open is None:
            yield from self._begin(place)
        if letter == "t":
            yield OutgoingRecord(table.topic, None, self._event(table, "t", (None, None), place))
        elif letter == "c":
            row = after or {}
            yield OutgoingRecord(
                table.topic, table.key(row), self._event(table, "c", (None, table.row(row)), place), table.headers
            )
        elif letter == "d":
            yield from self._delete(table, before or {}, place, ())
        else:
            yield from self._update(table, before or {}, after or {}, place)

    def snapshot_row(self, table: TableWriter, row: Image, place: ChangePlace) -> OutgoingRecord:
        """Return the record of a row of a first copy; its place has the mark."""
        value = self._value(table, "r", (None, table.row(row)), place, None)
        return OutgoingRecord(table.topic, table.key(row), value, table.headers)

    def forget(self) -> None:
        """Go on as if the open transaction had not begun: none of its records is published."""
        self._open = None

    def end(self) -> Iterator[OutgoingRecord]:
        """Yield the END of the last transaction, if it had any events."""
        opened, self._open = self._open, None
        if opened is None or not self._settings.with_transactions:
            return
        tables = [{"data_collection": name, "event_count": number} for name, number in opened.by_table.items()]
        yield self._boundary("END", opened, opened.total, tables)

    def _begin(self, place: ChangePlace) -> Iterator[OutgoingRecord]:
        self._open = _Open(place, transaction_id(self._settings.connector, place))
        if self._settings.with_transactions:
            yield self._boundary("BEGIN", self._open, None, None)

    def _boundary(self, status: str, opened: _Open, total: int | None, tables: Any) -> OutgoingRecord:
        value = {
            "status": status,
            "id": opened.id,
            "event_count": total,
            "data_collections": tables,
            "ts_ms": opened.place.committed_at_us // 1000,
        }
        # One partition, so that their order is that of the commits.
        topic = self._settings.transaction_topic
        return OutgoingRecord(topic, self._pack_id({"id": opened.id}), self._pack_boundary(value), (), 0)

    def _update(self, table: TableWriter, before: Image, after: Image, place: ChangePlace) -> Iterator[OutgoingRecord]:
        image = {**before, **after}
        old = table.row(before) if before else None
        new = table.row(after) if old is None else table.changed(old, before, after)
        if old is None or all(before.get(name) == image.get(name) for name in table.key_names):
            yield OutgoingRecord(
                table.topic, table.key(image), self._event(table, "u", (old, new), place), table.headers
            )
            return
        yield from self._delete(table, before, place, ((NEW_KEY, table.key_text(image)),))
        value = self._event(table, "c", (None, new), place)
        headers = ((OLD_KEY, table.key_text(before)), *table.headers)
        yield OutgoingRecord(table.topic, table.key(image), value, headers)

    def _delete(
        self, table: TableWriter, before: Image, place: ChangePlace, headers: tuple[tuple[str, bytes], ...]
    ) -> Iterator[OutgoingRecord]:
        key = table.key(before)
        value = self._event(table, "d", (table.row(before), None), place)
        yield OutgoingRecord(table.topic, key, value, (*headers, *table.headers))
        if self._settings.tombstones:
            yield OutgoingRecord(table.topic, key, None, headers)

    def _event(self, table: TableWriter, op: str, images: _Images, place: ChangePlace) -> bytes:
        opened = self._open
        assert opened is not None
        opened.total += 1
        opened.by_table[table.collection] += 1
        block = None
        if self._settings.with_transactions:
            block = {
                "id": opened.id,
                "total_order": opened.total,
                "data_collection_order": opened.by_table[table.collection],
            }
        return self._value(table, op, images, place._replace(seq=opened.total), block)

    def _value(
        self, table: TableWriter, op: str, images: _Images, place: ChangePlace, block: dict[str, Any] | None
    ) -> bytes:
        now = self._clock_ns()
        source = table.source(place)
        return table.pack(
            {
                "before": images[0],
                "after": images[1],
                "source": orjson.Fragment(source) if self._is_json else orjson.loads(source),
                "transaction": block,
                "op": op,
                "ts_ms": now // 1_000_000,
                "ts_us": now // 1_000,
                "ts_ns": now,
            }
        )


_LETTERS = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.TRUNCATE: "t"}
