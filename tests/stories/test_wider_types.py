"""The target's columns may be wider than the source's; what narrower ones cannot keep is said before it is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.lab import Lab

WIDER = [
    ("int", "bigint", "7", "-8"),
    ("int", "numeric", "7", "0"),
    ("int", "numeric(20,0)", "7", "0"),
    ("bigint", "numeric(30,4)", "7", "9223372036854775807"),
    ("oid", "bigint", "7", "4294967295"),
    ("numeric(9,2)", "numeric(12,4)", "1.50", "-0.05"),
    ("numeric(9,2)", "numeric", "1.50", "'NaN'"),
    ("numeric(5,-2)", "numeric(9,1)", "12300", "0"),
    ("money", "numeric(20,2)", "1.50", "-3"),
    ("varchar(5)", "text", "'ab '", "'ä'"),
    ("varchar(5)", "varchar(9)", "'ab '", "''"),
    ("timestamp(3)", "timestamp", "'2024-01-02 03:04:05.678'", "'infinity'"),
    ("time", "interval", "'23:00:00.5'", "'00:00'"),
    ("bit(8)", "bit varying", "B'00000001'", "B'11111111'"),
    ("bit varying(3)", "bit varying(9)", "B'001'", "B''"),
    ("interval(0)", "interval", "'1 month 3 days'", "'-1 s'"),
    ("int[]", "bigint[]", "'{1,NULL}'", "'{}'"),
    ("time", "interval", "'24:00'", "'23:59:59.999999'"),
    ("time[]", "interval[]", "'{24:00,NULL,00:00:00.5}'", "'{}'"),
    ("numeric(9,2)[]", "numeric(12,4)[]", "'{1.50,NaN}'", "'[0:1]={1,2}'"),
]
NARROWER = [
    ("varchar(20)", "varchar(10)", "values that do not fit go to the error queue; blanks at the end"),
    ("numeric(9,2)", "numeric(8,2)", "values that do not fit go to the error queue"),
    ("bit varying(9)", "bit varying(5)", "values that do not fit go to the error queue"),
    ("bit(9)", "bit(5)", "values that do not fit go to the error queue"),
    ("char(9)", "char(5)", "values that do not fit go to the error queue; blanks at the end"),
    ("varchar(9)[]", "varchar(5)[]", "values that do not fit go to the error queue; blanks at the end"),
]
LOSING = [
    ("numeric(12,4)", "numeric(9,2)", "rounded or cut without a word"),
    ("numeric", "numeric(9,2)", "rounded or cut without a word"),
    ("timestamp(6)", "timestamp(3)", "rounded or cut without a word"),
    ("timestamptz", "timestamptz(0)", "rounded or cut without a word"),
    ("time", "time(2)", "rounded or cut without a word"),
    ("timetz", "timetz(2)", "rounded or cut without a word"),
    ("interval", "interval(0)", "rounded or cut without a word"),
    ("interval", "interval year to month", "rounded or cut without a word"),
    ("timestamp[]", "timestamp(0)[]", "rounded or cut without a word"),
    ("text", "name", "rounded or cut without a word"),
    ("bigint", "int", "Give it the source's type"),
    # A cast gives 0.10000000149011612, and no blanks.
    ("real", "double precision", "Give it the source's type"),
    ("char(5)", "text", "Give it the source's type"),
    ("double precision", "real", "Give it the source's type"),
    ("varchar(9)", "char(9)", "Give it the source's type"),
    ("bit(9)", "bit varying(5)", "Give it the source's type"),
    ("numeric(6,0)", "int", "Give it the source's type"),
    ("int", "oid", "Give it the source's type"),
    ("numeric(9,2)", "money", "Give it the source's type"),
    ("json", "jsonb", "Give it the source's type"),
    # There is no cast.
    ("tsrange", "tstzrange", "Give it the source's type"),
    ("boolean[]", "bigint[]", "Give it the source's type"),
]


def made_on_both_sides(lab: Lab, pairs: Iterator[tuple[str, str]]) -> None:
    for number, (source, target) in enumerate(pairs):
        lab.source.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v {source})")
        lab.target.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v {target})")


def about(found: list[str], number: int) -> str:
    return "\n".join(line for line in found if f"public.t{number} " in line)


def test_columns_that_are_wider_take_the_copy_and_every_change_and_compare_as_equal(lab: Lab, spark: object) -> None:
    made_on_both_sides(lab, ((source, target) for source, target, *_ in WIDER))
    for number, (*_, value, _other) in enumerate(WIDER):
        lab.source.execute(f"INSERT INTO t{number} VALUES (1, {value}), (2, NULL), (3, {value})")
    plan = lab.pipeline().plan()
    assert [
        one for one in (*plan.target.notes, *plan.target.faults) if "is" in str(one) and "at the source" in str(one)
    ] == []
    lab.pipeline().setup()
    lab.pipeline().run(threading.Event(), until_caught_up=True)
    assert lab.pipeline().verify().is_identical

    for number, (*_, value, other) in enumerate(WIDER):
        lab.source.execute(f"UPDATE t{number} SET v = {other} WHERE id = 1")
        lab.source.execute(f"INSERT INTO t{number} VALUES (4, {other})")
        # A transaction of its own, which finds its row by what the one before has left.
        lab.source.execute(f"UPDATE t{number} SET v = {value} WHERE id = 4; DELETE FROM t{number} WHERE id = 3")
    progress = lab.pipeline().run(threading.Event(), until_caught_up=True)

    assert (progress.errors, progress.conflicts) == (0, 0)
    assert lab.pipeline().verify().is_identical


def test_a_row_that_only_a_wider_column_could_hold_differs(lab: Lab, spark: object) -> None:
    strange = [
        "8",
        "1.5",
        "8",
        "1.23",
        "8",
        "1.2345",
        "1.505",
        "1",
        "7.5",
        "'abcdef'",
        "'abcdef'",
    ]
    strange += ["'2024-01-02 03:04:05.678901'", "'49:00'", "B'1'", "B'0001'", "'1.5 s'", "'{2}'"]
    strange += ["'1 day'", "'{1 day,NULL,00:00:00.5}'", "'{1.5001,NaN}'"]
    made_on_both_sides(lab, ((source, target) for source, target, *_ in WIDER))
    for number, (*_, value, _other) in enumerate(WIDER):
        lab.source.execute(f"INSERT INTO t{number} VALUES (1, {value})")
    lab.pipeline().setup()
    lab.pipeline().run(threading.Event(), until_caught_up=True)

    for number, value in enumerate(strange):
        lab.target.execute(f"UPDATE t{number} SET v = {value}")
    found = {table.table.name: table.differing for table in lab.pipeline().verify().tables}

    assert found == {f"t{number}": 1 for number in range(len(WIDER))}
    repaired = lab.pipeline().verify(repair=True)
    assert repaired.is_identical


@pytest.mark.parametrize("pairs", [NARROWER, LOSING], ids=["refused", "lost"])
def test_what_a_narrower_column_cannot_keep_is_said_with_the_way_round(
    lab: Lab, pairs: list[tuple[str, str, str]]
) -> None:
    made_on_both_sides(lab, ((source, target) for source, target, _ in pairs))
    plan = lab.pipeline().plan()
    notes, faults = list(plan.target.notes), [str(fault) for fault in plan.target.faults]
    for number, (source, target, said) in enumerate(pairs):
        assert said in about(notes if pairs is NARROWER else faults, number), (source, target)

    for fault in plan.target.faults:
        lab.target.execute(fault.do.partition(": ")[2])

    assert not lab.pipeline().plan().target.faults
