"""JSON messages as values: the payload, and the schema if there is one.

With schemas, the schema is most of a message and always the same: it is looked up by its bytes, and only the payload
is parsed. Of two members of one name other parsers silently take the last; here the message is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from penstock.formats.debezium.numbers import Number
from penstock.formats.debezium.schema import ConnectSchema, parse_schema
from penstock.formats.debezium.value_reader import InexactError

_OPEN, _PAYLOAD = b'{"schema":', b',"payload":'

_PREFIXES_PER_SLOT = 8
"""How many schemas of one topic are kept at hand: old and new rows mix while a table changes."""

_DEEPEST = 200

_PLAIN_DIGITS = 18
"""Whole numbers up to so many digits are ints whatever they are for."""


class NotJsonError(ValueError):
    """Bytes that are not one JSON value; the text says how, and holds nothing of them."""


class ParsedMessage(NamedTuple):
    """A key or a value.

    Attributes:
        payload: As `orjson` leaves it; with `exact`, numbers that are no small ints are `Number`.
        schema: None where the message has none.
    """

    payload: Any
    schema: ConnectSchema | None


class JsonParser:
    """Parses messages; keeps in mind with which schemas the messages of a topic begin."""

    def __init__(self, *, of_keys: bool = False) -> None:
        """Know no schemas yet; keys may be rows of columns that are called as the parts of a message are."""
        self._of_keys = of_keys
        self._prefixes: dict[str, list[tuple[bytes, ConnectSchema]]] = {}

    def parse(self, raw: bytes, slot: str, *, exact: bool = False) -> ParsedMessage:
        """Parse a message.

        Args:
            slot: Which messages have the same schemas: the topic, for keys and for values.
            exact: Leave numbers their digits.

        Raises:
            NotJsonError: The bytes are not one JSON value, or name a member twice.
            InexactError: A number is so large that only an exact one holds it.
            MalformedInputError: The schema is none.
        """
        if (found := self._split(raw, slot)) is not None:
            return ParsedMessage(_load(found[0], exact=exact), found[1])
        document = _load(raw, exact=exact)
        if not is_wrapped(document, of_key=self._of_keys):
            return ParsedMessage(document, None)
        if document["schema"] is None:
            return ParsedMessage(document["payload"], None)
        return ParsedMessage(document["payload"], self._learn(raw, slot) or parse_schema(_dump(document["schema"])))

    def split(self, raw: bytes, slot: str) -> tuple[bytes, ConnectSchema | None]:
        """Return the text of the payload, and the schema before it; text that begins with no schema as it is.

        Raises:
            LookupError: It begins with one, and is laid out in another way than Connect does it.
            NotJsonError, InexactError, MalformedInputError: As `parse`, where the schema is new.
        """
        if (found := self._split(raw, slot)) is not None:
            return found
        if not raw.startswith(_OPEN):
            return raw, None
        self.parse(raw, slot)
        if (found := self._split(raw, slot)) is None:
            raise LookupError
        return found

    def _split(self, raw: bytes, slot: str) -> tuple[bytes, ConnectSchema] | None:
        for prefix, schema in self._prefixes.get(slot, ()):
            if raw.startswith(prefix) and raw.endswith(b"}"):
                return raw[len(prefix) : -1], schema
        return None

    def _learn(self, raw: bytes, slot: str) -> ConnectSchema | None:
        """Find where the schema of a message ends, and keep it in mind; None where it is laid out in another way."""
        if not raw.startswith(_OPEN) or not raw.endswith(b"}"):
            return None
        end = raw.find(_PAYLOAD)
        while end >= 0:
            # Text of a schema may look like the beginning of the payload; but then this is not a whole value yet.
            try:
                orjson.loads(raw[len(_OPEN) : end])
            except orjson.JSONDecodeError:
                end = raw.find(_PAYLOAD, end + 1)
                continue
            schema = parse_schema(raw[len(_OPEN) : end])
            known = self._prefixes.setdefault(slot, [])
            known.insert(0, (raw[: end + len(_PAYLOAD)], schema))
            del known[_PREFIXES_PER_SLOT:]
            return schema
        return None


def _load(raw: bytes, *, exact: bool) -> Any:
    try:
        value = _load_exactly(raw) if exact else orjson.loads(raw)
    except orjson.JSONDecodeError:
        # A number may be too large for it; if that is all, the caller comes back for an exact one.
        _load_exactly(raw)
        raise InexactError from None
    if type(value) is not dict:
        return value
    members = raw.count(b'":') - raw.count(b'\\":')
    expected = len(value)
    for one in value.values():
        if type(one) is dict:
            expected += len(one)
    if members != expected and members != _count(value, _DEEPEST):
        # More quotes before colons than members: most likely a text that holds such a pair.
        json.loads(raw, object_pairs_hook=_distinct, parse_int=_whole)
    return value


def is_wrapped(document: Any, *, of_key: bool) -> bool:
    """Whether a message is a payload with its schema; a key may be that of a table whose columns are called so."""
    if type(document) is not dict or document.keys() != {"schema", "payload"}:
        return False
    schema = document["schema"]
    # A value of a key is no object but where Oracle's number has none of a fixed scale: {"scale": 0, "value": "AQ=="}.
    return not of_key or schema is None or (type(schema) is dict and schema.keys() != {"scale", "value"})


def has_each_once(raw: bytes, parts: Iterable[Any]) -> bool:
    """Whether the members of a message are those of these objects, and each was written once; True is certain.

    Args:
        parts: Whatever in the message may be an object: an object, or None.
    """
    expected = 0
    for one in parts:
        if type(one) is dict:
            expected += len(one)
        elif one is not None:
            return False
    return raw.count(b'":') - raw.count(b'\\":') == expected


def _load_exactly(raw: bytes) -> Any:
    try:
        value = json.loads(raw.decode(), parse_float=Number, parse_int=_whole, parse_constant=_refuse)
        if b"\\ud" in raw or b"\\uD" in raw:
            # Half a character is none.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise NotJsonError("is not JSON, or is cut off") from None
    return value


def _count(value: dict[str, Any] | list[Any], depth: int) -> int:
    """Count the members of all objects, down to a depth."""
    total = len(value) if type(value) is dict else 0
    if depth > 1:
        for one in value.values() if type(value) is dict else value:
            if type(one) is dict or type(one) is list:
                total += _count(one, depth - 1)
    return total


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise NotJsonError("names a member twice")
    return made


def _whole(text: str) -> Any:
    return int(text) if len(text) <= _PLAIN_DIGITS else _big(text)


def _big(text: str) -> Any:
    value = int(text) if len(text) < 21 else None
    return value if value is not None and -(2**63) <= value < 2**64 else Number(text)


def _refuse(text: str) -> Any:
    raise NotJsonError("is not JSON, or is cut off")


def _dump(schema: Any) -> bytes:
    return json.dumps(schema, separators=(",", ":")).encode()
