"""A slice whose events are decoded in bulk: columns are put in order, and no event is an object of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from penstock import change as c
from penstock.change import Image, TableName
from penstock.formats.debezium.bulk import BulkDecoder, EventBatch
from penstock.formats.debezium.decode import DataEvent
from penstock.formats.debezium.join import op_of
from penstock.formats.debezium.record import TopicRecord
from penstock.sources.debezium.log import uncollected
from penstock.sources.debezium.slice import EventSlice
from penstock.sources.debezium.tables import EventDecoder

_ABSENT = object()


class UnusualError(Exception):
    """A slice holds what has to be looked at event by event."""


class BulkReading:
    """Gathers what is read of a slice, and puts it in order."""

    def __init__(
        self,
        part: EventSlice,
        decoder: EventDecoder,
        bulk: BulkDecoder,
        follows: frozenset[TableName],
        keys: Mapping[tuple[TableName, int], Sequence[str]],
    ) -> None:
        """Gather nothing yet.

        Args:
            follows: The tables whose changes are wanted.
            keys: The columns of the key in each version of a table that has one.
        """
        self._part = part
        self._decoder = decoder
        self._bulk = bulk
        self._follows = follows
        self._keys = keys
        self._txn_of = {group: n for n, groups in enumerate(part.groups) for group in groups}
        self._runs: list[pa.RecordBatch] = []

    def add(self, records: Sequence[TopicRecord]) -> None:
        """Add records that follow each other in a partition.

        Raises:
            MalformedInputError: A record is not an event.
            UnusualError: A change is not numbered, or may be half of another.
        """
        with uncollected():
            self._add_some(records)

    def _add_some(self, records: Sequence[TopicRecord]) -> None:
        events, others = self._bulk.decode(records)
        for of_one_form in events:
            self._add(of_one_form)
        for at in others:
            event = self._decoder.event(records[at])
            if event is not None and not event.location.is_snapshot and event.location.txn in self._txn_of:
                self._add_one(event)

    def changes(self, source: str) -> pa.RecordBatch:
        """Return all changes of the slice in order, with `change.ARROW_SCHEMA`.

        Args:
            source: What the column of that name says.

        Raises:
            UnusualError: Some came twice, or are not there.
        """
        rows = pa.Table.from_batches(self._runs, schema=_RUN).combine_chunks()
        txn, order = rows["txn"].to_numpy(), rows["order"].to_numpy()
        by_place = np.lexsort((order, txn))
        txn, order = txn[by_place], order[by_place]
        is_repeated = (txn[1:] == txn[:-1]) & (order[1:] == order[:-1])
        if is_repeated.any() or (np.bincount(txn, minlength=len(self._part)) != self._part.changes).any():
            raise UnusualError
        is_wanted = rows["is_wanted"].to_numpy()[by_place]
        rows, txn = rows.take(pa.array(by_place[is_wanted])), txn[is_wanted]
        return self._told(source, rows, txn)

    def _told(self, source: str, rows: pa.Table, txn: NDArray[np.int64]) -> pa.RecordBatch:
        part, n = self._part, len(rows)
        # For each change the first one of its transaction; both are rows of the table.
        first = np.searchsorted(txn, txn)
        ids = pa.array(["+".join(groups) for groups in part.groups], pa.string())
        made = {name: rows[name].combine_chunks() for name in _KEPT} | {
            c.SOURCE: pa.repeat(source, n),
            c.TXN_ID: ids.take(pa.array(txn)),
            c.COMMIT_SCN: pa.array(part.commit_scns[txn]),
            c.CHANGE_SEQ: pa.array(np.arange(n) - first),
            c.COMMITTED_AT: pa.array(part.committed_at_us[txn], c.ARROW_SCHEMA.field(c.COMMITTED_AT).type),
        }
        return pa.record_batch(
            [made[f.name] if f.name in made else pa.nulls(n, f.type) for f in c.ARROW_SCHEMA], schema=c.ARROW_SCHEMA
        )

    def _add(self, events: EventBatch) -> None:
        txn_of, form = self._txn_of, events.form
        version = self._decoder.version_of(form.table, form.row_type, form.key)
        kind = _Kind(_OPS[form.op], form.table, version)
        txns = [txn_of.get(txn, -1) for txn in events.txns]
        if -1 not in txns:
            self._append(kind, txns, events.orders, events.before, events.after)
        else:
            # Others' transactions lie between those of the slice.
            here = [n for n, txn in enumerate(txns) if txn >= 0]
            orders, before, after = events.orders, events.before, events.after
            self._append(
                kind,
                [txns[n] for n in here],
                [orders[n] for n in here],
                [before[n] for n in here],
                [after[n] for n in here],
            )

    def _add_one(self, event: DataEvent) -> None:
        location = event.location
        if location.total_order is None or event.new_key is not None:
            raise UnusualError
        assert location.txn is not None
        kind = _Kind(op_of(event), location.table, self._decoder.version(event))
        self._append(kind, [self._txn_of[location.txn]], [location.total_order], [event.before], [event.after])

    def _append(
        self,
        kind: _Kind,
        txns: Sequence[int],
        orders: Sequence[int],
        before: Sequence[Image | None],
        after: Sequence[Image | None],
    ) -> None:
        """Add changes of one kind: sequences that line up."""
        n, (op, table, version) = len(txns), kind
        names = self._keys.get((table, version), ())
        is_wanted = table in self._follows
        nothing = pa.nulls(n, pa.string())
        told = map(_changed, before, after) if op is c.Op.UPDATE else map(_text, after)
        self._runs.append(
            pa.record_batch(
                [
                    pa.array(txns, pa.int64()),
                    pa.array(orders, pa.int64()),
                    pa.repeat(is_wanted, n),
                    pa.repeat(op.value, n),
                    pa.repeat(table.schema, n),
                    pa.repeat(table.name, n),
                    pa.repeat(pa.scalar(version, pa.int32()), n),
                    pa.array(_keys(before, after, names), pa.string()) if is_wanted and names else nothing,
                    pa.array(map(_text, before), pa.string()) if is_wanted else nothing,
                    pa.array(told, pa.string()) if is_wanted else nothing,
                ],
                schema=_RUN,
            )
        )


class _Kind(NamedTuple):
    """What is the same for many changes."""

    op: c.Op
    table: TableName
    version: int


def _text(image: Image | None) -> bytes | None:
    return None if image is None else orjson.dumps(image)


def _changed(before: Image | None, after: Image | None) -> bytes | None:
    """Of the row after an update the values that have changed, as far as those before it are known."""
    if before is None or after is None:
        return _text(after)
    return _text({name: value for name, value in after.items() if before.get(name, _ABSENT) != value})


def _keys(
    before: Sequence[Image | None], after: Sequence[Image | None], names: Sequence[str]
) -> Iterator[bytes | None]:
    for old, new in zip(before, after, strict=True):
        row = old if old is not None else new
        yield None if row is None else _text({name: row[name] for name in names if name in row})


_OPS = {"c": c.Op.INSERT, "u": c.Op.UPDATE, "d": c.Op.DELETE}

_KEPT = (c.OP, c.SCHEMA_NAME, c.TABLE_NAME, c.TABLE_VERSION, c.KEY, c.BEFORE, c.AFTER)

_RUN = pa.schema(
    [
        pa.field("txn", pa.int64()),
        pa.field("order", pa.int64()),
        pa.field("is_wanted", pa.bool_()),
        *(c.ARROW_SCHEMA.field(name) for name in _KEPT),
    ]
)
"""What is gathered: `txn` says which one of the slice, `order` where in it; then columns of the change stream."""
