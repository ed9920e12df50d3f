"""Slices as change-stream batches: events are read where they lie, put in order, and what came twice is left out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock import change as c
from penstock.apply.prefetch import ahead
from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.formats.debezium.decode import DataEvent, image_text
from penstock.formats.debezium.record import TopicRecord
from penstock.sources.debezium.bulk_reader import BulkReading, UnusualError
from penstock.sources.debezium.commit_order import identity_of
from penstock.sources.debezium.log import Records, together
from penstock.sources.debezium.scan import without_transaction
from penstock.sources.debezium.slice import EventSlice
from penstock.sources.debezium.tables import EventDecoder
from penstock.stream import Slice
from penstock.text import count

_BATCH_CHANGES = 10_000


class _Placed(NamedTuple):
    """An event, or a row of a snapshot, and its place in a slice.

    A row stands as it is until the next event of its partition. So it comes behind those events of its transaction that
    lie before it there; and behind all of them, where none of them lies in its partition.
    """

    txn: int
    is_behind: bool
    order: tuple[object, ...]
    is_row: bool
    partition: int
    offset: int
    event: DataEvent


class EventReader:
    """Implements `stream.Reader`, in whichever process it has travelled to."""

    def __init__(self, log: Records, decoder: EventDecoder, source: str, follows: frozenset[TableName]) -> None:
        """Read from a log; nothing is touched yet.

        Args:
            source: What the column of that name says.
            follows: The tables whose changes are read.
        """
        self._log = log
        self._decoder = decoder
        self._source = source
        self._follows = follows

    def open(self) -> None:
        """Open nothing: a client is opened for each range."""

    @property
    def leaves_out(self) -> bool:
        """True: two halves of a changed key are counted as two, and are one change."""
        return True

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice in commit order.

        Raises:
            MalformedInputError: A record is not an event, or two different events have the same place.
            OperatorError: Some of them are gone.
        """
        if not isinstance(part, EventSlice):
            raise TypeError(part)
        if len(part) == 0:
            return
        placed: Iterable[_Placed]
        if (changes := self._in_bulk(part, with_key=with_key)) is not None:
            for first in range(0, len(changes), _BATCH_CHANGES):
                yield changes.slice(first, _BATCH_CHANGES)
            return
        if part.is_large:
            placed = heapq.merge(*(self._in_order(self._placed(part, *run)) for run in _ranges(part)), key=_place)
        else:
            placed = sorted((one for run in _ranges(part) for one in self._placed(part, *run)), key=_place)
        yield from self._batches(part, placed, with_key=with_key)

    def _in_bulk(self, part: EventSlice, *, with_key: bool) -> pa.RecordBatch | None:
        """Return the changes of a slice that can be held and has nothing unusual; it is read anew where it has."""
        bulk = self._decoder.bulk
        if bulk is None or part.is_large or len(part.rows):
            return None
        keys = self._decoder.keys if with_key else {}
        reading = BulkReading(part, self._decoder, bulk, self._follows, keys)
        try:
            with closing(ahead(self._records(part))) as found:
                for records in found:
                    reading.add(records)
            return reading.changes(self._source)
        except UnusualError:
            return None

    def _records(self, part: EventSlice) -> Iterator[Sequence[TopicRecord]]:
        """Yield all records that the slice may have an event in, some at a time."""
        for partition, first, end in _ranges(part):
            yield from together(self._log.read(part.partitions[partition], first, end))

    def _placed(self, part: EventSlice, partition: int, first: int, end: int) -> Iterator[_Placed]:
        """Yield the events of the slice in a range of offsets, in the order of their offsets."""
        txn_of = {group: n for n, groups in enumerate(part.groups) for group in groups}
        rows = _Rows(part, partition)
        # The place of the last event of each transaction so far.
        last: dict[int, tuple[object, ...]] = {}
        for record in self._log.read(part.partitions[partition], first, end):
            event = self._decoder.event(record)
            if event is None:
                continue
            assert record.offset is not None
            location = event.location
            if location.is_snapshot or location.txn is None:
                txn = rows.txn_at(record.offset)
                if txn is None:
                    continue
                if not location.is_snapshot:
                    raise without_transaction(record)
                is_behind = not rows.has_events(txn)
                yield _Placed(txn, is_behind, last.get(txn, ()), True, partition, record.offset, event)
            elif location.txn in txn_of:
                txn = txn_of[location.txn]
                # What is missing of an order is made up by that of the records.
                order = (location.total_order,) if location.total_order is not None else location.source.position
                last[txn] = max(last.get(txn, ()), order)
                yield _Placed(txn, False, order, False, partition, record.offset, event)

    def _in_order(self, placed: Iterator[_Placed]) -> Iterator[_Placed]:
        """Leave out what a connector that was started again has repeated."""
        last: _Placed | None = None
        for one in placed:
            if last is None or _place(one) > _place(last):
                yield one
                last = one

    def _batches(self, part: EventSlice, placed: Iterable[_Placed], *, with_key: bool) -> Iterator[pa.RecordBatch]:
        out = ChangeBatch(self._source, self._decoder.keys if with_key else {})
        seen = np.zeros(len(part), np.int64)
        for txn, of in groupby(placed, key=lambda one: one.txn):
            events = self._once(of, seen)
            for change in self._decoder.changes(events):
                out.add(change, "+".join(part.groups[txn]), int(part.commit_scns[txn]), int(part.committed_at_us[txn]))
                if len(out) == _BATCH_CHANGES:
                    yield out.take()
        if len(out):
            yield out.take()
        for at in np.flatnonzero(seen != part.changes)[:1].tolist():
            raise OperatorError(
                f"transaction has {count(int(seen[at]), 'event')} where it had {part.changes[at]}",
                where=f"{self._log.label}, position {part.commit_scns[at]}",
                do="records of a topic must stay as they are for as long as they are needed",
            )

    def _once(self, placed: Iterable[_Placed], seen: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[DataEvent]:
        """Yield the events of one transaction that are of tables to follow, of those with one place the first.

        Counts all of them.
        """
        # What was passed on of one place; without numbers several events may have the same.
        here: dict[object, _Placed] = {}
        for one in placed:
            if here and not _are_at_one_place(one, next(iter(here.values()))):
                here = {}
            earlier = here.setdefault(_identity(one), one)
            if earlier is not one:
                self._decoder.decoder.refuse_other(earlier.event.record, one.event.record)
                continue
            seen[one.txn] += 1
            if one.event.location.table in self._follows:
                yield one.event


def _place(one: _Placed) -> tuple[object, ...]:
    return one[:6]


def _are_at_one_place(one: _Placed, other: _Placed) -> bool:
    return one.is_row == other.is_row and one.order == other.order


def _identity(one: _Placed) -> object:
    """Equal for two events of one place only if they are one, told twice."""
    location = one.event.location
    if one.is_row:
        return one.partition, one.offset
    return location.total_order or identity_of(one.event.record, location) or (one.partition, one.offset)


class _Rows:
    """Which transaction takes the rows of snapshots in a partition along."""

    def __init__(self, part: EventSlice, partition: int) -> None:
        txns = np.arange(len(part))
        of_rows, of_runs = np.repeat(txns, part.row_counts), np.repeat(txns, part.run_counts)
        here = part.rows[:, 0] == partition
        # Three arrays that line up, one entry per run of rows, ascending.
        order = np.argsort(part.rows[here, 1])
        self._first, self._end = (part.rows[here, column][order] for column in (1, 2))
        self._txn = of_rows[here][order]
        self._with_events = frozenset(of_runs[part.runs[:, 0] == partition].tolist())

    def txn_at(self, offset: int) -> int | None:
        at = int(np.searchsorted(self._first, offset, side="right")) - 1
        return int(self._txn[at]) if at >= 0 and offset < self._end[at] else None

    def has_events(self, txn: int) -> bool:
        """Whether events of a transaction lie in the partition, too."""
        return txn in self._with_events


def _ranges(part: EventSlice) -> Iterator[tuple[int, int, int]]:
    """The ranges of offsets to read, one for each partition: runs of transactions that follow each other overlap."""
    runs = np.concatenate([part.runs, part.rows])
    for partition in np.unique(runs[:, 0]).tolist():
        here = runs[runs[:, 0] == partition]
        yield partition, int(here[:, 1].min()), int(here[:, 2].max())


class ChangeBatch:
    """Gathers changes, column by column."""

    def __init__(self, source: str, keys: Mapping[tuple[TableName, int], Sequence[str]]) -> None:
        """Gather none yet.

        Args:
            keys: The columns of the key in each version of a table that has one.
        """
        self._source = source
        self._keys = keys
        self._columns: dict[str, list[object]] = {}
        self._clear()

    def _clear(self) -> None:
        self._columns = {name: [] for name in _FILLED}

    def __len__(self) -> int:
        return len(self._columns[c.OP])

    def add(self, change: c.Change, txn_id: str, scn: int, committed_at_us: int) -> None:
        """Add a change of a transaction, as it is to stand behind those that were added before."""
        values = (
            txn_id,
            scn,
            change.change_seq,
            committed_at_us,
            change.op.value,
            change.table.schema,
            change.table.name,
            change.table_version,
            self._key(change),
            image_text(change.before),
            image_text(_changed(change)),
        )
        for name, value in zip(_FILLED, values, strict=True):
            self._columns[name].append(value)

    def _key(self, change: c.Change) -> str | None:
        row = change.before if change.before is not None else change.after
        names = self._keys.get((change.table, change.table_version), ())
        return image_text({name: row[name] for name in names if name in row}) if row is not None and names else None

    def take(self) -> pa.RecordBatch:
        """Return what was added since the last call."""
        n = len(self)
        made = {name: pa.array(values, c.ARROW_SCHEMA.field(name).type) for name, values in self._columns.items()} | {
            c.SOURCE: pa.repeat(self._source, n)
        }
        self._clear()
        return pa.record_batch(
            [made[f.name] if f.name in made else pa.nulls(n, f.type) for f in c.ARROW_SCHEMA], schema=c.ARROW_SCHEMA
        )


def _changed(change: c.Change) -> c.Image | None:
    """Of an update the values that it has changed, as far as those before it are known."""
    if change.op is not c.Op.UPDATE or change.before is None or change.after is None:
        return change.after
    before = change.before
    return {name: value for name, value in change.after.items() if name not in before or before[name] != value}


_FILLED = (
    c.TXN_ID,
    c.COMMIT_SCN,
    c.CHANGE_SEQ,
    c.COMMITTED_AT,
    c.OP,
    c.SCHEMA_NAME,
    c.TABLE_NAME,
    c.TABLE_VERSION,
    c.KEY,
    c.BEFORE,
    c.AFTER,
)
