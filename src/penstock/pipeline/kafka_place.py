"""Topics of a Kafka cluster as the place that a pipeline publishes to, as Debezium's change events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from penstock.apply.ledger import ProcessState
from penstock.change import TableName
from penstock.dialects.base import Step
from penstock.errors import OperatorError, PenstockError, RetryableError
from penstock.formats.debezium.writer import EventSettings, refuse_shared_topics
from penstock.history import Consumer, Words
from penstock.outputs.kafka.publisher import Cluster, make_position, refuse_unmade
from penstock.outputs.kafka.standing import Standing
from penstock.pipeline.kafka_copy import KafkaCopy
from penstock.pipeline.kafka_feed import KafkaFeed
from penstock.pipeline.kafka_ledger import KafkaLedger, consumer_of, state_of
from penstock.pipeline.place import Copying, Following, Place, PlaceLedger
from penstock.pipeline.sides import RunLock
from penstock.snapshot.instantiate import CopyListener


class KafkaPlace:
    """Implements `place.Place`."""

    def __init__(self, cluster: Cluster, settings: EventSettings) -> None:
        """Publish the cluster's pipeline; nothing is touched yet."""
        self._cluster = cluster
        self._settings = settings

    @property
    def label(self) -> str:
        """The brokers, and the topics."""
        return f"{self._cluster.label}, topics {self._settings.prefix}.*"

    @property
    def words(self) -> Words:
        """How messages speak of the topics."""
        return Words(
            noun="stream of events",
            other="give the pipeline another name, and publish.debezium.prefix another text",
            anew=f"`penstock teardown`, then delete topic {self._cluster.position_topic} and the topics of the prefix,"
            " or choose another prefix; `penstock setup` begins with a new first copy",
            shown="any Kafka consumer reads what it has published, with isolation.level=read_committed",
        )

    def is_made(self) -> bool:
        """Whether there is a position topic, and it says of which pipeline it is."""
        return bool(self._cluster.standing().id)

    def faults(self, source: str, tables: Sequence[TableName]) -> list[PenstockError]:
        """What keeps tables from being published here."""
        try:
            refuse_shared_topics(self._settings, tables)
            if not self._cluster.missing([self._cluster.position_topic]):
                self._refuse_deleting()
                standing = self._cluster.standing()
                if standing.id:
                    refuse_unmade(standing, source, self._cluster)
        except RetryableError:
            raise
        except PenstockError as exc:
            return [exc]
        return []

    def steps(self, tables: Sequence[TableName]) -> Sequence[Step]:
        """A step for each topic that is missing."""
        missing = self._cluster.missing(self._topics(tables))
        return [Step(f"topic {topic}", "-- a topic, which `penstock setup` makes") for topic in missing]

    def make(self, source: str, tables: Sequence[TableName]) -> None:
        """Make the topics, and say in the position topic which pipeline it is of."""
        self._cluster.make_topics(self._topics(tables), in_order=[self._settings.transaction_topic])
        if not self.is_made():
            make_position(self._cluster, source)

    def process(self) -> ProcessState | None:
        """Return where the pipeline stands; None where it was never run."""
        standing = self._cluster.standing()
        return state_of(self._cluster, self.label, standing) if standing.epoch else None

    def copies(self) -> Standing:
        """Return what the position topic says of copies."""
        return self._cluster.standing()

    def consumer(self) -> Consumer:
        """What the source knows the pipeline by."""
        return consumer_of(self._cluster, self.label, self._cluster.standing())

    def ledger(self, lock: Callable[[], RunLock]) -> KafkaLedger:
        """Open the ledger of a run."""
        return KafkaLedger(self._cluster, self.label, lock)

    def feed(self, spark: SparkSession, ledger: PlaceLedger, following: Following) -> KafkaFeed:
        """What has tasks publish slices."""
        assert isinstance(ledger, KafkaLedger)
        return KafkaFeed(spark, following, ledger=ledger, cluster=self._cluster, settings=self._settings)

    def copy(
        self,
        spark: SparkSession,
        ledger: PlaceLedger,
        copying: Copying,
        stop: threading.Event,
        listener: CopyListener,
    ) -> None:
        """Publish the rows of tables; see `KafkaCopy`."""
        assert isinstance(ledger, KafkaLedger)
        KafkaCopy(spark, ledger, self._cluster, self._settings, copying).run(stop, listener, begin_anew=self.words.anew)

    def _topics(self, tables: Sequence[TableName]) -> list[str]:
        own = [self._settings.transaction_topic] if self._settings.with_transactions else []
        return [self._cluster.position_topic, *own, *(self._settings.topic_of(table) for table in tables)]

    def _refuse_deleting(self) -> None:
        """Refuse a position topic that forgets the position after a while."""
        policy = self._cluster.settings_of(self._cluster.position_topic).get("cleanup.policy") or ""
        if policy.strip() != "compact":
            raise OperatorError(
                f"the topic that keeps the pipeline's position has cleanup.policy {policy!r}, which may delete it",
                where=self._cluster.where,
                do="set its cleanup.policy to compact",
            )


_: type[Place] = KafkaPlace
