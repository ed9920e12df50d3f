"""What a log names and the database cannot hand out: an error of the rows that ask for it, and of none beside them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.dialects.postgres.source.event_log_rows import PostgresLogTransaction
from penstock.errors import OperatorError, RetryableError
from penstock.formats.xds.reader import read_document
from penstock.pipeline_file import parse
from penstock.position import START, Limit, Scn
from penstock.sources.event_log.channel import Channel
from penstock.sources.event_log.source import EventLogSource
from penstock.wiring import open_pipeline
from tests.lab import Lab
from tests.stories.test_event_log import Log, Queue, history, run


@pytest.fixture
def log(lab: Lab, tmp_path: Path) -> Log:
    folder = tmp_path / "xds"
    folder.mkdir()
    return Log(lab, folder)


@pytest.fixture
def reader(log: Log) -> Iterator[str]:
    """The url of a user who reads the log, has its journal, and may read no other table but `usr`."""
    name = f"reader_{log.lab.source.info.dbname}"
    log.publication().setup()
    log.lab.source.execute(
        f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA indirect, penstock_idm_events TO {name};"
        f" GRANT SELECT, UPDATE ON indirect.event_log TO {name}; GRANT SELECT ON indirect.usr TO {name};"
        f" ALTER SCHEMA penstock_idm_events OWNER TO {name}"
    )
    for table in ("journal", "event", "change", "child_row", "failed"):
        log.lab.source.execute(f"ALTER TABLE penstock_idm_events.{table} OWNER TO {name}")
    yield psycopg.conninfo.make_conninfo(log.lab.source_url, user=name)
    log.lab.source.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.rule("E-9")
def test_a_table_that_may_not_be_read_is_an_error_of_the_rows_that_ask_for_it(
    log: Log, reader: str, caplog: Any
) -> None:
    log.lab.source.execute(
        "INSERT INTO indirect.usr VALUES (1, 'Ann'), (2, 'Bo'); INSERT INTO indirect.acct VALUES (1)"
    )
    text = log.text(f"publish: {{to: files, path: {log.folder}, format: xds}}\n")
    pipeline = open_pipeline(parse(text, name="p.yaml", environment={"SHOP_URL": reader, "COPY_URL": reader}))
    notes = pipeline.plan().source.notes
    assert [note.partition(" may not be read")[0] for note in notes] == ["indirect.acct", "indirect.usr_phone"]
    log.write(6, "num=1", table="acct")
    log.write(8, "num=1", "owner", table="acct")
    log.write(4, "num=2", table="acct")
    log.write(8, "idu=1", "fname")
    # A whole row is that of its child table, too.
    log.write(6, "idu=2")
    log.write(3, "num=3", "owner", new="logged", table="acct")

    with caplog.at_level(logging.WARNING):
        run(pipeline)

    assert log.statuses == "EESSES"
    assert log.told == [("delete", "num=2"), ("modify", "idu=1"), ("modify", "num=3")]
    told = [record.getMessage() for record in caplog.records]
    assert any("may not SELECT from table indirect.acct" in text and "record_id 1, 2" in text for text in told), told
    assert any("may not SELECT from table indirect.usr_phone" in text and "record_id 5" in text for text in told)


BAD = """
CREATE TABLE indirect.number (id integer PRIMARY KEY, divisor integer);
INSERT INTO indirect.number VALUES (1, 1), (2, 0), (3, 1), (4, 0), (5, 1);
CREATE VIEW indirect.quotient AS SELECT id, 60 / divisor AS quotient FROM indirect.number;
CREATE FUNCTION indirect.moody(integer) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF $1 = 2 THEN RAISE EXCEPTION 'secret %', $1; END IF;
  IF $1 = 3 THEN PERFORM * FROM indirect.nothing; END IF;
  RETURN 'well';
