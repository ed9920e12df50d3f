"""Where events lie: partitions of records, each of which only grows, and each record with its offset in one of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from penstock.formats.debezium.record import TopicRecord

_TOGETHER = 2_000
"""Enough of each form, and few enough to stay in the processor's cache."""


class Partition(NamedTuple):
    """One partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.number}"


def names_of(offsets: Mapping[Partition, int]) -> Mapping[str, int]:
    """Offsets by the names of their partitions, as a mark holds them; `partitions_of` reads them again."""
    return {f"{partition.topic} {partition.number}": offset for partition, offset in offsets.items()}


def partitions_of(offsets: Mapping[str, int]) -> Mapping[Partition, int]:
    """Offsets by partition."""
    split = ((name.rpartition(" "), offset) for name, offset in offsets.items())
    return {Partition(topic, int(number)): offset for (topic, _, number), offset in split}


@dataclass(frozen=True)
class LogLayout:
    """What is where in a log, and what to do where something does not come.

    Attributes:
        transactions: The transaction topic.
        settle_s: Where nothing says when a transaction is whole: how long nothing may have come.
        incomplete: What to do when events of a transaction that has ended do not come for `incomplete_after_s`.
    """

    transactions: str
    settle_s: float = 5.0
    incomplete: str = "stop"
    incomplete_after_s: float = 300.0


@dataclass(frozen=True)
class Extent:
    """What a partition holds: offsets from `first` on, all below `end`; some of them may not exist.

    Attributes:
        written: What lies from `end` up to here is written, and cannot be read yet: a Kafka transaction is open.
    """

    first: int
    end: int
    written: int = 0


class RecordFollower(Protocol):
    """Reads on in many partitions at once, as records come."""

    def take(self, most: int, timeout_s: float) -> Sequence[TopicRecord]:
        """Return records behind those that were returned before, those of a partition in order.

        Waits up to the timeout for the first of them.
        """

    def positions(self) -> Mapping[Partition, int]:
        """Return, for each partition, the offset below which everything was returned."""

    def close(self) -> None:
        """Read no more."""


class ConsumerOffsets(Protocol):
    """Offsets that are kept for one consumer."""

    def committed(self, partitions: Collection[Partition]) -> Mapping[Partition, tuple[int, str]]:
        """Return what was last committed: offsets, each with a note."""

    def commit(self, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        """Keep offsets, each with a note."""

    def close(self) -> None:
        """Close it."""


class Records(Protocol):
    """Records by their places."""

    @property
    def label(self) -> str:
        """Where they are, named without secrets."""

    def read(self, partition: Partition, first: int, end: int) -> Iterator[TopicRecord]:
        """Yield the records of a range of offsets, in order.

        Raises:
            OperatorError: Some of them are gone.
        """


def together(records: Iterator[TopicRecord]) -> Iterator[Sequence[TopicRecord]]:
    """Yield the same records, some at a time: enough of them to be decoded in bulk."""
    while some := list(islice(records, _TOGETHER)):
        yield some


@contextmanager
def uncollected() -> Iterator[None]:
    """Have Python not look for cycles in a block that makes none, and many objects: that takes a fifth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class RecordLog(Records, Protocol):
    """All partitions that a source reads; travels to tasks, so it holds nothing open."""

    @property
    def ends(self) -> bool:
        """Whether what is there now is all: the last transaction is complete where nothing says when one is."""

    def partition_of(self, record: TopicRecord) -> Partition:
        """Return in which partition of the log a record lies."""

    def identity(self) -> str:
        """Return what tells the place from every other, wherever it is moved to."""

    def topic_id(self, topic: str) -> str:
        """Return what tells a topic from any other that had, or will have, its name; empty where there is none."""

    def proof(self, upto: Mapping[Partition, int]) -> Mapping[str, str]:
        """Return what tells that which was read, up to some offsets, from all that has, had or will have its names."""

    def hold_against(self, proof: Mapping[str, str], is_needed: Callable[[str], bool]) -> Mapping[Partition, int]:
        """Make sure that what was read is still there, and is what it was; returns up to where, if the proof says so.

        Args:
            is_needed: Whether a topic may hold anything that is read.

        Raises:
            HistoryError: It is not there any more, or is something else.
        """

    def extents(self) -> Mapping[Partition, Extent]:
        """Return what every partition of every topic holds now.

        Raises:
            RetryableError: Nobody answers.
            OperatorError: Access is refused.
        """

    def others(self) -> Sequence[str]:
        """Return the names of topics that are there, and are none of the log's; none where that cannot be told."""

    def follow(self, positions: Mapping[Partition, int]) -> RecordFollower:
        """Follow partitions, each from an offset on."""

    def offsets(self, consumer: str) -> ConsumerOffsets:
        """Open what is kept for a consumer."""
