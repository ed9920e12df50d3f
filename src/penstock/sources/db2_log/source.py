"""Db2's log as a source of a pipeline: implements `sources.recorded.Recording` over a folder of buffers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import change as c
from penstock.position import START, Scn
from penstock.sources.db2_log.buffers import Buffers, position_of
from penstock.sources.db2_log.changes import Decoded, Decoder, group_size
from penstock.sources.db2_log.transactions import Committed, Resolver
from penstock.sources.recorded import RecordedSide, Recording
from penstock.storage import Storage
from penstock.stream import Slice, TableVersion
from penstock.values import encode_image

log = logging.getLogger(__name__)

_BATCH_ROWS, _BATCH_BYTES = 10_000, 32 * 1024 * 1024

_MOST_LOB_BYTES = 512 * 1024 * 1024
"""A change's values travel as one text: what has more LOB data is refused."""


@dataclass(frozen=True)
class LogSlice(Slice):
    """A slice that knows where the first record of each transaction lies."""

    PER_TRANSACTION: ClassVar[tuple[str, ...]] = (*Slice.PER_TRANSACTION, "firsts")

    firsts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class Db2Log:
    """Implements `Recording`."""

    buffers: Buffers

    @property
    def label(self) -> str:
        """The folder."""
        return self.buffers.storage.label

    @property
    def id(self) -> str:
        """What the catalogue says."""
        return self.buffers.catalog.id

    def tables(self) -> Sequence[TableVersion]:
        """Return what the catalogue says; it is read once in each process."""
        return self.buffers.catalog.versions()

    def end(self) -> Scn:
        """Return the position of the last transaction that changed a table of the catalogue."""
        for indexed in reversed(self.buffers.indexed()):
            if len(indexed.columns[0]):
                return Scn(int(indexed.columns[0][-1]))
        return START

    def next_slice(self, after: Scn) -> LogSlice | None:
        """Return what follows a position in the first file that has something."""
        for indexed in self.buffers.indexed():
            scns = indexed.columns[0]
            if len(scns) and scns[-1] > after:
                skip = int(np.searchsorted(scns, after, side="right"))
                scns, firsts, changes, sizes, at_us = (column[skip:] for column in indexed.columns)
                return LogSlice(after, Scn(int(scns[-1])), scns, changes, sizes, at_us, firsts=firsts)
        return None

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice, from the first record of any of its transactions on."""
        assert isinstance(part, LogSlice)
        catalog = self.buffers.catalog
        resolver, decoder, wanted = Resolver(catalog), Decoder(catalog), set(part.commit_scns.tolist())
        keys = {table.name: table.key for table in catalog.tables}
        rows: list[dict[str, Any]] = []
        size = 0
        for committed in self.buffers.transactions(int(part.firsts.min()), int(part.commit_scns[-1])):
            if position_of(committed.outcome) not in wanted:
                continue
            changed = resolver.resolve(committed)
            common = _common(committed, len(changed))
            for seq, row in enumerate(changed):
                lob_bytes = group_size(row.group)
                if lob_bytes > _MOST_LOB_BYTES:
                    row.record.refuse(
                        f"a row of {row.table.name} has {lob_bytes} bytes of LOB data, and {_MOST_LOB_BYTES} are taken",
                        do="leave the table out of the catalogue",
                    )
                decoded = decoder.decode(row, seq)
                for name in decoded.append:
                    decoder.unreplicable(row, name, "an update appended to it, and its old value is not in the log")
                rows.append(common | row_of(decoded, keys[row.table.name]))
                size += 2 * lob_bytes + 1000
                if len(rows) == _BATCH_ROWS or size >= _BATCH_BYTES:
                    yield pa.RecordBatch.from_pylist(rows, c.ARROW_SCHEMA)
                    rows, size = [], 0
        if rows:
            yield pa.RecordBatch.from_pylist(rows, c.ARROW_SCHEMA)
        left = decoder.left
        if left.not_logged or left.unreplicable:
            facts = {"not_logged": left.not_logged, "unreplicable": left.unreplicable, "after": int(part.after)}
            log.warning("db2_log.columns_left_out", extra=facts)


def row_of(decoded: Decoded, key: Sequence[str]) -> dict[str, Any]:
    """Return what a row of the change stream holds of its own."""
    change = decoded.change
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


def open_db2_log(storage: Storage) -> RecordedSide:
    """Make a source of a folder of buffers; nothing is touched yet."""
    return RecordedSide(Db2Log(Buffers(storage)))


_: type[Recording] = Db2Log
