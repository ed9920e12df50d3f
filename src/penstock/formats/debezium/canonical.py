"""Values of messages as canonical text, whatever their types are called; see `penstock.values` for what that is.

`value_reader` says what a reader is; those of numbers are in `numbers`.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from penstock.formats import temporal
from penstock.formats.debezium.numbers import Number, bytes_of, float_text
from penstock.formats.debezium.value_reader import InexactError, Reader, UnfitError, WholeReader
from penstock.logical import Kind

_FRACTION = re.compile(r"\.(\d*?)0*(?=$|[+ -])", re.ASCII)
_PLAIN_ITEM = re.compile(r"[^\s{}\",\\]+")

MOST_BITS = 83_886_080
"""The longest bit string of PostgreSQL; a type without a limit says the largest int."""


def as_it_stands(value: Any) -> str:
    """Write a value of which nothing is known as the message has it; an object or a list as JSON text."""
    if type(value) is str or type(value) is Number:
        return str(value)
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    if type(value) is float:
        raise InexactError
    if isinstance(value, bytes):
        return base64_text(value)
    return json_text(_exact(value))


def text_itself(value: Any) -> str:
    """Return a value that is canonical text as it comes."""
    if type(value) is str:
        return value
    raise UnfitError("is not a text")


def timestamp_reader(read: Reader, digits: int) -> Reader:
    """Make a reader of timestamps quick where they are numbers of 10^-`digits` seconds."""
    if digits > temporal.MICROSECONDS:
        return read
    units = 10**digits
    low, end = temporal.FIRST_SECOND * units, temporal.END_SECOND * units
    return WholeReader(read, low, end - 1, partial(temporal.timestamp_texts, digits=digits))


def boolean_text(value: Any) -> str:
    """Write a boolean, or a number that stands for one."""
    # MySQL's BOOLEAN comes as either, even in one topic.
    if value is True or (value == 1 and type(value) is int):
        return "true"
    if value is False or (value == 0 and type(value) is int):
        return "false"
    raise UnfitError("is not a boolean")


def base64_text(value: Any) -> str:
    """Write bytes as base64; what is base64 already is looked through."""
    if isinstance(value, bytes):
        return binascii.b2a_base64(value, newline=False).decode()
    bytes_of(value)
    return str(value)


def bit_text(data: bytes, length: int | None) -> str:
    """Write bits as 0 and 1, the highest first.

    They come in little-endian bytes without those that are zero at the end, so that nothing but the type tells how many
    there are. Where it has no fixed length, zeros at the front are lost.
    """
    digits = f"{int.from_bytes(data, 'little'):b}" if any(data) else ""
    if length is None or length > MOST_BITS:
        return digits
    if len(digits) > length:
        raise UnfitError("has more bits than its type")
    return digits.rjust(length, "0")


def text_reader(read: Callable[[str], str]) -> Reader:
    """Make a reader that takes texts alone."""

    def checked(value: Any) -> str:
        if type(value) is not str:
            raise UnfitError("is not a text")
        return read(value)

    return checked


def array_reader(read: Reader, kind: Kind | None) -> Reader:
    """Make the reader of an array, as PostgreSQL writes it: `{1,NULL,"a b"}`, each element as it writes that."""

    def item(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, list):
            return f"{{{','.join(map(item, value))}}}"
        text = read(value)
        match kind:
            case Kind.BOOLEAN:
                text = text[0]
            case Kind.BINARY:
                text = f"\\x{bytes_of(text).hex()}"
            case Kind.TIME | Kind.TIMETZ | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
                text = _FRACTION.sub(_trimmed, text.replace("T", " ")).replace("+00:00", "+00")
        if _PLAIN_ITEM.fullmatch(text) and text.upper() != "NULL":
            return text
        return _in_quotes(text)

    def read_array(value: Any) -> str:
        if not isinstance(value, list):
            raise UnfitError("is not an array")
        return item(value)

    return read_array


def json_text(value: Any) -> str:
    """Write a parsed value as JSON text, each number with the digits it had."""
    if _holds_number(value):
        return _with_numbers(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def member_of(value: Any, name: str) -> Any:
    """Return a member of a structure; None where it has none of that name."""
    if not isinstance(value, dict):
        raise UnfitError("is not a structure")
    return value.get(name)


def point_text(value: Any) -> str:
    """Write a point as PostgreSQL does: `(1,2.5)`."""
    return f"({float_text(member_of(value, 'x'))},{float_text(member_of(value, 'y'))})"


def geometry_text(value: Any) -> str:
    """Write a geometry as PostGIS does: its WKB in hexadecimal, with the SRID inside if there is one."""
    data = bytes_of(member_of(value, "wkb"))
    srid = value.get("srid")
    if srid and len(data) >= 5:
        order: Literal["little", "big"] = "little" if data[0] == 1 else "big"
        kind = int.from_bytes(data[1:5], order)
        if not kind & 0x20000000:
            data = data[:1] + (kind | 0x20000000).to_bytes(4, order) + int(srid).to_bytes(4, order) + data[5:]
    return data.hex().upper()


def hstore_text(value: Any) -> str:
    """Write the pairs of an hstore as PostgreSQL does; they come as an object, or as the text of one."""
    if type(value) is str and value.startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            raise UnfitError("is not the JSON of an hstore") from None
    if type(value) is str:
        return value
    if not isinstance(value, dict) or not all(one is None or type(one) is str for one in value.values()):
        raise UnfitError("is not an hstore")
    return ", ".join(f"{_in_quotes(key)}=>{'NULL' if one is None else _in_quotes(one)}" for key, one in value.items())


def _in_quotes(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _trimmed(fraction: re.Match[str]) -> str:
    return f".{fraction[1]}" if fraction[1] else ""


def _exact(value: Any) -> Any:
    """Make a parsed value ready for `json_text`: no number may have lost a digit."""
    if type(value) is float:
        raise InexactError
    if isinstance(value, list):
        return [_exact(one) for one in value]
    if isinstance(value, dict):
        return {name: _exact(one) for name, one in value.items()}
    if isinstance(value, bytes):
        return base64_text(value)
    return value


def _holds_number(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_holds_number, value))
    if isinstance(value, dict):
        return any(map(_holds_number, value.values()))
    return type(value) is Number


def _with_numbers(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_with_numbers, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{json_text(name)}:{_with_numbers(one)}' for name, one in value.items())}}}"
    return str(value) if type(value) is Number else json.dumps(value, ensure_ascii=False)
