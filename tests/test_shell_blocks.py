"""Commands and SQL that pages show are run: SQL in databases that are set up, commands beside a shop with a copy.

The tutorial and the page of symptoms are played as a whole (test_first_hour.py). What is marked `data-norun` is not
run; test_blocks.py counts the reasons. What takes its time is Spark, which three of them start.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from scripts.reference.first_hour import Fence, environment, fences

from penstock.demo.servers import EmbeddedPostgres
from penstock.pipeline_file import parse
from penstock.wiring import open_pipeline
from tests import forking
from tests.conftest import FAST
from tests.lab import Lab
from tests.program import COMMAND, Running, plain_environment

ROOT = Path(__file__).parents[1]
PAGES = {
    page.relative_to(ROOT).as_posix(): fences(page.read_text(encoding="utf-8"))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
PLAYED = {"docs/first-hour.md", "docs/troubleshooting.md"}

ORDERS = "CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, price numeric)"
# What is there before a page's SQL is run: at which side it is run, the source's tables, and more at that side.
SQL = {
    "docs/cutover.md": ("target", ORDERS, "INSERT INTO orders (price) VALUES (1)"),
    "docs/documented.md": ("source", "CREATE TABLE item (id int PRIMARY KEY)", ORDERS),
    "docs/handlers.md": (
        "source",
        "CREATE TABLE emp (id int PRIMARY KEY, job text); CREATE TABLE acct (id int PRIMARY KEY, state text);"
        "CREATE TABLE hist (emp_id int, job text); INSERT INTO emp VALUES (1, 'A')",
        "",
    ),
    "docs/postgresql.md": ("target", ORDERS, "CREATE ROLE monitoring"),
}
# Run by test_first_hour.py.
PREPARED = {"docs/prepare-roles.md"}


def run_blocks(page: str, language: str) -> list[Fence]:
    return [one for one in PAGES[page] if one.language == language and not one.not_run and not one.title]


def test_every_page_with_sql_has_a_database_for_it() -> None:
    assert {page for page in PAGES if run_blocks(page, "sql")} - PLAYED - PREPARED == set(SQL)


@pytest.mark.parametrize("page", SQL)
def test_sql_of_a_page_runs(page: str, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test may have had the page's module from a folder of its own.
    monkeypatch.delitem(sys.modules, "shop_handlers", raising=False)
    side, tables, more = SQL[page]
    lab.source.execute(tables)
    open_pipeline(parse(file_of(page, lab, tmp_path), name=page, environment={}, folder=tmp_path)).setup()
    session = getattr(lab, side)

    for block in run_blocks(page, "sql"):
        session.execute(f"BEGIN; {more}")
        session.execute(block.body.replace('DATABASE "copy"', f'DATABASE "{session.info.dbname}"'))
        session.execute("ROLLBACK")


def file_of(page: str, lab: Lab, folder: Path) -> str:
    """The pipeline file that the page shows, or any, between the lab's databases; files that it shows are written."""
    for block in PAGES[page]:
        if block.title:
            (folder / block.title).write_text(block.body)
    shown = [block.body for block in PAGES[page] if block.language == "yaml" and "version:" in block.body]
    file = yaml.safe_load((shown or [one.body for one in PAGES["README.md"] if one.language == "yaml"])[0])
    urls = {"shop": lab.source_url, "copy": lab.target_url}
    file["connections"] = {name: {"type": "postgres", "url": url} for name, url in urls.items()}
    return yaml.safe_dump(file)


