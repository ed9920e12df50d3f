"""Avro messages of a schema registry: the wire format, and the Connect schema that an Avro schema was made from.

Names that Connect's converter keeps in the Avro schema (`connect.name`, `connect.parameters`) are read back, and Avro's
own logical types are left alone, so that values come as JSON has them, bytes apart: `types` serves both.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import fastavro

from penstock.errors import MalformedInputError, OperatorError
from penstock.formats.debezium.parse import NotJsonError, ParsedMessage
from penstock.formats.debezium.placeholders import Placeholder
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.schema import NO_DEFAULT, ConnectSchema

SchemaId: TypeAlias = int | str
"""A registry's number of a schema, or its GUID."""

KEY_ID, VALUE_ID = "__key_schema_id", "__value_schema_id"

_NO_SCHEMA = (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType)

_MAGIC_ID, _MAGIC_GUID = 0, 1
_DEEPEST = 64

_PRIMITIVES = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
}

_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."

_LOGICAL = {
    "decimal": _CONNECT + "Decimal",
    "date": _CONNECT + "Date",
    "time-millis": _CONNECT + "Time",
    "time-micros": _TIME + "MicroTime",
    "timestamp-millis": _CONNECT + "Timestamp",
    "timestamp-micros": _TIME + "MicroTimestamp",
    "timestamp-nanos": _TIME + "NanoTimestamp",
    "local-timestamp-millis": _CONNECT + "Timestamp",
    "local-timestamp-micros": _TIME + "MicroTimestamp",
    "local-timestamp-nanos": _TIME + "NanoTimestamp",
    "uuid": "io.debezium.data.Uuid",
}
"""What Avro's logical types are in Connect, for schemas that another than Connect's converter wrote."""


class AvroMessages:
    """Implements `decode.Parser` for Avro."""

    def __init__(self, schema_of: Callable[[SchemaId], str]) -> None:
        """Look schemas up by `schema_of`, which returns their text, or raises an error of its own."""
        self._schema_of = schema_of
        self._known: dict[SchemaId, _AvroSchema] = {}

    def parse_key(self, record: TopicRecord, *, exact: bool = False) -> ParsedMessage:
        """See `decode.Parser`."""
        return self._parse(record, record.key or b"", KEY_ID)

    def parse_value(self, record: TopicRecord, *, exact: bool = False) -> ParsedMessage:
        """See `decode.Parser`."""
        return self._parse(record, record.value or b"", VALUE_ID)

    def may_hold(self, placeholder: Placeholder, record: TopicRecord) -> bool:
        """See `decode.Parser`: numbers and lengths of Avro do not let it be told cheaply."""
        return True

    def _parse(self, record: TopicRecord, data: bytes, header: str) -> ParsedMessage:
        id_, body = _split(data, record.header(header), record.where)
        schema = self._known.get(id_)
        if schema is None:
            schema = self._known[id_] = _AvroSchema(self._text(id_, record), f"{record.where}, schema {id_}")
        stream = io.BytesIO(body)
        try:
            payload = fastavro.schemaless_reader(stream, schema.parsed, None)
            is_whole = stream.tell() == len(body)
        except (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, RecursionError, MemoryError):
            is_whole = False
        if not is_whole:
            raise NotJsonError("is not of its Avro schema, or is cut off")
        return ParsedMessage(payload, schema.connect)

    def _text(self, id_: SchemaId, record: TopicRecord) -> str:
        try:
            return self._schema_of(id_)
        except OperatorError as exc:
            raise OperatorError(exc.what, where=f"{exc.where}; {record.where}", do=exc.do) from exc


def _split(data: bytes, header: bytes | None, where: str) -> tuple[SchemaId, bytes]:
    """Return which schema a message has, and what follows; the id stands before it or in a header."""
    id_, body = (data[:5], data[5:]) if header is None else (header, data)
    if len(id_) == 5 and id_[0] == _MAGIC_ID:
        return int.from_bytes(id_[1:], "big"), body
    if header is not None and len(id_) == 17 and id_[0] == _MAGIC_GUID:
        return str(uuid.UUID(bytes=id_[1:])), body
    raise MalformedInputError(
        "a record is not Avro with the id of a registered schema"
        + (": it looks like JSON" if data[:1] in (b"{", b"[") else ""),
        where=where,
        do="events in JSON are read without capture.debezium.registry" if data[:1] in (b"{", b"[") else "",
    )


