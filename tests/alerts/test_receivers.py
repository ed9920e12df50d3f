"""A command and a webhook that take messages, or do not."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.alerts.config import BodyFormat
from penstock.alerts.message import AlertKind, AlertMessage, AlertState
from penstock.alerts.receivers import CommandReceiver, NotDeliveredError, Webhook
from tests.alerts.hook import Hook, serving

MESSAGE = AlertMessage(
    "shop", AlertKind.ERROR_QUEUE, AlertState.FIRING, "<!channel> & co", 3, {"table": "public.orders"}
)


@pytest.fixture
def hook() -> Iterator[Hook]:
    with serving() as made:
        yield made


def webhook(
    url: str, *, form: BodyFormat = BodyFormat.JSON, secret: str | None = None, timeout_s: float = 5
) -> Webhook:
    return Webhook(url, form=form, secret=secret, timeout_s=timeout_s, clock=lambda: 1_700_000_000.9)


def test_a_receiver_can_tell_who_sent_a_message(hook: Hook) -> None:
    webhook(hook.url, secret="a secret of ours").send(MESSAGE)

    (request,) = hook.requests
    stamp = request.headers["Penstock-Timestamp"]
    # As docs/monitoring.md says it is computed.
    expected = hmac.new(b"a secret of ours", stamp.encode() + b"." + request.body, hashlib.sha256).hexdigest()
    assert stamp == "1700000000"
    assert request.headers["Penstock-Signature"] == f"sha256={expected}"
    assert request.headers["Penstock-Id"] == MESSAGE.id
    assert request.headers["Content-Type"] == "application/json"
    assert request.path == "/hook?key=s3cret"
    assert {**request.json, "at": ""} == {
        "version": 1,
        "id": MESSAGE.id,
        "pipeline": "shop",
        "kind": "error_queue",
        "state": "firing",
        "text": "<!channel> & co",
        "count": 3,
        "at": "",
        "facts": {"table": "public.orders"},
    }


def test_without_a_secret_nothing_is_signed(hook: Hook) -> None:
    webhook(hook.url).send(MESSAGE)
    assert "Penstock-Signature" not in hook.requests[0].headers


def test_slack_gets_a_text_in_which_a_table_cannot_call_everybody(hook: Hook) -> None:
    webhook(hook.url, form=BodyFormat.SLACK).send(MESSAGE)
    assert hook.requests[0].json == {"text": ":rotating_light: *shop*: &lt;!channel&gt; &amp; co"}


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_any_other_answer_is_a_failure(hook: Hook, status: int) -> None:
    hook.answer = lambda _: (status, {})
    with pytest.raises(NotDeliveredError, match=f"^answered with status {status}$"):
        webhook(hook.url).send(MESSAGE)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(hook: Hook, status: int) -> None:
    with serving() as other:
        hook.answer = lambda _: (status, {"Location": other.url})
        with pytest.raises(NotDeliveredError, match=f"status {status}: a redirect is not followed"):
            webhook(hook.url).send(MESSAGE)
        assert (len(hook.requests), len(other.requests)) == (1, 0)


def test_a_webhook_that_hangs_is_left(hook: Hook) -> None:
    may_end = threading.Event()

    def answer(_: object) -> tuple[int, dict[str, str]]:
        may_end.wait(60)
        return 200, {}

    hook.answer = answer
    began = time.monotonic()
    with pytest.raises(NotDeliveredError, match=r"^did not answer within 0.2 s$"):
        webhook(hook.url, timeout_s=0.2).send(MESSAGE)
    assert time.monotonic() - began < 5
    may_end.set()


@pytest.mark.parametrize(
    "part", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"x"], ids=["100", "head", "word"]
)
def test_a_webhook_that_answers_bit_by_bit_is_left_and_asked_once(part: bytes) -> None:
    is_over = threading.Event()
    accepted: list[socket.socket] = []

    def answer() -> None:
        connection, _ = server.accept()
        accepted.append(connection)
        connection.recv(65536)
        with suppress(OSError):
            while not is_over.wait(0.1):
                connection.sendall(part)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        receiver = webhook(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=0.5)
        began = time.monotonic()
        with pytest.raises(NotDeliveredError, match=r"^did not answer within 0.5 s$"):
            receiver.send(MESSAGE)
        with pytest.raises(NotDeliveredError, match=r"^is still busy with an earlier message$"):
            receiver.send(MESSAGE)
        assert time.monotonic() - began < 5
        is_over.set()
        thread.join()
        assert len(accepted) == 1


def test_a_failure_tells_no_url(hook: Hook) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(NotDeliveredError, match=r"^cannot be reached: connection refused$"):
        webhook(f"http://127.0.0.1:{port}/s3cret").send(MESSAGE)
    assert webhook("https://hooks.example:99/s3cret?a=b").label == "webhook at hooks.example"


def test_an_answer_that_is_no_http_is_a_failure() -> None:
    def answer() -> None:
        connection, _ = server.accept()
        connection.recv(65536)
        connection.sendall(b"no http\r\n\r\n")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotDeliveredError, match=r"did not answer|cannot be reached"):
            webhook(f"http://127.0.0.1:{server.getsockname()[1]}/").send(MESSAGE)
        thread.join()


def test_a_command_reads_one_message_from_its_standard_input(tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    # Arguments are no shell's.
    file = tmp_path / "a b; c"
    CommandReceiver([sys.executable, "-c", script, str(file)], 30).send(MESSAGE)
    assert json.loads(file.read_text())["facts"] == {"table": "public.orders"}


def test_a_command_that_fails_hangs_or_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotDeliveredError, match=r"^ended with exit code 7$"):
        CommandReceiver([sys.executable, "-c", "raise SystemExit(7)"], 30).send(MESSAGE)
    with pytest.raises(NotDeliveredError, match=r"^cannot be started: no such file or directory$"):
        CommandReceiver([str(tmp_path / "nothing")], 30).send(MESSAGE)
    with pytest.raises(NotDeliveredError, match=r"^cannot be started: valueerror$"):
        CommandReceiver(["with\0nul"], 30).send(MESSAGE)
    began = time.monotonic()
    with pytest.raises(NotDeliveredError, match=r"did not end within 0.3 s, and was killed"):
        # Its child is killed with it.
        CommandReceiver(["sh", "-c", "sleep 60 & sleep 60"], 0.3).send(MESSAGE)
    assert time.monotonic() - began < 10
    assert CommandReceiver(["/opt/x/page", "--key=s3cret"], 1).label == "command 'page'"


def test_a_command_that_reads_nothing_is_done_when_it_ends() -> None:
    CommandReceiver(["true"], 30).send(AlertMessage("shop", AlertKind.RUN, AlertState.FIRING, "x" * 1_000_000))


def test_the_check_of_a_signature_that_the_page_shows_is_right(hook: Hook) -> None:
    page = (Path(__file__).parents[2] / "docs/monitoring.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    shown: dict[str, Any] = {}
    exec(code, shown)
    Webhook(hook.url, form=BodyFormat.JSON, secret="a secret of ours", timeout_s=5).send(MESSAGE)

    (request,) = hook.requests
    genuine = shown["is_genuine"]
    assert genuine(b"a secret of ours", request.headers, request.body)
    assert not genuine(b"another secret", request.headers, request.body)
    assert not genuine(b"a secret of ours", request.headers, request.body + b" ")
    old = {**request.headers, "Penstock-Timestamp": "1700000000"}
    assert not genuine(b"a secret of ours", old, request.body)
