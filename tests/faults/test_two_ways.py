"""Two databases follow each other, with users on both sides, and their runs are killed in the middle of it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.lab import Lab
from tests.program import Program, Running

ROUNDS = [pytest.param(10, id="10 rounds")]


@pytest.mark.soak
@pytest.mark.rule("A-185", "A-186")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_killed_at_random_moments_both_sides_come_out_the_same(lab: Lab, tmp_path: Path, rounds: int) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    lab.source.execute(
        "CREATE TABLE item (id int PRIMARY KEY, stock int NOT NULL);"
        "CREATE TABLE orders (id int PRIMARY KEY, item int NOT NULL REFERENCES item, n int);"
        "INSERT INTO item SELECT n, 0 FROM generate_series(0, 199) n"
    )
    for name in ("there", "back"):
        (tmp_path / name).mkdir()
    there = Program(tmp_path / "there", lab.source_url, lab.target_url, name="there")
    back = Program(tmp_path / "back", lab.target_url, lab.source_url, name="back", first_copy="false")
    for program in (there, back):
        assert program("setup").code == 0
        assert program("run", "--until-caught-up").code == 0

    with users(lab.source_url, 0, seed) as at_source, users(lab.target_url, 1, seed + 1) as at_target:
        running = [program.start("run") for program in (there, back)]
        try:
            for _ in range(rounds):
                killed = chance.randrange(2)
                running[killed].await_line("following")
                time.sleep(chance.uniform(0, 4))
                assert running[killed].is_alive, running[killed].said
                running[killed].kill()
                running[killed] = (there, back)[killed].start("run")
            for run in running:
                run.await_line("following")
        finally:
            end(running)
    assert min(at_source[0], at_target[0]) > 10

    for program in (there, back):
        ended = program("run", "--until-caught-up", "--json")
        assert ended.code == 0, ended.err
        assert (ended.json["conflicts"], ended.json["errors"]) == (0, 0)
    lab.assert_identical("item", "orders")
    # Each counts what users did on its side, and nothing that came back.
    written = [at_source[0], at_target[0]]
    for program, count in zip((there, back), written, strict=True):
        assert program("status", "--json").json["transactions"] == count
        assert program("verify").code == 0


def end(running: list[Running]) -> None:
    for run in running:
        if run.is_alive:
            run.kill()


@contextmanager
def users(url: str, remainder: int, seed: int) -> Iterator[list[int]]:
    """Write to every second key, in a thread; yields how many transactions were committed."""
    stop, committed = threading.Event(), [0]

    def write() -> None:
        chance, number = random.Random(seed), remainder
        with psycopg.connect(url) as session:
            while not stop.is_set():
                item = chance.randrange(100) * 2 + remainder
                session.execute("UPDATE item SET stock = stock + 1 WHERE id = %s", [item])
                number += 2
                session.execute("INSERT INTO orders VALUES (%s, %s, 1)", [number, item])
                if chance.random() < 0.3:
                    session.execute("DELETE FROM orders WHERE id = %s", [chance.randrange(number // 2) * 2 + remainder])
                session.commit()
                committed[0] += 1
                stop.wait(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield committed
    finally:
        stop.set()
        writer.join()