@dataclass
class Shop:
    """The tutorial's shop beside its copy, and the folder in which somebody types commands."""

    folder: Path
    environment: dict[str, str]

    def type(self, block: Fence) -> None:
        """Run each command of a block; it ends well, or is ended as Ctrl-C ends it."""
        for line in block.body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            if words[0] == "export":
                self.environment |= dict(word.split("=", 1) for word in words[1:])
            elif words[0] != "penstock":
                done = subprocess.run(
                    ["bash", "-o", "pipefail", "-c", line],
                    cwd=self.folder,
                    env=self.environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{line}: {done.stderr}"
            elif words[1] == "web" or "--watch" in words:
                with self.begun(words) as running:
                    running.await_line("page:" if words[1] == "web" else "consistent up to")
                    assert running.end(signal.SIGINT) == 0, f"{line}: {running.said}"
            else:
                self.penstock(*words[1:])

    def begun(self, words: list[str]) -> Running:
        """A command that goes on until it is stopped."""
        return Running([*COMMAND, *words[1:]], self.folder, plain_environment() | self.environment)

    def penstock(self, *arguments: str) -> str:
        """What a command prints that ends well."""
        code, out, err = forking.run(arguments, folder=self.folder, environment=self.environment, timeout=300)
        assert code == 0, f"{arguments}: {out}{err}"
        return out


FIRST_HOUR = {block.title: block.body for block in PAGES["docs/first-hour.md"] if block.title}
DATA = ROOT / "tests/data"
# What the commands of a page read, beside the files that it shows.
FILES = {
    "docs/debezium.md": {"events/orders.jsonl": (DATA / "debezium/postgres_3.6.jsonl").read_text()},
    "docs/from-xmlblaster.md": {
        name: (DATA / "xmlblaster" / name).read_text() for name in ("watcher.properties", "writer.properties")
    },
    "docs/web.md": {
        "shop.yaml": FIRST_HOUR["pipeline.yaml"],
        "archive.yaml": FIRST_HOUR["pipeline.yaml"].replace("name: shop", "name: archive"),
    },
}
# This one shows the command that writes the pipeline file.
WRITING_THE_FILE = {"docs/from-xmlblaster.md"}
# Played as a whole, there or below.
ALONE = PLAYED | {"README.md"}


@contextmanager
def shop_in(folder: Path) -> Iterator[Shop]:
    """The tutorial's shop and an empty database for its copy; every host's name leads to their server."""
    with EmbeddedPostgres(settings=FAST) as server:
        names = {"PGHOSTADDR": "127.0.0.1", "PENSTOCK_CACHE": "", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        shop = Shop(folder, environment(server.programs, server.port) | names)
        for name, body in FIRST_HOUR.items():
            (folder / name).write_text(body)
        made = (
            "createdb shop && psql -q -v ON_ERROR_STOP=1 -d shop -f shop.sql -f source.sql",
            "createdb copy && psql -q -v ON_ERROR_STOP=1 -d copy -f target.sql",
        )
        for command in made:
            subprocess.run(["bash", "-c", command], cwd=folder, env=shop.environment, check=True)
        yield shop


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The tutorial's shop with its copy; no run is alive."""
    with shop_in(tmp_path_factory.mktemp("shop")) as shop:
        # Spark's workers are forked off another process, whose environment knows no server.
        url = f"postgresql://penstock@127.0.0.1:{shop.environment['PGPORT']}/"
        shop.environment |= {"SHOP_URL": f"{url}shop", "COPY_URL": f"{url}copy", "SOURCE_PASSWORD": "none"}
        shop.environment |= {"SOURCE": f"{url}shop", "TARGET": "postgresql:///copy"}
        shop.penstock("setup")
        shop.penstock("run", "--until-caught-up")
        yield shop


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in PLAYED | {"README.md"} and run_blocks(page, "sh")]
)
def test_commands_of_a_page_run(page: str, copied: Shop, tmp_path: Path) -> None:
    shop = Shop(tmp_path, dict(copied.environment))
    files = {} if page in WRITING_THE_FILE else {"pipeline.yaml": FIRST_HOUR["pipeline.yaml"]}
    files |= {block.title: block.body for block in PAGES[page] if block.title} | FILES.get(page, {})
    for name, body in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(body)

    for block in run_blocks(page, "sh"):
        shop.type(block)


def test_the_program_of_a_page_runs(copied: Shop, tmp_path: Path) -> None:
    (block,) = run_blocks("docs/python.md", "python")
    (tmp_path / "pipeline.yaml").write_text(FIRST_HOUR["pipeline.yaml"])

    done = subprocess.run(
        [sys.executable, "-c", block.body],
        cwd=tmp_path,
        env=copied.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"


def test_commands_of_the_readme_make_a_copy_and_remove_what_they_installed(tmp_path: Path) -> None:
    (block,) = run_blocks("README.md", "sh")
    (file,) = run_blocks("README.md", "yaml")
    begin, run, rest = re.split(r"^(penstock run\b.*\n)", block.body, flags=re.M)
    rest, teardown = re.split(r"^(?=penstock teardown\b)", rest, flags=re.M)
    with shop_in(tmp_path) as shop:
        (tmp_path / "pipeline.yaml").write_text(file.body)

        shop.type(Fence("sh", "", begin, 0, 0))
        with shop.begun(shlex.split(run, comments=True)) as running:
            running.await_line("up to date")
            shop.type(Fence("sh", "", rest, 0, 0))
            assert running.end(signal.SIGINT) == 0
        # It asks, where somebody can answer.
        removed = shop.penstock(*shlex.split(teardown, comments=True)[1:], "--yes")

        assert "removed" in removed
