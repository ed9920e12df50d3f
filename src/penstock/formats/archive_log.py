"""The log of an archive of changes: its header and its records as bytes, and back; docs/change-files.md describes it.

A reader takes the records in the order of their numbers, and no file that none of them names. A record ends in the
digest of its own bytes and holds that of the record before, so that one that was altered, cut short or put into the
place of another is told from one that a run has written.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.formats.change_file import Encoding
from penstock.history import CaptureOrigin
from penstock.position import START, Anchor, Scn

T = TypeVar("T")

HEADER_NAME = "archive.json"
LOG_FOLDER = "log"
CHANGES_FOLDER = "changes"
COPIES_FOLDER = "copies"
TABLES_FOLDER = "tables"

_FORMAT_VERSION = 1
_DIGITS = 20
_RECORD_NAME = re.compile(rf"(\d{{{_DIGITS}}})\.json")
_FILE_NAME = re.compile(r"[a-z]+/[0-9A-Za-z][0-9A-Za-z.-]*")
_DIGEST_END = re.compile(rb',"sha256":"([0-9a-f]{64})"\}\n')
_DIGEST_LENGTH = len(',"sha256":""}\n') + 64


def digest(content: Any) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def record_path(number: int) -> str:
    """Where the record of a number is."""
    return f"{LOG_FOLDER}/{number:0{_DIGITS}}.json"


def record_number(name: str) -> int | None:
    """The number of the record that a file of the log's folder is; None where it is none."""
    found = _RECORD_NAME.fullmatch(name)
    return int(found[1]) if found else None


def data_name(first: Scn, last: Scn, epoch: int, encoding: Encoding) -> str:
    """Draw a name for a data file: tasks, attempts and runs never write the same one."""
    return f"{first:0{_DIGITS}}-{last:0{_DIGITS}}-{epoch}-{secrets.token_hex(8)}{encoding.suffix}"


@dataclass(frozen=True)
class Header:
    """What an archive is, from its beginning on.

    Attributes:
        id: Drawn when it was made.
        source: Name of the source whose changes it holds.
    """

    id: str
    source: str
    encoding: Encoding
    created_at: datetime

    def to_bytes(self) -> bytes:
        """Write `archive.json`."""
        return _json(
            {
                "penstock": "change archive",
                "version": _FORMAT_VERSION,
                "id": self.id,
                "source": self.source,
                "format": self.encoding.value,
                "created_at": self.created_at.isoformat(),
            }
        )

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> Header:
        """Read `archive.json`.

        Raises:
            MalformedInputError: It is something else, or of a version that is not known here.
        """

        def read(fields: Mapping[str, Any]) -> Header:
            if fields["penstock"] != "change archive":
                raise ValueError(fields["penstock"])
            if fields["version"] != _FORMAT_VERSION:
                raise MalformedInputError(
                    f"the archive is of version {fields['version']!r}, and only {_FORMAT_VERSION} can be read",
                    where=where,
                    do="read it with the version of Penstock that wrote it",
                )
            return Header(
                str(fields["id"]),
                str(fields["source"]),
                Encoding(fields["format"]),
                datetime.fromisoformat(fields["created_at"]),
            )

        return _read(content, read, "file is not the header of a change archive", where)


@dataclass(frozen=True)
class DataFile:
    """A file of changes, as a record names it.

    Attributes:
        first, last: Positions of its first and last transaction. One that is too large for a file goes on in the next.
        transactions, changes: How many it holds; a transaction of which it holds a part is counted.
        size_bytes, sha256: Of the file itself.
    """

    name: str
    first: Scn
    last: Scn
    transactions: int
    changes: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class TableFile:
    """A file that describes one version of a table.

    Attributes:
        id: The source's own number of the table, which it keeps when it is renamed.
    """

    id: int
    table: TableName
    version: int
    name: str
    sha256: str


@dataclass(frozen=True)
class CopiedPart:
    """Rows of a table as of a position.

    Attributes:
        copy: Drawn when the copy began; one that a run was ended at is begun anew, perhaps at the same position.
        files: Hold `snapshot` changes.
        is_complete: With this part, and those of the same copy in earlier records, the copy is whole.
        mark: Of the source's cut at the position; empty where the source has no cuts.
        id: The source's own number of the table.
    """

    table: TableName
    copy: str
    position: Scn
    files: tuple[DataFile, ...]
    is_complete: bool
    mark: str = ""
    id: int = 0


