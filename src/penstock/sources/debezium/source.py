"""A log of change events as a source, on the driver: a `Tracker` follows it, and this asks the tracker."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from penstock.change import TableName
from penstock.errors import RetryableError
from penstock.formats.debezium.decode import DecodeSettings
from penstock.history import CaptureOrigin, ConsumerState, History, HistoryError, Joined, SourceFacts, joined
from penstock.position import START, Anchor, Limit, Scn
from penstock.snapshot.chunk import CopySource
from penstock.snapshot.task import SourceAccess
from penstock.sources.debezium.assembly import Known
from penstock.sources.debezium.copy import EventChunks
from penstock.sources.debezium.history import Proof
from penstock.sources.debezium.log import ConsumerOffsets, Extent, Partition, RecordLog, partitions_of
from penstock.sources.debezium.reader import EventReader
from penstock.sources.debezium.tables import EventDecoder, Tables
from penstock.sources.debezium.tracker import Tracker
from penstock.stream import NOTHING_RECORDED, Backlog, Reader, Slice, Source, TableVersion

_COMMIT_EVERY_S = 5.0
_LOOK_AT_TOPICS_S = 5.0
_TAIL = 20
_TAIL_S = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _LastRead(NamedTuple):
    """The last transaction that was read: its position, how many events it had, and its name or names."""

    position: Scn = START
    events: int = 0
    names: Sequence[str] = ()


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
        # What the next run begins at, and what of that was committed.
        self._positions: Mapping[Partition, tuple[int, str]] | None = None
        self._committed_at = -math.inf
        self._offsets: ConsumerOffsets | None = None
        # What the position that was joined at says of what was read before it.
        self._known = Known()
        # Without ENDs, the last transaction that was read.
        self._last_read = _LastRead()
        # What tells the topics that are read from others of their names, and as of when.
        self._read: Mapping[str, str] = {}
        self._read_at = -math.inf

    def open(self) -> None:
        """Make sure that there is a log."""
        _ = self._identity

    def join(self, history: History) -> Joined:
        """Make sure that a process goes on with the topics it has followed, and follow them from there on.

        Raises:
            OperatorError: It has followed others, or what follows is not there any more.
        """
        found = self._joined(history)
        self._follow(found.position, is_new=history.is_new)
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
        if not self._tracker.follows(after):
            self._follow(after, is_new=False)
        part = self._tracker.take(after, limit, until)
        if part is None:
            return None
        start = Anchor(after, self._mark(after).text)
        if not self._tracker.mark and len(part) and part.end == part.commit_scns[-1]:
            self._last_read = _LastRead(part.end, int(part.changes[-1]), part.groups[-1])
        return replace(part, start=start, cut=Anchor(part.end, self._mark(part.end).text))

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when `next_slice`, which had nothing, may have something; after the timeout at the latest."""
        self._tracker.wait(stop, self._after, timeout_s)

    def tick(self) -> Scn:
        """Return a position that every transaction, and every row of a snapshot, lies at or before that is there."""
        last = self._last(self._after)
        return Scn(max(last, self._tracker.rows_until())) if self._tracker.follows(self._after) else last

    def tables(self) -> Sequence[TableVersion]:
        """Return every version of every table that events were seen of, oldest first."""
        self._tables.survey(self._log)
        return self._tables.versions()

    def count_tables(self) -> int:
        """How many `tables` would return."""
        self._tables.survey(self._log)
        return len(self._tables.versions())

    def free(self, upto: Scn, consumer: str) -> int:
        """Commit the offsets up to here, as a hint for the next run; where it goes on, the target's ledger says.

        What lies before them is deleted by retention alone.
        """
        self._positions = self._tracker.offsets(upto)
        # What is not committed only makes the next start longer.
        if time.monotonic() - self._committed_at >= _COMMIT_EVERY_S:
            self._commit()
        return 0

    def seen(self, consumer: str) -> None:
        """Commit again what was committed last: brokers forget the offsets of groups that nobody is a member of."""
        self._commit()

    def consumers(self) -> Sequence[ConsumerState]:
        """Return nobody: topics are kept for as long as their retention says."""
        return ()

    def backlog(self, after: Scn) -> Backlog:
        """Count the records that lie behind what was committed; the size is not known."""
        if self._log.ends:
            tracker = self._tracker.another()
            tracker.start(after, is_new=False, known=self._known)
            with closing(tracker):
                return replace(tracker.backlog(), complete_until=self._last_at(self._log.extents()))
        extents = self._log.extents()
        kept: Mapping[Partition, tuple[int, str]] = {}
        if after > START:
            with closing(self._log.offsets(self._tracker.consumer)) as offsets:
                kept = offsets.committed(list(extents))
        records = sum(
            extent.end - max(extent.first, kept[partition][0] if partition in kept else 0)
            for partition, extent in extents.items()
            if partition.topic != self._transactions
        )
        return Backlog(changes=records, oldest_at=None, size_bytes=0, complete_until=self._last_at(extents))

    def close(self) -> None:
        """Commit what is to be; follow the log no more, if it was this one that began to."""
        if self._positions is not None:
            self._commit()
        self._positions = None
        if self._offsets is not None:
            self._offsets.close()
            self._offsets = None
        if self._follows:
            self._tracker.close()
        self._follows = False

    def _last(self, position: Scn) -> Scn:
        """A position that all lies at or before that is there now; finding it may take following from `position`."""
        extents = self._log.extents()
        ends = [extent.end for partition, extent in extents.items() if partition.topic == self._transactions]
        if ends:
            return Scn(max(ends))
        if not self._tracker.follows(position):
            self._follow(position, is_new=False)
        return self._tracker.last()

    def _follow(self, position: Scn, *, is_new: bool) -> None:
        self._tracker.start(position, is_new=is_new, known=self._known)
        self._follows = True

    def _last_at(self, extents: Mapping[Partition, Extent]) -> datetime:
        """When what came last was committed at the source: of anything later nobody here knows."""
        ends = {partition: extent for partition, extent in extents.items() if partition.topic == self._transactions}
        tails = {p: (max(e.first, e.end - _TAIL), e.end) for p, e in (ends or extents).items() if e.end > e.first}
        last = 0
        with closing(self._log.follow({partition: first for partition, (first, _) in tails.items()})) as follower:
            while any(follower.positions()[partition] < end for partition, (_, end) in tails.items()):
                for record in follower.take(_TAIL * len(tails), _TAIL_S):
                    last = max(last, self._tables.committed_at_us(record) or 0)
        return _EPOCH + timedelta(microseconds=last) if last else NOTHING_RECORDED

    def _commit(self) -> None:
        if self._positions is not None:
            self._committed_at = time.monotonic()
            try:
                if self._offsets is None:
                    self._offsets = self._log.offsets(self._tracker.consumer)
                self._offsets.commit(self._positions)
            except RetryableError:
                # It is a hint: what was not committed makes the next start longer. Whoever reads is told why.
                return

    @property
    def _identity(self) -> str:
        if not self._id:
            self._id = self._log.identity()
        return self._id

    @property
    def origin(self) -> CaptureOrigin:
        """The cluster, and the topics of it."""
        return CaptureOrigin(self._identity, f"events/{self._identity}")

    def _mark(self, at: Scn) -> Proof:
        """What a position carries, as far as everything was read now."""
        rows = at if self._tracker.has_rows_at(at) else None
        left_out = tuple(self._tracker.left_out)
        last = self._last_read if self._last_read.position == at else _LastRead()
        return Proof(
            self._tracker.mark, self._proof(), self._tables.server, rows, left_out, last.events, tuple(last.names)
        )

    def _proof(self) -> Mapping[str, str]:
        """What tells what was read from all else; topics are looked at again now and then."""
        upto = self._tracker.positions()
        if self._log.ends:
            return self._log.proof(upto)
        topics = {partition.topic for partition in upto}
        if topics - self._read.keys() or time.monotonic() - self._read_at > _LOOK_AT_TOPICS_S:
            self._log.hold_against(self._read, self._is_needed)
            self._read, self._read_at = self._log.proof(upto), time.monotonic()
        return self._read

    def _is_needed(self, topic: str) -> bool:
        """Whether a topic that is gone may have held what is read; where ENDs count events, they tell."""
        return not self._tracker.mark and self._tables.is_meant(topic.removeprefix(f"{self._tables.prefix}."))

    def _joined(self, history: History) -> Joined:
        mark = self._log.topic_id(self._transactions)
        origin, first = self.origin, Anchor(START, Proof(mark).text)
        if history.is_new and history.origin is None:
            self._known = Known()
            return Joined(origin, START, replace(first, mark=self._proof_at_first(mark).text))
        known = history.anchor
        proof = Proof.of(known.mark) if known is not None else Proof()
        if proof.transactions not in ("", mark):
            gone = "is not there any more" if not mark else "was made anew: its offsets mean something else"
            raise HistoryError(f"the transaction topic {self._transactions} {gone}", where=self._log.label)
        upto = self._log.hold_against(proof.read, lambda topic: not mark and self._is_needed(topic))
        self._tables.expect(proof.server, where=self._log.label)
        self._read = {**proof.read}
        self._known = Known(
            {partition: (offset, known.scn) for partition, offset in upto.items()} if known is not None else {},
            rows=proof.rows if proof.rows == history.position else None,
            left_out=proof.left_out,
            last=proof.last,
            names=proof.names,
            topics=set(proof.read),
            copied=_copied(history),
        )
        self._last_read = _LastRead(history.position, proof.last, proof.names)
        last = self._last(history.position)
        if self._known.rows is not None:
            # Rows may be applied at the position behind the last record that is there.
            last = Scn(max(last, min(history.position, last + 1)))
        facts = SourceFacts(
            origin=origin,
            place=origin.place,
            first=first,
            last=Anchor(last, first.mark),
            base=known or first,
            is_readable=history.position <= last,
            has_newest=True,
            earlier=None,
        )
        found = joined(history, facts, where=self._log.label)
        if proof.is_of_earlier_version and not self._log.ends:
            return replace(found, anchor=replace(found.anchor, mark=self._proof_at_first(mark).text))
        return found

    def _proof_at_first(self, mark: str) -> Proof:
        """What is known before anything was followed: the topics that are there."""
        upto: Mapping[Partition, int] = {} if self._log.ends else dict.fromkeys(self._log.extents(), 0)
        self._read, self._read_at = self._log.proof(upto), time.monotonic()
        return Proof(mark, self._read, self._tables.server)


