"""Slices of a queue: cut anywhere, they are still the same transactions at the same positions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import MalformedInputError
from penstock.position import Anchor, Scn
from penstock.sources.trigger_queue.position import Slice, offset_json, offset_position


def a_slice(changes: list[int], *, after: int = 100, end: int | None = None) -> Slice:
    n = len(changes)
    return Slice(
        after=Scn(after),
        end=Scn(after + n if end is None else end),
        first=Scn(after + 1),
        txn_ids=np.arange(7000, 7000 + n),
        changes=np.array(changes, np.int64),
        size_bytes=np.array(changes, np.int64) * 10,
        committed_at_us=np.arange(n, dtype=np.int64) * 1_000_000,
    )


def transactions(part: Slice) -> list[tuple[int, ...]]:
    """Each transaction of a slice with its position."""
    columns = (part.txn_ids, part.changes, part.size_bytes, part.committed_at_us)
    return [(part.first + i, *(int(column[i]) for column in columns)) for i in range(len(part))]


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 8), st.integers(0, 3))
def test_the_parts_together_are_the_whole(changes: list[int], parts: int, empty_end: int) -> None:
    whole = a_slice(changes, end=100 + len(changes) + empty_end)

    cut = whole.split(parts)

    assert 1 <= len(cut) <= parts
    assert [t for part in cut for t in transactions(part)] == transactions(whole)
    assert [part.after for part in cut] == [whole.after, *(part.end for part in cut[:-1])]
    assert cut[-1].end == whole.end
    assert all(len(part) > 0 and part.first == part.after + 1 for part in cut)


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 100), st.integers(1, 1000))
def test_a_window_ends_with_the_transaction_that_fills_it(changes: list[int], most: int, most_bytes: int) -> None:
    whole = a_slice(changes)

    windows = list(whole.windows(repeat(most), most_bytes))

    assert [t for window in windows for t in transactions(window)] == transactions(whole)
    assert [window.after for window in windows] == [whole.after, *(window.end for window in windows[:-1])]
    for window in windows:
        is_full = [
            window.changes[:n].sum() >= most or window.size_bytes[:n].sum() >= most_bytes
            for n in range(1, len(window) + 1)
        ]
        assert not any(is_full[:-1])
        assert is_full[-1] or window is windows[-1]


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 8))
def test_no_part_is_larger_than_its_share_by_more_than_one_transaction(changes: list[int], parts: int) -> None:
    whole = a_slice(changes)

    for part in whole.split(parts):
        assert part.total_changes <= whole.total_changes / parts + max(changes)


@pytest.mark.parametrize(
    ("changes", "parts", "expected"),
    [
        ([], 4, []),
        ([5], 4, [[5]]),
        ([1, 1, 1, 1], 2, [[1, 1], [1, 1]]),
        ([1, 1, 1, 1], 1, [[1, 1, 1, 1]]),
        ([9, 1, 1, 1], 2, [[9], [1, 1, 1]]),
        ([1, 1, 1, 9], 2, [[1, 1, 1, 9]]),
    ],
)
def test_parts_have_about_the_same_number_of_changes(changes: list[int], parts: int, expected: list[list[int]]) -> None:
    assert [part.changes.tolist() for part in a_slice(changes).split(parts)] == expected


def test_a_slice_counts_its_changes_and_knows_its_last_commit() -> None:
    part = a_slice([3, 4])

    assert len(part) == 2
    assert part.total_changes == 7
    assert part.last_committed_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_an_empty_slice_stays_where_it_is() -> None:
    empty = Slice.empty(Scn(41))

    assert (len(empty), empty.after, empty.end, empty.first) == (0, 41, 41, 42)
    assert (empty.total_changes, empty.last_committed_at, empty.split(3)) == (0, None, [])


@given(st.integers(0, 2**63 - 1))
def test_an_offset_comes_back_from_its_json(position: int) -> None:
    cut = Anchor(Scn(position // 2), "mark")

    assert offset_position(json.loads(json.dumps(offset_json(Scn(position), cut)))) == (position, cut)


def test_an_offset_is_plain_json_whatever_kind_of_integer_it_was_made_of() -> None:
    offset = offset_json(Scn(np.int64(4711)), Anchor(Scn(np.int64(4700)), "m"))

    assert json.dumps(offset) == '{"commit_scn": 4711, "cut": 4700, "mark": "m"}'


def test_an_offset_of_an_earlier_version_has_no_cut() -> None:
    assert offset_position({"commit_scn": 4711}) == (4711, None)


@pytest.mark.parametrize(
    "offset",
    [
        {},
        None,
        [],
        "4711",
        {"scn": 1},
        {"commit_scn": None},
        {"commit_scn": "a"},
        {"commit_scn": 5, "cut": 5},
        {"commit_scn": 5, "mark": "m"},
        {"commit_scn": 5, "cut": 6, "mark": "m"},
    ],
)
def test_an_offset_of_something_else_is_refused_with_what_it_is(offset: Any) -> None:
    with pytest.raises(MalformedInputError) as caught:
        offset_position(offset)

    assert caught.value.what.startswith("offset of a trigger queue must be {'commit_scn': integer")
    assert caught.value.where == repr(offset)


@pytest.mark.parametrize("value", [1.5, True, "12", float("inf"), -1])
def test_an_offset_is_an_integer(value: object) -> None:
    with pytest.raises(MalformedInputError):
        offset_position({"commit_scn": value})
