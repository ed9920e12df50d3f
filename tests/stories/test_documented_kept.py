"""ITEMS never goes on behind a hole: where rows were freed that nobody has read, it refuses to be read until setup."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from penstock.cli.status import held_back
from tests.lab import Lab
from tests.stories.test_documented import col, documented, items

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"
GONE = psycopg.errors.ObjectNotInPrerequisiteState


def setup_again(lab: Lab) -> list[str]:
    """What a person is told by it."""
    pipeline = lab.pipeline(["*.*"])
    notes = pipeline.plan().source.notes
    pipeline.setup()
    return list(notes)


def status(lab: Lab) -> list[tuple[Any, ...]]:
    return lab.source.execute("SELECT tablename, status FROM REPL_TABLES ORDER BY 1").fetchall()


def refused(lab: Lab, statement: str = "SELECT count(*) FROM REPL_ITEMS") -> psycopg.errors.Error:
    with pytest.raises(GONE) as caught:
        lab.source.execute(statement)
    return caught.value


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM REPL_ITEMS ORDER BY REPL_KEY",
        "SELECT max(REPL_KEY) FROM REPL_ITEMS",
        "DELETE FROM REPL_ITEMS WHERE TRANS_KEY = '0'",
        "DELETE FROM REPL_ITEMS",
    ],
)
def test_readers_who_are_no_consumer_any_more_are_refused(lab: Lab, statement: str) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")
    (key,) = items(lab.source, "trans_key")[0]

    lab.pipeline(["*.*"]).remove_consumer("repl_items")
    lab.source.execute("INSERT INTO t VALUES (2)")
    error = refused(lab, statement)

    assert f"rows of repl_items may be missing from TRANS_KEY {key} on: since 20" in str(error)
    assert "penstock setup" in (error.diag.message_hint or "")
    assert status(lab) == [("t", "REMOVE")]


def test_status_names_readers_who_were_given_up_until_setup_begins_them_anew(lab: Lab) -> None:
    documented(lab, TABLE + "; CREATE TABLE u (id int)")
    pipeline = lab.pipeline(["*.*"])
    assert pipeline.status().attention == []

    pipeline.remove_consumer("repl_items")

    (line,) = pipeline.status().attention
    assert line.startswith("the log is kept for readers of public.repl_items no more since 20")
    assert "`penstock setup` begins them anew" in line
    pipeline.setup()
    status = pipeline.status()
    assert status.attention == []
    (readers,) = [one for one in status.consumers if one.consumer.name == "repl_items"]
    # They have a CREATE of each table to take, which no log holds.
    assert (readers.transactions, readers.announced) == (0, 2)
    assert "0 transactions and 2 rows beside the log" in held_back(readers, own_id="")
    lab.source.execute("DELETE FROM REPL_ITEMS WHERE TABLENAME = 'u'")
    assert [one.announced for one in pipeline.status().consumers if one.consumer.name == "repl_items"] == [1]


def test_an_empty_queue_that_is_given_up_names_the_transactions_to_come(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.pipeline(["*.*"]).remove_consumer("repl_items")
    now = lab.source.execute("INSERT INTO t VALUES (1) RETURNING pg_current_xact_id()::text::bigint").fetchone()

    found = re.search(r"TRANS_KEY (\d+) on", str(refused(lab)))

    assert found is not None
    assert now is not None
    assert now[0] - 3 <= int(found[1]) <= now[0]


def test_setup_begins_items_anew_with_a_create_for_each_table(lab: Lab) -> None:
    documented(lab, TABLE + "; CREATE TABLE u (id int)")
    lab.start()
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.pipeline(["*.*"]).remove_consumer("repl_items")
    lab.source.execute("INSERT INTO t VALUES (2)")

    notes = setup_again(lab)
    due = status(lab)
    lab.source.execute("INSERT INTO t VALUES (3)")
    found = items(lab.source, "db_action", "tablename", "content")
    lab.source.execute("DELETE FROM REPL_ITEMS WHERE DB_ACTION = 'CREATE' AND TABLENAME = 't'")
    taken = status(lab)
    lab.source.execute("UPDATE REPL_TABLES SET STATUS = 'OK' WHERE TABLENAME = 'u'")

    assert any("begin anew" in note for note in notes)
    assert due == [("t", "CREATING"), ("u", "CREATING")]
    assert found == [("CREATE", "t", None), ("CREATE", "u", None), ("INSERT", "t", col("id", "3"))]
    assert taken == [("t", "OK"), ("u", "CREATING")]
    assert status(lab) == [("t", "OK"), ("u", "OK")]
    assert [one.consumer.name for one in lab.log.consumers()].count("repl_items") == 1
    # The run still gets all of it.
    assert len(list(lab.changes())) == 3
    assert lab.pipeline(["*.*"]).plan().source.steps == []


def test_what_is_open_while_items_begins_anew_is_shown_whole(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.pipeline(["*.*"]).remove_consumer("repl_items")
    with psycopg.connect(lab.source_url) as writer:
        writer.execute("INSERT INTO t VALUES (1)")
        setup_again(lab)
        lab.source.execute("DELETE FROM REPL_ITEMS")
        writer.execute("INSERT INTO t VALUES (2)")
        writer.commit()

    assert items(lab.source, "content") == [(col("id", "1"),), (col("id", "2"),)]


def test_what_is_open_while_a_captured_table_is_listed_is_shown_whole(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("DELETE FROM REPL_TABLES WHERE TABLENAME = 't'")
    with psycopg.connect(lab.source_url) as writer:
        writer.execute("INSERT INTO t VALUES (1)")
        lab.source.execute(
            "INSERT INTO REPL_TABLES VALUES (' ', 'public', 't', 'IUD', 'CREATING', REPL_INCREMENT(), '', 0)"
        )
        lab.source.execute("DELETE FROM REPL_ITEMS")
        writer.commit()

    assert items(lab.source, "content") == [(col("id", "1"),)]


def test_a_log_that_somebody_emptied_is_told(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")
    (key,) = items(lab.source, "trans_key")[0]

    lab.source.execute(f"TRUNCATE {lab.set_name}.log")

    assert f"TRANS_KEY {key} on" in str(refused(lab))


def test_a_log_that_is_emptied_with_triggers_switched_off_is_told(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")

    with psycopg.connect(lab.source_url, autocommit=True) as person:
        person.execute(f"SET session_replication_role = replica; TRUNCATE {lab.set_name}.log")

    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="may be missing"):
        items(lab.source, "content")


def test_a_session_in_which_no_trigger_fires_is_refused(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")

    with psycopg.connect(lab.source_url, autocommit=True) as reader:
        reader.execute("SET session_replication_role = replica")
        for statement in ("SELECT * FROM REPL_ITEMS", "DELETE FROM REPL_ITEMS"):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="cannot acknowledge"):
                reader.execute(statement)
        reader.execute("SET session_replication_role = origin")
        assert reader.execute("DELETE FROM REPL_ITEMS").rowcount == 1


def test_a_copied_database_is_told_and_begins_anew_by_teardown_and_setup(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")
    name = lab.source.info.dbname
    with psycopg.connect(lab.source_url.replace(f"/{name}", "/postgres"), autocommit=True) as server:
        others = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
        server.execute(others, [name])
        server.execute(f"CREATE DATABASE {name}_copy TEMPLATE {name}")
        try:
            with Lab(lab.source_url.replace(f"/{name}", f"/{name}_copy"), lab.target_url, name="lab") as copy:
                copy.capture_settings = lab.capture_settings
                assert "was restored or copied" in str(refused(copy))

                copy.pipeline(["*.*"]).teardown()
                copy.pipeline(["*.*"]).setup()
                copy.source.execute("INSERT INTO t VALUES (2)")

                assert items(copy.source, "db_action", "content") == [("CREATE", None), ("INSERT", col("id", "2"))]
        finally:
            server.execute(f"DROP DATABASE {name}_copy WITH (FORCE)")


def test_a_server_that_counts_transactions_anew_is_told(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute(f"UPDATE {lab.set_name}.read_to SET below = '99999999999'")

    assert "was restored or copied" in str(refused(lab))


def test_rows_of_a_table_that_is_taken_out_of_tables_still_wait(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.source.execute("DELETE FROM REPL_TABLES WHERE TABLENAME = 't'")
    lab.source.execute("INSERT INTO t VALUES (2)")

    assert items(lab.source, "content") == [(col("id", "1"),)]


def test_teardown_and_setup_announce_every_table(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.pipeline(["*.*"]).teardown()
    with pytest.raises(psycopg.errors.UndefinedTable):
        lab.source.execute("SELECT * FROM REPL_ITEMS")
    lab.pipeline(["*.*"]).setup()

    assert items(lab.source, "db_action", "tablename") == [("CREATE", "t")]


def test_a_run_that_is_given_up_takes_nothing_from_readers_of_items(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.start()
    lab.source.execute("INSERT INTO t VALUES (1)")
    pipeline = lab.pipeline(["*.*"])
    (run,) = [state for state in pipeline.consumers() if state.consumer.name != "repl_items"]

    pipeline._give_up(run)
    lab.source.execute("INSERT INTO t VALUES (2)")

    assert items(lab.source, "content") == [(col("id", "1"),), (col("id", "2"),)]
    assert [state.consumer.name for state in pipeline.consumers()] == ["repl_items"]


def test_rows_say_the_version_that_they_were_captured_in_and_another_one_announces_every_table(lab: Lab) -> None:
    documented(lab, TABLE)
    lab.source.execute("INSERT INTO t VALUES (1)")

    lab.capture_settings = "  documented: {prefix: REPL_, version: '2.1'}\n"
    setup_again(lab)
    lab.source.execute("INSERT INTO t VALUES (2)")

    assert items(lab.source, "db_action", "version") == [("INSERT", "0.0"), ("CREATE", "2.1"), ("INSERT", "2.1")]
    assert status(lab) == [("t", "CREATING")]
