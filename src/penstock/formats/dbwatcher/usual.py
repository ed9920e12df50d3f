"""Messages of exactly the form that `writer` has, which is the original's, read several times as fast as by a parser.

Nothing is guessed: where a message is different anywhere, `read_usual` returns None, and the parser reads it, which
can also say what is wrong. A test asks both about messages that were altered at random.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.formats.dbwatcher.message import Attribute, Columns, Command, Head, Message, Row, Value
from penstock.formats.dbwatcher.parser import COLUMN, RefusedError, packed_bytes

MOST_BYTES = 1 << 24
"""Larger messages are read piece by piece; texts and rows of this one are in memory together."""

_PROLOG = b"<?xml version='1.0' encoding='UTF-8' ?>\n <sql>\n   <desc>\n     <command>"
_END_OF_DESC = "   </desc>\n"
_FOOT = " </sql>"
_ROW = "   <row num='"
_END_OF_ROW = "   </row>\n"
_FIRST_ATTRIBUTE = "\n     <attr name='"
_LAST_ATTRIBUTE = "</attr>\n"
_NEXT_ATTRIBUTE = "</attr>\n     <attr name='"
_OLD_CONTENT = f"{Attribute.OLD_CONTENT.value}' encoding='forcePlain'>"

# Carriage returns are allowed, and a parser would read line feeds.
_ODD = bytes(range(9)) + bytes(range(11, 32))
_NONCHARACTERS = (b"\xef\xbf\xbe", b"\xef\xbf\xbf")

_HEAD = re.compile(r"([A-Z]+)</command>\n     <ident>([^<>&]*)</ident>\n((?:     <attr name='[^\n]*</attr>\n)*)")

_COMMANDS = {command.value: command for command in Command}


class _UnusualError(Exception):
    """The message has another form."""


def read_usual(body: bytes) -> Message | None:
    """Read a message without its properties; None where it is not of the usual form, or not well formed."""
    if len(body) > MOST_BYTES or not body.startswith(_PROLOG) or len(body.translate(None, _ODD)) != len(body):
        return None
    if any(character in body for character in _NONCHARACTERS):
        return None
    try:
        head, found, rest = body[len(_PROLOG) :].decode().partition(_END_OF_DESC)
        rows = rest.removesuffix(_FOOT).split(_END_OF_ROW)
        if not found or not rest.endswith(_FOOT) or rows.pop():
            return None
        known: dict[str, tuple[str, str]] = {}
        return Message(_head(head, known), [_row(row, known) for row in rows])
    except (UnicodeDecodeError, RefusedError, _UnusualError):
        return None


def _head(text: str, known: dict[str, tuple[str, str]]) -> Head:
    found = _HEAD.fullmatch(text)
    command = _COMMANDS.get(found[1]) if found is not None else None
    if found is None or command is None:
        raise _UnusualError
    attributes: dict[str, str] = {}
    if found[3]:
        told = found[3].removeprefix(_FIRST_ATTRIBUTE[1:]).removesuffix(_LAST_ATTRIBUTE)
        for part in told.split(_NEXT_ATTRIBUTE):
            name, value = known[part] = _attribute(part)
            attributes[name] = value
    return Head(command, found[2].strip(), attributes)


def _row(text: str, known: dict[str, tuple[str, str]]) -> Row:
    begin = text.find("'>  ")
    if not text.startswith(_ROW) or not text[len(_ROW) : begin].isdecimal():
        raise _UnusualError
    end = text.find(_FIRST_ATTRIBUTE, begin)
    if end < 0:
        if not text.endswith("\n"):
            raise _UnusualError
        return Row(_columns(text[begin + 4 : -1]), {})
    if not text.endswith(_LAST_ATTRIBUTE):
        raise _UnusualError
    attributes: dict[str, str] = {}
    old: Columns | None = None
    for part in text[end + len(_FIRST_ATTRIBUTE) : -len(_LAST_ATTRIBUTE)].split(_NEXT_ATTRIBUTE):
        pair = known.get(part)
        if pair is not None:
            attributes[pair[0]] = pair[1]
        elif part.startswith(_OLD_CONTENT):
            old = _columns(_unescaped(part[len(_OLD_CONTENT) :]))
        else:
            # Most of them are the same in each row.
            name, value = known[part] = _attribute(part)
            attributes[name] = value
    return Row(_columns(text[begin + 4 : end]), attributes, old)


def _attribute(part: str) -> tuple[str, str]:
    name, found, value = part.partition("'>")
    is_plain = name.isidentifier() and name != Attribute.OLD_CONTENT
    if not is_plain or not found or "<" in value or "&" in value or ">" in value:
        raise _UnusualError
    return name, value


def _unescaped(text: str) -> str:
    if "<" in text or ">" in text:
        raise _UnusualError
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&apos;", "'")
    if text.count("&") != text.count("&amp;"):
        raise _UnusualError
    return text.replace("&amp;", "&")


def _columns(content: str) -> Columns:
    found: Sequence[tuple[str, str, str, str, str, str]] = COLUMN.findall(content)
    if found and found[-1][5]:
        raise _UnusualError
    columns: dict[str, Value] = {}
    for name, null, packed, text, cdata, _ in found:
        columns[name] = packed_bytes(text) if packed else None if null else text or cdata
    return columns
