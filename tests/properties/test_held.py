"""With `hold_dependents`, once what failed is fixed and retried, the target is equal to the source.

Until then every way of applying holds the same transactions, and none whose blocker is gone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.apply.lane import ServerConfig
from penstock.demo.servers import EmbeddedPostgres
from penstock.position import Limit
from tests.examples import examples
from tests.lab import Lab
from tests.properties.test_any_plan import DATA, TABLES, Farm, Way, statements

HOLDING = ServerConfig(hold_dependents=True)

WAYS = [
    Way("serial, row path, one by one", 1, ServerConfig(hold_dependents=True, use_set_path=False), Limit(1)),
    Way("serial, set path", 1, HOLDING),
    Way("lanes, row path, small batches", 4, ServerConfig(hold_dependents=True, use_set_path=False), Limit(3)),
    Way("lanes, small groups", 2, ServerConfig(hold_dependents=True, group_changes=3)),
    Way("large transactions in pieces", 1, ServerConfig(hold_dependents=True, group_changes=2), Limit(large_changes=2)),
]

WORK = st.lists(st.lists(statements, min_size=1, max_size=3), min_size=8, max_size=16)

DIVERGENCES = st.lists(
    st.sampled_from(
        [
            ("UPDATE p SET v = 9",),
            ("UPDATE p SET v = 9 WHERE id = 1",),
            ("UPDATE c SET w = 99",),
            ("DELETE FROM c",),
            ("UPDATE s SET parent = 4",),
            ("DELETE FROM d WHERE id = 1",),
        ]
    ),
    min_size=1,
    max_size=2,
)


@pytest.fixture(scope="module")
def farm(source_server: EmbeddedPostgres, target_server: EmbeddedPostgres) -> Iterator[Farm]:
    made = Farm(source_server, target_server, name="held", ways=WAYS)
    yield made
    made.close()


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(work=WORK, divergence=DIVERGENCES, seed=st.integers(0, 9))
def test_mended_and_retried_the_target_is_equal_to_the_source(
    farm: Farm, work: list[Any], divergence: list[Any], seed: int
) -> None:
    farm.reset(divergence)
    diverged = {lab: {table: lab.rows(table) for table in TABLES} for lab in farm.labs}
    farm.work(work)

    queues = []
    for lab, way in zip(farm.labs, WAYS, strict=True):
        lab.apply(lanes=way.lanes, config=way.config, limit=way.limit, shuffle=random.Random(seed))
        at = {entry.id: entry.commit_scn for entry in lab.errors()}
        queues.append([(e.commit_scn, e.is_held, at.get(e.behind or "")) for e in lab.errors()])

    for way, queue in zip(WAYS, queues, strict=True):
        assert queue == queues[0], way.name
        assert all(behind is not None for _, is_held, behind in queue if is_held), way.name
    for lab, way in zip(farm.labs, WAYS, strict=True):
        _mend(lab, diverged[lab])
        lab.retry(*(entry.id for entry in lab.errors()))
        assert lab.errors() == [], way.name
        lab.assert_identical(*TABLES)


def _mend(lab: Lab, diverged: dict[str, list[tuple[Any, ...]]]) -> None:
    """Put the rows that differed at first as they were at the source; nothing that was applied has touched them."""
    with psycopg.connect(lab.target_url) as connection:
        connection.execute("SET session_replication_role = replica")
        for table in TABLES:
            connection.execute(f"CREATE TEMP TABLE fresh_{table} (LIKE {table})")
        connection.execute(DATA.replace("INTO ", "INTO fresh_"))
        for table in ("p", "c", "d", "s"):
            for row in connection.execute(f"SELECT * FROM fresh_{table}").fetchall():
                if row not in diverged[table]:
                    connection.execute(f"DELETE FROM {table} WHERE id = %s", [row[0]])
                    places = ", ".join(["%s"] * len(row))
                    connection.execute(f"INSERT INTO {table} VALUES ({places})", row)
