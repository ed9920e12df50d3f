"""`penstock plan`: what setup would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import differences
from penstock.cli.console import FileOption, JsonOption, open_file, print_json, say, warn
from penstock.errors import ConfigError
from penstock.text import printable

if TYPE_CHECKING:
    from penstock.database import DatabasePlan
    from penstock.pipeline.plan import Plan

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
    grants: Annotated[
        bool, typer.Option("--grants", help="Print only the grants that are missing or recommended, to be run.")
    ] = False,
    detail: Annotated[
        bool, typer.Option("--detail", help="List each step, and print the SQL of what the copy lacks.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show what setup would do, and every obstacle. Changes nothing."""
    # Arrow takes a while to import, which `--help` need not wait for.
    from penstock.cli import plan_view

    if print_sql + grants + json > 1:
        raise ConfigError("print one of them: --print-sql, --grants, or --json")
    found = open_file(file).plan(adopt=adopt)
    if print_sql:
        say(found.sql())
        for database in (found.source, found.target):
            for fault in database.faults:
                warn(f"in the way: {printable(str(fault))}")
        for line in plan_view.left_out_lines(found):
            warn(line)
    elif grants:
        plan_view.show_grants(found)
    elif json:
        print_json(as_json(found))
    else:
        plan_view.show(found, detail=detail)
    if found.left_out or not found.is_possible:
        raise typer.Exit(3)


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