@dataclass(frozen=True)
class TransactionArrays:
    """What the files of a record hold: arrays of one entry for each transaction, in commit order."""

    commit_scns: NDArray[np.int64]
    changes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    committed_at_us: NDArray[np.int64]

    @classmethod
    def none(cls) -> TransactionArrays:
        """No transactions."""
        return cls(*(np.zeros(0, np.int64) for _ in range(4)))

    def __len__(self) -> int:
        return len(self.commit_scns)

    def followed_by(self, later: TransactionArrays) -> TransactionArrays:
        """Both together; the first of the other may be what is left of the last of this one."""
        is_cut = len(self) > 0 and len(later) > 0 and self.commit_scns[-1] == later.commit_scns[0]
        skip = 1 if is_cut else 0
        changes, size_bytes = self.changes.copy(), self.size_bytes.copy()
        if is_cut:
            changes[-1] += later.changes[0]
            size_bytes[-1] += later.size_bytes[0]
        return TransactionArrays(
            np.r_[self.commit_scns, later.commit_scns[skip:]],
            np.r_[changes, later.changes[skip:]],
            np.r_[size_bytes, later.size_bytes[skip:]],
            np.r_[self.committed_at_us, later.committed_at_us[skip:]],
        )


@dataclass(frozen=True)
class ArchiveRecord:
    """One step of an archive: everything in it is there at once, for every reader.

    Attributes:
        archive: Id of the archive.
        epoch: Of the run that wrote it; each run begins with a record of a higher one.
        previous: Digest of the record before; of `archive.json` for the first.
        earlier: Number of the last record before this one that names tables or copies; 0 where there is none.
        after, end: It holds every transaction behind `after`, up to and including `end`.
        origin: The capture set at the source.
        anchor: The source's last cut at or before `end`.
        published: How many transactions and changes this record and all before it hold.
        sha256: Digest of the record itself.
    """

    number: int
    archive: str
    epoch: int
    previous: str
    earlier: int
    written_at: datetime
    after: Scn = START
    end: Scn = START
    origin: CaptureOrigin | None = None
    anchor: Anchor | None = None
    tables: tuple[TableFile, ...] = ()
    copies: tuple[CopiedPart, ...] = ()
    files: tuple[DataFile, ...] = ()
    transactions: TransactionArrays = field(default_factory=TransactionArrays.none)
    published: tuple[int, int] = (0, 0)
    sha256: str = ""

    @property
    def is_definition(self) -> bool:
        """Whether it names tables or copies."""
        return bool(self.tables or self.copies)

    def to_bytes(self) -> bytes:
        """Write the record, with its digest at the end."""
        body = _json(
            {
                "record": self.number,
                "archive": self.archive,
                "epoch": self.epoch,
                "previous": self.previous,
                "earlier": self.earlier,
                "written_at": self.written_at.isoformat(),
                "after": self.after,
                "end": self.end,
                "origin": self.origin and {"set": self.origin.set_id, "place": self.origin.place},
                "anchor": self.anchor and {"position": self.anchor.scn, "mark": self.anchor.mark},
                "tables": [_table_json(table) for table in self.tables],
                "copies": [_copy_json(copy) for copy in self.copies],
                "files": [_file_json(file) for file in self.files],
                "transactions": {
                    "position": self.transactions.commit_scns.tolist(),
                    "changes": self.transactions.changes.tolist(),
                    "bytes": self.transactions.size_bytes.tolist(),
                    "committed_at_us": self.transactions.committed_at_us.tolist(),
                },
                "published": dict(zip(("transactions", "changes"), self.published, strict=True)),
            }
        ).removesuffix(b"}\n")
        return body + f',"sha256":"{digest(body)}"}}\n'.encode()

    @classmethod
    def from_bytes(cls, content: bytes, *, where: str) -> ArchiveRecord:
        """Read what `to_bytes` wrote.

        Raises:
            MalformedInputError: It was cut short or altered, or is something else.
        """
        body, end = content[:-_DIGEST_LENGTH], _DIGEST_END.fullmatch(content[-_DIGEST_LENGTH:])
        if end is None or end[1].decode() != digest(body):
            raise MalformedInputError(
                "record was cut short or altered",
                where=where,
                do="bring the file back from where it was copied from; nothing behind it was read",
            )
        return _read(content, _record, "file is not a record of a change archive", where)


