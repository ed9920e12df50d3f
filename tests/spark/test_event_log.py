"""`format("penstock.event_log")`: a log as Spark reads it, once and on and on, and the status of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.change import TableName
from penstock.dialects.postgres.source.event_log_setup import log_step
from penstock.errors import ConfigError, OperatorError
from penstock.formats.xds.reader import read_document
from penstock.formats.xds.writer import document_of
from penstock.sources.event_log.settings import EventLogSettings
from penstock.wiring import EventLogTable, register_sources
from tests.lab import Lab
from tests.spark.streams import take_what_is_there

FORMAT = "penstock.event_log"

TABLES = """
CREATE SCHEMA indirect;
CREATE TABLE indirect.usr (idu integer PRIMARY KEY, fname varchar(64), seen timestamp);
CREATE TABLE indirect.usr_phone (idu integer REFERENCES indirect.usr, phoneno text);
"""


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register_sources(spark)


class Log:
    """An event log at the source of a lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        lab.source.execute(TABLES)
        lab.source.execute(log_step(EventLogSettings(TableName("indirect", "event_log"))).sql)
        self.options: dict[str, str] = {
            "url": lab.source_url,
            "table": "indirect.event_log",
            "journal": "lake",
            "driverUser": "idm",
        }

    def write(
        self, type_: int, key: int, column: str | None = None, old: str | None = None, new: str | None = None
    ) -> None:
        self.lab.source.execute(
            "INSERT INTO indirect.event_log (event_type, table_name, table_key, column_name, old_value, new_value)"
            " VALUES (%s, 'usr', %s, %s, %s, %s)",
            [type_, f"idu={key}", column, old, new],
        )

    @property
    def statuses(self) -> str:
        rows = self.lab.source.execute("SELECT status FROM indirect.event_log ORDER BY record_id").fetchall()
        return "".join(status for (status,) in rows)

    def stream(self, **options: str) -> Any:
        """What Spark's driver talks to."""
        made = EventLogTable(self.options | options)
        return made.streamReader(made.schema())


@pytest.fixture
def log(lab: Lab) -> Log:
    return Log(lab)


