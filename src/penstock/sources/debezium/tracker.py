"""Follows the records of a log in the background, and keeps what is whole of them ready to be cut into slices."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from penstock.change import TableName
from penstock.errors import OperatorError, PenstockError, RetryableError
from penstock.events import Event, tell
from penstock.formats.debezium.envelope import Boundary, Glance
from penstock.formats.debezium.record import Record
from penstock.position import START, Limit, Scn
from penstock.sources.debezium.index import Ended, Index, Run, Whole
from penstock.sources.debezium.log import Extent, Partition, RecordFollower, RecordLog
from penstock.sources.debezium.position import scn_of
from penstock.sources.debezium.slice import EventSlice, slice_of
from penstock.sources.debezium.tables import Tables

_TAKE = 5_000
_TAKE_S = 0.5

_AHEAD_CHANGES = 2_000_000
"""So many changes are known to be ready before those that come behind them are looked at."""

_LOOK_FOR_TOPICS_S = 5.0

_ENDS_BEHIND = 300_000
"""So many records of the transaction topic before a position are read again, for repetitions to be recognised."""


@dataclass(frozen=True)
class Layout:
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


@dataclass
class CopyRows:
    """Where the rows of the first snapshot of each table lie.

    Attributes:
        is_whole: The snapshot is over.
    """

    runs: dict[TableName, list[Run]] = field(default_factory=dict)
    is_whole: bool = False


class Tracker:
    """Follows a log in a thread of its own; everything else may be called by any thread."""

    def __init__(self, log: RecordLog, layout: Layout, tables: Tables, consumer: str) -> None:
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
        self._reset(START)

    def _reset(self, position: Scn) -> None:
        self._begun_at = position
        self._partitions: list[Partition] = []
        self._numbers: dict[Partition, int] = {}
        self._index = Index(done=position, is_read=self._is_read)
        self._ready: deque[Whole] = deque()
        self._ready_changes = 0
        # Behind the last transaction that was cut off from what is ready.
        self._freed = position
        self._reached = position
        self._failure: PenstockError | None = None
        self._copy = CopyRows()
        self._heard_at = self._unended_since = time.monotonic()
        # Not known before the first event, or the topic: the connector makes it when it first writes to it.
        self._has_ends: bool | None = None
        self.mark = ""
        self._next: dict[int, int] = {}
        self._streamed: set[int] = set()
        self._fresh: set[int] = set()
        self._first_at: dict[TableName, Scn] = {}
        self._placed: dict[int, int] = {}

    def start(self, position: Scn) -> None:
        """Follow from a position on; does nothing where that is being done.

        Raises:
            OperatorError: What follows the position is not there any more.
            RetryableError: The log is out of reach.
        """
        with self._changed:
            if self._thread is not None and self._thread.is_alive() and self._freed <= position and not self._failure:
                return
        self.close()
        self._reset(position)
        follower = self._begin(position)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._follow, args=(follower, self._stop), name="follow events", daemon=True
        )
        self._thread.start()

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

    def copy(self, stop_after_s: float) -> CopyRows:
        """Return where the rows of the first snapshot lie, once it is over.

        Raises:
            RetryableError: It is not over.
        """
        deadline = time.monotonic() + stop_after_s
        with self._changed:
            while not self._copy.is_whole:
                if self._failure is not None:
                    raise self._failure
                if time.monotonic() > deadline:
                    raise RetryableError(
                        "the connector is still at its first snapshot", where=self._log.label, do="it is waited for"
                    )
                self._changed.wait(0.1)
            return self._copy

    def last(self) -> Scn:
        """Return a position that every transaction lies at or before whose events are there now.

        Raises:
            RetryableError: The log is out of reach.
            PenstockError: Following it has failed.
        """
        extents = self._log.extents()
        if self._has_ends and not self._log.ends:
            return Scn(max((e.end for p, e in extents.items() if p.topic == self._layout.transactions), default=START))
        with self._changed:
            while not all(self._next[self._numbers[p]] >= e.end for p, e in extents.items() if p in self._numbers):
                if self._failure is not None:
                    raise self._failure
                self._changed.wait(0.1)
            return Scn(max(self._reached, self._index.last_known))

    def first_at(self, table: TableName) -> Scn:
        """Return the position from which on a table is there."""
        with self._changed:
            return self._first_at.get(table, START)

    @property
    def partitions(self) -> Sequence[Partition]:
        """What the numbers of partitions mean."""
        with self._changed:
            return tuple(self._partitions)

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

    @property
    def waiting(self) -> str | None:
        """What keeps later transactions waiting, for a person."""
        with self._changed:
            waiting = self._index.waiting
            return None if waiting is None else str(waiting)

    def _begin(self, position: Scn) -> RecordFollower:
        extents = self._log.extents()
        if not extents:
            raise OperatorError(
                "there is no topic of these names, or none that this user may see",
                where=self._log.label,
                do="correct capture.topics, or start the connector",
            )
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
        kept = self._log.committed(self.consumer, list(extents)) if position > START else {}
        begin = {}
        for partition, extent in extents.items():
            if partition in ends:
                begin[partition] = self._first_end(extent, position)
            else:
                begin[partition] = self._first_event(partition, extent, kept.get(partition))
        self._add(begin)
        if kept:
            self._fresh = {number for partition, number in self._numbers.items() if partition not in kept}
        return self._log.follow(begin)

    def _first_end(self, extent: Extent, position: Scn) -> int:
        if position > extent.end:
            raise OperatorError(
                f"the transaction topic {self._layout.transactions} ends at offset {extent.end}, before position"
                f" {position}: it was made anew",
                where=self._log.label,
                do="`penstock resync --all` prepares a new first copy",
            )
        if START < position < extent.first:
            raise self._gone(self._layout.transactions, position, extent.first)
        return max(extent.first, position - _ENDS_BEHIND)

    def _first_event(self, partition: Partition, extent: Extent, kept: tuple[int, str] | None) -> int:
        if kept is None:
            return extent.first
        offset, _ = kept
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
            self._partitions.append(partition)

    def _follow(self, follower: RecordFollower, stop: threading.Event) -> None:
        looked_at = time.monotonic()
        try:
            while not stop.is_set():
                records = follower.take(_TAKE, _TAKE_S)
                with self._changed:
                    for record in records:
                        self._look(record)
                    self._move_on(follower.positions(), bool(records))
                    self._changed.notify_all()
                # The connector makes the transaction topic when the first transaction begins.
                every_s = _LOOK_FOR_TOPICS_S if self.mark or self._log.ends else 0.3
                if time.monotonic() - looked_at > every_s:
                    looked_at = time.monotonic()
                    follower = self._with_new_topics(follower)
                while self._ready_changes > _AHEAD_CHANGES and not stop.wait(0.05):
                    pass
        except PenstockError as exc:
            with self._changed:
                self._failure = exc
                self._changed.notify_all()
        finally:
            follower.close()

    def _with_new_topics(self, follower: RecordFollower) -> RecordFollower:
        new = {
            partition: extent.first
            for partition, extent in self._log.extents().items()
            if partition not in self._numbers
        }
        if not new:
            return follower
        with self._changed:
            self._add(new)
            if any(partition.topic == self._layout.transactions for partition in new):
                self._has_ends = True
                self.mark = self._log.topic_id(self._layout.transactions)
            self._fresh |= {self._numbers[partition] for partition in new}
        positions = {**follower.positions(), **new}
        follower.close()
        return self._log.follow(positions)

    def _look(self, record: Record) -> None:
        partition = self._numbers[self._log.partition_of(record)]
        assert record.offset is not None
        found = self._tables.look(record)
        match found:
            case Boundary():
                if found.is_end:
                    scn = Scn(record.offset + 1)
                    self._index.ended(Ended(found.txn, scn, found.collections, found.ts_us or 0))
            case Glance():
                self._begin_table(found.table, partition)
                if found.is_snapshot or found.txn is None:
                    self._look_at_row(partition, record.offset, found)
                else:
                    self._look_at_event(partition, record.offset, found)
            case _:
                pass

    def _begin_table(self, table: TableName, partition: int) -> None:
        """Note from which position on a table is there: one whose topic was made while changes flowed begins empty."""
        if table not in self._first_at:
            is_new = partition in self._fresh
            self._first_at[table] = Scn(max(self._begun_at, self._index.end)) if is_new else START

    def _look_at_row(self, partition: int, offset: int, found: Glance) -> None:
        is_later = found.source.snapshot == "incremental" or partition in self._streamed
        if self._begun_at > START or is_later:
            self._index.row(partition, offset)
            return
        runs = self._copy.runs.setdefault(found.table, [])
        if runs and runs[-1].partition == partition and runs[-1].end == offset:
            runs[-1].end = offset + 1
        else:
            runs.append(Run(partition, offset, offset + 1))

    def _look_at_event(self, partition: int, offset: int, found: Glance) -> None:
        assert found.txn is not None
        self._streamed.add(partition)
        source = found.source
        self._index.event(
            partition,
            offset,
            group=found.txn,
            identity=found.total_order or ((*source.identity, found.op) if source.identity else (partition, offset)),
            table=source.collection,
            size_bytes=found.size_bytes,
        )
        if self._has_ends is None:
            self._has_ends = found.total_order is not None
            self._unended_since = time.monotonic()
        if not self._has_ends:
            scn = scn_of(source, where=f"{self._log.label}, {self._partitions[partition]}, offset {offset}")
            self._index.placed(found.txn, scn, source.ts_us or 0)
            self._placed[partition] = max(self._placed.get(partition, 0), scn)

    def _move_on(self, positions: Mapping[Partition, int], has_heard: bool) -> None:
        """Note how far everything was read, and take up what is whole now."""
        for partition, offset in positions.items():
            number = self._numbers[partition]
            self._next[number] = max(self._next[number], offset)
        now = time.monotonic()
        self._heard_at = now if has_heard else self._heard_at
        is_quiet = not has_heard and (self._log.ends or now - self._heard_at >= self._layout.settle_s)
        if self._has_ends is False:
            behind = [scn for number, scn in self._placed.items()]
            complete = max(behind, default=0) + 1 if is_quiet else min(behind, default=0)
            self._index.complete_before(complete, where=self._log.label)
        for txn in self._index.release():
            self._copy.is_whole = True
            self._ready.append(txn)
            self._ready_changes += txn.events
        self._copy.is_whole |= is_quiet or self._index.end > self._begun_at
        self._reached = max(self._reached, self._index.end)
        if self._has_ends and not self._index.has_ended:
            # Whatever has not ended by here lies behind.
            ends = [n for p, n in self._numbers.items() if self._log.ends or p.topic == self._layout.transactions]
            self._reached = Scn(max([self._reached, *(self._next[number] for number in ends)]))
        self._look_at_waiting(now)

    def _look_at_waiting(self, now: float) -> None:
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
                tell(Event.NOTE, f"{what}; the transaction was left out: {self._log.label}")
            case "stop":
                raise OperatorError(
                    what,
                    where=self._log.label,
                    do="see whether the connector filters events after it has counted them, or retention has deleted"
                    " some; capture.incomplete: put_aside leaves such a transaction out",
                )

    def _forget(self, after: Scn) -> None:
        """What lies at or before a position is applied."""
        while self._ready and self._ready[0].scn <= after:
            self._ready_changes -= self._ready.popleft().events
        self._freed = Scn(max(self._freed, after))

    def _is_read(self, collection: str) -> bool:
        return self._tables.is_read(collection, {partition.topic for partition in self._partitions})


class _Fits:
    """Counts transactions as long as they fit a limit."""

    def __init__(self, limit: Limit, until: Scn | None) -> None:
        self._limit = limit
        self._until = until
        self._changes = self._bytes = self._count = 0

    def __call__(self, txn: Whole) -> bool:
        if self._until is not None and txn.scn > self._until:
            return False
        if self._count and (
            self._count >= self._limit.max_transactions
            or self._changes >= self._limit.max_changes
            or self._bytes >= self._limit.max_bytes
        ):
            return False
        self._count += 1
        self._changes += txn.events
        self._bytes += txn.size_bytes
        return True
