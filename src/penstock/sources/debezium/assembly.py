"""Puts the records that were read in their places, and says which transactions are whole; reads nothing itself.

Their events are counted, and held against their END, in `index`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import assert_never

from penstock.errors import MalformedInputError, OperatorError
from penstock.events import Event, tell
from penstock.formats.debezium.record import TopicRecord
from penstock.formats.debezium.source import Key
from penstock.position import START, Scn
from penstock.sources.debezium.commit_order import is_in_commit_order, place_in_log, scn_of
from penstock.sources.debezium.history import ANEW, reused
from penstock.sources.debezium.index import CompleteTransaction, Index, OffsetRange, TransactionEnd
from penstock.sources.debezium.log import Extent, LogLayout, Partition, RecordLog
from penstock.sources.debezium.overdue import Overdue
from penstock.sources.debezium.partitions import Partitions
from penstock.sources.debezium.repeats import Repeats
from penstock.sources.debezium.scan import Placed, PlacedBegin, PlacedEnd, PlacedEvent, PlacedRow, placed
from penstock.sources.debezium.snapshot_copy import SnapshotCopy
from penstock.sources.debezium.tables import Tables
from penstock.text import count

COPY_NOTE = "copy"
"""What offsets are committed with when the first copy begins: they say which rows it has, and nothing of changes."""

_LOGS_OF_BYTES = ("postgresql", "mysql", "mariadb")
_ROW_PLACES = 16
"""Of these connectors positions count bytes, and more than so many lie between two transactions."""

_ENDS_BEHIND = 300_000
"""So many records of the transaction topic before a position are read again, for repetitions to be recognised."""


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
        copied: By partition, below which offset the first copy has all rows.
    """

    upto: Mapping[Partition, tuple[int, Scn]] = field(default_factory=dict)
    rows: int | None = None
    left_out: Sequence[str] = ()
    last: int = 0
    names: Collection[str] = ()
    topics: Collection[str] = ()
    copied: Mapping[Partition, int] = field(default_factory=dict)


NOTHING_KNOWN = Known()


