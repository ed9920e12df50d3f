"""DbWatcher's messages as a source of a pipeline: implements `sources.recorded.Recording` in the driver.

What a message means depends on those before it: whether its transaction goes on, whether it came before, what its
tables are like. So the driver looks through all messages once, and a slice tells tasks where its changes lie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.change import Change, TableName, Transaction
from penstock.database import DatabasePlan
from penstock.patterns import TablePattern
from penstock.position import START, Anchor, Scn
from penstock.schema import TableSchema
from penstock.sources.dbwatcher.index import IndexedMessages, MessageIndex, MessageStretch, Told
from penstock.sources.dbwatcher.messages import MessageLog, Place, StoredMessage
from penstock.sources.dbwatcher.outline import Outlines
from penstock.sources.dbwatcher.pieces import changes_in
from penstock.sources.dbwatcher.reading import Reading
from penstock.sources.dbwatcher.tables import Describe, KnownTables, TableBook
from penstock.sources.declared_tables import of_all_times
from penstock.sources.recorded import (
    ReadableRecording,
    RecordedAccess,
    RecordedConnector,
    RecordedSource,
    Recording,
    batches_of,
)
from penstock.stream import NOTHING_RECORDED, Backlog, Slice, StoredCopy, TableVersion
from penstock.text import count

_MOST_TRANSACTIONS = 20_000
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class MessageSlice(Slice):
    """A slice that tells where the changes of its transactions lie, and by which definitions they are read.

    Attributes:
        ddl_scns: The positions of the transactions that altered a table.
    """

    PER_TRANSACTION: ClassVar[tuple[str, ...]] = (*Slice.PER_TRANSACTION, "txn_ids", "told")

    txn_ids: NDArray[Any] = field(default_factory=lambda: np.zeros(0, object))
    told: NDArray[Any] = field(default_factory=lambda: np.zeros(0, object))
    book: TableBook = field(default_factory=TableBook)
    ddl_scns: frozenset[int] = frozenset()

    @property
    def has_ddl(self) -> bool:
        """Whether one of its transactions altered a table."""
        return not self.ddl_scns.isdisjoint(self.commit_scns.tolist()) if self.ddl_scns else False

    def until_ddl(self) -> Self:
        """The transactions before the first one that altered a table; that one alone where it is the first."""
        if not self.has_ddl:
            return self
        first = int(np.argmax(np.isin(self.commit_scns, list(self.ddl_scns))))
        return self._cut(0, max(first, 1))


@dataclass(frozen=True)
class MessageReader:
    """Implements `sources.recorded.ReadableRecording`, for tasks."""

    log: MessageLog
    reading: Reading

    @property
    def label(self) -> str:
        """Where messages lie."""
        return self.log.label

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice in order; each message is read once, or once more where others came between."""
        assert isinstance(part, MessageSlice)
        all_told: list[Told] = part.told.tolist()
        messages = self.log.read(_places(all_told))
        lying = _Lying(messages, part.book, self.reading)
        named = zip(
            part.commit_scns.tolist(),
            part.txn_ids,
            part.committed_at_us.tolist(),
            part.changes.tolist(),
            all_told,
            strict=True,
        )
        transactions = (
            Transaction(scn, txn_id, at_us, _Changes(lying, told, changes))
            for scn, txn_id, at_us, changes, told in named
        )
        yield from batches_of(transactions, part.book.keys)


class _Lying:
    """Changes as they lie in messages, which are taken in order."""

    def __init__(self, messages: Iterator[StoredMessage], book: TableBook, reading: Reading) -> None:
        self._messages = messages
        self._book = book
        self._reading = reading
        self._outlines = Outlines(reading)
        self._place: Place | None = None
        self._parts: Sequence[Sequence[Change]] = ()

    def changes(self, stretch: MessageStretch) -> Sequence[Change]:
        if stretch.place != self._place:
            self._parts = self._outlines.changes(stored := next(self._messages), self._book) or self._read(stored)
            self._place = stretch.place
        return self._parts[stretch.part]

    def _read(self, stored: StoredMessage) -> Sequence[Sequence[Change]]:
        message, changes = changes_in(stored, self._book, self._reading)
        self._outlines.learn(message, stored, self._book)
        return changes


@dataclass(frozen=True)
class _Changes(Collection[Change]):
    """The changes of a transaction, of which one message at a time is in memory; for one pass."""

    lying: _Lying
    told: Told
    size: int

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Change]:
        lie = chain.from_iterable(
            self.lying.changes(one) if isinstance(one, MessageStretch) else (one,) for one in self.told
        )
        for number, change in enumerate(lie):
            yield change if change.change_seq == number else replace(change, change_seq=number)

    def __contains__(self, change: object) -> bool:
        return any(one == change for one in self)


def _places(all_told: Sequence[Told]) -> Iterator[Place]:
    """Yield the places of messages in the order in which they are read: each where another one was before."""
    last = None
    for told in all_told:
        for one in told:
            if isinstance(one, MessageStretch) and one.place != last:
                last = one.place
                yield last


