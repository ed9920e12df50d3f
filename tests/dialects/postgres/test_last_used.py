"""A worker keeps what it used last, and closes the rest."""

from __future__ import annotations

from penstock.dialects.postgres.last_used import LastUsed


def test_what_was_not_used_for_longest_gives_way_and_is_closed() -> None:
    closed: list[str] = []
    kept: LastUsed[int, str] = LastUsed(closed.append, most=2)
    for key, value in ((1, "one"), (2, "two")):
        assert kept.put(key, value) == value
    assert kept.get(1) == "one"
    kept.put(3, "three")

    assert closed == ["two"]
    assert [kept.get(key) for key in (1, 2, 3)] == ["one", None, "three"]


def test_what_takes_the_place_of_another_of_its_key_closes_it() -> None:
    closed: list[str] = []
    kept: LastUsed[int, str] = LastUsed(closed.append)
    kept.put(1, "old")
    kept.put(1, "new")

    assert closed == ["old"]
    assert kept.get(1) == "new"
