#!/usr/bin/env python3
"""Make the pictures of docs/web.md: a bank of pgbench's in each state that the page can show, on servers of its own.

    screenshots [FOLDER]

Takes four minutes, and needs Debian's Chromium. Nothing stays behind but the pictures.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from penstock.demo.servers import EmbeddedPostgres

ROOT = Path(__file__).resolve().parent.parent
WIDE, NARROW = {"width": 1200, "height": 800}, {"width": 360, "height": 740}
FILE = """\
version: 1
name: {name}
connections:
  bank: {{type: postgres, url: "{bank}"}}
  copy: {{type: postgres, url: "{copy}"}}
capture:
  source: trigger_queue
  connection: bank
  tables: ["{tables}"]
apply:
  connection: copy
  parallelism: 2
"""
SCALE = 20
CUSTOMERS = """
CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL, city text, credit numeric(10, 2));
INSERT INTO customer SELECT n, (ARRAY['Ada', 'Bela', 'Cleo', 'Dora', 'Emil'])[n % 5 + 1] || ' ' || n,
  (ARRAY['Graz', 'Linz', 'Wien'])[n % 3 + 1], n * 10 FROM generate_series(1, 40) n
"""


class Camera:
    """Takes the pictures, and makes them small."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser, self._folder = browser, folder
        self.page = self.open()

    def open(self, *, scheme: str = "light", size: dict[str, int] = WIDE) -> Page:
        """Open another window."""
        context = self._browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(120_000)
        return page

    def enter(self, url: str, page: Page | None = None) -> None:
        """Go to the address that was printed, and through the door."""
        page = page or self.page
        page.goto(url)
        page.wait_for_url(lambda found: "token" not in found)

    def take(self, name: str, page: Page | None = None, *, whole: bool = False) -> None:
        """Take a picture, of the window or of the whole page."""
        page = page or self.page
        # Not while somebody seems to point at a curve.
        page.mouse.move(0, 0)
        path = self._folder / f"web-{name}.png"
        page.screenshot(path=path, full_page=whole)
        Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


