"""Publishing to change files: what a user sets up, sees and reads, and what any reader finds whatever happens."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.apply.progress import Progress
from penstock.archive import Archive
from penstock.cli.status import show
from penstock.dialects.postgres.source.connector import PostgresSourceConnector
from penstock.errors import OperatorError
from penstock.formats.change_file import Encoding
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.plan import Plan
from penstock.pipeline.publication import Publication
from penstock.pipeline.report import Report
from penstock.pipeline_file import parse
from penstock.sinks.archive.sink import ArchiveSink
from penstock.spark.starting import Spark
from penstock.storage import open_storage
from tests.lab import Lab
from tests.program import Program, await_true

FILE = """
version: 1
name: {name}
connections:
  shop: {{type: postgres, url: "${{env:SHOP_URL}}"}}
capture: {{source: trigger_queue, connection: shop, tables: ["public.*"]}}
publish: {{to: files, path: archive, format: {format}}}
"""

TABLES = """
CREATE TABLE customer (id int PRIMARY KEY, name text, balance numeric(12,2) NOT NULL DEFAULT 0);
CREATE TABLE note (body text);
INSERT INTO customer SELECT n, 'customer "' || n || E'"\\n', n / 7.0 FROM generate_series(1, 500) n;
INSERT INTO note VALUES ('one'), (NULL), ('one');
"""


class Publisher(Program):
    def __init__(self, folder: Path, lab: Lab, format_: str) -> None:
        super().__init__(folder, lab.source_url, lab.target_url, name=lab.name)
        (folder / "pipeline.yaml").write_text(FILE.format(name=lab.name, format=format_))

    @property
    def archive(self) -> Archive:
        return Archive(open_storage(str(self.folder / "archive")))

    def changes(self, *options: str) -> list[dict[str, Any]]:
        """What `penstock changes` prints."""
        done = self("changes", "archive", "--json", *options)
        assert done.code == 0, done.err
        return [json.loads(line) for line in done.out.splitlines()]


@pytest.fixture(params=["changes", "parquet"])
def publisher(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Publisher:
    return Publisher(tmp_path, lab, request.param)


@pytest.fixture
def lines(lab: Lab, tmp_path: Path) -> Publisher:
    return Publisher(tmp_path, lab, "changes")


@pytest.fixture
def shared(lab: Lab, tmp_path: Path, spark: SparkSession) -> Publication:
    """The pipeline of `lines` in this process, on the Spark that tests share."""
    return publication(lab, tmp_path, spark)


def test_a_table_is_published_from_its_first_row_to_its_last_change(publisher: Publisher, lab: Lab) -> None:
    lab.source.execute(TABLES)

    planned = publisher("plan")
    assert planned.code == 0, planned.err
    assert "an archive of change files" in planned.out
    assert publisher("setup").code == 0
    lab.source.execute("UPDATE customer SET balance = -1.50 WHERE id = 7")
    first = publisher("run", "--until-caught-up")
    assert first.code == 0, first.err
    with lab.source.transaction():
        lab.source.execute("UPDATE customer SET name = NULL, id = 1000 WHERE id = 1")
        lab.source.execute("DELETE FROM customer WHERE id = 2")
        lab.source.execute(f"SELECT {lab.set_name}.emit_message('note', 'left out')")
        lab.source.execute("INSERT INTO note VALUES ('two')")
    lab.source.execute(f"SELECT {lab.set_name}.emit_message('note', 'left out, too')")
    lab.source.execute("TRUNCATE note")
    second = publisher("run", "--until-caught-up")

    assert second.code == 0, second.err
    found = publisher.changes()
    rows = [change for change in found if change["op"] == "snapshot"]
    assert len(rows) == 503
    assert {"id": "7", "name": 'customer "7"\n', "balance": "-1.50"} in [change["after"] for change in rows]
    assert [change["after"] for change in rows if change["table_name"] == "note"].count({"body": None}) == 1
    later = [change for change in found if change["commit_scn"] > rows[0]["commit_scn"]]
    assert [(c["op"], c["table_name"], c.get("after")) for c in later] == [
        ("update", "customer", {"id": "1000", "name": None}),
        ("delete", "customer", None),
        ("insert", "note", {"body": "two"}),
        ("truncate", "note", None),
    ]
    assert later[0]["before"] == {"id": "1", "name": 'customer "1"\n', "balance": "0.14"}
    assert len({change["txn_id"] for change in later}) == 2
    state = publisher("status", "--json").json
    assert (state["state"], state["to_copy"], state["backlog_changes"]) == ("stopped", 0, 0)
    assert (state["transactions"], state["reason"]) == (3, None)
    assert state["publishes_to"] == str(publisher.folder / "archive")
    assert "published         3 transactions, 5 row changes" in publisher("status").out
    assert [consumer["is_this"] for consumer in state["consumers"]] == [True]


@pytest.mark.parametrize("format_", ["changes", "parquet"])
def test_the_files_are_what_any_tool_reads(format_: str, lab: Lab, tmp_path: Path, spark: SparkSession) -> None:
    lab.source.execute(TABLES)
    pipeline = publication(lab, tmp_path, spark, format=format_)
    pipeline.setup()
    catch_up(pipeline)

    folder = tmp_path / "archive" / "copies"
    count = 0
    for file in folder.iterdir():
        if file.suffix == ".gz":
            count += len(gzip.decompress(file.read_bytes()).splitlines())
        else:
            count += pq.read_metadata(file).num_rows
    assert count == 503


def test_what_was_published_is_freed_at_the_source(lines: Publisher, shared: Publication, lab: Lab) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    lines("setup")
    catch_up(shared)
    lab.source.execute("INSERT INTO item SELECT generate_series(1, 100)")

    with lines.start("run") as run:
        await_true(lambda: len(lines.changes()) == 100)
        await_true(lambda: lab.source.execute(f"SELECT FROM {lab.set_name}.log").rowcount == 0)
        second = lines("run")
        assert run.end() == 0, run.said

    assert second.code == 3
    assert "is running already" in second.err


def test_a_table_that_setup_adds_is_copied_too_and_one_that_is_altered_has_its_versions(
    lines: Publisher, shared: Publication, lab: Lab
) -> None:
    lab.source.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    lines("setup")
    catch_up(shared)
    lab.source.execute("CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (2)")
    lab.source.execute("ALTER TABLE a ADD COLUMN more text")
    lab.source.execute("INSERT INTO a VALUES (3, 'm')")

    assert lines("setup").code == 0
    catch_up(shared)

    found = lines.changes()
    assert {(c["op"], c["table_name"], tuple(c["after"].values())) for c in found} == {
        ("snapshot", "a", ("1",)),
        ("insert", "a", ("3", "m")),
        ("snapshot", "b", ("2",)),
    }
    assert len({(c["table_name"], c["table_version"]) for c in found}) == 3
    definitions = lines.archive.newest_definitions()
    assert {(c["table_name"], c["table_version"]) for c in found} <= {
        (t.table.name, t.version) for t in definitions.tables
    }
    assert {name.name for name in definitions.copied} == {"a", "b"}


@pytest.mark.soak
def test_nothing_is_lost_or_doubled_when_runs_are_killed(lines: Publisher, lab: Lab) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY, at int NOT NULL)")
    lab.source.execute("INSERT INTO item SELECT n, 0 FROM generate_series(1, 2000) n")
    lines("setup")
    chance = random.Random(7)

    for number in range(1, 5):
        with lines.start("run") as run:
            if number > 1:
                # The first one may die in the first copy, or before it.
                run.await_line("following")
            until = time.monotonic() + chance.uniform(1, 6)
            while time.monotonic() < until:
                with lab.source.transaction():
                    lab.source.execute("UPDATE item SET at = %s WHERE id %% 500 = 0", [number])
                    lab.source.execute("INSERT INTO item SELECT max(id) + 1, %s FROM item", [number])
            run.end(signal.SIGKILL)
    assert lines("run", "--until-caught-up").code == 0

    (at,) = lines.archive.newest_definitions().copied.values()
    changes = [change for change in lines.changes() if change["op"] != "snapshot"]
    later = [change for change in changes if change["commit_scn"] > at]
    # The copy does not hold it all: runs were killed while they published.
    assert len(later) > 100
    assert len({(c["commit_scn"], c["change_seq"]) for c in changes}) == len(changes)
    inserted = [c["after"]["id"] for c in later if c["op"] == "insert"]
    assert len(set(inserted)) == len(inserted)
    for _, group in by_transaction(changes):
        assert len(group) == group[0]["txn_changes"]
    rows = lab.source.execute("SELECT id::text, at::text FROM item").fetchall()
    assert current_rows(lines)["item"] == {id_: {"id": id_, "at": at_} for id_, at_ in rows}


def by_transaction(changes: list[dict[str, Any]]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for change in changes:
        found.setdefault((change["commit_scn"], change["txn_id"]), []).append(change)
    # The rows of a copy come before the changes that follow it.
    for (scn, _), group in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] != "snapshot")):
        yield scn, group


def test_setup_and_run_refuse_what_is_in_the_way(lines: Publisher, lab: Lab) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    assert lines("setup").code == 0
    (lines.folder / "pipeline.yaml").write_text(FILE.format(name=lab.name, format="parquet"))

    other_format = lines("setup")
    verify = lines("verify")
    errors = lines("errors", "list")
    adopted = lines("plan", "--adopt")

    assert other_format.code == 3
    assert "of format 'changes', not 'parquet'" in other_format.err
    assert (verify.code, errors.code, adopted.code) == (3, 3, 3)
    assert "publishes, and has no target database" in verify.err


def test_run_says_when_there_is_no_archive(lines: Publisher, lab: Lab) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    lines("setup")
    (lines.folder / "archive" / "archive.json").unlink()

    run = lines("run", "--until-caught-up")

    assert run.code == 3
    assert "there is no archive" in run.err
    assert "penstock setup" in run.err


def test_teardown_removes_the_capture_and_keeps_the_archive(lines: Publisher, shared: Publication, lab: Lab) -> None:
    lab.source.execute(TABLES)
    lines("setup")
    catch_up(shared)

    assert lines("teardown").code == 0

    assert lab.source.execute("SELECT FROM pg_namespace WHERE nspname = %s", [lab.set_name]).rowcount == 0
    assert len(lines.changes()) == 503


def test_an_altered_record_stops_the_next_run(lines: Publisher, shared: Publication, lab: Lab) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    lines("setup")
    catch_up(shared)
    last = sorted((lines.folder / "archive" / "log").iterdir())[-1]
    last.chmod(0o600)
    last.write_bytes(last.read_bytes().replace(b'"epoch":1', b'"epoch":2'))

    run = lines("run", "--until-caught-up")

    assert run.code == 3
    assert "record was cut short or altered" in run.err
    assert last.name in run.err


ODD_TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'it''s ok');
CREATE DOMAIN year AS int CHECK (value > 1900);
CREATE TABLE "Odd 'Names" (
  "Id" bigint GENERATED ALWAYS AS IDENTITY, "Mood" mood, made year, doc jsonb, tags text[], raw bytea, at timestamptz,
  n numeric, twice numeric GENERATED ALWAYS AS (n * 2) STORED, f float8, PRIMARY KEY ("Id"));
INSERT INTO "Odd 'Names" ("Mood", made, doc, tags, raw, at, n, f)
  VALUES ('it''s ok', 2024, '{"a": "\\u00e9"}', '{"a,b",NULL}', '\\x00ff', '2024-01-02 03:04:05.6+02', 1.50, 'NaN');
CREATE TABLE nothing ();
INSERT INTO nothing DEFAULT VALUES;
INSERT INTO nothing DEFAULT VALUES;
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
INSERT INTO parted VALUES (1);
"""


