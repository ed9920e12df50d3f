"""What a user sees of other histories and other readers, and the way out: `resync`, `consumers`, `status`."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.conftest import create_database, drop_database
from tests.lab import Lab
from tests.program import Program

SHOP = """
CREATE TABLE customer (id int PRIMARY KEY, name text);
CREATE TABLE item (customer int REFERENCES customer, no int, PRIMARY KEY (customer, no));
CREATE TABLE visit (customer int);
CREATE TABLE shared (id int PRIMARY KEY);
CREATE TABLE part (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (1000000);
INSERT INTO customer SELECT i, 'c' FROM generate_series(1, 50) i;
INSERT INTO item SELECT i, 1 FROM generate_series(1, 50) i;
INSERT INTO visit SELECT i FROM generate_series(1, 50) i;
INSERT INTO shared SELECT i FROM generate_series(1, 5) i;
INSERT INTO part SELECT i FROM generate_series(1, 200) i;
"""
TABLES = ("customer", "item", "visit", "part")

FOREIGN = """
CREATE TABLE note (customer int REFERENCES customer, text text);
INSERT INTO note VALUES (1, 'of somebody else');
CREATE TABLE child () INHERITS (visit);
INSERT INTO child VALUES (7);
INSERT INTO penstock.process (name, source) VALUES ('another', 'elsewhere');
INSERT INTO penstock.instantiation (process, schema_name, table_name, scn, snapshot, state)
  VALUES ('another', 'public', 'shared', 0, '', 'READY');
"""


@pytest.fixture
def second(lab: Lab, target_server: EmbeddedPostgres, tmp_path: Path) -> Iterator[Program]:
    """The same pipeline file, by name and source, with a target of its own."""
    name = f"{lab.name}_second"
    create_database(target_server, name)
    (tmp_path / "second").mkdir()
    yield Program(tmp_path / "second", lab.source_url, target_server.url(name), name=lab.name)
    drop_database(target_server, name)


@contextmanager
def writing(lab: Lab) -> Iterator[None]:
    """Somebody writes to the source meanwhile."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(lab.source_url, autocommit=True) as writer:
            for i in itertools.count(1000):
                if stop.is_set():
                    return
                writer.execute(
                    "WITH c AS (INSERT INTO customer VALUES (%s, 'new')) INSERT INTO visit VALUES (%s)", (i, i)
                )
                writer.execute("INSERT INTO item VALUES (%s, 1)", [i])
                writer.execute("INSERT INTO part VALUES (%s)", [i])
                writer.execute("UPDATE customer SET name = name || '.' WHERE id = %s", [i % 50 + 1])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def one(connection: psycopg.Connection, query: str) -> object:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.soak
def test_a_new_first_copy_while_the_source_is_written_to(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 0
    lab.source.execute("INSERT INTO customer SELECT i, 'x' FROM generate_series(51, 60) i")
    assert program("run", "--until-caught-up").code == 0
    lab.target.execute(FOREIGN)
    lab.source.execute(f"DROP SCHEMA {lab.set_name} CASCADE")
    assert program("setup").code == 0
    before = lab.rows("customer")

    with writing(lab):
        refused = program("run", "--until-caught-up")
        assert refused.code == 3
        assert "it was made anew" in refused.err
        assert "`penstock resync --all`" in refused.err
        assert lab.rows("customer") == before
        status = program("status", "--json").json
        assert (status["state"], status["consistent_at"]) == ("stopped", None)
        assert "it was made anew" in status["reason"]
        assert "it was made anew" in status["refused"]
        assert "cannot go on" in program("status").out
        assert "it was made anew" in program("verify").err

        assert program("resync", "--yes").code == 2
        unasked = program("resync", "--all")
        assert unasked.code == 2
        assert "say --yes" in unasked.err.lower()
        assert lab.rows("customer") == before

        done = program("resync", "--all", "--yes", "--json")
        assert done.code == 0, done.err
        assert done.json == {
            "emptied": ["public.customer", "public.item", "public.part", "public.visit"],
            "left": {"public.shared": "process 'another' copied it, too"},
            "errors": 0,
        }
        assert [one(lab.target, f"SELECT count(*) FROM ONLY {name}") for name in ("customer", "visit")] == [0, 0]
        assert one(lab.target, "SELECT count(*) FROM part") == 0
        assert lab.rows("note") == [(1, "of somebody else")]
        assert lab.rows("child") == [(7,)]
        assert len(lab.rows("shared")) == 5

        # It is this pipeline's to decide what becomes of the table that two of them copied.
        full = program("run", "--until-caught-up")
        assert full.code == 3
        assert "public.shared holds rows" in full.err
        lab.target.execute("DELETE FROM shared; DELETE FROM penstock.process WHERE name = 'another'")
        assert program("setup").code == 0
        run = program("run", "--until-caught-up", "--json")
        assert run.code == 0, run.err
    assert program("run", "--until-caught-up").code == 0

    assert program("errors", "list").out == "the error queue is empty\n"
    assert lab.rows("ONLY visit") == lab.rows("visit", side="source")
    lab.assert_identical("customer", "item", "part", "shared")
    status = program("status", "--json").json
    assert (status["refused"], status["reason"]) == (None, "it had caught up")
    assert [consumer["is_this"] for consumer in status["consumers"]] == [True]


def test_resync_is_refused_while_the_pipeline_runs(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    with program.start("run") as run:
        run.await_line("following")
        refused = program("resync", "--all", "--yes")
        assert run.end() == 0, run.said

    assert refused.code == 3
    assert "is running already" in refused.err
    lab.assert_identical(*TABLES)
    assert program("status", "--json").json["reason"] == "it was told to stop"


@pytest.mark.soak
def test_two_pipelines_of_one_name_see_everything_once(lab: Lab, program: Program, second: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 0
    assert second("setup").code == 0
    assert second("run", "--until-caught-up").code == 0
    lab.source.execute("BEGIN; UPDATE customer SET name = 'again'; INSERT INTO visit VALUES (99); COMMIT")
    assert program("run", "--until-caught-up").code == 0
    lab.source.execute("DELETE FROM item WHERE customer > 40")
    assert program("run", "--until-caught-up").code == 0

    held = program("status", "--json").json["consumers"]
    assert [(consumer["is_this"], consumer["transactions"]) for consumer in held] == [(False, 2), (True, 0)]
    assert f"{lab.name}_second" in held[0]["target"]
    assert second("run", "--until-caught-up").code == 0

    with psycopg.connect(second.environment["COPY_URL"]) as target:
        for table in TABLES:
            here = sorted(target.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
            assert here == lab.rows(table, side="source")
    lab.assert_identical(*TABLES)
    assert one(lab.source, f"SELECT count(*) FROM {lab.set_name}.log") == 0

    # The first to go leaves the set to the other one.
    torn = program("teardown")
    assert torn.code == 0, torn.err
    assert "the capture set stays, for other consumers" in torn.err
    lab.source.execute("INSERT INTO visit VALUES (100)")
    assert second("run", "--until-caught-up").code == 0
    assert second("verify").code == 0
    assert second("teardown").code == 0
    assert one(lab.source, "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'penstock%'") == 0


def test_a_pipeline_that_joins_is_about_its_own_tables(lab: Lab, program: Program, second: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 0
    file = second.folder / "pipeline.yaml"
    file.write_text(file.read_text().replace("public.*", "public.visit"))
    assert second("setup").code == 0
    assert second("run", "--until-caught-up").code == 0
    lab.source.execute("BEGIN; UPDATE customer SET name = 'x'; INSERT INTO visit VALUES (99); COMMIT")

    run = second("run", "--until-caught-up", "--json")

    assert (run.json["errors"], run.json["changes"]) == (0, 1)
    assert second("verify").code == 0
    status = second("status", "--json").json
    assert (status["copied"], status["to_copy"]) == (1, 0)
    assert program("run", "--until-caught-up").code == 0
    lab.assert_identical(*TABLES)


def test_a_consumer_that_will_not_come_back_is_removed(lab: Lab, program: Program, second: Program) -> None:
    lab.source.execute(SHOP)
    for one_of_them in (program, second):
        assert one_of_them("setup").code == 0
        assert one_of_them("run", "--until-caught-up").code == 0
    lab.source.execute("UPDATE customer SET name = 'again'")
    assert program("run", "--until-caught-up").code == 0
    assert one(lab.source, f"SELECT count(*) FROM {lab.set_name}.log") != 0
    listed = program("consumers", "--json").json
    assert [consumer["transactions"] for consumer in listed] == [1, 0]
    assert listed[0]["id"] in program("consumers").out

    ambiguous = program("consumers", "remove", lab.name)
    assert ambiguous.code == 3
    assert listed[0]["id"] in ambiguous.err
    assert program("consumers", "remove", "nobody").code == 3
    assert program("consumers", "remove", listed[0]["id"]).code == 0
    lab.source.execute("UPDATE customer SET name = 'more'")
    assert program("run", "--until-caught-up").code == 0
    assert one(lab.source, f"SELECT count(*) FROM {lab.set_name}.log") == 0

    refused = second("run", "--until-caught-up")
    assert refused.code == 3
    assert "its consumer was removed" in refused.err
    assert second("resync", "--all", "--yes").code == 0
    assert second("run", "--until-caught-up").code == 0
    assert second("verify").code == 0


def test_a_run_after_one_that_stopped_at_an_error_says_what_it_leaves_behind(lab: Lab, tmp_path: Path) -> None:
    program = Program(tmp_path, lab.source_url, lab.target_url, name=lab.name, disable_on_error="true")
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 0
    lab.target.execute("INSERT INTO shared VALUES (6)")
    lab.source.execute("INSERT INTO shared VALUES (6)")
    lab.source.execute("INSERT INTO shared VALUES (7)")

    aborted = program("run", "--until-caught-up")
    assert aborted.code == 3
    status = program("status", "--json").json
    assert status["state"] == "aborted"
    assert "disable_on_error" in status["reason"]
    behind = program("run", "--until-caught-up")

    assert behind.code == 5
    assert "goes on behind it" in behind.err
    assert len(lab.rows("shared")) == 7
    assert "goes on behind" not in program("run", "--until-caught-up").err
