"""What a run says: lines for people, JSON for programs, an exit code for scripts; never a row value."""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from penstock.apply.lag_histogram import LagHistogram
from penstock.apply.lane import LaneResult
from penstock.apply.progress import Progress
from penstock.cli.logs import LogFormat, logging_to_console
from penstock.cli.main import silence_spark
from penstock.errors import OperatorError
from penstock.events import Event, logger, tell
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.report import Report, describe, facts
from penstock.position import Scn
from tests.lab import Lab
from tests.program import Program, await_true

SHOP = """
CREATE TABLE customer (id int PRIMARY KEY, name text);
CREATE TABLE visit (id int PRIMARY KEY, customer int);
INSERT INTO customer SELECT n, 'secret' FROM generate_series(1, 20) n;
"""

_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) ")


def fail(lab: Lab) -> None:
    """Commit a transaction whose second change finds another row than expected, and one behind it that flows on."""
    lab.target.execute("UPDATE customer SET name = 'secret of the target' WHERE id = 1")
    with lab.source.transaction():
        lab.source.execute("INSERT INTO visit VALUES (1, 1); UPDATE customer SET name = 'secret too' WHERE id = 1")
    lab.source.execute("INSERT INTO visit VALUES (2, 2)")


def test_each_transaction_that_goes_to_the_error_queue_is_a_line(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    with program.start("run") as run:
        run.await_line("following")
        fail(lab)
        await_true(lambda: lab.target.execute("SELECT FROM visit WHERE id = 2").rowcount == 1)
        run.await_line("up to date")
        # The last state is said, also when it is younger than a line may be.
        lab.source.execute("INSERT INTO visit VALUES (3, 3)")
        run.await_line("2 transactions, 2 changes")
        assert run.end(signal.SIGTERM) == 0, run.said
    lines = run.said.splitlines()
    assert all(_LINE.match(line) for line in lines), run.said
    (queued,) = (line for line in lines if "went to the error queue" in line)
    (entry,) = program("errors", "list", "--json").json
    assert re.search(
        rf"WARNING transaction {entry['id']} \({entry['txn_id']} at the source, committed .*\) went to the error"
        r" queue: change 2 of 2, update of public\.customer: error 26786, ",
        queued,
    ), queued
    assert queued.endswith(f"`penstock errors show {entry['id']}` shows it whole")
    assert "1 error (1 in the error queue), 2 transactions" in lines[-2]
    assert "secret" not in run.said

    caught_up = program("run", "--until-caught-up")
    assert caught_up.code == 5
    assert "caught up: 1 in the error queue" in caught_up.out
    # When it starts, as a run that was killed may not have said so, and when it ends.
    assert caught_up.err.count("the error queue holds 1 transaction; `penstock errors list` says why") == 2
    lab.target.execute("UPDATE customer SET name = 'secret' WHERE id = 1")
    assert program("errors", "retry", "--all").code == 0
    assert program("run", "--until-caught-up").code == 0
    lab.assert_identical("customer", "visit")


def test_the_log_as_json(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 0
    fail(lab)
    done = program("run", "--until-caught-up", "--log-format", "json")
    assert done.code == 5
    events = [json.loads(line) for line in done.out.splitlines()]
    assert all(list(event)[:4] == ["time", "level", "event", "message"] for event in events)
    assert [e["event"] for e in events] == [
        Event.APPLY_STARTED,
        Event.TRANSACTION_QUEUED,
        Event.APPLY_PROGRESSED,
        Event.RUN_CAUGHT_UP,
        Event.NOTE,
    ]
    queued, ended = events[1], events[3]
    assert (queued["table"], queued["op"], queued["error_number"]) == ("public.customer", "update", 26786)
    assert (queued["message_number"], queued["message_count"], queued["level"]) == (2, 2, "WARNING")
    assert (ended["transactions"], ended["errors"], ended["in_queue"]) == (1, 1, 1)
    assert "secret" not in done.out + done.err

    lab.target.execute("DROP SCHEMA penstock CASCADE")
    failed = program("run", "--log-format", "json")
    assert failed.code == 3
    (event,) = (json.loads(line) for line in failed.out.splitlines())
    assert (event["event"], event["level"]) == (Event.RUN_FAILED, "ERROR")
    assert event["do"]
    assert failed.err.startswith("penstock: ")


def test_the_error_that_a_run_stopped_at_is_named_by_its_id(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    path = program.folder / "pipeline.yaml"
    path.write_text(path.read_text() + "  disable_on_error: true\n")
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 0
    fail(lab)
    stopped = program("run")
    assert stopped.code == 3
    (entry,) = program("errors", "list", "--json").json
    assert f"apply stopped at the first error, as disable_on_error asks: transaction {entry['id']}: " in stopped.err
    assert _LINE.match(stopped.err.splitlines()[-1])
    assert program("errors", "delete", entry["id"]).code == 0
    goes_on = program("run", "--until-caught-up")
    assert goes_on.code == 0
    assert "goes on behind it\n" in goes_on.err
    assert "error queue" not in goes_on.err


def test_a_run_stops_at_max_errors_with_a_code_of_its_own_and_few_lines(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    assert program("run", "--until-caught-up").code == 0
    assert program("apply", "set", "max_errors", "30").code == 0
    lab.source.execute("INSERT INTO customer SELECT n, 'secret' FROM generate_series(101, 150) n")
    assert program("run", "--until-caught-up").code == 0
    lab.target.execute("DELETE FROM customer WHERE id > 100")
    lab.source.execute(
        "DO $$BEGIN FOR i IN 101..150 LOOP UPDATE customer SET name = 'other' WHERE id = i; COMMIT; END LOOP; END$$"
    )

    stopped = program("run", "--until-caught-up")

    assert stopped.code == 6, stopped.err
    assert "this run has put 30 transactions into the error queue (max_errors 30)" in stopped.err
    queued = [line for line in stopped.err.splitlines() if "went to the error queue" in line]
    assert len(queued) == 2
    assert "(and 28 more like it in the last " in queued[1]
    assert len(lab.errors()) == 30
    assert program("status", "--json").json["reason"].startswith("apply stopped: this run has put 30 transactions")
    # The next one goes on behind them, and counts anew.
    assert program("run", "--until-caught-up").code == 5
    assert len(lab.errors()) == 50


def test_what_the_target_lacks_is_said_before_a_change_fails(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    with program.start("run", "--log-format", "json") as run:
        run.await_line("following")
        lab.source.execute("ALTER TABLE visit ADD COLUMN place text; CREATE TABLE later (id int)")
        # Nothing is written meanwhile.
        run.await_line("table public.visit lacks column 'place' at the target", 60)
        run.await_line("public.later is not captured", 60)
        status = program("status", "--json").json
        assert [line.split(" ")[1] for line in status["attention"][:1]] == ["public.visit"]
        assert "public.later is not captured" in status["attention"][1]
        assert "needs attention" in program("status").out
        lab.target.execute("ALTER TABLE visit ADD COLUMN place text")
        lab.source.execute("DROP TABLE later; INSERT INTO visit VALUES (1, 1, 'here')")
        await_true(lambda: lab.target.execute("SELECT FROM visit WHERE place = 'here'").rowcount == 1)
        assert program("status", "--json").json["attention"] == []
        assert run.end() == 0, run.said
    events = [json.loads(line) for line in run.said.splitlines() if line.startswith("{")]
    (lacks,) = (event for event in events if event["event"] == Event.TARGET_LACKS)
    assert (lacks["table"], lacks["columns"]) == ("public.visit", ["place"])
    missing = [event for event in events if event["event"] == Event.TABLE_NOT_CAPTURED]
    assert [(event["table"], event["reason"]) for event in missing] == [
        ("public.later", "it was made after setup, or setup has left it out; run `penstock setup`")
    ]


class Kept(logging.Handler):
    """Keeps what a program finds in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def events(self) -> list[str]:
        return [record.event for record in self.records]


@pytest.fixture
def log() -> Iterator[Kept]:
    kept, level = Kept(), logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    yield kept
    logger.removeHandler(kept)
    logger.setLevel(level)


@pytest.mark.usefixtures("spark")
def test_a_program_finds_in_its_log_how_a_run_ended(lab: Lab, log: Kept) -> None:
    lab.source.execute(SHOP)
    lab.pipeline().setup()
    lab.pipeline().start(until_caught_up=True).wait()
    fail(lab)
    lab.pipeline().start(until_caught_up=True).wait()
    assert log.events[-3:] == [Event.APPLY_PROGRESSED, Event.RUN_CAUGHT_UP, Event.NOTE]
    assert (log.records[-2].facts["errors"], log.records[-2].facts["in_queue"]) == (1, 1)

    with lab.pipeline().start():
        await_true(lambda: log.events[-1] == Event.APPLY_IDLE)
    assert log.events[-2:] == [Event.RUN_STOPPED, Event.NOTE]

    lab.target.execute("DROP SCHEMA penstock CASCADE")
    with pytest.raises(OperatorError):
        lab.pipeline().run(threading.Event())
    (failed,) = (record for record in log.records if record.event == Event.RUN_FAILED)
    assert failed.levelno == logging.ERROR
    assert failed.facts["what"] == "there is no ledger"


def test_what_was_not_said_yet_is_said_before_an_error_that_nobody_foresaw(
    lab: Lab, log: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_unforeseen(_: object, __: object, listener: Report, **___: object) -> None:
        listener.progressed(Progress(Scn(1), changes=1))
        listener.progressed(Progress(Scn(2), changes=2))
        raise ValueError("secret")

    monkeypatch.setattr(Pipeline, "_run", fail_unforeseen)
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = lab.pipeline()
    pipeline.setup()
    lab.ledger.acquire("lab", lanes=1)
    lab.ledger.close()
    with pytest.raises(ValueError, match="secret"):
        pipeline.run(threading.Event())
    assert pipeline.status().reason == ("an unexpected error ended the run: ValueError. Its traceback says where")
    assert log.events == [Event.APPLY_PROGRESSED, Event.APPLY_PROGRESSED, Event.RUN_FAILED]
    assert log.records[1].facts["changes"] == 2
    assert "ended the run: ValueError" in log.records[2].getMessage()
    assert not any("secret" in record.getMessage() for record in log.records)


@pytest.mark.parametrize(("lag_s", "said"), [(2, r"applying, lag 2\.\d\d s, "), (8e7, r"applying, lag 9.. d \d+ h, ")])
def test_a_line_begins_with_state_and_lag_in_units_that_a_person_reads(log: Kept, lag_s: float, said: str) -> None:
    progress = Progress(Scn(1), transactions=1, changes=1)
    progress.lag.add(np.array([lag_s * 1e6], np.int64))
    Report(every_s=0).progressed(progress)
    assert re.match(said, log.records[-1].getMessage())


def test_a_line_tells_the_lag_of_what_was_applied_since_the_last_one(log: Kept) -> None:
    """Else one slow batch at the start would stand there for ever."""
    report, progress = Report(every_s=0), Progress(Scn(1))
    for number, lag_s in enumerate((9, 0.1), start=1):
        progress.transactions = progress.changes = number
        progress.lag.add(np.array([lag_s * 1e6], np.int64))
        report.progressed(progress)
    report.waiting(progress)

    slow, quick, idle = (record.getMessage() for record in log.records)
    assert re.match(r"applying, lag 9\.\d\d s, ", slow)
    assert re.match(r"applying, lag 0\.1\d s, ", quick)
    assert re.match(r"up to date, \S+/s, 2 transactions, 2 changes", idle)


def test_a_copy_says_how_far_it_is_and_how_long_it_takes(log: Kept) -> None:
    now = 100.0
    report = Report(clock=lambda: now)
    report.copying(5, 1)
    now += 6
    report.copied(3, 1_200)
    report.copied(2, 300)
    report.copying(1, 1)
    report.copied(1, 7)

    assert [record.getMessage() for record in log.records] == [
        "copying 1 table in 5 chunks",
        "copying 3/5 chunks, 60 %, 1,200 rows, 4 s left",
        "copied 5 chunks, 1,500 rows",
        "copying 1 table in 1 chunk",
        "copied 1 chunk, 7 rows",
    ]
    assert log.records[1].facts == {"chunks": 3, "rows": 1_200, "of_chunks": 5, "done_chunks": 3}


def test_of_what_was_committed_before_the_run_began_no_lag_is_told_but_its_time() -> None:
    progress = Progress(Scn(1))
    # Recorded 330 days ago, and applied at once.
    year, second = LagHistogram(), LagHistogram()
    year.add(np.array([330 * 86_400 * 1e6], np.int64))
    second.add(np.array([1e3], np.int64))
    progress.add([LaneResult(transactions=1, lag=year)], datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert describe(progress).endswith("as of 2026-01-01 12:00:00 UTC, 1 transaction, 0 changes")
    assert facts(progress)["lag_p50_s"] is None

    progress.began_at -= timedelta(seconds=2)
    progress.add([LaneResult(transactions=1, lag=second)], datetime.now(UTC) - timedelta(seconds=1))
    assert "as of" not in describe(progress)


def test_the_result_in_json_is_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to_console(LogFormat.JSON, quiet=True):
        tell(Event.NOTE, "said on the way", level=logging.WARNING)
        tell(Event.APPLY_STARTED, "not said")
    said = capsys.readouterr()
    assert said.out == ""
    assert [json.loads(line)["message"] for line in said.err.splitlines()] == ["said on the way"]


def test_what_java_s_gateway_logs_without_a_name_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    silence_spark()
    try:
        for path, said in (("/venv/py4j/java_gateway.py", "of the gateway"), ("/home/my_rules.py", "of a step")):
            root.handle(logging.LogRecord("root", logging.ERROR, path, 1, said, (), None))
    finally:
        root.removeFilter(root.filters[-1])

    assert caplog.messages == ["of a step"]
