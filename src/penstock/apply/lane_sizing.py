"""How much a batch takes, and in one lane or in all, from how fast the last ones were.

How many lanes there are is a parameter, `parallelism`: `Parameters.lanes`.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.position import Limit

_SMALL_BATCH = 20_000
"""A batch of fewer changes takes one lane: planning and shuffling would take longer than they save."""

_PLANNED_CHANGES = 100_000
"""Most that is planned at once. It is held in memory as a whole; and the more transactions, the more hang together."""

_TRY_AFTER = 3
_TRY_AGAIN_AFTER = 30
"""So many large batches in a row go the way that was quicker so far, before the other one is tried."""

_TRIAL = 2
"""A trial of several lanes takes so many batches; only the last one is measured."""

_BATCH_S = 5.0
_SMALLEST_LIMIT = 1_000
"""A batch should take so long at most, or hold so few changes: a run that is told to stop finishes its batch first."""

_WEIGHT = 0.5
"""Weight of the newest batch in the measured rates."""


class LaneSizing:
    """Chooses between one lane, which reads, nets and applies at the same time, and several, which are planned first.

    Which is quicker depends on how many cores there are, where the target is, and how much of the work depends on
    itself; so it is measured.
    """

    def __init__(self, limit: Limit, lanes: int) -> None:
        """Stay within `limit`, and use `lanes` or one."""
        self._limit = limit
        self._lanes = lanes
        self._is_planned = False
        self._is_trial = False
        self._batches_left = _TRY_AFTER
        self._rates: dict[bool, float] = {}
        self._last_rate: float | None = None

    def limit(self) -> Limit:
        """Most that the next batch is to take."""
        most = self._limit.max_changes
        if self._last_rate is not None:
            most = min(most, max(_SMALLEST_LIMIT, int(self._last_rate * _BATCH_S)))
        return replace(self._limit, max_changes=min(most, _PLANNED_CHANGES) if self._is_planned else most)

    def lanes(self, *, transactions: int, changes: int) -> int:
        """In how many lanes a batch is to be applied."""
        is_worth_it = transactions > 1 and _SMALL_BATCH <= changes <= _PLANNED_CHANGES
        return self._lanes if self._is_planned and is_worth_it else 1

    def note(self, *, lanes: int, changes: int, seconds: float) -> None:
        """Learn how long a batch took."""
        rate = self._last_rate = changes / max(seconds, 1e-9)
        is_planned = lanes > 1
        if self._lanes == 1 or changes < _SMALL_BATCH or is_planned != self._is_planned:
            return
        self._batches_left -= 1
        if self._is_trial and self._batches_left > 0:
            # Workers had to be started for it, and plans compiled.
            return
        self._rates[is_planned] = (1 - _WEIGHT) * self._rates.get(is_planned, rate) + _WEIGHT * rate
        if self._is_trial:
            self._is_planned = self._rates[True] > self._rates[False]
            self._is_trial, self._batches_left = False, _TRY_AGAIN_AFTER
        elif self._batches_left <= 0:
            self._is_planned, self._is_trial, self._batches_left = not self._is_planned, True, _TRIAL
