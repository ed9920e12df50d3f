"""The jobs of publishing: tasks write data files, and return what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TypeAlias

from pyspark import Broadcast

from penstock.change import TableName
from penstock.formats.archive_log import DataFile
from penstock.sinks.archive.files import FileWriter, WrittenFiles
from penstock.sinks.archive.task import CopyTask, publish_slice
from penstock.snapshot.instantiate import Work
from penstock.spark.job import at_once, at_workers, broadcast, for_each
from penstock.spark.starting import Spark
from penstock.stream import Reader, Slice

_PART_CHANGES = 20_000
"""A task of fewer would take longer to begin than to do."""

Shared: TypeAlias = "Broadcast[tuple[Reader, FileWriter]]"


class PublishJobs:
    """Writes slices on Spark. What does not change between batches travels to the workers once."""

    def __init__(self, spark: Spark) -> None:
        """Run on `spark`."""
        self._spark = spark
        self._shared: Shared | None = None

    def share(self, reader: Reader, writer: FileWriter) -> None:
        """Use these from the next batch on; to be called before the first one."""
        if self._shared is not None:
            self._shared.unpersist()
        self._shared = broadcast(self._spark, (reader, writer))

    def warm_up(self) -> None:
        """Have a worker started, and its session opened, before the first batch is waiting for them."""
        assert self._shared is not None
        given = self._shared
        for_each(self._spark, [None], lambda _: given.value[0].open())

    def run(self, part: Slice) -> WrittenFiles:
        """Write the changes of a slice, in parts side by side; returns the files in commit order.

        Raises:
            RetryableError: A worker or a connection was lost; what was written is of no account.
            PenstockError: Something else keeps the slice from being read or written.
        """
        assert self._shared is not None
        given = self._shared
        most = max(1, min(self._spark.context.defaultParallelism, part.total_changes // _PART_CHANGES))
        parts = [part] if part.is_large else part.split(most)
        written = for_each(self._spark, parts, lambda one: publish_slice(one, *given.value))
        return reduce(WrittenFiles.followed_by, written, WrittenFiles())


class PublishCopyJobs:
    """Writes chunks of a first copy, a few pieces of work to a task."""

    def __init__(self, spark: Spark, task: CopyTask) -> None:
        """Write as `task` says."""
        self._spark = spark
        self._task = task

    @property
    def at_once(self) -> int:
        """How many pieces of work one call should be given."""
        return at_once(self._spark)

    def copy(self, work: Sequence[Work]) -> list[tuple[TableName, list[DataFile]]]:
        """Write chunks side by side; returns the files of each chunk, in the order of the chunks.

        Raises:
            RetryableError: A worker or a connection was lost; what was written is of no account.
            PenstockError: Something else keeps a chunk from being read or written.
        """
        with at_workers(self._spark, self._task) as task:
            done = for_each(self._spark, work, lambda piece: task.value.write(*piece))
        return [chunk for chunks in done for chunk in chunks]
