"""Readers of columns of which the pipeline, and no schema in a message, says what they hold; see `canonical`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from penstock.formats.debezium import temporal
from penstock.formats.debezium.canonical import (
    NOT_A_NUMBER,
    PLAIN_NUMBER,
    Reader,
    UnfitError,
    array_reader,
    as_it_stands,
    base64_text,
    bit_text,
    boolean_text,
    bytes_of,
    decimal_text,
    float32_text,
    float_text,
    geometry_text,
    integer_reader,
    number_text,
    point_text,
    text_itself,
    text_reader,
    unscaled_number,
    variable_scale_text,
)
from penstock.logical import Kind, LogicalType

_ANY_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,6})?", re.ASCII)
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*", re.ASCII)

_DECIMALS = "say the connector's decimal.handling.mode as capture.debezium.decimals"

_URL_SAFE = str.maketrans("-_", "+/")


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
            return boolean_text
        case Kind.INTEGER:
            return integer_reader(declared.bits or 64, may_be_text=modes.decimal == "string")
        case Kind.DECIMAL:
            return _declared_decimal(declared.scale, modes)
        case Kind.FLOAT:
            return float32_text if declared.bits == 32 else float_text
        case Kind.BINARY:
            return {"hex": _from_hex, "base64-url-safe": _from_url_safe}.get(modes.binary, base64_text)
        case Kind.BITS:
            return bits_reader(declared.length)
        case Kind.DATE:
            return _either(temporal.date_text, temporal.iso_date_text)
        case Kind.TIME:
            unit = _unit(modes.time, digits, is_time=True)
            return _either(lambda n: temporal.time_text(n, unit), temporal.local_time_text)
        case Kind.TIMESTAMP:
            unit = _unit(modes.time, digits, is_time=False)
            return _either(lambda n: temporal.timestamp_text(n, unit), temporal.local_timestamp_text)
        case Kind.TIMETZ:
            return text_reader(temporal.zoned_time_text)
        case Kind.TIMESTAMPTZ:
            return text_reader(temporal.zoned_timestamp_text)
        case Kind.INTERVAL:
            return _either(lambda n: temporal.span_text(n, 6), temporal.duration_text)
        case Kind.ARRAY:
            kind = declared.element.kind if declared.element is not None else None
            return array_reader(declared_reader(declared.element, modes), kind)
        case Kind.STRING | Kind.ENUM | Kind.UUID | Kind.XML:
            return text_itself
        case Kind.OTHER if declared.name in ("point", "geometry", "geography"):
            shape = point_text if declared.name == "point" else geometry_text
            return lambda value: shape(value) if isinstance(value, dict) else as_it_stands(value)
        case Kind.JSON | Kind.OTHER:
            return as_it_stands


def bits_reader(length: int | None) -> Reader:
    """Make the reader of a string of bits, of so many or of any number; see `bit_text`."""

    def read(value: Any) -> str:
        # A single bit is a boolean in every connector.
        return ("0", "1")[value] if value is True or value is False else bit_text(bytes_of(value), length)

    return read


def _declared_decimal(scale: int | None, modes: Modes) -> Reader:
    def read(value: Any) -> str:
        if (number := number_text(value)) is not None:
            return number
        if isinstance(value, dict):
            return variable_scale_text(value)
        if type(value) is not str and not isinstance(value, bytes):
            raise UnfitError("is not a decimal")
        if modes.decimal != "precise" and type(value) is str:
            if value in NOT_A_NUMBER:
                return NOT_A_NUMBER[value]
            if not _ANY_NUMBER.fullmatch(value):
                raise UnfitError(f"is not a decimal; {_DECIMALS}")
            return value if PLAIN_NUMBER.fullmatch(value) else f"{Decimal(value):f}"
        if scale is None:
            raise UnfitError("is a decimal of which neither the message nor the table's description has the scale")
        try:
            return decimal_text(unscaled_number(value), scale)
        except ValueError:
            raise UnfitError(f"is not a decimal in bytes; {_DECIMALS}") from None

    return read


def _from_hex(value: Any) -> str:
    if isinstance(value, bytes):
        return base64_text(value)
    if type(value) is not str or not _HEX.fullmatch(value):
        raise UnfitError("is not hexadecimal; say the connector's binary.handling.mode as capture.debezium.binary")
    return base64_text(bytes.fromhex(value))


def _from_url_safe(value: Any) -> str:
    return base64_text(bytes_of(value.translate(_URL_SAFE) if type(value) is str else value))


def _either(of_number: Callable[[int], str], of_text: Callable[[str], str]) -> Reader:
    def read(value: Any) -> str:
        if type(value) is int:
            return of_number(value)
        if type(value) is str:
            return of_text(value)
        raise UnfitError("is neither a whole number nor a text")

    return read


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
