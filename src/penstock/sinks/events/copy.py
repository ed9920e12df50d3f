"""The first copy of tables as events: rows as of one moment, chunk by chunk, each once whatever ends the run."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from penstock.apply.listener import CopyListener
from penstock.change import TableName
from penstock.errors import OperatorError, TableError
from penstock.pipeline.sink import Copying, cut_apart
from penstock.schema import Dictionary
from penstock.sinks.events.encoding import RecordFormat
from penstock.sinks.events.jobs import copy_chunks
from penstock.sinks.events.ledger import EventLedger
from penstock.sinks.events.publisher import EventDestination
from penstock.sinks.events.put_aside import OnBadValue
from penstock.sinks.events.state import OpenPublishedCopy
from penstock.sinks.events.task import CopyWork, EventTask
from penstock.snapshot.chunk import Chunk, CopySource, bundles
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
            fresh &= {chunk.table for chunk in chunks}
            published_state = self._ledger.published_state
            copy = OpenPublishedCopy(
                id=secrets.token_hex(8),
                cut=held.anchor,
                snapshot=held.text,
                taken_at_us=time.time_ns() // 1_000,
                ids={name: copying.ids[name] for name in sorted(fresh)},
                is_first=not published_state.tables and not published_state.copies,
                chunks=len(chunks),
                todo=dict(enumerate(chunks)),
            )
            self._ledger.write(published_state.with_copy(copy), *copy.begun())
            self._copy(copy, CopySource(held.text, held.exported), stop, listener)

    def _resumed(self, copy: OpenPublishedCopy, begin_anew: str) -> OpenPublishedCopy | None:
        """A copy that was cut short as far as it goes on: without tables that are gone, or are to be begun anew."""
        left_out = set()
        for name, id_ in copy.ids.items():
            chunks = [chunk for chunk in copy.todo.values() if chunk.table == name]
            is_there = self._copying.ids.get(name) == id_
            if is_there and (not chunks or self._copying.origin.can_resume(name, copy.snapshot)):
                continue
            if is_there and chunks[0].number > 0:
                raise OperatorError(
                    f"the first copy of table {name} was cut short and cannot be finished: the table was altered or"
                    " emptied since, and some of its rows were published",
                    where=self._log.label,
                    do=begin_anew,
                )
            left_out.add(name)
        if not left_out:
            return copy
        copy, entries = copy.left_out(left_out)
        self._ledger.write(self._ledger.published_state.with_copy(copy), *entries)
        return copy if copy.ids else None

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
                if not left.ids:
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

    def _leave_out(self, copy_id: str, table: TableName) -> OpenPublishedCopy:
        """Go on with a copy without a table, whose rows are published from the beginning by a later one."""
        published_state = self._ledger.published_state
        left, entries = published_state.copies[copy_id].left_out({table})
        of_copy = [
            error.number
            for error in published_state.errors.values()
            if error.is_of_copy and error.table == table and error.commit_scn == left.cut.scn
        ]
        published_state, gone = published_state.with_copy(left).without_errors(of_copy)
        self._ledger.write(published_state, *entries, *gone)
        return left


def _largest_last(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Put the largest table last, its chunks in order: the last row of a copy is marked, so there should be one."""
    sizes: dict[TableName, int] = {}
    for chunk in chunks:
        sizes[chunk.table] = sizes.get(chunk.table, 0) + (chunk.size_bytes or 0)
    return sorted(chunks, key=lambda chunk: (sizes[chunk.table], chunk.table, chunk.number))
