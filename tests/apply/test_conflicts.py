"""Conflicts that are resolved, on every path: set and row, one lane and four. Scenarios are those of docs/rules.md."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from penstock.apply.apply_errors import FOREIGN_KEY_VIOLATED, ROW_DIFFERS, ROW_MISSING, UNIQUE_VIOLATED
from penstock.apply.conflict_methods import (
    ConflictKind,
    ConflictRules,
    ErrorAction,
    ErrorRule,
    Method,
    Resolver,
    TableRules,
    incoming_wins,
)
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.change import Op, TableName
from penstock.errors import OperatorError
from tests.hand_made import T, Target, Txn, delete, insert, update

WAYS = [(use_set, lanes) for use_set in (True, False) for lanes in (1, 4)]

BOTH = frozenset({Op.UPDATE, Op.DELETE})


@pytest.fixture(params=WAYS, ids=[f"{'set' if s else 'row'}-path-{n}-lanes" for s, n in WAYS])
def way(request: pytest.FixtureRequest) -> tuple[bool, int]:
    return request.param


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database)
    yield made
    made.close()


def rules(table: str = "emp", *resolvers: Resolver, **said: Any) -> ConflictRules:
    on_error, compared = said.pop("on_error", ()), said.pop("compared", {})
    return ConflictRules(tables={TableName("public", table): TableRules(compared, resolvers, on_error)}, **said)


def apply(target: Target, way: tuple[bool, int], conflicts: ConflictRules, *transactions: Txn) -> list[LaneResult]:
    use_set, lanes = way
    config = ServerConfig(use_set_path=use_set, conflicts=conflicts)
    return target.apply(*transactions, lanes=lanes, config=config, shuffle=random.Random(1))


def on_update(method: Method, *columns: str, by: str | None = None) -> Resolver:
    return Resolver(Op.UPDATE, ConflictKind.EXISTS, method, columns or None, by)


def log(target: Target) -> list[tuple[Any, ...]]:
    return target.rows("SELECT op, error_number, row_is, method, outcome, columns FROM penstock.conflict ORDER BY id")


def emp(target: Target, columns: str, key: int = 1) -> tuple[Any, ...]:
    (row,) = target.rows(f"SELECT {columns} FROM emp WHERE id = {key}")
    return row


SAL = update("emp", {"id": 1, "sal": "4400.00"}, {"sal": "4900.00"})


def check_method(
    target: Target, method: Method | None, there: int | None, incoming: int | None, expected: int | None
) -> None:
    """Have an update of a salary meet another one; `expected` is what is left, None where it is not resolved."""
    target.connection.execute("UPDATE emp SET sal = %s WHERE id = 1", [there])
    resolvers = () if method is None else (on_update(method, "sal", by="sal"),)
    new = None if incoming is None else f"{incoming}.00"
    change = update("emp", {"id": 1, "sal": "4400.00"}, {"sal": new})

    (result,) = apply(target, (True, 1), rules("emp", *resolvers), T(100, change))

    if expected is None:
        assert target.failed() == [(100, ROW_DIFFERS, 1, 1)]
        assert emp(target, "sal") == (there,)
        assert log(target) == []
    else:
        assert target.failed() == []
        assert emp(target, "sal") == (expected,)
        assert result.resolved == 1


METHOD = ("method", "there", "incoming", "expected")


@pytest.mark.rule("A-94", "A-95")
@pytest.mark.parametrize(
    METHOD,
    [
        (Method.OVERWRITE, 5000, 4900, 4900),
        (Method.DISCARD, 5000, 4900, 5000),
        (Method.MAXIMUM, 5000, 4900, 5000),
        (Method.MINIMUM, 5000, 4900, 4900),
        (None, 5000, 4900, None),
        (Method.MAXIMUM, 4500, 4900, 4900),
        (Method.MINIMUM, 4500, 4900, 4500),
        # Numbers, not texts: 900 is below 4900.
        (Method.MAXIMUM, 900, 4900, 4900),
        (Method.MINIMUM_AND_EQUAL, 5000, 4900, 4900),
        (Method.DELTA, 5000, 4900, 5500),
        (Method.DELTA, None, 4900, None),
    ],
)
def test_s38_methods(
    target: Target, method: Method | None, there: int | None, incoming: int | None, expected: int | None
) -> None:
    check_method(target, method, there, incoming, expected)


@pytest.mark.rule("A-94")
@pytest.mark.parametrize(
    METHOD,
    [
        (Method.MAXIMUM, 5000, 5000, None),
        (Method.MINIMUM, 5000, 5000, None),
        (Method.MAXIMUM, None, 5000, None),
        (Method.MINIMUM, None, 5000, None),
        (Method.MAXIMUM, 5000, None, None),
        (Method.MAXIMUM_AND_EQUAL, 5000, 5000, 5000),
        (Method.MINIMUM_AND_EQUAL, 5000, 5000, 5000),
        (Method.MAXIMUM_AND_EQUAL, None, 5000, None),
    ],
)
def test_s39_ties_and_nulls(
    target: Target, method: Method, there: int | None, incoming: int | None, expected: int | None
) -> None:
    check_method(target, method, there, incoming, expected)


@pytest.mark.rule("A-94")
def test_s38_is_written_down(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET sal = 5000 WHERE id = 1")
    before = target.connection.execute("SELECT count(*) FROM penstock.conflict").fetchone()
    assert before == (0,)

    apply(target, way, rules("emp", on_update(Method.MAXIMUM, "sal", by="sal")), T(100, SAL))

    assert log(target) == [("update", ROW_DIFFERS, "exists", "maximum", "discarded", ["sal"])]
    named = "SELECT process, txn_id, commit_scn, message_number, schema_name, table_name FROM penstock.conflict"
    assert target.rows(named) == [("A1", "700", 100, 1, "public", "emp")]
    state = target.ledger.state()
    assert state is not None
    assert (state.transactions, state.changes, state.errors, state.conflicts, state.resolved) == (1, 1, 0, 0, 1)


LISTS = (on_update(Method.MAXIMUM, "sal", "comm", by="sal"), on_update(Method.OVERWRITE, "job", "dept_id"))

S40 = update(
    "emp",
    {"id": 1, "dept_id": 10, "name": "ann", "job": "A", "sal": "4400.00", "comm": None},
    {"dept_id": 20, "name": "anne", "job": "B", "sal": "4900.00", "comm": "9.00"},
)


@pytest.mark.rule("A-91", "A-95")
def test_s40_each_list_with_a_conflict_is_decided_by_itself(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET job = 'A2', sal = 5000, comm = 7 WHERE id = 1")

    apply(target, way, rules("emp", *LISTS), T(100, S40))

    assert target.failed() == []
    assert emp(target, "dept_id, name, job, sal, comm") == (20, "anne", "B", 5000, 7)
    assert [row[3:5] for row in log(target)] == [("maximum", "discarded"), ("overwrite", "applied")]


@pytest.mark.rule("A-91", "A-101")
def test_the_lists_without_a_conflict_are_asked_only_where_a_row_is_resolved_whole(
    target: Target, way: tuple[bool, int]
) -> None:
    target.connection.execute("UPDATE emp SET job = 'A2' WHERE id IN (1, 2)")
    lists = (on_update(Method.DISCARD, "sal"), on_update(Method.OVERWRITE, "job"))
    first = update("emp", {"id": 1, "job": "A", "sal": "4400.00"}, {"job": "B", "sal": "1.00"})
    second = update("emp", {"id": 2, "job": "B", "sal": "4000.00"}, {"job": "C", "sal": "1.00"})

    apply(target, way, rules("emp", *lists), T(100, first))
    apply(target, way, rules("emp", *lists, resolves_rows=True), T(110, second))

    assert target.failed() == []
    assert (emp(target, "job, sal"), emp(target, "job, sal", 2)) == (("B", 1), ("C", 4000))


@pytest.mark.rule("A-92")
def test_s41_a_column_in_no_list_that_differs_calls_no_resolver(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET job = 'A2', sal = 5000, comm = 7, name = 'zoe' WHERE id = 1")

    apply(target, way, rules("emp", *LISTS), T(100, S40))

    assert target.failed() == [(100, ROW_DIFFERS, 1, 1)]
    assert emp(target, "name, job, sal") == ("zoe", "A2", 5000)
    assert log(target) == []


@pytest.mark.rule("A-93")
def test_s42_a_list_of_which_the_change_does_not_tell_all(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET sal = 5000")
    first = update("emp", {"id": 1, "sal": "4400.00"}, {"sal": "5100.00"})
    second = update("emp", {"id": 2, "sal": "4400.00"}, {"sal": "5100.00"})

    apply(target, way, rules("emp", on_update(Method.MAXIMUM, "sal", "comm", by="sal")), T(100, first))
    apply(target, way, rules("emp", on_update(Method.DISCARD, "sal", "comm")), T(110, second))

    assert target.failed() == [(100, ROW_DIFFERS, 1, 1)]
    assert (emp(target, "sal"), emp(target, "sal", 2)) == ((5000,), (5000,))
    assert [row[4] for row in log(target)] == ["discarded"]


@pytest.mark.rule("A-84")
def test_s43_self_updates_are_compared_where_that_is_asked_for(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET sal = 5000 WHERE id = 1")
    change = update("emp", {"id": 1, "sal": "4400.00", "job": "A"}, {"sal": "4400.00", "job": "B"})

    apply(target, way, ConflictRules(optimize_self_updates=False), T(100, change))
    assert target.failed() == [(100, ROW_DIFFERS, 1, 1)]
    apply(target, way, ConflictRules(), T(110, change))

    assert emp(target, "job, sal") == ("B", 5000)


S44 = update("emp", {"id": 1, "name": "ann", "sal": "4400.00"}, {"sal": "4500.00"})


@pytest.mark.rule("A-81", "A-85", "A-86", "A-137")
def test_s44_a_retry_compares_what_is_compared_by_then(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET name = 'eve' WHERE id = 1")
    apply(target, way, ConflictRules(), T(100, S44))
    assert target.failed() == [(100, ROW_DIFFERS, 1, 1)]

    target.retry(conflicts=rules("emp", compared={"name": frozenset({Op.DELETE})}))

    assert target.failed() == []
    assert emp(target, "name, sal") == ("eve", 4500)


@pytest.mark.rule("A-94", "A-137")
def test_a_retry_resolves_and_logs(target: Target) -> None:
    target.connection.execute("UPDATE emp SET sal = 5000 WHERE id = 1")
    apply(target, (True, 1), ConflictRules(), T(100, SAL))

    target.retry(conflicts=rules("emp", on_update(Method.OVERWRITE)))

    assert emp(target, "sal") == (4900,)
    assert [row[3:5] for row in log(target)] == [("overwrite", "applied")]


@pytest.mark.rule("A-86")
@pytest.mark.parametrize(
    ("compared", "failed"),
    [
        ({}, [100, 110]),
        ({"name": frozenset({Op.UPDATE})}, [100]),
        ({"name": frozenset({Op.DELETE})}, [110]),
        ({"name": frozenset()}, []),
        ({"*": frozenset()}, []),
        ({"*": frozenset(), "name": BOTH}, [100, 110]),
    ],
    ids=["nothing said", "updates", "deletes", "neither", "no column", "only this one"],
)
def test_old_values_are_compared_by_operation(
    target: Target, way: tuple[bool, int], compared: Mapping[str, frozenset[Op]], failed: list[int]
) -> None:
    target.connection.execute("UPDATE emp SET name = 'eve'")
    gone = delete("emp", id=2, dept_id=20, name="bob", job="B", sal="4000.00", comm="100.00")

    (first, *_) = apply(target, way, rules("emp", compared=compared), T(100, S44), T(110, gone))

    assert [entry[0] for entry in target.failed()] == failed
    assert target.one("SELECT count(*) FROM emp") == (2 if 110 in failed else 1)
    assert emp(target, "name, sal") == ("eve", 4400 if 100 in failed else 4500)
    if way == (True, 1) and not failed:
        assert (first.set_changes, first.row_changes) == (2, 0)


@pytest.mark.rule("A-86", "A-216")
def test_what_is_not_compared_is_not_written_either_unless_a_change_sets_it(
    target: Target, way: tuple[bool, int]
) -> None:
    target.connection.execute("UPDATE emp SET name = 'eve', job = 'L'")
    free = rules("emp", compared={"name": frozenset(), "job": frozenset()})

    (result, *_) = apply(
        target,
        way,
        free,
        T(100, update("emp", {"id": 1, "name": "ann", "job": "A", "sal": "4400.00"}, {"sal": "1.00"})),
        T(110, update("emp", {"id": 2, "name": "bob", "job": "B", "sal": "4000.00"}, {"name": "rob"})),
        T(120, update("emp", {"id": 2, "name": "rob", "job": "B", "sal": "4000.00"}, {"name": "bob"})),
    )

    assert target.failed() == []
    assert (emp(target, "name, job, sal"), emp(target, "name, job, sal", 2)) == (("eve", "L", 1), ("bob", "L", 4000))
    if way == (True, 1):
        assert (result.set_changes, result.row_changes) == (3, 0)


@pytest.mark.rule("A-87")
def test_s45_only_keys_are_compared(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET name = 'eve' WHERE id = 1")
    missing = update("emp", {"id": 99, "sal": "4400.00"}, {"sal": "4500.00"})

    apply(target, way, ConflictRules(compare_key_only=True), T(100, S44), T(110, missing))

    assert emp(target, "name, sal") == ("eve", 4500)
    assert target.failed() == [(110, ROW_MISSING, 1, 1)]


@pytest.mark.rule("A-80", "A-97")
def test_s46_a_resolver_of_updates_has_no_say_in_uniqueness(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        rules("acct", on_update(Method.OVERWRITE, "code", "bal")),
        T(100, insert("acct", id=1, code="Q", bal="0.00")),
        T(110, update("acct", {"id": 2, "code": "Y", "bal": "200.00"}, {"code": "X"})),
    )

    assert target.failed() == [(100, UNIQUE_VIOLATED, 1, 1), (110, UNIQUE_VIOLATED, 1, 1)]
    assert log(target) == []


@pytest.mark.rule("A-80", "A-97")
def test_s47_a_resolver_of_updates_has_no_say_in_deletes(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        rules("acct", on_update(Method.OVERWRITE)),
        T(100, update("acct", {"id": 99, "code": "Q", "bal": "1.00"}, {"bal": "2.00"})),
        T(110, delete("acct", id=98, code="P", bal="0.00")),
        T(120, delete("acct", id=1, code="X", bal="50.00")),
    )

    assert target.failed() == [(100, ROW_MISSING, 1, 1), (110, ROW_MISSING, 1, 1), (120, ROW_DIFFERS, 1, 1)]
    assert target.one("SELECT count(*) FROM acct") == 2


def acct(target: Target) -> list[tuple[Any, ...]]:
    return target.rows("SELECT id, code, bal::int FROM acct ORDER BY id")


ROWS = [
    # The operation, what is found, the method, what is applied; then the rows that are left, and the outcome.
    (
        Op.INSERT,
        ConflictKind.EXISTS,
        Method.OVERWRITE,
        insert("acct", id=1, code="Q", bal="7.00"),
        [(1, "Q", 7)],
        "applied",
    ),
    (
        Op.INSERT,
        ConflictKind.EXISTS,
        Method.DISCARD,
        insert("acct", id=1, code="Q", bal="7.00"),
        [(1, "X", 100)],
        "discarded",
    ),
    (
        Op.INSERT,
        ConflictKind.EXISTS,
        Method.RECORD,
        insert("acct", id=1, code="Q", bal="7.00"),
        [(1, "X", 100)],
        "recorded",
    ),
    (
        Op.INSERT,
        ConflictKind.EXISTS,
        Method.MAXIMUM,
        insert("acct", id=1, code="Q", bal="7.00"),
        [(1, "X", 100)],
        "discarded",
    ),
    (
        Op.INSERT,
        ConflictKind.EXISTS,
        Method.MINIMUM,
        insert("acct", id=1, code="Q", bal="7.00"),
        [(1, "Q", 7)],
        "applied",
    ),
    # The row that has the unique value becomes the row that is inserted.
    (
        Op.INSERT,
        ConflictKind.EXISTS,
        Method.OVERWRITE,
        insert("acct", id=5, code="X", bal="7.00"),
        [(5, "X", 7)],
        "applied",
    ),
    # The same row is there already.
    (
        Op.INSERT,
        ConflictKind.EXISTS,
        Method.OVERWRITE,
        insert("acct", id=1, code="X", bal="100.00"),
        [(1, "X", 100)],
        "applied",
    ),
    (
        Op.UPDATE,
        ConflictKind.MISSING,
        Method.OVERWRITE,
        update("acct", {"id": 9, "code": "Z", "bal": "1.00"}, {"bal": "2.00"}),
        [(1, "X", 100), (9, "Z", 2)],
        "applied",
    ),
    (
        Op.UPDATE,
        ConflictKind.MISSING,
        Method.DISCARD,
        update("acct", {"id": 9, "code": "Z", "bal": "1.00"}, {"bal": "2.00"}),
        [(1, "X", 100)],
        "discarded",
    ),
    (
        Op.DELETE,
        ConflictKind.MISSING,
        Method.DISCARD,
        delete("acct", id=9, code="Z", bal="1.00"),
        [(1, "X", 100)],
        "discarded",
    ),
    (
        Op.DELETE,
        ConflictKind.MISSING,
        Method.RECORD,
        delete("acct", id=9, code="Z", bal="1.00"),
        [(1, "X", 100)],
        "recorded",
    ),
    (Op.DELETE, ConflictKind.EXISTS, Method.OVERWRITE, delete("acct", id=1, code="X", bal="1.00"), [], "applied"),
    (
        Op.DELETE,
        ConflictKind.EXISTS,
        Method.DISCARD,
        delete("acct", id=1, code="X", bal="1.00"),
        [(1, "X", 100)],
        "discarded",
    ),
]


@pytest.mark.rule("A-99")
@pytest.mark.parametrize(("op", "row", "method", "change", "left", "outcome"), ROWS)
def test_conflicts_of_whole_rows(
    target: Target, op: Op, row: ConflictKind, method: Method, change: Any, left: list[tuple[Any, ...]], outcome: str
) -> None:
    by = "bal" if method.compares else None
    behind = update("acct", {"id": 2, "code": "Y", "bal": "200.00"}, {"bal": "201.00"})

    apply(target, (True, 1), rules("acct", Resolver(op, row, method, None, by)), T(100, change, behind))

    assert acct(target) == sorted([*left, (2, "Y", 201)])
    assert [entry[3:5] for entry in log(target)] == [(method.value, outcome)]
    # Only the change is recorded; its transaction goes on.
    assert [entry[0::3] for entry in target.failed()] == ([(100, 1)] if outcome == "recorded" else [])
    assert all(entry.error_number == log(target)[0][1] for entry in target.errors())


@pytest.mark.rule("A-99")
def test_an_update_that_does_not_tell_the_whole_row_is_not_made_an_insert(
    target: Target, way: tuple[bool, int]
) -> None:
    change = update("acct", {"id": 9, "bal": "1.00"}, {"bal": "2.00"})

    apply(target, way, rules("acct", Resolver(Op.UPDATE, ConflictKind.MISSING, Method.OVERWRITE)), T(100, change))

    assert target.failed() == [(100, ROW_MISSING, 1, 1)]


@pytest.mark.rule("A-99")
def test_an_insert_that_meets_two_rows_goes_to_the_queue(target: Target, way: tuple[bool, int]) -> None:
    change = insert("acct", id=1, code="Y", bal="7.00")

    apply(target, way, rules("acct", Resolver(Op.INSERT, ConflictKind.EXISTS, Method.OVERWRITE)), T(100, change))

    assert target.failed() == [(100, UNIQUE_VIOLATED, 1, 1)]
    assert acct(target) == [(1, "X", 100), (2, "Y", 200)]


@pytest.mark.rule("A-99")
def test_what_a_resolver_writes_is_checked_like_any_change(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET dept_id = 20 WHERE id = 1")
    target.connection.execute("DELETE FROM dept WHERE id = 10")
    change = update("emp", {"id": 1, "dept_id": 10, "job": "A"}, {"job": "B"})

    apply(target, way, rules("emp", on_update(Method.OVERWRITE, "dept_id", "job")), T(100, change))

    # The list brings the parent back that this row had at the source, and that is gone here.
    assert target.failed() == [(100, FOREIGN_KEY_VIOLATED, 1, 1)]
    assert emp(target, "dept_id, job") == (20, "A")


@pytest.mark.rule("A-103")
def test_collisions_while_a_copy_catches_up(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("INSERT INTO acct VALUES (3, 'Z', 300)")

    apply(
        target,
        way,
        ConflictRules(handle_collisions=True),
        T(100, insert("acct", id=1, code="X", bal="101.00")),
        T(110, update("acct", {"id": 98, "code": "P", "bal": "0.00"}, {"bal": "1.00"})),
        T(120, delete("acct", id=98, code="P", bal="1.00")),
        T(130, update("acct", {"id": 2, "code": "Y", "bal": "200.00"}, {"id": 3, "code": "W"})),
        T(140, update("acct", {"id": 97, "code": "P", "bal": "0.00"}, {"id": 96})),
    )

    assert target.failed() == []
    assert acct(target) == [(1, "X", 101), (3, "W", 200)]
    assert len(log(target)) == 5


TWICE = insert("acct", id=1, code="Q", bal="0.00")
BEHIND = update("acct", {"id": 2, "code": "Y", "bal": "200.00"}, {"bal": "201.00"})


@pytest.mark.rule("A-102")
@pytest.mark.parametrize("error", ["23505", "1", None])
def test_an_error_is_ignored(target: Target, way: tuple[bool, int], error: str | None) -> None:
    apply(target, way, rules("acct", on_error=(ErrorRule(error, ErrorAction.IGNORE),)), T(100, TWICE, BEHIND))

    assert target.failed() == []
    assert acct(target) == [(1, "X", 100), (2, "Y", 201)]
    assert log(target) == [("insert", UNIQUE_VIOLATED, None, "ignore", "discarded", [])]


@pytest.mark.rule("A-102")
def test_a_change_is_recorded_by_itself(target: Target, way: tuple[bool, int]) -> None:
    apply(target, way, rules("acct", on_error=(ErrorRule(None, ErrorAction.RECORD),)), T(100, BEHIND, TWICE))

    assert target.failed() == [(100, UNIQUE_VIOLATED, 1, 1)]
    assert acct(target) == [(1, "X", 100), (2, "Y", 201)]
    state = target.ledger.state()
    assert state is not None
    assert (state.transactions, state.changes, state.errors, state.conflicts) == (1, 1, 1, 1)
    target.connection.execute("DELETE FROM acct WHERE id = 1")
    target.retry()
    assert acct(target) == [(1, "Q", 0), (2, "Y", 201)]


@pytest.mark.rule("A-102")
def test_the_first_rule_that_fits_counts_and_the_others_do_not(target: Target) -> None:
    said = (
        ErrorRule("26787", ErrorAction.IGNORE),
        ErrorRule("23505", ErrorAction.RECORD_TRANSACTION),
        ErrorRule(None, ErrorAction.ABEND),
    )

    apply(target, (True, 1), rules("acct", on_error=said), T(100, BEHIND, TWICE))

    assert target.failed() == [(100, UNIQUE_VIOLATED, 2, 2)]
    assert acct(target) == [(1, "X", 100), (2, "Y", 200)]


@pytest.mark.rule("A-102")
def test_an_error_stops_the_run_and_nothing_of_its_transaction_is_applied(
    target: Target, way: tuple[bool, int]
) -> None:
    said = rules("acct", on_error=(ErrorRule("23505", ErrorAction.ABEND),))

    with pytest.raises(OperatorError, match="abend"):
        apply(target, way, said, T(100, BEHIND, TWICE))

    assert target.failed() == []
    assert acct(target) == [(1, "X", 100), (2, "Y", 200)]
    target.connection.execute("DELETE FROM acct WHERE id = 1")
    apply(target, way, said, T(100, BEHIND, TWICE))
    assert acct(target) == [(1, "Q", 0), (2, "Y", 201)]


@pytest.mark.rule("A-102")
@pytest.mark.parametrize("then", [ErrorAction.RETRY, ErrorAction.RETRY_TRANSACTION])
def test_what_fails_is_tried_again(target: Target, monkeypatch: pytest.MonkeyPatch, then: ErrorAction) -> None:
    waited: list[float] = []
    sleep = time.sleep

    def wait(seconds: float) -> None:
        # Other threads sleep, too.
        if seconds != 9:
            sleep(seconds)
            return
        waited.append(seconds)
        if len(waited) == 2:
            target.connection.execute("DELETE FROM acct WHERE id = 1")

    monkeypatch.setattr("time.sleep", wait)

    apply(target, (False, 1), rules("acct", on_error=(ErrorRule("23505", then, 3, 9),)), T(100, TWICE))

    assert waited == [9, 9]
    assert acct(target) == [(1, "Q", 0), (2, "Y", 200)]
    apply(target, (False, 1), rules("acct", on_error=(ErrorRule("23505", then, 1, 9),)), T(110, TWICE))
    assert waited == [9, 9, 9]
    assert target.failed() == [(110, UNIQUE_VIOLATED, 1, 1)]


@pytest.mark.rule("A-88", "A-95")
def test_a_transaction_that_fails_later_leaves_no_trace_of_what_it_resolved(
    target: Target, way: tuple[bool, int]
) -> None:
    target.connection.execute("UPDATE acct SET bal = 5 WHERE id = 1")
    resolved = update("acct", {"id": 1, "code": "X", "bal": "100.00"}, {"bal": "101.00"})

    apply(
        target, way, rules("acct", on_update(Method.OVERWRITE)), T(100, resolved, delete("acct", id=9, code="Q", bal=1))
    )

    assert target.failed() == [(100, ROW_MISSING, 2, 2)]
    assert acct(target)[0] == (1, "X", 5)
    assert log(target) == []
    assert target.one("SELECT sum(resolved) FROM penstock.lane") == 0


@pytest.mark.parametrize("method", Method)
def test_no_method_decides_about_nothing_but_values_that_have_an_order(method: Method) -> None:
    undecided = {Method.DELTA, Method.RECORD}
    decided = {order: incoming_wins(method, order) for order in (1, 0, -1, None)}

    assert (set(decided.values()) == {None}) == (method in undecided)
    assert (decided[None] is None) == (method.compares or method in undecided)


def test_an_insert_that_meets_a_row_whose_substitute_key_several_rows_have(
    target: Target, way: tuple[bool, int]
) -> None:
    target.keys = {TableName("public", "acct"): ("bal",)}
    target.connection.execute("INSERT INTO acct VALUES (9, 'Z', 100)")
    overwrite = Resolver(Op.INSERT, ConflictKind.EXISTS, Method.OVERWRITE)

    (result,) = apply(target, way, rules("acct", overwrite), T(100, insert("acct", id=1, code="N", bal="5.00")))

    assert result.errors == 1
    assert target.failed() == [(100, UNIQUE_VIOLATED, 1, 1)]
    assert target.rows("SELECT id, code FROM acct ORDER BY 1") == [(1, "X"), (2, "Y"), (9, "Z")]


@pytest.mark.parametrize("use_set", [True, False])
def test_nothing_overtakes_an_insert_that_takes_a_row_of_another_key(target: Target, use_set: bool) -> None:
    """Row 1 becomes row 7, so the later update of row 1 finds none; other rows make the group worth the set path."""
    target.connection.execute("INSERT INTO acct SELECT n, NULL, 0 FROM generate_series(100, 199) n")
    overwrite = Resolver(Op.INSERT, ConflictKind.EXISTS, Method.OVERWRITE)
    taking = T(100, insert("acct", id=7, code="X", bal="5.00"))
    later = T(101, update("acct", {"id": 1, "bal": "100.00"}, {"bal": "101.00"}))
    others = [T(n, update("acct", {"id": n - 100, "bal": "0.00"}, {"bal": "1.00"})) for n in range(200, 300)]

    apply(target, (use_set, 1), rules("acct", overwrite), taking, later, *others)

    assert target.failed() == [(101, ROW_MISSING, 1, 1)]
    assert target.rows("SELECT id, bal::int FROM acct WHERE code = 'X'") == [(7, 5)]


def test_what_a_run_counts_is_what_the_ledger_counts(target: Target, way: tuple[bool, int]) -> None:
    record = ErrorRule(None, ErrorAction.RECORD)
    changes = [update("emp", {"id": n, "sal": "1.00"}, {"sal": "2.00"}) for n in (1, 2)]

    results = apply(target, way, rules(on_error=(record,)), T(100, *changes, insert("dept", id=30, name="X")))

    counted = tuple(sum(getattr(r, n) for r in results) for n in ("transactions", "changes", "errors", "resolved"))
    assert counted == (1, 1, 2, 2)
    assert sum(r.set_changes + r.row_changes for r in results) == 1
    assert target.rows("SELECT sum(transactions), sum(changes), sum(errors), sum(resolved) FROM penstock.lane") == [
        counted
    ]
