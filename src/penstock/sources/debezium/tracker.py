"""Follows the records of a log in the background, and keeps what is whole of them ready to be cut into slices."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from penstock.change import TableName
from penstock.errors import MalformedInputError, OperatorError, RetryableError
from penstock.events import Event, tell
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.source import Key
from penstock.position import START, Limit, Scn
from penstock.sources.debezium.first_snapshot import FirstSnapshot
from penstock.sources.debezium.history import reused
from penstock.sources.debezium.index import CompleteTransaction, Index, Run, TransactionEnd
from penstock.sources.debezium.log import Extent, Partition, RecordFollower, RecordLog
from penstock.sources.debezium.position import is_in_commit_order, place_in_log, scn_of
from penstock.sources.debezium.repeats import Repeats
from penstock.sources.debezium.scan import (
    InTasks,
    Placed,
    PlacedBegin,
    PlacedEnd,
    PlacedEvent,
    PlacedRow,
    Stretch,
    placed,
)
from penstock.sources.debezium.slice import EventSlice, slice_of
from penstock.sources.debezium.tables import Tables
from penstock.stream import Backlog
from penstock.text import count

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TAKE = 5_000
_TAKE_S = 0.5

_FAR = 40_000
"""So many records ahead are looked at by tasks: fewer are read sooner than a task begins."""

_STRETCH = 20_000
_STRETCHES = 16
"""Most records that a task looks at in one go, and most of these at a time: a run is stopped between two times."""

_AHEAD_CHANGES = 2_000_000
"""So many changes are known to be ready before those that come behind them are looked at."""

_LOOK_FOR_TOPICS_S = 5.0

_COPY_NOTE = "copy"
"""What offsets are committed with when the first copy begins: they say which rows it has, and nothing of changes."""

_MOST_LEFT_OUT = 100
"""So many of the transactions that were left out are remembered."""

_MARKED_SNAPSHOT_S = 60.0
"""A snapshot is over after so long without a row, though its last one was not marked."""

_SNAPSHOT_S = 10.0
"""How long to wait for the connector's first snapshot to end before saying that it is waited for."""

_LOGS_OF_BYTES = ("postgresql", "mysql", "mariadb")
_ROW_PLACES = 16
"""Of these connectors positions count bytes, and more than so many lie between two transactions."""

_ENDS_BEHIND = 300_000
"""So many records of the transaction topic before a position are read again, for repetitions to be recognised."""


