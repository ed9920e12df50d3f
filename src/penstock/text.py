"""Words for people."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime


def printable(text: str) -> str:
    """Return a text with what is not for the eye escaped: a name may hold line feeds, to be taken for a line itself."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def count(number: int, noun: str) -> str:
    """A number of things: `1 table`, `2,000 tables`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def were(number: int) -> str:
    """The verb that goes with a number of things: 1 was, 2 were."""
    return "was" if number == 1 else "were"


def are(number: int) -> str:
    """The same for now: 1 is, 2 are."""
    return "is" if number == 1 else "are"


def duration(seconds: float) -> str:
    """A span of time: `0.1 s`, `2 min 5 s`, `3 h 20 min`, `327 d 7 h`; what is below the second unit is left out."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days:,} d {h} h"
    if hours:
        return f"{h} h {m} min"
    return f"{m} min {s} s" if minutes else f"{seconds:.1f} s"


def how_far(done: int, of: int, noun: str, took_s: float, *, more: str = "") -> str:
    """How far work is, and how long the rest takes at this pace: `3/5 chunks, 60 %, 1,200 rows, 4 s left`.

    Args:
        noun: What is counted, in the singular.
        took_s: How long it took so far.
        more: What else is known of what is done.
    """
    share = done / of if of else 1.0
    left = took_s * (1 - share) / share if share else 0.0
    about = "" if not left else f"{left:.0f} s left" if left < 60 else f"{duration(left)} left"
    parts = (f"{done:,}/{count(of, noun)}", f"{100 * share:.0f} %", more, about)
    return ", ".join(filter(None, parts))


def time_text(at: datetime) -> str:
    """A time for people: `2026-11-29 15:53:28 UTC`; JSON has all of it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def short_time(at: datetime) -> str:
    """The same in a column: `11-29 15:53:28`."""
    return f"{at.astimezone(UTC):%m-%d %H:%M:%S}"


def size(size_bytes: int) -> str:
    """How much: `0.2 MB`, `12.5 GB`."""
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 10**9 else f"{size_bytes / 1e6:,.1f} MB"


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask whether the known name was meant that is nearest to a wrong one, whatever the case; empty if none is near."""
    names = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), list(names), n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def wrap(text: str, width: int) -> list[str]:
    """Break each line of a text into lines of at most so many characters, but no command in backticks that fits one."""
    kept = re.sub(r"`[^`]+`", lambda found: found[0].replace(" ", "\0"), text)
    parts = [part for line in kept.split("\n") for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]]
    return [part.replace("\0", " ") for part in parts]
