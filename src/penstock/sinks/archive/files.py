"""Publishing to an archive of change files: tasks write data files, one run commits records that name them.

A data file is of no account until a record names it, and a record is there whole or not at all: so a crash at any
point leaves an archive in which nothing is lost, doubled or torn. A run begins with a record of its own; from then on
an earlier run that still writes finds the number of its next record taken, and stops.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import change as c
from penstock.apply.table_counts import TableCounts, sum_of
from penstock.archive import Archive, ArchiveDefinitions
from penstock.change import TableName
from penstock.errors import FencedError, MalformedInputError, OperatorError
from penstock.formats.archive_log import (
    CHANGES_FOLDER,
    COPIES_FOLDER,
    HEADER_NAME,
    LOG_FOLDER,
    TABLES_FOLDER,
    ArchiveRecord,
    CopiedPart,
    DataFile,
    Header,
    TableFile,
    TransactionArrays,
    data_name,
    digest,
    now,
    record_path,
    table_bytes,
)
from penstock.formats.change_file import Encoding, encode
from penstock.history import CaptureOrigin
from penstock.position import Anchor, Scn
from penstock.storage import NameTakenError, Storage
from penstock.text import count, were

FILE_BYTES = 64 * 1024 * 1024
"""How much of the change stream goes into one file, before it is compressed; one change may be more."""


def make_archive(storage: Storage, source: str, encoding: Encoding) -> Header:
    """Make an archive where there is none; returns what it is.

    Raises:
        OperatorError: There is one, of another source or with files of another format.
    """
    header = Header(secrets.token_hex(16), source, encoding, now())
    try:
        storage.create(HEADER_NAME, header.to_bytes())
    except NameTakenError:
        header = Archive(storage).header
    refuse_other(header, source, encoding, storage.label)
    return header


def refuse_other(header: Header, source: str, encoding: Encoding, label: str) -> None:
    """Raise an `OperatorError` if an archive is of another source than this one, or of another format."""
    if header.source != source:
        raise OperatorError(
            f"the archive is of source {header.source!r}, not {source!r}",
            where=label,
            do="publish to another path, or give capture.connection its former name",
        )
    if header.encoding is not encoding:
        raise OperatorError(
            f"the files of the archive are of format {header.encoding.value!r}, not {encoding.value!r}",
            where=label,
            do="publish to another path, or give publish.format the other value",
        )


def check_writable(storage: Storage) -> None:
    """Make sure, as far as that can be told without a trace, that an archive can be made or written to.

    Raises:
        OperatorError: It cannot.
    """
    for folder in (".", LOG_FOLDER, TABLES_FOLDER, CHANGES_FOLDER, COPIES_FOLDER):
        storage.check_writable(folder)


@dataclass(frozen=True)
class WrittenFiles:
    """Data files that follow each other, and the transactions that they hold.

    Attributes:
        tables: Their changes, by table and operation; a transaction counts once for each file that it is in.
    """

    files: tuple[DataFile, ...] = ()
    transactions: TransactionArrays = field(default_factory=TransactionArrays.none)
    tables: TableCounts = field(default_factory=TableCounts)

    def followed_by(self, later: WrittenFiles) -> WrittenFiles:
        """Both together; the last transaction of the one may go on in the other."""
        return WrittenFiles(
            self.files + later.files,
            self.transactions.followed_by(later.transactions),
            sum_of((self.tables, later.tables)),
        )


@dataclass(frozen=True)
class FileWriter:
    """Writes data files; travels to tasks.

    Attributes:
        epoch: Of the run.
        max_bytes: How much of the change stream goes into one file.
    """

    storage: Storage
    encoding: Encoding
    epoch: int
    max_bytes: int = FILE_BYTES

    def write_changes(self, batches: Iterable[pa.RecordBatch]) -> WrittenFiles:
        """Write whole transactions, which come in commit order, as files that follow each other.

        Raises:
            MalformedInputError: They are in another order.
        """
        written = WrittenFiles()
        for rows in _bounded(batches, self.max_bytes):
            file = self._write(CHANGES_FOLDER, rows)
            tables = TableCounts()
            tables.add_rows(rows)
            written = written.followed_by(WrittenFiles((file,), _transactions(rows), tables))
        return written

    def write_copy(self, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Write `snapshot` changes of one table as of one position."""
        return [self._write(COPIES_FOLDER, rows) for rows in _bounded(batches, self.max_bytes)]

    def _write(self, folder: str, rows: pa.Table) -> DataFile:
        scns = rows[c.COMMIT_SCN].to_numpy()
        steps = np.diff(scns)
        if (steps < 0).any():
            raise MalformedInputError("changes are not in commit order", where="changes to be published")
        first, last = Scn(int(scns[0])), Scn(int(scns[-1]))
        content = encode(rows, self.encoding)
        name = f"{folder}/{data_name(first, last, self.epoch, self.encoding)}"
        self.storage.create(name, content)
        transactions = int((steps > 0).sum()) + 1
        return DataFile(name, first, last, transactions, len(rows), content.size, digest(content))


