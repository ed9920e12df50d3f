"""Words for people."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with what is not for the eye escaped: a name may hold line feeds, to be taken for a line itself."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def count(number: int, noun: str) -> str:
    """A number of things: `1 table`, `2,000 tables`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
