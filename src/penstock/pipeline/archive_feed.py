"""Feeding an archive of change files from a source, by Spark jobs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence

from pyspark.sql import SparkSession

from penstock.apply.ledger import ProcessState
from penstock.apply.server import LaneResult
from penstock.change import TableName
from penstock.outputs.publish.files import FileWriter
from penstock.pipeline.archive_ledger import ArchiveLedger
from penstock.pipeline.feed import SliceBatch
from penstock.pipeline.place import Following
from penstock.pipeline.published_feed import PublishedFeed, published
from penstock.position import Limit, Scn
from penstock.spark.publishing import PublishJobs
from penstock.stream import Slice

_ENOUGH = 100_000
"""A batch of so many changes is followed by the next one at once."""


class ArchiveFeed(PublishedFeed):
    """Writes slices to data files, and hands them to the ledger, which commits them."""

    def __init__(
        self,
        spark: SparkSession,
        following: Following,
        *,
        ledger: ArchiveLedger,
        writer: Callable[[int], FileWriter],
        max_age_s: float,
    ) -> None:
        """Prepare; nothing is opened yet. See `SourceFeed` for the rest.

        Args:
            writer: Makes, for an epoch, the writer that tasks of its run use.
            max_age_s: How long changes may wait for others that go into the same file.
        """
        super().__init__(following, definitions=ledger)
        self._spark = spark
        self._ledger = ledger
        self._writer = writer
        self._max_age_s = max_age_s
        self._gathers_until = -math.inf
        self._jobs = PublishJobs(spark)

    def start(self, state: ProcessState, known: Collection[TableName]) -> None:
        """Get ready to deliver batches to this run, of `known` tables; their partitions may change."""
        self._jobs = PublishJobs(self._spark)
        self._open(known)
        self._jobs.warm_up()

    @property
    def is_gathering(self) -> bool:
        """Whether changes are left to gather, each batch of which makes files."""
        return time.monotonic() < self._gathers_until

    def next_batch(self, after: Scn, limit: Limit) -> SliceBatch | None:
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

    def apply(self, part: Slice, lanes: int) -> Sequence[LaneResult]:
        """Write the changes of a slice; they are published once the ledger has completed the batch."""
        self._refresh()
        self._ledger.take(self._jobs.run(part))
        return [published(part)]

    def _refresh(self) -> None:
        if self._take_up():
            reader = self._reader()
            self._jobs.share(reader, self._writer(self._ledger.epoch))
