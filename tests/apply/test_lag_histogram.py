"""Lags: counted in buckets, added up anywhere, told to within five percent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.apply.lag_histogram import LagHistogram

lags_us = st.lists(st.integers(-(10**6), 10**11), min_size=1, max_size=50)


def histogram(*lag_us: int) -> LagHistogram:
    made = LagHistogram()
    made.add(np.array(lag_us, np.int64))
    return made


@settings(deadline=None)
@given(lags_us, st.floats(0.01, 1))
def test_a_quantile_is_off_by_five_percent_at_most(lags: list[int], share: float) -> None:
    told = histogram(*lags).quantile_s(share)

    # Below a millisecond all lags are one.
    true = max(sorted(lags)[math.ceil(share * len(lags)) - 1] / 1e6, 0.001)
    assert told is not None
    assert true * (1 - 1e-9) <= told <= true * 1.05 * (1 + 1e-9)


@settings(deadline=None)
@given(lags_us, lags_us)
def test_histograms_of_lanes_add_up(one: list[int], other: list[int]) -> None:
    merged = histogram(*one)
    merged.merge(histogram(*other).buckets)

    assert merged.buckets == histogram(*one, *other).buckets


def test_counts_survive_json_which_makes_text_of_their_buckets() -> None:
    merged = LagHistogram()

    merged.merge({"17": 2, "18": 1})  # type: ignore[dict-item]  # as json.loads gives them

    assert merged.buckets == {17: 2, 18: 1}


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99, 1.0])
def test_without_transactions_there_is_no_lag(share: float) -> None:
    assert LagHistogram().quantile_s(share) is None
    assert histogram().quantile_s(share) is None


def test_a_clock_that_runs_ahead_makes_no_negative_lag() -> None:
    told = histogram(-5_000_000, -1).quantile_s(1.0)

    assert told == pytest.approx(0.00105)


def test_one_slow_transaction_shows_only_at_the_top() -> None:
    lags = histogram(*[100_000] * 99, 60_000_000)

    assert lags.quantile_s(0.99) == pytest.approx(0.1, rel=0.05)
    assert lags.quantile_s(1.0) == pytest.approx(60, rel=0.05)
