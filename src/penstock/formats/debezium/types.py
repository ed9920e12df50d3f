"""Types that a message's schema tells, Kafka Connect's and Debezium's semantic ones: their readers, and what they hold.

See `canonical` for what a reader is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.formats import temporal
from penstock.formats.debezium import structured
from penstock.formats.debezium.canonical import (
    MOST_BITS,
    array_reader,
    as_it_stands,
    base64_text,
    bit_text,
    boolean_text,
    geometry_text,
    json_text,
    member_of,
    point_text,
    text_itself,
    text_reader,
    timestamp_reader,
)
from penstock.formats.debezium.declared import MYSQL_FAMILY, DeclaredModes, bits_reader, declared_reader
from penstock.formats.debezium.numbers import (
    MOST_DIGITS,
    PADDED_SCALES,
    bytes_of,
    float32_text,
    float_text,
    integer_reader,
    number_text,
    unpadded_text,
    unscaled_number,
    variable_scale_text,
)
from penstock.formats.debezium.schema import ConnectSchema
from penstock.formats.debezium.value_reader import Reader, UnfitError
from penstock.logical import Kind, LogicalType, decimal

_SOURCE_TYPE = "__debezium.source.column."
"""How parameters begin that column.propagate.source.type adds."""

_DECIMAL_NAMES = re.compile(r"(?:decimal|numeric|number)\b", re.IGNORECASE | re.ASCII)
_UNSIGNED = re.compile(r"bigint\b.*\bunsigned\b", re.IGNORECASE | re.ASCII)
_WHOLE_MICROSECONDS = frozenset({"", "postgresql", *MYSQL_FAMILY})
"""Connectors whose databases have nothing finer in their times with a zone; and events that do not say theirs."""

_FINEST = 9
_BITS_OF = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def reader_of(schema: ConnectSchema, declared: LogicalType | None = None, modes: DeclaredModes | None = None) -> Reader:
    """Make the reader of a type that a message's schema tells.

    Args:
        declared: What the column is known to hold: it decides where the schema says no more than `string`.

    Raises:
        ValueError: A logical type lacks a parameter; the text goes on from "column c ...".
    """
    if (make := _LOGICAL.get(schema.name or "")) is not None and make[0] == schema.type:
        return make[1](schema)
    if declared is None:
        declared = _propagated(schema)
    match schema.type:
        case "string":
            return _read_text(declared, modes or DeclaredModes()) if declared is not None else text_itself
        case "boolean":
            # A single bit comes as a boolean.
            return bits_reader(1) if declared is not None and declared.kind is Kind.BITS else boolean_text
        case "int8" | "int16" | "int32" | "int64":
            return integer_reader(_BITS_OF[schema.type], is_unsigned=is_unsigned(schema))
        case "double":
            return float_text
        case "float":
            return float32_text
        case "bytes":
            # With include.unknown.datatypes, a type that the connector does not know comes as the bytes of its text.
            return _utf8 if declared is not None and declared.kind is Kind.OTHER else base64_text
        case "array" if schema.items is not None and _is_array(declared, modes):
            read = reader_of(schema.items, declared and declared.element, modes)
            return array_reader(read, logical_of(schema.items).kind)
        case _:
            element = _element_of(schema)
            return lambda value: json_text(element(value))


def logical_of(schema: ConnectSchema, connector: str = "") -> LogicalType:
    """Say what a column of this schema holds, so that a table can be made for it.

    Args:
        connector: Whose events have it: texts of times with a zone do not say how fine they are.
    """
    known = _KINDS.get(schema.name or "")
    if known is not None and _LOGICAL[schema.name or ""][0] == schema.type:
        logical = known(schema)
        if logical.kind is Kind.TIMESTAMPTZ and connector not in _WHOLE_MICROSECONDS:
            scale = schema.parameters.get(f"{_SOURCE_TYPE}scale", "")
            return replace(logical, precision=min(int(scale), _FINEST) if scale.isdecimal() else _FINEST)
        return logical
    if is_unsigned(schema):
        return decimal(20, 0)
    if (told := _propagated(schema)) is not None:
        return told
    match schema.type:
        case "boolean":
            return LogicalType(Kind.BOOLEAN)
        case "int8" | "int16" | "int32" | "int64":
            return LogicalType(Kind.INTEGER, bits=max(16, _BITS_OF[schema.type]))
        case "float" | "double":
            return LogicalType(Kind.FLOAT, bits=32 if schema.type == "float" else 64)
        case "string":
            return LogicalType(Kind.STRING)
        case "bytes":
            return LogicalType(Kind.BINARY)
        case "array":
            return LogicalType(Kind.ARRAY, element=None if schema.items is None else logical_of(schema.items))
        case "map":
            return LogicalType(Kind.JSON)
        case _:
            return LogicalType(Kind.OTHER, name=schema.name or schema.type)


def is_unsigned(schema: ConnectSchema) -> bool:
    """Whether a number of 64 bits has no sign at its source: those beyond 2^63 arrive as negative ones."""
    type_ = schema.parameters.get(f"{_SOURCE_TYPE}type", "")
    return schema.type == "int64" and schema.name is None and bool(_UNSIGNED.match(type_))


def _propagated(schema: ConnectSchema) -> LogicalType | None:
    """Return the decimal that a text is at its source, where the connector propagates the source's types."""
    if schema.type != "string" or schema.name is not None:
        return None
    given = {name: schema.parameters.get(f"{_SOURCE_TYPE}{name}", "") for name in ("type", "length", "scale")}
    if not _DECIMAL_NAMES.match(given["type"]):
        return None
    length, scale = given["length"], given["scale"]
    if not length.isdecimal():
        return decimal()
    return decimal(int(length), int(scale) if re.fullmatch(r"-?\d{1,5}", scale, re.ASCII) else 0)


