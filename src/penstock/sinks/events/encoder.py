"""Rows of the change stream as the records of a Debezium connector."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

import orjson
import pyarrow as pa

from penstock import change as c
from penstock.apply.apply_errors import NOT_CAPTURED, VALUE_TOO_LONG
from penstock.change import Change, Image, Op, TableName
from penstock.errors import MalformedInputError, PenstockError
from penstock.formats.debezium.source_block import STREAMING, ChangePlace
from penstock.formats.debezium.writer import EventSettings, EventWriter, OutgoingRecord, TableWriter, UnpublishableError
from penstock.position import Scn
from penstock.schema import Dictionary, TableSchema
from penstock.sinks.events.put_aside import KeptChange, OnBadValue, PutAside

_COLUMNS = (
    c.TXN_ID,
    c.COMMIT_SCN,
    c.SCN,
    c.COMMITTED_AT,
    c.OP,
    c.SCHEMA_NAME,
    c.TABLE_NAME,
    c.TABLE_VERSION,
    c.BEFORE,
    c.AFTER,
    c.META,
)

_ROWS = 5_000
"""So many rows of a batch are Python objects at a time."""


Row: TypeAlias = Mapping[str, Any]
"""A row of the change stream."""

Refusal: TypeAlias = Callable[[OutgoingRecord], str | None]
"""Says why a record cannot be published; None where it can."""


def takes_all(_: OutgoingRecord) -> None:
    """Refuse no record."""


@dataclass(frozen=True)
class TransactionInfo:
    """What is told of a transaction.

    Attributes:
        changes: How many changes it is told with, or put aside; 0 where it is left out as a whole.
        aside: What is put aside of it.
    """

    records: Sequence[OutgoingRecord]
    changes: int
    aside: PutAside | None = None


@dataclass(frozen=True)
class EventEncoder:
    """What tasks need to make events of changes; travels to them.

    Attributes:
        tables: Every version that a change may name.
        copied: The position of the copy of each table, and of each partition: what it holds is not told again.
    """

    settings: EventSettings
    tables: Dictionary = field(default_factory=Dictionary)
    copied: Mapping[TableName, Scn] = field(default_factory=dict)
    _writers: dict[tuple[TableName, int], TableWriter] = field(default_factory=dict, repr=False, compare=False)

    def of_changes(self, batches: Iterable[pa.RecordBatch], refusal: Refusal = takes_all) -> Iterator[OutgoingRecord]:
        """Yield the records of whole transactions in commit order, BEGIN and END included; holds none in memory.

        Raises:
            UntellableError: A change cannot be told as an event.
            MalformedInputError: Changes come in another order.
        """
        writer = EventWriter(self.settings, self.tables.get, known=self._writers)
        at = Scn(0)
        for row in _rows(batches):
            if row[c.COMMIT_SCN] < at:
                raise MalformedInputError("changes are not in commit order", where="changes to be published")
            at = row[c.COMMIT_SCN]
            yield from self._change(writer, row, refusal)
        yield from writer.end()

    def of_transactions(
        self, batches: Iterable[pa.RecordBatch], refusal: Refusal, on_bad_value: OnBadValue
    ) -> Iterator[TransactionInfo]:
        """Yield what is told of one transaction after the other.

        A transaction is held in memory. Raises as `of_changes` does, where nothing is to be put aside.
        """
        writer = EventWriter(self.settings, self.tables.get, known=self._writers)
        at = Scn(0)
        for scn, of_one in groupby(_rows(batches), key=lambda row: Scn(row[c.COMMIT_SCN])):
            if scn < at:
                raise MalformedInputError("changes are not in commit order", where="changes to be published")
            at, rows = scn, list(of_one)
            try:
                told = self._told(writer, rows, refusal)
            except UnpublishableError as exc:
                if on_bad_value is OnBadValue.STOP:
                    raise
                aside = self.aside(rows, exc, refusal, whole=on_bad_value is OnBadValue.PUT_ASIDE_TRANSACTION)
                left = [row for number, row in enumerate(rows, start=1) if number not in aside.numbers]
                told = self._told(writer, left, refusal)
                told = TransactionInfo(told.records, told.changes + len(aside.numbers), aside)
            yield told

    def aside(self, rows: Sequence[Row], error: UnpublishableError, refusal: Refusal, *, whole: bool) -> PutAside:
        """Put a transaction aside of which a change cannot be told, or such changes alone."""
        bad = {number: exc for number, row in enumerate(rows, start=1) if (exc := self._fault(row, refusal))}
        # What is no single change's, such as a record of the transaction's bounds, is that of all.
        numbers = sorted(bad) if bad and not whole else range(1, len(rows) + 1)
        first = min(bad, default=1)
        return put_aside(rows, numbers, first, bad.get(first, error))

    def of_rows(
        self,
        table: TableSchema,
        batches: Iterable[pa.RecordBatch],
        place: ChangePlace,
        mark: Callable[[], str],
        *,
        refusal: Refusal = takes_all,
        aside: list[PutAside] | None = None,
    ) -> Iterator[OutgoingRecord]:
        """Yield the records of rows of a first copy.

        Args:
            batches: Columns of canonical text, each called as the table's.
            mark: Returns the snapshot mark of the next row.
            aside: Gets the rows that cannot be told as events. None: they raise.
        """
        writer = EventWriter(self.settings, lambda *_: table)
        of_table = writer.table(table.name, table.version)
        for batch in batches:
            for first in range(0, batch.num_rows, _ROWS):
                for row in batch.slice(first, _ROWS).to_pylist():
                    try:
                        record = of_table_row(writer, of_table, row, place._replace(snapshot=mark()), refusal)
                    except UnpublishableError as exc:
                        if aside is None:
                            raise
                        aside.append(row_aside(table, row, place, exc))
                    else:
                        yield record

    def again(self, entry: PutAside, changes: Sequence[tuple[int, Change]], refusal: Refusal) -> list[OutgoingRecord]:
        """Return the records of an entry of the error queue; `changes` may have other values than it has.

        Raises:
            UntellableError: One cannot be told still.
        """
        writer = EventWriter(self.settings, self.tables.get, known=self._writers)
        kept = dict(zip(entry.numbers, entry.changes, strict=True))
        records: list[OutgoingRecord] = []
        for number, change in changes:
            if change.op is Op.GAP:
                raise untold(change.table, entry.commit_scn)
            table = writer.table(change.table, change.table_version)
            if entry.is_of_copy:
                place = entry.place(kept[number], "incremental")
                records.append(of_table_row(writer, table, change.after or {}, place, refusal))
                continue
            place = entry.place(kept[number], STREAMING)
            with _named(change.table, change.op.value, entry.txn_id, entry.commit_scn):
                made = list(writer.change(change.op, table, change.before, change.after, place))
            records += _checked(made, change.table, refusal)
        return [*records, *writer.end()]

    def _told(self, writer: EventWriter, rows: Sequence[Row], refusal: Refusal) -> TransactionInfo:
        try:
            records = [record for row in rows for record in self._change(writer, row, refusal)]
        except PenstockError:
            writer.forget()
            raise
        records += writer.end()
        return TransactionInfo(records, sum(not self._is_left_out(row) for row in rows) if records else 0)

    def _fault(self, row: Row, refusal: Refusal) -> UnpublishableError | None:
        """Why a change cannot be told; None where it can."""
        writer = EventWriter(self.settings, self.tables.get, known=self._writers)
        try:
            self._change(writer, row, refusal)
        except UnpublishableError as exc:
            return exc
        return None

    def _is_left_out(self, row: Row) -> bool:
        """Whether a change is in its table's copy already, or is of the table's definition."""
        name = TableName(row[c.SCHEMA_NAME], row[c.TABLE_NAME])
        return bool(row[c.COMMIT_SCN] <= self.copied.get(name, 0) or row[c.OP] == Op.DDL)

    def _change(self, writer: EventWriter, row: Row, refusal: Refusal) -> list[OutgoingRecord]:
        """The records of a change.

        Raises:
            UntellableError: It cannot be told as an event.
        """
        name, scn = TableName(row[c.SCHEMA_NAME], row[c.TABLE_NAME]), row[c.COMMIT_SCN]
        op = Op(row[c.OP])
        if self._is_left_out(row):
            return []
        if op is Op.GAP:
            raise untold(name, scn)
        # What is wrong with the table as a whole is no value's fault, and is raised as it is.
        table = writer.table(name, row[c.TABLE_VERSION])
        with _named(name, row[c.OP], row[c.TXN_ID], scn):
            made = list(writer.change(op, table, _image(row[c.BEFORE]), _image(row[c.AFTER]), _place(row)))
        return _checked(made, name, refusal)


def of_table_row(
    writer: EventWriter, table: TableWriter, row: Image, place: ChangePlace, refusal: Refusal
) -> OutgoingRecord:
    """Return the record of a row of a first copy; raises `UnpublishableError`."""
    with _named(table.name, "row of the first copy", "", place.commit_scn):
        record = writer.snapshot_row(table, row, place)
    return _checked([record], table.name, refusal)[0]


def put_aside(rows: Sequence[Row], numbers: Iterable[int], first: int, error: UnpublishableError) -> PutAside:
    """Make an entry of changes of a transaction, `first` being the one that cannot be told."""
    one = rows[first - 1]
    numbers = tuple(numbers)
    place = _place(one)
    return PutAside(
        number=0,
        txn_id=place.txn_id,
        commit_scn=place.commit_scn,
        committed_at_us=place.committed_at_us,
        message_number=first,
        message_count=len(rows),
        error_number=error.number,
        error_message=_message(error),
        table=TableName(one[c.SCHEMA_NAME], one[c.TABLE_NAME]),
        op=Op(one[c.OP]),
        created_at_us=time.time_ns() // 1_000,
        column=error.column,
        numbers=numbers,
        changes=tuple(_kept(rows[number - 1]) for number in numbers),
    )


def row_aside(table: TableSchema, row: Image, place: ChangePlace, error: UnpublishableError) -> PutAside:
    """Make an entry of a row of a first copy."""
    return PutAside(
        number=0,
        txn_id="snapshot",
        commit_scn=place.commit_scn,
        committed_at_us=place.committed_at_us,
        message_number=1,
        message_count=1,
        error_number=error.number,
        error_message=_message(error),
        table=table.name,
        op=Op.SNAPSHOT,
        created_at_us=time.time_ns() // 1_000,
        column=error.column,
        numbers=(1,),
        changes=(KeptChange(Op.SNAPSHOT, table.name, table.version, None, row, place.scn, {}),),
    )


def _kept(row: Row) -> KeptChange:
    place, name = _place(row), TableName(row[c.SCHEMA_NAME], row[c.TABLE_NAME])
    before, after = _image(row[c.BEFORE]), _image(row[c.AFTER])
    return KeptChange(Op(row[c.OP]), name, row[c.TABLE_VERSION], before, after, place.scn, place.more)


def _message(error: UnpublishableError) -> str:
    return f"{error.what} ({error.where})" if error.where else error.what


def _checked(records: list[OutgoingRecord], table: TableName, refusal: Refusal) -> list[OutgoingRecord]:
    for record in records:
        why = refusal(record)
        if why is not None:
            raise UnpublishableError(
                f"an event {why}",
                where=f"table {table}",
                do="raise that limit, or leave columns out by a rule",
                number=VALUE_TOO_LONG,
            )
    return records


@contextmanager
def _named(table: TableName, op: str, txn_id: str, scn: int) -> Iterator[None]:
    """Name the change that the block tells, where it cannot be told; never with a value."""
    where = f"table {table}, {op}" + (f" of transaction {txn_id}" if txn_id else "") + f", position {scn}"
    try:
        yield
    except UnpublishableError as exc:
        raise UnpublishableError(exc.what, where=where, do=exc.do, column=exc.column, number=exc.number) from exc
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error) as exc:
        # Its text may repeat the value.
        what = f"the format cannot carry a value of the row ({type(exc).__name__})"
        raise UnpublishableError(what, where=where, do="leave the column out by a rule") from None


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        chosen = batch.select(_COLUMNS)
        at = chosen.schema.get_field_index(c.COMMITTED_AT)
        chosen = chosen.set_column(at, c.COMMITTED_AT, chosen.column(at).cast(pa.int64()))
        for first in range(0, chosen.num_rows, _ROWS):
            yield from chosen.slice(first, _ROWS).to_pylist()


def _image(text: str | None) -> Mapping[str, str | None] | None:
    if text is None:
        return None
    try:
        image: Mapping[str, str | None] = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise MalformedInputError("image is not JSON", where="changes to be published") from None
    return image


def _place(row: Mapping[str, Any]) -> ChangePlace:
    at, scn, meta = row[c.COMMITTED_AT], row[c.SCN], row[c.META]
    return ChangePlace(
        txn_id=row[c.TXN_ID],
        commit_scn=row[c.COMMIT_SCN],
        # Where the source does not know the time, it was at least before now.
        committed_at_us=time.time_ns() // 1_000 if at is None else at,
        scn=row[c.COMMIT_SCN] if scn is None else scn,
        seq=0,
        snapshot=STREAMING,
        more=orjson.loads(meta).get("debezium", {}) if meta else {},
    )


def untold(table: TableName, scn: int) -> UnpublishableError:
    """The error for a change that was not captured."""
    return UnpublishableError(
        "a change could not be captured, and no event can tell that",
        where=f"table {table}, position {scn}",
        do="leave the table out by rules.exclude, or begin anew with another prefix and pipeline name",
        number=NOT_CAPTURED,
    )
