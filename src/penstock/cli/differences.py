"""In what the copy is not what the source is, for a person to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli.console import print_with_margin, say
from penstock.text import are, count, printable

if TYPE_CHECKING:
    from penstock.database import CatalogDifference

_MOST_SHOWN = 6


def not_brought(differences: Sequence[CatalogDifference]) -> str | None:
    """Count what the source has and the copy lacks or has otherwise; None where there is nothing."""
    number = sum(not one.is_extra for one in differences)
    return f"{count(number, 'thing')} {are(number)} not copied" if number else None


def show(differences: Sequence[CatalogDifference], *, detail: bool) -> None:
    """Print what is not copied, by kind; in `detail` each with the SQL that brings it."""
    lacking = [one for one in differences if not one.is_extra]
    title = not_brought(differences)
    if title is not None:
        say(f"{title}:")
        _show(lacking, detail=detail)
        if not detail:
            print_with_margin(
                "  ", "--detail prints the SQL for each; `pg_dump --schema-only` of the source has them, too"
            )
    extra = [one for one in differences if one.is_extra]
    if extra:
        say(f"{count(len(extra), 'thing')} {are(len(extra))} in the copy only:")
        _show(extra, detail=detail)


def _show(differences: Sequence[CatalogDifference], *, detail: bool) -> None:
    if detail:
        for one in differences:
            say(f"  {one}")
            for line in (one.sql or f"-- {_dump(one)}").splitlines():
                say(f"    {printable(line)}")
        return
    kinds: dict[tuple[str, str], list[str]] = {}
    for one in differences:
        kinds.setdefault((one.kind, one.reason), []).append(printable(one.what))
    for (kind, reason), names in kinds.items():
        more = f", and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        why = f" ({printable(reason)})" if reason else ""
        print_with_margin(f"  {kind}: ", f"{', '.join(names[:_MOST_SHOWN])}{more}{why}")


def _dump(one: CatalogDifference) -> str:
    where = f"--table={one.table}" if one.table is not None else f"--schema={one.schema}"
    return f"pg_dump --schema-only {where} of the source has it"


def as_json(differences: Sequence[CatalogDifference]) -> dict[str, object]:
    """The same as plain data."""
    return {
        "not_brought": [dict(one.facts) for one in differences if not one.is_extra],
        "besides": [dict(one.facts) for one in differences if one.is_extra],
    }
