"""The checks that the fault tests rely on can fail: transactions torn, lost and doubled by hand are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from penstock.archive import Archive
from penstock.demo.servers import EmbeddedPostgres
from penstock.formats.change_file import Encoding
from penstock.position import Scn
from penstock.sinks.archive.files import FileWriter
from penstock.storage import LocalStorage
from tests.archives import publish, row, stream
from tests.faults.loads import SEEDED, Load, differences, journal_size, lost_and_doubled, make_tables
from tests.faults.relay import ArchiveWitness
from tests.faults.witness import Witness, look
from tests.lab import Lab
from tests.program import await_true

ACCOUNT = "UPDATE pgbench_accounts SET abalance = abalance + 7 WHERE aid = 1"
TELLER = "UPDATE pgbench_tellers SET tbalance = tbalance + 7 WHERE tid = 1"
BRANCH = "UPDATE pgbench_branches SET bbalance = bbalance + 7 WHERE bid = 1"
HISTORY = "INSERT INTO pgbench_history (tid, bid, aid, delta) VALUES (1, 1, 1, 7)"
NOTED = "INSERT INTO journal VALUES (1, 1)"
ORDER = f"INSERT INTO orders VALUES ({SEEDED} + 1, 1, 'new', 5, now())"
ITEMS = f"INSERT INTO items (order_id, sku, quantity) SELECT {SEEDED} + 1, 'sku', 5 FROM generate_series(1, %s)"
PAID = "UPDATE customers SET balance = balance + 5, visits = visits + 1 WHERE id = 1"
OTHER = "UPDATE orders SET total = total + 5 WHERE id = 1"

TPC_B = [ACCOUNT, TELLER, BRANCH, HISTORY, NOTED]
MIXED = [PAID, ORDER, ITEMS.replace("%s", "3"), OTHER, NOTED]

HALVES = {
    "no account": ([TELLER, BRANCH, HISTORY, NOTED], "same sum"),
    "no teller": ([ACCOUNT, BRANCH, HISTORY, NOTED], "same sum"),
    "no branch": ([ACCOUNT, TELLER, HISTORY, NOTED], "same sum"),
    "no history": ([ACCOUNT, TELLER, BRANCH, NOTED], "same sum"),
    "two items": ([PAID, ORDER, ITEMS.replace("%s", "2"), OTHER, NOTED], "three items"),
    "no items": ([PAID, ORDER, OTHER, NOTED], "three items"),
    "not paid": ([ORDER, ITEMS.replace("%s", "3"), OTHER, NOTED], "is an order"),
    "other order": ([PAID, ORDER, ITEMS.replace("%s", "3"), NOTED], "paid is in the orders"),
    "swept in part": (["UPDATE pgbench_accounts SET filler = '1' WHERE aid > 100"], "marked by the same one"),
    "not noted": (TPC_B[:-1], "is in the journal"),
    "noted only": ([NOTED], "is in the journal"),
    "doubled": ([*TPC_B, *TPC_B], "more transactions than"),
    "second only": ([*TPC_B[:-1], "INSERT INTO journal VALUES (1, 2)"], "before an earlier one"),
}


@pytest.fixture
def tables(database: str) -> str:
    make_tables(database)
    return database


@pytest.mark.parametrize("whole", [[], TPC_B, MIXED], ids=["none", "tpc-b", "mixed"])
def test_whole_transactions_are_no_offence(tables: str, whole: list[str]) -> None:
    with psycopg.connect(tables, autocommit=True) as connection:
        with connection.transaction():
            for statement in whole:
                connection.execute(statement)

        assert look(connection, in_order=True) == []


@pytest.mark.parametrize(("half", "broken"), HALVES.values(), ids=HALVES.keys())
def test_half_a_transaction_is_seen(tables: str, half: list[str], broken: str) -> None:
    with psycopg.connect(tables, autocommit=True) as connection:
        with connection.transaction():
            for statement in half:
                connection.execute(statement)

        assert any(broken in rule for rule in look(connection, in_order=True))


def test_a_transaction_that_is_torn_for_a_moment_is_seen_in_that_moment(tables: str) -> None:
    with Witness(tables, in_order=False) as witness, psycopg.connect(tables, autocommit=True) as connection:
        await_true(lambda: witness.looks > 2)
        assert witness.torn == []
        connection.execute(ACCOUNT)
        await_true(lambda: bool(witness.torn))
        for statement in TPC_B[1:]:
            connection.execute(statement)

    with pytest.raises(AssertionError, match="same sum"):
        witness.assert_whole()


def test_a_writer_that_has_to_begin_anew_does_not_look_like_one_that_was_overtaken(
    lab: Lab, source_server: EmbeddedPostgres
) -> None:
    make_tables(lab.source_url)
    with psycopg.connect(lab.source_url) as somebody, Load(source_server, lab.source.info.dbname, "tpc-b", clients=1):
        # Its statements are prepared with the first transaction, and pgbench does not try that again.
        await_true(lambda: journal_size(lab.source_url) > 0)
        # The writer is the one that gives way.
        somebody.execute("SET deadlock_timeout = '1min'")
        somebody.execute("LOCK TABLE journal IN SHARE MODE")
        waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'journal'::regclass"
        await_true(lambda: lab.source.execute(waiting).fetchone() is not None)
        somebody.execute("UPDATE pgbench_branches SET bbalance = bbalance")
        somebody.rollback()
        before = journal_size(lab.source_url)
        await_true(lambda: journal_size(lab.source_url) > before + 20)

    deadlocks = "SELECT FROM pg_stat_database WHERE datname = current_database() AND deadlocks > 0"
    await_true(lambda: lab.source.execute(deadlocks).fetchone() is not None)
    assert look(lab.source, in_order=True) == []


def _lose(connection: psycopg.Connection) -> None:
    connection.execute("DELETE FROM journal WHERE ctid = (SELECT min(ctid) FROM journal)")


def _double(connection: psycopg.Connection) -> None:
    connection.execute("INSERT INTO journal SELECT * FROM journal LIMIT 1")


@pytest.mark.parametrize(("damage", "tally"), [(_lose, (1, 0)), (_double, (0, 1))], ids=["lost", "doubled"])
def test_a_lost_or_doubled_transaction_is_counted(
    lab: Lab, source_server: EmbeddedPostgres, damage: Callable[[psycopg.Connection], None], tally: tuple[int, int]
) -> None:
    make_tables(lab.source_url)
    make_tables(lab.target_url)
    with Load(source_server, lab.source.info.dbname):
        await_true(lambda: journal_size(lab.source_url) > 20)
    rows = lab.source.execute("SELECT writer, number FROM journal").fetchall()
    lab.target.cursor().executemany("INSERT INTO journal VALUES (%s, %s)", rows)
    assert lost_and_doubled(lab.source_url, lab.target_url) == (0, 0)

    damage(lab.target)

    assert lost_and_doubled(lab.source_url, lab.target_url) == tally
    assert any(text.startswith("journal") for text in differences(lab.source_url, lab.target_url))
    assert any(text.startswith("pgbench_history") for text in differences(lab.source_url, lab.target_url))


TORN = {
    "a change is missing": ([row(20, 0, of=2)], "t20 of record 9 is torn"),
    "a change is there twice": ([row(20, 0, of=1), row(20, 0, of=1)], "t20 of record 9 is torn"),
    "published before": ([row(20, 0, txn_id="t13")], "t13 of record 9 is there already"),
}


@pytest.mark.parametrize(("rows", "found"), TORN.values(), ids=TORN)
def test_half_a_transaction_in_an_archive_is_seen(rows: list[dict], found: str, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writer = publish(storage)
    with ArchiveWitness(Archive(storage)) as witness:
        await_true(lambda: witness.records == writer.last.number)
        witness.assert_whole()
        written = FileWriter(storage, Encoding.CHANGES, writer.last.epoch).write_changes([stream(rows)])
        writer.commit(Scn(20), written)

    with pytest.raises(AssertionError, match=found):
        witness.assert_whole()


def test_a_file_that_is_missing_in_an_archive_is_seen(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    (file,) = publish(storage).last.files
    (tmp_path / file.name).unlink()

    with ArchiveWitness(Archive(storage)) as witness:
        pass

    with pytest.raises(AssertionError, match="a file of the archive is missing"):
        witness.assert_whole()
