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

from penstock.errors import MalformedInputError, OperatorError
from penstock.position import START, Scn

_REMEMBERED = 300_000
"""How many complete transactions are known by name: a connector repeats what it sent in its last minute or so."""

_PAGE_BITS = 512


@dataclass(slots=True)
class Run:
    """Offsets of one partition, from `first` up to, but without, `end`."""

    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Ended:
    """What the END of a transaction says.

    Attributes:
        scn: The position of the transaction.
        counts: Number of events by the connector's name of each table, or of whatever else was counted.
    """

    group: str
    scn: Scn
    counts: Mapping[str, int]
    committed_at_us: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A transaction of which everything is there.

    Attributes:
        groups: By which names its events go; several, where more than one was committed at a position.
        runs: Where its events lie.
        rows: Where rows of a snapshot lie that come before it.
        events: How many there are, each counted once.
    """

    scn: Scn
    groups: tuple[str, ...]
    runs: tuple[Run, ...]
    rows: tuple[Run, ...]
    events: int
    size_bytes: int
    committed_at_us: int

    @property
    def changes(self) -> int:
        """How many events and rows it has."""
        return self.events + sum(run.end - run.first for run in self.rows)


@dataclass(frozen=True)
class Waiting:
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

    runs: dict[int, Run] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    events: int = 0
    size_bytes: int = 0
    scn: int = 0
    committed_at_us: int = 0
    at: float = 0.0
    # Which events are there. A transaction may have millions: those with a number cost a bit each, page by page.
    orders: dict[int, int] = field(default_factory=dict)
    identities: set[object] = field(default_factory=set)

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
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing.

        Args:
            done: Transactions at or before this position are applied already.
            where: The log, for messages.
            is_read: Whether the events of a table, by the connector's name of it, are read at all: others are counted
                by the connector, too.
        """
        self._done = done
        self._is_read = is_read
        self._where = where
        self._now = now
        self._open: OrderedDict[str, _Open] = OrderedDict()
        # For each partition, where the first event of each of them lies, ascending.
        self._firsts: dict[int, OrderedDict[str, int]] = {}
        self._ended: deque[tuple[Ended, float]] = deque()
        self._ending: set[str] = set()
        # The position of each that is complete, by its name.
        self._complete: OrderedDict[str, Scn] = OrderedDict()
        # Of those, the tables whose events were counted and not waited for.
        self._left_out: dict[str, frozenset[str]] = {}
        # For each partition, rows of snapshots that no transaction has taken along yet.
        self._rows: dict[int, deque[Run]] = {}
        self.repeated = 0
        self.end = done

    def event(self, partition: int, offset: int, *, group: str, identity: object, table: str, size_bytes: int) -> None:
        """Take up an event of a transaction.

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
                self._forget_rows([Run(partition, offset, offset + 1)])
            return
        found = self._open.get(group)
        if found is None:
            found = self._open[group] = _Open()
        found.at = self._now()
        run = found.runs.get(partition)
        if run is None:
            found.runs[partition] = Run(partition, offset, offset + 1)
            self._firsts.setdefault(partition, OrderedDict())[group] = offset
        else:
            run.end = offset + 1
        if not found.add(identity):
            self.repeated += 1
            return
        found.events += 1
        found.counts[table] = found.counts.get(table, 0) + 1
        found.size_bytes += size_bytes

    def placed(self, group: str, scn: int, committed_at_us: int) -> None:
        """Say, where there are no ENDs, at which position a transaction was committed, and when."""
        found = self._open.get(group)
        if found is not None:
            found.scn = max(found.scn, scn)
            found.committed_at_us = max(found.committed_at_us, committed_at_us)

    def row(self, partition: int, offset: int) -> None:
        """Take up a row of a snapshot that was made while changes flowed."""
        rows = self._rows.setdefault(partition, deque())
        if rows and rows[-1].end == offset:
            rows[-1].end = offset + 1
        else:
            rows.append(Run(partition, offset, offset + 1))

    def ended(self, end: Ended) -> None:
        """Take up the END of a transaction."""
        if end.group in self._complete or end.group in self._ending:
            self.repeated += 1
        else:
            self._ending.add(end.group)
            self._ended.append((end, self._now()))

    def is_complete(self, group: str) -> bool:
        """Whether a transaction was released, or passed over as applied."""
        return group in self._complete

    def complete_before(self, scn: int) -> None:
        """Say, where there are no ENDs, that nothing comes any more of transactions that lie before a position."""
        done = sorted((o.scn, group) for group, o in self._open.items() if o.scn < scn and group not in self._ending)
        for at, group in done:
            if self._done < at <= self.end:
                raise MalformedInputError(
                    f"events came of transaction {group}, which lies before what was taken to be complete",
                    where=self._where,
                    do="have the connector write its transaction topic (provide.transaction.metadata), or give"
                    " capture.debezium.settle_s more time",
                )
            self.ended(Ended(group, Scn(at), {}, self._open[group].committed_at_us))

    def release(self) -> Iterator[Whole]:
        """Yield transactions that are whole, in the order in which they were committed."""
        while self._ended:
            end, _ = self._ended[0]
            if end.scn > self._done and self._lacking(end, self._open.get(end.group)):
                return
            groups = [self._pop()]
            # Those that were committed at one position are one transaction, as far as anybody can tell.
            while self._ended and self._ended[0][0].scn == end.scn:
                groups.append(self._pop())
            self.end = Scn(max(self.end, end.scn))
            if end.scn <= self._done:
                self._forget_rows(run for _, found in groups if found is not None for run in found.runs.values())
                continue
            txn = _whole(end, groups, tuple(self._rows_before()))
            if txn.runs or txn.rows:
                yield txn

    @property
    def waiting(self) -> Waiting | None:
        """The transaction that all later ones wait for."""
        if not self._ended:
            return None
        end, since = self._ended[0]
        lacking = self._lacking(end, self._open.get(end.group))
        return Waiting(end.group, lacking, since) if lacking else None

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
    def open_groups(self) -> Sequence[str]:
        """The names of transactions that have begun and not ended, in the order of their first events."""
        return [group for group in self._open if group not in self._ending]

    def stalled(self, before: float) -> str:
        """Name a transaction that has begun, of which nothing has come since a time, its END neither; empty for none.

        Args:
            before: In seconds of `time.monotonic`.
        """
        return next((group for group in self.open_groups if self._open[group].at < before), "")

    def forget(self, group: str) -> None:
        """Give up a transaction that has begun and not ended: what comes of it later is passed over."""
        self._take(group)
        self._complete[group] = self.end

    def put_aside(self) -> Whole:
        """Give up the transaction that all others wait for; returns what is there of it, and passes over the rest."""
        end, _ = self._ended[0]
        found = self._pop()
        self._left_out.pop(end.group, None)
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
            self._left_out.pop(forgotten, None)
        found = self._take(end.group)
        there = found.counts if found is not None else {}
        left_out = frozenset(table for table, due in end.counts.items() if there.get(table, 0) < due)
        # What is applied already is not waited for: its END may be read before its events are.
        if left_out and end.scn > self._done:
            self._left_out[end.group] = left_out
        return end.group, found

    def _take(self, group: str) -> _Open | None:
        """Take what is there of a transaction."""
        found = self._open.pop(group, None)
        for partition in found.runs if found is not None else ():
            del self._firsts[partition][group]
        return found

    def _lacking(self, end: Ended, found: _Open | None) -> Mapping[str, tuple[int, int]]:
        there: Mapping[str, int] = found.counts if found is not None else {}
        return {
            table: (there.get(table, 0), due)
            for table, due in end.counts.items()
            if there.get(table, 0) < due and self._is_read(table)
        }

    def _rows_before(self) -> Iterator[Run]:
        """Take the rows that no transaction of those that are still to come lies before."""
        for partition, rows in list(self._rows.items()):
            held = next(iter(self._firsts.get(partition, {}).values()), None)
            while rows and (held is None or rows[0].first < held):
                yield rows.popleft()
            if not rows:
                del self._rows[partition]

    def _forget_rows(self, runs: Iterable[Run]) -> None:
        """Drop rows that lie before events which are applied: they are, too."""
        for run in runs:
            rows = self._rows.get(run.partition)
            while rows and rows[0].end <= run.end:
                rows.popleft()
            if rows and rows[0].first < run.end:
                rows[0].first = run.end


def _whole(end: Ended, groups: Sequence[tuple[str, _Open | None]], rows: tuple[Run, ...]) -> Whole:
    opened = [found for _, found in groups if found is not None]
    return Whole(
        scn=end.scn,
        groups=tuple(group for group, _ in groups),
        runs=tuple(run for found in opened for run in found.runs.values()),
        rows=rows,
        events=sum(found.events for found in opened),
        size_bytes=sum(found.size_bytes for found in opened),
        committed_at_us=end.committed_at_us,
    )
