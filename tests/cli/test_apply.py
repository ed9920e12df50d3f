"""`penstock apply`: parameters seen and set, and a run that another command stops."""

from __future__ import annotations

import pytest

from tests.lab import Lab
from tests.program import Program, await_true


@pytest.mark.rule("A-11", "A-192")
def test_parameters_are_shown_and_set_and_a_run_is_stopped(lab: Lab, program: Program) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    early = program("apply", "set", "parallelism", "3")
    assert early.code == 3
    assert "Run `penstock setup`" in early.err
    program("setup")

    assert program("apply", "set", "PARALLELISM", "3").out == "parallelism is 3\n"
    assert program("apply", "set", "ignore_transaction", "77").out == "ignore_transaction is 77\n"
    refused = program("apply", "set", "paralelism", "3")
    assert refused.code == 2
    assert "did you mean 'parallelism'?" in refused.err

    shown = {row["name"]: (row["value"], row["from"]) for row in program("apply", "show", "--json").json}
    assert shown["parallelism"] == ("3", "set")
    assert shown["maximum_scn"] == ("INFINITE", "file")
    assert "parallelism\t3\tset" in program("apply", "show").out
    again = program("apply", "set", "parallelism").out
    assert again == "parallelism is 2, as the pipeline file says\n"

    assert program("apply", "stop").code == 3
    with program.start("run") as run:
        lab.source.execute("INSERT INTO t VALUES (1)")
        await_true(lambda: lab.target.execute("SELECT FROM t").fetchall() != [])
        stopped = program("apply", "stop", "--json")
        assert run.wait() == 0
    assert stopped.json["low_watermark"] == stopped.json["high_watermark"]
