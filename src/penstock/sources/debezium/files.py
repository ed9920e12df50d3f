"""A folder of files with events, one JSON object in each line, as a log of records."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import OperatorError
from penstock.formats.debezium.record import Record, read_line
from penstock.sources.debezium.log import Extent, Offsets, Partition, RecordFollower, RecordLog
from penstock.storage import Storage

_SUFFIXES = (".jsonl", ".ndjson", ".json")

LINES = Partition("lines", 0)
"""All lines of all files, in the order of the files' names, are one partition; offsets count them from 0."""


@dataclass(frozen=True)
class FileLog:
    """Implements `log.RecordLog`. Files appear whole, never change, and come in the order of their names."""

    storage: Storage
    _lines: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def label(self) -> str:
        """The folder."""
        return self.storage.label

    @property
    def ends(self) -> bool:
        """What is there is all that is known to come."""
        return True

    def partition_of(self, record: Record) -> Partition:
        """Return the one that there is."""
        return LINES

    def topic_id(self, topic: str) -> str:
        """Return nothing: lines are no topic."""
        return ""

    def identity(self) -> str:
        """Return a digest of the first line: it stays the same wherever the files are taken."""
        for name in self._names():
            for _, line in _split(self.storage.read(name))[:1]:
                return hashlib.sha256(line).hexdigest()[:32]
        return ""

    def extents(self) -> Mapping[Partition, Extent]:
        """Return how many lines there are."""
        names = self._names()
        return {LINES: Extent(0, sum(map(self._count, names)))} if names else {}

    def others(self) -> Sequence[str]:
        """Return none: all that is in the files is the log's."""
        return ()

    def follow(self, positions: Mapping[Partition, int]) -> FileFollower:
        """Follow the lines from an offset on."""
        return FileFollower(self, positions.get(LINES, 0))

    def read(self, partition: Partition, first: int, end: int) -> Iterator[Record]:
        """Yield the records of a range of lines."""
        at = 0
        for name in self._names():
            count = self._count(name)
            if at < end and first < at + count:
                lines = _split(self.storage.read(name))
                for number in range(max(first - at, 0), min(end - at, count)):
                    line, text = lines[number]
                    yield replace(read_line(text, file=f"{self.label}/{name}", number=line), offset=at + number)
            at += count
        if end > at:
            raise OperatorError(
                "files hold fewer events than they held", where=self.label, do="bring back what was removed"
            )

    def offsets(self, consumer: str) -> NoOffsets:
        """Return what keeps none: files are read from their beginning."""
        return NoOffsets()

    def _names(self) -> Sequence[str]:
        return sorted(name for name in self.storage.names("") if name.endswith(_SUFFIXES))

    def _count(self, name: str) -> int:
        if name not in self._lines:
            self._lines[name] = len(_split(self.storage.read(name)))
        return self._lines[name]


class NoOffsets:
    """Implements `log.Offsets` where none are kept."""

    def committed(self, partitions: Collection[Partition]) -> Mapping[Partition, tuple[int, str]]:
        """Return nothing."""
        return {}

    def commit(self, positions: Mapping[Partition, int], note: str) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Close nothing."""


class FileFollower:
    """Implements `log.RecordFollower`."""

    def __init__(self, log: FileLog, first: int) -> None:
        """Begin at a line."""
        self._log = log
        self._at = first

    def take(self, most: int, timeout_s: float) -> Sequence[Record]:
        """Return the lines that come next; waits for none, as files appear whole."""
        extent = self._log.extents().get(LINES)
        end = min(extent.end if extent is not None else 0, self._at + most)
        if end <= self._at:
            time.sleep(min(timeout_s, 0.1))
            return []
        records = list(self._log.read(LINES, self._at, end))
        self._at = end
        return records

    def positions(self) -> Mapping[Partition, int]:
        """Return the line below which everything was returned."""
        return {LINES: self._at}

    def close(self) -> None:
        """Close nothing."""


def _split(content: bytes) -> list[tuple[int, bytes]]:
    """The lines of a file that hold anything, with their numbers from 1."""
    return [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]


_: type[RecordLog] = FileLog
__: type[RecordFollower] = FileFollower
___: type[Offsets] = NoOffsets
