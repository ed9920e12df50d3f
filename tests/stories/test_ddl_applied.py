"""DDL at the source arrives at the target at its place among the changes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from penstock.apply.ddl import DdlPolicy, DdlRules
from penstock.apply.server import ServerConfig
from tests.lab import Lab

FOLLOWING = ServerConfig(ddl=DdlRules(DdlPolicy.APPLY))

WAYS = pytest.mark.parametrize(
    ("lanes", "use_set"),
    [(1, True), (1, False), (4, True), (4, False)],
    ids=["one lane, set path", "one lane, row path", "four lanes, set path", "four lanes, row path"],
)
CAPTURES = pytest.mark.parametrize("is_told", [True, False], ids=["event trigger", "comparison"])


@pytest.fixture
def following(lab: Lab) -> Iterator[Lab]:
    """A lab whose log tells of DDL."""
    with Lab(lab.source_url, lab.target_url, with_ddl=True) as made:
        yield made


def without_event_triggers(lab: Lab) -> None:
    """Have the set be as one that no superuser has made: DDL is found by those who write."""
    lab.source.execute('DROP EVENT TRIGGER penstock_lab; DROP EVENT TRIGGER "penstock_lab drop"')


def columns(lab: Lab, side: str) -> list[tuple[object, ...]]:
    """What a table's columns are, the order left out: a column that is added comes last."""
    connection = lab.target if side == "target" else lab.source
    return connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid) FROM pg_attribute"
        " LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
        " WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname"
    ).fetchall()


@pytest.mark.rule("A-55", "A-148", "A-156")
@CAPTURES
@WAYS
def test_rows_before_and_after_ddl_are_each_applied_with_their_version(
    following: Lab, lanes: int, use_set: bool, is_told: bool
) -> None:
    lab = following
    lab.setup(
        "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL, gone text, w text); CREATE TABLE u (id int PRIMARY KEY)"
    )
    if not is_told:
        without_event_triggers(lab)
    number = 0

    def write() -> None:
        nonlocal number
        for _ in range(3):
            number += 1
            lab.source.execute(f"INSERT INTO u VALUES ({number}); INSERT INTO t (id, v) VALUES ({number}, {number})")
        lab.source.execute(f"UPDATE t SET v = v + 1 WHERE id < {number}; DELETE FROM t WHERE id = {number - 2}")

    write()
    for statement in (
        "ALTER TABLE t ADD c timestamptz NOT NULL DEFAULT now()",
        "ALTER TABLE t DROP gone",
        "ALTER TABLE t RENAME w TO renamed",
        "ALTER TABLE t ALTER renamed TYPE varchar(20), ALTER v TYPE numeric(12,2)",
        "ALTER TABLE t ALTER v DROP NOT NULL",
        "ALTER TABLE t ADD gone int, ALTER renamed SET DEFAULT 'x'",
        "BEGIN; INSERT INTO t (id, v) VALUES (100, 1); ALTER TABLE t ADD late text DEFAULT 'l''ate';"
        " UPDATE t SET late = late || '!' WHERE id = 100; COMMIT",
    ):
        lab.source.execute(statement)
        write()
    config = ServerConfig(ddl=FOLLOWING.ddl, use_set_path=use_set)

    results = lab.apply(lanes=lanes, config=config, shuffle=random.Random(3))

    assert lab.errors() == []
    names = ", ".join(str(name) for name, *_ in columns(lab, "source"))
    query = f"SELECT {names} FROM t ORDER BY id"
    assert lab.target.execute(query).fetchall() == lab.source.execute(query).fetchall()
    assert [c[:3] for c in columns(lab, "target")] == [c[:3] for c in columns(lab, "source")]
    assert use_set == (sum(result.set_changes for result in results) > 0)
    if is_told:
        # Twice the same changes nothing.
        assert lab.apply(lanes=lanes, config=config) == []
