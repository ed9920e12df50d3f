"""The first copy of tables as events: rows as of one moment, chunk by chunk, each once whatever ends the run."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.apply.listener import CopyListener
from penstock.change import TableName
from penstock.errors import OperatorError, TableError
from penstock.formats.debezium.writer import OutgoingRecord
from penstock.pipeline.sink import Copying, cut_apart
from penstock.schema import Dictionary
from penstock.sinks.events.encoding import RecordFormat, cancellations
from penstock.sinks.events.jobs import copy_chunks
from penstock.sinks.events.ledger import EventLedger
from penstock.sinks.events.publisher import EventDestination
from penstock.sinks.events.put_aside import OnBadValue
from penstock.sinks.events.state import OpenPublishedCopy
from penstock.sinks.events.task import CopyWork, EventTask
from penstock.snapshot.chunk import Chunk, CopySource, bundles
from penstock.snapshot.instantiate import HeldSnapshot
from penstock.spark.starting import Spark

_AT_ONCE = 8
"""So many pieces of a copy go into one job; between jobs a run can be stopped."""


class EventCopy:
    """Publishes the rows of tables. What was published cannot be taken back, so a copy that was cut short goes on."""

    def __init__(
        self,
        spark: Spark,
        ledger: EventLedger,
        log: EventDestination,
        form: RecordFormat,
        copying: Copying,
        *,
        on_bad_value: OnBadValue,
    ) -> None:
        """Publish in a format."""
        self._spark = spark
        self._ledger = ledger
        self._log = log
        self._form = form
        self._copying = copying
        self._on_bad_value = on_bad_value

    def run(self, stop: threading.Event, listener: CopyListener, *, begin_anew: str) -> None:
        """Finish the copies that are open, then copy what is not copied yet; returns early when told to stop.

        Args:
            begin_anew: What a person does to begin anew.

        Raises:
            OperatorError: Some of a table's rows were published, and the others are not known any more as of then.
        """
        copying = self._copying
        self._forget_dropped()
        fresh = set(copying.tables)
        for opened in list(self._ledger.published_state.copies.values()):
            copy = self._resumed(opened, begin_anew)
            if copy is None:
                continue
            fresh -= copy.ids.keys()
            if not self._copy(copy, CopySource(copy.snapshot, None), stop, listener):
                return
        if not fresh:
            return
        with copying.origin.hold_snapshot() as held:
            # DDL from now on is captured, and its changes lie behind the snapshot.
            copying.confirm()
            chunks = _largest_last(cut_apart(copying, fresh))
            copy = self._begun(held, chunks)
            published_state, entries = self._ledger.published_state.beginning(copy)
            self._ledger.write(published_state, *entries)
            self._copy(copy, CopySource(held.text, held.exported), stop, listener)

    def _begun(self, held: HeldSnapshot, chunks: Sequence[Chunk]) -> OpenPublishedCopy:
        """A copy of the tables that some chunks are of, as of a snapshot."""
        state = self._ledger.published_state
        ids = {name: self._copying.ids[name] for name in sorted({chunk.table for chunk in chunks})}
        known = {name: table for name, table in state.tables.items() if name in ids}
        recreated = {name for name, request in state.requested.items() if request.recreates}
        is_first = not state.tables and not state.copies and not state.cancelled
        return OpenPublishedCopy(
            id=secrets.token_hex(8),
            cut=held.anchor,
            snapshot=held.text,
            taken_at_us=time.time_ns() // 1_000,
            ids=ids,
            is_first=is_first,
            chunks=len(chunks),
            todo=dict(enumerate(chunks)),
            # It grows with each record: two copies of which anything was published differ.
            number=0 if is_first else state.records,
            former={name: table.cut for name, table in known.items() if table.id == ids[name]},
            drops=frozenset(name for name, table in known.items() if table.id != ids[name] or name in recreated),
        )

    def _forget_dropped(self) -> None:
        """Forget requests of tables that are not there any more, under the name that they had."""
        state, ids = self._ledger.published_state, self._copying.ids
        gone = {name for name, request in state.requested.items() if ids.get(name) != request.id}
        if gone:
            state, entries = state.without_requests(gone)
            self._ledger.write(state, *entries)

    def _resumed(self, copy: OpenPublishedCopy, begin_anew: str) -> OpenPublishedCopy | None:
        """A copy that was cut short as far as it goes on: without tables that are gone, or are to be begun anew."""
        left_out = set()
        for name, id_ in copy.ids.items():
            chunks = [chunk for chunk in copy.todo.values() if chunk.table == name]
            is_there = self._copying.ids.get(name) == id_
            if is_there and (not chunks or self._copying.origin.can_resume(name, copy.snapshot)):
                continue
            if is_there and chunks[0].number > 0 and not self._form.begins_tables_anew:
                raise OperatorError(
                    f"the first copy of table {name} was cut short and cannot be finished: the table was altered or"
                    " emptied since, and some of its rows were published",
                    where=self._log.label,
                    do=begin_anew,
                )
            left_out.add(name)
        if not left_out:
            return copy
        published_state, entries = self._ledger.published_state.leaving_out(copy, left_out)
        self._ledger.write(published_state, *entries, records=self._told_cancelled(copy, left_out))
        return self._ledger.published_state.copies.get(copy.id)

    def _told_cancelled(self, copy: OpenPublishedCopy, tables: Collection[TableName]) -> Sequence[OutgoingRecord]:
        """What tells receivers of tables of which they have some rows, and get no more of this copy."""
        return cancellations(self._form, self._ledger.published_state, copy, tables)

    def _copy(self, copy: OpenPublishedCopy, source: CopySource, stop: threading.Event, listener: CopyListener) -> bool:
        """Publish what is left of a copy; returns False when told to stop before that was done."""
        ledger = self._ledger
        listener.copying(len(copy.todo), len(copy.ids))
        numbers = {(chunk.table, chunk.number): number for number, chunk in copy.todo.items()}
        work = [
            CopyWork(copy.id, [numbers[c.table, c.number] for c in bundle], source, self._copying.tables)
            for bundle in bundles(copy.todo.values())
        ]
        encoder = self._form.encoder(Dictionary(), ledger.instantiated())
        task = EventTask(self._log, ledger.epoch, encoder, self._on_bad_value)
        while work:
            if stop.is_set():
                return False
            before = ledger.published_state.copies[copy.id]
            try:
                ledger.took(copy_chunks(self._spark, task, self._copying.access, work[:_AT_ONCE], ledger.token))
            except TableError as exc:
                self._copying.leave_out(exc)
                ledger.find_out()
                left = self._leave_out(copy.id, TableName(*exc.table))
                if left is None:
                    return True
                work = [replace(piece, numbers=[n for n in piece.numbers if n in left.todo]) for piece in work]
                work = [piece for piece in work if piece.numbers]
                continue
            work = work[_AT_ONCE:]
            after = ledger.published_state.copies[copy.id]
            listener.copied(len(before.todo) - len(after.todo), after.rows - before.rows)
        whole = ledger.published_state.copies[copy.id]
        ledger.write(ledger.published_state.with_copied(whole), *whole.ended())
        return True

    def _leave_out(self, copy_id: str, table: TableName) -> OpenPublishedCopy | None:
        """Go on with a copy without a table, whose rows are published from the beginning by a later one.

        Returns:
            The copy as it is now; None if no table is left.
        """
        published_state = self._ledger.published_state
        copy = published_state.copies[copy_id]
        of_copy = [
            error.number
            for error in published_state.errors.values()
            if error.is_of_copy and error.table == table and error.commit_scn == copy.cut.scn
        ]
        published_state, entries = published_state.leaving_out(copy, {table})
        published_state, gone = published_state.without_errors(of_copy)
        self._ledger.write(published_state, *entries, *gone, records=self._told_cancelled(copy, {table}))
        return published_state.copies.get(copy_id)


def _largest_last(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Put the largest table last, its chunks in order: the last row of a copy is marked, so there should be one."""
    sizes: dict[TableName, int] = {}
    for chunk in chunks:
        sizes[chunk.table] = sizes.get(chunk.table, 0) + (chunk.size_bytes or 0)
    return sorted(chunks, key=lambda chunk: (sizes[chunk.table], chunk.table, chunk.number))
