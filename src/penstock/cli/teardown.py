"""`penstock teardown`: remove what setup made."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.console import FileOption, JsonOption, open_file, print_json, say, warn
from penstock.text import count


def teardown(
    file: FileOption = None,
    print_sql: Annotated[
        bool, typer.Option("--print-sql", help="Print the exact SQL, for a DBA to run; change nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove the capture and the ledger. Target tables and their data stay."""
    pipeline = open_file(file)
    if print_sql:
        say(pipeline.removal().sql())
        return
    done = pipeline.teardown()
    removed = [step.summary for step in (*done.source.steps, *done.target.steps)]
    if json:
        print_json({"removed": removed, "notes": done.source.notes})
        return
    for note in done.source.notes:
        warn(f"note: {note}")
    if removed:
        say(f"removed {count(len(removed), 'object')}; what was applied, or published, stays")
    else:
        say("there was nothing to remove")
