"""The tables that a DbWatcher watches: `table.[catalog.][schema.]table = actions=IDU,trigger=NAME,sequence=10`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ConfigError

OPERATIONS = {"I": "insert", "U": "update", "D": "delete"}

_RESOURCES = ("items", "tables", "current_tables", "cols_table", "debug_table", "longs_table")
"""The tables among the DbResources, without the prefix."""


@dataclass(frozen=True)
class WatchedTable:
    """A table, or all tables of a schema, whose name is `*`.

    Attributes:
        key: The property that names it.
        schema: Empty if the property names none.
        actions: A mix of `I`, `U` and `D`. Empty: the table was sent with the initial update only.
        trigger: Whether the property gives the trigger a name.
        sequence: Whether it gives the table a place in the order of registration.
        unused: Whether it gives actions that have no effect, as the original watches all tables of a schema alike.
        unknown: Parts of the value that are not understood.
    """

    key: str
    catalog: str
    schema: str
    name: str
    actions: str
    trigger: bool
    sequence: bool
    unused: bool
    unknown: tuple[str, ...]


def watched_table(prefix: str, rest: str, value: str, where: str) -> WatchedTable | None:
    """Read a property.

    Args:
        prefix: `table.`, or `tables.` as the guide has it.
        rest: What follows in the key.
        value: Parts between commas, in any order, each optional; without `actions` all three are meant.
        where: The file, for errors.

    Returns:
        None if the key does not name a table.

    Raises:
        ConfigError: An action is none of the three.
    """
    names = [part.strip() for part in rest.split(".")]
    wild = [name for name in names if "*" in name]
    if (
        not all(names)
        or len(names) > 3
        or "${" in rest
        or (wild and (wild != ["*"] or names[-1] != "*" or not names[1:]))
    ):
        return None
    parts: dict[str, str] = {}
    unknown = []
    for part in filter(None, map(str.strip, value.split(","))):
        name, is_pair, text = part.partition("=")
        if is_pair and name.strip() in ("actions", "trigger", "sequence") and "=" not in text:
            parts[name.strip()] = text.strip()
        else:
            unknown.append(name.strip())
    # The code compares with capital letters; the guide shows no others.
    actions = "IUD" if names[-1] == "*" else parts.get("actions", "IUD").upper()
    wrong = [letter for letter in actions if letter not in OPERATIONS]
    if wrong:
        raise ConfigError(
            f"{prefix}{rest} has actions other than I, U and D: {', '.join(map(repr, wrong))}",
            where=where,
            do="write those that the trigger fires for, as actions=IU",
        )
    return WatchedTable(
        key=prefix + rest,
        catalog=names[-3] if len(names) == 3 else "",
        schema=names[-2] if len(names) > 1 else "",
        name=names[-1],
        actions="".join(letter for letter in OPERATIONS if letter in actions),
        trigger=bool(parts.get("trigger")),
        sequence=bool(parts.get("sequence")),
        unused=names[-1] == "*" and set(parts.get("actions", "IUD").upper()) != set("IUD"),
        unknown=tuple(unknown),
    )


def resources_in(schema: str, prefix: str) -> list[str]:
    """Patterns of the DbResources in a schema; `table.<schema>.*` means them as well if they lie there."""
    return [pattern(schema, f"{prefix.lower()}{name}") for name in _RESOURCES] + [pattern(schema, "dbinfo")]


def pattern(schema: str, name: str) -> str:
    """A table as a pipeline file names it; a `*` alone stands for any name."""
    return f"{_part(schema)}.{_part(name)}"


def _part(name: str) -> str:
    if name == "*" or not set(name) & set('.*?"'):
        return name
    return '"' + name.replace('"', '""') + '"'


def cleaned_prefix(prefix: str) -> str:
    """A prefix as xmlBlaster uses it: `/` and backslashes left out; blank, `.`, `:`, `[`, `]` and `-` as `_`."""
    return prefix.translate(str.maketrans(" .:[]-", "______", "/\\"))
