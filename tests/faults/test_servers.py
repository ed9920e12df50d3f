"""Database servers that go away while `penstock run` is at work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.pgbench import Load, assert_exact, load_tables
from tests.program import Program, await_true


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """Servers of these tests' own, which survive a crash as servers in production do."""
    with EmbeddedPostgres() as source, EmbeddedPostgres() as target:
        yield source, target


def test_servers_that_crash_and_come_back_lose_and_double_nothing(
    servers: tuple[EmbeddedPostgres, EmbeddedPostgres], tmp_path: Path
) -> None:
    source, target = servers
    load_tables(source, "postgres")
    program = Program(tmp_path, source.url(), target.url(), name="away")
    assert program("setup").code == 0
    with program.start("run") as run:
        run.await_line("following")
        for server in (target, source):
            with Load(source, "postgres"):
                await_true(lambda: history(target) > 100)
                server.kill()
                run.await_line(f"127.0.0.1:{server.port}")
            server.start()
            run.await_line("connected again")
        with Load(source, "postgres"):
            before = history(target)
            await_true(lambda: history(target) > before + 100)
        assert run.end() == 0, run.said
        assert run.said.count("connected again") == 2, run.said
    ended = program("run", "--until-caught-up", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["conflicts"], ended.json["errors"]) == (0, 0)
    with psycopg.connect(source.url()) as at_source, psycopg.connect(target.url()) as at_target:
        assert_exact(at_source, at_target)


def test_a_target_that_stays_away_ends_the_run_with_one_clear_line(
    servers: tuple[EmbeddedPostgres, EmbeddedPostgres], tmp_path: Path
) -> None:
    source, target = servers
    with psycopg.connect(source.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY)")
    program = Program(tmp_path, source.url(), target.url(), name="stays_away", retry_s=2)
    text = (tmp_path / "pipeline.yaml").read_text()
    (tmp_path / "pipeline.yaml").write_text(text.replace("public.*", "public.t"))
    assert program("setup").code == 0
    with program.start("run") as run:
        run.await_line("following")
        target.stop()
        try:
            assert run.wait() == 4, run.said
        finally:
            target.start()
    lines = run.said.strip().splitlines()
    # One that it tries again, one that it gives up.
    assert len([line for line in lines if " INFO " not in line]) == 2, run.said
    assert "ERROR   penstock: cannot " in lines[-1]
    assert f"127.0.0.1:{target.port}" in lines[-1]
    assert "after trying for 2 s" in lines[-1]
    assert "Traceback" not in run.said


def test_a_run_is_alive_while_its_source_is_away_and_can_be_told_to_stop(
    servers: tuple[EmbeddedPostgres, EmbeddedPostgres], tmp_path: Path
) -> None:
    source, target = servers
    with psycopg.connect(source.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY)")
    program = Program(tmp_path, source.url(), target.url(), name="told")
    text = (tmp_path / "pipeline.yaml").read_text()
    (tmp_path / "pipeline.yaml").write_text(text.replace("public.*", "public.t"))
    assert program("setup").code == 0
    with program.start("run") as run:
        run.await_line("following")
        run.await_line("up to date")
        source.stop()
        try:
            run.await_line("trying again")
            checked = program("status", "--check", "--json").json
            assert checked["state"] == "running"
            assert [problem["kind"] for problem in checked["problems"]] == ["source_lost"]
            assert program("apply", "stop", "--json").code == 0
            assert run.wait() == 0, run.said
        finally:
            source.start()
    assert run.said.count("trying again") == 1, run.said
    stopped = program("status", "--json").json
    assert (stopped["state"], stopped["reason"]) == ("stopped", "it was told to stop")


def history(server: EmbeddedPostgres) -> int:
    with psycopg.connect(server.url()) as connection:
        row = connection.execute("SELECT count(*) FROM pgbench_history").fetchone()
        assert row is not None
        return int(row[0])
