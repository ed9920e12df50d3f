"""What is the same for every source that only reads what others have recorded; a `Recording` is what is left to write.

Nothing is installed, nothing is freed, nobody is waited for, and there are no rows but those that changes have made:
each table begins empty, at the first position. `RecordedConnector` makes a source of a pipeline of that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NoReturn, Protocol

import numpy as np
import pyarrow as pa

from penstock import change as c
from penstock.change import Change, Image, TableName, Transaction
from penstock.database import DatabasePlan
from penstock.errors import MalformedInputError, OperatorError
from penstock.history import CaptureOrigin, ConsumerState, History, Joined, SourceFacts, joined
from penstock.position import START, Anchor, Limit, Scn
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk, CopySource, Range
from penstock.snapshot.instantiate import CopyOrigin, HeldSnapshot
from penstock.snapshot.task import ChunkLoader, ChunkReader, SourceAccess
from penstock.sources.change_files.span import Bound
from penstock.sources.declared_tables import DeclaredTables
from penstock.stream import NOTHING_RECORDED, Backlog, Reader, Slice, Source, StoredCopy, TableVersion
from penstock.text import count
from penstock.values import encode_image

_LOOK_EVERY_S = 0.5
"""How often to look for more while nothing waits."""

_BATCH_CHANGES = 10_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_NEVER_US = 2**63 - 1


class ReadableRecording(Protocol):
    """What tasks read of a recording. It travels to them, so it holds no open file and no connection."""

    @property
    def label(self) -> str:
        """Where it is, named without secrets."""

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice in commit order; see `batches_of`.

        What column `source` says is put in place later. A slice may be any cut of those that `next_slice` returned.
        """


class Recording(ReadableRecording, Protocol):
    """Transactions that somebody has recorded: what is there never changes, and more may come behind it."""

    @property
    def id(self) -> str:
        """Tells it from every other recording, wherever it is kept: positions mean something in one of them only."""

    def tables(self) -> Sequence[TableVersion]:
        """Return every version of every table that a change may name, oldest first; asked before each batch."""

    def end(self) -> Scn:
        """Return the position of the last transaction; `position.START` while there is none."""

    def next_slice(self, after: Scn) -> Slice | None:
        """Return transactions that follow a position, the next one first; None when there are none.

        As many as come easily, whole ones, and without their rows: only what is counted of them. See `slice_of`.
        """

    def proof_at(self, position: Scn) -> str:
        """Return a text without blanks, by which a later run knows what was read up to a position."""

    def hold_against(self, proof: str, position: Scn) -> None:
        """Make sure that what lies before a position is what was read there; raises a `HistoryError` otherwise."""