def _copied(history: History) -> Mapping[Partition, int]:
    """Below which offsets the first copy has all rows, by partition; a table may have been copied after others."""
    found: dict[Partition, int] = {}
    for cut in history.copies:
        if cut.scn == START:
            for partition, offset in partitions_of(Proof.of(cut.mark).copied).items():
                found[partition] = max(offset, found.get(partition, 0))
    return found


@dataclass(frozen=True)
class DebeziumAccess:
    """Implements `snapshot.task.SourceAccess`.

    Attributes:
        skips: Records that are no events are passed over.
    """

    log: RecordLog
    settings: DecodeSettings
    skips: bool

    def reader(self, source: str, tables: Sequence[TableVersion], *, follows: Collection[TableName]) -> EventReader:
        """Return a reader of what is of the tables that it follows."""
        decoder = EventDecoder.of(self.settings, tables, skips=self.skips, only=frozenset(follows))
        return EventReader(self.log, decoder, source, frozenset(follows))

    def chunk_reader(self, source: CopySource) -> EventChunks:
        """Return a reader of rows of the first snapshot."""
        return EventChunks(self.log, self.settings, skips=self.skips)


_: type[Source] = DebeziumSource
__: type[SourceAccess] = DebeziumAccess
___: type[Reader] = EventReader
