"""Instantiation: copying tables that are not copied yet, and going on with a copy that was cut short.

All new tables are copied as of one snapshot, which is also a tick of the change log: changes at or before its
position are in the copy, all later ones are applied. Each chunk is committed together with a mark in the ledger,
so a crash costs at most the chunks that were under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Protocol

from penstock.apply.listener import CopyListener
from penstock.change import TableName
from penstock.errors import TableError
from penstock.position import Anchor, Scn
from penstock.snapshot.chunk import Chunk, CopySource, bundles
from penstock.snapshot.task import about

Work = tuple[Sequence[Chunk], CopySource]
"""Chunks that are copied in one target transaction, and as of when."""


class CopyState(StrEnum):
    """How far the first copy of a table is."""

    COPYING = "COPYING"
    READY = "READY"


@dataclass(frozen=True)
class OpenCopy:
    """A copy that an earlier run began and did not finish."""

    table: TableName
    scn: Scn
    snapshot: str
    todo: Sequence[Chunk]


@dataclass(frozen=True)
class HeldSnapshot:
    """A snapshot that the source holds open: its text, the name it is exported under, and the cut made at it."""

    text: str
    exported: str
    anchor: Anchor

    @property
    def scn(self) -> Scn:
        """Its position."""
        return self.anchor.scn


class CopyLedger(Protocol):
    """The target of a copy, and what its ledger knows of copies; a part of `connectors.TargetLedger`."""

    @property
    def label(self) -> str:
        """The target, named without secrets."""

    def with_rows(self, tables: Sequence[TableName]) -> Sequence[TableName]:
        """Return those of the tables that hold rows."""

    def clear(self, table: TableName, *, keep_rows: bool) -> None:
        """Forget an unfinished copy, and delete what it has left in the table unless the rows are to be kept."""

    def give_up_copy(self, table: TableName) -> None:
        """Note that an unfinished copy cannot be gone on with: its snapshot becomes empty. It is cleared later."""

    def instantiated(self) -> Mapping[TableName, Scn]:
        """Return the tables whose copy is complete."""

    def adopted(self) -> Collection[TableName]:
        """Return the tables whose rows at the target are to be compared, and brought where they differ."""

    def open_copies(self) -> Sequence[OpenCopy]:
        """Return the copies that were begun and not finished."""

    def begin_copies(self, chunks: Iterable[Chunk], held: HeldSnapshot) -> None:
        """Note copies of tables as of a snapshot, and all their chunks."""

    def take_as_they_are(self, tables: Sequence[TableName], held: HeldSnapshot) -> None:
        """Note that what tables hold at the target is their copy as of a snapshot."""

    def finish_copies(self) -> None:
        """Mark every copy as complete whose chunks are all done."""


class CopyOrigin(Protocol):
    """The source of a copy."""

    def hold_snapshot(self) -> AbstractContextManager[HeldSnapshot]:
        """Take a snapshot, cut the log at it, and keep it readable for other sessions until the end."""

    def cut_into_chunks(self, tables: Sequence[TableName]) -> list[Chunk]:
        """Cut each of the tables into pieces of roughly equal size; PostgreSQL's are cut in `source/copy.py`."""

    def can_resume(self, table: TableName, snapshot: str) -> bool:
        """Whether rows can be put back to what they were at a snapshot, for the chunks that are still missing."""


class ChunkJobs(Protocol):
    """Copies chunks side by side."""

    @property
    def at_once(self) -> int:
        """How many pieces of work one call should be given."""

    def copy(self, work: Sequence[Work], done: CopyListener) -> None:
        """Copy chunks; each piece in one target transaction that also marks its chunks as done in the ledger."""


