"""Looks at the pipeline itself, through what `plan`, `status` and `status --check` know already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from penstock.database import DatabasePlan
from penstock.doctor.looks import Look
from penstock.errors import PenstockError
from penstock.examination import Finding, Severity
from penstock.pipeline.health import ProblemKind, problems
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.plan import Plan, all_grants, merged_grants
from penstock.pipeline.publication import Publication
from penstock.pipeline.status import PipelineState, Status
from penstock.text import count

MAX_LAG_S = 300.0

_SEVERITIES: Mapping[ProblemKind, Severity] = {
    ProblemKind.ABORTED: Severity.FAULT,
    ProblemKind.REFUSED: Severity.FAULT,
    ProblemKind.SOURCE_LOST: Severity.FAULT,
    ProblemKind.UNKNOWN: Severity.FAULT,
}
"""All other problems are warnings."""


def plan_look(open_it: Callable[[], Pipeline | Publication], keep: Callable[[Plan], None]) -> Look:
    """Return a look at what `plan` finds; `keep` gets the plan."""

    def ask() -> Iterator[Finding]:
        plan = open_it().plan()
        keep(plan)
        return plan_findings(plan)

    return Look("plan", "`penstock plan`", ask)


def status_look(open_it: Callable[[], Pipeline | Publication], keep: Callable[[Status], None]) -> Look:
    """Return a look at what `status --check` finds; `keep` gets the status."""

    def ask() -> Iterator[Finding]:
        status = open_it().status()
        keep(status)
        return status_findings(status)

    return Look("status", "`penstock status`", ask)


def plan_findings(plan: Plan) -> Iterator[Finding]:
    """Yield what is in the way of `setup`, and of the next run."""
    for side in (plan.source, plan.target):
        yield from _side_findings(side)
    left: dict[str, tuple[PenstockError, list[str]]] = {}
    for table, errors in plan.left_out.items():
        for error in errors:
            left.setdefault(str(error), (error, []))[1].append(str(table))
    for error, tables in left.values():
        what = f"{count(len(tables), 'table')} left out ({', '.join(tables[:3])}{', ...' * (len(tables) > 3)})"
        yield Finding(Severity.WARNING, "left_out", f"{what}: {error.what}", error.where, error.do)
    if plan.refused is not None:
        yield Finding(Severity.FAULT, "refused", f"the next run is refused: {plan.refused}")
    if plan.is_possible and not plan.is_done and not plan.left_out:
        steps = count(len(plan.source.steps) + len(plan.target.steps), "step")
        yield Finding(Severity.WARNING, "setup", f"setup has {steps} to take", "", "penstock setup")


def _side_findings(side: DatabasePlan) -> Iterator[Finding]:
    for fault in side.faults:
        yield Finding.of("plan", fault)
    for grant in merged_grants(all_grants(side)):
        yield Finding(Severity.FAULT, "rights", "a privilege is missing", side.label, f"{grant};")
    for grant in merged_grants(side.recommended):
        what = "sequences are not kept in step, and `cutover` is refused"
        yield Finding(Severity.WARNING, "rights", what, side.label, f"{grant};")


def status_findings(status: Status) -> Iterator[Finding]:
    """Yield what is wrong with a pipeline that is to run all the time."""
    found = list(problems(status, max_lag_s=MAX_LAG_S, max_errors=0))
    for problem in found:
        severity = _SEVERITIES.get(problem.kind, Severity.WARNING)
        yield Finding(severity, problem.kind, problem.text)
    if not found and status.state is PipelineState.RUNNING:
        yield Finding(Severity.OK, "status", f"pipeline {status.pipeline} is running, and nothing is wrong with it")
