"""Words for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def printable(text: str) -> str:
    """Return a text with what is not for the eye escaped: a name may hold line feeds, to be taken for a line itself."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def count(number: int, noun: str) -> str:
    """A number of things: `1 table`, `2,000 tables`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def were(number: int) -> str:
    """The verb that goes with a number of things: 1 was, 2 were."""
    return "was" if number == 1 else "were"


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask whether the known name was meant that is nearest to a wrong one, whatever the case; empty if none is near."""
    names = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), list(names), n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""