class Assembly:
    """What was read behind a position; not for two threads at once.

    Attributes:
        left_out: The names of transactions that were left out on request.
        partitions: How far each partition was read.
        index: Which records are of which transaction.
        repeats: Events that repeat others, which are to be checked before anything behind them is ready.
        copy: The rows of the connector's first snapshot.
        ready: Transactions that are whole, in commit order, from `freed` on.
        ready_changes: How many changes they have.
        reached: A position that nothing lies at or before but what was ready.
        mark: What tells the transaction topic from any other of its name; empty where there is none.
        has_ends: Whether ENDs say when a transaction is whole; None before the first event, or the topic: the connector
            makes it when it first writes to it.
        cut: Partitions whose first records are gone, with nothing to say that they are not needed.
        quiet_looks: How often nothing had come.
        asked: Names of tables that ENDs count, and whose topics are to be looked for.
    """

    def __init__(
        self, log: RecordLog, layout: LogLayout, tables: Tables, left_out: list[str], *, position: Scn, known: Known
    ) -> None:
        """Begin behind a position with nothing.

        Args:
            known: What the position says of what was read before it.
        """
        self._log = log
        self._layout = layout
        self._tables = tables
        self._begun_at = self.freed = self.reached = position
        self._at_start = known
        self.left_out = left_out
        self.partitions = Partitions()
        # By partition, from which offset on it holds no first event of a transaction up to which position.
        self._known: dict[int, tuple[int, Scn]] = {}
        self.index = Index(done=position, is_read=self._is_read, where=log.label, known=self._known)
        self.repeats = Repeats(tables.scanner(log), left_out, tolerates_unknown=layout.incomplete == "put_aside")
        self._overdue = Overdue(layout, self.index, left_out, where=log.label)
        self.copy = SnapshotCopy(is_whole=position > START)
        self.ready: deque[CompleteTransaction] = deque()
        self.ready_changes = 0
        self._heard_at = time.monotonic()
        self.has_ends: bool | None = None
        self.mark = ""
        self._has_ended = False
        # A transaction has begun by the transaction topic, and not ended.
        self._is_begun = False
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
        # Names of tables that ENDs count: those asked for since topics were listed, and those that no topic is of.
        self.asked: set[str] = set()
        self._unread: set[str] = set()
        self.cut: list[tuple[Partition, int]] = []
        self._connector = ""
        # How often rows were taken along by themselves since the last transaction.
        self._row_places = 0
        # Below which offsets rows are applied that no transaction took along.
        self._rows_upto: dict[int, int] = {}
        self._is_told_of_rows = False
        # Since when partitions hold what cannot be read, and those that were told of.
        self._held_at = math.inf
        self._told_held: set[Partition] = set()
        self.quiet_looks = 0

    def note_topics(self, extents: Mapping[Partition, Extent]) -> None:
        """Note what there is to begin with.

        Raises:
            OperatorError: The order of transactions is not known.
        """
        self.partitions.note_ends(extents)
        ends = [partition for partition in extents if partition.topic == self._layout.transactions]
        self.has_ends = True if ends else None
        self.mark = self._log.topic_id(self._layout.transactions)
        filled = [partition for partition in ends if extents[partition].end > extents[partition].first]
        if len(filled) > 1:
            raise OperatorError(
                f"the transaction topic {self._layout.transactions} has events in {len(filled)} partitions: the order"
                " of its transactions is not known",
                where=self._log.label,
                do="have it made with one partition",
            )

    def begin(
        self, extents: Mapping[Partition, Extent], committed: Mapping[Partition, tuple[int, str]]
    ) -> Mapping[Partition, int]:
        """Work out from which offset on each partition is to be read.

        Args:
            committed: What an earlier run has committed, with its notes.

        Raises:
            OperatorError: What follows the position is not there any more.
        """
        position, known = self._begun_at, self._at_start
        kept = _usable(committed, position) if position > START else {}
        begin = {}
        for partition, extent in extents.items():
            if partition.topic == self._layout.transactions:
                begin[partition] = self._first_end(extent)
            else:
                begin[partition] = self._first_event(partition, extent, kept.get(partition))
        self.partitions.add(begin)
        numbers = self.partitions.numbers
        self.left_out[:] = [*known.left_out, *(one for one in self.left_out if one not in known.left_out)]
        if known.rows == position:
            self.index.rows_at = position
        # What is said of another position says nothing of this one.
        upto = {p: (offset, at) for p, (offset, at) in known.upto.items() if at <= position and p in numbers}
        self._known |= {numbers[p]: one for p, one in upto.items()}
        self._rows_upto = {numbers[p]: offset for p, (offset, _) in upto.items() if known.rows == position}
        for partition in kept:
            # Notes of earlier versions do not say how far everything was read.
            at, *read = committed[partition][1].split()
            if read:
                self._known[numbers[partition]] = int(read[0]), Scn(int(at))
        copied = {p: offset for p, (offset, note) in committed.items() if note == COPY_NOTE} | dict(known.copied)
        if position == START and copied:
            self.copy.copied_upto = {n: copied.get(p, 0) for p, n in numbers.items()}
        if kept:
            self._fresh = {
                number: position
                for partition, number in numbers.items()
                if kept.get(partition, extents[partition].first) == extents[partition].first
            }
        return begin

    def take_up_topics(
        self, extents: Mapping[Partition, Extent], *, asked: Set[str], at: float
    ) -> Mapping[Partition, int]:
        """Take up topics that were made since; returns where their partitions are to be read from.

        Args:
            extents: What there is, as it was listed at a time.
            asked: The tables whose topics were looked for.
        """
        partitions, transactions = self.partitions, self._layout.transactions
        new = {partition: extent for partition, extent in extents.items() if partition not in partitions.numbers}
        partitions.note_ends(extents)
        ends = {
            number: extents[partition].end
            for partition, number in partitions.numbers.items()
            if partition in extents and (self._log.ends or partition.topic == transactions)
        }
        self._overdue.note_listed(at, ends)
        begin = {partition: self._first_event(partition, extent, None) for partition, extent in new.items()}
        partitions.add(begin)
        self._unread = {name for name in self._unread | asked if not self._has_topic(name)}
        self.asked -= asked
        if any(partition.topic == transactions for partition in new):
            self.has_ends = True
            self.mark = self._log.topic_id(transactions)
        self._fresh |= {partitions.numbers[partition]: self.reached for partition in new}
        return begin

    def fresh_at(self, topics: Collection[str]) -> Scn:
        """Return the position up to which nothing was applied of one of these topics that was made later."""
        made_at = [self._fresh.get(n, START) for p, n in self.partitions.numbers.items() if p.topic in topics]
        return min(made_at, default=START)

    def look(self, record: TopicRecord) -> None:
        """Put a record in its place, if it has one."""
        found = placed(record, self._tables.look(record))
        if found is not None:
            partition = self._log.partition_of(record)
            # A file names the partition that the connector wrote to beside each event.
            came_from = Partition(record.topic, record.partition) if self._log.ends else partition
            self.place(partition, found, came_from)

    def place(self, partition: Partition, found: Placed, came_from: Partition) -> None:
        """Put a record in its place.

        Args:
            came_from: The partition that the connector wrote it to.

        Raises:
            OperatorError: A row came too late for the first copy, or what was before is gone.
            MalformedInputError: An event came too late for its transaction.
            HistoryError: A name is that of two transactions.
        """
        number = self.partitions.numbers[partition]
        match found:
            case PlacedEvent():
                self._place_event(number, found, came_from)
            case PlacedRow():
                self._place_row(number, found)
            case PlacedBegin():
                self._is_begun = True
            case PlacedEnd():
                self._place_end(found)
            case _:
                assert_never(found)

    def pass_over(self) -> None:
        """Pass over what is applied already; what cannot be the first of it is to be checked."""
        for run, group in self.index.pass_over():
            self.repeats.add(self.partitions.names[run.partition], run.first, run.end, group)

    def move_on(self, positions: Mapping[Partition, int], *, has_heard: bool) -> None:
        """Note how far everything was read, and take up what is whole now."""
        now = time.monotonic()
        self.partitions.move_on(positions, now)
        self._heard_at = now if has_heard else self._heard_at
        self.quiet_looks += not has_heard
        silent_s = now - self._heard_at
        # What is known to lie in a partition may be of any transaction, however long nothing has come of it.
        behind = self.partitions.behind()
        is_quiet = not has_heard and (self._log.ends or (not behind and silent_s >= self._layout.settle_s))
        self._tell_of_held(now)
        if self.has_ends is False:
            self.index.complete_before(self._complete_before(now, behind, is_quiet=is_quiet))
        for txn in self.index.release():
            self._add_ready(txn)
            self._row_places = 0
        if is_quiet and (rows := self.index.loose_rows) and (scn := self.place_for_rows(rows)) is not None:
            self._row_places += 1
            self._add_ready(self.index.release_rows(scn, time.time_ns() // 1000))
        read, has_changes = self.partitions.read, self.index.end > self._begun_at
        self.copy.move_on(read, is_quiet=is_quiet, silent_s=silent_s, has_changes=has_changes)
        self.reached = max(self.reached, self.index.end)
        if self.has_ends and not self.index.has_ended:
            # Whatever has not ended by here lies behind.
            ends = self.partitions.of_topic(self._layout.transactions)
            self.reached = Scn(max([self.reached, *(read[number] for number in ends)]))
        self._look_for_overdue(now)

    def forget(self, after: Scn) -> None:
        """What lies at or before a position is applied."""
        while self.ready and self.ready[0].scn <= after:
            self.ready_changes -= self.ready.popleft().changes
        self.freed = Scn(max(self.freed, after))

    def needed(self, upto: Scn) -> Mapping[Partition, int]:
        """Return, for each partition, the offset below which nothing is needed by who has everything up to `upto`."""
        positions = dict(self.partitions.read)
        self.index.first_needed(positions)
        for txn in self.ready:
            if txn.scn > upto:
                for run in (*txn.runs, *txn.rows):
                    positions[run.partition] = min(positions[run.partition], run.first)
        return {self.partitions.names[number]: offset for number, offset in positions.items()}

    def place_for_rows(self, rows: Sequence[OffsetRange]) -> Scn | None:
        """Return a position for rows that no transaction takes along; None where there is none before the next one.

        An END has the position behind it, and before the next one lies a BEGIN; lines of files are counted with the
        rows. In the logs of PostgreSQL and MySQL there are more bytes between two transactions than are used here;
        places in the others' are not known to have any between them.
        """
        last = self.index.end
        if self.has_ends and self._log.ends:
            return Scn(max(run.end for run in rows))
        if self.has_ends:
            ends = self.partitions.of_topic(self._layout.transactions)
            next_ = max((self.partitions.read[number] for number in ends), default=0)
            return Scn(next_ + 1) if ends and last <= next_ and not self._is_begun else None
        if self._begun_at == START and self.has_ends is None:
            return None
        has_room = self._connector in _LOGS_OF_BYTES and self._row_places < _ROW_PLACES
        return Scn(last + 1) if has_room else None

    def tell_of_rows(self, rows: Sequence[OffsetRange]) -> None:
        """Say, once, that rows wait for the next transaction."""
        if not self._is_told_of_rows:
            self._is_told_of_rows = True
            number = sum(run.end - run.first for run in rows)
            what = f"{count(number, 'row')} of a snapshot wait{'s' * (number == 1)} for the next transaction"
            said = f"{what}, as no position lies before it"
            tell(Event.NOTE, f"{said}: {self._log.label}", level=logging.WARNING)

    def _tell_of_held(self, now: float) -> None:
        """Say what is waited for where a Kafka transaction stays open: any transaction may have a part in it."""
        held = self.partitions.held
        self._held_at = min(self._held_at, now) if held else math.inf
        if self.has_ends or now - self._held_at < self._layout.settle_s:
            return
        for partition in sorted(held.keys() - self._told_held):
            self._told_held.add(partition)
            what = "a Kafka transaction is open, whose records cannot be read before it ends, and are waited for"
            tell(Event.NOTE, f"{what}: {self._log.label}, {partition}", level=logging.WARNING)

    @property
    def has_changes(self) -> bool:
        """Whether any change was seen."""
        return bool(self._streamed)

    @property
    def without_end(self) -> int:
        """How many changes no END will ever count, though others have one."""
        return self.index.opened_unnumbered if self.has_ends else 0

    def tell_of_open(self) -> None:
        """Say that transactions have begun and not ended: what is there of them is not applied before it is whole."""
        groups = self.index.open_groups if self.has_ends else ()
        if groups:
            number, events = len(groups), count(self.index.opened_events, "change")
            what = f"{count(number, 'transaction')} with {events} wait{'s' * (number == 1)} for an END"
            # Of files, this is all that is known to come.
            level = logging.WARNING if self._log.ends else logging.INFO
            tell(Event.NOTE, f"{what}, the first is {groups[0]}: {self._log.label}", level=level)

    def refuse_cut(self) -> None:
        """Raise an `OperatorError` where records are gone that may be needed."""
        if self.cut:
            partition, first = self.cut[0]
            raise self._gone(str(partition), 0, first)

    def _add_ready(self, txn: CompleteTransaction) -> None:
        self.ready.append(txn)
        self.ready_changes += txn.changes

    def _first_end(self, extent: Extent) -> int:
        position = self._begun_at
        if position > extent.end + (self._at_start.rows == position):
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
                self.cut.append((partition, extent.first))
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

    def _place_end(self, found: PlacedEnd) -> None:
        self._is_begun = False
        scn = Scn(found.offset + 1)
        if not self._has_ended and found.place is not None:
            self.copy.changed((found.place,))
        self._has_ended = True
        self.index.ended(TransactionEnd(found.txn, scn, found.counts, found.ts_us or 0, found.events, found.place))

    def _place_row(self, partition: int, row: PlacedRow) -> None:
        if row.offset < self._rows_upto.get(partition, 0):
            return
        self._connector = row.connector
        is_later = row.mark == "incremental" or partition in self._streamed
        if self._begun_at > START or is_later:
            self.index.row(partition, row.offset)
        else:
            self.copy.add(partition, row, where=self._at(partition, row.offset))

    def _place_event(self, partition: int, event: PlacedEvent, came_from: Partition) -> None:
        if partition not in self._streamed:
            self._streamed.add(partition)
            self.copy.changed(place_in_log(event.connector, event.position))
        if self.has_ends is False and self.index.is_complete(event.txn):
            # Events of a partition come in the order of the source's log: only what was there before is a repetition.
            if event.position > self._last.get(partition, ()):
                raise self._late(event.txn, partition, event.offset)
            self._note_repeated(partition, event)
            return
        if self.has_ends is None:
            self.has_ends = event.has_order
            self._overdue.begin()
        scn, is_ordered = START, True
        if not self.has_ends:
            self.refuse_cut()
            scn = scn_of(event.connector, event.position, where=self._at(partition, event.offset))
            # Files may hold partition after partition; each of them is in the order of the source's log.
            last = self._came_upto.get(came_from, START)
            is_ordered = is_in_commit_order(event.connector, event.position)
            is_behind = (is_ordered and scn < last) or self.index.repeats(partition, event.offset, scn)
            self._came_upto[came_from] = max(last, scn)
            if is_ordered and event.txn in self._at_start.names:
                self._expect_no_more(partition, event, scn)
            if is_behind and not self.index.is_known(event.txn):
                self._note_repeated(partition, event)
                return
        last_at = self._last.get(partition, ())
        self._last[partition] = max(last_at, event.position)
        is_first = self.index.event(
            partition,
            event.offset,
            group=event.txn,
            identity=event.identity,
            table=event.collection,
            size_bytes=event.size_bytes,
        )
        if not is_first:
            if last_at == event.position and not (event.has_key or event.has_order):
                self._refuse_alike(partition, event)
            self._check_repeated(partition, event)
        if not self.has_ends:
            came = self.index.placed(event.txn, scn, event.ts_us or 0, part=came_from, is_contiguous=is_ordered)
            # The events of a transaction follow each other in a partition, but for those that a connector repeats.
            if is_first:
                before, self._came_last[came_from] = self._came_last.get(came_from), event.txn
                if came and before != event.txn:
                    where = self._at(partition, event.offset)
                    raise reused(event.txn, f"transaction {before} came between the two", where=where)
            self._placed[partition] = max(self._placed.get(partition, 0), scn)

    def _refuse_alike(self, partition: int, event: PlacedEvent) -> None:
        """Refuse an event that may repeat the one before it: of a table without a key, rows of one INSERT look so."""
        if event.connector == "postgresql":
            raise MalformedInputError(
                f"two changes of table {event.collection}, which has no key, have one place in the source's log and"
                " follow each other: whether the second repeats the first, or is another row of one statement, is not"
                " known",
                where=self._at(partition, event.offset),
                do="have the connector write its transaction topic (provide.transaction.metadata), which numbers them,"
                f" or give the table a key; what is there cannot be read: {ANEW}",
            )

    def _note_repeated(self, partition: int, event: PlacedEvent) -> None:
        self.index.repeated += 1
        self._check_repeated(partition, event)

    def _check_repeated(self, partition: int, event: PlacedEvent) -> None:
        self.repeats.add(self.partitions.names[partition], event.offset, event.offset + 1, event.txn)

    def _expect_no_more(self, partition: int, event: PlacedEvent, scn: Scn) -> None:
        """Make sure that no more comes of the last transaction that is applied than was there then.

        Committed offsets tell what came since; but brokers forget them after a while.
        """
        if self.partitions.names[partition].topic not in self._at_start.topics:
            return
        if scn <= self._begun_at and event.identity:
            self._again.add(event.identity)
        if scn > self._begun_at or len(self._again) > self._at_start.last:
            raise self._late(event.txn, partition, event.offset)

    def _complete_before(self, now: float, behind: Set[int], *, is_quiet: bool) -> int:
        """Up to which position every partition has gone, but for those in which nothing has come for a while."""
        if is_quiet:
            return max(self._placed.values(), default=0) + 1
        came_at, settle_s = self.partitions.came_at, self._layout.settle_s
        last_ones = (self._placed.get(n, 0) for n, at in came_at.items() if n in behind or now - at < settle_s)
        return min(last_ones, default=0)

    def _look_for_overdue(self, now: float) -> None:
        if self.has_ends:
            self._overdue.look_for_ends(self.partitions.read)
        if self.has_ends and not self.mark and not self._log.ends and self.index.opened:
            self._overdue.refuse_without_topic(now)
        else:
            self._overdue.look_for_events(now)

    def _is_read(self, collection: str) -> bool:
        """Whether events of a table are waited for: those of the pipeline's own tables always are.

        Of others they are as long as it is not known whether there is a topic of them.
        """
        if self._tables.is_meant(collection):
            return True
        if collection in self._unread:
            return False
        if not self._has_topic(collection):
            self.asked.add(collection)
        return True

    def _has_topic(self, collection: str) -> bool:
        return self._tables.is_read(collection, {partition.topic for partition in self.partitions.names})

    def _late(self, txn: str, partition: int, offset: int) -> MalformedInputError:
        return MalformedInputError(
            f"an event came of transaction {txn}, which was taken to be complete",
            where=self._at(partition, offset),
            do="`penstock resync --all` prepares a new first copy; have the connector write its transaction topic"
            " (provide.transaction.metadata), or give capture.debezium.settle_s more time",
        )

    def _at(self, partition: int, offset: int) -> str:
        return f"{self._log.label}, {self.partitions.names[partition]}, offset {offset}"


def _usable(committed: Mapping[Partition, tuple[int, str]], position: Scn) -> Mapping[Partition, int]:
    """The offsets from which on anything is needed; none where they are of a later position.

    A target that was restored stands before what was committed, and so does another one of the same pipeline.
    """
    notes = [note.partition(" ")[0] for _, note in committed.values()]
    if any(not note.isdecimal() or int(note) > position for note in notes):
        return {}
    return {partition: offset for partition, (offset, _) in committed.items()}
