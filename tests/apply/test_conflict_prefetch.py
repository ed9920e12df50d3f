"""Looking ahead: conflicts of a group are found and resolved together, with the outcome of one after the other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from penstock.apply.apply_errors import CHECK_VIOLATED, CHILD_EXISTS, UNIQUE_VIOLATED
from penstock.apply.conflict_methods import ConflictKind, ConflictRules, Method, Resolver, TableRules
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.change import Op, TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.target.session import PostgresSession
from tests.conftest import create_database, drop_database, numbers
from tests.hand_made import Lcr, T, Target, Txn, delete, insert, update

TABLES = """
CREATE TABLE parent (id int PRIMARY KEY, bal numeric, name text);
CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent, v int, seen timestamp);
CREATE TABLE plain (code text PRIMARY KEY, v int, worked_out int GENERATED ALWAYS AS (v + 1) STORED UNIQUE);
INSERT INTO parent SELECT n, 0, 'p' FROM generate_series(1, 800) n;
INSERT INTO child SELECT n, n, 0 FROM generate_series(1, 400) n;
"""


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database, TABLES)
    yield made
    made.close()


@pytest.fixture
def two_databases(source_server: EmbeddedPostgres) -> Iterator[Sequence[str]]:
    names = [f"foresight{next(numbers)}" for _ in range(2)]
    for name in names:
        create_database(source_server, name)
    yield [source_server.url(name) for name in names]
    for name in names:
        drop_database(source_server, name)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often which kind of statement was run for single changes, or for many of them."""
    counted: Counter[str] = Counter()
    run: Callable[..., Any] = PostgresSession.run

    def counting(self: PostgresSession, statement: str, values: Any = ()) -> Any:
        counted[statement.split(maxsplit=1)[0]] += 1
        return run(self, statement, values)

    monkeypatch.setattr(PostgresSession, "run", counting)
    return counted


def rules(*methods: Method, by: str | None = None) -> ConflictRules:
    said = TableRules(
        resolvers=(
            *(Resolver(Op.UPDATE, ConflictKind.EXISTS, method, None, by) for method in methods),
            Resolver(Op.INSERT, ConflictKind.EXISTS, Method.OVERWRITE),
            Resolver(Op.DELETE, ConflictKind.EXISTS, Method.OVERWRITE),
        )
    )
    return ConflictRules(tables={TableName("public", name): said for name in ("parent", "child", "plain")})


OVERWRITE = rules(Method.OVERWRITE)


def apply(target: Target, *transactions: Txn, conflicts: ConflictRules = OVERWRITE, around: bool = True) -> LaneResult:
    (result,) = target.apply(*transactions, config=ServerConfig(conflicts=conflicts, use_set_path=around))
    return result


def moved(n: int) -> Txn:
    """Parent n gets a balance, child n another parent, and parent n a new child."""
    return T(
        1000 + n,
        update("parent", {"id": n, "bal": 0, "name": "p"}, {"bal": 5, "name": None}),
        update("child", {"id": n, "parent_id": n, "v": 0, "seen": None}, {"parent_id": 400 + n}),
        insert("child", id=1000 + n, parent_id=n, v=2, seen="2026-01-02 03:04:05"),
    )


