"""What readers of ITEMS meet: disks without room, tables that are gone, rights that they lack."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.faults.room import refusing_to_grow
from tests.lab import Lab
from tests.stories.test_documented import col, documented, items

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"


def test_a_reader_whose_acknowledgement_finds_no_room_has_its_rows_again(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")

    with (
        refusing_to_grow(lab.source_url, f"{lab.set_name}.acknowledged"),
        pytest.raises(psycopg.errors.DiskFull, match="No space left on device"),
    ):
        lab.source.execute("DELETE FROM REPL_ITEMS")

    assert items(lab.source, "content") == [(col("id", "1"),)]
    assert lab.source.execute("DELETE FROM REPL_ITEMS").rowcount == 1
    assert items(lab.source, "content") == []


def test_a_change_that_finds_no_room_in_the_log_is_not_made(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")

    with refusing_to_grow(lab.source_url, f"{lab.set_name}.log"), pytest.raises(psycopg.errors.DiskFull):
        lab.source.execute("INSERT INTO t VALUES (2)")
    lab.source.execute("INSERT INTO t VALUES (3)")

    assert lab.source.execute("SELECT id FROM t ORDER BY 1").fetchall() == [(1,), (3,)]
    assert items(lab.source, "content") == [(col("id", "1"),), (col("id", "3"),)]


def test_rows_of_a_table_that_is_gone_still_wait_before_its_drop(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")
    (key,) = items(lab.source, "trans_key")[0]

    lab.source.execute("DROP TABLE t")

    assert items(lab.source, "db_action", "tablename", "content") == [
        ("INSERT", "t", col("id", "1")),
        ("DROP", "t", None),
    ]
    assert lab.source.execute("DELETE FROM REPL_ITEMS WHERE TRANS_KEY = %s", [key]).rowcount == 1
    assert items(lab.source, "db_action") == [("DROP",)]


@pytest.fixture
def reader(lab: Lab) -> Iterator[psycopg.Connection]:
    """A session of a role without any right."""
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")
    role = f"reader_{lab.source.info.dbname}"
    lab.source.execute(f"CREATE ROLE {role} LOGIN")
    with psycopg.connect(lab.source_url.replace("postgres@", f"{role}@"), autocommit=True) as connection:
        yield connection
    lab.source.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_role_without_rights_reads_and_deletes_nothing(lab: Lab, reader: psycopg.Connection) -> None:
    for statement in ("SELECT * FROM REPL_ITEMS", "DELETE FROM REPL_ITEMS", "DELETE FROM REPL_TABLES"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute(statement)

    lab.source.execute(f"GRANT SELECT ON REPL_ITEMS TO {reader.info.user}")
    assert items(reader, "content") == [(col("id", "1"),)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute("DELETE FROM REPL_ITEMS")
    lab.source.execute(f"GRANT DELETE ON REPL_ITEMS TO {reader.info.user}")
    assert reader.execute("DELETE FROM REPL_ITEMS").rowcount == 1
    lab.pipeline(["*.*"]).remove_consumer("repl_items")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="may be missing"):
        reader.execute("DELETE FROM REPL_ITEMS")
