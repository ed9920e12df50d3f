"""The job of a batch: read a slice of the source, plan its lanes, apply each lane. One job, at most one shuffle."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from itertools import chain
from typing import TypeAlias, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import Broadcast, SparkContext
from pyspark import TaskContext as SparkTask
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from penstock.apply.group import group_sizes
from penstock.apply.lane import LaneResult
from penstock.apply.large import LargeTransaction
from penstock.apply.ledger import LaneClaim
from penstock.apply.listener import CopyListener
from penstock.apply.process import ReleasedTransaction
from penstock.apply.server import GROUP_BYTES
from penstock.apply.task import (
    LANE,
    TaskContext,
    apply_lane,
    apply_large,
    apply_windows,
    in_commit_order,
    pack,
    plan_batch,
    unpack,
)
from penstock.errors import PenstockError, RetryableError, from_json
from penstock.position import START, Scn
from penstock.snapshot.chunk import Chunk
from penstock.snapshot.instantiate import Work
from penstock.snapshot.task import CopyContext, copy_chunks
from penstock.spark.schemas import PACKED
from penstock.spark.starting import Spark
from penstock.stream import Reader, Slice
from penstock.verify.driver import CompareContext
from penstock.verify.task import RangeResult

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")

Shared: TypeAlias = "Broadcast[tuple[Reader, TaskContext]]"

_FAILURES = (PySparkException, Py4JJavaError)
"""What a job fails with; the second where PySpark knows no error of its own, as when it was cancelled."""

_TASKS_PER_CORE = 2
"""More would make the end more even, and cost more."""

_ITEMS_PER_TASK = 4

_RESULT = "result string"
_ERROR_MARK = "penstock-error:"


class BatchJobs:
    """Applies slices on Spark. What does not change between batches travels to the workers once."""

    def __init__(self, spark: Spark, *, process: str, epoch: int) -> None:
        """Run on `spark`, as the given run of an apply process."""
        self._spark = spark
        self._process = process
        self._epoch = epoch
        self._shared: Shared | None = None

    def share(self, reader: Reader, context: TaskContext) -> None:
        """Use these from the next batch on; to be called before the first one."""
        if self._shared is not None:
            self._shared.unpersist()
        self._shared = broadcast(self._spark, (reader, context))

    def warm_up(self) -> None:
        """Have a worker started, and its sessions opened, before the first batch is waiting for them."""
        assert self._shared is not None
        self._one_lane(Slice.empty(START), self._shared, opens=True)

    def mark_queue(self) -> None:
        """See `TaskContext.mark_queue`."""
        assert self._shared is not None
        shared = self._shared
        for_each(self._spark, [None], lambda _: shared.value[1].mark_queue())

    def go_on(self) -> Sequence[ReleasedTransaction]:
        """See `TaskContext.go_on`."""
        assert self._shared is not None
        shared = self._shared

        def went_on(_: None) -> Sequence[ReleasedTransaction]:
            return [
                ReleasedTransaction(one.entry_id, None if one.error is None else str(one.error))
                for one in shared.value[1].go_on()
            ]

        return for_each(self._spark, [None], went_on)[0]

    def run(self, part: Slice, *, lanes: int) -> Sequence[LaneResult]:
        """Apply a slice; returns one result per lane.

        Raises:
            RetryableError: A worker or a connection was lost; what is not applied yet can be tried again.
            PenstockError: Something else keeps the batch from being read or planned.
        """
        assert self._shared is not None
        if lanes == 1:
            return [self._one_lane(part, self._shared)]
        with _failures_translated():
            return [LaneResult.from_json(row[0]) for row in self._several_lanes(part, lanes, self._shared).collect()]

    def _one_lane(self, part: Slice, shared: Shared, *, opens: bool = False) -> LaneResult:
        process, epoch = self._process, self._epoch

        def apply(part: Slice) -> str:
            reader, context = shared.value
            if opens:
                reader.open()
            claim = LaneClaim(process, epoch, 0, _attempt(), moves_watermark=True, cut=part.cut)
            if part.is_large:
                return apply_large(large_transaction(reader, part), claim, context).to_json()
            return apply_windows(read_in_commit_order(reader, part, context), claim, context).to_json()

        (result,) = for_each(self._spark, [part], apply)
        return LaneResult.from_json(result)

    def _several_lanes(self, part: Slice, lanes: int, shared: Shared) -> DataFrame:
        process, epoch, cut = self._process, self._epoch, part.cut

        def plan(start: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            _drain(start)
            reader, context = shared.value
            with _carried():
                batches = reader.read(part, with_key=False)
                yield from pack(plan_batch(batches, part.changes, part.commit_scns, lanes, context))

        def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            _, context = shared.value
            batches = (batch for batch in batches if batch.num_rows)
            first = next(batches, None)
            if first is None:
                return
            claim = LaneClaim(process, epoch, first[LANE][0].as_py(), _attempt(), moves_watermark=False, cut=cut)
            with _carried():
                yield _result(apply_lane(unpack(chain([first], batches)), claim, context))
            _drain(batches)

        return (
            self._spark.session.range(0, 1, 1, 1)
            .mapInArrow(plan, PACKED)
            .repartitionById(lanes, LANE)
            .sortWithinPartitions("number")
            .mapInArrow(apply, _RESULT)
        )


def read_in_commit_order(reader: Reader, part: Slice, context: TaskContext) -> Iterator[pa.Table]:
    """Read a slice window by window, each as large as a group, so that no more is sorted, and held, at a time."""
    for window in part.windows(group_sizes(context.config.group_changes), GROUP_BYTES):
        batches = reader.read(window, with_key=False)
        yield in_commit_order(batches, context.catalog.instantiated, context.config.ignored)


def large_transaction(reader: Reader, part: Slice) -> LargeTransaction:
    """Make a slice of one large transaction readable piece by piece."""
    read = partial(reader.read, part, with_key=False)
    return LargeTransaction(
        commit_scn=Scn(int(part.commit_scns[0])),
        committed_at_us=part.committed_at_us,
        # Some of its changes may be of tables that the pipeline is not about.
        changes=sum(batch.num_rows for batch in read()) if reader.leaves_out else part.total_changes,
        size_bytes=int(part.size_bytes[0]),
        read=read,
    )


class SparkChunkJobs:
    """Implements `snapshot.instantiate.ChunkJobs`: a few pieces of work to a task."""

    def __init__(self, spark: Spark, context: CopyContext) -> None:
        """Copy with `context`."""
        self._spark = spark
        self._context = context

    @property
    def at_once(self) -> int:
        """How many pieces of work one call should be given."""
        return at_once(self._spark)

    def copy(self, work: Sequence[Work], done: CopyListener) -> None:
        """Copy chunks side by side.

        Raises:
            RetryableError: A worker or a connection was lost; what is not done yet can be tried again.
            PenstockError: Something else keeps a chunk from being copied.
        """
        with at_workers(self._spark, self._context) as shared:
            copied = for_each(self._spark, work, lambda piece: copy_chunks(*piece, shared.value))
        done.copied(sum(len(chunks) for chunks, _ in work), sum(copied))


class CompareJobs:
    """Implements `verify.driver.RangeJobs`: a few bundles to a task."""

    def __init__(self, spark: Spark, context: CompareContext) -> None:
        """Compare with `context`."""
        self._spark = spark
        self._context = context

    @property
    def at_once(self) -> int:
        """How many bundles of ranges one call should be given."""
        return at_once(self._spark)

    def compare(self, bundles: Sequence[Sequence[Chunk]]) -> Sequence[RangeResult]:
        """Compare bundles of ranges side by side."""

        def compare(bundle: Sequence[Chunk]) -> Sequence[RangeResult]:
            return shared.value.compare(bundle)

        with at_workers(self._spark, self._context) as shared:
            results = for_each(self._spark, bundles, compare)
        return list(chain.from_iterable(results))

    def repair(self, chunks: Sequence[Chunk]) -> Sequence[RangeResult]:
        """Bring what differs in ranges; the ledger lets only one of them be written at a time."""

        def repair(chunk: Chunk) -> RangeResult:
            return shared.value.repair(chunk)

        with at_workers(self._spark, self._context) as shared:
            return for_each(self._spark, chunks, repair)


def for_each(spark: Spark, work: Sequence[Item], do: Callable[[Item], Result]) -> list[Result]:
    """Do something with each item; returns the results in the order of the items.

    An RDD: where there is no data for Spark to move, a frame's plan would take longer than all the rest of the job. A
    task takes some items after each other, since to begin one takes a worker longer than a small item does. The items
    are dealt out in turn, so that those which follow each other are done side by side.
    """
    tasks = min(len(work), _TASKS_PER_CORE * spark.context.defaultParallelism)
    dealt = [work[task::tasks] for task in range(tasks)]

    def run(items: Sequence[Item]) -> list[Result]:
        with _carried():
            return [do(item) for item in items]

    with _failures_translated():
        done = spark.context.parallelize(dealt, tasks).map(run).collect()
    return [done[n % tasks][n // tasks] for n in range(len(work))]


def run_first_job(context: SparkContext) -> None:
    """Run a job that does nothing: Java loads what every job needs, and a worker is there for the next one."""
    with _failures_translated():
        context.parallelize([None], 1).map(_nothing).collect()


def at_once(spark: Spark) -> int:
    """Enough items for every task of a job to have some, and few enough for a run to be stopped between two jobs."""
    return _ITEMS_PER_TASK * _TASKS_PER_CORE * spark.context.defaultParallelism


@contextmanager
def at_workers(spark: Spark, value: Value) -> Iterator[Broadcast[Value]]:
    """Have a value at the workers' hands while the block runs."""
    shared = broadcast(spark, value)
    try:
        yield shared
    finally:
        shared.unpersist()


