"""Rows of the change stream as the records of a Debezium connector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock import change as c
from penstock.apply.apply_errors import VALUE_TOO_LONG
from penstock.change import Change, Image, Op, TableName
from penstock.errors import PenstockError, TableError
from penstock.formats.debezium.source_block import STREAMING, ChangePlace
from penstock.formats.debezium.writer import (
    EventSettings,
    EventWriter,
    OutgoingRecord,
    TableWriter,
    UnpublishableError,
    topic_faults,
)
from penstock.position import Scn
from penstock.schema import Dictionary, TableSchema
from penstock.sinks.events.encoding import (
    ROWS_AT_ONCE,
    CopyPlace,
    Encoder,
    NumberedRow,
    RecordFormat,
    Refusal,
    Row,
    TransactionInfo,
    image_of,
    named,
    out_of_order,
    place_of,
    row_aside,
    rows_of,
    takes_all,
    told_or_aside,
    untold,
)
from penstock.sinks.events.put_aside import OnBadValue, PutAside


@dataclass(frozen=True)
class EventFormat(RecordFormat):
    """Change events as a format of records."""

    settings: EventSettings

    def encoder(self, tables: Dictionary, copied: Mapping[TableName, Scn]) -> EventEncoder:
        """What makes events of changes."""
        return EventEncoder(self.settings, tables, copied)

    def faults(self, tables: Sequence[TableName]) -> Sequence[TableError]:
        """Say which tables have no topic of their own."""
        return topic_faults(self.settings, tables)


@dataclass(frozen=True)
class EventEncoder(Encoder):
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
            UnpublishableError: A change cannot be told as an event.
            MalformedInputError: Changes come in another order.
        """
        writer = EventWriter(self.settings, self.tables.get, known=self._writers)
        at = Scn(0)
        for row in rows_of(batches):
            if row[c.COMMIT_SCN] < at:
                raise out_of_order()
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

        def tell(rows: Sequence[NumberedRow]) -> TransactionInfo:
            return self._told(writer, [row for _, row in rows], refusal)

        def fault(row: NumberedRow) -> UnpublishableError | None:
            return self._fault(row[1], refusal)

        return told_or_aside(batches, tell, fault, on_bad_value)

    def of_rows(
        self,
        table: TableSchema,
        batches: Iterable[pa.RecordBatch],
        place: CopyPlace,
        *,
        refusal: Refusal = takes_all,
        aside: list[PutAside] | None = None,
    ) -> Iterator[OutgoingRecord]:
        """Yield the records of rows of a first copy; see `Encoder`."""
        writer = EventWriter(self.settings, lambda *_: table)
        of_table = writer.table(table.name, table.version)
        for batch in batches:
            for first in range(0, batch.num_rows, ROWS_AT_ONCE):
                for row in batch.slice(first, ROWS_AT_ONCE).to_pylist():
                    try:
                        at = place.place._replace(snapshot=place.mark())
                        record = of_table_row(writer, of_table, row, at, refusal)
                    except UnpublishableError as exc:
                        if aside is None:
                            raise
                        aside.append(row_aside(table, row, place.place, exc))
                    else:
                        yield record

    def again(self, entry: PutAside, changes: Sequence[tuple[int, Change]], refusal: Refusal) -> list[OutgoingRecord]:
        """Return the records of an entry of the error queue; `changes` may have other values than it has.

        Raises:
            UnpublishableError: One cannot be told still.
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
            with named(change.table, change.op.value, entry.txn_id, entry.commit_scn):
                made = list(writer.change(change.op, table, change.before, change.after, place))
            records += _checked(made, change.table, refusal)
        return [*records, *writer.end()]

    def numbered(self, records: Iterable[OutgoingRecord], before: int) -> Iterable[OutgoingRecord]:
        """Return events as they are, which have no numbers."""
        return records

    def _told(self, writer: EventWriter, rows: Sequence[Row], refusal: Refusal) -> TransactionInfo:
        try:
            records = [record for row in rows for record in self._change(writer, row, refusal)]
        except PenstockError:
            writer.forget()
            raise
        records += writer.end()
        told = [row for row in rows if not self._is_left_out(row)] if records else []
        by_table = Counter((TableName(row[c.SCHEMA_NAME], row[c.TABLE_NAME]), str(row[c.OP])) for row in told)
        return TransactionInfo(records, len(told), by_table=by_table)

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
            UnpublishableError: It cannot be told as an event.
        """
        name, scn = TableName(row[c.SCHEMA_NAME], row[c.TABLE_NAME]), row[c.COMMIT_SCN]
        op = Op(row[c.OP])
        if self._is_left_out(row):
            return []
        if op is Op.GAP:
            raise untold(name, scn)
        # What is wrong with the table as a whole is no value's fault, and is raised as it is.
        table = writer.table(name, row[c.TABLE_VERSION])
        with named(name, row[c.OP], row[c.TXN_ID], scn):
            made = list(writer.change(op, table, image_of(row[c.BEFORE]), image_of(row[c.AFTER]), place_of(row)))
        return _checked(made, name, refusal)


def of_table_row(
    writer: EventWriter, table: TableWriter, row: Image, place: ChangePlace, refusal: Refusal
) -> OutgoingRecord:
    """Return the record of a row of a first copy; raises `UnpublishableError`."""
    with named(table.name, "row of the first copy", "", place.commit_scn):
        record = writer.snapshot_row(table, row, place)
    return _checked([record], table.name, refusal)[0]


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
