"""Debezium's change events as a sink: topics of a Kafka cluster, or files in a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from penstock.apply.ledger import ProcessState
from penstock.apply.listener import CopyListener
from penstock.change import TableName
from penstock.database import SetupStep
from penstock.errors import PenstockError, RetryableError
from penstock.formats.debezium.writer import EventSettings
from penstock.history import Consumer, HistoryWording
from penstock.pipeline.connectors import RunLock
from penstock.pipeline.published_copies import PublishedCopies
from penstock.pipeline.published_queue import PublishedQueue
from penstock.pipeline.sink import Copying, FeedSettings, Sink, SinkLedger
from penstock.sinks.events.copy import EventCopy
from penstock.sinks.events.encoder import EventFormat
from penstock.sinks.events.encoding import RecordFormat
from penstock.sinks.events.feed import EventFeed
from penstock.sinks.events.files import Folder
from penstock.sinks.events.kafka import Cluster
from penstock.sinks.events.ledger import EventLedger, consumer_of, state_of
from penstock.sinks.events.publisher import EventDestination, make_position, refuse_unmade
from penstock.sinks.events.put_aside import OnBadValue
from penstock.sinks.events.state import PublishedState
from penstock.spark.starting import Spark


class EventSink:
    """Implements most of `sink.Sink`; a subclass says what it is called, and how it is made."""

    def __init__(
        self,
        log: EventDestination,
        form: RecordFormat,
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
        self._form = form
        self._max_age_s = max_age_s
        self._on_bad_value = on_bad_value

    @property
    def label(self) -> str:
        """The sink, named without secrets."""
        return self._log.label

    @property
    def words(self) -> HistoryWording:
        """How messages speak of the events."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise an `OperatorError` if the sink cannot be used."""

    def is_made(self) -> bool:
        """Whether something says of which pipeline the events are."""
        return bool(self._log.published_state().id)

    def faults(self, source: str, tables: Sequence[TableName]) -> list[PenstockError]:
        """What keeps tables from being published here."""
        found = list[PenstockError](self._form.faults(tables))
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
            form=self._form,
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
        copy = EventCopy(spark, ledger, self._log, self._form, copying, on_bad_value=self._on_bad_value)
        copy.run(stop, listener, begin_anew=self.words.anew)

    def queue(self) -> PublishedQueue:
        """Return what could not be published."""
        return PublishedQueue(self._log, self._form)

    def requests(self) -> PublishedCopies:
        """Return the copies that can be asked for."""
        return PublishedCopies(self._log, self._form)


class KafkaSink(EventSink):
    """Implements `sink.Sink`."""

    def __init__(
        self, cluster: Cluster, settings: EventSettings, *, on_bad_value: OnBadValue = OnBadValue.STOP
    ) -> None:
        """Publish the cluster's pipeline; nothing is touched yet."""
        super().__init__(cluster, EventFormat(settings), on_bad_value=on_bad_value)
        self._cluster = cluster
        self._settings = settings

    @property
    def label(self) -> str:
        """The brokers, and the topics."""
        return f"{self._cluster.label}, topics {self._settings.prefix}.*"

    @property
    def words(self) -> HistoryWording:
        """How messages speak of the topics."""
        return HistoryWording(
            noun="stream of events",
            other="give the pipeline another name, and publish.debezium.prefix another text",
            anew=f"`penstock teardown`, then delete topic {self._cluster.position_topic} and the topics of the prefix,"
            " or choose another prefix; `penstock setup` begins with a new first copy",
            shown="any Kafka consumer reads what it has published, with isolation.level=read_committed",
        )

    def check(self) -> None:
        """Refuse a position topic that forgets the position after a while."""
        self._cluster.refuse_forgetful()

    def steps(self, tables: Sequence[TableName]) -> Sequence[SetupStep]:
        """A step for each topic that is missing."""
        missing = self._cluster.missing(self._topics(tables))
        return [SetupStep(f"topic {topic}", "-- a topic, which `penstock setup` makes") for topic in missing]

    def make(self, source: str, tables: Sequence[TableName]) -> None:
        """Make the topics, and say in the position topic which pipeline it is of."""
        self._cluster.make_topics(self._topics(tables), in_order=[self._settings.transaction_topic])
        if not self.is_made():
            make_position(self._cluster, source)

    def _topics(self, tables: Sequence[TableName]) -> list[str]:
        own = [self._settings.transaction_topic] if self._settings.with_transactions else []
        return [self._cluster.position_topic, *own, *(self._settings.topic_of(table) for table in tables)]


class EventFileSink(EventSink):
    """Implements `sink.Sink`."""

    def __init__(
        self,
        folder: Folder,
        settings: EventSettings,
        *,
        max_age_s: float,
        on_bad_value: OnBadValue = OnBadValue.STOP,
    ) -> None:
        """Publish the folder's pipeline; nothing is touched yet."""
        super().__init__(folder, EventFormat(settings), max_age_s=max_age_s, on_bad_value=on_bad_value)
        self._settings = settings
        self._folder = folder

    @property
    def words(self) -> HistoryWording:
        """How messages speak of the files."""
        return HistoryWording(
            noun="folder of events",
            other="give publish.path another folder",
            anew="`penstock teardown`, then `penstock setup` with another publish.path, begins with a new first copy",
            shown=f"the lines of its files, in {self.label}, are what it has published",
        )

    def check(self) -> None:
        """Refuse a folder that cannot be written to."""
        self._folder.storage.check_writable(".")

    def steps(self, tables: Sequence[TableName]) -> Sequence[SetupStep]:
        """A step where nothing was published yet."""
        if self.is_made():
            return []
        return [SetupStep("a folder of change events", "-- a folder, which `penstock setup` makes")]

    def make(self, source: str, tables: Sequence[TableName]) -> None:
        """Write the first file, which only says of which pipeline the folder is."""
        if not self.is_made():
            make_position(self._folder, source)


_: type[Sink] = KafkaSink
__: type[Sink] = EventFileSink
