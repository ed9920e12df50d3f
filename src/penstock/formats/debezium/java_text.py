"""JSON and numbers to the byte as Kafka Connect's converter, which is Java, writes them."""

from __future__ import annotations

import re
from typing import Any

import orjson

_ASTRAL = re.compile(rb"[\xf0-\xf7][\x80-\xbf]{3}")
_ESCAPE = re.compile(rb"\\(?:u00[01][0-9a-f]|.)")
_NOT_A_NUMBER = {"NaN", "Infinity", "-Infinity"}


def connect_json(value: Any) -> bytes:
    """Write a value compactly, with control characters and those above U+FFFF escaped as Jackson does.

    Members keep their order; an `orjson.Fragment` is taken as it is.
    """
    text = orjson.dumps(value)
    if b"\\u00" in text:
        text = _ESCAPE.sub(lambda found: _upper_hex(found[0]), text)
    return text if text.isascii() else _ASTRAL.sub(lambda found: _pair(found[0]), text)


def float_text(canonical: str) -> str:
    """Write a float's shortest digits as `Double.toString` and `Float.toString` lay them out; texts, where no number.

    Args:
        canonical: Digits with or without point and exponent, or one of `NaN`, `Infinity`, `-Infinity`.
    """
    if canonical in _NOT_A_NUMBER:
        return canonical
    mantissa, _, exponent = canonical.lower().partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    digits, power = whole + fraction, int(exponent or 0) + len(whole) - 1
    lead = len(digits) - len(digits.lstrip("0"))
    if lead == len(digits):
        return f"{sign}0.0"
    digits, power = digits.strip("0"), power - lead
    if -3 <= power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    if 0 <= power < 7:
        return f"{sign}{digits[: power + 1].ljust(power + 1, '0')}.{digits[power + 1 :] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


def decimal_bytes(unscaled: int) -> bytes:
    """Write a number in as few bytes of two's complement as hold it, as `BigInteger.toByteArray` does."""
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


def _upper_hex(escape: bytes) -> bytes:
    return b"\\u" + escape[2:].upper() if escape.startswith(b"\\u") else escape


def _pair(utf8: bytes) -> bytes:
    pair = utf8.decode().encode("utf-16-be").hex().upper()
    return f"\\u{pair[:4]}\\u{pair[4:]}".encode()