class _AvroSchema:
    """A registered schema, as the Avro reader takes it and as Connect's."""

    def __init__(self, text: str, where: str) -> None:
        try:
            self._node = json.loads(text)
            self.parsed = fastavro.parse_schema(_without_logical(self._node, _DEEPEST))
            _ = self.connect
        except MalformedInputError as exc:
            raise MalformedInputError(exc.what, where=where) from None
        except (*_NO_SCHEMA, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise MalformedInputError("the text of a registered schema is not an Avro schema", where=where) from None

    @cached_property
    def connect(self) -> ConnectSchema:
        """The schema as Connect had it."""
        return _Reader().read(self._node, "", _DEEPEST)


def _without_logical(node: Any, depth: int) -> Any:
    if depth == 0:
        raise RecursionError
    if isinstance(node, list):
        return [_without_logical(one, depth - 1) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {name: value for name, value in node.items() if name not in ("logicalType", "default")}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = _without_logical(kept[name], depth - 1)
    if "fields" in kept:
        kept["fields"] = [_without_logical(one, depth - 1) for one in kept["fields"]]
    return kept


class _Reader:
    """Reads one Avro schema; a named type may be used again after it was defined."""

    def __init__(self) -> None:
        self._named: dict[str, ConnectSchema] = {}

    def read(self, node: Any, space: str, depth: int, *, default: Any = NO_DEFAULT) -> ConnectSchema:
        """Return the Connect schema of a node.

        Args:
            space: The namespace around it.
            default: What a record says of the field that has this type.
        """
        if depth == 0:
            raise MalformedInputError("the schema of a message is nested too deep")
        if isinstance(node, list):
            some = [one for one in node if one != "null"]
            if len(some) != 1:
                raise MalformedInputError("the schema of a message has a union of several types, which Connect has not")
            inner = self.read(some[0], space, depth - 1)
            # A default of null is Avro's way to say that there is none.
            return _changed(inner, is_optional=True, default=NO_DEFAULT if default is None else default)
        made = self._plain(node, space, depth)
        return made if default is NO_DEFAULT else _changed(made, is_optional=made.is_optional, default=default)

    def _plain(self, node: Any, space: str, depth: int) -> ConnectSchema:
        if isinstance(node, str):
            if node in _PRIMITIVES:
                return ConnectSchema(_PRIMITIVES[node])
            known = self._named.get(node) or self._named.get(f"{space}.{node}")
            if known is None:
                raise MalformedInputError("the schema of a message names a type that it does not define")
            return known
        kind = node["type"]
        if isinstance(kind, dict | list):
            return self.read(kind, space, depth - 1)
        match kind:
            case "record" | "error":
                return self._record(node, space, depth)
            case "array":
                return self._array(node, space, depth)
            case "map":
                values = self.read(node["values"], space, depth - 1)
                return _named(node, ConnectSchema("map", keys=ConnectSchema("string"), values=values))
            case "enum":
                return self._define(node, space, ConnectSchema("string", name=node.get("connect.name")))
            case "fixed":
                return self._define(node, space, _named(node, ConnectSchema("bytes")))
            case _:
                return _named(node, self._plain(kind, space, depth - 1))

    def _record(self, node: Mapping[str, Any], space: str, depth: int) -> ConnectSchema:
        full = _full_name(node, space)
        inner = full.rpartition(".")[0]
        fields = {
            one["name"]: self.read(one["type"], inner, depth - 1, default=one.get("default", NO_DEFAULT))
            for one in node["fields"]
        }
        made = ConnectSchema(
            "struct",
            name=node.get("connect.name") or full,
            version=node.get("connect.version"),
            fields=MappingProxyType(fields),
        )
        return self._define(node, space, made)

    def _array(self, node: Mapping[str, Any], space: str, depth: int) -> ConnectSchema:
        items = self.read(node["items"], space, depth - 1)
        if node.get("connect.type") == "map" or (items.name or "").endswith("ConnectDefault.MapEntry"):
            keys, values = items.fields["key"], items.fields["value"]
            return _named(node, ConnectSchema("map", keys=keys, values=values))
        return _named(node, ConnectSchema("array", items=items))

    def _define(self, node: Mapping[str, Any], space: str, made: ConnectSchema) -> ConnectSchema:
        self._named[_full_name(node, space)] = made
        return made


def _full_name(node: Mapping[str, Any], space: str) -> str:
    name: str = node["name"]
    if "." in name:
        return name
    space = node.get("namespace", space)
    return f"{space}.{name}" if space else name


def _named(node: Mapping[str, Any], base: ConnectSchema) -> ConnectSchema:
    """Add what Connect's converter wrote into an Avro schema."""
    name = node.get("connect.name") or base.name or _LOGICAL.get(node.get("logicalType", ""))
    parameters = dict(node.get("connect.parameters") or {})
    if name == _CONNECT + "Decimal" and "scale" not in parameters:
        parameters["scale"] = str(node.get("scale", 0))
        if "precision" in node:
            parameters.setdefault("connect.decimal.precision", str(node["precision"]))
    kind = node.get("connect.type") if node.get("connect.type") in ("int8", "int16") else base.type
    return ConnectSchema(
        type=kind or base.type,
        name=name,
        version=node.get("connect.version"),
        parameters=MappingProxyType({key: str(value) for key, value in parameters.items()}),
        default=node.get("connect.default", NO_DEFAULT),
        fields=base.fields,
        items=base.items,
        keys=base.keys,
        values=base.values,
    )


def _changed(schema: ConnectSchema, *, is_optional: bool, default: Any) -> ConnectSchema:
    return ConnectSchema(
        type=schema.type,
        is_optional=is_optional,
        name=schema.name,
        version=schema.version,
        doc=schema.doc,
        parameters=schema.parameters,
        default=schema.default if default is NO_DEFAULT else default,
        fields=schema.fields,
        items=schema.items,
        keys=schema.keys,
        values=schema.values,
    )
