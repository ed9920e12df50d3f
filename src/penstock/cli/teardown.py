"""`penstock teardown`: remove what setup made."""

from __future__ import annotations

from penstock.cli.console import FileOption, JsonOption, open_file, print_json, say


def teardown(file: FileOption = None, json: JsonOption = False) -> None:
    """Remove the capture and the ledger. Target tables and their data stay."""
    removed = open_file(file).teardown()
    if json:
        print_json({"removed": list(removed)})
    elif removed:
        say(f"removed {len(removed)} objects; target tables and their data stay")
    else:
        say("there was nothing to remove")
