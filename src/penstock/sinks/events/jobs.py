"""The jobs of publishing to Kafka: one task at a time, since one producer at a time may move the position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from pyspark import Broadcast

from penstock.sinks.events.task import CopyWork, EventTask, Published
from penstock.snapshot.task import SourceAccess
from penstock.spark.job import at_workers, broadcast, for_each
from penstock.spark.starting import Spark
from penstock.stream import Reader, Slice

Shared: TypeAlias = "Broadcast[tuple[Reader, EventTask]]"


class EventJobs:
    """Publishes slices on Spark. What does not change between batches travels to the workers once."""

    def __init__(self, spark: Spark) -> None:
        """Run on `spark`."""
        self._spark = spark
        self._shared: Shared | None = None

    def share(self, reader: Reader, task: EventTask) -> None:
        """Use these from the next batch on; to be called before the first one."""
        if self._shared is not None:
            self._shared.unpersist()
        self._shared = broadcast(self._spark, (reader, task))

    def warm_up(self) -> None:
        """Have a worker started, and its session opened, before the first batch is waiting for them."""
        assert self._shared is not None
        given = self._shared
        for_each(self._spark, [None], lambda _: given.value[0].open())

    def run(self, part: Slice, token: str) -> Published:
        """Publish a slice; returns where the pipeline stands then. Raises as `EventTask.publish` does."""
        assert self._shared is not None
        given = self._shared

        def publish(part: Slice) -> Published:
            reader, task = given.value
            return task.publish(part, reader, token)

        (published,) = for_each(self._spark, [part], publish)
        return published


def copy_chunks(spark: Spark, task: EventTask, access: SourceAccess, work: Sequence[CopyWork], token: str) -> Published:
    """Publish chunks of a copy, one after the other; raises as `EventTask.copy` does."""
    with at_workers(spark, (task, access)) as shared:

        def copy(work: Sequence[CopyWork]) -> Published:
            task, access = shared.value
            return task.copy(work, access, token)

        (published,) = for_each(spark, [work], copy)
    return published
