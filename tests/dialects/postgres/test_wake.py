"""How a reader that has nothing to do learns of the next commit."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.source.wake import wake_key
from penstock.errors import RetryableError
from penstock.position import Limit, Scn
from tests.conftest import FAST, lab_between
from tests.lab import Lab

LONG_S = 20.0
SHORT_S = 0.3


@pytest.fixture
def idle(source_server: EmbeddedPostgres, target_server: EmbeddedPostgres) -> Iterator[Lab]:
    """A pipeline that has caught up, from a server without prepared transactions, as servers are by default."""
    with lab_between(target_server, source_server) as lab:
        lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
        yield lab


def fall_asleep(lab: Lab) -> None:
    """Wait as a run does: the first wait returns at once, for it to look once more."""
    lab.log.wait(threading.Event(), LONG_S)
    assert is_asleep(lab)
    assert lab.log.next_slice(lab.log.tick(), Limit()) is None


def is_asleep(lab: Lab) -> bool:
    """Whether somebody holds the reader's lock."""
    row = lab.source.execute(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted"
        " AND (classid::bigint << 32) | objid::bigint = %s AND database ="
        " (SELECT oid FROM pg_database WHERE datname = current_database()))",
        [wake_key(lab.set_name)],
    ).fetchone()
    return bool(row and row[0])


def wait(lab: Lab, timeout_s: float) -> float:
    began = time.monotonic()
    lab.log.wait(threading.Event(), timeout_s)
    return time.monotonic() - began


def count_changes(lab: Lab) -> int:
    return len(list(lab.changes()))


def fill_queue(session: psycopg.Connection) -> None:
    for n in range(1000):
        session.execute("SELECT pg_notify('other', %s)", [f"{n:07000}"])


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO t VALUES (1, 'a')",
        "INSERT INTO t SELECT n, 'a' FROM generate_series(1, 100) n",
        "BEGIN; SAVEPOINT s; INSERT INTO t VALUES (1, 'a'); ROLLBACK TO s; INSERT INTO t VALUES (2, 'a'); COMMIT",
        "TRUNCATE t",
    ],
)
def test_a_commit_wakes_the_reader(idle: Lab, statement: str) -> None:
    fall_asleep(idle)
    idle.source.execute(statement)

    assert wait(idle, LONG_S) < LONG_S / 2
    assert not is_asleep(idle)
    assert count_changes(idle) > 0


def test_what_is_rolled_back_wakes_nobody(idle: Lab) -> None:
    fall_asleep(idle)
    with idle.source.transaction(force_rollback=True):
        idle.source.execute("INSERT INTO t VALUES (1, 'a')")

    assert wait(idle, SHORT_S) >= SHORT_S


def test_nobody_sleeps_while_a_writer_is_at_work(idle: Lab) -> None:
    with psycopg.connect(idle.source_url) as writer:
        writer.execute("INSERT INTO t VALUES (1, 'a')")
        assert wait(idle, LONG_S) < LONG_S / 2
        assert not is_asleep(idle)

    assert count_changes(idle) == 1


def test_a_reader_at_work_is_not_notified(idle: Lab) -> None:
    fall_asleep(idle)
    wait(idle, SHORT_S)
    assert not is_asleep(idle)
    with psycopg.connect(idle.source_url, autocommit=True) as listener:
        listener.execute(f"LISTEN {idle.set_name}")
        idle.source.execute("INSERT INTO t VALUES (1, 'a')")

        assert list(listener.notifies(timeout=SHORT_S)) == []


def test_what_was_committed_before_the_reader_slept_is_found_when_it_looks_again(idle: Lab) -> None:
    position = idle.log.tick()
    assert idle.log.next_slice(position, Limit()) is None
    idle.source.execute("INSERT INTO t VALUES (1, 'a')")

    idle.log.wait(threading.Event(), LONG_S)

    found = idle.log.next_slice(position, Limit())
    assert found is not None
    assert len(found) == 1


def test_a_sleeper_that_is_told_to_stop_wakes_up(idle: Lab) -> None:
    fall_asleep(idle)
    stop = threading.Event()
    threading.Timer(SHORT_S, stop.set).start()

    idle.log.wait(stop, LONG_S)

    assert stop.is_set()


def test_a_sleeper_whose_session_is_lost_says_so(idle: Lab) -> None:
    fall_asleep(idle)
    idle.source.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
        [f"penstock {idle.set_name} log"],
    )

    with pytest.raises(RetryableError, match="wait for changes"):
        idle.log.wait(threading.Event(), LONG_S)

    idle.log.close()
    fall_asleep(idle)


def test_prepared_transactions_can_be_prepared_while_a_reader_waits(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with psycopg.connect(lab.source_url, autocommit=True) as other:
        # As if a reader slept that knew of no prepared transactions.
        other.execute("SELECT pg_advisory_lock(%s)", [wake_key(lab.set_name)])
        assert wait(lab, LONG_S) < LONG_S / 2
        lab.source.execute("BEGIN; INSERT INTO t VALUES (1, 'p'); PREPARE TRANSACTION 'waiting'")
        lab.source.execute("COMMIT PREPARED 'waiting'")

    assert count_changes(lab) == 1


def test_a_full_queue_fails_no_writer(target_server: EmbeddedPostgres) -> None:
    small = EmbeddedPostgres(settings={**FAST, "max_notify_queue_pages": "64"})
    with small, lab_between(small, target_server) as lab, psycopg.connect(lab.source_url) as busy:
        lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
        fall_asleep(lab)
        # A listener inside a transaction reads nothing, and what it has not read stays.
        busy.execute("LISTEN other")
        busy.commit()
        busy.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="too many notifications"):
            fill_queue(lab.source)

        lab.source.execute("INSERT INTO t VALUES (1, 'a')")

        assert count_changes(lab) == 1


def test_no_commit_is_slept_through(idle: Lab) -> None:
    """Writers at random moments, some of whose work is rolled back; a reader that only a notification wakes in time."""
    each = 40

    def write(seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(idle.source_url, autocommit=True) as session:
            for n in range(each):
                time.sleep(rng.choice([0, 0.001, 0.02, 0.08]))
                with session.transaction():
                    if rng.random() < 0.3:
                        with session.transaction(force_rollback=True):
                            session.execute("INSERT INTO t VALUES (%s, 'undone')", [seed * each + n])
                    session.execute("INSERT INTO t VALUES (%s, 'done')", [seed * each + n])
                    time.sleep(rng.choice([0, 0, 0.005]))

    writers = [threading.Thread(target=write, args=[seed]) for seed in range(3)]
    for writer in writers:
        writer.start()
    position, found, longest = Scn(0), 0, 0.0
    while found < each * len(writers):
        part = idle.log.next_slice(position, Limit())
        if part is None:
            longest = max(longest, wait(idle, LONG_S))
            continue
        found += len(part)
        position = part.end
    for writer in writers:
        writer.join()

    assert longest < LONG_S / 2


def test_a_log_of_an_older_version_learns_to_wake_its_reader(idle: Lab) -> None:
    idle.source.execute(f"ALTER TABLE {idle.set_name}.log ALTER COLUMN at SET DEFAULT clock_timestamp()")
    idle.source.execute(f"COMMENT ON SCHEMA {idle.set_name} IS 'penstock: of an older version'")
    wait(idle, LONG_S)
    assert not is_asleep(idle)

    idle.pipeline().setup()
    idle.log.close()

    fall_asleep(idle)
    idle.source.execute("INSERT INTO t VALUES (1, 'a')")
    assert wait(idle, LONG_S) < LONG_S / 2
