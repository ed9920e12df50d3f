"""A folder of files with events, one JSON object in each line, as a log of records."""

from __future__ import annotations

import hashlib
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.errors import OperatorError
from penstock.formats.debezium.record import TopicRecord, read_line
from penstock.history import RESYNC, HistoryError
from penstock.sources.debezium.log import ConsumerOffsets, Extent, Partition, RecordFollower, RecordLog
from penstock.sources.numbered_files import refuse_gaps, refuse_other_order
from penstock.storage import Storage
from penstock.text import are, count

_SUFFIXES = (".jsonl", ".ndjson", ".json")

LINES = Partition("lines", 0)
"""All lines of all files, in the order of the files' names, are one partition; offsets count them from 0."""


class _File(NamedTuple):
    """A file that was read.

    Attributes:
        first, end: The offsets of its lines, from the first up to, but without, the last.
        size: In bytes.
        digest: Of its content.
        chain: Of the names and contents of all files up to this one.
    """

    name: str
    first: int
    end: int
    size: int
    digest: bytes
    chain: bytes


@dataclass(frozen=True)
class FileLog:
    """Implements `log.RecordLog`. Files appear whole, never change, and come in the order of their names."""

    storage: Storage
    # Those that were met, in their order.
    _files: list[_File] = field(default_factory=list, compare=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, compare=False, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        return FileLog, (self.storage, list(self._files))

    @property
    def label(self) -> str:
        """The folder."""
        return self.storage.label

    @property
    def ends(self) -> bool:
        """What is there is all that is known to come."""
        return True

    def partition_of(self, record: TopicRecord) -> Partition:
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

    def proof(self, upto: Mapping[Partition, int]) -> Mapping[str, str]:
        """Return which files were read, and a digest of them."""
        lines = upto.get(LINES, 0)
        files = self._files[: bisect_left(self._files, lines, key=lambda file: file.first)]
        if not files:
            return {}
        return {"lines": str(lines), "files": str(len(files)), "last": files[-1].name, "digest": files[-1].chain.hex()}

    def hold_against(self, proof: Mapping[str, str], is_needed: Callable[[str], bool]) -> Mapping[Partition, int]:
        """Compare the files up to the last one that was read."""
        if not proof:
            return {}
        last, count_ = proof["last"], int(proof["files"])
        files = self._now()
        before = [file for file in files if file.name <= last]
        if len(before) > count_:
            raise _changed(
                f"of {count(count_, 'file')} up to {last} that were read there {are(len(before))} now"
                f" {len(before)}: one came below those that were read",
                self.label,
            )
        if len(before) < count_:
            raise _changed(
                f"of {count(count_, 'file')} up to {last} that were read there {are(len(before))} now"
                f" {len(before)}: one was taken away",
                self.label,
            )
        if before[-1].chain.hex() != proof["digest"]:
            raise _changed(
                f"one of {count(count_, 'file')} up to {last}, which were read, holds something else now", self.label
            )
        return {LINES: int(proof["lines"])}

    def extents(self) -> Mapping[Partition, Extent]:
        """Return how many lines there are."""
        files = self._now()
        return {LINES: Extent(0, files[-1].end)} if files else {}

    def others(self) -> Sequence[str]:
        """Return none: all that is in the files is the log's."""
        return ()

    def follow(self, positions: Mapping[Partition, int]) -> FileFollower:
        """Follow the lines from an offset on."""
        return FileFollower(self, positions.get(LINES, 0))

    def read(self, partition: Partition, first: int, end: int) -> Iterator[TopicRecord]:
        """Yield the records of a range of lines."""
        files = self._files if self._files and self._files[-1].end >= end else self._now()
        for file in files[max(0, bisect_right(files, first, key=lambda file: file.first) - 1) :]:
            if file.first >= end:
                break
            if file.end <= first:
                continue
            content = self.storage.read(file.name)
            if _digest(content) != file.digest:
                raise _changed(f"file {file.name} was read, and holds something else now", self.label)
            lines = _split(content)
            for number in range(max(first - file.first, 0), min(end, file.end) - file.first):
                line, text = lines[number]
                yield replace(
                    read_line(text, file=f"{self.label}/{file.name}", number=line), offset=file.first + number
                )
        if not files or end > files[-1].end:
            raise OperatorError(
                "files hold fewer events than they held", where=self.label, do="bring back what was removed"
            )

    def offsets(self, consumer: str) -> NoOffsets:
        """Return what keeps none: files are read from their beginning."""
        return NoOffsets()

    def _names(self) -> Sequence[str]:
        return sorted(name for name in self.storage.names("") if name.endswith(_SUFFIXES))

    def _now(self) -> Sequence[_File]:
        """Return all files; those that were met before are still there, and others lie behind them."""
        with self._lock:
            names, files = self._names(), self._files
            known = [file.name for file in files]
            if len(names) > len(known):
                refuse_gaps(names, self.label)
                refuse_other_order(names, self.label)
            if names[: len(known)] != known:
                if gone := sorted(set(known) - set(names)):
                    raise _changed(f"file {gone[0]} was read, and is not there any more", self.label)
                below = next(name for name in names if name not in known)
                raise _changed(f"file {below} came below those that were read, up to {known[-1]}", self.label)
            if files and self.storage.size(files[-1].name) != files[-1].size:
                # It was not whole when it was read, and nobody would read what it has got since.
                raise _changed(f"file {files[-1].name} was read, and holds something else now", self.label)
            for name in names[len(known) :]:
                content = self.storage.read(name)
                first, chain = (files[-1].end, files[-1].chain) if files else (0, b"")
                digest = _digest(content)
                chain = _digest(b"\0".join((chain, name.encode(), digest)))
                files.append(_File(name, first, first + len(_split(content)), len(content), digest, chain))
            return files


class NoOffsets:
    """Implements `log.ConsumerOffsets` where none are kept."""

    def committed(self, partitions: Collection[Partition]) -> Mapping[Partition, tuple[int, str]]:
        """Return nothing."""
        return {}

    def commit(self, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Close nothing."""


class FileFollower:
    """Implements `log.RecordFollower`."""

    def __init__(self, log: FileLog, first: int) -> None:
        """Begin at a line."""
        self._log = log
        self._at = first

    def take(self, most: int, timeout_s: float) -> Sequence[TopicRecord]:
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


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _changed(what: str, where: str) -> HistoryError:
    return HistoryError(
        f"{what}: files appear in the order of their names, whole, and stay as they are",
        where=where,
        do=f"put the files back as they were, and add new ones behind them; or {RESYNC} from what is there",
    )


def _split(content: bytes) -> list[tuple[int, bytes]]:
    """The lines of a file that hold anything, with their numbers from 1."""
    return [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]


_: type[RecordLog] = FileLog
__: type[RecordFollower] = FileFollower
___: type[ConsumerOffsets] = NoOffsets
