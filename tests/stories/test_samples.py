"""Two sample databases through the command line, by roles that may do no more than `penstock plan` asks for.

One is like Pagila, the other like Northwind; `samples/` holds their tables, rows and a day's transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.program import Program

SAMPLES = Path(__file__).parent / "samples"

TRACES = """
SELECT nspname FROM pg_namespace WHERE nspname LIKE 'penstock%'
UNION ALL SELECT tgname FROM pg_trigger WHERE tgname LIKE 'R_penstock%'
UNION ALL SELECT evtname FROM pg_event_trigger
UNION ALL SELECT proname FROM pg_proc WHERE proname LIKE '%penstock%'
"""

TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
"""


@dataclass(frozen=True)
class Story:
    """A pipeline of a role that is nobody in particular, and both databases as their administrators see them."""

    lab: Lab
    program: Program
    role: str

    def at_source(self, sample: str) -> None:
        self.lab.source.execute((SAMPLES / f"{sample}.sql").read_text(encoding="utf-8"))

    def grant_what_plan_names(self) -> None:
        """Give the role each privilege that the plan says it lacks, and no other."""
        planned = self.program("plan", "--json")
        assert planned.code == 3, planned.err
        for side, connection in (("source", self.lab.source), ("target", self.lab.target)):
            for grant in planned.json[side]["missing_grants"]:
                connection.execute(grant)

    def do(self, *arguments: str) -> str:
        done = self.program(*arguments)
        assert done.code == 0, done.out + done.err
        return done.out

    def catch_up(self) -> None:
        """Apply all that is committed; the exit code says whether anything was refused."""
        self.do("run", "--until-caught-up")

    def compare(self) -> None:
        """Both sides are the same, as `verify` says and as the databases do, and nothing was refused."""
        compared = self.program("verify", "--json")
        assert compared.code == 0, compared.out + compared.err
        assert compared.json["identical"]
        assert self.lab.errors() == []
        tables = [name for (name,) in self.lab.source.execute(TABLES).fetchall()]
        assert {f"public.{name}" for name in tables} == {table["table"] for table in compared.json["tables"]}
        self.lab.assert_identical_text(*tables)

    def traces(self) -> list[tuple[str]]:
        return [row for side in (self.lab.source, self.lab.target) for row in side.execute(TRACES).fetchall()]


@pytest.fixture
def story(lab: Lab, tmp_path: Path) -> Iterator[Story]:
    role = f"plain_{lab.source.info.dbname}"
    for side in (lab.source, lab.target):
        side.execute(f"CREATE ROLE {role} LOGIN")
    urls = [url.replace("postgres@", f"{role}@") for url in (lab.source_url, lab.target_url)]
    yield Story(lab, Program(tmp_path, *urls, name="sample"), role)
    for side in (lab.source, lab.target):
        side.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_films_are_rented_and_a_new_month_begins(story: Story) -> None:
    """The role owns nothing at the source."""
    story.at_source("rental")
    story.grant_what_plan_names()
    story.do("setup")
    story.catch_up()

    story.at_source("rental_day")
    story.lab.source.execute("SELECT add_payment_month('2022-07-01')")
    story.grant_what_plan_names()
    story.do("setup")
    story.at_source("rental_month")
    story.catch_up()
    story.compare()

    story.do("teardown")
    assert story.traces() == []


def test_orders_come_in_and_a_customer_changes_its_key(story: Story) -> None:
    """The role owns the tables at the source, as an application's does."""
    story.lab.source.execute(f"GRANT CREATE ON SCHEMA public TO {story.role}; SET ROLE {story.role}")
    story.at_source("trade")
    story.lab.source.execute(f"RESET ROLE; REVOKE CREATE ON SCHEMA public FROM {story.role}")
    story.grant_what_plan_names()
    story.do("setup")
    story.catch_up()

    story.at_source("trade_day")
    story.catch_up()
    story.compare()

    story.do("teardown")
    assert story.traces() == []
