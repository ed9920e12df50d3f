"""An event log published as XDS files, and applied: each row settled once, whatever breaks off in between."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from penstock.change import TableName
from penstock.cli.main import app
from penstock.errors import ConfigError, OperatorError
from penstock.formats.xds.event import XdsEventKind
from penstock.formats.xds.reader import read_document
from penstock.history import Consumer, History, HistoryError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline_file import parse
from penstock.position import START, Limit, Scn
from penstock.sinks.xds.folder import XdsFolder
from penstock.sinks.xds.publication import EventLogPublication
from penstock.sources.event_log.channel import Channel
from penstock.sources.event_log.failures import Failures
from penstock.sources.event_log.source import EventLogSource
from penstock.storage import LocalStorage
from penstock.wiring import open_pipeline
from tests.lab import Lab
from tests.program import Program, await_true

FILE = """\
version: 1
name: idm
connections:
  idm: {{type: postgres, url: "${{env:SHOP_URL}}"}}
  copy: {{type: postgres, url: "${{env:COPY_URL}}"}}
capture:
  source: event_log
  connection: idm
  tables: ["indirect.*"]
  event_log: {{table: indirect.event_log, create: true, driver_user: idm, polling_interval_s: 0.2{more}}}
"""

FOLLOWED = [TableName("indirect", name) for name in ("usr", "usr_phone", "acct")]

TABLES = """
CREATE SCHEMA indirect;
CREATE TABLE indirect.usr (idu integer PRIMARY KEY, fname varchar(64), lname varchar(64), photo bytea, seen timestamp);
CREATE TABLE indirect.usr_phone (idu integer REFERENCES indirect.usr, phoneno text);
CREATE TABLE indirect.acct (num integer PRIMARY KEY, owner text);
"""


class Log:
    """An event log at the source of a lab."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        lab.source.execute(TABLES)

    def text(self, output: str, more: str = "") -> str:
        return FILE.format(more=more) + output

    def open(self, output: str, more: str = "") -> Any:
        environment = {"SHOP_URL": self.lab.source_url, "COPY_URL": self.lab.target_url}
        return open_pipeline(parse(self.text(output, more), name="pipeline.yaml", environment=environment))

    def publication(self, more: str = "") -> EventLogPublication:
        made = self.open(f"publish: {{to: files, path: {self.folder}, format: xds}}\n", more)
        assert isinstance(made, EventLogPublication)
        return made

    def write(
        self,
        type_: int,
        key: str,
        column: str | None = None,
        old: str | None = None,
        new: str | None = None,
        table: str = "usr",
    ) -> None:
        self.lab.source.execute(
            "INSERT INTO indirect.event_log (event_type, table_name, table_key, column_name, old_value, new_value)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            [type_, table, key, column, old, new],
        )

    @property
    def statuses(self) -> str:
        rows = self.lab.source.execute("SELECT status FROM indirect.event_log ORDER BY record_id").fetchall()
        return "".join(status for (status,) in rows)

    @property
    def documents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}

    @property
    def told(self) -> list[tuple[str, str]]:
        """Kind and key of each event that was published."""
        events = [event for document in self.documents.values() for event in read_document(document)]
        return [(event.kind.value, event.association.partition(",")[0]) for event in events]


@pytest.fixture
def log(lab: Lab, tmp_path: Path) -> Log:
    folder = tmp_path / "xds"
    folder.mkdir()
    return Log(lab, folder)


def run(pipeline: Any) -> Any:
    return pipeline.run(threading.Event(), until_caught_up=True)


