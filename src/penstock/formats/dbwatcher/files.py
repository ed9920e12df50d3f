"""Files with several messages, one behind the other, each with an XML declaration, as Penstock publishes them.

A comment behind the last message says where the pipeline stands that has written the file; it is no message.
"""

from __future__ import annotations

import re

_BETWEEN = re.compile(rb"<!\[CDATA\[.*?\]\]>|<!--.*?-->|</sql>\s*(?=<\?xml)", re.DOTALL | re.IGNORECASE)
"""The end of a message behind which another one begins; or what may hold the same bytes, and is passed over."""

_END = b"</sql>"

_BEHIND = re.compile(rb"(?<=</sql>)\s*(?:<!--(?:[^-]|-(?!-))*-->\s*)?\Z", re.IGNORECASE)
"""What may follow the last message: Penstock writes down there where it stands."""


def split(content: bytes) -> list[bytes]:
    """Return the messages of a file; one at least, as an empty file is none that can be read."""
    end = len(content)
    if (behind := _BEHIND.search(content, max(0, content.rfind(b"</")))) is not None:
        end = behind.start()
    if content.count(b"<?xml") < 2:
        return [content[:end]]
    cuts = [found.span() for found in _BETWEEN.finditer(content, 0, end) if found[0].startswith(b"</")]
    begins, ends = [0, *(b for _, b in cuts)], [*(a + len(_END) for a, _ in cuts), end]
    return [content[a:b] for a, b in zip(begins, ends, strict=True)]
