"""The page's door: who gets in, what nobody gets, and what every answer tells a browser."""

from __future__ import annotations

import logging
import socket
import stat
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from penstock.cli.web import PageOptions, prepared
from penstock.errors import ConfigError
from penstock.web.access import Access, read_token
from penstock.web.queue import Queue
from penstock.web.server import Door, WebServer, WebSettings
from penstock.wiring import open_pipeline
from tests.lab import Lab
from tests.program import await_true
from tests.web.conftest import TOKEN, Serve, break_a_row, client, config_of

PAGES = ("/", "/p/lab", "/p/lab/samples", "/events", "/status.json", "/alive", "/metrics")
QUEUE = ("/p/lab/errors", "/p/lab/errors/1", "/p/lab/errors/history", "/p/lab/actions/1")


@pytest.fixture
def server(shop: Lab, serve: Serve) -> WebServer:
    break_a_row(shop)
    return serve(config_of(shop))


def ask(server: WebServer, request: str) -> str:
    """Send a request as it is, and return the answer: programs put many of these right."""
    with socket.create_connection((server.door.address.host, server.door.address.port)) as raw:
        raw.sendall(f"{request}\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: raw.recv(65536), b"")).decode()


def form_token(page: str) -> str:
    return page.partition('name="form_token" value="')[2].partition('"')[0]


def test_without_the_token_nothing_is_read_and_nothing_is_done(server: WebServer, shop: Lab) -> None:
    stranger = client(server, token=None)
    for path in (*PAGES, *QUEUE):
        answer = stranger.get(path)
        assert answer.status_code == 401, path
        assert "Ada" not in answer.text
        assert "customer" not in answer.text
    for path in ("/p/lab/errors/1/retry", "/p/lab/errors/1/delete", "/p/lab/errors/all/delete"):
        assert stranger.post(path, data={"confirmed": "1"}).status_code == 401, path
    assert len(shop.errors()) == 1


def test_a_wrong_token_is_told_to_be_wrong_and_gives_no_cookie(server: WebServer) -> None:
    stranger = client(server, token=None)
    for given in ("", "wrong", TOKEN[:-1], f"{TOKEN}x", "\u00e4"):
        answer = stranger.get("/", params={"token": given})
        assert answer.status_code == 403
        assert "token in this address is wrong" in answer.text
        assert not answer.cookies
    assert stranger.post("/enter", data={"token": "wrong"}).status_code == 403
    assert stranger.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert stranger.get("/", headers={"Cookie": f"{server_cookie(server)}=wrong"}).status_code == 401


def server_cookie(server: WebServer) -> str:
    return f"penstock_web_{server.door.address.port}"


def test_the_token_becomes_a_cookie_that_no_script_and_no_other_site_can_use(server: WebServer) -> None:
    person = client(server, token=None)
    answer = person.get("/p/lab/errors", params={"token": TOKEN, "table": "a b"})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{server_cookie(server)}=")
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert 'url=/p/lab/errors?table=a+b"' in answer.text
    assert TOKEN not in answer.text
    assert person.get("/p/lab/errors").status_code == 200
    # A program has no cookie.
    assert client(server, token=None).get("/status.json", headers={"Authorization": f"Bearer {TOKEN}"}).json()["lab"]


def test_behind_a_proxy_with_tls_the_cookie_is_never_sent_in_clear(server: WebServer) -> None:
    def cookie(**headers: str) -> str:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        by_link = httpx.get(server.door.home, params={"token": TOKEN}, headers=headers).headers["set-cookie"]
        by_hand = httpx.post(f"{server.door.home}/enter", data={"token": TOKEN}, headers=headers).headers["set-cookie"]
        assert by_link == by_hand
        return str(by_link)

    assert "Secure" in cookie(x_forwarded_proto="https")
    assert "Secure" in cookie(x_forwarded_proto="HTTPS, http")
    assert "Secure" not in cookie(x_forwarded_proto="http")
    assert "Secure" not in cookie(), "a browser keeps no such cookie of http://10.0.0.5"


def test_the_way_in_leads_to_no_other_host(server: WebServer) -> None:
    answer = ask(server, f"GET //evil.example/?token={TOKEN} HTTP/1.1\r\nHost: localhost")
    assert "url=/evil.example/" in answer
    assert "//evil.example" not in answer


def test_every_answer_has_the_policy(server: WebServer) -> None:
    person = client(server)
    for path in ("/", "/static/page.css", "/p/none", "/enter", "/p/lab/errors/1"):
        headers = person.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", "[::1", "", "a b"])
def test_another_sites_name_that_leads_here_is_refused(server: WebServer, host: str) -> None:
    """DNS rebinding: a site's own name is made to mean this machine, and its scripts to be of one origin with us."""
    answer = ask(server, f"GET /?token={TOKEN} HTTP/1.1\r\nHost: {host}")
    assert answer.split()[1] in ("421", "400")
    assert "set-cookie" not in answer.lower()


def test_the_hosts_own_names_and_numbers_are_taken(server: WebServer) -> None:
    access = Access(TOKEN, port=1, is_reading_open=False, hosts=["db1.example"])
    good = ("localhost", "LOCALHOST:80", "127.0.0.1", "10.1.2.3:8787", "[::1]", "[::1]:8787", "db1.example:1")
    assert [host for host in good if not access.is_own_host(host)] == []
    bad = ("", "db2.example", "localhost:x", "[::1]x", "localhost:80:80", "db1.example.")
    assert [host for host in bad if access.is_own_host(host)] == []


def test_an_action_needs_the_token_of_its_form(server: WebServer, shop: Lab) -> None:
    person = client(server)
    page = person.get("/p/lab/errors/1")
    token = form_token(page.text)
    assert len(token) == 64
    assert TOKEN not in page.text
    wrong = [{}, {"form_token": ""}, {"form_token": token[:-1] + "0"}]
    for form in wrong:
        assert person.post("/p/lab/errors/1/delete", data={**form, "confirmed": "1"}).status_code == 403
    from_elsewhere = {"Sec-Fetch-Site": "cross-site"}
    form = {"form_token": token, "confirmed": "1"}
    assert person.post("/p/lab/errors/1/delete", data=form, headers=from_elsewhere).status_code == 403
    assert person.get("/p/lab/errors/1/delete", params=form).status_code == 405
    assert len(shop.errors()) == 1
    done = person.post("/p/lab/errors/1/delete", data=form, headers={"Sec-Fetch-Site": "same-origin"})
    assert done.status_code == 303
    assert shop.errors() == []


def test_no_path_leads_out_of_the_assets(server: WebServer) -> None:
    person = client(server)
    assert person.get("/static/page.css").status_code == 200
    for path in ("../templates/base.html", "..%2f..%2f__init__.py", "%2e%2e/app.py", "/etc/passwd", "page.css/..", ""):
        answer = ask(server, f"GET /static/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}")
        assert answer.split()[1] == "404", path


def test_reading_may_be_opened_and_row_values_and_actions_stay_closed(shop: Lab, serve: Serve) -> None:
    break_a_row(shop)
    server = serve(config_of(shop), is_reading_open=True)
    stranger = client(server, token=None)
    page = stranger.get("/")
    assert page.status_code == 200
    assert "form_token" not in page.text
    for path in QUEUE:
        answer = stranger.get(path)
        assert answer.status_code == 401, path
        assert "by hand" not in answer.text
    assert stranger.post("/p/lab/errors/1/delete", data={"confirmed": "1"}).status_code == 401


def test_bodies_and_paths_of_any_kind_are_answered_and_end_nothing(server: WebServer) -> None:
    person = client(server)
    token = form_token(person.get("/p/lab/errors").text)
    assert person.post("/p/lab/errors/1/retry", content=b"x" * (9 << 20)).status_code == 413
    many = "&".join(f"f{n}=" for n in range(30_000))
    assert person.post("/p/lab/errors/1/retry", content=f"form_token={token}&{many}").status_code == 400
    assert person.post("/p/lab/errors/1/retry", content=b"\xff\xfe=%zz").status_code in (400, 403)
    missing = ("/p/%00/errors", "/p/lab/errors/%27%3b--", "/p/lab/errors/99", "/p/lab/actions/77", "/p/lab/actions/x")
    for path in (*missing, f"/p/lab/actions/{'9' * 5000}", "/p/lab/actions/%c2%b2"):
        assert person.get(path).status_code == 404, path
    for change in ("9" * 5000, "\u00b2", ""):
        form = {"form_token": token, "edited": "1", f"skip.{change}": "1"}
        assert person.post("/p/lab/errors/1/retry", data=form).status_code == 400, change
    assert person.get("/p/lab/errors", params={"since": "x"}).status_code == 400
    assert person.get("/p/lab/errors", params={"after": "1.1'", "before": "9" * 99}).status_code == 200
    assert person.post("/p/lab/errors/1/rename", data={"form_token": token}).status_code == 404
    assert person.get("/").status_code == 200


def test_who_has_no_token_fills_no_memory(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form at the door is the one body that anybody may send."""
    head = "POST /enter HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    with socket.create_connection((server.door.address.host, server.door.address.port), timeout=10) as raw:
        raw.sendall(f"{head}1000000000\r\n\r\n{'x' * 100_000}".encode())
        assert raw.recv(65536).split()[1] == b"413"
    monkeypatch.setattr("penstock.web.site._SLOWEST_S", 0.2)
    assert ask(server, f"{head}100").split()[1] == "408"


def test_a_browser_that_leaves_is_no_failure(server: WebServer, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        with socket.create_connection((server.door.address.host, server.door.address.port)) as raw:
            raw.sendall(b"POST /enter HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
            time.sleep(0.1)
    assert client(server).get("/alive").status_code == 204
    assert "the page failed" not in caplog.text


def test_a_path_forges_nothing_in_the_log(
    server: WebServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def errors(_: Queue) -> None:
        raise ValueError

    monkeypatch.setattr(Queue, "errors", errors)
    assert client(server).get("/p/lab/errors/%1b%5b31m").status_code == 500
    assert r"the page failed at /p/lab/errors/\x1b[31m: ValueError" in caplog.messages


def test_connections_that_ask_nothing_are_few_and_end(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a file of the process, and the run beside the page needs some too."""
    monkeypatch.setattr("penstock.web.server._HEAD_S", 2.0)
    monkeypatch.setattr("penstock.web.server._MOST_CONNECTIONS", 5)
    address = server.door.address.host, server.door.address.port
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(5)]
        for one in idle:
            one.sendall(b"GET / HT")
        time.sleep(0.3)
        with pytest.raises(httpx.TransportError):
            httpx.get(server.door.home)
        # Whoever says the rest byte by byte has no more time than others.
        idle[0].sendall(b"T")
        assert [one.recv(1) for one in idle] == [b""] * 5
    assert httpx.get(server.door.home).status_code == 401
    # A page that is open has asked, and stays.
    with client(server).stream("GET", "/events") as stream:
        lines = stream.iter_lines()
        until = time.monotonic() + 4
        while time.monotonic() < until:
            assert next(lines) is not None


def test_streams_are_limited_even_if_all_are_asked_for_at_once(
    shop: Lab, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.web.live._MOST_STREAMS", 3)
    server = serve(config_of(shop), is_reading_open=True)
    address = server.door.address.host, server.door.address.port

    def answers(number: int) -> list[bytes]:
        with ExitStack() as stack:
            asking = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(number)]
            for one in asking:
                one.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return sorted(one.recv(12)[-3:] for one in asking)

    assert answers(8) == [b"200"] * 3 + [b"503"] * 5
    # Those that have ended leave their places to others.
    await_true(lambda: answers(1) == [b"200"], 20)


def test_any_token_of_a_file_can_be_entered_by_hand(shop: Lab, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("aB+/=&%x0123456789")
    with (
        closing(Door(WebSettings("127.0.0.1:0", path))) as door,
        closing(WebServer(door, [config_of(shop)], open_pipeline)) as server,
    ):
        server.start()
        answer = httpx.post(f"{door.home}/enter", data={"token": "aB+/=&%x0123456789"})
    assert answer.status_code == 200
    assert "Go on to the page" in answer.text


def test_a_token_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The superuser may read everybody's; whoever made it knows what is in it."""
    path = tmp_path / "token"
    read_token(path)
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_token(path)


def test_a_token_file_is_made_for_its_owner_alone_and_refused_if_others_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = read_token(path)
    assert len(made) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_token(path) == made
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"others may read --token-file .*Run `chmod 600"):
        read_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigError, match="holds no token of 16 characters"):
        read_token(path)
    with pytest.raises(ConfigError, match="cannot read --token-file"):
        read_token(tmp_path / "none" / "token")


def test_only_what_others_can_reach_is_warned_of() -> None:
    with closing(Door(WebSettings("127.0.0.1:0"))) as door:
        assert door.warning is None
    with closing(Door(WebSettings("0.0.0.0:0"))) as door:
        assert "beyond this machine, and its traffic is not encrypted" in (door.warning or "")
        assert door.home == f"http://127.0.0.1:{door.address.port}"
        assert door.url.startswith(f"{door.home}/?token=")


def test_a_port_that_is_taken_is_one_clear_error(server: WebServer) -> None:
    port = server.door.address.port
    with pytest.raises(ConfigError, match=f"--listen: cannot listen at 127.0.0.1:{port}: address already in use"):
        Door(WebSettings(f"127.0.0.1:{port}"))


def test_the_token_is_in_no_log(shop: Lab, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        server = serve(config_of(shop))
        client(server).get("/")
        client(server, token=None).get("/", headers={"Authorization": f"Bearer {TOKEN}"})
        httpx.get(f"{server.door.home}/enter?token={TOKEN}x")
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert [text for text in ours if TOKEN in text] == []


def test_without_its_extra_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("penstock.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ConfigError) as caught, prepared("0", PageOptions(), option="--listen"):
        pass
    assert str(caught.value) == "the page needs uvicorn, which is not installed. Pip install 'penstock[web]'"
