"""Slices as change-stream batches: events are read where they lie, put in order, and what came twice is left out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock import change as c
from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.formats.debezium.decode import DataEvent, image_text
from penstock.sources.debezium.log import RecordLog
from penstock.sources.debezium.slice import EventSlice
from penstock.sources.debezium.tables import EventDecoder
from penstock.stream import Slice
from penstock.text import count

_BATCH_CHANGES = 10_000


class _Placed(NamedTuple):
    """An event and its place in a slice; rows of snapshots come before the events of their transaction."""

    txn: int
    is_event: bool
    order: tuple[object, ...]
    partition: int
    offset: int
    event: DataEvent


class EventReader:
    """Implements `stream.Reader`, in whichever process it has travelled to."""

    def __init__(self, log: RecordLog, decoder: EventDecoder, source: str, follows: frozenset[TableName]) -> None:
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
            MalformedInputError: A record is no event, or two different events have the same place.
            OperatorError: Some of them are gone.
        """
        if not isinstance(part, EventSlice):
            raise TypeError(part)
        if len(part) == 0:
            return
        placed: Iterable[_Placed]
        if part.is_large:
            placed = heapq.merge(*(self._in_order(self._placed(part, *run)) for run in _ranges(part)), key=_place)
        else:
            placed = sorted((one for run in _ranges(part) for one in self._placed(part, *run)), key=_place)
        yield from self._batches(part, placed, with_key=with_key)

    def _placed(self, part: EventSlice, partition: int, first: int, end: int) -> Iterator[_Placed]:
        """Yield the events of the slice in a range of offsets, in the order of their offsets."""
        txn_of = {group: n for n, groups in enumerate(part.groups) for group in groups}
        rows = _Rows(part, partition)
        for record in self._log.read(part.partitions[partition], first, end):
            event = self._decoder.event(record)
            if event is None:
                continue
            assert record.offset is not None
            glance = event.glance
            txn: int | None
            if glance.is_snapshot or glance.txn is None:
                txn = rows.txn_at(record.offset)
                if txn is not None:
                    raise OperatorError(
                        "a row of a snapshot came among changes: an incremental snapshot, or one that was made again,"
                        " cannot be applied yet",
                        where=record.where,
                        do="begin with topics of a new connector, whose first snapshot has these rows",
                    )
                order: tuple[object, ...] = ()
            else:
                txn = txn_of.get(glance.txn)
                # What is missing of an order is made up by that of the records.
                order = (glance.total_order,) if glance.total_order is not None else glance.source.position
            if txn is not None:
                yield _Placed(txn, not glance.is_snapshot, order, partition, record.offset, event)

    def _in_order(self, placed: Iterator[_Placed]) -> Iterator[_Placed]:
        """Leave out what a connector that was started again has repeated."""
        last: _Placed | None = None
        for one in placed:
            if last is None or _place(one) > _place(last):
                yield one
                last = one

    def _batches(self, part: EventSlice, placed: Iterable[_Placed], *, with_key: bool) -> Iterator[pa.RecordBatch]:
        out = _Batch(self._source, self._decoder.keys if with_key else {})
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
        last: _Placed | None = None
        for one in placed:
            if last is not None and one.is_event and last.is_event and _same(one, last):
                self._decoder.decoder.refuse_other(last.event.record, one.event.record)
                continue
            seen[one.txn] += 1
            last = one
            if one.event.glance.table in self._follows:
                yield one.event


def _place(one: _Placed) -> tuple[object, ...]:
    return one[:5]


def _same(one: _Placed, other: _Placed) -> bool:
    """Whether two events of a transaction are one, told twice."""
    if one.event.glance.total_order is not None:
        return one.order == other.order
    identity = one.event.glance.source.identity
    return bool(identity) and (identity, one.event.glance.op, one.event.key) == (
        other.event.glance.source.identity,
        other.event.glance.op,
        other.event.key,
    )


class _Rows:
    """Which transaction takes the rows of snapshots in a partition along."""

    def __init__(self, part: EventSlice, partition: int) -> None:
        txns = np.repeat(np.arange(len(part)), part.row_counts)
        here = part.rows[:, 0] == partition
        self._runs = sorted(
            zip(part.rows[here, 1].tolist(), part.rows[here, 2].tolist(), txns[here].tolist(), strict=True)
        )

    def txn_at(self, offset: int) -> int | None:
        return next((txn for first, end, txn in self._runs if first <= offset < end), None)


def _ranges(part: EventSlice) -> Iterator[tuple[int, int, int]]:
    """The ranges of offsets to read, one for each partition: runs of transactions that follow each other overlap."""
    runs = np.concatenate([part.runs, part.rows])
    for partition in np.unique(runs[:, 0]).tolist():
        here = runs[runs[:, 0] == partition]
        yield partition, int(here[:, 1].min()), int(here[:, 2].max())


class _Batch:
    """Gathers changes, column by column."""

    def __init__(self, source: str, keys: Mapping[tuple[TableName, int], Sequence[str]]) -> None:
        self._source = source
        self._keys = keys
        self._columns: dict[str, list[object]] = {}
        self._clear()

    def _clear(self) -> None:
        self._columns = {name: [] for name in _FILLED}

    def __len__(self) -> int:
        return len(self._columns[c.OP])

    def add(self, change: c.Change, txn_id: str, scn: int, committed_at_us: int) -> None:
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