_NOTHING = WrittenFiles()


class ArchiveWriter:
    """The one run that commits to an archive."""

    def __init__(self, storage: Storage) -> None:
        """Use the archive in a folder; nothing is touched yet."""
        self._storage = storage
        self._archive = Archive(storage)
        self._last: ArchiveRecord | None = None
        self._definitions = ArchiveDefinitions()

    @property
    def last(self) -> ArchiveRecord:
        """The last record of this run, which says where the archive stands."""
        assert self._last is not None
        return self._last

    @property
    def definitions(self) -> ArchiveDefinitions:
        """What the archive knows of tables and copies."""
        return self._definitions

    def acquire(self) -> ArchiveRecord:
        """Become the one run that writes; returns its first record, which stands where the last one stood.

        Raises:
            FencedError: Another run begins at this moment.
            OperatorError: There is no archive, or one of its records is missing.
            MalformedInputError: One was altered.
        """
        header = self._archive.header
        number = self._archive.count_records()
        before = self._archive.record(number) if number else None
        self._definitions = self._archive.definitions(before)
        if before is None:
            first = ArchiveRecord(1, header.id, 1, self._archive.header_digest, 0, now())
        else:
            first = replace(_next(before), epoch=before.epoch + 1)
        return self._write(first)

    def commit(
        self,
        end: Scn,
        written: WrittenFiles = _NOTHING,
        *,
        anchor: Anchor | None = None,
        origin: CaptureOrigin | None = None,
        tables: Sequence[TableFile] = (),
        copies: Sequence[CopiedPart] = (),
    ) -> ArchiveRecord:
        """Add a record: all that it names is part of the archive from now on.

        Args:
            end: Every transaction up to here, behind where the archive stands, was written.
            anchor, origin: Where they are None they stay what they were.

        Raises:
            FencedError: Another run has begun.
            OperatorError: A file is not here. Or another thing is in the way: a right, or space.
            RetryableError: The folder is out of reach. The record may be there all the same: go on with `acquire`.
        """
        record = replace(
            _next(self.last),
            end=end,
            files=written.files,
            transactions=written.transactions,
            published=_counted(self.last.published, written.transactions),
            tables=tuple(tables),
            copies=tuple(copies),
        )
        if anchor is not None:
            record = replace(record, anchor=anchor)
        if origin is not None:
            record = replace(record, origin=origin)
        _refuse_torn(record)
        self._refuse_unseen([*record.files, *(file for copy in record.copies for file in copy.files)])
        self._write(record)
        self._definitions = ArchiveDefinitions(
            self._definitions.tables + record.tables, self._definitions.copies + record.copies
        )
        return self.last

    def describe(
        self, id_: int, table: TableName, version: int, definition: Mapping[str, Any], root: TableName
    ) -> TableFile:
        """Write the file of a table version, for a record to name."""
        content = table_bytes(definition, root)
        sha256 = digest(content)
        name = f"{TABLES_FOLDER}/{sha256[:32]}.json"
        # A file of this name has the same content: the name says so, and a file is there whole or not at all.
        with suppress(NameTakenError):
            self._storage.create(name, content)
        return TableFile(id_, table, version, name, sha256)

    def _refuse_unseen(self, files: Iterable[DataFile]) -> None:
        """Refuse files that are not here as tasks wrote them: on a cluster, each machine may have a disk of its own."""
        for file in files:
            if self._storage.size(file.name) != file.size_bytes:
                raise OperatorError(
                    "a file that a task wrote is not to be seen by the run itself",
                    where=f"{self._storage.label}/{file.name}",
                    do="on a cluster, publish to an object store, or to a folder that all its machines share",
                )

    def _write(self, record: ArchiveRecord) -> ArchiveRecord:
        content = record.to_bytes()
        path = record_path(record.number)
        where = f"{self._storage.label}/{path}"
        try:
            self._storage.create(path, content)
        except NameTakenError as exc:
            raise FencedError("another run publishes to this archive", where=where) from exc
        self._last = ArchiveRecord.from_bytes(content, where=where)
        return self._last