class Bank:
    """Two servers, pipeline files, and what happens to them."""

    def __init__(self, bank: EmbeddedPostgres, copy: EmbeddedPostgres, folder: Path) -> None:
        self.bank, self.copy, self._folder = bank, copy, folder
        with psycopg.connect(copy.url(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE archive")
        self.files = {
            "bank": self._file("bank", "public.*", copy.url()),
            "archive": self._file("archive", "public.pgbench_history", copy.url("archive")),
        }
        self._pgbench("-i", "-s", str(SCALE), "-q")
        with psycopg.connect(bank.url(), autocommit=True) as connection:
            connection.execute(CUSTOMERS)

    def _file(self, name: str, tables: str, copy: str) -> Path:
        path = self._folder / f"{name}.yaml"
        text = FILE.format(name=name, bank=self.bank.url(), copy=copy, tables=tables)
        path.write_text(text)
        return path

    def _pgbench(self, *arguments: str) -> None:
        command = [self.bank.programs / "pgbench", *arguments, self.bank.url()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @contextlib.contextmanager
    def busy(self, rate: int) -> Iterator[None]:
        """Have customers of the bank do so many transactions a second while the block runs."""
        command = [self.bank.programs / "pgbench", "-n", "-c", "2", "-T", "600", "-R", str(rate), self.bank.url()]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    @contextlib.contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Have somebody at the target forget to end a transaction while the block runs."""
        with psycopg.connect(self.copy.url(), application_name="psql") as connection:
            connection.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
            yield

    def penstock(self, *arguments: str) -> None:
        """Run a command to its end."""
        command = [sys.executable, "-m", "penstock", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[str]:
        """Start a command that serves the page, and yield the page's address."""
        command = [sys.executable, "-m", "penstock", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            url = next(found[1] for line in process.stderr if (found := re.match(r"page: (\S+)", line)))
            # Nobody reads the rest, and it must not fill up.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield url
        finally:
            process.terminate()
            process.wait()

    def break_rows(self) -> None:
        """Change some rows of the copy by hand, and then the same rows of the bank."""
        with psycopg.connect(self.copy.url(), autocommit=True) as connection:
            connection.execute("UPDATE customer SET name = 'Bela Nagy', credit = 0 WHERE id = 21")
            connection.execute("DELETE FROM customer WHERE id IN (7, 8)")
            connection.execute("INSERT INTO customer VALUES (100, 'by hand', 'Graz', 1)")
        with psycopg.connect(self.bank.url()) as connection:
            connection.execute("UPDATE customer SET credit = credit + 50 WHERE id = 20")
            connection.execute("UPDATE customer SET name = 'Bela Kovács', city = 'Wien' WHERE id = 21")
        with psycopg.connect(self.bank.url(), autocommit=True) as connection:
            connection.execute("UPDATE customer SET city = 'Graz' WHERE id = 7")
            connection.execute("DELETE FROM customer WHERE id = 8")
            connection.execute("INSERT INTO customer VALUES (100, 'Zoe', 'Linz', 5)")


def play(bank: Bank, camera: Camera) -> None:
    """Go through the states one after the other."""
    page, file = camera.page, str(bank.files["bank"])
    pill = page.locator("#headline .pill")
    bank.penstock("-f", file, "setup")
    with bank.started("web", "-f", file, "--listen", "0") as url:
        camera.enter(url)
        expect(pill).to_have_text("set up")
        camera.take("empty")
    with bank.started("-f", file, "run", "--web", "0") as url:
        camera.enter(url)
        expect(page.locator("#tables progress").first).to_be_visible(timeout=120_000)
        expect(page.locator("#headline .facts")).to_contain_text(re.compile(r"[1-9]\d? %"))
        camera.take("copying", whole=True)
        expect(pill).to_have_text("following")
        with bank.busy(150):
            time.sleep(60)
            camera.take("following", whole=True)
            with bank.locked("pgbench_tellers"):
                expect(page.locator("#headline .facts dd").first).to_have_text(re.compile(r"[3-9]\d\.\d s"))
                expect(page.locator("#work .problem").first).to_be_visible(timeout=60_000)
                camera.take("lagging", whole=True)
            expect(pill).to_have_text("following")
            bank.break_rows()
            expect(page.locator("#headline .problem")).to_contain_text("4 transactions")
            time.sleep(10)
            camera.take("failing")
            dark = camera.open(scheme="dark")
            camera.enter(url, dark)
            expect(dark.locator("#headline .pill")).to_contain_text("following")
            time.sleep(4)
            camera.take("dark", dark)
            narrow = camera.open(size=NARROW)
            camera.enter(url, narrow)
            expect(narrow.locator("#headline .pill")).to_contain_text("following")
            time.sleep(4)
            camera.take("narrow", narrow)
        take_queue(camera, url.partition("/?")[0])
    camera_stopped(bank, camera)


def take_queue(camera: Camera, home: str) -> None:
    """The error queue: an entry on hold, the list, an entry, and the form."""
    page = camera.page
    page.goto(f"{home}/p/bank/errors/bank.3")
    page.get_by_label("Note").fill("ticket 4711: ask the branch first")
    page.get_by_role("button", name="Put on hold").click()
    expect(page.locator(".facts")).to_contain_text("On hold")
    page.get_by_role("link", name="Back to bank.3").click()
    camera.take("hold")
    page.goto(f"{home}/p/bank/errors")
    camera.take("queue", whole=True)
    page.get_by_role("link", name="bank.1", exact=True).click()
    camera.take("entry", whole=True)
    page.get_by_role("link", name="Edit values").click()
    page.get_by_label("Old name of change 2", exact=True).fill("Bela Nagy")
    page.get_by_label("Old credit of change 2", exact=True).fill("0.00")
    camera.take("edit", whole=True)


def camera_stopped(bank: Bank, camera: Camera) -> None:
    """What is left once the run has ended, and two pipelines on one page."""
    bank.penstock("-f", str(bank.files["archive"]), "setup")
    both = ("-f", str(bank.files["bank"]), "-f", str(bank.files["archive"]))
    with bank.started("web", *both, "--listen", "0") as url:
        camera.enter(url)
        camera.page.get_by_role("link", name="bank").click()
        expect(camera.page.locator("#headline .pill")).to_have_text("stopped")
        time.sleep(4)
        camera.take("stopped")
        with bank.started("-f", str(bank.files["archive"]), "run", "--web", "0"):
            camera.page.goto(url.partition("?")[0])
            expect(camera.page.locator("#card-archive .pill")).to_have_text("following")
            camera.take("two")


def main() -> None:
    """Make all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    chromium = shutil.which("chromium")
    assert chromium is not None, "run `make chromium`"
    with (
        EmbeddedPostgres() as source,
        EmbeddedPostgres() as target,
        tempfile.TemporaryDirectory() as files,
        sync_playwright() as playwright,
    ):
        expect.set_options(timeout=300_000)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        play(Bank(source, target, Path(files)), Camera(browser, folder))
        browser.close()


if __name__ == "__main__":
    main()
