"""What the soak says at its end, and that it can say that something is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.__main__ import Totals
from tests.soak.memory import WARM_UP_S, Memory


def grown(*slopes: float, begin: float = 100.0) -> Memory:
    """One process after the other, each growing by so many megabytes per hour after a steep beginning."""
    memory = Memory()
    for pid, slope in enumerate(slopes):
        for second in range(0, 300, 2):
            warm_up = min(second, WARM_UP_S) * 5
            memory.add(pid, second, begin * (pid + 1) + warm_up + slope * second / 3600)
    return memory


@pytest.mark.parametrize("slope", [0.0, 50.0, -20.0])
def test_growth_is_told_from_warming_up_and_from_restarts(slope: float) -> None:
    found = grown(slope, slope, slope).slope

    assert found is not None
    assert found[0] == pytest.approx(slope, abs=0.01)


def test_a_short_life_says_nothing_of_growth() -> None:
    memory = Memory()
    for second in range(int(WARM_UP_S) + 10):
        memory.add(1, second, second)

    assert memory.slope is None
    assert memory.most == WARM_UP_S + 9


@pytest.mark.parametrize(
    "wrong", [{"lost": 1}, {"doubled": 1}, {"torn": 1}, {"errors": 1}, {"failures": ["did not recover"]}], ids=str
)
def test_whatever_is_wrong_counts(wrong: dict[str, Any]) -> None:
    assert Totals().is_clean
    assert not Totals(**wrong).is_clean
