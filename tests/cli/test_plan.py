"""`penstock plan` for people: what is alike in one line, all of it on standard output, the verdict last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli import plan_view
from penstock.database import DatabasePlan, SetupStep
from penstock.errors import OperatorError
from penstock.pipeline.alike import merge_alike
from penstock.pipeline.plan import Plan
from tests.lab import Lab, table
from tests.program import Program


@pytest.fixture
def program(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    # Spark is not started, so nothing of its start has to be prepared.
    monkeypatch.setattr("tests.program.prepared_start", str)
    return Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)


@pytest.fixture
def role(lab: Lab) -> Iterator[str]:
    name = f"plain_{lab.source.info.dbname}"
    for side in (lab.source, lab.target):
        side.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    for side in (lab.source, lab.target):
        side.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_many_tables_are_few_lines_and_the_last_is_the_verdict(lab: Lab, program: Program) -> None:
    for number in range(20):
        lab.source.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, parent int REFERENCES t{number})")

    done = program("plan")

    assert done.code == 0
    assert done.err == ""
    lines = done.out.splitlines()
    assert "  capture 20 tables" in lines
    assert "  20 tables, 20 primary keys, 20 foreign keys" in lines
    assert len(lines) < 12
    assert lines[-1].startswith("ready: ")
    assert lines[-1].endswith("; next: `penstock setup`")
    assert "public.t7" in program("plan", "--detail").out


def test_missing_grants_are_counted_in_the_verdict_and_printed_alone(lab: Lab, program: Program, role: str) -> None:
    for number in range(5):
        lab.source.execute(f"CREATE TABLE t{number} (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
    plain = {
        "SHOP_URL": lab.source_url.replace("postgres@", f"{role}@"),
        "COPY_URL": lab.target_url.replace("postgres@", f"{role}@"),
    }

    done = program("plan", env=plain)

    assert done.code == 3
    assert done.err == ""
    assert done.out.splitlines()[-1] == (
        "not ready: 9 grants are missing (6 at the source and 3 at the target), and 5 grants are recommended; fix"
        " that, then run `penstock plan` again"
    )
    alone = program("plan", "--grants", env=plain).out.splitlines()
    statements = [line for line in alone if not line.startswith("--")]
    tables = ", ".join(f'"public"."t{number}"' for number in range(5))
    assert f'GRANT SELECT, TRIGGER ON {tables} TO "{role}";' in statements
    sequences = ", ".join(f'"public"."t{number}_id_seq"' for number in range(5))
    assert f'GRANT SELECT ON SEQUENCE {sequences} TO "{role}";' in statements
    at_target = alone.index("-- missing at the target; the owner of each, or a superuser, runs:")
    at_source = [line for line in alone[:at_target] if not line.startswith("--")]
    for session, run in ((lab.source, at_source), (lab.target, alone[at_target + 1 :])):
        for statement in run:
            session.execute(statement)
    try:
        assert program("plan", env=plain).out.splitlines()[-1].startswith("ready: ")
    finally:
        lab.target.execute(f"REVOKE SET ON PARAMETER session_replication_role FROM {role}")


def test_tables_that_hold_rows_are_one_line(lab: Lab, program: Program) -> None:
    for number in range(6):
        for side in (lab.source, lab.target):
            side.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY); INSERT INTO t{number} VALUES (1)")

    done = program("plan")
    assert done.code == 3
    (line,) = [line for line in done.out.splitlines() if line.startswith("in the way: ")]
    assert "tables public.t0, public.t1, public.t2, public.t3, public.t4, public.t5 hold rows" in line
    refused = program("setup")
    assert refused.code == 3
    assert len(refused.err.splitlines()) == 1


def test_lines_that_differ_in_a_table_are_one() -> None:
    lines = ["a.t has no key", "a.t2 has no key", "nothing", "nothing", "index i of a.t is left out: no right"]
    more = ["index j of a.t is left out: no right"]
    assert merge_alike([*lines, *more], ["a.t", "a.t2"]) == [
        "a.t has no key (and the same of a.t2)",
        "nothing",
        "2 things are left out: no right: index i of a.t, index j of a.t",
    ]
    assert merge_alike(["x"], []) == ["x"]


def plan(**more: object) -> Plan:
    sides = {name: DatabasePlan(name) for name in ("source", "target")}
    return Plan(["a.t"], **{**sides, **more})  # type: ignore[arg-type]


def _with_a_step() -> Plan:
    found = plan()
    found.source.steps.append(SetupStep("capture table a.t", "SELECT 1"))
    return found


def _with_a_fault() -> Plan:
    found = _with_a_step()
    found.target.faults.append(OperatorError("too old"))
    return found


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (plan, "everything is in place; next: `penstock run`"),
        (_with_a_step, "ready: 1 step to take; next: `penstock setup`"),
        (_with_a_fault, "not ready: 1 thing is in the way; fix that, then run `penstock plan` again"),
        (lambda: plan(refused="another history"), "set up, and the next run is refused for the reason above"),
        (
            lambda: plan(left_out={table("t"): [OperatorError("x")]}),
            "ready but for 1 table, which is left out; next: `penstock setup` for the others",
        ),
    ],
)
def test_a_verdict_names_the_next_command_last(made: Callable[[], Plan], said: str) -> None:
    assert plan_view.verdict(made()) == said
