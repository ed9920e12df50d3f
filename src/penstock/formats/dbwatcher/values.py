r"""Values of columns as messages have them, from canonical text, and back.

A message has what the output function of the column's type writes in PostgreSQL, with the time zone UTC and intervals
in ISO 8601. So most values are canonical text as they are; these differ:

| column | in a message | canonical |
| --- | --- | --- |
| string(5,padded) | with blanks up to its length | without them |
| binary | Base64, marked as such | Base64 |
| inet, of one address | `10.0.0.1` | `10.0.0.1/32` |
| time | `03:04:05.678` | `03:04:05.678000` |
| timetz | `03:04:05.678+00` | `03:04:05.678000+00:00` |
| timestamp | `2024-01-02 03:04:05.678` | `2024-01-02T03:04:05.678000` |
| timestamptz | `2024-01-02 03:04:05.678+00` | `2024-01-02T03:04:05.678000+00:00` |

What reads them also takes what other watchers write: `t` and `1` for true, a timestamptz without an offset (it is UTC)
or with another one, a date with the time of midnight, intervals as PostgreSQL writes them by default, numbers that
begin with the point, binary as hexadecimal digits after `\x`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import TypeAlias

from penstock.formats import temporal
from penstock.formats.dbwatcher.protect import base64_of, text_of
from penstock.logical import Kind, LogicalType

Writer: TypeAlias = Callable[[str], str | bytes]
Reader: TypeAlias = Callable[[str | bytes], str]


class UnreadableValueError(ValueError):
    """A text is not a value of its column's type; the message says why, and holds nothing of the text."""


def writer_of(logical: LogicalType) -> Writer | None:
    """Return what turns canonical text of a type into a value; None where they are the same.

    What it returns raises `UnreadableValueError` for a text that is no canonical text of the type.
    """
    if logical.is_padded and logical.length is not None:
        return partial(_write_padded, logical.length)
    if logical == _INET:
        return _write_inet
    return _WRITERS.get(logical.kind)


def reader_of(logical: LogicalType) -> Reader:
    """Return what turns a value into canonical text of a type.

    What it returns raises `UnreadableValueError` for what is not a value of the type.
    """
    if logical.is_padded:
        return _read_padded
    return _read_inet if logical == _INET else _READERS.get(logical.kind, text_of)


def untyped_text(value: str | bytes) -> str:
    """Return the value of a column of which nothing is known: a text, or Base64 where the bytes are not text."""
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return base64_of(value)


def _write_padded(length: int, text: str) -> str:
    return text.ljust(length)


def _read_padded(value: str | bytes) -> str:
    return text_of(value).rstrip(" ")


def _write_inet(text: str) -> str:
    """Leave out the mask of a single address."""
    return text.removesuffix("/128" if ":" in text else "/32")


def _read_inet(value: str | bytes) -> str:
    text = text_of(value)
    return text if "/" in text else f"{text}/{128 if ':' in text else 32}"


def _write_binary(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True) if text else b""
    except ValueError:
        raise UnreadableValueError("is not Base64") from None


