"""A short form of `python -m tests.fuzz.events`: always the same events."""

from __future__ import annotations

import pytest

from tests.fuzz.events import RECORDED, Play

ROUNDS = 3
AT_LEAST = len(RECORDED) * 4 + 2
"""What each round has: of each connector an event with a schema, told, planned, broken; and two in Avro."""


@pytest.mark.parametrize("seed", range(20))
def test_mutated_events_come_as_they_are_or_are_refused_in_one_line(seed: int) -> None:
    play = Play(seed)
    for _ in range(ROUNDS):
        play.round()
    assert not play.result.wrong
    assert play.result.outcomes.total() >= ROUNDS * AT_LEAST
    assert play.result.outcomes["told read"] > 0
