"""Conflict resolution from the pipeline file to the target: planned, refused, carried out and written down."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import OperatorError
from penstock.pipeline.report import Report
from tests.lab import Lab

TABLES = """
CREATE TABLE emp (id int PRIMARY KEY, name text, sal numeric(10,2), ok boolean, doc json, at point);
INSERT INTO emp VALUES (1, 'ann', 4400, true), (2, 'bob', 4000, true);
CREATE TABLE nk (a int);
"""

SAID = """
  tables:
    public.emp:
      compare_old_values: {name: []}
      conflicts:
        - {on: update, columns: [sal], method: maximum, by: sal}
        - {on: delete, row: missing, method: ignore}
"""

WRONG = """
  tables:
    public.emp:
      compare_old_values: {id: [], namen: []}
      conflicts:
        - {on: update, columns: [doc], method: maximum, by: doc}
        - {on: update, columns: [at], method: minimum, by: at}
        - {on: update, columns: [sal, ok], method: delta}
        - {on: update, columns: [comm], method: discard}
        - {on: update, row: missing, method: discard}
    public.nk:
      conflicts: [{on: update, method: overwrite}]
    public.emps: {compare_old_values: {name: []}}
"""


def run(lab: Lab) -> None:
    lab.pipeline().run(threading.Event(), Report(), until_caught_up=True)


@pytest.mark.rule("A-86", "A-89", "A-90")
def test_what_the_tables_cannot_do_is_said_before_anything_is_done(lab: Lab) -> None:
    lab.source.execute(TABLES)
    lab.apply_settings = WRONG

    faults = [fault.what.removeprefix("apply.tables.") for fault in lab.pipeline().plan().target.faults]

    assert faults == [
        "public.emp: compare_old_values: 'id' is part of the key, by which rows are found",
        "public.emp: compare_old_values: the table has no column 'namen'; did you mean 'name'?",
        "public.emp: conflicts, on update: by: column 'doc' is json, whose values have no order",
        "public.emp: conflicts, on update: by: column 'at' is point, whose values have no order",
        "public.emp: conflicts, on update: delta: column 'ok' is boolean, which is not a number",
        "public.emp: conflicts, on update: the table has no column 'comm'",
        "public.nk: conflicts, on update: the table has no key by which its rows could be found",
        "public.emps: the pipeline has no such table; did you mean 'public.emp'?",
    ]
    with pytest.raises(OperatorError, match="no column 'comm'"):
        lab.pipeline().setup()
    assert lab.target.execute("SELECT to_regclass('penstock.process')").fetchone() == (None,)
    # A run looks again: the target may have been altered since.
    lab.apply_settings = ""
    lab.pipeline().setup()
    lab.apply_settings = WRONG
    with pytest.raises(OperatorError, match="no column 'comm'"):
        run(lab)


@pytest.mark.parametrize(
    ("said", "missed"),
    [
        ("compare_key_only: true", ["maximum: column 'sal'", "delta: column 'bal'"]),
        ("tables: {public.emp: {compare_old_values: {bal: [delete]}, ", ["delta: column 'bal'"]),
        (
            'tables: {public.emp: {compare_old_values: {"*": [delete]}, ',
            ["maximum: column 'sal'", "delta: column 'bal'"],
        ),
        ("tables: {public.emp: {compare_old_values: {sal: []}, ", []),
    ],
)
def test_a_resolver_that_is_never_called_is_refused(lab: Lab, said: str, missed: list[str]) -> None:
    lab.source.execute("CREATE TABLE emp (id int PRIMARY KEY, name text, sal int, comm int, bal int)")
    conflicts = (
        "conflicts: [{on: update, columns: [sal, comm], method: maximum, by: sal},"
        " {on: update, columns: [bal], method: delta}, {on: update, columns: [name], method: overwrite},"
        " {on: delete, method: overwrite}]}}"
    )
    is_whole = not said.startswith("tables")
    lab.apply_settings = f"  {said}\n  tables: {{public.emp: {{{conflicts}\n" if is_whole else f"  {said}{conflicts}\n"

    faults = [fault.what for fault in lab.pipeline().plan().target.faults]

    assert faults == [
        f"apply.tables.public.emp: conflicts, on update: {one} is not compared, so no conflict in it is found, and the"
        " change is made as it came"
        for one in missed
    ]


@pytest.mark.rule("A-86", "A-94", "A-137")
def test_conflicts_are_resolved_by_a_run_and_by_a_retry(lab: Lab) -> None:
    lab.source.execute(TABLES)
    lab.pipeline().setup()
    run(lab)
    lab.target.execute("UPDATE emp SET sal = 5000, name = 'eve'; INSERT INTO emp VALUES (3, 'in the way', 0)")
    lab.source.execute("UPDATE emp SET sal = 4900 WHERE id = 1")
    run(lab)
    (entry,) = lab.errors()

    lab.apply_settings = SAID
    lab.source.execute("UPDATE emp SET sal = 5100 WHERE id = 2")
    run(lab)
    list(lab.pipeline().retry([entry.id]))

    assert lab.errors() == []
    assert lab.target.execute("SELECT id, name, sal::int FROM emp WHERE id < 3 ORDER BY 1").fetchall() == [
        (1, "eve", 5000),
        (2, "eve", 5100),
    ]
    logged = lab.target.execute("SELECT method, outcome FROM penstock.conflict ORDER BY id").fetchall()
    assert logged == [("maximum", "applied"), ("maximum", "discarded")]
    assert lab.pipeline().status().resolved == 1


def test_a_transaction_that_is_applied_in_pieces_resolves_its_conflicts(lab: Lab) -> None:
    lab.source.execute(TABLES)
    lab.source.execute("INSERT INTO emp (id, name, sal) SELECT n, 'x', 10 FROM generate_series(100, 199) n")
    lab.apply_settings = SAID + "  txn_lcr_spill_threshold: 20\n"
    lab.pipeline().setup()
    run(lab)
    lab.target.execute("UPDATE emp SET sal = 5000 WHERE id = 150; UPDATE emp SET sal = 1 WHERE id = 151")
    lab.source.execute("UPDATE emp SET sal = 20 WHERE id >= 100")
    run(lab)

    assert lab.errors() == []
    assert lab.target.execute(
        "SELECT sal::int, count(*) FROM emp WHERE id >= 100 GROUP BY 1 ORDER BY 1"
    ).fetchall() == [
        (20, 99),
        (5000, 1),
    ]
    logged = lab.target.execute("SELECT message_number, outcome FROM penstock.conflict ORDER BY id").fetchall()
    assert logged == [(51, "discarded"), (52, "applied")]
    status = lab.pipeline().status()
    assert (status.resolved, status.transactions, status.changes) == (2, 1, 100)
