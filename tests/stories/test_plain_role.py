"""Who applies needs not be a superuser: `plan` says how to make a role that is none, and its lines are all it takes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from penstock.apply.ddl import DdlPolicy, DdlRules
from penstock.apply.lane import ServerConfig
from penstock.pipeline.plan import Plan
from tests.lab import Lab

TABLES = """
CREATE TYPE mood AS ENUM ('sad');
CREATE SEQUENCE free;
CREATE TABLE p (id serial PRIMARY KEY, n int DEFAULT nextval('free'), m mood) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, v text CHECK (v <> ''));
CREATE INDEX by_v ON c (v);
CREATE TABLE theirs (id int PRIMARY KEY, v text);
"""


@pytest.fixture(autouse=True)
def _made_anew(lab: Lab) -> Iterator[None]:
    """The role is the whole server's."""
    yield
    if lab.target.execute("SELECT FROM pg_roles WHERE rolname = 'penstock'").fetchone() is not None:
        lab.target.execute("DROP OWNED BY penstock CASCADE; DROP ROLE penstock")


def lines_of(plan: Plan) -> list[str]:
    """Those that a person copies out of what `plan --print-sql` prints."""
    part = plan.sql().partition("-- source:")[0]
    return [line.removeprefix("--   ") for line in part.splitlines() if line.startswith("--   ")]


def as_plain_role(lab: Lab, *, with_ddl: bool = False) -> Lab:
    return Lab(lab.source_url, lab.target_url.replace("postgres@", "penstock@"), with_ddl=with_ddl)


def test_the_lines_that_plan_prints_make_a_role_that_sets_up_and_applies(lab: Lab) -> None:
    lab.source.execute(TABLES)
    lab.target.execute("CREATE TABLE theirs (id int PRIMARY KEY, v text)")
    plan = lab.pipeline().plan()
    assert lines_of(plan) == [f"{line};" for line in plan.target.plain_role]
    for line in lines_of(plan):
        lab.target.execute(line.encode())

    with as_plain_role(lab) as plain:
        assert plain.pipeline().plan().target.grants == []
        assert plain.pipeline().plan().target.plain_role == []
        plain.pipeline().setup()
        plain.start()
        plain.source.execute("INSERT INTO p (m) VALUES ('sad'); INSERT INTO c VALUES (1, 1, 'x')")
        plain.source.execute("INSERT INTO theirs VALUES (1, 'x')")
        plain.apply()

        assert plain.errors() == []
        plain.assert_identical("p", "c", "theirs")
        owners = lab.target.execute("SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname = 'penstock'")
        assert owners.fetchall() == [("penstock",)]


def test_the_lines_hand_over_what_a_superuser_has_set_up(lab: Lab) -> None:
    lab.target.execute("CREATE TABLE theirs (id int PRIMARY KEY, v text)")
    lab.setup(TABLES)
    lab.source.execute("INSERT INTO p (m) VALUES ('sad'); INSERT INTO c VALUES (1, 1, 'x')")
    lab.apply()
    lab.ledger.close()
    for line in lines_of(lab.pipeline().plan()):
        lab.target.execute(line.encode())

    with as_plain_role(lab, with_ddl=True) as plain:
        plan = plain.pipeline().plan()
        assert (plan.target.grants, plan.target.faults, plan.left_out) == ([], [], {})
        plain.acquire()
        plain.source.execute("ALTER TABLE c ADD k int DEFAULT 1; CREATE INDEX by_k ON c (k)")
        plain.source.execute("INSERT INTO c VALUES (2, 1, 'y', 2); INSERT INTO theirs VALUES (1, 'x')")
        plain.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY)))

        assert [entry.error_message for entry in plain.errors()] == []
        plain.assert_identical("p", "c", "theirs")
        plain.source.execute(
            "ALTER TYPE mood ADD VALUE 'fair'; CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)"
        )
        plain.pipeline().setup()
        assert plain.pipeline().plan().is_done


def test_a_role_of_that_name_is_made_use_of_unless_it_is_a_superuser(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.target.execute("CREATE ROLE penstock SUPERUSER")
    assert "CREATE ROLE \"penstock_2\" LOGIN PASSWORD 'CHOOSE ONE'" in lab.pipeline().plan().target.plain_role
    lab.target.execute("ALTER ROLE penstock NOSUPERUSER")
    assert "CREATE ROLE" not in str(lab.pipeline().plan().target.plain_role)
    with psycopg.connect(lab.target_url, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM pg_roles WHERE rolname = 'penstock_2'").fetchone() == (0,)
