"""Feeding an archive of change files from a source, by Spark jobs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence

from pyspark.sql import SparkSession

from penstock.apply.lag import LagHistogram
from penstock.apply.ledger import ProcessState
from penstock.apply.process import TablesAddedError
from penstock.apply.server import LaneResult
from penstock.change import TableName
from penstock.outputs.publish.files import FileWriter
from penstock.pipeline.archive_ledger import ArchiveLedger
from penstock.pipeline.feed import SliceBatch, SourceFeed
from penstock.position import Limit, Scn
from penstock.spark.publishing import PublishJobs
from penstock.stream import Slice, Source, SourceAccess, TableVersion

_ENOUGH = 100_000
"""A batch of so many changes is followed by the next one at once."""


class ArchiveFeed(SourceFeed):
    """Writes slices to data files, and hands them to the ledger, which commits them."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        source: str,
        access: SourceAccess,
        open_source: Callable[[], Source],
        follow_source: Callable[[], None],
        is_meant: Callable[[TableName], bool],
        ledger: ArchiveLedger,
        uncopied: Callable[[Sequence[TableVersion]], Sequence[TableName]],
        writer: Callable[[int], FileWriter],
        max_age_s: float,
    ) -> None:
        """Prepare; nothing is opened yet. See `SourceFeed` for the rest.

        Args:
            source: The value of the column of that name.
            access: How tasks reach the source; `open_source` is how this process does.
            uncopied: The tables, of these versions, whose rows the archive lacks.
            writer: Makes, for an epoch, the writer that tasks of its run use.
            max_age_s: How long changes may wait for others that go into the same file.
        """
        super().__init__(open_source, follow_source=follow_source, is_meant=is_meant, definitions=ledger)
        self._spark = spark
        self._source_name = source
        self._access = access
        self._ledger = ledger
        self._uncopied = uncopied
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
        return [LaneResult(transactions=len(part), changes=part.total_changes, lag=_lag(part))]

    def _refresh(self) -> None:
        if self._take_up():
            if self._uncopied(self._versions):
                raise TablesAddedError("tables were made anew or renamed; they are copied first")
            # Changes committed before a table was renamed are published under its earlier name.
            ids = {v.id for v in self._versions if v.table.name in self._known or v.root in self._known}
            names = {v.table.name for v in self._versions if v.id in ids}
            reader = self._access.reader(self._source_name, self._versions, follows=self._known | names)
            self._jobs.share(reader, self._writer(self._ledger.epoch))


def _lag(part: Slice) -> LagHistogram:
    lag = LagHistogram()
    lag.add(time.time_ns() // 1_000 - part.committed_at_us)
    return lag
