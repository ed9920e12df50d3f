"""Feeding a log of events from a source, by Spark jobs of one task each."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.apply.lane import LaneResult
from penstock.apply.ledger import ProcessState
from penstock.apply.process import TablesAddedError
from penstock.change import TableName
from penstock.pipeline.sink import FeedSettings
from penstock.position import Limit, Scn
from penstock.schema import Dictionary
from penstock.sinks.events.encoding import Encoder, RecordFormat
from penstock.sinks.events.jobs import EventJobs
from penstock.sinks.events.ledger import EventLedger
from penstock.sinks.events.publisher import EventDestination
from penstock.sinks.events.put_aside import OnBadValue
from penstock.sinks.events.task import EventTask
from penstock.sinks.feed import PublishedFeed, published
from penstock.spark.starting import Spark
from penstock.stream import Slice

_HEAR_EVERY_S = 3.0
"""How often an idle run looks whether copies were requested or cancelled."""


class EventFeed(PublishedFeed):
    """Has tasks publish slices, one after the other."""

    def __init__(
        self,
        spark: Spark,
        following: FeedSettings,
        *,
        ledger: EventLedger,
        log: EventDestination,
        form: RecordFormat,
        max_age_s: float,
        on_bad_value: OnBadValue,
    ) -> None:
        """Prepare; nothing is opened yet. See `PublishedFeed` for the rest."""
        super().__init__(following, ledger=ledger, max_age_s=max_age_s)
        self._spark = spark
        self._ledger = ledger
        self._log = log
        self._form = form
        self._on_bad_value = on_bad_value
        self._jobs = EventJobs(spark)
        self._heard_at = 0.0
        self._asks = ledger.asks()

    def start(self, state: ProcessState, known: Collection[TableName]) -> None:
        """Get ready to deliver batches to this run, of `known` tables; their partitions may change."""
        self._jobs = EventJobs(self._spark)
        self._asks = self._ledger.asks()
        self._open(known)
        self._jobs.warm_up()

    def next_batch(self, after: Scn, limit: Limit) -> Slice | None:
        """Return the transactions that follow `after`; None when there are none yet.

        Raises:
            TablesAddedError: Users have asked for copies, or cancelled some: whoever writes that becomes the only
                publisher for a moment, and so the next task has met it.
        """
        if self._ledger.asks() != self._asks:
            raise TablesAddedError("copies of tables were requested or cancelled")
        return super().next_batch(after, limit)

    def look_around(self) -> None:
        """Notice what was added at the source, and what users have asked for, while nothing is published."""
        super().look_around()
        if time.monotonic() - self._heard_at > _HEAR_EVERY_S:
            self._heard_at = time.monotonic()
            self._following.take_up_asked()
            if self._ledger.asks(anew=True) != self._asks:
                raise TablesAddedError("copies of tables were requested or cancelled")

    def apply(self, part: Slice, lanes: int) -> Sequence[LaneResult]:
        """Publish the changes of a slice, and with them where it ends."""
        self._refresh()
        before = self._ledger.published_state
        done = self._jobs.run(part, self._ledger.token)
        self._ledger.took(done)
        now = self._ledger.published_state
        counted = published(part, now.transactions - before.transactions, now.changes - before.changes, done.tables)
        return [replace(counted, errors=now.last_error - before.last_error)]

    def _refresh(self) -> None:
        if self._take_up():
            reader = self._reader()
            names = sorted({v.table.name for v in self._versions if v.root in self._known})
            for fault in self._form.faults(names):
                raise fault
            self._jobs.share(reader, EventTask(self._log, self._ledger.epoch, self._events(), self._on_bad_value))

    def _events(self) -> Encoder:
        copied = self._ledger.instantiated()
        # A partition was copied with its root.
        of_parts = {v.table.name: copied[v.root] for v in self._versions if v.root in copied}
        dictionary = Dictionary(version.table for version in self._versions)
        return self._form.encoder(dictionary, dict(copied) | of_parts)
