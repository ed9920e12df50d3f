"""The page in a real browser: it is live, it is bounded, and no name or value of a database does anything to it."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect

from penstock.config.pipeline import PipelineConfig
from penstock.errors import OperatorError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.publication import Publication
from penstock.pipeline_file import parse
from penstock.web.samples import CurvePoint
from penstock.web.server import WebServer
from penstock.web.watcher import Watcher
from penstock.wiring import open_pipeline
from tests.faults.proxy import Proxy
from tests.lab import FILE, Lab
from tests.program import await_true
from tests.web.conftest import TOKEN, Serve, break_a_row, client, config_of

AXE = Path(__file__).parents[1] / "data/axe/axe.min.js"
HOSTILE = '<img src=x onerror="window.hacked=1">\'"--'
SCRIPT = "</td></table><script>window.hacked=1</script>{{ 7*7 }}"


def enter(tab: Page, server: WebServer, path: str = "/") -> None:
    tab.goto(f"{server.door.home}{path}?token={TOKEN}")
    tab.wait_for_url(lambda url: "token" not in url)


def said(tab: Page) -> list[str]:
    found: list[str] = tab.said  # type: ignore[attr-defined]
    return found


def test_the_page_follows_what_happens_without_being_loaded_again(shop: Lab, serve: Serve, tab: Page) -> None:
    server = serve(config_of(shop))
    enter(tab, server)
    expect(tab.locator("#headline .pill")).to_have_text("following")
    expect(tab.locator("#link-state")).to_contain_text("live, seen")
    tab.evaluate("window.isTheSame = true")

    break_a_row(shop)
    expect(tab.locator("#headline .problem")).to_contain_text("The error queue holds 1 transaction")
    expect(tab.locator("#tables tr", has_text="public.customer").locator("td.is-bad")).to_have_text("1")
    shop.source.execute("INSERT INTO customer VALUES (2, 'waits')")
    expect(tab.locator("#headline .facts")).to_contain_text("1 change")
    expect(tab.locator('[data-chart="backlog"] b')).to_have_text("1 change")

    assert tab.evaluate("window.isTheSame")
    assert said(tab) == []


def test_no_name_and_no_value_of_a_database_does_anything(lab: Lab, serve: Serve, tab: Page) -> None:
    table, column = psycopg.sql.Identifier(HOSTILE), psycopg.sql.Identifier(f"c{HOSTILE}")
    make = psycopg.sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, {} text)").format(table, column)
    lab.setup(make.as_string(lab.source))
    insert = psycopg.sql.SQL("INSERT INTO {} VALUES (1, {})").format(table, SCRIPT)
    lab.target.execute(insert)
    lab.source.execute(insert)
    lab.apply()
    server = serve(config_of(lab))
    for path in ("/", "/p/lab/errors", "/p/lab/errors/1", "/p/lab/errors/1?edit=1"):
        enter(tab, server, path) if path == "/" else tab.goto(f"{server.door.home}{path}")
        expect(tab.locator("main")).to_contain_text("img src=x onerror" if path != "/" else "following, with errors")
        tab.wait_for_timeout(200)
        assert tab.evaluate("window.hacked") is None
        assert tab.locator("main img, main script").count() == 0
    assert "{{ 7*7 }}" in tab.content() or "7*7" in tab.locator("main").inner_text()
    tab.get_by_role("button", name="Dry run").click()
    tab.goto(f"{server.door.home}/p/lab/errors?table={HOSTILE}&text={SCRIPT}")
    assert tab.evaluate("window.hacked") is None
    # Were a script put in, the policy would not let it run.
    tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked=1\">')")
    tab.wait_for_timeout(200)
    assert tab.evaluate("window.hacked") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axes_rules_pass_on_every_page(shop: Lab, serve: Serve, chromium: Browser, scheme: Any) -> None:
    """Loads every page in two colours, and for narrow windows: some seconds."""
    break_a_row(shop)
    server = serve(config_of(shop), config_of(shop, name="other"))
    # The rules are put in by the test, which the policy would not let the page do.
    context = chromium.new_context(color_scheme=scheme, bypass_csp=True, reduced_motion="reduce")
    tab = context.new_page()
    tab.goto(f"{server.door.home}/p/lab")
    found = [("door", violations(tab))]
    enter(tab, server)
    pages = ("/", "/p/lab", "/p/other", "/p/lab/errors", "/p/lab/errors/1", "/p/lab/errors/1?edit=1")
    for path in (*pages, "/p/lab/errors/history", "/p/none"):
        tab.goto(f"{server.door.home}{path}")
        if path == "/p/lab":
            expect(tab.locator("#headline .pill")).to_have_text("following, with errors")
        found.append((path, violations(tab)))
    context.close()
    assert [(path, rules) for path, rules in found if rules] == []


def violations(tab: Page) -> list[str]:
    tab.add_script_tag(path=AXE)
    rules = tab.evaluate("axe.run(document).then((found) => found.violations)")
    return [f"{rule['id']}: {node['html'][:160]}" for rule in rules for node in rule["nodes"]]


def test_at_360_pixels_nothing_but_tables_is_wider_than_the_window(shop: Lab, serve: Serve, chromium: Browser) -> None:
    break_a_row(shop)
    server = serve(config_of(shop))
    context = chromium.new_context(viewport={"width": 360, "height": 740})
    tab = context.new_page()
    enter(tab, server)
    expect(tab.locator("#headline .pill")).to_have_text("following, with errors")
    for path in ("/", "/p/lab/errors", "/p/lab/errors/1", "/p/lab/errors/1?edit=1", "/p/lab/errors/history"):
        tab.goto(f"{server.door.home}{path}")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360, path
    context.close()


def test_the_whole_of_it_can_be_done_with_the_keyboard(shop: Lab, serve: Serve, tab: Page) -> None:
    break_a_row(shop)
    server = serve(config_of(shop))
    enter(tab, server, "/p/lab/errors/1")
    tab.keyboard.press("Tab")
    expect(tab.get_by_text("Skip to the content")).to_be_focused()
    tab.keyboard.press("Enter")
    for _ in range(40):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.textContent") == "Dry run":
            break
    tab.keyboard.press("Enter")
    expect(tab.locator("h1")).to_have_text("Dry run of lab.1")


def test_focus_and_what_is_opened_stay_while_parts_are_exchanged(shop: Lab, serve: Serve, tab: Page) -> None:
    server = serve(config_of(shop))
    enter(tab, server)
    summary = tab.locator("#work summary")
    summary.click()
    assert tab.locator("#work details").get_attribute("open") is None
    summary.focus()
    shop.source.execute("INSERT INTO customer VALUES (2, 'x')")
    shop.apply()
    expect(tab.locator("#work td", has_text="2").first).to_be_attached()
    expect(tab.locator("#work summary")).to_be_focused()
    assert tab.locator("#work details").get_attribute("open") is None


def test_a_source_that_is_away_is_said_to_be_and_comes_back_by_itself(shop: Lab, serve: Serve, tab: Page) -> None:
    port = shop.source.info.port
    way = Proxy(port)
    away = shop.source_url.replace(f":{port}/", f":{way.port}/")
    text = FILE.format(name=shop.name, tables=["public.*"], row_triggers=[])
    config = parse(text, name="p.yaml", environment={"SHOP_URL": away, "COPY_URL": shop.target_url})
    with way:
        enter(tab, serve(config))
        expect(tab.locator("#headline .pill")).to_have_text("following")
    expect(tab.locator("#headline .pill")).to_have_text("source out of reach", timeout=30_000)
    expect(tab.locator("#headline .problem")).to_contain_text("The source is out of reach")
    with Proxy(port, at=way.port):
        expect(tab.locator("#headline .pill")).to_have_text("following", timeout=60_000)
    assert said(tab) == []


def test_a_pipeline_that_could_not_be_opened_is_tried_again(shop: Lab) -> None:
    opened = 0

    def open_later(config: PipelineConfig) -> Pipeline | Publication:
        nonlocal opened
        opened += 1
        if opened == 1:
            raise OperatorError("the folder is not mounted")
        return open_pipeline(config)

    watcher = Watcher(config_of(shop), open_later)
    with closing(asyncio.new_event_loop()) as loop, closing(watcher):
        watcher.start(loop)
        await_true(lambda: watcher.seen is not None and watcher.seen.observation.lost is not None, 20)
        watcher.look_soon()
        await_true(lambda: watcher.seen is not None and watcher.seen.observation.status is not None, 20)


def test_a_server_that_starts_again_is_found_again_by_open_pages(shop: Lab, serve: Serve, tab: Page) -> None:
    server = serve(config_of(shop))
    enter(tab, server)
    expect(tab.locator("#link-state")).to_contain_text("live, seen")
    server.close()
    server.door.close()
    expect(tab.locator("#link-state")).to_contain_text("does not answer")
    serve(config_of(shop), port=server.door.address.port)
    expect(tab.locator("#link-state")).to_contain_text("live, seen", timeout=20_000)


def test_a_stream_that_died_in_a_sleep_is_opened_again(shop: Lab, serve: Serve, tab: Page) -> None:
    tab.clock.install()
    enter(tab, serve(config_of(shop)))
    expect(tab.locator("#link-state")).to_contain_text("live, seen")
    with tab.expect_request(lambda request: "/events" in request.url, timeout=20_000):
        tab.clock.fast_forward(91_000)
    expect(tab.locator("#link-state")).to_contain_text("live, seen")
    assert said(tab) == []


def test_a_pipeline_that_is_not_set_up_is_said_to_be_so(lab: Lab, serve: Serve, tab: Page) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    enter(tab, serve(config_of(lab)))
    expect(tab.locator("#headline .pill")).to_have_text("not set up")
    expect(tab.locator("#headline .problem")).to_have_text("The pipeline is not set up; run penstock setup")
    tab.goto(f"{tab.url}p/lab/errors")
    expect(tab.locator("h1")).to_contain_text("o")
    assert tab.locator("main").inner_text()


def test_two_pipelines_are_on_one_page_each_with_a_page_of_its_own(shop: Lab, serve: Serve, tab: Page) -> None:
    enter(tab, serve(config_of(shop), config_of(shop, name="other")))
    expect(tab.locator("#card-lab .pill")).to_have_text("following")
    expect(tab.locator("#card-other .pill")).to_have_text("not set up")
    tab.get_by_role("link", name="lab").click()
    expect(tab.locator("h1")).to_have_text("lab")


def test_a_page_that_is_open_for_an_hour_grows_by_less_than_ten_megabytes(shop: Lab, serve: Serve, tab: Page) -> None:
    """Plays an hour of looks, one each two seconds, in as long as the browser takes to draw them."""
    server = serve(config_of(shop))
    enter(tab, server)
    expect(tab.locator("#headline .pill")).to_have_text("following")
    session = tab.context.new_cdp_session(tab)

    def measure() -> tuple[int, int]:
        session.send("HeapProfiler.collectGarbage")
        return session.send("Runtime.getHeapUsage")["usedSize"], tab.evaluate("document.querySelectorAll('*').length")

    play = """async (looks) => {
      for (let n = 0; n < looks; n++) {
        window.played = (window.played || 0) + 2;
        const sample = [2e9 + window.played, n % 90, n * 1000, n % 7000, {lab: n * 1e4, other: n}];
        const parts = {headline: `<h1>lab</h1><p class="pill good">following</p><p>${n}</p>`};
        hear({data: JSON.stringify({pipeline: "lab", sample, parts})});
        if (n % 50 === 0) await new Promise((done) => setTimeout(done, 0));
      }
    }"""
    tab.evaluate(play, 30)
    bytes_before, elements_before = measure()
    tab.evaluate(play, 1800)
    bytes_after, elements_after = measure()
    assert bytes_after - bytes_before < 10e6
    assert elements_after - elements_before < 50


def test_fifty_watchers_ask_the_databases_no_more_often_than_one(shop: Lab, serve: Serve) -> None:
    server = serve(config_of(shop))
    (watcher,) = server.watchers
    streams = [socket.create_connection((server.door.address.host, server.door.address.port)) for _ in range(50)]
    heard = threading.Barrier(51)

    def hear(stream: socket.socket) -> None:
        request = f"GET /events?pipeline=lab HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        stream.sendall(request.encode())
        text = b""
        while text.count(b"event: seen") < 3:
            part = stream.recv(1 << 16)
            assert part
            text += part
        heard.wait(60)

    threads = [threading.Thread(target=hear, args=[stream], daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    heard.wait(60)
    assert watcher.watching == 50
    assert watcher.seen is not None
    assert watcher.seen.number <= 12, "one look for all, and not one each"
    for stream in streams:
        with closing(stream):
            stream.shutdown(socket.SHUT_RDWR)
    assert isinstance(watcher.samples.of(0)[0], CurvePoint)


@pytest.mark.parametrize(
    ("format_", "queue"),
    [("changes", "no error queue: change files hold every value"), ("debezium-json", "The error queue is empty")],
)
def test_a_pipeline_that_publishes_is_shown_as_far_as_it_goes(
    lab: Lab, serve: Serve, tmp_path: Path, format_: str, queue: str
) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    text = FILE.format(name=lab.name, tables=["public.*"], row_triggers=[]).partition("  copy:")[0]
    text += "capture: {source: trigger_queue, connection: shop, tables: ['public.*']}\n"
    text += f"publish: {{to: files, path: events, format: {format_}, max_age_s: 0"
    text += ", debezium: {prefix: shop}}\n" if format_ == "debezium-json" else "}\n"
    config = parse(text, name="p.yaml", environment={"SHOP_URL": lab.source_url}, folder=tmp_path)
    open_pipeline(config).setup()
    server = serve(config)
    person = client(server)
    await_true(lambda: "set up" in person.get("/").text and "events" in person.get("/").text, 20)
    assert queue in person.get("/p/lab/errors").text
    assert person.get("/p/lab/errors/history").status_code == 409
    assert f'penstock_up{{pipeline="{lab.name}"}}' in person.get("/metrics").text
