"""DbWatcher messages as a sink: one topic of a Kafka cluster, or files in a folder."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.change import TableName
from penstock.database import SetupStep
from penstock.history import HistoryWording
from penstock.pipeline.sink import Sink
from penstock.sinks.dbwatcher.encoder import MessageFormat, MessageSettings
from penstock.sinks.dbwatcher.folder import MessageFolder
from penstock.sinks.events.kafka import Cluster
from penstock.sinks.events.publisher import make_position
from penstock.sinks.events.put_aside import OnBadValue
from penstock.sinks.events.sink import EventSink


class MessageTopicSink(EventSink):
    """Publishes to one topic with one partition, in which messages stay in order. Implements `sink.Sink`."""

    def __init__(
        self, cluster: Cluster, settings: MessageSettings, *, on_bad_value: OnBadValue = OnBadValue.STOP
    ) -> None:
        """Publish the cluster's pipeline; nothing is touched yet."""
        super().__init__(cluster, MessageFormat(settings), on_bad_value=on_bad_value)
        self._cluster = cluster
        self._topic = settings.topic

    @property
    def label(self) -> str:
        """The brokers, and the topic."""
        return f"{self._cluster.label}, topic {self._topic}"

    @property
    def words(self) -> HistoryWording:
        """How messages speak of the topic."""
        return HistoryWording(
            noun="stream of messages",
            other="give the pipeline another name, and publish.topic another text",
            anew=f"`penstock teardown`, then delete topics {self._cluster.position_topic} and {self._topic}, or choose"
            " another topic; `penstock setup` begins with a new first copy",
            shown="any Kafka consumer reads what it has published, with isolation.level=read_committed",
        )

    def check(self) -> None:
        """Refuse a position topic that forgets the position after a while."""
        self._cluster.refuse_forgetful()

    def steps(self, tables: Sequence[TableName]) -> Sequence[SetupStep]:
        """A step for each topic that is missing."""
        missing = self._cluster.missing([self._cluster.position_topic, self._topic])
        return [SetupStep(f"topic {topic}", "-- a topic, which `penstock setup` makes") for topic in missing]

    def make(self, source: str, tables: Sequence[TableName]) -> None:
        """Make the topics, and say in that of the position which pipeline it is of."""
        self._cluster.make_topics([self._cluster.position_topic, self._topic], in_order=[self._topic])
        if not self.is_made():
            make_position(self._cluster, source)


class MessageFileSink(EventSink):
    """Publishes to files, each of which appears whole with its messages and the position. Implements `sink.Sink`."""

    def __init__(
        self,
        folder: MessageFolder,
        settings: MessageSettings,
        *,
        max_age_s: float,
        on_bad_value: OnBadValue = OnBadValue.STOP,
    ) -> None:
        """Publish the folder's pipeline; nothing is touched yet."""
        super().__init__(folder, MessageFormat(settings), max_age_s=max_age_s, on_bad_value=on_bad_value)
        self._folder = folder

    @property
    def words(self) -> HistoryWording:
        """How messages speak of the files."""
        return HistoryWording(
            noun="folder of messages",
            other="give publish.path another folder",
            anew="`penstock teardown`, then `penstock setup` with another publish.path, begins with a new first copy",
            shown=f"the messages in its files, in {self.label}, are what it has published",
        )

    def check(self) -> None:
        """Refuse a folder that cannot be written to."""
        self._folder.storage.check_writable(".")

    def steps(self, tables: Sequence[TableName]) -> Sequence[SetupStep]:
        """A step where nothing was published yet."""
        if self.is_made():
            return []
        return [SetupStep("a folder of DbWatcher messages", "-- a folder, which `penstock setup` makes")]

    def make(self, source: str, tables: Sequence[TableName]) -> None:
        """Write the first file, which only says of which pipeline the folder is."""
        if not self.is_made():
            make_position(self._folder, source)


_: type[Sink] = MessageTopicSink
__: type[Sink] = MessageFileSink
