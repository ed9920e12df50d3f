"""An archive of changes as its reader and its writer see it: the header, the log record by record, files by digest.

Nothing is handed on that is not whole: a record or a file that was altered, cut short, removed, or that belongs to
another archive is refused, named together with the position that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.change import TableName
from penstock.errors import MalformedInputError, OperatorError
from penstock.formats.archive_log import (
    HEADER_NAME,
    LOG_FOLDER,
    ArchiveRecord,
    CopiedPart,
    DataFile,
    Header,
    TableFile,
    digest,
    read_table,
    record_number,
    record_path,
)
from penstock.position import START, Scn
from penstock.storage import MissingFileError, Storage
from penstock.text import count

_BRING_BACK = "bring the file back from where the archive was copied from; nothing of it was read"

_KEPT_RECORDS = 64
"""How many records are kept in memory; a search looks at fewer."""


@dataclass(frozen=True)
class ArchiveDefinitions:
    """What the records of an archive say besides changes, oldest first."""

    tables: tuple[TableFile, ...] = ()
    copies: tuple[CopiedPart, ...] = ()

    @property
    def copied(self) -> Mapping[TableName, Scn]:
        """The tables whose copy is whole, and its position."""
        return {copy.table: copy.position for copy in self.copies if copy.is_complete}

    def is_copied(self, id_: int, table: TableName) -> bool:
        """Whether the rows of a table are there under the name that it has.

        They are not where another table had the name since, or the table another name.
        """
        newest_of_name = {copy.table: copy.id for copy in self.copies if copy.is_complete}
        newest_of_id = {copy.id: copy.table for copy in self.copies if copy.is_complete}
        return newest_of_name.get(table) == id_ and newest_of_id.get(id_) == table

    @property
    def whole_copies(self) -> Sequence[CopiedPart]:
        """The parts of copies that are whole; what a run was ended at is of no account."""
        whole = {copy.copy for copy in self.copies if copy.is_complete}
        return [copy for copy in self.copies if copy.copy in whole]


class Archive:
    """An archive that is there; see docs/change-files.md for what its files hold."""

    def __init__(self, storage: Storage) -> None:
        """Use the archive at a place; nothing is read yet."""
        self._storage = storage
        self._records: dict[int, ArchiveRecord] = {}
        # The number of a record, and what it and those before it say of tables and copies.
        self._newest: tuple[int, ArchiveDefinitions] | None = None

    @property
    def label(self) -> str:
        """The place, named without secrets."""
        return self._storage.label

    @cached_property
    def header(self) -> Header:
        """What the archive is.

        Raises:
            OperatorError: There is none.
            MalformedInputError: `archive.json` is something else.
        """
        return Header.from_bytes(self._header_content, where=f"{self.label}/{HEADER_NAME}")

    @property
    def header_digest(self) -> str:
        """What the first record names as the digest of the one before it."""
        return digest(self._header_content)

    def count_records(self) -> int:
        """Return the number of the last record; 0 where there is none yet.

        Raises:
            OperatorError: There is no archive, or a record before the last one is missing.
            MalformedInputError: `archive.json` is something else.
        """
        _ = self.header
        numbers = {number for name in self._storage.names(LOG_FOLDER) if (number := record_number(name)) is not None}
        last = max(numbers, default=0)
        if len(numbers) < last or 0 in numbers:
            missing = next(number for number in range(1, last + 1) if number not in numbers)
            raise OperatorError(
                f"the log of the archive lacks record {missing}, and has later ones up to {last}",
                where=f"{self.label}/{record_path(missing)}",
                do="bring the file back from where the archive was copied from",
            )
        return last

    def find_record(self, number: int) -> ArchiveRecord | None:
        """Return a record; None where the log does not reach so far yet.

        Raises:
            MalformedInputError: It is not the record that the run wrote behind the one before.
        """
        record = self._load(number)
        if record is None:
            return None
        before = None if number == 1 else self.record(number - 1, is_linked=False)
        self._refuse_foreign(record, before)
        return record

    def record(self, number: int, *, is_linked: bool = True) -> ArchiveRecord:
        """Return a record that must be there.

        Args:
            is_linked: Hold it against the one before, as `find_record` does.

        Raises:
            OperatorError: It is missing.
        """
        found = self.find_record(number) if is_linked else self._load(number)
        if found is None:
            raise OperatorError(
                f"the log of the archive lacks record {number}",
                where=f"{self.label}/{record_path(number)}",
                do="bring the file back from where the archive was copied from",
            )
        return found

    def first_behind(self, position: Scn) -> int:
        """Return the number of the first record that ends behind a position; that of the next one where none does."""
        low, high = 1, self.count_records() + 1
        while low < high:
            middle = (low + high) // 2
            if self.record(middle).end > position:
                high = middle
            else:
                low = middle + 1
        return low

    def digest_at(self, position: Scn) -> str | None:
        """Return a digest of all that is published up to a position: that of the record that reaches it first.

        None where the archive ends before it; empty where nothing can lie before it.
        """
        if position <= START:
            return ""
        number = self.first_behind(Scn(position - 1))
        record = self.find_record(number)
        return None if record is None else record.sha256[:32]

    def records(self, first: int = 1) -> Iterator[ArchiveRecord]:
        """Yield the records from a number on, to the last one that is there."""
        number = first
        while (record := self.find_record(number)) is not None:
            yield record
            number += 1

    def definitions(self, upto: ArchiveRecord | None) -> ArchiveDefinitions:
        """Return what a record, and those before it, say of tables and copies; they are found one from the other."""
        tables: list[TableFile] = []
        copies: list[CopiedPart] = []
        record = upto
        while record is not None:
            tables[:0], copies[:0] = record.tables, record.copies
            record = self.record(record.earlier) if record.earlier else None
        return ArchiveDefinitions(tuple(tables), tuple(copies))

    def newest_definitions(self) -> ArchiveDefinitions:
        """Return what all records say of tables and copies by now; when asked again, only the new ones are read."""
        if self._newest is None:
            count = self.count_records()
            self._newest = count, self.definitions(self.record(count) if count else None)
        number, known = self._newest
        for record in self.records(number + 1):
            number = record.number
            known = ArchiveDefinitions(known.tables + record.tables, known.copies + record.copies)
        self._newest = number, known
        return known

    def read_file(self, file: DataFile) -> bytes:
        """Return the content of a data file.

        Raises:
            MalformedInputError: It was altered or cut short.
            OperatorError: It is missing.
        """
        where = f"{self.label}/{file.name}, positions {file.first} to {file.last}"
        return self._checked(file.name, file.sha256, where, size_bytes=file.size_bytes)

    def read_table(self, table: TableFile) -> tuple[Mapping[str, Any], TableName]:
        """Return the definition of a table version, and the table that it is a partition of, or itself.

        Raises:
            MalformedInputError: Its file was altered or cut short.
            OperatorError: It is missing.
        """
        where = f"{self.label}/{table.name}, table {table.table}, version {table.version}"
        return read_table(self._checked(table.name, table.sha256, where), where=where)

    @cached_property
    def _header_content(self) -> bytes:
        try:
            return self._storage.read(HEADER_NAME)
        except MissingFileError as exc:
            raise OperatorError(
                "there is no change archive",
                where=f"{self.label}/{HEADER_NAME}",
                do="see whether the path is right, and whether anything was published there yet",
            ) from exc

    def _load(self, number: int) -> ArchiveRecord | None:
        """Read a record, held against itself only; it can change no more."""
        if number not in self._records:
            path = record_path(number)
            try:
                content = self._storage.read(path)
            except MissingFileError:
                return None
            while len(self._records) >= _KEPT_RECORDS:
                del self._records[next(iter(self._records))]
            self._records[number] = ArchiveRecord.from_bytes(content, where=f"{self.label}/{path}")
        return self._records[number]

    def _refuse_foreign(self, record: ArchiveRecord, before: ArchiveRecord | None) -> None:
        """Refuse a record that does not follow the one before; `before` is None for the first."""
        where = f"{self.label}/{record_path(record.number)}, position {record.end}"
        if record.archive != self.header.id:
            raise MalformedInputError(
                "record is of another archive",
                where=where,
                do="do not copy two archives into one folder; bring this one back from where it was copied from",
            )
        if before is None:
            follows = record.previous == self.header_digest and record.number == 1
        else:
            follows = (
                record.previous == before.sha256
                and record.number == before.number + 1
                and record.after == before.end
                and record.epoch >= before.epoch
            )
        if not follows or record.end < record.after:
            raise MalformedInputError(
                "record does not follow the one before it: two runs wrote at the same moment to a store that cannot"
                " refuse one of them, or files were put in each other's place",
                where=where,
                do="publish to a new path, with a new first copy",
            )

    def _checked(self, name: str, sha256: str, where: str, *, size_bytes: int | None = None) -> bytes:
        try:
            content = self._storage.read(name)
        except MissingFileError as exc:
            raise OperatorError(
                "a file of the archive is missing",
                where=where,
                do="bring it back from where the archive was copied from",
            ) from exc
        if size_bytes is not None and len(content) != size_bytes:
            verb = "cut short" if len(content) < size_bytes else "written to"
            raise MalformedInputError(
                f"a file of the archive was {verb}: it has {count(len(content), 'byte')}, and had {size_bytes:,}",
                where=where,
                do=_BRING_BACK,
            )
        if digest(content) != sha256:
            raise MalformedInputError(
                "a file of the archive was altered: its digest is another one", where=where, do=_BRING_BACK
            )
        return content