def table_bytes(definition: Mapping[str, Any], root: TableName) -> bytes:
    """Write the file of a table version; `root` is the table that it is a partition of, or its own name."""
    return _json({"root": _name_json(root), "definition": definition})


def read_table(content: bytes, *, where: str) -> tuple[Mapping[str, Any], TableName]:
    """Read what `table_bytes` wrote: the definition, and the root.

    Raises:
        MalformedInputError: It is something else.
    """
    return _read(
        content,
        lambda fields: (dict(fields["definition"]), _name(fields["root"])),
        "file does not describe a table",
        where,
    )


def _record(fields: Mapping[str, Any]) -> ArchiveRecord:
    origin, anchor, transactions = fields["origin"], fields["anchor"], fields["transactions"]
    arrays = [_integers(transactions[name]) for name in ("position", "changes", "bytes", "committed_at_us")]
    if len({len(array) for array in arrays}) != 1:
        raise ValueError("arrays of different lengths")
    return ArchiveRecord(
        number=int(fields["record"]),
        archive=str(fields["archive"]),
        epoch=int(fields["epoch"]),
        previous=str(fields["previous"]),
        earlier=int(fields["earlier"]),
        written_at=datetime.fromisoformat(fields["written_at"]),
        after=Scn(int(fields["after"])),
        end=Scn(int(fields["end"])),
        origin=None if origin is None else CaptureOrigin(origin["set"], origin["place"]),
        anchor=None if anchor is None else Anchor(Scn(anchor["position"]), anchor["mark"]),
        tables=tuple(_table(table) for table in fields["tables"]),
        copies=tuple(_copy(copy) for copy in fields["copies"]),
        files=_files(fields["files"]),
        transactions=TransactionArrays(*arrays),
        published=(int(fields["published"]["transactions"]), int(fields["published"]["changes"])),
        sha256=str(fields["sha256"]),
    )


def _table_json(table: TableFile) -> dict[str, Any]:
    named = {"id": table.id, **_name_json(table.table), "version": table.version}
    return {**named, "file": table.name, "sha256": table.sha256}


def _table(fields: Mapping[str, Any]) -> TableFile:
    return TableFile(
        int(fields["id"]), _name(fields), int(fields["version"]), _file_name(fields["file"]), str(fields["sha256"])
    )


def _copy_json(copy: CopiedPart) -> dict[str, Any]:
    files = [_file_json(file) for file in copy.files]
    named = {**_name_json(copy.table), "copy": copy.copy, "position": copy.position}
    return {"id": copy.id, **named, "mark": copy.mark, "is_complete": copy.is_complete, "files": files}


def _copy(fields: Mapping[str, Any]) -> CopiedPart:
    return CopiedPart(
        _name(fields),
        str(fields["copy"]),
        Scn(int(fields["position"])),
        _files(fields["files"]),
        bool(fields["is_complete"]),
        str(fields["mark"]),
        int(fields["id"]),
    )


def _file_json(file: DataFile) -> dict[str, Any]:
    return {
        "file": file.name,
        "first": file.first,
        "last": file.last,
        "transactions": file.transactions,
        "changes": file.changes,
        "bytes": file.size_bytes,
        "sha256": file.sha256,
    }


def _files(files: Sequence[Mapping[str, Any]]) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(
            _file_name(f["file"]),
            Scn(int(f["first"])),
            Scn(int(f["last"])),
            int(f["transactions"]),
            int(f["changes"]),
            int(f["bytes"]),
            str(f["sha256"]),
        )
        for f in files
    )


def _file_name(name: str) -> str:
    """Refuse a name that leads out of the archive."""
    if not _FILE_NAME.fullmatch(name):
        raise ValueError("not the name of a file of the archive")
    return name


def _name_json(name: TableName) -> dict[str, str]:
    return {"schema": name.schema, "name": name.name}


def _name(fields: Mapping[str, Any]) -> TableName:
    return TableName(str(fields["schema"]), str(fields["name"]))


def _integers(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _read(content: bytes, read: Callable[[Mapping[str, Any]], T], what: str, where: str) -> T:
    try:
        return read(json.loads(content))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as exc:
        raise MalformedInputError(what, where=where) from exc


def now() -> datetime:
    """The time, as records have it."""
    return datetime.now(UTC)
