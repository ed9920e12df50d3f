"""The trigger queue as a source: positions on the driver, change-stream batches in tasks."""

from __future__ import annotations

import threading
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import pyarrow as pa

from penstock.change import NO_VERSION, TableName
from penstock.history import Consumer, ConsumerState, History, Joined
from penstock.position import Anchor, Limit, Scn
from penstock.schema import TableSchema
from penstock.sources.trigger_queue.decode import CapturedTable, Decoder
from penstock.sources.trigger_queue.position import Slice


@dataclass(frozen=True)
class Captured:
    """One version of a captured table.

    Attributes:
        relid: The source's own id of the table; log rows name it together with the version.
        table: The table as it was in that version.
        definition: The JSON it was read from, as it is kept in the ledger.
        root: The table that it is a partition of: its rows are changes of that table, only its truncation is its
            own. Otherwise the table itself.
    """

    relid: int
    table: TableSchema
    definition: Mapping[str, Any]
    root: TableName

    @property
    def is_partition(self) -> bool:
        """Whether its rows are captured as those of its root."""
        return self.root != self.table.name


def roots(captured: Iterable[Captured]) -> dict[TableName, TableSchema]:
    """Return the tables that are captured as what they are now: neither partitions, nor by names they had before."""
    last = {c.relid: c for c in sorted(captured, key=lambda c: c.table.version)}
    return {c.table.name: c.table for c in last.values() if not c.is_partition}


@dataclass(frozen=True)
class Backlog:
    """What waits in the log after a position.

    Attributes:
        oldest_at: When the oldest change that waits was made.
        size_bytes: Disk that the log takes.
    """

    changes: int
    oldest_at: datetime | None
    size_bytes: int


class ChangeLog(Protocol):
    """A change log in a source database. Dialects implement it."""

    def open(self) -> None:
        """Open what the first calls would have to wait for."""

    def join(self, history: History) -> Joined:
        """Make sure that a process goes on with the history it has followed, and have the log kept for it."""

    def hold_against(self, history: History) -> None:
        """Make sure that a process's history is that of the log; otherwise raise as `join` does."""

    def keep_for(self, consumer: Consumer, position: Scn) -> None:
        """Have the log kept for a consumer from a position on."""

    def next_slice(
        self, after: Scn, limit: Limit, *, until: Scn | None = None, anchor: Anchor | None = None
    ) -> Slice | None:
        """Return the transactions that follow `after`, as many as `limit` allows; None when there are none yet.

        `anchor` is the last cut at or before `after`, as it was known when `after` was reached.
        """

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when `next_slice`, which had nothing, may have something; after the timeout at the latest."""

    def tick(self) -> Scn:
        """Return a position that every transaction committed before the call lies at or before."""

    def earliest(self) -> Anchor:
        """Return the earliest position that can still be read from."""

    def anchor_of(self, position: Scn) -> Anchor:
        """Return the last cut at or before a position."""

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the log rows of a slice (`decode.LOG_SCHEMA`), with rows of other transactions in between."""

    def captured(self) -> Sequence[Captured]:
        """Return every version of every captured table, oldest first."""

    def captured_count(self) -> int:
        """How many `captured` would return; cheap enough to ask before each batch."""

    def free(self, upto: Scn, consumer: str) -> int:
        """Note that a consumer needs nothing at or before `upto`, and delete what no consumer needs any more.

        Returns the number of log rows deleted.
        """

    def seen(self, consumer: str) -> None:
        """Note that a consumer is there, though there is nothing for it."""

    def consumers(self) -> Sequence[ConsumerState]:
        """Return who the log is kept for, and what each holds back, the one that is furthest behind first."""

    def backlog(self, after: Scn) -> Backlog:
        """Count what waits behind a position."""

    def close(self) -> None:
        """Close what was opened."""


class LogAccess(Protocol):
    """How a task reaches the log; small enough to travel with it."""

    def log(self) -> ChangeLog:
        """Return this worker's log, opened when first asked for and kept for later tasks."""


@dataclass(frozen=True)
class SliceReader:
    """Reads slices as change-stream batches, wherever it has travelled to.

    Attributes:
        tables: Every captured table version, by (relid, version).
        left_out: Those of tables that the reader is not about.
    """

    source: str
    access: LogAccess
    tables: Mapping[tuple[int, int], CapturedTable]
    left_out: Collection[tuple[int, int]] = frozenset()

    @classmethod
    def of(
        cls,
        source: str,
        access: LogAccess,
        captured: Iterable[Captured],
        *,
        follows: Container[TableName] | None = None,
    ) -> SliceReader:
        """Read as `source`, with these table versions; only what is of tables that it `follows`, if that is given."""
        captured = list(captured)
        tables = {
            (c.relid, c.table.version): CapturedTable(
                c.table.name, c.table.primary_key.columns if c.table.primary_key else ()
            )
            for c in captured
        }
        # A gap names its table, and no version of it.
        for c in sorted(captured, key=lambda c: c.table.version):
            tables[c.relid, NO_VERSION] = CapturedTable(c.table.name, ())
        left_out = frozenset(
            (c.relid, version)
            for c in captured
            if follows is not None and c.table.name not in follows and c.root not in follows
            for version in (c.table.version, NO_VERSION)
        )
        return cls(source, access, tables, left_out)

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice; those of one transaction follow each other in order.

        Raises:
            OperatorError: A transaction has fewer or more changes in the log than the slice says.
        """
        decoder = Decoder(self.source, part, self.tables, self.left_out)
        return decoder.decode(self.access.log().read(part), with_key=with_key)
