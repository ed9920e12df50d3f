"""The job of a batch: read a slice of the source, plan its lanes, apply each lane. One job, at most one shuffle."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeAlias, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import Broadcast
from pyspark import TaskContext as SparkTask
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock import change as c
from penstock.apply.ledger import LaneClaim
from penstock.apply.server import LaneResult
from penstock.apply.task import LANE, TaskContext, apply_lane, discard_instantiated, in_commit_order, plan_batch
from penstock.errors import PenstockError, RetryableError, from_json
from penstock.position import START
from penstock.snapshot.chunk import Chunk, CopySource
from penstock.snapshot.instantiate import CopyListener
from penstock.snapshot.task import CopyContext, copy_chunk
from penstock.sources.trigger_queue.position import Slice
from penstock.sources.trigger_queue.queue import SliceReader
from penstock.spark.schemas import PLANNED
from penstock.verify.compare import CompareContext, RangeResult

Item = TypeVar("Item")
Context = TypeVar("Context")
Result = TypeVar("Result")

Shared: TypeAlias = "Broadcast[tuple[SliceReader, TaskContext]]"

_FAILURES = (PySparkException, Py4JJavaError)
"""What a job fails with; the second where PySpark knows no error of its own, as when it was cancelled."""

_RESULT = "result string"
_ERROR_MARK = "penstock-error:"


class BatchJobs:
    """Applies slices on Spark. What does not change between batches travels to the workers once."""

    def __init__(self, spark: SparkSession, *, process: str, epoch: int) -> None:
        """Run on `spark`, as the given run of an apply process."""
        self._spark = spark
        self._process = process
        self._epoch = epoch
        self._shared: Shared | None = None

    def share(self, reader: SliceReader, context: TaskContext) -> None:
        """Use these from the next batch on; to be called before the first one."""
        if self._shared is not None:
            self._shared.unpersist()
        self._shared = self._spark.sparkContext.broadcast((reader, context))

    def warm_up(self, *, lanes: int) -> None:
        """Have workers started and plans compiled before the first batch is waiting for them."""
        self.run(Slice.empty(START), lanes=lanes)

    def run(self, part: Slice, *, lanes: int) -> Sequence[LaneResult]:
        """Apply a slice; returns one result per lane.

        Raises:
            RetryableError: A worker or a connection was lost; what is not applied yet can be tried again.
            PenstockError: Something else keeps the batch from being read or planned.
        """
        assert self._shared is not None
        frame = self._one_lane(part, self._shared) if lanes == 1 else self._several_lanes(part, lanes, self._shared)
        try:
            return [LaneResult.from_json(row[0]) for row in frame.collect()]
        except _FAILURES as exc:
            raise _translate(exc) from exc

    def _one_lane(self, part: Slice, shared: Shared) -> DataFrame:
        process, epoch = self._process, self._epoch

        def apply(start: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            _drain(start)
            reader, context = shared.value
            with _carried():
                if len(part) == 1:
                    # It may be larger than memory, and is in order as it comes.
                    batches = discard_instantiated(reader.read(part, with_key=False), context.catalog.instantiated)
                else:
                    rows = in_commit_order(reader.read(part, with_key=False), context.catalog.instantiated)
                    batches = iter(rows.to_batches())
                claim = LaneClaim(process, epoch, 0, _attempt(), moves_watermark=True)
                yield _result(apply_lane(batches, claim, context))

        return self._spark.range(0, 1, 1, 1).mapInArrow(apply, _RESULT)

    def _several_lanes(self, part: Slice, lanes: int, shared: Shared) -> DataFrame:
        process, epoch = self._process, self._epoch

        def plan(start: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            _drain(start)
            reader, context = shared.value
            with _carried():
                yield from plan_batch(reader.read(part, with_key=False), part.changes, part.first, lanes, context)

        def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            _, context = shared.value
            batches = (batch for batch in batches if batch.num_rows)
            first = next(batches, None)
            if first is None:
                return
            claim = LaneClaim(process, epoch, first[LANE][0].as_py(), _attempt(), moves_watermark=False)
            with _carried():
                yield _result(apply_lane(chain([first], batches), claim, context))
            _drain(batches)

        return (
            self._spark.range(0, 1, 1, 1)
            .mapInArrow(plan, PLANNED)
            .repartitionById(lanes, LANE)
            .sortWithinPartitions(c.COMMIT_SCN, c.CHANGE_SEQ)
            .mapInArrow(apply, _RESULT)
        )


class ChunkJobs:
    """Implements `snapshot.instantiate.ChunkJobs`: one task per chunk."""

    def __init__(self, spark: SparkSession, context: CopyContext) -> None:
        """Copy with `context`."""
        self._spark = spark
        self._context = context

    def copy(self, chunks: Sequence[tuple[Chunk, CopySource]], done: CopyListener) -> None:
        """Copy chunks side by side.

        Raises:
            RetryableError: A worker or a connection was lost; what is not done yet can be tried again.
            PenstockError: Something else keeps a chunk from being copied.
        """
        copied = _for_each(self._spark, chunks, self._context, lambda work, context: copy_chunk(*work, context))
        done.copied(len(chunks), sum(copied))


class CompareJobs:
    """Implements `verify.compare.RangeJobs`: one task per range."""

    def __init__(self, spark: SparkSession, context: CompareContext) -> None:
        """Compare with `context`."""
        self._spark = spark
        self._context = context

    def compare(self, chunks: Sequence[Chunk]) -> Sequence[RangeResult]:
        """Compare ranges side by side."""

        def compare(chunk: Chunk, context: CompareContext) -> RangeResult:
            source, target = context.source_tables[chunk.table], context.target_tables[chunk.table]
            return context.comparer.compare(source, target, chunk)

        return _for_each(self._spark, chunks, self._context, compare)


def _for_each(
    spark: SparkSession, work: Sequence[Item], context: Context, do: Callable[[Item, Context], Result]
) -> list[Result]:
    """Do something with each item, in a task of its own; returns the results in no particular order."""
    shared = spark.sparkContext.broadcast((list(work), context))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        items, context = shared.value
        for number in chain.from_iterable(batch["id"].to_pylist() for batch in batches):
            with _carried():
                result = do(items[number], context)
            yield pa.record_batch({"result": [pickle.dumps(result)]})

    try:
        rows = spark.range(0, len(work), 1, len(work)).mapInArrow(run, "result binary").collect()
    except _FAILURES as exc:
        raise _translate(exc) from exc
    finally:
        shared.unpersist()
    return [pickle.loads(row[0]) for row in rows]  # noqa: S301  # our own tasks wrote it


@contextmanager
def _carried() -> Iterator[None]:
    """Let an error of ours cross from a worker to the driver, where `_translate` finds it again."""
    try:
        yield
    except PenstockError as exc:
        raise RuntimeError(_ERROR_MARK + exc.to_json()) from exc


def _translate(exc: Exception) -> PenstockError:
    text = str(exc)
    if _ERROR_MARK in text:
        carried, _ = json.JSONDecoder().raw_decode(text.split(_ERROR_MARK, 1)[1])
        return from_json(json.dumps(carried))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line for line in lines if "Error:" in line or "Exception:" in line), lines[0] if lines else "")
    return RetryableError(f"a Spark task failed: {reason[:300]}", where="Spark")


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
