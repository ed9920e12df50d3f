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
from typing import ClassVar

import pyarrow as pa

from penstock.archive import Archive
from penstock.errors import ConfigError
from penstock.formats.archive_log import DataFile
from penstock.position import Scn
from penstock.sources.change_files.reader import FileReader
from penstock.sources.change_files.span import Bound, Span, files_in_span, find_span
from penstock.spark.change_source import ChangeDataSource, ChangePartition, ChangeStream
from penstock.spark.offsets import StreamOffsets
from penstock.storage import Storage, open_storage

_FORMAT = "penstock.change_files"


class ChangeFilesSource(ChangeDataSource):
    """The data source."""

    FORMAT = _FORMAT
    OPTIONS = ("path", "source", "startingPosition", "endingPosition")

    @staticmethod
    def stream(options: Mapping[str, str]) -> ChangeStream:
        """Say what options mean."""
        start, end = (_position(options, name) for name in ("startingPosition", "endingPosition"))
        return _FileStream(open_storage(options["path"]), options.get("source"), start, end)


@dataclass
class _FilePartition(ChangePartition):
    storage: Storage
    source: str | None
    file: DataFile
    within: Span

    def batches(self) -> Iterator[pa.RecordBatch]:
        reader = FileReader(Archive(self.storage), source=self.source)
        return reader.read_followed([self.file], self.within.after, self.within.upto)


class _FileStream(ChangeStream):
    """The files of an archive, as it is each time that something is asked."""

    OFFSETS: ClassVar = StreamOffsets("change files", "archive", "commit_scn")
    MAY_LAG: ClassVar = True

    def __init__(self, storage: Storage, source: str | None, start: Scn | None, end: Scn | None) -> None:
        self._storage = storage
        self._source = source
        self._start = start
        self._end = end

    @property
    def label(self) -> str:
        return self._archive.label

    @property
    def id(self) -> str:
        return self._archive.header.id

    def begin(self) -> Scn:
        return self._span().after

    def end(self) -> Scn:
        return self._span().upto

    def digest_at(self, position: Scn) -> str | None:
        return self._archive.digest_at(position)

    def partitions(self, after: Scn, upto: Scn) -> Sequence[ChangePartition]:
        found = files_in_span(self._archive, Span(after, upto))
        return [_FilePartition(self._storage, self._source, file, within) for files, within in found for file in files]

    @property
    def _archive(self) -> Archive:
        return Archive(self._storage)

    def _span(self) -> Span:
        since = None if self._start is None else Bound(Scn(self._start + 1))
        return find_span(self._archive, since, None if self._end is None else Bound(self._end))


def _position(options: Mapping[str, str], name: str) -> Scn | None:
    if name not in options:
        return None
    text = options[name].strip()
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"option {name!r} of {_FORMAT} must be a whole number, 0 or more")
    return Scn(int(text))
