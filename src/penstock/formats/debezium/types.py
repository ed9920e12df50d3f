"""Values of Connect and Debezium types as canonical text; see `values` for what that is.

A reader is a function that takes one value that is not null, as the parser left it, and returns its text. It is made
once for a column. Bytes may come as base64 (JSON) or as they are (Avro), numbers also as `Number`.

A reader raises `UnfitError`, or another `ValueError`, with a text that goes on from "the value of column c ..." and
holds nothing of the value; or `InexactError` where a number was parsed to a float although its digits matter.
"""

from __future__ import annotations

import binascii
import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from penstock.formats.debezium import temporal
from penstock.formats.debezium.schema import ConnectSchema
from penstock.logical import Kind, LogicalType

Reader: TypeAlias = Callable[[Any], str]

_PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,20}", re.ASCII)
_ANY_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,6})?", re.ASCII)
_NO_NANOS = re.compile(r"(\.\d{6})000(?!\d)", re.ASCII)
_FRACTION = re.compile(r"\.(\d*?)0*(?=$|[+ -])", re.ASCII)
_PLAIN_ITEM = re.compile(r"[^\s{}\",\\]+")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*", re.ASCII)

_NOT_A_NUMBER = {
    "NAN": "NaN",
    "NaN": "NaN",
    "POSITIVE_INFINITY": "Infinity",
    "Infinity": "Infinity",
    "NEGATIVE_INFINITY": "-Infinity",
    "-Infinity": "-Infinity",
}
"""What stands for a number that has no digits, in the modes `double` and `string`."""

_MOST_DIGITS = 200_000
"""No database has numbers of more digits; a scale of a billion would be written out in zeros."""

_PLAIN_INT_BITS = 14_000
"""Python refuses to write larger ints, by default, unless they go through a decimal."""

_MOST_BITS = 83_886_080
"""The longest bit string of PostgreSQL; a type without a limit says the largest int."""

_BITS_OF = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}

_PADDED_SCALES = range(1001, 2048)
"""A negative scale, wrapped: PostgreSQL's numeric(5,-2) comes with scale 2046 and as many zeros."""


_DECIMALS = "say the connector's decimal.handling.mode as capture.debezium.decimals"


class UnfitError(ValueError):
    """A value that its type cannot hold."""


class Number(str):
    """The digits of a JSON number, as they stood there."""

    __slots__ = ()


class InexactError(Exception):
    """A number lost digits on its way through a float; parse the message again, with `Number`."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Options of the connector that only tell in values whose message has no schema.

    Attributes:
        decimal: `decimal.handling.mode`.
        time: `time.precision.mode`; `adaptive_time_microseconds` is what MySQL means by adaptive.
        binary: `binary.handling.mode`.
        arrays: How they are written, no option of the connector's: as JSON text, or as PostgreSQL writes them, which
            is also how a column that is known to be an array gets them.
    """

    decimal: Literal["precise", "double", "string"] = "precise"
    time: Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"] = (
        "adaptive"
    )
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    arrays: Literal["json", "postgres"] = "json"


def reader_of(schema: ConnectSchema, declared: LogicalType | None = None, modes: Modes | None = None) -> Reader:
    """Make the reader of a type that a message's schema tells.

    Args:
        declared: What the column is known to hold: it decides where the schema says no more than `string`.

    Raises:
        ValueError: A logical type lacks a parameter; the text goes on from "column c ...".
    """
    if (make := _LOGICAL.get(schema.name or "")) is not None and make[0] == schema.type:
        read = make[1](schema)
        is_finer = declared is not None and declared.precision is not None and declared.precision <= 6
        return _shortened(read) if is_finer and schema.name in _NANOS else read
    match schema.type:
        case "string":
            return declared_reader(declared, modes or Modes()) if declared is not None else text_itself
        case "boolean":
            # A single bit comes as a boolean.
            return _declared_bits(1) if declared is not None and declared.kind is Kind.BITS else _boolean
        case "int8" | "int16" | "int32" | "int64":
            return _integer(_BITS_OF[schema.type])
        case "double":
            return float_text
        case "float":
            return float32_text
        case "bytes":
            # With include.unknown.datatypes, a type that the connector does not know comes as the bytes of its text.
            return _utf8 if declared is not None and declared.kind is Kind.OTHER else base64_text
        case "array" if schema.items is not None and _is_array(declared, modes):
            read = reader_of(schema.items, declared and declared.element, modes)
            return _literal_of(read, logical_of(schema.items).kind)
        case _:
            element = _element_of(schema)
            return lambda value: _json(element(value))