@pytest.mark.rule("E-9", "E-11")
def test_events_are_published_once_and_rows_get_their_status(log: Log) -> None:
    pipeline = log.publication(", batch_size: 2, query_limit: 2")
    assert [step.summary for step in pipeline.setup().source.steps] == [
        "create the event log indirect.event_log",
        "create the journal, schema penstock_idm_events",
    ]
    log.lab.source.execute("INSERT INTO indirect.usr VALUES (1, 'Ann')")
    log.write(5, "idu=1")
    log.write(2, "idu=2", "fname", "A", "B")
    log.write(9, "idu=2")
    log.write(6, "idu=77")
    log.write(3, "idu=3", "photo", None, "no base64!")
    log.write(4, "idu=4")
    assert pipeline.status().backlog_changes == 6

    progress = run(pipeline)

    assert log.told == [("add", "idu=1"), ("modify", "idu=2"), ("delete", "idu=4")]
    assert log.statuses == "SSEWES"
    assert (progress.transactions, progress.position) == (3, 3)
    before = log.documents
    assert run(pipeline).transactions == 0
    assert log.documents == before
    found = pipeline.status()
    assert (str(found.state), found.backlog_changes, found.transactions) == ("stopped", 0, 3)
    assert [step.summary for step in pipeline.teardown().source.steps] == [
        "drop the journal, schema penstock_idm_events"
    ]
    assert log.statuses == "SSEWES"


class BrokeOffError(Exception):
    pass


@pytest.mark.rule("E-15")
def test_a_crash_after_documents_were_written_writes_none_of_them_twice_and_leaves_no_row(log: Log) -> None:
    pipeline = log.publication()
    pipeline.setup()
    log.lab.source.execute("INSERT INTO indirect.usr VALUES (1, 'before'), (2, 'before'), (3, 'before')")
    for key in (1, 2, 3):
        log.write(6, f"idu={key}")
    put = pipeline._documents.put  # type: ignore[attr-defined]

    def break_off(documents: Sequence[tuple[Scn, Sequence[str]]]) -> None:
        for first, elements in documents:
            put(first, elements)
            if first == 2:
                raise BrokeOffError

    journal = pipeline._log.journal  # type: ignore[attr-defined]
    with pytest.raises(BrokeOffError):
        Channel(journal.open_log(), journal.settings, break_off).cycle()
    written = log.documents
    assert (len(written), log.statuses) == (2, "NNN")
    # The events stay what they were, whatever the table holds now.
    log.lab.source.execute("UPDATE indirect.usr SET fname = 'after'")
    log.write(6, "idu=1")

    run(pipeline)

    assert log.told == [("modify", "idu=1"), ("modify", "idu=2"), ("modify", "idu=3"), ("modify", "idu=1")]
    assert {name: log.documents[name] for name in written} == written
    assert [b"after" in document for document in log.documents.values()] == [False, False, False, True]
    assert log.statuses == "SSSS"


def test_a_folder_with_documents_of_another_journal_is_not_written_over(log: Log) -> None:
    pipeline = log.publication()
    pipeline.setup()
    (log.folder / f"{1:019d}.xml").write_text("something else")
    log.write(4, "idu=1")

    with pytest.raises(
        OperatorError, match="lies behind position 0 of the journal: the folder was filled from another"
    ):
        run(pipeline)

    assert log.statuses == "N"


def test_a_document_that_comes_into_the_folder_meanwhile_is_not_written_over(log: Log) -> None:
    (log.folder / f"{1:019d}.xml").write_text("something else")

    with pytest.raises(OperatorError, match="holds another document"):
        XdsFolder(LocalStorage(log.folder)).put(Scn(1), ["<delete/>"])

    assert log.documents == {f"{1:019d}.xml": b"something else"}


@pytest.fixture
def applied(log: Log) -> Log:
    pipeline = log.open("apply: {connection: copy}\n")
    assert isinstance(pipeline, Pipeline)
    pipeline.setup()
    return log


def history(position: int, newest: Any = None) -> History:
    return History(Consumer("c", "idm"), newest, Scn(position), None, None, is_new=newest is None)


