"""Table patterns: `schema.table`, with `*` and `?`, names as they stand in the catalogue; and names made of others.

A part that holds a dot is written in double quotes; inside them `*` and `?` stand for themselves and a double
quote is written twice. Nothing is folded to lower case.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.change import TableName
from penstock.errors import ConfigError
from penstock.text import nearest

_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".]+)')


@dataclass(frozen=True)
class TablePattern:
    """A pattern as the user wrote it, and what it matches."""

    text: str
    schema: re.Pattern[str]
    name: re.Pattern[str]
    plain_schema: str | None
    plain_name: str | None

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """Read a pattern.

        Raises:
            ConfigError: It does not have two parts.
        """
        parts = _parts(text)
        if parts is None:
            raise ConfigError(
                f"{text!r} is not a table pattern",
                do='write schema.table, with * and ? as you like; a part with a dot in it in double quotes: "a.b".*',
            )
        schema, name = parts
        return cls(text, _regex(schema), _regex(name), _plain(schema), _plain(name))

    @staticmethod
    def exactly(table: TableName) -> str:
        """Write the pattern that matches one table and no other."""
        return f"{_written(table.schema)}.{_written(table.name)}"

    @staticmethod
    def all_of(schema: str) -> str:
        """Write the pattern that matches all tables of a schema."""
        return f"{_written(schema)}.*"

    @property
    def table(self) -> TableName | None:
        """The only table it matches; None where a part holds `*` or `?`."""
        if self.plain_schema is None or self.plain_name is None:
            return None
        return TableName(self.plain_schema, self.plain_name)

    def matches(self, table: TableName) -> bool:
        """Whether the table is meant."""
        return bool(self.schema.fullmatch(table.schema) and self.name.fullmatch(table.name))


def _written(part: str) -> str:
    """A part of a name, in quotes where anything in it means something else."""
    is_plain = re.fullmatch(r'[^".*?]+', part) is not None
    return part if is_plain else '"' + part.replace('"', '""') + '"'


def nearest_table(pattern: str, tables: Iterable[TableName]) -> str:
    """Ask whether the table was meant whose name is nearest to a pattern that means none; empty if none is near."""
    wanted = TablePattern.parse(pattern).table
    if wanted is None:
        return ""
    # A schema that both have makes no two tables alike.
    near = [table for table in tables if _is_like(wanted.schema, table.schema) and _is_like(wanted.name, table.name)]
    return nearest(pattern, map(str, near))


def _is_like(name: str, other: str) -> bool:
    return bool(difflib.get_close_matches(name.lower(), [other.lower()], n=1))


@dataclass(frozen=True)
class TableTemplate:
    """Names made of others: `schema.table`, where a `*` in either part stands for that part of the other name.

    Each part is what stands before and behind its `*`, or the whole part if it has none.
    """

    text: str
    schema: tuple[str, ...]
    name: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TableTemplate:
        """Read a template.

        Raises:
            ConfigError: It does not have two parts, a part has more than one `*`, or a `?`.
        """
        parts = _parts(text)
        pieces = [] if parts is None else [_pieces(part) for part in parts]
        if len(pieces) != 2 or any(len(piece) > 2 or "?" in "".join(piece) for piece in pieces):
            raise ConfigError(
                f"{text!r} does not name a table",
                do="write schema.table; a * stands for the schema, or the table, as it is called at the source",
            )
        return cls(text, *pieces)

    def made_of(self, table: TableName) -> TableName:
        """The name that a table's name becomes."""
        return TableName(table.schema.join(self.schema), table.name.join(self.name))

    def origin(self, made: TableName, pattern: TablePattern) -> TableName | None:
        """The only name that matches the pattern and can become `made`; None where there is no such name.

        A part without a `*` says nothing of the other name, so the pattern's must be plain there.
        """
        schema = _star(self.schema, made.schema, pattern.plain_schema)
        name = _star(self.name, made.name, pattern.plain_name)
        if schema is None or name is None or not pattern.matches(TableName(schema, name)):
            return None
        return TableName(schema, name)


def _star(pieces: tuple[str, ...], made: str, plain: str | None) -> str | None:
    """What the `*` stands for if the pieces become `made`; of pieces without one, what stood there instead."""
    if len(pieces) == 1:
        return plain if made == pieces[0] else None
    head, tail = pieces
    if not made.startswith(head) or not made.endswith(tail) or len(made) <= len(head) + len(tail):
        return None
    return made[len(head) : len(made) - len(tail)]


def _parts(text: str) -> tuple[re.Match[str], re.Match[str]] | None:
    """The two parts of a name; None where it has another number of them."""
    parts, position = [], 0
    while (found := _PART.match(text, position)) is not None:
        parts.append(found)
        position = found.end() + 1
        if text[found.end() : position] not in ("", "."):
            break
    if len(parts) != 2 or position != len(text) + 1:
        return None
    return parts[0], parts[1]


def _plain(part: re.Match[str]) -> str | None:
    """What a part matches, if that is one name."""
    if part["quoted"] is None and re.search(r"[*?]", part["plain"]):
        return None
    return "".join(_pieces(part))


def _pieces(part: re.Match[str]) -> tuple[str, ...]:
    """What a part says, cut at each `*`."""
    if (quoted := part["quoted"]) is not None:
        return (quoted.replace('""', '"'),)
    return tuple(part["plain"].split("*"))


def _regex(part: re.Match[str]) -> re.Pattern[str]:
    if (quoted := part["quoted"]) is not None:
        return re.compile(re.escape(quoted.replace('""', '"')), re.DOTALL)
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(char) or re.escape(char) for char in part["plain"]), re.DOTALL)
