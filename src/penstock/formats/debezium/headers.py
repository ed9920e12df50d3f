"""The keys that headers of a changed key hold, as Kafka Connect's `SimpleHeaderConverter` writes them: nearly JSON."""

from __future__ import annotations

import re
from typing import Any

from penstock.formats.debezium.numbers import Number

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"

_BARE = re.compile(r"[^,}\]\s]+")
_NUMBER = re.compile(r"-?\d+", re.ASCII)
_DECIMAL = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,6})?", re.ASCII)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_WORDS = {"null": None, "true": True, "false": False}
_DEEPEST = 16


class HeaderError(ValueError):
    """A text that is no such value."""


def read_header(text: str) -> Any:
    """Read a value: texts stand in quotes, with only quotes and backslashes escaped and line feeds as they are; dates
    stand bare and are read as texts; numbers that are not whole keep their digits.

    Raises:
        HeaderError: The text is not one value.
    """
    value, end = _value(text, 0, _DEEPEST)
    if text[end:].strip():
        raise HeaderError("is more than one value")
    return value


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    at = _skip(text, at)
    if depth == 0:
        raise HeaderError("is nested too deep")
    match text[at : at + 1]:
        case "{":
            return _object(text, at + 1, depth - 1)
        case "[":
            return _array(text, at + 1, depth - 1)
        case '"':
            return _string(text, at)
    if (found := _BARE.match(text, at)) is None:
        raise HeaderError("ends too early")
    word = found[0]
    if word in _WORDS:
        return _WORDS[word], found.end()
    if _NUMBER.fullmatch(word) and len(word) < 20:
        return int(word), found.end()
    return Number(word) if _DECIMAL.fullmatch(word) else word, found.end()


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    made: dict[str, Any] = {}
    at = _skip(text, at)
    while text[at : at + 1] != "}":
        if made:
            at = _skip(text, _expect(text, at, ","))
        name, at = _string(text, at)
        made[name], at = _value(text, _expect(text, _skip(text, at), ":"), depth)
        at = _skip(text, at)
    return made, at + 1


def _array(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    made: list[Any] = []
    at = _skip(text, at)
    while text[at : at + 1] != "]":
        if made:
            at = _expect(text, at, ",")
        value, at = _value(text, at, depth)
        made.append(value)
        at = _skip(text, at)
    return made, at + 1


def _string(text: str, at: int) -> tuple[str, int]:
    found = _STRING.match(text, at)
    if found is None:
        raise HeaderError("has a text that does not end")
    return _ESCAPE.sub(r"\1", found[1]), found.end()


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise HeaderError(f"lacks a {sign}")
    return at + 1


def _skip(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at
