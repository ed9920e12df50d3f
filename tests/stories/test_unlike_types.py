"""A type that is wider at the source later, or another one of the same name: no value becomes another in silence."""

from __future__ import annotations

import pytest

from tests.lab import Lab
from tests.stories.test_rules_whole import opened

WIDENED = {
    "numeric(6,3)": ("numeric(8,5)", "1.23456", "1.234"),
    "timestamp(0)": ("timestamp(6)", "2020-01-01 00:00:00.654321", "2020-01-01 00:00:00"),
    "time(1)": ("time(4)", "11:45:59.1234", "11:45:59.1"),
}


@pytest.mark.parametrize("narrow", WIDENED)
@pytest.mark.parametrize("use_set_path", [True, False], ids=["set path", "row path"])
def test_a_column_that_was_widened_at_the_source_keeps_its_values_or_waits(
    lab: Lab, narrow: str, use_set_path: bool
) -> None:
    from penstock.apply.lane import ServerConfig

    wide, value, item = WIDENED[narrow]
    lab.setup(f"CREATE TABLE t (id int PRIMARY KEY, v {narrow}); CREATE TABLE good (id int PRIMARY KEY)")
    lab.source.execute(f"ALTER TABLE t ALTER v TYPE {wide} USING NULL")
    lab.source.execute("INSERT INTO t VALUES (1, %s)", [value])
    lab.source.execute("INSERT INTO t VALUES (2, %s), (3, NULL)", [item])
    lab.source.execute("INSERT INTO good VALUES (1)")

    lab.apply(config=ServerConfig(use_set_path=use_set_path))

    (entry,) = lab.errors()
    assert entry.error_number == 26689
    assert "column 'v'" in entry.error_message
    assert value not in entry.error_message
    assert [row[0] for row in lab.rows("t")] == [2, 3]
    assert lab.rows("good") == [(1,)]

    lab.target.execute(f"ALTER TABLE t ALTER v TYPE {wide}")
    assert lab.retry(entry.id) == [entry.id]
    lab.assert_identical("t", "good")


OTHERS = {
    "a domain": ("CREATE DOMAIN d AS numeric(9,{})", 2, 1, "d", "1.25"),
    "a composite type": ("CREATE TYPE d AS (x numeric(9,{}), y int)", 3, 1, "d", "(1.234,1)"),
    "a composite type in an array": ("CREATE TYPE d AS (x numeric(9,{}), y int)", 3, 1, "d[]", '{"(1.234,1)"}'),
    "a domain in a composite type": (
        "CREATE DOMAIN c AS numeric(9,{}); CREATE TYPE d AS (x c)",
        3,
        1,
        "d",
        "(1.234)",
    ),
    "a range": (
        "CREATE DOMAIN c AS numeric(9,{}); CREATE TYPE d AS RANGE (SUBTYPE = c)",
        3,
        1,
        "d",
        "[1.234,2)",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("is_made", [True, False], ids=["the table is there", "the table is made"])
def test_a_type_of_the_same_name_that_holds_less_leaves_its_table_out(lab: Lab, case: str, is_made: bool) -> None:
    make, at_source, at_target, column, value = OTHERS[case]
    lab.source.execute(make.format(at_source))
    lab.target.execute(make.format(at_target))
    table = f"CREATE TABLE bad (id int PRIMARY KEY, v {column});"
    lab.source.execute(f"{table} CREATE TABLE good (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO bad VALUES (1, %s)", [value])
    if is_made:
        lab.target.execute(table)

    done = lab.pipeline().setup()

    assert [name.name for name in done.left_out] == ["bad"]
    (fault,) = next(iter(done.left_out.values()))
    assert "at the source of numeric(9," in str(fault)
    assert {version.table.name.name for version in lab.log.tables()} == {"good"}


@pytest.mark.parametrize("case", OTHERS)
def test_a_type_of_the_same_name_that_holds_more_does(lab: Lab, case: str) -> None:
    make, more, less, column, _ = OTHERS[case]
    lab.source.execute(make.format(less))
    lab.target.execute(make.format(more))
    lab.source.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {column})")

    assert not lab.pipeline().setup().left_out


def test_it_is_so_by_rules_that_give_its_table_another_name(lab: Lab) -> None:
    lab.source.execute("CREATE TYPE d AS (x numeric(9,3)); CREATE TABLE bad (id int PRIMARY KEY, v d)")
    lab.source.execute("CREATE TABLE good (id int PRIMARY KEY)")
    lab.target.execute("CREATE TYPE d AS (x numeric(9,1))")

    done = opened(lab, "rules: {tables: {public.bad: {to: public.other}}}").setup()

    assert [name.name for name in done.left_out] == ["other"]


def test_a_column_that_rules_drop_may_be_of_any_type(lab: Lab) -> None:
    lab.source.execute("CREATE TYPE d AS (x numeric(9,3)); CREATE TABLE t (id int PRIMARY KEY, v d)")
    lab.target.execute("CREATE TYPE d AS (x numeric(9,1))")

    assert not opened(lab, "rules: {tables: {public.t: {drop: [v]}}}").setup().left_out


def test_a_multirange_is_made_of_its_range(lab: Lab) -> None:
    for connection, scale in ((lab.source, 3), (lab.target, 1)):
        connection.execute(f"CREATE DOMAIN c AS numeric(9,{scale}); CREATE TYPE d AS RANGE (SUBTYPE = c)")
    lab.source.execute("CREATE TABLE bad (id int PRIMARY KEY, v d_multirange); CREATE TABLE good (id int PRIMARY KEY)")

    done = lab.pipeline().setup()

    assert [name.name for name in done.left_out] == ["bad"]


def test_a_table_that_is_renamed_within_its_patterns_has_its_types_made(lab: Lab) -> None:
    lab.source.execute("CREATE TYPE d AS ENUM ('a', 'b'); CREATE TABLE t (id int PRIMARY KEY, v d)")

    assert not opened(lab, "rules: {tables: {public.t: {to: public.other}}}").setup().left_out

    lab.target.execute("INSERT INTO other VALUES (1, 'b')")
