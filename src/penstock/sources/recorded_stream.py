"""A recording as what a data source of Spark reads: what those of Db2's log and of DbWatcher's messages share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.position import EVERYTHING, START, Scn
from penstock.sources.recorded import ReadableRecording, RecordedConnector, RecordedReader, Recording
from penstock.spark.change_source import ChangePartition, ChangeStream
from penstock.stream import Slice


@dataclass
class _SlicePartition(ChangePartition):
    part: Slice
    recording: ReadableRecording
    source: str

    def batches(self) -> Iterator[pa.RecordBatch]:
        return RecordedReader(self.recording, self.source, None).read(self.part)


class RecordedStream(ChangeStream):
    """What options say is to be read of a recording."""

    def __init__(
        self, recording: Recording, options: Mapping[str, str], *, source: str, readable: ReadableRecording
    ) -> None:
        """Find the positions that the options `startingPosition` and `endingPosition` name, or times.

        Args:
            source: What the column of that name says where no option does.
            readable: What of the recording travels to tasks.

        Raises:
            ConfigError: One names neither.
            OperatorError: One lies behind the end of what is recorded.
        """
        side = RecordedConnector(recording)
        after, upto = (
            side.position_of(options[name].strip(), option=f"option {name!r}") if name in options else None
            for name in ("startingPosition", "endingPosition")
        )
        self._recording = recording
        self._readable = readable
        self._source = options.get("source", source)
        self._after = START if after is None else after
        self._upto = upto

    @property
    def label(self) -> str:
        """The recording's place."""
        return self._recording.label

    @property
    def id(self) -> str:
        """The recording's."""
        return self._recording.id

    def begin(self) -> Scn:
        """Return the position that the options name, or the first one."""
        return self._after

    def end(self) -> Scn:
        """Return the position of the last transaction by now, as far as the options mean it."""
        end = self._recording.end()
        return end if self._upto is None else min(end, self._upto)

    def digest_at(self, position: Scn) -> str | None:
        """Return the recording's proof of a position; None where it ends before."""
        proof = self._recording.proof_at(position)
        return proof if proof or position == START else None

    def partitions(self, after: Scn, upto: Scn) -> Sequence[ChangePartition]:
        """Return the slices that there are."""
        found = []
        while after < upto and (part := self._recording.next_slice(after)) is not None:
            found.append(_SlicePartition(part.take(after, EVERYTHING, upto), self._readable, self._source))
            after = part.end
        return [partition for partition in found if len(partition.part)]
