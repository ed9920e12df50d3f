"""Scenarios of DDL at the source: names that databases make up, values that they work out, what is no table."""

from __future__ import annotations

import random

import pytest

from penstock.apply.apply_errors import DDL_NOT_CARRIED_OUT, ROW_DIFFERS
from penstock.apply.conflict_methods import ConflictRules, TableRules
from penstock.apply.lane import ServerConfig
from penstock.apply.retry import RetryConfig, retry
from penstock.change import Op
from penstock.dialects.postgres.target.error_queue import PostgresErrorQueue
from tests.lab import Lab, table
from tests.stories.test_ddl_applied import FOLLOWING, WAYS, following

__all__ = ["following"]


def apply(lab: Lab, use_set: bool, lanes: int) -> None:
    config = ServerConfig(ddl=FOLLOWING.ddl, use_set_path=use_set)
    lab.apply(lanes=lanes, config=config, shuffle=random.Random(1))


@pytest.mark.rule("A-152", "A-157")
@WAYS
def test_s74_names_that_a_database_made_up(following: Lab, use_set: bool, lanes: int) -> None:
    """A constraint is never looked for by its name at the source: what a column takes is told by the column."""
    lab = following
    lab.setup("CREATE TABLE sys_gen_name (n1 int NOT NULL, n2 int NOT NULL UNIQUE, PRIMARY KEY (n1))")
    lab.target.execute("ALTER TABLE sys_gen_name RENAME CONSTRAINT sys_gen_name_pkey TO sys_c1000")
    lab.source.execute("ALTER TABLE sys_gen_name ALTER n2 DROP NOT NULL")
    # A unique key of the target stays: it is the target's own affair.
    lab.source.execute("ALTER TABLE sys_gen_name DROP CONSTRAINT sys_gen_name_n2_key")
    lab.source.execute("INSERT INTO sys_gen_name VALUES (1, NULL)")
    lab.source.execute("ALTER TABLE sys_gen_name DROP CONSTRAINT sys_gen_name_pkey")
    lab.source.execute("INSERT INTO sys_gen_name VALUES (2, 2)")

    apply(lab, use_set, lanes)

    (entry,) = lab.errors()
    assert (entry.op, entry.error_number) == ("ddl", DDL_NOT_CARRIED_OUT)
    assert "primary key was changed" in entry.error_message
    assert lab.rows("sys_gen_name") == [(1, None), (2, 2)]
    lab.target.execute("ALTER TABLE sys_gen_name DROP CONSTRAINT sys_c1000")
    assert lab.retry(entry.id) == [entry.id]


@pytest.mark.rule("A-154")
@WAYS
def test_s75_a_column_with_a_derived_default_has_the_values_of_the_source(
    following: Lab, use_set: bool, lanes: int
) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    lab.target.execute("INSERT INTO t VALUES (1, 1)")
    for side, connection in (("src", lab.source), ("tgt", lab.target)):
        connection.execute(
            f"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET app.side = t_{side}', current_database()); END $$"
        )
    lab.source.execute("SET app.side = 't_src'")
    lab.source.execute("ALTER TABLE t ADD c text DEFAULT current_setting('app.side')")
    lab.source.execute("UPDATE t SET v = 2 WHERE id = 1")

    apply(lab, use_set, lanes)

    assert lab.errors() == []
    assert lab.rows("t") == [(1, 2, "t_src")]


@pytest.mark.rule("A-86", "A-154")
@WAYS
def test_s75_a_column_that_a_person_has_added_with_other_values(following: Lab, use_set: bool, lanes: int) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    lab.target.execute("INSERT INTO t VALUES (1, 1); ALTER TABLE t ADD c text DEFAULT 't_tgt'")
    lab.source.execute("ALTER TABLE t ADD c text DEFAULT 't_src'")
    lab.source.execute("UPDATE t SET v = 2 WHERE id = 1")

    apply(lab, use_set, lanes)

    (entry,) = lab.errors()
    assert entry.error_number == ROW_DIFFERS
    uncompared = ConflictRules(tables={table("t"): TableRules(compared={"c": frozenset({Op.DELETE})})})
    queue = PostgresErrorQueue(lab.target_url, lab.name)
    assert [one.is_failed for one in retry(queue, [entry.id], RetryConfig(True, conflicts=uncompared))] == [False]
    assert lab.rows("t") == [(1, 2, "t_tgt")]


@pytest.mark.rule("A-151")
@WAYS
def test_s76_what_is_no_captured_table_is_skipped(following: Lab, use_set: bool, lanes: int) -> None:
    lab = following
    lab.setup("CREATE TABLE a (id int PRIMARY KEY)")
    before = lab.ledger.state()
    lab.source.execute(
        "CREATE MATERIALIZED VIEW m AS SELECT id FROM a; REFRESH MATERIALIZED VIEW m; DROP MATERIALIZED VIEW m"
    )
    lab.source.execute("INSERT INTO a VALUES (1)")

    apply(lab, use_set, lanes)

    after = lab.ledger.state()
    assert before is not None
    assert after is not None
    assert after.low_watermark > before.low_watermark
    assert lab.errors() == []
    lab.assert_identical("a")

    lab.source.execute("ALTER TABLE a RENAME TO b")
    lab.source.execute("INSERT INTO b VALUES (2)")
    apply(lab, use_set, lanes)

    assert lab.errors() == []
    lab.assert_identical("b")
