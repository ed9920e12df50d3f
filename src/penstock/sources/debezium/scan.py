"""What is to be known of a record to place it, and how tasks find it out where many records lie ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.formats.debezium.bulk import BulkDecoder
from penstock.formats.debezium.decode import DecodeSettings, RecordDecoder, Seen, Shape
from penstock.formats.debezium.envelope import Boundary, ChangeLocation, SkippedRecord
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.source import Key
from penstock.sources.debezium.commit_order import identity_of
from penstock.sources.debezium.log import Partition, RecordLog, together, uncollected

_TOLD_ALONE = 100
"""So many skipped records of a stretch are told of one by one."""


def advised(exc: MalformedInputError) -> MalformedInputError:
    """The same, with a way to go on where it names none."""
    do = exc.do or "`capture.debezium.on_malformed: skip` leaves such records out, and counts them"
    return MalformedInputError(exc.what, where=exc.where, do=do)


def without_transaction(record: TopicRecord) -> MalformedInputError:
    """The error for a change that does not say which transaction it is of."""
    return MalformedInputError(
        "a change says nothing of its transaction",
        where=record.where,
        do="have the connector write its transaction topic (provide.transaction.metadata)",
    )


class PlacedEvent(NamedTuple):
    """A change of rows.

    Attributes:
        has_order: The transaction's events have numbers.
        identity: Equal for an event and its repetition, and for no two events of a transaction: its number, best.
        collection: How END counts events of the table.
        connector, position: Its place in the order of all changes of the connector.
        ts_us: When it was made.
        size_bytes: Of key and value.
        has_key: The record has one, or needs none to be told from others, as a truncation.
    """

    offset: int
    txn: str
    has_order: bool
    identity: object
    collection: str
    connector: str
    position: Key
    ts_us: int | None
    size_bytes: int
    has_key: bool = True


class PlacedRow(NamedTuple):
    """A row of a snapshot; mark, place, connector and whether it marks first rows are as `Source` has them."""

    offset: int
    table: TableName
    mark: str
    place: Key = ()
    connector: str = ""
    marks_firsts: bool = True


class PlacedEnd(NamedTuple):
    """The END of a transaction, with the number of its events, in all and in each table.

    Attributes:
        place: Where it is in the source's log; None where the connector does not say.
    """

    offset: int
    txn: str
    counts: Mapping[str, int]
    ts_us: int | None
    events: int | None = None
    place: int | None = None


class PlacedBegin(NamedTuple):
    """The BEGIN of a transaction."""

    offset: int


Placed: TypeAlias = PlacedEvent | PlacedRow | PlacedBegin | PlacedEnd


def placed(record: TopicRecord, seen: Seen | None) -> Placed | None:
    """Keep of what a record is whatever placing it takes; None for one that has no place.

    Raises:
        MalformedInputError: A change does not say which transaction it is of: nothing says when it is to be applied.
    """
    offset = record.offset
    assert offset is not None
    if isinstance(seen, Boundary):
        if not seen.is_end:
            return PlacedBegin(offset)
        return PlacedEnd(offset, seen.txn, seen.collections, seen.ts_us, seen.events, seen.place)
    if not isinstance(seen, ChangeLocation):
        return None
    source = seen.source
    if seen.is_snapshot:
        place, connector = source.place, source.connector
        return PlacedRow(offset, seen.table, source.snapshot, place, connector, source.marks_firsts)
    if seen.txn is None:
        raise without_transaction(record)
    order = seen.total_order
    identity = order or identity_of(record, seen) or (record.topic, record.partition, offset)
    return PlacedEvent(
        offset,
        seen.txn,
        order is not None,
        identity,
        source.collection,
        source.connector,
        source.position,
        source.ts_us,
        seen.size_bytes,
        bool(record.key) or seen.op == "t",
    )


class EventIdentity(NamedTuple):
    """What an event says, by which it is known for the repetition of another one.

    Attributes:
        key: Its transaction, and which event of that it is.
        said: Its place in the source's log, and what it does there.
        is_told: No two events of a transaction have the key: something numbers them.
    """

    partition: Partition
    offset: int
    key: tuple[str, object]
    said: tuple[Key, bytes]
    is_told: bool


class Stretch(NamedTuple):
    """Offsets of one partition, from `first` up to, but without, `end`."""

    partition: Partition
    first: int
    end: int


@dataclass
class ScanResult:
    """What was found in a stretch.

    Attributes:
        placed: In the order of their offsets.
        samples: The first record of each shape of each table, of each server: what it tells of its table is still to be
            learned.
        passed: How many records say nothing of rows, and why.
        skipped: How many records were skipped; `reasons` has the first ones'.
        has_boundaries: There were records of a transaction topic.
    """

    placed: list[Placed] = field(default_factory=list)
    samples: list[TopicRecord] = field(default_factory=list)
    passed: Counter[SkippedRecord] = field(default_factory=Counter)
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)
    has_boundaries: bool = False


@dataclass(frozen=True)
class LogScanner:
    """Looks at stretches of a log, in whichever process it has travelled to.

    Attributes:
        skips: Records that are no events are counted and passed over.
    """

    log: RecordLog
    settings: DecodeSettings
    skips: bool

    def look(self, stretch: Stretch) -> ScanResult:
        """Look at every record of a stretch.

        Raises:
            MalformedInputError: One of them is not an event.
            OperatorError: Some of them are gone.
        """
        looking = StretchScan(self.settings, self.skips)
        for records in together(self.log.read(*stretch)):
            with uncollected():
                looking.add(records)
        return looking.out


_Kind: TypeAlias = tuple[TableName, str, Shape | None, tuple[str, str]]
"""The table, its name for the connector, the shape of the event, and whose it is."""


class StretchScan:
    """Looks at the records of a stretch, some at a time.

    Attributes:
        out: What was found so far.
    """

    def __init__(self, settings: DecodeSettings, skips: bool) -> None:
        """Look at nothing yet; see `LogScanner`."""
        self._decoder = RecordDecoder(settings)
        self._bulk = BulkDecoder(self._decoder, self._decoder.messages) if self._decoder.messages else None
        self._skips = skips
        self._known: set[_Kind] = set()
        self.out = ScanResult()

    def add(self, records: Sequence[TopicRecord]) -> None:
        """Look at some more records; raises as `LogScanner.look`."""
        sights, others = self._bulk.scan(records) if self._bulk else ([], range(len(records)))
        found: list[Placed] = []
        for seen in sights:
            form = seen.form
            self._sample(records[seen.at[0]], (form.table, form.collection, form.shape, form.server))
            name, connector = form.collection, form.connector
            for at, txn, order, (position, ts_us) in zip(seen.at, seen.txns, seen.orders, seen.places, strict=True):
                record = records[at]
                assert record.offset is not None
                size = len(record.value or b"") + len(record.key or b"")
                found.append(PlacedEvent(record.offset, txn, True, order, name, connector, position, ts_us, size))
        for at in others:
            if (one := self._look(records[at])) is not None:
                found.append(one)
        found.sort(key=itemgetter(0))
        self.out.placed += found

    def said(self, partition: Partition, event: PlacedEvent, record: TopicRecord) -> EventIdentity:
        """Return what an event says; `event` is what was found of it."""
        seen, _ = self._decoder.scan(record)
        assert isinstance(seen, ChangeLocation)
        # The place of the last commit before it, which PostgreSQL's connector adds, may be another one when it repeats.
        place = seen.source.identity or event.position
        is_told = event.identity != (record.topic, record.partition, event.offset)
        key = (event.txn, event.identity if is_told else place)
        return EventIdentity(partition, event.offset, key, (place, self._decoder.digest(record)), is_told)

    def _look(self, record: TopicRecord) -> Placed | None:
        out = self.out
        try:
            seen, shape = self._decoder.scan(record)
        except MalformedInputError as exc:
            if not self._skips:
                raise advised(exc) from exc
            out.skipped += 1
            if out.skipped <= _TOLD_ALONE:
                out.reasons.append(str(exc))
            return None
        if isinstance(seen, SkippedRecord):
            out.passed[seen] += 1
            return None
        if isinstance(seen, Boundary):
            out.has_boundaries = True
        else:
            source = seen.source
            self._sample(record, (seen.table, source.collection, shape, (source.name, source.database)))
        return placed(record, seen)

    def _sample(self, record: TopicRecord, kind: _Kind) -> None:
        if kind not in self._known:
            self._known.add(kind)
            self.out.samples.append(record)


InTasks: TypeAlias = Callable[[Sequence[Stretch], Callable[[Stretch], ScanResult]], Sequence[ScanResult]]
"""Looks at stretches side by side; returns what was found in the order in which they are given.

Raises what `LogScanner.look` raises, or a RetryableError where a task was lost.
"""
