"""How log records lie in a buffer that the read-log interface has filled: one after the other, each behind a prefix.

The prefix depends on how the log was read, the record's own header on the level of Db2. Bytes in, records out; no
component of a record is looked at here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple, NoReturn

from penstock.errors import ConfigError, MalformedInputError

COMPENSATION = 0x43
PROPAGATABLE = 0x0002
SINGULAR = 0x0010

Buffer = Any
"""`bytes`, or a map of a file: whatever `struct` reads and slices of `memoryview` are made of."""


class Level(StrEnum):
    """Which header a log record has: that of Db2 10.1 to 11.5, or that of 9.7."""

    V10 = "10.1"
    V9 = "9.7"


class Framing(StrEnum):
    """What stands before each record: `iFilterOption` on, off, or what db2ReadLogNoConn returns."""

    FILTER = "filter"
    RAW = "raw"
    NO_CONNECTION = "no-connection"


class Lri(NamedTuple):
    """A log record identifier of type 1: log flush sequence and log sequence number. 9.7 has the latter only."""

    lfs: int
    lsn: int


class LogRecord(NamedTuple):
    """A log record as it lies in its buffer.

    Attributes:
        offset: Where its prefix begins.
        start, payload, end: Where its header, what follows the header, and the next prefix begin.
        stream: The log stream; 0 where the prefix does not say it.
        lso: Its log sequence offset; None where the prefix does not say it.
        undone_lso: That of the record that it compensates; None where its header does not say it.
        previous_lso: That of the previous record of its transaction; None at level 9.7.
        sqlcode: Of the expansion of a compressed row; 0 if that went well.
    """

    buffer: Buffer
    name: str
    offset: int
    start: int
    payload: int
    end: int
    lri: Lri
    stream: int
    lso: int | None
    sqlcode: int
    type: int
    flags: int
    tid: bytes
    undone_lso: int | None
    previous_lso: int | None

    def refuse(self, what: str, *, do: str = "") -> NoReturn:
        """Raise a `MalformedInputError` that names the file, and the offset of the record."""
        raise MalformedInputError(what, where=f"{self.name}, offset {self.offset}", do=do)


@dataclass(frozen=True)
class BufferFormat:
    """How buffers are written.

    Raises:
        ConfigError: The read-log interface of 9.7 without a filter, whose prefix is not known.
    """

    level: Level = Level.V10
    framing: Framing = Framing.FILTER
    byte_order: Literal["little", "big"] = "little"

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        if self.level is Level.V9 and self.framing is Framing.RAW:
            raise ConfigError(
                "what Db2 9.7 puts before a record that is read without a filter is not known",
                do="read the log with iFilterOption on",
            )

    @property
    def endian(self) -> str:
        """The sign of the byte order, for `struct`."""
        return "<" if self.byte_order == "little" else ">"

    @property
    def header_size(self) -> int:
        """How many bytes the header of a record has that compensates nothing."""
        return 40 if self.level is Level.V10 else 24

    @cached_property
    def prefix(self) -> struct.Struct:
        """What stands before each record."""
        fields = {
            (Level.V10, Framing.FILTER): "QQQQQQIi",
            (Level.V10, Framing.RAW): "QQQQQQ",
            (Level.V10, Framing.NO_CONNECTION): "Q",
            (Level.V9, Framing.FILTER): "QIi",
            (Level.V9, Framing.NO_CONNECTION): "Q",
        }
        return struct.Struct(self.endian + fields[self.level, self.framing])

    @cached_property
    def header(self) -> struct.Struct:
        """The header of a record: length, type, flags, LSN, LFS, LSO of the previous record, transaction."""
        return struct.Struct(self.endian + ("IHHQQQ6sH" if self.level is Level.V10 else "IHHQ6sH"))


def read_records(
    buffer: Buffer, form: BufferFormat, name: str, *, start: int = 0, among: Iterable[int] | None = None
) -> Iterator[LogRecord]:
    """Yield the records of a buffer in log order.

    Args:
        name: The file, for errors.
        start: Where the first prefix begins.
        among: Yield these only, which begin here, in this order; `start` means nothing then.

    Raises:
        MalformedInputError: A length, an identifier or the order of records is not that of a log; nothing is passed
            over. The buffer ends inside a record.
    """
    size = len(buffer)
    only = None if among is None else iter(among)
    at = start if only is None else next(only, size)
    last = Lri(-1, -1)
    prefix_size, header_size = form.prefix.size, form.header.size
    is_v10, has_lri = form.level is Level.V10, form.framing is not Framing.NO_CONNECTION and form.level is Level.V10
    read_prefix, read_header = form.prefix.unpack_from, form.header.unpack_from
    undone_at = struct.Struct(form.endian + "Q").unpack_from
    while at < size:
        begin = at + prefix_size
        if begin + header_size > size:
            _refuse(name, at, f"the buffer ends {size - at} bytes into a record, before the end of its header")
        said = read_prefix(buffer, at)
        lfs = 0
        previous: int | None
        if is_v10:
            length, type_, flags, lsn, lfs, previous, tid, _ = read_header(buffer, begin)
        else:
            length, type_, flags, lsn, tid, _ = read_header(buffer, begin)
            previous = None
        stream, lso, sqlcode = 0, None, 0
        if has_lri:
            if said[0] != 1 or said[3] != 2:
                what = f"the record's identifiers have types {said[0]} and {said[3]}, not 1 and 2"
                _refuse(name, at, what, do="is the byte order, the framing or the level another one?")
            if said[1] != lfs or said[2] != lsn:
                _refuse(name, at, "the identifier before the record is not that in its header")
            stream, lso = said[4], said[5]
            sqlcode = said[7] if len(said) > 6 else 0
        else:
            if said[0] != lsn:
                what = "the LSN before the record is not that in its header"
                _refuse(name, at, what, do="is the byte order, the framing or the level another one?")
            sqlcode = said[2] if len(said) > 1 else 0
        hlen = header_size
        if type_ == COMPENSATION:
            hlen = header_size + (24 if is_v10 else 16) - (0 if flags & PROPAGATABLE else 8)
        if length < hlen or length > size - begin:
            _refuse(name, at, f"a record of {length} bytes, where {hlen} to {size - begin} are possible")
        undone = None
        if type_ == COMPENSATION and flags & PROPAGATABLE:
            undone = undone_at(buffer, begin + (56 if is_v10 else 32))[0]
        lri = Lri(lfs, lsn)
        if lri <= last:
            _refuse(name, at, _NOT_ABOVE, do=ONCE_IN_ORDER)
        last = lri
        end = begin + length
        yield LogRecord(
            buffer, name, at, begin, begin + hlen, end, lri, stream, lso, sqlcode, type_, flags, tid, undone, previous
        )
        at = end if only is None else next(only, size)


ONCE_IN_ORDER = (
    "put each part of the log there once, in its order; where the database was restored, or its log begun anew, keep"
    " that in a folder of its own: `penstock resync --all` begins with a new first copy"
)
"""What to do where the log does not go on as it has to."""

_NOT_ABOVE = "the record's identifier is not above that of the record before"


def _refuse(name: str, offset: int, what: str, *, do: str = "") -> NoReturn:
    raise MalformedInputError(what, where=f"{name}, offset {offset}", do=do)
