"""The lag of the transactions that a run has applied, as a histogram that can be added up across lanes and batches.

The lag that `penstock status` shows is another one: how far behind the target is now, see `pipeline.status`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_BASE = 1.05
"""Bucket n holds lags from 1.05**n to 1.05**(n+1) milliseconds, so a quantile is off by 5 % at most."""


@dataclass
class LagHistogram:
    """Counts of transactions by the time between commit at the source and commit at the target."""

    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, lag_us: NDArray[np.int64]) -> None:
        """Count transactions; clocks that disagree make a lag of zero, never a negative one."""
        numbers = np.floor(np.log(np.maximum(lag_us / 1000, 1)) / np.log(_BASE)).astype(int)
        values, counts = np.unique(numbers, return_counts=True)
        self.buckets.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def merge(self, buckets: Mapping[int, int], *, most_s: float = math.inf) -> None:
        """Add the counts of another histogram, but for lags of more than so many seconds."""
        known = {int(bucket): count for bucket, count in buckets.items()}
        self.buckets.update({bucket: count for bucket, count in known.items() if _BASE**bucket / 1000 <= most_s})

    @staticmethod
    def upper_s(bucket: int) -> float:
        """The upper end of a bucket, in seconds."""
        return float(_BASE ** (bucket + 1) / 1000)

    def quantile_s(self, share: float) -> float | None:
        """Seconds that `share` of the transactions stayed at or below; None when there were none."""
        total, seen = self.buckets.total(), 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= share * total:
                return self.upper_s(bucket)
        return None
