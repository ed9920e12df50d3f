"""`penstock init`: write the first pipeline file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.console import FileOption, JsonOption, defaults, print_json, print_with_margin, say, say_wrapped
from penstock.errors import ConfigError
from penstock.text import are, count, printable, size

if TYPE_CHECKING:
    from penstock.init.proposal import Proposal


def init(
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="URL", help="The database to capture from; '${env:NAME}' is a url, too."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="URL", help="The database to apply to, written alike.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the pipeline.", show_default="the source database's")
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option("--tables", metavar="PATTERN", help="Tables to capture, as 'public.*'; as often as you like."),
    ] = None,
    file: FileOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    json: JsonOption = False,
) -> None:
    """Look at two databases, and write the pipeline file between them; asks for what no option says."""
    path = file or defaults.file
    if path.exists() and not force:
        raise ConfigError(f"{str(path)!r} exists", do="name another file with -f, or overwrite it with --force")
    source, target = _asked_for(source, target)
    from penstock.init.proposal import Answers, check_name, propose

    if name is not None:
        check_name(name)
    found = propose(Answers(source, target, name, tables or []))
    _write(path, found.text)
    if json:
        print_json({"file": str(path), **found.to_json()})
    else:
        _show(found, path)


def _asked_for(source: str | None, target: str | None) -> tuple[str, str]:
    """The two urls, asked for where they are missing and somebody is there to answer.

    Raises:
        ConfigError: Some are missing, and nobody can be asked.
    """
    missing = [option for option, url in (("--source", source), ("--target", target)) if not url]
    if missing and not sys.stdin.isatty():
        example = "postgresql://USER@HOST/DATABASE, or '${env:SHOP_URL}' for a variable that holds it"
        raise ConfigError(
            f"{' and '.join(missing)} {are(len(missing))} missing, and there is no terminal to ask on",
            do=f"name {'both databases' if len(missing) > 1 else 'the database'}: {example}",
        )
    if missing:
        say_wrapped("A url is postgresql://USER:PASSWORD@HOST/DATABASE, or ${env:NAME} for a variable that holds one.")
        say("Of a password the file gets a reference only.")
    return (
        source or typer.prompt("The database to capture from"),
        target or typer.prompt("The database to apply to"),
    )


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all.

    Raises:
        ConfigError: It cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as exc:
        new.unlink(missing_ok=True)
        raise ConfigError(
            f"cannot write {str(path)!r}: {(exc.strerror or '').lower()}", do="name another file"
        ) from exc


def _show(found: Proposal, path: Path) -> None:
    parts = found.parts
    assert parts.source is not None
    assert parts.target is not None
    kept = [table for table in parts.tables if table.name not in parts.excluded]
    say(f"source  {parts.source.version}, {parts.source.label}")
    say(f"        {count(len(kept), 'table')}, {size(sum(table.size_bytes for table in kept))}")
    say(f"target  {parts.target.version}, {parts.target.label}")
    for table, reason in sorted(parts.excluded.items()):
        print_with_margin("left out  ", printable(f"{table}: {reason}"))
    keyless = [str(table.name) for table in kept if not table.key]
    if keyless:
        print_with_margin("no key    ", f"{', '.join(keyless)}: rows are found by all their columns")
    for side in (found.plan.source, found.plan.target):
        for fault in side.faults:
            print_with_margin("in the way  ", printable(str(fault)))
    _show_grants(found)
    if found.plan.target.plain_role:
        say_wrapped(
            "Changes would be applied as a superuser; `penstock plan --print-sql` prints a role that is not one."
        )
    say(f"wrote {path}")
    for variable in found.variables:
        whose, _, what = variable.lower().partition("_")
        say(f"  export {variable}=...   # the {what} of the {whose}, which the file only refers to")
    say("next: `penstock plan`" if not any(found.grants.values()) else "next: run these grants, then `penstock plan`")


def _show_grants(found: Proposal) -> None:
    """Print what the roles lack, to be copied: one statement a line, however long."""
    for title, by_side in (("missing", found.grants), ("recommended", found.recommended)):
        for side, grants in by_side.items():
            if grants:
                say(f"-- {title} at the {side}, for a superuser to run there:")
                for grant in grants:
                    say(f"{printable(grant)};")
