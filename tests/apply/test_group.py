"""Groups: whole transactions in commit order, as many as fit, none twice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice, pairwise, repeat

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import change as c
from penstock.apply.group import SCHEMA, Group, cut_groups, group_sizes
from penstock.change import Change, Op, TableName, Transaction
from penstock.errors import MalformedInputError, PenstockError
from tests.hand_made import T, Txn, as_batch, delete, insert, truncate, update

MANY = 1 << 30
"""More than any group here has."""


def stream(lengths: Sequence[int], *, first: int = 100) -> pa.RecordBatch:
    """One transaction per length, with gaps between their positions."""
    return as_batch([T(first + 3 * i, *(insert("t", id=seq) for seq in range(n))) for i, n in enumerate(lengths)])


def cut(batch: pa.RecordBatch, at: Sequence[int]) -> list[pa.RecordBatch]:
    bounds = sorted({0, batch.num_rows, *at})
    return [batch.slice(a, b - a) for a, b in pairwise(bounds)]


def group(*transactions: Txn) -> Group:
    (only,) = cut_groups([as_batch(transactions)], repeat(1000), max_bytes=MANY)
    return only


def places(rows: pa.Table | pa.RecordBatch) -> list[tuple[int, int]]:
    return list(zip(rows[c.COMMIT_SCN].to_pylist(), rows[c.CHANGE_SEQ].to_pylist(), strict=True))


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.sets(st.integers(0, 60)), st.integers(1, 20))
def test_groups_hold_everything_once_and_cut_no_transaction(lengths: list[int], at: set[int], most: int) -> None:
    whole = stream(lengths)

    groups = list(cut_groups(cut(whole, [n for n in at if n < whole.num_rows]), repeat(most), max_bytes=MANY))

    assert [place for g in groups for place in places(g.rows)] == places(whole)
    assert [scn for g in groups for scn in g.commit_scns.tolist()] == [100 + 3 * i for i in range(len(lengths))]
    assert [n for g in groups for n in np.diff(g.starts).tolist()] == lengths
    for g in groups:
        assert g.rows.schema.equals(SCHEMA)
        # Without its last transaction it would not have been full.
        assert g.starts[-2] < most


@pytest.mark.parametrize(
    ("lengths", "most", "expected"),
    [
        ([1, 1, 1, 1, 1], 2, [2, 2, 1]),
        ([3, 3, 3], 4, [6, 3]),
        ([1, 9, 1], 4, [10, 1]),
        ([9, 9], 1, [9, 9]),
        ([2, 2], 4, [4]),
        ([2, 2], 100, [4]),
        ([], 5, []),
    ],
)
def test_a_group_ends_with_the_transaction_that_fills_it(lengths: list[int], most: int, expected: list[int]) -> None:
    groups = cut_groups([stream(lengths)], repeat(most), max_bytes=MANY)

    assert [len(g.rows) for g in groups] == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.sets(st.integers(0, 60)), st.integers(1, 200))
def test_a_group_ends_with_the_transaction_whose_images_fill_it(values: list[int], at: set[int], most: int) -> None:
    whole = as_batch([T(n, insert("t", id=n, v="x" * size)) for n, size in enumerate(values)])

    groups = list(cut_groups(cut(whole, [n for n in at if n < whole.num_rows]), repeat(MANY), max_bytes=most))

    assert [place for g in groups for place in places(g.rows)] == places(whole)
    for g in groups:
        lengths = [len(image) for image in g.rows[c.AFTER].to_pylist()]
        assert sum(lengths[:-1]) < most
        assert sum(lengths) >= most or g is groups[-1]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, [1, 1, 1]),
        (3, [2, 3, 3]),
        (32, [2, 3, 4, 6, 9, 13, 19, 28, 32, 32]),
        (100, [6, 9, 13, 19, 28, 42, 63, 94, 100]),
    ],
)
def test_groups_grow(most: int, expected: list[int]) -> None:
    assert list(islice(group_sizes(most), len(expected))) == expected


def test_empty_batches_say_nothing() -> None:
    empty = stream([])

    assert [len(g) for g in cut_groups([empty, stream([1, 1]), empty], repeat(10), max_bytes=MANY)] == [2]


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize(
    "order",
    [
        pytest.param([3, 4, 5, 0, 1, 2], id="transactions the wrong way round"),
        pytest.param([1, 0, 2, 3, 4, 5], id="changes of one the wrong way round"),
        pytest.param([0, 1, 3, 4, 5, 2], id="a change after the next transaction"),
        pytest.param([0, 0, 1, 2, 3, 4, 5], id="a change twice"),
    ],
)
def test_a_stream_that_is_out_of_order_is_refused(order: list[int], most: int) -> None:
    batch = stream([3, 3]).take(pa.array(order))

    with pytest.raises(PenstockError, match="out of order"):
        list(cut_groups(cut(batch, range(batch.num_rows)), repeat(most), max_bytes=MANY))


def test_a_part_holds_only_its_transactions() -> None:
    whole = group(*(T(n, insert("t", id=n), insert("t", id=-n)) for n in (1, 2, 3, 4)))

    part = whole.part(1, 3)

    assert part.commit_scns.tolist() == [2, 3]
    assert places(part.rows) == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert part.part(1, 2).commit_scns.tolist() == [3]
    assert len(whole.part(0, 0)) == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=8))
def test_what_is_left_out_is_gone_whole(chosen: list[tuple[int, bool]]) -> None:
    lengths, wanted = [n for n, _ in chosen], np.array([is_wanted for _, is_wanted in chosen])
    (whole,) = cut_groups([stream(lengths)], repeat(1000), max_bytes=MANY)

    kept = whole.only(wanted)

    assert len(kept) == int(wanted.sum())
    assert list(kept.transactions()) == [t for t, w in zip(whole.transactions(), wanted, strict=True) if w]


def test_transactions_come_out_as_values() -> None:
    old, new = {"id": 1, "v": None}, {"v": "x"}

    transactions = list(
        group(T(7, insert("t", id=1, v=None), update("t", old, new)), T(9, truncate("u"))).transactions()
    )

    t, u = TableName("public", "t"), TableName("public", "u")
    assert transactions == [
        Transaction(
            7,
            "49",
            None,
            (
                Change(0, Op.INSERT, t, 1, None, {"id": "1", "v": None}),
                Change(1, Op.UPDATE, t, 1, {"id": "1", "v": None}, {"v": "x"}),
            ),
        ),
        Transaction(9, "63", None, (Change(0, Op.TRUNCATE, u, 1, None, None),)),
    ]


def test_commit_times_are_kept_where_they_are_known() -> None:
    batch = as_batch([T(1, insert("t", id=1)), T(2, insert("t", id=2))])
    at = datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    column = batch.schema.get_field_index(c.COMMITTED_AT)
    batch = batch.set_column(column, batch.schema.field(column), pa.array([at, None], batch.schema.field(column).type))

    (found,) = cut_groups([batch], repeat(9), max_bytes=MANY)

    in_us = 1_704_164_645_000_678
    assert found.committed_at_us.tolist() == [in_us, 0]
    assert [t.committed_at_us for t in found.transactions()] == [in_us, None]


def test_an_image_that_cannot_be_read_is_not_shown() -> None:
    batch = as_batch([T(1, delete("t", id=1))])
    column = batch.schema.get_field_index(c.BEFORE)
    broken = batch.set_column(column, batch.schema.field(column), pa.array(['{"id":"s3cret"']))
    (found,) = cut_groups([broken], repeat(9), max_bytes=MANY)

    with pytest.raises(MalformedInputError) as caught:
        list(found.transactions())

    assert "s3cret" not in str(caught.value)


def test_a_group_does_not_end_because_a_batch_does() -> None:
    batch = stream([2, 2, 2])
    whole = [len(g.rows) for g in cut_groups([batch], repeat(3), max_bytes=MANY)]
    cut = [len(g.rows) for g in cut_groups([batch.slice(0, 4), batch.slice(4)], repeat(3), max_bytes=MANY)]
    assert cut == whole
