"""One properties file of a DbWatcher or a DbWriter, whose keys are taken out one by one.

Whoever understands a key takes it. The keys that nobody has taken are left for `known_keys.py`, and those that it does
not know are reported: so no key is dropped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from penstock.errors import ConfigError
from penstock.xmlblaster.properties import parse_properties

_VARIABLE = re.compile(r"\$\{([^${}]+)\}")

_SECRET = re.compile(r"passw|secret|credential|token|connectqos", re.IGNORECASE)

_MOST_STEPS = 50
"""References that are followed in one text; xmlBlaster's own limit is 50 as well."""


class Half(Enum):
    """The side of a replication that a file configures."""

    WATCHER = "DbWatcher"
    WRITER = "DbWriter"


_MARKS = {
    Half.WATCHER: re.compile(
        r"tables?\.|changeDetector\.|alertProducer\.|alertScheduler\.|converter\.|dbWatcher\.|db\.queryMeatStatement"
    ),
    Half.WRITER: re.compile(r"dbWriter\.|mom\.dispatcherPlugin|replication\.(mapper|searchable)\."),
}
"""Keys that only one of the two reads."""


class OldFile:
    """The properties of a file.

    Attributes:
        name: What the user calls the file.
        half: Whether a DbWatcher or a DbWriter is configured; None if no key tells.
        size: How many properties it has.
        repeated: Keys that appear more than once, also once their variables are put in place; the last value counts.
    """

    def __init__(self, content: bytes, name: str) -> None:
        """Read the file.

        Raises:
            ConfigError: It breaks the format, or configures a DbWatcher and a DbWriter at once.
        """
        found = parse_properties(content, name)
        self.name = name
        self.size = len(found.values)
        self._plain = {key: value.strip() for key, value in found.values.items()}
        self._left: dict[str, str] = {}
        repeated = dict.fromkeys(found.repeated)
        for key, value in self._plain.items():
            resolved = self._with_values(key, key)
            if resolved in self._left:
                repeated[resolved] = None
            self._left[resolved] = self._with_values(value, key)
        self.repeated: Sequence[str] = tuple(repeated)
        self.half = self._half()

    def take(self, key: str) -> str | None:
        """Take a key's value; None if it is absent."""
        return self._left.pop(key, None)

    def take_flag(self, key: str) -> bool | None:
        """Take true or false; None if the key is absent.

        Raises:
            ConfigError: The value is neither.
        """
        value = self.take(key)
        if value is None:
            return None
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"{key} is neither true nor false", where=self.name, do="write one of them")
        return value.lower() == "true"

    def take_number(self, key: str) -> int | None:
        """Take a whole number; None if the key is absent.

        Raises:
            ConfigError: The value is none.
        """
        value = self.take(key)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit()):
            raise ConfigError(f"{key} is not a whole number", where=self.name, do="write one in digits")
        return int(value)

    def take_below(self, prefix: str) -> dict[str, str]:
        """Take all keys that begin with a prefix: what follows it, and the value."""
        keys = [key for key in self._left if key.startswith(prefix)]
        return {key.removeprefix(prefix): self._left.pop(key) for key in keys}

    def left(self) -> list[str]:
        """The keys that nobody has taken."""
        return list(self._left)

    def is_true(self, key: str) -> bool:
        """Whether the value is true, without taking it."""
        return self._left.get(key, "").lower() == "true"

    def _half(self) -> Half | None:
        halves = [half for half, mark in _MARKS.items() if any(mark.match(key) for key in self._left)]
        if len(halves) > 1:
            raise ConfigError(
                "the file has properties of a DbWatcher and of a DbWriter, but only one db.url",
                where=self.name,
                do="make it two files, and give both: penstock import-xmlblaster watcher.properties writer.properties",
            )
        return halves[0] if halves else None

    def _with_values(self, text: str, key: str) -> str:
        """Put the values of the file's own properties in place of `${name}`; a secret stays a reference."""
        for _ in range(_MOST_STEPS):
            found = next((one for one in _VARIABLE.finditer(text) if self._is_known(one.group(1))), None)
            if found is None:
                return text
            text = text[: found.start()] + self._plain[found.group(1)] + text[found.end() :]
        raise ConfigError(
            f"the variables in {key} refer to each other in a circle", where=self.name, do="end the circle"
        )

    def _is_known(self, name: str) -> bool:
        return name in self._plain and not is_secret(name)


def is_secret(key: str) -> bool:
    """Whether a property may hold a secret, by its name."""
    return bool(_SECRET.search(key))
