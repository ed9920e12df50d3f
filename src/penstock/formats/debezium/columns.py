"""Columns of a table as fields of Connect structs: which type each has, and how canonical text becomes its value.

Types are those of a PostgreSQL table, since that is what is captured; they are written as the connector does whose
source block the events have.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import orjson

from penstock.formats.debezium.java_text import decimal_bytes, float_text
from penstock.formats.debezium.schema import ConnectSchema
from penstock.formats.debezium.types import decimal_parameters
from penstock.formats.temporal import days_of
from penstock.schema import Column

PLACEHOLDER = "__debezium_unavailable_value"


class Connector(StrEnum):
    """Whose events are written."""

    ORACLE = "oracle"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    SQLSERVER = "sqlserver"
    DB2 = "db2"


@dataclass(frozen=True)
class ConnectorModes:
    """Settings that change how types are written, named and meant as the connectors' own.

    Attributes:
        decimals: `precise`, `string` or `double`, as `decimal.handling.mode`.
        intervals: `numeric` or `string`, as `interval.handling.mode`.
    """

    connector: Connector = Connector.POSTGRESQL
    decimals: str = "precise"
    intervals: str = "numeric"
    placeholder: str = PLACEHOLDER


class FieldUnfitError(ValueError):
    """A value that the type of its field does not hold; the text never repeats the value."""


Convert = Callable[[str], Any]


@dataclass(frozen=True)
class FieldType:
    """How a column is written.

    Attributes:
        schema: Of the field; its `is_optional` is that of the column.
        to_value: Makes of canonical text what Avro takes: whole numbers, texts, bytes, floats, dicts and lists.
        to_json: Makes of canonical text what is put into JSON. Both raise `FieldUnfitError` or `ValueError`.
        absent: What stands for a value that was not captured, as canonical text and in JSON; None where nothing can.
    """

    schema: ConnectSchema
    to_value: Convert
    to_json: Convert
    absent: Any = None


_LENGTHS = re.compile(r"\((-?\d+)(?:,(-?\d+))?\)", re.ASCII)


def field_type(column: Column, modes: ConnectorModes) -> FieldType:
    """Say how a column is written."""
    made = _type_of(column.base_type, column.type, modes)
    return replace(made, schema=replace(made.schema, is_optional=column.is_nullable))


def _type_of(base: str, full: str, modes: ConnectorModes) -> FieldType:
    if base.endswith("[]"):
        return _array(_type_of(base.removesuffix("[]"), full.removesuffix("[]"), modes), modes)
    found = _LENGTHS.search(full)
    numbers = [int(number) for number in found.groups() if number] if found else []
    match base:
        case "boolean":
            return FieldType(ConnectSchema("boolean"), _boolean, _boolean)
        case "smallint" | "integer" | "bigint" | "oid":
            return _INTEGERS[base]
        case "real":
            return FieldType(ConnectSchema("float"), float, _float_json)
        case "double precision":
            return FieldType(ConnectSchema("double"), float, _float_json)
        case "numeric":
            return _numeric(numbers, modes)
        case "money":
            return _decimal(2, None, modes)
        case "bytea":
            absent = base64.b64encode(modes.placeholder.encode()).decode()
            return FieldType(ConnectSchema("bytes"), base64.b64decode, str, absent)
        case "bit" | "bit varying":
            return _bits(base, numbers)
        case "date":
            return _plain("int32", "io.debezium.time.Date", _days)
        case "time without time zone":
            return _time(numbers, modes)
        case "timestamp without time zone":
            return _timestamp(numbers)
        case "time with time zone":
            return _plain("string", "io.debezium.time.ZonedTime", _zoned_time)
        case "timestamp with time zone":
            digits = numbers[0] if numbers else 6
            return _plain("string", "io.debezium.time.ZonedTimestamp", lambda text: _instant(text, digits))
        case "interval":
            if modes.intervals == "string":
                return _plain("string", "io.debezium.time.Interval", _interval_text)
            return _plain("int64", "io.debezium.time.MicroDuration", _interval_us)
        case "json" | "jsonb":
            return _text("io.debezium.data.Json", modes)
        case "uuid":
            # A text like any other to a connector whose database has no such type, or another name for it.
            is_own = modes.connector is Connector.POSTGRESQL
            return _plain("string", "io.debezium.data.Uuid" if is_own else None, str)
        case "xml":
            return _text("io.debezium.data.Xml", modes)
        case "tsvector":
            return _text("io.debezium.data.Tsvector", modes)
        case "character" if numbers:
            # Padded with blanks, which canonical text leaves out.
            return replace(_plain("string", None, lambda text: text.ljust(numbers[0])), absent=modes.placeholder)
        case "point":
            return FieldType(_POINT, _point, lambda text: _jsonable(_point(text)))
        case _:
            return _text(None, modes)


def _plain(type_: str, name: str | None, convert: Convert) -> FieldType:
    schema = ConnectSchema(type_, name=name, version=1 if name else None)
    return FieldType(schema, convert, convert)


def _text(name: str | None, modes: ConnectorModes) -> FieldType:
    return replace(_plain("string", name, str), absent=modes.placeholder)


def _boolean(text: str) -> bool:
    return text in ("true", "t")


def _integer(bits: int) -> FieldType:
    return _plain(f"int{bits}", None, int)


_INTEGERS: Mapping[str, FieldType] = {
    "smallint": _integer(16),
    "integer": _integer(32),
    "bigint": _integer(64),
    "oid": _integer(64),
}


def _float_json(text: str) -> Any:
    written = float_text(text)
    return written if written in ("NaN", "Infinity", "-Infinity") else orjson.Fragment(written.encode())


def _numeric(numbers: list[int], modes: ConnectorModes) -> FieldType:
    if not numbers:
        return _variable_scale(modes)
    precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
    if modes.connector is Connector.ORACLE and scale <= 0 and modes.decimals == "precise":
        for width, bits in ((3, 8), (5, 16), (10, 32), (19, 64)):
            if precision - scale < width:
                return _integer(bits)
    return _decimal(scale, precision, modes)


def _decimal(scale: int, precision: int | None, modes: ConnectorModes) -> FieldType:
    if modes.decimals != "precise":
        return _inexact(modes)
    parameters = {"scale": str(scale)} if precision is None else decimal_parameters(precision, scale)
    scale = max(scale, 0)
    name = "org.apache.kafka.connect.data.Decimal"
    schema = ConnectSchema("bytes", name=name, version=1, parameters=MappingProxyType(parameters))

    def to_value(text: str) -> bytes:
        unscaled, own = _unscaled(text)
        if own > scale:
            raise FieldUnfitError("has more digits behind the point than its column")
        return decimal_bytes(unscaled * 10 ** (scale - own))

    return FieldType(schema, to_value, lambda text: base64.b64encode(to_value(text)).decode())


def _inexact(modes: ConnectorModes) -> FieldType:
    if modes.decimals == "double":
        return FieldType(ConnectSchema("double"), float, lambda text: _float_json(_shortest(text)))
    special = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
    return _plain("string", None, lambda text: special.get(text, text))


def _shortest(text: str) -> str:
    return text if text in ("NaN", "Infinity", "-Infinity") else repr(float(text))


def _variable_scale(modes: ConnectorModes) -> FieldType:
    if modes.decimals != "precise":
        return _inexact(modes)

    def to_value(text: str) -> dict[str, Any]:
        unscaled, scale = _unscaled(text)
        while scale and unscaled % 10 == 0:
            unscaled, scale = unscaled // 10, scale - 1
        return {"scale": scale, "value": decimal_bytes(unscaled)}

    return FieldType(_VARIABLE_SCALE, to_value, lambda text: _jsonable(to_value(text)))


_VARIABLE_SCALE = ConnectSchema(
    "struct",
    name="io.debezium.data.VariableScaleDecimal",
    version=1,
    doc="Variable scaled decimal",
    fields=MappingProxyType({"scale": ConnectSchema("int32"), "value": ConnectSchema("bytes")}),
)

_POINT = ConnectSchema(
    "struct",
    name="io.debezium.data.geometry.Point",
    version=1,
    doc="Geometry (POINT)",
    fields=MappingProxyType(
        {
            "x": ConnectSchema("double"),
            "y": ConnectSchema("double"),
            "wkb": ConnectSchema("bytes", is_optional=True),
            "srid": ConnectSchema("int32", is_optional=True),
        }
    ),
)


def _point(text: str) -> dict[str, Any]:
    x, y = (float(part) for part in text.strip("()").split(","))
    return {"x": x, "y": y, "wkb": struct.pack("<BIdd", 1, 1, x, y), "srid": None}


def _jsonable(value: dict[str, Any]) -> dict[str, Any]:
    """A struct with bytes and floats as JSON has them."""
    made: dict[str, Any] = {}
    for name, member in value.items():
        if isinstance(member, bytes):
            made[name] = base64.b64encode(member).decode()
        else:
            made[name] = _float_json(repr(member)) if isinstance(member, float) else member
    return made


def _unscaled(text: str) -> tuple[int, int]:
    """Digits without their point, and how many of them stand behind it."""
    if text in ("NaN", "Infinity", "-Infinity"):
        raise FieldUnfitError("is not a number (NaN or an infinity); publish.debezium.decimals: string can write it")
    whole, _, fraction = text.partition(".")
    return int(whole + fraction), len(fraction)


def _bits(base: str, numbers: list[int]) -> FieldType:
    length = numbers[0] if numbers else (1 if base == "bit" else 2**31 - 1)
    if base == "bit" and length == 1:
        return _plain("boolean", None, lambda text: text == "1")
    parameters = MappingProxyType({"length": str(length)})
    schema = ConnectSchema("bytes", name="io.debezium.data.Bits", version=1, parameters=parameters)

    def to_value(text: str) -> bytes:
        return int(text or "0", 2).to_bytes(max(1, (len(text) + 7) // 8), "little")

    return FieldType(schema, to_value, lambda text: base64.b64encode(to_value(text)).decode())


def _days(text: str) -> int:
    if text.endswith("infinity"):
        raise FieldUnfitError("is an end of time, which days do not hold")
    return days_of(text)


def _time(numbers: list[int], modes: ConnectorModes) -> FieldType:
    if numbers and numbers[0] <= 3 and modes.connector is not Connector.MYSQL:
        return _plain("int32", "io.debezium.time.Time", lambda text: _time_us(text) // 1000)
    return _plain("int64", "io.debezium.time.MicroTime", _time_us)


def _time_us(text: str) -> int:
    hours, minutes, seconds = text.split(":")
    whole, _, fraction = seconds.partition(".")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction[:6].ljust(6, "0"))


def _timestamp(numbers: list[int]) -> FieldType:
    if numbers and numbers[0] <= 3:
        return _plain("int64", "io.debezium.time.Timestamp", lambda text: _timestamp_us(text, 1000))
    return _plain("int64", "io.debezium.time.MicroTimestamp", lambda text: _timestamp_us(text, 1))


_INFINITIES = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
"""What PostgreSQL's driver makes of them, in whatever unit the column is."""


