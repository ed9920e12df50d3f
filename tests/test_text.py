"""Words for people, and lines that fit a terminal."""

from __future__ import annotations

import pytest

from penstock.text import duration, how_far, wrap


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.04, "0.0 s"),
        (59.9, "59.9 s"),
        (60, "1 min 0 s"),
        (3_599.9, "59 min 59 s"),
        (12_000, "3 h 20 min"),
        (28_281_025.6, "327 d 7 h"),
        (86_400_000, "1,000 d 0 h"),
    ],
)
def test_a_span_of_time_is_told_in_two_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_command_stays_on_one_line() -> None:
    text = "the error queue holds 2 transactions that change it: `penstock errors list` says why"

    assert wrap(text, 66) == [
        "the error queue holds 2 transactions that change it:",
        "`penstock errors list` says why",
    ]


def test_lines_of_a_text_stay_lines() -> None:
    assert wrap("p.yaml:1: has no value\np.yaml:2: is missing, and needed", 20) == [
        "p.yaml:1: has no",
        "value",
        "p.yaml:2: is",
        "missing, and needed",
    ]
    assert wrap("", 20) == [""]


def test_a_command_that_is_longer_than_a_line_is_broken_and_loses_no_character() -> None:
    text = "next: `penstock errors retry shop.1`"

    assert "".join(wrap(text, 10)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("done", "of", "took_s", "said"),
    [
        (0, 8, 2, "0/8 ranges, 0 %"),
        (3, 8, 3, "3/8 ranges, 38 %, 5 s left"),
        (1, 1_000, 1, "1/1,000 ranges, 0 %, 16 min 39 s left"),
        (1, 1, 7, "1/1 range, 100 %"),
        (0, 0, 0, "0/0 ranges, 100 %"),
    ],
)
def test_how_far_work_is_says_what_is_left_at_this_pace(done: int, of: int, took_s: float, said: str) -> None:
    assert how_far(done, of, "range", took_s) == said
