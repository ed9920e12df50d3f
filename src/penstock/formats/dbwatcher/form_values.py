"""Values of columns in rows of the usual form: which texts a type has there, and what they are as canonical text.

A value comes as it stands behind the name of its column, up to the end of the element: `>first</col>`,
` type="null"/>`, or ` encoding="base64">AP8=</col>`; in an old image, as the same escaped.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from penstock.formats.dbwatcher.values import reader_of, untyped_text
from penstock.logical import Kind, LogicalType

FormReader: TypeAlias = Callable[[str], str | None]

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


_AS_THEY_ARE = frozenset({Kind.INTEGER, Kind.DECIMAL, Kind.FLOAT, Kind.DATE, Kind.INTERVAL})
"""Of what `TYPED` has of them, canonical text is the same."""


def reader_of_form(logical: LogicalType | None, *, is_old: bool) -> FormReader:
    """Return what turns a value into canonical text, and NULL into None.

    Args:
        logical: None for a column without definition.
        is_old: The value stands in an old image.
    """
    begin, end = (len("&gt;"), -len("&lt;/col&gt;")) if is_old else (len(">"), -len("</col>"))
    if logical is None or logical.kind is Kind.BINARY:
        return partial(_read_any, is_old, logical is None, begin, end)
    if logical.kind in _AS_THEY_ARE:
        return partial(_read_same, begin, end)
    if logical.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return partial(
            _read_timestamp, begin, end, "+00" if logical.kind is Kind.TIMESTAMPTZ else "", reader_of(logical)
        )
    if logical.kind in TYPED:
        return partial(_read_typed, begin, end, reader_of(logical))
    return partial(_read_text, is_old, begin, end, reader_of(logical))


def _read_same(begin: int, end: int, found: str) -> str | None:
    return None if found.startswith(_NULL) else found[begin:end]


def _read_typed(begin: int, end: int, read: Callable[[str], str], found: str) -> str | None:
    return None if found.startswith(_NULL) else read(found[begin:end])


_NULL = " type="


def _read_timestamp(begin: int, end: int, offset: str, read: Callable[[str], str], found: str) -> str | None:
    if found.startswith(_NULL):
        return None
    value = found[begin : end - len(offset)]
    if len(value) == _SECONDS:
        return f"{value[:10]}T{value[11:]}.000000{offset and '+00:00'}"
    if len(value) <= _MICROSECONDS:
        return f"{value[:10]}T{value[11:].ljust(_MICROSECONDS - 11, '0')}{offset and '+00:00'}"
    return read(f"{value}{offset}")


_SECONDS, _MICROSECONDS = len("2024-01-02 03:04:05"), len("2024-01-02 03:04:05.678901")


def _read_text(is_old: bool, begin: int, end: int, read: Callable[[str], str], found: str) -> str | None:
    if found.startswith(_NULL):
        return None
    value = found[begin:end]
    if is_old and "&" in value:
        value = _unescaped(value)
    if value.startswith(_CDATA):
        value = value[len(_CDATA) : -len("]]>")]
    return read(value)


def _read_any(is_old: bool, is_untyped: bool, begin: int, end: int, found: str) -> str | None:
    """Read a value that may be Base64; of a binary column, canonical text is the same."""
    if not found.startswith(" encoding="):
        return _read_text(is_old, begin, end, str, found)
    packed = found[found.index("base64") + len("base64") + (len("&quot;&gt;") if is_old else len('">')) : end]
    return untyped_text(binascii.a2b_base64(packed)) if is_untyped else packed


_CDATA = "<![CDATA["


def _unescaped(text: str) -> str:
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&apos;", "'")
    return text.replace("&amp;", "&")
