"""Hashes: equal values meet, however the batch they come in looks."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apply.hashing import hash_name, hash_rows, hash_text, normalise_number

texts = st.lists(st.none() | st.text(max_size=6), max_size=12)


def strings(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


@pytest.mark.rule("A-44")
@settings(deadline=None)
@given(texts)
def test_two_values_have_one_hash_exactly_when_they_are_equal(values: list[str | None]) -> None:
    hashes = hash_text(strings(*values))

    assert hashes.dtype == np.uint64
    assert len(hashes) == len(values)
    assert len(set(hashes.tolist())) == len(set(values))


@settings(deadline=None)
@given(texts, texts, texts)
def test_a_hash_does_not_depend_on_the_neighbours(
    before: list[str | None], values: list[str | None], after: list[str | None]
) -> None:
    whole = strings(*before, *values, *after)

    part = hash_text(whole.slice(len(before), len(values)))

    assert part.tolist() == hash_text(strings(*values)).tolist()
    assert part.tolist() == hash_text(whole)[len(before) : len(before) + len(values)].tolist()


def test_many_values_are_told_apart() -> None:
    values = [str(n) for n in range(50_000)] + [f"customer-{n:08}" for n in range(50_000)]

    assert len(np.unique(hash_text(strings(*values)))) == len(values)


@pytest.mark.parametrize(
    ("one", "other"),
    [(None, ""), (None, "null"), ("", "\0"), ("\0", "\0\0"), ("ab", "ba"), ("a", "a "), ("ä", "a"), ("a", "A")],
)
def test_values_that_nearly_are_the_same(one: str | None, other: str | None) -> None:
    first, second = hash_text(strings(one, other)).tolist()

    assert first != second


@pytest.mark.parametrize(
    ("rows", "same"),
    [
        pytest.param((("a", "b"), ("a", "b")), True, id="equal"),
        pytest.param((("a", "b"), ("b", "a")), False, id="other order"),
        pytest.param((("ab", "c"), ("a", "bc")), False, id="cut elsewhere"),
        pytest.param((("a", None), ("a", "")), False, id="null is not empty"),
        pytest.param((("a", None), (None, "a")), False, id="null elsewhere"),
        pytest.param(((None, None), (None, None)), True, id="null meets null"),
        pytest.param((("a", "a"), ("b", "b")), False, id="columns do not cancel out"),
    ],
)
def test_rows_meet_when_all_their_columns_do(rows: tuple[tuple[str | None, ...], ...], same: bool) -> None:
    columns = [hash_text(strings(*column)) for column in zip(*rows, strict=True)]

    first, second = hash_rows(columns, "space").tolist()

    assert (first == second) is same


def test_values_of_two_spaces_do_not_meet() -> None:
    column = [hash_text(strings("a"))]

    assert hash_rows(column, "one")[0] != hash_rows(column, "two")[0]
    assert hash_name("one") != hash_name("two")


def test_a_name_has_one_hash() -> None:
    # Two tasks, in two processes, must come to the same.
    assert int(hash_name("public.t (id)")) == int(hash_text(strings("x", "public.t (id)"))[1])


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("1", "1"),
        ("1.0", "1"),
        ("1.00", "1"),
        ("1.", "1"),
        ("1.50", "1.5"),
        ("1.05", "1.05"),
        ("100", "100"),
        ("100.00", "100"),
        ("0.00", "0"),
        ("-0", "0"),
        ("-0.000", "0"),
        ("-0.10", "-0.1"),
        ("-10.0", "-10"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        (None, None),
    ],
)
def test_equal_numbers_are_written_alike(written: str | None, normal: str | None) -> None:
    # Alone and among others: batches without a point are passed on as they are.
    assert normalise_number(strings(written)).to_pylist() == [normal]
    assert normalise_number(strings("2.50", written, None)).to_pylist() == ["2.5", normal, None]


numbers = st.decimals(-1000, 1000, places=3).flatmap(
    lambda number: st.integers(0, 3).map(lambda zeros: f"{number:f}{'0' * zeros}")
) | st.integers(-1000, 1000).map(str)


@pytest.mark.rule("A-44")
@settings(deadline=None)
@given(st.lists(numbers, max_size=20))
def test_numbers_are_written_alike_exactly_when_they_are_equal(values: list[str]) -> None:
    normal = normalise_number(strings(*values)).to_pylist()

    assert [Decimal(text) for text in normal] == [Decimal(text) for text in values]
    assert len(set(normal)) == len({Decimal(text) for text in values})
