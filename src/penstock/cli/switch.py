"""`penstock switch`: from triggers to the events of a connector, without a new first copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.console import FileOption, JsonOption, MasterOption, open_applying, print_json, say, warn
from penstock.cli.logs import LogFormat, logging_to_console
from penstock.cli.run import LogFormatOption, stopped_by_signals
from penstock.pipeline.report import Report
from penstock.text import printable


def switch(
    *,
    to: Annotated[
        Path,
        typer.Option("--to", metavar="FILE", help="The pipeline file whose `capture` to follow from now on."),
    ],
    file: FileOption = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for the connector to deliver a change.")
    ] = 60,
    keep_capture: Annotated[
        bool, typer.Option("--keep-capture", help="Leave the triggers; they continue to write their log.")
    ] = False,
    master: MasterOption = None,
    json: JsonOption = False,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Continue from a connector's events where the triggers stop, while the source is written to.

    The files differ in `capture` only; the connector reads the database already. What the triggers have captured is
    applied; the next `penstock run -f FILE` goes on with the first transaction behind that. Then the triggers, and
    their log, are removed. Nothing is copied again. Switching again does what is still missing.
    """
    before, after = open_applying(file, master=master), open_applying(to, master=master)
    with logging_to_console(log_format, quiet=json), stopped_by_signals() as stop:
        done = before.switch(after, stop, Report(), wait_s=wait, keep_capture=keep_capture)
    untold = [str(table) for table in done.untold]
    if json:
        facts = {"position": done.position, "was_switched": done.progress is None, "untold": untold}
        print_json({**facts, "removed": list(done.removed), "notes": list(done.notes)})
        return
    for note in done.notes:
        warn(f"note: {printable(note)}")
    if untold:
        names = printable(", ".join(untold))
        warn(f"note: the connector has told of no change of {names} yet; see that its table.include.list has them")
    what = "was switched already" if done.progress is None else f"goes on at position {done.position}"
    say(f"pipeline {after.config.name!r} {what}: `penstock run -f {to}`")
