"""An archive of change files as a source: its log cut into slices, on the driver.

What a record of the log holds never changes, so each end of a record is a cut by which the archive's history is
recognised: its mark is the digest of the first record that ends there. Nothing is freed: the archive stays as it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from penstock.archive import Archive
from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.formats.archive_log import ArchiveRecord
from penstock.history import CaptureOrigin, ConsumerState, History, Joined, SourceFacts, joined
from penstock.position import START, Anchor, Limit, Scn
from penstock.schema import TableSchema
from penstock.snapshot.chunk import CopySource
from penstock.snapshot.task import SourceAccess
from penstock.sources.change_files.copy import CopyReader
from penstock.sources.change_files.reader import ArchiveSlice, FileReader, eras_of
from penstock.storage import Storage
from penstock.stream import NOTHING_RECORDED, Backlog, Reader, Source, TableVersion

_MOST_RECORDS = 1_000
"""A slice is not of more: each costs a file that has to be opened."""

_LOOK_EVERY_S = 0.2
"""How often to look for a new record while nothing waits."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class _Stand:
    """A position, the record that holds what follows it, and the last cut at or before it."""

    position: Scn
    number: int
    anchor: Anchor


class ChangeFiles:
    """The log of an archive, as positions that may have gaps."""

    def __init__(self, archive: Archive) -> None:
        """Read an archive; nothing is touched yet."""
        self._archive = archive
        self._stand: _Stand | None = None

    def open(self) -> None:
        """Make sure that there is an archive, whose log is whole."""
        self._archive.count_records()

    def join(self, history: History) -> Joined:
        """Make sure that a process goes on with the archive it has followed; a new one begins at its beginning.

        Raises:
            OperatorError: It has followed another archive, or this one when it held something else.
        """
        facts = self._facts(history)
        if history.is_new and history.origin is None:
            return Joined(facts.origin, facts.first.scn, facts.first)
        return joined(self._brought_forward(history, facts.base), facts, where=self._archive.label)

    def hold_against(self, history: History) -> None:
        """Make sure that a process's history is that of the archive; otherwise raise as `join` does."""
        self.join(history)

    def next_slice(
        self, after: Scn, limit: Limit, *, until: Scn | None = None, anchor: Anchor | None = None
    ) -> ArchiveSlice | None:
        """Return the transactions that follow `after`, as many as `limit` allows; None when there are none yet.

        No slice goes across the position of a whole copy: the run puts the copy in place between two slices.

        Args:
            until: The slice ends here at the latest.
            anchor: The last cut at or before `after`, as it was known when `after` was reached.

        Raises:
            MalformedInputError: A record was altered or cut short.
            OperatorError: One is missing, or `anchor` is not of this archive.
        """
        if until is not None and after >= until:
            return None
        stand = self._stand_at(after, anchor)
        records = self._gather(stand.number, after, limit)
        if not records:
            return None
        # Read after the records: a copy is named before any record that goes beyond its position.
        stops = [copy.position for copy in self._archive.newest_definitions().whole_copies if copy.position > after]
        part = _slice_of(records, after).take(
            after, limit, min([*stops, *([until] if until is not None else [])], default=None)
        )
        last = next(record for record in records if record.end >= part.end)
        # Where a slice ends inside a record, the last cut is the end of the one before, which may lie before the slice.
        before = next((_cut(record) for record in records if record.end == last.after), stand.anchor)
        part = replace(part, start=before, cut=_cut(last))
        is_at_end = part.end == last.end
        number, reached = (last.number + 1, _cut(last)) if is_at_end else (last.number, before)
        self._stand = _Stand(part.end, number, reached)
        return part

    def wait(self, stop: threading.Event, timeout_s: float) -> None:
        """Return when `next_slice`, which had nothing, may have something; after the timeout at the latest."""
        deadline = time.monotonic() + timeout_s
        count = self._archive.count_records()
        while self._archive.find_record(count + 1) is None and (left := deadline - time.monotonic()) > 0:
            if stop.wait(min(left, _LOOK_EVERY_S)):
                return

    def tick(self) -> Scn:
        """Return the position at which the archive ends now."""
        return self._last_cut().scn

    def tables(self) -> Sequence[TableVersion]:
        """Return every version of every table that a change may name, oldest first."""
        found = []
        for file in self._archive.newest_definitions().tables:
            definition, root = self._archive.read_table(file)
            table = TableSchema.from_definition(definition, version=file.version)
            found.append(TableVersion(file.id, table, definition, root))
        return found

    def count_tables(self) -> int:
        """How many `tables` would return."""
        return len(self._archive.newest_definitions().tables)

    def free(self, upto: Scn, consumer: str) -> int:
        """Forget nothing: others may read the archive, from any position."""
        return 0

    def seen(self, consumer: str) -> None:
        """Do nothing: an archive has no list of consumers."""

    def consumers(self) -> Sequence[ConsumerState]:
        """Return none: an archive holds nothing back for a consumer."""
        return ()

    def backlog(self, after: Scn) -> Backlog:
        """Count what waits behind a position; the size is that of the files that hold it."""
        changes = size_bytes = 0
        oldest_at: datetime | None = None
        for record in self._archive.records(self._archive.first_behind(after)):
            is_behind = record.transactions.commit_scns > after
            changes += int(record.transactions.changes[is_behind].sum())
            size_bytes += sum(file.size_bytes for file in record.files if file.last > after)
            if oldest_at is None and is_behind.any():
                at_us = int(record.transactions.committed_at_us[is_behind].min())
                oldest_at = _EPOCH + timedelta(microseconds=at_us)
        count = self._archive.count_records()
        return Backlog(
            changes, oldest_at, size_bytes, self._archive.record(count).written_at if count else NOTHING_RECORDED
        )

    def close(self) -> None:
        """Close nothing: no file stays open."""

    def _stand_at(self, after: Scn, anchor: Anchor | None) -> _Stand:
        """Where a slice begins that follows a position; the end of the last slice is known without a look."""
        if self._stand is not None and self._stand.position == after:
            return self._stand
        found = self._cut_before(after)
        if anchor is not None and anchor != found:
            raise OperatorError(
                f"the archive is not the one that was followed: at position {anchor.scn} it holds something else",
                where=self._archive.label,
                do="`penstock resync --all` prepares a new first copy",
            )
        return _Stand(after, self._archive.first_behind(after), found)

    def _gather(self, number: int, after: Scn, limit: Limit) -> list[ArchiveRecord]:
        """Take records that end behind `after` until there is enough for a slice."""
        records: list[ArchiveRecord] = []
        changes = size_bytes = 0
        for record in self._archive.records(number):
            if record.end <= after:
                continue
            records.append(record)
            changes += int(record.transactions.changes.sum())
            size_bytes += int(record.transactions.size_bytes.sum())
            if changes >= limit.max_changes or size_bytes >= limit.max_bytes or len(records) == _MOST_RECORDS:
                break
        return records

    def _facts(self, history: History) -> SourceFacts:
        """What the archive holds; it is the same archive wherever it is copied to."""
        place = f"change archive/{self._archive.header.id}"
        last = self._last_cut()
        newest = history.newest
        return SourceFacts(
            origin=CaptureOrigin(self._archive.header.id, place),
            place=place,
            first=Anchor(START, self._archive.header_digest),
            last=last,
            base=self._cut_before(history.position) if history.position <= last.scn else None,
            is_readable=True,
            has_newest=newest is not None and newest == self._cut_before(newest.scn),
            earlier=None,
        )

    def _brought_forward(self, history: History, base: Anchor | None) -> History:
        """Have a history know the last cut at or before its position, where it knows an earlier one of this archive.

        A slice is of many records, each of which is a cut. A run that broke off inside a slice has applied some of its
        transactions, and moved the position with them, but has written down the cut before the slice only. That what
        lies between is what it was, `newest` shows, the cut behind the slice: each record names the one before it.
        """
        known = history.anchor
        if known is None or known.scn > history.position or self._cut_before(known.scn) != known:
            return history
        return replace(history, anchor=base)

    def _last_cut(self) -> Anchor:
        count = self._archive.count_records()
        return self._cut_before(self._archive.record(count).end if count else START)

    def _cut_before(self, position: Scn) -> Anchor:
        """The last cut at or before a position: the same one whatever comes later."""
        behind = self._archive.first_behind(position)
        end = self._archive.record(behind - 1).end if behind > 1 else START
        if end == START:
            return Anchor(START, self._archive.header_digest)
        # Later records may end there, too: those by which a run begins, or that only name tables.
        return _cut(self._archive.record(self._archive.first_behind(Scn(end - 1))))