def _next(before: ArchiveRecord) -> ArchiveRecord:
    """The record behind another one, which says nothing new yet."""
    return ArchiveRecord(
        number=before.number + 1,
        archive=before.archive,
        epoch=before.epoch,
        previous=before.sha256,
        earlier=before.number if before.is_definition else before.earlier,
        written_at=now(),
        after=before.end,
        end=before.end,
        origin=before.origin,
        anchor=before.anchor,
        published=before.published,
    )


def _counted(published: tuple[int, int], more: TransactionArrays) -> tuple[int, int]:
    transactions, changes = published
    return transactions + len(more), changes + int(more.changes.sum())


def _refuse_torn(record: ArchiveRecord) -> None:
    """Refuse a record whose files are not what it says: whole transactions behind its beginning, up to its end."""
    scns, counted = record.transactions.commit_scns, sum(file.changes for file in record.files)
    is_whole = counted == int(record.transactions.changes.sum())
    is_ordered = bool((np.diff(np.r_[record.after, scns]) > 0).all()) and (len(scns) == 0 or scns[-1] <= record.end)
    # A file may go on with the transaction that the one before it ends in.
    bounds = [bound for file in record.files for bound in (file.first, file.last)]
    is_ordered = is_ordered and bounds == sorted(bounds) and all(record.after < at <= record.end for at in bounds)
    if record.end < record.after or not (is_whole and is_ordered):
        raise MalformedInputError(
            f"{count(counted, 'change')} {were(counted)} written of {count(len(scns), 'transaction')} with"
            f" {count(int(record.transactions.changes.sum()), 'change')}, or in another order",
            where=f"changes to be published, positions {record.after} to {record.end}",
            do="run again: nothing of them is part of the archive",
        )


def _transactions(rows: pa.Table) -> TransactionArrays:
    """Say what rows in commit order hold, transaction by transaction."""
    scns = rows[c.COMMIT_SCN].to_numpy()
    # Where each transaction begins among the rows.
    starts = np.flatnonzero(np.r_[True, scns[1:] != scns[:-1]])
    # Where the source does not know the time, the transaction was at least committed before now.
    times = pc.fill_null(rows[c.COMMITTED_AT], pa.scalar(now(), rows[c.COMMITTED_AT].type))
    images = (pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy() for name in (c.BEFORE, c.AFTER))
    return TransactionArrays(
        commit_scns=scns[starts],
        changes=np.diff(np.r_[starts, len(scns)]),
        size_bytes=np.add.reduceat(sum(images).astype(np.int64), starts),
        committed_at_us=pc.cast(times, pa.int64()).to_numpy()[starts],
    )


def _bounded(batches: Iterable[pa.RecordBatch], max_bytes: int) -> Iterator[pa.Table]:
    """Put batches together, or cut them, into tables of at most so many bytes; a change is never cut."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for piece in _pieces(batch, max_bytes):
            if held and size + piece.nbytes > max_bytes:
                yield pa.Table.from_batches(held, c.ARROW_SCHEMA)
                held, size = [], 0
            held.append(piece)
            size += piece.nbytes
    if held:
        yield pa.Table.from_batches(held, c.ARROW_SCHEMA)


def _pieces(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 0:
        return
    if batch.num_rows == 1 or batch.nbytes <= max_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half), max_bytes)
    yield from _pieces(batch.slice(half), max_bytes)
