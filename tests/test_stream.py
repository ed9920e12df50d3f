"""Slices: cut anywhere, they are still the same transactions at the same positions, whatever gaps those have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.change import TableName
from penstock.pipeline.transformed_access import TransformedVersion
from penstock.position import Limit, Scn
from penstock.schema import TableSchema
from penstock.sources.trigger_queue.position import QueueSlice
from penstock.stream import Slice, TableVersion, renamed_since, root_versions


def a_slice(changes: list[int], *, after: int = 100, end: int | None = None, gap: int = 0) -> QueueSlice:
    n = len(changes)
    scns = after + np.arange(1, n + 1) * (1 + gap)
    return QueueSlice(
        after=Scn(after),
        end=Scn(int(scns[-1]) if n else after) if end is None else Scn(end),
        commit_scns=scns,
        txn_ids=np.arange(7000, 7000 + n),
        tag_codes=np.full(n, -1, np.int32),
        changes=np.array(changes, np.int64),
        size_bytes=np.array(changes, np.int64) * 10,
        committed_at_us=np.arange(n, dtype=np.int64) * 1_000_000,
    )


def transactions(part: QueueSlice) -> list[tuple[int, ...]]:
    """Each transaction of a slice with its position."""
    columns = (part.commit_scns, part.txn_ids, part.changes, part.size_bytes, part.committed_at_us)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 8), st.integers(0, 3))
def test_the_parts_together_are_the_whole(changes: list[int], parts: int, gap: int) -> None:
    whole = a_slice(changes, end=200 + len(changes) * (1 + gap), gap=gap)

    cut = whole.split(parts)

    assert 1 <= len(cut) <= parts
    assert [t for part in cut for t in transactions(part)] == transactions(whole)
    assert [part.after for part in cut] == [whole.after, *(part.end for part in cut[:-1])]
    assert cut[-1].end == whole.end
    assert all(len(part) > 0 and part.after < part.commit_scns[0] for part in cut)


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

    assert (len(empty), empty.after, empty.end, empty.has_next(Scn(41))) == (0, 41, 41, False)
    assert (empty.total_changes, empty.last_committed_at, empty.split(3)) == (0, None, [])


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(0, 3), st.integers(1, 9), st.integers(1, 120))
def test_taking_on_and_on_takes_every_transaction_once(
    changes: list[int], gap: int, most_transactions: int, most_changes: int
) -> None:
    whole = a_slice(changes, gap=gap)
    limit = Limit(max_transactions=most_transactions, max_changes=most_changes, large_changes=40)

    position, taken = whole.after, []
    while whole.has_next(position):
        part = whole.take(position, limit, None)
        assert part.after == position
        assert part.is_large == (part.changes[0] > 40)
        assert len(part) == 1 or (part.total_changes <= most_changes and part.changes.max() <= 40)
        assert 1 <= len(part) <= most_transactions
        taken += transactions(part)
        position = part.end

    assert taken == transactions(whole)
    assert position == whole.end


@pytest.mark.parametrize("until", [103, 104, 105, 106])
def test_what_is_taken_ends_where_it_was_told_to(until: int) -> None:
    whole = a_slice([1, 1, 1, 1], gap=1)

    part = whole.take(Scn(100), Limit(), Scn(until))

    assert part.commit_scns.tolist() == [scn for scn in (102, 104, 106, 108) if scn <= until]
    assert part.end <= until


def test_a_table_is_what_its_newest_version_at_the_source_says_whatever_numbers_rules_gave() -> None:
    def version(name: str, number: int, ruled: int) -> TransformedVersion:
        table = TableName("public", name)
        captured = TableVersion(1, TableSchema(table, (), version=number), {}, table)
        return TransformedVersion(1, TableSchema(table, (), version=ruled), {}, table, captured, None, is_taken=True)

    old, new = version("t", 1, 70_000), version("renamed", 2, 2)
    assert root_versions([new, old]) == {TableName("public", "renamed"): new}


def named(id_: int, *names: str, is_gone: bool = False) -> list[TableVersion]:
    """The versions of a table that had these names, one after the other."""
    tables = [TableName("public", name) for name in names]
    made = [TableVersion(id_, TableSchema(t, (), version=10 * n + id_), {}, t) for n, t in enumerate(tables)]
    return [*made[:-1], replace(made[-1], is_gone=is_gone)]


@pytest.mark.parametrize(
    ("versions", "copied", "found"),
    [
        (named(1, "a", "b"), "a", {1: "a"}),
        (named(1, "a", "b"), "b", {}),
        (named(1, "a", "tmp", "b"), "a", {1: "a"}),
        (named(1, "a", "tmp", "b"), ["tmp"], {1: "tmp"}),
        ([*named(1, "a", "b"), *named(2, "b", "c")], "ab", {1: "a", 2: "b"}),
        ([*named(1, "a", "b"), *named(2, "b", "c")], "bc", {}),
        ([*named(1, "a", "tmp", "b"), *named(2, "b", "a")], "ab", {}),
        ([*named(1, "a", "old"), *named(2, "a")], "a", {}),
        ([*named(1, "a", "old"), *named(2, "a")], ["a", "old"], {}),
        ([*named(1, "a", "old"), *named(2, "new", "a")], ["a", "new"], {2: "new", 1: "a"}),
        (named(1, "a", "b", is_gone=True), "a", {1: "a"}),
        (named(1, "a"), "", {}),
    ],
    ids=[
        "to come",
        "done",
        "twice to come",
        "half way",
        "one into the place of the other",
        "that is done",
        "exchanged",
        "another has the name and is copied",
        "and both are",
        "another comes into its place",
        "renamed and dropped",
        "never renamed",
    ],
)
def test_what_goes_by_an_earlier_name_yet(
    versions: list[TableVersion], copied: Sequence[str], found: dict[int, str]
) -> None:
    names = {TableName("public", name) for name in copied}

    assert renamed_since(versions[::-1], names) == {id_: TableName("public", name) for id_, name in found.items()}


def test_of_two_tables_of_one_name_the_one_that_is_there_has_it() -> None:
    """That the other is gone may be noted last."""
    gone, there = named(1, "t", "t", "t", is_gone=True), named(2, "t")
    assert root_versions([*there, *gone]) == {TableName("public", "t"): there[0]}
    assert root_versions(gone) == {TableName("public", "t"): gone[-1]}
