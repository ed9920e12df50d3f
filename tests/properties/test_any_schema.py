"""Of any schema: what differs between source and copy, as `pg_dump -s` sees it, is exactly what is told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.base import Difference
from penstock.pipeline.pipeline import Pipeline
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


def furnish(pipeline: Pipeline) -> list[Difference]:
    """Make what a run and a cutover make; returns what differs then."""
    source, target = pipeline._source, pipeline._target
    tables = source.match(CAPTURED)
    with closing(target.furnisher(source.fittings(tables))) as furnisher:  # type: ignore[attr-defined]
        list(furnisher.build(tables))
        list(furnisher.build(tables, is_last=True))
        return list(furnisher.differences())


def carry_out(lab: Lab, differences: Sequence[Difference]) -> None:
    """Do at the target what was told, as often as one thing needs another."""
    left = [(one, one.sql) for one in differences if one.sql]
    while left:
        failed = []
        for one, sql in left:
            try:
                with lab.target.transaction():
                    lab.target.execute(sql)
            except psycopg.Error as exc:
                failed.append((one, sql, exc))
        assert len(failed) < len(left), [f"{one}: {sql}: {exc}" for one, sql, exc in failed]
        left = [(one, sql) for one, sql, _ in failed]


def check_told(lab: Lab, servers: tuple[EmbeddedPostgres, EmbeddedPostgres], told: Sequence[Difference]) -> None:
    """What is told is what the dumps differ by: no more, and, once it is carried out, no less."""

    def dumps() -> list[str]:
        at_source, at_target = (
            schemas.dumped(server.programs, url, connection)
            for server, url, connection in zip(
                servers, (lab.source_url, lab.target_url), (lab.source, lab.target), strict=True
            )
        )
        return [f"- {text}" for text in (at_source - at_target)] + [f"+ {text}" for text in (at_target - at_source)]

    before = "\n".join(dumps())
    for one in told:
        assert one.kind == "column order" or any(word in before for word in words(one)), f"{one}\n{before}"
    assert bool(before) == bool([one for one in told if one.kind != "column order"]), (told, before)
    for _ in range(3):
        # What is made for all partitions at once may get other names, which is told then.
        carry_out(lab, [*(one for one in told if one.is_extra), *(one for one in told if not one.is_extra)])
        told = furnish(lab.pipeline(CAPTURED))
        if not any(one.sql for one in told):
            break
    after = "\n".join(dumps())
    assert not after, f"{after}\n{[str(one) for one in told]}"


def words(one: Difference) -> list[str]:
    """Names that a dump has where it has this."""
    return [word for word in re.findall(r"\w+", one.what) if word not in ("of", "on", "public", "column", one.kind)]


def check(lab: Lab, servers: tuple[EmbeddedPostgres, EmbeddedPostgres], made: Drawn, later: Drawn) -> None:
    lab.source.execute(schemas.PRELUDE)
    first = schemas.run(lab.source, schemas.statements(made))
    pipeline = lab.pipeline(CAPTURED)
    planned = pipeline.plan()
    pipeline.setup()
    told = furnish(pipeline)
    unforeseen = set(map(str, told)) ^ set(map(str, planned.target.differences))
    assert not unforeseen, (unforeseen, first)
    if not later:
        check_told(lab, servers, told)
        return
    schemas.run(lab.source, [text.replace("{n}", "9") for text in schemas.statements([*made, *later])[len(made) :]])
    check_told(lab, servers, furnish(lab.pipeline(CAPTURED)))


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
