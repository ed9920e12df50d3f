"""Transactions: log records gathered by transaction, and what was committed of them.

`gather` looks at headers alone and yields the records of each committed transaction, in commit order. `resolve` takes
back what was undone, gives each row the LOB records before it, and joins the two halves of an update.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.change import Op, TableName
from penstock.sources.db2_log.catalog import Catalog, Db2Table, TableId
from penstock.sources.db2_log.chains import Chains, LogBeginning, TxnKey
from penstock.sources.db2_log.framing import COMPENSATION, PROPAGATABLE, SINGULAR, Framing, Level, LogRecord
from penstock.sources.db2_log.positions import position_of
from penstock.sources.db2_log.single_rows import holds_row

COMMITS = frozenset((0x84, 0x85, 0x86, 0x87, 0x8A))
ABORTS = frozenset((0x41, 0x49))
COMPONENTS = frozenset((0x43, 0x4E, 0x52, 0x55, 0x69))
_CHAINED = COMMITS | ABORTS | COMPONENTS
_TIMED = frozenset((0x84, 0x86, 0x87, 0x8A))
_PASSED = frozenset((0x42, 0x4F, 0x51, 0x56, 0x57, 0x6F, 0x7B, 0x7C, 0x7D, 0x8B))
_REWRITTEN = frozenset((0x71, 0x89))
LOAD_START = 0x4A
_LOAD_TABLE_AT = 4

DMS, LONG_FIELD, DOM, LOB, XML = 1, 3, 4, 5, 15
_TABLE_AT = {DMS: 2, DOM: 6, LOB: 6, LONG_FIELD: 6, XML: 6}
"""Where records of each component say of which table they are."""
_ALTERED = frozenset((102, 104, 113, 115, 116, 119, 122, 123, 169, 170, 171))
_MADE = 128
_NOTHING = frozenset((108, 137))
_UNDONE = {110: Op.INSERT, 131: Op.INSERT, 168: Op.INSERT, 111: Op.DELETE, 166: Op.DELETE, 112: Op.UPDATE}
_DONE = {161: Op.DELETE, 164: Op.DELETE, 162: Op.INSERT, 165: Op.INSERT, 167: Op.INSERT, 163: Op.UPDATE}
ADD_DATA, ADD_AMOUNT = 64, 65
_INFORMATION = frozenset((66, 67))
"""Operations of the LOB manager that say what became of an earlier value, and hold none."""
LOB_DATA_AT = 32
"""Where data begins in a record of the LOB manager."""

HALF = 0x8000
TRUNCATE, NOT_LOGGED_INITIALLY = 11, 12
STRINGS = 65535
"""The column number of strings that did not fit into the row."""


class Committed(NamedTuple):
    """A transaction with an outcome.

    Attributes:
        outcome: The record of that.
        records: Its records for readers, in log order; where it is cut, there may be none.
        first: The position from which on it has to be read: that of the first of them, or, if it is cut, of its first
            record of any kind, which tells that it is.
        is_cut: It was open already where the log begins: what it did before is in no file.
    """

    outcome: LogRecord
    records: Sequence[LogRecord]
    committed_at_s: int | None
    first: int
    is_cut: bool = False


class LobPiece(NamedTuple):
    """One Add LOB record: what it adds to which column."""

    record: LogRecord
    column: int
    is_amount: bool
    original: int
    size: int

    @property
    def data(self) -> memoryview:
        """What it adds; not held, as there are many of them."""
        at = self.record.payload + LOB_DATA_AT
        return memoryview(self.record.buffer)[at : at + self.size]


@dataclass(slots=True)
class LobGroup:
    """The LOB records before a row's record."""

    record: LogRecord
    pieces: list[LobPiece] = field(default_factory=list)


@dataclass(slots=True)
class Row:
    """A row's record, or what two of them are together. Images are from their record type to their end."""

    record: LogRecord
    table: Db2Table
    id: TableId
    op: Op
    rid: bytes
    before: memoryview | None = None
    after: memoryview | None = None
    group: LobGroup | None = None
    is_half: bool = False


