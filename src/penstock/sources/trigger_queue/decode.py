"""Log rows to the change stream: Arrow in, Arrow out, no socket and no Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.change import Op, TableName
from penstock.errors import MalformedInputError, OperatorError
from penstock.sources.trigger_queue.position import QueueSlice
from penstock.text import count, were

LOG_SCHEMA = pa.schema(
    [
        ("txn_id", pa.int64()),
        ("seq", pa.int64()),
        ("relid", pa.int64()),
        ("version", pa.int32()),
        ("op", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
    ]
)
"""Rows of a change log, ordered by (txn_id, seq): the changes of one transaction follow each other."""

_PACKED_OPS = ("i", "u", "d")

_OPS = {"I": Op.INSERT, "U": Op.UPDATE, "D": Op.DELETE, "T": Op.TRUNCATE, "!": Op.GAP, "A": Op.DDL, "M": Op.MESSAGE}


@dataclass(frozen=True)
class CapturedTable:
    """What the decoder has to know of one version of a captured table."""

    name: TableName
    key: tuple[str, ...]


class LogDecoder:
    """Turns the log rows of one slice into change-stream batches, with positions filled in.

    Rows of transactions outside the slice are dropped. The rows of one transaction may be spread over
    several batches, in order.
    """

    def __init__(
        self,
        source: str,
        part: QueueSlice,
        tables: Mapping[tuple[int, int], CapturedTable],
        left_out: Collection[tuple[int, int]] = (),
    ) -> None:
        """Decode for `source`; `tables` is keyed by (relid, version), and changes of those `left_out` are dropped."""
        self._source = source
        self._slice = part
        self._tables = tables
        self._by_id = np.argsort(part.txn_ids)
        self._sorted_ids = part.txn_ids[self._by_id]
        self._left_out = np.array([relid << 32 | version for relid, version in left_out], np.uint64)
        # How many changes of each transaction were seen, in the order of the slice.
        self._seen = np.zeros(len(part), np.int64)
        self._open_txn = -1
        self._open_changes = 0

    def decode(self, batches: Iterable[pa.RecordBatch], *, with_key: bool) -> Iterator[pa.RecordBatch]:
        """Yield one change-stream batch per log batch that holds rows of the slice, in the same order.

        Args:
            with_key: Fill the `key` column; apply does not need it.

        Raises:
            MalformedInputError: A row names an unknown table version or operation.
            OperatorError: At the end, that a transaction had fewer or more changes than the slice says.
        """
        for batch in batches:
            decoded = self._decode(batch, with_key=with_key)
            if decoded is not None:
                yield decoded
        self._refuse_incomplete()

    def _refuse_incomplete(self) -> None:
        wrong = np.flatnonzero(self._seen != self._slice.changes)
        if len(wrong):
            first = wrong[0]
            more = len(wrong) - 1
            others = f", and {count(more, 'more transaction')} {'is' if more == 1 else 'are'} wrong" if more else ""
            counted = int(self._slice.changes[first])
            raise OperatorError(
                f"transaction {self._slice.txn_ids[first]} has {count(int(self._seen[first]), 'change')} in the log"
                f" where {counted} {were(counted)} counted{others}: the log was freed or altered meanwhile, or is"
                " that of another server now",
                where=f"source {self._source}, position {self._slice.commit_scns[first]}",
                do="run again; if the log has lost what follows, that says the way out",
            )

    def _decode(self, batch: pa.RecordBatch, *, with_key: bool) -> pa.RecordBatch | None:
        ids = batch["txn_id"].to_numpy()
        place = np.searchsorted(self._sorted_ids, ids)
        place[place == len(self._sorted_ids)] = 0
        is_ours = self._sorted_ids[place] == ids if len(self._sorted_ids) else np.zeros(len(ids), bool)
        if not is_ours.any():
            return None
        if not is_ours.all():
            batch, ids, place = batch.filter(pa.array(is_ours)), ids[is_ours], place[is_ours]
        rank = self._by_id[place]
        starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
        # A batch holds the rows of a transaction in one run.
        self._seen[rank[starts]] += np.diff(np.r_[starts, len(ids)])
        if len(self._left_out):
            is_followed = ~np.isin(_codes(batch), self._left_out)
            if not is_followed.any():
                return None
            batch, ids, rank = batch.filter(pa.array(is_followed)), ids[is_followed], rank[is_followed]
        tables = self._tables_of(batch)
        n = batch.num_rows
        columns = {
            c.SOURCE: pa.repeat(self._source, n),
            c.TXN_ID: pc.cast(batch["txn_id"], pa.string()),
            c.COMMIT_SCN: pa.array(self._slice.commit_scns[rank], pa.int64()),
            c.CHANGE_SEQ: pa.array(self._change_seq(ids), pa.int64()),
            c.TXN_CHANGES: pa.array(self._slice.changes[rank], pa.int64()),
            c.SCN: batch["seq"],
            c.COMMITTED_AT: pa.array(self._slice.committed_at_us[rank], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            c.OP: self._ops(batch),
            c.SCHEMA_NAME: tables.schemas,
            c.TABLE_NAME: tables.names,
            c.TABLE_VERSION: batch["version"],
            c.KEY: tables.keys(pc.coalesce(batch["before"], batch["after"])) if with_key else pa.nulls(n, pa.string()),
            c.BEFORE: batch["before"],
            c.AFTER: batch["after"],
            c.DDL: pa.nulls(n, pa.string()),
            c.TAG: self._tags(rank),
            c.META: pa.nulls(n, pa.string()),
        }
        return pa.record_batch(list(columns.values()), schema=c.ARROW_SCHEMA)

    def _tags(self, rank: NDArray[np.int64]) -> pa.Array:
        """The origin mark of each row, by the place of its transaction in the slice."""
        if not self._slice.tags:
            return pa.nulls(len(rank), pa.string())
        # The code -1 finds the last entry. An apply process that sets no mark writes as users do.
        tags = pa.array([*(tag or None for tag in self._slice.tags), None], pa.string())
        return tags.take(pa.array(self._slice.tag_codes[rank] % len(tags)))

    def _change_seq(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number the rows of each transaction from 0, going on where the last batch ended."""
        starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
        lengths = np.diff(np.r_[starts, len(ids)])
        seq = np.arange(len(ids)) - np.repeat(starts, lengths)
        if ids[0] == self._open_txn:
            seq[: lengths[0]] += self._open_changes
        self._open_txn, self._open_changes = int(ids[-1]), int(seq[-1]) + 1
        return seq

    def _tables_of(self, batch: pa.RecordBatch) -> _RowTables:
        distinct, inverse = np.unique(_codes(batch), return_inverse=True)
        tables = []
        for value in distinct:
            relid, version = int(value) >> 32, int(value) & 0xFFFFFFFF
            table = self._tables.get((relid, version))
            if table is None:
                raise MalformedInputError(
                    "change log names a table version that was never captured",
                    where=f"source {self._source}, relation {relid}, version {version}",
                    do="run `penstock setup`",
                )
            tables.append(table)
        return _RowTables(tables, inverse)

    def _ops(self, batch: pa.RecordBatch) -> pa.Array:
        index = pc.index_in(batch["op"], pa.array(list(_OPS)))
        if index.null_count:
            at = int(np.flatnonzero(index.is_null().to_numpy(zero_copy_only=False))[0])
            raise MalformedInputError(
                f"change log holds an unknown operation {batch['op'][at].as_py()!r}",
                where=f"source {self._source}, log row {batch['seq'][at].as_py()}",
            )
        return pa.array([op.value for op in _OPS.values()], pa.string()).take(index)


