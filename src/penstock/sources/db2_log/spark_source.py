"""Db2's log as a Spark data source, for streams and for batches: `format("penstock.db2_log")`.

Options: `path` of the folder with the catalogue and the buffers, `source` (what the column of that name says, default:
the `id` of the catalogue), `startingPosition` (what lies behind it, default: everything), `endingPosition` (default:
all that is there by now). A position is a number, or a time of commit.

A task reads what is committed in one file. Rows come in no order: `commit_scn` and `change_seq` have it. A batch of a
stream holds whole transactions. A LOB with more than 1 MiB of data is not in its image, which says where it is: see
`penstock.external_values`, and `LogValues`, which reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.position import EVERYTHING, START, Scn
from penstock.sources.db2_log.buffers import Buffers
from penstock.sources.db2_log.source import Db2Log
from penstock.sources.recorded import RecordedConnector, RecordedReader
from penstock.spark.offsets import StreamOffsets
from penstock.spark.options import refuse_unknown
from penstock.spark.schemas import CHANGES
from penstock.storage import open_storage
from penstock.stream import Slice

_FORMAT = "penstock.db2_log"

_OFFSETS = StreamOffsets("Db2's log", "log", "commit_scn")

_OPTIONS = ("path", "source", "startingPosition", "endingPosition")


class Db2LogSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return _FORMAT

    def schema(self) -> StructType:
        """The change stream."""
        return CHANGES

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once, between two positions."""
        return _BatchReader(_Options.read(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Read on and on."""
        return _StreamReader(_Options.read(self.options))


@dataclass(frozen=True)
class _Options:
    log: Db2Log
    source: str
    after: Scn
    upto: Scn | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> _Options:
        refuse_unknown(options, _OPTIONS, source=_FORMAT)
        if "path" not in options:
            raise ConfigError(f"option 'path' of {_FORMAT} is missing")
        log = Db2Log(Buffers(open_storage(options["path"])))
        side = RecordedConnector(log)
        after, upto = (
            side.position_of(options[name].strip(), option=f"option {name!r}") if name in options else None
            for name in ("startingPosition", "endingPosition")
        )
        return cls(log, options.get("source", log.id), START if after is None else after, upto)

    @property
    def end(self) -> Scn:
        """Up to where there is something to read by now."""
        end = self.log.end()
        return end if self.upto is None else min(end, self.upto)


@dataclass
class _SlicePartition(InputPartition):
    part: Slice


class _Reader:
    """What reading once and reading on have in common."""

    def __init__(self, options: _Options) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _SlicePartition):  # Spark stands one of its own in for none at all.
            yield from RecordedReader(self._options.log, self._options.source, None).read(partition.part)

    def _partitions(self, after: Scn, upto: Scn) -> list[_SlicePartition]:
        found = []
        while after < upto and (part := self._options.log.next_slice(after)) is not None:
            found.append(_SlicePartition(part.take(after, EVERYTHING, upto)))
            after = part.end
        return [partition for partition in found if len(partition.part)]


class _BatchReader(_Reader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return self._partitions(self._options.after, self._options.end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _Reader.read(self, partition)


class _StreamReader(_Reader, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        return self._offset(self._options.after)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known, upto = self._known(start), self._options.end
        if upto <= known:
            # Files may be on their way from another machine.
            if self._options.log.digest_at(known) is not None:
                self._refuse_other(start)
            return start
        self._refuse_other(start)
        return self._offset(upto)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        after, upto = self._known(start), self._known(end)
        for offset in (start, end):
            self._refuse_other(offset)
        return self._partitions(after, upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _Reader.read(self, partition)

    def _offset(self, position: Scn) -> dict[str, Any]:
        return _OFFSETS.write(self._options.log.id, position, self._options.log.digest_at(position))

    def _refuse_other(self, offset: dict[str, Any]) -> None:
        log = self._options.log
        _OFFSETS.hold_against(offset, log.digest_at(self._known(offset)), where=log.label)

    def _known(self, offset: dict[str, Any]) -> Scn:
        return _OFFSETS.read(offset, self._options.log.id, where=self._options.log.label)
