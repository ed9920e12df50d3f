"""The conflict log of a process is kept for so long; a run deletes what is older, now and then."""

from __future__ import annotations

import time
from datetime import timedelta

from penstock.pipeline.connectors import TargetLedger

_EVERY_S = 3600.0


class Trimming:
    """Deletes what is too old, at the start of a run and each hour."""

    def __init__(self, ledger: TargetLedger, keep: timedelta | None) -> None:
        """Keep entries for so long; None: for ever."""
        self._ledger = ledger
        self._keep = keep
        self._looked_at: float | None = None

    def look(self) -> None:
        """Delete what is too old, unless that was done within the last hour."""
        now = time.monotonic()
        if self._keep is None or (self._looked_at is not None and now - self._looked_at < _EVERY_S):
            return
        self._ledger.trim_conflicts(self._keep)
        self._looked_at = now
