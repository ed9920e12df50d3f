"""Some records, decoded at once: their transactions as changes, and all that is odd about them.

Where a pipeline stops, or waits, this goes on: it is for a person who wants to know what lies there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.change import TableName
from penstock.errors import MalformedInputError, OperatorError, PenstockError
from penstock.formats.debezium.decode import DataEvent, DecodeSettings, RecordDecoder
from penstock.formats.debezium.envelope import Boundary, SkippedRecord
from penstock.formats.debezium.record import TopicRecord
from penstock.position import START, Scn
from penstock.sources.debezium.commit_order import identity_of, scn_of
from penstock.sources.debezium.index import CompleteTransaction, Index, TransactionEnd
from penstock.sources.debezium.log import Partition
from penstock.sources.debezium.reader import ChangeBatch, EventReader
from penstock.sources.debezium.slice import slice_of
from penstock.sources.debezium.tables import EventDecoder, Tables
from penstock.text import count, printable, were

_SLICE_TRANSACTIONS = 1_000
_BATCH_ROWS = 10_000

_MOST_NAMED = 20
"""So many oddities of one kind are named one by one."""

_SOURCE = "debezium"

_LAST = 2**63 - 1


class HeldRecords:
    """Implements `log.Records` for records in memory; those that have no offset of their own are numbered."""

    def __init__(self, records: Iterable[TopicRecord], label: str) -> None:
        """Hold records, those of each partition in the order in which they come."""
        self._label = label
        self._of: dict[Partition, list[TopicRecord]] = {}
        for record in records:
            held = self._of.setdefault(Partition(record.topic, record.partition), [])
            held.append(replace(record, offset=len(held)) if record.file or record.offset is None else record)

    @property
    def label(self) -> str:
        """Where they are from."""
        return self._label

    @property
    def partitions(self) -> Sequence[Partition]:
        """The partitions that there are records of."""
        return list(self._of)

    def all(self, number: int) -> Sequence[TopicRecord]:
        """The records of a partition, by its number in `partitions`."""
        return self._of[self.partitions[number]]

    def read(self, partition: Partition, first: int, end: int) -> Iterator[TopicRecord]:
        """Yield the records of a range of offsets, in order."""
        held = self._of[partition]
        yield from held[bisect_left(held, first, key=_offset) : bisect_left(held, end, key=_offset)]


class Sample:
    """What records hold."""

    def __init__(
        self,
        records: HeldRecords,
        settings: DecodeSettings,
        *,
        topics: Collection[str],
        malformed: Iterable[PenstockError] = (),
    ) -> None:
        """Look at all of them.

        Args:
            topics: Those that were read; events of others are not missed.
            malformed: What is no record.
        """
        self._records = records
        self._settings = settings
        self._decoder = RecordDecoder(settings)
        prefix = next((topic.removesuffix(".transaction") for topic in topics if topic.endswith(".transaction")), "")
        self._tables = Tables(settings, prefix, skips=False)
        self._index = Index(is_read=lambda table: self._tables.is_read(table, topics), where=records.label)
        self._copied: list[DataEvent] = []
        self._columns: dict[TableName, set[str]] = {}
        # By table and column; and whether a schema says that the column is there.
        self._untold: Counter[tuple[TableName, str, bool]] = Counter()
        self._unplaced = 0
        self._malformed = list(malformed)
        for number in range(len(records.partitions)):
            for record in records.all(number):
                self._look(number, record)
        self._whole, self._parts = self._put_together()

    @property
    def is_malformed(self) -> bool:
        """Whether something cannot be read."""
        return bool(self._malformed)

    def copies(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of snapshots, as they come."""
        decoder = self._event_decoder()
        out = ChangeBatch(_SOURCE, decoder.keys)
        for event in self._copied:
            for change in decoder.changes([event]):
                out.add(change, "snapshot", START, event.location.source.ts_us or 0)
            if len(out) == _BATCH_ROWS:
                yield out.take()
        if len(out):
            yield out.take()

    def changes(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes of transactions that are whole, in commit order."""
        for at in range(0, len(self._whole), _SLICE_TRANSACTIONS):
            some = self._whole[at : at + _SLICE_TRANSACTIONS]
            try:
                # All of them, before any of them is passed on: of one that fails, the others are to be seen.
                batches = list(self._read(some))
            except (MalformedInputError, OperatorError):
                batches = [batch for one in some for batch in self._read_alone(one)]
            yield from batches

    def incomplete(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield what is there of the other transactions, each with what it lacks."""
        for one, lacking in self._parts:
            for batch in self._read_alone(one):
                yield lacking, batch

    def notes(self) -> Iterator[str]:
        """Say what is odd, a line each; to be asked last, as some things are found while changes are read."""
        if self._tables.passed:
            kinds = ", ".join(count(n, kind.value) for kind, n in sorted(self._tables.passed.items()))
            yield f"records that say nothing of rows: {kinds}"
        if self._index.repeated:
            yield f"{count(self._index.repeated, 'event')} came again, and {were(self._index.repeated)} left out"
        yield from _some(f"transaction {'+'.join(one.groups)} is incomplete: {why}" for one, why in self._parts)
        for (table, column, has_schema), n in sorted(self._untold.items()):
            why = "the connector did not know its value"
            why += "" if has_schema else ", or the table has other columns there"
            yield f"{printable(f'{table}: column {column}')} is missing in {count(n, 'event')}: {why}"
        if self._unplaced:
            yield (
                f"{count(self._unplaced, 'event')} do not say where in the source's log they were committed:"
                " transactions are in the order in which they came"
            )
        if self._columns or self._copied:
            yield from self._tables.advice(self._columns)
        yield from _some(f"not read: {error}" for error in self._malformed)

    def _look(self, number: int, record: TopicRecord) -> None:
        assert record.offset is not None
        try:
            found = self._decoder.decode(record)
            self._tables.look(record)
        except MalformedInputError as exc:
            self._malformed.append(exc)
            return
        match found:
            case Boundary():
                if found.is_end:
                    scn = Scn(record.offset + 1)
                    self._index.ended(TransactionEnd(found.txn, scn, found.collections, found.ts_us or 0))
            case DataEvent():
                self._note_columns(found)
                if found.location.is_snapshot or found.location.txn is None:
                    self._copied.append(found)
                else:
                    self._place(number, record.offset, found)
            case SkippedRecord():
                pass

    def _place(self, number: int, offset: int, event: DataEvent) -> None:
        source = event.location.source
        assert event.location.txn is not None
        self._index.event(
            number,
            offset,
            group=event.location.txn,
            identity=event.location.total_order or identity_of(event.record, event.location) or (number, offset),
            table=source.collection,
            size_bytes=event.location.size_bytes,
        )
        try:
            scn = scn_of(source.connector, source.position, where=event.record.where)
        except MalformedInputError:
            self._unplaced += 1
            scn = Scn(self._unplaced)
        self._index.placed(event.location.txn, scn, source.ts_us or 0)

    def _note_columns(self, event: DataEvent) -> None:
        """Count columns that the row should have and does not: their values did not come."""
        table = event.location.table
        known = self._columns.setdefault(table, set())
        if event.after is None:
            return
        due = known if event.row_type is None else {column.name for column in event.row_type.columns}
        has_schema = event.row_type is not None
        self._untold.update((table, name, has_schema) for name in due - event.after.keys())
        known.update(event.after)

    def _put_together(self) -> tuple[list[CompleteTransaction], list[tuple[CompleteTransaction, str]]]:
        """Return the transactions that are whole, and those that are not with what they lack."""
        index = self._index
        if not self._tables.has_ends:
            index.complete_before(_LAST)
        whole, parts = list(index.release()), []
        while (waiting := index.waiting) is not None:
            lacking = ", ".join(f"{table} {there} of {due}" for table, (there, due) in sorted(waiting.lacking.items()))
            parts.append((index.put_aside(), printable(lacking)))
            whole += index.release()
        for group in index.open_groups:
            index.ended(TransactionEnd(group, Scn(index.end + 1), {}, 0))
            parts += [(one, f"{count(one.events, 'event')} and no END") for one in index.release()]
        return whole, parts

    def _read(self, transactions: Sequence[CompleteTransaction]) -> Iterator[pa.RecordBatch]:
        after, end = Scn(transactions[0].scn - 1), Scn(transactions[-1].scn)
        part = slice_of(after, end, transactions, self._records.partitions)
        reader = EventReader(self._records, self._event_decoder(), _SOURCE, frozenset(self._columns))
        yield from reader.read(part)

    def _read_alone(self, one: CompleteTransaction) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._read([one])
        except (MalformedInputError, OperatorError) as exc:
            self._malformed.append(exc)

    def _event_decoder(self) -> EventDecoder:
        versions = self._tables.versions()
        # Where nothing says what a column holds, its values are shown as they stand.
        return replace(EventDecoder.of(self._settings, versions, skips=True), settings=self._settings)


def _some(lines: Iterable[str]) -> Iterator[str]:
    """The first lines, and how many more there are."""
    left = 0
    for number, line in enumerate(lines):
        if number < _MOST_NAMED:
            yield line
        else:
            left += 1
    if left:
        yield f"and {left:,} more like that"


def _offset(record: TopicRecord) -> int:
    assert record.offset is not None
    return record.offset
