"""An event log has one reader, and its rows say what became of an event in the end."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.errors import OperatorError
from penstock.history import Consumer, History
from penstock.pipeline_file import parse
from penstock.position import START, Limit, Scn
from penstock.sources.event_log.channel import Channel
from penstock.sources.event_log.source import EventLogSource
from penstock.wiring import open_pipeline
from tests.lab import Lab
from tests.stories.test_event_log import Log, Queue, run


@pytest.fixture
def log(lab: Lab, tmp_path: Path) -> Log:
    folder = tmp_path / "xds"
    folder.mkdir()
    return Log(lab, folder)


def named(log: Log, name: str, table: str = "event_log", url: str | None = None) -> Any:
    """A pipeline of another name, or of another log, that publishes."""
    text = log.text(f"publish: {{to: files, path: {log.folder}, format: xds}}\n")
    text = text.replace("name: idm", f"name: {name}").replace("indirect.event_log", f"indirect.{table}")
    environment = {"SHOP_URL": url or log.lab.source_url, "COPY_URL": log.lab.target_url}
    return open_pipeline(parse(text, name="pipeline.yaml", environment=environment))


def new(consumer: str, target: str) -> History:
    return History(Consumer(consumer, "idm", target), None, START, None, None, is_new=True)


@pytest.mark.rule("E-16")
def test_a_second_pipeline_on_a_log_is_refused_by_name_until_the_first_is_torn_down(log: Log) -> None:
    first = log.publication()
    first.setup()
    second = named(log, "hr")

    with pytest.raises(OperatorError, match=r"pipeline 'idm' reads this event log already.*teardown.*_idm_events"):
        second.setup()

    named(log, "hr", "other_log").setup()
    first.teardown()
    named(log, "hr", "other_log").teardown()
    second.setup()
    log.write(4, "idu=1")
    assert run(second).transactions == 1


def test_a_pipeline_whose_user_may_not_look_at_the_first_journal_is_refused_all_the_same(log: Log) -> None:
    log.publication().setup()
    name = f"second_{log.lab.source.info.dbname}"
    log.lab.source.execute(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA indirect TO {name}")
    log.lab.source.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA indirect TO {name}")

    faults = named(log, "hr", url=psycopg.conninfo.make_conninfo(log.lab.source_url, user=name)).plan().source.faults

    log.lab.source.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
    assert any("pipeline 'idm' reads this event log already" in str(fault) for fault in faults), faults


@pytest.mark.rule("E-16")
def test_two_pipelines_that_were_set_up_at_the_same_moment_are_both_refused_when_they_run(log: Log) -> None:
    first, second = log.publication(), named(log, "hr")
    first.setup()
    first.teardown()
    second.setup()
    # As if neither had seen the other.
    schema = log.lab.source.execute("SELECT obj_description('penstock_hr_events'::regnamespace)").fetchone()
    assert schema is not None
    log.lab.source.execute("COMMENT ON SCHEMA penstock_hr_events IS 'something else'")
    first.setup()
    log.lab.source.execute(f"COMMENT ON SCHEMA penstock_hr_events IS '{schema[0]}'")
    log.write(4, "idu=1")

    for pipeline, other in ((first, "hr"), (second, "idm")):
        with pytest.raises(OperatorError, match=f"pipeline '{other}' reads this event log already"):
            run(pipeline)

    assert log.statuses == "N"


@pytest.mark.rule("E-16")
def test_a_journal_is_not_used_for_another_log(log: Log) -> None:
    log.publication().setup()
    log.lab.source.execute("CREATE TABLE indirect.other_log (LIKE indirect.event_log INCLUDING ALL)")
    moved = named(log, "idm", "other_log")

    for refused in (moved.setup, lambda: run(moved)):
        with pytest.raises(OperatorError, match=r"journal of this pipeline is of event log indirect\.event_log"):
            refused()


@pytest.mark.rule("E-16")
def test_a_journal_has_one_target(log: Log) -> None:
    side = log.open("apply: {connection: copy}\n")
    side.setup()
    journal = side._source.journal
    log.write(4, "idu=1")
    with closing(EventLogSource(journal, Queue(set()))) as source:
        source.join(new("a", "host=one dbname=copy"))
        assert source.next_slice(START, Limit()) is not None

    with (
        closing(EventLogSource(journal, Queue(set()))) as source,
        pytest.raises(OperatorError, match="another pipeline of this name, which applies to host=one dbname=copy"),
    ):
        source.join(new("b", "host=two dbname=copy"))
    with pytest.raises(OperatorError, match="another pipeline of this name, which applies to host=one"):
        run(log.publication())

    with closing(EventLogSource(journal, Queue(set()))) as source:
        source.join(new("a", "host=one dbname=copy"))
    assert log.statuses == "N"


def test_a_process_that_begins_anew_with_empty_tables_has_the_journal_again(log: Log) -> None:
    pipeline = log.open("apply: {connection: copy}\n")
    pipeline.setup()
    side = pipeline._source
    log.write(2, "idu=1", "phoneno", None, "111", table="usr_phone")
    with closing(EventLogSource(side.journal, Queue({1}))) as source:
        source.join(new("a", "host=one"))
        part = source.next_slice(START, Limit())
        assert part is not None
        source.free(part.end, "a")
        log.write(4, "idu=1")
        unsettled = source.next_slice(part.end, Limit())
        assert unsettled is not None
        assert unsettled.changes.tolist() == [2]

    for consumer in (Consumer("other", "idm"), Consumer("a", "idm")):
        with pytest.raises(OperatorError, match="another pipeline of this name"), closing(side.open_source()) as source:
            source.join(new("b", "host=one"))
        with side.setup() as session, session.transaction():
            for step in side.release(consumer):
                session.take(step)

    for table in ("child_row", "failed", "event", "change"):
        left = log.lab.source.execute(f"SELECT count(*) FROM penstock_idm_events.{table}").fetchone()
        assert left == (0,)
    # Half done, the tables may be full still.
    unfinished = "new first copy was begun and not finished.*`penstock resync --all`"
    with pytest.raises(OperatorError, match=unfinished), closing(side.open_source()) as source:
        source.join(new("a", "host=one"))
    with closing(side.open_source()) as source:
        source.join(new("b", "host=one"))
        # What was polled and not settled is polled anew: its row is still N, and no child table has rows to delete.
        part = source.next_slice(START, Limit())
        assert part is not None
        assert part.changes.tolist() == [1]


@pytest.mark.rule("E-12", "E-17")
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", [(1, "S"), (2, "E"), (3, "E"), (4, "X"), (5, "S")]),
        (", delete_processed: true, keep_failed_rows: true", [(2, "E"), (3, "E"), (4, "X")]),
        (", delete_processed: true", []),
    ],
)
def test_a_row_says_what_became_of_its_event_after_retries(
    log: Log, more: str, expected: list[tuple[int, str]]
) -> None:
    pipeline = log.open("apply: {connection: copy}\n", more)
    pipeline.setup()
    journal = pipeline._source.journal
    for key in range(1, 6):
        log.write(4, f"idu={key}")
    waiting, applied = {1, 2, 3, 4}, set[int]()
    with closing(EventLogSource(journal, Queue(waiting, applied))) as source:
        source.join(new("a", "host=one"))
        part = source.next_slice(START, Limit())
        assert part is not None
        source.free(part.end, "a")
        parked = "UPDATE indirect.event_log SET status = 'X' WHERE record_id = 4"
        log.lab.source.execute(parked)

        # One is applied by a retry, one deleted from the queue, one still there, and one applied whose row was parked.
        waiting -= {1, 2, 4}
        applied |= {1, 4}
        assert source.next_slice(Scn(source.tick()), Limit()) is None

    rows = log.lab.source.execute("SELECT record_id, status FROM indirect.event_log ORDER BY record_id").fetchall()
    assert rows == expected
    left = log.lab.source.execute("SELECT position FROM penstock_idm_events.failed").fetchall()
    assert left == ([(3,)] if expected else [])


def test_why_a_row_cannot_be_used_is_told_also_where_its_neighbours_cannot_be_delivered(log: Log, caplog: Any) -> None:
    pipeline: Any = log.publication()
    pipeline.setup()
    log.write(9, "idu=1")
    log.write(4, "idu=2")
    journal = pipeline._log.journal

    def refuse(_: Any) -> None:
        raise OperatorError("no space left", where="sink", do="make room")

    with (
        caplog.at_level(logging.INFO, "penstock"),
        closing(Channel(journal.open_log(), journal.settings, refuse)) as channel,
    ):
        for _ in range(2):
            with pytest.raises(OperatorError, match="no space left"):
                channel.cycle()

    told = [record.getMessage() for record in caplog.records if "record_id 1" in record.getMessage()]
    assert len(told) == 1
    assert "gets status E: event_type is not a number from 1 to 8" in told[0]
    assert log.statuses == "EN"


@pytest.mark.rule("E-17")
def test_rows_get_e_whose_event_was_deleted_from_the_error_queue_before_they_were_settled(log: Log) -> None:
    pipeline = log.open("apply: {connection: copy}\n")
    pipeline.setup()
    for key in range(1, 4):
        log.write(4, f"idu={key}")
    with closing(pipeline._target.ledger()) as ledger:
        ledger.acquire("idm", lanes=1)
    log.lab.target.execute(
        "INSERT INTO penstock.error_action"
        " (process, os_user, host, action, outcome, error_id, txn_id, commit_scn, edits)"
        " VALUES ('idm', 'ann', 'here', 'delete', 'deleted', 1, '2', 2, '{}'),"
        " ('idm', 'ann', 'here', 'retry', 'failed', 2, '3', 3, '{}')"
    )

    with closing(pipeline._source.open_source()) as source:
        source.join(new("a", "host=one"))
        part = source.next_slice(START, Limit())
        assert part is not None
        source.free(part.end, "a")

    assert log.statuses == "SES"


OLDER = {
    1: "DROP TABLE {0}.failed; ALTER TABLE {0}.event DROP digests;"
    " COMMENT ON SCHEMA {0} IS NULL; ALTER TABLE {0}.journal DROP reader_id, DROP reader,"
    " DROP settled, ALTER version SET DEFAULT 1; UPDATE {0}.journal SET version = 1",
    2: "ALTER TABLE {0}.journal DROP settled, ALTER version SET DEFAULT 2; UPDATE {0}.journal SET version = 2;"
    " ALTER TABLE {0}.event DROP digests; ALTER TABLE {0}.failed DROP digests",
    3: "ALTER TABLE {0}.event DROP digests; ALTER TABLE {0}.failed DROP digests; ALTER TABLE {0}.journal"
    " ALTER version SET DEFAULT 3; UPDATE {0}.journal SET version = 3",
}


@pytest.mark.parametrize("version", OLDER)
def test_setup_upgrades_a_journal_of_an_earlier_version(log: Log, version: int) -> None:
    pipeline = log.publication()
    pipeline.setup()
    log.lab.source.execute(OLDER[version].format("penstock_idm_events").encode())
    log.write(4, "idu=1")

    with pytest.raises(OperatorError, match=r"journal is of another version.*penstock setup"):
        run(pipeline)
    assert [step.summary for step in pipeline.setup().source.steps] == [
        "upgrade the journal, schema penstock_idm_events"
    ]

    assert run(pipeline).transactions == 1
    assert pipeline.plan().source.steps == []
    with pytest.raises(OperatorError, match="pipeline 'idm' reads this event log already"):
        named(log, "hr").setup()
