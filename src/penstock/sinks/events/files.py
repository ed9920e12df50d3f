"""Publishing to files of JSON lines: a file appears whole, with its events and the position that they reach.

Files are numbered from 1, and the number is the fence: a name that is taken cannot be taken again, so a publisher that
was replaced can add nothing. The last line of each file is a record of a position topic, without a value, as a
tombstone has none: those who read events pass over it, and its headers say where the pipeline stands.
"""

from __future__ import annotations

import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import pyarrow as pa

from penstock.errors import MalformedInputError, RetryableError
from penstock.formats.debezium.record import TopicRecord as Line
from penstock.formats.debezium.record import read_line
from penstock.formats.debezium.writer import OutgoingRecord
from penstock.sinks.events.publisher import EventDestination, Publisher
from penstock.sinks.events.state import PublishedState, StateEntry, published_state_of
from penstock.storage import NameTakenError, Storage

_NAME = re.compile(r"(\d{20})\.jsonl")


@dataclass(frozen=True)
class Folder:
    """A folder of files with events; implements `publisher.EventDestination`."""

    storage: Storage
    pipeline: str = ""

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
        found = [_NAME.fullmatch(name) for name in self.storage.names("")]
        number = max((int(name[1]) for name in found if name is not None), default=0)
        if number == 0:
            return 0, PublishedState()
        name = name_of(number)
        where = f"{self.label}/{name}"
        lines = self.storage.read(name).removesuffix(b"\n").rsplit(b"\n", 1)
        line = read_line(lines[-1], file=where, number=len(lines))
        if line.topic != self.position_topic:
            raise MalformedInputError(
                "a file does not end with the position of this pipeline",
                where=where,
                do="let nothing else write to this folder, and give the pipeline the name that it had",
            )
        return number, published_state_of(((key.encode(), value) for key, value in line.headers), where=where)


def name_of(number: int) -> str:
    """Return the name of a file."""
    return f"{number:020}.jsonl"


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
            transaction = FileTransaction(self.published_state, file)
            yield transaction
            entries = transaction.published_state.entries()
            headers = tuple((key, value.value_bytes) for key, value in ((entry.key, entry) for entry in entries))
            file.write(Line(self._folder.position_topic, None, None, headers).to_line() + b"\n")
            file.flush()
            name = name_of(self._number + 1)
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

    def __init__(self, published_state: PublishedState, file: IO[bytes]) -> None:
        self.published_state = published_state
        self._file = file

    def send(self, records: Iterable[OutgoingRecord]) -> int:
        """Write a line for each record; returns how many there were."""
        number = 0
        for record in records:
            line = Line(record.topic, record.key, record.value, record.headers, record.partition or 0)
            self._file.write(line.to_line() + b"\n")
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
