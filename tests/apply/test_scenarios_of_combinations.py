"""Scenarios in which two rules meet: a resolver and a key that moves, a handler and an error, a value that is freed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.apply.apply_errors import (
    FOREIGN_KEY_VIOLATED,
    NULL_REFUSED,
    OTHER,
    ROW_DIFFERS,
    ROW_MISSING,
    UNIQUE_VIOLATED,
    VALUE_MISSING,
    ApplyError,
)
from penstock.apply.conflict_methods import (
    ConflictKind,
    ConflictRules,
    ErrorAction,
    ErrorRule,
    Method,
    Resolver,
    TableRules,
)
from penstock.apply.handlers.settings import NO_HANDLERS, HandlerSettings
from penstock.apply.lane import ServerConfig
from penstock.change import Op, TableName
from tests.apply import handled
from tests.apply.handled import SEEN, function, on, settings, statements
from tests.apply.test_scenarios_of_rules import follow, rule_at
from tests.hand_made import Lcr, T, Target, Txn, delete, insert, truncate, update


@pytest.fixture(params=[(True, 4), (False, 1)], ids=["set-path-4-lanes", "row-path-1-lane"])
def way(request: pytest.FixtureRequest) -> tuple[bool, int]:
    return request.param


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    handled.forget()
    made = Target(database)
    yield made
    made.close()


def apply(
    target: Target,
    way: tuple[bool, int],
    *transactions: Txn,
    conflicts: ConflictRules = ConflictRules(),
    handlers: HandlerSettings = NO_HANDLERS,
    **options: Any,
) -> None:
    use_set, lanes = way
    config = ServerConfig(use_set_path=use_set, conflicts=conflicts, handlers=handlers, **options)
    target.apply(*transactions, lanes=lanes, config=config, shuffle=random.Random(1))


def said(table: str, *resolvers: Resolver, on_error: tuple[ErrorRule, ...] = ()) -> ConflictRules:
    return ConflictRules(tables={TableName("public", table): TableRules({}, resolvers, on_error)})


def on_update(method: Method, *columns: str, by: str | None = None) -> Resolver:
    return Resolver(Op.UPDATE, ConflictKind.EXISTS, method, columns or None, by)


def acct(key: int, old: float, new: float) -> Lcr:
    return update("acct", {"id": key, "code": "XY"[key - 1], "bal": f"{old:.2f}"}, {"bal": f"{new:.2f}"})


def accounts(target: Target) -> list[tuple[Any, ...]]:
    return target.rows("SELECT id, code, bal::int FROM acct ORDER BY id")


def resolutions(target: Target) -> int:
    return int(target.one("SELECT count(*) FROM penstock.conflict"))


@pytest.mark.rule("A-94")
@pytest.mark.parametrize(
    ("column", "there", "incoming", "wins"),
    [
        ("ts", "2024-05-01 10:00:00", "2024-05-01T10:00:00.000001", True),
        ("ts", "10000-01-01", "2024-05-01T10:00:00", False),
        ("ts", "infinity", "2024-05-01T10:00:00", False),
        ("ts", "2024-05-01 10:00:00", "2024-05-01T10:00:00", None),
        # Text stays text, whatever it looks like, and an empty one is a value.
        ("job", "9", "10", False),
        ("job", "", "10", True),
        # A number is what it is worth, not how it is written.
        ("sal", "5000", "5000.000", None),
    ],
)
def test_maximum_compares_as_the_type_of_the_column_does(
    target: Target, way: tuple[bool, int], column: str, there: str, incoming: str, wins: bool | None
) -> None:
    old = {"ts": "2024-01-01T00:00:00", "job": "A", "sal": "4400.00"}[column]
    target.connection.execute(f"UPDATE emp SET {column} = %s, name = 'here' WHERE id = 1", [there])

    apply(
        target,
        way,
        T(100, update("emp", {"id": 1, "name": "ann", column: old}, {"name": "in", column: incoming})),
        conflicts=said("emp", on_update(Method.MAXIMUM, "name", column, by=column)),
    )

    assert target.failed() == ([(100, ROW_DIFFERS, 1, 1)] if wins is None else [])
    assert target.one("SELECT name FROM emp WHERE id = 1") == ("in" if wins else "here")


@pytest.mark.rule("A-94", "A-99")
def test_a_difference_is_added_while_the_row_moves_to_another_key(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE acct SET bal = 500 WHERE id = 1")

    apply(
        target,
        way,
        T(100, update("acct", {"id": 1, "code": "X", "bal": "100.00"}, {"id": 9, "bal": "110.00"})),
        T(110, update("acct", {"id": 9, "code": "X", "bal": "110.00"}, {"bal": "107.00"})),
        # The key that it moves to is taken: nothing of it is done.
        T(120, update("acct", {"id": 9, "code": "X", "bal": "107.00"}, {"id": 2, "bal": "108.00"})),
        conflicts=said("acct", on_update(Method.DELTA, "bal")),
    )

    assert target.failed() == [(120, UNIQUE_VIOLATED, 1, 1)]
    assert accounts(target) == [(2, "Y", 200), (9, "X", 507)]
    assert resolutions(target) == 2


@pytest.mark.rule("A-91", "A-95")
def test_a_list_that_loses_does_not_keep_the_key_from_moving(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE acct SET bal = 500 WHERE id = 1")

    apply(
        target,
        way,
        T(100, update("acct", {"id": 1, "code": "X", "bal": "100.00"}, {"id": 9, "bal": "110.00"})),
        conflicts=said("acct", on_update(Method.MAXIMUM, "bal", by="bal")),
    )

    assert target.failed() == []
    assert accounts(target) == [(2, "Y", 200), (9, "X", 500)]


@pytest.mark.rule("A-91", "A-94")
def test_one_list_that_is_undecided_leaves_the_others_undone(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET sal = 5000, job = 'L' WHERE id = 1")
    change = update("emp", {"id": 1, "sal": "4400.00", "job": "A"}, {"job": "I", "sal": "5000.00"})

    apply(
        target,
        way,
        T(100, change),
        conflicts=said("emp", on_update(Method.OVERWRITE, "job"), on_update(Method.MAXIMUM, "sal", by="sal")),
    )

    assert target.failed() == [(100, ROW_DIFFERS, 1, 1)]
    assert target.rows("SELECT job, sal FROM emp WHERE id = 1") == [("L", 5000)]
    assert resolutions(target) == 0


@pytest.mark.rule("A-80", "A-97")
def test_what_a_resolver_writes_may_break_a_key_in_its_turn(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE acct SET bal = 5 WHERE id = 1")

    apply(
        target,
        way,
        T(100, update("acct", {"id": 1, "code": "X", "bal": "100.00"}, {"code": "Y", "bal": "3.00"})),
        conflicts=said("acct", on_update(Method.OVERWRITE)),
    )

    assert target.failed() == [(100, UNIQUE_VIOLATED, 1, 1)]
    assert accounts(target) == [(1, "X", 5), (2, "Y", 200)]
    assert resolutions(target) == 0


@pytest.mark.rule("A-42", "A-88", "A-136")
def test_a_value_that_a_failed_transaction_would_have_freed_is_still_taken(
    target: Target, way: tuple[bool, int]
) -> None:
    apply(
        target,
        way,
        T(100, update("acct", {"id": 1, "code": "X"}, {"code": "Z"}), acct(2, 999, 1)),
        T(110, insert("acct", id=3, code="X", bal="0.00")),
        T(120, acct(2, 200, 201)),
    )

    assert target.failed() == [(100, ROW_DIFFERS, 2, 2), (110, UNIQUE_VIOLATED, 1, 1)]
    assert accounts(target) == [(1, "X", 100), (2, "Y", 201)]
    target.connection.execute("UPDATE acct SET bal = 999 WHERE id = 2")
    assert len(target.retry()) == 2
    assert accounts(target) == [(1, "Z", 100), (2, "Y", 1), (3, "X", 0)]


@pytest.mark.rule("A-45", "A-46", "A-72")
def test_a_key_that_only_the_target_works_out_keeps_the_order(target: Target, way: tuple[bool, int]) -> None:
    """No change tells the generated column: an update of what it is worked out of may free its value."""
    target.connection.execute(
        "CREATE TABLE g (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED UNIQUE);"
        "INSERT INTO g VALUES (1, 1), (2, 2)"
    )
    work = [
        T(120, insert("g", id=9, v=1)),
        T(130, update("g", {"id": 1, "v": 1}, {"v": 5})),
        T(140, insert("g", id=10, v=1)),
    ]

    assert target.lanes(*work) == [{120, 130, 140}]
    apply(target, way, *work)

    assert target.failed() == [(120, UNIQUE_VIOLATED, 1, 1)]
    assert target.rows("SELECT id, twice FROM g ORDER BY id") == [(1, 10), (2, 4), (10, 2)]


@pytest.mark.rule("A-68", "A-69")
def test_a_substitute_key_may_be_null_and_may_become_another(target: Target, way: tuple[bool, int]) -> None:
    target.keys = {TableName("public", "nk"): ("c",)}
    target.connection.execute("INSERT INTO nk VALUES (2, 'q', NULL), (3, 'r', 7)")

    apply(
        target,
        way,
        T(100, update("nk", {"a": 2, "b": "q", "c": None}, {"b": "Q"})),
        T(110, update("nk", {"a": 3, "b": "r", "c": 7}, {"c": None})),
        # Two rows have no key value by now; the old values say which one is meant.
        T(120, update("nk", {"a": 3, "b": "r", "c": None}, {"b": "R", "c": 8})),
        T(130, update("nk", {"a": 2, "b": "Q"}, {"b": "Z"})),
    )

    assert target.failed() == [(130, VALUE_MISSING, 1, 1)]
    assert target.rows("SELECT * FROM nk ORDER BY a") == [(1, "p", 1), (2, "Q", None), (3, "R", 8)]


@pytest.mark.rule("A-26", "A-88")
def test_a_table_is_emptied_in_the_midst_of_a_transaction(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        T(100, insert("nk", a=2, b="x", c=2), truncate("nk"), insert("nk", a=3, b="y", c=3)),
        T(110, update("nk", {"a": 3, "b": "y", "c": 3}, {"c": 4}), truncate("hist")),
        # Fails behind its TRUNCATE, which is undone with it.
        T(120, insert("nk", a=5, b="z", c=5), truncate("nk"), acct(1, 999, 1)),
        T(130, insert("nk", a=6, b="z", c=6)),
    )

    assert target.failed() == [(120, ROW_DIFFERS, 3, 3)]
    assert target.rows("SELECT a, c FROM nk ORDER BY a") == [(3, 4), (6, 6)]


@pytest.mark.rule("A-113", "A-114")
def test_a_delete_with_statements_and_an_error_handler(target: Target, way: tuple[bool, int]) -> None:
    """A resolver of updates has no say, what the statements did is undone, and the handler decides by the error."""

    def forgive_missing(lcr: Any, there: Any, errors: Any) -> None:
        SEEN.append((lcr.command_type, errors.numbers[0]))
        if errors.numbers[0] != ROW_MISSING:
            raise errors.errors[0]

    note = statements("note", "INSERT INTO public.hist VALUES (:old.id, 'x', 'y')", ":lcr.execute TRUE")
    apply(
        target,
        way,
        T(100, delete("acct", id=98, code="P", bal="0.00")),
        T(110, delete("acct", id=1, code="X", bal="50.00")),
        T(120, delete("acct", id=2, code="Y", bal="200.00")),
        handlers=settings("acct", delete=on(note, error=forgive_missing)),
        conflicts=said("acct", on_update(Method.OVERWRITE)),
    )

    assert sorted(SEEN) == [("DELETE", ROW_DIFFERS), ("DELETE", ROW_MISSING)]
    assert target.failed() == [(110, ROW_DIFFERS, 1, 1)]
    assert target.rows("SELECT emp_id FROM hist") == [(2,)]
    assert accounts(target) == [(1, "X", 100)]


@pytest.mark.rule("A-88", "A-118")
def test_a_precommit_handler_that_refuses_undoes_what_was_resolved(target: Target, way: tuple[bool, int]) -> None:
    def refuse(transaction: Any, there: Any) -> None:
        if transaction.commit_scn == 100:
            raise ApplyError(20500, "not today")

    handled.DO["precommit"] = refuse
    target.connection.execute("UPDATE acct SET bal = 5 WHERE id = 1")

    apply(
        target,
        way,
        T(100, acct(1, 100, 110)),
        T(110, acct(2, 200, 210)),
        handlers=HandlerSettings(precommit=function("precommit"), source="DBS1"),
        conflicts=said("acct", on_update(Method.OVERWRITE)),
    )

    assert target.failed() == [(100, 20500, 0, 1)]
    assert accounts(target) == [(1, "X", 5), (2, "Y", 210)]
    assert resolutions(target) == target.one("SELECT sum(resolved) FROM penstock.lane") == 0


@pytest.mark.rule("A-113", "A-137")
def test_a_retry_has_an_error_handler_add_what_the_target_asks_for(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("ALTER TABLE acct ADD region int; UPDATE acct SET region = 0")
    target.connection.execute("ALTER TABLE acct ALTER region SET NOT NULL")

    apply(target, way, T(100, insert("acct", id=3, code="Q", bal="1.00")), T(110, acct(1, 100, 101)))

    assert target.failed() == [(100, NULL_REFUSED, 1, 1)]
    assert accounts(target)[0] == (1, "X", 101)

    def place(lcr: Any, _: Any, errors: Any) -> None:
        lcr.add_column("new", "region", 5)
        lcr.execute(False)

    assert len(target.retry(handlers=settings("acct", insert=on(error=place)))) == 1
    assert target.one("SELECT region FROM acct WHERE id = 3") == 5


@pytest.mark.rule("A-102")
def test_a_parent_that_is_left_out_is_missed_by_its_child(target: Target, way: tuple[bool, int]) -> None:
    child = {"dept_id": 30, "name": "cy", "job": "A", "sal": "1.00", "comm": None, "ts": None}

    apply(
        target,
        way,
        T(100, insert("dept", id=30, name="n" * 25), insert("emp", id=3, **child)),
        T(110, acct(1, 100, 101)),
        conflicts=said("dept", on_error=(ErrorRule(None, ErrorAction.IGNORE),)),
    )

    assert target.failed() == [(100, FOREIGN_KEY_VIOLATED, 2, 2)]
    assert resolutions(target) == 0
    assert accounts(target)[0] == (1, "X", 101)


@pytest.mark.rule("A-22", "A-23", "A-99")
@pytest.mark.parametrize("overwrites", [True, False])
def test_a_row_that_moves_into_a_subset_may_be_there_already(
    target: Target, way: tuple[bool, int], overwrites: bool
) -> None:
    """NULL is outside of a subset, and what the move became is an insert for resolvers and for the queue."""
    follow(target, rule_at(target, "emp", rows="dept_id = 10"))
    bob = {"name": "bob", "job": "B", "sal": 4000, "comm": 100, "ts": "2024-01-01T00:00:00"}
    ann = {"name": "ann", "job": "A", "sal": 4400, "comm": None, "ts": "2024-01-01T00:00:00"}

    apply(
        target,
        way,
        T(100, update("emp", {"id": 2, "dept_id": None, **bob}, {"dept_id": 10})),
        T(110, update("emp", {"id": 1, "dept_id": 10, **ann}, {"dept_id": None})),
        T(120, update("emp", {"id": 7, "dept_id": None, **bob}, {"job": "Z"})),
        conflicts=said("emp", *[Resolver(Op.INSERT, ConflictKind.EXISTS, Method.OVERWRITE)] * overwrites),
    )

    assert target.rows("SELECT id, dept_id FROM emp") == [(2, 10 if overwrites else 20)]
    assert [(entry.commit_scn, entry.op) for entry in target.errors()] == ([] if overwrites else [(100, "insert")])


@pytest.mark.rule("A-177")
def test_a_trigger_that_keeps_a_row_as_it_is_is_no_conflict_to_resolve(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
        "CREATE TRIGGER keeps BEFORE UPDATE ON acct FOR EACH ROW WHEN (NEW.bal > 1000) EXECUTE FUNCTION keep();"
        "ALTER TABLE acct ENABLE ALWAYS TRIGGER keeps"
    )

    apply(
        target,
        way,
        T(100, acct(1, 100, 5000)),
        T(110, acct(2, 200, 210)),
        conflicts=said("acct", on_update(Method.OVERWRITE)),
    )

    assert target.failed() == [(100, OTHER, 1, 1)]
    assert "a trigger or a rule of the target keeps it" in target.errors()[0].error_message
    assert accounts(target) == [(1, "X", 100), (2, "Y", 210)]
    assert resolutions(target) == 0


@pytest.mark.rule("A-194")
def test_an_ignored_transaction_does_not_wait_and_those_behind_it_do(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        T(100, acct(1, 999, 110)),
        T(110, acct(1, 110, 120)),
        T(120, acct(1, 120, 130)),
        T(130, acct(2, 200, 210)),
        hold_dependents=True,
        ignored=frozenset({str(7 * 110)}),
    )

    assert [(entry.commit_scn, entry.is_held) for entry in target.errors()] == [(100, False), (120, True)]
    target.connection.execute("UPDATE acct SET bal = 999 WHERE id = 1")
    first, second = target.retried(target.errors()[0].id, go_on=True)
    assert (first.is_failed, second.is_failed, second.has_gone_on) == (False, True, True)
    assert target.failed() == [(120, ROW_DIFFERS, 1, 1)]
    assert accounts(target) == [(1, "X", 110), (2, "Y", 210)]
