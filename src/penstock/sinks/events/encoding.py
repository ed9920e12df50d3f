"""What makes records of changes: what every format has to say, and what all of them share."""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, TypeAlias

import orjson
import pyarrow as pa

from penstock import change as c
from penstock.apply.apply_errors import NOT_CAPTURED
from penstock.apply.table_counts import TableOp
from penstock.change import Change, Image, Op, TableName
from penstock.errors import MalformedInputError, PenstockError
from penstock.formats.debezium.source_block import STREAMING, ChangePlace
from penstock.formats.debezium.writer import OutgoingRecord, UnpublishableError
from penstock.position import Scn
from penstock.schema import Dictionary, TableSchema
from penstock.sinks.events.put_aside import KeptChange, OnBadValue, PutAside
from penstock.sinks.events.state import OpenPublishedCopy, PublishedState

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

ROWS_AT_ONCE = 5_000
"""So many rows of a batch are Python objects at a time."""


Row: TypeAlias = Mapping[str, Any]
"""A row of the change stream."""

Refusal: TypeAlias = Callable[[OutgoingRecord], str | None]
"""Says why a record cannot be published; None where it can."""

NumberedRow: TypeAlias = tuple[int, Row]
"""A row, and its number in its transaction, from 1."""


def takes_all(_: OutgoingRecord) -> None:
    """Refuse no record."""


@dataclass(frozen=True)
class TransactionInfo:
    """What is told of a transaction.

    Attributes:
        changes: How many changes it is told with, or put aside; 0 where it is left out as a whole.
        aside: What is put aside of it.
        by_table: How many changes it is told with, by table and operation.
    """

    records: Sequence[OutgoingRecord]
    changes: int
    aside: PutAside | None = None
    by_table: Mapping[TableOp, int] = field(default_factory=dict)


class CopyPlace(NamedTuple):
    """Where rows of a first copy are.

    Attributes:
        place: The moment that they are as of.
        before: How many records were published of the copy of their table before.
        mark: Returns the snapshot mark of the next row.
        number: Tells the copy from others as of the same moment; 0 for the first one.
        drops: Receivers have a table under the name, and are to drop it first.
    """

    place: ChangePlace
    before: int
    mark: Callable[[], str]
    number: int = 0
    drops: bool = False


class Encoder(ABC):
    """Makes records of changes, in one format; travels to tasks."""

    @abstractmethod
    def of_changes(self, batches: Iterable[pa.RecordBatch], refusal: Refusal) -> Iterator[OutgoingRecord]:
        """Yield the records of a transaction that is too large to be held in memory.

        Raises:
            UnpublishableError: A change cannot be told in the format.
            MalformedInputError: Changes come in another order.
        """

    @abstractmethod
    def of_transactions(
        self, batches: Iterable[pa.RecordBatch], refusal: Refusal, on_bad_value: OnBadValue
    ) -> Iterator[TransactionInfo]:
        """Yield what is told of one transaction after the other, in commit order.

        A transaction is held in memory. Raises as `of_changes` does, where nothing is to be put aside.
        """

    @abstractmethod
    def of_rows(
        self,
        table: TableSchema,
        batches: Iterable[pa.RecordBatch],
        place: CopyPlace,
        *,
        refusal: Refusal,
        aside: list[PutAside] | None,
    ) -> Iterator[OutgoingRecord]:
        """Yield the records of rows of a first copy.

        Args:
            batches: Columns of canonical text, each called as the table's.
            aside: Gets the rows that cannot be told in the format. None: they raise.
        """

    def cancelled(self, table: TableName, at: Scn, number: int) -> Sequence[OutgoingRecord]:
        """Return what tells receivers that no more rows of a table's copy come; nothing where each row stands alone.

        Args:
            at: The position that the copy is as of.
            number: See `CopyPlace`.
        """
        return ()

    @abstractmethod
    def again(
        self, entry: PutAside, changes: Sequence[tuple[int, Change]], refusal: Refusal
    ) -> Sequence[OutgoingRecord]:
        """Return the records of an entry of the error queue; `changes` may have other values than it has.

        Raises:
            UnpublishableError: One cannot be told still.
        """

    @abstractmethod
    def numbered(self, records: Iterable[OutgoingRecord], before: int) -> Iterable[OutgoingRecord]:
        """Return records with their numbers, in a format that has any; `before` were published before them."""


