"""A page that is really served, and a Chromium without a window that really opens it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from penstock.config.pipeline import PipelineConfig
from penstock.pipeline_file import parse
from penstock.web.server import Door, WebServer, WebSettings
from penstock.wiring import open_pipeline
from tests.lab import FILE, Lab

# Looks are rarer where the machine is busy.
expect.set_options(timeout=20_000)

TOKEN = "a-token-of-the-tests-0123"

SHOP = """
CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL, note text);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL REFERENCES customer, total numeric(10, 2))
"""


def config_of(lab: Lab, name: str | None = None, **apply: object) -> PipelineConfig:
    text = FILE.format(name=name or lab.name, tables=["public.*"], row_triggers=[])
    text += "".join(f"  {key}: {value}\n" for key, value in apply.items())
    return parse(text, name="pipeline.yaml", environment={"SHOP_URL": lab.source_url, "COPY_URL": lab.target_url})


Serve = Callable[..., WebServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serves pages of pipelines; the token is the same each time."""
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    with ExitStack() as stack:

        def begin(*configs: PipelineConfig, port: int = 0, **more: Any) -> WebServer:
            door = stack.enter_context(closing(Door(WebSettings(f"127.0.0.1:{port}", token_file, **more))))
            server = stack.enter_context(closing(WebServer(door, configs, open_pipeline)))
            server.start()
            return server

        yield begin


@pytest.fixture
def shop(lab: Lab) -> Lab:
    """A shop that is followed, and has a customer."""
    lab.setup(SHOP)
    lab.source.execute("INSERT INTO customer VALUES (1, 'Ada', 'first')")
    lab.apply()
    return lab


def break_a_row(lab: Lab, name: str = "Bob") -> None:
    """Have a transaction fail: somebody has changed its row at the target."""
    lab.target.execute("UPDATE customer SET name = 'by hand', note = 'of the target' WHERE id = 1")
    with lab.source.transaction():
        lab.source.execute("INSERT INTO orders VALUES (10, 1, 12.50)")
        lab.source.execute("UPDATE customer SET name = %s WHERE id = 1", [name])
    lab.apply()


def client(server: WebServer, *, token: str | None = TOKEN) -> httpx.Client:
    """A program that asks the page, with its cookie if it knows the token."""
    made = httpx.Client(base_url=server.door.home, timeout=20)
    if token is not None:
        made.get("/", params={"token": token})
    return made


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "make chromium installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Page]:
    """A tab of its own. What the page reports to the console is an error."""
    context = chromium.new_context(viewport={"width": 1240, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.said = said  # type: ignore[attr-defined]
    yield page
    context.close()
