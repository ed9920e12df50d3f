"""Logical types: what a column holds, in words that no database has for its own.

A type has a text form, in which definitions of tables name it, and which reads back as the same type:

| text form | canonical text of a value, see `values` |
| --- | --- |
| `boolean` | `true`, `false` |
| `integer(32)`: so many bits, with a sign | plain digits |
| `decimal`, `decimal(10,2)`: precision and scale | plain digits; `NaN`, `Infinity`, `-Infinity` |
| `float(32)`, `float(64)`: so many bits | the shortest digits that read back the same; the same three words |
| `string`, `string(20)`: so many characters; `string(20,padded)` | the text; of a padded one with its blanks |
| `binary` | base64 without line breaks |
| `date` | `2024-01-02` |
| `time`, `time(3)`: so many decimals of a second | `03:04:05.678000`: six decimals, finer ones as needed |
| `timetz`, `timetz(3)` | the same with its offset, `+05:30` |
| `timestamp`, `timestamp(3)` | `2024-01-02T03:04:05.678000` |
| `timestamptz`, `timestamptz(3)` | the same in UTC, ending in `+00:00` |
| `interval` | ISO 8601 duration, `P1M-3DT4H5M6.7S` |
| `json`, `xml` | the source's own text of it |
| `uuid` | 32 hexadecimal digits in small letters, with four hyphens |
| `bits`, `bits(8)`: exactly so many | `01000001` |
| `enum('red','green')` | the label |
| `array(integer(32))` | the source's own text; PostgreSQL's is `{1,2,NULL}` |
| `other('inet')`: what the source calls it | the source's own text |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NoReturn

from penstock.errors import MalformedInputError

_KEPT = 4096
"""How many texts are remembered: a database has many columns, and few types."""


class Kind(StrEnum):
    """What sort of values a column holds."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIME = "time"
    TIMETZ = "timetz"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    INTERVAL = "interval"
    JSON = "json"
    UUID = "uuid"
    XML = "xml"
    BITS = "bits"
    ENUM = "enum"
    ARRAY = "array"
    OTHER = "other"


