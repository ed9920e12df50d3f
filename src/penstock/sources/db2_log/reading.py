"""Parts of files as batches of the change stream: plain rows in bulk, all others one by one, in commit order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import change as c
from penstock.change import NO_VERSION, Change, Op
from penstock.sources.db2_log.buffers import FilePart
from penstock.sources.db2_log.bulk import PlainRowDecoder
from penstock.sources.db2_log.bulk_columns import Ints
from penstock.sources.db2_log.catalog import Catalog
from penstock.sources.db2_log.changes import OmittedValues, RowChangeDecoder
from penstock.sources.db2_log.framing import read_records
from penstock.sources.db2_log.lobs import place_of
from penstock.sources.db2_log.plain import Plain
from penstock.sources.db2_log.positions import position_of
from penstock.sources.db2_log.transactions import Committed, Row, RowResolver
from penstock.values import encode_image

_BATCH_ROWS, _BATCH_BYTES = 10_000, 32 * 1024 * 1024
_PLAIN_BYTES = 8 * 1024 * 1024
"""Decoding in bulk takes several times as much memory as the images that it is done with."""


class LogReading:
    """Reads the transactions of a slice, and counts what was left out of them."""

    def __init__(self, catalog: Catalog, wanted: Collection[int] | None) -> None:
        """Read transactions at these positions; None: all that there are."""
        self.wanted = wanted
        self.resolver, self.bulk = RowResolver(catalog), PlainRowDecoder(catalog)
        self._decoder = RowChangeDecoder(catalog, place_of=place_of)
        self._keys = {table.name: table.key for table in catalog.tables}
        self._first_table = catalog.tables[0].name

    @property
    def left(self) -> OmittedValues:
        """What was left out so far."""
        return self._decoder.left

    def read(self, part: FilePart) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a part in commit order."""
        plain = None if part.plain is None else _Plain(part, part.plain, self)
        others: list[dict[str, Any]] = []
        size = 0
        # Plain rows up to `done` were yielded; those up to `upto` are to be, with `others`.
        done = upto = 0
        for committed in part.others():
            position = position_of(committed.outcome)
            if self.wanted is not None and position not in self.wanted:
                continue
            if plain is not None:
                upto = plain.before(position)
                while plain.is_full(done, upto, len(others)):
                    most = plain.fit(done, upto)
                    yield _merged(plain.batch(done, most), others)
                    others, size, done = [], 0, most
            for row, row_size in self._rows(committed):
                others.append(row)
                size += row_size
                if upto - done + len(others) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                    yield _merged(None if plain is None else plain.batch(done, upto), others)
                    others, size, done = [], 0, upto
        end = 0 if plain is None else len(plain)
        while done < end:
            assert plain is not None
            most = plain.fit(done, end)
            yield _merged(plain.batch(done, most), others)
            others, done = [], most
        if others:
            yield _merged(None, others)

    def _rows(self, committed: Committed) -> Iterator[tuple[dict[str, Any], int]]:
        if committed.is_cut:
            yield _common(committed, 1) | self._put_aside(committed), 1000
            return
        changed = self.resolver.resolve(committed)
        common = _common(committed, len(changed))
        for seq, row in enumerate(changed):
            lob_bytes = self._decoder.held_bytes(row)
            yield common | self.one(row, seq), 2 * lob_bytes + 1000

    def _put_aside(self, committed: Committed) -> dict[str, Any]:
        """A gap in place of a transaction of which the log has the end alone."""
        first = (*committed.records, committed.outcome)[0]
        tables = self.resolver.tables(committed)
        reason = (
            f"transaction {txn_id(committed)} was open already where the log begins ({first.name}, offset"
            f" {first.offset}), so what it changed before is not known; it changed"
            f" {', '.join(map(str, tables)) or 'no table of the catalogue'} since: copy them anew, then leave it out"
        )
        table = tables[0] if tables else self._first_table
        return row_of(Change(0, Op.GAP, table, NO_VERSION, {"reason": reason}, None), ())

    def one(self, row: Row, seq: int) -> dict[str, Any]:
        """Decode a row by itself; returns what it has of its own in the change stream."""
        return row_of(self._decoder.decode(row, seq).whole, self._keys[row.table.name])


