"""Table patterns: `schema.table`, with `*` and `?`, names as they stand in the catalogue.

A part that holds a dot is written in double quotes; inside them `*` and `?` stand for themselves and a double
quote is written twice. Nothing is folded to lower case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.change import TableName
from penstock.errors import ConfigError

_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^".]+)')


@dataclass(frozen=True)
class TablePattern:
    """A pattern as the user wrote it, and what it matches."""

    text: str
    schema: re.Pattern[str]
    name: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """Read a pattern.

        Raises:
            ConfigError: It does not have two parts.
        """
        parts, position = [], 0
        while (found := _PART.match(text, position)) is not None:
            parts.append(_regex(found))
            position = found.end() + 1
            if text[found.end() : position] not in ("", "."):
                break
        if len(parts) != 2 or position != len(text) + 1:
            raise ConfigError(
                f"{text!r} is not a table pattern",
                do='write schema.table, with * and ? as you like; a part with a dot in it in double quotes: "a.b".*',
            )
        return cls(text, *parts)

    def matches(self, table: TableName) -> bool:
        """Whether the table is meant."""
        return bool(self.schema.fullmatch(table.schema) and self.name.fullmatch(table.name))


def _regex(part: re.Match[str]) -> re.Pattern[str]:
    if (quoted := part["quoted"]) is not None:
        return re.compile(re.escape(quoted.replace('""', '"')), re.DOTALL)
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(char) or re.escape(char) for char in part["plain"]), re.DOTALL)
