"""A short form of `python -m tests.fuzz.ddl`: few rounds, always the same ones. And that it would notice."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.fuzz.ddl import Found, Totals, play_again, play_round, shrink
from tests.fuzz.shape import Shape
from tests.fuzz.statements import Statements
from tests.fuzz.world import SYNC, Failure, Refusal, Step, World, fuzz_server


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with fuzz_server() as made:
        yield made


@pytest.mark.parametrize("is_superuser", [True, False], ids=["superuser", "plain"])
def test_statements_answer_as_without_capture_and_the_copy_is_equal(
    server: EmbeddedPostgres, is_superuser: bool
) -> None:
    totals = Totals()
    for seed in range(2):
        found = play_round(server, seed, is_superuser=is_superuser, steps=70, totals=totals, with_schemas=seed == 1)
        assert found is None, found.report()
    # A round that ends early, or whose copy is excused, says nothing of the rest of it.
    assert totals.whole_rounds == totals.rounds, totals.over
    # Without an event trigger nobody sees a partition go whose changes are not applied yet; that is a gap, and said.
    gaps = () if is_superuser else ("error queue: 26690 ",)
    assert [what for what in totals.excuses if not what.startswith(gaps)] == []


SETUP = [Step(0, "CREATE TABLE t (id int PRIMARY KEY, v text)", is_ddl=True), SYNC]


def test_equal_answers_and_an_equal_copy_are_no_failure(server: EmbeddedPostgres) -> None:
    steps = [
        *SETUP,
        Step(1, "INSERT INTO t VALUES (1, 'a'), (2, 'b')"),
        Step(1, "INSERT INTO t VALUES (1, 'c')"),
        Step(0, "BEGIN"),
        Step(0, "ALTER TABLE t ADD w int DEFAULT 3", is_ddl=True),
        Step(0, "SAVEPOINT s"),
        Step(0, "ALTER TABLE t DROP v", is_ddl=True),
        Step(0, "ROLLBACK TO SAVEPOINT s"),
        Step(0, "COMMIT"),
        Step(1, "COPY t FROM STDIN", "3\tx\t4\n"),
        SYNC,
    ]
    assert play_again(server, steps, is_superuser=True) is None


def test_another_answer_is_a_failure(server: EmbeddedPostgres) -> None:
    with World(server, is_superuser=True) as world:
        for step in SETUP:
            world.take(step)
        world.a.execute("REVOKE INSERT ON t FROM fuzz_writer")
        with pytest.raises(Failure, match="42501"):
            world.take(Step(1, "INSERT INTO t VALUES (1, 'a')"))


@pytest.mark.parametrize(
    ("side", "kind"), [("a", "source: other rows"), ("t", "rows too many")], ids=["source", "target"]
)
def test_rows_that_nobody_wrote_are_a_failure(server: EmbeddedPostgres, side: str, kind: str) -> None:
    with World(server, is_superuser=True) as world:
        for step in SETUP:
            world.take(step)
        getattr(world, side).execute("SET session_replication_role = replica; INSERT INTO t VALUES (9, 'x')")
        with pytest.raises(Failure, match=kind):
            world.take(SYNC)


def test_rows_that_were_not_captured_are_a_failure(server: EmbeddedPostgres) -> None:
    steps = [
        *SETUP,
        Step(2, "SET session_replication_role = replica"),
        Step(2, "INSERT INTO t VALUES (1, 'a')"),
        SYNC,
    ]
    failure = play_again(server, steps, is_superuser=True)
    assert failure is not None
    assert failure.kind == "copy: rows missing, in silence"

    more = [*steps[:2], Step(0, "SELECT 1"), Step(1, "SELECT 2"), SYNC, *steps[2:]]
    small = shrink(server, Found(failure, more, 0, True), seconds=60)
    assert small.steps == steps
    assert "INSERT INTO t" in small.report()


def test_what_a_message_names_is_excused_and_nothing_else() -> None:
    told = Refusal(warnings='public.t1, S 1.x, "S 1"."T ""q"" 5" matches capture.tables but is not captured')
    assert told.names("public", "t1")
    assert told.names("S 1", "x")
    assert told.names("S 1", 'T "q" 5')
    assert not told.names("public", "t")
    assert not told.names("s0", "t1")


def test_a_seed_makes_the_same_statements_again(server: EmbeddedPostgres) -> None:
    made = []
    for _ in range(2):
        statements = Statements(random.Random(3), is_superuser=True)
        with World(server, is_superuser=True) as world:
            for step in statements.opening():
                world.take(step)
            statements.shape = Shape.read(world.b)
            made.append([[s.sql for s in statements.next()] for _ in range(30)])
    assert made[0] == made[1]


def test_most_statements_are_sound(server: EmbeddedPostgres) -> None:
    """A fuzzer whose statements are refused tests nothing."""
    with World(server, is_superuser=True) as world, psycopg.connect(server.url(), autocommit=True):
        statements = Statements(random.Random(11), is_superuser=True)
        outcomes = [world.take(step) for step in statements.opening()]
        for _ in range(60):
            statements.shape = Shape.read(world.b)
            outcomes += [world.sessions and _at_b(world, step) for step in statements.next() if step.session >= 0]
    done = sum(1 for outcome in outcomes if outcome.sqlstate is None)
    assert done > len(outcomes) / 2


def _at_b(world: World, step: Step):
    from tests.fuzz.world import execute

    return execute(world.sessions[step.session][1], step)
