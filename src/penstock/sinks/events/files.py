"""Publishing to files of JSON lines: a file appears whole, with its events and the position that they reach.

Files are numbered from 1, and the number is the fence: a name that is taken cannot be taken again, so a publisher that
was replaced can add nothing. The last line of each file is a record of a position topic, without a value, as a
tombstone has none: those who read events pass over it, and its headers say where the pipeline stands.
"""

from __future__ import annotations

import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, ClassVar

import pyarrow as pa

from penstock.errors import MalformedInputError, RetryableError
from penstock.formats.debezium.record import TopicRecord as Line
from penstock.formats.debezium.record import read_line
from penstock.formats.debezium.writer import OutgoingRecord
from penstock.sinks.events.publisher import EventDestination, Publisher
from penstock.sinks.events.state import PublishedState, StateEntry, published_state_of
from penstock.storage import NameTakenError, Storage


@dataclass(frozen=True)
class Folder:
    """A folder of files with events; implements `publisher.EventDestination`.

    A subclass writes other files: it has another suffix, and its own forms of a record and of the position.
    """

    storage: Storage
    pipeline: str = ""

    suffix: ClassVar[str] = ".jsonl"

    @property
    def label(self) -> str:
        """The folder."""
        return self.storage.label

    @property
    def where(self) -> str:
        """The folder, and what in it keeps the position."""
        return f"{self.label}, the last file"

    @property
    def position_topic(self) -> str:
        """The topic of the line that says where the pipeline stands."""
        return f"penstock.{self.pipeline}.position"

    def open(self, *, is_large: bool = False) -> FilePublisher:
        """Read where the pipeline stands; the next file is the one behind that."""
        return FilePublisher(self)

    def published_state(self) -> PublishedState:
        """Say where the pipeline stands by the last file.

        Raises:
            MalformedInputError: It does not say it, or was altered.
        """
        return self.last()[1]

    def last(self) -> tuple[int, PublishedState]:
        """Return the number of the last file, and where the pipeline stands by it; 0 where there is none."""
        numbered = re.compile(rf"(\d{{20}}){re.escape(self.suffix)}")
        found = [numbered.fullmatch(name) for name in self.storage.names("")]
        number = max((int(name[1]) for name in found if name is not None), default=0)
        if number == 0:
            return 0, PublishedState()
        name = self.name_of(number)
        where = f"{self.label}/{name}"
        entries = self.entries_in(self.storage.read(name), where)
        if entries is None:
            raise MalformedInputError(
                "a file does not end with the position of this pipeline",
                where=where,
                do="let nothing else write to this folder, and give the pipeline the name that it had",
            )
        return number, published_state_of(((key.encode(), value) for key, value in entries), where=where)

    def name_of(self, number: int) -> str:
        """Return the name of a file."""
        return f"{number:020}{self.suffix}"

    def record(self, record: OutgoingRecord) -> bytes:
        """Return a record as it stands in a file."""
        line = Line(record.topic, record.key, record.value, record.headers, record.partition or 0)
        return line.to_line() + b"\n"

    def end(self, entries: Sequence[StateEntry], *, is_empty: bool) -> bytes:
        """Return what ends a file: where the pipeline stands.

        Args:
            is_empty: The file holds no record.
        """
        headers = tuple((entry.key, entry.value_bytes) for entry in entries)
        return Line(self.position_topic, None, None, headers).to_line() + b"\n"

    def entries_in(self, content: bytes, where: str) -> Sequence[tuple[str, bytes | None]] | None:
        """Return the entries at the end of a file; None where they are not this pipeline's.

        Raises:
            MalformedInputError: The end is something else.
        """
        lines = content.removesuffix(b"\n").rsplit(b"\n", 1)
        line = read_line(lines[-1], file=where, number=len(lines))
        return line.headers if line.topic == self.position_topic else None


class FilePublisher:
    """Implements `publisher.Publisher`."""

    def __init__(self, folder: Folder) -> None:
        """Read where the pipeline stands."""
        self._folder = folder
        self.token = secrets.token_hex(8)
        self._number, self.published_state = folder.last()

    @contextmanager
    def transaction(self) -> Iterator[FileTransaction]:
        """Write a file of what is sent inside the block; it appears at the end of it."""
        # Not in memory: there is no limit to what one transaction of the source holds.
        with tempfile.NamedTemporaryFile(prefix="penstock-events-") as file:
            transaction = FileTransaction(self._folder, self.published_state, file)
            yield transaction
            is_empty = file.tell() == 0
            file.write(self._folder.end(transaction.published_state.entries(), is_empty=is_empty))
            file.flush()
            name = self._folder.name_of(self._number + 1)
            try:
                with pa.memory_map(file.name) as content:
                    self._folder.storage.create(name, content.read_buffer())
            except NameTakenError as exc:
                where = f"{self._folder.label}/{name}"
                raise RetryableError(
                    "another publisher of the pipeline has written",
                    where=where,
                    do="let one run at a time publish here",
                ) from exc
        self._number += 1
        self.published_state = transaction.published_state

    def close(self) -> None:
        """Nothing is held."""


class FileTransaction:
    """Implements `publisher.PublishTransaction`."""

    def __init__(self, folder: Folder, published_state: PublishedState, file: IO[bytes]) -> None:
        self.published_state = published_state
        self._folder = folder
        self._file = file

    def send(self, records: Iterable[OutgoingRecord]) -> int:
        """Write records; returns how many there were."""
        number = 0
        for record in records:
            self._file.write(self._folder.record(record))
            number += 1
        return number

    def refusal(self, record: OutgoingRecord) -> str | None:
        """Return None: a line may be of any length."""
        return None

    def stand(self, published_state: PublishedState, *entries: StateEntry) -> None:
        """Have the file say that the pipeline stands somewhere else."""
        self.published_state = published_state


_: type[EventDestination] = Folder
__: type[Publisher] = FilePublisher
