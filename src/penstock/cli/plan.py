"""`penstock plan`: what setup would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import differences
from penstock.cli.console import DetailOption, FileOption, JsonOption, open_file, print_json, say, warn
from penstock.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.database import DatabasePlan
    from penstock.pipeline.plan import Plan

_SCREEN = 60
"""The most lines of SQL that a plan shows a person."""

AdoptOption = Annotated[
    bool,
    typer.Option(
        "--adopt",
        help="Accept target tables that already hold rows, such as those of a restored dump of the source: the first"
        " copy compares the rows, and writes those that differ.",
    ),
]


def plan(
    adopt: AdoptOption = False,
    file: FileOption = None,
    print_sql: Annotated[
        bool, typer.Option("--print-sql", help="Print the exact SQL and the missing grants, for a DBA.")
    ] = False,
    detail: DetailOption = False,
    json: JsonOption = False,
) -> None:
    """Show what setup would do, and every obstacle. Changes nothing."""
    found = open_file(file).plan(adopt=adopt)
    if print_sql:
        say(found.sql())
        for database in (found.source, found.target):
            for fault in database.faults:
                warn(f"in the way: {fault}")
        show_left_out(found)
    elif json:
        print_json(as_json(found))
    else:
        show(found, detail=detail)
    if found.left_out or not found.is_possible:
        raise typer.Exit(3)


def show(found: Plan, *, detail: bool = False) -> None:
    """Print a plan for a person."""
    say(f"tables to capture: {len(found.tables)}")
    for rule in found.rules:
        say(f"  {rule}")
    for side, database in (("source", found.source), ("target", found.target)):
        say(f"{side}: {database.label}")
        for step in database.steps:
            say(f"  {step.summary}")
        if not database.steps:
            say("  nothing to do")
        for note in database.notes:
            warn(f"  note: {printable(note)}")
        for grant in database.grants:
            warn(f"  missing privilege; as a superuser: {printable(grant)};")
        _show_plain_role(database.plain_role, detail=detail)
        for fault in database.faults:
            warn(f"  in the way: {fault}")
    show_left_out(found)
    differences.show(found.target.differences, detail=detail)
    if found.refused:
        warn(f"`penstock run` cannot go on: {found.refused}")


def _show_plain_role(lines: Sequence[str], *, detail: bool) -> None:
    """Say that changes are applied as a superuser, with the lines that make another role if a screen holds them."""
    if not lines:
        return
    warn("  note: changes are applied as a superuser: what tables and types of the target call may do anything;")
    if len(lines) > _SCREEN and not detail:
        warn(f"    `penstock plan --print-sql` prints the {len(lines)} lines that make a role that is none")
        return
    warn("    these lines make a role that is none, for the url of the connection:")
    for line in lines:
        warn(f"    {printable(line)};")


def show_left_out(found: Plan) -> None:
    """Name the tables that are left out, and say what is in the way of each, or of several at once."""
    tables: dict[str, list[str]] = {}
    for table, errors in found.left_out.items():
        for error in errors:
            tables.setdefault(str(error), []).append(str(table))
    for said, names in tables.items():
        are = "table {} is" if len(names) == 1 else "tables {} are"
        warn(f"{are.format(', '.join(names))} left out: {said}")


def as_json(found: Plan) -> dict[str, object]:
    """A plan as plain data."""
    return {
        "tables": list(found.tables),
        "rules": list(found.rules),
        "source": _database(found.source),
        "target": _database(found.target),
        **differences.as_json(found.target.differences),
        "refused": found.refused,
        "left_out": [
            {"table": str(table), "reasons": [str(error) for error in errors]}
            for table, errors in found.left_out.items()
        ],
    }


def _database(database: DatabasePlan) -> dict[str, object]:
    from penstock.pipeline.plan import all_grants

    return {
        "database": database.label,
        "steps": [{"summary": step.summary, "sql": step.sql} for step in database.steps],
        "missing_grants": all_grants(database),
        "recommended_grants": database.recommended,
        "plain_role": database.plain_role,
        "notes": database.notes,
        "faults": [str(fault) for fault in database.faults],
    }
