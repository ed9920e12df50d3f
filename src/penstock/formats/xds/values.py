"""Values of columns as XDS has them, from the texts that triggers log and from canonical text, and back.

| column | XDS type | text |
| --- | --- | --- |
| binary | `octet` | Base64 without line breaks |
| boolean | `state` | `true`, `false` |
| date, time, timestamp, timestamptz | `time` or `string` | as `TimeSyntax` says |
| integer | `int` | digits, without leading zeros |
| everything else | `string` | the text as it is |
"""

from __future__ import annotations

import binascii
import calendar
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import IntEnum

from penstock.formats.xds.event import Value
from penstock.formats.xds.writer import NOT_XML
from penstock.logical import Kind, LogicalType


class TimeSyntax(IntEnum):
    """How dates and times are written."""

    WHOLE = 0
    """As `READABLE`, and times of a day with their fraction, for who reads them again; in no document."""
    SECONDS = 1
    """Whole seconds since 1970 in UTC, as type `time`; fractions are cut off."""
    COMPACT = 2
    """`20240301083000500000000`, `20240301`, `083000`, as strings."""
    READABLE = 3
    """`2024-03-01 08:30:00.5`, `2024-03-01`, `08:30:00`, as strings."""


class UnreadableError(ValueError):
    """A text is not a value of its column's type; the message says why, and holds nothing of the text."""


Converter = Callable[[str], Value]
"""Turns a text, logged or canonical, into a value; raises `UnreadableError`."""

BLANKS = " \t\r\n\f\v"
"""What may stand around a number, a date or a boolean."""

_LINE_BREAKS = str.maketrans("", "", " \t\r\n")
"""What databases put into Base64."""

_TRUE = frozenset(("true", "t", "1", "yes", "y", "on"))
_FALSE = frozenset(("false", "f", "0", "no", "n", "off"))

_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")

_DATES = frozenset((Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ))

_MOMENT = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})?"
    r"(?:(?(date)[T ])(?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?)?"
    r"(?P<offset>Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)

