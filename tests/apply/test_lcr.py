"""A change as handlers see it, and the statements of handlers, by themselves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apply.apply_errors import LCR_COLUMN, LCR_MALFORMED, ApplyError
from penstock.apply.handlers.lcr import ChangeOrigin, RowLcr
from penstock.apply.handlers.statement import Bind, BindSource, Call, _tokens, parse
from penstock.change import Change, Op, TableName

EMP = TableName("public", "emp")


def lcr(op: Op = Op.UPDATE) -> RowLcr:
    old = None if op is Op.INSERT else {"id": "1", "sal": "44.00", "comm": None}
    new = None if op is Op.DELETE else {"sal": "45.00"} if op is Op.UPDATE else {"id": "1", "sal": "45.00"}
    origin = ChangeOrigin("DBS1", "7", 100, datetime(2024, 1, 1, tzinfo=UTC))
    return RowLcr(Change(0, op, EMP, 1, old, new), origin, None)


@pytest.mark.rule("A-126", "A-127")
def test_what_a_change_tells_of_itself() -> None:
    one = lcr()

    assert (one.command_type, one.object_owner, one.object_name) == ("UPDATE", "public", "emp")
    assert (one.source_database_name, one.transaction_id, one.get_commit_scn()) == ("DBS1", "7", 100)
    assert one.get_value("new", "id") == "1"
    assert one.get_value("new", "id", use_old=False) is None
    assert one.get_value("old", "comm") is None
    assert (one.is_present("old", "comm"), one.is_present("new", "comm")) == (True, False)
    assert lcr(Op.INSERT).get_values("old") == {}
    assert repr(one) == "<RowLcr update public.emp>"


@pytest.mark.rule("A-127")
def test_a_change_as_sql() -> None:
    change = lcr()
    assert change.get_row_text() == (
        'UPDATE "public"."emp" SET "sal" = \'45.00\' WHERE "id" = \'1\' AND "sal" = \'45.00\' AND "comm" IS NULL'
    )
    assert lcr(Op.DELETE).get_where_clause() == 'WHERE "id" = \'1\' AND "sal" = \'44.00\' AND "comm" IS NULL'
    assert lcr(Op.INSERT).get_row_text() == 'INSERT INTO "public"."emp" ("id", "sal") VALUES (\'1\', \'45.00\')'


Step = Callable[[RowLcr], Any]


@pytest.mark.rule("A-127", "A-128", "A-131")
@pytest.mark.parametrize(
    ("op", "step", "number"),
    [
        (Op.UPDATE, lambda one: one.set_value("new", "id", "2"), LCR_COLUMN),
        (Op.UPDATE, lambda one: one.add_column("old", "id", "2"), LCR_MALFORMED),
        (Op.UPDATE, lambda one: one.delete_column("name"), LCR_COLUMN),
        (Op.UPDATE, lambda one: one.delete_column("id", "new"), LCR_COLUMN),
        (Op.UPDATE, lambda one: one.rename_column("name", "n"), LCR_COLUMN),
        (Op.UPDATE, lambda one: one.rename_column("sal", "id"), LCR_MALFORMED),
        (Op.UPDATE, lambda one: one.rename_column("id", "n", "new"), LCR_COLUMN),
        (Op.UPDATE, lambda one: one.get_value("newer", "id"), LCR_MALFORMED),
        (Op.UPDATE, lambda one: one.set_value("new", "sal", object()), LCR_MALFORMED),
        (Op.UPDATE, lambda one: one.set_value("new", "sal", "4\x00"), LCR_MALFORMED),
        (Op.UPDATE, lambda one: one.set_values("new", {"sal": "\x00"}), LCR_MALFORMED),
        (Op.UPDATE, lambda one: one.add_column("new", "comm", "\x00"), LCR_MALFORMED),
        (Op.UPDATE, lambda one: one.set_command_type("TRUNCATE"), LCR_MALFORMED),
        (Op.UPDATE, lambda one: one.set_command_type("upsert"), LCR_MALFORMED),
        (Op.UPDATE, lambda one: one.execute(True), LCR_MALFORMED),
        (Op.UPDATE, lambda one: one.execute("TRUE"), LCR_MALFORMED),
        (Op.UPDATE, lambda one: (one.set_values("old", {}), one.as_change()), LCR_MALFORMED),
        (Op.UPDATE, lambda one: (one.set_command_type("DELETE"), one.as_change()), LCR_MALFORMED),
        (Op.INSERT, lambda one: (one.add_column("old", "id", 1), one.as_change()), LCR_MALFORMED),
    ],
)
def test_what_makes_no_sense_of_a_change(op: Op, step: Step, number: int) -> None:
    with pytest.raises(ApplyError) as error:
        step(lcr(op))

    assert error.value.number == number


@pytest.mark.rule("A-127")
def test_a_change_is_altered_and_the_one_that_came_is_not() -> None:
    one = lcr()
    one.set_value("new", "sal", Decimal("46.00"))
    one.add_column("new", "ok", True)
    one.add_column("new", "at", date(2024, 1, 2))
    one.add_column("new", "doc", b"\0")
    one.rename_column("sal", "salary")
    one.delete_column("comm")
    one.set_object_name("people")

    change = one.as_change()

    assert (change.table, change.table_version) == (TableName("public", "people"), 0)
    assert change.before == {"id": "1", "salary": "44.00"}
    assert change.after == {"salary": "46.00", "ok": "true", "at": "2024-01-02", "doc": "AA=="}
    assert one.copy(None).as_change() == one.committed == lcr().committed
    one.keep_columns(["id", "ok"])
    assert (one.get_values("old"), one.get_values("new", use_old=False)) == ({"id": "1"}, {"ok": "true"})


@pytest.mark.rule("A-109")
def test_statements_are_read() -> None:
    sql = "INSERT INTO t VALUES (:new.id, :OLD.\"Job\", ':no'::text, x.y::int, :command_type) -- :nor this"
    read = parse(sql)

    assert read.binds == (
        Bind(BindSource.NEW, "id"),
        Bind(BindSource.OLD, "Job"),
        Bind(BindSource.ATTRIBUTE, "command_type"),
    )
    assert read.parts == ("INSERT INTO t VALUES (", ", ", ", ':no'::text, x.y::int, ", ") -- :nor this")
    assert parse(" :LCR.Execute  true ; ").call == Call("execute", ("TRUE",))
    assert parse(":lcr.add_column('Sal', -1.5)").call == Call("add_column", ("Sal", "-1.5"))
    assert parse(":lcr.add_column note NULL").call == Call("add_column", ("note", None))
    assert parse(':lcr.keep_columns a, "B c"').call == Call("keep_columns", ("a", "B c"))


@given(st.text("abcE:;'\"$-/*\\n1. \n(),%"))
def test_no_text_is_lost_or_read_for_ever(text: str) -> None:
    assert "".join(token for _, token in _tokens(text)) == text
