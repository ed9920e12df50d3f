"""A storm: most transactions of a group fail, or meet conflicts; the outcome is that of one after the other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from penstock.apply.conflict_methods import ConflictKind, ConflictRules, Method, Resolver, TableRules
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.change import Op, TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.target.session import PostgresSession
from tests.conftest import create_database, drop_database, numbers
from tests.hand_made import T, Target, Txn, delete, insert, update

TABLES = """
CREATE TABLE p (id int PRIMARY KEY, v int, s varchar(3) NOT NULL, CHECK (v < 1000));
CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p, u text UNIQUE);
INSERT INTO p SELECT n, 0, 'a' FROM generate_series(1, 300) n;
INSERT INTO c SELECT n, n, 'u' || n FROM generate_series(1, 100) n;
"""

COUNT = 120


@pytest.fixture
def targets(source_server: EmbeddedPostgres) -> Iterator[Sequence[Target]]:
    """Two that are equal: one for the row path alone, transaction by transaction, and one for what is tested."""
    names = [f"storm{next(numbers)}" for _ in range(2)]
    for name in names:
        create_database(source_server, name)
    made = [Target(source_server.url(name), TABLES) for name in names]
    yield made
    for target in made:
        target.close()
    for name in names:
        drop_database(source_server, name)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often which kind of statement was run by a session."""
    counted: Counter[str] = Counter()
    execute: Callable[..., Any] = PostgresSession.execute

    def counting(self: PostgresSession, statement: str, values: Any = ()) -> Any:
        counted[statement.split(maxsplit=1)[0]] += 1
        return execute(self, statement, values)

    monkeypatch.setattr(PostgresSession, "execute", counting)
    return counted


def changed(n: int, *, v: int = 0, to: int | None = None) -> Any:
    return update("p", {"id": n, "v": v, "s": "a"}, {"v": v + 1 if to is None else to})


def raised(n: int) -> Txn:
    return T(1000 + n, changed(n))


def raised_twice(n: int) -> Txn:
    """Of every two transactions the second one meets the row as the first would have left it."""
    row, nth = (n + 1) // 2, (n + 1) % 2
    return T(1000 + n, changed(row, v=nth))


def gone(n: int) -> Txn:
    return T(1000 + n, delete("p", id=n + 150, v=0, s="a"))


def added(n: int) -> Txn:
    return T(1000 + n, insert("p", id=1000 + n, v=n, s="b"))


def null(n: int) -> Txn:
    return T(1000 + n, insert("p", id=1000 + n, v=n, s=None))


def long(n: int) -> Txn:
    return T(1000 + n, insert("p", id=1000 + n, v=n, s="abcdef"))


def large(n: int) -> Txn:
    return T(1000 + n, insert("p", id=1000 + n, v=1000 + n, s="b"))


def child(n: int) -> Txn:
    return T(1000 + n, insert("c", id=1000 + n, p=n, u=f"x{n}"))


def taken(n: int) -> Txn:
    return T(1000 + n, insert("c", id=1000 + n, p=n, u=f"u{n}"))


def second_fails(n: int) -> Txn:
    return T(1000 + n, insert("c", id=1000 + n, p=n, u=f"y{n}"), changed(n))


def parent_of_children(n: int) -> Txn:
    return T(1000 + n, delete("p", id=n, v=0, s="a"))


OTHERWISE = "UPDATE p SET v = 7"
NO_PARENTS = "SET session_replication_role = replica; DELETE FROM p; SET session_replication_role = origin"


