"""The tasks of a batch: plan the lanes of its transactions, and apply one lane; or, for a batch in one lane, only that.

Both run wherever Spark puts them; what they need travels to them in a `TaskContext`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.apply.coordinator import plan_lanes
from penstock.apply.dependency_keys import find_dependencies
from penstock.apply.error_queue import ErrorQueue
from penstock.apply.group import COLUMNS, SCHEMA, Group, cut_groups, group_sizes, whole_group
from penstock.apply.lane import LaneResult, ServerConfig
from penstock.apply.large import LargeTransaction
from penstock.apply.ledger import LaneClaim
from penstock.apply.retry import Retried, RetryConfig, go_on
from penstock.apply.server import GROUP_BYTES, ApplyServer
from penstock.apply.session import TargetSession
from penstock.apply.target import TargetCatalog
from penstock.change import TableName
from penstock.position import Scn
from penstock.schema import Dictionary

LANE = "lane"

PLANNED_SCHEMA = SCHEMA.append(pa.field(LANE, pa.int32(), nullable=False))

PACKED_SCHEMA = pa.schema([(LANE, pa.int32()), ("number", pa.int32()), ("changes", pa.binary())])
"""Changes on their way to the lanes: runs of them, whole, so that Spark need not look at every one."""

_PACK_CHANGES = 10_000


class Target(ABC):
    """A target as a task reaches it; small enough to travel with the task. PostgreSQL's is `PostgresTarget`."""

    @abstractmethod
    def session(self, epoch: int) -> TargetSession:
        """Return this worker's session, opened when first asked for and kept for later tasks of the same run."""

    @abstractmethod
    def error_queue(self) -> ErrorQueue:
        """Return the error queue."""


@dataclass(frozen=True)
class TaskContext:
    """What is the same for many batches.

    Attributes:
        keys: Substitute keys of tables, which the catalogue has as well.
    """

    target: Target
    catalog: TargetCatalog
    dictionary: Dictionary
    config: ServerConfig
    keys: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)

    def mark_queue(self) -> None:
        """Make the marks of the error queue, where some are missing, or were made by other keys of the target."""
        self.target.error_queue().mark(self.catalog)

    def go_on(self) -> Sequence[Retried]:
        """Apply what has waited in the error queue, and waits for nothing any more."""
        # With the rights that all else is applied with now.
        config = RetryConfig(
            self.config.allow_duplicate_rows,
            conflicts=self.config.conflicts,
            keys=self.keys,
            handlers=self.config.handlers,
            ddl=self.config.ddl,
            as_me=True,
        )
        return list(go_on(self.target.error_queue(), config))


def plan_batch(
    batches: Iterable[pa.RecordBatch],
    sizes: NDArray[np.int64],
    commit_scns: NDArray[np.int64],
    lanes: int,
    context: TaskContext,
) -> Iterator[pa.RecordBatch]:
    """Give every change of a batch its lane.

    Args:
        batches: Change-stream batches; together they hold whole transactions.
        sizes: Number of changes of each transaction, in commit order.
        commit_scns: Position of each of them, strictly increasing.
        lanes: How many lanes to use at most.

    Yields:
        The same changes with `PLANNED_SCHEMA`, in the order they came.
    """
    kept = [batch for batch in _kept(batches, context) if batch.num_rows]
    if not kept:
        return
    # For each change, which of the transactions it is of.
    txn_of = np.searchsorted(commit_scns, np.concatenate([batch[c.COMMIT_SCN].to_numpy() for batch in kept]))
    found = find_dependencies(kept, txn_of, context.catalog.tables, context.catalog.virtual)
    lane_of = plan_lanes(found, sizes, lanes)
    offset = 0
    for batch in kept:
        lane = lane_of[txn_of[offset : offset + batch.num_rows]]
        offset += batch.num_rows
        yield pa.record_batch([*(batch[name] for name in COLUMNS), pa.array(lane, pa.int32())], schema=PLANNED_SCHEMA)


def in_commit_order(
    batches: Iterable[pa.RecordBatch], instantiated: Mapping[TableName, Scn], ignored: Collection[str] = ()
) -> pa.Table:
    """Put the changes of a batch into commit order, for a lane that takes all of them.

    Args:
        batches: Change-stream batches; the changes of each transaction come in order.
    """
    kept = [batch.select(COLUMNS) for batch in discard(batches, instantiated, ignored)]
    rows = pa.Table.from_batches(kept, schema=SCHEMA).combine_chunks()
    return _sorted(rows, (rows[c.COMMIT_SCN].to_numpy(),))