def test_a_copy_writes_odd_tables_as_their_changes_are_written(lines: Publisher, shared: Publication, lab: Lab) -> None:
    lab.source.execute(ODD_TABLES)
    lines("setup")
    catch_up(shared)
    lab.source.execute("""
        INSERT INTO "Odd 'Names" ("Mood", made, doc, tags, raw, at, n, f)
          SELECT "Mood", made, doc, tags, raw, at, n, f FROM "Odd 'Names";
        INSERT INTO nothing DEFAULT VALUES;
        INSERT INTO parted VALUES (2);
    """)
    catch_up(shared)

    found: dict[str, list[dict[str, Any]]] = {}
    for change in lines.changes():
        found.setdefault(change["table_name"], []).append(change)
    copied, inserted = found["Odd 'Names"]
    assert (copied["op"], inserted["op"]) == ("snapshot", "insert")
    assert copied["after"] | {"Id": "2"} == inserted["after"]
    assert (copied["key"], inserted["key"]) == ({"Id": "1"}, {"Id": "2"})
    assert [change["after"] for change in found["nothing"]] == [{}, {}, {}]
    assert [change["after"] for change in found["parted"]] == [{"id": "1"}, {"id": "2"}]


def test_changes_that_trickle_in_gather_in_few_files(
    lines: Publisher, lab: Lab, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    pipeline = publication(lab, tmp_path, spark, max_age_s=2)
    pipeline.setup()
    caplog.set_level(logging.INFO, "penstock")

    with pipeline.start(Report(publishes=True)):
        await_true(lambda: "following" in caplog.text)
        before = lines.archive.count_records()
        for number in range(40):
            lab.source.execute("INSERT INTO item VALUES (%s)", [number])
            time.sleep(0.1)
        await_true(lambda: len(lines.changes()) == 40)

    assert lines.archive.count_records() - before <= 5


def publication(
    lab: Lab, folder: Path, spark: SparkSession | None = None, *, name: str | None = None, **publish: object
) -> Publication:
    """The same pipeline in this process, on the Spark that tests share."""
    text = FILE.format(name=name or lab.name, format="changes").rpartition("publish:")[0]
    text += f"publish: {json.dumps({'to': 'files', 'path': 'archive', **publish})}\n"
    config = parse(text, name="pipeline.yaml", environment={"SHOP_URL": lab.source_url}, folder=folder)
    assert config.publish is not None

    source = PostgresSourceConnector(lab.source_url, config.name)
    assert config.publish.path is not None
    place = ArchiveSink(
        config.name,
        open_storage(config.publish.path),
        Encoding(config.publish.form),
        max_age_s=config.publish.max_age_s,
    )
    # Nobody asks for it where there is none.
    return Publication(config, source, place, Spark.of(cast("SparkSession", spark)))


def catch_up(pipeline: Publication) -> Progress:
    return pipeline.run(threading.Event(), until_caught_up=True)


def faults(plan: Plan) -> str:
    return "; ".join(map(str, (*plan.source.faults, *plan.target.faults)))


def refused_everywhere(pipeline: Publication) -> str:
    """What plan, setup and status say, which is the same; run refuses, too."""
    said = faults(pipeline.plan())
    with pytest.raises(OperatorError) as refused:
        pipeline.setup()
    assert str(refused.value) == pipeline.status().refused == said
    with pytest.raises(OperatorError) as refused:
        catch_up(pipeline)
    assert str(refused.value) == said or refused.value.what == "there is no capture set"
    assert "resync" not in said
    assert "target" not in said
    return said


def test_an_archive_that_cannot_go_on_is_refused_by_every_command(
    lab: Lab, tmp_path: Path, spark: SparkSession
) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    pipeline = publication(lab, tmp_path, spark)
    pipeline.setup()
    catch_up(pipeline)

    renamed = publication(lab, tmp_path, spark, name=f"{lab.name}_new")
    assert f"was filled by pipeline '{lab.name}'" in refused_everywhere(renamed)
    assert lab.source.execute("SELECT FROM pg_namespace WHERE nspname = %s", [f"{lab.set_name}_new"]).rowcount == 0

    lab.source.execute(f"DROP SCHEMA {lab.set_name} CASCADE")
    assert "a capture set that is not in this database" in refused_everywhere(pipeline)

    publication(lab, tmp_path, path="elsewhere").setup()
    said = refused_everywhere(pipeline)
    assert "the archive was filled from: it was made anew, or the pipeline was renamed" in said
    assert "with another publish.path" in said

    pipeline.teardown()
    elsewhere = publication(lab, tmp_path, spark, path="elsewhere")
    elsewhere.setup()
    assert catch_up(elsewhere).errors == 0
    assert elsewhere.status().refused is None


def test_teardown_refuses_to_lose_what_was_not_published(lab: Lab, tmp_path: Path, spark: SparkSession) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    pipeline = publication(lab, tmp_path, spark)
    pipeline.setup()
    lab.source.execute("INSERT INTO item VALUES (1)")
    # What is not copied yet is at the source all the same.
    assert not pipeline.removal().losses
    catch_up(pipeline)
    assert not pipeline.removal().losses
    lab.source.execute("INSERT INTO item VALUES (2)")

    with pytest.raises(OperatorError, match="1 transaction at the source was not published and is lost"):
        pipeline.teardown()
    assert lab.source.execute("SELECT FROM pg_namespace WHERE nspname = %s", [lab.set_name]).rowcount == 1
    pipeline.teardown(lose=True)
    assert lab.source.execute("SELECT FROM pg_namespace WHERE nspname = %s", [lab.set_name]).rowcount == 0


def test_an_archive_that_was_lost_is_missed_by_setup(lab: Lab, tmp_path: Path, spark: SparkSession) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    pipeline = publication(lab, tmp_path, spark)
    pipeline.setup()
    catch_up(pipeline)
    shutil.rmtree(tmp_path / "archive")

    assert "the archive that pipeline" in faults(pipeline.plan())
    with pytest.raises(OperatorError, match="not there any more"):
        pipeline.setup()
    pipeline.teardown()
    pipeline.setup()
    catch_up(pipeline)


def test_plan_finds_a_path_that_cannot_be_written_to(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    for path in ("/proc/nope/archive", "/sys/archive"):
        plan = publication(lab, tmp_path, path=path).plan()
        assert not plan.is_possible
        assert path in faults(plan)
        with pytest.raises(OperatorError, match=path):
            publication(lab, tmp_path, path=path).setup()
    pipeline = publication(lab, tmp_path)
    pipeline.setup()
    assert pipeline.plan().is_done

    def refuse(_: Path) -> None:
        raise PermissionError(errno.EACCES, "no")

    # An archive that is there, in a folder that may only be read.
    monkeypatch.setattr("penstock.storage._try_to_write", refuse)
    assert "cannot write a file: no right to" in faults(pipeline.plan())
    assert lab.source.execute("SELECT FROM pg_namespace WHERE nspname = %s", [lab.set_name]).rowcount == 1


def test_what_only_a_pipeline_with_a_target_can_do_is_refused_clearly(lab: Lab, tmp_path: Path) -> None:
    pipeline = publication(lab, tmp_path)
    public = [name for name in vars(Pipeline) if not name.startswith("_")]
    lacking = [name for name in public if not hasattr(pipeline, name)]
    assert lacking == []
    for name in (
        *("verify", "resync", "resync_plan", "switch", "cutover"),
        *("parameters", "parameters_set", "set_parameter", "stop_run", "conflicts", "detail"),
    ):
        with pytest.raises(OperatorError, match=f"pipeline '{lab.name}' publishes, and has no") as refused:
            getattr(pipeline, name)()
        assert refused.value.do


def test_status_counts_what_stays_after_teardown(
    lab: Lab, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    pipeline = publication(lab, tmp_path, spark)
    show(pipeline.status())
    assert f"published to      {tmp_path}/archive, nothing yet" in capsys.readouterr().out
    pipeline.setup()
    catch_up(pipeline)
    lab.source.execute("INSERT INTO item VALUES (1)")
    catch_up(pipeline)
    before = pipeline.status()

    pipeline.teardown()

    after = pipeline.status()
    assert (after.state, after.transactions, after.changes, after.copied) == ("not set up", 1, 1, 1)
    assert after.low_watermark == before.low_watermark
    show(after)
    assert "published         1 transaction, 1 row change\n" in capsys.readouterr().out


def test_the_log_speaks_of_no_target_and_of_no_rest_while_changes_gather(
    lab: Lab, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    pipeline = publication(lab, tmp_path, spark, max_age_s=3)
    pipeline.setup()
    caplog.set_level(logging.INFO, "penstock")

    with pipeline.start(Report(every_s=0, publishes=True)):
        await_true(lambda: "following" in caplog.text)
        lab.source.execute("INSERT INTO item VALUES (1)")
        await_true(lambda: "1 transaction, 1 change" in caplog.text)
        published = len(caplog.records)
        lab.source.execute("INSERT INTO item VALUES (2)")
        await_true(lambda: "2 transactions, 2 changes" in caplog.text)

    gathered = [record.getMessage() for record in caplog.records[published:]]
    rest = next(number for number, text in enumerate(gathered) if "2 transactions" in text)
    assert not any("up to date" in text for text in gathered[:rest])
    assert "error" not in caplog.text
    assert "conflict" not in caplog.text


def test_teardown_goes_on_without_an_archive_that_is_lost(lines: Publisher, shared: Publication, lab: Lab) -> None:
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY)")
    lines("setup")
    catch_up(shared)
    shutil.rmtree(lines.folder / "archive")

    done = lines("teardown")

    assert done.code == 0, done.err
    assert lab.source.execute("SELECT FROM pg_namespace WHERE nspname = %s", [lab.set_name]).rowcount == 0


def current_rows(publisher: Publisher) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of each table by key, as a reader has them that follows the format; the last name of a table counts."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    copied_at: dict[str, int] = {}
    for change in publisher.changes():
        table, scn = change["table_name"], change["commit_scn"]
        if change["op"] == "snapshot":
            if copied_at.get(table) != scn:
                copied_at[table], rows[table] = scn, {}
            rows[table][change["key"]["id"]] = change["after"]
        elif table in copied_at and scn > copied_at[table]:
            old = rows.setdefault(table, {}).pop(change["key"]["id"], {})
            if change["op"] != "delete":
                new = old | change["after"]
                rows[table][new["id"]] = new
    return rows


@pytest.mark.parametrize("is_running", [False, True], ids=["between runs", "during a run"])
def test_a_table_that_is_made_anew_is_copied_anew(
    lines: Publisher, shared: Publication, lab: Lab, is_running: bool
) -> None:
    lab.source.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    lines("setup")
    catch_up(shared)

    with shared.start() if is_running else nullcontext():
        lab.source.execute("INSERT INTO a VALUES (2)")
        lab.source.execute("DROP TABLE a; CREATE TABLE a (id int PRIMARY KEY, w text); INSERT INTO a VALUES (7, 'new')")
        assert lines("setup").code == 0
        assert is_running or lines("status", "--json").json["to_copy"] == 1
        lab.source.execute("INSERT INTO a VALUES (8, 'n')")
        if is_running:
            await_true(lambda: "8" in current_rows(lines)["a"])
    catch_up(shared)

    assert current_rows(lines)["a"] == {"7": {"id": "7", "w": "new"}, "8": {"id": "8", "w": "n"}}
    assert lines("status", "--json").json["to_copy"] == 0


def test_a_rename_loses_no_change_and_tears_no_transaction(lines: Publisher, shared: Publication, lab: Lab) -> None:
    lab.source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    lines("setup")
    catch_up(shared)

    lab.source.execute("BEGIN; INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); COMMIT")
    lab.source.execute("ALTER TABLE a RENAME TO a2")
    lab.source.execute("INSERT INTO a2 VALUES (2)")
    catch_up(shared)
    lab.source.execute("INSERT INTO a2 VALUES (3)")
    lab.source.execute("ALTER TABLE a2 RENAME TO a")
    lab.source.execute("INSERT INTO a VALUES (4)")
    catch_up(shared)

    changes = [change for change in lines.changes() if change["op"] != "snapshot"]
    for _, group in by_transaction(changes):
        assert len(group) == group[0]["txn_changes"]
    assert sorted((c["table_name"], c["after"]["id"]) for c in changes) == [
        ("a", "1"),
        ("a", "4"),
        ("a2", "2"),
        ("a2", "3"),
        ("b", "1"),
    ]
    assert set(current_rows(lines)["a"]) == {"1", "2", "3", "4"}