def _read_text(declared: LogicalType, modes: DeclaredModes) -> Reader:
    """Read a text of a column of which more is known than that."""
    if declared.kind is Kind.DECIMAL and modes.decimal == "precise":
        # That it is a text shows that the mode is another.
        modes = replace(modes, decimal="string")
    return declared_reader(declared, modes)


def _decimal(schema: ConnectSchema) -> Reader:
    scale = _whole(schema.parameters.get("scale"), "a decimal without a scale")

    def read(value: Any) -> str:
        if type(value) is str or isinstance(value, bytes):
            return unpadded_text(unscaled_number(value), scale)
        # decimal.format=NUMERIC. Connect's own decimals have their scale always, even if it is all zeros.
        text = number_text(value)
        if text is None:
            raise UnfitError("is not a decimal")
        if scale in PADDED_SCALES and not (parts := text.partition("."))[2].strip("0"):
            return parts[0]
        return text

    return read


def _bits(schema: ConnectSchema) -> Reader:
    length = _whole(schema.parameters["length"], "bits without a length") if "length" in schema.parameters else None
    if is_varying(schema):
        length = None
    return lambda value: bit_text(bytes_of(value), length)


def _whole(text: str | None, what: str) -> int:
    if text is None or not re.fullmatch(r"-?\d{1,10}", text, re.ASCII):
        raise UnfitError(f"is {what}")
    number = int(text)
    if what.startswith("a decimal") and abs(number) > MOST_DIGITS:
        raise UnfitError("is a decimal of more digits than any database has")
    return number


def _number(read: Callable[[int], str]) -> Reader:
    def checked(value: Any) -> str:
        if type(value) is not int:
            raise UnfitError("is not a whole number")
        return read(value)

    return checked


def _is_array(declared: LogicalType | None, modes: DeclaredModes | None) -> bool:
    return (declared is not None and declared.kind is Kind.ARRAY) or (modes is not None and modes.arrays == "postgres")


def _utf8(value: Any) -> str:
    try:
        return bytes_of(value).decode()
    except UnicodeDecodeError:
        raise UnfitError("is not text, although its column is") from None


def _element_of(schema: ConnectSchema) -> Callable[[Any], Any]:
    """Return what makes a value inside an array, map or struct ready for JSON text."""
    if schema.type == "array" and schema.items is not None and schema.name is None:
        return _nullable(_list_of(_element_of(schema.items)))
    if schema.type == "map" and schema.keys is not None and schema.values is not None:
        return _nullable(_map_of(reader_of(schema.keys), _element_of(schema.values)))
    if schema.type == "struct" and schema.name not in _LOGICAL:
        members = {name: _element_of(member) for name, member in schema.fields.items()}
        return _nullable(lambda value: {name: read(member_of(value, name)) for name, read in members.items()})
    read = reader_of(schema) if schema.type != "array" or schema.name in _LOGICAL else _list_text
    if schema.name is None and schema.type in ("boolean", *_BITS_OF):
        return _nullable(lambda value: (read(value), value)[1])
    if schema.name is None and schema.type in ("double", "float"):
        return _nullable(lambda value: read(value) if type(value) is str else float(read(value)))
    return _nullable(read)


