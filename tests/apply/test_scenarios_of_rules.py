"""Scenarios in which rules say what reaches the target, and as what: subsets, operations, types. On every path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.apply.apply_errors import FOREIGN_KEY_VIOLATED, VALUE_TOO_LONG
from penstock.change import TableName
from penstock.dialects.postgres.catalog import read_tables
from penstock.errors import OperatorError
from penstock.rules.stream import StreamRules
from penstock.rules.table_rule import TableRule
from tests.apply.test_scenarios import WAYS, acct, apply
from tests.hand_made import T, Target, insert, update
from tests.lab import Lab
from tests.rules.made import rule_of, schema


@pytest.fixture(params=WAYS, ids=[f"{'set' if s else 'row'}-path-{n}-lanes" for s, n in WAYS])
def way(request: pytest.FixtureRequest) -> tuple[bool, int]:
    return request.param


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database)
    yield made
    made.close()


def follow(target: Target, *rules: TableRule) -> None:
    """Have changes put through these rules before they are applied."""
    target.rules = StreamRules({(rule.source.name, rule.source.version): rule for rule in rules})


def rule_at(target: Target, table: str, **settings: Any) -> TableRule:
    """A rule for a table that looks the same at the source."""
    name = TableName("public", table)
    return rule_of(read_tables(target.connection, [name])[name], **settings)


EMP = {"name": "bob", "job": "B", "sal": 4000, "comm": 100, "ts": "2024-01-01T00:00:00"}


@pytest.mark.rule("A-23")
def test_s83_rows_move_into_a_subset_and_out_of_it(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("DELETE FROM emp WHERE id = 2")
    follow(target, rule_at(target, "emp", rows="dept_id = 10"))
    ann = {"name": "ann", "job": "A", "sal": 4400, "comm": None, "ts": "2024-01-01T00:00:00"}

    apply(
        target,
        way,
        T(100, update("emp", {"id": 2, "dept_id": 20, **EMP}, {"dept_id": 10})),
        T(110, update("emp", {"id": 1, "dept_id": 10, **ann}, {"dept_id": 20})),
        T(120, update("emp", {"id": 7, "dept_id": 20, **EMP}, {"dept_id": 30})),
    )

    rows = target.rows("SELECT id, dept_id, name, job, sal, comm, ts::text FROM emp")
    assert rows == [(2, 10, "bob", "B", 4000, 100, "2024-01-01 00:00:00")]
    assert target.errors() == []
    assert target.watermarks() == (120, 120)


@pytest.mark.rule("A-17", "A-24")
def test_s85_a_change_that_is_not_to_be_executed(target: Target, way: tuple[bool, int]) -> None:
    follow(target, rule_at(target, "dept", operations=["insert", "delete"]))

    apply(
        target,
        way,
        T(100, acct(1, 100, 110), update("dept", {"id": 10, "name": "ENG"}, {"name": "E"})),
        # The row of this one differs from what the target has, but nobody looks.
        T(110, update("dept", {"id": 10, "name": "E"}, {"name": "F"}), insert("dept", id=30, name="NEW")),
    )

    assert target.one("SELECT bal FROM acct WHERE id = 1") == 110
    assert target.rows("SELECT name FROM dept ORDER BY id") == [("ENG",), ("OPS",), ("NEW",)]
    assert target.errors() == []
    assert target.watermarks() == (110, 110)


SOURCE = {
    "id": "integer",
    "c": "character(10)",
    "n": "numeric(10,2)",
    "at": "timestamp without time zone",
    "v": "character varying(30)",
}
AT_TARGET = "CREATE TABLE t (id int PRIMARY KEY, c varchar(10), n varchar(10), at timestamp(0), v varchar(20))"


@pytest.mark.rule("A-74", "A-76")
def test_s82_types_are_converted_as_rules_say(database: str, way: tuple[bool, int]) -> None:
    """Nothing is converted by itself; an expression of a rule reads CHAR without its padding, as its source does."""
    target = Target(database, AT_TARGET)
    rule = rule_of(
        schema(SOURCE, TableName("public", "t")),
        drop=["c", "n", "at"],
        add={"c": "c", "n": "CAST(CAST(n AS DOUBLE) AS VARCHAR)", "at": "date_trunc('second', \"at\")"},
    )
    follow(target, rule)
    row = {"c": "AB        ", "n": "7.50", "at": "2024-01-01T10:00:00.900000"}

    apply(
        target,
        way,
        T(100, insert("t", id=1, **row, v="fits")),
        T(110, insert("t", id=2, **row, v="a" * 25)),
        T(120, update("t", {"id": 1, **row, "v": "fits"}, {"n": "0.50"})),
    )

    assert target.rows("SELECT c, n, at::text, v FROM t") == [("AB", "0.5", "2024-01-01 10:00:00", "fits")]
    assert target.failed() == [(110, VALUE_TOO_LONG, 1, 1)]
    assert target.watermarks() == (120, 120)
    target.close()


@pytest.mark.rule("A-74")
@pytest.mark.parametrize(
    ("at_source", "at_target"),
    [("varchar(30)", "int"), ("numeric(10,2)", "varchar(30)"), ("timestamp(6)", "date"), ("char(10)", "varchar(10)")],
)
def test_s82_what_no_rule_converts_is_refused_before_anything_is_done(lab: Lab, at_source: str, at_target: str) -> None:
    """Also where the database could convert it."""
    lab.source.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {at_source})")
    lab.target.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {at_target})")

    with pytest.raises(OperatorError, match=r"column 'v' of table public\.t is "):
        lab.pipeline().setup()
    assert lab.source.execute("SELECT to_regnamespace('penstock_lab')").fetchone() == (None,)


PAIRS = """
CREATE TABLE place (dept_id int, site text, PRIMARY KEY (dept_id, site));
CREATE TABLE post (id int PRIMARY KEY, dept_id int, site text, FOREIGN KEY (dept_id, site) REFERENCES place);
INSERT INTO place VALUES (10, 'b'), (20, 'b');
INSERT INTO post VALUES (1, 10, 'b'), (2, 20, 'b');
"""


@pytest.mark.rule("A-46", "A-224")
def test_s88_half_of_a_composite_key_is_in_the_change(database: str, way: tuple[bool, int]) -> None:
    """The other half is the target's; until then the change keeps its order with whatever it might meet."""
    target = Target(database, PAIRS)
    transactions = [
        T(100, insert("place", dept_id=30, site="b")),
        T(110, update("post", {"id": 1, "dept_id": 10}, {"dept_id": 30})),
        T(120, update("post", {"id": 2, "dept_id": 20}, {"dept_id": 99})),
    ]

    assert {100, 110, 120} in target.lanes(*transactions)
    apply(target, way, *transactions)

    assert target.rows("SELECT * FROM post ORDER BY id") == [(1, 30, "b"), (2, 20, "b")]
    assert target.failed() == [(120, FOREIGN_KEY_VIOLATED, 1, 1)]
    assert target.watermarks() == (120, 120)
    target.close()