@pytest.mark.rule("E-20")
def test_a_stream_consumes_the_log_and_goes_on_where_it_stood(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    sink, checkpoint = str(tmp_path / "sink"), str(tmp_path / "checkpoint")

    def run() -> None:
        frame = spark.readStream.format(FORMAT).options(**log.options, queryLimit="2", readPartitions="2").load()
        take_what_is_there(frame, sink=sink, checkpoint=checkpoint)

    log.lab.source.execute("INSERT INTO indirect.usr VALUES (1, 'Ann', '2024-01-02 03:04:05.678')")
    log.write(5, 1)
    log.write(2, 2, "fname", "A", "B")
    log.write(9, 3)
    log.write(4, 4)
    run()
    log.lab.source.execute("UPDATE indirect.usr SET fname = 'later'")
    log.write(4, 5)
    run()

    rows = spark.read.parquet(sink).orderBy("commit_scn").collect()
    images = [(row.op, row.before and json.loads(row.before), row.after and json.loads(row.after)) for row in rows]
    assert images == [
        ("insert", None, {"idu": "1", "fname": "Ann", "seen": "2024-01-02T03:04:05.678000"}),
        ("update", {"idu": "2", "fname": "A"}, {"fname": "B"}),
        ("delete", {"idu": "4"}, None),
        ("delete", {"idu": "5"}, None),
    ]
    assert {(row.source, row.schema_name, row.table_name) for row in rows} == {
        ("indirect.event_log", "indirect", "usr")
    }
    # As the batch below has it.
    assert [row.key for row in rows] == ['{"idu":"1"}', '{"idu":"2"}', '{"idu":"4"}', '{"idu":"5"}']
    assert log.statuses == "SSESS"


@pytest.mark.rule("E-20")
def test_a_batch_shows_what_a_poll_would_find_and_consumes_nothing(spark: SparkSession, log: Log) -> None:
    log.write(2, 1, "fname", "A", "B")
    log.write(9, 1)
    log.write(4, 2)
    del log.options["journal"]

    changes = spark.read.format(FORMAT).options(**log.options, source="mine").load().orderBy("commit_scn").collect()
    events = spark.read.format(FORMAT).options(**log.options, format="xds").load().orderBy("position").collect()

    assert [(row.source, row.op, row.key) for row in changes] == [
        ("mine", "update", '{"idu":"1"}'),
        ("mine", "delete", '{"idu":"2"}'),
    ]
    assert [(row.position, row.record_ids) for row in events] == [(1, [1]), (2, [3])]
    told = read_document(document_of(row.event for row in events))
    assert [(event.kind.value, event.association.partition(",")[0]) for event in told] == [
        ("modify", "idu=1"),
        ("delete", "idu=2"),
    ]
    assert log.statuses == "NNN"


def rows_of(stream: Any, start: Any, end: Any) -> list[Any]:
    partitions = stream.partitions(start, end)
    return [row for part in partitions for batch in stream.read(part) for row in batch.to_pylist()]


@pytest.mark.rule("E-15")
def test_what_was_polled_before_a_crash_is_read_again_in_the_same_words(log: Log) -> None:
    log.lab.source.execute("INSERT INTO indirect.usr VALUES (1, 'before')")
    log.write(6, 1)
    stream = log.stream(format="xds")
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    first = rows_of(stream, start, end)
    log.lab.source.execute("UPDATE indirect.usr SET fname = 'after'")
    log.write(4, 2)
    stream.stop()

    again = log.stream(format="xds")
    # Whether Spark had written down what it planned, or begins anew.
    assert again.initialOffset() == start
    assert again.latestOffset(start, again.getDefaultReadLimit()) == end
    assert rows_of(again, start, end) == first
    assert "before" in first[0]["event"]
    assert log.statuses == "NN"
    again.commit(end)
    assert log.statuses == "SN"
    later = again.latestOffset(end, again.getDefaultReadLimit())
    assert [row["position"] for row in rows_of(again, end, later)] == [2]

    with pytest.raises(OperatorError, match="does not hold all events from position 0 to 1"):
        again.partitions(start, end)
    with pytest.raises(OperatorError, match="checkpoint is of another journal"):
        again.partitions({"journal": "other", "position": 0}, end)
    again.stop()


def test_a_stream_does_not_poll_into_a_journal_that_was_restored_to_an_older_state(log: Log) -> None:
    log.write(4, 1)
    stream = log.stream()
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    stream.stop()
    log.lab.source.execute(
        "DELETE FROM penstock_lake_events.event; UPDATE penstock_lake_events.journal SET position = 0"
    )

    with pytest.raises(OperatorError, match="stands at position 0, before position 1, which the checkpoint has"):
        log.stream().latestOffset(end, stream.getDefaultReadLimit())


def test_a_checkpoint_that_was_restored_to_an_older_state_is_refused_though_no_row_came_since(log: Log) -> None:
    log.write(2, 1, "fname", "A", "B")
    reader = log.stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    reader.commit(end)
    assert log.statuses == "S"

    for asked in (start, end):
        again = log.stream()
        again.prepareForTriggerAvailableNow()
        if asked == end:
            assert again.latestOffset(asked, None) == end
        else:
            with pytest.raises(OperatorError, match=r"does not hold what follows position 0, .* up to 1 were settled"):
                again.latestOffset(asked, None)


def test_a_journal_is_read_in_the_format_in_which_it_was_polled(log: Log) -> None:
    log.write(4, 1)
    stream = log.stream()
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    stream.stop()

    with pytest.raises(OperatorError, match="does not hold these events as XDS elements"):
        rows_of(log.stream(format="xds"), start, end)


@pytest.mark.rule("E-16")
def test_a_log_that_another_pipeline_reads_is_refused(log: Log) -> None:
    first = log.stream()
    first.initialOffset()
    first.stop()

    with pytest.raises(OperatorError, match="pipeline 'lake' reads this event log already"):
        log.stream(journal="other").initialOffset()


@pytest.mark.rule("E-1")
def test_a_log_that_lacks_a_column_does_not_start(spark: SparkSession, log: Log) -> None:
    log.lab.source.execute("ALTER TABLE indirect.event_log RENAME old_value TO ov")

    with pytest.raises(OperatorError, match="lacks 'old_value'"):
        log.stream().initialOffset()
    with pytest.raises(PySparkException, match="lacks 'old_value'"):
        spark.read.format(FORMAT).options(**log.options).load().count()
    assert log.stream(columns='{"old_value": "ov"}').initialOffset()["position"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": ""}, "option 'url' of penstock.event_log is missing"),
        ({"journal": ""}, "option 'journal' of penstock.event_log is missing"),
        ({"journal": "No"}, "option 'journal' of penstock.event_log must be lower-case"),
        ({"readPartition": "2"}, "no option of penstock.event_log: 'readPartition'; did you mean 'readPartitions'?"),
        ({"table": "nodot"}, "option 'table' of penstock.event_log"),
        ({"queryLimit": "-1"}, "option 'queryLimit' of penstock.event_log: must be greater"),
        ({"columns": "[x"}, "option 'columns' of penstock.event_log must be a JSON object"),
        ({"postPoll": "VACUUM"}, "option 'postPoll' of penstock.event_log must be a JSON array of texts"),
        ({"postPoll": '[""]'}, "option 'postPoll' of penstock.event_log"),
        ({"forceUsernameCase": "UPPER"}, "option 'forceUsernameCase' of penstock.event_log: must be 'upper'"),
        ({"format": "json"}, "option 'format' of penstock.event_log must be changes or xds"),
        ({"type": "db2"}, "option 'type' must be postgres"),
        ({"layout": "A", "columns": '{"status": "st"}'}, "columns goes by names"),
        ({"timesOfDay": "06:00:00, 25:00:00"}, "option 'timesOfDay' of penstock.event_log"),
        ({"readPartitions": "0"}, "option 'readPartitions' of penstock.event_log must be a whole number"),
    ],
)
def test_what_is_wrong_with_an_option_is_said(options: dict[str, str], said: str) -> None:
    given = {"url": "host=nowhere", "table": "indirect.event_log", "journal": "lake"}

    with pytest.raises(ConfigError) as caught:
        EventLogTable.reading(given | options, is_stream=True)

    assert said in str(caught.value)


