"""`penstock resync`: a new first copy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import FileOption, JsonOption, open_file, print_json, say, warn
from penstock.errors import ConfigError
from penstock.text import count

if TYPE_CHECKING:
    from penstock.dialects.base import Emptying


def resync(
    every: Annotated[bool, typer.Option("--all", help="Every table that the pipeline has copied.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    file: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Empty the tables that were copied, and forget the rest; the next `penstock run` copies them anew.

    The way out when source or target were restored, moved or set up anew. The source may be written to meanwhile.
    """
    if not every:
        raise ConfigError("say --all: a new first copy is of every table")
    pipeline = open_file(file)
    plan = pipeline.resync_plan()
    if not yes:
        if json or not sys.stdin.isatty():
            raise ConfigError("nobody is there to be asked whether to empty tables", do="say --yes")
        if plan.makes_set_anew:
            say("the capture set was copied here from another place, and is made anew")
        _show(plan.emptying, "to be emptied", plan.target)
        typer.confirm("empty them?", abort=True)
    done = pipeline.resync()
    if json:
        left = {str(table): why for table, why in done.left.items()}
        print_json({"emptied": [str(table) for table in done.tables], "left": left, "errors": done.errors})
        return
    _show(done, "emptied", plan.target)
    say("`penstock run` makes the new first copy")


def _show(emptying: Emptying, what: str, target: str) -> None:
    names = ", ".join(str(table) for table in emptying.tables) or "none"
    say(f"{what} at the target ({target}): {count(len(emptying.tables), 'table')}: {names}")
    if emptying.errors:
        errors = count(emptying.errors, "transaction")
        warn(f"note: {errors} in the error queue, forgotten: the new copy holds what the source made of them")
    for table, why in emptying.left.items():
        warn(f"note: {table} is left as it is: {why}; empty it, or take it out of capture.tables")