def broadcast(spark: Spark, value: Value) -> Broadcast[Value]:
    """Have a value travel to the workers once; raises as `_failures_translated` says."""
    # PySpark prints a traceback before it raises that something could not be written.
    with _failures_translated(), redirect_stderr(StringIO()):
        return spark.context.broadcast(value)


@contextmanager
def _carried() -> Iterator[None]:
    """Let an error of ours cross from a worker to the driver, where `_translate` finds it again."""
    try:
        yield
    except PenstockError as exc:
        # Without what caused it: Spark writes it all to the executor's log, and a driver's message holds row values.
        raise RuntimeError(_ERROR_MARK + exc.to_json()) from None


@contextmanager
def _failures_translated() -> Iterator[None]:
    """Raise what Spark makes of a failure as an error of ours.

    Raises:
        RetryableError: A worker was lost, or Spark itself, or there is no room for the file in which work travels.
        PenstockError: What the task raised.
    """
    try:
        yield
    except _FAILURES as exc:
        raise _translate(exc) from exc
    except ConnectionError as exc:
        do = "see whether the system ended it for want of memory; run again"
        raise RetryableError("lost Spark's Java process", where="Spark", do=do) from exc
    except (pickle.PicklingError, OSError) as exc:
        # PySpark raises the same for a file that cannot be written and for an object that cannot be pickled.
        if isinstance(exc, pickle.PicklingError) and "OSError: " not in str(exc):
            raise
        reason = str(exc).rpartition("OSError: ")[2]
        do = "free space in Spark's local directory"
        raise RetryableError(f"cannot hand work to Spark: {reason}", where="Spark", do=do) from exc


def _translate(exc: Exception) -> PenstockError:
    text = str(exc)
    if _ERROR_MARK in text:
        carried, _ = json.JSONDecoder().raw_decode(text.split(_ERROR_MARK, 1)[1])
        return from_json(json.dumps(carried))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line for line in lines if "Error:" in line or "Exception:" in line), lines[0] if lines else "")
    return RetryableError(f"a Spark task failed: {reason[:300]}", where="Spark")


def _nothing(_: None) -> None:
    pass


def _drain(batches: Iterator[pa.RecordBatch]) -> None:
    """Read the task's input to its end; a worker that leaves some unread is thrown away, not used again."""
    for _ in batches:
        pass


def _attempt() -> int:
    task = SparkTask.get()
    assert task is not None
    return task.taskAttemptId()


def _result(result: LaneResult) -> pa.RecordBatch:
    return pa.record_batch({"result": [result.to_json()]})
