"""What a run says: lines for people, JSON for programs, an exit code for scripts; never a row value."""

from __future__ import annotations

import json
import re
import signal

from penstock.events import Event
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
        r" queue: change 2 of 2, update of public\.customer: 26786 ",
        queued,
    ), queued
    assert queued.endswith(f"`penstock errors show {entry['id']}` shows it whole")
    assert "1 error (1 in the error queue), 1 conflict, 2 transactions" in lines[-2]
    assert "secret" not in run.said

    caught_up = program("run", "--until-caught-up")
    assert caught_up.code == 5
    assert "caught up: 0 errors (1 in the error queue)" in caught_up.out
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


def test_what_the_target_lacks_is_said_before_a_change_fails(lab: Lab, program: Program) -> None:
    lab.source.execute(SHOP)
    assert program("setup").code == 0
    with program.start("run") as run:
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
    assert run.said.count("lacks column") == 1
