"""Follows the records of a log in the background, and keeps what is whole of them ready to be cut into slices."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from logging import WARNING

from penstock.change import TableName
from penstock.errors import OperatorError, RetryableError
from penstock.events import Event, tell
from penstock.position import START, Limit, Scn
from penstock.sources.debezium.assembly import COPY_NOTE, NOTHING_KNOWN, Assembly, Known
from penstock.sources.debezium.index import CompleteTransaction
from penstock.sources.debezium.log import LogLayout, Partition, RecordFollower, RecordLog
from penstock.sources.debezium.scan import InTasks, Stretch
from penstock.sources.debezium.slice import EventSlice, slice_of
from penstock.sources.debezium.snapshot_copy import SnapshotCopy
from penstock.sources.debezium.tables import Tables
from penstock.stream import Backlog

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

_SNAPSHOT_S = 10.0
"""How long to wait for the connector's first snapshot to end before saying that it is waited for."""


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
        # Guards what was read, and is notified whenever more was.
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._tasks: InTasks | None = None
        self._failure: Exception | None = None
        self.left_out: list[str] = []
        self._read = self._behind(START, NOTHING_KNOWN)

    def _behind(self, position: Scn, known: Known) -> Assembly:
        return Assembly(self._log, self._layout, self._tables, self.left_out, position=position, known=known)

    def another(self) -> Tracker:
        """A tracker of the same log, which follows nothing yet."""
        return Tracker(self._log, self._layout, self._tables, self.consumer)

    def look_in(self, tasks: InTasks) -> None:
        """Have tasks look at the records, from now on, where many lie ahead."""
        self._tasks = tasks

    def start(self, position: Scn, *, is_new: bool, known: Known = NOTHING_KNOWN) -> None:
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
        self._read, self._failure = self._behind(position, known), None
        follower = self._begin(is_new=is_new)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._follow, args=(follower, self._stop), name="follow events", daemon=True
        )
        self._thread.start()

    def follows(self, position: Scn) -> bool:
        """Whether what lies behind a position is being followed, or was until that failed: `take` raises it then."""
        with self._changed:
            return self._thread is not None and self._read.freed <= position

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
            read = self._read
            read.forget(after)
            ready = list(takewhile(_Fits(limit, until), read.ready))
            upto = Scn(read.reached if until is None else min(read.reached, until))
            if not ready:
                self._refuse_failed()
                nothing = [] if not read.ready else [read.ready[0].scn]
                if upto <= after or any(scn <= upto for scn in nothing):
                    return None
                return slice_of(after, upto, [], read.partitions.names)
            end = Scn(ready[-1].scn)
            if len(ready) == len(read.ready):
                end = max(end, upto)
            return slice_of(after, end, ready, read.partitions.names).take(after, limit, until)

    def wait(self, stop: threading.Event, after: Scn, timeout_s: float) -> None:
        """Return when there may be more, or after the timeout."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not stop.is_set() and (left := deadline - time.monotonic()) > 0:
                read = self._read
                if self._failure is not None or read.reached > after or (read.ready and read.ready[-1].scn > after):
                    return
                self._changed.wait(min(left, 0.2))

    def copy(self, stop: threading.Event) -> SnapshotCopy:
        """Return where the rows of the first snapshot lie, once it is over: that of a large database takes hours.

        Raises:
            RetryableError: It is not over, and `stop` was set.
        """
        began, is_told = time.monotonic(), False
        with self._changed:
            while not self._read.copy.is_whole:
                self._refuse_failed()
                if stop.is_set():
                    raise RetryableError("the connector is still at its first snapshot", where=self._log.label)
                if not is_told and time.monotonic() - began > _SNAPSHOT_S:
                    is_told = True
                    said = "the connector is still at its first snapshot, which is waited for"
                    tell(Event.NOTE, f"{said}: {self._log.label}")
                self._changed.wait(0.1)
            self._read.refuse_cut()
            copy = self._read.copy
            copy.begin(where=self._log.label)
            if self._log.ends and copy.lacks_first:
                said = "no row of the connector's first snapshot is marked as its first: files with its first rows are"
                tell(Event.NOTE, f"{said} missing, and the copy lacks these: {self._log.label}", level=WARNING)
            if not any(copy.runs.values()) and self._read.has_changes:
                said = "the connector has sent no row of a first snapshot (snapshot.mode): tables begin empty here, and"
                tell(Event.NOTE, f"{said} rows that are not changed are not told: {self._log.label}", level=WARNING)
            copy.read = positions = self._read.partitions.offsets()
        # The next run, too, is to know which rows the copy has; ledgers of earlier versions do not say.
        with closing(self._log.offsets(self.consumer)) as offsets:
            offsets.commit({partition: (offset, COPY_NOTE) for partition, offset in positions.items()})
        return copy

    def last(self) -> Scn:
        """Return a position that every transaction lies at or before whose events are there now.

        Raises:
            RetryableError: The log is out of reach.
            PenstockError: Following it has failed.
        """
        self._catch_up()
        with self._changed:
            return Scn(max(self._read.reached, self._read.index.last_known))

    def backlog(self) -> Backlog:
        """Count what was read and is whole, once all is read that there is now; raises as `last` does.

        And what can never be whole, as it was written after the connector's transaction metadata was switched off.
        """
        self._catch_up()
        with self._changed:
            ready = self._read.ready
            at = min((txn.committed_at_us for txn in ready), default=None)
            return Backlog(
                changes=sum(txn.changes for txn in ready)
                + sum(run.end - run.first for run in self._read.index.loose_rows)
                + self._read.without_end,
                oldest_at=None if at is None else _EPOCH + timedelta(microseconds=at),
                size_bytes=sum(txn.size_bytes for txn in ready),
            )

    def first_at(self, table: TableName) -> Scn:
        """Return the position from which on a table is there: one whose topic was made later began empty then."""
        topics = self._tables.topics(table)
        with self._changed:
            return self._read.fresh_at(topics)

    @property
    def mark(self) -> str:
        """What tells the transaction topic from any other of its name; empty where there is none."""
        return self._read.mark

    @property
    def partitions(self) -> Sequence[Partition]:
        """What the numbers of partitions mean."""
        with self._changed:
            return tuple(self._read.partitions.names)

    def positions(self) -> Mapping[Partition, int]:
        """Return, for each partition, the offset below which everything was read."""
        with self._changed:
            return self._read.partitions.offsets()

    def has_rows_at(self, position: Scn) -> bool:
        """Whether rows of a snapshot were taken along by themselves at a position."""
        with self._changed:
            return self._read.index.rows_at == position

    def rows_until(self) -> Scn:
        """Return the position at which rows of a snapshot will be that wait now; the start for none.

        Where much lies ahead it is not looked through for rows. Raises as `last` does.
        """
        extents = self._log.extents()
        with self._changed:
            if sum(self._read.partitions.ahead(extents).values()) > _FAR:
                return START
            while any(count > 0 for count in self._read.partitions.ahead(extents).values()):
                self._refuse_failed()
                if self._read.ready_changes > _AHEAD_CHANGES:
                    return START
                self._changed.wait(0.1)
            read = self._read
            read.tell_of_open()
            rows = read.index.loose_rows
            if not rows:
                return read.index.rows_at or START
            if (scn := read.place_for_rows(rows)) is None:
                read.tell_of_rows(rows)
            return scn or START

    def needed(self, upto: Scn) -> Mapping[Partition, int]:
        """Return, for each partition, the offset below which nothing is needed by who has everything up to `upto`."""
        with self._changed:
            return self._read.needed(upto)

    def offsets(self, upto: Scn) -> Mapping[Partition, tuple[int, str]]:
        """Return the same with notes, which say up to which position that is so, and how far everything was read."""
        with self._changed:
            read = self._read.partitions.offsets()
            return {p: (offset, f"{upto} {read[p]}") for p, offset in self._read.needed(upto).items()}

    def _refuse_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _catch_up(self) -> None:
        """Wait until all was read that there is now."""
        extents = self._log.extents()
        with self._changed:
            while not self._read.partitions.has_read(extents):
                self._refuse_failed()
                self._changed.wait(0.1)
            # A file's end may complete its last transaction, which is found out when nothing more comes.
            seen = self._read.quiet_looks
            waits = self._read.has_ends is False or self._read.index.loose_rows
            while self._log.ends and waits and self._read.quiet_looks == seen and self._failure is None:
                self._changed.wait(0.1)

    def _begin(self, *, is_new: bool) -> RecordFollower:
        extents = self._log.extents()
        if not extents:
            raise OperatorError(
                "there is no topic of these names, or none that this user may see",
                where=self._log.label,
                do="correct capture.debezium.prefix, or start the connector",
            )
        self._read.note_topics(extents)
        committed: Mapping[Partition, tuple[int, str]] = {}
        if not is_new:
            with closing(self._log.offsets(self.consumer)) as offsets:
                committed = offsets.committed(list(extents))
        return self._log.follow(self._read.begin(extents, committed))

    def _follow(self, begun: RecordFollower, stop: threading.Event) -> None:
        follower: RecordFollower | None = begun
        positions = begun.positions()
        looked_at = time.monotonic()
        read = self._read
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
                if read.copy.is_over and read.copy.upto is None:
                    self._note_ends()
                # The connector makes the transaction topic when the first transaction begins, and a table's topic
                # before an END counts its events.
                every_s = _LOOK_FOR_TOPICS_S if read.mark or self._log.ends else 0.3
                if read.asked or time.monotonic() - looked_at > every_s:
                    looked_at = time.monotonic()
                    if new := self._new_topics():
                        if follower is not None:
                            follower.close()
                        follower, positions = None, {**positions, **new}
                # Before they are asked for, the copy is, which lies before them.
                while read.copy.is_whole and read.ready_changes > _AHEAD_CHANGES and not stop.wait(0.05):
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
                self._read.look(record)
            self._read.pass_over()
        self._move_on(follower.positions(), has_heard=bool(records))
        return follower.positions()

    def _far_ahead(self, positions: Mapping[Partition, int]) -> Sequence[Stretch]:
        """The next stretches of all partitions, each in proportion to what it has; none where little lies ahead."""
        if self._tasks is None or self._log.ends:
            return ()
        ends = self._read.partitions.ends
        left = {partition: ends.get(partition, 0) - at for partition, at in positions.items()}
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
                    self._read.place(stretch.partition, one, stretch.partition)
                self._read.pass_over()
            self._move_on(positions, has_heard=True)
        return positions

    def _move_on(self, positions: Mapping[Partition, int], *, has_heard: bool) -> None:
        # Before anything is ready that comes behind a repetition.
        self._read.repeats.check()
        with self._changed:
            self._read.move_on(positions, has_heard=has_heard)
            self._changed.notify_all()

    def _note_ends(self) -> None:
        """Note how far the rows of the snapshot may lie, which is over: partitions are not read at one pace."""
        extents = self._log.extents()
        with self._changed:
            numbers = self._read.partitions.numbers
            self._read.copy.upto = {numbers[p]: extent.end for p, extent in extents.items() if p in numbers}

    def _new_topics(self) -> Mapping[Partition, int]:
        """Look for topics that were made since; returns where their partitions are to be read from."""
        asked = set(self._read.asked)
        listed_at, extents = time.monotonic(), self._log.extents()
        with self._changed:
            return self._read.take_up_topics(extents, asked=asked, at=listed_at)


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
