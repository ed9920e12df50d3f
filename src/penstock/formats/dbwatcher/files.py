"""Files with several messages, one behind the other, each with an XML declaration, as Penstock publishes them.

A comment behind the last message says where the pipeline stands that has written the file; it is no message.
"""

from __future__ import annotations

import re

_BETWEEN = re.compile(rb"<!\[CDATA\[.*?\]\]>|<!--.*?-->|</sql>\s*(?=<\?xml\s)", re.DOTALL | re.IGNORECASE)
"""The end of a message behind which another one begins; or what may hold the same bytes, and is passed over."""


def split(content: bytes) -> list[bytes]:
    """Return the messages of a file; the file as it is, where it holds one, or what is none."""
    if content.count(b"<?xml") < 2:
        return [content]
    cuts = [found.end() for found in _BETWEEN.finditer(content) if found[0].startswith(b"</")]
    return [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
