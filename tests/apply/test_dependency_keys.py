"""Dependency values: transactions that must keep their order meet in one, others do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apply.coordinator import Dependencies
from penstock.apply.dependency_keys import find_dependencies
from penstock.apply.target import TargetTable
from penstock.apply.virtual_dependencies import NONE, ObjectDependency, ValueDependency, VirtualDependencies
from penstock.change import TableName
from penstock.schema import Column, Exclusion, ForeignKey, TableSchema, Unique
from tests.hand_made import Lcr, T, Txn, as_batch, delete, insert, truncate, update


def name(table: str) -> TableName:
    return TableName("public", table)


def integer(column: str, *, null: bool = True) -> Column:
    return Column(column, "integer", "integer", is_nullable=null, is_integer=True)


def numeric(column: str) -> Column:
    return Column(column, "numeric", "numeric", is_exact=False, is_decimal=True)


def loose(column: str) -> Column:
    """Text whose equality is not that of its letters."""
    return Column(column, "citext", "citext", is_exact=False)


def unique(*columns: str, index: str = "u", **options: bool) -> Unique:
    return Unique(index, columns, columns, **options)


def table(table_name: str, *columns: Column, key: Sequence[str] = ("id",), **parts: Any) -> TableSchema:
    primary = unique(*key, index="pk") if key else None
    return TableSchema(name(table_name), (integer("id", null=False), *columns), primary, **parts)


def references(child: str, columns: Sequence[str], parent: str, parent_columns: Sequence[str]) -> tuple[ForeignKey]:
    return (ForeignKey("fk", name(child), tuple(columns), name(parent), tuple(parent_columns)),)


def find(
    tables: Sequence[TableSchema],
    transactions: Sequence[Txn],
    *,
    batches: int = 1,
    virtual: VirtualDependencies = NONE,
    keys: Mapping[TableName, tuple[str, ...]] | None = None,
) -> Dependencies:
    whole = as_batch(transactions)
    step = max(1, -(-whole.num_rows // batches))
    parts = [whole.slice(at, step) for at in range(0, whole.num_rows, step)]
    txn_of = np.repeat(np.arange(len(transactions)), [len(txn.changes) for txn in transactions])
    targets = {t.name: TargetTable(t, (keys or {}).get(t.name, ())) for t in tables}
    return find_dependencies(parts, txn_of, targets, virtual)


def meetings(found: Dependencies) -> set[tuple[int, int]]:
    """Pairs of transactions that share a value which one of them writes."""
    items = zip(found.txn.tolist(), found.value.tolist(), found.is_written.tolist(), strict=True)
    return {
        (min(t1, t2), max(t1, t2))
        for (t1, v1, w1), (t2, v2, w2) in combinations(items, 2)
        if v1 == v2 and (w1 or w2) and t1 != t2
    }


def numbered(*changes: Lcr) -> list[Txn]:
    return [T(n, change) for n, change in enumerate(changes)]


T_ = table("t", integer("v"))
CODE = table("code", integer("a"), integer("b"), uniques=(unique("a", "b"),))
EQUAL_NULLS = table("code", integer("a"), integer("b"), uniques=(unique("a", "b", nulls_are_equal=True),))
PARENT = table("parent", integer("v"))
CHILD = table("child", integer("pid"), foreign_keys=references("child", ["pid"], "parent", ["id"]))
NUMBERS = table("num", numeric("n"), key=["n"])
AMOUNTS = table("amount", integer("n"), foreign_keys=references("amount", ["n"], "num", ["n"]))
ANY_CASE = table("ci", loose("c"), uniques=(unique("c"),))
ANY_CASE_CHILD = table("cic", integer("c"), foreign_keys=references("cic", ["c"], "ci", ["c"]))
EXPRESSION = table("expr", integer("v"), integer("w"), uniques=(Unique("x", (), ("v",)),))
EXCLUSION = table("excl", integer("v"), integer("w"), exclusions=(Exclusion("x", ("v",), ("&&",)),))
KEYLESS = TableSchema(name("nk"), (integer("a"), integer("b")))
TWO = table("two", integer("x"), integer("y"), key=["x", "y"])
TWO_CHILD = table("twoc", integer("p"), integer("q"), foreign_keys=references("twoc", ["q", "p"], "two", ["y", "x"]))


@pytest.mark.rule("A-41", "A-43", "A-45")
@pytest.mark.parametrize(
    ("tables", "changes", "expected"),
    [
        pytest.param([T_], [insert("t", id=1), insert("t", id=2)], set(), id="two rows"),
        pytest.param([T_], [insert("t", id=1), delete("t", id=1)], {(0, 1)}, id="one row"),
        pytest.param(
            [T_],
            [update("t", {"id": 1, "v": 1}, {"v": 2}), update("t", {"id": 1, "v": 2}, {"v": 3})],
            {(0, 1)},
            id="updates of one row",
        ),
        pytest.param(
            [T_],
            [update("t", {"id": 1}, {"id": 2}), insert("t", id=1), insert("t", id=2), insert("t", id=3)],
            {(0, 1), (0, 2)},
            id="a key change writes the old and the new key",
        ),
        pytest.param([T_, PARENT], [insert("t", id=1), insert("parent", id=1)], set(), id="equal keys of two tables"),
        pytest.param(
            [CODE],
            [delete("code", id=1, a=1, b=2), insert("code", id=2, a=1, b=2), insert("code", id=3, a=2, b=1)],
            {(0, 1)},
            id="a unique value is released and taken",
        ),
        pytest.param(
            [CODE],
            [update("code", {"id": 1, "a": 1, "b": 1}, {"b": 2}), insert("code", id=2, a=1, b=2)],
            {(0, 1)},
            id="a unique value whose other half did not change",
        ),
        pytest.param(
            [CODE],
            [update("code", {"id": 1, "a": 1, "b": None}, {"b": 2}), insert("code", id=2, a=1, b=2)],
            {(0, 1)},
            id="a unique value that was half null",
        ),
        pytest.param(
            [CODE],
            [insert("code", id=1, a=1, b=None), insert("code", id=2, a=1, b=None)],
            set(),
            id="nulls do not meet",
        ),
        pytest.param(
            [EQUAL_NULLS],
            [insert("code", id=1, a=1, b=None), insert("code", id=2, a=1, b=None)],
            {(0, 1)},
            id="nulls meet where the index says so",
        ),
        pytest.param(
            [PARENT, CHILD],
            [insert("parent", id=7), insert("child", id=1, pid=7), insert("child", id=2, pid=7)],
            {(0, 1), (0, 2)},
            id="children meet their parent and not each other",
        ),
        pytest.param(
            [PARENT, CHILD],
            [update("child", {"id": 1, "pid": 7}, {"pid": 8}), delete("parent", id=7), insert("parent", id=8)],
            {(0, 1), (0, 2)},
            id="a child leaves one parent for another",
        ),
        pytest.param(
            [PARENT, CHILD],
            [insert("child", id=1, pid=None), insert("parent", id=7)],
            set(),
            id="a child without parent",
        ),
        pytest.param(
            [CHILD], [insert("child", id=1, pid=7), insert("child", id=2, pid=7)], set(), id="a parent that is not ours"
        ),
        pytest.param(
            [TWO, TWO_CHILD],
            [insert("two", id=0, x=1, y=2), insert("twoc", id=1, p=1, q=2), insert("twoc", id=2, p=2, q=1)],
            {(0, 1)},
            id="a foreign key that names its columns in another order",
        ),
        pytest.param(
            [NUMBERS, AMOUNTS],
            [insert("num", id=0, n="1.00"), insert("amount", id=1, n="1"), delete("num", id=0, n="1.0")],
            {(0, 1), (0, 2), (1, 2)},
            id="equal numbers in other words",
        ),
        pytest.param(
            [ANY_CASE, ANY_CASE_CHILD],
            [
                insert("ci", id=1, c="A"),
                insert("ci", id=2, c="b"),
                insert("cic", id=3, c="a"),
                insert("cic", id=4, c="z"),
            ],
            {(0, 1), (0, 2), (1, 2), (0, 3), (1, 3)},
            id="values that cannot be told apart by their text meet all",
        ),
        pytest.param(
            [EXPRESSION],
            [
                insert("expr", id=1, v=1, w=1),
                update("expr", {"id": 2, "v": 1, "w": 1}, {"w": 2}),
                update("expr", {"id": 3, "v": 1, "w": 1}, {"v": 2}),
                delete("expr", id=4, v=9, w=9),
            ],
            {(0, 2), (0, 3), (2, 3)},
            id="an index on an expression: whoever touches what it mentions",
        ),
        pytest.param(
            [EXCLUSION],
            [
                insert("excl", id=1, v=1, w=1),
                update("excl", {"id": 2, "v": 1, "w": 1}, {"w": 2}),
                delete("excl", id=4, v=9, w=9),
            ],
            {(0, 2)},
            id="an exclusion constraint likewise",
        ),
        pytest.param(
            [KEYLESS],
            [
                insert("nk", a=1, b=None),
                delete("nk", a=1, b=None),
                update("nk", {"a": 1, "b": 2}, {"b": None}),
                insert("nk", a=2, b=2),
            ],
            {(0, 1), (0, 2), (1, 2)},
            id="without a key all columns are the key, and null is a value",
        ),
    ],
)
def test_who_meets_whom(tables: list[TableSchema], changes: list[Lcr], expected: set[tuple[int, int]]) -> None:
    found = find(tables, numbered(*changes))

    assert meetings(found) == expected
    assert found.barriers.tolist() == []


def snapshot(table_name: str, **values: Any) -> Lcr:
    return Lcr("snapshot", table_name, None, values)


def together(found: Dependencies, count: int) -> list[set[int]]:
    """Sets of transactions, of which there are `count`, that must be in one lane; those of one are left out."""
    lane_of = list(range(count))
    for low, high in sorted(meetings(found)):
        lane_of = [lane_of[low] if lane == lane_of[high] else lane for lane in lane_of]
    sets = [{n for n in range(count) if lane_of[n] == lane} for lane in sorted(set(lane_of))]
    return [members for members in sets if len(members) > 1]


MAIL = table("mail", integer("v"), integer("w"), uniques=(unique("v"),))
MAILBOX = table("box", integer("v"), foreign_keys=references("box", ["v"], "mail", ["v"]))


@pytest.mark.rule("A-224")
@pytest.mark.parametrize(
    ("tables", "changes", "expected"),
    [
        pytest.param(
            [MAIL],
            [insert("mail", id=1, v=1), delete("mail", id=2), delete("mail", id=3), insert("mail", id=4, v=2)],
            [{0, 1, 2, 3}],
            id="a deleted row may have had any unique value that others take, before and after",
        ),
        pytest.param([MAIL], [delete("mail", id=1), delete("mail", id=2)], [], id="deletes free values, and take none"),
        pytest.param(
            [MAIL],
            [update("mail", {"id": 1}, {"v": 1}), update("mail", {"id": 2}, {"v": 2}), insert("mail", id=3, v=3)],
            [{0, 1, 2}],
            id="an update gives up a value that nobody knows",
        ),
        pytest.param(
            [MAIL],
            [update("mail", {"id": 1}, {"w": 1}), update("mail", {"id": 2}, {"w": 2}), insert("mail", id=3, v=3)],
            [],
            id="an update that does not name the column leaves it",
        ),
        pytest.param(
            [MAIL],
            [
                update("mail", {"id": 1, "v": 1, "w": 1}, {"id": 1, "v": 1, "w": 2}),
                update("mail", {"id": 2, "v": None, "w": 1}, {"id": 2, "v": None, "w": 2}),
                insert("mail", id=3, v=1),
            ],
            [],
            id="an update that names the value it had leaves it",
        ),
        pytest.param(
            [MAIL],
            [update("mail", {"id": 1, "w": 1}, {"v": None}), insert("mail", id=2, v=1)],
            [{0, 1}],
            id="null where nothing was known is a change",
        ),
        pytest.param(
            [CODE],
            [update("code", {"id": 1, "a": None}, {"a": 1, "b": 1}), insert("code", id=2, a=2, b=2)],
            [],
            id="half null meets no other, whatever the other half",
        ),
        pytest.param(
            [CODE],
            [update("code", {"id": 1}, {"a": 1}), insert("code", id=2, a=2, b=2), delete("code", id=3, a=1, b=3)],
            [{0, 1, 2}],
            id="a value half of which nobody knows is taken",
        ),
        pytest.param(
            [PARENT, CHILD],
            [delete("child", id=1), delete("parent", id=7), delete("child", id=2), insert("child", id=3, pid=8)],
            [{0, 1, 2}],
            id="children that are gone had any parent that is gone",
        ),
        pytest.param(
            [PARENT, CHILD],
            [
                delete("child", id=1),
                update("child", {"id": 2}, {"id": 2, "pid": 7}),
                insert("parent", id=6),
                update("parent", {"id": 5}, {"id": 5, "v": 1}),
            ],
            [],
            id="a reference that is left meets no parent that stays",
        ),
        pytest.param(
            [PARENT, CHILD],
            [delete("child", id=1), update("parent", {"id": 5}, {"id": 6, "v": 1})],
            [{0, 1}],
            id="a parent whose key changes",
        ),
        pytest.param(
            [MAIL, MAILBOX],
            [insert("box", id=1, v=1), delete("box", id=2), delete("mail", id=3), delete("box", id=4, v=None)],
            [{0, 1, 2}],
            id="a parent of which its key alone is known, and what refers to it by another",
        ),
        pytest.param(
            [PARENT, CHILD],
            [insert("child", id=1), insert("parent", id=7), insert("child", id=2, pid=None)],
            [{0, 1}],
            id="a reference that the target fills in",
        ),
        pytest.param(
            [MAIL],
            [snapshot("mail", id=1, v=1), insert("mail", id=2, v=2), update("mail", {"id": 3}, {"w": 1})],
            [{0, 1}],
            id="a row as it is now had any value",
        ),
        pytest.param(
            [MAIL],
            [snapshot("mail", id=1, v=None), snapshot("mail", id=1, v=None), snapshot("mail", id=2, v=None)],
            [{0, 1}],
            id="rows as they are now meet by their keys",
        ),
        pytest.param(
            [PARENT, CHILD],
            [snapshot("child", id=1, pid=7), insert("parent", id=7), delete("parent", id=8), insert("parent", id=9)],
            [{0, 1, 2}],
            id="a child as it is now, and a parent that goes",
        ),
        pytest.param(
            [KEYLESS],
            [snapshot("nk", a=1, b=1), snapshot("nk", a=2, b=1), delete("nk", a=1, b=1)],
            [{0, 2}],
            id="without a key a row as it is now is one more",
        ),
        pytest.param([KEYLESS], [insert("nk", a=1), insert("nk", a=1)], [], id="without a key, and a column not told"),
        pytest.param(
            [EXPRESSION],
            [update("expr", {"id": 1, "v": 1}, {"v": 1, "w": 1}), insert("expr", id=2, v=1), delete("expr", id=3)],
            [{1, 2}],
            id="an index on an expression, and an update that names what it had",
        ),
    ],
)
def test_what_nobody_knows_meets_all_that_it_may_be(
    tables: list[TableSchema], changes: list[Lcr], expected: list[set[int]]
) -> None:
    found = find(tables, numbered(*changes), batches=2)

    assert together(found, len(changes)) == expected
    assert found.barriers.tolist() == []


def day(column: str, type_: str) -> Column:
    return Column(column, type_, type_)


STAFF = table("staff", integer("v"))
DIARY = TableSchema(name("diary"), (integer("who"), integer("day")))
PAY = TableSchema(name("pay"), (numeric("who"), integer("day")))
SHIFT = TableSchema(name("shift"), (day("at", "date"),))
LEAVE = TableSchema(name("leave"), (day("at", "timestamp without time zone"),))


def values(**members: str) -> VirtualDependencies:
    """A value dependency of tables, each with its columns."""
    named = {name(member): tuple(columns.split()) for member, columns in members.items()}
    return VirtualDependencies(values=(ValueDependency("v", named),))


@pytest.mark.rule("A-49", "A-51")
@pytest.mark.parametrize(
    ("virtual", "changes", "expected"),
    [
        pytest.param(
            values(staff="id", diary="who"),
            [
                insert("staff", id=1, v=1),
                insert("diary", who=1, day=1),
                insert("diary", who=1, day=2),
                insert("diary", who=2, day=1),
            ],
            {(0, 1), (0, 2), (1, 2)},
            id="every change with a value meets every other",
        ),
        pytest.param(
            values(staff="v"),
            [
                update("staff", {"id": 1, "v": 5}, {"v": 6}),
                insert("staff", id=2, v=5),
                delete("staff", id=3, v=6),
                update("staff", {"id": 4, "v": 7}, {"id": 5}),
                insert("staff", id=6, v=7),
            ],
            {(0, 1), (0, 2), (3, 4)},
            id="inside one table, by the old value and the new one; an update that leaves it uses it",
        ),
        pytest.param(
            values(staff="v", diary="who"),
            [insert("staff", id=1, v=None), insert("diary", who=None, day=1), delete("diary", who=None, day=2)],
            set(),
            id="null meets nothing",
        ),
        pytest.param(
            values(staff="id v", diary="day who"),
            [insert("staff", id=1, v=2), insert("diary", who=2, day=1), insert("diary", who=1, day=2)],
            {(0, 1)},
            id="columns line up as they are given",
        ),
        pytest.param(
            values(staff="id", pay="who"),
            [insert("staff", id=1, v=1), insert("pay", who="1.00", day=1), insert("pay", who="1.01", day=1)],
            {(0, 1)},
            id="numbers of two types",
        ),
        pytest.param(
            values(shift="at", leave="at"),
            [insert("shift", at="2024-01-01"), insert("leave", at="2024-01-01T00:00:00"), insert("staff", id=1, v=1)],
            {(0, 1)},
            id="types that write their values in two ways: all that have one",
        ),
        pytest.param(
            values(staff="v", diary="who"),
            [
                delete("staff", id=1),
                insert("diary", who=1, day=1),
                insert("diary", who=2, day=2),
                insert("diary", who=None, day=3),
                update("staff", {"id": 2, "v": 9}, {"id": 2, "v": 9, "w": 1}),
            ],
            {(0, 1), (0, 2), (0, 4), (1, 2), (1, 4), (2, 4)},
            id="a value that nobody knows may be any",
        ),
        pytest.param(
            values(staff="v"),
            [delete("staff", id=1), delete("staff", id=2), insert("staff", id=3, v=None)],
            {(0, 1)},
            id="two values that nobody knows may be the same",
        ),
        pytest.param(
            values(staff="id", gone="who"),
            [insert("staff", id=1, v=1), insert("gone", who=2), insert("staff", id=3, v=1), insert("diary", who=1)],
            {(0, 1), (0, 2), (1, 2)},
            id="of a table that the target lacks nobody knows how values are written",
        ),
        pytest.param(
            values(staff="id", diary="month"),
            [insert("staff", id=1, v=1), insert("diary", who=1, day=1), insert("pay", who=1, day=1)],
            {(0, 1)},
            id="a column that is gone",
        ),
    ],
)
def test_value_dependencies(virtual: VirtualDependencies, changes: list[Lcr], expected: set[tuple[int, int]]) -> None:
    found = find([STAFF, DIARY, PAY, SHIFT, LEAVE], numbered(*changes), virtual=virtual, batches=2)

    assert meetings(found) == expected
    assert found.barriers.tolist() == []


@pytest.mark.rule("A-52")
@settings(deadline=None)
@given(st.lists(st.sets(st.sampled_from(["staff", "diary", "pay"])), max_size=10), st.integers(1, 3))
def test_object_dependencies_hold_each_child_behind_all_parents_before_it(
    touched: list[set[str]], batches: int
) -> None:
    virtual = VirtualDependencies(objects=(ObjectDependency(name("diary"), name("staff")),))
    rows = {"staff": "id", "diary": "who", "pay": "who"}
    # Each row is another one, so that nothing else links them.
    told = [T(n, *(insert(one, **{rows[one]: n, "day": n}) for one in sorted(txn))) for n, txn in enumerate(touched)]

    found = find([STAFF, DIARY, PAY], told, virtual=virtual, batches=batches)

    lane_of = list(range(len(touched)))
    for child, parent in ((c, p) for c in lane_of[:] for p in range(c)):
        if "diary" in touched[child] and "staff" in touched[parent]:
            lane_of = [lane_of[parent] if lane == lane_of[child] else lane for lane in lane_of]
    sets = [{n for n in range(len(touched)) if lane_of[n] == lane} for lane in set(lane_of)]
    assert sorted(map(sorted, together(found, len(touched)))) == sorted(sorted(s) for s in sets if len(s) > 1)


@pytest.mark.rule("A-54")
@pytest.mark.parametrize(
    ("tables", "transactions", "barriers"),
    [
        pytest.param([T_], [T(0, insert("t", id=1)), T(1, truncate("t"))], [1], id="truncate"),
        pytest.param([T_], [T(0, insert("t", id=1), insert("ghost", id=1), insert("ghost", id=2))], [0], id="no table"),
        pytest.param(
            [TableSchema(name("lob"), (replace(integer("x"), is_key_usable=False),))],
            [T(0, insert("lob", x=1))],
            [0],
            id="nothing to tell rows apart",
        ),
        pytest.param(
            [T_], [T(0, Lcr("snapshot", "t", None, {"id": 1})), T(1, Lcr("ddl", "t", None, None))], [1], id="others"
        ),
        pytest.param([T_], [T(0, insert("t", id=1))], [], id="a row"),
    ],
)
def test_what_cannot_be_placed_is_a_barrier(
    tables: list[TableSchema], transactions: list[Txn], barriers: list[int]
) -> None:
    assert find(tables, transactions).barriers.tolist() == barriers


def test_no_changes_depend_on_nothing() -> None:
    found = find_dependencies([], np.zeros(0, np.int64), {})

    assert [len(part) for part in (found.txn, found.value, found.is_written, found.barriers)] == [0, 0, 0, 0]


def test_a_table_goes_by_its_name_in_the_stream() -> None:
    transactions = numbered(insert("alias", id=1), insert("alias", id=1))

    found = find_dependencies([as_batch(transactions)], np.arange(2), {name("alias"): TargetTable(T_)})

    assert meetings(found) == {(0, 1)}


few = st.integers(1, 3)
maybe = st.none() | few
parents = st.builds(lambda v: {"v": v}, maybe)
PARENT_U = table("parent", integer("v"), uniques=(unique("v"),))


def changes(table_name: str, column: str) -> st.SearchStrategy[Lcr]:
    whole = st.fixed_dictionaries({"id": few, column: maybe})
    return st.one_of(
        whole.map(lambda row: insert(table_name, **row)),
        whole.map(lambda row: delete(table_name, **row)),
        st.tuples(whole, st.fixed_dictionaries({}, optional={"id": few, column: maybe})).map(
            lambda pair: update(table_name, pair[0], {n: v for n, v in pair[1].items() if v != pair[0][n]})
        ),
    )


histories = st.lists(
    st.lists(changes("parent", "v") | changes("child", "pid"), min_size=1, max_size=3), min_size=1, max_size=6
)


def items(change: Lcr) -> Iterator[tuple[Any, bool]]:
    """The dependency items of one change, worked out one by one, as docs/rules.md says it in A-41 and A-43."""
    old, new = change.before, change.after
    whole: Mapping[str, Any] | None = None if new is None else {**(old or {}), **new}
    spaces = {
        "parent": [("id", "parent.id", True, True), ("v", "parent.v", True, False)],
        "child": [("id", "child.id", True, True), ("pid", "parent.id", False, False)],
    }[change.table]
    for column, space, is_written, is_row_key in spaces:
        is_changed = change.op != "update" or column in (new or {})
        sides = ([old] if is_changed or is_row_key else []) + ([whole] if is_changed else [])
        for side in sides:
            if side is not None and side[column] is not None:
                yield (space, side[column]), is_written


@pytest.mark.rule("A-41", "A-43")
@settings(deadline=None, max_examples=50)
@given(histories, st.integers(1, 4))
def test_transactions_meet_exactly_where_the_rules_say(history: list[list[Lcr]], batches: int) -> None:
    transactions = [T(n, *txn) for n, txn in enumerate(history)]
    touched = [(n, *item) for n, txn in enumerate(history) for change in txn for item in items(change)]

    found = find([PARENT_U, CHILD], transactions, batches=batches)

    assert meetings(found) == {
        (t1, t2) for (t1, v1, w1), (t2, v2, w2) in combinations(touched, 2) if t1 != t2 and v1 == v2 and (w1 or w2)
    }


def test_an_unchanged_column_with_a_quote_in_its_name_keeps_its_value() -> None:
    """code("a""b", c) unique: T0 releases (1, 2), T1 takes it by changing only c."""
    odd = 'a"b'
    t = TableSchema(
        name("code"),
        (integer("id", null=False), integer(odd), integer("c")),
        Unique("pk", ("id",), ("id",)),
        (Unique("u", (odd, "c"), (odd, "c")),),
    )
    found = find(
        [t], numbered(delete("code", **{"id": 1, odd: 1, "c": 2}), update("code", {"id": 2, odd: 1, "c": 1}, {"c": 2}))
    )
    assert meetings(found) == {(0, 1)}
