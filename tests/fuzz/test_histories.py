"""A short form of `python -m tests.fuzz.histories`: always the same histories."""

from __future__ import annotations

import pytest

from tests.fuzz.histories import played
from tests.fuzz.history import Result
from tests.fuzz.history_inputs import INPUTS

ROUNDS = {"event-log": 25}
"""Where they are fewer than 60: a server is asked there."""


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_whatever_becomes_of_a_history_nothing_is_lost_doubled_or_torn_in_silence(name: str) -> None:
    total = Result()
    for seed in range(ROUNDS.get(name, 60)):
        result = played(INPUTS[name], seed)
        total.outcomes += result.outcomes
        total.wrong += [f"seed {seed}: {what}" for what in result.wrong]
    assert not total.wrong
    # Both happen, or nothing was tried.
    assert total.outcomes["refused"] > 0
    assert total.outcomes["to the end"] > 0
