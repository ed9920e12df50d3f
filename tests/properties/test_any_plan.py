"""Any plan and any path give what serial apply gives: the same rows, ledger and error queue.

Random transactions run at a real source, whose rows and the targets' may differ from the start, so that conflicts
and errors of every kind come up as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.apply.conflict_methods import (
    ConflictKind,
    ConflictRules,
    ErrorAction,
    ErrorRule,
    Method,
    Resolver,
    TableRules,
)
from penstock.apply.lane import ServerConfig
from penstock.change import Op, TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.position import Limit, Scn
from tests.conftest import create_database, drop_database
from tests.examples import examples
from tests.lab import Lab

SCHEMA = """
CREATE TABLE p (id int PRIMARY KEY, code text UNIQUE, v int);
CREATE TABLE c (id int PRIMARY KEY, pid int REFERENCES p ON UPDATE CASCADE ON DELETE CASCADE, u int UNIQUE, w numeric);
CREATE TABLE d (id int PRIMARY KEY, pid int REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED,
                u int UNIQUE DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE s (id int PRIMARY KEY, parent int REFERENCES s ON DELETE SET NULL);
CREATE TABLE k (a int, b text);
"""
TABLES = ("p", "c", "d", "s", "k")

DATA = """
INSERT INTO p VALUES (1, 'a', 1), (2, 'b', 2), (3, NULL, 3);
INSERT INTO c VALUES (1, 1, 1, 1.0), (2, 2, NULL, 2.0);
INSERT INTO d VALUES (1, 1, 1), (2, 2, 2);
INSERT INTO s VALUES (1, NULL), (2, 1);
INSERT INTO k VALUES (1, 'x'), (1, 'x'), (2, NULL);
"""

ids = st.integers(1, 4)
codes = st.sampled_from(["a", "b", "c", None])

statements = st.one_of(
    st.tuples(st.just("INSERT INTO p VALUES (%s, %s, 0)"), ids, codes),
    st.tuples(st.just("UPDATE p SET v = v + %s WHERE id = %s"), ids, ids),
    st.tuples(st.just("UPDATE p SET code = %s WHERE id = %s"), codes, ids),
    st.tuples(st.just("UPDATE p SET id = %s WHERE id = %s"), ids, ids),
    st.tuples(st.just("DELETE FROM p WHERE id = %s"), ids),
    st.tuples(st.just("INSERT INTO c VALUES (%s, %s, %s, 1.50)"), ids, ids, ids),
    st.tuples(st.just("UPDATE c SET pid = %s WHERE id = %s"), st.one_of(ids, st.none()), ids),
    st.tuples(st.just("UPDATE c SET u = %s, w = w * 1.0 WHERE id = %s"), ids, ids),
    st.tuples(st.just("UPDATE c SET id = id + %s"), ids),
    st.tuples(st.just("DELETE FROM c WHERE pid = %s"), ids),
    st.tuples(st.just("INSERT INTO d VALUES (%s, %s, %s)"), ids, ids, ids),
    st.tuples(
        st.just("UPDATE d SET u = 3 - u WHERE u < 3"),
    ),
    st.tuples(st.just("DELETE FROM d WHERE id = %s"), ids),
    st.tuples(st.just("INSERT INTO s VALUES (%s, %s)"), ids, st.one_of(ids, st.none())),
    st.tuples(st.just("DELETE FROM s WHERE id = %s"), ids),
    st.tuples(st.just("INSERT INTO k VALUES (%s, 'x')"), ids),
    st.tuples(st.just("UPDATE k SET b = 'y' WHERE a = %s"), ids),
    st.tuples(st.just("DELETE FROM k WHERE a = %s"), ids),
    st.tuples(st.just("TRUNCATE k")),
)
transactions = st.lists(st.lists(statements, min_size=1, max_size=4), min_size=1, max_size=12)

divergences = st.lists(
    st.one_of(
        st.tuples(st.just("UPDATE p SET v = 9 WHERE id = %s"), ids),
        st.tuples(st.just("DELETE FROM p WHERE id = %s"), ids),
        st.tuples(st.just("INSERT INTO p VALUES (%s, 'c', 0) ON CONFLICT DO NOTHING"), ids),
        st.tuples(st.just("DELETE FROM c WHERE id = %s"), ids),
        st.tuples(st.just("INSERT INTO c SELECT 5, id FROM p WHERE id = %s ON CONFLICT DO NOTHING"), ids),
        st.tuples(st.just("DELETE FROM k WHERE a = %s"), ids),
        st.tuples(st.just("UPDATE d SET u = 3 WHERE id = 1")),
        st.tuples(st.just("UPDATE s SET parent = NULL WHERE id = %s"), ids),
    ),
    max_size=3,
)


@dataclass(frozen=True)
class Way:
    """How one target applies."""

    name: str
    lanes: int
    config: ServerConfig
    limit: Limit = field(default_factory=Limit)


WAYS = [
    Way("serial, row path", 1, ServerConfig(use_set_path=False)),
    Way("serial, set path", 1, ServerConfig()),
    Way("serial, small groups", 1, ServerConfig(group_changes=3)),
    Way("lanes, set path", 3, ServerConfig()),
    Way("lanes, row path, small batches", 4, ServerConfig(use_set_path=False), Limit(max_transactions=3)),
    Way("lanes, small groups and batches", 2, ServerConfig(group_changes=2), Limit(max_transactions=5)),
    Way("large transactions in pieces", 1, ServerConfig(group_changes=2), Limit(large_changes=2)),
]


class Farm:
    """One source and a target for each way, all of them set up once."""

    def __init__(
        self,
        source: EmbeddedPostgres,
        target: EmbeddedPostgres,
        lab_of: type[Lab] = Lab,
        *,
        name: str = "farm",
        ways: Sequence[Way] = WAYS,
    ) -> None:
        # A name of its own for each: a process keeps its session with a database that has gone.
        self._servers, self._name, self._ways = (source, target), name, ways
        create_database(source, name)
        self.labs = []
        for number, _ in enumerate(ways):
            create_database(target, f"{name}{number}")
            self.labs.append(lab_of(source.url(name), target.url(f"{name}{number}")))
        self.source = self.labs[0].source
        self.source.execute(SCHEMA)
        for lab in self.labs:
            lab.pipeline().setup()
            lab.start()

    def close(self) -> None:
        for lab in self.labs:
            lab.close()
        (source, target), name = self._servers, self._name
        drop_database(source, name)
        for number, _ in enumerate(self._ways):
            drop_database(target, f"{name}{number}")

    def reset(self, divergence: list[tuple[Any, ...]]) -> Scn:
        """Put the same rows everywhere, but for the targets' divergence, and begin a new log interval after the SCN
        returned.

        No row of a target refers to one that is not there: whether PostgreSQL looks at such a reference again depends
        on the statement that writes the row.
        """
        fresh = f"TRUNCATE {', '.join(TABLES)}; {DATA}"
        _as_replica(self.source, fresh)
        position = self.labs[0].log.tick()
        ((mark,),) = self.source.execute("SELECT mark FROM penstock_lab.tick WHERE scn = %s", [position]).fetchall()
        for lab in self.labs:
            _as_replica(lab.target, fresh)
            for statement, *values in divergence:
                lab.target.execute("SET session_replication_role = replica")
                lab.target.execute(statement, values)
            for table in ("c", "d"):
                lab.target.execute(f"DELETE FROM {table} WHERE pid NOT IN (SELECT id FROM p)")
            lab.target.execute("RESET session_replication_role")
            lab.target.execute(
                "DELETE FROM penstock.error; DELETE FROM penstock.applied; DELETE FROM penstock.conflict"
            )
            lab.target.execute(
                "UPDATE penstock.lane SET transactions = 0, changes = 0, errors = 0, conflicts = 0, resolved = 0,"
                " cut_scn = NULL, cut_mark = NULL"
            )
            lab.target.execute(
                "UPDATE penstock.process SET low_watermark = %(p)s, high_watermark = %(p)s,"
                " anchor_scn = %(p)s, anchor_mark = %(m)s",
                {"p": position, "m": mark},
            )
        return position

    def work(self, work: list[list[tuple[Any, ...]]]) -> None:
        """Run transactions at the source; a statement that fails is rolled back by itself."""
        for statements_ in work:
            try:
                with self.source.transaction():
                    for statement, *values in statements_:
                        _try(self.source, statement, values)
            except psycopg.errors.IntegrityError:
                # A deferred check refused the whole transaction.
                continue

    def assert_equal_outcomes(
        self, seed: int, *, is_divergent: bool, conflicts: ConflictRules = ConflictRules()
    ) -> None:
        """Apply what was done at the source in every way, and compare what comes of it."""
        ways = [replace(way, config=replace(way.config, conflicts=conflicts)) for way in WAYS]
        outcomes = [outcome(lab, way, seed) for lab, way in zip(self.labs, ways, strict=True)]
        for way, found in zip(WAYS[1:], outcomes[1:], strict=True):
            assert found == outcomes[0], way.name
        if not is_divergent:
            assert outcomes[0]["errors"] == []
            self.labs[0].assert_identical(*TABLES)


@pytest.fixture(scope="module")
def farm(source_server: EmbeddedPostgres, target_server: EmbeddedPostgres) -> Iterator[Farm]:
    made = Farm(source_server, target_server)
    yield made
    made.close()


@pytest.mark.rule("A-31", "A-216")
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(work=transactions, divergence=divergences, seed=st.integers(0, 9))
def test_every_way_gives_the_same(farm: Farm, work: list[Any], divergence: list[Any], seed: int) -> None:
    farm.reset(divergence)
    farm.work(work)

    farm.assert_equal_outcomes(seed, is_divergent=bool(divergence))


def _rules(*resolvers: Resolver, **said: Any) -> TableRules:
    return TableRules(resolvers=resolvers, **said)


def _on_update(method: Method, *columns: str, by: str | None = None) -> Resolver:
    return Resolver(Op.UPDATE, ConflictKind.EXISTS, method, columns, by)


NEITHER: frozenset[Op] = frozenset()

MISSING = [Resolver(op, ConflictKind.MISSING, Method.DISCARD) for op in (Op.UPDATE, Op.DELETE)]

RULES = [
    {
        "p": _rules(_on_update(Method.MAXIMUM, "v", by="v"), *MISSING),
        "c": _rules(
            _on_update(Method.MINIMUM_AND_EQUAL, "w", by="w"), Resolver(Op.INSERT, ConflictKind.EXISTS, Method.DISCARD)
        ),
        "d": _rules(_on_update(Method.DISCARD, "u")),
    },
    {
        "p": _rules(_on_update(Method.DELTA, "v"), Resolver(Op.DELETE, ConflictKind.EXISTS, Method.OVERWRITE)),
        "c": _rules(_on_update(Method.OVERWRITE, "w"), *MISSING),
        "s": _rules(_on_update(Method.OVERWRITE, "parent"), *MISSING),
    },
    {
        "p": _rules(compared={"v": NEITHER}),
        "s": _rules(compared={"parent": frozenset({Op.DELETE})}),
        "c": _rules(on_error=(ErrorRule("26787", ErrorAction.IGNORE), ErrorRule("23505", ErrorAction.RECORD))),
    },
]
"""What is said of conflicts: nothing whose outcome rows that are in the way of no change decide."""


@pytest.mark.rule("A-95", "A-101", "A-102", "A-216")
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    work=transactions,
    divergence=divergences,
    seed=st.integers(0, 9),
    said=st.sampled_from(RULES),
    resolves_rows=st.booleans(),
)
def test_every_way_resolves_the_same(
    farm: Farm, work: list[Any], divergence: list[Any], seed: int, said: dict[str, TableRules], resolves_rows: bool
) -> None:
    farm.reset(divergence)
    farm.work(work)
    tables = {TableName("public", name): rules for name, rules in said.items()}

    farm.assert_equal_outcomes(
        seed, is_divergent=True, conflicts=ConflictRules(resolves_rows=resolves_rows, tables=tables)
    )


def outcome(lab: Lab, way: Way, seed: int) -> dict[str, Any]:
    lab.apply(lanes=way.lanes, config=way.config, limit=way.limit, shuffle=random.Random(seed))
    state = lab.ledger.state()
    assert state is not None
    return {
        "rows": {table: lab.rows(table) for table in TABLES},
        "errors": [
            (e.commit_scn, e.error_number, e.message_number, e.message_count, e.error_message, e.found)
            for e in lab.errors()
        ],
        "watermarks": (state.low_watermark, state.high_watermark),
        "counts": (state.transactions, state.changes, state.errors, state.conflicts, state.resolved),
        "resolved": lab.target.execute(
            "SELECT commit_scn, message_number, error_number, row_is, method, outcome, columns FROM penstock.conflict"
            " ORDER BY 1, 2, 5"
        ).fetchall(),
        "applied above": lab.target.execute("SELECT count(*) FROM penstock.applied").fetchone(),
    }


def _as_replica(connection: psycopg.Connection, sql: str) -> None:
    connection.execute(f"SET session_replication_role = replica; {sql} RESET session_replication_role")


def _try(connection: psycopg.Connection, statement: str, values: list[Any]) -> None:
    try:
        with connection.transaction():
            connection.execute(statement, values)
    except psycopg.errors.IntegrityError:
        # Refused at once; the transaction goes on without it.
        return


def test_positions_do_not_depend_on_how_the_log_is_cut_into_slices(farm: Farm) -> None:
    farm.reset([])
    farm.work([[("UPDATE p SET v = v + %s", n)] for n in range(20)])
    state = farm.labs[0].ledger.state()
    assert state is not None

    whole = _ids(farm.labs[0], state.low_watermark, Limit())
    again = _ids(farm.labs[1], state.low_watermark, Limit(max_transactions=3))

    assert whole == again
    assert len(whole) == 20


def _ids(lab: Lab, after: Scn, limit: Limit) -> dict[int, int]:
    found: dict[int, int] = {}
    while (part := lab.log.next_slice(after, limit)) is not None:
        found |= dict(zip(part.commit_scns.tolist(), part.txn_ids.tolist(), strict=True))
        after = part.end
    return found
