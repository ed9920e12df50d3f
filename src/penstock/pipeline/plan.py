"""What setting a pipeline up, or tearing it down, would do: a value that can be shown, printed and carried out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.dialects.base import DatabasePlan, transactions
from penstock.errors import OperatorError
from penstock.text import printable


@dataclass(frozen=True)
class Plan:
    """What setup does, in the source and in the target.

    Attributes:
        tables: Those that are captured, by their names at the target.
        rules: What becomes of those that rules concern, a line each.
        refused: Why the next run would be refused though all is set up: source or target have another history.
        losses: What a removal would lose, a line each.
    """

    tables: Sequence[str]
    source: DatabasePlan
    target: DatabasePlan
    rules: Sequence[str] = ()
    refused: str | None = None
    losses: Sequence[str] = ()

    @property
    def is_done(self) -> bool:
        """Whether everything is in place already."""
        return not (self.source.steps or self.target.steps)

    @property
    def is_possible(self) -> bool:
        """Whether nothing is in the way."""
        return not any(side.faults or side.grants for side in (self.source, self.target))

    def refuse_impossible(self) -> None:
        """Raise an `OperatorError` that names everything that is in the way, if anything is."""
        faults = [str(fault) for fault in (*self.target.faults, *self.source.faults)]
        for side in (self.source, self.target):
            faults += [f"missing privilege ({side.label}). As a superuser: {grant};" for grant in side.grants]
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


def _sql(plan: DatabasePlan, side: str) -> list[str]:
    # A comment that a name could end would have the rest of the name run.
    lines = [f"-- {side}: {printable(plan.label)}"]
    if plan.grants:
        lines += ["-- missing grants, for a superuser to run first", *(f"{grant};" for grant in plan.grants)]
    if not plan.steps:
        return [*lines, "-- nothing to do", ""]
    role = (plan.role or "").replace('"', '""')
    if role:
        lines.append(f'-- what follows, for a session of role "{printable(role)}"')
    for steps in transactions(plan.steps):
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
