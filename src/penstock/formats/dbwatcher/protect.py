"""How a column's value is protected in XML: `needs_prot` decides, and `col2xml` writes the `<col>` element.

They do what the functions NEEDS_PROT and COL2XML of the DbResources do.

| in the text | protection |
| --- | --- |
| `]]>` | Base64 of its UTF-8 |
| a control character, U+0000 to U+001F or U+007F to U+009F, other than tab and line feed | Base64 of its UTF-8 |
| U+FFFE, U+FFFF, a lone surrogate | Base64 of its UTF-8 |
| otherwise `<` or `&` | CDATA |
| none of them | none |

A lone surrogate becomes the three bytes that UTF-8 would have for it (Python's `surrogatepass`), and `text_of` turns
them back. Only a source other than PostgreSQL can hold one; a receiver other than Penstock will refuse or replace it.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from enum import IntEnum
from functools import lru_cache

from penstock.errors import MalformedInputError, OperatorError
from penstock.external_values import ExternalValue
from penstock.formats.dbwatcher.message import Columns, Value
from penstock.text import printable

_NEEDS_BASE64 = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]|]]>")

NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
"""Characters that XML 1.0 cannot carry, not even escaped."""

_IN_NAME = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\t": "&#x09;", "\n": "&#x0A;", "\r": "&#x0D;"}
)


class Protection(IntEnum):
    """What a text needs to be carried by XML; the numbers are those that NEEDS_PROT returns."""

    NONE = 0
    CDATA = 1
    BASE64 = 2


def needs_prot(text: str | None) -> Protection:
    """Tell what protection a text needs; NULL needs none."""
    # Whatever is printable holds nothing that needs Base64 but ]]>, and is found out many times as fast.
    if text is None or (text.isprintable() and "<" not in text and "&" not in text and "]]>" not in text):
        return Protection.NONE
    if _NEEDS_BASE64.search(text) is not None:
        return Protection.BASE64
    return Protection.CDATA if "<" in text or "&" in text else Protection.NONE


def col2xml(name: str, value: Value) -> str:
    """Write the `<col>` element of a column.

    Raises:
        MalformedInputError: The name holds a character that XML cannot carry.
        OperatorError: The value lies outside of its image.
    """
    head = _head(name)
    if type(value) is str:
        match needs_prot(value):
            case Protection.NONE:
                return f"{head}>{value}</col>"
            case Protection.CDATA:
                return f"{head}><![CDATA[{value}]]></col>"
        value = bytes_of(value)
    elif value is None:
        return f'{head} type="null"/>'
    elif isinstance(value, ExternalValue):
        raise OperatorError(
            f"the value of column {printable(name)!r} is not in its image: it is too large for one",
            do="leave the column out, or raise the size from which values stay out of images",
        )
    return f'{head} encoding="base64">{base64_of(value)}</col>'


def columns2xml(columns: Columns) -> str:
    """Write an image as it stands in ITEMS: its `<col>` elements, with nothing between them."""
    return "".join(
        [
            # Most values are printable and need no protection, and are written without a call.
            f"{_head(name)}>{value}</col>"
            if type(value) is str
            and value.isprintable()
            and "<" not in value
            and "&" not in value
            and "]]>" not in value
            else col2xml(name, value)
            for name, value in columns.items()
        ]
    )


def bytes_of(text: str) -> bytes:
    """Return the bytes that stand in Base64 for a text; `text_of` is the inverse."""
    return text.encode("utf-8", "surrogatepass")


def base64_of(value: str | bytes) -> str:
    """Write Base64 without line breaks."""
    if isinstance(value, str):
        value = bytes_of(value)
    return b2a_base64(value, newline=False).decode("ascii")


def text_of(value: str | bytes) -> str:
    """Return the text that a value stands for.

    Raises:
        MalformedInputError: It is bytes that are not UTF-8.
    """
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as exc:
        # Not from the cause, which holds the bytes.
        raise MalformedInputError(f"the Base64 of a text is not UTF-8, from byte {exc.start} on") from None


@lru_cache(4096)
def _head(name: str) -> str:
    if NOT_XML.search(name) is not None:
        raise MalformedInputError(
            f"column {printable(name)!r} has a character in its name that XML cannot carry",
            do="rename the column, or leave its table out",
        )
    return f'<col name="{name.translate(_IN_NAME)}"'
