"""From triggers to a connector's events of the same database, while pgbench writes to it: nothing is copied again."""

import subprocess
import threading
import time
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock.change import TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import ConfigError, OperatorError
from penstock.pipeline.pipeline import Pipeline
from tests.kafka.broker import KafkaBroker
from tests.kafka.connect import ConnectWorker, DebeziumEngine
from tests.kafka.shop import schemas
from tests.program import await_true

# Events without schemas do not say whether a number of microseconds has a time zone.
MTIME = ", columns: {public.pgbench_history: {mtime: timestamp without time zone}}"

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers")


def test_a_pipeline_goes_on_from_events_where_its_triggers_are_left(
    kafka: KafkaBroker,
    connect_worker: ConnectWorker,
    logical_server: EmbeddedPostgres,
    target_server: EmbeddedPostgres,
    tmp_path: Path,
    spark: object,
) -> None:
    url, target = made(logical_server, "switched"), made(target_server, "switched")
    pgbench(logical_server, url, "-i", "-q").wait()
    execute(url, "ALTER TABLE pgbench_history ADD COLUMN id bigserial PRIMARY KEY")
    for table in TABLES:
        execute(url, f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    before = opened(tmp_path, "before", captured(url), target)
    after = opened(tmp_path, "after", events(kafka, columns=MTIME), target)
    before.setup()
    before.run(threading.Event(), until_caught_up=True)

    load = pgbench(logical_server, url, "-c", "3", "-R", "60", "-T", "600")
    try:
        with DebeziumEngine(
            connect_worker, kafka, url, "switched", snapshot_mode="no_data", decimal_handling_mode="precise"
        ) as engine:
            engine.wait_for_streaming()
            time.sleep(1)
            await_true(lambda: kafka.topics("switched.public.pgbench_history") != {})
            with pytest.raises(OperatorError, match=r"pgbench_history have no schemas, .* in column mtime: .* columns"):
                before.switch(opened(tmp_path, "untold", events(kafka), target), threading.Event())
            done = before.switch(after, threading.Event())
            assert done.progress is not None
            assert done.progress.transactions > 0
            assert done.untold == []
            assert any("SCHEMA" in step for step in done.removed)
            progress = after.run(threading.Event(), until_caught_up=True)
            assert progress.transactions > 0
            time.sleep(2)
            load.terminate()
            load.wait()
            engine.wait_for(committed(url, "UPDATE pgbench_branches SET filler = 'last'"))
            progress = after.run(threading.Event(), until_caught_up=True)
            assert (progress.errors, progress.conflicts) == (0, 0)
            assert rows(target) == rows(url)
            assert after.status().backlog_changes == 0
    finally:
        load.kill()


def test_what_cannot_be_switched_is_left_as_it_is(
    kafka: KafkaBroker,
    connect_worker: ConnectWorker,
    logical_server: EmbeddedPostgres,
    target_server: EmbeddedPostgres,
    tmp_path: Path,
    spark: object,
) -> None:
    url, target = made(logical_server, "unswitched"), made(target_server, "unswitched")
    execute(url, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    name = "unswitched"
    before = opened(tmp_path, "before", captured(url), target, name=name)
    after = opened(tmp_path, "after", events(kafka, name), target, name=name)
    before.setup()
    before.run(threading.Event(), until_caught_up=True)
    other = opened(tmp_path, "other", events(kafka, name), target, name="other")
    with pytest.raises(ConfigError, match="two pipelines"):
        before.switch(other, threading.Event())
    with pytest.raises(OperatorError, match="trigger_queue to debezium"):
        after.switch(before, threading.Event())
    with pytest.raises(OperatorError, match="no transaction topic"):
        before.switch(after, threading.Event(), wait_s=1)

    with DebeziumEngine(connect_worker, kafka, url, name, snapshot_mode="no_data") as engine:
        engine.wait_for_streaming()
        engine.wait_for(committed(url, "INSERT INTO t VALUES (1, 'a')"))
        engine.stop()
        with pytest.raises(OperatorError, match="has not told of transaction"):
            before.switch(after, threading.Event(), wait_s=1)
        position = before.status().low_watermark
        execute(url, "INSERT INTO t VALUES (2, 'b')")
        execute(target, "INSERT INTO t VALUES (3, 'in the way')")
        execute(url, "INSERT INTO t VALUES (3, 'c')")
        with pytest.raises(OperatorError, match="error queue holds 1 transaction"):
            before.switch(after, threading.Event(), wait_s=1)
        before.errors().delete("unswitched.1")
        assert before.status().low_watermark > position
        execute(target, "UPDATE t SET v = 'c' WHERE id = 3")
        engine.start()
        done = before.switch(after, threading.Event(), keep_capture=True)
        assert not done.removed
        again = before.switch(after, threading.Event())
        assert again.progress is None
        assert again.removed
        execute(url, "INSERT INTO t VALUES (4, 'd')")
        engine.wait_for(committed(url, "UPDATE t SET v = 'e' WHERE id = 1"))
        after.run(threading.Event(), until_caught_up=True)
        assert rows(target, "t") == rows(url, "t") == [[("(1,e)",), ("(2,b)",), ("(3,c)",), ("(4,d)",)]]


def test_tables_that_are_not_copied_are_in_the_way_of_a_switch(
    kafka: KafkaBroker,
    logical_server: EmbeddedPostgres,
    target_server: EmbeddedPostgres,
    tmp_path: Path,
    spark: object,
) -> None:
    name = "uncopied"
    url, target = made(logical_server, name), made(target_server, name)
    execute(url, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    execute(url, "CREATE TABLE u (LIKE t INCLUDING ALL); INSERT INTO u VALUES (1, 'a')")
    before = opened(tmp_path, "before", captured(url).replace("public.*", "public.t"), target, name=name)
    after = opened(tmp_path, "after", events(kafka, name), target, name=name)
    before.setup()
    before.run(threading.Event(), until_caught_up=True)
    # A connector that begins without a snapshot tells of no row that is there.
    with pytest.raises(OperatorError, match=r"^public\.u is not copied, and the new source tells of changes alone"):
        before.switch(after, threading.Event(), wait_s=1)

    wider = opened(tmp_path, "wider", captured(url), target, name=name)
    wider.setup()
    execute(target, "ALTER TABLE u ADD CHECK (v <> 'a')")
    with pytest.raises(OperatorError, match=r"^public\.u is not copied"):
        wider.switch(after, threading.Event(), wait_s=1)

    execute(target, "ALTER TABLE u DROP CONSTRAINT u_v_check")
    with pytest.raises(OperatorError, match="no transaction topic"):
        wider.switch(after, threading.Event(), wait_s=1)
    execute(url, "CREATE TABLE later (LIKE t INCLUDING ALL)")
    with pytest.raises(OperatorError, match=r"^public\.later is not copied"):
        wider.switch(after, threading.Event(), wait_s=1)


def test_a_table_that_the_connector_first_tells_of_while_much_waits_keeps_its_rows(
    kafka: KafkaBroker,
    connect_worker: ConnectWorker,
    logical_server: EmbeddedPostgres,
    target_server: EmbeddedPostgres,
    tmp_path: Path,
    spark: object,
) -> None:
    name = "untold"
    url, target = made(logical_server, name), made(target_server, name)
    for table in ("t", "quiet"):
        execute(url, f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
        execute(url, f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        execute(url, f"INSERT INTO {table} SELECT g, 0 FROM generate_series(1, 50) g")
    before = opened(tmp_path, "before", captured(url), target, name=name)
    before.setup()
    before.run(threading.Event(), until_caught_up=True)
    with DebeziumEngine(connect_worker, kafka, url, name, snapshot_mode="no_data", **schemas()) as engine:
        engine.wait_for_streaming()
        engine.wait_for(committed(url, "UPDATE t SET v = 1 WHERE id = 1"))
        after = opened(tmp_path, "after", events(kafka, name), target, name=name)
        assert before.switch(after, threading.Event()).untold == [TableName("public", "quiet")]
        with after.start(), psycopg.connect(target) as lock:
            engine.wait_for(committed(url, "UPDATE t SET v = 2 WHERE id = 1"))
            await_true(lambda: "(1,2)" in str(rows(target, "t")))
            lock.execute("SELECT FROM t WHERE id = 1 FOR UPDATE")
            # The first of these is applied, and waits; the others are read meanwhile.
            for v in range(3, 9):
                engine.wait_for(committed(url, f"UPDATE t SET v = {v} WHERE id = 1"))
                time.sleep(0.5)
            engine.wait_for(committed(url, "UPDATE quiet SET v = 1 WHERE id = 7"))
            time.sleep(7)
            lock.rollback()
            engine.wait_for(committed(url, "DELETE FROM quiet WHERE id = 8"))
            await_true(lambda: rows(target, "t", "quiet") == rows(url, "t", "quiet"), 60)

        # All events of it are changes: the rows from before the switch would be gone.
        with pytest.raises(OperatorError, match=r"^there is no row of a snapshot to copy anew: 2 tables would be"):
            after.resync()
        assert rows(target, "t", "quiet") == rows(url, "t", "quiet")


def made(server: EmbeddedPostgres, name: str) -> str:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.url(name)


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def committed(url: str, statement: str) -> int:
    """Commit a statement; returns the id of its transaction."""
    with psycopg.connect(url) as connection:
        connection.execute(statement)
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert row is not None
    return int(row[0])


def rows(url: str, *tables: str) -> list[list[tuple[str, ...]]]:
    with psycopg.connect(url) as connection:
        return [
            connection.execute(f"SELECT t::text FROM {table} t ORDER BY 1").fetchall() for table in tables or TABLES
        ]


def pgbench(server: EmbeddedPostgres, url: str, *options: str) -> subprocess.Popen[bytes]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([server.programs / "pgbench", "-n", *options, url], **quiet)


def captured(url: str) -> str:
    return f"""
connections:
  from: {{type: postgres, url: "{url}"}}
  target: {{type: postgres, url: "%s"}}
capture: {{source: trigger_queue, connection: from, tables: ["public.*"]}}"""


def events(broker: KafkaBroker, prefix: str = "switched", columns: str = "") -> str:
    return f"""
connections:
  events: {{type: kafka, settings: {{bootstrap.servers: "{broker.address}"}}}}
  target: {{type: postgres, url: "%s"}}
capture: {{source: debezium, connection: events, tables: ["public.*"], debezium: {{prefix: {prefix}{columns}}}}}"""


def opened(folder: Path, file: str, parts: str, target: str, *, name: str = "switched") -> Pipeline:
    path = folder / f"{file}.yaml"
    path.write_text(f"version: 1\nname: {name}{parts % target}\napply: {{connection: target}}\n")
    found = penstock.open(path)
    assert isinstance(found, Pipeline)
    return found