def declared_reader(declared: LogicalType | None, modes: Modes) -> Reader:
    """Make the reader of a column whose messages have no schema.

    Args:
        declared: What the column is known to hold. Without it, nothing is guessed: the text stands as it is.
    """
    if declared is None:
        return as_it_stands
    digits = declared.precision if declared.precision is not None else 6
    match declared.kind:
        case Kind.BOOLEAN:
            return _boolean
        case Kind.INTEGER:
            return _integer(declared.bits or 64, may_be_text=modes.decimal == "string")
        case Kind.DECIMAL:
            return _declared_decimal(declared.scale, modes)
        case Kind.FLOAT:
            return float32_text if declared.bits == 32 else float_text
        case Kind.BINARY:
            return {"hex": _from_hex, "base64-url-safe": _from_url_safe}.get(modes.binary, base64_text)
        case Kind.BITS:
            return _declared_bits(declared.length)
        case Kind.DATE:
            return _either(temporal.date_text, temporal.iso_date_text)
        case Kind.TIME:
            unit = _unit(modes.time, digits, is_time=True)
            return _either(lambda n: temporal.time_text(n, unit), _iso_time)
        case Kind.TIMESTAMP:
            unit = _unit(modes.time, digits, is_time=False)
            return _either(lambda n: temporal.timestamp_text(n, unit), _iso_timestamp)
        case Kind.TIMETZ:
            return _text(lambda text: temporal.iso_time_text(text, with_offset=True))
        case Kind.TIMESTAMPTZ:
            return _text(lambda text: temporal.iso_timestamp_text(text, is_instant=True))
        case Kind.INTERVAL:
            return _either(lambda n: temporal.span_text(n, 6), temporal.duration_text)
        case Kind.ARRAY:
            kind = declared.element.kind if declared.element is not None else None
            return _literal_of(declared_reader(declared.element, modes), kind)
        case Kind.STRING | Kind.ENUM | Kind.UUID | Kind.XML:
            return text_itself
        case Kind.OTHER if declared.name in ("point", "geometry", "geography"):
            shape = _point if declared.name == "point" else _geometry
            return lambda value: shape(value) if isinstance(value, dict) else as_it_stands(value)
        case Kind.JSON | Kind.OTHER:
            return as_it_stands


def logical_of(schema: ConnectSchema) -> LogicalType:
    """Say what a column of this schema holds, so that a table can be made for it."""
    known = _KINDS.get(schema.name or "")
    if known is not None and _LOGICAL[schema.name or ""][0] == schema.type:
        return known(schema)
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


def as_it_stands(value: Any) -> str:
    """Write a value of which nothing is known as the message has it; an object or a list as JSON text."""
    if type(value) is str or type(value) is Number:
        return str(value)
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    if type(value) is float:
        raise InexactError
    if isinstance(value, bytes):
        return base64_text(value)
    return _json(_exact(value))


def float_text(value: Any) -> str:
    """Write a float with the fewest digits that read back the same, as PostgreSQL lays them out."""
    return _float(value, 15, repr)


def float32_text(value: Any) -> str:
    """Write a float of 32 bits with the fewest digits that read back the same, as PostgreSQL lays them out."""
    return _float(value, 6, _shortest32)


def base64_text(value: Any) -> str:
    """Write bytes as base64; what is base64 already is looked through."""
    if isinstance(value, bytes):
        return binascii.b2a_base64(value, newline=False).decode()
    _bytes(value)
    return str(value)