@dataclass(frozen=True)
class ChangeFilesAccess:
    """How tasks reach an archive."""

    storage: Storage

    def reader(self, source: str, tables: Sequence[TableVersion], *, follows: Collection[TableName]) -> FileReader:
        """Return a reader of what is of the tables that it follows, by their names or those of their roots."""
        followed = {v.table.name for v in tables if v.table.name in follows or v.root in follows}
        is_all = followed == {v.table.name for v in tables}
        archive = Archive(self.storage)
        eras = eras_of(tables, archive.newest_definitions().whole_copies)
        return FileReader(archive, source=source, follows=None if is_all else followed, eras=eras)

    def chunk_reader(self, source: CopySource) -> CopyReader:
        """Return a reader of the copy that `source.snapshot` names."""
        return CopyReader(Archive(self.storage), source.snapshot)


def _cut(record: ArchiveRecord) -> Anchor:
    return Anchor(record.end, record.sha256)


def _slice_of(records: Sequence[ArchiveRecord], after: Scn) -> ArchiveSlice:
    transactions = [record.transactions for record in records]
    return ArchiveSlice(
        after=after,
        end=records[-1].end,
        commit_scns=np.concatenate([t.commit_scns for t in transactions]),
        changes=np.concatenate([t.changes for t in transactions]),
        size_bytes=np.concatenate([t.size_bytes for t in transactions]),
        committed_at_us=np.concatenate([t.committed_at_us for t in transactions]),
        files=tuple(file for record in records for file in record.files),
    )


_: type[Source] = ChangeFiles
__: type[SourceAccess] = ChangeFilesAccess
___: type[Reader] = FileReader