def _timestamp_us(text: str, unit_us: int) -> int:
    """A time without a zone, in units since 1970; array elements have a blank for the `T`."""
    if text in _INFINITIES:
        return _INFINITIES[text]
    if len(text) == 26 and text[10] in "T ":
        # Most of them by far, and at a fraction of the cost.
        try:
            since = datetime.fromisoformat(text) - _EPOCH
            return (since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) // unit_us
        except ValueError:
            pass
    era = " BC" if text.endswith(" BC") else ""
    date, _, time = text.removesuffix(" BC").replace(" ", "T").partition("T")
    return (days_of(date + era) * 86_400_000_000 + _time_us(time)) // unit_us


_EPOCH = datetime(1970, 1, 1)
"""Wall time, without a zone."""


def _instant(text: str, digits: int) -> str:
    if text.endswith("infinity"):
        return text
    is_bc = text.endswith(" BC")
    date, _, clock = text.removesuffix(" BC").replace(" ", "T").partition("T")
    clock, _, fraction = clock.removesuffix("00").removesuffix("+00:").removesuffix("+").partition(".")
    if is_bc:
        year, month, day = date.split("-")
        date = f"-{int(year) - 1:04}-{month}-{day}" if int(year) > 1 else f"0000-{month}-{day}"
    elif len(date) > 10:
        date = f"+{date}"
    fraction = fraction.ljust(6, "0")[:digits]
    return f"{date}T{clock}{'.' if fraction else ''}{fraction}Z"


