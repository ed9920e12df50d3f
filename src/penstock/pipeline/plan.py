"""What setting a pipeline up, or tearing it down, would do: a value that can be shown, printed and carried out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.change import TableName
from penstock.database import DatabasePlan, transactions
from penstock.errors import OperatorError, PenstockError
from penstock.pipeline.alike import merge_alike
from penstock.text import printable


@dataclass(frozen=True)
class Plan:
    """What setup does, in the source and in the target.

    Attributes:
        tables: Those that are captured, by their names at the target.
        rules: What becomes of those that rules concern, a line each.
        refused: Why the next run would be refused though all is set up: source or target have another history.
        losses: What a removal would lose, a line each.
        left_out: Tables that are left as they are, each with what is in its way; the others are set up.
    """

    tables: Sequence[str]
    source: DatabasePlan
    target: DatabasePlan
    rules: Sequence[str] = ()
    refused: str | None = None
    losses: Sequence[str] = ()
    left_out: Mapping[TableName, Sequence[PenstockError]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether everything is in place already."""
        return not (self.source.steps or self.target.steps)

    @property
    def is_possible(self) -> bool:
        """Whether nothing is in the way."""
        return not any(side.faults or side.grants for side in (self.source, self.target))

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from penstock.pipeline.shown import plan_html

        return plan_html(self)

    @property
    def in_the_way(self) -> Mapping[TableName, Sequence[PenstockError]]:
        """What keeps single tables from being set up; not what is in the way of all of them."""
        sides = (self.source, self.target)
        bad = self.source.kept_back | self.target.kept_back
        return {table: [fault for side in sides for fault in _in_the_way(side, table)] for table in sorted(bad)}

    def without_bad_tables(self) -> Plan:
        """The plan for the tables that nothing is in the way of; those that something is in the way of are left out.

        Where nothing can be set up, or none is left, what is in the way of each is in the way of all.
        """
        sides = (self.source, self.target)
        bad = self.source.kept_back | self.target.kept_back
        if not bad:
            return self
        is_global = any(side.faults or set(side.grants) - _of_tables(side) for side in sides)
        if is_global or set(self.tables) <= {str(table) for table in bad}:
            for side in sides:
                found = [fault for faults in side.table_faults.values() for fault in faults]
                # What is in the way of several is told once.
                side.faults += {str(fault): fault for fault in found}.values()
                side.table_faults, side.table_grants = {}, {}
            return self
        left_out = self.in_the_way
        for side in sides:
            side.grants = [grant for grant in side.grants if grant not in _of_tables(side)]
            side.leave_out(self.source.table_faults.keys() | self.target.table_faults.keys())
            side.printed = list(side.steps)
            side.leave_out(bad)
        return replace(self, left_out=left_out)

    def with_left_out(self, refused: Mapping[TableName, Sequence[PenstockError]]) -> Plan:
        """The plan as it was carried out, but for these tables.

        Raises:
            OperatorError: None is left.
        """
        if not refused:
            return self
        plan = replace(self, left_out={**self.left_out, **refused})
        if set(self.tables) <= {str(table) for table in plan.left_out}:
            plan.refuse_left_out()
        return plan

    def refuse_left_out(self) -> None:
        """Raise an `OperatorError` that names what is in the way of the tables that are left out, if any are."""
        found = {str(error): None for errors in self.left_out.values() for error in errors}
        if found:
            raise OperatorError("\n".join(found))

    def refuse_impossible(self) -> None:
        """Raise an `OperatorError` that names everything that is in the way, if anything is."""
        faults = merge_alike([str(fault) for fault in (*self.target.faults, *self.source.faults)], self.tables)
        for side in (self.source, self.target):
            missing = merged_grants(side.grants)
            faults += [f"missing privilege ({side.label}). Its owner, or a superuser, runs: {sql};" for sql in missing]
        if faults:
            raise OperatorError("\n".join(faults))

    def refuse_losses(self) -> None:
        """Raise an `OperatorError` that names what would be lost, if anything would."""
        if self.losses:
            raise OperatorError(
                "; ".join(self.losses),
                where=self.source.label,
                do="let `penstock run --until-caught-up` end first; or say --yes, in Python `teardown(lose=True)`",
            )

    def sql(self) -> str:
        """The exact SQL that would be run, for a DBA to read or to run, and the grants that are missing."""
        return "\n".join([*_sql(self.target, "target"), *_sql(self.source, "source"), *self._not_brought()])

    def _not_brought(self) -> list[str]:
        lacking = [one for one in self.target.differences if not one.is_extra]
        if not lacking:
            return []
        label = printable(self.target.label)
        lines = [f"-- what setup leaves out, for the target ({label}) once the application is about to come"]
        for one in lacking:
            lines.append(f"-- {one}")
            lines += [f"--   {printable(line)}" for line in f"{one.sql};".splitlines() if one.sql]
        return [*lines, ""]


