"""Numbers of messages as canonical text: whole numbers, floats, and decimals with the bytes that they come in."""

from __future__ import annotations

import binascii
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import cache, partial
from typing import Any

from penstock.formats.debezium.value_reader import InexactError, Reader, UnfitError, WholeReader

PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,20}", re.ASCII)

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

PADDED_SCALES = range(1001, 2048)
"""A negative scale, wrapped: PostgreSQL's numeric(5,-2) comes with scale 2046 and as many zeros."""


class Number(str):
    """The digits of a JSON number, as they stood there."""

    __slots__ = ()


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

    return WholeReader(read, low, high, partial(map, str))


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
