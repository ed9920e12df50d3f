"""`penstock resync`: tables anew, one by one while everything flows, or all of them by a new first copy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import FileOption, JsonOption, MasterOption, open_applying, print_json, say, warn
from penstock.cli.verify import compare
from penstock.errors import ConfigError
from penstock.text import count, printable

if TYPE_CHECKING:
    from penstock.database import Emptying


def resync(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE...", help="Tables, or patterns like schema.table, to make equal to the source."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Let the next run make a new first copy of every table.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, as `penstock verify` does; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    file: FileOption = None,
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    """Make tables equal to the source.

    TABLE: compared row by row; the rows that differ are written to the target as the source has them, range by range,
    while everything else flows. It works beside `penstock run`, and without.

    --all: the tables that were copied are emptied and the rest is forgotten; the next `penstock run` copies them anew.
    The way out when source or target were restored, moved or set up anew. The source may be written to meanwhile.
    """
    if every == bool(tables):
        raise ConfigError("say which tables to bring, or --all for a new first copy of every one")
    pipeline = open_applying(file, master=master)
    if tables:
        compare(pipeline, tables, repair=not dry_run, json=json)
        return
    plan = pipeline.resync_plan()
    if dry_run:
        print_json(_as_json(plan.emptying)) if json else _show(plan.emptying, "to be emptied", plan.target)
        return
    if not yes:
        if json or not sys.stdin.isatty():
            raise ConfigError("nobody is there to be asked whether to empty tables", do="say --yes")
        if plan.makes_set_anew:
            say("the capture set was copied here from another place, and is made anew")
        _show(plan.emptying, "to be emptied", plan.target)
        typer.confirm("empty them?", abort=True)
    done = pipeline.resync(lambda text: warn(f"note: {printable(text)}"))
    if json:
        print_json(_as_json(done))
        return
    _show(done, "emptied", plan.target)
    say("`penstock run` makes the new first copy")


def _as_json(emptying: Emptying) -> dict[str, object]:
    left = {str(table): why for table, why in emptying.left.items()}
    return {"emptied": [str(table) for table in emptying.tables], "left": left, "errors": emptying.errors}


def _show(emptying: Emptying, what: str, target: str) -> None:
    names = ", ".join(str(table) for table in emptying.tables) or "none"
    say(f"{what} at the target ({target}): {count(len(emptying.tables), 'table')}: {names}")
    if emptying.errors:
        errors = count(emptying.errors, "transaction")
        warn(f"note: {errors} in the error queue, forgotten: the new copy holds what the source made of them")
    for table, why in emptying.left.items():
        warn(f"note: {table} is left as it is: {why}; empty it, or take it out of capture.tables")
