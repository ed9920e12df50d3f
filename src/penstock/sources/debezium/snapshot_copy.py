"""The first copy: whether all rows of the connector's first snapshot came, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.formats.debezium.source import Key
from penstock.sources.debezium.first_snapshot import FirstSnapshot
from penstock.sources.debezium.index import OffsetRange
from penstock.sources.debezium.log import Partition
from penstock.sources.debezium.scan import PlacedRow

_MARKED_SNAPSHOT_S = 60.0
"""A snapshot is over after so long without a row, though its last one was not marked."""


class SnapshotCopy:
    """Gathers the rows until the connector is through with its snapshot; not for two threads at once.

    Attributes:
        runs: Where the rows of each table lie, once the copy was begun.
        is_over: The connector is through with it.
        upto: Once that was known, where each partition ended: rows may lie up to there. None before.
        is_whole: All rows were seen.
        copied_upto: By partition, below which offset an earlier run has found rows.
        read: By partition, below which offset all was read when the copy was begun.
    """

    def __init__(self, *, is_whole: bool) -> None:
        """Gather none yet; all of them were seen where the copy lies before what is followed."""
        self.runs: Mapping[TableName, list[OffsetRange]] = {}
        self.is_over = False
        self.upto: Mapping[int, int] | None = None
        self.is_whole = is_whole
        self.copied_upto: Mapping[int, int] = {}
        self.read: Mapping[Partition, int] = {}
        self._snapshot = FirstSnapshot()
        # Its first row was marked, so its last one is to be.
        self._is_marked = False
        self._is_begun = False

    def add(self, partition: int, row: PlacedRow, *, where: str) -> None:
        """Take up a row.

        Raises:
            OperatorError: The copy was begun without it.
        """
        if self._is_begun or row.offset >= self.copied_upto.get(partition, row.offset + 1):
            raise OperatorError(
                "rows of the connector's first snapshot came after it was taken to be over: the copy lacks them",
                where=where,
                do="`penstock resync --all` prepares a new first copy, once the connector's snapshot is over",
            )
        self._is_marked |= row.mark == "first"
        self.is_over |= row.mark == "last"
        self._snapshot.add(row.table, partition, row.offset, row.mark, row.place, marks_firsts=row.marks_firsts)

    @property
    def lacks_first(self) -> bool:
        """Whether the first row of all is not there, see `FirstSnapshot.lacks_first`."""
        return self._snapshot.lacks_first

    def changed(self, place: Key) -> None:
        """Note the place of the first change of a partition; see `FirstSnapshot.changed`."""
        self._snapshot.changed(place)

    def move_on(self, read: Mapping[int, int], *, is_quiet: bool, silent_s: float, has_changes: bool) -> None:
        """Note how far everything was read.

        Args:
            is_quiet: Nothing more comes for now, and nothing has for `silent_s`.
            has_changes: A transaction is whole, which lies behind the snapshot.
        """
        # A snapshot whose beginning was marked ends with a mark, too, unless its last row was lost.
        self.is_over |= has_changes or (is_quiet and (not self._is_marked or silent_s >= _MARKED_SNAPSHOT_S))
        self.is_whole |= self.upto is not None and all(read[number] >= end for number, end in self.upto.items())

    def begin(self, *, where: str) -> None:
        """Find where the rows lie; from now on there are no others.

        Raises:
            HistoryError: Rows of two attempts cannot be told apart.
        """
        self.runs = self._snapshot.rows(where=where)
        self._is_begun = True