def decimal_text(unscaled: int, scale: int) -> str:
    """Write an unscaled number in plain digits, `scale` of them after the point."""
    if scale in _PADDED_SCALES and unscaled % 10**scale == 0:
        unscaled, scale = unscaled // 10**scale, 0
    if scale <= 0:
        return _int_text(unscaled * 10**-scale)
    digits = _int_text(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def text_itself(value: Any) -> str:
    """Return a value that is canonical text as it comes."""
    if type(value) is str:
        return value
    raise UnfitError("is not a text")


def _boolean(value: Any) -> str:
    # MySQL's BOOLEAN comes as either, even in one topic.
    if value is True or (value == 1 and type(value) is int):
        return "true"
    if value is False or (value == 0 and type(value) is int):
        return "false"
    raise UnfitError("is not a boolean")


def _integer(bits: int, *, may_be_text: bool = False) -> Reader:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read(value: Any) -> str:
        if type(value) is int and low <= value <= high:
            return str(value)
        if may_be_text and type(value) is str and _WHOLE.fullmatch(value) and low <= int(value) <= high:
            return value
        raise UnfitError(f"is not a whole number of {bits} bits")

    return read


def _float(value: Any, most_digits: int, shortest: Callable[[float], str]) -> str:
    if type(value) is str:
        if value in _NOT_A_NUMBER:
            return _NOT_A_NUMBER[value]
        raise UnfitError("is not a number")
    if type(value) is not float:
        if type(value) is not int and type(value) is not Number:
            raise UnfitError("is not a number")
        value = float(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    text = shortest(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent and len(mantissa) <= most_digits:
        return text.removesuffix(".0")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent or 0) - (len(digits) - len(digits.lstrip("0")))
    digits = digits.strip("0")
    sign = "-" if value < 0 else ""
    if not digits:
        return f"{sign}0"
    if -4 <= point - 1 < most_digits:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        front, back = digits[:point].ljust(point, "0"), digits[point:]
        return f"{sign}{front}{'.' if back else ''}{back}"
    back = digits[1:]
    return f"{sign}{digits[0]}{'.' if back else ''}{back}e{'-' if point < 1 else '+'}{abs(point - 1):02}"


def _shortest32(value: float) -> str:
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        raise UnfitError("does not fit into a float of 32 bits") from None
    for digits in range(1, 10):
        text = f"{rounded:.{digits}g}"
        try:
            if struct.unpack("f", struct.pack("f", float(text)))[0] == rounded:
                return repr(float(text))
        except OverflowError:
            # Rounded up, the largest floats are too large.
            continue
    return repr(rounded)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if type(value) is not str:
        raise UnfitError("is not bytes")
    try:
        return binascii.a2b_base64(value, strict_mode=True) if value else b""
    except ValueError:
        raise UnfitError("is not base64") from None


def _from_hex(value: Any) -> str:
    if isinstance(value, bytes):
        return base64_text(value)
    if type(value) is not str or not _HEX.fullmatch(value):
        raise UnfitError("is not hexadecimal; say the connector's binary.handling.mode as capture.debezium.binary")
    return base64_text(bytes.fromhex(value))


def _from_url_safe(value: Any) -> str:
    return base64_text(_bytes(value.translate(_URL_SAFE) if type(value) is str else value))


_URL_SAFE = str.maketrans("-_", "+/")


def _int_text(value: int) -> str:
    return str(value) if value.bit_length() < _PLAIN_INT_BITS else f"{Decimal(value):f}"


def _unscaled(value: Any) -> int:
    data = _bytes(value)
    if not data:
        raise UnfitError("is a decimal without bytes")
    return int.from_bytes(data, "big", signed=True)


def _number_text(value: Any) -> str | None:
    """Return the plain digits of a JSON number; None for what is none."""
    if type(value) is int:
        return _int_text(value)
    if type(value) is float:
        raise InexactError
    if type(value) is not Number:
        return None
    if _PLAIN_NUMBER.fullmatch(value):
        return str(value)
    return f"{Decimal(str(value)):f}"


def _decimal(schema: ConnectSchema) -> Reader:
    scale = _whole(schema.parameters.get("scale"), "a decimal without a scale")

    def read(value: Any) -> str:
        if type(value) is str or isinstance(value, bytes):
            return decimal_text(_unscaled(value), scale)
        # decimal.format=NUMERIC. Connect's own decimals have their scale always, even if it is all zeros.
        text = _number_text(value)
        if text is None:
            raise UnfitError("is not a decimal")
        if scale in _PADDED_SCALES and not (parts := text.partition("."))[2].strip("0"):
            return parts[0]
        return text

    return read


def _declared_decimal(scale: int | None, modes: Modes) -> Reader:
    def read(value: Any) -> str:
        if (number := _number_text(value)) is not None:
            return number
        if isinstance(value, dict):
            return _variable_scale(value)
        if type(value) is not str and not isinstance(value, bytes):
            raise UnfitError("is not a decimal")
        if modes.decimal != "precise" and type(value) is str:
            if value in _NOT_A_NUMBER:
                return _NOT_A_NUMBER[value]
            if not _ANY_NUMBER.fullmatch(value):
                raise UnfitError(
                    "is not a decimal; say the connector's decimal.handling.mode as capture.debezium.decimals"
                )
            return value if _PLAIN_NUMBER.fullmatch(value) else f"{Decimal(value):f}"
        if scale is None:
            raise UnfitError("is a decimal of which neither the message nor the table's description has the scale")
        try:
            return decimal_text(_unscaled(value), scale)
        except ValueError:
            raise UnfitError(
                "is not a decimal in bytes; say the connector's decimal.handling.mode as capture.debezium.decimals"
            ) from None

    return read


def _variable_scale(value: Any) -> str:
    if not isinstance(value, dict) or type(value.get("scale")) is not int or abs(value["scale"]) > _MOST_DIGITS:
        raise UnfitError("is not a decimal with its scale")
    return decimal_text(_unscaled(value.get("value")), value["scale"])


def _bit_string(data: bytes, length: int | None) -> str:
    """Write bits as 0 and 1, the highest first.

    They come in little-endian bytes without those that are zero at the end, so that nothing but the type tells how many
    there are. Where it has no fixed length, zeros at the front are lost.
    """
    digits = f"{int.from_bytes(data, 'little'):b}" if any(data) else ""
    if length is None or length > _MOST_BITS:
        return digits
    if len(digits) > length:
        raise UnfitError("has more bits than its type")
    return digits.rjust(length, "0")


def _bits(schema: ConnectSchema) -> Reader:
    length = _whole(schema.parameters["length"], "bits without a length") if "length" in schema.parameters else None
    if schema.parameters.get("__debezium.source.column.type") == "VARBIT":
        length = None
    return lambda value: _bit_string(_bytes(value), length)


def _declared_bits(length: int | None) -> Reader:
    def read(value: Any) -> str:
        # A single bit is a boolean in every connector.
        return ("0", "1")[value] if value is True or value is False else _bit_string(_bytes(value), length)

    return read


def _whole(text: str | None, what: str) -> int:
    if text is None or not re.fullmatch(r"-?\d{1,10}", text, re.ASCII):
        raise UnfitError(f"is {what}")
    number = int(text)
    if what.startswith("a decimal") and abs(number) > _MOST_DIGITS:
        raise UnfitError("is a decimal of more digits than any database has")
    return number


def _number(read: Callable[[int], str]) -> Reader:
    def checked(value: Any) -> str:
        if type(value) is not int:
            raise UnfitError("is not a whole number")
        return read(value)

    return checked


def _text(read: Callable[[str], str]) -> Reader:
    def checked(value: Any) -> str:
        if type(value) is not str:
            raise UnfitError("is not a text")
        return read(value)

    return checked


def _either(of_number: Callable[[int], str], of_text: Callable[[str], str]) -> Reader:
    def read(value: Any) -> str:
        if type(value) is int:
            return of_number(value)
        if type(value) is str:
            return of_text(value)
        raise UnfitError("is neither a whole number nor a text")

    return read


def _iso_time(text: str) -> str:
    return temporal.iso_time_text(text, with_offset=False)


def _iso_timestamp(text: str) -> str:
    return temporal.iso_timestamp_text(text, is_instant=False)


def _unit(mode: str, digits: int, *, is_time: bool) -> int:
    """Return of how many digits of a second a column's numbers are."""
    match mode:
        case "connect":
            return 3
        case "microseconds":
            return 6
        case "nanoseconds":
            return 9
        case "adaptive_time_microseconds" if is_time:
            return 6
        case _:
            return 3 if digits <= 3 else 6 if digits <= 6 else 9


def _is_array(declared: LogicalType | None, modes: Modes | None) -> bool:
    return (declared is not None and declared.kind is Kind.ARRAY) or (modes is not None and modes.arrays == "postgres")


def _literal_of(read: Reader, kind: Kind | None) -> Reader:
    """Make the reader of an array, as PostgreSQL writes it: `{1,NULL,"a b"}`, each element as it writes that."""

    def item(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, list):
            return f"{{{','.join(map(item, value))}}}"
        text = read(value)
        match kind:
            case Kind.BOOLEAN:
                text = text[0]
            case Kind.BINARY:
                text = f"\\x{_bytes(text).hex()}"
            case Kind.TIME | Kind.TIMETZ | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
                text = _FRACTION.sub(_trimmed, text.replace("T", " ")).replace("+00:00", "+00")
        if _PLAIN_ITEM.fullmatch(text) and text.upper() != "NULL":
            return text
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def read_array(value: Any) -> str:
        if not isinstance(value, list):
            raise UnfitError("is not an array")
        return item(value)

    return read_array


def _trimmed(fraction: re.Match[str]) -> str:
    return f".{fraction[1]}" if fraction[1] else ""


def _utf8(value: Any) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError:
        raise UnfitError("is not text, although its column is") from None


def _shortened(read: Reader) -> Reader:
    """Leave nanoseconds out that are zero, for a column that has none."""
    return lambda value: _NO_NANOS.sub(r"\1", read(value))


def _element_of(schema: ConnectSchema) -> Callable[[Any], Any]:
    """Return what makes a value inside an array, map or struct ready for JSON text."""
    if schema.type == "array" and schema.items is not None and schema.name is None:
        return _nullable(_list_of(_element_of(schema.items)))
    if schema.type == "map" and schema.keys is not None and schema.values is not None:
        return _nullable(_map_of(reader_of(schema.keys), _element_of(schema.values)))
    if schema.type == "struct" and schema.name not in _LOGICAL:
        members = {name: _element_of(member) for name, member in schema.fields.items()}
        return _nullable(lambda value: {name: read(_member(value, name)) for name, read in members.items()})
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
    return _json(_exact(value))


def _member(value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise UnfitError("is not a structure")
    return value.get(name)


def _exact(value: Any) -> Any:
    """Make a parsed value ready for `_json`: no number may have lost a digit."""
    if type(value) is float:
        raise InexactError
    if isinstance(value, list):
        return [_exact(one) for one in value]
    if isinstance(value, dict):
        return {name: _exact(one) for name, one in value.items()}
    if isinstance(value, bytes):
        return base64_text(value)
    return value


def _json(value: Any) -> str:
    if _holds_number(value):
        return _with_numbers(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _holds_number(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_holds_number, value))
    if isinstance(value, dict):
        return any(map(_holds_number, value.values()))
    return type(value) is Number


def _with_numbers(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_with_numbers, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_json(name)}:{_with_numbers(one)}' for name, one in value.items())}}}"
    return str(value) if type(value) is Number else json.dumps(value, ensure_ascii=False)


def _point(value: Any) -> str:
    return f"({float_text(_member(value, 'x'))},{float_text(_member(value, 'y'))})"


def _geometry(value: Any) -> str:
    """Write a geometry as PostGIS does: its WKB in hexadecimal, with the SRID inside if there is one."""
    data = _bytes(_member(value, "wkb"))
    srid = value.get("srid")
    if srid and len(data) >= 5:
        order: Literal["little", "big"] = "little" if data[0] == 1 else "big"
        kind = int.from_bytes(data[1:5], order)
        if not kind & 0x20000000:
            data = data[:1] + (kind | 0x20000000).to_bytes(4, order) + int(srid).to_bytes(4, order) + data[5:]
    return data.hex().upper()


def _vector(value: Any) -> str:
    if not isinstance(value, list):
        raise UnfitError("is not an array")
    return f"[{','.join(map(float_text, value))}]"


def _parts(value: Any, *names: str) -> list[int]:
    parts = [_member(value, name) for name in names]
    if any(type(part) is not int for part in parts):
        raise UnfitError("lacks a part of a date or time")
    return parts


def _special(value: Any) -> str | None:
    """Return the end of time that a structured date or timestamp may be; refuse what else it may say."""
    match str(_member(value, "specialValue") or "").upper():
        case "":
            return None
        case "INFINITY" | "POSITIVE_INFINITY" | "+INFINITY":
            return "infinity"
        case "NEGATIVE_INFINITY" | "-INFINITY":
            return "-infinity"
        case _:
            raise UnfitError("is a special date that has no canonical text")


def _structured_date(value: Any) -> str:
    return _special(value) or temporal.civil_text(*_parts(value, "year", "month", "day"))


def _structured_time(value: Any) -> str:
    hour, minute, second, nanos = _parts(value, "hour", "minute", "second", "nanos")
    total = (hour * 60 + minute) * 60 + second
    return (
        temporal.time_text(total * 10**9 + nanos, 9)
        if nanos % 1000
        else temporal.time_text(total * 10**6 + nanos // 1000, 6)
    )


def _structured_timestamp(value: Any) -> str:
    if (end := _special(value)) is not None:
        return end
    date, _, bc = _structured_date(value).partition(" ")
    return f"{date}T{_structured_time(value)}{bc and ' BC'}"


def _structured_instant(value: Any) -> str:
    if (end := _special(value)) is not None:
        return end
    offset = value.get("offsetSeconds")
    if type(offset) is not int:
        raise UnfitError("is an instant without an offset")
    year, month, day, hour, minute, second, nanos = _parts(
        value, "year", "month", "day", "hour", "minute", "second", "nanos"
    )
    sign, (minutes, seconds) = "-" if offset < 0 else "+", divmod(abs(offset), 60)
    zone = f"{sign}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    fraction = f"{nanos:09}" if nanos % 1000 else f"{nanos // 1000:06}"
    # An ISO text may have a sign only before a year of more than four digits, or of before the year 0.
    iso = f"{year:05}" if year < 0 else f"{year:04}"
    return temporal.iso_timestamp_text(
        f"{iso}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction}{zone}", is_instant=True
    )


def _structured_duration(value: Any) -> str:
    years, months, days, hours, minutes, seconds, nanos = _parts(
        value, "years", "months", "days", "hours", "minutes", "seconds", "nanos"
    )
    total = seconds * 10**9 + nanos
    whole, rest = divmod(abs(total), 10**9)
    second = f"{'-' if total < 0 else ''}{whole}.{rest:09}"
    return temporal.duration_text(f"P{years}Y{months}M{days}DT{hours}H{minutes}M{second}S")


def _plain(read: Reader) -> Callable[[ConnectSchema], Reader]:
    return lambda schema: read


def _stamp(digits: int) -> Callable[[ConnectSchema], Reader]:
    return _plain(_number(lambda value: temporal.timestamp_text(value, digits)))


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
    _TIME + "ZonedTimestamp": ("string", _plain(_text(lambda t: temporal.iso_timestamp_text(t, is_instant=True)))),
    _TIME + "ZonedTime": ("string", _plain(_text(lambda t: temporal.iso_time_text(t, with_offset=True)))),
    _TIME + "Year": ("int32", _plain(_integer(32))),
    _TIME + "MicroDuration": ("int64", _span(6)),
    _TIME + "NanoDuration": ("int64", _span(9)),
    _TIME + "Interval": ("string", _plain(_text(temporal.duration_text))),
    _TIME + "IsoDate": ("string", _plain(_text(temporal.iso_date_text))),
    _TIME + "IsoTime": ("string", _plain(_text(_iso_time))),
    _TIME + "IsoTimestamp": ("string", _plain(_text(_iso_timestamp))),
    _TIME + "StructuredDate": ("struct", _plain(_structured_date)),
    _TIME + "StructuredTime": ("struct", _plain(_structured_time)),
    _TIME + "StructuredTimestamp": ("struct", _plain(_structured_timestamp)),
    _TIME + "StructuredZonedTimestamp": ("struct", _plain(_structured_instant)),
    _TIME + "StructuredDuration": ("struct", _plain(_structured_duration)),
    _DATA + "Bits": ("bytes", _bits),
    _DATA + "Json": ("string", _plain(text_itself)),
    _DATA + "Xml": ("string", _plain(text_itself)),
    _DATA + "Uuid": ("string", _plain(text_itself)),
    _DATA + "Ltree": ("string", _plain(text_itself)),
    _DATA + "Tsvector": ("string", _plain(text_itself)),
    _DATA + "Enum": ("string", _plain(text_itself)),
    _DATA + "EnumSet": ("string", _plain(text_itself)),
    _DATA + "VariableScaleDecimal": ("struct", _plain(_variable_scale)),
    _DATA + "geometry.Point": ("struct", _plain(_point)),
    _DATA + "geometry.Geometry": ("struct", _plain(_geometry)),
    _DATA + "geometry.Geography": ("struct", _plain(_geometry)),
    _DATA + "FloatVector": ("array", _plain(_vector)),
    _DATA + "DoubleVector": ("array", _plain(_vector)),
}
"""For each logical type, of which Connect type it is, and what makes its reader."""


_NANOS = frozenset({_TIME + "NanoTime", _TIME + "NanoTimestamp"})


def _kind(
    kind: Kind, precision: int | None = None, *, bits: int | None = None, name: str = ""
) -> Callable[[ConnectSchema], LogicalType]:
    made = LogicalType(kind, bits=bits, precision=precision, name=name)
    return lambda schema: made


def _decimal_kind(schema: ConnectSchema) -> LogicalType:
    precision = schema.parameters.get("connect.decimal.precision", "")
    scale = int(schema.parameters.get("scale", "0"))
    if scale in _PADDED_SCALES:
        return LogicalType(Kind.DECIMAL)
    return LogicalType(Kind.DECIMAL, precision=int(precision) if precision.isdecimal() else None, scale=scale)


def _bits_kind(schema: ConnectSchema) -> LogicalType:
    length = schema.parameters.get("length", "")
    return LogicalType(Kind.BITS, length=int(length) if length.isdecimal() else None)


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
