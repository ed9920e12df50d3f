"""A log of change events as a source, on the driver: a `Tracker` follows it, and this asks the tracker."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from penstock.change import TableName
from penstock.history import ConsumerState, Facts, History, HistoryError, Joined, Origin, joined
from penstock.position import START, Anchor, Limit, Scn
from penstock.snapshot.chunk import CopySource
from penstock.sources.debezium.copy import EventChunks
from penstock.sources.debezium.log import RecordLog
from penstock.sources.debezium.reader import EventReader
from penstock.sources.debezium.tables import EventDecoder, Tables
from penstock.sources.debezium.tracker import Tracker
from penstock.stream import Backlog, Reader, Slice, Source, SourceAccess, TableVersion

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DebeziumSource:
    """Implements `stream.Source`. A position is the offset behind an END in the transaction topic.

    Without such a topic it is the position that the source gives its transactions in its own log.
    """

    def __init__(self, log: RecordLog, tracker: Tracker, tables: Tables, transactions: str) -> None:
        """Ask a tracker, which all sources of a run share."""
        self._log = log
        self._tracker = tracker
        self._tables = tables
        self._transactions = transactions
        self._after = START
        self._id = ""
        self._follows = False

    def open(self) -> None:
        """Make sure that there is a log."""
        _ = self._identity

    def join(self, history: History) -> Joined:
        """Make sure that a process goes on with the topics it has followed, and follow them from there on.

        Raises:
            OperatorError: It has followed others, or what follows is not there any more.
        """
        found = self._joined(history)
        self._tracker.start(found.position)
        self._follows = True
        self._after = found.position
        return found

    def hold_against(self, history: History) -> None:
        """Make sure that a process's history is that of the topics; otherwise raise as `join` does."""
        self._joined(history)

    def next_slice(
        self, after: Scn, limit: Limit, *, until: Scn | None = None, anchor: Anchor | None = None
    ) -> Slice | None:
        """Return the transactions that follow `after`, as many as `limit` allows; None when there are none yet."""
        if until is not None and after >= until:
            return None
        self._after = after
        part = self._tracker.take(after, limit, until)
        if part is None:
            return None
        mark = self._tracker.mark
        return replace(part, start=Anchor(after, mark), cut=Anchor(part.end, mark))

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when `next_slice`, which had nothing, may have something; after the timeout at the latest."""
        self._tracker.wait(stop, self._after, timeout_s)

    def tick(self) -> Scn:
        """Return a position that every transaction lies at or before whose events are there now."""
        return self._tracker.last()

    def tables(self) -> Sequence[TableVersion]:
        """Return every version of every table that events were seen of, oldest first."""
        return self._tables.versions()

    def count_tables(self) -> int:
        """How many `tables` would return."""
        return len(self._tables.versions())

    def free(self, upto: Scn, consumer: str) -> int:
        """Commit the offsets that the next run begins at; what lies before them is deleted by retention alone."""
        positions = self._tracker.needed(upto)
        self._log.commit(self._tracker.consumer, positions, str(upto))
        return 0

    def seen(self, consumer: str) -> None:
        """Commit again what was committed last, so that it is kept."""

    def consumers(self) -> Sequence[ConsumerState]:
        """Return nobody: topics are kept for as long as their retention says."""
        return ()

    def backlog(self, after: Scn) -> Backlog:
        """Count the records that lie behind what was committed; the size is not known."""
        extents = self._log.extents()
        kept = self._log.committed(self._tracker.consumer, list(extents)) if after > START else {}
        records = sum(
            extent.end - max(extent.first, kept[partition][0] if partition in kept else 0)
            for partition, extent in extents.items()
            if partition.topic != self._transactions
        )
        return Backlog(changes=records, oldest_at=None, size_bytes=0, complete_until=_EPOCH)

    def close(self) -> None:
        """Follow the log no more, if it was this one that began to."""
        if self._follows:
            self._tracker.close()
        self._follows = False

    @property
    def _identity(self) -> str:
        if not self._id:
            self._id = self._log.identity()
        return self._id

    def _joined(self, history: History) -> Joined:
        id_, mark = self._identity, self._log.topic_id(self._transactions)
        place, first = f"events/{id_}", Anchor(START, mark)
        if history.is_new and history.origin is None:
            return Joined(Origin(id_, place), START, first)
        known = history.anchor
        if known is not None and known.mark not in ("", mark):
            gone = "is not there any more" if not mark else "was made anew: its offsets mean something else"
            raise HistoryError(f"the transaction topic {self._transactions} {gone}", where=self._log.label)
        facts = Facts(
            origin=Origin(id_, place),
            place=place,
            first=first,
            last=Anchor(max(history.position, START), mark),
            base=known or first,
            is_readable=True,
            has_newest=True,
            earlier=None,
        )
        return joined(history, facts, where=self._log.label)


@dataclass(frozen=True)
class DebeziumAccess:
    """Implements `pipeline.sides.SourceAccess`."""

    log: RecordLog
    decoder: EventDecoder

    def reader(self, source: str, tables: Sequence[TableVersion], *, follows: Collection[TableName]) -> EventReader:
        """Return a reader of what is of the tables that it follows."""
        return EventReader(self.log, self.decoder, source, frozenset(follows))

    def chunk_reader(self, source: CopySource) -> EventChunks:
        """Return a reader of rows of the first snapshot."""
        return EventChunks(self.log, self.decoder)


_: type[Source] = DebeziumSource
__: type[SourceAccess] = DebeziumAccess
___: type[Reader] = EventReader
