"""Options of our data sources, as Spark hands them on."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import ConfigError
from penstock.text import nearest, printable


def refuse_unknown(given: Iterable[str], known: Iterable[str], *, source: str) -> None:
    """Refuse names of options that a data source does not have; Spark itself takes any, in upper or lower case.

    Raises:
        ConfigError: There are some; it names each, and the known one that is nearest. No value is repeated.
    """
    known = sorted(known)
    lower = {name.lower() for name in known}
    unknown = [f"{printable(name)!r}{nearest(name, known)}" for name in given if name.lower() not in lower]
    if unknown:
        raise ConfigError(f"no option of {source}: {', '.join(unknown)}", do=f"the options are {', '.join(known)}")
