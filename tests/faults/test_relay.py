"""PostgreSQL to change files to PostgreSQL, both halves killed at random: identical, nothing twice, nothing torn."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.loads import Load, Sweeps, differences, journal_size, lost_and_doubled, make_tables
from tests.faults.relay import Relay
from tests.faults.witness import Rule, Witness, look
from tests.lab import Lab
from tests.stories.test_restore import content
from tests.stories.test_types import MADE
from tests.stories.test_unseen_schema import Table, a_schema, write

KILLS = [pytest.param(20, id="20 kills each")]


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.soak
@pytest.mark.parametrize("kills", KILLS)
def test_both_halves_are_killed_under_pgbench(
    lab: Lab, source_server: EmbeddedPostgres, tmp_path: Path, chance: random.Random, kills: int
) -> None:
    make_tables(lab.source_url)
    witness = Witness(lab.target_url, in_order=False)
    with (
        Relay(tmp_path, lab.source_url, lab.target_url, name=lab.name, chance=chance) as relay,
        Load(source_server, lab.source.info.dbname, rate=200) as load,
        Sweeps(lab.source_url, every_s=5) as sweeps,
    ):
        relay.start(kill_copies=kills > 1)
        with witness:
            relay.kill_often(each=kills)
            # While more is written, what has been written by now arrives without anybody's help.
            now = journal_size(lab.source_url)
            relay.await_true(lambda: journal_size(lab.target_url) >= now)
            load.end()
            sweeps.end()
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


NOTED = """
CREATE TABLE begun (writer int, n int, PRIMARY KEY (writer, n));
CREATE TABLE ended (writer int, n int);
"""

BEGUN_IS_ENDED = Rule(
    "what a transaction begins with is there if, and only if, what it ends with is there",
    "SELECT count(*) FROM begun b FULL JOIN ended e ON b.writer = e.writer AND b.n = e.n"
    " WHERE b.n IS NULL OR e.n IS NULL",
)


class Writers:
    """Three sessions that write to tables, and note what they begin and end, while the block runs."""

    def __init__(self, url: str, tables: list[Table], chance: random.Random) -> None:
        self._until = threading.Event()
        self._done: list[int] = []
        self._threads = [
            threading.Thread(
                target=write,
                args=(url, tables, chance.randrange(1 << 30), self._until, self._done),
                kwargs={
                    "first": f"INSERT INTO begun VALUES ({writer}, {{n}})",
                    "last": f"INSERT INTO ended VALUES ({writer}, {{n}})",
                },
            )
            for writer in range(3)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop writing; all that was committed is committed when this returns."""
        self._until.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.soak
@pytest.mark.parametrize("number", range(4))
def test_both_halves_are_killed_over_a_schema_nobody_has_seen(
    lab: Lab, tmp_path: Path, chance: random.Random, number: int
) -> None:
    del number
    tables = a_schema(chance)
    for connection in (lab.source, lab.target):
        connection.execute(MADE)
    lab.source.execute(NOTED + "".join(table.ddl for table in tables))
    witness = Witness(lab.target_url, in_order=False, rules=[BEGUN_IS_ENDED])
    with Relay(tmp_path, lab.source_url, lab.target_url, name=lab.name, chance=chance) as relay:
        with Writers(lab.source_url, tables, chance) as load:
            relay.start(kill_copies=True)
            with witness:
                relay.kill_often(each=5)
                load.end()
                relay.await_true(lambda: ended(lab.source) == ended(lab.target))
        relay.stop()
    written, applied = ended(lab.source), ended(lab.target)
    lost, doubled = (written - applied).total(), (applied - written).total()
    print(relay.report())
    print(f"{written.total():,} written, {applied.total():,} applied, {lost} lost, {doubled} doubled,")
    print(f"{len(witness.torn)} torn in {witness.looks:,} looks, {relay.errors()} errors")
    assert (lost, doubled, relay.errors()) == (0, 0, 0)
    assert content(lab.target) == content(lab.source)
    witness.assert_whole()
    relay.archive_witness.assert_whole()


def ended(connection: psycopg.Connection) -> Counter[tuple[int, int]]:
    """The transactions that a database holds, each as its writer and its number."""
    return Counter(connection.execute("SELECT writer, n FROM ended"))
