"""What cutting, reading and freeing a change log leaves behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock import change as c
from penstock.dialects.postgres.source import change_log
from penstock.dialects.postgres.source.change_log import PostgresChangeLog
from penstock.dialects.postgres.source.copy import PostgresCopyOrigin
from penstock.dialects.postgres.source.snapshots import Snapshot
from penstock.dialects.postgres.source.ticks import Tick, Ticks
from penstock.errors import RetryableError
from penstock.position import Limit, Scn
from tests.faults.proxy import Proxy
from tests.lab import Lab
from tests.program import await_true


def read_on(lab: Lab, position: Scn) -> tuple[int, Scn]:
    """Read the next slice as a task does; returns how many changes it holds, and where it ends."""
    part = lab.log.next_slice(position, Limit())
    assert part is not None
    return sum(batch.num_rows for batch in lab.reader().read(part)), part.end


def sessions(lab: Lab) -> int:
    row = lab.source.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [f"penstock {lab.set_name} reader"]
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_session_that_has_read_a_huge_value_is_not_kept(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.source.execute("INSERT INTO t VALUES (1, 'small')")
    changes, position = read_on(lab, Scn(0))
    assert (changes, sessions(lab)) == (1, 2)

    lab.source.execute("INSERT INTO t VALUES (2, repeat('huge', 20 * 1024 * 1024))")
    changes, position = read_on(lab, position)
    # What is left is the one that lists transactions; the server ends the other in its own time.
    assert changes == 1
    await_true(lambda: sessions(lab) == 1)

    lab.source.execute("INSERT INTO t VALUES (3, 'small')")
    assert (read_on(lab, position)[0], sessions(lab)) == (1, 2)


@pytest.mark.parametrize("work", ["next_slice", "tick", "free"])
def test_a_client_that_is_lost_at_work_holds_nobody_up(lab: Lab, work: str) -> None:
    """Lost where the server hears nothing of it, while it waits for a lock, which it gets afterwards."""
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.source.execute("INSERT INTO t VALUES (1, 'a')")
    done = lab.log.tick() if work == "free" else Scn(0)
    calls: dict[str, Callable[[PostgresChangeLog], object]] = {
        "next_slice": lambda log: log.next_slice(done, Limit()),
        "tick": lambda log: log.tick(),
        "free": lambda log: log.free(done, consumer),
    }
    assert lab.state is not None
    consumer = lab.state.history.consumer.id
    failures: list[Exception] = []

    def be_lost() -> None:
        try:
            calls[work](distant)
        except RetryableError as exc:
            failures.append(exc)

    with Proxy(int(conninfo_to_dict(lab.source_url)["port"])) as proxy:
        distant = PostgresChangeLog(make_conninfo(lab.source_url, port=proxy.port), lab.set_name)
        distant.open()
        with psycopg.connect(lab.source_url) as somebody:
            somebody.execute(f"LOCK TABLE {lab.set_name}.tick IN SHARE ROW EXCLUSIVE MODE")
            lost = threading.Thread(target=be_lost)
            lost.start()
            await_true(lab.is_anyone_waiting, seconds=30)
            proxy.lose()
            lost.join()
        distant.close()

        began = time.monotonic()
        with psycopg.connect(lab.source_url, options="-c lock_timeout=20s") as other:
            other.execute(f"LOCK TABLE {lab.set_name}.tick, {lab.set_name}.log IN ACCESS EXCLUSIVE MODE")

    assert len(failures) == 1
    assert time.monotonic() - began < 10
    calls[work](lab.log)


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_an_interval_of_more_transactions_than_are_held_is_read_page_by_page(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(change_log, "_PAGE", 3)
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    for cut in (False, True):
        before = lab.log.tick()
        for _ in range(7):
            lab.source.execute("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
        if cut:
            lab.log.tick()
        found = list(lab.changes(limit=Limit(max_transactions=at_once), after=before))
        assert [row[c.KEY] for row in found] == [f'{{"id":"{number + 1 + 7 * cut}"}}' for number in range(7)]
        assert [row[c.COMMIT_SCN] for row in found] == [before + number + 1 for number in range(7)]
        assert lab.log.next_slice(lab.log.tick(), Limit()) is None


@pytest.fixture
def outpaced(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Scn]]:
    """A log that another session cuts, behind a change, when somebody is about to for the first time."""
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    add, other = Ticks.add, PostgresChangeLog(lab.source_url, lab.set_name)
    cuts: list[Scn] = []

    def be_late(ticks: Ticks, last: Tick, snapshot: Snapshot) -> Tick | None:
        monkeypatch.setattr(Ticks, "add", add)
        lab.source.execute("INSERT INTO t VALUES (2, 'b')")
        cuts.append(other.tick())
        return ticks.add(last, snapshot)

    monkeypatch.setattr(Ticks, "add", be_late)
    yield cuts
    other.close()


def test_a_slice_ends_where_another_session_has_cut(lab: Lab, outpaced: list[Scn]) -> None:
    lab.source.execute("INSERT INTO t VALUES (1, 'a')")

    part = lab.log.next_slice(Scn(0), Limit())

    assert part is not None
    assert (len(part), part.end) == (2, outpaced[0])


def test_a_tick_lies_behind_one_that_was_made_in_the_meantime(lab: Lab, outpaced: list[Scn]) -> None:
    assert lab.log.tick() > outpaced[0]


def test_a_copy_reads_the_snapshot_that_its_tick_was_made_of(lab: Lab, outpaced: list[Scn]) -> None:
    with PostgresCopyOrigin(lab.source_url, lab.set_name).hold_snapshot() as held:
        lab.source.execute("INSERT INTO t VALUES (3, 'c')")
        with psycopg.connect(lab.source_url) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute(f"SET TRANSACTION SNAPSHOT '{held.exported}'")
            seen = reader.execute("SELECT id, pg_current_snapshot()::text FROM t").fetchall()
        made_of = lab.source.execute(
            f"SELECT snapshot::text FROM {lab.set_name}.tick WHERE scn = %s", [held.scn]
        ).fetchall()

    assert seen == [(2, held.text)]
    assert made_of == [(held.text,)]
    assert held.scn > outpaced[0]
