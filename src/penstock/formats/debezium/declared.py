"""Values of messages without schema: readers of columns, by what the source's column is, where that was told.

See `canonical` for what a reader is.

Where it was not, `plain_reader` takes only values that say themselves what they are. Neither asks what the target's
column is for what a value means: the target only says which of the plain forms it expects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

from penstock.formats import temporal
from penstock.formats.debezium.canonical import (
    array_reader,
    as_it_stands,
    base64_text,
    bit_text,
    boolean_text,
    geometry_text,
    hstore_text,
    point_text,
    text_itself,
    text_reader,
    timestamp_reader,
)
from penstock.formats.debezium.numbers import (
    NOT_A_NUMBER,
    PLAIN_NUMBER,
    Number,
    bytes_of,
    float32_text,
    float_text,
    integer_reader,
    number_text,
    unpadded_text,
    unscaled_number,
    variable_scale_text,
)
from penstock.formats.debezium.value_reader import Reader, UnfitError, WholeReader
from penstock.logical import Kind, LogicalType

_ANY_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,6})?", re.ASCII)
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*", re.ASCII)
_ZONE = re.compile(r":\d\d(?:\.\d+)?(Z|[+-]\d\d(?::?\d\d)*)(?:\[.*\])?$", re.ASCII)
"""The zone behind a clock."""

_DECIMALS = "say the connector's decimal.handling.mode as capture.debezium.decimals"

_URL_SAFE = str.maketrans("-_", "+/")

MYSQL_FAMILY = frozenset({"mysql", "mariadb", "vitess", "tidb"})
"""Connectors whose own `time.precision.mode` is `adaptive_time_microseconds`."""

_UNSIGNED_DIGITS = 19

_INTERVAL_DIGITS = {"postgresql": 6, "oracle": 6, "yugabytedb": 6, "informix": 6, "cassandra": 9}
"""Of how many digits of a second the intervals of a connector are, where they are numbers."""


class UnknownTypeError(UnfitError):
    """A value that reads in several ways, in a column whose type at the source nobody has told."""

    def __init__(self) -> None:
        super().__init__(
            "reads in several ways without a schema; say what the source's column is as capture.debezium.columns"
        )


@dataclass(frozen=True, slots=True)
class DeclaredModes:
    """Options of the connector that only tell in values whose message has no schema.

    Attributes:
        decimal: `decimal.handling.mode`.
        time: `time.precision.mode`; None is the connector's own default.
        binary: `binary.handling.mode`.
        arrays: How they are written, no option of the connector's: as JSON text, or as PostgreSQL writes them, which
            is also how a column that is known to be an array gets them.
        written: Those of `decimals` and `binary` that the pipeline file says, whatever values look like.
    """

    decimal: Literal["precise", "double", "string"] = "precise"
    time: (
        Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"] | None
    ) = None
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    arrays: Literal["json", "postgres"] = "json"
    written: frozenset[str] = frozenset()

    def time_of(self, connector: str) -> str:
        """Return the `time.precision.mode` of a connector."""
        return self.time or ("adaptive_time_microseconds" if connector in MYSQL_FAMILY else "adaptive")


def declared_reader(declared: LogicalType, modes: DeclaredModes, connector: str = "") -> Reader:
    """Make the reader of a column of which it was told what the source has there.

    Args:
        declared: With the precision and the scale that the source's column has.
        connector: Whose defaults hold for what `modes` leaves open.
    """
    match declared.kind:
        case Kind.BOOLEAN:
            return boolean_text
        case Kind.INTEGER:
            return integer_reader(declared.bits or 64, may_be_text=modes.decimal == "string")
        case Kind.DECIMAL:
            return _declared_decimal(declared, modes, connector)
        case Kind.FLOAT:
            return float32_text if declared.bits == 32 else float_text
        case Kind.BINARY:
            return {"hex": _from_hex, "base64-url-safe": _from_url_safe}.get(modes.binary, base64_text)
        case Kind.BITS:
            return bits_reader(declared.length)
        case Kind.DATE:
            return _either(temporal.date_text, temporal.iso_date_text)
        case Kind.TIME:
            unit = unit_of(declared, modes, connector)
            return _either(lambda n: temporal.time_text(n, unit), _wall(temporal.local_time_text))
        case Kind.TIMESTAMP:
            unit = unit_of(declared, modes, connector)
            # Oracle's DATE has days in this mode: its time of day is lost before.
            is_days = modes.time == "connect" and connector == "oracle" and declared.precision == 0
            of_text = _wall(temporal.local_timestamp_text)
            if is_days:
                return _either(lambda n: f"{temporal.date_text(n)}T00:00:00.000000", of_text)
            return timestamp_reader(_either(lambda n: temporal.timestamp_text(n, unit), of_text), unit)
        case Kind.TIMETZ:
            return text_reader(temporal.zoned_time_text)
        case Kind.TIMESTAMPTZ:
            return text_reader(temporal.zoned_timestamp_text)
        case Kind.INTERVAL:
            digits = _INTERVAL_DIGITS.get(connector)
            return _either(
                _untold if digits is None else lambda n: temporal.span_text(n, digits), temporal.duration_text
            )
        case Kind.ARRAY:
            element = declared.element
            read = as_it_stands if element is None else declared_reader(element, modes, connector)
            return array_reader(read, None if element is None else element.kind)
        case Kind.STRING | Kind.ENUM | Kind.UUID | Kind.XML:
            return text_itself
        case _:
            return plain_reader(declared, modes, connector)


def plain_reader(expected: LogicalType | None, modes: DeclaredModes, connector: str = "") -> Reader:
    """Make the reader of a column of which nobody has told what the source has there.

    It takes what says itself what it is: whole numbers, JSON numbers, texts, dates and times in ISO form. It raises
    `UnknownTypeError` for a value with several readings: a number that counts days or seconds, base64 of a decimal
    or of bytes.

    Args:
        expected: What the target has there, if it is known: it chooses the form that a plain value is written in.
    """
    if expected is None:
        return as_it_stands
    # An extension's type is in whichever schema the target has it.
    name = (expected.name or "").rpartition(".")[2]
    match expected.kind:
        case Kind.BOOLEAN:
            return boolean_text
        case Kind.INTEGER:
            return _plain_number(integer_reader(expected.bits or 64, may_be_text=modes.decimal == "string"), modes)
        case Kind.DECIMAL:
            # A column that is wider than 64 bits may stand for BIGINT UNSIGNED, whose larger half comes below zero.
            is_wide = connector in MYSQL_FAMILY and (
                expected.precision is None or expected.precision >= _UNSIGNED_DIGITS
            )
            return _plain_number(_declared_decimal(expected, modes, ""), modes, may_be_unsigned=is_wide)
        case Kind.FLOAT:
            return float32_text if expected.bits == 32 else float_text
        case Kind.BINARY:
            return _untold
        case Kind.BITS:
            return lambda value: ("0", "1")[value] if value is True or value is False else _untold(value)
        case Kind.DATE:
            return _either(_untold, temporal.iso_date_text)
        case Kind.TIME:
            return _either(_untold, _plain_wall(temporal.local_time_text, modes))
        case Kind.TIMESTAMP:
            return _either(_untold, _plain_wall(temporal.local_timestamp_text, modes))
        case Kind.TIMETZ:
            return text_reader(_plain_zoned(temporal.zoned_time_text, modes))
        case Kind.TIMESTAMPTZ:
            return _either(_untold, _plain_zoned(temporal.zoned_timestamp_text, modes))
        case Kind.INTERVAL:
            return _either(_untold, temporal.duration_text)
        case Kind.ARRAY:
            element = expected.element
            return array_reader(plain_reader(element, modes, connector), None if element is None else element.kind)
        case Kind.STRING | Kind.ENUM | Kind.UUID | Kind.XML:
            # A number in a column of text may count days or seconds.
            return _plain_text
        case Kind.OTHER if name in ("point", "geometry", "geography"):
            shape = point_text if name == "point" else geometry_text
            return lambda value: shape(value) if isinstance(value, dict) else as_it_stands(value)
        case Kind.OTHER if name == "hstore":
            return hstore_text
        case Kind.JSON | Kind.OTHER:
            return as_it_stands


def must_be_told(expected: LogicalType, modes: DeclaredModes) -> bool:
    """Whether values of a column of this type mostly read in several ways without a schema."""
    match expected.kind:
        case Kind.BINARY:
            return True
        case Kind.BITS:
            return expected.length != 1
        case Kind.DECIMAL:
            return modes.decimal == "precise"
        case Kind.DATE | Kind.TIME | Kind.TIMESTAMP:
            return modes.time != "isostring"
        case Kind.INTERVAL:
            return True
        case Kind.ARRAY:
            return expected.element is not None and must_be_told(expected.element, modes)
        case _:
            return False


def unit_of(declared: LogicalType, modes: DeclaredModes, connector: str) -> int:
    """Return of how many digits of a second the numbers of a time or timestamp are."""
    digits = declared.precision if declared.precision is not None else 6
    match modes.time_of(connector):
        case "connect":
            return 3
        case "microseconds":
            return 6
        case "nanoseconds":
            return 9
        case "adaptive_time_microseconds" if declared.kind is Kind.TIME:
            return 6
        case _:
            return 3 if digits <= 3 else 6 if digits <= 6 else 9


def bits_reader(length: int | None) -> Reader:
    """Make the reader of a string of bits, of so many or of any number; see `bit_text`."""

    def read(value: Any) -> str:
        # A single bit is a boolean in every connector.
        return ("0", "1")[value] if value is True or value is False else bit_text(bytes_of(value), length)

    return read


def looks_like_numbers(values: Iterable[Any]) -> bool:
    """Whether all of some values are texts of plain digits, as modes other than `precise` write decimals."""
    return all(type(value) is str and _ANY_NUMBER.fullmatch(value) for value in values)


def looks_like_hex(values: Iterable[Any]) -> bool:
    """Whether all of some values are hexadecimal digits, which base64 of bytes hardly ever is."""
    return all(type(value) is str and len(value) >= 4 and _HEX.fullmatch(value) for value in values)


def _declared_decimal(declared: LogicalType, modes: DeclaredModes, connector: str) -> Reader:
    scale = declared.scale
    if scale is not None and scale < 0 and connector == "postgresql":
        # Its connector writes a negative scale wrapped, and as many zeros; see `numbers.PADDED_SCALES`.
        scale += 2048

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
            raise UnknownTypeError
        try:
            return unpadded_text(unscaled_number(value), scale)
        except UnfitError as exc:
            if str(exc).startswith("has "):
                raise
            raise UnfitError(f"is not a decimal in bytes; {_DECIMALS}") from None

    return read


def _plain_number(read: Reader, modes: DeclaredModes, *, may_be_unsigned: bool = False) -> Reader:
    """Leave out texts that may be base64: with the digits of a decimal, they do not say its scale."""

    def checked(value: Any) -> str:
        if modes.decimal == "precise" and isinstance(value, str | bytes) and not isinstance(value, Number):
            raise UnknownTypeError
        if may_be_unsigned and type(value) is int and value < 0:
            raise UnknownTypeError
        return read(value)

    return replace(read, read=checked) if isinstance(read, WholeReader) else checked


def _untold(value: Any) -> str:
    raise UnknownTypeError


def _plain_text(value: Any) -> str:
    """Take a text; a number may count days or seconds."""
    if type(value) is str:
        return value
    raise UnknownTypeError


def _wall(read: Callable[[str], str]) -> Callable[[str], str]:
    """Take a text of a clock, behind which a `Z` is but decoration; another offset would be lost."""

    def checked(text: str) -> str:
        if (found := _ZONE.search(text)) and found[1] != "Z":
            raise UnfitError("has an offset, in a column that is said to have none")
        return read(text)

    return checked


def _plain_wall(read: Callable[[str], str], modes: DeclaredModes) -> Callable[[str], str]:
    """Take the text of a clock; with a zone it is one only where the connector writes such texts."""
    is_decoration = modes.time == "isostring"

    def checked(text: str) -> str:
        if (found := _ZONE.search(text)) and not (is_decoration and found[1] == "Z"):
            raise UnknownTypeError
        return read(text)

    return checked


def _plain_zoned(read: Callable[[str], str], modes: DeclaredModes) -> Callable[[str], str]:
    """Take the text of an instant; with `isostring` a `Z` may be decoration of a clock."""

    def checked(text: str) -> str:
        if modes.time == "isostring" and text.endswith("Z"):
            raise UnknownTypeError
        return read(text)

    return checked


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