def test_settings_are_those_of_a_pipeline_file_in_camel_case() -> None:
    given = {
        "url": "host=nowhere",
        "table": "indirect.event_log",
        "journal": "lake",
        "tables": "a.*, b.c",
        "futureevents": "true",
        "TIMESYNTAX": "2",
        "format": "xds",
        "keys": '{"indirect.view_usr": ["pk_empno"]}',
        "timesOfDay": "06:00:00,12:30:00",
        "deleteProcessed": "true",
        "pollingIntervalS": "0.5",
        "driverUser": "Idm",
        "forceUsernameCase": "upper",
        "postPoll": '["DELETE FROM indirect.event_log WHERE status = \'S\'", "VACUUM indirect.event_log"]',
    }

    reading = EventLogTable.reading(given, is_stream=True)

    made: Any = reading.journal
    settings = made.settings
    assert (made.patterns, reading.is_xds) == (("a.*", "b.c"), True)
    assert (settings.future_events, settings.time_syntax, settings.delete_processed) == (True, 2, True)
    assert settings.keys == {TableName("indirect", "view_usr"): ("pk_empno",)}
    assert (settings.times_of_day, settings.polling_interval_s) == ((21600, 45000), 0.5)
    assert settings.suppressed_user == "IDM"
    assert settings.post_poll == (
        "DELETE FROM indirect.event_log WHERE status = 'S'",
        "VACUUM indirect.event_log",
    )
