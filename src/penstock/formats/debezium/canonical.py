"""Values of messages as canonical text, whatever their types are called; see `penstock.values` for what that is.

A reader is a function that takes one value that is not null, as the parser left it, and returns its text. It is made
once for a column. Bytes may come as base64 (JSON) or as they are (Avro), numbers also as `Number`.

A reader raises `UnfitError`, or another `ValueError`, with a text that goes on from "the value of column c ..." and
holds nothing of the value; or `InexactError` where a number was parsed to a float although its digits matter.
"""

from __future__ import annotations

import binascii
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any, Literal, TypeAlias

from penstock.logical import Kind

Reader: TypeAlias = Callable[[Any], str]

PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,20}", re.ASCII)
_FRACTION = re.compile(r"\.(\d*?)0*(?=$|[+ -])", re.ASCII)
_PLAIN_ITEM = re.compile(r"[^\s{}\",\\]+")

NOT_A_NUMBER = {
    "NAN": "NaN",
    "NaN": "NaN",
    "POSITIVE_INFINITY": "Infinity",
    "Infinity": "Infinity",
    "NEGATIVE_INFINITY": "-Infinity",
    "-Infinity": "-Infinity",
}
"""What stands for a number that has no digits, in the modes `double` and `string`."""

MOST_DIGITS = 200_000
"""No database has numbers of more digits; a scale of a billion would be written out in zeros."""

_PLAIN_INT_BITS = 14_000
"""Python refuses to write larger ints, by default, unless they go through a decimal."""

MOST_BITS = 83_886_080
"""The longest bit string of PostgreSQL; a type without a limit says the largest int."""

PADDED_SCALES = range(1001, 2048)
"""A negative scale, wrapped: PostgreSQL's numeric(5,-2) comes with scale 2046 and as many zeros."""


class UnfitError(ValueError):
    """A value that its type cannot hold."""


class Number(str):
    """The digits of a JSON number, as they stood there."""

    __slots__ = ()


class InexactError(Exception):
    """A number lost digits on its way through a float; parse the message again, with `Number`."""


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


def boolean_text(value: Any) -> str:
    """Write a boolean, or a number that stands for one."""
    # MySQL's BOOLEAN comes as either, even in one topic.
    if value is True or (value == 1 and type(value) is int):
        return "true"
    if value is False or (value == 0 and type(value) is int):
        return "false"
    raise UnfitError("is not a boolean")


@cache
def integer_reader(bits: int, *, may_be_text: bool = False, is_unsigned: bool = False) -> Reader:
    """Make the reader of whole numbers of so many bits; of their digits too, if they may come as text.

    Args:
        is_unsigned: The source's numbers have no sign; those of which the highest bit is set arrive as negative ones.
    """
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if is_unsigned:
        signed = integer_reader(bits)
        return lambda value: str(int(signed(value)) % (1 << bits))

    def read(value: Any) -> str:
        if type(value) is int and low <= value <= high:
            return str(value)
        if may_be_text and type(value) is str and _WHOLE.fullmatch(value) and low <= int(value) <= high:
            return value
        raise UnfitError(f"is not a whole number of {bits} bits")

    _BOUNDS[read] = low, high
    return read


_BOUNDS: dict[Reader, tuple[int, int]] = {}
"""Of the readers of whole numbers, the smallest and the largest one."""


def column_texts(read: Reader, values: Sequence[Any]) -> Iterable[str | None]:
    """Read many values of one column, which may be null; the same as one by one, and quicker."""
    bounds = _BOUNDS.get(read)
    if bounds is not None and set(map(type, values)) == {int} and bounds[0] <= min(values) and max(values) <= bounds[1]:
        return map(str, values)
    return [None if value is None else read(value) for value in values]


def float_text(value: Any) -> str:
    """Write a float with the fewest digits that read back the same, as PostgreSQL lays them out."""
    return _float(value, 15, repr)


def float32_text(value: Any) -> str:
    """Write a float of 32 bits with the fewest digits that read back the same, as PostgreSQL lays them out."""
    return _float(value, 6, _shortest32)


