"""The page beside a real run, as somebody new meets it: watch the lag, break a row, find it, fix it, watch it go."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.lab import Lab
from tests.program import Program, Running
from tests.web.conftest import SHOP
from tests.web.test_page import said


@pytest.fixture
def program(lab: Lab, tmp_path: Path) -> Program:
    lab.source.execute(SHOP)
    lab.source.execute("INSERT INTO customer SELECT n, 'customer ' || n, 'as copied' FROM generate_series(1, 500) n")
    program = Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)
    assert program("setup").code == 0
    return program


@pytest.fixture
def running(program: Program) -> Iterator[Running]:
    with program.start("run", "--web", "0") as running:
        running.await_line("page: http://127.0.0.1:")
        running.await_line("following")
        yield running


def address_of(running: Running) -> str:
    (url,) = re.findall(r"^page: (\S+)$", running.said, re.M)
    return str(url)


def test_somebody_new_sees_a_row_fail_finds_why_and_mends_it(lab: Lab, running: Running, tab: Page) -> None:
    """A run of its own with Spark, watched in a browser: half a minute."""
    tab.goto(address_of(running))
    tab.wait_for_url(lambda url: "token" not in url)
    pill = tab.locator("#headline .pill")
    expect(pill).to_have_text("following")
    expect(tab.locator("#tables tr", has_text="public.customer")).to_contain_text("copied")

    # The lag has a curve, and what waits behind a lock moves it.
    lag = tab.locator('[data-chart="lag"]')
    with lab.target.transaction():
        lab.target.execute("LOCK TABLE customer IN ACCESS EXCLUSIVE MODE")
        lab.source.execute("UPDATE customer SET note = 'changed' WHERE id = 2")
        expect(tab.locator("#work .problem")).to_contain_text("for a lock", timeout=60_000)
        expect(tab.locator("#work .problem")).to_contain_text("public.customer")
        expect(tab.locator("#work tr", has_text="apply").first).to_contain_text("Lock relation")
        expect(lag.locator("b")).not_to_have_text("0.0 s")
    expect(lag.locator("b")).to_have_text("0.0 s", timeout=60_000)
    assert len(lag.locator(".curve").get_attribute("d") or "") > 20

    lab.target.execute("UPDATE customer SET name = 'by hand' WHERE id = 1")
    lab.source.execute("UPDATE customer SET name = 'Ada' WHERE id = 1")
    expect(tab.locator("#headline .problem")).to_contain_text("The error queue holds 1 transaction")
    tab.locator("#headline .facts a").click()
    tab.get_by_role("link", name=f"{lab.name}.1").click()
    row = tab.locator("tr", has_text="differs")
    expect(row).to_have_count(1)
    assert [cell.strip() for cell in row.all_inner_texts()[0].split("\t")] == [
        "name", "customer 1", "Ada", "by hand differs"
    ]  # fmt: skip

    tab.get_by_role("link", name="Edit values").click()
    tab.get_by_label("Old name of change 1", exact=True).fill("by hand")
    tab.get_by_role("button", name="Dry run").click()
    expect(tab.locator("h1")).to_have_text(f"Dry run of {lab.name}.1, edited")
    expect(tab.locator(".facts")).to_contain_text("Would apply")
    assert len(lab.errors()) == 1

    # What the dry run has tried is done for good, without being typed again.
    tab.get_by_role("button", name="Apply with these values").click()
    expect(tab.locator(".facts")).to_contain_text("Applied")
    tab.get_by_role("link", name="Error queue").last.click()
    expect(tab.locator(".empty")).to_contain_text("The error queue is empty")
    tab.goto(address_of(running))
    expect(tab.locator("#headline .problem")).to_have_count(0)
    lab.assert_identical("customer")
    assert said(tab) == []

    metrics = httpx.get(f"{address_of(running).partition('/?')[0]}/metrics", headers=bearer(running)).text
    assert f'penstock_lag_seconds{{pipeline="{lab.name}"}} 0.0' in metrics
    assert re.search(rf'penstock_run_\w*changes_total{{.*pipeline="{lab.name}".*}} [1-9]', metrics)

    # The page ends with its run, and keeps it from nothing.
    began = time.monotonic()
    assert running.end(signal.SIGTERM) == 0
    assert time.monotonic() - began < 20
    expect(tab.locator("#link-state")).to_contain_text("does not answer")


def bearer(running: Running) -> dict[str, str]:
    return {"Authorization": f"Bearer {address_of(running).rpartition('=')[2]}"}


def test_json_of_a_run_stays_alone_and_a_port_that_is_taken_keeps_it_from_beginning(
    lab: Lab, program: Program, tmp_path: Path
) -> None:
    done = program("run", "--until-caught-up", "--web", "0", "--json")
    assert json.loads(done.out)["transactions"] == 0
    assert "page: http://127.0.0.1:" in done.err

    with program.start("web", "--listen", "0", "--token-file", str(tmp_path / "token")) as page:
        page.await_line("its token is in")
        taken = address_of(page).rpartition(":")[2]
        refused = program("run", "--web", taken)
        assert refused.code == 2
        assert refused.err.startswith(f"penstock: --web: cannot listen at 127.0.0.1:{taken}: address already in use")
        assert refused.err.count("\n") == 1
        token = (tmp_path / "token").read_text().strip()
        answer = httpx.get(f"{address_of(page)}/status.json", headers={"Authorization": f"Bearer {token}"})
        assert list(answer.json()) == [lab.name]
        assert token not in page.said
        assert page.end(signal.SIGTERM) == 0

    alone = program("run", "--host-name", "x")
    assert (alone.code, alone.err) == (2, "penstock: --host-name goes with --web or --metrics\n")
    open_ = program("run", "--metrics", "0", "--read-without-token")
    assert (open_.code, open_.err) == (2, "penstock: --token-file and --read-without-token go with --web\n")
