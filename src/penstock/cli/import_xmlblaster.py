"""`penstock import-xmlblaster`: properties of xmlBlaster's replication as a pipeline file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import err, warn
from penstock.errors import ConfigError, OperatorError
from penstock.text import count, printable

if TYPE_CHECKING:
    from penstock.xmlblaster.draft import Draft
    from penstock.xmlblaster.old_file import OldFile


def import_xmlblaster(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="OLD.properties...", help="The file of a DbWatcher, of a DbWriter, or both."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The pipeline file; standard output if absent."),
    ] = None,
    documented: Annotated[
        bool, typer.Option("--documented", help="Keep tables ITEMS, TABLES and the others for programs that read them.")
    ] = False,
    kafka: Annotated[
        str | None,
        typer.Option("--kafka", metavar="HOST:PORT", help="For one file: messages are in this cluster, not in files."),
    ] = None,
) -> None:
    """Write a pipeline file from the properties of an xmlBlaster DbWatcher, DbWriter, or both.

    Each property is written, explained in a comment, or listed as not understood. Passwords are never written.
    """
    from penstock.xmlblaster.convert import convert
    from penstock.xmlblaster.old_file import OldFile
    from penstock.xmlblaster.source_half import Options

    if len(files) > 2:
        raise ConfigError(
            f"{len(files)} files are given", do="give that of one DbWatcher, of one DbWriter, or one of each"
        )
    if output is not None and output.exists():
        raise ConfigError(f"{str(output)!r} is there already", do="name another file with -o, or remove it")
    old = [OldFile(_content(file), str(file)) for file in files]
    draft = convert(old, Options(documented=documented, kafka=kafka))
    text = draft.text(
        f"Written by `penstock import-xmlblaster` from {' and '.join(map(str, files))}. Read the comments, then run"
        " `penstock plan`."
    )
    _write(text, output)
    _summarize(draft, old)
    _check(text, output, draft)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        reason = (exc.strerror or type(exc).__name__).lower()
        raise ConfigError(f"cannot read {str(file)!r}: {reason}", do="name a properties file") from exc


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    try:
        # Another process may have made it meanwhile.
        with output.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as exc:
        reason = (exc.strerror or type(exc).__name__).lower()
        raise OperatorError(f"cannot write {str(output)!r}: {reason}", do="name another file with -o") from exc


def _summarize(draft: Draft, old: list[OldFile]) -> None:
    """Say on standard error what has become of the properties."""
    for file in old:
        unknown = draft.unknown.get(file.name, [])
        err.print(
            f"{printable(file.name)}: {count(file.size, 'property').replace('propertys', 'properties')};"
            f" {len(draft.written.get(file.name, {}))} written,"
            f" {len(draft.remarks.get(file.name, {}))} without a counterpart,"
            f" {len(unknown)} not understood",
            markup=False,
        )
        for note in unknown:
            warn(f"not understood: {printable(note)}")
    for check in draft.checks:
        warn(f"check: {printable(check)}")
    for variable, what in draft.variables.items():
        err.print(f"set {variable}: {printable(what)}", markup=False)


def _check(text: str, output: Path | None, draft: Draft) -> None:
    """Make sure that a pipeline can be opened with the file.

    Raises:
        OperatorError: It cannot, as written; names the lines.
    """
    from penstock.pipeline_file import parse

    name = str(output) if output is not None else "the pipeline file"
    try:
        parse(text, name=name, environment=dict.fromkeys(draft.variables, "postgresql://"))
    except ConfigError as exc:
        raise OperatorError(
            f"the file is written, and this version of Penstock does not accept all of it:\n{exc}",
            do="fix the lines that are named, then run penstock plan",
        ) from exc