@dataclass(frozen=True)
class LogLayout:
    """What is where in the log, and what to do where something does not come.

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
class Known:
    """What is known of a position, from the time when it was reached.

    Attributes:
        upto: Offsets up to which everything was read then, each with the last position that was applied; where offsets
            are committed, these say the same.
        rows: The position where rows of a snapshot were applied by themselves, if that is the one.
        left_out: Transactions that were left out on request.
        last: How many events the transaction at the position had, where no END counts them; 0 where nobody says.
        names: What it is called.
        topics: Those that were read then.
    """

    upto: Mapping[Partition, tuple[int, Scn]] = field(default_factory=dict)
    rows: int | None = None
    left_out: Sequence[str] = ()
    last: int = 0
    names: Collection[str] = ()
    topics: Collection[str] = ()


@dataclass
class CopyRows:
    """Where the rows of the first snapshot of each table lie.

    Attributes:
        is_marked: Its first row was marked, so its last one is to be.
        is_over: The connector is through with it.
        upto: Once that was known, where each partition ended: rows may lie up to there. None before.
        is_whole: All rows were seen.
        is_taken: The copy was begun.
    """

    runs: Mapping[TableName, list[Run]] = field(default_factory=dict)
    is_marked: bool = False
    is_over: bool = False
    upto: Mapping[int, int] | None = None
    is_whole: bool = False
    is_taken: bool = False


class Tracker:
    """Follows a log in a thread of its own; everything else may be called by any thread."""

    def __init__(self, log: RecordLog, layout: LogLayout, tables: Tables, consumer: str) -> None:
        """Follow nothing yet.

        Args:
            consumer: Under whose name offsets are committed.
        """
        self._log = log
        self._layout = layout
        self._tables = tables
        self.consumer = consumer
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._tasks: InTasks | None = None
        self.left_out: list[str] = []
        self._reset(START)

    def _reset(self, position: Scn) -> None:
        self._begun_at = position
        self._partitions: list[Partition] = []
        self._numbers: dict[Partition, int] = {}
        # By partition, where it ended when that was last asked for.
        self._ends: Mapping[Partition, int] = {}
        # By partition, from which offset on it holds no first event of a transaction up to which position.
        self._known: dict[int, tuple[int, Scn]] = {}
        self._index = Index(done=position, is_read=self._is_read, where=self._log.label, known=self._known)
        tolerates = self._layout.incomplete == "put_aside"
        self._repeats = Repeats(self._tables.scanner(self._log), self.left_out, tolerates_unknown=tolerates)
        self._ready: deque[CompleteTransaction] = deque()
        self._ready_changes = 0
        # Behind the last transaction that was cut off from what is ready.
        self._freed = position
        self._reached = position
        self._failure: Exception | None = None
        self._copy = CopyRows(is_whole=position > START)
        self._snapshot = FirstSnapshot()
        self._heard_at = self._unended_since = time.monotonic()
        # Not known before the first event, or the topic: the connector makes it when it first writes to it.
        self._has_ends: bool | None = None
        self.mark = ""
        self._has_ended = False
        # A transaction has begun by the transaction topic, and not ended.
        self._is_begun = False
        self._next: dict[int, int] = {}
        self._came_at: dict[int, float] = {}
        self._streamed: set[int] = set()
        # By partition of which nothing was applied yet: up to which position that is so.
        self._fresh: dict[int, Scn] = {}
        # Without ENDs, by partition: the last transaction's position, and the last event's place in the source's log.
        self._placed: dict[int, int] = {}
        self._last: dict[int, Key] = {}
        # The same by the partition that the connector wrote to, which a file names beside each event.
        self._came_upto: dict[Partition, Scn] = {}
        self._came_last: dict[Partition, str] = {}
        # What came again of the transaction at the position that was begun at, as far as it can be told apart.
        self._again: set[object] = set()
        self._at_start = Known()
        # Names of tables that ENDs count: those asked for since topics were listed, and those that no topic is of.
        self._asked: set[str] = set()
        self._unread: set[str] = set()
        # When topics were listed last, and up to where ENDs lay then; and as of when all ENDs were read.
        self._listed_at = 0.0
        self._listed: Mapping[int, int] = {}
        self._ends_read_at = 0.0
        # Partitions whose first records are gone, with nothing to say that they are not needed.
        self._cut: list[tuple[Partition, int]] = []
        # By partition, below which offset an earlier run has found the rows of the first copy.
        self._copied_upto: dict[int, int] = {}
        # Transactions that were said to be waited for.
        self._told: set[str] = set()
        self._connector = ""
        # How often rows were taken along by themselves since the last transaction.
        self._row_places = 0
        # Below which offsets rows are applied that no transaction took along.
        self._rows_upto: dict[int, int] = {}
        # How often nothing had come.
        self._quiet_looks = 0

    def another(self) -> Tracker:
        """A tracker of the same log, which follows nothing yet."""
        return Tracker(self._log, self._layout, self._tables, self.consumer)

    def look_in(self, tasks: InTasks) -> None:
        """Have tasks look at the records, from now on, where many lie ahead."""
        self._tasks = tasks

    def start(self, position: Scn, *, is_new: bool, known: Known = Known()) -> None:
        """Follow from a position on; does nothing where that is being done.

        Args:
            is_new: Nothing was copied yet.
            known: What the position says of what was read before it.

        Raises:
            OperatorError: What follows the position is not there any more.
            RetryableError: The log is out of reach.
        """
        if self.follows(position) and self._failure is None:
            return
        self.close()
        self._reset(position)
        self._at_start = known
        follower = self._begin(position, is_new=is_new, known=known)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._follow, args=(follower, self._stop), name="follow events", daemon=True
        )
        self._thread.start()

    def follows(self, position: Scn) -> bool:
        """Whether what lies behind a position is being followed, or was until that failed: `take` raises it then."""
        with self._changed:
            return self._thread is not None and self._freed <= position

    def close(self) -> None:
        """Follow no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take(self, after: Scn, limit: Limit, until: Scn | None) -> EventSlice | None:
        """Return the transactions that follow a position, as many as the limit allows; see `stream.Source`.

        Raises:
            PenstockError: Following the log has failed.
        """
        if self._log.ends:
            self._catch_up()
        with self._changed:
            self._forget(after)
            ready = list(takewhile(_Fits(limit, until), self._ready))
            if not ready:
                if self._failure is not None:
                    raise self._failure
                upto = Scn(self._reached if until is None else min(self._reached, until))
                nothing = [] if not self._ready else [self._ready[0].scn]
                if upto <= after or any(scn <= upto for scn in nothing):
                    return None
                return slice_of(after, upto, [], self._partitions)
            end = Scn(ready[-1].scn)
            if len(ready) == len(self._ready):
                end = Scn(max(end, self._reached if until is None else min(self._reached, until)))
            return slice_of(after, end, ready, self._partitions).take(after, limit, until)

    def wait(self, stop: threading.Event, after: Scn, timeout_s: float) -> None:
        """Return when there may be more, or after the timeout."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not stop.is_set() and (left := deadline - time.monotonic()) > 0:
                if self._failure is not None or self._reached > after or (self._ready and self._ready[-1].scn > after):
                    return
                self._changed.wait(min(left, 0.2))

    def copy(self, stop: threading.Event) -> CopyRows:
        """Return where the rows of the first snapshot lie, once it is over: that of a large database takes hours.

        Raises:
            RetryableError: It is not over, and `stop` was set.
        """
        began, is_told = time.monotonic(), False
        with self._changed:
            while not self._copy.is_whole:
                if self._failure is not None:
                    raise self._failure
                if stop.is_set():
                    raise RetryableError("the connector is still at its first snapshot", where=self._log.label)
                if not is_told and time.monotonic() - began > _SNAPSHOT_S:
                    is_told = True
                    said = "the connector is still at its first snapshot, which is waited for"
                    tell(Event.NOTE, f"{said}: {self._log.label}")
                self._changed.wait(0.1)
            if self._cut:
                raise self._gone(str(self._cut[0][0]), 0, self._cut[0][1])
            self._copy.runs = self._snapshot.rows(where=self._log.label)
            self._copy.is_taken = True
            positions = {self._partitions[number]: offset for number, offset in self._next.items()}
        # The next run, too, is to know which rows the copy has.
        with closing(self._log.offsets(self.consumer)) as offsets:
            offsets.commit({partition: (offset, _COPY_NOTE) for partition, offset in positions.items()})
        return self._copy

    def last(self) -> Scn:
        """Return a position that every transaction lies at or before whose events are there now.

        Raises:
            RetryableError: The log is out of reach.
            PenstockError: Following it has failed.
        """
        self._catch_up()
        with self._changed:
            return Scn(max(self._reached, self._index.last_known))

    def backlog(self) -> Backlog:
        """Count what was read and is whole, once all is read that there is now; raises as `last` does."""
        self._catch_up()
        with self._changed:
            at = min((txn.committed_at_us for txn in self._ready), default=None)
            return Backlog(
                changes=sum(txn.changes for txn in self._ready)
                + sum(run.end - run.first for run in self._index.loose_rows),
                oldest_at=None if at is None else _EPOCH + timedelta(microseconds=at),
                size_bytes=sum(txn.size_bytes for txn in self._ready),
            )

    def _catch_up(self) -> None:
        """Wait until all was read that there is now."""
        extents = self._log.extents()
        with self._changed:
            while not all(self._next.get(self._numbers.get(p, -1), 0) >= e.end for p, e in extents.items()):
                if self._failure is not None:
                    raise self._failure
                self._changed.wait(0.1)
            # A file's end may complete its last transaction, which is found out when nothing more comes.
            seen = self._quiet_looks
            waits = self._has_ends is False or self._index.loose_rows
            while self._log.ends and waits and self._quiet_looks == seen and self._failure is None:
                self._changed.wait(0.1)

    def first_at(self, table: TableName) -> Scn:
        """Return the position from which on a table is there: one whose topic was made later began empty then."""
        topics = self._tables.topics(table)
        with self._changed:
            made_at = [self._fresh.get(number, START) for p, number in self._numbers.items() if p.topic in topics]
            return min(made_at, default=START)

    @property
    def partitions(self) -> Sequence[Partition]:
        """What the numbers of partitions mean."""
        with self._changed:
            return tuple(self._partitions)

    def positions(self) -> Mapping[Partition, int]:
        """Return, for each partition, the offset below which everything was read."""
        with self._changed:
            return {self._partitions[number]: offset for number, offset in self._next.items()}

    def has_rows_at(self, position: Scn) -> bool:
        """Whether rows of a snapshot were taken along by themselves at a position."""
        with self._changed:
            return self._index.rows_at == position

    def rows_until(self) -> Scn:
        """Return the position at which rows of a snapshot will be that wait now; the start for none.

        Where much lies ahead it is not looked through for rows. Raises as `last` does.
        """
        extents = self._log.extents()
        with self._changed:
            ahead = sum(e.end - self._next.get(self._numbers.get(p, -1), e.end) for p, e in extents.items())
            if ahead > _FAR:
                return START
            while any(self._next.get(self._numbers.get(p, -1), e.end) < e.end for p, e in extents.items()):
                if self._failure is not None:
                    raise self._failure
                if self._ready_changes > _AHEAD_CHANGES:
                    return START
                self._changed.wait(0.1)
            rows = self._index.loose_rows
            if not rows:
                return self._index.rows_at or START
            if (scn := self._place_for_rows(rows)) is None:
                self._tell_of_rows(rows)
            return scn or START

    def needed(self, upto: Scn) -> Mapping[Partition, int]:
        """Return, for each partition, the offset below which nothing is needed by who has everything up to `upto`."""
        with self._changed:
            positions = dict(self._next)
            self._index.first_needed(positions)
            for txn in self._ready:
                if txn.scn > upto:
                    for run in (*txn.runs, *txn.rows):
                        positions[run.partition] = min(positions[run.partition], run.first)
            return {self._partitions[number]: offset for number, offset in positions.items()}

    def offsets(self, upto: Scn) -> Mapping[Partition, tuple[int, str]]:
        """Return the same with notes, which say up to which position that is so, and how far everything was read."""
        with self._changed:
            read = {self._partitions[number]: offset for number, offset in self._next.items()}
            return {p: (offset, f"{upto} {read[p]}") for p, offset in self.needed(upto).items()}

    def _begin(self, position: Scn, *, is_new: bool, known: Known) -> RecordFollower:
        extents = self._log.extents()
        if not extents:
            raise OperatorError(
                "there is no topic of these names, or none that this user may see",
                where=self._log.label,
                do="correct capture.debezium.prefix, or start the connector",
            )
        self._note_extents(extents)
        ends = [partition for partition in extents if partition.topic == self._layout.transactions]
        self._has_ends = True if ends else None
        self.mark = self._log.topic_id(self._layout.transactions)
        filled = [partition for partition in ends if extents[partition].end > extents[partition].first]
        if len(filled) > 1:
            raise OperatorError(
                f"the transaction topic {self._layout.transactions} has events in {len(filled)} partitions: the order"
                " of its transactions is not known",
                where=self._log.label,
                do="have it made with one partition",
            )
        committed: Mapping[Partition, tuple[int, str]] = {}
        if not is_new:
            with closing(self._log.offsets(self.consumer)) as offsets:
                committed = offsets.committed(list(extents))
        kept = _usable(committed, position) if position > START else {}
        begin = {}
        for partition, extent in extents.items():
            if partition in ends:
                begin[partition] = self._first_end(extent, position, known)
            else:
                begin[partition] = self._first_event(partition, extent, kept.get(partition))
        self._add(begin)
        self.left_out[:] = [*known.left_out, *(one for one in self.left_out if one not in known.left_out)]
        if known.rows == position:
            self._index.rows_at = position
        # What is said of another position says nothing of this one.
        upto = {p: (offset, at) for p, (offset, at) in known.upto.items() if at <= position and p in self._numbers}
        self._known |= {self._numbers[p]: one for p, one in upto.items()}
        self._rows_upto = {self._numbers[p]: offset for p, (offset, _) in upto.items() if known.rows == position}
        for partition in kept:
            # Notes of earlier versions do not say how far everything was read.
            at, *read = committed[partition][1].split()
            if read:
                self._known[self._numbers[partition]] = int(read[0]), Scn(int(at))
        copied = {p: offset for p, (offset, note) in committed.items() if note == _COPY_NOTE}
        if position == START and copied:
            self._copied_upto = {n: copied.get(p, 0) for p, n in self._numbers.items()}
        if kept:
            self._fresh = {
                number: position
                for partition, number in self._numbers.items()
                if kept.get(partition, extents[partition].first) == extents[partition].first
            }
        return self._log.follow(begin)

    def _first_end(self, extent: Extent, position: Scn, known: Known) -> int:
        if position > extent.end + (known.rows == position):
            raise OperatorError(
                f"the transaction topic {self._layout.transactions} ends at offset {extent.end}, before position"
                f" {position}: it was made anew",
                where=self._log.label,
                do="`penstock resync --all` prepares a new first copy",
            )
        if position < extent.first:
            raise self._gone(self._layout.transactions, position, extent.first)
        return max(extent.first, position - _ENDS_BEHIND)

    def _first_event(self, partition: Partition, extent: Extent, offset: int | None) -> int:
        if offset is None:
            if extent.first > 0:
                self._cut.append((partition, extent.first))
            return extent.first
        if offset < extent.first:
            raise self._gone(str(partition), offset, extent.first)
        if offset > extent.end:
            raise OperatorError(
                f"the partition ends at offset {extent.end}, and was followed up to {offset}: it was made anew",
                where=f"{self._log.label}, {partition}",
                do="`penstock resync --all` prepares a new first copy",
            )
        return offset

    def _gone(self, place: str, needed: int, first: int) -> OperatorError:
        return OperatorError(
            f"records from offset {needed} on are gone, the first that is kept is {first}: retention has deleted them",
            where=f"{self._log.label}, {place}",
            do="`penstock resync --all` prepares a new first copy; keep records longer than a pipeline may stand still",
        )

    def _add(self, begin: Mapping[Partition, int]) -> None:
        for partition, offset in sorted(begin.items()):
            self._numbers[partition] = len(self._partitions)
            self._next[len(self._partitions)] = offset
            self._came_at[len(self._partitions)] = time.monotonic()
            self._partitions.append(partition)

    def _follow(self, begun: RecordFollower, stop: threading.Event) -> None:
        follower: RecordFollower | None = begun
        positions = begun.positions()
        looked_at = time.monotonic()
        try:
            while not stop.is_set():
                if stretches := self._far_ahead(positions):
                    if follower is not None:
                        follower.close()
                    follower = None
                    positions = self._look_ahead(positions, stretches)
                    looked_at = -math.inf
                else:
                    follower = follower or self._log.follow(positions)
                    positions = self._look_at_next(follower)
                if self._copy.is_over and self._copy.upto is None:
                    self._note_ends()
                # The connector makes the transaction topic when the first transaction begins, and a table's topic
                # before an END counts its events.
                every_s = _LOOK_FOR_TOPICS_S if self.mark or self._log.ends else 0.3
                if self._asked or time.monotonic() - looked_at > every_s:
                    looked_at = time.monotonic()
                    if new := self._new_topics():
                        if follower is not None:
                            follower.close()
                        follower, positions = None, {**positions, **new}
                # Before they are asked for, the copy is, which lies before them.
                while self._copy.is_whole and self._ready_changes > _AHEAD_CHANGES and not stop.wait(0.05):
                    pass
        except Exception as exc:  # whoever asks next raises it, whatever it is
            with self._changed:
                self._failure = exc
                self._changed.notify_all()
        finally:
            if follower is not None:
                follower.close()

    def _look_at_next(self, follower: RecordFollower) -> Mapping[Partition, int]:
        """Look at what comes next, here."""
        records = follower.take(_TAKE, _TAKE_S)
        with self._changed:
            for record in records:
                self._look(record)
            self._pass_over()
        # Before anything is ready that comes behind a repetition.
        self._repeats.check()
        with self._changed:
            self._move_on(follower.positions(), bool(records))
            self._changed.notify_all()
        return follower.positions()

    def _far_ahead(self, positions: Mapping[Partition, int]) -> Sequence[Stretch]:
        """The next stretches of all partitions, each in proportion to what it has; none where little lies ahead."""
        if self._tasks is None or self._log.ends:
            return ()
        left = {partition: self._ends.get(partition, 0) - at for partition, at in positions.items()}
        if sum(count for count in left.values() if count > 0) < _FAR:
            return ()
        cut = [
            (
                (first + _STRETCH) / left[partition],
                Stretch(partition, at + first, at + min(first + _STRETCH, left[partition])),
            )
            for partition, at in positions.items()
            for first in range(0, left[partition], _STRETCH)
        ]
        return [stretch for _, stretch in sorted(cut)[:_STRETCHES]]

    def _look_ahead(self, positions: Mapping[Partition, int], stretches: Sequence[Stretch]) -> Mapping[Partition, int]:
        """Have tasks look at stretches; those of a partition follow each other."""
        assert self._tasks is not None
        found = self._tasks(stretches, self._tables.scanner(self._log).look)
        for stretch, looked in zip(stretches, found, strict=True):
            self._tables.learn(looked)
            positions = {**positions, stretch.partition: stretch.end}
            with self._changed:
                for one in looked.placed:
                    self._place(self._numbers[stretch.partition], one, stretch.partition)
                self._pass_over()
            # Before anything is ready that comes behind a repetition.
            self._repeats.check()
            with self._changed:
                self._move_on(positions, True)
                self._changed.notify_all()
        return positions

    def _note_ends(self) -> None:
        """Note how far the rows of the snapshot may lie, which is over: partitions are not read at one pace."""
        extents = self._log.extents()
        with self._changed:
            self._copy.upto = {self._numbers[p]: extent.end for p, extent in extents.items() if p in self._numbers}

    def _new_topics(self) -> Mapping[Partition, int]:
        """Look for topics that were made since; returns where their partitions are to be read from."""
        asked = set(self._asked)
        listed_at, extents = time.monotonic(), self._log.extents()
        new = {partition: extent for partition, extent in extents.items() if partition not in self._numbers}
        with self._changed:
            self._note_extents(extents)
            self._listed_at = listed_at
            self._listed = {
                number: extents[partition].end
                for partition, number in self._numbers.items()
                if partition in extents and (self._log.ends or partition.topic == self._layout.transactions)
            }
            begin = {partition: self._first_event(partition, extent, None) for partition, extent in new.items()}
            self._add(begin)
            self._unread = {name for name in self._unread | asked if not self._has_topic(name)}
            self._asked -= asked
            if any(partition.topic == self._layout.transactions for partition in new):
                self._has_ends = True
                self.mark = self._log.topic_id(self._layout.transactions)
            self._fresh |= {self._numbers[partition]: self._reached for partition in new}
        return begin

    def _pass_over(self) -> None:
        """Pass over what is applied already; what cannot be the first of it is to be checked."""
        for run, group in self._index.pass_over():
            self._repeats.add(self._partitions[run.partition], run.first, run.end, group)

    def _note_extents(self, extents: Mapping[Partition, Extent]) -> None:
        self._ends = {partition: extent.end for partition, extent in extents.items()}

    def _look(self, record: TopicRecord) -> None:
        found = placed(record, self._tables.look(record))
        if found is not None:
            partition = self._log.partition_of(record)
            # A file names the partition that the connector wrote to beside each event.
            came_from = Partition(record.topic, record.partition) if self._log.ends else partition
            self._place(self._numbers[partition], found, came_from)

    def _place(self, partition: int, found: Placed, came_from: Partition) -> None:
        match found:
            case PlacedEvent():
                self._place_event(partition, found, came_from)
            case PlacedRow():
                self._place_row(partition, found)
            case PlacedBegin():
                self._is_begun = True
            case PlacedEnd():
                self._is_begun = False
                scn = Scn(found.offset + 1)
                if not self._has_ended and found.place is not None:
                    self._snapshot.changed((found.place,))
                self._has_ended = True
                self._index.ended(
                    TransactionEnd(found.txn, scn, found.counts, found.ts_us or 0, found.events, found.place)
                )

    def _place_row(self, partition: int, row: PlacedRow) -> None:
        offset = row.offset
        if offset < self._rows_upto.get(partition, 0):
            return
        self._connector = row.connector
        is_later = row.mark == "incremental" or partition in self._streamed
        if self._begun_at > START or is_later:
            self._index.row(partition, offset)
            return
        if self._copy.is_taken or offset >= self._copied_upto.get(partition, offset + 1):
            raise OperatorError(
                "rows of the connector's first snapshot came after it was taken to be over: the copy lacks them",
                where=self._at(partition, offset),
                do="`penstock resync --all` prepares a new first copy, once the connector's snapshot is over",
            )
        self._copy.is_marked |= row.mark == "first"
        self._copy.is_over |= row.mark == "last"
        self._snapshot.add(row.table, partition, offset, row.mark, row.place, marks_firsts=row.marks_firsts)

    def _place_event(self, partition: int, event: PlacedEvent, came_from: Partition) -> None:
        if partition not in self._streamed:
            self._streamed.add(partition)
            self._snapshot.changed(place_in_log(event.connector, event.position))
        if self._has_ends is False and self._index.is_complete(event.txn):
            # Events of a partition come in the order of the source's log: only what was there before is a repetition.
            if event.position > self._last.get(partition, ()):
                raise self._late(event.txn, partition, event.offset)
            self._index.repeated += 1
            self._repeats.add(self._partitions[partition], event.offset, event.offset + 1, event.txn)
            return
        if self._has_ends is None:
            self._has_ends = event.has_order
            self._unended_since = time.monotonic()
        scn, is_ordered = START, True
        if not self._has_ends:
            if self._cut:
                raise self._gone(str(self._cut[0][0]), 0, self._cut[0][1])
            scn = scn_of(event.connector, event.position, where=self._at(partition, event.offset))
            # Files may hold partition after partition; each of them is in the order of the source's log.
            last = self._came_upto.get(came_from, START)
            is_ordered = is_in_commit_order(event.connector, event.position)
            is_behind = (is_ordered and scn < last) or self._index.repeats(partition, event.offset, scn)
            self._came_upto[came_from] = max(last, scn)
            if is_ordered and event.txn in self._at_start.names:
                self._expect_no_more(partition, event, scn)
            if is_behind and not self._index.is_known(event.txn):
                self._index.repeated += 1
                self._repeats.add(self._partitions[partition], event.offset, event.offset + 1, event.txn)
                return
        self._last[partition] = max(self._last.get(partition, ()), event.position)
        is_first = self._index.event(
            partition,
            event.offset,
            group=event.txn,
            identity=event.identity,
            table=event.collection,
            size_bytes=event.size_bytes,
        )
        if not is_first:
            self._repeats.add(self._partitions[partition], event.offset, event.offset + 1, event.txn)
        if not self._has_ends:
            came = self._index.placed(event.txn, scn, event.ts_us or 0, part=came_from, is_contiguous=is_ordered)
            # The events of a transaction follow each other in a partition, but for those that a connector repeats.
            if is_first:
                before, self._came_last[came_from] = self._came_last.get(came_from), event.txn
                if came and before != event.txn:
                    where = self._at(partition, event.offset)
                    raise reused(event.txn, f"transaction {before} came between the two", where=where)
            self._placed[partition] = max(self._placed.get(partition, 0), scn)

    def _expect_no_more(self, partition: int, event: PlacedEvent, scn: Scn) -> None:
        """Make sure that no more comes of the last transaction that is applied than was there then.

        Committed offsets tell what came since; but brokers forget them after a while.
        """
        if self._partitions[partition].topic not in self._at_start.topics:
            return
        if scn <= self._begun_at and event.identity:
            self._again.add(event.identity)
        if scn > self._begun_at or len(self._again) > self._at_start.last:
            raise self._late(event.txn, partition, event.offset)

    def _at(self, partition: int, offset: int) -> str:
        return f"{self._log.label}, {self._partitions[partition]}, offset {offset}"

    def _move_on(self, positions: Mapping[Partition, int], has_heard: bool) -> None:
        """Note how far everything was read, and take up what is whole now."""
        now = time.monotonic()
        for partition, offset in positions.items():
            number = self._numbers[partition]
            if offset > self._next[number]:
                self._next[number], self._came_at[number] = offset, now
        self._heard_at = now if has_heard else self._heard_at
        self._quiet_looks += not has_heard
        # What is known to lie in a partition may be of any transaction, however long nothing has come of it.
        behind = {n for p, n in self._numbers.items() if self._next[n] < self._ends.get(p, 0)}
        is_quiet = not has_heard and (self._log.ends or (not behind and now - self._heard_at >= self._layout.settle_s))
        if self._has_ends is False:
            self._index.complete_before(self._complete_before(now, behind, is_quiet=is_quiet))
        for txn in self._index.release():
            self._copy.is_over = True
            self._ready.append(txn)
            self._ready_changes += txn.changes
            self._row_places = 0
        if is_quiet and (rows := self._index.loose_rows) and (scn := self._place_for_rows(rows)) is not None:
            self._row_places += 1
            txn = self._index.release_rows(scn, time.time_ns() // 1000)
            self._ready.append(txn)
            self._ready_changes += txn.changes
        # A snapshot whose beginning was marked ends with a mark, too, unless its last row was lost.
        is_over = is_quiet and (not self._copy.is_marked or now - self._heard_at >= _MARKED_SNAPSHOT_S)
        self._copy.is_over |= is_over or self._index.end > self._begun_at
        upto = self._copy.upto
        self._copy.is_whole |= upto is not None and all(self._next[number] >= end for number, end in upto.items())
        self._reached = max(self._reached, self._index.end)
        if self._has_ends and not self._index.has_ended:
            # Whatever has not ended by here lies behind.
            ends = [n for p, n in self._numbers.items() if p.topic == self._layout.transactions]
            self._reached = Scn(max([self._reached, *(self._next[number] for number in ends)]))
        self._look_at_waiting(now)

    def _place_for_rows(self, rows: Sequence[Run]) -> Scn | None:
        """Return a position for rows that no transaction takes along; None where there is none before the next one.

        An END has the position behind it, and before the next one lies a BEGIN; lines of files are counted with the
        rows. In the logs of PostgreSQL and MySQL there are more bytes between two transactions than are used here;
        places in the others' are not known to have any between them.
        """
        last = self._index.end
        if self._has_ends and self._log.ends:
            return Scn(max(run.end for run in rows))
        if self._has_ends:
            ends = [n for p, n in self._numbers.items() if p.topic == self._layout.transactions]
            next_ = max((self._next[number] for number in ends), default=0)
            return Scn(next_ + 1) if ends and last <= next_ and not self._is_begun else None
        if self._begun_at == START and self._has_ends is None:
            return None
        has_room = self._connector in _LOGS_OF_BYTES and self._row_places < _ROW_PLACES
        return Scn(last + 1) if has_room else None

    def _tell_of_rows(self, rows: Sequence[Run]) -> None:
        if "" not in self._told:
            self._told.add("")
            number = sum(run.end - run.first for run in rows)
            what = f"{count(number, 'row')} of a snapshot wait{'s' * (number == 1)} for the next transaction"
            said = f"{what}, as no position lies before it"
            tell(Event.NOTE, f"{said}: {self._log.label}", level=logging.WARNING)

    def _complete_before(self, now: float, behind: Set[int], *, is_quiet: bool) -> int:
        """Up to which position every partition has gone, but for those in which nothing has come for a while."""
        if is_quiet:
            return max(self._placed.values(), default=0) + 1
        last_ones = (
            self._placed.get(n, 0) for n, at in self._came_at.items() if n in behind or now - at < self._layout.settle_s
        )
        return min(last_ones, default=0)

    def _look_at_waiting(self, now: float) -> None:
        self._look_at_stalled()
        waiting = self._index.waiting
        if self._has_ends and not self.mark and not self._log.ends and self._index.opened:
            if now - self._unended_since > self._layout.incomplete_after_s:
                raise OperatorError(
                    "events say which transaction they are of, and nothing says when one has ended: the transaction"
                    f" topic {self._layout.transactions} is not there, or may not be read",
                    where=self._log.label,
                    do="correct capture.debezium.transaction_topic, or allow this user to read it",
                )
            return
        if waiting is None or now - waiting.since < self._layout.incomplete_after_s:
            return
        what = f"events of {waiting} have not come for {self._layout.incomplete_after_s:g} s"
        match self._layout.incomplete:
            case "put_aside":
                self._index.put_aside()
                self.left_out.append(waiting.group)
                del self.left_out[:-_MOST_LEFT_OUT]
                tell(Event.NOTE, f"{what}; the transaction was left out: {self._log.label}", level=logging.WARNING)
            case "stop":
                raise OperatorError(
                    what,
                    where=self._log.label,
                    do="see whether a transform of the connector drops events that it has counted, or retention has"
                    " deleted some; capture.debezium.incomplete: put_aside leaves such a transaction out",
                )
            case _ if waiting.group not in self._told:
                self._told.add(waiting.group)
                tell(Event.NOTE, f"{what}; they are waited for: {self._log.label}", level=logging.WARNING)

    def _look_at_stalled(self) -> None:
        """Look for a transaction whose END should have come: all that there was are read since its last event."""
        if not self._has_ends or not self._listed or any(self._next[n] < end for n, end in self._listed.items()):
            return
        if self._ends_read_at == self._listed_at:
            return
        self._ends_read_at = self._listed_at
        group = self._index.stalled(self._ends_read_at - self._layout.incomplete_after_s)
        if not group:
            return
        what = f"transaction {group} has begun, and its END has not come for {self._layout.incomplete_after_s:g} s"
        match self._layout.incomplete:
            case "put_aside":
                self._index.forget(group)
                tell(Event.NOTE, f"{what}; the transaction was left out: {self._log.label}", level=logging.WARNING)
            case "stop":
                raise OperatorError(
                    what,
                    where=self._log.label,
                    do="see whether the connector runs, and whether retention has deleted the END; the next run waits"
                    " for it again; capture.debezium.incomplete: put_aside leaves such a transaction out",
                )
            case _ if group not in self._told:
                self._told.add(group)
                tell(Event.NOTE, f"{what}; it is waited for: {self._log.label}", level=logging.WARNING)

    def _forget(self, after: Scn) -> None:
        """What lies at or before a position is applied."""
        while self._ready and self._ready[0].scn <= after:
            self._ready_changes -= self._ready.popleft().changes
        self._freed = Scn(max(self._freed, after))

    def _is_read(self, collection: str) -> bool:
        """Whether events of a table are waited for: those of the pipeline's own tables always are.

        Of others they are as long as it is not known whether there is a topic of them.
        """
        if self._tables.is_meant(collection):
            return True
        if collection in self._unread:
            return False
        if not self._has_topic(collection):
            self._asked.add(collection)
        return True

    def _has_topic(self, collection: str) -> bool:
        return self._tables.is_read(collection, {partition.topic for partition in self._partitions})

    def _late(self, txn: str, partition: int, offset: int) -> MalformedInputError:
        return MalformedInputError(
            f"an event came of transaction {txn}, which was taken to be complete",
            where=self._at(partition, offset),
            do="`penstock resync --all` prepares a new first copy; have the connector write its transaction topic"
            " (provide.transaction.metadata), or give capture.debezium.settle_s more time",
        )


def _usable(committed: Mapping[Partition, tuple[int, str]], position: Scn) -> Mapping[Partition, int]:
    """The offsets from which on anything is needed; none where they are of a later position.

    A target that was restored stands before what was committed, and so does another one of the same pipeline.
    """
    notes = [note.partition(" ")[0] for _, note in committed.values()]
    if any(not note.isdecimal() or int(note) > position for note in notes):
        return {}
    return {partition: offset for partition, (offset, _) in committed.items()}


class _Fits:
    """Counts transactions as long as they fit a limit."""

    def __init__(self, limit: Limit, until: Scn | None) -> None:
        self._limit = limit
        self._until = until
        self._changes = self._bytes = self._count = 0

    def __call__(self, txn: CompleteTransaction) -> bool:
        if self._until is not None and txn.scn > self._until:
            return False
        if self._count and (
            self._count >= self._limit.max_transactions
            or self._changes >= self._limit.max_changes
            or self._bytes >= self._limit.max_bytes
        ):
            return False
        self._count += 1
        self._changes += txn.changes
        self._bytes += txn.size_bytes
        return True
