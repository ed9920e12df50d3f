"""The sections of docs/cli.md: each command's usage and options are made from the code, between two comments.

What stands around them in a section is written by hand. A command without a section gets one at the end of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import typer

from penstock.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/cli.md"
INDEX = "<!-- every command: made by scripts/write-reference -->"
BEGIN = "<!-- {name}: made by scripts/write-reference -->"
END = "<!-- end -->"
BEHIND = "\n### Of some pipelines\n"
# Every command has them, and the page's first paragraph says what they do.
OF_ALL = {"file", "json", "help"}


def page(text: str) -> str:
    """The page's text with what is made from the code as the code is now."""
    found = dict(commands())
    lines = ["| command | does |", "| --- | --- |"]
    lines += [f"| [`{name}`](#{anchor(name)}) | {_cell(_first(command.help))} |" for name, command in found.items()]
    text = _between(text, INDEX, "\n".join(lines))
    for name, command in found.items():
        mark = BEGIN.format(name=name)
        if mark not in text:
            section = f"\n### `penstock {name}`\n\n{mark}\n{END}\n"
            text = text.replace(BEHIND, section + BEHIND, 1)
        text = _between(text, mark, usage(name, command))
    return text


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Each command by its whole name, in the order in which help has them; a group that works alone is one, too."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        whole = f"{before}{name}"
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield whole, command
            yield from commands(command, f"{whole} ")
        else:
            yield whole, command


def usage(name: str, command: Any) -> str:
    """What to type, and a table of arguments and options."""
    arguments = [one for one in command.params if not one.opts[0].startswith("-")]
    options = [one for one in command.params if one.opts[0].startswith("-") and not one.hidden]
    typed = [f"penstock {name}", *map(_argument, arguments)]
    own = [one for one in options if one.name not in OF_ALL]
    lines = ["```text", " ".join([*typed, *(["[OPTIONS]"] if own else [])]), "```"]
    named = [(_argument(one).strip("[].").replace("|", "\\|"), one.help) for one in arguments if one.help]
    rows = [f"| `{name}` | {_cell(said)} |" for name, said in named]
    rows += [f"| {_option(one)} | {_cell(one.help)}{_default(one)} |" for one in own]
    if rows:
        lines += ["", "| option | |", "| --- | --- |", *rows]
    return "\n".join(lines)


def anchor(name: str) -> str:
    """Where the section of a command is in the page."""
    return re.sub(r"[^\w\- ]", "", f"penstock {name}".lower()).replace(" ", "-")


def _between(text: str, mark: str, made: str) -> str:
    before, _, rest = text.partition(mark)
    _, _, after = rest.partition(END)
    return f"{before}{mark}\n\n{made}\n\n{END}{after}"


def _argument(one: Any) -> str:
    name = (one.metavar or one.name.upper().replace("_", "-")).removesuffix("...").strip("[]")
    return f"{name if one.required else f'[{name}]'}{'...' if one.nargs == -1 else ''}"


def _option(one: Any) -> str:
    value = "" if one.is_flag else f" {one.metavar or _kind(one.type_descriptor.annotation)}".replace("|", "\\|")
    return ", ".join(f"`{name}{value}`" for name in one.opts)


def _kind(annotation: Any) -> str:
    """What an option takes, by its type: one of several words, a number, a file or a text."""
    kinds = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and one is not NoneType]
    for kind in kinds:
        if issubclass(kind, Enum):
            return "|".join(str(member.value) for member in kind)
        if issubclass(kind, int | float):
            return "N"
        if issubclass(kind, Path):
            return "FILE"
    return "TEXT"


def _default(one: Any) -> str:
    if one.is_flag or one.multiple:
        return ""
    said = one.show_default if isinstance(one.show_default, str | int) and one.show_default is not True else one.default
    return "" if said in (None, "", False) or callable(said) else f" Without it: `{getattr(said, 'value', said)}`."


def _first(text: str) -> str:
    """The first sentence of a help text."""
    return re.split(r"(?<=[.:])\s+(?=[A-Z-])", " ".join(text.split()))[0]


def _cell(text: str | None) -> str:
    words = " ".join((text or "").split()).replace("|", "\\|").replace("; see docs/cli.md.", ".")
    return re.sub(r"([*<])", r"\\\1", words)
