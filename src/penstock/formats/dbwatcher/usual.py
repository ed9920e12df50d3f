"""Messages of exactly the form that `writer` has, which is the original's, read several times as fast as by a parser.

Nothing is guessed: where a message is different anywhere, `read_usual` returns None, and the parser reads it, which
can also say what is wrong. A test asks both about messages that were altered at random.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from penstock.formats.dbwatcher.message import Attribute, Columns, Command, Head, Message, MessageRow, Value
from penstock.formats.dbwatcher.parser import COLUMN, RefusedError, packed_bytes

MOST_BYTES = 1 << 24
"""Larger messages are read piece by piece; texts and rows of this one are in memory together."""

_PROLOG = b"<?xml version='1.0' encoding='UTF-8' ?>\n <sql>\n   <desc>\n     <command>"
_END_OF_DESC = "   </desc>\n"
_FOOT = " </sql>"
_END = b"   </row>\n </sql>"
_ROW = "   <row num='"
_END_OF_ROW = "   </row>\n"
_FIRST_ATTRIBUTE = "\n     <attr name='"
_LAST_ATTRIBUTE = "</attr>\n"
_NEXT_ATTRIBUTE = "</attr>\n     <attr name='"
_REPL_KEY = f"{Attribute.REPL_KEY.value}'>"
_OLD_CONTENT = f"{Attribute.OLD_CONTENT.value}' encoding='forcePlain'>"

_TAKEN = "\0"
"""Stands where an attribute was taken out, and is in no message of this form."""

# XML allows carriage returns, but a parser turns them into line feeds.
_ODD = bytes(range(9)) + bytes(range(11, 32))
_NONCHARACTERS = (b"\xef\xbf\xbe", b"\xef\xbf\xbf")

_HEAD = re.compile(r"([A-Z]+)</command>\n     <ident>([^<>&]*)</ident>\n((?:     <attr name='[^\n]*</attr>\n)*)")

_ESCAPED_COLUMN = re.compile(
    r'&lt;col name=&quot;([^&<>"\t\r\n]*)&quot;(?:'
    r"(&gt;| encoding=&quot;base64&quot;&gt;)([^&<>]*)&lt;/col&gt;"
    r"| (type=&quot;null)&quot;/&gt;"
    r")|([\s\S]+)"
)
"""A column of an old image whose text needs no CDATA; the last group takes everything from the first other thing on."""

_COMMANDS = {command.value: command for command in Command}


_Known: TypeAlias = dict[str, dict[str, str]]
"""Attributes by their XML."""


class DividedMessage(NamedTuple):
    """A message of the usual form of which only the head was read.

    Attributes:
        text: Its rows.
    """

    head: Head
    text: str


def divide(body: bytes) -> DividedMessage | None:
    """Read the head of a message, where its rows follow it; None where the message is not of the usual form.

    Of the rows it is only sure that they have no U+FFFE and U+FFFF.
    """
    if len(body) > MOST_BYTES or not body.startswith(_PROLOG) or not body.endswith(_END):
        return None
    try:
        text = body.decode()
        if not text.isascii() and ("\ufffe" in text or "\uffff" in text):
            return None
        end = text.find(_END_OF_DESC, len(_PROLOG))
        head = text[len(_PROLOG) : end]
        if end < 0 or not head.replace("\n", "").isprintable():
            return None
        rows = text[end + len(_END_OF_DESC) : -len(_FOOT)]
        return DividedMessage(_head(head), rows) if rows else None
    except (UnicodeDecodeError, RefusedError, _UnusualError):
        return None


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
        known: _Known = {}
        return Message(_head(head), [_row(row, known) for row in rows])
    except (UnicodeDecodeError, RefusedError, _UnusualError):
        return None


def _head(text: str) -> Head:
    found = _HEAD.fullmatch(text)
    command = _COMMANDS.get(found[1]) if found is not None else None
    if found is None or command is None:
        raise _UnusualError
    key, rest = _take(found[3].removeprefix(_FIRST_ATTRIBUTE[1:]).removesuffix(_LAST_ATTRIBUTE), _REPL_KEY)
    attributes = _attributes(rest)
    return Head(command, found[2].strip(), attributes if key is None else {**attributes, "replKey": key})


def _row(text: str, known: _Known) -> MessageRow:
    begin = text.find("'>  ")
    if not text.startswith(_ROW) or not text[len(_ROW) : begin].isdecimal():
        raise _UnusualError
    end = text.find(_FIRST_ATTRIBUTE, begin)
    if end < 0:
        if not text.endswith("\n"):
            raise _UnusualError
        return MessageRow(_columns(text[begin + 4 : -1]), {})
    if not text.endswith(_LAST_ATTRIBUTE):
        raise _UnusualError
    # The key and the old image are taken out of the attributes: what remains is the same in most rows, and read once.
    rest = text[end + len(_FIRST_ATTRIBUTE) : -len(_LAST_ATTRIBUTE)]
    old, rest = _take(rest, _OLD_CONTENT)
    key, rest = _take(rest, _REPL_KEY)
    attributes = known.get(rest)
    if attributes is None:
        attributes = known[rest] = _attributes(rest)
    if key is not None:
        if not key.isalnum():
            raise _UnusualError
        attributes = {**attributes, "replKey": key}
    return MessageRow(_columns(text[begin + 4 : end]), attributes, None if old is None else _old_columns(old))


def _take(attributes: str, name: str) -> tuple[str | None, str]:
    """Return the text of an attribute, None where it is not there, and the attributes with a mark in its place."""
    begin = attributes.find(name)
    if begin < 0:
        return None, attributes
    if begin and not attributes.startswith(_NEXT_ATTRIBUTE, begin - len(_NEXT_ATTRIBUTE)):
        raise _UnusualError
    end = attributes.find("<", begin)
    if end < 0:
        end = len(attributes)
    return attributes[begin + len(name) : end], f"{attributes[:begin]}{_TAKEN}{attributes[end:]}"


def _attributes(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(_NEXT_ATTRIBUTE) if text else ():
        if part != _TAKEN:
            name, end, value = part.partition("'>")
            is_plain = name.isidentifier() and name not in ("replKey", "oldContent")
            if not is_plain or not end or "<" in value or "&" in value or ">" in value:
                raise _UnusualError
            found[name] = value
    return found


def _old_columns(escaped: str) -> Columns:
    found = _ESCAPED_COLUMN.findall(escaped)
    if found and not found[-1][4]:
        return {
            name: None if null else text if mark == "&gt;" else packed_bytes(text)
            for name, mark, text, null, _ in found
        }
    return _columns(_unescaped(escaped))


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
