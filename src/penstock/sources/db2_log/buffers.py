"""The folder that a collector fills: a catalogue, and buffers of the log in files that are numbered from 1.

The index says which transactions there are, how many changes each has, and where its first record lies; and what a
later process has to know of those that are open at the end of a file.
"""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import mmap
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError, MalformedInputError, OperatorError, RetryableError
from penstock.events import Event, tell
from penstock.sources.db2_log.catalog import Catalog, read_catalog
from penstock.sources.db2_log.chains import LogBeginning, OpenChains
from penstock.sources.db2_log.changes import held_size
from penstock.sources.db2_log.framing import ONCE_IN_ORDER, Buffer, LogRecord, Lri, read_records
from penstock.sources.db2_log.plain import Plain, find_plain
from penstock.sources.db2_log.positions import FILE_NAME, OFFSET_BITS, file_of, position_of
from penstock.sources.db2_log.transactions import Committed, Gatherer, RowResolver
from penstock.storage import LocalStorage, MissingFileError, NameTakenError, Storage

CATALOG = "catalog.json"
_SMALL_BYTES = 64 * 1024
"""A map keeps a file open, and a transaction may span many: smaller ones are read instead."""

_DIGESTED_BYTES = 64 * 1024
"""So many bytes before a record tell, together with it, one history of a log from another."""

_COLUMNS = ("commit_scns", "firsts", "changes", "size_bytes", "committed_at_us")


@dataclass(frozen=True)
class Indexed:
    """What is known of a file: the transactions that were committed in it, each with an entry in every array.

    Attributes:
        firsts: The position of each transaction's first record, which may lie in an earlier file.
        oldest: The position of the first record for readers of the oldest transaction that is open at its end, or its
            end.
        last: The identifier of its last record.
        chains: What is known of chains at its end; None if an earlier version has written the index.
        of: What tells the file from any other of its name; empty if an earlier version has written the index.
    """

    columns: tuple[NDArray[np.int64], ...]
    oldest: int
    last: Lri
    chains: OpenChains | None
    of: str = ""

    def pack(self) -> bytes:
        """Return what `unpack` reads."""
        to = io.BytesIO()
        arrays: dict[str, Any] = dict(zip(_COLUMNS, self.columns, strict=True))
        if self.chains is not None:
            arrays |= self.chains.pack()
        state = np.array([self.oldest, *(max(n, 0) for n in self.last)], np.uint64)
        np.savez(to, state=state, of=np.array(self.of), **arrays)
        return to.getvalue()

    @classmethod
    def unpack(cls, content: bytes) -> Indexed:
        """Read what `pack` has made; raises a `ValueError`, or another exception of numpy's, at anything else."""
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            oldest, *last = (int(n) for n in found["state"])
            columns = tuple(found[name].astype(np.int64) for name in _COLUMNS)
            of = str(found["of"]) if "of" in found else ""
            return cls(columns, oldest, Lri(*last), OpenChains.unpack(found), of)


@dataclass(frozen=True)
class FilePart:
    """What is committed in a file, or in a part of it.

    Attributes:
        number: That of the file.
        name: The file, for errors.
        plain: The transactions that are plain; None where none is known to be.
        records: Those that are not plain; they are read as they are asked for.
    """

    number: int
    name: str
    buffer: Buffer
    plain: Plain | None
    records: Iterable[LogRecord]
    gatherer: Gatherer

    def others(self) -> Iterator[Committed]:
        """Yield the transactions that are not plain, in commit order."""
        yield from self.gatherer.gather(self.records)


