"""`penstock verify`: are both sides identical?"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import (
    FileOption,
    JsonOption,
    MasterOption,
    open_applying,
    out,
    print_json,
    print_rows,
    say_wrapped,
    warn,
)
from penstock.text import count, how_far, printable

if TYPE_CHECKING:
    from penstock.pipeline.pipeline import Pipeline
    from penstock.verify.driver import TableResult, VerifyResult

_MOST_SHOWN = 20


def verify(
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="PATTERN", help="Compare only tables like schema.table; repeatable."),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Write differing rows to the target as the source has them."),
    ] = False,
    file: FileOption = None,
    master: MasterOption = None,
    json: JsonOption = False,
) -> None:
    """Compare source and target row by row, also while changes flow. Exit code 1 if they are not identical."""
    compare(open_applying(file, master=master), table or (), repair=repair, json=json)


def compare(pipeline: Pipeline, tables: Sequence[str], *, repair: bool, json: bool) -> None:
    """Compare tables, and bring what differs if asked to; print the result, and raise for the exit code."""
    progress = VerifyProgress(quiet=json)
    try:
        result = pipeline.verify(progress, tables, repair=repair)
    finally:
        progress.close()
    if json:
        print_json(as_json(result))
    else:
        show(result)
    if not result.is_identical:
        raise typer.Exit(1)


class VerifyProgress:
    """Shows how far a comparison is."""

    def __init__(self, *, quiet: bool) -> None:
        """Show nothing if `quiet`, or if the output is no terminal."""
        self._live = out.status("comparing") if out.is_terminal and not quiet else None
        self._began_at = time.monotonic()
        if self._live is not None:
            self._live.start()

    def compared(self, ranges: int, of: int) -> None:
        """So many ranges are compared, out of so many."""
        if self._live is not None:
            self._live.update(f"compared {how_far(ranges, of, 'range', time.monotonic() - self._began_at)}")

    def repaired(self, ranges: int, of: int) -> None:
        """So many ranges are the same now, out of so many that were not."""
        if self._live is not None:
            self._live.update(f"repaired {ranges:,}/{count(of, 'range')}")

    def warned(self, text: str) -> None:
        """Something a person should know."""
        warn(f"note: {printable(text)}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()


def show(result: VerifyResult) -> None:
    """Print a result for a person."""
    print_rows(["table", "rows", "verdict"], [[str(t.table), f"{t.rows:,}", _verdict(t)] for t in result.tables])
    for table in result.tables:
        for line in [*_differences(table), *_queued(table)]:
            say_wrapped(line)
    for line in (*result.unchecked, *map(str, result.unseen)):
        say_wrapped(f"not compared: {line}")
    if any(table.differing for table in result.tables):
        # One that other processes fill, too, is refused by its name.
        differing = " ".join(shlex.quote(str(table.table)) for table in result.tables if table.differing)
        say_wrapped(f"source and target differ; `penstock resync {differing}` fixes what differs")
    elif result.unchecked:
        say_wrapped(
            f"what was compared is identical, but {count(len(result.unchecked), 'table')} could not be compared"
        )
    elif result.unseen:
        say_wrapped("all rows are identical; what lies beside them was not compared, see above")
    else:
        say_wrapped("source and target identical")


def as_json(result: VerifyResult) -> dict[str, object]:
    """A result as plain data."""
    return {
        "identical": result.is_identical,
        "unchecked": list(result.unchecked),
        "unseen": [{"what": one.what, "lacking": one.is_lacking} for one in result.unseen],
        "tables": [
            {
                "table": str(table.table),
                "rows": table.rows,
                "differing": table.differing,
                "repaired": table.repaired,
                "queued": table.queued,
                "differences": [{"kind": d.kind, "key": dict(d.key)} for d in table.differences],
            }
            for table in result.tables
        ],
    }


def _verdict(table: TableResult) -> str:
    verdict = f"{count(table.differing, 'row')} {_differ(table.differing)}" if table.differing else "identical"
    return f"{verdict}, {count(table.repaired, 'row')} repaired" if table.repaired else verdict


def _differ(number: int) -> str:
    return "differs" if number == 1 else "differ"


def _differences(table: TableResult) -> list[str]:
    was = "was " if table.repaired else ""
    lines = [
        f"{table.table}: {was}{d.kind} at the target: " + ", ".join(f"{name}={value}" for name, value in d.key.items())
        for d in table.differences[:_MOST_SHOWN]
    ]
    found = table.differing + table.repaired
    if found > len(lines):
        lines.append(f"{table.table}: and {found - len(lines):,} more")
    return lines


def _queued(table: TableResult) -> list[str]:
    if not (table.differing and table.queued):
        return []
    held = count(table.queued, "transaction")
    verb = "changes" if table.queued == 1 else "change"
    return [f"{table.table}: the error queue holds {held} that {verb} it: `penstock errors list`"]
