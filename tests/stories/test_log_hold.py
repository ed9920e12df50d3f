"""Who keeps the log at the source, and for how long, is said in time; beyond a limit it is given up."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from datetime import timedelta

import psycopg
import pytest

from penstock.alerts.alerts import Alerts
from penstock.alerts.config import BodyFormat
from penstock.alerts.receivers import Webhook
from penstock.apply.listener import RunListener
from penstock.apply.progress import Progress
from penstock.dialects.sessions import HoldWatch
from penstock.errors import ConfigError, OperatorError, PenstockError
from penstock.events import Event, SourceFacts
from penstock.history import Consumer, LogHold, OpenTransaction
from penstock.pipeline.health import ProblemKind, problems
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline_file import parse
from penstock.position import Scn
from penstock.wiring import open_pipeline
from tests.alerts.hook import serving
from tests.lab import FILE, Lab

SCHEMA = "CREATE TABLE t (id int PRIMARY KEY, v text)"

NOTHING_ALLOWED = "{warn_gb: 0.0000001, warn_hours: 0.0000001}"
GIVEN_UP_SOON = "{warn_gb: 0.0000001, give_up_gb: 0.0001}"


class Heard(RunListener):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[tuple[Event, str]] = []

    def warned(self, text: str, event: Event = Event.NOTE, facts: SourceFacts | None = None) -> None:
        self.lines.append((event, text))


@pytest.fixture
def away(lab: Lab) -> Lab:
    """A pipeline that has begun, and does not read what was written since."""
    lab.setup(SCHEMA)
    write(lab)
    return lab


def write(lab: Lab, *, first: int = 1) -> None:
    # Text that does not get smaller when it is compressed.
    lab.source.execute(
        "INSERT INTO t SELECT g, (SELECT string_agg(md5((g * 1000 + n)::text), '') FROM generate_series(1, 40) n)"
        " FROM generate_series(%s::int, %s::int) g",
        [first, first + 199],
    )


def pipeline(lab: Lab, log: str, *, name: str | None = None) -> Pipeline:
    text = FILE.format(name=name or lab.name, tables=["public.*"], row_triggers=[])
    text = text.replace("  connection: shop\n", f"  connection: shop\n  log: {log}\n")
    environment = {"SHOP_URL": lab.source_url, "COPY_URL": lab.target_url}
    return open_pipeline(parse(text, name="pipeline.yaml", environment=environment))


def look(of: Pipeline, lab: Lab, heard: RunListener) -> None:
    """Have a pipeline look at the log, and hear what it finds."""
    watch = of._log_watch
    assert watch is not None
    watch._next_at = 0
    watch.look(lab.ledger.consumer, heard)
    assert watch._look is not None
    watch._look.wait()
    watch.look(lab.ledger.consumer, heard)


def open_now(lab: Lab) -> Sequence[OpenTransaction]:
    installed = pipeline(lab, "{}")._installed
    assert installed is not None
    return installed.log_hold(timedelta(0)).open


def test_a_consumer_that_is_away_needs_attention(away: Lab) -> None:
    quiet = pipeline(away, "{}").status()
    found = pipeline(away, NOTHING_ALLOWED).status()

    assert not quiet.attention
    (line,) = found.attention
    assert re.search(r"the log keeps \d\.\d MB, the oldest of it .* old, for consumer " + away.name, line)
    assert f"penstock consumers remove {away.name}" in line
    assert [one.kind for one in problems(found, max_lag_s=1e9, max_errors=0)].count(ProblemKind.ATTENTION) == 1
    (consumer,) = found.to_json()["consumers"]
    assert consumer["size_bytes"] > 200_000
    assert consumer["oldest_at"] is not None


def test_one_that_has_read_all_keeps_nothing(away: Lab) -> None:
    away.apply()
    away.log.free(away.log.tick(), away.ledger.consumer().id)

    found = pipeline(away, "{warn_hours: 0.0000001}").status()
    assert not found.attention
    assert found.consumers[0].oldest_at is None


def test_an_open_transaction_is_named_with_its_session(away: Lab) -> None:
    with psycopg.connect(away.source_url, application_name="nightly report") as other:
        other.execute("SELECT pg_current_xact_id()")
        (one,) = open_now(away)
        assert f"session {other.info.backend_pid} of " in one.holder
        assert one.holder.endswith(", nightly report")
        assert one.since is not None
    assert not open_now(away)


def test_a_run_says_it_once_and_when_it_is_over(away: Lab) -> None:
    heard, one = Heard(), pipeline(away, "{warn_gb: 0.0001}")
    for _ in range(2):
        look(one, away, heard)
    assert [event for event, _ in heard.lines] == [Event.LOG_HELD]
    assert f"for consumer {away.name}" in heard.lines[0][1]

    away.apply()
    away.log.free(away.log.tick(), away.ledger.consumer().id)
    look(one, away, heard)
    assert [event for event, _ in heard.lines] == [Event.LOG_HELD, Event.LOG_HELD]
    assert "keeps no more of the log than it may" in heard.lines[1][1]
    look(one, away, heard)
    assert len(heard.lines) == 2


def test_people_are_told_of_a_consumer_that_is_away_and_when_it_is_back(away: Lab) -> None:
    one = pipeline(away, "{warn_gb: 0.0001}")
    with serving() as hook:
        told = Alerts(
            away.name, Webhook(hook.url, form=BodyFormat.JSON, secret=None, timeout_s=5), every_s=300, end_s=10
        )
        told.began()
        look(one, away, told)
        (firing,) = hook.await_requests(1)

        away.apply()
        away.log.free(away.log.tick(), away.ledger.consumer().id)
        look(one, away, told)
        resolved = hook.await_requests(2)[1]
        told.finished(Progress(Scn(1)), is_stopped=False)

    assert (firing.json["kind"], firing.json["state"]) == ("log_held", "firing")
    assert firing.json["facts"]["consumer"] == away.name
    assert re.search(rf"the log keeps \d\.\d MB.* for consumer {away.name}", firing.json["text"])
    assert (resolved.json["kind"], resolved.json["state"]) == ("log_held", "resolved")
    assert resolved.json["text"].startswith(f"consumer {away.name} (")
    assert "keeps no more of the log than it may" in resolved.json["text"]


def test_a_prepared_transaction_is_named_and_nobody_is_given_up_for_it(away: Lab) -> None:
    away.source.execute("BEGIN; INSERT INTO t VALUES (0, 'prepared'); PREPARE TRANSACTION 'forgotten'")
    try:
        write(away, first=1001)
        away.apply()
        end = away.log.tick()
        away.log.free(end, away.ledger.consumer().id)

        assert [one.holder for one in open_now(away)] == ["prepared transaction 'forgotten' of postgres"]
        assert pipeline(away, GIVEN_UP_SOON).give_up() == []
    finally:
        away.source.execute("COMMIT PREPARED 'forgotten'")

    assert len(list(away.changes(after=end))) == 1
    assert open_now(away) == []


def test_a_slot_that_keeps_no_rows_is_not_named(away: Lab) -> None:
    away.source.execute("SELECT pg_create_physical_replication_slot('unused', true)")
    try:
        assert open_now(away) == []
    finally:
        away.source.execute("SELECT pg_drop_replication_slot('unused')")


class Looking(HoldWatch):
    """Looks for as long as it is let, or fails."""

    def __init__(self, error: PenstockError | None = None) -> None:
        self.error = error
        self.began, self.is_over = threading.Event(), threading.Event()

    def look(self, older: timedelta) -> LogHold | None:
        if self.error is not None:
            raise self.error
        self.began.set()
        self.is_over.wait()
        return None

    def close(self) -> None:
        self.is_over.set()


def test_a_run_does_not_wait_for_a_look_and_ends_it(lab: Lab) -> None:
    one, heard = pipeline(lab, "{}"), Heard()
    looking, watch = Looking(), one._log_watch
    assert watch is not None
    watch._new_watch, watch._next_at = lambda: looking, 0

    for _ in range(3):
        watch.look(lambda: Consumer("a", "b"), heard)
    looking.began.wait(10)
    watch.close()

    assert looking.is_over.is_set()
    assert heard.lines == []


def test_no_look_is_taken_before_its_time(lab: Lab) -> None:
    watch = pipeline(lab, "{}")._log_watch
    assert watch is not None
    watch.look(lambda: Consumer("a", "b"), Heard())
    assert watch._look is None


def test_a_look_that_fails_is_told_once_and_the_run_goes_on(lab: Lab) -> None:
    one, heard = pipeline(lab, "{give_up_gb: 100}"), Heard()
    assert one._log_watch is not None
    one._log_watch._new_watch = lambda: Looking(OperatorError("permission denied", do="grant it"))

    for _ in range(2):
        look(one, lab, heard)

    assert [event for event, _ in heard.lines] == [Event.LOG_HELD]
    assert "permission denied" in heard.lines[0][1]


def test_a_look_is_cancelled_in_the_server(away: Lab) -> None:
    """Waits for a lock, as a look at a long log takes its time."""
    installed = pipeline(away, "{}")._installed
    assert installed is not None
    watch = installed.hold_watch()
    assert watch is not None
    found: list[LogHold | None] = []
    with psycopg.connect(away.source_url) as blocker:
        blocker.execute(f"LOCK TABLE {away.set_name}.log IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=lambda: found.append(watch.look(timedelta(0))))
        thread.start()
        waiting = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name LIKE '%log watch' AND wait_event_type = 'Lock'"
        )
        while away.source.execute(waiting).fetchone() == (0,):
            pass
        watch.close()
        thread.join(10)

    assert found == [None]


def test_another_one_is_given_up_and_this_one_goes_on(away: Lab) -> None:
    forgotten = f"SELECT 'x', 'forgotten', min(scn) FROM {away.set_name}.tick"
    away.source.execute(f"INSERT INTO {away.set_name}.consumer (id, name, scn) {forgotten}")
    away.apply()
    away.log.free(away.log.tick(), away.ledger.consumer().id)
    heard = Heard()

    look(pipeline(away, GIVEN_UP_SOON), away, heard)

    (line,) = [text for event, text in heard.lines if event is Event.LOG_GIVEN_UP]
    assert line.startswith("the log is kept no more for forgotten, which kept 0.")
    assert [state.consumer.name for state in away.log.consumers()] == [away.name]
    write(away, first=1001)
    away.apply()
    assert len(away.rows("t")) == 400


def test_the_last_one_is_given_up_with_the_set(away: Lab) -> None:
    with pytest.raises(OperatorError, match="the log is kept no more for") as caught:
        look(pipeline(away, GIVEN_UP_SOON), away, Heard())
    assert "penstock setup" in str(caught.value.do)
    assert "penstock resync --all" in str(caught.value.do)

    away.log.close()
    assert away.source.execute("SELECT to_regclass(%s)", [f"{away.set_name}.log"]).fetchone() == (None,)
    assert away.source.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)
    # Writers go on, and what follows is the way out that was said.
    write(away, first=1001)
    away.ledger.close()
    again = pipeline(away, GIVEN_UP_SOON)
    again.setup()
    with pytest.raises(OperatorError, match="penstock resync --all"):
        again.run(threading.Event(), Heard(), until_caught_up=True)
    again.resync()
    pipeline(away, "{}").run(threading.Event(), Heard(), until_caught_up=True)
    assert len(away.rows("t")) == 400


def test_a_command_does_it_where_no_run_is_up(away: Lab) -> None:
    with pytest.raises(OperatorError, match="sets no limit"):
        pipeline(away, "{}").give_up()
    assert pipeline(away, "{give_up_gb: 100}").give_up() == []
    (state,) = pipeline(away, GIVEN_UP_SOON).give_up()
    assert state.consumer.name == away.name
    assert pipeline(away, "{}").status().state == "not set up"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("{warn_gb: 5, give_up_gb: 5}", "must be more than warn_gb"),
        ("{warn_gb: 0}", "greater than 0"),
        ("{warn_days: 1}", "warn_days"),
    ],
)
def test_limits_that_make_no_sense_are_refused(lab: Lab, log: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        pipeline(lab, log)
