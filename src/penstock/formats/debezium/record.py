"""What lies on a topic: one record, and its form in a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.errors import MalformedInputError
from penstock.text import printable

_HOW_TO_GET = "`kcat -C -J -e -t TOPIC` writes whole records, a line each"

_SPACE = " \t\r\n"

_scan = json.JSONDecoder().raw_decode


class _NotALineError(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One record of a topic, as it lies there.

    Attributes:
        key, value: Bytes; None is a null, which is not the same as no bytes.
        headers: Names and values, in order; a name may come twice.
        offset: None where a file of records does not say.
        file: The file that it was read from, for messages; empty for a topic.
        line: Its line in the file, from 1.
        timestamp_ms: When it was made or written, milliseconds since 1970; None where nobody asked.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int = 0
    offset: int | None = None
    file: str = ""
    line: int = 0
    timestamp_ms: int | None = None

    @property
    def where(self) -> str:
        """Its place, for messages."""
        if self.file:
            return f"{printable(self.file)}, line {self.line}"
        place = f"topic {printable(self.topic)}, partition {self.partition}"
        return place if self.offset is None else f"{place}, offset {self.offset}"

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header of a name; None if there is none."""
        for known, value in reversed(self.headers):
            if known == name:
                return value
        return None

    def to_line(self) -> bytes:
        """Write it as `read_line` takes it, without a line feed: keys and values that are JSON as they are."""
        members = [b'"topic":' + orjson.dumps(self.topic), b'"partition":%d' % self.partition]
        if self.offset is not None:
            members.append(b'"offset":%d' % self.offset)
        members += [b'"key":' + _embedded(self.key), b'"value":' + _embedded(self.value)]
        headers = [[name, None if value is None else value.decode(errors="replace")] for name, value in self.headers]
        members.append(b'"headers":' + orjson.dumps(headers))
        return b"{" + b",".join(members) + b"}"


def read_line(line: bytes, *, file: str, number: int) -> TopicRecord:
    """Read a line `{"topic", "partition"?, "offset"?, "key", "value", "headers"?}`.

    Key and value are JSON, whose bytes are taken as they stand; or a text, which holds the bytes; or null. Headers are
    an object, or a list of pairs, or of objects with `key` and `value`; their values are texts, JSON, or null.
    `kcat -J` calls the value `payload`, and lists names and values of headers one behind the other.

    Raises:
        MalformedInputError: The line is something else.
    """
    record = TopicRecord("", None, None, file=file, line=number)
    try:
        members = _members(line.decode())
        topic, partition = _plain(members, "topic"), _plain(members, "partition")
        offset = _plain(members, "offset")
        headers = tuple(_headers(members.get("headers", (None, ""))))
    except (ValueError, RecursionError):
        raise MalformedInputError(
            "a line is not one JSON object of topic, partition, offset, key, value and headers", where=record.where
        ) from None
    if not isinstance(topic, str) or type(partition) not in (int, type(None)) or type(offset) not in (int, type(None)):
        raise MalformedInputError(
            "a record has no topic, or a partition or offset that is not a number", where=record.where, do=_HOW_TO_GET
        )
    value = members.get("value", members.get("payload"))
    if value is None:
        raise MalformedInputError(
            "a record has no value", where=record.where, do=f"{_HOW_TO_GET}; a tombstone has the value null"
        )
    return TopicRecord(
        topic=topic,
        key=_bytes(members.get("key", (None, ""))),
        value=_bytes(value),
        headers=headers,
        partition=partition or 0,
        offset=offset,
        file=file,
        line=number,
    )


def _members(text: str) -> Mapping[str, tuple[Any, str]]:
    """Return each member of an object as the value, and as the text it was written with. Raises `_NotALineError`."""
    members: dict[str, tuple[Any, str]] = {}
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise _NotALineError
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise _NotALineError
        name, at = _scan(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":" or name in members:
            raise _NotALineError
        start = _skip(text, at + 1)
        value, at = _scan(text, start)
        members[name] = (value, text[start:at])
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
            if text[at : at + 1] == "}":
                raise _NotALineError
        elif text[at : at + 1] != "}":
            raise _NotALineError
    if text[at + 1 :].strip(_SPACE):
        raise _NotALineError
    return members


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _plain(members: Mapping[str, tuple[Any, str]], name: str) -> Any:
    return members[name][0] if name in members else None


def _headers(member: tuple[Any, str]) -> list[tuple[str, bytes | None]]:
    given, _ = member
    if given is None:
        return []
    if isinstance(given, dict):
        pairs = list(given.items())
    elif isinstance(given, list) and given and isinstance(given[0], str):
        pairs = list(zip(given[::2], given[1::2], strict=True))
    elif isinstance(given, list):
        pairs = [(one["key"], one.get("value")) if isinstance(one, dict) and "key" in one else one for one in given]
    else:
        raise _NotALineError
    headers = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise _NotALineError
        name, value = pair
        text = value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        headers.append((name, None if text is None else text.encode()))
    return headers


def _bytes(member: tuple[Any, str]) -> bytes | None:
    value, text = member
    if value is None:
        return None
    return (value if isinstance(value, str) else text).encode(errors="surrogatepass")


def _embedded(data: bytes | None) -> bytes:
    if data is None:
        return b"null"
    try:
        # Only an object stands for itself: other JSON would be read as something else, and a line feed ends a line.
        if data[:1] == b"{" and b"\n" not in data and isinstance(orjson.loads(data), dict):
            return data
    except orjson.JSONDecodeError:
        pass
    return orjson.dumps(data.decode(errors="replace"))