def _codes(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """The table version of each row, as one number."""
    relids, versions = (batch[name].to_numpy().astype(np.uint64) for name in ("relid", "version"))
    codes: NDArray[np.uint64] = (relids << np.uint64(32)) | versions
    return codes


def change_by_change(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Turn rows as they are stored into rows of one change each (`LOG_SCHEMA`), in the same order.

    Many changes of one statement may be stored as one row: operation `i`, `u` or `d`, and `before` holds a line for
    each change, with the image; that of an update is two, with a tab between. A row of one change stays as it is.
    """
    is_packed = pc.is_in(batch["op"], value_set=pa.array(_PACKED_OPS))
    if not pc.any(is_packed).as_py():
        return batch
    # One line per change; a row of one change becomes one empty line. The packed text itself is left behind below: it
    # would be copied for each of its lines.
    nothing = pa.scalar(None, pa.string())
    lines = pc.split_pattern(pc.if_else(is_packed, batch["before"], ""), "\n")
    row, line = pc.list_parent_indices(lines), pc.list_flatten(lines)
    stored = {name: batch[name].take(row) for name in LOG_SCHEMA.names if name != "before"}
    single = pc.if_else(is_packed, nothing, batch["before"]).take(row)
    is_insert, is_update, is_delete = (pc.equal(stored["op"], op) for op in _PACKED_OPS)
    images = pc.split_pattern(pc.if_else(is_update, line, "\t"), "\t", max_splits=1)
    old, new = pc.list_element(images, 0), pc.list_element(images, 1)
    stored["op"] = pc.utf8_upper(stored["op"])
    stored["before"] = pc.if_else(is_update, old, pc.if_else(is_delete, line, single))
    stored["after"] = pc.if_else(is_update, new, pc.if_else(is_insert, line, stored["after"]))
    return pa.record_batch([stored[name] for name in LOG_SCHEMA.names], names=LOG_SCHEMA.names)


class _RowTables:
    """The table of each row of a batch."""

    def __init__(self, tables: list[CapturedTable], inverse: NDArray[np.int64]) -> None:
        self._tables = tables
        self._inverse = inverse
        index = pa.array(inverse)
        self.schemas = pa.array([t.name.schema for t in tables], pa.string()).take(index)
        self.names = pa.array([t.name.name for t in tables], pa.string()).take(index)

    def keys(self, image: pa.Array) -> pa.Array:
        """The key of each row, cut from the head of its image; capture writes key columns first."""
        keys = pa.nulls(len(image), pa.string())
        for i, table in enumerate(self._tables):
            if not table.key:
                continue
            is_here = pa.array(self._inverse == i)
            found = pc.extract_regex(image.filter(is_here), pattern=_key_pattern(table.key))
            head = pc.struct_field(found, "key")
            keys = pc.replace_with_mask(keys, is_here, pc.binary_join_element_wise("{", head, "}", ""))
        return keys


def _key_pattern(key: tuple[str, ...]) -> str:
    value = r'(?:null|"(?:[^"\\]|\\.)*")'
    members = (re.escape(json.dumps(name, ensure_ascii=False)) + ":" + value for name in key)
    return r"^\{(?P<key>" + ",".join(members) + ")"