def _zoned_time(text: str) -> str:
    clock, sign, offset = text.partition("+")
    if not sign:
        clock, sign, offset = text.partition("-")
    clock = clock.rstrip("0").rstrip(".") if "." in clock else clock
    return f"{clock}Z" if offset in ("00", "00:00") else f"{clock}{sign}{offset}"


_INTERVAL = re.compile(
    r"(-)?P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d+))?S)?)?", re.ASCII
)


def _interval_parts(text: str) -> tuple[int, int, int, int, int, int]:
    """Years, months, days, hours, minutes, and microseconds of the seconds."""
    found = _INTERVAL.fullmatch(text)
    if found is None or found[1]:
        raise FieldUnfitError("is an interval that has no end, or is written otherwise")
    years, months, days, hours, minutes = (int(found[n] or 0) for n in range(2, 7))
    us = int(found[8] or 0) * 1_000_000 + int((found[9] or "")[:6].ljust(6, "0"))
    return years, months, days, hours, minutes, -us if found[7] else us


def _interval_us(text: str) -> int:
    years, months, days, hours, minutes, us = _interval_parts(text)
    # A month counts as a twelfth of 365.25 days, which is a whole number of microseconds.
    return (years * 12 + months) * 2_629_800_000_000 + ((days * 24 + hours) * 60 + minutes) * 60_000_000 + us