class _Plain:
    """The plain rows of a part that are wanted."""

    def __init__(self, part: FilePart, plain: Plain, reading: LogReading) -> None:
        self._part, self._reading, self._plain = part, reading, plain
        self._data = np.frombuffer(part.buffer, np.uint8)
        scns = (part.number << 32) + plain.commits
        self._rows, sizes = plain.rows, plain.size_bytes
        if reading.wanted is not None:
            is_wanted = np.isin(scns, np.fromiter(reading.wanted, np.int64, len(reading.wanted)))
            is_wanted = is_wanted[plain.rows[:, 0]]
            self._rows, sizes = plain.rows[is_wanted], plain.size_bytes[is_wanted]
        # So many bytes of images are before each row.
        self._bytes = np.concatenate([[0], np.cumsum(sizes)])
        of = self._rows[:, 0]
        self._scns, self._counts = scns[of], np.bincount(of, minlength=len(scns))[of]
        # The rows of a transaction follow each other: each one's number is that of how many are before it.
        self._seqs = np.arange(len(of)) - np.searchsorted(of, of)

    def __len__(self) -> int:
        return len(self._rows)

    def before(self, position: int) -> int:
        """Return how many of the rows were committed before a position."""
        return int(np.searchsorted(self._scns, position))

    def is_full(self, first: int, end: int, others: int) -> bool:
        """Whether rows, and so many others, are enough for a batch."""
        return end - first + others >= _BATCH_ROWS or bool(self._bytes[end] - self._bytes[first] >= _PLAIN_BYTES)

    def fit(self, first: int, end: int) -> int:
        """Return up to where rows fit into a batch: at least one does, and all of those that do not fill one."""
        upto = int(np.searchsorted(self._bytes, self._bytes[first] + _PLAIN_BYTES, side="right")) - 1
        return min(end, first + _BATCH_ROWS, max(upto, first + 1))

    def batch(self, first: int, end: int) -> pa.RecordBatch | None:
        """Return some of the rows as a batch of the change stream; None for no rows."""
        if first == end:
            return None
        rows: Ints = self._rows[first:end]
        of, count = rows[:, 0], len(rows)
        own = self._reading.bulk.decode(self._data, rows, lambda place: self._one(first + place))
        where, digits = np.unique(of, return_inverse=True)
        ids = pa.array([self._txn_id(int(self._plain.commits[n])) for n in where], pa.string())
        arrays = {
            c.SOURCE: pa.repeat(pa.scalar(""), count),
            c.TXN_ID: ids.take(pa.array(digits)),
            c.COMMIT_SCN: pa.array(self._scns[first:end]),
            c.CHANGE_SEQ: pa.array(self._seqs[first:end]),
            c.TXN_CHANGES: pa.array(self._counts[first:end]),
            c.COMMITTED_AT: pa.array(self._plain.committed_at_s[of] * 1_000_000).cast(pa.timestamp("us", "UTC")),
            **dict(zip(own.schema.names, own.columns, strict=True)),
        }
        columns = [
            arrays[field.name] if field.name in arrays else pa.nulls(count, field.type) for field in c.ARROW_SCHEMA
        ]
        return pa.RecordBatch.from_arrays(columns, schema=c.ARROW_SCHEMA)

    def _txn_id(self, commit: int) -> str:
        begin = commit + 56
        stream = int.from_bytes(self._part.buffer[commit + 32 : commit + 40], self._part.gatherer.form.byte_order)
        return (f"{stream}:" if stream else "") + bytes(self._part.buffer[begin + 32 : begin + 38]).hex()

    def _one(self, place: int) -> Mapping[str, Any]:
        """Decode a row by itself, which is odd; its record is read as any that is not plain."""
        form, reading = self._part.gatherer.form, self._reading
        record = next(read_records(self._part.buffer, form, self._part.name, among=[int(self._rows[place, 1])]))
        (row,) = reading.resolver.resolve(Committed(record, [record], None, position_of(record)))
        return reading.one(row, int(self._seqs[place]))


def _merged(plain: pa.RecordBatch | None, others: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows in commit order; there is at least one."""
    if not others:
        assert plain is not None
        return plain
    one_by_one = pa.RecordBatch.from_pylist(list(others), c.ARROW_SCHEMA)
    if plain is None:
        return one_by_one
    both = pa.Table.from_batches([plain, one_by_one]).combine_chunks()
    in_order = both.sort_by([(c.COMMIT_SCN, "ascending"), (c.CHANGE_SEQ, "ascending")])
    return in_order.combine_chunks().to_batches()[0]


def row_of(change: Change, key: Sequence[str]) -> dict[str, Any]:
    """Return what a row of the change stream holds of its own."""
    image = change.before if change.before is not None else change.after
    found = {} if image is None else {name: image[name] for name in key if name in image}
    return {
        c.CHANGE_SEQ: change.change_seq,
        c.OP: change.op.value,
        c.SCHEMA_NAME: change.table.schema,
        c.TABLE_NAME: change.table.name,
        c.TABLE_VERSION: change.table_version,
        c.KEY: encode_image(found) if found else None,
        c.BEFORE: None if change.before is None else encode_image(change.before),
        c.AFTER: None if change.after is None else encode_image(change.after),
    }


def _common(committed: Committed, changes: int) -> dict[str, Any]:
    at_s = committed.committed_at_s
    return {
        c.SOURCE: "",
        c.TXN_ID: txn_id(committed),
        c.COMMIT_SCN: position_of(committed.outcome),
        c.TXN_CHANGES: changes,
        c.COMMITTED_AT: None if at_s is None else datetime.fromtimestamp(at_s, UTC),
    }


def txn_id(committed: Committed) -> str:
    """Return a transaction's identifier, behind its log stream where that is not the first one."""
    outcome = committed.outcome
    return (f"{outcome.stream}:" if outcome.stream else "") + outcome.tid.hex()
