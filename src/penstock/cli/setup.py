"""`penstock setup`: install what a pipeline needs in both databases."""

from __future__ import annotations

from penstock.cli import differences
from penstock.cli.console import FileOption, JsonOption, open_file, print_json, say, warn
from penstock.cli.plan import AdoptOption, as_json
from penstock.text import count


def setup(adopt: AdoptOption = False, file: FileOption = None, json: JsonOption = False) -> None:
    """Install capture and ledger, and create missing target tables. Running it again is harmless."""
    done = open_file(file).setup(adopt=adopt)
    if json:
        print_json(as_json(done))
        return
    for note in done.source.notes + done.target.notes:
        warn(f"note: {note}")
    if done.is_done:
        say(f"everything is in place: {count(len(done.tables), 'table')} captured")
    else:
        for side, database in (("source", done.source), ("target", done.target)):
            say(f"{side}: {count(len(database.steps), 'step')} taken ({database.label})")
        then = "" if done.refused else "; next: `penstock run`"
        say(f"{count(len(done.tables), 'table')} in place{then}")
    not_brought = differences.not_brought(done.target.differences)
    if not_brought is not None:
        say(f"{not_brought}; `penstock plan` lists what")
    if done.refused:
        warn(f"`penstock run` cannot go on: {done.refused}")
