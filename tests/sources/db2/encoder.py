"""Writes buffers as the sheet of Db2's log says they are read; it shares no line with the decoder."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

DESCRIPTOR = b"\x11" + b"\xc3" * 23


@dataclass
class Log:
    """A log that is being written: each method adds a record, and `records` has them with their prefixes.

    Attributes:
        order: `<` or `>`.
        table: Table space id and table id.
        is_raw: Prefixes are those of a log that is read without a filter.
        is_chained: Each record says where the one before it of its transaction lies, which `last` has.
    """

    order: str = "<"
    table: tuple[int, int] = (3, 22)
    records: list[bytes] = field(default_factory=list)
    lso: int = 0x1000
    lsn: int = 0x500
    is_raw: bool = False
    is_chained: bool = False
    last: dict[int, int] = field(default_factory=dict)

    def add(self, tid: int, type_: int, body: bytes, *, undone: int | None = None, flags: int = 2) -> int:
        """Add a record; returns its LSO."""
        e = self.order
        extra = b"" if undone is None else struct.pack(e + "HxxxxxxQQ", 0, 0, undone)
        length = 40 + len(extra) + len(body)
        self.lsn += 1
        previous = self.last.get(tid, 0) if self.is_chained else 0
        self.last[tid] = self.lso
        header = struct.pack(e + "IHHQQQ6sH", length, type_, flags, self.lsn, 7, previous, tid.to_bytes(6, "big"), 0)
        prefix = struct.pack(e + "QQQQQQ", 1, 7, self.lsn, 2, 0, self.lso)
        prefix += b"" if self.is_raw else struct.pack(e + "Ii", length, 0)
        self.records.append(prefix + header + extra + body)
        at, self.lso = self.lso, self.lso + length
        return at

    def dms(self, function: int) -> bytes:
        """The header of the data manager."""
        return struct.pack(self.order + "BBHH", 1, function, *self.table)

    def section(self, function: int, rid: int, image: bytes, flags: int = 0) -> bytes:
        """What stands before an image, and the image."""
        head = struct.pack(self.order + "HHH6sH", flags, len(image), 0, rid.to_bytes(6, "big"), 0xF00)
        return self.dms(function) + head + image

    def insert(self, tid: int, rid: int, image: bytes, *, flags: int = 0) -> int:
        """Add an insert."""
        return self.add(tid, 0x4E, self.section(162, rid, image, flags))

    def delete(self, tid: int, rid: int, image: bytes, *, flags: int = 0) -> int:
        """Add a delete."""
        return self.add(tid, 0x4E, self.section(161, rid, image, flags))

    def update(self, tid: int, rid: int, old: bytes, new: bytes) -> int:
        """Add an update."""
        return self.add(tid, 0x4E, self.section(163, rid, old) + self.section(163, rid, new))

    def undo_insert(self, tid: int, rid: int, lso: int) -> None:
        """Take an insert back."""
        body = self.dms(110) + struct.pack(self.order + "HHH6s", 0, 0, 0, rid.to_bytes(6, "big"))
        self.add(tid, 0x43, body, undone=lso)

    def undo_with_image(self, tid: int, function: int, rid: int, image: bytes, lso: int) -> None:
        """Take a delete (111) or an update (112) back."""
        self.add(tid, 0x43, self.section(function, rid, image), undone=lso)

    def start(self, tid: int) -> int:
        """Add the start of out-of-row data."""
        return self.add(tid, 0x55, self.dms(211))

    def undo_start(self, tid: int, lso: int) -> None:
        """Take the start of out-of-row data back."""
        self.add(tid, 0x43, self.dms(212), undone=lso)

    def lob(self, tid: int, column: int, data: bytes, *, original: int = 1, most: int = 32_768) -> None:
        """Add the data of a LOB, in records of so many bytes at most."""
        for at in range(0, len(data), most):
            part = data[at : at + most]
            self.lob_record(tid, 64, column, original, len(part), at, part)

    def lob_record(
        self, tid: int, operation: int, column: int, original: int, length: int, at: int = 0, data: bytes = b""
    ) -> None:
        """Add one record of the LOB manager."""
        head = struct.pack(self.order + "BBHHHHxx", 5, operation, 5, 22, *self.table)
        head += struct.pack(self.order + "IQxBHxxxx", length, at, original, column)
        self.add(tid, 0x4E, head + data)

    def truncate(self, tid: int) -> None:
        """Empty the table."""
        self.add(tid, 0x4E, struct.pack(self.order + "BB4xHH", 4, 11, *self.table))

    def commit(self, tid: int, at_s: int = 1_767_225_600) -> None:
        """Commit a transaction."""
        self.add(tid, 0x84, struct.pack(self.order + "IIH", at_s, 7, 8) + b"DB2INST1")

    def abort(self, tid: int) -> None:
        """Roll a transaction back."""
        self.add(tid, 0x41, struct.pack(self.order + "H", 8) + b"DB2INST1")

    def buffers(self, cuts: Iterable[int] = ()) -> list[bytes]:
        """Return what was added as buffers, cut before these records."""
        at = [0, *sorted(set(cuts)), len(self.records)]
        return [b"".join(self.records[a:b]) for a, b in itertools.pairwise(at)]


def image(fixed: Sequence[bytes | Varying | AbsentPart], order: str = "<", *, outer: int = 0) -> bytes:
    """Return a row image of nullable columns; see `whole` and `varying` for the columns."""
    size = sum(_sizes(fixed)) + len(fixed)
    row, tail = b"", b""
    for part in fixed:
        if isinstance(part, Varying):
            if part.data is None:
                row += struct.pack(order + "HH", 0, 0) + b"\x01"
            else:
                row += struct.pack(order + "HH", size + len(tail), len(part.data)) + b"\x00"
                tail += part.data
        elif isinstance(part, AbsentPart):
            row += b"\x00" * part.size + b"\x01"
        else:
            row += part + b"\x00"
    length = 8 + len(row) + len(tail)
    return struct.pack(order + "BxHBxH", outer, length, 1, size) + row + tail


@dataclass(frozen=True)
class Varying:
    """A varying column: its bytes in the row, or None for NULL."""

    data: bytes | None


@dataclass(frozen=True)
class AbsentPart:
    """NULL, in a column of so many bytes."""

    size: int


def inline(value: bytes) -> Varying:
    """A LOB whose value lies in the row."""
    return Varying(b"\x69\x00\x00\x00" + value)


OUT = Varying(DESCRIPTOR)
"""A LOB whose value lies elsewhere."""


def _sizes(fixed: Sequence[bytes | Varying | AbsentPart]) -> list[int]:
    return [4 if isinstance(p, Varying) else p.size if isinstance(p, AbsentPart) else len(p) for p in fixed]
