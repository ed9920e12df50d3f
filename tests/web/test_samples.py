"""What is drawn over time is bounded, and the longer spans lose no peak and no change."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from penstock.history import Consumer, ConsumerState
from penstock.pipeline.observation import Observation
from penstock.pipeline.status import not_set_up
from penstock.position import Scn
from penstock.web.samples import SPANS, CurvePoint, Samples, sample_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_week_of_samples_takes_no_more_room_than_a_few_days() -> None:
    samples = Samples()
    for n in range(7 * 24 * 1800):
        samples.add(CurvePoint(n * 2.0, 1.0, n, 5, {"shop": 1}))

    kept = [samples.of(number) for number in range(len(SPANS))]
    assert [len(found) for found in kept] == [span.points for span in SPANS]
    lengths = [found[-1].at_s - found[0].at_s for found in kept]
    assert lengths == pytest.approx([30 * 60, 8 * 3600, 3 * 86400], rel=0.01)


def test_a_step_of_a_longer_span_keeps_the_peak_and_all_that_was_applied() -> None:
    samples = Samples()
    for n in range(30):
        samples.add(CurvePoint(n * 2.0, 90.0 if n == 7 else 1.0, n * 100, 5000 if n == 8 else 0, {}))

    first, second = samples.of(1)
    assert (first.lag_s, first.backlog, first.changes) == (90.0, 5000, 1400)
    assert (second.lag_s, second.backlog, second.changes) == (1.0, 0, 2900)


def test_a_clock_that_was_set_back_leaves_no_curve_that_runs_backwards() -> None:
    samples = Samples()
    for at_s in (1000.0, 1002.0, 4600.0, 4602.0, 1004.0, 1006.0):
        samples.add(CurvePoint(at_s))
    assert [one.at_s for one in samples.of(0)] == [1000.0, 1002.0, 1004.0, 1006.0]
    assert [one.at_s for one in samples.of(1)] == [1006.0]


def test_what_nobody_can_tell_is_a_hole_and_no_zero() -> None:
    assert sample_of(Observation(NOW, lost="away")).to_json() == [NOW.timestamp(), None, None, None, None]
    lost = replace(not_set_up("shop"), source_lost="away", changes=7)
    assert sample_of(Observation(NOW, lost)).to_json()[1:] == [None, 7, None, None]


def test_only_the_consumers_furthest_behind_are_drawn() -> None:
    consumers = [ConsumerState(Consumer(str(n), f"c{n}", "copy"), Scn(0), 1, 100 - n, None, NOW) for n in range(50)]
    sample = sample_of(
        Observation(NOW + timedelta(seconds=1), replace(not_set_up("shop"), consumers=consumers, consumer_id="0"))
    )
    assert sample.held == {"c0": 100, **{f"c{n}, copy": 100 - n for n in range(1, 6)}}
