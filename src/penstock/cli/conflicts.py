"""`penstock conflicts`: what was resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

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
    print_with_margin,
    say,
)
from penstock.cli.groups import takes_groups
from penstock.text import printable, short_time

if TYPE_CHECKING:
    from penstock.apply.conflict_log import LoggedConflict
    from penstock.pipeline.pipeline import Pipeline

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
        show(found, pipeline)


def show(found: Sequence[LoggedConflict], pipeline: Pipeline) -> None:
    """Print conflicts: for a person what was decided in one line and of which columns below, for a program a table."""
    from penstock.cli.error_view import named

    if out.is_terminal:
        for one in found:
            at = f"{short_time(one.resolved_at)}  "
            change = f"{one.op} {named(one.table, pipeline)}"
            print_with_margin(at, printable(f"{change}, {_row(one)}: {one.method}, {one.outcome}"))
            places = [*one.columns, f"position {one.commit_scn}"]
            print_with_margin(" " * len(at), printable(", ".join(places)))
        return
    print_rows(
        ["resolved at", "change", "row", "method", "outcome", "columns", "position"],
        [
            [
                as_text(one.resolved_at),
                f"{one.op} {named(one.table, pipeline)}",
                one.row_is or f"error {one.error_number}",
                one.method,
                one.outcome,
                ", ".join(one.columns),
                one.commit_scn,
            ]
            for one in found
        ],
    )


def _row(one: LoggedConflict) -> str:
    """What the target's row was, or the error that came of the change."""
    return f"row {one.row_is}" if one.row_is else f"error {one.error_number}"
