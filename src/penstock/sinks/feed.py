"""Feeding a sink from a source: what is the same for every sink."""

from __future__ import annotations

import math
import threading
import time

from penstock.apply.lag_histogram import LagHistogram
from penstock.apply.lane import LaneResult
from penstock.apply.process import TablesAddedError
from penstock.apply.table_counts import TableCounts
from penstock.pipeline.feed import SourceFeed
from penstock.pipeline.sink import FeedSettings, SinkLedger
from penstock.position import Limit, Scn
from penstock.stream import Reader, Slice

_ENOUGH = 100_000
"""A batch of so many changes is followed by the next one at once."""


class PublishedFeed(SourceFeed):
    """The half of a feed that is about the source; a subclass publishes."""

    def __init__(self, following: FeedSettings, *, ledger: SinkLedger, max_age_s: float) -> None:
        """Prepare; nothing is opened yet.

        Args:
            max_age_s: How long changes may wait for others that are published with them.
        """
        super().__init__(
            following.open_source,
            follow_source=following.follow_source,
            is_meant=following.is_meant,
            save_dictionary=ledger.save_dictionary,
            left_out=following.left_out,
        )
        self._following = following
        self._ledger_of_run = ledger
        self._max_age_s = max_age_s
        self._gathers_until = -math.inf

    @property
    def source(self) -> str:
        """The name of the source."""
        return self._following.source

    @property
    def is_gathering(self) -> bool:
        """Whether changes are left to gather, where each batch makes files."""
        return time.monotonic() < self._gathers_until

    def next_batch(self, after: Scn, limit: Limit) -> Slice | None:
        """Return the transactions that follow `after`; none while a few gather, for each batch makes files."""
        if self.is_gathering:
            return None
        batch = super().next_batch(after, limit)
        if batch is not None and batch.total_changes < _ENOUGH:
            self._gathers_until = time.monotonic() + self._max_age_s
        return batch

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when enough may have gathered; when told to stop, or after the timeout, at the latest."""
        left = self._gathers_until - time.monotonic()
        if left > 0:
            stop.wait(min(left, timeout_s))
        else:
            super().wait(stop, timeout_s)

    def _reader(self) -> Reader:
        """A reader of the tables that are followed now.

        Raises:
            TablesAddedError: The rows of some were not published yet.
        """
        following = self._following
        if not set(following.uncopied(self._versions)) <= self._left_out.tables:
            raise TablesAddedError("tables were made anew or renamed; they are copied first")
        # Changes committed before a table was renamed are published under its earlier name.
        ids = {v.id for v in self._versions if v.table.name in self._known or v.root in self._known}
        names = {v.table.name for v in self._versions if v.id in ids}
        follows = self._left_out.without(self._known | names, self._versions)
        cancelled = self._ledger_of_run.cancelled()
        roots = {v.table.name for v in self._versions if cancelled.get(v.table.name) == v.id}
        follows -= {v.table.name for v in self._versions if v.root in roots} | roots
        return following.access.reader(following.source, self._versions, follows=follows)


def published(part: Slice, transactions: int, changes: int, tables: TableCounts) -> LaneResult:
    """What is counted of a slice of which so much was published: what is of no table that is followed was left out."""
    lag = LagHistogram()
    lag.add(time.time_ns() // 1_000 - part.committed_at_us)
    return LaneResult(transactions=transactions, changes=changes, lag=lag, tables=tables)
