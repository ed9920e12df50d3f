"""Tables brought up to the source one by one beside a run, and rows that were there before taken over."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

from tests.lab import Lab
from tests.program import Program

SHOP = """
CREATE TABLE customer (id int PRIMARY KEY, email text UNIQUE, name text);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL REFERENCES customer, total numeric);
CREATE TABLE visit (customer int, page text);
INSERT INTO customer SELECT n, n || '@example', 'customer ' || n FROM generate_series(1, 200) n;
INSERT INTO orders SELECT n, n % 200 + 1, n FROM generate_series(1, 500) n;
INSERT INTO visit SELECT n % 7, 'page' FROM generate_series(1, 100) n;
"""
TABLES = ("customer", "orders", "visit")


@pytest.fixture
def program(lab: Lab, tmp_path: Path) -> Program:
    return Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)


def places(lab: Lab, name: str) -> set[tuple[str, str]]:
    return set(lab.target.execute(f"SELECT ctid::text, xmin::text FROM {name}").fetchall())


def test_one_table_is_brought_while_everything_flows(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    over = threading.Event()

    def write() -> None:
        with psycopg.connect(lab.source_url, autocommit=True) as session:
            number = 1000
            while not over.wait(0.01):
                number += 1
                session.execute("INSERT INTO customer VALUES (%s, NULL, 'new')", [number])
                session.execute("UPDATE orders SET total = total + 1 WHERE id = %s", [number % 250 + 1])

    with program.start("run") as run:
        run.await_line("following")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            # Of rows that nobody writes to: what is wrong under a change is a conflict, whose place is the error queue.
            lab.target.execute("DELETE FROM orders WHERE id BETWEEN 300 AND 350; DELETE FROM visit WHERE customer = 3")
            lab.target.execute("UPDATE orders SET total = 0 WHERE id = 400; INSERT INTO orders VALUES (9999, 1, 1)")

            shown = program("resync", "public.orders", "--dry-run")
            brought = program("resync", "public.orders", "public.customer", "--json")
            again = program("verify", "--json")
        finally:
            over.set()
            writer.join()
        assert run.end() == 0, run.said

    assert shown.code == 1, shown.err
    assert "53 rows differ" in shown.out
    assert brought.code == 0, brought.err
    assert {t["table"]: t["repaired"] for t in brought.json["tables"]} == {"public.customer": 0, "public.orders": 53}
    assert {t["table"]: t["differing"] for t in again.json["tables"]} == {
        "public.customer": 0,
        "public.orders": 0,
        "public.visit": 14,
    }
    repaired = program("verify", "--repair")
    assert repaired.code == 0, repaired.err
    assert "14 rows repaired" in repaired.out
    assert program("run", "--until-caught-up").code == 0
    lab.assert_identical_text(*TABLES)
    assert program("errors", "list").out == "the error queue is empty\n"


def test_what_to_bring_must_be_said(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0

    assert program("resync").code == 2
    assert program("resync", "public.orders", "--all").code == 2
    waiting = program("resync", "public.orders")
    assert waiting.code == 3
    assert "public.orders is not copied yet" in waiting.err
    unknown = program("resync", "public.nothing")
    assert unknown.code == 3
    assert "no table of the pipeline matches 'public.nothing'" in unknown.err


def test_rows_of_a_restored_dump_are_taken_over(lab: Lab, program: Program) -> None:
    for side in (lab.source, lab.target):
        side.execute(SHOP)
    # The dump is of an earlier state, and somebody has written to what was restored from it.
    lab.source.execute("UPDATE orders SET total = total + 1 WHERE id < 10; DELETE FROM visit WHERE customer = 2")
    lab.source.execute("UPDATE customer SET email = NULL WHERE id IN (1, 2)")
    lab.source.execute("UPDATE customer SET email = 3 - id || '@example' WHERE id IN (1, 2)")
    lab.target.execute("ALTER TABLE orders ADD note text; UPDATE orders SET note = 'ours' WHERE id = 5")
    lab.target.execute("INSERT INTO orders VALUES (7777, 1, 1); UPDATE customer SET name = '?' WHERE id > 198")
    lab.source.execute("INSERT INTO customer VALUES (201, NULL, 'late'); INSERT INTO orders VALUES (501, 201, 1)")
    refused = program("setup")
    assert refused.code == 3
    assert "`penstock setup --adopt`" in refused.err
    planned = program("plan", "--adopt", "--detail")
    assert planned.code == 0, planned.err
    assert planned.out.count("adopt the rows that public.") == 3
    before = places(lab, "orders")

    assert program("setup", "--adopt").code == 0
    assert program("plan").out.count("nothing to do") == 2
    lab.source.execute("UPDATE orders SET total = 0 WHERE id = 100")
    run = program("run", "--until-caught-up")
    assert run.code == 0, run.err

    assert program("verify").code == 0
    # What was right was not written again.
    assert len(places(lab, "orders") & before) == 500 - 9 - 1
    assert lab.target.execute("SELECT id, note FROM orders WHERE note IS NOT NULL").fetchall() == [(5, "ours")]
    lab.assert_identical_text("customer", "visit")
    lab.source.execute("INSERT INTO visit VALUES (1, 'more'); UPDATE customer SET name = 'x' WHERE id = 1")
    assert program("run", "--until-caught-up").code == 0
    lab.assert_identical_text("customer", "visit")
    assert program("teardown").code == 0
    assert lab.target.execute("SELECT to_regnamespace('penstock')").fetchone() == (None,)


def test_tables_whose_ledger_is_lost_are_taken_over(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 0
    lab.target.execute("DROP SCHEMA penstock CASCADE; DELETE FROM orders WHERE id = 3")
    lab.source.execute("UPDATE orders SET total = 7 WHERE id = 8")
    full = program("setup")
    assert full.code == 3
    assert "`penstock setup --adopt`" in full.err

    assert program("setup", "--adopt").code == 0
    refused = program("run", "--until-caught-up")
    assert refused.code == 3
    assert "of which the target's ledger knows nothing" in refused.err
    forgotten = program("resync", "--all", "--yes")
    assert forgotten.code == 0, forgotten.err
    kept = program("setup", "--adopt")
    assert kept.code == 0, kept.err
    run = program("run", "--until-caught-up")

    assert run.code == 0, run.err
    assert program("verify").code == 0
    lab.assert_identical_text(*TABLES)
    assert len(program("consumers", "--json").json) == 1


PUBLISHING = """
version: 1
name: {name}
connections: {{shop: {{type: postgres, url: "${{env:SHOP_URL}}"}}}}
capture: {{source: trigger_queue, connection: shop, tables: ["public.*"]}}
publish: {{to: files, path: published, format: {form}}}
"""


def test_copies_of_published_tables_are_requested_and_cancelled(lab: Lab, program: Program) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    (program.folder / "pipeline.yaml").write_text(PUBLISHING.format(name=lab.name, form="dbwatcher"))
    unmade = program("resync", "public.t")
    assert program("setup").code == 0
    due = program("resync", "--all", "--json")
    assert program("run", "--until-caught-up").code == 0

    asked = program("resync", "public.t", "--json")
    said = program("resync", "--all", "--recreate")
    cancelled = program("resync", "--cancel", "public.t", "--json")
    idle = program("resync", "--cancel", "public.t")
    unknown = program("resync", "public.tt")

    assert (unmade.code, "there is no folder of messages" in unmade.err) == (3, True)
    assert due.json == {"requested": [], "due": ["public.t", "public.u"]}
    assert asked.json == {"requested": ["public.t"], "due": []}
    assert said.out == "2 tables requested, and made by `penstock run`: public.t, public.u\n"
    assert cancelled.json == {"withdrawn": ["public.t"], "cancelled": [], "idle": []}
    assert idle.out == "1 table without a copy that was requested or is under way: public.t\n"
    assert (unknown.code, "matches no table that the pipeline publishes" in unknown.err) == (3, True)
    assert program("status", "--json").json["to_copy"] == 1


def test_what_cannot_be_asked_of_a_pipeline_is_said(lab: Lab, program: Program) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    applies = program("resync", "public.t", "--cancel")
    (program.folder / "pipeline.yaml").write_text(PUBLISHING.format(name=lab.name, form="changes"))
    assert program("setup").code == 0

    both = program("resync", "public.t", "--cancel", "--recreate")
    dry = program("resync", "public.t", "--dry-run")
    files = program("resync", "public.t")

    assert (applies.code, both.code, dry.code, files.code) == (2, 2, 2, 3)
    assert "--cancel and --recreate are for pipelines that publish" in applies.err
    assert "change files tell of one copy of a table" in files.err