class Queue:
    """An error queue: which transactions are in it, which were applied by a retry, and that none was given up."""

    def __init__(self, waiting: set[int], applied: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self._waiting, self._applied = waiting, applied

    def waiting(self) -> set[int]:
        return self._waiting

    def applied(self) -> set[int]:
        return self._applied

    def deleted(self, first: int, last: int) -> set[int]:
        return set()


def test_another_event_at_the_position_that_was_reached_is_refused_by_the_next_run(applied: Log) -> None:
    """As in a database that was restored, and went on with other events up to the same position."""
    journal = applied.open("apply: {connection: copy}\n")._source.open_source()
    joined = journal.join(history(0))
    applied.write(4, "idu=1")
    part = journal.next_slice(START, Limit())
    assert part is not None
    went_on = History(Consumer("c", "idm"), joined.origin, part.end, part.anchor, part.anchor, is_new=False)
    applied.lab.source.execute("UPDATE penstock_idm_events.event SET record_ids = array[77]")

    with pytest.raises(HistoryError, match="the journal holds another event at position 1 than was read"):
        applied.open("apply: {connection: copy}\n")._source.open_source().join(went_on)


@pytest.mark.rule("E-15")
def test_what_was_applied_before_a_crash_is_settled_by_the_next_run_and_not_told_again(applied: Log) -> None:
    side = applied.open("apply: {connection: copy}\n")._source
    failed: set[int] = set()
    source = EventLogSource(side.journal, Queue(failed))
    joined = source.join(history(0))
    applied.lab.source.execute("INSERT INTO indirect.acct VALUES (1, 'before')")
    applied.write(6, "num=1", table="acct")
    applied.write(4, "idu=2")
    applied.write(4, "idu=3")
    part = source.next_slice(START, Limit())
    assert part is not None
    reader = side.access.reader("idm", side.journal.tables(), follows=FOLLOWED)
    first = [batch.to_pylist() for batch in reader.read(part)]
    assert [row["key"] for batch in first for row in batch] == ['{"num":"1"}', '{"idu":"2"}', '{"idu":"3"}']
    applied.lab.source.execute("UPDATE indirect.acct SET owner = 'after'")
    source.close()

    # Nothing was applied: the next run gets the same, in the same words.
    again = EventLogSource(side.journal, Queue(failed))
    assert again.join(history(0, joined.origin)).position == START
    part = again.next_slice(START, Limit())
    assert part is not None
    assert [batch.to_pylist() for batch in reader.read(part)] == first
    assert [json.loads(row["after"]) for batch in first for row in batch if row["after"]] == [{"owner": "before"}]
    again.close()
    assert applied.statuses == "NNN"

    # The first two were applied, one of them into the error queue, and the program died before it wrote that.
    failed.add(2)
    last = EventLogSource(side.journal, Queue(failed))
    last.join(history(2, joined.origin))
    assert applied.statuses == "SEN"
    part = last.next_slice(Scn(2), Limit())
    assert part is not None
    assert part.commit_scns.tolist() == [3]
    last.free(Scn(3), "c")
    last.close()
    assert applied.statuses == "SES"


@pytest.mark.rule("E-13")
def test_all_rows_of_a_child_table_are_removed_by_what_was_told_of_them(applied: Log) -> None:
    side = applied.open("apply: {connection: copy}\n")._source
    source = EventLogSource(side.journal, Failures())
    joined = source.join(history(0))
    reader = side.access.reader("idm", side.journal.tables(), follows=FOLLOWED)

    def polled(after: int) -> list[tuple[str, Any, Any]]:
        # A run would come back later.
        source._timetable.at_once()
        part = source.next_slice(Scn(after), Limit())
        assert part is not None
        rows = [row for batch in reader.read(part) for row in batch.to_pylist() if row["table_name"] == "usr_phone"]
        return [
            (row["op"], *(json.loads(row[name] or "{}").get("phoneno") for name in ("before", "after"))) for row in rows
        ]

    applied.lab.source.execute(
        "INSERT INTO indirect.usr VALUES (1); INSERT INTO indirect.usr_phone VALUES (1, '1'), (1, '2')"
    )
    applied.write(5, "idu=1")
    assert polled(0) == [("insert", None, "1"), ("insert", None, "2")]
    applied.lab.source.execute("UPDATE indirect.usr_phone SET phoneno = '3' WHERE phoneno = '1'")
    applied.write(6, "idu=1")
    applied.write(2, "idu=2", "phoneno", None, "9", table="usr_phone")
    assert polled(1) == [
        ("delete", "1", None),
        ("delete", "2", None),
        ("insert", None, "2"),
        ("insert", None, "3"),
        ("insert", None, "9"),
    ]
    applied.write(4, "idu=1")
    assert polled(3) == [("delete", "2", None), ("delete", "3", None)]
    source.close()
    assert joined.position == START
    assert applied.statuses == "SSSN"


@pytest.mark.rule("E-15", "E-17")
def test_events_are_applied_with_old_values_compared_and_killed_runs_repeat_nothing(log: Log, tmp_path: Path) -> None:
    program = Program(tmp_path, log.lab.source_url, log.lab.target_url, name="idm")
    text = log.text("apply: {connection: copy}\n", ", query_limit: 200")
    (tmp_path / "pipeline.yaml").write_text(text)
    assert program("setup").code == 0
    source, target = log.lab.source, log.lab.target
    source.execute(
        "INSERT INTO indirect.event_log (event_type, table_name, table_key, column_name, new_value)"
        " SELECT 1, 'usr', 'idu=' || g, 'fname', 'name' || g FROM generate_series(1, 3000) g"
    )

    def count() -> int:
        row = target.execute("SELECT count(*) FROM indirect.usr").fetchone()
        return 0 if row is None else int(row[0])

    with program.start("run") as following:
        await_true(lambda: count() > 200, tell=lambda: following.said)
        following.kill()
    source.execute("INSERT INTO indirect.usr VALUES (9001, 'Ann', NULL, '\\xaaaa', '2024-01-02 03:04:05.678')")
    log.write(5, "idu=9001")
    log.write(2, "idu=1", "fname", "name1", "other")
    log.write(2, "idu=2", "fname", "wrong", "other")
    log.write(3, "idu=3", "fname", "wrong", "other")
    log.write(4, "idu=4")
    log.write(2, "idu=5", "phoneno", None, "111", table="usr_phone")
    source.execute("INSERT INTO indirect.usr VALUES (9002)")
    log.write(8, "idu=9002", "usr_phone.phoneno")
    log.write(9, "idu=6")
    ended = program("run", "--until-caught-up", "--json")

    assert ended.code == 5, ended.err
    assert log.statuses == "S" * 3000 + "SSESSSSE"
    rows = dict(target.execute("SELECT idu, fname FROM indirect.usr").fetchall())
    named = {number: f"name{number}" for number in range(1, 3001) if number != 4}
    assert rows == named | {1: "other", 3: "other", 9001: "Ann"}
    assert target.execute("SELECT * FROM indirect.usr_phone").fetchall() == [(5, "111")]
    photo = target.execute("SELECT photo, seen::text FROM indirect.usr WHERE idu = 9001").fetchone()
    assert photo == (b"\xaa\xaa", "2024-01-02 03:04:05.678")
    left = source.execute("SELECT count(*) FROM penstock_idm_events.event").fetchone()
    assert left == (0,)

    # Once it is mended and retried, the row says so.
    target.execute("UPDATE indirect.usr SET fname = 'wrong' WHERE idu = 2")
    assert program("errors", "retry", "--all").code == 0
    with closing(log.open("apply: {connection: copy}\n")._source.open_source()) as polling:
        assert polling.next_slice(polling.tick(), Limit()) is None
    assert log.statuses == "S" * 3007 + "E"


@pytest.mark.parametrize("mode", ["fields", "fields_now", "rows_now"])
def test_triggers_of_setup_write_what_a_poll_reads(log: Log, mode: str) -> None:
    pipeline = log.publication(f', triggers: {{"indirect.*": {mode}}}')
    pipeline.setup()
    assert pipeline.plan().source.steps == []
    name = f"writer_{log.lab.source.info.dbname}"
    log.lab.source.execute(f"CREATE ROLE {name}; GRANT USAGE ON SCHEMA indirect TO {name}")
    log.lab.source.execute(f"GRANT ALL ON indirect.usr, indirect.usr_phone, indirect.acct TO {name}")
    log.lab.source.execute(f"SET ROLE {name}")
    for statement in (
        "INSERT INTO indirect.usr (idu, fname, photo, seen) VALUES (1, 'Ann', '\\xaaaa', '2024-01-02 03:04:05')",
        "INSERT INTO indirect.usr (idu) VALUES (7)",
        "INSERT INTO indirect.usr_phone VALUES (1, '111'), (NULL, '9')",
        "UPDATE indirect.usr SET lname = 'Lee', fname = fname WHERE idu = 1",
        "UPDATE indirect.acct SET owner = owner",
        "INSERT INTO indirect.acct VALUES (1, 'x')",
        "UPDATE indirect.acct SET num = 2",
    ):
        log.lab.source.execute(statement)
    log.lab.source.execute(f"RESET ROLE; DROP OWNED BY {name}; DROP ROLE {name}")

    run(pipeline)

    events = [event for document in log.documents.values() for event in read_document(document)]
    added = [(event.kind.value, event.association.partition(",")[0]) for event in events]
    assert ("add", "idu=1") in added
    assert ("add", "idu=7") in added
    assert [pair for pair in added if "num" in pair[1]][-2:] == [("delete", "num=1"), ("add", "num=2")]
    values = {
        attribute.name: operation.values[-1].text
        for event in events
        if event.association.startswith("idu=1,")
        for attribute in event.attributes
        for operation in attribute.operations
        if operation.values
    }
    assert values == {
        "fname": "Ann",
        "lname": "Lee",
        "photo": "qqo=",
        "seen": "1704164645",
        "usr_phone.phoneno": "111",
    }
    assert set(log.statuses) <= {"S", "W"}
    pipeline.teardown()
    log.lab.source.execute("UPDATE indirect.usr SET fname = 'after'")


REFUSED = [
    ("ALTER TABLE indirect.event_log DROP COLUMN old_value", "", "lacks 'old_value'"),
    ("ALTER TABLE indirect.event_log RENAME old_value TO ov", "", "lacks 'old_value'"),
    ("ALTER TABLE indirect.event_log ALTER event_time DROP DEFAULT, ALTER event_time TYPE text", "", "'event_time'"),
    ("DROP TABLE indirect.event_log", "", "no such event log table"),
]


@pytest.mark.rule("E-1")
@pytest.mark.parametrize(("change", "more", "why"), REFUSED)
def test_a_log_that_lacks_something_is_refused_before_anything_is_polled(
    log: Log, change: str, more: str, why: str
) -> None:
    pipeline = log.publication(more)
    pipeline.setup()
    log.lab.source.execute(change)

    with pytest.raises(OperatorError, match=why):
        run(pipeline)


@pytest.mark.rule("E-1", "E-2", "E-4")
@pytest.mark.parametrize("more", [", columns: {old_value: ov, status: st}", ", layout: B"])
def test_columns_may_have_other_names_and_another_order(log: Log, more: str) -> None:
    log.lab.source.execute(
        "CREATE TABLE indirect.event_log (record_id bigint, table_key text, st varchar(5), event_type numeric,"
        " event_time timestamptz DEFAULT now(), perpetrator text, TABLE_NAME text, column_name text, ov text,"
        " new_value text, more text)"
    )
    pipeline = log.publication(more)
    pipeline.setup()
    log.lab.source.execute(
        "INSERT INTO indirect.event_log (record_id, st, event_type, table_name, table_key, perpetrator)"
        " VALUES (1, 'N  ', 4, 'usr', 'idu=1', 'hr'), (2, 'n', 4, 'usr', 'idu=2', 'hr'),"
        " (3, 'N', 4, 'usr', 'idu=3', 'idm ')"
    )

    run(pipeline)

    assert log.told == [("delete", "idu=1")]
    rows = log.lab.source.execute("SELECT st FROM indirect.event_log ORDER BY record_id").fetchall()
    assert rows == [("S",), ("n",), ("N",)]


def test_decode_shows_the_next_poll_and_changes_nothing(log: Log, tmp_path: Path, monkeypatch: Any) -> None:
    log.publication().setup()
    monkeypatch.setenv("SHOP_URL", log.lab.source_url)
    monkeypatch.setenv("COPY_URL", log.lab.target_url)
    file = tmp_path / "pipeline.yaml"
    file.write_text(log.text("apply: {connection: copy}\n"))
    log.write(2, "idu=1", "fname", "A", "B")
    log.write(9, "idu=1")

    shown = CliRunner().invoke(app, ["decode", "event-log", "-f", str(file)])
    changes = CliRunner().invoke(app, ["decode", "event-log", "-f", str(file), "--format", "changes", "--json"])

    (event,) = read_document(shown.stdout.encode())
    assert (event.kind, event.association) == (XdsEventKind.MODIFY, "idu=1,table=usr,schema=indirect")
    assert (shown.exit_code, shown.stderr) == (
        3,
        "note: record_id 2: status E: event_type is not a number from 1 to 8\n",
    )
    row = json.loads(changes.stdout)
    assert row["key"] == {"idu": "1"}
    assert (row["op"], row["before"], row["after"]) == ("update", {"idu": "1", "fname": "A"}, {"fname": "B"})
    assert log.statuses == "NN"

    # The log may be there before the journal is.
    log.lab.source.execute("DROP SCHEMA penstock_idm_events CASCADE")
    early = CliRunner().invoke(app, ["decode", "event-log", "-f", str(file), "--format", "changes", "--json"])
    assert (early.stdout, early.stderr) == (changes.stdout, changes.stderr)


def test_decode_says_that_the_drivers_own_rows_are_not_read(log: Log, tmp_path: Path, monkeypatch: Any) -> None:
    log.publication().setup()
    monkeypatch.setenv("SHOP_URL", log.lab.source_url)
    monkeypatch.setenv("COPY_URL", log.lab.target_url)
    file = tmp_path / "pipeline.yaml"
    log.write(2, "idu=1", "fname", "A", "B")
    log.write(2, "idu=2", "fname", "A", "B")
    log.lab.source.execute("UPDATE indirect.event_log SET perpetrator = 'idm' WHERE table_key = 'idu=1'")
    shown = []
    for more in ("", ", allow_loopback: true"):
        file.write_text(log.text("apply: {connection: copy}\n", more))
        shown.append(CliRunner().invoke(app, ["decode", "event-log", "-f", str(file)]))

    own, all_ = shown
    assert [event.association[:5] for event in read_document(own.stdout.encode())] == ["idu=2"]
    assert own.stderr == (
        "note: 1 new row of user 'idm', the driver's own, is not read; capture.event_log.allow_loopback: true reads"
        " such rows, too\n"
    )
    assert len(list(read_document(all_.stdout.encode()))) == 2
    assert all_.stderr == ""


def test_what_does_not_go_with_an_event_log_is_refused_with_its_line() -> None:
    text = FILE.format(more="") + "publish: {to: files, path: p, format: parquet}\nrules: {exclude: [a.b]}\n"

    with pytest.raises(ConfigError) as raised:
        parse(text, name="pipeline.yaml", environment={"SHOP_URL": "host=a", "COPY_URL": "host=b"})

    assert "pipeline.yaml:11: publish.format: an event log is published as xds" in str(raised.value)
    assert "pipeline.yaml:12: rules: rules do not go with capture.source event_log" in str(raised.value)


def test_a_log_that_may_not_be_written_is_refused_with_the_grant(log: Log) -> None:
    pipeline = log.publication()
    pipeline.setup()
    name = f"reader_{log.lab.source.info.dbname}"
    log.lab.source.execute(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA indirect TO {name}")
    log.lab.source.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA indirect TO {name}")
    url = psycopg.conninfo.make_conninfo(log.lab.source_url, user=name)
    text = log.text(f"publish: {{to: files, path: {log.folder}, format: xds}}\n")
    theirs = open_pipeline(parse(text, name="p.yaml", environment={"SHOP_URL": url, "COPY_URL": url}))

    faults = theirs.plan().source.faults

    log.lab.source.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
    assert any('GRANT SELECT, UPDATE ON "indirect"."event_log"' in str(fault) for fault in faults), faults


def test_a_log_that_was_restored_to_an_older_state_gives_no_name_of_a_document_again(log: Log) -> None:
    publication = log.publication()
    publication.setup()
    for key in range(1, 4):
        log.write(4, f"idu={key}")
    run(publication)
    before = log.documents
    # Whoever reads the folder has taken the first ones away.
    for name in sorted(before)[:2]:
        (log.folder / name).unlink()
    log.lab.source.execute("UPDATE penstock_idm_events.journal SET position = 0")
    log.write(4, "idu=4")

    with pytest.raises(OperatorError, match="lies behind position 0 of the journal"):
        run(log.publication())

    assert log.documents == {name: before[name] for name in sorted(before)[2:]}
    assert log.statuses == "SSSN"


UNKEYED = "ALTER TABLE indirect.event_log DROP CONSTRAINT event_log_pkey, ALTER record_id DROP IDENTITY"

NUMBERED = "INSERT INTO indirect.event_log (record_id, event_type, table_name, table_key) VALUES (%s, 4, 'usr', %s)"


@pytest.mark.parametrize("delete", [False, True], ids=["status", "deleted"])
def test_rows_of_one_record_id_are_settled_by_none_of_the_others(log: Log, delete: bool) -> None:
    """A second writer numbers rows by itself; the edge of the poll lies between the two."""
    more = ", delete_processed: true, keep_failed_rows: true" if delete else ""
    publication = log.publication(f", query_limit: 2{more}")
    publication.setup()
    log.lab.source.execute(UNKEYED)
    for number, key in ((1, 1), (2, 2), (2, 3), (3, 4)):
        log.lab.source.execute(NUMBERED, [number, f"idu={key}"])

    run(publication)

    assert log.told == [("delete", "idu=1"), ("delete", "idu=4")]
    rows = log.lab.source.execute("SELECT table_key, status FROM indirect.event_log ORDER BY 1").fetchall()
    there = dict(rows)
    assert {key: there[key] for key in ("idu=2", "idu=3")} == {"idu=2": "E", "idu=3": "E"}
    assert {there.get(key, "S") for key in ("idu=1", "idu=4")} == {"S"}


def test_rows_of_a_table_that_inherits_the_log_may_have_a_record_id_of_its_own_rows(log: Log) -> None:
    """Its index is none of the other table's."""
    publication = log.publication()
    publication.setup()
    log.lab.source.execute("ALTER TABLE indirect.event_log ALTER record_id DROP IDENTITY")
    log.lab.source.execute("CREATE TABLE indirect.older () INHERITS (indirect.event_log)")
    for table, number, key in (("event_log", 1, 1), ("older", 1, 2), ("older", 2, 3)):
        log.lab.source.execute(NUMBERED.replace("event_log", table), [number, f"idu={key}"])

    run(publication)

    assert log.told == [("delete", "idu=3")]
    assert log.statuses == "EES"


KEEPS = """
CREATE FUNCTION indirect.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$;
CREATE TRIGGER keep BEFORE UPDATE OR DELETE ON indirect.event_log FOR EACH ROW EXECUTE FUNCTION indirect.keep();
"""


@pytest.mark.parametrize("body", ["RETURN NULL;", "NEW.status := OLD.status; RETURN NEW;"], ids=["skips", "changes"])
def test_a_log_that_keeps_a_row_new_is_refused_and_tells_no_event_twice(log: Log, body: str) -> None:
    publication = log.publication()
    publication.setup()
    log.lab.source.execute(KEEPS.format(body))
    log.write(4, "idu=1")

    for _ in range(2):
        with pytest.raises(OperatorError, match="1 row of the event log, record_id 1, stayed N when another status"):
            run(publication)
        assert log.told == [("delete", "idu=1")]

    log.lab.source.execute("DROP TRIGGER keep ON indirect.event_log")
    run(publication)
    assert log.told == [("delete", "idu=1")]
    assert log.statuses == "S"


def test_a_row_that_gets_the_record_id_of_one_that_was_read_is_not_passed_over(log: Log) -> None:
    publication = log.publication()
    publication.setup()
    log.lab.source.execute(UNKEYED)
    log.lab.source.execute(NUMBERED, [1, "idu=1"])
    journal = publication._log.journal  # type: ignore[attr-defined]

    def deliver(_: Any) -> None:
        log.lab.source.execute(NUMBERED, [1, "idu=2"])

    with pytest.raises(OperatorError, match="would get their status unread: 1 ") as refused:
        Channel(journal.open_log(), journal.settings, deliver).cycle()

    assert "another record_id" in refused.value.do
    assert log.statuses == "NN"
    log.lab.source.execute("UPDATE indirect.event_log SET record_id = 2 WHERE table_key = 'idu=2'")
    run(log.publication())
    assert log.told == [("delete", "idu=1"), ("delete", "idu=2")]
    assert log.statuses == "SS"


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("ALTER SEQUENCE {sequence} CACHE 20", "each session takes 20 numbers at a time"),
        ("ALTER SEQUENCE {sequence} INCREMENT -1", "which counts down"),
        ("ALTER SEQUENCE {sequence} CYCLE", "which begins again at its end"),
        (
            "CREATE SEQUENCE indirect.own CACHE 5; ALTER TABLE {log} ALTER record_id DROP IDENTITY IF EXISTS,"
            " ALTER record_id SET DEFAULT nextval('indirect.own')",
            "numbered by sequence indirect.own, of which each session takes 5 numbers",
        ),
        ("ALTER TABLE {log} ALTER event_time SET DEFAULT now()", "event_time is now\\(\\) by default"),
        ("ALTER TABLE {log} ALTER event_time SET DEFAULT localtimestamp", "event_time is LOCALTIMESTAMP by default"),
    ],
)
def test_a_log_whose_numbers_are_not_in_the_order_of_its_changes_is_named(
    log: Log, caplog: pytest.LogCaptureFixture, sql: str, says: str
) -> None:
    publication = log.publication(", future_events: true")
    publication.setup()
    run(publication)
    assert not [record for record in caplog.records if "may be read first" in record.getMessage()]

    log.lab.source.execute(sql.format(log="indirect.event_log", sequence="indirect.event_log_record_id_seq").encode())
    assert [note for note in publication.plan().source.notes if re.search(says, note)]
    run(publication)
    warnings = [record.getMessage() for record in caplog.records if "may be read first" in record.getMessage()]
    assert len(warnings) == 1
    assert re.search(says, warnings[0])