@dataclass(frozen=True)
class LogicalType:
    """What a column holds.

    Attributes:
        bits: Of an integer or float: 8, 16, 24, 32 or 64.
        precision: Of a decimal, how many digits; of a time, how many decimals its seconds have. None where the type
            sets no limit of its own.
        scale: Of a decimal, how many of its digits stand behind the point; None where each value has its own scale.
        length: How many characters a string has at most, or how many bits there are; None without a limit.
        is_padded: Blanks at the end of a string mean nothing.
        values: The labels of an enum, in order.
        element: What the elements of an array are.
        name: What the source calls a type that is none of these.
    """

    kind: Kind
    bits: int | None = None
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    is_padded: bool = False
    values: tuple[str, ...] = ()
    element: LogicalType | None = None
    name: str = ""

    def __str__(self) -> str:
        match self.kind:
            case Kind.ENUM:
                parts: Iterable[object] = map(_quoted, self.values)
            case Kind.ARRAY:
                parts = [self.element]
            case Kind.OTHER:
                parts = [_quoted(self.name)]
            case _:
                numbers = (self.bits, self.precision, self.scale, self.length)
                parts = [*(n for n in numbers if n is not None), *(["padded"] if self.is_padded else [])]
        joined = ",".join(map(str, parts))
        return f"{self.kind}({joined})" if joined else str(self.kind)

    @classmethod
    @lru_cache(_KEPT)
    def parse(cls, text: str) -> LogicalType:
        """Read the text form; a name that SQL has for a type is read, too, see `of_sql_name`.

        Raises:
            MalformedInputError: It is neither.
        """
        try:
            type_, rest = _read(_tokens(text), text)
            if rest:
                _refuse(text)
        except MalformedInputError:
            named = of_sql_name(text)
            if named is None:
                raise
            return named
        return type_

    def is_finer_than(self, decimals: int) -> bool:
        """Whether values may have more decimals of a second than so many."""
        if self.element is not None:
            return self.element.is_finer_than(decimals)
        is_time = self.kind in (Kind.TIME, Kind.TIMETZ, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
        return is_time and self.precision is not None and self.precision > decimals

    @property
    def is_text(self) -> bool:
        """Whether values are texts to every database but perhaps their own."""
        return self.kind in (Kind.STRING, Kind.ENUM, Kind.OTHER)

    @property
    def is_comparable(self) -> bool:
        """Whether every database can tell whether two values are equal."""
        if self.element is not None:
            return self.element.is_comparable
        return self.kind not in (Kind.JSON, Kind.XML, Kind.OTHER)

    @property
    def is_exact(self) -> bool:
        """Whether equal values have equal canonical text."""
        match self.kind:
            case Kind.DECIMAL:
                return self.scale is not None
            case Kind.STRING:
                return not self.is_padded or self.length is not None
            case Kind.ARRAY:
                return self.element is not None and self.element.is_exact
            case _:
                return self.is_comparable and self.kind not in (Kind.FLOAT, Kind.INTERVAL)


BOOLEAN = LogicalType(Kind.BOOLEAN)
STRING = LogicalType(Kind.STRING)
BINARY = LogicalType(Kind.BINARY)
DATE = LogicalType(Kind.DATE)
INTERVAL = LogicalType(Kind.INTERVAL)
JSON = LogicalType(Kind.JSON)
UUID = LogicalType(Kind.UUID)
XML = LogicalType(Kind.XML)


COMMON_TEXT = frozenset(
    (Kind.BOOLEAN, Kind.INTEGER, Kind.DECIMAL, Kind.STRING, Kind.UUID, Kind.JSON, Kind.ENUM, Kind.OTHER)
)
"""Kinds whose canonical text says the same in a column of any type."""


def integer(bits: int) -> LogicalType:
    """An integer with a sign, of so many bits."""
    return LogicalType(Kind.INTEGER, bits=bits)


def decimal(precision: int | None = None, scale: int | None = None) -> LogicalType:
    """A decimal; without a precision, of any size."""
    return LogicalType(Kind.DECIMAL, precision=precision, scale=scale)


def floating(bits: int) -> LogicalType:
    """A binary floating-point number of so many bits."""
    return LogicalType(Kind.FLOAT, bits=bits)


def string(length: int | None = None, *, is_padded: bool = False) -> LogicalType:
    """A string of at most so many characters."""
    return LogicalType(Kind.STRING, length=length, is_padded=is_padded)


def array(element: LogicalType) -> LogicalType:
    """An array of elements of one type, of any number of dimensions."""
    return LogicalType(Kind.ARRAY, element=element)


def other(name: str) -> LogicalType:
    """A type that only its own database knows, by the name that it has there."""
    return LogicalType(Kind.OTHER, name=name)


@lru_cache(_KEPT)
def of_sql_name(text: str) -> LogicalType | None:
    """Return the type that SQL calls so, by itself or with a length: `numeric(10,2)`; None where it is none of these.

    The names are those of the standard, the short ones that most databases take besides, and `text`, `bytea`, `money`:
    what people write by hand, and what definitions of earlier versions say.
    """
    if text.endswith("[]"):
        element = of_sql_name(text.removesuffix("[]"))
        return None if element is None else array(element)
    found = _SQL_NAME.fullmatch(text.strip().lower())
    if found is None:
        return None
    name = " ".join(part.strip() for part in (found["name"], found["zone"] or "") if part)
    sizes = [int(size) for size in found["sizes"].split(",")] if found["sizes"] else []
    if name in _SIMPLE:
        return None if sizes else _SIMPLE[name]
    size = sizes[0] if sizes else None
    match name:
        case "numeric" | "decimal":
            return decimal(size, sizes[1] if len(sizes) > 1 else None if size is None else 0)
        case "text" | "character varying" | "varchar":
            return string(size)
        case "character" | "char":
            return string(size or 1, is_padded=True)
        case "bpchar":
            return string(size, is_padded=True)
        case "bit":
            return LogicalType(Kind.BITS, length=size or 1)
        case "bit varying":
            # With a length or without: a shorter value is not padded.
            return LogicalType(Kind.BITS)
        case _ if name in _TIMES:
            return LogicalType(_TIMES[name], precision=size)
    return INTERVAL if name.startswith("interval") else None


_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|[a-z]+|-?[0-9]+|[(),])\s*")

