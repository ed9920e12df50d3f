"""A plan for a person at a terminal of 80 columns: what is alike in one line, and the verdict last."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.cli import differences
from penstock.cli.console import print_with_margin, say
from penstock.pipeline.alike import merge_alike
from penstock.pipeline.plan import all_grants, merged_grants
from penstock.text import are, count, printable

if TYPE_CHECKING:
    from penstock.database import SetupStep
    from penstock.pipeline.plan import Plan


_KINDS = re.compile(
    r"(?P<capture>capture table)|(?P<kind>table|partition|primary key|unique (?:key|constraint|index)|foreign key|index"
    r"|check|exclusion constraint|sequence|default|identity|comment|topic) "
)
_PLURALS = {"index": "indexes", "unique index": "unique indexes", "identity": "identities"}

_OWN = re.compile(
    r"schema penstock|the log of capture set|the ledger|views of the ledger|a note (of|that)|the first tick"
    r"|nobody else has a right|rebuild the capture of a table"
)
"""Steps for what Penstock keeps for itself."""


def show(found: Plan, *, detail: bool = False) -> None:
    """Print a plan; in `detail` with each step, and the SQL of what is not copied."""
    say(f"tables to capture: {len(found.tables)}")
    for rule in found.rules:
        say(f"  {rule}")
    for side, database in (("source", found.source), ("target", found.target)):
        say(f"{side}: {database.label}")
        for line in _steps(database.steps, found.tables, detail=detail):
            print_with_margin("  ", line)
        for note in merge_alike(database.notes, found.tables):
            print_with_margin("  note: ", printable(note), style="yellow")
        _show_plain_role(database.plain_role, detail=detail)
    differences.show(found.target.differences, detail=detail)
    for line in left_out_lines(found):
        print_with_margin("", line, style="yellow")
    show_grants(found)
    for database in (found.source, found.target):
        for fault in merge_alike(map(str, database.faults), found.tables):
            print_with_margin("in the way: ", printable(fault), style="red")
    if found.refused:
        print_with_margin("", f"`penstock run` cannot go on: {printable(found.refused)}", style="red")
    print_with_margin("", verdict(found), style=None if found.is_possible and not found.left_out else "red")


def show_grants(found: Plan) -> None:
    """Print the grants that are missing, and those that are recommended: a statement a line, to be copied."""
    for side, database in (("source", found.source), ("target", found.target)):
        for what, grants in (("missing", all_grants(database)), ("recommended", database.recommended)):
            if grants:
                say(f"-- {what} at the {side}; the owner of each, or a superuser, runs:")
                for grant in merged_grants(grants):
                    say(f"{printable(grant)};")


def left_out_lines(found: Plan) -> Iterator[str]:
    """Name the tables that are left out, and say what is in the way of each, or of several at once."""
    tables: dict[str, list[str]] = {}
    for table, errors in found.left_out.items():
        for error in errors:
            tables.setdefault(str(error), []).append(str(table))
    for said, names in tables.items():
        title = f"table {names[0]} is" if len(names) == 1 else f"tables {', '.join(names)} are"
        yield f"{title} left out: {printable(said)}"


def verdict(found: Plan) -> str:
    """Say whether `setup` can do its work, in one sentence, with the next command last."""
    missing = [len(all_grants(database)) for database in (found.source, found.target)]
    recommended = len(found.source.recommended) + len(found.target.recommended)
    more = f", and {count(recommended, 'grant')} {are(recommended)} recommended" if recommended else ""
    faults = len(found.source.faults) + len(found.target.faults)
    if not found.is_possible:
        parts = [f"{count(faults, 'thing')} {are(faults)} in the way"] if faults else []
        if sum(missing):
            where = " and ".join(
                f"{n} at the {side}" for side, n in zip(("source", "target"), missing, strict=True) if n
            )
            parts.append(f"{count(sum(missing), 'grant')} {are(sum(missing))} missing ({where}){more}")
        return f"not ready: {'; '.join(parts)}; fix that, then run `penstock plan` again"
    if found.left_out:
        number = len(found.left_out)
        ready = f"ready but for {count(number, 'table')}, which {are(number)} left out{more}"
        return f"{ready}; next: `penstock setup` for the others"
    if found.refused:
        return "set up, and the next run is refused for the reason above"
    if found.is_done:
        return f"everything is in place{more}; next: `penstock run`"
    steps = count(len(found.source.steps) + len(found.target.steps), "step")
    return f"ready: {steps} to take{more}; next: `penstock setup`"


def _steps(steps: Sequence[SetupStep], tables: Collection[str], *, detail: bool) -> Iterator[str]:
    """The steps, those that are alike counted; each of them in `detail`."""
    if not steps:
        yield "nothing to do"
        return
    if detail:
        yield from (step.summary for step in steps)
        return
    kinds: Counter[str] = Counter()
    own = captured = 0
    others = []
    for step in steps:
        found = _KINDS.match(step.summary)
        if _OWN.match(step.summary):
            own += 1
        elif found is None:
            others.append(step.summary)
        elif found["capture"]:
            captured += 1
        else:
            kinds[found["kind"]] += 1
    if own:
        yield f"{count(own, 'step')} for what Penstock keeps for itself"
    if captured:
        yield f"capture {count(captured, 'table')}"
    if kinds:
        yield ", ".join(
            count(number, kind) if number == 1 or kind not in _PLURALS else f"{number:,} {_PLURALS[kind]}"
            for kind, number in kinds.items()
        )
    yield from merge_alike(others, tables)


def _show_plain_role(lines: Sequence[str], *, detail: bool) -> None:
    """Say that changes are applied as a superuser, with the lines that make another role where all is shown."""
    if not lines:
        return
    what = "changes are applied as a superuser: what tables and types of the target call may do anything;"
    if not detail:
        print_with_margin("  note: ", f"{what} --detail prints SQL for a role that is not one", style="yellow")
        return
    print_with_margin(
        "  note: ", f"{what} this makes a role that is not one, for the connection's url:", style="yellow"
    )
    for line in lines:
        say(f"    {printable(line)};")
