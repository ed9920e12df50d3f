"""`penstock setup`: install what a pipeline needs in both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from penstock.cli import differences
from penstock.cli.console import FileOption, JsonOption, open_file, print_json, say, warn
from penstock.cli.plan import AdoptOption, as_json
from penstock.pipeline.alike import merge_alike
from penstock.text import count, printable

if TYPE_CHECKING:
    from penstock.pipeline.plan import Plan


def setup(adopt: AdoptOption = False, file: FileOption = None, json: JsonOption = False) -> None:
    """Install capture and ledger, and create missing target tables. Running it again is harmless."""
    done = open_file(file).setup(adopt=adopt)
    if json:
        print_json(as_json(done))
    else:
        _show(done)
    if done.left_out:
        raise typer.Exit(3)


def _show(done: Plan) -> None:
    from penstock.cli.plan_view import left_out_lines

    for database in (done.source, done.target):
        for note in merge_alike(database.notes, done.tables):
            warn(f"note: {printable(note)}")
    in_place = count(len(done.tables) - len(done.left_out), "table")
    if done.is_done:
        say(f"everything is in place: {in_place} captured" if not done.left_out else f"{in_place} in place")
    else:
        for side, database in (("source", done.source), ("target", done.target)):
            say(f"{side}: {count(len(database.steps), 'step')} taken ({database.label})")
        say(f"{in_place} in place")
    not_brought = differences.not_brought(done.target.differences)
    if not_brought is not None:
        say(f"{not_brought}; `penstock plan` lists what")
    for line in left_out_lines(done):
        warn(line)
    if done.left_out:
        warn("fix that and run `penstock setup` again, which takes these tables in; `penstock run` works without them")
    if done.refused:
        warn(f"`penstock run` cannot go on: {done.refused}")
    else:
        say("next: `penstock run`")
