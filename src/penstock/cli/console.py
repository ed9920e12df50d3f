"""Speaking to whoever runs a command: people on a terminal, programs in a pipe, scripts with --json."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import penstock
from penstock.errors import ConfigError
from penstock.text import wrap

if TYPE_CHECKING:
    from penstock.pipeline.pipeline import Pipeline
    from penstock.pipeline.publication import Publication

FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", help="The pipeline file.", show_default="./pipeline.yaml")
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="The Spark cluster to use, overriding the file: spark://host:7077."),
]
DetailOption = Annotated[bool, typer.Option("--detail", help="Print the SQL that creates each thing the copy lacks.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value; see docs/cli.md.")]

out = Console(soft_wrap=True, highlight=False, emoji=False)
err = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


@dataclass
class Defaults:
    """What was said before the command's name."""

    file: Path = Path("pipeline.yaml")
    is_said: bool = False


defaults = Defaults()


def open_file(file: Path | None, *, master: str | None = None) -> Pipeline | Publication:
    """Open the pipeline of the file that was named, or of ./pipeline.yaml; on the Spark that was named, if any."""
    return penstock.open(file or defaults.file, master=master)


def open_applying(file: Path | None, *, master: str | None = None, do: str | None = None) -> Pipeline:
    """Open it for a command that has to do with a target; on the Spark that was named, if any.

    Args:
        do: What to do instead where the pipeline publishes, if not to look at what it publishes.

    Raises:
        OperatorError: The pipeline publishes.
    """
    from penstock.errors import OperatorError
    from penstock.pipeline.pipeline import Pipeline

    pipeline = penstock.open(file or defaults.file, master=master)
    if not isinstance(pipeline, Pipeline):
        raise OperatorError(
            f"pipeline {pipeline.config.name!r} publishes, and has no target database",
            where=str(file or defaults.file),
            do=do or pipeline.shown_by,
        )
    return pipeline


@contextmanager
def opened_while_java_starts(file: Path | None, *, master: str | None = None) -> Iterator[Pipeline | Publication]:
    """Open the pipeline as `open_file` does, for a command that is sure to need Spark.

    Java takes seconds until it listens, and gets on with that while all else is imported, and the databases are asked.
    """
    from penstock.spark.java import begin_for, beginning

    with ExitStack() as stack:
        java = begin_for(file or defaults.file) if master is None else None
        if java is not None:
            stack.callback(java.close)
        from penstock.pipeline_file import load

        config = load(file or defaults.file)
        if master is not None:
            config = config.with_master(master)
        needs_spark = config.publish is None or config.publish.form != "xds"
        if needs_spark and java is None:
            lanes, settings = config.parallelism, config.spark_settings
            java = stack.enter_context(beginning(config.application_name, lanes=lanes, settings=settings))
        from penstock import worker_daemon
        from penstock.wiring import open_pipeline

        if java is not None:
            java.fork_workers(worker_daemon.run)
        yield open_pipeline(config, java)


def show_traceback(exc: BaseException) -> None:
    """Show where in the program an error was raised, if PENSTOCK_TRACEBACK asks for it."""
    if os.environ.get("PENSTOCK_TRACEBACK"):
        traceback.print_exception(exc)


def print_json(value: Any, *, is_line: bool = False, to_err: bool = False) -> None:
    """Print one JSON value; `is_line` has it on one line, at once."""
    stream = sys.stderr if to_err else sys.stdout
    stream.write(json.dumps(value, indent=None if is_line else 2, default=as_text, ensure_ascii=False) + "\n")
    if is_line:
        stream.flush()


def as_text(value: object) -> str:
    """What JSON has no notation for; times as RFC 3339 has them."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


TIME = "2024-01-02T03:04:05, UTC if not said."
"""How a time is written in an option."""


def parse_time(text: str | None, *, option: str) -> datetime | None:
    """Read the time that an option has; None where it has none.

    Raises:
        ConfigError: It is no time.
    """
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as exc:
        raise ConfigError(f"{option} must be a time, not {text!r}", do=f"write {TIME.rstrip('.')}") from exc
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def shown(value: str | None) -> str:
    """A value of a row, as what it is: NULL, or text in quotes."""
    return "NULL" if value is None else repr(value)


def say(text: str) -> None:
    """Print a line, exactly as it is."""
    out.print(text, markup=False)


def say_wrapped(text: str) -> None:
    """Print a sentence, or a line of a list; see `print_with_margin`."""
    print_with_margin("", text)


def warn(text: str) -> None:
    """Print a line to standard error; see `print_with_margin`."""
    note = "note: " if text.startswith("note: ") else ""
    print_with_margin(note, text.removeprefix(note), style="yellow", console=err)


def print_with_margin(margin: str, text: str, *, style: str | None = None, console: Console | None = None) -> None:
    """Print a text behind a margin; on a terminal its further lines are indented by that much, in a pipe it is one."""
    console = console or out
    if not console.is_terminal:
        console.print(f"{margin}{text}", markup=False, style=style)
        return
    lines = wrap(text, max(20, console.width - len(margin)))
    console.print(f"{margin}{lines[0]}", markup=False, style=style)
    for line in lines[1:]:
        console.print(f"{' ' * len(margin)}{line}", markup=False, style=style)


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: framed on a terminal, tab-separated in a pipe."""
    if not out.is_terminal:
        for row in [headings, *rows]:
            sys.stdout.write("\t".join(str(cell) for cell in row) + "\n")
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading, *cells in zip(headings, *rows, strict=True):
        are_numbers = all(isinstance(cell, int) for cell in cells)
        table.add_column(heading, overflow="fold", justify="right" if are_numbers else "left")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    out.print(table)


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair to a line."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print_with_margin(f"{name:<{width}}  ", str(value))
