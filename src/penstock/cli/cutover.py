"""`penstock cutover`: make the copy ready to be written to instead of the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import differences, verify
from penstock.cli.console import (
    DetailOption,
    FileOption,
    JsonOption,
    MasterOption,
    open_applying,
    print_json,
    say_wrapped,
    warn,
)
from penstock.cli.groups import takes_groups
from penstock.cli.logs import LogFormat, logging_to_console
from penstock.cli.run import LogFormatOption, stopped_by_signals
from penstock.pipeline.report import Report
from penstock.text import are, count, printable

if TYPE_CHECKING:
    from penstock.pipeline.cutover import Cutover


@dataclass(frozen=True)
class WriterOptions:
    """What becomes of those that write to the source."""

    lock: Annotated[
        bool,
        typer.Option(
            "--lock",
            help="Lock the captured tables at the source, so that writers wait until the end.",
        ),
    ] = False
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="How long to wait for open transactions at the source, and for a run to apply the rest.",
        ),
    ] = 60


@takes_groups
def cutover(
    file: FileOption = None,
    writers: WriterOptions = WriterOptions(),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what is missing; wait for nothing, and change nothing.")
    ] = False,
    detail: DetailOption = False,
    master: MasterOption = None,
    json: JsonOption = False,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Prepare the copy to be written to: apply the last change, compare, move sequences, create what it lacks.

    Stop the application first, or keep it waiting by --lock. Where anything differs, nothing is changed, and the exit
    code is 1. Cutting over again does what is still missing.
    """
    pipeline = open_applying(file, master=master)
    with logging_to_console(log_format, quiet=json), stopped_by_signals() as stop:
        done = pipeline.cutover(stop, Report(), lock=writers.lock, wait_s=writers.wait, is_dry=dry_run)
    if json:
        print_json(as_json(done))
    else:
        show(done, detail=detail)
    if not done.is_ready:
        raise typer.Exit(1)


def show(done: Cutover, *, detail: bool = False) -> None:
    """Print a report for a person."""
    if done.compared is not None:
        verify.show(done.compared)
    else:
        for line in done.uncaptured:
            say_wrapped(f"not copied: {line}")
    if done.queued:
        say_wrapped(f"the error queue holds {count(done.queued, 'transaction')}: `penstock errors list`")
    would = "would be " if done.is_dry else ""
    for setting in done.sequences:
        if not setting.is_needed:
            continue
        say_wrapped(f"sequence {setting.name} {would}moved from {setting.before} to {setting.after}")
    if done.sequences and not done.is_dry:
        say_wrapped(f"{count(len(done.sequences), 'sequence')} {are(len(done.sequences))} where the source left off")
    for made in done.made:
        say_wrapped(f"{would}made: {made}")
    told = {one.what for one in done.differences}
    for lack in done.lacks:
        if lack.what not in told:
            warn(f"note: {lack}")
    differences.show(done.differences, detail=detail)
    if done.is_behind:
        say_wrapped("not everything is applied yet")
    for writer in done.writers:
        warn(f"writes at the source: {printable(writer)}")
    if done.is_written_after:
        warn("the source was written to after the last change was awaited: stop the application, and cut over again")
    for line in _end(done):
        say_wrapped(line)


def _end(done: Cutover) -> list[str]:
    if done.is_dry:
        missing = sum(setting.is_needed for setting in done.sequences) + len(done.made)
        before = ["empty the error queue first"] if done.queued else []
        if done.uncaptured:
            number = len(done.uncaptured)
            before.append(f"{count(number, 'table')} {are(number)} to be captured first, or taken out by rules.exclude")
        todo = (
            f"{count(missing, 'thing')} {are(missing)} to be done"
            if missing
            else "nothing is left to do but to compare"
        )
        not_brought = differences.not_brought(done.differences)
        return ["; ".join([*before, todo, *([not_brought] if not_brought else []), "nothing was changed"])]
    if not done.is_same:
        return ["the copy is not what the source is; nothing was changed", *_mends(done)]
    if not done.is_ready:
        return ["the copy is not ready"]
    first = (
        "the lock at the source is gone: see that nothing writes there" if done.is_locked else "keep the source still"
    )
    not_brought = differences.not_brought(done.differences)
    but = f"; but {not_brought}, see above" if not_brought else ""
    return [
        f"the copy is ready: everything up to position {done.position} is in it{but}",
        f"next: {first}; point the application to the target; then stop `penstock run`, and `penstock teardown`",
    ]


def _mends(done: Cutover) -> list[str]:
    """What to do about what differs."""
    found = []
    if done.compared is not None and any(table.differing for table in done.compared.tables):
        names = " ".join(str(table.table) for table in done.compared.tables if table.differing)
        found.append(f"next: `penstock resync {names}` fixes the rows that differ")
    if done.compared is not None and done.compared.unchecked:
        found.append("next: fix what could not be compared, or take it out by rules.exclude")
    if done.queued:
        found.append("next: `penstock errors list`, and retry or delete what is in the error queue")
    return found


def as_json(done: Cutover) -> dict[str, object]:
    """A report as plain data."""
    return {
        "ready": done.is_ready,
        "dry_run": done.is_dry,
        "position": done.position,
        "locked": done.is_locked,
        "writers": list(done.writers),
        "behind": done.is_behind,
        "written_after": done.is_written_after,
        "queued": done.queued,
        "verify": None if done.compared is None else verify.as_json(done.compared),
        "sequences": [
            {"sequence": str(setting.name), "before": setting.before.last, "after": setting.after.last}
            for setting in done.sequences
        ],
        "made": list(done.made),
        "uncaptured": list(done.uncaptured),
        **differences.as_json(done.differences),
        "lacks": [{"table": str(lack.table), "what": lack.what, "reason": lack.reason or None} for lack in done.lacks],
    }
