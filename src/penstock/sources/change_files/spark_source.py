"""Change files as a Spark data source, for streams and for batches: `format("penstock.change_files")`.

Options: `path` of the archive, `source` (what the column of that name says; default: what the archive says),
`startingPosition` (what lies behind it; default: everything, copies first of all), `endingPosition` (default: all that
is published by now).

Rows come in no order: `commit_scn` and `change_seq` have it. A batch of a stream holds whole transactions, and a copy
of a table whole. Changes of a table at or before the position of its copy are among them; the copy holds those already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from penstock.archive import Archive
from penstock.errors import ConfigError
from penstock.formats.archive_log import DataFile
from penstock.position import Scn
from penstock.sources.change_files.reader import FileReader
from penstock.sources.change_files.span import Bound, Span, files_in_span, find_span
from penstock.spark.offsets import StreamOffsets
from penstock.spark.options import refuse_unknown
from penstock.spark.schemas import CHANGES
from penstock.storage import Storage, open_storage

_FORMAT = "penstock.change_files"

_OFFSETS = StreamOffsets("change files", "archive", "commit_scn")

_OPTIONS = ("path", "source", "startingPosition", "endingPosition")


class ChangeFilesSource(DataSource):
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
    storage: Storage
    source: str | None
    start: Scn | None
    end: Scn | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> _Options:
        refuse_unknown(options, _OPTIONS, source=_FORMAT)
        if "path" not in options:
            raise ConfigError(f"option 'path' of {_FORMAT} is missing")
        start, end = (_position(options, name) for name in ("startingPosition", "endingPosition"))
        return cls(open_storage(options["path"]), options.get("source"), start, end)

    @property
    def span(self) -> Span:
        """The stretch that the options mean, of what is published by now."""
        since = None if self.start is None else Bound(Scn(self.start + 1))
        return find_span(Archive(self.storage), since, None if self.end is None else Bound(self.end))


@dataclass
class _FilePartition(InputPartition):
    file: DataFile
    within: Span


class _Reader:
    """What reading once and reading on have in common."""

    def __init__(self, options: _Options) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _FilePartition):
            return  # Spark stands one of its own in for none at all.
        reader = FileReader(Archive(self._options.storage), source=self._options.source)
        yield from reader.read_followed([partition.file], partition.within.after, partition.within.upto)

    def _partitions(self, span: Span) -> list[_FilePartition]:
        found = files_in_span(Archive(self._options.storage), span)
        return [_FilePartition(file, within) for files, within in found for file in files]


class _BatchReader(_Reader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return self._partitions(self._options.span)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _Reader.read(self, partition)


class _StreamReader(_Reader, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        return self._offset(self._options.span.after)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known, upto = self._known(start), self._options.span.upto
        if upto <= known:
            # A copy of the archive may lag behind what was read from another one, or be listed without its last files.
            if self._archive().digest_at(known) is not None:
                self._refuse_other(start)
            return start
        self._refuse_other(start)
        return self._offset(upto)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        after, upto = self._known(start), self._known(end)
        for offset in (start, end):
            self._refuse_other(offset)
        return self._partitions(Span(after, upto))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _Reader.read(self, partition)

    def _archive(self) -> Archive:
        return Archive(self._options.storage)

    def _offset(self, position: Scn) -> dict[str, Any]:
        archive = self._archive()
        return _OFFSETS.write(archive.header.id, position, archive.digest_at(position))

    def _known(self, offset: dict[str, Any]) -> Scn:
        archive = self._archive()
        return _OFFSETS.read(offset, archive.header.id, where=archive.label)

    def _refuse_other(self, offset: dict[str, Any]) -> None:
        archive, position = self._archive(), self._known(offset)
        _OFFSETS.hold_against(offset, archive.digest_at(position), where=archive.label)


def _position(options: Mapping[str, str], name: str) -> Scn | None:
    if name not in options:
        return None
    text = options[name].strip()
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"option {name!r} of {_FORMAT} must be a whole number, 0 or more")
    return Scn(int(text))