@dataclass
class Buffers:
    """The files of a folder, and their index, as far as this process has looked.

    It travels to tasks without what it knows.
    """

    storage: Storage
    _indexed: list[Indexed] = field(default_factory=list)
    _catalog: tuple[Catalog, str] | None = None
    _gatherer: Gatherer | None = None
    _begins: tuple[LogBeginning | None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the place alone: open transactions refer to files that are mapped into this process."""
        return Buffers, (self.storage,)

    @property
    def catalog(self) -> Catalog:
        """The catalogue, which is read once in each process."""
        return self._read_catalog()[0]

    def indexed(self) -> Sequence[Indexed]:
        """Return what is known of each file, the first one first; what is new is looked at now.

        Raises:
            MalformedInputError: A file breaks its format; it is named, with the offset.
            OperatorError: A file is missing.
        """
        numbers = self._numbers()
        for number in range(len(self._indexed) + 1, len(numbers) + 1):
            self._indexed.append(self._stored(number, numbers[number]) or self._scan(number, numbers))
        return self._indexed

    def last_record(self) -> tuple[int, Lri | None]:
        """Return the number of the last file, and the identifier of its last record; None where there is no record.

        Raises:
            MalformedInputError: The file breaks its format.
            OperatorError: A file is missing.
        """
        numbers = self._numbers()
        for number in reversed(range(1, len(numbers) + 1)):
            if found := deque(self._read(number, numbers[number]), maxlen=1):
                return len(numbers), found[0].lri
        return len(numbers), None

    def digest_at(self, position: int) -> str | None:
        """Return a digest of the end of the log up to a position, that of a record; None where it does not reach it.

        The record of a commit says when it was, so another history that has one at the same place is told from it.
        """
        (number, offset), numbers = file_of(position), self._numbers()
        if number not in numbers:
            return None
        try:
            record = next(self._read(number, numbers[number], offset), None)
        except MalformedInputError:
            return "no record begins here"
        if record is None:
            return None
        before = bytes(record.buffer[max(0, offset - _DIGESTED_BYTES) : record.end])
        return hashlib.sha256(before).hexdigest()[:32]

    def transactions(self, first: int, last: int) -> Iterator[FilePart]:
        """Yield what is committed from one position to another, file by file; what had begun before is not whole."""
        gatherer, numbers = Gatherer(self.catalog, self._beginning()), self._numbers()
        (begin, start), (end, upto) = file_of(first), file_of(last)
        for number in range(begin, min(end, len(numbers)) + 1):
            name, before = numbers[number], start if number == begin else 0
            yield self._part(number, name, gatherer, start=before, end=upto if number == end else None)

    def _part(self, number: int, name: str, gatherer: Gatherer, *, start: int = 0, end: int | None = None) -> FilePart:
        buffer, where = self._open(name), f"{self.storage.label}/{name}"
        plain = find_plain(
            buffer,
            self.catalog,
            start=start,
            end=end,
            is_open=gatherer.begun,
            beginning=self._beginning(),
        )
        among = None if plain is None else plain.others.tolist()
        records = read_records(buffer, self.catalog.form, where, start=start, among=among)
        if end is not None:
            records = takewhile(lambda record: record.offset <= end, records)
        return FilePart(number, where, buffer, plain, records, gatherer)

    def _scan(self, number: int, numbers: dict[int, str]) -> Indexed:
        """Look at a file's records, with the transactions that are open at its beginning."""
        before = self._indexed[-1] if self._indexed else None
        begin = number << OFFSET_BITS
        if self._gatherer is None:
            self._gatherer = Gatherer(self.catalog, self._beginning())
            if before is not None:
                # In a process that has just begun; what it finds committed was counted by an earlier one.
                for _ in self._gatherer.gather(self.records(before.oldest, begin - 1)):
                    pass
                # Of chains that replay tells less: some have no record for readers yet, others began before it.
                if before.chains is not None:
                    self._gatherer.chains.resume(before.chains)
        # Not known yet while no file held anything.
        self._gatherer.chains.beginning = self._beginning()
        resolver, rows, last = RowResolver(self.catalog), [], before.last if before else Lri(-1, -1)
        part = self._part(number, numbers[number], self._gatherer)
        records = list(part.records)
        if part.plain is not None:
            first, last_here = part.plain.first, part.plain.last
        else:
            first, last_here = (records[0].lri, records[-1].lri) if records else (Lri(0, 0), last)
        if (records or part.plain is not None) and first <= last:
            raise MalformedInputError(
                "the file does not follow the one before it: its identifiers are not above",
                where=f"{part.name}, offset 0",
                do=ONCE_IN_ORDER,
            )
        rows += _plain_rows(part)
        for committed in self._gatherer.gather(records):
            changed = [] if committed.is_cut else resolver.resolve(committed)
            if not (changed or committed.is_cut):
                continue
            sizes = (sum(len(i) for i in (r.before, r.after) if i is not None) + held_size(r.group) for r in changed)
            at_us = (committed.committed_at_s or 0) * 1_000_000
            # One that is put aside is a single change, which says so.
            count = len(changed) or 1
            rows.append((position_of(committed.outcome), committed.first, count, sum(sizes), at_us))
        rows.sort()
        columns = np.array(rows, np.int64).reshape(-1, len(_COLUMNS)).T
        oldest = min((position_of(found[0]) for found in self._gatherer.open.values()), default=(number + 1) << 32)
        of = self._told_apart(numbers[number])
        indexed = Indexed(tuple(columns), oldest, last_here, self._gatherer.chains.known(), of)
        # Whoever may not write there looks at the files again in the next process.
        with suppress(NameTakenError, OperatorError, RetryableError):
            self.storage.create(self._index_name(number), indexed.pack())
        return indexed

    def _stored(self, number: int, name: str) -> Indexed | None:
        if self._gatherer is not None:
            # What is open here is known from the files only.
            return None
        try:
            indexed = Indexed.unpack(self.storage.read(self._index_name(number)))
        except MissingFileError:
            return None
        except (ValueError, KeyError, OSError, EOFError) as exc:
            where = f"{self.storage.label}/{self._index_name(number)}"
            raise MalformedInputError("the index cannot be read", where=where, do="delete folder `index`") from exc
        if indexed.of and indexed.of != self._told_apart(name):
            # The folder was filled anew, and kept its index. Whether a pipeline may go on here, its position says.
            said = f"the index is not of file {self.storage.label}/{name}, which each process looks at anew"
            tell(Event.NOTE, f"{said}: delete folder `index`", level=logging.WARNING)
            return None
        return indexed

    def _told_apart(self, name: str) -> str:
        """What tells a file from another of its name: its size, and a digest of its end, with times of commits."""
        size, end = self.storage.read_end(name, _DIGESTED_BYTES)
        return f"{size} {hashlib.sha256(end).hexdigest()[:32]}"

    def _index_name(self, number: int) -> str:
        return f"index/{self._read_catalog()[1]}/{number:09}.npz"

    def records(self, first: int, last: int) -> Iterator[LogRecord]:
        """Yield every record from one position to another, each the position of a record."""
        numbers = self._numbers()
        (begin, offset), (end, upto) = file_of(first), file_of(last)
        for number in range(begin, min(end, len(numbers)) + 1):
            for record in self._read(number, numbers[number], offset if number == begin else 0):
                if number == end and record.offset > upto:
                    return
                yield record

    def _read(self, number: int, name: str, start: int = 0) -> Iterator[LogRecord]:
        where = f"{self.storage.label}/{name}"
        return read_records(self._open(name), self.catalog.form, where, start=start)

    def _open(self, name: str) -> Buffer:
        where = f"{self.storage.label}/{name}"
        if isinstance(self.storage, LocalStorage):
            try:
                with self.storage.open(name) as file:
                    return _mapped(file)
            except (OSError, RetryableError) as exc:
                met = exc if isinstance(exc, OSError) else exc.__cause__
                if not isinstance(met, OSError):
                    raise
                raise OperatorError(f"cannot read: {(met.strerror or '').lower()}", where=where, do=_help(met)) from exc
        content = self.storage.read(name)
        if len(content) < _SMALL_BYTES:
            return content
        try:
            # What is open refers to its records: on a disk they take no memory, however many files it goes through.
            with tempfile.TemporaryFile() as file:
                file.write(content)
                file.flush()
                return _mapped(file)
        except OSError as exc:
            raise OperatorError(
                f"cannot hold a file of the log on the local disk: {(exc.strerror or '').lower()}",
                where=where,
                do=_help(exc) or "set TMPDIR to a folder with room for what the oldest open transaction spans",
            ) from exc

    def _beginning(self) -> LogBeginning | None:
        """Where the log begins; None where that is not told."""
        if self._begins is None:
            # A file may hold nothing.
            found = (next(self._read(number, name), None) for number, name in sorted(self._numbers().items()))
            first = next((record for record in found if record is not None), None)
            if first is None:
                return None
            self._begins = (None if first.lso is None else LogBeginning(first.stream, first.lso),)
        return self._begins[0]

    def _numbers(self) -> dict[int, str]:
        named = {int(found[1]): name for name in self.storage.names("") if (found := FILE_NAME.fullmatch(name))}
        missing = next((n for n in range(1, len(named) + 1) if n not in named), None)
        if missing is not None:
            raise OperatorError(
                f"file {missing:09}.db2log is missing, and there are later ones",
                where=self.storage.label,
                do="put it back: a transaction may have begun in it",
            )
        return named

    def _read_catalog(self) -> tuple[Catalog, str]:
        if self._catalog is None:
            where = f"{self.storage.label}/{CATALOG}"
            content = self.storage.read(CATALOG)
            try:
                catalog = read_catalog(content.decode(), where=where)
            except UnicodeDecodeError as exc:
                raise ConfigError("the catalogue is not UTF-8", where=where) from exc
            if not catalog.id:
                raise ConfigError("the catalogue has no `id`", where=where, do="name the database, and its history")
            self._catalog = catalog, hashlib.sha256(content).hexdigest()[:16]
        return self._catalog


def _mapped(file: IO[bytes]) -> Buffer:
    if file.seek(0, io.SEEK_END) < _SMALL_BYTES:
        file.seek(0)
        return file.read()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _help(exc: OSError) -> str:
    if exc.errno != errno.EMFILE:
        return ""
    return "allow more open files (ulimit -n), or make larger ones: an open transaction needs all that it spans"


def _plain_rows(part: FilePart) -> list[tuple[int, ...]]:
    """Return what `Indexed.columns` says of plain transactions that changed a row."""
    plain = part.plain
    if plain is None:
        return []
    count, base = len(plain.commits), part.number << OFFSET_BITS
    changes = np.bincount(plain.rows[:, 0], minlength=count)
    sizes = np.bincount(plain.rows[:, 0], plain.size_bytes, count).astype(np.int64)
    at_us = plain.committed_at_s * 1_000_000
    lines = np.column_stack([base + plain.commits, base + plain.begins, changes, sizes, at_us])
    return list(map(tuple, lines[changes > 0].tolist()))
