"""`penstock run` killed in the middle of its work, again and again, while pgbench goes on."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.pgbench import Load, assert_exact, load_tables
from tests.lab import Lab
from tests.program import Program

ROUNDS = [pytest.param(2, id="2 rounds"), pytest.param(10, id="10 rounds", marks=pytest.mark.soak)]


@pytest.mark.rule("C-32")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_killed_at_random_moments_it_loses_and_doubles_nothing(
    lab: Lab, source_server: EmbeddedPostgres, tmp_path: Path, rounds: int
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    load_tables(source_server, lab.source.info.dbname, scale=2)
    program = Program(tmp_path, lab.source_url, lab.target_url, name="crash")
    assert program("setup").code == 0
    with Load(source_server, lab.source.info.dbname):
        for number in range(rounds):
            with program.start("run") as run:
                # The first rounds are cut short in the middle of the first copy, or before it began.
                if number % 3 == 0:
                    time.sleep(chance.uniform(6, 16))
                else:
                    run.await_line("following")
                    time.sleep(chance.uniform(0, 4))
                assert run.is_alive, run.said
                run.kill()
    ended = program("run", "--until-caught-up", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["conflicts"], ended.json["errors"]) == (0, 0)
    assert_exact(lab.source, lab.target)
    assert program("verify").code == 0