@pytest.mark.parametrize("every", [100, 10])
def test_more_conflicts_cost_no_more_statements(target: Target, ran: Counter[str], every: int) -> None:
    target.connection.execute(
        f"UPDATE parent SET bal = 7, name = NULL WHERE id % {every} = 0;"
        f" UPDATE child SET v = 3, parent_id = 1 WHERE id % {every} = 1;"
        f" INSERT INTO child SELECT 1000 + n, 1 FROM generate_series(1, 400) n WHERE n % {every} = 0"
    )

    result = apply(target, *(moved(n) for n in range(1, 401)))

    assert (result.resolved, result.errors, result.target_transactions) == (3 * 400 // every, 0, 1)
    assert target.one("SELECT sum(bal) FROM parent WHERE name IS NULL AND id <= 400") == 2000
    assert target.rows("SELECT count(*), sum(v), sum(parent_id) FROM child") == [(800, 800, 2 * 200 * 401 + 160_000)]
    assert target.one("SELECT count(*) FROM penstock.conflict") == result.resolved
    # Updates of two tables and inserts are looked for, two sets of columns written, and one foreign key looked up.
    assert ran == {"SELECT": 3 + 1, "UPDATE": 2}


def test_what_the_target_refuses_is_found_to_be_of_one_transaction(target: Target) -> None:
    target.connection.execute(
        "ALTER TABLE parent ADD CHECK (name IS NOT NULL OR id <> 100); UPDATE parent SET bal = 7 WHERE id % 100 = 0"
    )

    result = apply(target, *(moved(n) for n in range(1, 401)))

    assert target.failed() == [(1100, CHECK_VIOLATED, 1, 3)]
    assert (result.resolved, result.errors) == (3, 1)
    assert target.one("SELECT bal FROM parent WHERE id = 100") == 7
    assert target.one("SELECT count(*) FROM parent WHERE bal = 5") == 399


def test_a_parent_is_not_let_go_of_before_it_is_deleted(target: Target) -> None:
    """The child is another one's at the target, which nothing in its change tells."""
    target.connection.execute(
        "UPDATE parent SET bal = 7 WHERE id = 1; UPDATE child SET parent_id = 1 WHERE id = 5;"
        " DELETE FROM child WHERE id = 1"
    )
    gone = T(20, delete("parent", id=1, bal=0, name="p"))
    child = T(21, update("child", {"id": 5, "parent_id": 5, "v": 0, "seen": None}, {"parent_id": 6}))

    apply(target, gone, child, *(moved(n) for n in range(10, 100)))

    assert target.failed() == [(20, CHILD_EXISTS, 1, 1)]
    assert target.one("SELECT parent_id FROM child WHERE id = 5") == 6


def test_a_value_that_the_target_works_out_is_not_freed_before_it_is_asked_for(target: Target) -> None:
    target.connection.execute("INSERT INTO plain VALUES ('a', 7)")
    taking = T(20, insert("plain", code="b", v=7))
    freeing = T(21, update("plain", {"code": "a", "v": 5}, {"v": 6}))

    apply(target, taking, freeing, *(moved(n) for n in range(10, 100)))

    assert target.failed() == [(20, UNIQUE_VIOLATED, 1, 1)]
    assert target.rows("SELECT code, v FROM plain") == [("a", 6)]


def test_rows_of_two_conflicts_in_a_row_are_looked_for_one_after_the_other(target: Target) -> None:
    target.connection.execute("UPDATE parent SET bal = 7 WHERE id = 5")
    first = T(20, update("parent", {"id": 5, "bal": 0, "name": "p"}, {"bal": 1}))
    second = T(21, update("parent", {"id": 5, "bal": 1, "name": "p"}, {"bal": 2}))

    result = apply(target, first, second, *(moved(n) for n in range(10, 100)))

    # The second finds what the first has written.
    assert result.resolved == 1
    assert target.one("SELECT bal FROM parent WHERE id = 5") == 2


class World:
    """Random transactions that are legal at the source, and a target that somebody else has written to."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.parents = {n: {"id": n, "bal": 0, "name": "p"} for n in range(1, 41)}
        self.children = {n: {"id": n, "parent_id": n, "v": 0, "seen": None} for n in range(1, 41)}
        self.next_id = 1000

    def change(self) -> Lcr:
        chance = self.chance
        match chance.choice(["parent", "parent", "child", "child", "child", "new", "new", "gone", "no parent"]):
            case "parent":
                row = chance.choice(list(self.parents.values()))
                return self._set("parent", row, {"bal": chance.randrange(9), "name": chance.choice(["p", "q", None])})
            case "child":
                row = chance.choice(list(self.children.values()))
                new = {"v": chance.randrange(9)}
                if chance.random() < 0.5:
                    new["parent_id"] = chance.choice(list(self.parents))
                return self._set("child", row, new)
            case "gone" if len(self.children) > 5:
                return delete("child", **self.children.pop(chance.choice(list(self.children))))
            case "no parent" if free := self.parents.keys() - {row["parent_id"] for row in self.children.values()}:
                return delete("parent", **self.parents.pop(chance.choice(sorted(free))))
        self.next_id += 1
        row = {"id": self.next_id, "parent_id": chance.choice(list(self.parents)), "v": 1, "seen": None}
        self.children[self.next_id] = row
        return insert("child", **row)

    def _set(self, table: str, row: dict[str, Any], new: dict[str, Any]) -> Lcr:
        old = dict(row)
        row.update(new)
        return update(table, old, {name: value for name, value in new.items() if old[name] != value})

    def spoil(self) -> str:
        """What somebody has done at the target."""
        some = ", ".join(str(self.chance.randint(1, 40)) for _ in range(3))
        more = ", ".join(str(self.chance.randint(1, 40)) for _ in range(3))
        return (
            f"UPDATE parent SET bal = 50 + id WHERE id IN ({some});"
            f" UPDATE child SET parent_id = {self.chance.randint(1, 40)}, v = 77 WHERE id IN ({more});"
            f" DELETE FROM child WHERE id = {self.chance.randint(1, 40)};"
            f" INSERT INTO child VALUES ({self.chance.randint(1001, 1030)}, {self.chance.randint(1, 40)}, 99)"
        )


@pytest.mark.parametrize("seed", range(8))
def test_the_outcome_is_that_of_one_change_after_the_other(two_databases: Sequence[str], seed: int) -> None:
    world = World(seed)
    transactions = [T(20 + n, *(world.change() for _ in range(world.chance.choice([1, 1, 2, 3])))) for n in range(60)]
    spoilt, found = world.spoil(), []
    conflicts = world.chance.choice([OVERWRITE, rules(Method.MAXIMUM, by="id"), rules(Method.DISCARD), ConflictRules()])
    for url, around in zip(two_databases, (True, False), strict=True):
        target = Target(url, TABLES)
        target.connection.execute(spoilt)
        apply(target, *transactions, conflicts=conflicts, around=around)
        resolved = "SELECT commit_scn, message_number, outcome FROM penstock.conflict ORDER BY 1, 2"
        tables = [target.rows(f"SELECT * FROM {table} ORDER BY 1") for table in ("parent", "child")]
        found.append((tables, target.failed(), target.rows(resolved)))
        target.close()
    assert found[0] == found[1]