_SQL_NAME = re.compile(
    r"(?P<name>[a-z][a-z0-9 ]*?)\s*(?:\((?P<sizes>-?\d+(?:,\s*-?\d+)?)\))?(?P<zone> with(?:out)? time zone)?"
)

_SIMPLE = {
    "boolean": BOOLEAN,
    "bool": BOOLEAN,
    "smallint": integer(16),
    "integer": integer(32),
    "int": integer(32),
    "bigint": integer(64),
    "real": floating(32),
    "double precision": floating(64),
    "double": floating(64),
    "money": decimal(19, 2),
    "oid": decimal(10, 0),
    "bytea": BINARY,
    "date": DATE,
    "uuid": UUID,
    "json": JSON,
    "jsonb": JSON,
    "xml": XML,
}

_TIMES = {
    "time": Kind.TIME,
    "time without time zone": Kind.TIME,
    "time with time zone": Kind.TIMETZ,
    "timetz": Kind.TIMETZ,
    "timestamp": Kind.TIMESTAMP,
    "timestamp without time zone": Kind.TIMESTAMP,
    "timestamp with time zone": Kind.TIMESTAMPTZ,
    "timestamptz": Kind.TIMESTAMPTZ,
}

_NUMBERS: dict[Kind, tuple[str, ...]] = {
    Kind.INTEGER: ("bits",),
    Kind.FLOAT: ("bits",),
    Kind.DECIMAL: ("precision", "scale"),
    Kind.STRING: ("length",),
    Kind.BITS: ("length",),
    **dict.fromkeys((Kind.TIME, Kind.TIMETZ, Kind.TIMESTAMP, Kind.TIMESTAMPTZ), ("precision",)),
}


def _tokens(text: str) -> Sequence[str]:
    tokens, place = [], 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            _refuse(text)
        tokens.append(found[1])
        place = found.end()
    return tokens


def _read(tokens: Sequence[str], text: str) -> tuple[LogicalType, Sequence[str]]:
    """Read a type at the beginning of tokens; returns it, and the tokens behind it."""
    if not tokens or tokens[0] not in set(Kind):
        _refuse(text)
    kind, rest = Kind(tokens[0]), tokens[1:]
    if kind is Kind.ARRAY:
        if rest[:1] != ["("]:
            _refuse(text)
        element, rest = _read(rest[1:], text)
        if rest[:1] != [")"]:
            _refuse(text)
        return array(element), rest[1:]
    parts: Sequence[str] = []
    if rest[:1] == ["("]:
        if ")" not in rest:
            _refuse(text)
        end = rest.index(")")
        if end % 2 or any(comma != "," for comma in rest[2:end:2]):
            _refuse(text)
        parts, rest = rest[1:end:2], rest[end + 1 :]
    return _made(kind, parts, text), rest


def _made(kind: Kind, parts: Sequence[str], text: str) -> LogicalType:
    if kind in (Kind.ENUM, Kind.OTHER):
        if not all(part.startswith("'") for part in parts) or (kind is Kind.OTHER and len(parts) != 1):
            _refuse(text)
        words = tuple(part[1:-1].replace("''", "'") for part in parts)
        return LogicalType(kind, values=words) if kind is Kind.ENUM else other(words[0])
    is_padded = kind is Kind.STRING and parts[-1:] == ["padded"]
    numbers = parts[:-1] if is_padded else parts
    names = _NUMBERS.get(kind, ())
    if len(numbers) > len(names) or not all(part.removeprefix("-").isdecimal() for part in numbers):
        _refuse(text)
    if "bits" in names and not numbers:
        _refuse(text)
    sizes: dict[str, int] = dict(zip(names, map(int, numbers), strict=False))
    return LogicalType(
        kind,
        bits=sizes.get("bits"),
        precision=sizes.get("precision"),
        scale=sizes.get("scale"),
        length=sizes.get("length"),
        is_padded=is_padded,
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _refuse(text: str) -> NoReturn:
    raise MalformedInputError(
        f"{text!r} is not a logical type", do="name one as `integer(32)`, `decimal(10,2)`, `string`, `timestamptz`"
    )
