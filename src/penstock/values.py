"""Canonical text: how a value of each logical type is written inside an image; `logical` has the types themselves.

Every value is a JSON string, never a JSON number (too many parsers turn those into doubles on the way):

| logical type | canonical text |
| --- | --- |
| boolean | `true`, `false` |
| integer, decimal | plain digits, the scale as the source holds it; `NaN`, `Infinity`, `-Infinity` |
| float | shortest digits that read back the same; `NaN`, `Infinity`, `-Infinity` |
| binary | base64 without line breaks |
| date | `2024-01-02` |
| time | `03:04:05.678000`, with the offset as `+05:30` where the type has one |
| timestamp | `2024-01-02T03:04:05.678000` |
| timestamptz | the same in UTC, ending in `+00:00` |
| interval | ISO 8601 duration, `P1M-3DT4H5M6.7S` |
| uuid | 32 hexadecimal digits in small letters, with four hyphens |
| enum | the label |
| everything else | the source's own text |

Dates and timestamps before the year 1 end in ` BC`, years above 9999 have as many digits as they need, and
the ends of time are `infinity` and `-infinity`: no calendar library has to agree for a value to pass through.

A value that is too large for an image is not in it, see `elsewhere`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from penstock.change import Image
from penstock.errors import MalformedInputError
from penstock.external_values import MARK, ExternalValue
from penstock.text import count

try:
    import orjson
except ImportError:
    # It comes with the extra `kafka`.
    orjson = None  # type: ignore[assignment]

_ANY, _ASCII = (json.JSONEncoder(ensure_ascii=is_ascii, separators=(",", ":")) for is_ascii in (False, True))
"""Made once: making one takes longer than most images."""


def encode_image(image: Image, *, is_ascii: bool = False) -> str:
    """Write an image as JSON, in the order of its columns; with `is_ascii` for a place that may know few characters."""
    if orjson is not None and not is_ascii and type(image) is dict:
        try:
            # The same text in a tenth of the time.
            return orjson.dumps(image, _external, orjson.OPT_PASSTHROUGH_SUBCLASS).decode()
        except orjson.JSONEncodeError:
            # It has half of a surrogate pair, which no UTF-8 has.
            pass
    told = {name: value.told if isinstance(value, ExternalValue) else value for name, value in image.items()}
    return (_ASCII if is_ascii else _ANY).encode(told)


def _external(value: object) -> object:
    if isinstance(value, ExternalValue):
        return value.told
    raise TypeError


def decode_image(text: str) -> Image:
    """Read an image; the inverse of `encode_image`.

    Raises:
        MalformedInputError: The text is not a JSON object of strings and nulls, and of values that are elsewhere.
    """
    try:
        image = json.loads(text)
        if MARK in text and isinstance(image, dict):
            image = with_external(image)
    except (ValueError, RecursionError) as exc:
        raise MalformedInputError("image is not JSON", where=count(len(text), "character")) from exc
    if not isinstance(image, dict) or any(not isinstance(v, str | None) for v in image.values()):
        raise MalformedInputError(
            "image is not a JSON object of strings and nulls", where=count(len(text), "character")
        )
    return cast(Image, image)


def with_external(told: Mapping[str, Any]) -> dict[str, Any]:
    """Make of JSON's objects what is told of values elsewhere; raises a `ValueError` at one that tells of none."""
    return {name: ExternalValue.read(value) if isinstance(value, dict) else value for name, value in told.items()}
