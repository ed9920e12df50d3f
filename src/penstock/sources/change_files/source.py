"""An archive of change files as a source: its log cut into slices, on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.archive import Archive
from penstock.formats.archive_log import Record
from penstock.position import START, Anchor, Limit, Scn
from penstock.schema import TableSchema
from penstock.sources.change_files.reader import ArchiveSlice
from penstock.stream import TableVersion

_MOST_RECORDS = 1_000
"""A slice is not of more: each costs a file that has to be opened."""


class ChangeFiles:
    """The log of an archive, as positions that may have gaps."""

    def __init__(self, archive: Archive) -> None:
        """Read an archive; nothing is touched yet."""
        self._archive = archive
        # Where the last slice ended, and the record that holds what follows.
        self._next: tuple[Scn, int] | None = None

    def next_slice(self, after: Scn, limit: Limit) -> ArchiveSlice | None:
        """Return the transactions that follow `after`, as many as `limit` allows; None when there are none yet.

        Raises:
            MalformedInputError: A record was altered or cut short.
            OperatorError: One is missing.
        """
        is_next = self._next is not None and self._next[0] == after
        number = self._next[1] if self._next is not None and is_next else self._archive.first_behind(after)
        records = self._gather(number, after, limit)
        if not records:
            return None
        part = _slice_of(records, after).take(after, limit, None)
        last = next(record for record in records if record.end >= part.end)
        self._next = part.end, last.number + (part.end == last.end)
        return replace(part, start=self._anchor_before(last, part.end), cut=_anchor(last))

    def tick(self) -> Scn:
        """Return the position at which the archive ends now."""
        count = self._archive.count_records()
        return self._archive.record(count).end if count else START

    def tables(self) -> Sequence[TableVersion]:
        """Return every version of every table that a change may name, oldest first."""
        count = self._archive.count_records()
        named = self._archive.definitions(self._archive.record(count) if count else None).tables
        found = []
        for file in named:
            definition, root = self._archive.read_table(file)
            table = TableSchema.from_definition(definition, version=file.version)
            found.append(TableVersion(file.id, table, definition, root))
        return found

    def _gather(self, number: int, after: Scn, limit: Limit) -> list[Record]:
        """Take records until there is enough for a slice, the first of which ends behind `after`."""
        records: list[Record] = []
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

    def _anchor_before(self, record: Record, position: Scn) -> Anchor | None:
        """The last end of a record at or before a position, which lies in `record` or at its end."""
        if record.end == position:
            return _anchor(record)
        return _anchor(self._archive.record(record.number - 1)) if record.number > 1 else None


def _anchor(record: Record) -> Anchor:
    return Anchor(record.end, record.sha256)


def _slice_of(records: Sequence[Record], after: Scn) -> ArchiveSlice:
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
