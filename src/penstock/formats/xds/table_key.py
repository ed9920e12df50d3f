r"""Keys as event logs write them, `org=acme+num=7`, and the associations that name an object by such a key.

```
key      ::= name "=" value { "+" name "=" value }
value    ::= bare | quoted
bare     ::= one or more characters, none of them special          blanks are kept
quoted   ::= '"' { plain | '\"' | '\\' } '"'                        may be empty
name     ::= one or more characters, none special, no blank at either end
```

Nine characters are special: `, ; ' + " = \ < >`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import MalformedInputError

Key: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, in the order in which they are written."""

_SPECIAL = r""",;'+"=\\<>"""

_PAIR = re.compile(rf'([^{_SPECIAL}]+)=(?:([^{_SPECIAL}]+)|"((?:[^"\\]|\\["\\])*)")')

_NEEDS_QUOTES = re.compile(rf"[{_SPECIAL}]")

_ESCAPED = re.compile(r'\\(["\\])')


def parse_key(text: str) -> Key:
    """Read a key. Nothing is trimmed: a blank in a value is part of it.

    Raises:
        MalformedInputError: It breaks the grammar, or names a column twice. The message holds nothing of the text.
    """
    pairs: list[tuple[str, str]] = []
    place = 0
    while True:
        found = _PAIR.match(text, place)
        if found is None:
            raise MalformedInputError(
                "the key is not of the form column=value+column=value", where=f"character {place}"
            )
        name, bare, quoted = found.groups()
        if name != name.strip():
            raise MalformedInputError("a column's name in the key has a blank beside it", where=f"character {place}")
        pairs.append((name, bare if quoted is None else _ESCAPED.sub(r"\1", quoted)))
        place = found.end()
        if place == len(text):
            break
        if text[place] != "+":
            raise MalformedInputError("only a + may follow a value in the key", where=f"character {place}")
        place += 1
    if len({name for name, _ in pairs}) < len(pairs):
        raise MalformedInputError("the key names a column twice")
    return tuple(pairs)


def write_key(key: Iterable[tuple[str, str]]) -> str:
    """Write a key; the inverse of `parse_key`. A value gets quotes exactly when it is empty or holds a special one."""
    return "+".join(f"{name}={quoted(value)}" for name, value in key)


def behind_key(table: str, schema: str) -> str:
    """Write what follows the key in an association."""
    return f",table={quoted(table)},schema={quoted(schema)}"


def may_be_key_column(name: str) -> bool:
    """Whether a key can name a column: names have no quotes, so that some characters end them."""
    return bool(name) and name == name.strip() and _NEEDS_QUOTES.search(name) is None


def quoted(value: str) -> str:
    """Write a value, in quotes where it needs them."""
    if value and _NEEDS_QUOTES.search(value) is None:
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class Association:
    """What names an object: its key, its table and its schema."""

    key: Key
    table: str
    schema: str

    def __str__(self) -> str:
        return write_key(self.key) + behind_key(self.table, self.schema)

    @classmethod
    def parse(cls, text: str) -> Association:
        """Read an association; blanks around it mean nothing.

        Raises:
            MalformedInputError: It is none.
        """
        found = _ASSOCIATION.fullmatch(text.strip())
        if found is None:
            raise MalformedInputError("an association is not of the form column=value,table=name,schema=name")
        (_, table), (_, schema) = parse_key(f"table={found['table']}+schema={found['schema']}")
        return cls(parse_key(found["key"]), table, schema)


_VALUE = rf'(?:[^{_SPECIAL}]+|"(?:[^"\\]|\\["\\])*")'

_ASSOCIATION = re.compile(rf"(?P<key>.*),table=(?P<table>{_VALUE}),schema=(?P<schema>{_VALUE})", re.DOTALL)