def pack(planned: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put planned changes into commit order lane by lane, and wrap runs of them up (`PACKED_SCHEMA`).

    The changes of each transaction come in order.
    """
    rows = pa.Table.from_batches(planned, schema=PLANNED_SCHEMA).combine_chunks()
    rows = _sorted(rows, (rows[c.COMMIT_SCN].to_numpy(), rows[LANE].to_numpy()))
    lane = rows[LANE].to_numpy()
    bounds = np.flatnonzero(np.diff(lane, prepend=-1, append=-1)) if len(lane) else np.zeros(1, int)
    for low, high in pairwise(bounds.tolist()):
        for number, start in enumerate(range(low, high, _PACK_CHANGES)):
            run = rows.slice(start, min(_PACK_CHANGES, high - start)).select(COLUMNS)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, SCHEMA) as stream:
                stream.write_table(run)
            yield _packed(int(lane[low]), number, sink.getvalue())


def _packed(lane: int, number: int, content: pa.Buffer) -> pa.RecordBatch:
    ends = pa.py_buffer(np.array([0, content.size], np.int32))
    changes = pa.Array.from_buffers(pa.binary(), 1, [None, ends, content])
    return pa.record_batch([pa.array([lane], pa.int32()), pa.array([number], pa.int32()), changes], PACKED_SCHEMA)


def unpack(packed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Undo `pack` for the runs of one lane, which come in the order of their numbers."""
    for batch in packed:
        for run in batch["changes"]:
            yield from pa.ipc.open_stream(run.as_buffer())


def _sorted(rows: pa.Table, by: tuple[NDArray[np.int64], ...]) -> pa.Table:
    """Sort by keys, the last one first, and otherwise leave the order; nothing is copied where they are in order."""
    order = np.lexsort(by)
    return rows if (order[1:] > order[:-1]).all() else rows.take(pa.array(order))


def apply_lane(batches: Iterable[pa.RecordBatch], claim: LaneClaim, context: TaskContext) -> LaneResult:
    """Apply the changes of one lane, which come in commit order."""
    sizes = group_sizes(context.config.group_changes)
    return _serve(cut_groups(batches, sizes, max_bytes=GROUP_BYTES), claim, context)


def apply_windows(windows: Iterable[pa.Table], claim: LaneClaim, context: TaskContext) -> LaneResult:
    """Apply changes that come in commit order and are cut already: each table is a group of whole transactions.

    Nothing need be read beyond a group to know its end, so the target has work sooner than by `apply_lane`.
    """
    return _serve((whole_group(rows) for rows in windows if len(rows)), claim, context)


def _serve(groups: Iterable[Group], claim: LaneClaim, context: TaskContext) -> LaneResult:
    result = _server(claim, context).serve(groups)
    result.lane = claim.lane
    return result


def apply_large(large: LargeTransaction, claim: LaneClaim, context: TaskContext) -> LaneResult:
    """Apply a transaction that cannot be held."""
    if _late_tables(context.catalog.instantiated, large.commit_scn) or context.config.ignored:
        read = partial(_read_kept, large.read, context)
        large = replace(large, read=read, changes=sum(batch.num_rows for batch in read()))
    result = _server(claim, context).serve_large(large)
    # Arrow keeps for a while what this worker may not need again for long.
    pa.default_memory_pool().release_unused()
    return result


def _server(claim: LaneClaim, context: TaskContext) -> ApplyServer:
    session = context.target.session(claim.epoch)
    return ApplyServer(session, claim, context.catalog, context.dictionary, context.config)


def discard(
    batches: Iterable[pa.RecordBatch], instantiated: Mapping[TableName, Scn], ignored: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """Leave out changes that the copy of their table holds already, and those of transactions with ignored ids."""
    kept = _discard_instantiated(batches, instantiated)
    if not ignored:
        return kept
    ids = pa.array(sorted(ignored), pa.string())
    return (batch.filter(pc.invert(pc.is_in(batch[c.TXN_ID], ids))) for batch in kept)


def _discard_instantiated(
    batches: Iterable[pa.RecordBatch], instantiated: Mapping[TableName, Scn]
) -> Iterator[pa.RecordBatch]:
    newest = max(instantiated.values(), default=0)
    for batch in batches:
        scns = batch[c.COMMIT_SCN]
        if batch.num_rows == 0 or pc.min(scns).as_py() > newest:
            yield batch
            continue
        keep = np.ones(batch.num_rows, bool)
        for name, scn in _late_tables(instantiated, pc.min(scns).as_py()):
            is_here = pc.and_(pc.equal(batch[c.TABLE_NAME], name.name), pc.equal(batch[c.SCHEMA_NAME], name.schema))
            keep &= ~pc.and_(is_here, pc.less_equal(scns, scn)).to_numpy(zero_copy_only=False)
        yield batch.filter(pa.array(keep))


def _read_kept(read: Callable[[], Iterator[pa.RecordBatch]], context: TaskContext) -> Iterator[pa.RecordBatch]:
    return _kept(read(), context)


def _kept(batches: Iterable[pa.RecordBatch], context: TaskContext) -> Iterator[pa.RecordBatch]:
    return discard(batches, context.catalog.instantiated, context.config.ignored)


def _late_tables(instantiated: Mapping[TableName, Scn], scn: int) -> Sequence[tuple[TableName, Scn]]:
    return [(name, at) for name, at in instantiated.items() if at >= scn]
