"""Going around conflicts: only what conflicts, and what depends on it, goes change by change."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from penstock.apply.apply_errors import CHECK_VIOLATED, ROW_DIFFERS, UNIQUE_VIOLATED
from penstock.apply.conflict_methods import ConflictKind, ConflictRules, Method, Resolver, TableRules
from penstock.apply.coordinator import Dependencies, with_followers
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.change import Op, TableName
from tests.hand_made import T, Target, Txn, insert, update

TABLES = """
CREATE TABLE parent (id int PRIMARY KEY, bal numeric, name text);
CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent, v int);
INSERT INTO parent SELECT n, 0, 'p' FROM generate_series(1, 200) n;
INSERT INTO child SELECT n, n, 0 FROM generate_series(1, 200) n;
"""


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database, TABLES)
    yield made
    made.close()


def rules(method: Method, by: str | None = None) -> ConflictRules:
    said = TableRules(
        resolvers=(
            Resolver(Op.UPDATE, ConflictKind.EXISTS, method, None, by),
            Resolver(Op.INSERT, ConflictKind.EXISTS, Method.OVERWRITE),
        )
    )
    return ConflictRules(tables={TableName("public", name): said for name in ("parent", "child")})


def apply(target: Target, conflicts: ConflictRules, *transactions: Txn) -> LaneResult:
    (result,) = target.apply(*transactions, config=ServerConfig(conflicts=conflicts))
    return result


def three_changes(n: int) -> Txn:
    """A transaction of an update of parent n, one of child n, and a new child of parent n."""
    return T(
        1000 + n,
        update("child", {"id": n, "parent_id": n, "v": 0}, {"v": 1}),
        update("parent", {"id": n, "bal": 0, "name": "p"}, {"bal": 5}),
        insert("child", id=1000 + n, parent_id=n, v=2),
    )


@pytest.mark.rule("A-216")
def test_a_transaction_is_parted_where_its_conflict_is_resolved(target: Target) -> None:
    target.connection.execute("UPDATE parent SET bal = 7 WHERE id IN (20, 40)")

    result = apply(target, rules(Method.OVERWRITE), *(three_changes(n) for n in range(1, 101)))

    assert (result.resolved, result.errors, result.target_transactions) == (2, 0, 1)
    # Not the child of that parent, which is there whatever becomes of its balance.
    assert (result.set_changes, result.row_changes) == (298, 2)
    assert target.one("SELECT sum(bal) FROM parent") == 500
    assert target.one("SELECT count(*) FROM child") == 300
    logged = target.rows("SELECT commit_scn, message_number FROM penstock.conflict ORDER BY id")
    assert logged == [(1020, 2), (1040, 2)]


@pytest.mark.rule("A-216")
def test_nothing_of_a_transaction_is_left_whose_conflict_turns_out_to_be_undecided(target: Target) -> None:
    target.connection.execute("UPDATE parent SET bal = 5 WHERE id = 20; UPDATE parent SET bal = 3 WHERE id = 40")

    result = apply(target, rules(Method.MAXIMUM, "bal"), *(three_changes(n) for n in range(1, 101)))

    # A tie is not decided; the other one is.
    assert target.failed() == [(1020, ROW_DIFFERS, 2, 3)]
    assert target.rows("SELECT v FROM child WHERE id = 20") == [(0,)]
    assert target.one("SELECT count(*) FROM child WHERE id = 1020") == 0
    assert (result.resolved, result.errors, result.target_transactions) == (1, 1, 1)
    assert target.one("SELECT count(*) FROM child WHERE v = 1") == 99
    assert target.one("SELECT bal FROM parent WHERE id = 40") == 5


@pytest.mark.rule("A-216")
def test_what_comes_later_for_the_same_row_waits_for_the_conflict(target: Target) -> None:
    target.connection.execute("UPDATE parent SET bal = 7 WHERE id = 20")
    later = [T(2000 + n, update("parent", {"id": n, "bal": 5, "name": "p"}, {"bal": 6})) for n in (20, 21)]

    result = apply(target, rules(Method.OVERWRITE), *(three_changes(n) for n in range(1, 101)), *later)

    assert (result.resolved, result.set_changes, result.row_changes) == (1, 300, 2)
    assert target.rows("SELECT id, bal FROM parent WHERE bal <> 5 AND id <= 100 ORDER BY id") == [(20, 6), (21, 6)]


@pytest.mark.rule("A-216")
def test_what_came_before_for_the_row_of_a_failing_transaction_is_applied(target: Target) -> None:
    target.connection.execute("UPDATE child SET v = 9 WHERE id = 150")
    failing = T(
        2000,
        update("parent", {"id": 20, "bal": 5, "name": "p"}, {"bal": 6}),
        update("parent", {"id": 150, "bal": 0, "name": "p"}, {"name": "q"}),
        update("child", {"id": 150, "parent_id": 150, "v": 0}, {"v": 1}),
    )

    result = apply(target, ConflictRules(), *(three_changes(n) for n in range(1, 101)), failing)

    assert target.failed() == [(2000, ROW_DIFFERS, 3, 3)]
    assert (result.set_changes, result.row_changes, result.target_transactions) == (300, 0, 1)
    assert target.rows("SELECT id, bal, name FROM parent WHERE id IN (20, 150) ORDER BY id") == [
        (20, 5, "p"),
        (150, 0, "p"),
    ]


@pytest.mark.rule("A-216")
def test_a_row_moves_to_another_key_beside_a_conflict(database: str) -> None:
    # A key that nobody refers to, so that rows may be netted that leave it.
    sql = "CREATE TABLE parent (id int PRIMARY KEY, bal numeric, name text);"
    target = Target(database, f"{sql} INSERT INTO parent SELECT n, 0, 'p' FROM generate_series(1, 100) n")
    target.connection.execute("UPDATE parent SET bal = 7 WHERE id IN (20, 41)")
    moves = [
        T(2000, update("parent", {"id": 20, "bal": 5, "name": "p"}, {"id": 320})),
        T(2001, update("parent", {"id": 40, "bal": 5, "name": "p"}, {"id": 340})),
        T(2002, update("parent", {"id": 340, "bal": 5, "name": "p"}, {"bal": 8})),
        T(2003, update("parent", {"id": 60, "bal": 5, "name": "p"}, {"id": 40})),
        T(2004, update("parent", {"id": 41, "bal": 5, "name": "p"}, {"id": 60})),
    ]
    first = (T(1000 + n, update("parent", {"id": n, "bal": 0, "name": "p"}, {"bal": 5})) for n in range(1, 101))

    result = apply(target, rules(Method.OVERWRITE), *first, *moves)

    # The conflicts, what became of their rows, and nothing else: 60 is free again before 41 takes it.
    assert (result.resolved, result.errors, result.target_transactions) == (2, 0, 1)
    assert (result.set_changes, result.row_changes) == (101, 4)
    found = target.rows("SELECT id, bal FROM parent WHERE id > 200 OR id IN (20, 40, 41, 60) ORDER BY id")
    assert found == [(40, 5), (60, 5), (320, 5), (340, 8)]
    target.close()


@pytest.mark.rule("A-216")
def test_a_value_that_is_refused_is_so_where_the_insert_would_be_discarded(database: str) -> None:
    target = Target(database, "CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v < 10)); INSERT INTO t VALUES (50, 1)")
    said = TableRules(resolvers=(Resolver(Op.INSERT, ConflictKind.EXISTS, Method.DISCARD),))
    conflicts = ConflictRules(tables={TableName("public", "t"): said})

    apply(target, conflicts, *(T(1000 + n, insert("t", id=n, v=99 if n == 50 else 0)) for n in range(100)))

    # PostgreSQL looks at the value before it looks for the key.
    assert target.failed() == [(1050, CHECK_VIOLATED, 1, 1)]
    target.close()


@pytest.mark.rule("A-216")
def test_a_parent_that_conflicts_and_moves_takes_its_children_along(target: Target) -> None:
    target.connection.execute("UPDATE parent SET bal = 7 WHERE id = 150")
    moved = T(
        2000,
        update("parent", {"id": 150, "bal": 0, "name": "p"}, {"id": 450}),
        update("child", {"id": 150, "parent_id": 150, "v": 0}, {"parent_id": 450}),
    )

    result = apply(target, rules(Method.OVERWRITE), *(three_changes(n) for n in range(1, 101)), moved)

    assert (result.errors, result.resolved, result.target_transactions) == (0, 1, 1)
    assert (result.set_changes, result.row_changes) == (300, 2)
    assert target.rows("SELECT parent_id FROM child WHERE id = 150") == [(450,)]


@pytest.mark.rule("A-216")
def test_what_fails_behind_a_row_that_may_be_any_is_put_aside_at_once(database: str) -> None:
    # An insert may take a row of another key, by its code: everything behind the first conflict stays behind it.
    sql = (
        "CREATE TABLE t (id int PRIMARY KEY, code int UNIQUE, v int CHECK (v < 10)); INSERT INTO t VALUES (900, 70, 1)"
    )
    target = Target(database, sql)
    said = TableRules(resolvers=(Resolver(Op.INSERT, ConflictKind.EXISTS, Method.OVERWRITE),))
    conflicts = ConflictRules(tables={TableName("public", "t"): said})
    wrong = range(80, 88)

    result = apply(
        target, conflicts, *(T(1000 + n, insert("t", id=n, code=n, v=99 if n in wrong else 0)) for n in range(100))
    )

    assert target.failed() == [(1000 + n, CHECK_VIOLATED, 1, 1) for n in wrong]
    assert (result.resolved, result.target_transactions) == (1, 1)
    assert target.one("SELECT count(*) FROM t") == 100 - len(wrong)
    target.close()


def test_a_taken_key_of_a_computed_column_is_found(database: str) -> None:
    sql = "CREATE TABLE t (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED UNIQUE)"
    target = Target(database, f"{sql}; INSERT INTO t (id, a) VALUES (500, 50)")

    apply(target, ConflictRules(), *(T(1000 + n, insert("t", id=n, a=n, b=2 * n)) for n in range(100)))

    assert target.failed() == [(1050, UNIQUE_VIOLATED, 1, 1)]
    assert target.one("SELECT count(*) FROM t") == 100
    target.close()


@pytest.mark.rule("A-216")
def test_an_insert_finds_a_row_with_its_key(target: Target) -> None:
    target.connection.execute("INSERT INTO parent VALUES (1020, 1, 'there')")
    made = [
        T(
            1000 + n,
            insert("parent", id=1000 + n, bal=2, name="new"),
            insert("child", id=1000 + n, parent_id=1000 + n, v=0),
        )
        for n in range(100)
    ]

    result = apply(target, rules(Method.OVERWRITE), *made)

    assert (result.resolved, result.set_changes, result.row_changes) == (1, 199, 1)
    assert target.rows("SELECT bal, name FROM parent WHERE id = 1020") == [(2, "new")]
    assert target.one("SELECT count(*) FROM child WHERE parent_id >= 1000") == 100


def test_an_insert_that_finds_a_row_fails_without_a_resolver(target: Target) -> None:
    target.connection.execute("INSERT INTO parent VALUES (1020, 1, 'there')")
    made = [
        T(1000 + n, insert("parent", id=1000 + n, bal=2, name="new"), insert("child", id=1000 + n, parent_id=5, v=0))
        for n in range(100)
    ]

    apply(target, ConflictRules(), *made)

    assert target.failed() == [(1020, UNIQUE_VIOLATED, 1, 2)]
    assert target.errors()[0].found == {"id": "1020", "bal": "1", "name": "there"}
    assert target.one("SELECT count(*) FROM child WHERE id >= 1000") == 99


@pytest.mark.rule("A-216")
def test_rows_of_many_sizes_are_told_apart(target: Target) -> None:
    """A staging table may hold its rows in another order than they came: a small one goes where a page has room."""
    sizes, count = random.Random(1), 20_000
    names = ["x" * sizes.choice((1, 30, 900)) for _ in range(count)]
    target.connection.execute("CREATE TABLE wide (id int PRIMARY KEY, name text, v int)")
    with target.connection.cursor().copy("COPY wide FROM STDIN") as copy:
        for n, name in enumerate(names):
            copy.write_row((n, name, 1 if n % 100 else 9))
    said = TableRules(resolvers=(Resolver(Op.UPDATE, ConflictKind.EXISTS, Method.OVERWRITE),))

    result = apply(
        target,
        ConflictRules(tables={TableName("public", "wide"): said}),
        *(T(100 + n, update("wide", {"id": n, "name": name, "v": 1}, {"v": 2})) for n, name in enumerate(names)),
    )

    assert (result.resolved, result.row_changes) == (count // 100, count // 100)
    assert target.one("SELECT count(*) FROM wide WHERE v = 2") == count


def test_who_only_refers_to_a_value_that_stays_does_not_follow() -> None:
    # 0 writes a value; 1 and 4 refer to it, 2 writes it again, and 3 refers to what 2 refers to.
    found = Dependencies(
        txn=np.array([0, 1, 2, 2, 3, 4]),
        value=np.array([7, 7, 7, 8, 8, 7], np.uint64),
        is_written=np.array([True, False, True, False, False, False]),
        barriers=np.zeros(0, np.int64),
    )
    chosen = np.arange(5) == 0

    assert np.flatnonzero(with_followers(found, chosen)).tolist() == [0, 1, 2, 4]
    # 4 comes behind 2, of which it is not known that it keeps the value.
    assert np.flatnonzero(with_followers(found, chosen, keeping=chosen)).tolist() == [0, 2, 4]
    assert np.flatnonzero(with_followers(found, chosen, keeping=np.ones(5, bool))).tolist() == [0, 2]
