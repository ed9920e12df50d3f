"""What stands in a row for a large value that did not change, in each type that a column may have.

`decode.RecordDecoder` leaves such values out of a row's image.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Iterable
from typing import Any

DEFAULT = "__debezium_unavailable_value"


class Placeholder:
    """All forms of one placeholder."""

    def __init__(self, setting: str = DEFAULT) -> None:
        """Take the connector's `unavailable.value.placeholder`; raises `ValueError` for `hex:` without hexadecimal."""
        data = bytes.fromhex(setting[4:]) if setting.startswith("hex:") else setting.encode()
        text = data.decode(errors="replace")
        encoded, url_safe = base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()
        as_uuid = str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
        pair = json.dumps({text: text}, ensure_ascii=False, separators=(",", ":"))
        self._texts = frozenset({text, encoded, url_safe, data.hex(), pair}) if data else frozenset[str]()
        self._bytes = data
        self._lists: tuple[list[Any], ...] = ([text], [encoded], [as_uuid], list(data), [data])
        self._pair = {text: text}
        self._needles = tuple(
            needle.encode()
            for needle in (json.dumps(text, ensure_ascii=False)[1:-1], encoded, url_safe, data.hex(), as_uuid)
        )
        self._numbers = ",".join(map(str, data[:8])).encode()

    def may_be_in(self, raw: bytes) -> bool:
        """Whether a JSON message may hold the placeholder; False is certain, for messages as Connect writes them."""
        text, encoded, url_safe, digits, as_uuid = self._needles
        return (
            text in raw
            or encoded in raw
            or digits in raw
            or as_uuid in raw
            or self._numbers in raw
            or (url_safe != encoded and url_safe in raw)
        )

    def stands_for(self, value: Any) -> bool:
        """Whether a value of a row, as the parser left it, is the placeholder in one of its forms."""
        if type(value) is str:
            return value in self._texts
        if type(value) is list:
            return value in self._lists
        if type(value) is dict:
            return value == self._pair
        return isinstance(value, bytes) and bool(value) and value == self._bytes

    def forms(self) -> Iterable[Any]:
        """Return each form once, as a JSON parser leaves it."""
        return (*sorted(self._texts), *self._lists[:4], self._pair)
