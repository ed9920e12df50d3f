"""Feeding an archive of change files from a source, by Spark jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from penstock.apply.lane import LaneResult
from penstock.apply.ledger import ProcessState
from penstock.change import TableName
from penstock.pipeline.sink import FeedSettings
from penstock.sinks.archive.files import FileWriter
from penstock.sinks.archive.jobs import PublishJobs
from penstock.sinks.archive.ledger import ArchiveLedger
from penstock.sinks.feed import PublishedFeed, published
from penstock.spark.starting import Spark
from penstock.stream import Slice


class ArchiveFeed(PublishedFeed):
    """Writes slices to data files, and hands them to the ledger, which commits them."""

    def __init__(
        self,
        spark: Spark,
        following: FeedSettings,
        *,
        ledger: ArchiveLedger,
        writer: Callable[[int], FileWriter],
        max_age_s: float,
    ) -> None:
        """Prepare; nothing is opened yet. See `SourceFeed` for the rest.

        Args:
            writer: Makes, for an epoch, the writer that tasks of its run use.
            max_age_s: See `PublishedFeed`.
        """
        super().__init__(following, ledger=ledger, max_age_s=max_age_s)
        self._spark = spark
        self._ledger = ledger
        self._writer = writer
        self._jobs = PublishJobs(spark)

    def start(self, state: ProcessState, known: Collection[TableName]) -> None:
        """Get ready to deliver batches to this run, of `known` tables; their partitions may change."""
        self._jobs = PublishJobs(self._spark)
        self._open(known)
        self._jobs.warm_up()

    def apply(self, part: Slice, lanes: int) -> Sequence[LaneResult]:
        """Write the changes of a slice; they are published once the ledger has completed the batch."""
        self._refresh()
        written = self._jobs.run(part)
        self._ledger.take(written)
        tables = written.tables.as_one_transaction() if part.is_large else written.tables
        return [published(part, len(written.transactions), int(written.transactions.changes.sum()), tables)]

    def _refresh(self) -> None:
        if self._take_up():
            reader = self._reader()
            self._jobs.share(reader, self._writer(self._ledger.epoch))
