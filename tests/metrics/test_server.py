"""The server of `/metrics`: where it listens, what it answers, and that it asks no more often than it may."""

from __future__ import annotations

import http.client
import os
import socket
import threading
import urllib.error
import urllib.request
import warnings
from contextlib import ExitStack

import pytest

from penstock.errors import ConfigError
from penstock.metrics import Address, PipelineSample, serving
from penstock.metrics.sampler import Sampler
from tests.program import await_true

OPTION = "--metrics"


@pytest.mark.parametrize(
    ("text", "host", "port", "is_local"),
    [
        (":9187", "127.0.0.1", 9187, True),
        ("9187", "127.0.0.1", 9187, True),
        ("localhost:1", "localhost", 1, True),
        ("0.0.0.0:9187", "0.0.0.0", 9187, False),
        ("[::1]:9187", "::1", 9187, True),
        ("[::]:9187", "::", 9187, False),
        ("db1.example:0", "db1.example", 0, False),
    ],
)
def test_an_address_without_a_host_is_this_machine_alone(text: str, host: str, port: int, is_local: bool) -> None:
    found = Address.parse(text, option=OPTION)
    assert (found.host, found.port, found.is_local) == (host, port, is_local)


@pytest.mark.parametrize("text", ["", ":", "host", "host:", ":x", ":99999", ":-1", "::1:9187", "host:1:2", ":²"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        Address.parse(text, option=OPTION)


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = Address("127.0.0.1", other.getsockname()[1])
        with pytest.raises(ConfigError, match=f"--metrics: cannot listen at {address}: address already in use"):
            address.listen(option=OPTION)


def test_a_process_that_is_forked_does_not_keep_the_port() -> None:
    with Address("127.0.0.1", 0).listen(option=OPTION) as listening, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if not child:
            os._exit(0 if listening.fileno() == -1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert listening.fileno() != -1


def test_metrics_are_at_one_path_and_nothing_else_is() -> None:
    listening = Address("127.0.0.1", 0).listen(option=OPTION)
    with serving(listening, lambda: [PipelineSample("shop", None)]) as url:
        with urllib.request.urlopen(url) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert b'penstock_target_up{pipeline="shop"} 0.0' in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.replace("/metrics", "/"))
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(urllib.request.Request(url, data=b"", method="POST"))
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:9187", 200), ("[::1]", 200), ("DB1.example:9187", 200), ("evil.example:9187", 421), (None, 421)],
)
def test_another_sites_name_that_leads_here_reads_no_metrics(host: str | None, status: int) -> None:
    listening = Address("127.0.0.1", 0).listen(option=OPTION)
    with serving(listening, lambda: [PipelineSample("shop", None)], hosts=["db1.example"]):
        asking = http.client.HTTPConnection(*listening.getsockname())
        asking.putrequest("GET", "/metrics", skip_host=True)
        if host is not None:
            asking.putheader("Host", host)
        asking.endheaders()
        answer = asking.getresponse()
        assert answer.status == status
        assert (b"shop" in answer.read()) == (status == 200)


def test_clients_that_ask_nothing_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a thread and a file of the process, which the run needs too."""
    monkeypatch.setattr("penstock.metrics.server._AT_ONCE", 3)
    listening = Address("127.0.0.1", 0).listen(option=OPTION)
    address = listening.getsockname()
    with serving(listening, list) as url, ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(address, timeout=5)) for _ in range(3)]
        with socket.create_connection(address, timeout=5) as more:
            assert more.recv(1) == b""
        idle[0].sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in idle[0].recv(65536)
        while idle[0].recv(65536):
            pass
        await_true(lambda: _is_answered(url), 5)


def _is_answered(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_scrapes_that_come_together_share_a_look() -> None:
    now, looks = [100.0], []

    def look() -> list[PipelineSample]:
        looks.append(now[0])
        return [PipelineSample(str(len(looks)), None)]

    sampler = Sampler(look, every_s=5, clock=lambda: now[0])
    assert sampler.latest()[0].pipeline == sampler.latest()[0].pipeline == "1"
    now[0] += 4.9
    assert sampler.latest()[0].pipeline == "1"
    now[0] += 0.1
    assert sampler.latest()[0].pipeline == "2"
    assert looks == [100, 105]


def test_a_look_that_takes_long_is_taken_seldom() -> None:
    now, looks = [0.0], []

    def look() -> list[PipelineSample]:
        looks.append(now[0])
        now[0] += 2
        return []

    sampler = Sampler(look, every_s=5, clock=lambda: now[0])
    while now[0] < 400:
        sampler.latest()
        now[0] += 1
    # Two seconds of a hundred.
    assert looks == [0, 102, 204, 306]


def test_a_look_that_hangs_keeps_no_scrape_waiting_and_is_not_begun_twice() -> None:
    may_end, looks = threading.Event(), []

    def look() -> list[PipelineSample]:
        looks.append(threading.current_thread())
        may_end.wait(60)
        return [PipelineSample("shop", None)]

    sampler = Sampler(look, every_s=5, wait_s=0.01)
    assert list(sampler.latest()) == list(sampler.latest()) == []
    may_end.set()
    looks[0].join()
    assert [one.pipeline for one in sampler.latest()] == ["shop"]
    assert len(looks) == 1


def test_a_look_that_fails_leaves_what_was_known(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([[PipelineSample("shop", None)]])
    now = [0.0]
    sampler = Sampler(lambda: next(answers), every_s=1, clock=lambda: now[0])
    assert len(sampler.latest()) == 1
    now[0] = 10
    assert len(sampler.latest()) == 1
    assert "a look at the pipeline failed: StopIteration" in caplog.text
