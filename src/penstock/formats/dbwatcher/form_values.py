"""Values of columns in rows of the usual form: which texts a type has there, and what they are as canonical text.

A value comes as it stands behind the name of its column, up to the end of the element: `>first</col>`,
` type="null"/>`, or ` encoding="base64">AP8=</col>`; in an old image, as the same escaped.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from penstock.change import Image
from penstock.formats.dbwatcher.protect import text_of
from penstock.formats.dbwatcher.values import reader_of, untyped_text
from penstock.formats.dbwatcher.writer import escaped_content, unescaped_content
from penstock.logical import Kind, LogicalType

BASE64 = r"(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?+"
"""Padded, without white space, and without bits behind the last byte: there is one text for the same bytes."""

_DIGITS = "[0-9]++"
_DATE = (
    "(?!0000)[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
"""Every day but the 29th of February, which the parser has to look at."""

_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9}+)?+"

TYPED: Mapping[Kind, str] = {
    Kind.BOOLEAN: "(?:true|false|[tf01])",
    Kind.INTEGER: f"-?{_DIGITS}",
    Kind.DECIMAL: rf"-?{_DIGITS}(?:\.{_DIGITS})?+",
    Kind.FLOAT: rf"[+-]?{_DIGITS}(?:\.[0-9]*+)?+(?:[eE][+-]?[0-9]{{1,4}}+)?+",
    Kind.DATE: _DATE,
    Kind.TIME: _CLOCK,
    Kind.TIMETZ: rf"{_CLOCK}\+00",
    Kind.TIMESTAMP: f"{_DATE}[ T]{_CLOCK}",
    Kind.TIMESTAMPTZ: rf"{_DATE}[ T]{_CLOCK}\+00",
    Kind.INTERVAL: "P[0-9A-Z.-]++",
}
"""Values of types of which not every text is one: those that are written usually."""


_AS_THEY_ARE = frozenset({Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT, Kind.DATE, Kind.INTERVAL, Kind.BINARY})
"""Of what the forms have of them, canonical text is the same."""

_NULL = " type="
_CDATA = "<![CDATA["
_SECONDS, _MICROSECONDS = len("2024-01-02 03:04:05"), len("2024-01-02 03:04:05.678901")


class ValueReader(NamedTuple):
    """How the values of a column are read.

    Attributes:
        begin, end: Between them is the text of a value that is no Base64.
        packed: Where Base64 begins.
        read: Makes canonical text of text; None where it is the same.
        is_untyped: Bytes are a text where they can be.
    """

    name: str
    begin: int
    end: int
    packed: int
    read: Callable[[str], str] | None
    is_untyped: bool


def value_reader(name: str, logical: LogicalType | None, *, is_old: bool) -> ValueReader:
    """Return how the values of a column are read.

    Args:
        logical: None for a column without definition.
        is_old: Values stand in an old image.
    """
    text, packed, end = (">", ' encoding="base64">', "</col>")
    if is_old:
        text, packed, end = map(escaped_content, (text, packed, end))
    if logical is not None and (logical.kind in TYPED or logical.kind is Kind.BINARY):
        read = None if logical.kind in _AS_THEY_ARE else _TIMES.get(logical.kind) or reader_of(logical)
    else:
        read = partial(_text, None if logical is None else reader_of(logical), is_old)
    return ValueReader(name, len(text), -len(end), len(packed), read, logical is None)


def read_values(readers: Sequence[ValueReader], found: Sequence[str | None]) -> Image:
    """Read what was found of each column: None where it is absent."""
    image: dict[str, str | None] = {}
    for (name, begin, end, packed, read, is_untyped), value in zip(readers, found, strict=True):
        if value is None:
            continue
        if value[0] == " ":
            bytes_ = None if value.startswith(_NULL) else value[packed:end]
            image[name] = untyped_text(binascii.a2b_base64(bytes_)) if is_untyped and bytes_ is not None else bytes_
        else:
            image[name] = value[begin:end] if read is None else read(value[begin:end])
    return image


def _timestamp(text: str) -> str:
    if len(text) == _SECONDS:
        return f"{text[:10]}T{text[11:]}.000000"
    if len(text) <= _MICROSECONDS:
        return f"{text[:10]}T{text[11:].ljust(_MICROSECONDS - 11, '0')}"
    return f"{text[:10]}T{text[11:_MICROSECONDS]}{text[_MICROSECONDS:].rstrip('0')}"


def _timestamptz(text: str) -> str:
    return f"{_timestamp(text[:-3])}+00:00"


_TIMES = {Kind.TIMESTAMP: _timestamp, Kind.TIMESTAMPTZ: _timestamptz}


def _text(read: Callable[[str], str] | None, is_old: bool, text: str) -> str:
    if is_old and "&" in text:
        text = unescaped_content(text)
    if text.startswith(_CDATA):
        text = text[len(_CDATA) : -len("]]>")]
    return text if read is None or read is text_of else read(text)