class Gatherer:
    """Gathers records by transaction until these end. What is not committed yet stays in `open`.

    Attributes:
        open: The records of each open transaction that are for readers.
        chains: How the records of each open transaction follow one another, be they for readers or not.
    """

    def __init__(self, catalog: Catalog, beginning: LogBeginning | None = None) -> None:
        """Begin with no transaction.

        Args:
            beginning: Where the log begins; None where that is not known.
        """
        self.open: dict[TxnKey, list[LogRecord]] = {}
        self._catalog = catalog
        self.passed_over = 0
        form = self.form = catalog.form
        self.chains = Chains(beginning, is_whole=form.framing is Framing.RAW and form.level is Level.V10)
        self._time = struct.Struct(form.endian + "I")
        self._pair = struct.Struct(form.endian + "HH")

    @property
    def begun(self) -> Collection[TxnKey]:
        """The transactions that are open, also those without a record for readers yet."""
        return self.open.keys() | self.chains.open.keys()

    def gather(self, records: Iterable[LogRecord]) -> Iterator[Committed]:
        """Yield transactions as they are committed; raises a `MalformedInputError` at what must stop the source."""
        open_, chains, is_v10 = self.open, self.chains, self._catalog.form.level is Level.V10
        is_filtered = self._catalog.form.framing is Framing.FILTER
        for record in records:
            type_, key = record.type, (record.stream, record.tid)
            chains.follow(record, is_chained=type_ in _CHAINED)
            if type_ in COMPONENTS:
                is_singular = record.flags & SINGULAR
                if record.flags & PROPAGATABLE or not is_v10:
                    open_.setdefault(key, []).append(record)
                    if is_singular:
                        yield from self._ended(record)
                elif is_filtered:
                    record.refuse("a record is not for readers of the log, and the log was read with a filter")
                else:
                    self.passed_over += 1
                    if is_singular and key not in open_:
                        chains.end(key)
            elif type_ in COMMITS:
                yield from self._ended(record)
            elif type_ in ABORTS:
                chains.end(key)
                open_.pop(key, None)
            elif type_ == LOAD_START:
                self._refuse_load(record)
            elif type_ in _REWRITTEN:
                record.refuse("a table space was rolled forward: history was rewritten", do="begin anew, with a copy")
            elif type_ not in _PASSED:
                record.refuse(f"log records of type 0x{type_:04X} are not known")

    def _ended(self, outcome: LogRecord) -> Iterator[Committed]:
        """Yield the transaction that a record commits, unless it did nothing that readers are shown."""
        key = (outcome.stream, outcome.tid)
        records, chain = self.open.pop(key, []), self.chains.end(key)
        if chain is not None and chain.is_cut:
            yield Committed(outcome, records, self._committed_at(outcome), chain.first, is_cut=True)
        elif records:
            yield Committed(outcome, records, self._committed_at(outcome), position_of(records[0]))

    def _committed_at(self, record: LogRecord) -> int | None:
        if record.type not in _TIMED:
            return None
        if record.end - record.payload < 8:
            record.refuse("the commit record ends before its time")
        return int(self._time.unpack_from(record.buffer, record.payload)[0])

    def _refuse_load(self, record: LogRecord) -> None:
        if record.end - record.payload < 8:
            record.refuse("the load record ends before its table")
        table = self._catalog.find(self._pair.unpack_from(record.buffer, record.payload + _LOAD_TABLE_AT), record.lri)
        if table is not None:
            record.refuse(f"rows were loaded into {table.name}, which are not in the log", do="copy the table anew")