def slice_of(after: Scn, transactions: Iterable[Transaction]) -> Slice | None:
    """Return the transactions that follow a position, of those that are given in commit order; None without any."""
    found = [t for t in transactions if t.commit_scn > after]
    if not found:
        return None

    def column(values: Iterable[int | None]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([value or 0 for value in values], np.int64)

    return Slice(
        after=after,
        end=Scn(found[-1].commit_scn),
        commit_scns=column(t.commit_scn for t in found),
        changes=column(len(t.changes) for t in found),
        size_bytes=column(sum(_size(x.before) + _size(x.after) for x in t.changes) for t in found),
        committed_at_us=column(t.committed_at_us for t in found),
    )


def batches_of(
    transactions: Iterable[Transaction], keys: Mapping[TableName, Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    """Yield transactions as batches of the change stream.

    Args:
        keys: The key columns of each table that has some.
    """
    rows: list[tuple[object, ...]] = []
    for txn in transactions:
        size = len(txn.changes)
        for change in txn.changes:
            key, table = key_of(change, keys), change.table
            rows.append(
                (
                    txn.txn_id,
                    txn.commit_scn,
                    change.change_seq,
                    size,
                    txn.committed_at_us,
                    change.op.value,
                    table.schema,
                    table.name,
                    change.table_version,
                    None if key is None else encode_image(key),
                    None if change.before is None else encode_image(change.before),
                    None if change.after is None else encode_image(change.after),
                )
            )
            if len(rows) == _BATCH_CHANGES:
                yield _batch(rows)
                rows = []
    if rows:
        yield _batch(rows)


_TOLD = (
    c.TXN_ID,
    c.COMMIT_SCN,
    c.CHANGE_SEQ,
    c.TXN_CHANGES,
    c.COMMITTED_AT,
    c.OP,
    c.SCHEMA_NAME,
    c.TABLE_NAME,
    c.TABLE_VERSION,
    c.KEY,
    c.BEFORE,
    c.AFTER,
)
"""The columns that `batches_of` fills; it leaves those behind them NULL, and the source is put in place later."""


def _batch(rows: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
    """Make a batch of rows whose values are those of `_TOLD`, in its order."""
    columns = dict(zip(_TOLD, zip(*rows, strict=True), strict=True))
    arrays = [
        pa.array(columns[one.name], one.type)
        if one.name in columns
        else pa.repeat("", len(rows))
        if one.name == c.SOURCE
        else pa.nulls(len(rows), one.type)
        for one in c.ARROW_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=c.ARROW_SCHEMA)


def key_of(change: Change, keys: Mapping[TableName, Sequence[str]]) -> Image | None:
    """Return the key of the row that a change is about, as it was before; None without one.

    Args:
        keys: The key columns of each table that has some.
    """
    row = change.before if change.before is not None else change.after
    found = {} if row is None else {name: row[name] for name in keys.get(change.table, ()) if name in row}
    return found or None


class RecordedConnector:
    """Implements `pipeline.connectors.SourceWithCopies`: each table has one empty copy, from before the start."""

    def __init__(self, recording: Recording) -> None:
        """Read a recording; nothing is touched yet."""
        self._recording = recording

    @property
    def label(self) -> str:
        """The recording, named without secrets."""
        return self._recording.label

    @property
    def access(self) -> RecordedAccess:
        """How tasks reach it."""
        return RecordedAccess(self._recording)

    def match(self, patterns: Sequence[str]) -> Sequence[TableName]:
        """Return the tables that patterns mean; raises an `OperatorError` where one means none."""
        return self._told.match(
            patterns, kind="source", where=self.label, do="names are taken as the source spells them"
        )

    def describe(self, tables: Iterable[TableName]) -> Mapping[TableName, TableSchema]:
        """Describe tables as they were known last, so that they take what was written under earlier versions."""
        return self._told.describe(tables)

    def explain(self, tables: Sequence[TableName]) -> Sequence[str]:
        """No rule concerns any of the tables."""
        return ()

    def plan(self, tables: Sequence[TableName], row_triggers: Sequence[str]) -> DatabasePlan:
        """Plan nothing: a recording is read as it is."""
        plan = self._told.plan(tables, label=self.label)
        plan.notes.append("each table begins empty: it holds what the changes make of it")
        return plan

    def blueprint(self, tables: Sequence[TableName], *, types_of: Sequence[TableName] = ()) -> None:
        """Say nothing but what schemas say: there is no database that could be asked."""

    def has_capture(self) -> bool:
        """Make sure that there is a recording; otherwise what it raises says what is in the way."""
        _ = self._recording.id
        return True

    def open_source(self) -> RecordedSource:
        """Open what the driver follows changes by."""
        return RecordedSource(self._recording)

    def position_of(self, text: str, *, option: str) -> Scn:
        """Find the last transaction at or before a position, or a time of commit, that a person named.

        Raises:
            ConfigError: It is neither of the two.
            OperatorError: The recording does not reach so far.
        """
        bound = Bound.parse(text, option=option)
        end = self._recording.end()
        found = bound.position
        if bound.at is not None:
            at_us = (bound.at - _EPOCH) // timedelta(microseconds=1)
            later = (part.commit_scns[part.committed_at_us > at_us] for part in _slices(self._recording, START))
            found = next((Scn(int(scns[0]) - 1) for scns in later if len(scns)), None)
        if found is None or found > end:
            raise OperatorError(
                f"{option} {text} lies behind the end of what is recorded, position {end}",
                where=self.label,
                do="name a point that is there",
            )
        return found

    def copies_at(self, tables: Collection[TableName], position: Scn) -> Sequence[StoredCopy]:
        """Return the one copy of the tables: as of the start, without rows."""
        known = frozenset(version.table.name for version in self._recording.tables() if not version.is_partition)
        there = known.intersection(tables)
        return [StoredCopy(self._recording.id, Anchor(START, ""), there)] if there else []

    def first_copies(self, tables: Collection[TableName]) -> Mapping[TableName, Scn]:
        """Return the start for each table that is known."""
        return {table: START for copy in self.copies_at(tables, START) for table in copy.tables}

    def stored(self, copy: StoredCopy, _stop: threading.Event) -> NoRows:
        """What a copy is read from."""
        return NoRows(copy)

    @property
    def _told(self) -> DeclaredTables:
        return DeclaredTables(self._recording.tables())


RecordedSide = RecordedConnector
"""Its former name, for sources that users have written."""


class RecordedSource:
    """Implements `stream.Source`.

    Cuts lie anywhere between two transactions. Their mark is the recording's id, and a proof of what lies before them.
    """

    def __init__(self, recording: Recording) -> None:
        """Follow a recording; nothing is touched yet."""
        self._recording = recording
        self._ahead: Slice | None = None
        self._seen = START
        self._last_cut: Anchor | None = None

    def open(self) -> None:
        """Make sure that there is a recording."""
        _ = self._recording.id

    def join(self, history: History) -> Joined:
        """Make sure that a process goes on with the recording it has followed; a new one begins at the start.

        Raises:
            OperatorError: It has followed another recording, or this one when it held more, or something else.
        """
        id_ = self._recording.id
        place, first, last = f"recording/{id_}", Anchor(START, id_), Anchor(self._recording.end(), id_)
        if history.is_new and history.origin is None:
            return Joined(CaptureOrigin(id_, place), START, first)
        known, newest = history.anchor, history.newest
        facts = SourceFacts(
            origin=CaptureOrigin(id_, place),
            place=place,
            first=first,
            last=last,
            base=known if known is not None and (known.mark == id_ or known.mark.startswith(f"{id_} ")) else first,
            is_readable=history.position <= last.scn,
            has_newest=newest is None or newest.scn <= last.scn,
            earlier=None,
        )
        found = joined(history, facts, where=self._recording.label)
        # Marks of earlier versions are the id alone, which may hold blanks.
        if known is not None and (proof := known.mark.removeprefix(id_).lstrip()):
            self._recording.hold_against(proof, known.scn)
            self._last_cut = known
        return found

    def hold_against(self, history: History) -> None:
        """Make sure that a process's history is that of the recording; otherwise raise as `join` does."""
        self.join(history)

    def next_slice(
        self, after: Scn, limit: Limit, *, until: Scn | None = None, anchor: Anchor | None = None
    ) -> Slice | None:
        """Return the transactions that follow `after`, as many as `limit` allows; None when there are none yet."""
        if until is not None and after >= until:
            return None
        if self._ahead is None or not self._ahead.has_next(after):
            self._seen = self._recording.end()
            self._ahead = self._recording.next_slice(after)
        if self._ahead is None:
            return None
        part = self._ahead.take(after, limit, until)
        start = self._cut(after)
        self._last_cut = self._cut(part.end)
        return replace(part, start=start, cut=self._last_cut)

    def _cut(self, position: Scn) -> Anchor:
        if self._last_cut is not None and self._last_cut.scn == position:
            return self._last_cut
        proof = self._recording.proof_at(position)
        return Anchor(position, f"{self._recording.id} {proof}".rstrip())

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when `next_slice`, which had nothing, may have something; after the timeout at the latest."""
        deadline = time.monotonic() + timeout_s
        while self._recording.end() <= self._seen and (left := deadline - time.monotonic()) > 0:
            if stop.wait(min(left, _LOOK_EVERY_S)):
                return

    def tick(self) -> Scn:
        """Return the position at which the recording ends now."""
        return self._recording.end()

    def tables(self) -> Sequence[TableVersion]:
        """Return every version of every table that a change may name, oldest first."""
        return self._recording.tables()

    def count_tables(self) -> int:
        """How many `tables` would return."""
        return len(self._recording.tables())

    def free(self, upto: Scn, consumer: str) -> int:
        """Forget nothing: what is recorded is others'."""
        return 0

    def seen(self, consumer: str) -> None:
        """Note nothing: the recording is kept for nobody in particular."""

    def consumers(self) -> Sequence[ConsumerState]:
        """Return nobody: the recording holds nothing back for anybody."""
        return ()

    def backlog(self, after: Scn) -> Backlog:
        """Count what waits behind a position; the size is that of the images."""
        changes, size_bytes, oldest_us = 0, 0, _NEVER_US
        # One slice at a time: it may carry all that its transactions say.
        for part in _slices(self._recording, after):
            changes += part.total_changes
            size_bytes += int(part.size_bytes.sum())
            if len(part):
                oldest_us = min(oldest_us, int(part.committed_at_us.min()))
        last = self._recording.next_slice(Scn(self._recording.end() - 1))
        return Backlog(
            changes=changes,
            oldest_at=None if oldest_us == _NEVER_US else _at(oldest_us),
            size_bytes=size_bytes,
            # Of what was committed later nobody knows whether it will be recorded.
            complete_until=(last and last.last_committed_at) or NOTHING_RECORDED,
        )

    def close(self) -> None:
        """Close nothing: no file stays open."""


@dataclass(frozen=True)
class RecordedReader:
    """Implements `stream.Reader`.

    Attributes:
        source: What the column of that name says.
        follows: The tables whose changes are read; None for all of them.
    """

    recording: ReadableRecording
    source: str
    follows: frozenset[TableName] | None

    def open(self) -> None:
        """Open nothing: each slice is looked up anew."""

    @property
    def leaves_out(self) -> bool:
        """Whether some changes of a slice, which it counts, are of tables that this reader does not follow."""
        return self.follows is not None

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a slice in commit order.

        Raises:
            MalformedInputError: A transaction has fewer or more changes than the slice says.
        """
        seen = np.zeros(len(part), np.int64)
        for batch in self.recording.read(part) if len(part) else ():
            scns = batch[c.COMMIT_SCN].to_numpy()
            at = np.searchsorted(part.commit_scns, scns)
            is_there = at < len(part)
            is_there[is_there] = part.commit_scns[at[is_there]] == scns[is_there]
            if not is_there.all():
                self._refuse("holds other transactions than it held", int(scns[~is_there][0]))
            seen += np.bincount(at, minlength=len(part))
            yield self._followed(batch)
        for at in np.flatnonzero(seen != part.changes)[:1].tolist():
            what = f"has {count(int(seen[at]), 'change')} where it had {part.changes[at]}"
            self._refuse(f"{what} in a transaction", int(part.commit_scns[at]))

    def _followed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index(c.SOURCE)
        batch = batch.set_column(at, batch.schema.field(at), pa.repeat(self.source, batch.num_rows))
        if self.follows is None:
            return batch
        named = zip(batch[c.SCHEMA_NAME].to_pylist(), batch[c.TABLE_NAME].to_pylist(), strict=True)
        return batch.filter(pa.array([TableName(*name) in self.follows for name in named], pa.bool_()))

    def _refuse(self, what: str, position: int) -> NoReturn:
        raise MalformedInputError(
            f"what is recorded {what}",
            where=f"{self.recording.label}, position {position}",
            do="what was recorded once must stay as it is",
        )


@dataclass(frozen=True)
class RecordedAccess:
    """Implements `snapshot.task.SourceAccess`."""

    recording: ReadableRecording

    def reader(self, source: str, tables: Sequence[TableVersion], *, follows: Collection[TableName]) -> RecordedReader:
        """Return a reader of what is of the tables that it follows, by their names or those of their roots."""
        followed = frozenset(v.table.name for v in tables if v.table.name in follows or v.root in follows)
        is_all = followed == {v.table.name for v in tables}
        return RecordedReader(self.recording, source, None if is_all else followed)

    def chunk_reader(self, source: CopySource) -> NoRowsReader:
        """Return a reader of the copy without rows."""
        return NoRowsReader()


class NoRows:
    """Implements `snapshot.instantiate.CopyOrigin`: a chunk for each table, and no row in it."""

    def __init__(self, copy: StoredCopy) -> None:
        """Stand for a copy."""
        self._copy = copy

    @contextmanager
    def hold_snapshot(self) -> Iterator[HeldSnapshot]:
        """Name the copy; there is nothing that would have to be held."""
        yield HeldSnapshot(self._copy.id, "", self._copy.cut)

    def cut_into_chunks(self, tables: Sequence[TableName]) -> list[Chunk]:
        """Return a chunk for each of the tables."""
        return [Chunk(table, 0, size_bytes=0) for table in tables]

    def can_resume(self, table: TableName, snapshot: str) -> bool:
        """Whether it is the same copy."""
        return snapshot == self._copy.id


class NoRowsReader:
    """Implements `snapshot.task.ChunkReader`."""

    def read_chunk(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield nothing."""
        return iter(())

    def count_rows(self, table: TableSchema, chunk: Chunk) -> int:
        """Return 0."""
        return 0

    def raw_form(self, table: TableSchema) -> None:
        """There is nothing that a target could take as it is."""

    def read_raw(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> NoReturn:
        """Raise: there is nothing that a target could take as it is."""
        raise NotImplementedError

    def adopt(self, compared: Range, session: ChunkLoader) -> NoReturn:
        """Raise: there are no rows to compare with."""
        raise NotImplementedError

    def close(self) -> None:
        """Close nothing."""


def _slices(recording: Recording, after: Scn) -> Iterator[Slice]:
    while (part := recording.next_slice(after)) is not None:
        yield part
        after = part.end


def _size(image: Image | None) -> int:
    return 0 if image is None else sum(len(name) + len(value or "") for name, value in image.items())


def _at(committed_at_us: int | None) -> datetime | None:
    return None if committed_at_us is None else _EPOCH + timedelta(microseconds=committed_at_us)


_: type[Source] = RecordedSource
__: type[SourceAccess] = RecordedAccess
___: type[Reader] = RecordedReader
____: type[CopyOrigin] = NoRows
_____: type[ChunkReader] = NoRowsReader
