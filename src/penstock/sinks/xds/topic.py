"""A topic of Kafka with XDS documents: each of one event, and published together with the position that they reach.

The key of a record is the event's association, so the events of an object stay in order in one partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.database import SetupStep
from penstock.errors import OperatorError
from penstock.formats.debezium.writer import OutgoingRecord
from penstock.formats.xds.writer import association_of, document_of
from penstock.history import CaptureOrigin
from penstock.position import Scn
from penstock.sinks.events.kafka import Cluster
from penstock.sinks.events.publisher import Publisher, begin_run, make_position
from penstock.sources.event_log.source import Journal

AT_ONCE = 1_000
"""Most events in one Kafka transaction."""


class XdsTopic:
    """Takes events, each of which is there once for consumers that read what is committed."""

    def __init__(self, cluster: Cluster, topic: str, source: str, journal: Journal) -> None:
        """Publish to a topic; nothing is touched yet.

        Args:
            source: What the pipeline calls its source.
            journal: Whose positions those of the documents are.
        """
        self._cluster = cluster
        self._topic = topic
        self._source = source
        self._journal = journal
        self._publisher: Publisher | None = None

    @property
    def label(self) -> str:
        """The brokers, and the topic."""
        return f"{self._cluster.label}, topic {self._topic}"

    @property
    def shown_by(self) -> str:
        """What shows what was published."""
        return "any Kafka consumer reads the documents, with isolation.level=read_committed"

    def refuse_unfit(self) -> None:
        """Make sure that the brokers answer, and that the position is kept."""
        self._cluster.refuse_forgetful()

    def hold_against(self, position: Scn) -> None:
        """Make sure that nothing was published behind the journal's position; asked before anything is polled.

        Raises:
            OperatorError: The journal is another one, or was restored to an older state: it would give the positions
                that were published to other events, which would be taken for published.
            RetryableError: The brokers are out of reach.
        """
        published_state = self._cluster.published_state()
        if published_state.origin is not None:
            self._refuse_other(published_state.origin, is_later=published_state.position > position)

    def steps(self) -> Sequence[SetupStep]:
        """A step for each topic that is missing."""
        missing = self._cluster.missing([self._cluster.position_topic, self._topic])
        return [SetupStep(f"topic {topic}", "-- a topic, which `penstock setup` makes") for topic in missing]

    def make(self) -> None:
        """Make the topics, and say in that of the position which pipeline it is of."""
        self._cluster.make_topics([self._cluster.position_topic, self._topic])
        make_position(self._cluster, self._source)

    def put_all(self, documents: Sequence[tuple[Scn, Sequence[str]]]) -> None:
        """Publish events; see `put`."""
        for first, elements in documents:
            self.put(first, elements)

    def put(self, first: Scn, elements: Sequence[str]) -> None:
        """Publish events, but for those that were published before.

        Args:
            first: The position of the first one.

        Raises:
            OperatorError: The position that is kept is of another journal, or the brokers refuse something.
            RetryableError: The brokers are out of reach; the next call knows what was published.
        """
        try:
            publisher = self._opened()
            published_state = publisher.published_state
            new = [element for position, element in enumerate(elements, first) if position > published_state.position]
            if not new:
                return
            with publisher.transaction() as transaction:
                records = (OutgoingRecord(self._topic, association_of(one).encode(), document_of([one])) for one in new)
                sent = transaction.send(records)
                moved = published_state.moved(Scn(first + len(elements) - 1), None)
                counted = replace(moved, transactions=moved.transactions + sent, changes=moved.changes + sent)
                transaction.stand(counted, counted.position_entry)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the producer; a later call becomes the only one anew."""
        if self._publisher is not None:
            self._publisher.close()
        self._publisher = None

    def _opened(self) -> Publisher:
        if self._publisher is not None:
            return self._publisher
        self._publisher = publisher = begin_run(self._cluster, self._source)
        published_state, id_ = publisher.published_state, self._journal.id
        if published_state.origin is None:
            with publisher.transaction() as transaction:
                named = replace(published_state, origin=CaptureOrigin(id_, f"journal/{id_}"))
                transaction.stand(named, named.origin_entry)
        else:
            self._refuse_other(published_state.origin, is_later=published_state.position > self._journal.end())
        return publisher

    def _refuse_other(self, known: CaptureOrigin, *, is_later: bool) -> None:
        if is_later or known.set_id != self._journal.id:
            raise OperatorError(
                "the topic was filled from another journal of this event log, or from this one in a later state",
                where=self._cluster.where,
                do=f"delete topic {self._cluster.position_topic}, and run `penstock setup`: what was not settled is"
                " published again",
            )