class RowResolver:
    """Finds what a committed transaction changed in tables of the catalogue, without decoding a value."""

    def __init__(self, catalog: Catalog) -> None:
        """Work with a catalogue."""
        self._catalog = catalog
        endian = catalog.form.endian
        self._ids = struct.Struct(endian + "HH")
        self._u16 = struct.Struct(endian + "H")
        self._lob = struct.Struct(endian + "IQBBH")

    def tables(self, committed: Committed) -> list[TableName]:
        """Return the tables of the catalogue that records of a transaction are of, whatever else they say."""
        found = []
        for record in committed.records:
            p, size = record.payload, record.end - record.payload
            at = _TABLE_AT.get(record.buffer[p]) if size else None
            if at is not None and size >= at + 4:
                table = self._catalog.find(self._ids.unpack_from(record.buffer, p + at), record.lri)
                found += [] if table is None else [table.name]
        return sorted(set(found))

    def resolve(self, committed: Committed) -> list[Row]:
        """Return the rows that are changed, in log order.

        Raises:
            MalformedInputError: A record breaks its format, or what it does cannot be followed; it names the record.
        """
        rows: list[Row] = []
        groups: dict[TableId, LobGroup] = {}
        for record in committed.records:
            p, size = record.payload, record.end - record.payload
            if size < 6:
                record.refuse("the record ends before its table")
            component, function = record.buffer[p], record.buffer[p + 1]
            at = _TABLE_AT.get(component)
            if at is None or size < at + 4:
                if at is not None or component != 11:
                    record.refuse(f"records of component {component} with {size} bytes are not known")
                continue
            id_ = self._ids.unpack_from(record.buffer, p + at)
            table = self._catalog.find(id_, record.lri)
            if table is None:
                continue
            if record.sqlcode:
                record.refuse(f"Db2 could not expand a row of {table.name}: SQLCODE {record.sqlcode}")
            if component == DMS:
                self._dms(record, table, function, rows=rows, groups=groups)
            elif component == LOB:
                self._add(record, table, function, groups.get(id_))
            elif component == DOM:
                if function == TRUNCATE and record.type != COMPENSATION:
                    rows.append(Row(record, table, id_, Op.TRUNCATE, b""))
                elif function in (TRUNCATE, NOT_LOGGED_INITIALLY):
                    record.refuse(f"changes to {table.name} are not logged from here on", do="copy the table anew")
            else:
                record.refuse(f"{table.name} has records of component {component}, which cannot be read")
        for group in groups.values():
            if group.pieces:
                group.record.refuse("the transaction is committed, and LOB data of it belongs to no row")
        return _joined([row for row in rows if row.op is Op.TRUNCATE or _is_kept(row)])

    def _dms(
        self,
        record: LogRecord,
        table: Db2Table,
        function: int,
        *,
        rows: list[Row],
        groups: dict[TableId, LobGroup],
    ) -> None:
        p, size = record.payload, record.end - record.payload
        id_ = self._ids.unpack_from(record.buffer, p + 2)
        if function == 211:
            if id_ in groups:
                record.refuse(f"out-of-row data of {table.name} begins inside other such data")
            groups[id_] = LobGroup(record)
        elif function == 212:
            groups.pop(id_, None)
        elif function in _DONE:
            made = self._rows(record, table, id_, function)
            if _DONE[function] is not Op.DELETE and (group := groups.pop(id_, None)) is not None:
                if len(made) > 1 and group.pieces:
                    record.refuse(f"LOB data of {table.name} belongs to one of several rows: to which is not known")
                for row in made:
                    row.group = group
            rows += made
        elif function in _UNDONE:
            for rid in self._undone_rids(record, function):
                self._undo(record, id_, _UNDONE[function], rid, rows)
        elif function == 124:
            if size < 22:
                record.refuse("the record ends before what it alters")
            mask, values = struct.unpack_from(self._catalog.form.endian + "QQ", record.buffer, p + 6)
            if mask & 1 and not values & 1:
                record.refuse(f"DATA CAPTURE of {table.name} was switched off", do="switch it on, and copy it anew")
        elif function in _ALTERED:
            if all(t.since != record.lri for t in self._catalog.by_id[id_]):
                record.refuse(
                    f"{table.name} was altered here",
                    do=f'add the version that it has from here on to the catalogue, with "from": {list(record.lri)}',
                )
        elif function == _MADE:
            if all(t.since != record.lri for t in self._catalog.by_id[id_]):
                record.refuse(
                    f"a table was made here with the identifiers of {table.name}: what follows is of that one",
                    do=f'say in the catalogue which table that is, with "from": {list(record.lri)}; if it replaces one'
                    " that was dropped, empty that at the target, which no record does",
                )
        elif function not in _NOTHING:
            record.refuse(f"function {function} on {table.name} is not known")

    def _rows(self, record: LogRecord, table: Db2Table, id_: TableId, function: int) -> list[Row]:
        p, end, op = record.payload, record.end, _DONE[function]
        if function == 167:
            return self._several(record, table, id_)
        first = p + (26 if function in (164, 165) else 20)
        image, behind = self._image(record, first)
        row = Row(record, table, id_, op, bytes(record.buffer[p + 12 : p + 18]))
        row.is_half = bool(self._u16.unpack_from(record.buffer, p + 6)[0] & HALF)
        if op is Op.UPDATE:
            row.before = image
            if behind + 20 > end or bytes(record.buffer[behind : behind + 6]) != bytes(record.buffer[p : p + 6]):
                record.refuse(f"the two parts of an update of {table.name} do not follow each other")
            row.after, behind = self._image(record, behind + 20)
        elif op is Op.INSERT:
            row.after = image
        else:
            row.before = image
        if behind != end:
            record.refuse(f"the record of a row of {table.name} does not end with the row")
        return [row]

    def _several(self, record: LogRecord, table: Db2Table, id_: TableId) -> list[Row]:
        at = record.payload + 20
        if at > record.end:
            record.refuse("the record ends before its rows")
        (count,) = self._u16.unpack_from(record.buffer, record.payload + 8)
        rows = []
        while at < record.end:
            image, behind = self._image(record, at + 8)
            rows.append(Row(record, table, id_, Op.INSERT, bytes(record.buffer[at : at + 6]), after=image))
            at = behind
        if len(rows) != count:
            record.refuse(f"the record holds {len(rows)} rows of {table.name}, and says that it holds {count}")
        return rows

    def _image(self, record: LogRecord, at: int) -> tuple[memoryview, int]:
        if at + 8 > record.end:
            record.refuse("the record ends before its row")
        (length,) = self._u16.unpack_from(record.buffer, at + 2)
        if length < 8 or at + length > record.end:
            record.refuse(f"a row of {length} bytes, where 8 to {record.end - at} are possible")
        return memoryview(record.buffer)[at : at + length], at + length

    def _undone_rids(self, record: LogRecord, function: int) -> list[bytes]:
        p, size = record.payload, record.end - record.payload
        if size < (20 if function == 168 else 18):
            record.refuse("the record ends before the row that it undoes")
        if function != 168:
            return [bytes(record.buffer[p + 12 : p + 18])]
        (count,) = self._u16.unpack_from(record.buffer, p + 8)
        if size != 20 + 8 * count:
            record.refuse("the record does not hold as many rows as it says")
        return [bytes(record.buffer[p + 20 + 8 * n : p + 26 + 8 * n]) for n in range(count)]

    def _undo(self, record: LogRecord, id_: TableId, op: Op, rid: bytes, rows: list[Row]) -> None:
        # Zero is no place in a log: the table and the row are what is told then.
        lso = (record.undone_lso or None) if record.lso is not None else None
        for n in reversed(range(len(rows))):
            row = rows[n]
            agrees = row.id == id_ and row.op is op and row.rid == rid
            if (lso is None and agrees) or (lso is not None and row.record.lso == lso and agrees):
                del rows[n]
                return
        record.refuse("the record undoes a change that the transaction has not made")

    def _add(self, record: LogRecord, table: Db2Table, operation: int, group: LobGroup | None) -> None:
        if operation in _INFORMATION:
            return
        if operation not in (ADD_DATA, ADD_AMOUNT):
            record.refuse(f"operation {operation} of the LOB manager on {table.name} is not known")
        size = record.end - record.payload
        if size < LOB_DATA_AT:
            record.refuse("the record ends before its LOB data")
        length, _, _, original, column = self._lob.unpack_from(record.buffer, record.payload + 12)
        if operation == ADD_DATA and LOB_DATA_AT + length > size:
            record.refuse(f"{length} bytes of LOB data, where the record has room for {size - LOB_DATA_AT}")
        if group is None:
            record.refuse(f"LOB data of {table.name} comes before the start of out-of-row data")
        if original not in (1, 4, 8):
            record.refuse(f"LOB data of {table.name} was added by operation {original}")
        if column != STRINGS and column not in table.lob_numbers:
            record.refuse(f"LOB data is for column {column} of {table.name}, which is not a LOB")
        is_amount = operation == ADD_AMOUNT
        group.pieces.append(LobPiece(record, column, is_amount, original, 0 if is_amount else length))


