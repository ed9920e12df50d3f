"""Which records are of which transaction, and in which order transactions were committed: positions, never rows.

Events of one transaction lie in as many partitions as it has changed tables, and none of these says when it is whole.
A connector's transaction topic does: it has an END for each transaction, with the number of events, and the order of
the ENDs is that in which transactions were committed. Where there is no such topic, the position that each event has
in the source's own log orders them, and a transaction counts as complete once every partition has gone beyond it.

What is put together here is only where events lie. A transaction's events are a range of offsets in each partition;
records of other transactions may lie between them, and repetitions by a connector that was started again.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from penstock.errors import MalformedInputError, OperatorError
from penstock.position import START, Scn
from penstock.sources.debezium.history import ANEW, OTHER, reused

_REMEMBERED = 300_000
"""How many complete transactions are known by name: a connector repeats what it sent in its last minute or so."""

_PAGE_BITS = 512

_ROWS = "rows of a snapshot"
"""What stands for the name of a transaction where rows are taken along by themselves."""

_NOTHING_KNOWN = (0, START)


@dataclass(slots=True)
class OffsetRange:
    """Offsets of one partition, from `first` up to, but without, `end`."""

    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """What the END of a transaction says.

    Attributes:
        scn: The position of the transaction.
        counts: Number of events by the connector's name of each table, or of whatever else was counted.
        events: How many there are of all; None where no END said so.
        place: Where the END is in the source's log; None where the connector does not say.
    """

    group: str
    scn: Scn
    counts: Mapping[str, int]
    committed_at_us: int
    events: int | None = None
    place: int | None = None

    @property
    def proof(self) -> int:
        """Equal for an END and its repetition."""
        return hash((self.place, self.events, frozenset(self.counts.items())))


@dataclass(frozen=True, slots=True)
class CompleteTransaction:
    """A transaction of which everything is there.

    Attributes:
        groups: By which names its events go; several, where more than one was committed at a position.
        runs: Where its events lie.
        rows: Where rows of a snapshot lie that come before it.
        events: How many there are, each counted once.
    """

    scn: Scn
    groups: tuple[str, ...]
    runs: tuple[OffsetRange, ...]
    rows: tuple[OffsetRange, ...]
    events: int
    size_bytes: int
    committed_at_us: int

    @property
    def changes(self) -> int:
        """How many events and rows it has."""
        return self.events + sum(run.end - run.first for run in self.rows)


@dataclass(frozen=True)
class IncompleteTransaction:
    """A transaction that is next and not whole.

    Attributes:
        lacking: By table, how many events are there, and how many there should be.
        since: When its END was read, in seconds of `time.monotonic`.
    """

    group: str
    lacking: Mapping[str, tuple[int, int]]
    since: float

    def __str__(self) -> str:
        parts = (f"{table} {there} of {due}" for table, (there, due) in sorted(self.lacking.items()))
        return f"transaction {self.group}: {', '.join(parts)}"


@dataclass(slots=True)
class _Open:
    """What is there of a transaction."""

    runs: dict[int, OffsetRange] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    events: int = 0
    size_bytes: int = 0
    first_scn: int = 0
    parts: set[object] = field(default_factory=set)
    scn: int = 0
    committed_at_us: int = 0
    at: float = 0.0
    # Which events are there. A transaction may have millions: those with a number cost a bit each, page by page.
    orders: dict[int, int] = field(default_factory=dict)
    identities: set[object] = field(default_factory=set)
    # How many there are to be; None where that is not known.
    due: int | None = None

    @property
    def highest(self) -> int:
        """The highest number of an event."""
        number = max(self.orders, default=0)
        return number * _PAGE_BITS + max(0, self.orders.get(number, 0).bit_length() - 1)

    def add(self, identity: object) -> bool:
        """Note that an event is there; returns whether it is new."""
        if type(identity) is not int:
            before = len(self.identities)
            self.identities.add(identity)
            return len(self.identities) > before
        number, bit = divmod(identity, _PAGE_BITS)
        page = self.orders.get(number, 0)
        self.orders[number] = page | 1 << bit
        return not page >> bit & 1


class Index:
    """Puts transactions together; not for two threads at once."""

    def __init__(
        self,
        *,
        done: Scn = START,
        is_read: Callable[[str], bool],
        where: str = "",
        known: Mapping[int, tuple[int, Scn]] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing.

        Args:
            done: Transactions at or before this position are applied already.
            where: The log, for messages.
            known: By partition an offset and a position: what lies from there on holds no first event of a transaction
                at or before the position, only repetitions. A mapping that may be filled later.
            is_read: Whether the events of a table, by the connector's name of it, are read at all: others are counted
                by the connector, too.
        """
        self._done = done
        self._is_read = is_read
        self._where = where
        self._known = {} if known is None else known
        self._now = now
        self._open: OrderedDict[str, _Open] = OrderedDict()
        # For each partition, where the first event of each of them lies, ascending.
        self._firsts: dict[int, OrderedDict[str, int]] = {}
        self._ended: deque[tuple[TransactionEnd, float]] = deque()
        self._ending: set[str] = set()
        # The position of each that is complete, by its name.
        self._complete: OrderedDict[str, Scn] = OrderedDict()
        # Of those whose END was read, what it said.
        self._proofs: dict[str, int] = {}
        # Of those, what came so far of transactions that were passed over as applied before all of it had come.
        self._passed: dict[str, _Open] = {}
        # Those that were given up: what comes of them later repeats nothing.
        self._given_up: set[str] = set()
        # Of those, the tables whose events were counted and not waited for.
        self._left_out: dict[str, frozenset[str]] = {}
        # For each partition, rows of snapshots that no transaction has taken along yet.
        self._rows: dict[int, deque[OffsetRange]] = {}
        # Whether all events of a transaction follow each other in the source's log. Oracle's may have several places.
        self._is_contiguous = True
        # Where rows were last taken along by themselves.
        self.rows_at: Scn | None = None
        self.repeated = 0
        self.end = done

    def event(self, partition: int, offset: int, *, group: str, identity: object, table: str, size_bytes: int) -> bool:
        """Take up an event of a transaction; returns whether it is there for the first time, and repeats no other.

        Args:
            identity: Equal for an event and its repetition, and for no two events of a transaction; best its number.
        """
        complete = self._complete.get(group)
        if complete is not None:
            if table in self._left_out.get(group, ()):
                raise OperatorError(
                    f"an event of table {table} came for transaction {group}, which was released without it: its topic"
                    " has another name than the connector gives it",
                    where=self._where,
                    do="`penstock resync --all` prepares a new first copy; the next run knows the topic",
                )
            self.repeated += 1
            if complete <= self._done:
                self._forget_rows([OffsetRange(partition, offset, offset + 1)])
            return group in self._given_up or self._is_first(partition, offset, group, complete, identity)
        found = self._open.get(group)
        if found is None:
            found = self._open[group] = _Open()
        found.at = self._now()
        run = found.runs.get(partition)
        if run is None:
            found.runs[partition] = OffsetRange(partition, offset, offset + 1)
            self._firsts.setdefault(partition, OrderedDict())[group] = offset
        else:
            run.end = offset + 1
        if not found.add(identity):
            self.repeated += 1
            return False
        found.events += 1
        found.counts[table] = found.counts.get(table, 0) + 1
        found.size_bytes += size_bytes
        return True

    def repeats(self, partition: int, offset: int, scn: int) -> bool:
        """Whether an event of a transaction at a position can only repeat another one where it lies."""
        first, upto = self._known.get(partition, _NOTHING_KNOWN)
        return offset >= first and scn <= upto

    def _is_first(self, partition: int, offset: int, group: str, scn: Scn, identity: object) -> bool:
        """Whether an event of a complete transaction has not been there before, as it was applied by an earlier run."""
        if self.repeats(partition, offset, scn):
            return False
        passed = self._passed.get(group)
        if passed is None:
            if scn > self._least_known:
                return False
            # It lies where an earlier run has not read.
            passed = self._passed[group] = _Open()
        if not passed.add(identity):
            return False
        passed.events += 1
        return passed.due is None or passed.events <= passed.due

    @cached_property
    def _least_known(self) -> Scn:
        """Up to which position no partition that was read before holds the first event of a transaction."""
        return min((upto for _, upto in self._known.values()), default=START)

    def placed(
        self, group: str, scn: int, committed_at_us: int, *, part: object = None, is_contiguous: bool = True
    ) -> bool:
        """Say, where there are no ENDs, at which position a transaction was committed, and when.

        Args:
            part: The partition that the connector wrote an event to.
            is_contiguous: All events of a transaction follow each other in the source's log.

        Returns:
            Whether an event of the transaction came from there before.
        """
        self._is_contiguous = is_contiguous
        found = self._open.get(group)
        if found is not None:
            found.first_scn = min(found.first_scn or scn, scn)
            found.scn = max(found.scn, scn)
            found.committed_at_us = max(found.committed_at_us, committed_at_us)
            if part in found.parts:
                return True
            found.parts.add(part)
        return False

    def row(self, partition: int, offset: int) -> None:
        """Take up a row of a snapshot that was made while changes flowed."""
        rows = self._rows.setdefault(partition, deque())
        if rows and rows[-1].end == offset:
            rows[-1].end = offset + 1
        else:
            rows.append(OffsetRange(partition, offset, offset + 1))

    def ended(self, end: TransactionEnd) -> None:
        """Take up the END of a transaction."""
        if end.group in self._complete or end.group in self._ending:
            self.repeated += 1
            if end.events is not None and self._proofs.get(end.group, end.proof) != end.proof:
                raise reused(end.group, "ends elsewhere, or holds other events", where=self._where)
            return
        if end.scn == self.rows_at:
            raise MalformedInputError(
                f"transaction {end.group} ends without having begun where rows of a snapshot were applied",
                where=self._where,
                do=f"if {OTHER}: {ANEW}",
            )
        if end.events is not None:
            self._proofs[end.group] = end.proof
        self._ending.add(end.group)
        self._ended.append((end, self._now()))

    def is_known(self, group: str) -> bool:
        """Whether anything came of a transaction, now or before."""
        return group in self._complete or group in self._open

    def is_complete(self, group: str) -> bool:
        """Whether a transaction was released, or passed over as applied."""
        return group in self._complete

    def complete_before(self, scn: int) -> None:
        """Say, where there are no ENDs, that nothing comes any more of transactions that lie before a position.

        Raises:
            MalformedInputError: One of them lies before others that were complete.
            HistoryError: Events of a name lie before and behind another transaction.
        """
        done = sorted((o.scn, group) for group, o in self._open.items() if o.scn < scn and group not in self._ending)
        last = 0
        for at, group in done:
            if self._is_contiguous and self._open[group].first_scn < last:
                raise reused(group, "others were committed between the two", where=self._where)
            last = at
            if self._done < at <= self.end:
                raise MalformedInputError(
                    f"events came of transaction {group}, which lies before what was taken to be complete",
                    where=self._where,
                    do="have the connector write its transaction topic (provide.transaction.metadata), or give"
                    " capture.debezium.settle_s more time",
                )
            self.ended(TransactionEnd(group, Scn(at), {}, self._open[group].committed_at_us))

    def pass_over(self) -> Sequence[tuple[OffsetRange, str]]:
        """Pass over transactions that have ended and are applied already.

        Returns:
            Where events lie that came before their END was read, and can only repeat others, with their transactions.
        """
        found: list[tuple[OffsetRange, str]] = []
        while self._ended and self._ended[0][0].scn <= self._done:
            end, _ = self._ended[0]
            if (came := self._open.get(end.group)) is not None:
                self._refuse_more(end, came)
            group, came = self._pop()
            self.end = Scn(max(self.end, end.scn))
            if came is None:
                continue
            self._forget_rows(came.runs.values())
            for run in came.runs.values():
                first = max(run.first, self._known.get(run.partition, _NOTHING_KNOWN)[0])
                if first < run.end and self.repeats(run.partition, first, end.scn):
                    found.append((OffsetRange(run.partition, first, run.end), group))
        return found

    def release(self) -> Iterator[CompleteTransaction]:
        """Yield transactions that are whole, in the order in which they were committed."""
        self.pass_over()
        while self._ended:
            end, _ = self._ended[0]
            if (found := self._open.get(end.group)) is not None:
                self._refuse_more(end, found)
            if self._lacking(end, found):
                return
            groups = [self._pop()]
            # Those that were committed at one position are one transaction, as far as anybody can tell.
            while self._ended and self._ended[0][0].scn == end.scn:
                groups.append(self._pop())
            self.end = Scn(max(self.end, end.scn))
            txn = _whole(end, groups, tuple(self._rows_before()))
            if txn.runs or txn.rows:
                yield txn

    @property
    def waiting(self) -> IncompleteTransaction | None:
        """The transaction that all later ones wait for."""
        if not self._ended:
            return None
        end, since = self._ended[0]
        lacking = self._lacking(end, self._open.get(end.group))
        return IncompleteTransaction(end.group, lacking, since) if lacking else None

    @property
    def has_ended(self) -> bool:
        """Whether a transaction has ended that is not released yet."""
        return bool(self._ended)

    @property
    def last_known(self) -> Scn:
        """The last position that anything was heard of."""
        ended = [end.scn for end, _ in self._ended]
        return Scn(max([self.end, *ended, *(found.scn for found in self._open.values())]))

    @property
    def opened(self) -> int:
        """How many transactions have begun and are not released yet."""
        return len(self._open)

    @property
    def opened_events(self) -> int:
        """How many events these have."""
        return sum(found.events for found in self._open.values())

    @property
    def opened_unnumbered(self) -> int:
        """How many of these have no number, as a connector gives them that writes no END either."""
        return sum(len(found.identities) for found in self._open.values())

    @property
    def open_groups(self) -> Sequence[str]:
        """The names of transactions that have begun and not ended, in the order of their first events."""
        return [group for group in self._open if group not in self._ending]

    def stalled(self, before: float) -> str:
        """Name a transaction that has begun, of which nothing has come since a time, its END neither; empty for none.

        Args:
            before: In seconds of `time.monotonic`.
        """
        return next((group for group in self.open_groups if self._open[group].at < before), "")

    @property
    def loose_rows(self) -> Sequence[OffsetRange]:
        """Where rows of snapshots lie that no transaction lies before which has begun; none where one has ended."""
        if self._ended:
            return ()
        found: list[OffsetRange] = []
        for partition, rows in self._rows.items():
            held = self._held(partition)
            found += rows if held is None else (run for run in rows if run.first < held)
        return found

    def release_rows(self, scn: Scn, committed_at_us: int) -> CompleteTransaction:
        """Take those rows along by themselves, at a position that no transaction has."""
        rows = tuple(self._rows_before())
        self.end = Scn(max(self.end, scn))
        self.rows_at = scn
        return CompleteTransaction(scn, (_ROWS,), (), rows, 0, 0, committed_at_us)

    def forget(self, group: str) -> None:
        """Give up a transaction that has begun and not ended: what comes of it later is passed over."""
        self._take(group)
        self._complete[group] = self.end
        self._given_up.add(group)

    def put_aside(self) -> CompleteTransaction:
        """Give up the transaction that all others wait for; returns what is there of it, and passes over the rest."""
        end, _ = self._ended[0]
        found = self._pop()
        self._left_out.pop(end.group, None)
        self._given_up.add(end.group)
        self.end = Scn(max(self.end, end.scn))
        return _whole(end, [found], ())

    def first_needed(self, positions: MutableMapping[int, int]) -> None:
        """Lower the offset of each partition, below which nothing is needed any more, for what is not released."""
        for found in self._open.values():
            for run in found.runs.values():
                positions[run.partition] = min(positions[run.partition], run.first)
        for rows in self._rows.values():
            for run in rows:
                positions[run.partition] = min(positions[run.partition], run.first)

    def _pop(self) -> tuple[str, _Open | None]:
        """Take the next transaction that has ended, and what is there of it."""
        end, _ = self._ended.popleft()
        self._ending.discard(end.group)
        self._complete[end.group] = end.scn
        if len(self._complete) > _REMEMBERED:
            forgotten, _ = self._complete.popitem(last=False)
            for of in (self._left_out, self._proofs, self._passed):
                of.pop(forgotten, None)
            self._given_up.discard(forgotten)
        found = self._take(end.group)
        there = found.counts if found is not None else {}
        left_out = frozenset(table for table, due in end.counts.items() if there.get(table, 0) < due)
        # What is applied already is not waited for: its END may be read before its events are.
        if left_out and end.scn > self._done:
            self._left_out[end.group] = left_out
        elif left_out and end.scn > self._least_known:
            self._passed[end.group] = passed = found if found is not None else _Open()
            passed.due = end.events
        return end.group, found

    def _take(self, group: str) -> _Open | None:
        """Take what is there of a transaction."""
        found = self._open.pop(group, None)
        for partition in found.runs if found is not None else ():
            del self._firsts[partition][group]
        return found

    def _refuse_more(self, end: TransactionEnd, found: _Open) -> None:
        """Make sure that no more came of a transaction than its END counts."""
        if end.events is None:
            return
        for table, there in found.counts.items():
            if there > end.counts.get(table, 0):
                what = f"{there} of {table} came, where its END counts {end.counts.get(table, 0)}"
                raise _contradicts(end.group, what, self._where)
        if found.highest > end.events:
            what = f"one has number {found.highest}, where its END counts {end.events} in all"
            raise _contradicts(end.group, what, self._where)

    def _lacking(self, end: TransactionEnd, found: _Open | None) -> Mapping[str, tuple[int, int]]:
        there: Mapping[str, int] = found.counts if found is not None else {}
        return {
            table: (there.get(table, 0), due)
            for table, due in end.counts.items()
            if there.get(table, 0) < due and self._is_read(table)
        }

    def _rows_before(self) -> Iterator[OffsetRange]:
        """Take the rows that no transaction of those that are still to come lies before."""
        for partition, rows in list(self._rows.items()):
            held = self._held(partition)
            while rows and (held is None or rows[0].first < held):
                yield rows.popleft()
            if not rows:
                del self._rows[partition]

    def _held(self, partition: int) -> int | None:
        """The offset of the first event of a transaction that has begun in a partition."""
        return next(iter(self._firsts.get(partition, {}).values()), None)

    def _forget_rows(self, runs: Iterable[OffsetRange]) -> None:
        """Drop rows that lie before events which are applied: they are, too."""
        for run in runs:
            rows = self._rows.get(run.partition)
            while rows and rows[0].end <= run.end:
                rows.popleft()
            if rows and rows[0].first < run.end:
                rows[0].first = run.end


def _contradicts(group: str, what: str, where: str) -> MalformedInputError:
    return MalformedInputError(
        f"the events of transaction {group} are not those that its END tells of: {what}",
        where=where,
        do=f"if {OTHER}: {ANEW}",
    )


def _whole(
    end: TransactionEnd, groups: Sequence[tuple[str, _Open | None]], rows: tuple[OffsetRange, ...]
) -> CompleteTransaction:
    opened = [found for _, found in groups if found is not None]
    return CompleteTransaction(
        scn=end.scn,
        groups=tuple(group for group, _ in groups),
        runs=tuple(run for found in opened for run in found.runs.values()),
        rows=rows,
        events=sum(found.events for found in opened),
        size_bytes=sum(found.size_bytes for found in opened),
        committed_at_us=end.committed_at_us,
    )
