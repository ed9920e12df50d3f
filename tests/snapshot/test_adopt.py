"""Tables that hold rows already: a first copy that compares, cut short and gone on with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from penstock.errors import OperatorError
from tests.lab import Lab, table
from tests.snapshot.test_copy import (
    TENS,
    Crash,
    CutAt,
    OneByOne,
    assert_applied,
    begin_again,
    copy_context,
    crash,
    instantiator,
)

SQL = """
CREATE TABLE t (id int PRIMARY KEY, v text, u int UNIQUE);
CREATE TABLE k (a int, b text);
INSERT INTO t SELECT n, 'row', n FROM generate_series(1, 30) n;
INSERT INTO k SELECT n % 4, 'row' FROM generate_series(1, 20) n;
"""


def adopting(lab: Lab) -> None:
    """Have tables captured that hold rows on both sides, some of them not the same."""
    for side in (lab.source, lab.target):
        side.execute(SQL)
    lab.target.execute("UPDATE t SET u = NULL WHERE id IN (5, 25); UPDATE t SET u = 30 - id WHERE id IN (5, 25)")
    lab.target.execute("UPDATE t SET v = 'wrong' WHERE id IN (4, 14); DELETE FROM t WHERE id = 29; DELETE FROM k")
    lab.pipeline().setup(adopt=True)
    lab.acquire()


def adopt(lab: Lab, before: Mapping[tuple[str, int], Callable[[], object]] = {}) -> None:
    context = replace(copy_context(lab), adopted=frozenset(lab.ledger.adopted()))
    jobs = OneByOne(context, before, [])
    tables = [table("t"), table("k")]
    assert instantiator(lab, jobs, CutAt(lab, TENS)).run(tables, threading.Event())


def test_rows_are_compared_as_of_one_snapshot_while_others_write(lab: Lab) -> None:
    adopting(lab)
    right = set(lab.target.execute("SELECT ctid::text, xmin::text FROM t WHERE id IN (1, 12, 22)").fetchall())

    def write() -> None:
        lab.source.execute("UPDATE t SET v = v || '.', u = u + 100; DELETE FROM t WHERE id = 22; DELETE FROM k")
        lab.source.execute("INSERT INTO k VALUES (9, 'late')")

    adopt(lab, {("t", 1): write})

    found = set(lab.target.execute("SELECT ctid::text, xmin::text FROM t WHERE id IN (1, 12, 22)").fetchall())
    assert found == right
    assert lab.rows("t") == sorted(((n, "row", n) for n in range(1, 31)), key=repr)
    assert_applied(lab, "t", "k")


def test_what_a_crash_left_undone_is_compared_as_of_the_same_snapshot(lab: Lab) -> None:
    adopting(lab)
    try:
        adopt(lab, {("t", 1): crash})
    except Crash:
        begin_again(lab)
    # What was exchanged across ranges waits half done; nobody is told that it is copied.
    assert lab.ledger.instantiated() == {}
    lab.source.execute("UPDATE t SET v = v || '.' WHERE id > 3; UPDATE t SET id = id + 100 WHERE id > 20")
    lab.source.execute("DELETE FROM t WHERE id = 14; INSERT INTO k VALUES (9, 'late')")

    adopt(lab)

    assert set(lab.ledger.instantiated()) == {table("t"), table("k")}
    assert_applied(lab, "t", "k")


def test_a_truncate_before_the_rest_has_the_comparison_begin_anew(lab: Lab) -> None:
    adopting(lab)
    try:
        adopt(lab, {("t", 2): crash})
    except Crash:
        begin_again(lab)
    lab.source.execute("TRUNCATE t; INSERT INTO t VALUES (12, 'row', 12), (77, 'new', 1)")
    kept = lab.target.execute("SELECT ctid::text, xmin::text FROM t WHERE id = 12").fetchall()

    adopt(lab)

    assert_applied(lab, "t", "k")
    assert lab.target.execute("SELECT ctid::text, xmin::text FROM t WHERE id = 12").fetchall() == kept


def test_a_unique_key_of_the_target_alone_is_never_a_reason_to_delete(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE k (a int)")
    lab.source.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 30) n; UPDATE t SET v = 5 WHERE id = 28")
    lab.target.execute("CREATE TABLE t (id int PRIMARY KEY, v int UNIQUE); CREATE TABLE k (a int)")
    lab.target.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 30) n WHERE n NOT IN (5, 28)")
    lab.pipeline().setup(adopt=True)
    lab.acquire()

    with pytest.raises(OperatorError, match="the target refuses a row: duplicate key"):
        adopt(lab)

    assert lab.ledger.instantiated() == {}
    assert len(lab.rows("t")) == 29


def test_a_table_that_takes_the_name_of_an_adopted_one_is_not_adopted(lab: Lab) -> None:
    adopting(lab)
    adopt(lab)
    assert lab.ledger.adopted() == set()
    lab.ledger.close()
    lab.source.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text, u int UNIQUE)")

    ((error,),) = lab.pipeline().setup().left_out.values()
    assert "public.t holds rows that penstock did not copy" in str(error)
