"""Names of objects: how long one may be, for the server cuts longer ones in silence; and how the server writes one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.dialects.postgres.connection import Connection

MOST_BYTES = 63


def fits(name: str) -> bool:
    """Whether every database keeps all of a name, whatever its encoding."""
    return len(name.encode()) <= MOST_BYTES


def too_long(connection: Connection, names: Iterable[str]) -> Mapping[str, int]:
    """Return how many bytes those of the names have that a database cuts, in its own encoding."""
    doubtful = sorted({name for name in names if not fits(name)})
    if not doubtful:
        return {}
    rows = connection.execute(
        "SELECT name, octet_length(convert_to(name, getdatabaseencoding())) FROM unnest(%s::text[]) name", [doubtful]
    ).fetchall()
    return {name: size for name, size in rows if size > MOST_BYTES}


def cut(name: str, size: int) -> str:
    """Say that a name would be cut."""
    return f"the name {name!r} has {size} bytes, and PostgreSQL cuts names after {MOST_BYTES}"


def split_name(qualified: str) -> tuple[str, str]:
    """Read the two parts of a name as the server writes it, quoted where it must be."""
    parts: list[str] = []
    rest = qualified
    while rest:
        if rest.startswith('"'):
            end = 1
            while (end := rest.index('"', end)) + 1 < len(rest) and rest[end + 1] == '"':
                end += 2
            parts.append(rest[1:end].replace('""', '"'))
            rest = rest[end + 2 :]
        else:
            part, _, rest = rest.partition(".")
            parts.append(part)
    return parts[0], ".".join(parts[1:])