def decimal_text(unscaled: int, scale: int) -> str:
    """Write an unscaled number in plain digits, `scale` of them after the point."""
    if scale in PADDED_SCALES and unscaled % 10**scale == 0:
        unscaled, scale = unscaled // 10**scale, 0
    if scale <= 0:
        return _int_text(unscaled * 10**-scale)
    digits = _int_text(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def unpadded_text(unscaled: int, scale: int) -> str:
    """Write an unscaled number of a column's scale.

    Raises:
        UnfitError: The scale is one that PostgreSQL's connector writes with zeros, and the number is without them.
    """
    if scale in PADDED_SCALES and unscaled % 10**scale:
        raise UnfitError("has fewer zeros than PostgreSQL's connector writes for a negative scale")
    return decimal_text(unscaled, scale)


def variable_scale_text(value: Any) -> str:
    """Write a decimal that brings its scale along."""
    if not isinstance(value, dict) or type(value.get("scale")) is not int or abs(value["scale"]) > MOST_DIGITS:
        raise UnfitError("is not a decimal with its scale")
    return decimal_text(unscaled_number(value.get("value")), value["scale"])


def number_text(value: Any) -> str | None:
    """Return the plain digits of a JSON number; None for what is none."""
    if type(value) is int:
        return _int_text(value)
    if type(value) is float:
        raise InexactError
    if type(value) is not Number:
        return None
    if PLAIN_NUMBER.fullmatch(value):
        return str(value)
    return f"{Decimal(str(value)):f}"


def unscaled_number(value: Any) -> int:
    """Return the whole number that a decimal's bytes are, whatever its scale."""
    data = bytes_of(value)
    if not data:
        raise UnfitError("is a decimal without bytes")
    return int.from_bytes(data, "big", signed=True)


def base64_text(value: Any) -> str:
    """Write bytes as base64; what is base64 already is looked through."""
    if isinstance(value, bytes):
        return binascii.b2a_base64(value, newline=False).decode()
    bytes_of(value)
    return str(value)


def bytes_of(value: Any) -> bytes:
    """Return bytes that may have come as base64."""
    if isinstance(value, bytes):
        return value
    if type(value) is not str:
        raise UnfitError("is not bytes")
    try:
        return binascii.a2b_base64(value, strict_mode=True) if value else b""
    except ValueError:
        raise UnfitError("is not base64") from None


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


def _float(value: Any, most_digits: int, shortest: Callable[[float], str]) -> str:
    if type(value) is str:
        if value in NOT_A_NUMBER:
            return NOT_A_NUMBER[value]
        raise UnfitError("is not a number")
    if type(value) is not float:
        if type(value) is not int and type(value) is not Number:
            raise UnfitError("is not a number")
        value = float(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    text = shortest(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent and len(mantissa) <= most_digits:
        return text.removesuffix(".0")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent or 0) - (len(digits) - len(digits.lstrip("0")))
    digits = digits.strip("0")
    sign = "-" if value < 0 else ""
    if not digits:
        return f"{sign}0"
    if -4 <= point - 1 < most_digits:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        front, back = digits[:point].ljust(point, "0"), digits[point:]
        return f"{sign}{front}{'.' if back else ''}{back}"
    back = digits[1:]
    return f"{sign}{digits[0]}{'.' if back else ''}{back}e{'-' if point < 1 else '+'}{abs(point - 1):02}"


def _shortest32(value: float) -> str:
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        raise UnfitError("does not fit into a float of 32 bits") from None
    for digits in range(1, 10):
        text = f"{rounded:.{digits}g}"
        try:
            if struct.unpack("f", struct.pack("f", float(text)))[0] == rounded:
                return repr(float(text))
        except OverflowError:
            # Rounded up, the largest floats are too large.
            continue
    return repr(rounded)


def _int_text(value: int) -> str:
    return str(value) if value.bit_length() < _PLAIN_INT_BITS else f"{Decimal(value):f}"


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
