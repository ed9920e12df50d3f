"""Java's properties files: bytes in, keys and values out.

The rules are those of `java.util.Properties.load`. A logical line may span several lines of the file: a line that ends
in an odd number of backslashes goes on in the next one, whose leading white space is left out. A comment begins with
`#` or `!` and never goes on. A key ends at the first `=`, `:`, blank, tab or form feed that no backslash precedes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import ConfigError

_END_OF_LINE = re.compile(r"\r\n|\r|\n")

_WHITE_SPACE = " \t\f"

_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)

_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)

_CONTROLS = {"t": "\t", "r": "\r", "n": "\n", "f": "\f"}


@dataclass(frozen=True)
class Properties:
    """The properties of one file.

    Attributes:
        values: By key, in the order in which the keys first appear. The last value of a key counts.
        repeated: The keys that appear more than once.
    """

    values: dict[str, str]
    repeated: tuple[str, ...]


def parse_properties(content: bytes, name: str) -> Properties:
    r"""Read the properties of a file.

    Args:
        content: UTF-8, with or without a byte order mark; ISO-8859-1 if it is not valid UTF-8.
        name: What errors call the file.

    Raises:
        ConfigError: A `\u` escape is not followed by four hexadecimal digits, or stands for half a character.
    """
    values: dict[str, str] = {}
    repeated: dict[str, None] = {}
    for number, line in _logical_lines(_decoded(content)):
        place = f"{name}:{number}"
        found = _KEY.match(line)
        end = found.end() if found else 0
        separator = _SEPARATOR.match(line, end)
        key = _unescaped(line[:end], place)
        if key in values:
            repeated[key] = None
        values[key] = _unescaped(line[separator.end() if separator else end :], place)
    return Properties(values, tuple(repeated))


def _decoded(content: bytes) -> str:
    # Java reads ISO-8859-1 from a stream, and UTF-8 where a program opens a reader; editors write either.
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("iso-8859-1")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each logical line that is neither empty nor a comment, with the number of the line that it begins in.

    As in Java, a line that has only a backslash begins nothing: a comment may follow. At the end of the file it is a
    logical line without a character, which means an empty key.
    """
    logical, begin, goes_on = "", 0, False
    lines = _END_OF_LINE.split(text)
    for number, natural in enumerate(lines, start=1):
        line = natural.lstrip(_WHITE_SPACE)
        if goes_on and number == len(lines) and not natural:
            break
        if not logical:
            begin, goes_on = number, False
            if line[:1] in ("#", "!"):
                continue
        backslashes = len(line) - len(line.rstrip("\\"))
        goes_on = backslashes % 2 == 1
        logical += line[:-1] if goes_on else line
        if logical and not goes_on:
            yield begin, logical
            logical = ""
    if goes_on:
        yield begin, logical


def _unescaped(text: str, place: str) -> str:
    def character(found: re.Match[str]) -> str:
        escape = found.group(1)
        if escape[0] != "u":
            return _CONTROLS.get(escape, escape)
        if len(escape) == 1:
            raise ConfigError(r"\u is not followed by four hexadecimal digits", where=place, do=r"write \u00e4, or \\u")
        return chr(int(escape[1:], 16))

    plain = _ESCAPE.sub(character, text)
    try:
        # Java writes a character beyond U+FFFF as two escapes.
        return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as exc:
        raise ConfigError(
            r"a \u escape is half a character", where=place, do="write both halves, high one first"
        ) from exc
