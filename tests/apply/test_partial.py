"""Changes that tell a part of their row, and rows of snapshots among changes, on every path and any number of lanes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.apply.apply_errors import (
    CHILD_EXISTS,
    FOREIGN_KEY_VIOLATED,
    ROW_DIFFERS,
    ROW_MISSING,
    UNIQUE_VIOLATED,
    VALUE_MISSING,
)
from penstock.apply.lane import ServerConfig
from tests.hand_made import Lcr, T, Target, Txn, delete, insert, update

SQL = """
CREATE TABLE site (id int PRIMARY KEY, code text UNIQUE, name text DEFAULT 'unnamed');
CREATE TABLE post (id int PRIMARY KEY, site text REFERENCES site (code), a int, b int, UNIQUE (a, b));
CREATE TABLE slot (id int PRIMARY KEY, a int, b int, UNIQUE (a, b) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE full_pair (id int PRIMARY KEY, a int, b int,
  FOREIGN KEY (a, b) REFERENCES post (a, b) MATCH FULL);
CREATE TABLE plain (id int PRIMARY KEY, a int, b int);
CREATE TABLE loose (a int, b text);
INSERT INTO site VALUES (1, 'x', 'one'), (2, 'y', 'two');
INSERT INTO post VALUES (1, 'x', 1, 1), (2, NULL, 2, 2);
INSERT INTO slot VALUES (1, 1, 1), (2, 2, 1);
INSERT INTO plain VALUES (1, 1, 1), (2, 2, 2);
INSERT INTO full_pair VALUES (1, 1, 1);
"""

WAYS = [(use_set, lanes) for use_set in (True, False) for lanes in (1, 4)]


@pytest.fixture(params=WAYS, ids=[f"{'set' if s else 'row'}-path-{n}-lanes" for s, n in WAYS])
def way(request: pytest.FixtureRequest) -> tuple[bool, int]:
    return request.param


@pytest.fixture
def target(database: str) -> Iterator[Target]:
    made = Target(database, SQL)
    yield made
    made.close()


def snapshot(table: str, **values: Any) -> Lcr:
    return Lcr("snapshot", table, None, values)


def apply(target: Target, way: tuple[bool, int], *transactions: Txn) -> int:
    """Apply transactions; returns how many changes went by the set path."""
    use_set, lanes = way
    results = target.apply(
        *transactions, lanes=lanes, config=ServerConfig(use_set_path=use_set), shuffle=random.Random(1)
    )
    return sum(result.set_changes for result in results)


@pytest.mark.rule("A-225")
def test_what_an_update_by_key_names_is_set_and_nothing_else(target: Target, way: tuple[bool, int]) -> None:
    quick = apply(
        target,
        way,
        T(100, update("plain", {"id": 1}, {"a": 5})),
        T(110, update("plain", {"id": 2}, {"a": 6, "b": None})),
        T(120, update("plain", {"id": 1, "b": 1}, {"b": 7})),
    )

    assert target.rows("SELECT * FROM plain ORDER BY id") == [(1, 5, 7), (2, 6, None)]
    assert target.errors() == []
    assert quick == (3 if way[0] else 0)


@pytest.mark.rule("A-225")
def test_inserts_updates_and_deletes_by_key_follow_each_other(target: Target, way: tuple[bool, int]) -> None:
    quick = apply(
        target,
        way,
        T(100, insert("slot", id=3, a=3, b=3)),
        T(110, update("slot", {"id": 3}, {"a": 4})),
        T(120, delete("slot", id=1)),
        T(130, insert("slot", id=1, a=9, b=9)),
        T(140, update("slot", {"id": 2}, {"id": 8, "a": 2, "b": 2}), delete("slot", id=8)),
        T(150, insert("site", id=3)),
    )

    assert target.rows("SELECT * FROM slot ORDER BY id") == [(1, 9, 9), (3, 4, 3)]
    assert target.rows("SELECT * FROM site WHERE id = 3") == [(3, None, "unnamed")]
    assert target.errors() == []
    assert bool(quick) == way[0]


@pytest.mark.rule("A-225")
def test_old_values_that_are_known_are_compared(target: Target, way: tuple[bool, int]) -> None:
    apply(
        target,
        way,
        T(100, update("post", {"id": 1, "a": 9}, {"b": 5})),
        T(110, update("post", {"id": 7}, {"b": 5})),
        T(120, delete("post", id=2, b=9)),
    )

    assert target.failed() == [(100, ROW_DIFFERS, 1, 1), (110, ROW_MISSING, 1, 1), (120, ROW_DIFFERS, 1, 1)]


@pytest.mark.rule("A-224")
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        pytest.param([delete("site", id=1)], CHILD_EXISTS, id="a parent of which only the key is known"),
        pytest.param([update("site", {"id": 1}, {"code": "z"})], CHILD_EXISTS, id="a parent's new name"),
        pytest.param([update("slot", {"id": 1}, {"a": 2})], UNIQUE_VIOLATED, id="half a unique value"),
        pytest.param([update("full_pair", {"id": 1}, {"a": 2})], FOREIGN_KEY_VIOLATED, id="half a reference"),
        pytest.param(
            [update("full_pair", {"id": 1}, {"a": 2}), update("full_pair", {"id": 1}, {"id": 5})],
            FOREIGN_KEY_VIOLATED,
            id="half a reference of a row that moves on",
        ),
        pytest.param([update("full_pair", {"id": 1}, {"a": None})], FOREIGN_KEY_VIOLATED, id="half null"),
    ],
)
def test_what_a_change_does_not_tell_is_checked_as_the_target_has_it(
    target: Target, way: tuple[bool, int], changes: list[Lcr], error: int
) -> None:
    apply(target, way, T(100, *changes), T(110, update("slot", {"id": 2}, {"b": 1})))

    assert target.failed() == [(100, error, 1, len(changes))]


@pytest.mark.rule("A-224")
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([delete("post", id=1), delete("full_pair", id=1), delete("site", id=1)], id="all of them go"),
        pytest.param([update("full_pair", {"id": 1}, {"a": 2, "b": 2})], id="a whole reference"),
        pytest.param([update("full_pair", {"id": 1}, {"a": 7}), delete("full_pair", id=1)], id="a row that is gone"),
        pytest.param(
            [update("slot", {"id": 1}, {"a": 2}), update("slot", {"id": 2}, {"a": 1})], id="two change places"
        ),
    ],
)
def test_what_holds_in_the_end_is_no_conflict(target: Target, way: tuple[bool, int], changes: list[Lcr]) -> None:
    apply(target, way, T(100, *changes))

    assert target.errors() == []


@pytest.mark.rule("A-226")
def test_a_row_of_a_snapshot_is_put_in_place(target: Target, way: tuple[bool, int]) -> None:
    before = target.one("SELECT xmin::text FROM slot WHERE id = 2")

    quick = apply(
        target,
        way,
        T(100, snapshot("slot", id=1, a=5, b=5), snapshot("slot", id=2, a=2, b=1), snapshot("slot", id=3, a=3, b=3)),
        T(110, update("slot", {"id": 3, "a": 3, "b": 3}, {"b": 4})),
        T(120, snapshot("post", id=9, site="not there yet", a=9, b=None)),
    )

    assert target.rows("SELECT * FROM slot ORDER BY id") == [(1, 5, 5), (2, 2, 1), (3, 3, 4)]
    assert target.one("SELECT xmin::text FROM slot WHERE id = 2") == before
    assert target.one("SELECT site FROM post WHERE id = 9") == "not there yet"
    assert target.errors() == []
    assert quick == (5 if way[0] else 0)


@pytest.mark.rule("A-226")
def test_a_row_of_a_snapshot_that_finds_no_room_can_be_tried_again(target: Target, way: tuple[bool, int]) -> None:
    apply(target, way, T(100, snapshot("post", id=3, site="x", a=2, b=2)), T(110, snapshot("loose", a=1, b="x")))
    assert target.failed() == [(100, UNIQUE_VIOLATED, 1, 1), (110, VALUE_MISSING, 1, 1)]
    target.connection.execute("UPDATE post SET a = 0 WHERE id = 2; ALTER TABLE loose ADD PRIMARY KEY (a)")

    said: list[str] = []

    assert len(target.retry(tell=said.append)) == 2

    assert sorted(text.partition(":")[0] for text in said) == ["A1.1", "A1.2"]
    assert all("1 change of 1 told nothing of an old row but its key" in text for text in said)
    assert target.one("SELECT site FROM post WHERE id = 3") == "x"
    assert target.rows("SELECT * FROM loose") == [(1, "x")]