def _nullable(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_list(value: Any) -> Any:
        if not isinstance(value, list):
            raise UnfitError("is not an array")
        return [read(one) for one in value]

    return read_list


def _map_of(read_key: Callable[[Any], str], read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_map(value: Any) -> Any:
        if isinstance(value, dict):
            return {read_key(key) if type(key) is not str else key: read(one) for key, one in value.items()}
        # A map whose keys are not texts comes as a list of pairs.
        if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            return {read_key(key): read(one) for key, one in value}
        # Avro has records for such pairs.
        if isinstance(value, list) and all(isinstance(pair, dict) and len(pair) == 2 for pair in value):
            return {read_key(pair.get("key")): read(pair.get("value")) for pair in value}
        raise UnfitError("is not a map")

    return read_map


def _list_text(value: Any) -> str:
    if not isinstance(value, list):
        raise UnfitError("is not an array")
    return as_it_stands(value)


def _vector(value: Any) -> str:
    if not isinstance(value, list):
        raise UnfitError("is not an array")
    return f"[{','.join(map(float_text, value))}]"


def _plain(read: Reader) -> Callable[[ConnectSchema], Reader]:
    return lambda schema: read


def _stamp(digits: int) -> Callable[[ConnectSchema], Reader]:
    return _plain(timestamp_reader(_number(lambda value: temporal.timestamp_text(value, digits)), digits))


def _clock(digits: int) -> Callable[[ConnectSchema], Reader]:
    return _plain(_number(lambda value: temporal.time_text(value, digits)))


def _span(digits: int) -> Callable[[ConnectSchema], Reader]:
    return _plain(_number(lambda value: temporal.span_text(value, digits)))


_CONNECT, _TIME, _DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."

_LOGICAL: Mapping[str, tuple[str, Callable[[ConnectSchema], Reader]]] = {
    _CONNECT + "Decimal": ("bytes", _decimal),
    _CONNECT + "Date": ("int32", _plain(_number(temporal.date_text))),
    _CONNECT + "Time": ("int32", _clock(3)),
    _CONNECT + "Timestamp": ("int64", _stamp(3)),
    _TIME + "Date": ("int32", _plain(_number(temporal.date_text))),
    _TIME + "Time": ("int32", _clock(3)),
    _TIME + "MicroTime": ("int64", _clock(6)),
    _TIME + "NanoTime": ("int64", _clock(9)),
    _TIME + "Timestamp": ("int64", _stamp(3)),
    _TIME + "MicroTimestamp": ("int64", _stamp(6)),
    _TIME + "NanoTimestamp": ("int64", _stamp(9)),
    _TIME + "ZonedTimestamp": ("string", _plain(text_reader(temporal.zoned_timestamp_text))),
    _TIME + "ZonedTime": ("string", _plain(text_reader(temporal.zoned_time_text))),
    _TIME + "Year": ("int32", _plain(integer_reader(32))),
    _TIME + "MicroDuration": ("int64", _span(6)),
    _TIME + "NanoDuration": ("int64", _span(9)),
    _TIME + "Interval": ("string", _plain(text_reader(temporal.duration_text))),
    _TIME + "IsoDate": ("string", _plain(text_reader(temporal.iso_date_text))),
    _TIME + "IsoTime": ("string", _plain(text_reader(temporal.local_time_text))),
    _TIME + "IsoTimestamp": ("string", _plain(text_reader(temporal.local_timestamp_text))),
    _TIME + "StructuredDate": ("struct", _plain(structured.date_text)),
    _TIME + "StructuredTime": ("struct", _plain(structured.time_text)),
    _TIME + "StructuredTimestamp": ("struct", _plain(structured.timestamp_text)),
    _TIME + "StructuredZonedTimestamp": ("struct", _plain(structured.instant_text)),
    _TIME + "StructuredDuration": ("struct", _plain(structured.duration_text)),
    _DATA + "Bits": ("bytes", _bits),
    _DATA + "Json": ("string", _plain(text_itself)),
    _DATA + "Xml": ("string", _plain(text_itself)),
    _DATA + "Uuid": ("string", _plain(text_itself)),
    _DATA + "Ltree": ("string", _plain(text_itself)),
    _DATA + "Tsvector": ("string", _plain(text_itself)),
    _DATA + "Enum": ("string", _plain(text_itself)),
    _DATA + "EnumSet": ("string", _plain(text_itself)),
    _DATA + "VariableScaleDecimal": ("struct", _plain(variable_scale_text)),
    _DATA + "geometry.Point": ("struct", _plain(point_text)),
    _DATA + "geometry.Geometry": ("struct", _plain(geometry_text)),
    _DATA + "geometry.Geography": ("struct", _plain(geometry_text)),
    _DATA + "FloatVector": ("array", _plain(_vector)),
    _DATA + "DoubleVector": ("array", _plain(_vector)),
}
"""For each logical type, of which Connect type it is, and what makes its reader."""

LOGICAL_TYPES: Mapping[str, str] = {name: type_ for name, (type_, _) in _LOGICAL.items()}
"""Of which Connect type each logical type is."""


def _kind(
    kind: Kind, precision: int | None = None, *, bits: int | None = None, name: str = ""
) -> Callable[[ConnectSchema], LogicalType]:
    made = LogicalType(kind, bits=bits, precision=precision, name=name)
    return lambda schema: made


def decimal_parameters(precision: int, scale: int) -> dict[str, str]:
    """Return the parameters of a decimal; of a negative scale as a connector propagates it, for no zeros are left out.

    Connect's own type would take one, but readers of many languages do not.
    """
    parameters = {"scale": str(max(scale, 0)), "connect.decimal.precision": str(precision - min(scale, 0))}
    if scale < 0:
        told = {"type": "NUMERIC", "length": str(precision), "scale": str(scale)}
        parameters |= {f"{_SOURCE_TYPE}{name}": value for name, value in told.items()}
    return parameters


def _decimal_kind(schema: ConnectSchema) -> LogicalType:
    length, told = (schema.parameters.get(f"{_SOURCE_TYPE}{name}", "") for name in ("length", "scale"))
    if length.isdecimal() and re.fullmatch(r"-\d{1,4}", told, re.ASCII):
        return decimal(int(length), int(told))
    precision = schema.parameters.get("connect.decimal.precision", "")
    scale = int(schema.parameters.get("scale", "0"))
    if scale in PADDED_SCALES:
        return LogicalType(Kind.DECIMAL)
    return LogicalType(Kind.DECIMAL, precision=int(precision) if precision.isdecimal() else None, scale=scale)


def _bits_kind(schema: ConnectSchema) -> LogicalType:
    """Say how many bits there are; of `bit varying` any number, whatever its own limit."""
    length = schema.parameters.get("length", "")
    is_fixed = length.isdecimal() and int(length) <= MOST_BITS and not is_varying(schema)
    return LogicalType(Kind.BITS, length=int(length) if is_fixed else None)


def is_varying(schema: ConnectSchema) -> bool:
    """Whether bits are of any number at their source, as the connector propagates its type."""
    return schema.parameters.get(f"{_SOURCE_TYPE}type") == "VARBIT"


def _enum_kind(schema: ConnectSchema) -> LogicalType:
    return LogicalType(Kind.ENUM, values=tuple(schema.parameters.get("allowed", "").split(",")))


_KINDS: Mapping[str, Callable[[ConnectSchema], LogicalType]] = {
    _CONNECT + "Decimal": _decimal_kind,
    **dict.fromkeys([_CONNECT + "Date", *(_TIME + n for n in ("Date", "IsoDate", "StructuredDate"))], _kind(Kind.DATE)),
    **dict.fromkeys([_CONNECT + "Time", _TIME + "Time"], _kind(Kind.TIME, 3)),
    **dict.fromkeys([_TIME + n for n in ("MicroTime", "IsoTime", "StructuredTime")], _kind(Kind.TIME, 6)),
    _TIME + "NanoTime": _kind(Kind.TIME, 9),
    **dict.fromkeys([_CONNECT + "Timestamp", _TIME + "Timestamp"], _kind(Kind.TIMESTAMP, 3)),
    **dict.fromkeys(
        [_TIME + n for n in ("MicroTimestamp", "IsoTimestamp", "StructuredTimestamp")], _kind(Kind.TIMESTAMP, 6)
    ),
    _TIME + "NanoTimestamp": _kind(Kind.TIMESTAMP, 9),
    **dict.fromkeys([_TIME + n for n in ("ZonedTimestamp", "StructuredZonedTimestamp")], _kind(Kind.TIMESTAMPTZ)),
    _TIME + "ZonedTime": _kind(Kind.TIMETZ),
    _TIME + "Year": _kind(Kind.INTEGER, bits=32),
    **dict.fromkeys(
        [_TIME + n for n in ("MicroDuration", "NanoDuration", "Interval", "StructuredDuration")], _kind(Kind.INTERVAL)
    ),
    _DATA + "Bits": _bits_kind,
    _DATA + "Json": _kind(Kind.JSON),
    _DATA + "Xml": _kind(Kind.XML),
    _DATA + "Uuid": _kind(Kind.UUID),
    _DATA + "Ltree": _kind(Kind.OTHER, name="ltree"),
    _DATA + "Tsvector": _kind(Kind.OTHER, name="tsvector"),
    _DATA + "Enum": _enum_kind,
    _DATA + "EnumSet": _kind(Kind.STRING),
    _DATA + "VariableScaleDecimal": _kind(Kind.DECIMAL),
    _DATA + "geometry.Point": _kind(Kind.OTHER, name="point"),
    _DATA + "geometry.Geometry": _kind(Kind.OTHER, name="geometry"),
    _DATA + "geometry.Geography": _kind(Kind.OTHER, name="geography"),
    _DATA + "FloatVector": _kind(Kind.OTHER, name="vector"),
    _DATA + "DoubleVector": _kind(Kind.OTHER, name="vector"),
}
"""What a table needs to hold the values of each logical type."""