END $$;
CREATE VIEW indirect.mood AS SELECT id, indirect.moody(id) AS mood FROM indirect.number;
CREATE MATERIALIZED VIEW indirect.empty AS SELECT id, divisor FROM indirect.number WITH NO DATA;
"""


@pytest.mark.rule("E-9")
def test_a_row_of_a_view_that_cannot_be_computed_is_an_error_of_its_own_rows(log: Log, caplog: Any) -> None:
    log.lab.source.execute(BAD)
    keys = "{indirect.quotient: [id], indirect.mood: [id], indirect.empty: [id]}"
    pipeline = log.publication(f", batch_size: 20, keys: {keys}")
    pipeline.setup()
    for view in ("quotient", "mood"):
        for id_ in range(1, 7):
            log.write(6, f"id={id_}", table=view)
    log.write(5, "id=1", table="empty")
    log.write(5, "id=1", table="number")

    with caplog.at_level(logging.WARNING):
        run(pipeline)

    assert log.statuses == "SESESW" + "SEESSW" + "E" + "S"
    assert [key for _, key in log.told] == ["id=1", "id=3", "id=5", "id=1", "id=4", "id=5", "id=1"]
    told = "\n".join(record.getMessage() for record in caplog.records)
    for why in ("division by zero", "raise exception", "undefined table", "object not in prerequisite state"):
        assert why in told
    assert "secret" not in told


@pytest.mark.rule("E-9")
def test_a_key_that_the_column_cannot_hold_is_an_error_of_its_own_row(log: Log) -> None:
    types = (("real", "1e39"), ("double precision", "1e400"), ("oid", "99999999999"))
    for number, (type_, _) in enumerate(types):
        log.lab.source.execute(f"CREATE TABLE indirect.t{number} (k {type_} PRIMARY KEY, v text)")
        log.lab.source.execute(f"INSERT INTO indirect.t{number} VALUES (1, 'one'), (5, 'five')")
    pipeline = log.publication()
    pipeline.setup()
    for number, (_, bad) in enumerate(types):
        for key in ("1", bad, "5", "7"):
            log.write(6, f"k={key}", table=f"t{number}")

    run(pipeline)

    assert log.statuses == "SESW" * 3
    assert log.told == [("modify", "k=1"), ("modify", "k=5")] * 3


ALTERED = [
    ("DROP TABLE indirect.acct", "EEE"),
    ("ALTER TABLE indirect.acct DROP COLUMN owner", "SEE"),
    ("ALTER TABLE indirect.acct RENAME owner TO holder", "SEE"),
    ("ALTER TABLE indirect.acct RENAME TO account", "EEE"),
    ("ALTER TABLE indirect.acct DROP CONSTRAINT acct_pkey", "EEE"),
    ("ALTER TABLE indirect.acct DROP CONSTRAINT acct_pkey, ADD PRIMARY KEY (num, owner)", "EEE"),
    ("ALTER TABLE indirect.acct ALTER owner TYPE integer USING 7", "SSE"),
    ("ALTER TABLE indirect.acct ALTER num TYPE text", "SSS"),
    ("ALTER TABLE indirect.acct SET SCHEMA public", "EEE"),
    ("DROP TABLE indirect.acct; CREATE TABLE indirect.acct (num integer PRIMARY KEY, owner text)", "WWS"),
    ("DROP TABLE indirect.acct; CREATE VIEW indirect.acct AS SELECT 1 AS num, 'x' AS owner", "EEE"),
]


@pytest.mark.rule("E-9")
def test_rows_mean_the_table_as_it_is_when_they_are_polled(log: Log) -> None:
    pipeline = log.publication()
    pipeline.setup()
    found = []
    for change, _ in ALTERED:
        log.lab.source.execute(
            "DROP TABLE IF EXISTS indirect.acct, indirect.account, public.acct;"
            " CREATE TABLE indirect.acct (num integer CONSTRAINT acct_pkey PRIMARY KEY, owner text);"
            " INSERT INTO indirect.acct VALUES (1, 'Ann'); TRUNCATE indirect.event_log"
        )
        log.write(6, "num=1", table="acct")
        log.write(8, "num=1", "owner", table="acct")
        log.write(3, "num=2", "owner", new="logged", table="acct")
        log.write(4, "idu=2")
        log.lab.source.execute(change)
        run(pipeline)
        found.append((change, log.statuses))

    assert found == [(change, f"{expected}S") for change, expected in ALTERED]


REPLACED = [
    "ALTER TABLE indirect.acct ALTER owner TYPE varchar(7) USING left(owner, 7)",
    "ALTER TABLE indirect.acct ALTER num TYPE bigint",
    "BEGIN; TRUNCATE indirect.acct; INSERT INTO indirect.acct VALUES (1, 'Ann'); COMMIT",
    "CREATE TABLE indirect.other (LIKE indirect.acct INCLUDING ALL); INSERT INTO indirect.other VALUES (1, 'Ann');"
    " DROP TABLE indirect.acct; ALTER TABLE indirect.other RENAME TO acct",
]


@pytest.mark.rule("E-8")
@pytest.mark.parametrize("change", REPLACED)
def test_a_table_that_is_written_anew_during_a_poll_is_not_taken_for_empty(
    log: Log, change: str, monkeypatch: Any
) -> None:
    log.lab.source.execute("INSERT INTO indirect.acct VALUES (1, 'Ann')")
    pipeline = log.publication()
    pipeline.setup()
    log.write(8, "num=1", "owner", table="acct")
    meanwhile(log, monkeypatch, "window", change)

    run(pipeline)

    assert log.statuses == "S"
    (document,) = log.documents.values()
    assert b"Ann" in document


@pytest.mark.rule("E-15")
def test_a_log_that_is_written_anew_while_rows_are_settled_does_not_have_them_told_twice(
    log: Log, monkeypatch: Any
) -> None:
    pipeline = log.open("apply: {connection: copy}\n")
    pipeline.setup()
    log.write(4, "idu=1")
    with closing(EventLogSource(pipeline._source.journal, Queue(set()))) as source:
        source.join(history(0))
        part = source.next_slice(START, Limit())
        assert part is not None
        meanwhile(log, monkeypatch, "pending", "ALTER TABLE indirect.event_log ALTER event_type TYPE bigint")

        with pytest.raises(RetryableError, match=r"indirect\.event_log was emptied, replaced or written anew"):
            source.settle(part.end)

        source.settle(part.end)
        assert log.statuses == "S"
        assert source.next_slice(part.end, Limit()) is None


def meanwhile(log: Log, monkeypatch: Any, method: str, change: str) -> None:
    """Have something happen once, right after a method of a transaction with the log was called for the first time."""
    inner, left = getattr(PostgresLogTransaction, method), [change]

    def method_and_change(transaction: Any, *args: Any) -> Any:
        found = inner(transaction, *args)
        while left:
            log.lab.source.execute(left.pop())
        return found

    monkeypatch.setattr(PostgresLogTransaction, method, method_and_change)


BEGUN_ANEW = "TRUNCATE indirect.event_log RESTART IDENTITY"


@pytest.mark.parametrize(("more", "left"), [("", "SS"), (", delete_processed: true", "")], ids=["status", "deleted"])
def test_rows_of_a_log_whose_numbers_began_again_are_read_and_not_taken_for_those_read_before(
    log: Log, caplog: Any, more: str, left: str
) -> None:
    """Between a poll and its delivery the log was emptied, and new rows have the record_ids of those in the journal."""
    publication: Any = log.publication(more)
    publication.setup()
    for key in (1, 2):
        log.write(4, f"idu={key}")
    broken_off(publication)
    log.lab.source.execute(BEGUN_ANEW)
    for key in (8, 9):
        log.write(4, f"idu={key}")

    with caplog.at_level(logging.WARNING, "penstock"):
        run(publication)

    assert log.told == [("delete", f"idu={key}") for key in (1, 2, 8, 9)]
    assert log.statuses == left
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("2 rows of the event log, record_id 1, 2, are not what was read by that number")


def test_a_row_that_is_altered_between_a_poll_and_its_delivery_is_read_again(log: Log) -> None:
    publication = log.publication()
    publication.setup()
    log.write(2, "idu=1", "fname", "Ann", "Bob")
    broken_off(publication)
    log.lab.source.execute("UPDATE indirect.event_log SET new_value = 'Zoe'")

    run(publication)

    assert [b"Bob" in document for document in log.documents.values()] == [True, False]
    assert log.statuses == "S"


def test_a_row_with_the_record_id_of_one_that_failed_keeps_its_status_when_that_is_applied(log: Log) -> None:
    pipeline = log.open("apply: {connection: copy}\n")
    pipeline.setup()
    log.write(4, "idu=1")
    waiting, applied = {1}, set[int]()
    with closing(EventLogSource(pipeline._source.journal, Queue(waiting, applied))) as source:
        source.join(history(0))
        part = source.next_slice(START, Limit())
        assert part is not None
        source.settle(part.end)
        log.lab.source.execute(BEGUN_ANEW)
        log.write(9, "idu=2")
        log.lab.source.execute("UPDATE indirect.event_log SET status = 'E'")
        waiting.clear()
        applied.add(1)
        assert source.next_slice(Scn(source.tick()), Limit()) is None

    assert log.statuses == "E"


def broken_off(publication: Any) -> None:
    """Poll, and break off before anything is delivered."""

    def break_off(_: Any) -> None:
        raise OperatorError("no space left", where="sink", do="make room")

    journal = publication._log.journal
    with closing(Channel(journal.open_log(), journal.settings, break_off)) as channel, pytest.raises(OperatorError):
        channel.cycle()


FOREIGN = """
CREATE TABLE indirect.event_log (record_id numeric, status text, event_type text, event_time timestamp,
  perpetrator text, table_name text, table_key text, column_name text, old_value text, new_value text)
