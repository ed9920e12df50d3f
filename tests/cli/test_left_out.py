"""Commands beside a table that is left out, or not copied yet: each names it, and none says that all is well."""

from __future__ import annotations

from tests.lab import Lab
from tests.program import Program

GOOD = "CREATE TABLE good (id int PRIMARY KEY, v text); INSERT INTO good VALUES (1, 'a');"


def test_a_run_says_why_setup_left_a_table_out_until_it_is_taken_in(lab: Lab, program: Program) -> None:
    lab.source.execute(f"{GOOD} CREATE TABLE bad (id int PRIMARY KEY, v numeric(9,3))")
    lab.target.execute("CREATE TABLE bad (id int PRIMARY KEY, v numeric(9,1))")
    assert program("setup").code == 3

    run = program("run", "--until-caught-up")

    assert run.code == 3, run.err
    assert "public.bad is not captured: setup leaves it out: column 'v' of table public.bad is numeric(9,1)" in run.err
    assert "made after setup" not in run.err
    assert "1 table is left out: public.bad" in run.err
    verified = program("verify")
    assert verified.code == 1
    assert "not compared: public.bad is not captured: setup leaves it out" in verified.out.replace("\n", " ")

    lab.target.execute("ALTER TABLE bad ALTER v TYPE numeric(9,3)")
    mended = program("run", "--until-caught-up", "--json")
    assert (mended.code, mended.json["left_out"]) == (3, ["public.bad"])
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 0
    assert program("verify").code == 0


def test_a_table_that_is_not_copied_keeps_no_other_from_being_compared(lab: Lab, program: Program) -> None:
    lab.source.execute(f"{GOOD} CREATE TABLE bad (id int PRIMARY KEY, v text); INSERT INTO bad VALUES (1, 'too long')")
    lab.target.execute("CREATE TABLE bad (id int PRIMARY KEY, v text CHECK (length(v) < 4))")
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 3

    identical = program("verify")
    lab.target.execute("UPDATE good SET v = 'b'")
    differing = program("verify", "--json")
    repaired = program("verify", "--repair")

    assert identical.code == 1
    said = identical.out.replace("\n", " ")
    assert "not compared: public.bad is not copied yet. Let `penstock run` copy it first" in said
    assert "what was compared is identical, but 1 table could not be compared" in said
    assert (differing.code, differing.json["identical"]) == (1, False)
    assert [(one["table"], one["differing"]) for one in differing.json["tables"]] == [("public.good", 1)]
    assert repaired.code == 1
    assert lab.rows("good") == [(1, "a")]
    alone = program("verify", "--table", "public.bad")
    assert alone.code == 3
    assert "public.bad is not copied yet" in alone.err
