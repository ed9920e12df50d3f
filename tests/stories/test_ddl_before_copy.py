"""DDL between setup and the first copy: the target follows before rows are copied, by the same rules as later."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab import Lab
from tests.stories.test_rules_whole import catch_up, opened, rows

FOLLOW = "  ddl: apply\n"


@pytest.fixture
def early(lab: Lab, spark: object) -> Lab:
    """A lab that is set up, and whose tables are not copied yet."""
    lab.apply_settings = FOLLOW
    lab.source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, w int, x int); INSERT INTO t VALUES (1, 'a', 10, 100);"
        "CREATE TABLE u (id int PRIMARY KEY, v text); INSERT INTO u VALUES (1, 'a')"
    )
    lab.pipeline().setup()
    return lab


def by_name(lab: Lab, side: str) -> list[dict[str, object]]:
    """The rows of the table, the order of its columns left out: one that is added comes last."""
    connection = lab.target if side == "target" else lab.source
    return [one for (one,) in connection.execute("SELECT to_jsonb(t) FROM t ORDER BY id").fetchall()]


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t ADD COLUMN y int",
        "ALTER TABLE t ADD COLUMN y int NOT NULL DEFAULT 7",
        "ALTER TABLE t DROP COLUMN w",
        "ALTER TABLE t RENAME COLUMN w TO y",
        "ALTER TABLE t ALTER COLUMN w TYPE text",
        "ALTER TABLE t RENAME COLUMN v TO old; ALTER TABLE t ADD COLUMN v date; ALTER TABLE t DROP COLUMN x",
        "ALTER TABLE t RENAME COLUMN w TO y; ALTER TABLE t RENAME COLUMN x TO w; ALTER TABLE t RENAME COLUMN y TO x",
    ],
    ids=["added", "added with a default", "dropped", "renamed", "retyped", "one after the other", "exchanged"],
)
def test_columns_are_what_the_source_has_before_rows_are_copied(early: Lab, ddl: str) -> None:
    early.source.execute(ddl)
    early.source.execute("INSERT INTO t (id) VALUES (2)")

    catch_up(early.pipeline())
    early.source.execute("UPDATE t SET id = id + 10")
    catch_up(early.pipeline())

    assert early.errors() == []
    assert by_name(early, "target") == by_name(early, "source")
    assert early.pipeline().plan().is_done


def test_what_the_target_cannot_follow_keeps_its_table_alone_until_it_is_done_by_hand(early: Lab, caplog: Any) -> None:
    early.source.execute("ALTER TABLE t ADD COLUMN y double precision DEFAULT random()")

    catch_up(early.pipeline())
    assert "public.t was altered at the source after setup, and the target cannot follow: column 'y'" in caplog.text
    assert early.rows("t") == []
    early.assert_identical("u")

    early.target.execute("ALTER TABLE t ADD COLUMN y double precision")
    catch_up(early.pipeline())
    early.assert_identical("t", "u")


def test_a_table_that_does_not_follow_is_left_as_it_is(early: Lab) -> None:
    early.apply_settings = "  ddl: ignore\n"
    early.source.execute("ALTER TABLE t DROP COLUMN w")

    catch_up(early.pipeline())

    assert early.rows("t") == [(1, "a", None, 100)]


def test_rules_say_what_is_added_is_called(lab: Lab, spark: object) -> None:
    rules = "  ddl: apply\nrules: {tables: {public.t: {to: public.copy, rename: {v: name}}}}\n"
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    opened(lab, rules).setup()
    lab.source.execute("ALTER TABLE t ADD COLUMN y int; INSERT INTO t VALUES (2, 'b', 3)")

    catch_up(opened(lab, rules))

    assert rows(lab, "SELECT to_jsonb(c) FROM copy c ORDER BY id") == [
        ({"id": 1, "name": "a", "y": None},),
        ({"id": 2, "name": "b", "y": 3},),
    ]
