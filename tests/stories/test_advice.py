"""What plan says to do is done to the letter, and leads on: setup takes the pipeline, and verify agrees."""

from __future__ import annotations

import re
import threading

import pytest

from penstock.errors import PenstockError
from tests.lab import Lab

T = "CREATE TABLE t (id int PRIMARY KEY, v numeric(9,2), w text);"
ENUM = "CREATE TYPE mood AS ENUM ('low', 'high'); CREATE TABLE t (id int PRIMARY KEY, m mood);"

SITUATIONS = {
    "a column is missing": (T, "CREATE TABLE t (id int PRIMARY KEY, v numeric(9,2))"),
    "a column with a default is missing": (
        "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL DEFAULT 7)",
        "CREATE TABLE t (id int PRIMARY KEY)",
    ),
    "the key is missing": (T, "CREATE TABLE t (id int, v numeric(9,2), w text)"),
    "a column rounds": (T, "CREATE TABLE t (id int PRIMARY KEY, v numeric(9,1), w text)"),
    "a column is of another type": (T, "CREATE TABLE t (id int PRIMARY KEY, v text, w text)"),
    "a column is generated": (
        T,
        "CREATE TABLE t (id int PRIMARY KEY, v numeric(9,2), w text GENERATED ALWAYS AS ('x') STORED)",
    ),
    "an enum has another label": (
        ENUM,
        "CREATE TYPE mood AS ENUM ('low', 'up'); CREATE TABLE t (id int PRIMARY KEY, m mood)",
    ),
    "a collation is missing": (
        "CREATE COLLATION mine (LOCALE = 'C'); CREATE TABLE t (id int PRIMARY KEY, w text COLLATE mine)",
        "",
    ),
    "two things are wrong": (T, "CREATE TABLE t (id bigint, v numeric(8,1))"),
    "a unique index is not valid": (
        "CREATE TABLE t (id int NOT NULL, r text NOT NULL) PARTITION BY LIST (r);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN ('a'); CREATE UNIQUE INDEX one ON t (id, r)",
        "CREATE TABLE t (id int NOT NULL, r text NOT NULL) PARTITION BY LIST (r);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN ('a'); CREATE UNIQUE INDEX one ON ONLY t (id, r)",
    ),
    "names are in capitals": (
        'CREATE TABLE "T" ("Id" int PRIMARY KEY, "V v" timestamp(6));',
        'CREATE TABLE "T" ("Id" int PRIMARY KEY, "V v" timestamp(3));',
    ),
}


def statements(advice: str) -> list[str]:
    """The statements that a piece of advice holds; but those in which something is to be filled in."""
    found = re.findall(r"\b(?:ALTER|CREATE|DROP|GRANT) .*?(?=; |, if its|\. If|$)", advice)
    return [one for one in found if "..." not in one]


def test_what_plan_says_to_do_leads_on(lab: Lab, spark: object) -> None:
    for number, (at_source, at_target) in enumerate(SITUATIONS.values()):
        for side, sql in ((lab.source, at_source), (lab.target, at_target)):
            side.execute(f"CREATE SCHEMA s{number}; SET search_path = s{number}; {sql}")
            side.execute("RESET search_path")
    pipeline = lab.pipeline(["s*.*"])
    faults = [(str(fault), fault.do) for fault in pipeline.plan().target.faults]
    for number, named in enumerate(SITUATIONS):
        assert any(re.search(rf"\bs{number}\.", said) for said, _ in faults), named

    for _, do in faults:
        for statement in statements(do):
            lab.target.execute(statement)

    assert [str(fault) for fault in pipeline.plan().target.faults] == []
    pipeline.setup()
    pipeline.run(threading.Event(), until_caught_up=True)
    assert pipeline.verify().is_identical
    assert pipeline.plan().is_done


def test_rows_that_are_in_the_way_are_taken_over_as_the_message_says(lab: Lab, spark: object) -> None:
    lab.source.execute(f"{T} INSERT INTO t VALUES (1, 1, 'a')")
    lab.target.execute(f"{T} INSERT INTO t VALUES (1, 1, 'b')")
    (fault,) = lab.pipeline().plan().target.faults
    assert "--adopt" in fault.do

    lab.pipeline().setup(adopt=True)

    lab.pipeline().run(threading.Event(), until_caught_up=True)
    assert lab.pipeline().verify().is_identical


@pytest.mark.parametrize(
    ("type_", "there", "value"),
    [
        ("text", "varchar(3)", "'too long'"),
        ("int", "smallint", "99999"),
    ],
)
def test_a_row_that_the_copy_refuses_fits_once_the_column_is_widened_as_the_message_says(
    lab: Lab, spark: object, type_: str, there: str, value: str
) -> None:
    lab.source.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {type_}); INSERT INTO t VALUES (1, {value})")
    lab.pipeline().setup()
    # Whoever alters a column after setup meets the value in the copy.
    lab.target.execute(f"ALTER TABLE t ALTER v TYPE {there}")
    with pytest.raises(PenstockError) as refused:
        lab.pipeline().run(threading.Event(), until_caught_up=True)

    lab.target.execute(refused.value.do.partition("at the target: ")[2].partition("; or ")[0])

    assert lab.pipeline().plan().target.faults == []
    lab.pipeline().run(threading.Event(), until_caught_up=True)
    assert lab.pipeline().verify().is_identical


def test_a_pattern_whose_tables_were_dropped_is_taken_out_and_setup_brings_what_a_run_misses(lab: Lab) -> None:
    patterns = ["public.part*", "public.old*"]
    lab.setup(
        "CREATE TABLE part (id int PRIMARY KEY) PARTITION BY LIST (id);"
        "CREATE TABLE part1 PARTITION OF part FOR VALUES IN (1); CREATE TABLE old (id int PRIMARY KEY)",
        patterns,
    )
    lab.source.execute("DROP TABLE old; CREATE TABLE part2 PARTITION OF part FOR VALUES IN (2)")
    lab.source.execute("INSERT INTO part VALUES (2)")
    lab.apply()
    (entry,) = lab.errors()

    with pytest.raises(PenstockError, match=r"no table matches 'public\.old\*'.* Names are .*take a pattern out whose"):
        lab.pipeline(patterns).setup()
    lab.pipeline(patterns[:1]).setup()

    assert lab.retry(entry.id) == [entry.id]
    lab.assert_identical("part")
