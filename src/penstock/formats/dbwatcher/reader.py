"""Messages read: XML, in pieces, to values.

A document that declares a document type is refused, so there are no entities but the five of XML: nothing is fetched
and nothing expands. What is read is as large as the XML at most, and the XML as large as the limit says.

The names `sql`, `desc`, `row`, `colname`, `command` and `ident` are read in any case, `col` and `attr` in small letters
alone; other elements are skipped with all that they hold. White space inside `col` and `attr` is kept. Of columns or
attributes of one name the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import BinaryIO

from penstock.errors import MalformedInputError
from penstock.formats.dbwatcher.compression import decompress
from penstock.formats.dbwatcher.message import (
    IN_PROPERTY,
    REQUIRED_PARAMETERS,
    Attribute,
    ControlCommand,
    ControlMessage,
    Head,
    Message,
    MessageRow,
    Property,
    Route,
)
from penstock.formats.dbwatcher.parser import DEFAULT_LIMITS, MessageLimits, MessageParser, read_columns
from penstock.formats.dbwatcher.usual import MOST_BYTES, read_usual

__all__ = ["DEFAULT_LIMITS", "MessageLimits", "read_columns", "read_control", "read_message", "read_parts", "route_of"]

_PIECE = 1 << 18
_LONGEST_COMMAND = 100
_ENDS_OF_TRANSITION = frozenset({Attribute.END_OF_TRANSITION.value, "_INITIAL_DATA_END_TO_REMOTE"})


def read_message(
    body: bytes | BinaryIO,
    properties: Mapping[str, str] | None = None,
    *,
    name: str = "",
    limits: MessageLimits = DEFAULT_LIMITS,
) -> Message:
    """Read a message whole.

    Args:
        body: Its XML, compressed where the properties say so; a file is read piece by piece, to its end or the limit.
        properties: What came beside it.
        name: What messages call it.

    Raises:
        MalformedInputError: It is not XML, cut short, too large, not as the grammar has it, or has an unknown command.
            The error names line and column, and holds nothing of what was read.
    """
    properties = properties or {}
    if Property.COMPRESSION_TYPE in properties:
        if not isinstance(body, bytes):
            body = body.read(limits.bytes + 1)
        body = decompress(body, properties, most_bytes=limits.bytes, name=name)
    pieces: Iterable[bytes] = (body,) if isinstance(body, bytes) else _pieces(body)
    if not isinstance(body, bytes):
        # Most files are short; what is read of a longer one stands before its other pieces.
        begin = body.read(min(MOST_BYTES, limits.bytes) + 1)
        body, pieces = begin, chain((begin,), pieces)
    if len(body) <= limits.bytes and (usual := read_usual(body)) is not None:
        return replace(usual, properties=properties)
    parts = read_parts(pieces, name=name, limits=limits)
    head = next(parts)
    assert isinstance(head, Head)
    return Message(head, [part for part in parts if isinstance(part, MessageRow)], properties)


def read_parts(
    pieces: Iterable[bytes], *, name: str = "", limits: MessageLimits = DEFAULT_LIMITS
) -> Iterator[Head | MessageRow]:
    """Yield the head of a message, and then its rows, as pieces of its XML come.

    Only the end tells that the message is whole: who acts on rows before must be able to take that back.

    Raises:
        MalformedInputError: As `read_message`, whenever the place is reached.
    """
    parser = MessageParser(name, limits)
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limits.bytes:
            raise MalformedInputError(
                f"the message has more than {limits.bytes:,} bytes",
                where=name,
                do="raise the limit, if messages of this size are meant",
            )
        yield from parser.feed(piece)
    yield from parser.feed(b"", is_last=True)


def route_of(body: bytes, properties: Mapping[str, str]) -> Route:
    """Tell what a receiver does with a message; `read_message` is for XML, `read_control` for control messages."""
    if Property.DUMP in properties and not body.lstrip().startswith(b"<"):
        return Route.DUMP
    if not _ENDS_OF_TRANSITION.isdisjoint(properties):
        return Route.END_OF_TRANSITION
    return Route.XML if _control_command(body, properties) is None else Route.CONTROL


def read_control(body: bytes, properties: Mapping[str, str]) -> ControlMessage | None:
    """Read a control message; None where body and properties are those of a message with XML.

    Raises:
        MalformedInputError: It lacks a parameter without which its command means nothing.
    """
    command = _control_command(body, properties)
    if command is None:
        return None
    parameters = {name: value for name, value in properties.items() if name != Property.COMMAND}
    lacking = [name for name in REQUIRED_PARAMETERS.get(command, ()) if name not in parameters]
    if lacking:
        raise MalformedInputError(f"the control message {command} has no {', '.join(lacking)}")
    return ControlMessage(command, parameters)


def _control_command(body: bytes, properties: Mapping[str, str]) -> ControlCommand | None:
    known = {command.value: command for command in ControlCommand}
    command = known.get(properties.get(Property.COMMAND, ""))
    if command in IN_PROPERTY:
        return command
    # What is longer is no command, and need not be decoded.
    return known.get(body[:_LONGEST_COMMAND].decode("utf-8", "replace").strip())


def _pieces(body: BinaryIO) -> Iterator[bytes]:
    while piece := body.read(_PIECE):
        yield piece
