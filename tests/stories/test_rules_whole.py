"""Rules in a process that runs: what is odd about tables, and what a person changes while it stands."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock import change as c
from penstock.apply.error_queue import EntryOutcome
from penstock.archive import Archive
from penstock.errors import ConfigError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.pipeline_file import parse
from penstock.sources.change_files.span import find_span, read_span
from penstock.storage import open_storage
from penstock.wiring import open_pipeline
from tests.lab import FILE, Lab


def opened(lab: Lab, rules: str, *, folder: Path = Path(), tables: Sequence[str] = ("public.*",)) -> Pipeline:
    text = FILE.format(name=lab.name, tables=list(tables), row_triggers=[]) + rules
    environment = {"SHOP_URL": lab.source_url, "COPY_URL": lab.target_url}
    pipeline = open_pipeline(parse(text, name=str(folder / "pipeline.yaml"), environment=environment))
    assert isinstance(pipeline, Pipeline)
    return pipeline


def catch_up(pipeline: Pipeline | Publication) -> None:
    pipeline.run(threading.Event(), until_caught_up=True)


def rows(lab: Lab, query: str) -> list[tuple[object, ...]]:
    return lab.target.execute(query).fetchall()


@pytest.fixture
def one(lab: Lab, spark: object) -> Lab:
    lab.source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int, name text);"
        "INSERT INTO t SELECT n, n % 5, 'row ' || n FROM generate_series(1, 50) n"
    )
    return lab


def test_changes_of_partitions_go_to_the_one_table_that_their_root_becomes(lab: Lab, spark: object) -> None:
    lab.source.execute(
        "CREATE TABLE p (id int, at date, v int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');"
        "INSERT INTO p VALUES (1, '2024-01-05', 1), (2, '2024-02-05', 2)"
    )
    pipeline = opened(lab, 'rules: {tables: {public.p: {to: far.whole, rename: {v: amount}, rows: "v > 0"}}}')
    pipeline.setup()
    catch_up(pipeline)
    lab.source.execute("UPDATE p SET at = '2024-02-09', v = 7 WHERE id = 1")
    lab.source.execute(
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM ('2024-03-01') TO ('2024-04-01');"
        "INSERT INTO p VALUES (3, '2024-03-05', 3), (4, '2024-03-05', 0)"
    )
    pipeline.setup()
    lab.source.execute("INSERT INTO p VALUES (5, '2024-03-06', 5)")
    catch_up(pipeline)

    assert rows(lab, "SELECT id, at::text, amount FROM far.whole ORDER BY id") == [
        (1, "2024-02-09", 7),
        (2, "2024-02-05", 2),
        (3, "2024-03-05", 3),
        (5, "2024-03-06", 5),
    ]
    assert lab.errors() == []
    assert pipeline.verify().is_identical

    lab.source.execute("TRUNCATE p3")
    lab.source.execute("DROP TABLE p2")
    catch_up(pipeline)
    assert [error.error_message.partition(": ")[2] for error in lab.errors()] == [
        "partition public.p3 was truncated (table far.whole)",
        "partition public.p2 was dropped (table far.whole)",
    ]
    assert rows(lab, "SELECT count(*) FROM far.whole") == [(4,)]
    assert pipeline.verify(repair=True).is_identical


def test_no_table_gets_the_name_of_a_partition(lab: Lab, spark: object) -> None:
    lab.source.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (10);"
        "CREATE SCHEMA other; CREATE TABLE other.t (id int PRIMARY KEY)"
    )
    pipeline = opened(lab, "rules: {tables: {other.t: {to: public.p1}}}", tables=["public.*", "other.t"])

    with pytest.raises(ConfigError, match=r"other\.t and public\.p1 would both be public\.p1"):
        pipeline.setup()


def test_a_table_that_loses_its_key_is_copied_applied_and_compared(one: Lab) -> None:
    lab = one
    pipeline = opened(lab, "rules: {tables: {public.t: {drop: [id]}}}")
    assert any("leaves out 'id' of the primary key" in note for note in pipeline.plan().source.notes)
    pipeline.setup()
    catch_up(pipeline)
    lab.source.execute(
        "UPDATE t SET v = 100 WHERE id = 3; DELETE FROM t WHERE id = 4; INSERT INTO t VALUES (99, 1, 'x')"
    )
    catch_up(pipeline)

    assert sorted(rows(lab, "TABLE t")) == sorted(lab.source.execute("SELECT v, name FROM t").fetchall())
    assert pipeline.verify().is_identical
    lab.target.execute("DELETE FROM t WHERE v = 100")
    assert not pipeline.verify().is_identical
    lab.target.execute("INSERT INTO t SELECT * FROM t WHERE v = 1; UPDATE t SET name = NULL WHERE v = 2")
    repaired = pipeline.verify(repair=True)
    assert repaired.is_identical
    assert repaired.tables[0].repaired > 20
    assert sorted(rows(lab, "TABLE t")) == sorted(lab.source.execute("SELECT v, name FROM t").fetchall())


def test_rows_that_are_there_already_are_taken_over(one: Lab) -> None:
    lab = one
    lab.target.execute(
        "CREATE SCHEMA far; CREATE TABLE far.t (id int PRIMARY KEY, amount int, name text, own text DEFAULT 'kept');"
        "INSERT INTO far.t SELECT n, n % 5, 'row ' || n FROM generate_series(1, 40) n; UPDATE far.t SET amount = 9"
        " WHERE id = 7"
    )
    pipeline = opened(lab, 'rules: {tables: {public.t: {to: far.t, rename: {v: amount}, rows: "id <> 8"}}}')
    assert not pipeline.plan().is_possible
    pipeline.setup(adopt=True)
    catch_up(pipeline)

    wanted = lab.source.execute("SELECT id, v, name, 'kept' FROM t WHERE id <> 8 ORDER BY id").fetchall()
    assert rows(lab, "SELECT * FROM far.t ORDER BY id") == wanted
    assert pipeline.verify().is_identical


def test_rules_may_change_between_runs_and_a_repair_brings_what_they_say_now(one: Lab) -> None:
    lab = one
    first = opened(lab, 'rules: {tables: {public.t: {to: far.t, rows: "v < 3"}}}')
    first.setup()
    catch_up(first)
    lab.target.execute("ALTER TABLE far.t ADD CHECK (v <> 1 OR id < 60)")
    lab.source.execute("INSERT INTO t VALUES (60, 1, 'waits')")
    catch_up(first)
    (waiting,) = first.errors().entries()

    lab.target.execute("ALTER TABLE far.t DROP CONSTRAINT t_check; ALTER TABLE far.t ADD double int")
    second = opened(lab, 'rules: {tables: {public.t: {to: far.t, rows: "v < 4", add: {double: "2 * v"}}}}')
    second.setup()
    lab.source.execute("UPDATE t SET v = 0 WHERE id = 1")
    assert [one.outcome for one in second.retry([waiting.id])] == [EntryOutcome.APPLIED]
    assert not second.verify().is_identical
    catch_up(second)
    assert second.verify(repair=True).is_identical

    wanted = lab.source.execute("SELECT id, v, name, 2 * v FROM t WHERE v < 4 ORDER BY id").fetchall()
    assert rows(lab, "SELECT id, v, name, double FROM far.t ORDER BY id") == wanted


def test_a_column_that_a_rule_needs_and_the_source_drops_ends_the_run_with_its_line(one: Lab) -> None:
    lab = one
    pipeline = opened(lab, 'rules:\n  tables:\n    public.t:\n      rows: "v < 3"\n')
    pipeline.setup()
    catch_up(pipeline)
    lab.source.execute("UPDATE t SET v = 1 WHERE id = 2")
    lab.source.execute("ALTER TABLE t DROP COLUMN v; INSERT INTO t VALUES (70, 'x')")

    with pytest.raises(ConfigError, match=r"pipeline.yaml:\d+: rules.tables.public.t.rows: .*'v'"):
        catch_up(pipeline)
    assert pipeline.errors().entries() == []


def test_foreign_keys_follow_their_tables_and_others_stay_as_they_are(lab: Lab, spark: object) -> None:
    lab.source.execute(
        "CREATE TABLE parent (id int PRIMARY KEY, v int);"
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent, n int);"
        "CREATE UNIQUE INDEX by_n ON child (n) WHERE n > 5;"
        "CREATE TABLE audit_child (id int PRIMARY KEY, parent int REFERENCES parent);"
        "INSERT INTO parent VALUES (1, 1); INSERT INTO child VALUES (1, 1)"
    )
    pipeline = opened(
        lab, 'rules: {exclude: ["public.audit_*"], tables: {public.parent: {to: far.parent, rename: {id: number}}}}'
    )
    pipeline.setup()
    catch_up(pipeline)

    assert rows(
        lab,
        "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'f'"
        " AND connamespace = 'public'::regnamespace",
    ) == [("child", "FOREIGN KEY (parent) REFERENCES far.parent(number)")]
    # Which a definition alone does not say.
    assert rows(lab, "SELECT to_regclass('by_n')::text") == [("by_n",)]
    assert rows(lab, "SELECT to_regclass('audit_child')") == [(None,)]
    assert pipeline.verify().is_identical


def test_what_is_published_has_gone_through_the_rules(one: Lab, tmp_path: Path) -> None:
    lab = one
    text = FILE.format(name=lab.name, tables=["public.*"], row_triggers=[])
    text = text[: text.index("apply:")] + (
        f"publish: {{to: files, path: {tmp_path / 'archive'}, format: changes}}\n"
        'rules: {tables: {public.t: {to: far.t, rename: {v: amount}, drop: [name], rows: "v < 1"}}}\n'
    )
    environment = {"SHOP_URL": lab.source_url, "COPY_URL": lab.target_url}
    pipeline = open_pipeline(parse(text, name="pipeline.yaml", environment=environment))
    assert isinstance(pipeline, Publication)
    pipeline.setup()
    catch_up(pipeline)
    lab.source.execute("UPDATE t SET v = v - 1 WHERE id IN (5, 6, 7)")
    lab.source.execute("UPDATE t SET name = 'unseen'")
    catch_up(pipeline)

    archive = Archive(open_storage(str(tmp_path / "archive")))
    changes = [
        (change[c.OP], json.loads(change[c.AFTER]) if change[c.AFTER] else None)
        for batch in read_span(archive, find_span(archive, None, None))
        for change in batch.to_pylist()
    ]
    copied, later = changes[:10], changes[10:]
    assert copied == [("snapshot", {"id": str(n), "amount": "0"}) for n in range(5, 51, 5)]
    assert sorted(later, key=repr) == [
        ("insert", {"id": "6", "amount": "0"}),
        ("update", {"amount": "-1"}),
    ]


def test_of_a_table_that_is_left_out_an_archive_says_nothing(one: Lab, tmp_path: Path) -> None:
    lab = one
    lab.source.execute("CREATE TABLE audit (id int PRIMARY KEY)")
    text = FILE.format(name=lab.name, tables=["public.*"], row_triggers=[])
    text = text[: text.index("apply:")] + f"publish: {{to: files, path: {tmp_path / 'archive'}}}\n"
    environment = {"SHOP_URL": lab.source_url, "COPY_URL": lab.target_url}
    # It was captured before it was left out.
    open_pipeline(parse(text, name="pipeline.yaml", environment=environment)).setup()
    text += 'rules: {exclude: ["*.audit"]}\n'
    pipeline = open_pipeline(parse(text, name="pipeline.yaml", environment=environment))
    assert isinstance(pipeline, Publication)
    catch_up(pipeline)
    lab.source.execute("INSERT INTO audit VALUES (1); UPDATE t SET v = 9 WHERE id = 1")
    catch_up(pipeline)

    archive = Archive(open_storage(str(tmp_path / "archive")))
    assert {str(one.table) for one in archive.newest_definitions().tables} == {"public.t"}
    names = [batch[c.TABLE_NAME].to_pylist() for batch in read_span(archive, find_span(archive, None, None))]
    assert {name for batch in names for name in batch} == {"t"}


def test_what_was_published_through_rules_is_restored_through_others(one: Lab, tmp_path: Path) -> None:
    lab = one
    lab.source.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (10); CREATE UNIQUE INDEX ON p1 (v);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20); INSERT INTO p VALUES (1, 1), (11, 1)"
    )
    text = FILE.format(name=lab.name, tables=["public.*"], row_triggers=[])
    head = text[: text.index("apply:")]
    environment = {"SHOP_URL": lab.source_url, "COPY_URL": lab.target_url}
    written = head + (
        f"publish: {{to: files, path: {tmp_path / 'archive'}}}\n"
        'rules: {tables: {public.*: {to: far.*}, public.t: {rename: {v: amount}, rows: "v < 3"}}}\n'
    )
    read = (
        f"version: 1\nname: {lab.name}\nconnections: {{copy: {{type: postgres, url: '${{env:COPY_URL}}'}}}}\n"
        f"capture: {{source: change_files, path: {tmp_path / 'archive'}, tables: ['far.*']}}\n"
        "apply: {connection: copy}\n"
        'rules: {tables: {far.*: {to: "back.*"}, far.t: {rename: {amount: w}, rows: "amount > 0", drop: [name]}}}\n'
    )
    publishing = open_pipeline(parse(written, name="pipeline.yaml", environment=environment))
    assert isinstance(publishing, Publication)
    publishing.setup()
    catch_up(publishing)
    lab.source.execute("UPDATE t SET v = v - 1")
    lab.source.execute("UPDATE p SET v = 2; TRUNCATE p1")
    catch_up(publishing)
    restoring = open_pipeline(parse(read, name="pipeline.yaml", environment=environment))
    assert isinstance(restoring, Pipeline)
    restoring.setup()
    catch_up(restoring)

    wanted = lab.source.execute("SELECT id, v FROM t WHERE v BETWEEN 1 AND 2 ORDER BY id").fetchall()
    assert rows(lab, "SELECT id, w FROM back.t ORDER BY id") == wanted
    # The transaction is in the queue whole, for the partition's TRUNCATE, and nothing else was emptied.
    assert rows(lab, "SELECT id, v FROM back.p ORDER BY id") == [(1, 1), (11, 1)]
    assert [error.error_message for error in lab.errors()] == [
        "a change was not captured: partition public.p1 was truncated (table back.p)"
    ]


@pytest.mark.rule("A-16", "A-36")
def test_s86_an_empty_list_takes_nothing_and_positions_move_all_the_same(lab: Lab, spark: object) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    # Without rules everything is processed.
    everything = opened(lab, "")
    everything.setup()
    catch_up(everything)
    lab.source.execute("INSERT INTO t VALUES (1)")
    catch_up(everything)
    lab.assert_identical("t")
    before = lab.ledger.state()
    lab.source.execute("INSERT INTO t VALUES (2)")
    lab.source.execute("INSERT INTO t VALUES (3); UPDATE t SET id = 4 WHERE id = 3")

    catch_up(opened(lab, "rules: {include: []}"))

    after = lab.ledger.state()
    assert before is not None
    assert after is not None
    assert after.low_watermark == after.high_watermark >= before.low_watermark + 2
    assert lab.rows("t") == [(1,)]
    assert lab.errors() == []


def test_a_row_that_an_expression_has_no_value_for_waits_alone_and_is_compared_as_one_that_differs(one: Lab) -> None:
    lab = one
    rule = """rules: {tables: {public.t: {rows: "v >= 0", add: {n: "CAST(coalesce(name, '1') AS INTEGER)"}}}}"""
    lab.source.execute("UPDATE t SET name = id")
    pipeline = opened(lab, rule)
    pipeline.setup()
    catch_up(pipeline)
    assert pipeline.verify().is_identical

    lab.source.execute("UPDATE t SET name = 's3cret' WHERE id = 7")
    lab.source.execute("INSERT INTO t VALUES (60, 1, 'none'), (61, 1, '61')")
    lab.source.execute("UPDATE t SET v = 9 WHERE id = 8")
    lab.source.execute(r"INSERT INTO t VALUES (62, 1, '62')")
    progress = pipeline.run(threading.Event(), until_caught_up=True)

    assert (progress.errors, progress.in_queue) == (2, 2)
    assert rows(lab, "SELECT id, v, n FROM t WHERE id > 58 OR id = 8 ORDER BY id") == [(8, 9, 8), (62, 1, 62)]
    for error in lab.errors():
        assert "has no value for a row: conversion error" in error.error_message
        assert "s3cret" not in error.error_message
        assert (error.error_type, error.op) == ("value", "gap")
    found = pipeline.verify()
    assert not found.is_identical
    keys = {(one.kind, one.key["id"]) for one in found.tables[0].differences}
    assert keys == {("different", "7"), ("missing", "60"), ("missing", "61")}

    lab.source.execute("UPDATE t SET name = '7' WHERE id IN (7, 60)")
    catch_up(pipeline)
    assert pipeline.verify(repair=True).is_identical


def test_a_decimal_of_no_digit_before_the_point_is_identical_through_a_rule(lab: Lab, spark: object) -> None:
    lab.source.execute(
        "CREATE TABLE d (id int PRIMARY KEY, r numeric(4,4)); INSERT INTO d VALUES (1, 0.0725), (2, -0.5), (3, NULL)"
    )
    pipeline = opened(lab, 'rules: {tables: {public.d: {add: {x: "r", t: "CAST(r AS VARCHAR)", y: "-r"}}}}')
    pipeline.setup()
    catch_up(pipeline)
    lab.source.execute("UPDATE d SET r = 0.1 WHERE id = 1; INSERT INTO d VALUES (4, 0)")
    catch_up(pipeline)

    assert pipeline.verify().is_identical
    assert rows(lab, "SELECT x::text, t FROM d ORDER BY id") == [
        ("0.1000", "0.1000"),
        ("-0.5000", "-0.5000"),
        (None, None),
        ("0.0000", "0.0000"),
    ]
