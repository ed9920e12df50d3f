"""The scenarios of docs/rules.md, each on every path: set and row, one lane and four."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from penstock.apply.apply_errors import (
    CHILD_EXISTS,
    COLUMN_MISSING,
    FOREIGN_KEY_VIOLATED,
    MORE_THAN_ONE_ROW,
    NOT_INSTANTIATED,
    ROW_DIFFERS,
    ROW_MISSING,
    TABLE_MISSING,
    UNIQUE_VIOLATED,
    VALUE_MISSING,
)
from penstock.apply.lane import ServerConfig
from penstock.apply.virtual_dependencies import NONE, ObjectDependency, ValueDependency, VirtualDependencies
from penstock.change import TableName
from penstock.errors import OperatorError
from tests.hand_made import FIXTURE, Lcr, T, Target, Txn, delete, insert, truncate, update

WAYS = [(use_set, lanes) for use_set in (True, False) for lanes in (1, 4)]


@pytest.fixture(params=WAYS, ids=[f"{'set' if s else 'row'}-path-{n}-lanes" for s, n in WAYS])
def way(request: pytest.FixtureRequest) -> tuple[bool, int]:
    return request.param


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database)
    yield made
    made.close()


def apply(target: Target, way: tuple[bool, int], *transactions: Txn, **options: bool) -> None:
    use_set, lanes = way
    config = ServerConfig(use_set_path=use_set, **options)
    target.apply(*transactions, lanes=lanes, config=config, shuffle=random.Random(1))


def snapshot(table: str, **values: object) -> Lcr:
    return Lcr("snapshot", table, None, values)


def acct(key: int, old: float, new: float, code: str = "XY") -> Lcr:
    return update("acct", {"id": key, "code": code[key - 1], "bal": old}, {"bal": new})


def test_s1_three_independent_changes(target: Target, way: tuple[bool, int]) -> None:
    emp = {"id": 3, "dept_id": 30, "name": "cy", "job": "A", "sal": 1, "comm": None, "ts": "2024-01-02T00:00:00"}

    apply(
        target, way, T(100, insert("dept", id=30, name="NEW")), T(110, insert("emp", **emp)), T(120, acct(1, 100, 150))
    )

    assert target.one("SELECT name FROM dept WHERE id = 30") == "NEW"
    assert target.one("SELECT count(*) FROM emp WHERE id = 3") == 1
    assert target.one("SELECT bal FROM acct WHERE id = 1") == 150
    assert target.watermarks() == (120, 120)
    assert target.errors() == []


@pytest.mark.rule("A-40", "A-41", "A-42", "A-43", "A-44", "A-45", "A-54")
@pytest.mark.parametrize(
    ("transactions", "together"),
    [
        pytest.param(
            [T(1, acct(1, 100, 110)), T(2, acct(2, 200, 210)), T(3, update("dept", {"id": 10}, {"name": "R"}))],
            [],
            id="s2 independent rows",
        ),
        pytest.param(
            [T(1, acct(1, 100, 110)), T(2, acct(1, 110, 130)), T(3, acct(2, 200, 210))], [{1, 2}], id="s4 one row"
        ),
        pytest.param(
            [
                T(1, insert("dept", id=30, name="N")),
                T(2, insert("emp", id=3, dept_id=30)),
                T(3, acct(2, 200, 210)),
            ],
            [{1, 2}],
            id="s6 parent then child",
        ),
        pytest.param(
            [
                T(1, delete("emp", id=2, dept_id=20, name="bob")),
                T(2, delete("dept", id=20, name="OPS")),
                T(3, acct(2, 200, 1)),
            ],
            [{1, 2}],
            id="s8 child then parent",
        ),
        pytest.param(
            [
                T(1, update("acct", {"id": 1, "code": "X"}, {"code": "Z"})),
                T(2, insert("acct", id=3, code="X", bal=0)),
                T(3, update("acct", {"id": 2, "code": "Y"}, {"code": None})),
            ],
            [{1, 2}],
            id="s9 a unique value is released and taken",
        ),
        pytest.param(
            [T(1, insert("acct", id=3, code=None, bal=0)), T(2, insert("acct", id=4, code=None, bal=0))],
            [],
            id="s10 nulls do not link",
        ),
        pytest.param(
            [T(1, insert("emp", id=3, dept_id=10)), T(2, insert("emp", id=4, dept_id=10))],
            [],
            id="s7 two children of one parent",
        ),
        pytest.param(
            [
                T(1, update("acct", {"id": 1, "code": "X", "bal": 100}, {"id": 9})),
                T(2, update("acct", {"id": 9, "code": "X", "bal": 100}, {"bal": 120})),
                T(3, insert("acct", id=1, code="N", bal=5)),
            ],
            [{1, 2, 3}],
            id="s12 a key moves on",
        ),
        pytest.param(
            [T(1, update("acct", {"id": 1, "code": "X"}, {"code": "Z"})), T(2, insert("acct", id=3, code="x", bal=0))],
            [],
            id="s89 texts that differ in case are two values",
        ),
        pytest.param(
            [T(1, insert("num", n="1.0")), T(2, delete("num", n="1"))], [{1, 2}], id="equal numbers, other text"
        ),
        pytest.param(
            [T(1, insert("expr", id=1, v="a")), T(2, insert("expr", id=2, v="b")), T(3, acct(1, 100, 1))],
            [{1, 2}],
            id="an index on an expression",
        ),
        pytest.param(
            [T(1, acct(1, 100, 110)), T(2, insert("ghost", gid=7)), T(3, acct(2, 200, 210))],
            [{1, 2, 3}],
            id="s16 an unknown table is a barrier",
        ),
    ],
)
def test_dependencies(database: str, transactions: list[Txn], together: list[set[int]]) -> None:
    more = "CREATE TABLE num (n numeric PRIMARY KEY); CREATE TABLE expr (id int PRIMARY KEY, v text);"
    target = Target(database, FIXTURE + more + "CREATE UNIQUE INDEX ON expr (lower(v));")

    lanes = target.lanes(*transactions, lanes=len(transactions) + 1)

    assert [lane for lane in lanes if len(lane) > 1] == together
    target.close()


EMP, HIST, GHOST = (TableName("public", name) for name in ("emp", "hist", "ghost"))

INTO_HIST = [
    T(1, insert("emp", id=3, dept_id=10)),
    T(2, insert("hist", emp_id=3, job="A", at="d")),
    T(3, insert("hist", emp_id=4, job="A", at="d")),
]


@pytest.mark.rule("A-47", "A-49", "A-52", "A-54")
@pytest.mark.parametrize(
    ("virtual", "transactions", "together"),
    [
        pytest.param(NONE, INTO_HIST, [], id="s13 nothing is declared"),
        pytest.param(
            VirtualDependencies(values=(ValueDependency("vd", {EMP: ("id",), HIST: ("emp_id",)}),)),
            INTO_HIST,
            [{1, 2}],
            id="s14 a value dependency",
        ),
        pytest.param(
            VirtualDependencies(objects=(ObjectDependency(HIST, EMP),)),
            [
                T(1, update("emp", {"id": 1, "sal": 4400}, {"sal": 4500})),
                T(2, insert("hist", emp_id=2, job="B", at="d")),
                T(3, update("emp", {"id": 2, "sal": 4000}, {"sal": 4100})),
            ],
            [{1, 2}],
            id="s15 an object dependency",
        ),
        pytest.param(
            VirtualDependencies(values=(ValueDependency("vg", {GHOST: ("gid",), HIST: ("emp_id",)}),)),
            [T(1, acct(1, 100, 110)), T(2, insert("ghost", gid=7)), T(3, acct(2, 200, 210))],
            [],
            id="s17 a table that the target lacks, and a dependency names, is no barrier",
        ),
    ],
)
def test_virtual_dependencies(
    target: Target,
    way: tuple[bool, int],
    virtual: VirtualDependencies,
    transactions: list[Txn],
    together: list[set[int]],
) -> None:
    target.virtual = virtual

    lanes = target.lanes(*transactions, lanes=len(transactions) + 1)

    assert [lane for lane in lanes if len(lane) > 1] == together
    apply(target, way, *(T(100 + txn.scn, *txn.changes) for txn in transactions))
    assert {failed[:2] for failed in target.failed()} <= {(102, TABLE_MISSING)}
    assert target.watermarks() == (103, 103)


@pytest.mark.rule("A-56")
def test_s19_circular_references(database: str, way: tuple[bool, int]) -> None:
    target = Target(
        database,
        "CREATE TABLE a (id int PRIMARY KEY, b_id int); CREATE TABLE b (id int PRIMARY KEY, a_id int REFERENCES a);"
        "ALTER TABLE a ADD FOREIGN KEY (b_id) REFERENCES b",
    )

    apply(
        target,
        way,
        T(100, insert("a", id=1, b_id=None)),
        T(101, insert("b", id=1, a_id=1)),
        T(102, update("a", {"id": 1, "b_id": None}, {"b_id": 1})),
        # In one transaction the two may even refer to each other from the start.
        T(103, insert("a", id=2, b_id=2), insert("b", id=2, a_id=2)),
    )

    assert target.errors() == []
    assert target.rows("SELECT * FROM a ORDER BY id") == [(1, 1), (2, 2)]
    target.close()


@pytest.mark.rule("A-160")
def test_s23_changes_up_to_the_instantiation_are_in_the_copy(database: str, way: tuple[bool, int]) -> None:
    target = Target(database, instantiated={"acct": 100})
    target.connection.execute("UPDATE acct SET bal = 110 WHERE id = 1")

    apply(target, way, T(100, acct(1, 100, 110)), T(101, acct(1, 110, 120)))

    assert target.one("SELECT bal FROM acct WHERE id = 1") == 120
    assert target.watermarks() == (101, 101)
    assert target.errors() == []
    target.close()


@pytest.mark.rule("A-160")
def test_s24_tables_of_one_transaction_may_be_copied_at_different_times(database: str, way: tuple[bool, int]) -> None:
    target = Target(database, instantiated={"acct": 100, "dept": 200})

    apply(target, way, T(150, acct(1, 100, 150), update("dept", {"id": 10, "name": "ENG"}, {"name": "E"})))

    assert target.one("SELECT bal FROM acct WHERE id = 1") == 150
    assert target.one("SELECT name FROM dept WHERE id = 10") == "ENG"
    assert target.errors() == []
    target.close()


@pytest.mark.rule("A-194")
def test_s34_an_ignored_transaction(target: Target, way: tuple[bool, int]) -> None:
    use_set, lanes = way
    ignored = frozenset({str(7 * 110), "no such"})

    target.apply(
        T(100, acct(1, 100, 110)),
        T(110, acct(1, 110, 120), insert("dept", id=30, name="N")),
        T(120, acct(1, 120, 130)),
        lanes=lanes,
        config=ServerConfig(use_set_path=use_set, ignored=ignored),
    )

    assert target.failed() == [(120, ROW_DIFFERS, 1, 1)]
    assert target.one("SELECT bal FROM acct WHERE id = 1") == 110
    assert target.one("SELECT count(*) FROM dept WHERE id = 30") == 0
    assert target.watermarks() == (120, 120)


@pytest.mark.rule("A-137", "A-166")
def test_s25_a_table_that_was_never_copied(database: str, way: tuple[bool, int]) -> None:
    target = Target(database, instantiated={"acct": 10})

    apply(
        target,
        way,
        T(100, acct(1, 100, 150), update("dept", {"id": 10, "name": "ENG"}, {"name": "E"})),
        T(110, acct(2, 200, 210)),
    )

    assert target.failed() == [(100, NOT_INSTANTIATED, 2, 2)]
    assert target.one("SELECT bal FROM acct WHERE id = 1") == 100
    assert target.one("SELECT bal FROM acct WHERE id = 2") == 210
    assert target.watermarks() == (110, 110)
    target.retry()
    assert target.one("SELECT bal FROM acct WHERE id = 1") == 150
    assert target.one("SELECT name FROM dept WHERE id = 10") == "E"
    target.close()


@pytest.mark.rule("A-170")
def test_s28_delivered_again_nothing_happens(target: Target, way: tuple[bool, int]) -> None:
    transactions = [T(100, acct(1, 100, 110)), T(110, acct(1, 110, 130)), T(120, acct(2, 200, 210))]
    apply(target, way, *transactions)

    results = target.apply(*transactions, complete=False)

    assert sum(result.already_applied for result in results) == 3
    assert target.one("SELECT bal FROM acct WHERE id = 1") == 130
    assert target.errors() == []


@pytest.mark.rule("A-169", "A-170", "A-171")
def test_s29_what_was_applied_above_the_low_watermark_is_not_applied_twice(target: Target) -> None:
    transactions = [
        T(100, acct(1, 100, 110)),
        T(110, acct(2, 200, 210)),
        T(120, update("dept", {"id": 10}, {"name": "E"})),
    ]
    target.apply(transactions[0], lanes=4, complete=False)
    target.apply(transactions[2], lanes=4, complete=False)
    assert target.watermarks() == (0, 120)

    results = target.apply(*transactions, lanes=4)

    assert sum(result.already_applied for result in results) == 2
    assert target.one("SELECT bal FROM acct WHERE id = 2") == 210
    assert target.watermarks() == (120, 120)
    assert target.one("SELECT count(*) FROM penstock.applied") == 0
    assert target.errors() == []


@pytest.mark.rule("A-14", "A-88", "A-133")
def test_s37_a_conflict_sends_the_whole_transaction_to_the_queue(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        T(100, acct(2, 200, 210), acct(1, 999, 50), insert("dept", id=30, name="N")),
        T(110, update("dept", {"id": 10, "name": "ENG"}, {"name": "E"})),
    )

    assert target.failed() == [(100, ROW_DIFFERS, 2, 3)]
    assert target.rows("SELECT bal FROM acct ORDER BY id") == [(100,), (200,)]
    assert target.one("SELECT count(*) FROM dept WHERE id = 30") == 0
    assert target.one("SELECT name FROM dept WHERE id = 10") == "E"
    assert target.watermarks() == (110, 110)
    entry = target.errors()[0]
    assert entry.found == {"id": "1", "code": "X", "bal": "100.00"}
    assert "'bal'" in entry.error_message
    assert "100" not in entry.error_message


@pytest.mark.rule("A-84")
def test_s43_a_column_set_to_its_old_value_is_no_conflict(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET sal = 5000 WHERE id = 1")

    apply(target, way, T(100, update("emp", {"id": 1, "sal": "4400", "job": "A"}, {"sal": "4400", "job": "B"})))

    assert target.rows("SELECT job, sal FROM emp WHERE id = 1") == [("B", 5000)]
    assert target.errors() == []


@pytest.mark.rule("A-85")
def test_s44_an_unchanged_column_is_compared(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("UPDATE emp SET name = 'eve' WHERE id = 1")

    apply(target, way, T(100, update("emp", {"id": 1, "name": "ann", "sal": "4400"}, {"sal": "4500"})))

    assert target.failed() == [(100, ROW_DIFFERS, 1, 1)]


@pytest.mark.rule("A-80")
def test_s46_uniqueness(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        T(100, insert("acct", id=1, code="Q", bal=0)),
        T(110, update("acct", {"id": 2, "code": "Y", "bal": 200}, {"code": "X"})),
    )

    assert target.failed() == [(100, UNIQUE_VIOLATED, 1, 1), (110, UNIQUE_VIOLATED, 1, 1)]
    assert target.rows("SELECT * FROM acct ORDER BY id") == [(1, "X", 100), (2, "Y", 200)]


@pytest.mark.rule("A-80")
def test_s47_delete_conflicts(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        T(100, update("acct", {"id": 99, "code": "Q", "bal": 1}, {"bal": 2})),
        T(110, delete("acct", id=98, code="P", bal=0)),
        T(120, delete("acct", id=1, code="X", bal=50)),
    )

    assert target.failed() == [(100, ROW_MISSING, 1, 1), (110, ROW_MISSING, 1, 1), (120, ROW_DIFFERS, 1, 1)]
    assert target.one("SELECT count(*) FROM acct") == 2


@pytest.mark.rule("A-80", "A-137")
def test_s48_a_missing_parent_and_a_retry(target: Target, way: tuple[bool, int]) -> None:
    apply(target, way, T(100, insert("emp", id=3, dept_id=77)))
    assert target.failed() == [(100, FOREIGN_KEY_VIOLATED, 1, 1)]

    target.connection.execute("INSERT INTO dept VALUES (77, 'L')")
    target.retry()

    assert target.one("SELECT dept_id FROM emp WHERE id = 3") == 77
    assert target.errors() == []


@pytest.mark.rule("A-179")
def test_references_are_checked_from_where_their_tables_stand_side_by_side(
    target: Target, way: tuple[bool, int]
) -> None:
    target.copied_later = {"dept": 150}
    txns = [T(100 + n, insert("emp", id=100 + n, dept_id=77 if n in (20, 80) else 10)) for n in range(0, 100, 2)]

    apply(target, way, *txns)

    # The parent of the one may come with a copy that is not made yet.
    assert target.failed() == [(180, FOREIGN_KEY_VIOLATED, 1, 1)]
    assert target.one("SELECT dept_id FROM emp WHERE id = 120") == 77


@pytest.mark.rule("A-179")
def test_references_are_checked_whatever_else_is_copied_later(target: Target, way: tuple[bool, int]) -> None:
    target.copied_later = {"acct": 150, "hist": 130}
    txns = [T(100 + n, insert("emp", id=100 + n, dept_id=77 if n in (20, 80) else 10)) for n in range(0, 100, 2)]

    apply(target, way, *txns, T(210, delete("dept", id=10, name="ENG")))

    failed = [(120, FOREIGN_KEY_VIOLATED, 1, 1), (180, FOREIGN_KEY_VIOLATED, 1, 1), (210, CHILD_EXISTS, 1, 1)]
    assert target.failed() == failed


@pytest.mark.rule("A-80")
def test_a_parent_that_still_has_children(target: Target, way: tuple[bool, int]) -> None:
    apply(target, way, T(100, delete("dept", id=10, name="ENG")))

    assert target.failed() == [(100, 2292, 1, 1)]
    assert target.one("SELECT count(*) FROM dept WHERE id = 10") == 1


@pytest.mark.rule("A-14", "A-136", "A-139")
def test_s49_dependents_fail_in_turn_and_are_all_retried(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        T(100, insert("dept", id=30, name="n" * 25)),
        T(110, insert("emp", id=3, dept_id=30, sal=1)),
        T(120, update("emp", {"id": 3, "sal": 1}, {"sal": 2})),
    )
    assert target.failed() == [(100, 12899, 1, 1), (110, FOREIGN_KEY_VIOLATED, 1, 1), (120, ROW_MISSING, 1, 1)]
    assert target.watermarks() == (120, 120)
    assert "nnnn" not in target.errors()[0].error_message

    target.connection.execute("ALTER TABLE dept ALTER name TYPE varchar(40)")
    target.retry()

    assert target.errors() == []
    assert target.one("SELECT sal FROM emp WHERE id = 3") == 2


@pytest.mark.rule("A-135", "A-139")
def test_s64_retrying_all_stops_at_the_first_that_fails_again(target: Target) -> None:
    target.apply(
        T(100, insert("emp", id=3, dept_id=70)),
        T(110, insert("emp", id=4, dept_id=80)),
        T(120, insert("emp", id=5, dept_id=70)),
    )
    target.connection.execute("INSERT INTO dept VALUES (70, 'L')")

    with pytest.raises(OperatorError, match=r"A1\.2 still cannot be applied"):
        target.retry()

    assert [entry.commit_scn for entry in target.errors()] == [110, 120]


@pytest.mark.rule("A-146")
def test_s67_disable_on_error(target: Target) -> None:
    config = ServerConfig(disable_on_error=True)
    transactions = [T(100, acct(1, 100, 110)), T(110, acct(1, 999, 1)), T(120, acct(1, 110, 130))]

    results = target.apply(*transactions, config=config)

    assert results[0].aborted_by is not None
    assert target.failed() == [(110, ROW_DIFFERS, 1, 1)]
    assert target.one("SELECT bal FROM acct WHERE id = 1") == 110
    assert target.watermarks() == (110, 110)
    target.apply(*transactions, config=config)
    assert target.one("SELECT bal FROM acct WHERE id = 1") == 130


@pytest.mark.rule("A-177")
def test_s73_ordinary_triggers_do_not_fire_always_ones_do(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.hist VALUES (NEW.id, TG_NAME, ''); RETURN NULL; END $$;"
        "CREATE TRIGGER ordinary AFTER UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION note();"
        "CREATE TRIGGER always AFTER UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION note();"
        "ALTER TABLE acct ENABLE ALWAYS TRIGGER always;"
        "CREATE TRIGGER replica AFTER UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION note();"
        "ALTER TABLE acct ENABLE REPLICA TRIGGER replica;"
    )

    apply(target, way, T(100, acct(1, 100, 110)))

    assert target.rows("SELECT job FROM hist ORDER BY 1") == [("always",), ("replica",)]


@pytest.mark.rule("A-67")
def test_s78_the_row_key(database: str, way: tuple[bool, int]) -> None:
    target = Target(
        database,
        "CREATE TABLE k (a int NOT NULL, b int, c int, UNIQUE (a, b, c), UNIQUE (a, b), UNIQUE (b));"
        "INSERT INTO k VALUES (1, 2, 3), (1, NULL, 4)",
    )
    assert next(iter(target.context().catalog.tables.values())).key.columns == ("a", "b")

    apply(target, way, T(100, update("k", {"a": 1, "b": None, "c": 4}, {"c": 5})))

    assert target.rows("SELECT * FROM k ORDER BY c") == [(1, 2, 3), (1, None, 5)]
    assert target.errors() == []
    target.close()


K = TableName("public", "k")


@pytest.mark.rule("A-68")
def test_s78_a_substitute_key(database: str, way: tuple[bool, int]) -> None:
    target = Target(
        database,
        "CREATE TABLE k (a int NOT NULL, b int, c int, UNIQUE (a, b, c), UNIQUE (a, b), UNIQUE (b));"
        "INSERT INTO k VALUES (1, 2, 3), (4, 5, NULL), (7, 8, 9)",
    )
    target.keys = {K: ("c",)}
    assert next(iter(target.context().catalog.tables.values())).key.columns == ("c",)

    apply(
        target,
        way,
        # Each has another `a`, which is no part of the key any more.
        T(100, update("k", {"b": 5, "c": None}, {"b": 6})),
        T(110, update("k", {"a": 1, "c": 3}, {"a": 2})),
        T(120, update("k", {"a": 2, "c": 3}, {"c": 33})),
        T(130, delete("k", c=9)),
        T(140, insert("k", a=10, b=11, c=12)),
        T(150, snapshot("k", a=10, b=13, c=12)),
        T(160, update("k", {"a": 2, "b": 2}, {"b": 3})),
        T(170, update("k", {"a": 9, "c": 33}, {"a": 3})),
    )

    assert target.failed() == [(160, VALUE_MISSING, 1, 1), (170, ROW_DIFFERS, 1, 1)]
    assert target.rows("SELECT * FROM k ORDER BY a") == [(2, 2, 33), (4, 6, None), (10, 13, 12)]
    target.close()


@pytest.mark.rule("A-68")
def test_a_substitute_key_that_is_unique_takes_the_set_path(database: str) -> None:
    target = Target(
        database,
        "CREATE TABLE k (id int PRIMARY KEY, code text NOT NULL UNIQUE, v numeric);"
        "INSERT INTO k SELECT n, 'c' || n, n FROM generate_series(1, 100) n",
    )
    target.keys = {K: ("code",)}

    (result,) = target.apply(
        *(T(100 + n, update("k", {"code": f"c{n}", "v": n}, {"v": 0})) for n in range(1, 50)),
        T(200, update("k", {"code": "c50", "id": 50, "v": 50}, {"code": "x50"})),
        T(201, update("k", {"code": "x50", "id": 50, "v": 50}, {"id": 500})),
        T(202, delete("k", code="c51")),
        T(203, insert("k", id=51, code="x51", v=1)),
    )

    assert target.errors() == []
    assert (result.set_changes, result.row_changes) == (53, 0)
    assert target.one("SELECT count(*) FROM k WHERE v = 0") == 49
    assert target.rows("SELECT * FROM k WHERE code LIKE 'x%' ORDER BY code") == [(500, "x50", 50), (51, "x51", 1)]
    target.close()


@pytest.mark.rule("A-41", "A-68")
def test_changes_of_one_row_by_its_substitute_key_keep_their_order(database: str) -> None:
    target = Target(database, "CREATE TABLE k (id int PRIMARY KEY, code int, v int)")
    target.keys = {K: ("code",)}

    lanes = target.lanes(
        T(1, update("k", {"code": 1, "v": 1}, {"v": 2})),
        T(2, update("k", {"code": None, "v": 1}, {"v": 2})),
        T(3, update("k", {"code": 1, "v": 2}, {"v": 3})),
        T(4, update("k", {"code": None, "v": 2}, {"v": 3})),
        T(5, insert("k", id=9, code=5, v=0)),
        T(6, update("k", {"code": 7, "v": 0, "id": 8}, {"id": 9})),
        lanes=8,
    )

    assert sorted(map(sorted, lanes)) == [[1, 3], [2, 4], [5, 6]]
    target.close()


@pytest.mark.rule("A-68", "A-70")
def test_s79_a_substitute_key_with_several_rows(target: Target, way: tuple[bool, int]) -> None:
    target.keys = {TableName("public", "nk"): ("a",)}
    target.connection.execute("INSERT INTO nk VALUES (1, 'q', 1), (2, 'r', 1), (2, 'r', 1)")

    # Two rows match, and they are not equal; then two that are.
    apply(
        target,
        way,
        T(100, update("nk", {"a": 1, "c": 1}, {"c": 2})),
        T(110, delete("nk", a=1)),
        T(120, update("nk", {"a": 2, "c": 1}, {"c": 2})),
        T(130, delete("nk", a=2, c=1)),
        T(140, update("nk", {"a": 1, "b": "q"}, {"c": 3})),
    )

    assert target.failed() == [(100, MORE_THAN_ONE_ROW, 1, 1), (110, MORE_THAN_ONE_ROW, 1, 1)]
    assert target.rows("SELECT * FROM nk ORDER BY a, b") == [(1, "p", 1), (1, "q", 3), (2, "r", 2)]


@pytest.mark.rule("A-68", "A-70")
def test_a_substitute_key_with_equal_rows_where_none_of_them_may_be_taken(
    target: Target, way: tuple[bool, int]
) -> None:
    target.keys = {TableName("public", "nk"): ("a",)}
    target.connection.execute("INSERT INTO nk VALUES (1, 'p', 1)")

    apply(target, way, T(100, delete("nk", a=1, b="p", c=1)), allow_duplicate_rows=False)

    assert target.failed() == [(100, MORE_THAN_ONE_ROW, 1, 1)]
    assert target.one("SELECT count(*) FROM nk") == 2
    # A retry goes by the same key; by all columns this would not tell its row.
    target.connection.execute("DELETE FROM nk WHERE ctid = (SELECT min(ctid) FROM nk)")
    apply(target, way, T(110, delete("nk", a=5)))
    target.connection.execute("INSERT INTO nk VALUES (5, 's', 1)")
    target.retry()
    assert target.one("SELECT count(*) FROM nk") == 0


@pytest.mark.rule("A-70")
def test_s79_rows_equal_in_every_column(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("INSERT INTO nk VALUES (1, 'p', 1)")
    change = update("nk", {"a": 1, "b": "p", "c": 1}, {"c": 2})

    apply(target, way, T(100, change), allow_duplicate_rows=False)
    assert target.failed() == [(100, MORE_THAN_ONE_ROW, 1, 1)]

    apply(target, way, T(110, change))
    assert target.rows("SELECT c FROM nk ORDER BY c") == [(1,), (2,)]
    apply(target, way, T(120, change))
    assert target.rows("SELECT c FROM nk ORDER BY c") == [(2,), (2,)]


@pytest.mark.rule("A-71")
def test_s80_a_column_the_target_lacks(target: Target, way: tuple[bool, int]) -> None:
    apply(target, way, T(100, insert("dept", id=30, name="N", bonus="1")), T(110, acct(1, 100, 110)))

    assert target.failed() == [(100, COLUMN_MISSING, 1, 1)]
    assert target.one("SELECT bal FROM acct WHERE id = 1") == 110


@pytest.mark.rule("A-72")
def test_s81_columns_of_the_target_s_own(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("ALTER TABLE acct ADD note varchar(5) DEFAULT 'n', ADD flag int")

    apply(target, way, T(100, insert("acct", id=3, code="W", bal=0)), T(110, acct(1, 100, 110)))
    apply(target, way, T(120, update("acct", {"id": 1, "code": "X", "bal": 110}, {"id": 7})))

    assert target.rows("SELECT id, note, flag FROM acct WHERE id IN (3, 7) ORDER BY id") == [
        (3, "n", None),
        (7, "n", None),
    ]
    assert target.errors() == []


@pytest.mark.rule("A-37", "A-88", "A-216")
def test_s87_a_conflict_inside_a_group_costs_only_its_transaction(target: Target, way: tuple[bool, int]) -> None:
    target.connection.execute("INSERT INTO acct SELECT n, 'c' || n, 0 FROM generate_series(101, 110) n")

    apply(
        target,
        way,
        *(
            T(n, update("acct", {"id": n, "code": f"c{n}", "bal": 0 if n != 105 else 9}, {"bal": n}))
            for n in range(101, 111)
        ),
    )

    assert target.failed() == [(105, ROW_DIFFERS, 1, 1)]
    assert target.one("SELECT count(*) FROM acct WHERE bal = id") == 9
    assert target.watermarks() == (110, 110)


@pytest.mark.rule("A-216")
@pytest.mark.parametrize("wrong", [{2500}, {900, 901, 2500, 3999}, set(range(1000, 5000, 500))])
def test_conflicts_leave_most_transactions_to_the_set_path(target: Target, wrong: set[int]) -> None:
    target.connection.execute("INSERT INTO acct SELECT n, 'c' || n, 0 FROM generate_series(1000, 4999) n")

    (result,) = target.apply(
        *(
            T(n, update("acct", {"id": n, "code": f"c{n}", "bal": 9 if n in wrong else 0}, {"bal": n}))
            for n in range(1000, 5000)
        ),
    )

    failed = wrong & set(range(1000, 5000))
    assert (result.errors, result.set_changes + result.row_changes) == (len(failed), 4000 - len(failed))
    # Halved down to fewer than 50, with a neighbour or two.
    assert result.row_changes <= 100 * len(failed)
    assert target.one("SELECT count(*) FROM acct WHERE bal = id") == 4000 - len(failed)


@pytest.mark.parametrize(("columns", "takes_set_path"), [(799, True), (800, False)])
def test_a_table_is_too_wide_to_be_staged(database: str, columns: int, takes_set_path: bool) -> None:
    further = ", ".join(f"c{n} int" for n in range(1, columns))
    target = Target(database, f"CREATE TABLE wide (id int PRIMARY KEY, {further}); INSERT INTO wide VALUES (1, 1)")
    row = {"id": 1, "c1": 1, **{f"c{n}": None for n in range(2, columns)}}

    (result,) = target.apply(T(100, update("wide", row, {"c1": 2})))

    assert target.errors() == []
    assert (result.set_changes, result.row_changes) == ((1, 0) if takes_set_path else (0, 1))
    assert target.one("SELECT c1 FROM wide") == 2
    target.close()


@pytest.mark.rule("A-69")
def test_a_change_without_its_key(target: Target, way: tuple[bool, int]) -> None:
    apply(target, way, T(100, update("acct", {"code": "X", "bal": 100}, {"bal": 1})))

    assert target.failed() == [(100, VALUE_MISSING, 1, 1)]


@pytest.mark.rule("A-54")
def test_a_table_that_is_gone(target: Target, way: tuple[bool, int]) -> None:
    apply(target, way, T(100, acct(1, 100, 110)), T(110, insert("ghost", gid=7)), T(120, acct(1, 110, 120)))

    assert target.failed() == [(110, TABLE_MISSING, 1, 1)]
    assert target.one("SELECT bal FROM acct WHERE id = 1") == 120


def test_tables_that_refer_to_each_other_are_emptied_together(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        T(100, acct(1, 100, 110), truncate("dept"), truncate("emp")),
        T(110, insert("dept", id=1, name="a")),
    )

    assert target.errors() == []
    assert target.rows("SELECT id FROM dept") == [(1,)]
    assert target.one("SELECT count(*) FROM emp") == 0


@pytest.mark.rule("A-179")
def test_deferrable_unique_keys_are_checked(database: str, way: tuple[bool, int]) -> None:
    target = Target(
        database,
        "CREATE TABLE d (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);"
        "INSERT INTO d VALUES (1, 1), (2, 2)",
    )

    apply(
        target,
        way,
        # Swapped, as only a deferred check allows.
        T(100, update("d", {"id": 1, "u": 1}, {"u": 2}), update("d", {"id": 2, "u": 2}, {"u": 1})),
        T(110, insert("d", id=3, u=1)),
    )

    assert target.rows("SELECT * FROM d ORDER BY id") == [(1, 2), (2, 1)]
    assert target.failed() == [(110, UNIQUE_VIOLATED, 1, 1)]
    target.close()


@pytest.mark.rule("A-179")
def test_deferrable_exclusion_constraints_are_checked(database: str, way: tuple[bool, int]) -> None:
    target = Target(
        database,
        "CREATE TABLE d (id int PRIMARY KEY, r int4range,"
        " EXCLUDE USING gist (r WITH &&) DEFERRABLE INITIALLY DEFERRED);"
        "INSERT INTO d VALUES (1, '[1,5)')",
    )

    apply(target, way, T(100, insert("d", id=2, r="[5,9)")), T(110, insert("d", id=3, r="[8,10)")))

    assert target.rows("SELECT id FROM d ORDER BY id") == [(1,), (2,)]
    assert target.failed() == [(110, UNIQUE_VIOLATED, 1, 1)]
    target.close()


def test_a_key_moves_and_its_children_with_it(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        T(
            100,
            update("dept", {"id": 10, "name": "ENG"}, {"id": 11}),
            update("emp", {"id": 1, "dept_id": 10, "name": "ann"}, {"dept_id": 11}),
        ),
    )

    assert target.errors() == []
    assert target.one("SELECT dept_id FROM emp WHERE id = 1") == 11


# What netting hides must not hide an error.
HIDDEN = {
    "a row that comes and goes where one was": (
        [T(100, insert("acct", id=1, code="Q", bal=0)), T(110, delete("acct", id=1, code="Q", bal=0))],
        [(100, UNIQUE_VIOLATED, 1, 1), (110, ROW_DIFFERS, 1, 1)],
    ),
    "a unique value that is there only for a moment": (
        [
            T(100, update("acct", {"id": 1, "code": "X", "bal": 100}, {"code": "Y"})),
            T(110, update("acct", {"id": 1, "code": "Y", "bal": 100}, {"code": "Z"})),
        ],
        [(100, UNIQUE_VIOLATED, 1, 1), (110, ROW_DIFFERS, 1, 1)],
    ),
    "a parent that was missing for a moment": (
        [
            T(100, update("emp", {"id": 1, "dept_id": 10}, {"dept_id": 77})),
            T(110, update("emp", {"id": 1, "dept_id": 77}, {"dept_id": 20})),
        ],
        [(100, FOREIGN_KEY_VIOLATED, 1, 1), (110, ROW_DIFFERS, 1, 1)],
    ),
    "a value that breaks a check only for a moment": (
        [
            T(100, update("pos", {"id": 1, "v": 1}, {"v": -1})),
            T(110, update("pos", {"id": 1, "v": -1}, {"v": 2})),
        ],
        [(100, 2290, 1, 1), (110, ROW_DIFFERS, 1, 1)],
    ),
    "a gap between two images": (
        [
            T(100, update("acct", {"id": 1, "code": "X", "bal": 100}, {"bal": 110})),
            T(110, update("acct", {"id": 1, "code": "X", "bal": 999}, {"bal": 130})),
        ],
        [(110, ROW_DIFFERS, 1, 1)],
    ),
}


@pytest.mark.rule("A-216")
@pytest.mark.parametrize("case", HIDDEN)
def test_hidden(database: str, case: str, way: tuple[bool, int]) -> None:
    target = Target(
        database, FIXTURE + "CREATE TABLE pos (id int PRIMARY KEY, v int CHECK (v > 0)); INSERT INTO pos VALUES (1, 1)"
    )
    transactions, expected = HIDDEN[case]

    apply(target, way, *transactions)

    assert target.failed() == expected
    target.close()


def test_a_parent_that_was_gone_for_a_moment_is_missed_by_a_child_that_only_the_target_has(
    target: Target, way: tuple[bool, int]
) -> None:
    apply(target, way, T(100, delete("dept", id=10, name="ENG")), T(110, insert("dept", id=10, name="NEW")))

    assert target.failed() == [(100, CHILD_EXISTS, 1, 1), (110, UNIQUE_VIOLATED, 1, 1)]
    assert target.one("SELECT name FROM dept WHERE id = 10") == "ENG"
