"""Lines that differ only in the table that they are about, as one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from penstock.text import count

_NAMED = 4
"""So many tables, or things, are named; the others are counted."""

_LEFT_OUT = " is left out: "
_HOLE = "\0"


def merge_alike(lines: Iterable[str], tables: Collection[str]) -> list[str]:
    """Merge lines that say the same of several tables, or that leave several things out for one reason.

    Args:
        tables: Names that lines may be about, as they stand in a line.

    Returns:
        Each line, or one for several that are alike, at the place of the first.
    """
    names = sorted(tables, key=len, reverse=True)
    # A name is none inside a longer one.
    found_in = re.compile("|".join(rf"(?<![\w.]){re.escape(name)}(?![\w.])" for name in names)) if names else None
    groups: dict[str, list[str]] = {}
    for line in dict.fromkeys(lines):
        what, is_left_out, reason = line.partition(_LEFT_OUT)
        if is_left_out:
            groups.setdefault(f"{_HOLE}{_LEFT_OUT}{reason}", []).append(what)
            continue
        name = found_in.search(line) if found_in is not None else None
        if name is None:
            groups.setdefault(line, []).append("")
        else:
            groups.setdefault(line.replace(name[0], _HOLE), []).append(name[0])
    return [_merged(template, names) for template, names in groups.items()]


def _merged(template: str, names: list[str]) -> str:
    if len(names) == 1 or _HOLE not in template:
        return template.replace(_HOLE, names[0])
    if template.startswith(f"{_HOLE}{_LEFT_OUT}"):
        reason = template.partition(_LEFT_OUT)[2]
        return f"{count(len(names), 'thing')} are left out: {reason}: {_in_short(names)}"
    first = template.replace(_HOLE, names[0])
    return f"{first} (and the same of {_in_short(names[1:])})"


def _in_short(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
