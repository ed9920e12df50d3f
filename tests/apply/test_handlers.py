"""Handlers at work, on every path: set and row, one lane and four. Scenarios are those of docs/rules.md."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.apply.apply_errors import (
    COLUMN_MISSING,
    HANDLER_FAILED,
    HANDLER_LATE,
    LCR_MALFORMED,
    ROW_DIFFERS,
    STATEMENT_REFUSED,
    TABLE_MISSING,
    UNIQUE_VIOLATED,
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
from penstock.apply.handlers.settings import NO_HANDLERS, Function, HandlerSettings
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.virtual_dependencies import ValueDependency, VirtualDependencies
from penstock.change import Op, TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import HandlerError, RetryableError
from tests.apply import handled
from tests.apply.handled import CALLS, SEEN, function, on, settings, statements
from tests.conftest import create_database, drop_database
from tests.hand_made import FIXTURE, Lcr, T, Target, Txn, delete, insert, update
from tests.program import await_true

WAYS = [(use_set, lanes) for use_set in (True, False) for lanes in (1, 4)]


@pytest.fixture(params=WAYS, ids=[f"{'set' if s else 'row'}-path-{n}-lanes" for s, n in WAYS])
def way(request: pytest.FixtureRequest) -> tuple[bool, int]:
    return request.param


@pytest.fixture(scope="module")
def shared(source_server: EmbeddedPostgres) -> Iterator[Target]:
    create_database(source_server, "handlers")
    made = Target(source_server.url("handlers"))
    yield made
    made.close()
    drop_database(source_server, "handlers")


@pytest.fixture
def target(shared: Target) -> Target:
    """One target for all tests, as new: a database for each would take most of the time."""
    handled.forget()
    shared.connection.execute(f"DROP SCHEMA public CASCADE; CREATE SCHEMA public; SET search_path = public; {FIXTURE}")
    shared.connection.execute(
        "DELETE FROM penstock.error; DELETE FROM penstock.error_change; DELETE FROM penstock.applied;"
        " UPDATE penstock.process SET low_watermark = 0, high_watermark = 0"
    )
    return shared


def apply(
    target: Target,
    handlers: HandlerSettings,
    *transactions: Txn,
    way: tuple[bool, int] = (True, 1),
    conflicts: ConflictRules = ConflictRules(),
) -> list[LaneResult]:
    use_set, lanes = way
    config = ServerConfig(use_set_path=use_set, conflicts=conflicts, handlers=handlers)
    return target.apply(*transactions, lanes=lanes, config=config, shuffle=random.Random(1))


def acct(key: int, old: float, new: float) -> Lcr:
    return update("acct", {"id": key, "code": "XY"[key - 1], "bal": f"{old:.2f}"}, {"bal": f"{new:.2f}"})


def balance(target: Target, key: int) -> Any:
    return target.one(f"SELECT bal FROM acct WHERE id = {key}")


def resolving(method: Method, *columns: str, by: str | None = None) -> ConflictRules:
    resolver = Resolver(Op.UPDATE, ConflictKind.EXISTS, method, columns, by)
    return ConflictRules(tables={TableName("public", "emp"): TableRules(resolvers=(resolver,))})


GHOST = settings("ghost", insert=on(statements("to_hist", "INSERT INTO public.hist VALUES (:new.gid, 'G', 'd')")))
WITH_GHOST = dict.fromkeys(("dept", "emp", "acct", "nk", "hist", "ghost"), 10)
GHOSTS = (T(100, acct(1, 100, 110)), T(110, insert("ghost", gid=7)), T(120, acct(2, 200, 210)))


@pytest.mark.rule("A-54", "A-106")
@pytest.mark.parametrize("with_handler", [True, False])
def test_s16_a_table_that_the_target_lacks_is_left_to_its_handler(
    database: str, way: tuple[bool, int], with_handler: bool
) -> None:
    target = Target(database, instantiated=WITH_GHOST)

    apply(target, GHOST if with_handler else NO_HANDLERS, *GHOSTS, way=way)

    if with_handler:
        assert target.rows("SELECT * FROM hist") == [(7, "G", "d")]
        assert target.errors() == []
    else:
        assert target.failed() == [(110, TABLE_MISSING, 1, 1)]
    assert (balance(target, 1), balance(target, 2)) == (110, 210)
    assert target.lanes(*GHOSTS) == [{100, 110, 120}]
    target.close()


@pytest.mark.rule("A-49", "A-54")
def test_s17_named_as_a_dependency_it_is_no_barrier(database: str) -> None:
    target = Target(database, instantiated=WITH_GHOST)
    names = {TableName("public", "ghost"): ("gid",), TableName("public", "hist"): ("emp_id",)}
    target.virtual = VirtualDependencies(values=(ValueDependency("vg", names),))

    assert len(target.lanes(*GHOSTS)) == 3
    apply(target, GHOST, *GHOSTS, way=(False, 4))

    assert target.rows("SELECT * FROM hist") == [(7, "G", "d")]
    target.close()


SAL = update("emp", {"id": 1, "sal": "4400.00"}, {"sal": "4500.00"})


@pytest.mark.rule("A-111", "A-127", "A-128", "A-130")
@pytest.mark.parametrize(("resolves", "catches"), [(True, False), (False, False), (False, True)])
def test_s50_a_procedure_alters_a_change_and_executes_it(
    target: Target, way: tuple[bool, int], resolves: bool, catches: bool
) -> None:
    def double(lcr: Any, _: Any) -> None:
        lcr.set_value("new", "sal", 2 * lcr.get_typed("new", "sal"))
        try:
            lcr.execute(resolves)
        except ApplyError:
            if not catches:
                raise

    target.connection.execute("UPDATE emp SET sal = 5000 WHERE id = 1")
    handlers = settings(update=on(procedure=double))

    apply(target, handlers, T(100, SAL), way=way, conflicts=resolving(Method.OVERWRITE, "sal", by="sal"))

    assert target.one("SELECT sal FROM emp WHERE id = 1") == (9000 if resolves else 5000)
    assert target.failed() == ([] if resolves or catches else [(100, ROW_DIFFERS, 1, 1)])
    assert CALLS == ["procedure"]


@pytest.mark.rule("A-108", "A-109")
def test_s51_statements_run_in_order(target: Target, way: tuple[bool, int]) -> None:
    handler = statements(
        "h",
        ":lcr.execute TRUE",
        "UPDATE public.emp SET comm = 1 WHERE id = :new.id",
        "INSERT INTO public.hist SELECT :NEW.id, :old.job, 'c' WHERE EXISTS"
        " (SELECT FROM public.emp WHERE comm = 1 AND job = 'B' AND id = :new.id) -- not :this, nor ':that'",
    )

    change = update("emp", {"id": 1, "job": "A"}, {"job": "B"})
    apply(target, settings(update=on(handler)), T(100, change), way=way)

    assert target.rows("SELECT job, comm FROM emp WHERE id = 1") == [("B", 1)]
    assert target.rows("SELECT * FROM hist") == [(1, "A", "c")]


@pytest.mark.rule("A-110")
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("fails", [False, True])
def test_s52_each_handler_has_a_copy_of_its_own(target: Target, order: int, fails: bool) -> None:
    handlers = [
        statements("h1", ":lcr.delete_column comm", ":lcr.execute TRUE"),
        statements("h2", f"INSERT INTO public.{'nowhere' if fails else 'nk'} VALUES (:new.id, 'x', :new.comm)"),
    ][::order]
    change = update("emp", {"id": 1, "sal": "4400.00", "comm": None}, {"sal": "4500.00", "comm": "50.00"})

    apply(target, settings(update=on(*handlers)), T(100, change))

    assert target.failed() == ([(100, TABLE_MISSING, 1, 1)] if fails else [])
    assert target.rows("SELECT sal, comm FROM emp WHERE id = 1") == [(4400 if fails else 4500, None)]
    assert target.rows("SELECT * FROM nk WHERE a = 1 AND b = 'x'") == ([] if fails else [(1, "x", 50)])


TAKEN = (insert("acct", id=1, code="Q", bal="0.00"), acct(2, 200, 210))


@pytest.mark.rule("A-111", "A-112")
def test_s53_a_procedure_goes_on_after_an_error(target: Target, way: tuple[bool, int]) -> None:
    def note_duplicate(lcr: Any, there: Any) -> None:
        try:
            lcr.execute(True)
        except ApplyError as exc:
            SEEN.append(exc.number)
            there.execute("INSERT INTO public.hist VALUES (%s, 'dup', 'd')", [lcr.get_typed("new", "id")])

    apply(target, settings("acct", insert=on(procedure=note_duplicate)), T(100, *TAKEN), way=way)

    assert target.rows("SELECT * FROM hist") == [(1, "dup", "d")]
    assert SEEN == [UNIQUE_VIOLATED]
    assert balance(target, 2) == 210
    assert target.errors() == []


@pytest.mark.rule("A-113", "A-127")
def test_s54_an_error_handler_mends_a_change(target: Target, way: tuple[bool, int]) -> None:
    def move(lcr: Any, _: Any, errors: Any) -> None:
        assert (errors.depth, errors.numbers) == (1, [UNIQUE_VIOLATED])
        assert "acct_pkey" in errors.messages[0]
        lcr.set_value("new", "id", lcr.get_typed("new", "id") + 1000)
        lcr.execute(True)

    apply(target, settings("acct", insert=on(error=move)), T(100, *TAKEN), T(110, acct(1, 100, 1)), way=way)

    assert target.rows("SELECT * FROM acct ORDER BY id") == [(1, "X", 1), (2, "Y", 210), (1001, "Q", 0)]
    assert target.errors() == []
    assert CALLS == ["error"]


@pytest.mark.rule("A-114")
@pytest.mark.parametrize(
    ("change", "sal", "called"),
    [
        (update("emp", {"id": 1, "sal": "4400.00"}, {"sal": "5100.00"}), 5100, 0),
        (update("emp", {"id": 1, "sal": "4400.00"}, {"sal": "5000.00"}), 5000, 1),
        (update("emp", {"id": 99, "sal": "4400.00"}, {"sal": "5100.00"}), 5000, 1),
    ],
    ids=["resolved", "a tie", "no row"],
)
def test_s55_an_error_handler_is_called_behind_resolvers(target: Target, change: Lcr, sal: int, called: int) -> None:
    def note(lcr: Any, there: Any, _: Any) -> None:
        there.execute("INSERT INTO public.hist VALUES (%s, 'eh', 'd')", [lcr.get_value("new", "id")])

    target.connection.execute("UPDATE emp SET sal = 5000 WHERE id = 1")

    apply(target, settings(update=on(error=note)), T(100, change), conflicts=resolving(Method.MAXIMUM, "sal", by="sal"))

    assert target.one("SELECT sal FROM emp WHERE id = 1") == sal
    assert CALLS.count("error") == target.one("SELECT count(*) FROM hist") == called
    assert target.errors() == []


@pytest.mark.rule("A-112", "A-113")
def test_s56_an_error_handler_has_the_change_as_it_came(target: Target, way: tuple[bool, int]) -> None:
    def execute(lcr: Any, _: Any, errors: Any) -> None:
        SEEN.append((errors.numbers, list(lcr.get_values("new"))))
        lcr.execute(False)

    handler = statements(
        "h",
        "INSERT INTO public.hist VALUES (:new.id, 's', 'd')",
        ":lcr.rename_column sal salary",
        ":lcr.execute TRUE",
    )
    apply(target, settings(update=on(handler, error=execute)), T(100, SAL), way=way)

    assert SEEN == [([COLUMN_MISSING], ["id", "sal"])]
    assert target.rows("SELECT * FROM hist") == []
    assert target.one("SELECT sal FROM emp WHERE id = 1") == 4500
    assert target.errors() == []


@pytest.mark.rule("A-114", "A-122")
@pytest.mark.parametrize(
    ("executes", "method", "at_target", "sal", "called"),
    [("FALSE", Method.OVERWRITE, 5000, 4500, 0), ("TRUE", Method.MAXIMUM, 4500, 4500, 1)],
    ids=["resolvers have the change as it came", "a tie under the handler"],
)
def test_s57_resolvers_between_statements_and_an_error_handler(
    target: Target, way: tuple[bool, int], executes: str, method: Method, at_target: int, sal: int, called: int
) -> None:
    target.connection.execute("UPDATE emp SET sal = %s WHERE id = 1", [at_target])
    handler = statements("h", f":lcr.execute {executes}")

    apply(
        target,
        settings(update=on(handler, error=lambda *_: None)),
        T(100, update("emp", {"id": 1, "sal": "4400.00"}, {"sal": "4500.00"})),
        conflicts=resolving(method, "sal", by="sal" if method is Method.MAXIMUM else None),
        way=way,
    )

    assert target.one("SELECT sal FROM emp WHERE id = 1") == sal
    assert CALLS.count("error") == called
    assert target.errors() == []


@pytest.mark.rule("A-118", "A-133")
def test_s59_a_precommit_handler_refuses_a_transaction(target: Target, way: tuple[bool, int]) -> None:
    def refuse(transaction: Any, there: Any) -> None:
        SEEN.append((transaction.commit_scn, transaction.changes, transaction.source))
        there.execute("INSERT INTO public.hist VALUES (%s, 'pc', 'd')", [transaction.commit_scn])
        if transaction.commit_scn == 110:
            raise ApplyError(20001, "not today")

    handled.DO["precommit"] = refuse
    handlers = HandlerSettings(precommit=function("precommit"), source="DBS1")
    work = (T(100, acct(1, 100, 110)), T(110, acct(2, 200, 210)), T(120, update("dept", {"id": 10}, {"name": "E"})))

    apply(target, handlers, *work, way=way)

    assert target.failed() == [(110, 20001, 0, 1)]
    assert "not today (apply.precommit: 'tests.apply.handled:precommit')" in target.errors()[0].error_message
    assert sorted(SEEN) == [(scn, 1, "DBS1") for scn in (100, 110, 120)]
    assert target.rows("SELECT emp_id FROM hist ORDER BY 1") == [(100,), (120,)]
    assert (balance(target, 1), balance(target, 2)) == (110, 200)
    # A retry calls it, too.
    handled.DO["precommit"] = lambda transaction, _: SEEN.append(transaction.commit_scn)
    assert len(target.retry(handlers=handlers)) == 1
    assert SEEN[-1] == 110


@pytest.mark.rule("A-119", "A-147")
@pytest.mark.parametrize(
    ("name", "takes", "says"),
    [
        ("tests.apply.handled:nothing", 2, "cannot load 'tests.apply.handled:nothing': AttributeError"),
        ("no_such_module:f", 2, "No module named 'no_such_module'"),
        ("tests.apply.handled:too_few", 2, "takes (lcr), and is called with 2 arguments"),
        ("no_entry_point", 2, "no entry point of this name in the group penstock.handlers"),
    ],
)
def test_s60_a_handler_that_cannot_be_had_stops_the_process(target: Target, name: str, takes: int, says: str) -> None:
    handlers = settings("acct", update=on(procedure=lambda lcr, _: lcr.execute(True)))
    broken = Function(name, Path(), "apply.tables.public.acct.handlers.update.procedure", takes)
    lost = settings("acct", update=replace(handlers.of(TableName("public", "acct"), Op.UPDATE), procedure=broken))

    assert [says in str(error) for error in lost.check()] == [True]
    with pytest.raises(HandlerError, match=r"apply\.tables\.public\.acct\.handlers\.update\.procedure: "):
        apply(target, lost, T(100, acct(2, 200, 210)), T(110, acct(1, 100, 110)))
    assert target.errors() == []
    assert target.watermarks()[0] < 100

    apply(target, handlers, T(100, acct(2, 200, 210)), T(110, acct(1, 100, 110)))
    assert (balance(target, 1), balance(target, 2)) == (110, 210)


ORD = """
CREATE TABLE ord (id int PRIMARY KEY, cust text, item text);
CREATE TABLE cust (name text PRIMARY KEY, orders int);
CREATE TABLE item (name text PRIMARY KEY);
"""


@pytest.mark.rule("A-18", "A-47", "A-111", "A-120")
def test_s63_one_change_becomes_rows_of_several_tables(database: str, way: tuple[bool, int]) -> None:
    def fan_out(lcr: Any, there: Any) -> None:
        lcr.make("INSERT", "item", new={"name": lcr.get_value("new", "item")}).execute(False)
        customer = lcr.get_value("new", "cust")
        found = there.execute("SELECT orders FROM public.cust WHERE name = %s", [customer])
        if found.rows:
            orders = found.rows[0][0]
            lcr.make(
                "UPDATE", "public.cust", old={"name": customer, "orders": orders}, new={"orders": orders + 1}
            ).execute(False)
        else:
            lcr.make("INSERT", "cust", new={"name": customer, "orders": 1}).execute(False)

    handled.forget()
    target = Target(database, FIXTURE + ORD)
    handlers = settings("ord", insert=on(procedure=fan_out))
    work = (T(100, insert("ord", id=1, cust="c1", item="i1")), T(110, insert("ord", id=2, cust="c1", item="i2")))
    assert len(target.lanes(*work)) == 2
    target.virtual = VirtualDependencies(values=(ValueDependency("vc", {TableName("public", "ord"): ("cust",)}),))
    assert target.lanes(*work) == [{100, 110}]

    apply(target, handlers, *work, way=way)

    assert target.rows("SELECT * FROM cust") == [("c1", 2)]
    assert target.rows("SELECT * FROM item ORDER BY 1") == [("i1",), ("i2",)]
    assert target.rows("SELECT * FROM ord") == []
    target.close()


@pytest.mark.rule("A-137", "A-142")
def test_s69_a_retry_calls_the_handlers_of_today(target: Target) -> None:
    def again(lcr: Any, there: Any, _: Any) -> None:
        there.execute("INSERT INTO public.hist VALUES (1, current_setting('penstock.tag', true), 'd')")
        lcr.set_value("new", "id", 7)
        lcr.execute(False)

    def refuse(lcr: Any, _: Any, __: Any) -> None:
        raise RuntimeError("secret")

    apply(target, settings("acct", insert=on(error=refuse)), T(100, *TAKEN))
    (entry,) = target.errors()
    assert (entry.error_number, entry.message_number) == (HANDLER_FAILED, 1)
    assert "RuntimeError at test_handlers.py:" in entry.error_message
    assert "it was called for: " in entry.error_message
    assert "acct_pkey" in entry.error_message
    assert "secret" not in entry.error_message

    now = settings("acct", insert=on(error=again))
    (dry,) = target.retried(handlers=now, dry_run=True)
    assert not dry.is_failed
    assert target.one("SELECT count(*) FROM hist") == 0
    target.retry(handlers=now)

    assert target.errors() == []
    assert target.rows("SELECT id, code FROM acct WHERE id = 7") == [(7, "Q")]
    assert balance(target, 2) == 210
    assert target.one("SELECT count(*) FROM hist") == 1


@pytest.mark.rule("A-137")
def test_a_retry_calls_handlers_with_the_rights_of_its_role(target: Target) -> None:
    def tell(lcr: Any, there: Any) -> None:
        SEEN.append(there.execute("SELECT current_user").rows)
        lcr.set_value("old", "bal", 100)
        lcr.execute(False)

    apply(target, NO_HANDLERS, T(100, acct(1, 999, 50)))
    target.connection.execute("CREATE ROLE handler_role; GRANT USAGE ON SCHEMA public TO handler_role")
    target.connection.execute("GRANT SELECT, UPDATE ON acct TO handler_role")

    retried = target.retried(handlers=settings("acct", update=on(procedure=tell)), role="handler_role")

    assert [one.error for one in retried] == [None]
    assert SEEN == [[("handler_role",)]]
    assert balance(target, 1) == 50
    target.connection.execute("DROP OWNED BY handler_role; DROP ROLE handler_role")


@pytest.mark.rule("A-71")
@pytest.mark.parametrize(
    "handler",
    [
        statements("delete", ":lcr.delete_column bonus", ":lcr.execute TRUE"),
        statements("keep", ":lcr.keep_columns(id, sal)", ":lcr.execute TRUE"),
        statements("own", "UPDATE public.emp SET sal = :new.sal WHERE id = :old.id"),
        statements("rename", ":lcr.delete_column comm", ":lcr.rename_column(bonus, comm)", ":lcr.execute TRUE"),
        None,
    ],
    ids=lambda one: one.name if one else "none",
)
def test_s80_a_column_that_the_target_lacks(target: Target, handler: Any) -> None:
    change = update(
        "emp", {"id": 1, "sal": "4400.00", "bonus": None, "comm": None}, {"sal": "4500.00", "bonus": "9.00"}
    )

    apply(target, settings(update=on(handler)) if handler else NO_HANDLERS, T(100, change))

    assert target.failed() == ([] if handler else [(100, COLUMN_MISSING, 1, 1)])
    renamed = handler is not None and handler.name == "rename"
    assert target.rows("SELECT sal, comm FROM emp WHERE id = 1") == [
        (4500 if handler else 4400, 9 if renamed else None)
    ]


REGION = """
ALTER TABLE acct ADD note varchar(5) DEFAULT 'n', ADD flag int, ADD region int NOT NULL DEFAULT 1;
ALTER TABLE acct DROP CONSTRAINT acct_code_key; ALTER TABLE acct ADD UNIQUE (code, region);
"""


@pytest.mark.rule("A-72", "A-73")
def test_s81_a_handler_adds_a_column_that_only_the_target_has(database: str) -> None:
    handled.forget()
    target = Target(database, FIXTURE + REGION)
    by_sql = statements("sql", "INSERT INTO public.acct (id, code, region) VALUES (:new.id, :new.code, 1)")
    by_call = statements("call", ":lcr.add_column region '1'", ":lcr.execute TRUE")
    work = [T(100 + n, insert("acct", id=n, code=f"W{n}", bal=0)) for n in (3, 4)]

    # Whether they share a value of the unique key cannot be told, so they keep their order.
    assert target.lanes(*work) == [{103, 104}]
    apply(target, settings("acct", insert=on(by_sql)), *work, way=(True, 4))
    apply(target, settings("acct", insert=on(by_call)), T(110, insert("acct", id=5, code="W5", bal=0)))

    rows = target.rows("SELECT id, note, flag, region FROM acct WHERE id > 2 ORDER BY 1")
    assert rows == [(n, "n", None, 1) for n in (3, 4, 5)]
    assert target.errors() == []
    target.close()


@pytest.mark.rule("A-107")
def test_only_changes_that_a_handler_takes_leave_the_set_path(target: Target) -> None:
    handlers = settings("acct", insert=on(procedure=lambda lcr, _: lcr.execute(True)))
    work = [T(100, acct(1, 100, 110)), T(110, insert("acct", id=3, code="Z", bal="0.00")), T(120, acct(2, 200, 210))]

    (result,) = apply(target, handlers, *work)

    assert (result.set_changes, result.row_changes) == (2, 1)
    assert CALLS == ["procedure"]
    assert target.rows("SELECT id, bal FROM acct ORDER BY 1") == [(1, 110), (2, 210), (3, 0)]


@pytest.mark.rule("A-111")
def test_what_a_handler_executes_is_held_to_foreign_keys(target: Target) -> None:
    def to_nowhere(lcr: Any, _: Any) -> None:
        lcr.make("INSERT", "emp", new={"id": 9, "dept_id": 77}).execute(True)

    apply(target, settings("acct", update=on(procedure=to_nowhere)), T(100, acct(1, 100, 110)))

    assert target.failed() == [(100, 2291, 1, 1)]
    assert target.one("SELECT count(*) FROM emp WHERE id = 9") == 0


@pytest.mark.rule("A-102", "A-114")
@pytest.mark.parametrize("then", [ErrorAction.IGNORE, ErrorAction.RECORD, ErrorAction.RECORD_TRANSACTION])
def test_rules_for_errors_come_before_an_error_handler(target: Target, then: ErrorAction) -> None:
    rules = ConflictRules(tables={TableName("public", "acct"): TableRules(on_error=(ErrorRule("1", then),))})
    handlers = settings("acct", insert=on(error=lambda *_: None))

    apply(target, handlers, T(100, *TAKEN), conflicts=rules)

    assert CALLS == []
    assert len(target.errors()) == (then is not ErrorAction.IGNORE)
    assert balance(target, 2) == (200 if then is ErrorAction.RECORD_TRANSACTION else 210)


@pytest.mark.rule("A-102")
def test_what_a_rule_has_tried_again_is_the_handler(target: Target) -> None:
    def fails_twice(lcr: Any, _: Any) -> None:
        if CALLS.count("procedure") < 3:
            raise ValueError
        lcr.execute(True)

    rule = ErrorRule(str(HANDLER_FAILED), ErrorAction.RETRY, times=2, delay_s=0)
    rules = ConflictRules(tables={TableName("public", "acct"): TableRules(on_error=(rule,))})

    apply(target, settings("acct", update=on(procedure=fails_twice)), T(100, acct(1, 100, 110)), conflicts=rules)

    assert target.errors() == []
    assert (len(CALLS), balance(target, 1)) == (3, 110)


def commits(lcr: Any, there: Any) -> None:
    lcr.execute(True)
    there._gate._session._session.connection.execute("COMMIT")


def commits_and_hides_it(lcr: Any, there: Any) -> None:
    connection = there._gate._session._session.connection
    connection.execute("DELETE FROM pg_temp.penstock_open")
    connection.execute("COMMIT")
    connection.execute("BEGIN")


def rolls_back(lcr: Any, there: Any) -> None:
    connection = there._gate._session._session.connection
    connection.execute("ROLLBACK")
    connection.execute("BEGIN")


@pytest.mark.rule("A-115")
@pytest.mark.parametrize("handler", [commits, rolls_back, commits_and_hides_it], ids=lambda f: f.__name__)
def test_a_handler_that_gets_hold_of_the_session_to_end_the_transaction_stops_the_process(
    target: Target, handler: Any
) -> None:
    handlers = settings("acct", insert=on(procedure=handler))
    work = T(100, acct(1, 100, 110), insert("acct", id=3, code="Z", bal="0.00"), acct(2, 200, 210))

    with pytest.raises(HandlerError, match="has committed or rolled back the transaction that it takes part in"):
        apply(target, handlers, work)

    assert target.errors() == []
    if handler is not commits_and_hides_it:
        # The server itself has refused.
        assert (balance(target, 1), balance(target, 2)) == (100, 200)
        apply(target, settings("acct", insert=on(procedure=lambda lcr, _: lcr.execute(True))), work)
        assert target.rows("SELECT id, bal FROM acct ORDER BY 1") == [(1, 110), (2, 210), (3, 0)]


CONTROL = {
    "COMMIT": "it commits",
    "commit and chain": "it commits",
    "/* not /* yet */ */ END": "it commits",
    "ROLLBACK": "it rolls back",
    "BEGIN": "it begins a transaction",
    "START TRANSACTION": "it begins a transaction",
    "PREPARE TRANSACTION 'x'": "it prepares a transaction",
    "SAVEPOINT a": "it sets a savepoint; use savepoint() of the target",
    "SET TRANSACTION READ ONLY": "it would outlast the transaction; write SET LOCAL",
    "SET search_path = public": "it would outlast the transaction; write SET LOCAL",
    "SELECT 1; COMMIT": "it is more than one statement",
    "SELECT ';'; -- ;\nCOMMIT": "it is more than one statement",
    "SELECT $a$ ; $a$; COMMIT": "it is more than one statement",
    "SELECT E'\\'; ' ; COMMIT": "it is more than one statement",
    " -- nothing": "it is empty",
    "COPY nk FROM STDIN": "COPY does not come with its rows",
}


@pytest.mark.rule("A-115")
def test_a_handler_may_run_no_statement_that_ends_its_transaction(target: Target) -> None:
    target.connection.execute("CREATE PROCEDURE public.committing() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;")

    def tries(lcr: Any, there: Any) -> None:
        for statement in CONTROL:
            with pytest.raises(ApplyError) as error:
                there.execute(statement)
            SEEN.append((error.value.number, error.value.what.partition(": ")[2]))
        for statement in ("CALL public.committing()", "DO $$ BEGIN COMMIT; END $$"):
            with pytest.raises(ApplyError, match="invalid transaction termination"):
                there.execute(statement)
        assert there.execute("SELECT ';', '--', $$;$$, \"a;\" FROM (SELECT 1 AS \"a;\") x;").rows == [
            (";", "--", ";", 1)
        ]
        lcr.execute(True)

    apply(target, settings("acct", update=on(procedure=tries)), T(100, acct(1, 100, 110)))

    assert [(STATEMENT_REFUSED, reason) for reason in CONTROL.values()] == SEEN
    assert target.errors() == []
    assert balance(target, 1) == 110


def sleeps(lcr: Any, there: Any) -> None:
    lcr.execute(True)
    time.sleep(60)


def spins(lcr: Any, there: Any) -> None:
    while True:
        pass


def waits_at_the_target(lcr: Any, there: Any) -> None:
    lcr.execute(True)
    there.execute("SELECT pg_sleep(60)")


def goes_on(lcr: Any, there: Any) -> None:
    for _ in range(3):
        try:
            there.execute("SELECT pg_sleep(60)")
        except Exception as exc:
            SEEN.append(exc)
    there.execute("INSERT INTO public.hist VALUES (1, 'late', 'd')")


def threads() -> int:
    return sum(thread.name == "handlers" for thread in threading.enumerate())


@pytest.mark.rule("A-115", "A-118")
@pytest.mark.parametrize("handler", [sleeps, spins, waits_at_the_target, goes_on], ids=lambda f: f.__name__)
def test_a_handler_that_hangs_is_ended(target: Target, handler: Any) -> None:
    handlers = settings("acct", insert=on(procedure=handler), timeout_s=0.2)
    work = (T(100, insert("acct", id=3, code="Z", bal="0.00")), T(110, acct(2, 200, 210)))
    before, began = threads(), time.monotonic()

    apply(target, handlers, *work)

    assert time.monotonic() - began < 10
    (entry,) = target.errors()
    assert (entry.commit_scn, entry.error_number) == (100, HANDLER_LATE)
    assert "took longer than 0.2 s, and was ended" in entry.error_message
    assert target.rows("SELECT id, bal FROM acct ORDER BY 1") == [(1, 100), (2, 210)]
    assert target.rows("SELECT * FROM hist") == []
    # Only what sleeps, and asks neither Python nor the target, is left behind.
    await_true(lambda: threads() <= before + (handler is sleeps), seconds=5)


def returns_the_change(lcr: Any, there: Any) -> Any:
    lcr.execute(True)
    return lcr


def moves_to_another_row(lcr: Any, there: Any) -> None:
    lcr.set_value("old", "id", 2)
    lcr.execute(True)


def has_no_say(lcr: Any, there: Any) -> None:
    lcr.execute()


def misshapes(lcr: Any, there: Any) -> None:
    lcr.set_command_type("INSERT")
    lcr.execute(True)


@pytest.mark.rule("A-127", "A-128", "A-131")
@pytest.mark.parametrize(
    ("handler", "number", "says"),
    [
        (returns_the_change, HANDLER_FAILED, "returned RowLcr: a handler returns nothing"),
        (moves_to_another_row, LCR_MALFORMED, "the old value of key column 'id' was altered"),
        (has_no_say, LCR_MALFORMED, "execute takes True or False"),
        (misshapes, LCR_MALFORMED, "insert has old values, which it cannot have"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_a_handler_must_not_do_with_a_change(target: Target, handler: Any, number: int, says: str) -> None:
    apply(target, settings("acct", update=on(procedure=handler)), T(100, acct(1, 100, 110)))

    (entry,) = target.errors()
    assert entry.error_number == number
    assert says in entry.error_message
    assert "'tests.apply.handled:procedure'" in entry.error_message
    assert balance(target, 1) == 100


@pytest.mark.rule("A-38")
def test_a_lost_connection_is_not_for_a_handler_to_swallow(target: Target) -> None:
    def swallow(lcr: Any, there: Any) -> None:
        try:
            there.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        except Exception as exc:
            SEEN.append(type(exc).__name__)

    with pytest.raises(RetryableError, match="terminating connection"):
        apply(target, settings("acct", update=on(procedure=swallow)), T(100, acct(1, 100, 110)))

    assert target.errors() == []
    assert SEEN == ["RetryableError"]


@pytest.mark.rule("A-112")
def test_a_savepoint_of_a_handler_undoes_what_it_executed(target: Target) -> None:
    def tries(lcr: Any, there: Any) -> None:
        with suppress(ZeroDivisionError), there.savepoint():
            lcr.make("INSERT", "emp", new={"id": 9, "dept_id": 77}).execute(True)
            there.execute("INSERT INTO public.hist VALUES (1, 'x', 'd')")
            _ = 1 / 0
        lcr.execute(True)

    apply(target, settings("acct", update=on(procedure=tries)), T(100, acct(1, 100, 110)))

    assert target.errors() == []
    assert (balance(target, 1), target.rows("SELECT * FROM hist")) == (110, [])


@pytest.mark.rule("A-125")
def test_handlers_are_chosen_by_the_change_as_it_came(target: Target) -> None:
    def delete_instead(lcr: Any, _: Any) -> None:
        lcr.set_command_type("DELETE")
        lcr.set_values("new", {})
        lcr.execute(True)

    handlers = settings(
        "acct", update=on(procedure=delete_instead), delete=on(statements("h", "DELETE FROM public.nk"))
    )

    apply(target, handlers, T(100, acct(1, 100, 110)))

    assert target.rows("SELECT id FROM acct") == [(2,)]
    assert target.one("SELECT count(*) FROM nk") == 1
    assert target.errors() == []


def test_a_handler_of_deletes_keeps_rows(target: Target, way: tuple[bool, int]) -> None:
    def mark(lcr: Any, _: Any) -> None:
        kept = lcr.make("UPDATE", "acct", old=lcr.get_values("old"), new={"code": "gone"})
        kept.execute(False)

    apply(
        target,
        settings("acct", delete=on(procedure=mark)),
        T(100, delete("acct", id=1, code="X", bal="100.00")),
        way=way,
    )

    assert target.rows("SELECT id, code FROM acct ORDER BY 1") == [(1, "gone"), (2, "Y")]
    assert target.errors() == []
