"""Large LOBs stay in the files of the log: a place names one, and a target is brought it from there in pieces."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from penstock.errors import MalformedInputError
from penstock.position import Scn
from penstock.sources.db2_log.buffers import Buffers
from penstock.sources.db2_log.catalog import Catalog, Db2Column
from penstock.sources.db2_log.framing import PROPAGATABLE, Framing, Level, LogRecord
from penstock.sources.db2_log.positions import position_of
from penstock.sources.db2_log.transactions import ADD_DATA, LOB, LOB_DATA_AT, LobPiece
from penstock.storage import Storage

_PIECE_BYTES = 1024 * 1024


def place_of(pieces: Sequence[LobPiece]) -> str:
    """Name the place of a LOB: its first and its last record, its column, and how many bytes its records have of it."""
    first, last = position_of(pieces[0].record), position_of(pieces[-1].record)
    return f"{first}:{last}:{pieces[0].column}:{sum(piece.size for piece in pieces)}"


@dataclass(frozen=True)
class LogValues:
    """Implements `external_values.ValueStore`."""

    storage: Storage

    def pieces(self, place: str) -> Iterator[bytes]:
        """Yield a LOB in pieces of about a megabyte: as bytes, or as text in UTF-8."""
        first, last, column, told = _read(place, self.storage.label)
        buffers = Buffers(self.storage)
        held, size, found = list[bytes](), 0, 0
        recode: Callable[[bytes, bool], bytes] | None = None
        record: LogRecord | None = None
        for record, data in _records(buffers, first, last, column):
            found += len(data)
            recode = recode or _recoder(_column(buffers.catalog, record, column), buffers.catalog)
            held.append(_recoded(recode, data, record, is_last=False))
            size += len(held[-1])
            if size >= _PIECE_BYTES:
                yield b"".join(held)
                held, size = [], 0
        if record is None or recode is None or position_of(record) != last:
            _gone(place, self.storage.label)
        if told not in (None, found):
            record.refuse(
                f"{found} bytes of the LOB that ends here are in the log, where there were {told}",
                do="what is recorded once must stay as it is",
            )
        held.append(_recoded(recode, b"", record, is_last=True))
        yield b"".join(held)


def _records(buffers: Buffers, first: int, last: int, column: int) -> Iterator[tuple[LogRecord, bytes]]:
    """Yield the records of a LOB, and what each has of it: those of one transaction, table and column."""
    ids = struct.Struct(buffers.catalog.form.endian + "HH")
    add = struct.Struct(buffers.catalog.form.endian + "I10xH")
    is_v10, is_filtered = buffers.catalog.form.level is Level.V10, buffers.catalog.form.framing is Framing.FILTER
    of: tuple[object, ...] | None = None
    for record in buffers.records(Scn(first), Scn(last)):
        p = record.payload
        if record.end - p < LOB_DATA_AT or record.buffer[p] != LOB or record.buffer[p + 1] != ADD_DATA:
            continue
        if not record.flags & PROPAGATABLE and is_v10:
            # As `Gatherer.gather` has it.
            if is_filtered:
                record.refuse("a record is not for readers of the log, and the log was read with a filter")
            continue
        length, number = add.unpack_from(record.buffer, p + 12)
        key = (record.stream, record.tid, ids.unpack_from(record.buffer, p + 6))
        of = of or key
        if number == column and key == of:
            yield record, bytes(record.buffer[p + LOB_DATA_AT : p + LOB_DATA_AT + length])


def _column(catalog: Catalog, record: LogRecord, number: int) -> Db2Column:
    id_ = struct.unpack_from(catalog.form.endian + "HH", record.buffer, record.payload + 6)
    table = catalog.find(id_, record.lri)
    if table is None or number not in table.lob_numbers:
        record.refuse("the LOB that begins here is of no column in the catalogue")
    return table.columns[number]


def _recoder(column: Db2Column, catalog: Catalog) -> Callable[[bytes, bool], bytes]:
    if column.type == "BLOB":
        return lambda data, is_last: data
    encoding = catalog.encoding if column.type == "CLOB" else catalog.graphic or ""
    decoder = codecs.getincrementaldecoder(encoding)()
    return lambda data, is_last: decoder.decode(data, is_last).encode()


def _recoded(recode: Callable[[bytes, bool], bytes], data: bytes, record: LogRecord, *, is_last: bool) -> bytes:
    try:
        return recode(data, is_last)
    except ValueError:
        # Not what the exception says, which repeats bytes of the value.
        record.refuse("the data of a LOB is not text in the encoding of the catalogue")


def _read(place: str, label: str) -> tuple[int, int, int, int | None]:
    try:
        # A place that an earlier version named, in the error queue, does not tell the size.
        first, last, column, *told = map(int, place.split(":"))
    except ValueError:
        _gone(place, label)
    if len(told) > 1:
        _gone(place, label)
    return first, last, column, told[0] if told else None


def _gone(place: str, label: str) -> NoReturn:
    raise MalformedInputError(
        f"a LOB is not where it was, at {place!r}", where=label, do="what is recorded once must stay as it is"
    )