def _write_time(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _write_timetz(text: str) -> str:
    found = _OFFSET.fullmatch(text)
    if found is None:
        raise UnreadableValueError("is no time with an offset")
    clock, sign, offset = found.groups()
    return f"{_write_time(clock)}{sign}{offset.removesuffix(':00') if len(offset) == 5 else offset}"


def _write_timestamp(text: str) -> str:
    if text.endswith(" BC"):
        return f"{_write_timestamp(text[:-3])} BC"
    return _write_time(text.replace("T", " ", 1))


def _write_timestamptz(text: str) -> str:
    if text.endswith("infinity"):
        return text
    if text.endswith(" BC"):
        return f"{_write_timestamptz(text[:-3])} BC"
    return f"{_write_time(text.removesuffix('+00:00').replace('T', ' ', 1))}+00"


_OFFSET = re.compile(r"([0-9:.]+)([+-])([0-9:]+)")

_WRITERS: dict[Kind, Writer] = {
    Kind.BINARY: _write_binary,
    Kind.TIME: _write_time,
    Kind.TIMETZ: _write_timetz,
    Kind.TIMESTAMP: _write_timestamp,
    Kind.TIMESTAMPTZ: _write_timestamptz,
}

_BOOLEANS = {
    **dict.fromkeys(("true", "t", "1", "yes", "y", "on"), "true"),
    **dict.fromkeys(("false", "f", "0", "no", "n", "off"), "false"),
}


def _read_boolean(value: str | bytes) -> str:
    if value in ("true", "false"):
        return str(value)
    found = _BOOLEANS.get(text_of(value).strip().lower())
    if found is None:
        raise UnreadableValueError("is no boolean")
    return found


def _read_binary(value: str | bytes) -> str:
    if isinstance(value, str):
        if not value.startswith("\\x") and value:
            raise UnreadableValueError("is neither Base64 nor hexadecimal digits after \\x")
        try:
            value = bytes.fromhex(value[2:])
        except ValueError:
            raise UnreadableValueError("has something else than hexadecimal digits after \\x") from None
    return base64_of(value)


_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_LOOSE_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_NOT_FINITE = frozenset(("NaN", "Infinity", "-Infinity"))


def _read_integer(value: str | bytes) -> str:
    if type(value) is str and value.isascii() and value.isdecimal():
        return value
    text = text_of(value)
    if _INTEGER.fullmatch(text):
        return text
    found = _read_decimal(text).partition(".")
    if found[2].strip("0") or found[0] in _NOT_FINITE:
        raise UnreadableValueError("is not a whole number")
    return found[0]


def _read_decimal(value: str | bytes) -> str:
    if type(value) is str and _NUMBER.fullmatch(value):
        return value
    text = text_of(value)
    if text in _NOT_FINITE or _NUMBER.fullmatch(text):
        return text
    text = text.strip()
    if _LOOSE_NUMBER.fullmatch(text) is None:
        raise UnreadableValueError("is not a number")
    try:
        return f"{Decimal(text):f}"
    except InvalidOperation:
        raise UnreadableValueError("is not a number") from None


def _read_float(value: str | bytes) -> str:
    text = text_of(value)
    if text in _NOT_FINITE or _LOOSE_NUMBER.fullmatch(text):
        return text
    raise UnreadableValueError("is not a number")


_PLAIN_TIMESTAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(\+00)?")

_MIDNIGHT = re.compile(r"[ T]00:00:00(?:\.0+)?")


def _read_date(value: str | bytes) -> str:
    text = text_of(value)
    date, rest = text[:10], text[10:]
    if rest and _MIDNIGHT.fullmatch(rest):
        text = date
    return _checked(temporal.iso_date_text, text, "date")


def _read_time(value: str | bytes) -> str:
    return _checked(temporal.local_time_text, text_of(value), "time")


def _read_timetz(value: str | bytes) -> str:
    return _checked(temporal.zoned_time_text, text_of(value), "time with an offset")


def _read_timestamp(value: str | bytes) -> str:
    text = text_of(value)
    found = _PLAIN_TIMESTAMP.fullmatch(text)
    if found is None or found[4] or text.startswith("0000"):
        return _checked(temporal.local_timestamp_text, text, "timestamp")
    return _plain_timestamp(found, "")


def _read_timestamptz(value: str | bytes) -> str:
    text = text_of(value)
    found = _PLAIN_TIMESTAMP.fullmatch(text)
    if found is None or text.startswith("0000"):
        if text.endswith(" BC"):
            return _checked(temporal.zoned_timestamp_text, text, "timestamp with an offset")
        is_local = _ENDS_IN_OFFSET.search(text) is None and not text.endswith("infinity")
        return _checked(temporal.zoned_timestamp_text, f"{text}Z" if is_local else text, "timestamp with an offset")
    return _plain_timestamp(found, "+00:00")


_ENDS_IN_OFFSET = re.compile(r":[0-9.]+ ?(?:Z|[+-][0-9:]+)$")


def _plain_timestamp(found: re.Match[str], offset: str) -> str:
    date, clock, fraction = found[1], found[2], found[3] or ""
    try:
        # It raises for the 31st of June.
        datetime.fromisoformat(f"{date}T{clock}")
    except ValueError:
        raise UnreadableValueError("is no date and time that there is") from None
    decimals = fraction.ljust(6, "0") if len(fraction) <= 6 else fraction[:6] + fraction[6:].rstrip("0")
    return f"{date}T{clock}.{decimals}{offset}"


def _checked(read: Callable[[str], str], text: str, what: str) -> str:
    # Years before the year 1 have a sign in ISO 8601, and are one less: it has a year 0.
    if text.endswith(" BC"):
        year, hyphen, rest = text[:-3].partition("-")
        if not (year.isascii() and year.isdecimal() and len(year) <= 9):
            raise UnreadableValueError(f"is no {what}")
        text = f"-{int(year) - 1:04}{hyphen}{rest}" if int(year) > 1 else f"0000{hyphen}{rest}"
    try:
        return read(text)
    except ValueError:
        raise UnreadableValueError(f"is no {what}") from None


_SPAN = re.compile(
    r"(?:(?P<years>[+-]?[0-9]{1,19}) years?)? ?(?:(?P<months>[+-]?[0-9]{1,19}) mons?)? ?"
    r"(?:(?P<days>[+-]?[0-9]{1,19}) days?)? ?"
    r"(?:(?P<sign>[+-]?)(?P<hours>[0-9]{1,19}):(?P<minutes>[0-9]{2}):(?P<seconds>[0-9]{2})(?:\.(?P<fraction>[0-9]+))?)?"
)


def _read_interval(value: str | bytes) -> str:
    text = text_of(value)
    if text.startswith(("P", "-P")):
        return text
    if text in ("infinity", "-infinity"):
        return text
    found = _SPAN.fullmatch(text)
    if found is None or not text:
        raise UnreadableValueError("is no interval")
    minus = "-" if found["sign"] == "-" else ""
    calendar = ((found["years"], "Y"), (found["months"], "M"), (found["days"], "D"))
    date = "".join(f"{int(number)}{unit}" for number, unit in calendar if number and int(number))
    clock = "".join(f"{minus}{int(found[p])}{u}" for p, u in (("hours", "H"), ("minutes", "M")) if int(found[p] or 0))
    decimals = (found["fraction"] or "").rstrip("0")
    if int(found["seconds"] or 0) or decimals:
        clock += f"{minus}{int(found['seconds'])}{'.' if decimals else ''}{decimals}S"
    return f"P{date}{'T' if clock else ''}{clock}" if date or clock else "PT0S"


_INET = LogicalType(Kind.OTHER, name="inet")

_READERS: dict[Kind, Reader] = {
    Kind.BOOLEAN: _read_boolean,
    Kind.INTEGER: _read_integer,
    Kind.DECIMAL: _read_decimal,
    Kind.FLOAT: _read_float,
    Kind.BINARY: _read_binary,
    Kind.DATE: _read_date,
    Kind.TIME: _read_time,
    Kind.TIMETZ: _read_timetz,
    Kind.TIMESTAMP: _read_timestamp,
    Kind.TIMESTAMPTZ: _read_timestamptz,
    Kind.INTERVAL: _read_interval,
}