_COMPACT = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})(?:([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{9}))?")

_COMPACT_TIME = re.compile(r"([0-9]{2})([0-9]{2})([0-9]{2})")


def converter(logical: LogicalType, syntax: TimeSyntax) -> Converter:
    """Return what turns texts of a column into XDS values.

    It takes what triggers log, and canonical text.
    """
    if logical.kind is Kind.BINARY:
        return lambda text: Value("octet", encode_octets(text))
    if logical.kind is Kind.BOOLEAN:
        return lambda text: Value("state", _state(text))
    if logical.kind is Kind.INTEGER:
        return lambda text: Value("int", normal_integer(text))
    if logical.kind in _DATES:
        return lambda text: _Moment.parse(text, logical.kind).value(logical.kind, syntax)
    if logical.kind in (Kind.DECIMAL, Kind.FLOAT):
        return lambda text: Value("string", _carried(text.strip(BLANKS)))
    if logical.is_padded:
        return lambda text: Value("string", _carried(text.rstrip(" ")))
    return lambda text: Value("string", _carried(text))


def canonical(logical: LogicalType, value: Value) -> str:
    """Return the canonical text of an XDS value in a column; reads times in every syntax.

    Raises:
        UnreadableError: It is not a value of such a column.
    """
    if logical.kind is Kind.BINARY:
        return encode_octets(value.text)
    if logical.kind is Kind.BOOLEAN:
        return _state(value.text)
    if logical.kind is Kind.INTEGER:
        return normal_integer(value.text)
    if logical.kind in _DATES:
        return _Moment.read(value, logical.kind).canonical(logical.kind)
    return value.text


def normal_integer(text: str) -> str:
    """Return an integer without blanks around it, leading zeros or a plus sign.

    Raises:
        UnreadableError: It is none.
    """
    stripped = text.strip(BLANKS)
    if _INTEGER.fullmatch(stripped) is None:
        raise UnreadableError("is no integer")
    return str(int(stripped))


def encode_octets(text: str) -> str:
    """Return Base64 without the white space that databases put into it.

    Raises:
        UnreadableError: It is not padded Base64 of the standard alphabet.
    """
    packed = unbroken(text)
    if len(packed) % 4:
        # What is padded twice would be taken.
        raise UnreadableError("is not padded Base64 of the standard alphabet")
    try:
        return binascii.b2a_base64(binascii.a2b_base64(packed, strict_mode=True), newline=False).decode()
    except (binascii.Error, ValueError) as exc:
        raise UnreadableError("is not padded Base64 of the standard alphabet") from exc


def unbroken(text: str) -> str:
    """Return Base64 without blanks, tabs and line breaks; any other white space is none of Base64."""
    return text.translate(_LINE_BREAKS)


def _state(text: str) -> str:
    word = text.strip(BLANKS).lower()
    if word in _TRUE:
        return "true"
    if word in _FALSE:
        return "false"
    raise UnreadableError("is no boolean")


def _carried(text: str) -> str:
    if NOT_XML.search(text) is not None:
        raise UnreadableError("holds a character that XML cannot carry")
    return text


@dataclass(frozen=True, slots=True)
class _Moment:
    """A date, a time, or both, in UTC where there was an offset; `nanos` has nine digits."""

    day: date
    clock: time
    nanos: str

    @classmethod
    def parse(cls, text: str, kind: Kind) -> _Moment:
        """Read `yyyy-mm-dd hh:mm:ss.f` with up to nine decimals, `T` in place of the blank, or a part of it."""
        found = _MOMENT.fullmatch(text.strip(BLANKS))
        is_whole = found is not None and (found["time"] if kind is Kind.TIME else found["date"]) is not None
        if found is None or not is_whole or (found["offset"] and (kind is not Kind.TIMESTAMPTZ or not found["time"])):
            raise UnreadableError(f"is no {kind}, as yyyy-mm-dd hh:mm:ss.f")
        try:
            day = date.fromisoformat(found["date"] or "1970-01-01")
            clock = time.fromisoformat(found["time"] or "00:00:00")
            moment = datetime.combine(day, clock) - _offset(found["offset"])
        except (ValueError, OverflowError) as exc:
            raise UnreadableError(f"is no {kind} that there is") from exc
        return cls(moment.date(), moment.time(), (found["fraction"] or "").ljust(9, "0"))

    @classmethod
    def read(cls, value: Value, kind: Kind) -> _Moment:
        """Read an XDS value, in whichever syntax it is written."""
        text = value.text.strip(BLANKS)
        try:
            if value.type == "time":
                moment = datetime(1970, 1, 1) + timedelta(seconds=int(normal_integer(text)))
                return cls(moment.date(), moment.time(), "0" * 9)
            found = _COMPACT.fullmatch(text)
            if found is not None and kind is not Kind.TIME:
                year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
                return cls(date(year, month, day), time(hour, minute, second), found[7] or "0" * 9)
            found = _COMPACT_TIME.fullmatch(text)
            if found is not None and kind is Kind.TIME:
                hour, minute, second = map(int, found.groups())
                return cls(date(1970, 1, 1), time(hour, minute, second), "0" * 9)
        except (ValueError, OverflowError) as exc:
            raise UnreadableError(f"is no {kind} that there is") from exc
        return cls.parse(text, kind)

    def value(self, kind: Kind, syntax: TimeSyntax) -> Value:
        """Write it as a value of a column."""
        if syntax is TimeSyntax.SECONDS:
            day = date(1970, 1, 1) if kind is Kind.TIME else self.day
            clock = time() if kind is Kind.DATE else self.clock
            return Value("time", str(calendar.timegm((*day.timetuple()[:3], clock.hour, clock.minute, clock.second))))
        if syntax is TimeSyntax.COMPACT:
            day_text, clock_text = self.day.isoformat().replace("-", ""), self.clock.isoformat().replace(":", "")
            both = f"{day_text}{clock_text}{self.nanos}"
        else:
            day_text, clock_text = self.day.isoformat(), self.clock.isoformat()
            fraction = f".{self.nanos.rstrip('0') or '0'}"
            both = f"{day_text} {clock_text}{fraction}"
            if syntax is TimeSyntax.WHOLE:
                clock_text += fraction
        return Value("string", {Kind.DATE: day_text, Kind.TIME: clock_text}.get(kind, both))

    def canonical(self, kind: Kind) -> str:
        """Write it as canonical text; what is finer than a microsecond is cut off."""
        clock = f"{self.clock.isoformat()}.{self.nanos[:6]}"
        match kind:
            case Kind.DATE:
                return self.day.isoformat()
            case Kind.TIME:
                return clock
            case Kind.TIMESTAMPTZ:
                return f"{self.day.isoformat()}T{clock}+00:00"
            case _:
                return f"{self.day.isoformat()}T{clock}"


def _offset(text: str | None) -> timedelta:
    if text is None or text == "Z":
        return timedelta(0)
    digits = text[1:].replace(":", "").ljust(4, "0")
    sign = -1 if text[0] == "-" else 1
    return sign * timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
