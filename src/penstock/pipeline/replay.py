"""Copies that a source holds beside its changes: each takes its table's place at the target when its turn comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing

from penstock.apply.ledger import ProcessState
from penstock.apply.listener import CopyListener
from penstock.apply.parameters import OnBadRow
from penstock.apply.process import TablesAddedError
from penstock.apply.target import TargetTable
from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.history import RESYNC
from penstock.pipeline.connectors import SourceWithCopies, TargetConnector, TargetLedger
from penstock.position import Scn
from penstock.schema import TableSchema
from penstock.snapshot.instantiate import Instantiator
from penstock.snapshot.task import CopyContext
from penstock.spark.job import SparkChunkJobs
from penstock.spark.starting import Spark
from penstock.stream import StoredCopy

_LAST = Scn(2**63 - 1)
"""A position that all others lie before."""


class Replay:
    """Replays copies in their order with the changes: at the position of a copy, and nowhere else.

    So the target is always as of one position. A table whose copy is not the one that stands for it there is emptied
    and filled from that copy; an earlier copy, or whatever became of it, is of no account any more.
    """

    def __init__(
        self,
        source: SourceWithCopies,
        target: TargetConnector,
        is_meant: Callable[[TableName], bool],
        on_bad_row: OnBadRow = OnBadRow.STOP,
    ) -> None:
        """Replay what `source` holds of the tables that are meant."""
        self._on_bad_row = on_bad_row
        self._source = source
        self._target = target
        self._is_meant = is_meant
        self._tables: Collection[TableName] = ()
        self._placed: Mapping[TableName, str] = {}
        # Where copies lie that are to come.
        self._ahead: Sequence[Scn] = ()

    def prepare(
        self,
        spark: Spark,
        ledger: TargetLedger,
        state: ProcessState,
        stop: threading.Event,
        listener: CopyListener,
    ) -> Collection[TableName]:
        """Put the copies in place that stand for their tables where the process stands; returns all tables it follows.

        Raises:
            OperatorError: A table is missing at the target, or holds rows; or its copy lies behind the process.
        """
        with closing(self._source.open_source()) as stream:
            versions = stream.tables()
        at = state.low_watermark
        # Those that have another name by now, too: the archive speaks of them first.
        self._tables = {v.table.name for v in versions if not v.is_partition and self._is_meant(v.table.name)}
        due = self._source.copies_at(self._tables, at)
        done, of = ledger.instantiated(), ledger.copied_from()
        lacking = of.keys() & self._tables - {name for copy in due for name in copy.tables}
        # A table that another source has copied is there before this one has told of it: from then on it has the copy.
        to_come = [copy for copy in self._source.copies_at(self._tables, _LAST) if copy.cut.scn > at]
        self._ahead, ahead = sorted(copy.cut.scn for copy in to_come), _ids(to_come)
        for gone in sorted(name for name in lacking if ahead.get(name) != of[name]):
            # Rows that are nowhere any more would keep those that they refer to from being deleted.
            ledger.clear(gone, keep_rows=False)
        todo: list[tuple[StoredCopy, list[TableName]]] = []
        for copy in due:
            # What was dropped, and is not there any more, is not to be filled.
            names = sorted(
                name for name in copy.tables if (of[name] != copy.id if name in done else name not in copy.dropped)
            )
            if names:
                self._refuse_passed(copy, names, at)
                todo.append((copy, names))
        for copy, names in todo:
            for name in names:
                if of.get(name, copy.id) != copy.id:
                    ledger.clear(name, keep_rows=False)
            if not self._fill(spark, ledger, state, copy, names, stop=stop, listener=listener):
                return self._tables
        self._placed = _ids(due)
        return self._tables

    def check(self, position: Scn) -> Scn | None:
        """Raise TablesAddedError where other copies stand for the tables at a position than those that are in place.

        Returns:
            Where the next copy lies, of those that were there at the last `prepare`.
        """
        if _ids(self._source.copies_at(self._tables, position)) != self._placed:
            raise TablesAddedError("tables have copies here, which take their place before changes follow")
        return next((at for at in self._ahead if at > position), None)

    def _fill(
        self,
        spark: Spark,
        ledger: TargetLedger,
        state: ProcessState,
        copy: StoredCopy,
        names: Sequence[TableName],
        *,
        stop: threading.Event,
        listener: CopyListener,
    ) -> bool:
        source, at_target = self._source.describe(names), self._target.describe(names)
        lacking = [name for name in names if name not in at_target]
        if lacking:
            raise OperatorError(
                f"{', '.join(map(str, lacking))} does not exist at the target",
                where=self._target.label,
                do="run `penstock setup`, which makes it or says what is in its way; or leave it out of capture.tables",
            )
        for name in names:
            check_columns(source[name], at_target[name], where=self._target.label)
        context = CopyContext(
            process=state.name,
            epoch=state.epoch,
            source=self._source.access,
            target=self._target.access,
            source_tables=source,
            target_tables={name: TargetTable(table) for name, table in at_target.items()},
            on_bad_row=self._on_bad_row,
        )
        jobs = SparkChunkJobs(spark, context)
        origin = self._source.stored(copy, stop)
        # No table of an archive is altered while it is read.
        return Instantiator(origin, ledger, jobs, listener, confirm=lambda: None).run(names, stop)

    def _refuse_passed(self, copy: StoredCopy, names: Sequence[TableName], at: Scn) -> None:
        if copy.cut.scn < at:
            raise OperatorError(
                f"{', '.join(map(str, names))} was copied at position {copy.cut.scn}, and the target is at {at}:"
                " the changes in between would be missing",
                where=self._source.label,
                do=f"leave it out of capture.tables; or {RESYNC}, and begins from the beginning",
            )


def refuse_before_copies(
    first: Mapping[TableName, Scn],
    tables: Collection[TableName],
    end: Scn,
    warn: Callable[[str], None],
    *,
    where: str,
) -> None:
    """Make sure that a restore as of `end` has rows to begin with; say which tables have none until later.

    Raises:
        OperatorError: No table was copied by then.
    """
    later = sorted(table for table in tables if first.get(table, end + 1) > end)
    if tables and len(later) == len(tables):
        begin = f"at position {min(first.values())}" if first else "not there yet"
        raise OperatorError(
            f"position {end} lies before the first copy of any table, which is {begin}",
            where=where,
            do="name a later point",
        )
    for table in later:
        at = f"from position {first[table]} on" if table in first else "not at all yet"
        warn(f"table {table} stays as it is: its rows are there {at}")


def check_columns(source: TableSchema, target: TableSchema, *, where: str) -> None:
    """Make sure that a table has a column for everything that is copied; raises an `OperatorError` otherwise."""
    lacking = [repr(column.name) for column in source.columns if column.name not in target.by_name]
    if lacking:
        raise OperatorError(
            f"{source.name} lacks column{'s' if len(lacking) > 1 else ''} {', '.join(lacking)} at the target",
            where=where,
            do="add it, and run `penstock setup`",
        )


def _ids(copies: Sequence[StoredCopy]) -> Mapping[TableName, str]:
    """Which copy stands for each table."""
    return {table: copy.id for copy in copies for table in copy.tables}
