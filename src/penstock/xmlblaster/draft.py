"""A pipeline file while it is written: settings, the comments above them, and the remarks at its end."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from penstock.text import printable

_WIDTH = 110

Path_ = tuple[str, ...]


@dataclass
class Draft:
    """A pipeline file that can be read back, and what a person has to know about it.

    Attributes:
        settings: The settings, nested, in the order of the file.
        comments: By the path of a setting: the comment above it.
        written: By old file: the old keys that a setting or a comment above it stands for.
        remarks: By old file, and by old key: why the key has no counterpart, and what to do instead.
        unknown: By old file: the keys that are not understood.
        checks: What the reader has to decide or look at, each a sentence.
        variables: Variables of the environment that the file refers to, and what each has to hold.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    comments: dict[Path_, list[str]] = field(default_factory=dict)
    written: dict[str, dict[str, None]] = field(default_factory=dict)
    remarks: dict[str, dict[str, str]] = field(default_factory=dict)
    unknown: dict[str, list[str]] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def set(self, path: Path_, value: object, comment: str = "") -> None:
        """Write a setting, below all settings of its part that are there already."""
        place = self.settings
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
        if comment:
            self.comment(path, comment)

    def comment(self, path: Path_, text: str) -> None:
        """Add a comment above a setting."""
        self.comments.setdefault(path, []).append(text)

    def count(self, file: str, *keys: str) -> None:
        """Remember that keys of an old file are written."""
        self.written.setdefault(file, {}).update(dict.fromkeys(keys))

    def remark(self, file: str, key: str, text: str) -> None:
        """Say what has become of a key without a counterpart."""
        self.remarks.setdefault(file, {})[key] = text

    def leave(self, file: str, key: str, why: str = "") -> None:
        """Report a key that is not understood; `why` names the part of it that is not."""
        self.unknown.setdefault(file, []).append(f"{key}: {why}" if why else key or "(an empty key)")

    def text(self, heading: str) -> str:
        """The file, which ends with a line break."""
        lines = [*_comment(heading, ""), *self._block(self.settings, ())]
        if self.checks:
            lines += ["", *_comment("To be looked at:", "")]
            for check in self.checks:
                lines += _comment(check, "", bullet="- ")
        for title, below in (
            ("Properties without a counterpart, and what to do instead", self._remarks()),
            ("Not understood, and left out", self.unknown),
        ):
            for file, notes in below.items():
                lines += ["", *_comment(f"{title} ({file}):", "")]
                for note in notes:
                    lines += _comment(note, "", bullet="- ")
        return "\n".join(lines) + "\n"

    def _remarks(self) -> Mapping[str, list[str]]:
        """By old file: each reason once, behind all keys that it is given for."""
        notes: dict[str, list[str]] = {}
        for file, below in self.remarks.items():
            keys: dict[str, list[str]] = {}
            for key, text in below.items():
                keys.setdefault(text, []).append(key)
            notes[file] = [f"{', '.join(named)}: {text}" for text, named in keys.items()]
        return notes

    def _block(self, settings: Mapping[str, Any], path: Path_) -> Iterator[str]:
        indent = "  " * len(path)
        for name, value in settings.items():
            for comment in self.comments.get((*path, name), []):
                yield from _comment(comment, indent)
            if isinstance(value, dict) and value:
                yield f"{indent}{_scalar(name)}:"
                yield from self._block(value, (*path, name))
            elif isinstance(value, list) and len(value) > 3:
                yield f"{indent}{_scalar(name)}:"
                yield from (f"{indent}  - {_scalar(item)}" for item in value)
            else:
                yield f"{indent}{_scalar(name)}: {_scalar(value)}"


def _comment(text: str, indent: str, *, bullet: str = "") -> list[str]:
    # A name may hold a line break, behind which a setting could stand.
    wrapped = textwrap.wrap(printable(text), _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    return [f"{indent}# {(bullet if first else ' ' * len(bullet))}{line}" for first, line in _marked(wrapped)]


def _marked(lines: list[str]) -> Iterator[tuple[bool, str]]:
    return ((number == 0, line) for number, line in enumerate(lines))


def _scalar(value: object) -> str:
    """A name, a value or a short list on one line, quoted where YAML would read it differently."""
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    # Only between double quotes a line break does not begin a line.
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    listed: str = yaml.safe_dump(
        [value], default_flow_style=True, default_style=style, allow_unicode=True, width=float("inf")
    )
    return listed.strip()[1:-1]
