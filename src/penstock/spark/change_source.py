"""What our data sources of changes share: everything but what they read. `ChangeStream` is what is left to write.

A stream's offset is a position, with a digest of what was read up to it. Rows come in no order, and a batch holds whole
transactions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.position import Scn
from penstock.spark.offsets import StreamOffsets
from penstock.spark.options import refuse_unknown
from penstock.spark.schemas import CHANGES


class ChangePartition(InputPartition, ABC):
    """What a task reads, and by what: the stream itself stays in the driver."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes, with all columns of the change stream."""


class ChangeStream(ABC):
    """Changes at one place, between two positions that options have named; lives in the driver.

    Attributes:
        OFFSETS: What the offsets of its streams are like.
        MAY_LAG: What is there may end before what was read already, as files may be on their way from another machine;
            otherwise that is refused.
    """

    OFFSETS: ClassVar[StreamOffsets]
    MAY_LAG: ClassVar[bool]

    @property
    @abstractmethod
    def label(self) -> str:
        """The place, named without secrets."""

    @property
    @abstractmethod
    def id(self) -> str:
        """What positions are positions in."""

    @abstractmethod
    def begin(self) -> Scn:
        """Return the position behind which reading begins."""

    @abstractmethod
    def end(self) -> Scn:
        """Return the position up to which there is something to read by now."""

    @abstractmethod
    def digest_at(self, position: Scn) -> str | None:
        """Return a digest of what is there up to a position; None where it ends before."""

    @abstractmethod
    def partitions(self, after: Scn, upto: Scn) -> Sequence[ChangePartition]:
        """Cut what lies behind one position, up to another, into what tasks read."""


class ChangeDataSource(DataSource):
    """A data source of changes.

    Attributes:
        FORMAT: Its name in `spark.read.format`.
        OPTIONS: The names of its options; `path` is the one that is required.
    """

    FORMAT: ClassVar[str]
    OPTIONS: ClassVar[tuple[str, ...]]

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return cls.FORMAT

    def schema(self) -> StructType:
        """The change stream."""
        return CHANGES

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once, between two positions."""
        return _BatchReader(self._checked_stream())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Read on and on."""
        return _StreamReader(self._checked_stream())

    @staticmethod
    def stream(options: Mapping[str, str]) -> ChangeStream:
        """Say what options mean, which have known names, and a path.

        Raises:
            ConfigError: One is of another form.
        """
        raise NotImplementedError

    def _checked_stream(self) -> ChangeStream:
        refuse_unknown(self.options, self.OPTIONS, source=self.FORMAT)
        if "path" not in self.options:
            raise ConfigError(f"option 'path' of {self.FORMAT} is missing")
        return self.stream(self.options)


class _TaskSide:
    """What of a reader travels to tasks: nothing, as a partition has what it takes."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ChangePartition):  # Spark stands one of its own in for none at all.
            yield from partition.batches()


class _BatchReader(_TaskSide, DataSourceReader):
    def __init__(self, stream: ChangeStream) -> None:
        self._stream = stream

    def partitions(self) -> Sequence[InputPartition]:
        return self._stream.partitions(self._stream.begin(), self._stream.end())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _TaskSide.read(self, partition)


class _StreamReader(_TaskSide, DataSourceStreamReader):
    def __init__(self, stream: ChangeStream) -> None:
        self._stream = stream

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        return self._offset(self._stream.begin())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known, upto = self._known(start), self._stream.end()
        is_behind = self._stream.MAY_LAG and upto <= known and self._stream.digest_at(known) is None
        if not is_behind:
            self._refuse_other(start)
        return self._offset(upto) if upto > known else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        after, upto = self._known(start), self._known(end)
        for offset in (start, end):
            self._refuse_other(offset)
        return self._stream.partitions(after, upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _TaskSide.read(self, partition)

    def _offset(self, position: Scn) -> dict[str, Any]:
        return self._stream.OFFSETS.write(self._stream.id, position, self._stream.digest_at(position))

    def _refuse_other(self, offset: dict[str, Any]) -> None:
        digest = self._stream.digest_at(self._known(offset))
        self._stream.OFFSETS.hold_against(offset, digest, where=self._stream.label)

    def _known(self, offset: dict[str, Any]) -> Scn:
        return self._stream.OFFSETS.read(offset, self._stream.id, where=self._stream.label)