"""


@pytest.mark.rule("E-9")
def test_rows_that_no_status_can_be_written_to_stay_and_are_told(log: Log, caplog: Any) -> None:
    log.lab.source.execute(FOREIGN)
    pipeline = log.publication()
    pipeline.setup()
    for record_id in ("1", None, "2.5", "1e30", "NaN", "3"):
        row = "INSERT INTO indirect.event_log VALUES (%s, 'N', '4', now(), NULL, 'usr', 'idu=1')"
        log.lab.source.execute(row, [record_id])

    with caplog.at_level(logging.WARNING):
        run(pipeline)

    rows = log.lab.source.execute(
        "SELECT record_id::text, status FROM indirect.event_log ORDER BY event_log.record_id"
    ).fetchall()
    assert rows == [
        ("1", "S"),
        ("2.5", "N"),
        ("3", "S"),
        ("1000000000000000000000000000000", "N"),
        ("NaN", "N"),
        (None, "N"),
    ]
    assert [record.getMessage().partition(" cannot")[0] for record in caplog.records] == ["4 rows of the event log"]


@pytest.mark.rule("E-3")
@pytest.mark.parametrize(("more", "expected"), [("", "SSSSS"), (", future_events: true", "NSNSE")])
def test_times_that_no_program_can_hold_are_times(log: Log, more: str, expected: str) -> None:
    log.lab.source.execute(FOREIGN)
    pipeline = log.publication(more)
    pipeline.setup()
    for id_, time in enumerate(("infinity", "-infinity", "294276-12-31", "4713-01-01 BC", None), start=1):
        log.lab.source.execute(
            "INSERT INTO indirect.event_log VALUES (%s, 'N', '4', %s, NULL, 'usr', %s)", [id_, time, f"idu={id_}"]
        )

    run(pipeline)

    assert log.statuses == expected
    assert pipeline.status().lag_s is not None


SESSION = """
SET extra_float_digits = -5; SET datestyle = 'German'; SET intervalstyle = 'postgres_verbose';
SET bytea_output = 'escape'; SET timezone = 'Asia/Kolkata'
"""

KINDS = """
CREATE TABLE indirect.kinds (k float8 PRIMARY KEY, i interval, d date, tz timestamptz, days date[], photos bytea[]);
CREATE TABLE indirect.many (k float8 REFERENCES indirect.kinds, f float8)
"""


def test_triggers_write_the_same_whatever_the_session_of_the_writer_says(log: Log) -> None:
    log.lab.source.execute(KINDS)
    pipeline = log.publication(', batch_size: 9, time_syntax: 3, triggers: {"indirect.*": fields}')
    pipeline.setup()
    with psycopg.connect(log.lab.source_url, autocommit=True) as writer:
        writer.execute(SESSION)
        writer.execute(
            "INSERT INTO indirect.kinds VALUES (0.1::float8 + 0.2, '1 day 2 hours', '2024-03-01',"
            " '2024-03-01 08:30:00+00', '{2024-03-01}', ARRAY['\\x00ff'::bytea])"
        )
        writer.execute("INSERT INTO indirect.many VALUES (0.1::float8 + 0.2, 1.0::float8 / 3)")

    run(pipeline)

    (document,) = log.documents.values()
    values = {
        attribute.name: attribute.operations[0].values[0].text
        for event in read_document(document)
        for attribute in event.attributes
    }
    assert values == {
        "i": "P1DT2H",
        "d": "2024-03-01",
        "tz": "2024-03-01 08:30:00.0",
        "days": "{2024-03-01}",
        "photos": '{"\\\\x00ff"}',
        "many.f": "0.3333333333333333",
    }
    assert {key for _, key in log.told} == {"k=0.30000000000000004"}
