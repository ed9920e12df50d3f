"""A topic of a Kafka cluster with messages, in the order of their offsets; the properties are the records' headers."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from penstock.errors import OperatorError
from penstock.formats.dbwatcher.message import Property
from penstock.formats.debezium.record import TopicRecord
from penstock.history import HistoryError
from penstock.position import START, Scn
from penstock.sources.dbwatcher.messages import MessageLog, Place, StoredMessage, digest_of
from penstock.sources.dbwatcher.numbers import number_of
from penstock.sources.debezium.kafka import KafkaLog
from penstock.sources.debezium.log import Extent, Partition

_KEPT = 100_000


@dataclass(frozen=True)
class TopicMessages(MessageLog):
    """Messages in a topic of Kafka. A message has the position behind its offset.

    Attributes:
        settings: Of librdkafka, secrets among them.
    """

    settings: Mapping[str, str] = field(repr=False)
    topic: str
    # Of the last messages that were met, by position: a look at the topic for each slice would take longer than most.
    _told: dict[int, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        return TopicMessages, (self.settings, self.topic)

    @property
    def label(self) -> str:
        """The brokers and the topic."""
        return f"{self._log.label}, topic {self.topic}"

    @property
    def id(self) -> str:
        """That of the cluster and the topic's name; which topic of the name it is, the proof says."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self._log.identity()))

    def later(self, after: Scn) -> Iterator[StoredMessage]:
        """Yield the messages behind a position that are there now, in order."""
        extent = self._extent()
        first = max(int(after), extent.first)
        if first < extent.end:
            for record in self._log.read(self._partition, first, extent.end):
                message = self._message(record)
                self._told[message.place.position] = _told(message)
                if len(self._told) > _KEPT:
                    del self._told[next(iter(self._told))]
                yield message

    def read(self, places: Iterable[Place]) -> Iterator[StoredMessage]:
        """Yield the messages at some places, in the order of these."""
        wanted = list(places)
        at = 0
        while at < len(wanted):
            end = at + 1
            while end < len(wanted) and wanted[end].number > wanted[end - 1].number:
                end += 1
            yield from self._read_on(wanted[at:end])
            at = end

    def proof_at(self, position: Scn, open_since: Scn | None) -> str:
        """Return the topic's id, which one that is made anew does not have; a digest of the last message; its number.

        A message without a number has none there. Where the oldest transaction that is not over has begun comes last.
        """
        if position <= START:
            return ""
        told = self._told.get(position)
        digest, _, number = (self._told_before(position) if told is None else told).partition(":")
        since = "" if open_since is None else str(open_since)
        return ":".join((self._log.topic_id(self.topic), digest, number, since)).rstrip(":")

    def deleted_before(self) -> str | None:
        """Return the first offset that is there, where it is not the topic's first."""
        first = self._extent().first
        return f"offset {first}" if first > 0 else None

    def number_in(self, proof: str) -> int | None:
        """Return the number of the last message."""
        return number_of(_parts(proof)[2])

    def hold_against(self, proof: str, position: Scn) -> None:
        """Make sure that the topic is the one that was read, and its last message that was read the same."""
        topic_id, digest, number, since = _parts(proof)
        if self._log.topic_id(self.topic) != topic_id:
            raise HistoryError(
                f"topic {self.topic} was made anew: what was not read of it is gone, and its offsets are others",
                where=self._log.label,
            )
        first = self._extent().first
        if since and first >= int(since):
            raise HistoryError(
                f"the message at offset {int(since) - 1}, which begins a transaction that had not ended by offset"
                f" {position - 1}, is gone: the rest of it cannot be applied alone",
                where=self.label,
            )
        if first > position and not number:
            # Of numbered messages it is told by the number of the first one: offsets are also those of marks.
            raise HistoryError(
                f"the messages from offset {position} on, which were not read, are gone; the first that is there has"
                f" offset {first}",
                where=self.label,
            )
        now = self._told_before(position).partition(":")[0]
        if digest and now and now != digest:
            raise HistoryError(
                f"the message at offset {position - 1} was read, and is another one now", where=self.label
            )

    @cached_property
    def _log(self) -> KafkaLog:
        return KafkaLog(self.settings, (self.topic,), with_times=True)

    @property
    def _partition(self) -> Partition:
        return Partition(self.topic, 0)

    def _extent(self) -> Extent:
        extents = self._log.extents()
        if not extents:
            raise OperatorError(
                f"there is no topic {self.topic}, or none that this user may see",
                where=self._log.label,
                do="correct capture.dbwatcher.topic, or start what writes it",
            )
        if len(extents) > 1:
            raise OperatorError(
                f"topic {self.topic} has {len(extents)} partitions, so its messages have no order",
                where=self._log.label,
                do="have the messages written into a topic with one partition",
            )
        return extents[self._partition]

    def _read_on(self, places: list[Place]) -> Iterator[StoredMessage]:
        """Yield messages whose offsets grow."""
        left = iter(places)
        place = next(left, None)
        for record in self._log.read(self._partition, places[0].number, places[-1].number + 1):
            if place is None or record.offset != place.number:
                continue
            message = self._message(record)
            if message.place.digest != place.digest:
                raise HistoryError("a message was read, and is another one now", where=message.where)
            yield message
            place = next(left, None)
        if place is not None:
            raise HistoryError(f"the message at offset {place.number} is not there any more", where=self.label)

    def _told_before(self, position: Scn) -> str:
        """Return what a proof has of the message at a position; empty where it is not there any more."""
        extent = self._extent()
        offset = int(position) - 1
        if not extent.first <= offset < extent.end:
            return ""
        found = [_told(self._message(one)) for one in self._log.read(self._partition, offset, offset + 1)]
        return found[0] if found else ""

    def _message(self, record: TopicRecord) -> StoredMessage:
        assert record.offset is not None
        where = f"{self._log.label}, {record.where}"
        body = record.value or b""
        place = Place(Scn(record.offset + 1), "", record.offset, digest_of(body))
        properties = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
        return StoredMessage(place, where, body, properties, (record.timestamp_ms or 0) * 1_000)


def _told(message: StoredMessage) -> str:
    number = number_of(message.properties.get(Property.MESSAGE_SEQ))
    digest = message.place.digest.hex()
    return digest if number is None else f"{digest}:{number}"


def _parts(proof: str) -> tuple[str, str, str, str]:
    """Return a topic's id, digest and number of its last message, and where a transaction has begun; see `proof_at`."""
    topic_id, digest, number, since = [*proof.split(":"), "", "", ""][:4]
    return topic_id, digest, number, since
