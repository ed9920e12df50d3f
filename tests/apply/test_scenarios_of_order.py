"""Scenarios in which order shows: long transactions, chains, locks of others, triggers that share a row, failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from penstock.apply.apply_errors import CHILD_EXISTS, ROW_MISSING
from penstock.apply.lane import ServerConfig
from tests.apply.test_scenarios import WAYS, acct, apply
from tests.hand_made import Lcr, T, Target, Txn, delete, insert, update


@pytest.fixture(params=WAYS, ids=[f"{'set' if s else 'row'}-path-{n}-lanes" for s, n in WAYS])
def way(request: pytest.FixtureRequest) -> tuple[bool, int]:
    return request.param


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database)
    yield made
    made.close()


@pytest.mark.rule("A-26", "A-28", "A-41")
def test_s5_a_later_transaction_deletes_what_an_earlier_one_has_inserted(target: Target, way: tuple[bool, int]) -> None:
    first = T(100, *(insert("nk", a=i, b="a", c=i) for i in range(2, 102)))
    changes = [insert("nk", a=1000 + i, b="b", c=i) for i in range(1, 101)]
    changes[80] = delete("nk", a=51, b="a", c=51)

    apply(target, way, first, T(110, *changes))

    assert target.one("SELECT count(*) FROM nk") == 1 + 100 + 99 - 1
    assert target.one("SELECT count(*) FROM nk WHERE a = 51") == 0
    assert target.errors() == []


CHAIN = (
    T(100, acct(1, 100, 110)),
    T(110, acct(1, 110, 120), acct(2, 200, 220)),
    T(120, acct(2, 220, 230)),
    T(130, update("dept", {"id": 10, "name": "ENG"}, {"name": "E"})),
)


@pytest.mark.rule("A-41", "A-170")
def test_s11_a_chain_of_transactions_over_two_rows(target: Target, way: tuple[bool, int]) -> None:
    apply(target, way, *CHAIN)

    assert target.rows("SELECT id, bal FROM acct ORDER BY 1") == [(1, 120), (2, 230)]
    assert target.one("SELECT name FROM dept WHERE id = 10") == "E"
    assert target.watermarks() == (130, 130)
    assert target.errors() == []


def test_s11_only_the_chain_keeps_its_order(target: Target) -> None:
    assert sorted(map(sorted, target.lanes(*CHAIN))) == [[100, 110, 120], [130]]


@contextmanager
def looking(target: Target, query: str) -> Iterator[set[tuple[Any, ...]]]:
    """What another session sees of a query while the block is at work, and once behind it."""
    seen: set[tuple[Any, ...]] = set()
    stop = threading.Event()

    def look() -> None:
        with psycopg.connect(target.url, autocommit=True) as other:
            while not stop.is_set():
                seen.update(other.execute(query).fetchall())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        stop.set()
        watcher.join()
        seen.update(target.rows(query))


@pytest.mark.rule("A-173")
@pytest.mark.parametrize("use_set_path", [True, False])
def test_s3_in_full_order_the_watermarks_are_one(target: Target, use_set_path: bool) -> None:
    """One lane is what `commit_serialization: full` means: each commit moves the low watermark."""
    work = (T(100, acct(1, 100, 110)), T(110, acct(2, 200, 210)), T(120, update("dept", {"id": 10}, {"name": "E"})))
    highest = "greatest(high_watermark, (SELECT max(highest_scn) FROM penstock.applied))"

    with looking(target, f"SELECT low_watermark, {highest} FROM penstock.process") as seen:
        target.apply(*work, lanes=1, config=ServerConfig(use_set_path=use_set_path))

    assert (120, 120) in seen
    assert all(low == high for low, high in seen), seen


@pytest.mark.rule("A-14", "A-34", "A-191")
@pytest.mark.parametrize("use_set_path", [True, False])
def test_s20_in_full_order_a_failure_has_its_place_too(target: Target, use_set_path: bool) -> None:
    work = (T(100, acct(1, 100, 110)), T(110, _missing(99)), T(120, acct(2, 200, 210)))
    query = "SELECT (SELECT count(*) FROM penstock.error), (SELECT bal FROM acct WHERE id = 1)"

    with looking(target, query) as seen:
        target.apply(*work, lanes=1, config=ServerConfig(use_set_path=use_set_path))

    assert target.failed() == [(110, ROW_MISSING, 1, 1)]
    assert target.one("SELECT bal FROM acct WHERE id = 2") == 210
    assert target.watermarks() == (120, 120)
    # Nobody has seen the entry before the first transaction was applied.
    assert (1, 110) in seen
    assert (1, 100) not in seen


@pytest.mark.rule("A-38", "A-177")
def test_s21_triggers_that_share_a_row(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute(
        "CREATE TABLE cnt (n int); INSERT INTO cnt VALUES (0);"
        "CREATE FUNCTION count_it() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN UPDATE public.cnt SET n = n + 1; RETURN NULL; END $$;"
        "CREATE TRIGGER counts AFTER UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION count_it();"
        "ALTER TABLE acct ENABLE ALWAYS TRIGGER counts;"
    )

    apply(target, way, T(100, acct(1, 100, 110)), T(110, acct(2, 200, 210)))

    assert target.one("SELECT n FROM cnt") == 2
    assert target.errors() == []


@pytest.mark.rule("A-38")
def test_s22_a_row_that_another_session_has_locked_is_waited_for(target: Target, way: tuple[bool, int]) -> None:
    with psycopg.connect(target.url) as other:
        other.execute("UPDATE acct SET code = code WHERE id = 1")
        done = threading.Event()

        def work() -> None:
            apply(target, way, T(100, acct(1, 100, 110)), T(110, acct(2, 200, 210)))
            done.set()

        worker = threading.Thread(target=work)
        worker.start()
        assert not done.wait(0.5)
        other.rollback()
        worker.join(30)

    assert done.is_set()
    assert target.rows("SELECT id, bal FROM acct ORDER BY 1") == [(1, 110), (2, 210)]
    assert target.errors() == []


@pytest.mark.rule("A-177", "A-183")
@pytest.mark.parametrize(("fires", "rows"), [("ORIGIN", 1), ("ALWAYS", 2)])
def test_s72_a_trigger_writes_what_the_source_has_sent_as_well(
    target: Target, way: tuple[bool, int], fires: str, rows: int
) -> None:
    """Whether it is there once or twice is the trigger's affair, and a retry makes no difference."""
    target.connection.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.hist VALUES (OLD.id, OLD.job, 'trigger'); RETURN NULL; END $$;"
        "CREATE TRIGGER notes AFTER UPDATE OF job ON emp FOR EACH ROW EXECUTE FUNCTION note();"
    )
    if fires == "ALWAYS":
        target.connection.execute("ALTER TABLE emp ENABLE ALWAYS TRIGGER notes")

    def changed(scn: int, old: str, new: str) -> Txn:
        return T(scn, update("emp", {"id": 1, "job": old}, {"job": new}), insert("hist", emp_id=1, job=old, at="t"))

    apply(target, way, changed(100, "A", "B"))
    assert target.one("SELECT count(*) FROM hist") == rows

    target.connection.execute("UPDATE emp SET job = 'X' WHERE id = 1; DELETE FROM hist")
    apply(target, way, changed(110, "B", "C"))
    assert [number for _, _, number, _ in target.failed()] == [1]
    target.connection.execute("ALTER TABLE emp DISABLE TRIGGER notes; UPDATE emp SET job = 'B' WHERE id = 1")
    enable = "ENABLE ALWAYS" if fires == "ALWAYS" else "ENABLE"
    target.connection.execute(f"ALTER TABLE emp {enable} TRIGGER notes; DELETE FROM hist")

    assert len(target.retry()) == 1
    assert target.one("SELECT count(*) FROM hist") == rows


def _missing(key: int) -> Lcr:
    return update("acct", {"id": key, "code": "Q", "bal": 0}, {"bal": 1})


@pytest.mark.rule("A-182")
def test_what_a_foreign_key_does_to_children_at_the_source_comes_as_changes(
    database: str, way: tuple[bool, int]
) -> None:
    """In the source's log the parent's end comes first; at the target the key's own action does nothing."""
    target = Target(
        database,
        "CREATE TABLE p (id int PRIMARY KEY);"
        "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p ON DELETE CASCADE);"
        "INSERT INTO p VALUES (1), (2); INSERT INTO c VALUES (1, 1), (2, 2), (3, 2)",
    )

    apply(
        target,
        way,
        T(100, delete("p", id=1), delete("c", id=1, p=1)),
        # The source had one child, and the target has another one.
        T(110, delete("p", id=2), delete("c", id=2, p=2)),
    )

    assert target.failed() == [(110, CHILD_EXISTS, 1, 2)]
    assert target.rows("SELECT id FROM c ORDER BY id") == [(2,), (3,)]
    target.close()
