"""Words for people, and lines that fit a terminal."""

from __future__ import annotations

import pytest

from penstock.text import duration, wrap


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


def test_a_command_that_is_longer_than_a_line_is_broken_and_loses_no_character() -> None:
    text = "next: `penstock errors retry shop.1`"

    assert "".join(wrap(text, 10)).replace(" ", "") == text.replace(" ", "")
