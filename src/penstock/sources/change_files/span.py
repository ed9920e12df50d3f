"""A stretch of an archive, from one transaction to another: as a person names it, and everything that lies in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from penstock.archive import Archive
from penstock.errors import ConfigError
from penstock.formats.archive_log import DataFile
from penstock.position import START, Scn
from penstock.sources.change_files.reader import FileReader

_BEFORE_ALL = Scn(START - 1)
"""No transaction lies at the very start, but a copy may."""

_DIGITS = 19
"""No position has more."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Bound:
    """Where a stretch begins or ends: a position, or a time of commit."""

    position: Scn | None = None
    at: datetime | None = None

    @classmethod
    def parse(cls, text: str, *, option: str) -> Bound:
        """Read what a person gave for an option; a time without an offset is UTC.

        Raises:
            ConfigError: It is neither a position nor a time.
        """
        if text.isascii() and text.isdecimal() and len(text) <= _DIGITS:
            return cls(position=Scn(int(text)))
        try:
            at = datetime.fromisoformat(text)
        except ValueError as exc:
            do = "a position is a number, a time is written as 2024-01-02T03:04:05, in UTC where it has no offset"
            raise ConfigError(f"{option} must be a position or a time, not {text!r}", do=do) from exc
        return cls(at=at if at.tzinfo else at.replace(tzinfo=UTC))


@dataclass(frozen=True)
class Span:
    """The transactions behind `after`, up to and including `upto`."""

    after: Scn
    upto: Scn


def find_span(archive: Archive, since: Bound | None, until: Bound | None) -> Span:
    """Find the stretch of an archive that begins and ends at transactions that were named.

    It begins with the transaction at the position, or with the first one that was committed at the time or later; it
    ends with the one at the position, or before the first one that was committed after the time.
    """
    count = archive.count_records()
    end = archive.record(count).end if count else START
    after, upto = _BEFORE_ALL, end
    if since is not None:
        first = since.position if since.position is not None else _first_committed(archive, since, is_later=False)
        after = end if first is None else Scn(first - 1)
    if until is not None:
        later = None if until.position is not None else _first_committed(archive, until, is_later=True)
        upto = min(end, until.position) if until.position is not None else end if later is None else Scn(later - 1)
    return Span(after, upto)


def read_span(archive: Archive, span: Span) -> Iterator[pa.RecordBatch]:
    """Yield all that a stretch holds, in the order of positions: changes, and the rows of copies behind their position.

    Raises:
        MalformedInputError: A record or a file was altered or cut short.
        OperatorError: One is missing.
    """
    reader = FileReader(archive)
    for files, within in files_in_span(archive, span):
        yield from reader.read_files(files, within.after, within.upto)


def files_in_span(archive: Archive, span: Span) -> Iterator[tuple[Sequence[DataFile], Span]]:
    """Yield the files that hold a stretch, as `read_span` orders them, and what of each belongs to it."""
    copies = archive.newest_definitions().whole_copies
    after = span.after
    for position in sorted({copy.position for copy in copies if span.after < copy.position <= span.upto}):
        yield from _files_of_changes(archive, Span(after, position))
        after = position
        for copy in copies:
            if copy.position == position:
                yield copy.files, Span(Scn(position - 1), position)
    yield from _files_of_changes(archive, Span(after, span.upto))


def _files_of_changes(archive: Archive, span: Span) -> Iterator[tuple[Sequence[DataFile], Span]]:
    if span.after >= span.upto:
        return
    for record in archive.records(archive.first_behind(span.after)):
        if record.after >= span.upto:
            return
        files = [file for file in record.files if span.after < file.last and file.first <= span.upto]
        yield files, span


def _first_committed(archive: Archive, bound: Bound, *, is_later: bool) -> Scn | None:
    """The position of the first transaction that was committed at a time or later, or only later; None without one.

    Commits of one moment may have got their positions in another order, so nothing less than all of them is looked at.
    """
    assert bound.at is not None
    at_us = (bound.at - _EPOCH) // timedelta(microseconds=1)
    for record in archive.records():
        times = record.transactions.committed_at_us
        found = np.flatnonzero(times > at_us if is_later else times >= at_us)
        if len(found):
            return Scn(int(record.transactions.commit_scns[found[0]]))
    return None
