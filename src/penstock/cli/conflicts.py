"""`penstock conflicts`: what was resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from penstock.cli.console import (
    TIME,
    FileOption,
    JsonOption,
    as_text,
    open_applying,
    out,
    parse_time,
    print_json,
    print_rows,
    say,
)
from penstock.cli.groups import takes_groups
from penstock.text import short_time

_MOST = 100


@dataclass(frozen=True)
class ConflictOptions:
    """Which conflicts are meant."""

    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="PATTERN", help="Only of tables like schema.table; repeatable."),
    ] = None
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"Resolved at this time or later: {TIME}")
    ] = None
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Resolved at this time or earlier.")] = (
        None
    )
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Only by this method, such as maximum; repeatable.")
    ] = None
    outcome: Annotated[
        list[str] | None, typer.Option("--outcome", help="applied, discarded, merged or recorded; repeatable.")
    ] = None


@takes_groups
def conflicts(
    meant: ConflictOptions = ConflictOptions(),
    limit: Annotated[int, typer.Option("--limit", min=1, help="The maximum number to list.")] = _MOST,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """List resolved conflicts, newest first."""
    from penstock.apply.conflict_log import ConflictFilter
    from penstock.cli.error_view import named
    from penstock.patterns import TablePattern

    patterns = [TablePattern.parse(text) for text in meant.table or ()]
    pipeline = open_applying(file)
    wanted = ConflictFilter(
        is_meant=lambda name: (
            not patterns or any(pattern.matches(one) for pattern in patterns for one in (name, *pipeline.origins(name)))
        ),
        since=parse_time(meant.since, option="--since"),
        until=parse_time(meant.until, option="--until"),
        methods=meant.method or (),
        outcomes=meant.outcome or (),
        most=limit,
    )
    found = pipeline.conflicts(wanted)
    if json:
        print_json([one.to_json() for one in found])
    elif not found:
        is_any = meant.table or meant.since or meant.until or meant.method or meant.outcome
        say("no conflict that was resolved fits" if is_any else "no conflict was resolved, or none is remembered")
    else:
        # A terminal has no room for all of it: there the position is left out, which --json has.
        headings = ["resolved at", "change", "row", "method", "outcome", "columns", "position"]
        rows = [
            [
                short_time(one.resolved_at) if out.is_terminal else as_text(one.resolved_at),
                f"{one.op} {named(one.table, pipeline)}",
                one.row_is or f"error {one.error_number}",
                one.method,
                one.outcome,
                ", ".join(one.columns),
                one.commit_scn,
            ]
            for one in found
        ]
        print_rows(headings[:-1], [row[:-1] for row in rows]) if out.is_terminal else print_rows(headings, rows)