def test_a_target_that_was_restored_lacks_what_was_settled_and_is_refused(log: Log, spark: object) -> None:
    """Its events are out of the journal, and their rows are no N: they would never come again."""
    pipeline = log.open("apply: {connection: copy}\n")
    pipeline.setup()
    insert = "INSERT INTO indirect.event_log (event_type, table_name, table_key, column_name, new_value)"
    log.lab.source.execute(f"{insert} VALUES (1, 'usr', 'idu=1', 'fname', 'Ann')")
    run(pipeline)
    target, names = log.lab.target, "low_watermark, anchor_scn, anchor_mark"
    old = target.execute(f"SELECT {names} FROM penstock.process").fetchone()
    assert old is not None
    log.lab.source.execute(f"{insert} SELECT 1, 'usr', 'idu=' || g, 'fname', 'Bob' FROM generate_series(2, 4) g")
    run(pipeline)
    target.execute("DELETE FROM indirect.usr WHERE idu > 1; UPDATE penstock.lane SET cut_scn = NULL, cut_mark = NULL")
    target.execute("UPDATE penstock.process SET low_watermark = %s, anchor_scn = %s, anchor_mark = %s", old)
    log.lab.source.execute(f"{insert} VALUES (1, 'usr', 'idu=5', 'fname', 'Eve')")

    with pytest.raises(HistoryError, match="the target was restored to an older state"):
        run(pipeline)

    assert "restored to an older state" in str(pipeline.status().refused)
    assert target.execute("SELECT idu FROM indirect.usr").fetchall() == [(1,)]
    assert log.statuses == "SSSSN"
