"""Topics of a Kafka cluster as the place that a pipeline publishes to, as Debezium's change events."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.change import TableName
from penstock.dialects.base import SetupStep
from penstock.formats.debezium.writer import EventSettings
from penstock.history import HistoryWording
from penstock.outputs.events.kafka import Cluster
from penstock.outputs.events.publisher import make_position
from penstock.outputs.events.put_aside import OnBadValue
from penstock.pipeline.event_sink import EventSink
from penstock.pipeline.sink import Sink


class KafkaSink(EventSink):
    """Implements `sink.Sink`."""

    def __init__(
        self, cluster: Cluster, settings: EventSettings, *, on_bad_value: OnBadValue = OnBadValue.STOP
    ) -> None:
        """Publish the cluster's pipeline; nothing is touched yet."""
        super().__init__(cluster, settings, on_bad_value=on_bad_value)
        self._cluster = cluster

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


_: type[Sink] = KafkaSink
