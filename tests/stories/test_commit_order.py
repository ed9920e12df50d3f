"""Transactions in a legal serial order, whole, none lost: however sequence numbers and commits interleave."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import ExitStack

import psycopg
import pytest

from penstock import change as c
from penstock.position import Limit, Scn
from tests.lab import Lab

SCHEMA = """
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, pid int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
"""


def delivered(lab: Lab, after: int = 0) -> list[tuple[str, str | None]]:
    return [(row[c.OP], row[c.AFTER] or row[c.BEFORE]) for row in lab.changes(after=Scn(after))]


@pytest.mark.rule("C-30")
def test_a_number_drawn_early_and_committed_late_is_not_lost(lab: Lab) -> None:
    lab.setup(SCHEMA)

    with lab.session() as early:
        early.execute("INSERT INTO t VALUES (1, 'early')")
        lab.source.execute("INSERT INTO t VALUES (2, 'late')")
        first = delivered(lab)
        position = lab.log.tick()
    second = delivered(lab, position)

    assert first == [("insert", '{"id":"2","v":"late"}')]
    # Nothing else had to happen for it to come out.
    assert second == [("insert", '{"id":"1","v":"early"}')]


@pytest.mark.rule("C-31")
def test_who_waited_for_a_row_comes_after_who_held_it(lab: Lab) -> None:
    lab.setup(SCHEMA)
    lab.source.execute("INSERT INTO t VALUES (1, 'a'), (2, 'a')")
    position = lab.log.tick()

    with lab.session() as long:
        long.execute("UPDATE t SET v = 'long' WHERE id = 1")
        lab.source.execute("UPDATE t SET v = 'short' WHERE id = 2")
        long.execute("UPDATE t SET v = 'long' WHERE id = 2")

    assert [after for _, after in delivered(lab, position)] == ['{"v":"short"}', '{"v":"long"}', '{"v":"long"}']


def test_a_child_that_a_deferred_check_let_in_first_comes_after_its_parent(lab: Lab) -> None:
    lab.setup(SCHEMA)

    with lab.session() as child:
        child.execute("INSERT INTO child VALUES (1, 7)")
        lab.source.execute("INSERT INTO parent VALUES (7)")

    assert [row[c.TABLE_NAME] for row in lab.changes()] == ["parent", "child"]


@pytest.mark.parametrize("is_put_back", [False, True])
def test_checks_made_immediate_in_the_middle_of_a_transaction(lab: Lab, is_put_back: bool) -> None:
    lab.setup(SCHEMA)

    with lab.session() as child:
        child.execute("INSERT INTO child VALUES (1, NULL)")
        child.execute("SET CONSTRAINTS ALL IMMEDIATE")
        if is_put_back:
            child.execute("SET CONSTRAINTS ALL DEFERRED")
            child.execute("UPDATE child SET pid = 7")
            lab.source.execute("INSERT INTO parent VALUES (7)")
        else:
            lab.source.execute("INSERT INTO parent VALUES (7)")
            child.execute("UPDATE child SET pid = 7")

    assert [row[c.TABLE_NAME] for row in lab.changes()] == ["parent", "child", "child"]


def test_a_constraint_made_deferrable_later_is_noticed(lab: Lab) -> None:
    lab.setup("CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE q (id int PRIMARY KEY, pid int REFERENCES p)")
    lab.source.execute("ALTER TABLE q ALTER CONSTRAINT q_pid_fkey DEFERRABLE INITIALLY DEFERRED")

    with lab.session() as child:
        child.execute("INSERT INTO q VALUES (1, 7)")
        lab.source.execute("INSERT INTO p VALUES (7)")

    assert [row[c.TABLE_NAME] for row in lab.changes()] == ["p", "q"]


def test_prepared_transactions_come_when_they_are_committed(lab: Lab) -> None:
    lab.setup(SCHEMA)

    with psycopg.connect(lab.source_url, autocommit=True) as session:
        session.execute(
            "BEGIN; INSERT INTO t VALUES (1, 'p'); INSERT INTO child VALUES (1, NULL); PREPARE TRANSACTION 'x'"
        )
    lab.source.execute("INSERT INTO t VALUES (2, 'q')")
    first = delivered(lab)
    position = lab.log.tick()
    assert delivered(lab, position) == []
    lab.source.execute("COMMIT PREPARED 'x'")
    second = delivered(lab, position)

    assert first == [("insert", '{"id":"2","v":"q"}')]
    assert second == [("insert", '{"id":"1","v":"p"}'), ("insert", '{"id":"1","pid":null}')]


def test_a_prepared_transaction_rolled_back_never_comes(lab: Lab) -> None:
    lab.setup(SCHEMA)

    with psycopg.connect(lab.source_url, autocommit=True) as session:
        session.execute("BEGIN; INSERT INTO t VALUES (1, 'p'); PREPARE TRANSACTION 'y'")
    lab.log.tick()
    lab.source.execute("ROLLBACK PREPARED 'y'")
    lab.source.execute("INSERT INTO t VALUES (2, 'q')")

    assert delivered(lab) == [("insert", '{"id":"2","v":"q"}')]


def test_a_transaction_open_across_many_cuts_is_delivered_once(lab: Lab) -> None:
    lab.setup(SCHEMA)

    with lab.session() as long:
        long.execute("INSERT INTO t VALUES (100, 'long')")
        for number in range(20):
            lab.source.execute("INSERT INTO t VALUES (%s, 'x')", [number])
            lab.log.tick()
        long.execute("INSERT INTO t VALUES (101, 'long')")
    for number in range(20, 25):
        lab.source.execute("INSERT INTO t VALUES (%s, 'x')", [number])

    rows = list(lab.changes(limit=Limit(max_transactions=3)))
    scns = [row[c.COMMIT_SCN] for row in rows]
    assert scns == sorted(scns)
    assert len(rows) == 27
    assert len({row[c.AFTER] for row in rows}) == 27
    long_scns = {row[c.COMMIT_SCN] for row in rows if '"long"' in row[c.AFTER]}
    assert len(long_scns) == 1


def test_a_transaction_larger_than_the_limit_comes_alone_and_whole(lab: Lab) -> None:
    lab.setup(SCHEMA)
    lab.source.execute("INSERT INTO t VALUES (-1, 'x')")
    lab.source.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(1, 500) n")
    lab.source.execute("INSERT INTO t VALUES (-2, 'x')")

    sizes = []
    position = Scn(0)
    while (part := lab.log.next_slice(position, Limit(max_changes=100))) is not None:
        sizes.append([int(n) for n in part.changes])
        position = part.end

    assert sizes == [[1], [500], [1]]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_busy_sessions(lab: Lab, seed: int) -> None:
    """Each change must find the row as its before image says, when transactions are applied one after another."""
    lab.setup(SCHEMA)
    lab.source.execute(
        "INSERT INTO t SELECT n, '0' FROM generate_series(1, 12) n; INSERT INTO parent SELECT generate_series(1, 3)"
    )
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        chosen = random.Random(seed * 100 + worker)
        try:
            with psycopg.connect(lab.source_url) as session:
                while not stop.is_set():
                    _one_transaction(session, chosen, worker)
        except BaseException as exc:
            failures.append(exc)

    rows = []
    with ExitStack() as stack:
        threads = [threading.Thread(target=work, args=[n]) for n in range(4)]
        stack.callback(lambda: [thread.join() for thread in threads])
        stack.callback(stop.set)
        for thread in threads:
            thread.start()
        position, since = Scn(0), time.monotonic()
        while (passed := time.monotonic() - since) < 4 or (len(rows) <= 300 and passed < 60):
            part = lab.log.next_slice(position, Limit(max_transactions=50))
            if part is not None:
                for batch in lab.reader().read(part):
                    rows += batch.to_pylist()
                position = part.end
    rows += list(lab.changes(after=position))

    assert failures == []
    rows.sort(key=lambda row: (row[c.COMMIT_SCN], row[c.CHANGE_SEQ]))
    _replay(rows, lab)
    assert len(rows) > 300


def _one_transaction(session: psycopg.Connection, chosen: random.Random, worker: int) -> None:
    try:
        for _ in range(chosen.randint(1, 4)):
            row = chosen.randint(1, 12)
            match chosen.randint(0, 5):
                case 0:
                    session.execute("SAVEPOINT s")
                    session.execute("UPDATE t SET v = 'lost' WHERE id = %s", [row])
                    session.execute("ROLLBACK TO s")
                case 1:
                    session.execute(
                        "INSERT INTO child VALUES (%s, %s)", [chosen.randint(1, 10**9), chosen.randint(1, 6)]
                    )
                case 2:
                    session.execute("INSERT INTO parent VALUES (%s) ON CONFLICT DO NOTHING", [chosen.randint(4, 6)])
                case _:
                    session.execute("UPDATE t SET v = v::int + 1 WHERE id = %s", [row])
        session.commit()
    except psycopg.errors.OperationalError:
        session.rollback()
    except psycopg.errors.ForeignKeyViolation:
        # The deferred check found no parent.
        session.rollback()


def _replay(rows: list[dict[str, object]], lab: Lab) -> None:
    """Apply the changes to dictionaries, checking every before image and every parent at commit."""
    tables: dict[str, dict[str, dict[str, str]]] = {"t": {}, "parent": {}, "child": {}}
    ids = [row[c.COMMIT_SCN] for row in rows]
    for number, row in enumerate(rows):
        table = tables[str(row[c.TABLE_NAME])]
        key = json.loads(str(row[c.KEY]))["id"]
        if row[c.OP] == "insert":
            assert key not in table
            table[key] = json.loads(str(row[c.AFTER]))
        else:
            assert table[key] == json.loads(str(row[c.BEFORE])), f"row {key} at {row[c.COMMIT_SCN]}"
            table[key] = table[key] | json.loads(str(row[c.AFTER]))
        is_commit = number + 1 == len(rows) or ids[number + 1] != ids[number]
        if is_commit and row[c.TABLE_NAME] == "child":
            parent = tables["child"][key]["pid"]
            assert parent in tables["parent"], f"child {key} came before its parent"
    final = {str(row[0]): str(row[1]) for row in lab.rows("t", side="source")}
    assert {key: value["v"] for key, value in tables["t"].items()} == final