def _interval_text(text: str) -> str:
    years, months, days, hours, minutes, us = _interval_parts(text)
    whole, fraction = divmod(abs(us), 1_000_000)
    seconds = f"{'-' if us < 0 else ''}{whole}{f'.{fraction:06}'.rstrip('0') if fraction else ''}"
    return f"P{years}Y{months}M{days}DT{hours}H{minutes}M{seconds}S"


_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}"]+)', re.DOTALL)


def _array(element: FieldType, modes: ConnectorModes) -> FieldType:
    items = replace(element.schema, is_optional=True)
    # What is bytes in an array is written in hexadecimal digits, not as canonical text.
    is_bytes = element.schema.type == "bytes" and element.schema.name is None

    def texts(text: str) -> list[str | None]:
        if text.startswith("[") or text[1:2] == "{":
            raise FieldUnfitError("is an array of several dimensions, or that begins at another place than 1")
        found = [(quoted, bare) for quoted, bare in _ELEMENT.findall(text[1:-1])] if text != "{}" else []
        made: list[str | None] = []
        for quoted, bare in found:
            if bare.upper() == "NULL":
                made.append(None)
                continue
            one = bare or re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
            made.append(base64.b64encode(bytes.fromhex(one[2:])).decode() if is_bytes else one)
        return made

    def of(convert: Convert) -> Convert:
        return lambda text: [None if one is None else convert(one) for one in texts(text)]

    absent = _absent_array(element, modes)
    return FieldType(ConnectSchema("array", items=items), of(element.to_value), of(element.to_json), absent)


def _absent_array(element: FieldType, modes: ConnectorModes) -> Any:
    if element.schema.name == "io.debezium.data.Uuid":
        import uuid
        from hashlib import md5

        digest = bytearray(md5(modes.placeholder.encode(), usedforsecurity=False).digest())
        return [str(uuid.UUID(bytes=bytes(digest), version=3))]
    if element.schema.type in ("int16", "int32", "int64"):
        return list(modes.placeholder.encode())
    return None if element.absent is None else [element.absent]