class Instantiator:
    """Brings every table of a pipeline to where changes can be applied to it."""

    def __init__(
        self,
        origin: CopyOrigin,
        ledger: CopyLedger,
        jobs: ChunkJobs,
        listener: CopyListener,
        *,
        confirm: Callable[[], None],
        copies: bool = True,
        leave_out: Callable[[TableError], None] | None = None,
    ) -> None:
        """Copy from `origin` to the target of `ledger`.

        Args:
            leave_out: Called with what is in the way of a table; the others are copied. By default none is left out.
            copies: Otherwise nothing is copied: what tables hold at the target is taken for their copy as of now.
            confirm: Called once a snapshot is held; raises if tables are not what `jobs` takes them for any more.
                What is altered later is captured after the snapshot.
        """
        self._origin = origin
        self._ledger = ledger
        self._jobs = jobs
        self._listener = listener
        self._confirm = confirm
        self._copies = copies
        self._tell_left_out = leave_out
        self._left_out: set[TableName] = set()

    def run(self, tables: Sequence[TableName], stop: threading.Event) -> bool:
        """Copy what is not copied yet; a partition comes with its root.

        A table that something is in the way of is left out, as long as others are left.

        Returns:
            False when told to stop before everything was copied.

        Raises:
            TableError: Something is in the way of the only table that there is.
        """
        while True:
            left = [table for table in tables if table not in self._left_out]
            try:
                return self._run(left, stop)
            except TableError as exc:
                if self._tell_left_out is None or TableName(*exc.table) not in left or len(left) < 2:
                    raise
                self._leave_out(exc)

    def _run(self, tables: Sequence[TableName], stop: threading.Event) -> bool:
        done, adopted = self._ledger.instantiated(), self._ledger.adopted()
        resumed = []
        for copy in self._ledger.open_copies():
            with about(copy.table):
                if copy.table in tables and self._resumes(copy, adopted):
                    resumed.append(copy)
        going_on = {copy.table for copy in resumed}
        fresh = [table for table in tables if table not in done and table not in going_on]
        if self._copies:
            self._refuse_full([table for table in fresh if table not in adopted])
        for snapshot in sorted({copy.snapshot for copy in resumed}):
            todo = [chunk for copy in resumed if copy.snapshot == snapshot for chunk in copy.todo]
            if not self._copy(todo, CopySource(snapshot, None), stop):
                return False
        if fresh:
            with self._origin.hold_snapshot() as held:
                self._confirm()
                if not self._copies:
                    self._ledger.take_as_they_are(fresh, held)
                    return True
                chunks = self._origin.cut_into_chunks(fresh)
                self._ledger.begin_copies(chunks, held)
                if not self._copy(chunks, CopySource(held.text, held.exported), stop):
                    return False
        self._ledger.finish_copies()
        return True

    def _leave_out(self, error: TableError) -> None:
        """Go on without a table."""
        assert self._tell_left_out is not None
        table = TableName(*error.table)
        self._tell_left_out(error)
        self._ledger_forgets(table)
        self._left_out.add(table)

    def _ledger_forgets(self, table: TableName) -> None:
        # Changes that its snapshot would need are freed from now on. Not emptied here: it may be locked.
        if any(copy.table == table for copy in self._ledger.open_copies()):
            self._ledger.give_up_copy(table)

    def _resumes(self, copy: OpenCopy, adopted: Collection[TableName]) -> bool:
        is_given_up = not copy.snapshot
        if not is_given_up and (not copy.todo or self._origin.can_resume(copy.table, copy.snapshot)):
            return True
        self._ledger.clear(copy.table, keep_rows=copy.table in adopted)
        return False

    def _refuse_full(self, tables: Sequence[TableName]) -> None:
        for table in self._ledger.with_rows(tables):
            raise TableError(
                f"table {table} holds rows that penstock did not copy",
                where=self._ledger.label,
                do="empty it; or have its rows compared and kept, by `penstock setup --adopt`; or take it out of"
                " capture.tables",
                table=(table.schema, table.name),
            )

    def _copy(self, chunks: Sequence[Chunk], source: CopySource, stop: threading.Event) -> bool:
        listener = self._listener if any(chunk.size_bytes != 0 for chunk in chunks) else _Unheard()
        listener.copying(len(chunks), len({chunk.table for chunk in chunks}))
        work: list[Work] = [(bundle, source) for bundle in bundles(_by_turns(chunks))]
        step = self._jobs.at_once
        while work:
            if stop.is_set():
                return False
            try:
                self._jobs.copy(work[:step], listener)
            except TableError as exc:
                if self._tell_left_out is None or not (work := without(exc.table, work)):
                    raise
                # What was copied beside it is marked as done, and passed over.
                self._leave_out(exc)
            else:
                work = work[step:]
        return True


class _Unheard:
    """Implements `CopyListener` for a copy without rows: a log of changes has none, and an empty table has none."""

    def copying(self, chunks: int, tables: int) -> None:
        """Say nothing."""

    def copied(self, chunks: int, rows: int) -> None:
        """Say nothing."""


def without(table: tuple[str, str], work: Sequence[Work]) -> list[Work]:
    """What is left to copy where a table is left out."""
    left = [([chunk for chunk in chunks if chunk.table != TableName(*table)], source) for chunks, source in work]
    return [(chunks, source) for chunks, source in left if chunks]


def _by_turns(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Deal out chunks of each table in turn, for those that follow each other are copied side by side.

    Two sessions that fill the same table and its indexes get into each other's way.
    """
    tables: dict[TableName, list[Chunk]] = {}
    for chunk in chunks:
        tables.setdefault(chunk.table, []).append(chunk)
    return [chunk for turn in zip_longest(*tables.values()) for chunk in turn if chunk is not None]
