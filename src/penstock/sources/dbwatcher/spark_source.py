"""DbWatcher's messages as a Spark data source, for streams and for batches: `format("penstock.dbwatcher")`.

Options: `path` of the folder with the messages, `source` (what the column of that name says, default: `dbwatcher`),
`defaultSchema` (of tables of which messages name none, default: `public`), `statements` (`refuse`, the default, or
`rows`), `missingMessages` (`stop`, the default, or `accept`), `startingPosition` (what lies behind it, default:
everything), `endingPosition` (default: all that is there by now). A position is a number, or a time of commit, which is
when a file was written.

Columns of tables that no CREATE message describes have the text that the message has. Rows come in no order:
`commit_scn` and `change_seq` have it. A batch of a stream holds whole transactions. A message that cannot be read ends
the query.
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
from penstock.sources.dbwatcher.folder import FolderMessages
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.source import MessageReader, Messages
from penstock.sources.recorded import RecordedConnector, RecordedReader
from penstock.spark.offsets import StreamOffsets
from penstock.spark.options import refuse_unknown
from penstock.spark.schemas import CHANGES
from penstock.storage import open_storage
from penstock.stream import Slice

_FORMAT = "penstock.dbwatcher"

_OFFSETS = StreamOffsets("DbWatcher's messages", "folder", "commit_scn")

_OPTIONS = ("path", "source", "defaultSchema", "statements", "missingMessages", "startingPosition", "endingPosition")

_STATEMENTS = ("refuse", "rows")
_MISSING = ("stop", "accept")


class DbWatcherSource(DataSource):
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
    messages: Messages
    source: str
    after: Scn
    upto: Scn | None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> _Options:
        refuse_unknown(options, _OPTIONS, source=_FORMAT)
        if "path" not in options:
            raise ConfigError(f"option 'path' of {_FORMAT} is missing")
        statements = options.get("statements", "refuse")
        if statements not in _STATEMENTS:
            raise ConfigError(f"option 'statements' must be one of {', '.join(_STATEMENTS)}, not {statements!r}")
        missing = options.get("missingMessages", "stop")
        if missing not in _MISSING:
            raise ConfigError(f"option 'missingMessages' must be one of {', '.join(_MISSING)}, not {missing!r}")
        reading = Reading(
            options.get("defaultSchema", "public"),
            applies_statement_rows=statements == "rows",
            accepts_missing=missing == "accept",
        )
        messages = Messages(FolderMessages(open_storage(options["path"])), (), reading)
        side = RecordedConnector(messages)
        after, upto = (
            side.position_of(options[name].strip(), option=f"option {name!r}") if name in options else None
            for name in ("startingPosition", "endingPosition")
        )
        return cls(messages, options.get("source", "dbwatcher"), START if after is None else after, upto)

    @property
    def end(self) -> Scn:
        """Up to where there is something to read by now."""
        end = self.messages.end()
        return end if self.upto is None else min(end, self.upto)


@dataclass
class _SlicePartition(InputPartition):
    """What a task reads, and by what: messages themselves stay in the driver."""

    part: Slice
    reader: MessageReader
    source: str


class _Reader:
    """What reading once and reading on have in common."""

    def __init__(self, options: _Options) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _SlicePartition):  # Spark stands one of its own in for none at all.
            yield from RecordedReader(partition.reader, partition.source, None).read(partition.part)

    def _partitions(self, after: Scn, upto: Scn) -> list[_SlicePartition]:
        messages, found = self._options.messages, []
        while after < upto and (part := messages.next_slice(after)) is not None:
            piece = part.take(after, EVERYTHING, upto)
            found.append(_SlicePartition(piece, messages.readable, self._options.source))
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
        self._refuse_other(start)
        return self._offset(upto) if upto > known else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        after, upto = self._known(start), self._known(end)
        for offset in (start, end):
            self._refuse_other(offset)
        return self._partitions(after, upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _Reader.read(self, partition)

    def _offset(self, position: Scn) -> dict[str, Any]:
        messages = self._options.messages
        return _OFFSETS.write(messages.id, position, messages.proof_at(position))

    def _refuse_other(self, offset: dict[str, Any]) -> None:
        messages, position = self._options.messages, self._known(offset)
        proof = messages.proof_at(position)
        _OFFSETS.hold_against(offset, proof if proof or position == START else None, where=messages.label)

    def _known(self, offset: dict[str, Any]) -> Scn:
        messages = self._options.messages
        return _OFFSETS.read(offset, messages.id, where=messages.label)