def all_grants(plan: DatabasePlan) -> list[str]:
    """The grants that are missing, also those that only some tables lack."""
    return list(dict.fromkeys([*plan.grants, *(grant for grants in plan.table_grants.values() for grant in grants)]))


_ON_A_TABLE = re.compile(
    r'GRANT (?P<rights>[A-Z, ]+) ON (?P<kind>SEQUENCE )?(?P<table>"(?:[^"]|"")*"\."(?:[^"]|"")*") TO (?P<role>.+)', re.S
)


def merged_grants(grants: Iterable[str]) -> list[str]:
    """The same grants in fewer statements: those of equal rights in several tables become one; the order stays."""
    merged: dict[str, tuple[str, list[str], str]] = {}
    for grant in grants:
        found = _ON_A_TABLE.fullmatch(grant)
        if found is None:
            merged[grant] = grant, [], ""
            continue
        head, tail = f"GRANT {found['rights']} ON {found['kind'] or ''}", f" TO {found['role']}"
        merged.setdefault(head + tail, (head, [], tail))[1].append(found["table"])
    return [f"{head}{', '.join(tables)}{tail}" for head, tables, tail in merged.values()]


def _of_tables(plan: DatabasePlan) -> set[str]:
    return {grant for grants in plan.table_grants.values() for grant in grants}


def _in_the_way(plan: DatabasePlan, table: TableName) -> list[PenstockError]:
    """What keeps a table from being set up in one database."""
    grants = "; ".join(plan.table_grants.get(table, ()))
    missing = (
        [OperatorError("a privilege is missing", where=plan.label, do=f"its owner, or a superuser, runs: {grants}")]
        if grants
        else []
    )
    return [*plan.table_faults.get(table, ()), *missing]


def _sql(plan: DatabasePlan, side: str) -> list[str]:
    # A comment that a name could end would have the rest of the name run.
    lines = [f"-- {side}: {printable(plan.label)}"]
    grants = all_grants(plan)
    if grants:
        lines += ["-- missing grants, for a superuser to run first", *(f"{grant};" for grant in grants)]
    if plan.recommended:
        lines += ["-- recommended grants, without which `cutover` is refused", *(f"{sql};" for sql in plan.recommended)]
    if plan.plain_role:
        lines.append(
            "-- changes are applied as a superuser; this makes a role that is not one, for the connection's url:"
        )
        lines += [f"--   {printable(line)};" for line in plan.plain_role]
    all_steps = plan.steps if plan.printed is None else plan.printed
    if not all_steps:
        return [*lines, "-- nothing to do", ""]
    role = (plan.role or "").replace('"', '""')
    if role:
        lines.append(f'-- what follows, for a session of role "{printable(role)}"')
    for steps in transactions(all_steps):
        lines += ["BEGIN;", *(f"{statement};" for statement in plan.preamble)]
        if role:
            lines += [
                "-- whoever runs this: everything is to belong to the pipeline's user",
                f'SET LOCAL ROLE "{role}";',
            ]
        for step in steps:
            lines += [f"-- {step.summary}", f"{step.sql.rstrip().removesuffix(';')};"]
        lines += ["COMMIT;"]
    return [*lines, ""]
