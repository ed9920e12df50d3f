"""Files with several messages, one behind the other, each with an XML declaration, as Penstock publishes them.

A comment behind the last message says where the pipeline stands that has written the file; it is no message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

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


# All begin with the same character, without regard to its case: so what lies between is passed over in no time.
_MARK = re.compile(rb"<(?:!\[(?i:CDATA)\[|!--|/(?i:sql)>\s*<\?(?i:xml))")
_CLOSING = {b"<![": b"]]>", b"<!-": b"-->"}
_NEXT = b"<?xml"

_LONGEST_MARK = 4_096
"""So much is kept back of each piece: the end of a message may go on in the next one, line breaks inside."""


def split_pieces(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yield the messages of a file that comes piece by piece; of one that has more bytes than `most`, the first ones.

    A reader is given a byte more than `most`, so that it refuses such a message without having had it in memory.
    """
    body, rest, closing = bytearray(), b"", b""

    def take(upto: int) -> None:
        body.extend(rest[at : min(upto, at + max(0, most + 1 - len(body)))])

    for piece in pieces:
        rest, at = rest + piece, 0
        while True:
            if closing:
                end = rest.find(closing, at)
                upto = end + len(closing) if end >= 0 else max(at, len(rest) - len(closing) + 1)
                take(upto)
                at = upto
                if end < 0:
                    break
                closing = b""
            elif (found := _MARK.search(rest, at)) is None:
                upto = max(at, len(rest) - _LONGEST_MARK)
                take(upto)
                at = upto
                break
            elif closing := _CLOSING.get(found[0][:3], b""):
                take(found.end())
                at = found.end()
            else:
                take(found.start() + len(_END))
                yield bytes(body)
                body.clear()
                at = found.end() - len(_NEXT)
        rest = rest[at:]
    at = 0
    take(len(rest))
    yield bytes(body) if len(body) > most else split(bytes(body))[0]
