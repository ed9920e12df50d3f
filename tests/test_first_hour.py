"""The tutorial and the page of symptoms are played as they stand, and print what they show; so is SQL for the roles.

What takes its time are two first copies, two runs, and some thirty commands, each a process of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from scripts.reference import troubleshooting
from scripts.reference.first_hour import (
    Fence,
    Terminal,
    environment,
    fences,
    outputs,
    play,
    same,
)

from penstock.demo.servers import EmbeddedPostgres
from tests import forking
from tests.conftest import FAST

ROOT = Path(__file__).parents[1]
ANEW = "python -m scripts.reference.first_hour writes what is printed into the pages"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings=FAST) as server:
        yield server


@pytest.fixture
def surroundings(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of somebody who has just begun; what they made goes afterwards."""
    folder = tmp_path_factory.mktemp("installed")
    found = environment(server.programs, server.port)
    with forking.installed(folder):
        yield found | {"PENSTOCK_CACHE": "", "PATH": f"{folder}{os.pathsep}{found['PATH']}"}
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for database in ("shop", "copy"):
            connection.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        connection.execute("DROP OWNED BY penstock")
        connection.execute("DROP ROLE penstock")


def page(name: str) -> list[Fence]:
    return fences((ROOT / "docs" / name).read_text(encoding="utf-8"))


def differing(found: list[Fence]) -> list[str]:
    """The commands that printed something else than the block behind them shows, and what."""
    return [
        f"{command.body}{command.printed}"
        for command, shown in outputs(found)
        if same(command.printed) != same(shown.body)
    ]


def test_the_first_hour_prints_what_the_page_shows(surroundings: dict[str, str], tmp_path: Path) -> None:
    found = page("first-hour.md")
    assert len(outputs(found)) == 12

    play(found, tmp_path, surroundings)

    assert differing(found) == [], ANEW


def test_each_symptom_looks_as_the_page_of_symptoms_shows(surroundings: dict[str, str], tmp_path: Path) -> None:
    text = troubleshooting.PAGE.read_text(encoding="utf-8")
    found = troubleshooting.script(text)
    assert len(outputs(found)) == text.count("\n```text\n") == 14
    assert set(troubleshooting.SCENES) <= set(re.findall(r"^## (.+)$", text, re.M))

    play(found, tmp_path, surroundings)

    assert differing(found) == [], ANEW


def test_the_sql_that_prepares_both_roles_leaves_no_grant_to_be_wished_for(
    surroundings: dict[str, str], tmp_path: Path
) -> None:
    files = {fence.title: fence for fence in page("prepare-roles.md") + page("first-hour.md") if fence.title}
    terminal = Terminal(tmp_path, surroundings)
    for fence in (*files.values(), Fence("sql", ' title="more.sql"', "CREATE TABLE later (id int PRIMARY KEY);", 0, 0)):
        terminal.play(fence)
    prepared = {fence.title: fence.body for fence in page("prepare-roles.md") if fence.title}
    assert set(prepared) == {"source.sql", "target.sql"}
    (tmp_path / "source.sql").write_text(prepared["source.sql"])
    # Both databases are on one server here, where the role is made once.
    (tmp_path / "target.sql").write_text(prepared["target.sql"].replace("CREATE ROLE penstock LOGIN;", ""))
    made = "createdb shop && createdb copy && psql -q -v ON_ERROR_STOP=1 -d shop -f shop.sql -f source.sql -f more.sql"
    for command in (made, "psql -q -v ON_ERROR_STOP=1 -d copy -f target.sql"):
        assert terminal.run(command).strip() == ""
    terminal.environment |= {"SHOP_URL": "postgresql://penstock@/shop", "COPY_URL": "postgresql://penstock@/copy"}

    plan = terminal.run("penstock plan --detail; echo exit code $?")

    assert "capture table public.later" in plan
    assert "missing" not in plan
    assert plan.endswith("exit code 0\n")


def test_what_differs_from_time_to_time_is_left_out_of_the_comparison_and_nothing_else() -> None:
    assert same("2026-11-29T15:52:19.588Z INFO copied 2 chunks, 10,100 rows") == "TIME INFO copied CHUNKS, 10,100 rows"
    assert same("lag   0.2 s, low 22, high 23") == "lag SIZE, NUMBER, NUMBER"
    assert same("session 4711 (user 'a') is in the way") == "session NUMBER (user 'a') is in the way"
    assert same("id 28075d4d-105f-4e8a-9ae3-4584eda9cd18, database copy") == "id UUID, database copy"
    assert same("error 1 (23505) in 3 tables") == "error 1 (23505) in 3 tables"
