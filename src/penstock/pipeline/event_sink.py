"""A log of change events as the place that a pipeline publishes to: what is the same for topics and for files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from penstock.apply.ledger import ProcessState
from penstock.change import TableName
from penstock.errors import PenstockError, RetryableError
from penstock.formats.debezium.writer import EventSettings, topic_faults
from penstock.history import Consumer, HistoryWording
from penstock.outputs.events.publisher import EventDestination, refuse_unmade
from penstock.outputs.events.put_aside import OnBadValue
from penstock.outputs.events.state import PublishedState
from penstock.pipeline.connectors import RunLock
from penstock.pipeline.event_copy import EventCopy
from penstock.pipeline.event_feed import EventFeed
from penstock.pipeline.event_ledger import EventLedger, consumer_of, state_of
from penstock.pipeline.published_queue import PublishedQueue
from penstock.pipeline.sink import Copying, FeedSettings, SinkLedger
from penstock.snapshot.instantiate import CopyListener
from penstock.spark.starting import Spark


class EventSink:
    """Implements most of `sink.Sink`; a subclass says what it is called, and how it is made."""

    def __init__(
        self,
        log: EventDestination,
        settings: EventSettings,
        *,
        on_bad_value: OnBadValue = OnBadValue.STOP,
        max_age_s: float = 0,
    ) -> None:
        """Publish the log's pipeline; nothing is touched yet.

        Args:
            on_bad_value: What becomes of a value that no event can tell.
            max_age_s: How long changes may wait for others that are published with them.
        """
        self._log = log
        self._settings = settings
        self._max_age_s = max_age_s
        self._on_bad_value = on_bad_value

    @property
    def label(self) -> str:
        """The place, named without secrets."""
        return self._log.label

    @property
    def words(self) -> HistoryWording:
        """How messages speak of the events."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise an `OperatorError` if the place cannot be used."""

    def is_made(self) -> bool:
        """Whether something says of which pipeline the events are."""
        return bool(self._log.published_state().id)

    def faults(self, source: str, tables: Sequence[TableName]) -> list[PenstockError]:
        """What keeps tables from being published here."""
        found = list[PenstockError](topic_faults(self._settings, tables))
        try:
            self.check()
            published_state = self._log.published_state()
            if published_state.id:
                refuse_unmade(published_state, source, self._log)
        except RetryableError:
            raise
        except PenstockError as exc:
            found.append(exc)
        return found

    def process(self) -> ProcessState | None:
        """Return where the pipeline stands; None where it was never run."""
        published_state = self._log.published_state()
        return state_of(self._log, self.label, published_state) if published_state.epoch else None

    def copies(self) -> PublishedState:
        """Return which tables' rows were published."""
        return self._log.published_state()

    def consumer(self) -> Consumer:
        """What the source knows the pipeline by."""
        return consumer_of(self._log, self.label, self._log.published_state())

    def ledger(self, lock: Callable[[], RunLock]) -> EventLedger:
        """Open the ledger of a run."""
        return EventLedger(self._log, self.label, lock)

    def feed(self, spark: Spark, ledger: SinkLedger, following: FeedSettings) -> EventFeed:
        """What has tasks publish slices."""
        assert isinstance(ledger, EventLedger)
        max_age_s = 0 if following.until_caught_up else self._max_age_s
        return EventFeed(
            spark,
            following,
            ledger=ledger,
            log=self._log,
            settings=self._settings,
            max_age_s=max_age_s,
            on_bad_value=self._on_bad_value,
        )

    def copy(
        self,
        spark: Spark,
        ledger: SinkLedger,
        copying: Copying,
        stop: threading.Event,
        listener: CopyListener,
    ) -> None:
        """Publish the rows of tables; see `EventCopy`."""
        assert isinstance(ledger, EventLedger)
        copy = EventCopy(spark, ledger, self._log, self._settings, copying, on_bad_value=self._on_bad_value)
        copy.run(stop, listener, begin_anew=self.words.anew)

    def queue(self) -> PublishedQueue:
        """Return what could not be published."""
        return PublishedQueue(self._log, self._settings)
