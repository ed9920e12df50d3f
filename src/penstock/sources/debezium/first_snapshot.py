"""Where the rows of a connector's first snapshot lie; those of an attempt that the connector gave up are none of it.

A connector that is killed in its first snapshot begins it again, and sends every row once more, as it stands then: a
row that was deleted in between does not come again, and nothing says so. All rows of one attempt have one place in the
source's log, and the first one of all, or of a table, is marked. So a row that is marked as first begins another
attempt, unless the one before it came to its end: its last row was marked, or changes were sent behind it.
Two snapshots of a table that came to their ends are refused: the first one has rows, too, that were deleted since.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from penstock.change import TableName
from penstock.formats.debezium.source import Key
from penstock.sources.debezium.history import again_at_once, begun_before, made_twice
from penstock.sources.debezium.index import OffsetRange

_FIRSTS = ("first", "first_in_data_collection")
_PARTS_END = "last_in_data_collection"


class FirstSnapshot:
    """Gathers rows, and says which of them are of the attempt that counts; not for two threads at once."""

    def __init__(self) -> None:
        """Gather none yet."""
        # By table, runs of rows of one place, those of a partition in order; and which of them begin with a first row.
        self._runs: dict[TableName, list[tuple[OffsetRange, Key]]] = defaultdict(list)
        self._last: dict[tuple[TableName, int], tuple[OffsetRange, Key]] = {}
        self._begins: set[tuple[int, int]] = set()
        # By table, the places where an attempt began; and the tables of which a later one lies before an earlier one.
        self._begun: dict[TableName, set[Key]] = defaultdict(set)
        self._behind: list[TableName] = []
        self._ended: dict[tuple[TableName, int], str] = {}
        # The places of rows that were marked as first, and as the last one of all.
        self._firsts: dict[Key, int] = {}
        self._lasts: set[Key] = set()
        self._changed: set[Key] = set()

    def add(
        self, table: TableName, partition: int, offset: int, mark: str, place: Key, *, marks_firsts: bool = True
    ) -> None:
        """Take up a row; those of a partition come in order.

        Args:
            marks_firsts: The connector marks first rows; otherwise each place is that of another attempt.
        """
        ended_by = self._ended.get((table, partition), "")
        begins = mark in _FIRSTS or ended_by == _PARTS_END
        self._ended[table, partition] = mark if mark in (_PARTS_END, "last") else ""
        if mark in _FIRSTS:
            self._firsts[place] = self._firsts.get(place, 0) + (mark == "first")
        if not marks_firsts and mark:
            self._firsts.setdefault(place, 0)
        if mark == "last":
            self._lasts.add(place)
        run, at = self._last.get((table, partition), (None, ()))
        is_another = begins or (ended_by == "last" and place != at)
        if is_another or (not marks_firsts and mark):
            self._begun[table].add(place)
        if is_another and place < at:
            self._behind.append(table)
        if run is not None and not begins and at == place and run.end == offset:
            run.end = offset + 1
            return
        self._last[table, partition] = one = OffsetRange(partition, offset, offset + 1), place
        self._runs[table].append(one)
        if begins:
            self._begins.add((partition, offset))

    @property
    def lacks_first(self) -> bool:
        """Whether a last row is marked and a first one is not, though the connector marks both: it lies elsewhere."""
        rows = sum(run.end - run.first for runs in self._runs.values() for run, _ in runs)
        return bool(self._lasts) and not self._firsts and rows > 1

    def changed(self, place: Key) -> None:
        """Note the place of the first change of a partition: the snapshots before it came to their ends."""
        self._changed.add(place)

    def rows(self, *, where: str) -> Mapping[TableName, list[OffsetRange]]:
        """Return where the rows of each table lie that are of the attempt that counts.

        Raises:
            HistoryError: Rows of two attempts cannot be told apart, a later one lies before an earlier one, or a table
                is in two snapshots that came to their ends.
        """
        if self._behind:
            raise begun_before(str(self._behind[0]), where=where)
        newest = max(self._firsts, default=())
        given_up = {place for place in self._places() if place < newest and not self._came_to_its_end(place, newest)}
        found = {}
        for table, runs in self._runs.items():
            kept = [one for one in runs if one[1] not in given_up]
            places = {place for _, place in kept}
            if any(place > min(places) for place in self._begun[table] & places):
                raise made_twice(str(table), where=where)
            found[table] = _joined(self._of_last_attempt(table, kept, where))
        return found

    def _places(self) -> set[Key]:
        return {place for runs in self._runs.values() for _, place in runs if place}

    def _came_to_its_end(self, place: Key, newest: Key) -> bool:
        """Whether the attempt of a place did: what was marked, or changed, between it and the newest one says so."""
        later = [first for first in self._firsts if place < first <= newest]
        end = min(later, default=newest)
        return any(place <= at < end for at in (*self._lasts, *self._changed))

    def _of_last_attempt(
        self, table: TableName, runs: Sequence[tuple[OffsetRange, Key]], where: str
    ) -> Iterable[OffsetRange]:
        """Leave out what lies before a first row of the same place, in the same partition."""
        begins: dict[tuple[int, Key], int] = {}
        counts = Counter[Key]()
        for run, place in runs:
            if (run.partition, run.first) in self._begins:
                begins[run.partition, place] = max(begins.get((run.partition, place), 0), run.first)
                counts[place] += 1
        partitions = {run.partition for run, _ in runs}
        for run, place in runs:
            if len(partitions) > 1 and max(self._firsts.get(place, 0), counts[place]) > 1:
                raise again_at_once(str(table), where=where)
            if run.first >= begins.get((run.partition, place), 0):
                yield run


def _joined(runs: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Runs that follow each other as one."""
    found: list[OffsetRange] = []
    for run in runs:
        if found and (found[-1].partition, found[-1].end) == (run.partition, run.first):
            found[-1].end = run.end
        else:
            found.append(OffsetRange(run.partition, run.first, run.end))
    return found
