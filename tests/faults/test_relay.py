"""PostgreSQL to change files to PostgreSQL, with both halves killed at random: identical, nothing twice, nothing torn."""

from __future__ import annotations

import random
from pathlib import Path

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.loads import Load, differences, journal_size, lost_and_doubled, make_tables
from tests.faults.relay import Relay
from tests.faults.witness import Witness, look
from tests.lab import Lab

KILLS = [pytest.param(1, id="1 kill each"), pytest.param(20, id="20 kills each", marks=pytest.mark.soak)]


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("kills", KILLS)
def test_both_halves_are_killed_under_pgbench(
    lab: Lab, source_server: EmbeddedPostgres, tmp_path: Path, chance: random.Random, kills: int
) -> None:
    make_tables(lab.source_url)
    witness = Witness(lab.target_url, in_order=False)
    with (
        Relay(tmp_path, lab.source_url, lab.target_url, name=lab.name, chance=chance) as relay,
        Load(source_server, lab.source.info.dbname, rate=200) as load,
    ):
        relay.start(kill_copies=kills > 1)
        with witness:
            relay.kill_often(each=kills)
            # While more is written, what has been written by now arrives without anybody's help.
            now = journal_size(lab.source_url)
            relay.await_true(lambda: journal_size(lab.target_url) >= now)
            load.end()
            relay.await_true(lambda: not differences(lab.source_url, lab.target_url))
        relay.stop()
    lost, doubled = lost_and_doubled(lab.source_url, lab.target_url)
    print(relay.report())
    written, applied = journal_size(lab.source_url), journal_size(lab.target_url)
    print(f"{written:,} written, {applied:,} applied, {lost} lost, {doubled} doubled,")
    print(f"{len(witness.torn)} torn in {witness.looks:,} looks, {relay.errors()} errors")
    assert (lost, doubled, relay.errors()) == (0, 0, 0)
    assert differences(lab.source_url, lab.target_url) == []
    assert not look(lab.source, in_order=True)
    witness.assert_whole()
    relay.archive_witness.assert_whole()
