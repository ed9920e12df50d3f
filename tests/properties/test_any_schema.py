"""Of any schema: what differs between source and copy, as `pg_dump -s` sees it, is exactly what is told."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.demo.servers import EmbeddedPostgres
from tests.conftest import lab_between
from tests.lab import Lab
from tests.properties import schemas

Drawn = Sequence[tuple[str, int, int]]

CAPTURED = ["public.*"]


def drawn(texts: Sequence[str], most: int) -> st.SearchStrategy[Drawn]:
    one = st.tuples(st.sampled_from(texts), st.integers(0, 5), st.integers(0, 3))
    return st.lists(one, min_size=1, max_size=most)


@pytest.fixture(scope="module")
def servers(
    source_server: EmbeddedPostgres, target_server: EmbeddedPostgres
) -> tuple[EmbeddedPostgres, EmbeddedPostgres]:
    for server in (source_server, target_server):
        with psycopg.connect(server.url(), autocommit=True) as connection:
            for role in (schemas.APP, schemas.OWNER):
                if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchone() is None:
                    connection.execute(f"CREATE ROLE {role}")
    return source_server, target_server


def check(lab: Lab, servers: tuple[EmbeddedPostgres, EmbeddedPostgres], made: Drawn, later: Drawn) -> None:
    lab.source.execute(schemas.PRELUDE)
    first = schemas.run(lab.source, schemas.statements(made))
    pipeline = lab.pipeline(CAPTURED)
    planned = pipeline.plan()
    pipeline.setup()
    told = schemas.build_post_data(pipeline, CAPTURED)
    unforeseen = set(map(str, told)) ^ set(map(str, planned.target.differences))
    assert not unforeseen, (unforeseen, first)
    if not later:
        schemas.check_told(lab, servers, told, CAPTURED)
        return
    schemas.run(lab.source, [text.replace("{n}", "9") for text in schemas.statements([*made, *later])[len(made) :]])
    schemas.check_told(lab, servers, schemas.build_post_data(lab.pipeline(CAPTURED), CAPTURED), CAPTURED)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=drawn(schemas.MAKING, 14), later=st.just([]) | drawn(schemas.LATER, 6))
def test_what_the_dumps_of_both_sides_differ_by_is_told(
    servers: tuple[EmbeddedPostgres, EmbeddedPostgres], made: Drawn, later: Drawn
) -> None:
    with lab_between(*servers) as lab:
        check(lab, servers, made, later)


@pytest.mark.soak
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=drawn(schemas.MAKING, 25), later=st.just([]) | drawn(schemas.LATER, 12))
def test_what_the_dumps_of_both_sides_differ_by_is_told_of_many(
    servers: tuple[EmbeddedPostgres, EmbeddedPostgres], made: Drawn, later: Drawn
) -> None:
    with lab_between(*servers) as lab:
        check(lab, servers, made, later)


@pytest.mark.parametrize("text", schemas.MAKING)
@pytest.mark.soak
def test_each_kind_alone(servers: tuple[EmbeddedPostgres, EmbeddedPostgres], text: str) -> None:
    with lab_between(*servers) as lab:
        check(lab, servers, [(text, 0, 0)], [])
