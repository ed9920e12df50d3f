"""Statements that are run after a poll of an event log: when, and what is not lost where one fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline_file import parse
from penstock.position import START, Limit, Scn
from penstock.sources.event_log.channel import Channel
from penstock.sources.event_log.source import EventLogSource
from penstock.wiring import open_pipeline
from tests.lab import Lab
from tests.stories.test_event_log import Log, Queue, history, run

COUNT = "INSERT INTO indirect.ran DEFAULT VALUES"


@pytest.fixture
def log(lab: Lab, tmp_path: Path) -> Log:
    folder = tmp_path / "xds"
    folder.mkdir()
    made = Log(lab, folder)
    lab.source.execute("CREATE TABLE indirect.ran (at timestamptz DEFAULT now())")
    return made


def runs(log: Log) -> int:
    """How often the statement that counts was run."""
    row = log.lab.source.execute("SELECT count(*) FROM indirect.ran").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.rule("E-22")
def test_statements_run_after_each_poll_that_had_events_and_after_no_other(log: Log) -> None:
    clean_up = "DELETE FROM indirect.event_log WHERE status = 'S' AND table_key LIKE 'idu=%'"
    pipeline = log.publication(f""", query_limit: 2, post_poll: ["{clean_up}", VACUUM indirect.event_log, "{COUNT}"]""")
    pipeline.setup()
    log.write(6, "idu=1")
    log.write(9, "idu=1")
    run(pipeline)
    assert (runs(log), log.statuses) == (0, "WE")

    for key in range(3):
        log.write(4, f"idu={key}")
    run(pipeline)

    # Two polls, as a poll takes two rows.
    assert (runs(log), log.statuses) == (2, "WE")
    run(pipeline)
    assert runs(log) == 2
    assert log.told == [("delete", "idu=0"), ("delete", "idu=1"), ("delete", "idu=2")]


@pytest.mark.rule("E-22")
def test_a_statement_that_fails_is_told_and_loses_nothing(log: Log, caplog: Any) -> None:
    failing = ["DELETE FROM indirect.secret", "BEGIN; DELETE FROM indirect.event_log", "SELECT 'hidden'::integer"]
    pipeline = log.publication(f", post_poll: {[*failing, COUNT]}")
    pipeline.setup()
    log.write(4, "idu=1")

    with caplog.at_level(logging.WARNING):
        run(pipeline)

    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3
    reasons = ("secret", "leaves a transaction open", "invalid text")
    for number, (text, why) in enumerate(zip(told, reasons, strict=True), start=1):
        assert f"statement {number} of capture.event_log.post_poll failed" in text
        assert why in text
        assert "hidden" not in text
    assert (log.statuses, runs(log), log.told) == ("S", 1, [("delete", "idu=1")])
    log.write(4, "idu=2")
    run(pipeline)
    assert (log.statuses, runs(log), len(log.told)) == ("SS", 2, 2)


@pytest.mark.rule("E-22")
def test_nothing_runs_for_events_that_were_not_delivered_until_they_are(log: Log) -> None:
    pipeline = log.publication(f', post_poll: ["{COUNT}"]')
    pipeline.setup()
    journal = pipeline._log.journal  # type: ignore[attr-defined]
    log.write(4, "idu=1")

    def break_off(documents: Sequence[tuple[Scn, Sequence[str]]]) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        Channel(journal.open_log(), journal.settings, break_off).cycle()

    assert (runs(log), log.statuses) == (0, "N")
    run(pipeline)
    assert (runs(log), log.statuses) == (1, "S")


@pytest.mark.rule("E-22")
def test_with_apply_they_run_when_the_last_event_of_a_poll_is_settled_also_by_the_next_run(log: Log) -> None:
    pipeline = log.open("apply: {connection: copy}\n", f', query_limit: 2, post_poll: ["{COUNT}"]')
    pipeline.setup()
    journal = pipeline._source.journal
    with closing(EventLogSource(journal, Queue(set()))) as source:
        joined = source.join(history(0))
        for key in (1, 2, 3):
            log.write(4, f"idu={key}")
        part = source.next_slice(START, Limit())
        assert part is not None
        assert len(part) == 2
        source.free(Scn(1), "c")
        assert (runs(log), log.statuses) == (0, "SNN")
        rest = source.next_slice(part.end, Limit())
        assert rest is not None
        assert (runs(log), log.statuses) == (1, "SSN")

    # What was applied before a crash is settled by the next run.
    with closing(EventLogSource(journal, Queue(set()))) as source:
        source.join(history(int(rest.end), joined.origin))
        assert (runs(log), log.statuses) == (2, "SSS")
        source.free(rest.end, "c")
        assert source.next_slice(rest.end, Limit()) is None
        assert runs(log) == 2


def test_the_name_of_who_connects_is_compared_in_the_case_that_the_log_has_it_in(log: Log) -> None:
    user = log.lab.source.info.user
    text = log.text(f"publish: {{to: files, path: {log.folder}, format: xds}}\n", ", force_username_case: upper")
    environment = {"SHOP_URL": log.lab.source_url, "COPY_URL": log.lab.target_url}
    pipeline = open_pipeline(
        parse(text.replace("driver_user: idm, ", ""), name="pipeline.yaml", environment=environment)
    )
    pipeline.setup()
    log.lab.source.execute(
        "INSERT INTO indirect.event_log (event_type, table_name, table_key, perpetrator)"
        " VALUES (4, 'usr', 'idu=1', %s), (4, 'usr', 'idu=2', %s)",
        [user, user.upper()],
    )

    run(pipeline)

    assert (log.told, log.statuses) == ([("delete", "idu=1")], "SN")
