"""The partitions that are followed: each has a number, and an offset up to which it was read.

All of it is in memory: where the next run goes on is kept by `dialects.postgres.target.ledger.PostgresLedger.complete`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.sources.debezium.log import Extent, Partition


class Partitions:
    """Numbers partitions in the order in which they are added, and knows how far each was read.

    Attributes:
        names: The partition of each number.
        numbers: The number of each partition.
        read: By number, the offset below which everything was read.
        came_at: By number, when something came last, in seconds of `time.monotonic`.
        ends: Where partitions ended when that was last asked for.
    """

    def __init__(self) -> None:
        """Know none yet."""
        self.names: list[Partition] = []
        self.numbers: dict[Partition, int] = {}
        self.read: dict[int, int] = {}
        self.came_at: dict[int, float] = {}
        self.ends: Mapping[Partition, int] = {}

    def add(self, begin: Mapping[Partition, int]) -> None:
        """Add partitions, each of which is read from an offset on."""
        for partition, offset in sorted(begin.items()):
            number = self.numbers[partition] = len(self.names)
            self.names.append(partition)
            self.read[number], self.came_at[number] = offset, time.monotonic()

    def note_ends(self, extents: Mapping[Partition, Extent]) -> None:
        """Note where partitions end now."""
        self.ends = {partition: extent.end for partition, extent in extents.items()}

    def move_on(self, positions: Mapping[Partition, int], now: float) -> None:
        """Note how far partitions were read."""
        for partition, offset in positions.items():
            number = self.numbers[partition]
            if offset > self.read[number]:
                self.read[number], self.came_at[number] = offset, now

    def offsets(self) -> Mapping[Partition, int]:
        """Return, for each partition, the offset below which everything was read."""
        return {self.names[number]: offset for number, offset in self.read.items()}

    def of_topic(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions."""
        return [number for partition, number in self.numbers.items() if partition.topic == topic]

    def behind(self) -> set[int]:
        """Return the numbers of partitions that are known to hold more than was read."""
        return {n for partition, n in self.numbers.items() if self.read[n] < self.ends.get(partition, 0)}

    def ahead(self, extents: Mapping[Partition, Extent]) -> Mapping[Partition, int]:
        """Return how many offsets of each partition were not read yet; those that were not added are left out."""
        there = {p: self.numbers[p] for p in extents if p in self.numbers}
        return {p: extents[p].end - self.read[n] for p, n in there.items()}

    def has_read(self, extents: Mapping[Partition, Extent]) -> bool:
        """Whether all that these hold was read."""
        return all(self.read.get(self.numbers.get(p, -1), 0) >= extent.end for p, extent in extents.items())
