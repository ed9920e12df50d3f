"""What a run tells people, through a real webhook; and that a receiver which is down never keeps it waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from penstock.alerts.alerts import Alerts
from penstock.alerts.config import BodyFormat, OnErrorConfig
from penstock.alerts.message import AlertMessage
from penstock.alerts.receivers import NotDeliveredError, Receiver, Webhook
from penstock.apply.process import CAUGHT_UP
from penstock.apply.progress import Progress
from penstock.errors import ConfigError, OperatorError, RetryableError
from penstock.events import Event
from penstock.pipeline_file import parse
from penstock.position import Scn
from tests.alerts.hook import Hook, serving
from tests.lab import FILE, Lab
from tests.program import Program, await_true

SECRET = "not to be seen"


@pytest.fixture
def hook() -> Iterator[Hook]:
    with serving() as made:
        yield made


def alerts(receiver: Receiver, **more: Any) -> Alerts:
    return Alerts("shop", receiver, **{"every_s": 300, "end_s": 10} | more)


def kinds(hook: Hook) -> list[tuple[str, str]]:
    return [(one.json["kind"], one.json["state"]) for one in hook.requests]


def webhook(hook: Hook) -> Webhook:
    return Webhook(hook.url, form=BodyFormat.JSON, secret=None, timeout_s=5)


def test_a_failure_is_told_before_the_run_is_over(hook: Hook) -> None:
    told = alerts(webhook(hook))
    told.began()
    told.following()

    told.failed(OperatorError("the disk is full", where="copy", do="make room"))

    (request,) = hook.requests
    assert request.json["text"] == "the run failed: the disk is full (copy). Make room"
    assert request.json["facts"] == {"is_error": True, "error": "OperatorError", "exit_code": 3}


def test_a_run_that_was_to_end_is_no_news_and_one_that_was_stopped_is(hook: Hook) -> None:
    for is_stopped in (False, True):
        told = alerts(webhook(hook))
        told.began()
        told.finished(Progress(Scn(1), in_queue=2), is_stopped=is_stopped)
    (request,) = hook.requests
    assert request.json["text"] == "the run was stopped; the error queue holds 2 transactions"


def test_the_next_run_says_that_it_is_over(hook: Hook) -> None:
    for was_down in (False, True):
        told = alerts(webhook(hook), was_down=lambda was_down=was_down: was_down)
        told.began()
        told.following()
        told.finished(Progress(Scn(1)), is_stopped=False)
    assert kinds(hook) == [("run", "resolved")]


def test_a_pipeline_knows_whether_people_were_told_that_its_last_run_is_down(lab: Lab) -> None:
    assert not lab.pipeline()._was_down()
    lab.setup("CREATE TABLE item (id int PRIMARY KEY)")
    lab.ledger.close()
    for reason, was_down in ((CAUGHT_UP, False), ("it was told to stop", True), ("the disk is full", True)):
        lab.ledger.set_status_of_last_run(reason)
        assert lab.pipeline()._was_down() is was_down, reason


def test_a_log_that_is_held_is_told_of_for_each_consumer(hook: Hook) -> None:
    told = alerts(webhook(hook))
    told.began()
    told.warned("the log keeps 12 GB for a", Event.LOG_HELD, {"consumer": "a", "key": "consumer a"})
    hook.await_requests(1)
    told.warned("consumer b keeps no more", Event.LOG_HELD, {"over": "consumer b"})
    told.warned("consumer a keeps no more", Event.LOG_HELD, {"over": "consumer a"})
    told.warned("the log is kept no more for c", Event.LOG_GIVEN_UP, {"consumer": "c"})
    told.warned("nothing of this", Event.NOTE)
    told.finished(Progress(Scn(1)), is_stopped=False)
    assert kinds(hook) == [("log_held", "firing"), ("log_held", "resolved"), ("log_given_up", "firing")]


def test_a_server_that_is_away_for_a_minute_is_told_of_and_one_that_restarts_is_not(hook: Hook) -> None:
    now = [0.0]
    told = alerts(webhook(hook), clock=lambda: now[0])
    told.began()
    for lost_for_s, messages in ((30, 0), (90, 2)):
        back_at = now[0] + lost_for_s
        while now[0] < back_at:
            told.retrying(RetryableError("cannot connect", where="copy"), None)
            now[0] += 5
        if messages:
            hook.await_requests(1)
        told.progressed(Progress(Scn(1)))
        hook.await_requests(messages)
    told.finished(Progress(Scn(1)), is_stopped=False)
    assert kinds(hook) == [("server_lost", "firing"), ("server_lost", "resolved")]
    assert hook.requests[0].json["text"] == "out of reach for a minute: cannot connect (copy); the run tries again"


def test_a_receiver_that_is_down_is_warned_of_once_and_keeps_nobody_waiting(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    may_answer = threading.Event()

    def answer(_: object) -> tuple[int, Mapping[str, str]]:
        may_answer.wait(60)
        return 500, {}

    hook.answer = answer
    told = alerts(webhook(hook), end_s=0.5)
    told.began()
    began = time.monotonic()
    for number in range(10_000):
        told.warned("held", Event.LOG_HELD, {"consumer": str(number), "key": str(number)})
    assert time.monotonic() - began < 5
    # The end waits no longer than it may.
    told.failed(OperatorError("x"))
    assert time.monotonic() - began < 10

    may_answer.set()
    assert told._thread is not None
    told._thread.join(60)
    assert caplog.text.count("on_error: the webhook at 127.0.0.1 answered with status 500") == 1
    assert "s3cret" not in caplog.text


def test_a_message_is_tried_again_with_the_same_id() -> None:
    tried: list[AlertMessage] = []

    class Flaky(Receiver):
        label = "flaky"

        def send(self, message: AlertMessage) -> None:
            tried.append(message)
            if len(tried) < 3:
                raise NotDeliveredError("is down")

    told = alerts(Flaky())
    told.began()
    told.failed(OperatorError("x"))
    assert len(tried) == 3
    assert len({one.id for one in tried}) == 1


def parsed(on_error: str, **environment: str) -> OnErrorConfig:
    text = FILE.format(name="shop", tables=["public.*"], row_triggers=[]) + f"on_error: {on_error}\n"
    urls = {"SHOP_URL": "postgresql://a@b/c", "COPY_URL": "postgresql://a@b/d"}
    config = parse(text, name="pipeline.yaml", environment=urls | environment).on_error
    assert config is not None
    return config


def test_a_url_and_a_secret_come_from_outside() -> None:
    found = parsed('{url: "${env:HOOK}", secret: "${env:KEY}", format: slack}', HOOK="https://h.example/x", KEY=SECRET)
    assert (found.url, found.secret, found.format) == ("https://h.example/x", SECRET, BodyFormat.SLACK)
    assert SECRET not in repr(found)
    assert "h.example" not in repr(found)


@pytest.mark.parametrize(
    ("on_error", "said"),
    [
        ("{}", "needs either command or url"),
        ("{command: [a], url: 'https://h.example/'}", "needs either command or url"),
        ("{command: []}", "is empty"),
        ("{command: page me}", "valid list"),
        ("{command: [a], secret: '${env:KEY}'}", "format and secret go with url"),
        ("{url: 'https://h.example/', secret: not to be seen}", "a secret stands in the file"),
        ("{url: 'https://h.example/', secret: '${env:SHORT}'}", "at least 8 characters"),
        ("{url: 'https://h.example/', format: teams}", "must be 'json' or 'slack'"),
        ("{url: 'https://h.example/', timeout_s: 0}", "greater than 0"),
        ("{url: 'https://h.example/', every_s: 0}", "greater than or equal to 1"),
        *(
            (f"{{url: '{url}'}}", "must be the whole url of a webhook")
            for url in (
                "ftp://h/x",
                "file:///etc/passwd",
                "h.example/x",
                "https://",
                "http://h:99999/",
                "https://h/a b",
                "https://a..b/x",
                f"https://{'a' * 70}.example/x",
            )
        ),
        ("{url: 'https://ä.example/bücher'}", "not ASCII; write them percent-encoded"),
        ("{url: 'https://user:seen@h.example/'}", "holds a user or a password"),
        ("{url: '${env:NOTHING}'}", "environment variable NOTHING is not set"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(on_error: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        parsed(on_error, KEY=SECRET, SHORT="short")
    assert SECRET not in str(refused.value)
    assert "seen@" not in str(refused.value)


def test_a_real_run_tells_of_its_error_queue_once_and_again_when_it_is_empty(
    lab: Lab, program: Program, hook: Hook
) -> None:
    """Takes some seconds: a run with Spark."""
    with (program.folder / "pipeline.yaml").open("a") as file:
        file.write('on_error: {url: "${env:HOOK_URL}", secret: "${env:HOOK_KEY}"}\n')
    program.environment.update(HOOK_URL=hook.url, HOOK_KEY=SECRET)
    lab.source.execute("CREATE TABLE item (id int PRIMARY KEY, note text)")
    assert program("setup").code == 0

    with program.start("run") as run:
        run.await_line("following")
        lab.target.execute("INSERT INTO item SELECT n, 'in the way' FROM generate_series(1, 50) n")
        for number in range(1, 51):
            lab.source.execute("INSERT INTO item VALUES (%s, 'a value of a row')", [number])
        first = hook.await_requests(1)[0].json
        assert (first["kind"], first["state"], first["facts"]["table"]) == ("error_queue", "firing", "public.item")
        assert "went to the error queue at insert of public.item" in first["text"]

        assert program("errors", "delete", "--all", "--yes").code == 0
        await_true(lambda: ("error_queue", "resolved") in kinds(hook), 60, lambda: run.said)
        assert run.end() == 0

    assert sum(one.json["count"] for one in hook.requests if one.json["state"] == "firing") == 51
    assert kinds(hook)[-1] == ("run", "firing")
    assert len(hook.requests) <= 4
    for request in hook.requests:
        assert b"in the way" not in request.body
        assert b"a value of" not in request.body
    for secret in (SECRET, "s3cret"):
        assert secret not in run.said


def test_a_run_that_cannot_start_tells_why(lab: Lab, program: Program, hook: Hook) -> None:
    with (program.folder / "pipeline.yaml").open("a") as file:
        file.write('on_error: {url: "${env:HOOK_URL}"}\n')
    program.environment.update(HOOK_URL=hook.url)

    assert program("run").code == 3

    (request,) = hook.requests
    assert request.json["text"].startswith("the run failed: there is no capture set")