def _is_kept(row: Row) -> bool:
    """Whether it is a change of a user's row, or of where such a row is."""
    images = [image for image in (row.before, row.after) if image is not None]
    return row.op is Op.UPDATE or all(holds_row(image[0], image[4]) for image in images)


def _joined(rows: list[Row]) -> list[Row]:
    """Join a delete and an insert that are halves of an update, and an update with the insert its row moved to."""
    done: list[Row | None] = []
    for row in rows:
        if row.op is Op.INSERT and row.is_half:
            for n in reversed(range(len(done))):
                other = done[n]
                if other is not None and other.op is Op.DELETE and other.is_half and other.table.name == row.table.name:
                    done[n] = None
                    row.op, row.before = Op.UPDATE, other.before
                    break
        elif row.op is Op.UPDATE and row.after is not None and row.after[0] & 0x02 and not row.after[0] & 0x04:
            for n in reversed(range(len(done))):
                other = done[n]
                is_here = other is not None and other.op is Op.INSERT and other.id == row.id
                if other is not None and is_here and other.after is not None and other.after[0] & 0x04:
                    done[n] = None
                    row.after, row.group = other.after, row.group or other.group
                    break
            else:
                row.record.refuse(f"a row of {row.table.name} was moved, and the record of its new place is missing")
        elif row.op is Op.UPDATE and not all(i is not None and holds_row(i[0], i[4]) for i in (row.before, row.after)):
            continue
        done.append(row)
    return [row for row in done if row is not None]