def outcome(target: Target) -> tuple[Any, ...]:
    """All that is there, but when, and by which numbers the entries go."""
    entries = [
        (
            *(e.txn_id, e.commit_scn, e.message_number, e.message_count, e.error_number, e.error_code),
            *(e.error_message, e.found, str(e.table), e.op),
        )
        for e in target.errors()
    ]
    changes = target.rows(
        "SELECT e.commit_scn, c.message_number, c.op, c.table_name, c.table_version, c.change_seq, c.before::text,"
        " c.after::text FROM penstock.error_change c JOIN penstock.error e USING (process)"
        " WHERE e.id = c.error_id ORDER BY 1, 2"
    )
    logged = target.rows(
        "SELECT commit_scn, message_number, op, table_name, error_number, row_is, method, outcome, columns"
        " FROM penstock.conflict ORDER BY 1, 2, 6, 7, 9"
    )
    counted = target.rows("SELECT transactions, changes, errors, conflicts, resolved FROM penstock.lane WHERE lane = 0")
    there = [name for (name,) in target.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")]
    tables = [sorted(target.rows(f"SELECT * FROM {table}"), key=repr) for table in there]
    return entries, changes, logged, counted, tables, target.watermarks()


def assert_as_one_by_one(
    targets: Sequence[Target],
    ran: Counter[str],
    divergence: str,
    transactions: Sequence[Txn],
    conflicts: ConflictRules = ConflictRules(),
) -> LaneResult:
    serial, stormy = targets
    for target in targets:
        target.connection.execute(divergence)
    serial.apply(*transactions, config=ServerConfig(use_set_path=False, conflicts=conflicts))
    ran.clear()
    (result,) = stormy.apply(*transactions, config=ServerConfig(conflicts=conflicts))
    assert outcome(stormy) == outcome(serial)
    return result


@pytest.mark.parametrize(
    ("divergence", "transaction"),
    [
        pytest.param(OTHERWISE, raised, id="the row differs"),
        pytest.param(OTHERWISE, raised_twice, id="and so does what depends on it"),
        pytest.param("DELETE FROM c; DELETE FROM p", raised, id="the row is missing"),
        pytest.param(OTHERWISE, gone, id="a deleted row differs"),
        pytest.param("DELETE FROM p WHERE id > 150", gone, id="a deleted row is missing"),
        pytest.param("INSERT INTO p SELECT n, 1, 'z' FROM generate_series(1001, 1200) n", added, id="the key is taken"),
        pytest.param("SELECT", null, id="a null"),
        pytest.param("SELECT", long, id="a value that is too long"),
        pytest.param("SELECT", large, id="a check"),
        pytest.param(NO_PARENTS, child, id="no parent"),
        pytest.param("SELECT", taken, id="another unique key is taken"),
        pytest.param("SELECT", parent_of_children, id="children, of some"),
        pytest.param(OTHERWISE, second_fails, id="the second change fails"),
        pytest.param(f"ALTER TABLE p ADD UNIQUE (s, id, v); {OTHERWISE}", raised, id="with a key of the target's own"),
        pytest.param("ALTER TABLE p DROP COLUMN v", raised, id="a column is missing"),
        pytest.param("DROP TABLE c", taken, id="the table is missing"),
    ],
)
def test_the_error_queue_is_that_of_one_after_the_other(
    targets: Sequence[Target], ran: Counter[str], divergence: str, transaction: Callable[[int], Txn]
) -> None:
    result = assert_as_one_by_one(targets, ran, divergence, [transaction(n) for n in range(1, COUNT + 1)])

    assert result.errors >= COUNT // 2
    # Not two or three for each transaction.
    assert ran["BEGIN"] < 50


def test_what_fails_by_its_row_is_found_and_put_aside_with_statements_for_all(
    targets: Sequence[Target], ran: Counter[str]
) -> None:
    target = targets[0]
    target.connection.execute(OTHERWISE)

    (result,) = target.apply(*(raised_twice(n) for n in range(1, COUNT + 1)))

    assert result.errors == COUNT
    assert sum(ran.values()) < 20, ran


@pytest.mark.parametrize("method", [Method.OVERWRITE, Method.DISCARD, Method.RECORD, Method.MINIMUM, Method.DELTA])
def test_what_is_resolved_is_looked_for_asked_and_written_with_statements_for_all(
    targets: Sequence[Target], ran: Counter[str], method: Method
) -> None:
    target = targets[0]
    target.connection.execute(OTHERWISE)
    by, columns = ("v" if method is Method.MINIMUM else None), (("v",) if method is Method.DELTA else None)
    said = TableRules(resolvers=(Resolver(Op.UPDATE, ConflictKind.EXISTS, method, columns, by),))
    rules = ConflictRules(tables={TableName("public", "p"): said})

    (result,) = target.apply(*(raised(n) for n in range(1, COUNT + 1)), config=ServerConfig(conflicts=rules))

    assert result.resolved == COUNT
    assert sum(ran.values()) < 25, ran


@pytest.mark.parametrize("method", [Method.OVERWRITE, Method.DISCARD, Method.RECORD, Method.MAXIMUM, Method.DELTA])
@pytest.mark.parametrize("transaction", [raised, raised_twice, gone, second_fails])
def test_conflicts_are_resolved_as_one_after_the_other(
    targets: Sequence[Target], ran: Counter[str], method: Method, transaction: Callable[[int], Txn]
) -> None:
    by = "v" if method is Method.MAXIMUM else None
    columns = ("v",) if method is Method.DELTA else None
    plain = method if method in (Method.DISCARD, Method.RECORD) else Method.OVERWRITE
    said = TableRules(
        resolvers=(
            Resolver(Op.UPDATE, ConflictKind.EXISTS, method, columns, by),
            Resolver(Op.DELETE, ConflictKind.EXISTS, plain),
        )
    )

    result = assert_as_one_by_one(
        targets,
        ran,
        OTHERWISE,
        [transaction(n) for n in range(1, COUNT + 1)],
        ConflictRules(tables={TableName("public", "p"): said}),
    )

    assert result.resolved >= COUNT // 2
    assert ran["BEGIN"] < 50


def test_any_mixture_is_as_one_after_the_other(targets: Sequence[Target], ran: Counter[str]) -> None:
    kinds = [raised, added, null, child, taken, second_fails, large, parent_of_children]
    chance = random.Random(7)
    transactions = [chance.choice(kinds)(n) for n in range(1, 300)]

    assert_as_one_by_one(targets, ran, "UPDATE p SET v = 7 WHERE id % 8 <> 0", transactions)


@pytest.mark.parametrize("method", [None, Method.RECORD])
def test_a_lane_stops_behind_the_last_transaction_that_may_fail(
    targets: Sequence[Target], method: Method | None
) -> None:
    target = targets[0]
    target.connection.execute("UPDATE p SET v = 7 WHERE id % 2 = 0 OR id > 20")
    resolvers = () if method is None else (Resolver(Op.UPDATE, ConflictKind.EXISTS, method),)
    rules = ConflictRules(tables={TableName("public", "p"): TableRules(resolvers=resolvers)})
    config = ServerConfig(max_errors=5, conflicts=rules)

    (result,) = target.apply(*(raised(n) for n in range(1, COUNT + 1)), config=config, complete=False)

    assert [scn for scn, *_ in target.failed()] == [1002, 1004, 1006, 1008, 1010]
    assert result.aborted_by is not None
    assert target.one("SELECT max(id) FROM p WHERE v = 1") == 9
    assert target.watermarks()[0] == 1010
