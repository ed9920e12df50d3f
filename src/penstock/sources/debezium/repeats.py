"""Events that repeat others: each is held against the one that it repeats, which is looked up where it lies.

A connector that was started again sends what it had sent since its last commit of offsets once more. So an event of a
transaction that is complete is a repetition, or the transaction is another one of the same name: a server that was
restored, or that took over without the last transactions of the one before it, gives ids out again. Nothing is kept of
the events of a log but where they lie. So the first one is read again, which costs nothing where nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.sources.debezium.history import differs, reused, unheard
from penstock.sources.debezium.log import Extent, Partition, together, uncollected
from penstock.sources.debezium.scan import EventIdentity, LogScanner, PlacedEvent, Stretch, StretchScan

_LOOK_BACK = 2_000
"""So many records before a repetition are looked at first, then four times as many each time."""


class Repeats:
    """Gathers repetitions, and checks them; not for two threads at once."""

    def __init__(self, scanner: LogScanner, left_out: Sequence[str], *, tolerates_unknown: bool) -> None:
        """Gather none yet.

        Args:
            left_out: Transactions of which an event that repeats nothing is passed over; more may be added meanwhile.
            tolerates_unknown: So it is of any transaction: an earlier version did not note which it left out.
        """
        self._log = scanner.log
        self._looking = StretchScan(scanner.settings, scanner.skips)
        self._left_out = left_out
        self._tolerates_unknown = tolerates_unknown
        # By partition, ranges of offsets, in each of which the events of a transaction are to be checked.
        self._found: dict[Partition, list[tuple[int, int, str]]] = {}
        # By partition, behind the last event that was found to be repeated: a connector repeats one after the other.
        self._reached: dict[Partition, int] = {}

    def add(self, partition: Partition, first: int, end: int, txn: str) -> None:
        """Gather the events of a transaction in a range of offsets."""
        self._found.setdefault(partition, []).append((first, end, txn))

    def check(self) -> None:
        """Hold what was gathered against what lies before it.

        Raises:
            HistoryError: One differs from what it would repeat, or there is no such event.
        """
        if not self._found:
            return
        found, self._found = self._found, {}
        extents = self._log.extents()
        for topic in {partition.topic for partition in found}:
            of_topic = {p: extent for p, extent in extents.items() if p.topic == topic}
            self._check_topic({p: events for p, events in found.items() if p.topic == topic}, of_topic)

    def _check_topic(
        self, found: Mapping[Partition, Sequence[tuple[int, int, str]]], extents: Mapping[Partition, Extent]
    ) -> None:
        """Check what was found in the partitions of a topic: what has no key may be repeated in another one."""
        txns = {txn for ranges in found.values() for *_, txn in ranges}
        begin = {partition: min(first for first, *_ in ranges) for partition, ranges in found.items()}
        open_, beside = _Open(), []
        for partition, ranges in found.items():
            end = max(end for _, end, _ in ranges)
            of = {txn: [(first, end) for first, end, name in ranges if name == txn] for txn in {r[2] for r in ranges}}
            for said in self._find(Stretch(partition, begin[partition], end), txns):
                if any(first <= said.offset < end for first, end in of.get(said.key[0], ())):
                    open_.add(said)
                else:
                    beside.append(said)
        for said in beside:
            open_.close(said, self._log.label)
        looked = {p: begin.get(p, extent.end) for p, extent in extents.items()}
        most = 2 * sum(end - first for ranges in found.values() for first, end, _ in ranges) + _LOOK_BACK
        for partition, end in looked.items():
            if (first := self._reached.get(partition)) is not None:
                self._look(Stretch(partition, first, min(end, first + most)), txns, open_)
        size = _LOOK_BACK
        while open_.events and any(looked[p] > extent.first for p, extent in extents.items()):
            for partition, extent in extents.items():
                first = max(extent.first, looked[partition] - size)
                self._look(Stretch(partition, first, looked[partition]), txns, open_)
                looked[partition] = first
            size *= 4
        for said in open_.events:
            if self._tolerates_unknown or said.key[0] in self._left_out:
                continue
            where = f"{self._log.label}, {said.partition}, offset {said.offset}"
            raise unheard(said.key[0], where=where)

    def _look(self, stretch: Stretch, txns: set[str], open_: _Open) -> None:
        if not open_.events or stretch.first >= stretch.end:
            return
        for said in self._find(stretch, txns):
            if open_.close(said, self._log.label):
                self._reached[stretch.partition] = said.offset + 1

    def _find(self, stretch: Stretch, txns: set[str]) -> Iterator[EventIdentity]:
        """Yield what events of some transactions say, of all that lie in a stretch."""
        looking = self._looking
        for records in together(self._log.read(*stretch)):
            with uncollected():
                looking.add(records)
            placed, looking.out.placed = looking.out.placed, []
            events = {one.offset: one for one in placed if isinstance(one, PlacedEvent) and one.txn in txns}
            for record in records if events else ():
                assert record.offset is not None
                if (event := events.get(record.offset)) is not None:
                    yield looking.said(stretch.partition, event, record)


class _Open:
    """Repetitions of which the events that they repeat are still to be found."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, object], list[EventIdentity]] = {}

    @property
    def events(self) -> Sequence[EventIdentity]:
        return [said for some in self._by_key.values() for said in some]

    def add(self, said: EventIdentity) -> None:
        self._by_key.setdefault(said.key, []).append(said)

    def close(self, first: EventIdentity, label: str) -> bool:
        """Take out what an event is repeated by; returns whether there was any."""
        some = self._by_key.get(first.key)
        if some is None:
            return False
        left = [said for said in some if said.said != first.said]
        if left and first.is_told:
            other = left[0]
            where = f"{label}, {other.partition}, offset {other.offset}; {first.partition}, offset {first.offset}"
            if other.said[0] == first.said[0]:
                raise differs(where=where)
            what = "an event of the same number lies elsewhere in the source's log"
            raise reused(first.key[0], what, where=where)
        if left:
            self._by_key[first.key] = left
        else:
            del self._by_key[first.key]
        return len(left) < len(some)