class RecordFormat(ABC):
    """A format of records that changes are published in.

    Attributes:
        begins_tables_anew: A copy replaces what receivers have of its table, so it can be cancelled and begun again.
            Otherwise its rows are added to what they have, and none is taken away.
    """

    begins_tables_anew: ClassVar[bool] = False

    @abstractmethod
    def encoder(self, tables: Dictionary, copied: Mapping[TableName, Scn]) -> Encoder:
        """What makes records of changes.

        Args:
            tables: Every version that a change may name.
            copied: The position of the copy of each table, and of each partition: what it holds is not told again.
        """

    @abstractmethod
    def faults(self, tables: Sequence[TableName]) -> Sequence[PenstockError]:
        """Say which tables cannot be published in the format."""


def cancellations(
    form: RecordFormat, state: PublishedState, copy: OpenPublishedCopy, tables: Iterable[TableName]
) -> Sequence[OutgoingRecord]:
    """Return what tells receivers that a copy ends without the rest of some tables, which have begun.

    Args:
        state: Where the pipeline stands, whose records the new ones are numbered behind.
    """
    encoder = form.encoder(Dictionary(), {})
    begun = [name for name in sorted(tables) if copy.records.get(name)]
    records = [one for name in begun for one in encoder.cancelled(name, copy.cut.scn, copy.number)]
    return list(encoder.numbered(records, state.records))


def told_or_aside(
    batches: Iterable[pa.RecordBatch],
    tell: Callable[[Sequence[NumberedRow]], TransactionInfo],
    fault: Callable[[NumberedRow], UnpublishableError | None],
    on_bad_value: OnBadValue,
) -> Iterator[TransactionInfo]:
    """Yield what is told of one transaction after the other, and what is put aside of it.

    Args:
        tell: Returns what is told of changes of a transaction; raises `UnpublishableError`.
        fault: Says why a change by itself cannot be told; None where it can.

    Raises:
        UnpublishableError: A change cannot be told, and nothing is to be put aside.
        MalformedInputError: Changes come in another order.
    """
    at = Scn(0)
    for scn, of_one in groupby(rows_of(batches), key=lambda row: Scn(row[c.COMMIT_SCN])):
        if scn < at:
            raise out_of_order()
        at, rows = scn, list(enumerate(of_one, start=1))
        try:
            told = tell(rows)
        except UnpublishableError as exc:
            if on_bad_value is OnBadValue.STOP:
                raise
            bad = {row[0]: error for row in rows if (error := fault(row))}
            is_whole = on_bad_value is OnBadValue.PUT_ASIDE_TRANSACTION
            # What is no single change's, such as a record of the transaction's bounds, is that of all.
            numbers = sorted(bad) if bad and not is_whole else range(1, len(rows) + 1)
            first = min(bad, default=1)
            aside = put_aside([row for _, row in rows], numbers, first, bad.get(first, exc))
            told = tell([row for row in rows if row[0] not in aside.numbers])
            told = replace(told, changes=told.changes + len(aside.numbers), aside=aside)
        yield told


def put_aside(rows: Sequence[Row], numbers: Iterable[int], first: int, error: UnpublishableError) -> PutAside:
    """Make an entry of changes of a transaction, `first` being the one that cannot be told."""
    one = rows[first - 1]
    numbers = tuple(numbers)
    place = place_of(one)
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
    place, name = place_of(row), TableName(row[c.SCHEMA_NAME], row[c.TABLE_NAME])
    before, after = image_of(row[c.BEFORE]), image_of(row[c.AFTER])
    return KeptChange(Op(row[c.OP]), name, row[c.TABLE_VERSION], before, after, place.scn, place.more)


def _message(error: UnpublishableError) -> str:
    return f"{error.what} ({error.where})" if error.where else error.what


@contextmanager
def named(table: TableName, op: str, txn_id: str, scn: int) -> Iterator[None]:
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


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield rows of the change stream; times are microseconds since 1970."""
    for batch in batches:
        chosen = batch.select(_COLUMNS)
        at = chosen.schema.get_field_index(c.COMMITTED_AT)
        chosen = chosen.set_column(at, c.COMMITTED_AT, chosen.column(at).cast(pa.int64()))
        for first in range(0, chosen.num_rows, ROWS_AT_ONCE):
            yield from chosen.slice(first, ROWS_AT_ONCE).to_pylist()


def image_of(text: str | None) -> Mapping[str, str | None] | None:
    """Read an image, as it stands in the change stream."""
    if text is None:
        return None
    try:
        image: Mapping[str, str | None] = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise MalformedInputError("image is not JSON", where="changes to be published") from None
    return image


def place_of(row: Mapping[str, Any]) -> ChangePlace:
    """Where a row of the change stream is in it."""
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


def out_of_order() -> MalformedInputError:
    """The error for changes that do not come in commit order."""
    return MalformedInputError("changes are not in commit order", where="changes to be published")
