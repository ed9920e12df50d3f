"""Rows of the change stream as the records of a Debezium connector."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from penstock import change as c
from penstock.change import Op, TableName
from penstock.errors import MalformedInputError, OperatorError
from penstock.formats.debezium.source_block import STREAMING, Place
from penstock.formats.debezium.writer import EventSettings, EventWriter, Record, TableWriter
from penstock.position import Scn
from penstock.schema import Dictionary, TableSchema

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


@dataclass(frozen=True)
class Events:
    """What tasks need to make events of changes; travels to them.

    Attributes:
        tables: Every version that a change may name.
        copied: The position of the copy of each table, and of each partition: what it holds is not told again.
    """

    settings: EventSettings
    tables: Dictionary = field(default_factory=Dictionary)
    copied: Mapping[TableName, Scn] = field(default_factory=dict)
    _writers: dict[tuple[TableName, int], TableWriter] = field(default_factory=dict, repr=False, compare=False)

    def of_changes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
        """Yield the records of whole transactions in commit order, BEGIN and END included.

        Raises:
            OperatorError: A change cannot be told as an event.
            MalformedInputError: Changes come in another order.
        """
        writer = EventWriter(self.settings, self.tables.get, known=self._writers)
        at = Scn(0)
        for row in _rows(batches):
            name = TableName(row[c.SCHEMA_NAME], row[c.TABLE_NAME])
            scn = row[c.COMMIT_SCN]
            if scn < at:
                raise MalformedInputError("changes are not in commit order", where="changes to be published")
            at = scn
            op = Op(row[c.OP])
            if scn <= self.copied.get(name, 0) or op is Op.DDL:
                continue
            if op is Op.GAP:
                raise _untold(name, scn)
            table = writer.table(name, row[c.TABLE_VERSION])
            yield from writer.change(op, table, _image(row[c.BEFORE]), _image(row[c.AFTER]), _place(row))
        yield from writer.end()

    def of_rows(
        self, table: TableSchema, batches: Iterable[pa.RecordBatch], place: Place, mark: Callable[[], str]
    ) -> Iterator[Record]:
        """Yield the records of rows of a first copy.

        Args:
            batches: Columns of canonical text, each called as the table's.
            mark: Returns the snapshot mark of the next row.
        """
        writer = EventWriter(self.settings, lambda *_: table)
        of_table = writer.table(table.name, table.version)
        for batch in batches:
            for first in range(0, batch.num_rows, _ROWS):
                for row in batch.slice(first, _ROWS).to_pylist():
                    yield writer.snapshot_row(of_table, row, place._replace(snapshot=mark()))


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


def _place(row: Mapping[str, Any]) -> Place:
    at, scn, meta = row[c.COMMITTED_AT], row[c.SCN], row[c.META]
    return Place(
        txn_id=row[c.TXN_ID],
        commit_scn=row[c.COMMIT_SCN],
        # Where the source does not know the time, it was at least before now.
        committed_at_us=time.time_ns() // 1_000 if at is None else at,
        scn=row[c.COMMIT_SCN] if scn is None else scn,
        seq=0,
        snapshot=STREAMING,
        more=orjson.loads(meta).get("debezium", {}) if meta else {},
    )


def _untold(table: TableName, scn: int) -> OperatorError:
    return OperatorError(
        "a change could not be captured, and no event can tell that",
        where=f"table {table}, position {scn}",
        do="leave the table out by rules.exclude, or begin anew with another prefix and pipeline name",
    )