class Messages:
    """Implements `Recording`."""

    def __init__(
        self,
        log: MessageLog,
        patterns: Sequence[str],
        reading: Reading,
        *,
        declared: Mapping[TableName, TableSchema] | None = None,
        describe: Describe = dict,
    ) -> None:
        """Read messages; nothing is touched yet.

        Args:
            patterns: Mean the tables that are followed.
            declared: Tables that the pipeline file describes.
            describe: Describes those that are at the target.
        """
        self._log = log
        self._reading = reading
        self._tables = KnownTables(declared or {}, describe)
        parsed = [TablePattern.parse(text) for text in patterns]
        self._index = MessageIndex(log, self._tables, reading, parsed)

    @property
    def label(self) -> str:
        """Where messages lie."""
        return self._log.label

    @property
    def id(self) -> str:
        """That of the place."""
        return self._log.id

    @property
    def readable(self) -> MessageReader:
        """What tasks read."""
        return MessageReader(self._log, self._reading)

    def tables(self) -> Sequence[TableVersion]:
        """Return every version of every table that a message by now may name."""
        self._index.look()
        return self._tables.versions()

    def standing_at(self, table: TableName, position: Scn) -> TableSchema | None:
        """Return what a table is like for a receiver that has all messages up to a position, and none behind it."""
        self._index.look()
        return self._tables.standing_at(table, position)

    def coming(self, table: TableName, position: Scn) -> Sequence[TableSchema]:
        """Return what a table is like at a position, and as what messages behind it describe it, oldest first."""
        self._index.look()
        return self._tables.coming(table, position)

    def end(self) -> Scn:
        """Return the position of the last transaction, or of the message at fault that keeps more from being read."""
        self._index.look()
        if self._index.fault is not None:
            return self._index.fault[0]
        found = self._index.found
        return Scn(found[-1].position) if found else START

    def next_slice(self, after: Scn) -> MessageSlice | None:
        """Return transactions that follow a position; None when there are none.

        Raises:
            PenstockError: None is left before a message that is at fault.
        """
        self._index.look()
        first = self._index.after(after)
        found = self._few(islice(self._index.found, first, first + _MOST_TRANSACTIONS), self._tables.begins)
        if found:
            return self._slice(after, found)
        if self._index.fault is not None:
            raise self._index.fault[1]
        return None

    def proof_at(self, position: Scn) -> str:
        """Return what tells the messages up to a position."""
        self._index.look()
        return self._log.proof_at(position, self._index.open_since(position))

    def hold_against(self, proof: str, position: Scn) -> None:
        """Make sure that no message came below a position, or was altered; raises a `HistoryError` otherwise."""
        self._log.hold_against(proof, position)
        number = self._log.number_in(proof)
        if number is not None:
            self._index.follow(number, position)

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice in order."""
        return self.readable.read(part)

    def begins(self, tables: Collection[TableName], position: Scn) -> Mapping[Scn, frozenset[TableName]]:
        """Return where those of some tables that are there at a position have begun last."""
        known = {version.table.name for version in self.tables()}.intersection(tables)
        at = {table: self._tables.begin_at(table, position) for table in known}
        return {scn: frozenset(table for table in known if at[table] == scn) for scn in at.values() if scn is not None}

    def dropped(self, tables: Collection[TableName], position: Scn) -> frozenset[TableName]:
        """Return those of some tables that were dropped by a position, and have not begun anew."""
        return frozenset(table for table in tables if self._tables.is_dropped_at(table, position))

    def first_begins(self, tables: Collection[TableName]) -> Mapping[TableName, Scn]:
        """Return where each of some tables that is known has begun first."""
        known = {version.table.name for version in self.tables()}.intersection(tables)
        return {table: self._tables.first_begin(table) for table in known}

    def backlog(self, after: Scn) -> Backlog:
        """Count what waits behind a position; a message at fault is one change, which a run says more of."""
        self._index.look()
        found = self._index.found
        waiting = found[self._index.after(after) :]
        is_stuck = self._index.fault is not None and self._index.fault[0] > after
        return Backlog(
            changes=sum(one.changes for one in waiting) + is_stuck,
            oldest_at=_at(min(one.at_us for one in waiting)) if waiting else None,
            size_bytes=sum(one.size_bytes for one in waiting),
            complete_until=_at(found[-1].at_us) if found else NOTHING_RECORDED,
        )

    def deleted_before(self) -> str | None:
        """Return where the messages begin of which the earlier ones were deleted; None where none were."""
        return self._log.deleted_before()

    def count(self) -> int:
        """How many transactions there are."""
        self._index.look()
        return len(self._index.found)

    @staticmethod
    def _few(indexed: Iterator[IndexedMessages], begins: Set[Scn]) -> Sequence[IndexedMessages]:
        found, size_bytes = [], 0
        for one in indexed:
            found.append(one)
            size_bytes += one.size_bytes
            if size_bytes > _MOST_BYTES or one.position in begins:
                break
        return found

    def _slice(self, after: Scn, found: Sequence[IndexedMessages]) -> MessageSlice:
        def numbers(values: Iterator[int]) -> NDArray[np.int64]:
            return np.fromiter(values, np.int64, len(found))

        def objects(values: Iterator[object]) -> NDArray[Any]:
            made = np.empty(len(found), object)
            made[:] = list(values)
            return made

        told = np.empty(len(found), object)
        for at, one in enumerate(found):
            # Numpy would take a tuple for a row of an array.
            told[at] = one.told
        return MessageSlice(
            after=after,
            end=Scn(found[-1].position),
            commit_scns=numbers(one.position for one in found),
            changes=numbers(one.changes for one in found),
            size_bytes=numbers(one.size_bytes for one in found),
            committed_at_us=numbers(one.at_us for one in found),
            txn_ids=objects(one.txn_id for one in found),
            told=told,
            book=self._tables.book,
            ddl_scns=frozenset(one.position for one in found if one.has_ddl),
        )


class MessageSource(RecordedSource):
    """Implements `stream.Source`; says how much waits, also where a message keeps it from being read."""

    def __init__(self, messages: Messages) -> None:
        """Follow messages; nothing is touched yet."""
        super().__init__(messages)
        self._messages = messages

    def backlog(self, after: Scn) -> Backlog:
        """Count what waits behind a position; the size is that of the messages."""
        return self._messages.backlog(after)


class MessageConnector(RecordedConnector):
    """Implements `pipeline.connectors.SourceWithCopies`."""

    def __init__(
        self,
        messages: Messages,
        *,
        reached: Callable[[], Scn] = lambda: START,
        passes_over: Callable[[TableName], bool] = lambda _: False,
    ) -> None:
        """Read messages; nothing is touched yet.

        Args:
            reached: Says up to which position the receiver has everything.
            passes_over: Whether the receiver leaves a table as it is when messages say that it was altered.
        """
        self._messages = messages
        self._reached = reached
        self._passes_over = passes_over
        super().__init__(messages)

    @property
    def access(self) -> RecordedAccess:
        """How tasks reach them."""
        return RecordedAccess(self._messages.readable)

    def open_source(self) -> MessageSource:
        """Open what the driver follows changes by."""
        return MessageSource(self._messages)

    def describe(self, tables: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Describe tables as they are where the receiver stands: it follows what messages behind that position say.

        One that the receiver leaves as it is has to take what all messages to come may name.
        """
        found = dict(super().describe(tables))
        times = Counter(version.table.name for version in self._messages.tables())
        if all(times[name] == 1 for name in found):
            return found
        at = self._reached()
        for name in found:
            if times[name] > 1 and self._passes_over(name):
                found[name] = of_all_times(self._messages.coming(name, at))
            elif times[name] > 1 and (standing := self._messages.standing_at(name, at)) is not None:
                found[name] = standing
        return found

    def match(self, patterns: Sequence[str]) -> Sequence[TableName]:
        """Return the tables that patterns mean; raises an `OperatorError` where one means none."""
        do = (
            "a table is known from its CREATE message on; or make it at the target first, or describe it as"
            " capture.dbwatcher.tables"
        )
        return self._told.match(patterns, kind="messages", where=self.label, do=do)

    def _is_altered(self, table: TableName) -> bool:
        """Whether messages behind the place where the receiver stands name columns that a table does not have there."""
        names = [set(one.column_names) for one in self._messages.coming(table, self._reached())]
        return any(one != names[0] for one in names)

    def copies_at(self, tables: Collection[TableName], position: Scn) -> Sequence[StoredCopy]:
        """Return the newest copy of each table, which has no rows: as of the position behind which the table begins."""
        found = sorted(self._messages.begins(tables, position).items())
        id_ = self._messages.id
        return [
            StoredCopy(
                f"{id_}:{scn}" if scn else id_, Anchor(scn, ""), names, dropped=self._messages.dropped(names, position)
            )
            for scn, names in found
        ]

    def first_copies(self, tables: Collection[TableName]) -> Mapping[TableName, Scn]:
        """Return the position behind which each table begins that is known."""
        return self._messages.first_begins(tables)

    def plan(self, tables: Sequence[TableName], row_triggers: Sequence[str]) -> DatabasePlan:
        """Plan nothing: messages are read as they are."""
        plan = super().plan(tables, row_triggers)
        plan.notes += [
            f"messages to come alter table {name}, which is left to you (apply.ddl: ignore): it takes the columns of"
            " all of them, the old name and the new one of a column that they rename. With apply.ddl: apply it is"
            " altered at its place among the messages"
            for name in tables
            if self._passes_over(name) and self._is_altered(name)
        ]
        plan.notes.append(f"{count(self._messages.count(), 'transaction')} in messages so far")
        if (begin := self._messages.deleted_before()) is not None:
            plan.notes.append(
                f"the messages begin at {begin}, those before were deleted: a new receiver lacks their rows"
                " until the tables are sent once more (`penstock resync` where they are published)"
            )
        return plan


def _at(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC)


_: type[Recording] = Messages
__: type[ReadableRecording] = MessageReader
