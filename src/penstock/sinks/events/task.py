"""The two tasks of publishing events: the changes of a slice, and chunks of a first copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import ClassVar

import pyarrow as pa

from penstock.apply.table_counts import TableCounts
from penstock.change import TableName
from penstock.errors import OperatorError, RetryableError, TooManyErrorsError
from penstock.formats.debezium.source_block import STREAMING, ChangePlace
from penstock.formats.debezium.writer import OutgoingRecord, UnpublishableError
from penstock.position import Limit
from penstock.schema import TableSchema
from penstock.sinks.events.encoding import CopyPlace, Encoder
from penstock.sinks.events.publisher import EventDestination, Publisher, PublishTransaction, open_for_run
from penstock.sinks.events.put_aside import OnBadValue, PutAside
from penstock.sinks.events.state import OpenPublishedCopy, PublishedState, StateEntry
from penstock.sinks.reading import in_commit_order, read_rows
from penstock.snapshot.chunk import CopySource
from penstock.snapshot.task import ChunkReader, SourceAccess, about
from penstock.stream import Reader, Slice

_AT_ONCE_CHANGES = 20_000
_AT_ONCE_BYTES = 16 * 1024 * 1024
"""What is published at once ends with the source transaction that reaches one of these."""

_MOST_ERRORS = 10_000
"""The error queue is read whole whenever a run begins, and stands in each file."""

_MOST_BAD_ROWS = 100
"""A table of which a chunk has more rows that cannot be told is left out of the first copy."""

_EVERYTHING = Limit(1 << 62, 1 << 62, 1 << 62, 1 << 62, 1 << 62)


@dataclass(frozen=True)
class Published:
    """What a task has done.

    Attributes:
        published_state: Where the pipeline stands now.
        token: Of the publisher that is the only one now.
        tables: What was published, by table and operation.
    """

    published_state: PublishedState
    token: str
    tables: TableCounts = field(default_factory=TableCounts)


@dataclass
class _Sent:
    """What of a window was sent, or put aside: so many transactions, with so many changes, as so many records."""

    transactions: int = 0
    changes: int = 0
    records: int = 0
    aside: list[PutAside] = field(default_factory=list)
    tables: TableCounts = field(default_factory=TableCounts)


@dataclass(frozen=True)
class EventTask:
    """Publishes for one run; travels to tasks. A worker keeps its publisher as long as no other one was opened."""

    log: EventDestination
    epoch: int
    events: Encoder
    on_bad_value: OnBadValue = OnBadValue.STOP

    _kept: ClassVar[dict[str, Publisher]] = {}

    def publish(self, part: Slice, reader: Reader, token: str) -> Published:
        """Publish the transactions of a slice that were not published yet, some of them at once.

        Args:
            token: Of the publisher that is known to be the only one; another one is opened where it is not here.

        Raises:
            FencedError: Another run has begun.
            RetryableError: Another task or run has taken over, or the sink or the source is out of reach.
            OperatorError: A change cannot be told as an event.
        """
        tables = TableCounts()
        publisher = self._publisher(token, is_large=part.is_large)
        rest = _behind(part, publisher.published_state, where=self.log.where)
        if rest is not None and len(rest) == 0:
            with publisher.transaction() as transaction:
                published_state = publisher.published_state.behind(rest, 0, 0)
                transaction.stand(published_state, published_state.position_entry)
        elif rest is not None:
            is_large = part.is_large
            windows = [rest] if is_large else rest.windows(repeat(_AT_ONCE_CHANGES), _AT_ONCE_BYTES)
            for window in windows:
                batches = reader.read(window)
                with publisher.transaction() as transaction:
                    send = self._send_large if is_large else self._send
                    sent = send(batches, transaction)
                    published_state = publisher.published_state.behind(window, sent.transactions, sent.changes)
                    published_state = published_state.with_records(sent.records)
                    published_state, entries = self._put_aside(published_state, sent.aside)
                    transaction.stand(published_state, published_state.position_entry, *entries)
                tables.add(sent.tables)
        return replace(self._done(publisher, keep=not part.is_large), tables=tables)

    def _send(self, batches: Iterable[pa.RecordBatch], transaction: PublishTransaction) -> _Sent:
        """Send the transactions of a window."""
        sent, in_order = _Sent(), in_commit_order(batches)

        def records() -> Iterator[OutgoingRecord]:
            for told in self.events.of_transactions(in_order, transaction.refusal, self.on_bad_value):
                sent.transactions += told.changes > 0
                sent.changes += told.changes
                sent.tables.changes.update(told.by_table)
                sent.tables.transactions.update(told.by_table.keys())
                sent.aside += [told.aside] if told.aside is not None else []
                yield from told.records

        sent.records = transaction.send(self._numbered(records(), transaction))
        return sent

    def _send_large(self, batches: Iterable[pa.RecordBatch], transaction: PublishTransaction) -> _Sent:
        """Send a transaction that is too large to be held, and so to be put aside."""
        sent = _Sent()

        def counted() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                sent.changes += batch.num_rows
                sent.tables.add_rows(pa.Table.from_batches([batch]))
                yield batch

        try:
            records = self.events.of_changes(counted(), transaction.refusal)
            sent.records = transaction.send(self._numbered(records, transaction))
            sent.transactions = int(sent.records > 0)
        except UnpublishableError as exc:
            if self.on_bad_value is OnBadValue.STOP:
                raise
            do = "a transaction of this size cannot go to the error queue. Leave the column out by a rule"
            raise UnpublishableError(exc.what, where=exc.where, do=do, column=exc.column, number=exc.number) from exc
        if not sent.transactions:
            # It is of tables alone whose copies hold it already.
            sent.changes, sent.tables = 0, TableCounts()
        sent.tables = sent.tables.as_one_transaction()
        return sent

    def _numbered(
        self, records: Iterable[OutgoingRecord], transaction: PublishTransaction, sent: int = 0
    ) -> Iterable[OutgoingRecord]:
        """Number records behind those that were published, and those that were sent in this transaction."""
        return self.events.numbered(records, transaction.published_state.records + sent)

    def _put_aside(
        self, published_state: PublishedState, aside: Sequence[PutAside]
    ) -> tuple[PublishedState, list[StateEntry]]:
        """Add to the error queue.

        Raises:
            TooManyErrorsError: It is full.
        """
        if aside and len(published_state.errors) + len(aside) > _MOST_ERRORS:
            raise TooManyErrorsError(
                f"publishing stopped: the error queue holds {len(published_state.errors):,} transactions, and takes"
                f" {_MOST_ERRORS:,}; the next is {aside[0].error_message}",
                where=self.log.where,
                do="fix the cause, for example by a rule that leaves the column out, and retry or delete them",
            )
        return published_state.putting_aside(aside)

    def copy(self, work: Sequence[CopyWork], access: SourceAccess, token: str) -> Published:
        """Publish the rows of chunks that were not published yet, a Kafka transaction for each piece of work.

        All pieces are of one copy, and as of one moment. Raises as `publish` does.

        Raises:
            TableError: A table cannot be read, or a row of it not be told as an event.
        """
        publisher = self._publisher(token)
        with closing(access.chunk_reader(work[0].source)) as reader:
            for piece in work:
                self._copy(piece, publisher, reader)
        return self._done(publisher, keep=True)

    def _copy(self, piece: CopyWork, publisher: Publisher, reader: ChunkReader) -> None:
        copy = publisher.published_state.copies.get(piece.copy)
        if copy is None:
            # No other run has begun, so a person has cancelled it: the run looks again at what there is to copy.
            raise RetryableError("the copy was cancelled", where=self.log.where)
        todo = {number: chunk for number, chunk in copy.todo.items() if number in piece.numbers}
        if not todo:
            return
        marks = _Marks(copy, is_last=copy.todo.keys() == todo.keys())
        place = ChangePlace("", copy.cut.scn, copy.taken_at_us, copy.cut.scn, 0, STREAMING, {})
        sent: Counter[TableName] = Counter()
        aside: list[PutAside] = []
        keeps = self.on_bad_value is not OnBadValue.STOP
        with publisher.transaction() as transaction:
            for number, chunk in todo.items():
                table = piece.tables[chunk.table]
                marks.is_last_chunk = number == next(reversed(todo))
                batches = marks.watch(read_rows(reader, table, chunk))
                with about(chunk.table):
                    bad: list[PutAside] = []
                    records = self.events.of_rows(
                        table,
                        batches,
                        CopyPlace(
                            place,
                            copy.records.get(chunk.table, 0) + sent[chunk.table],
                            marks.next,
                            copy.number,
                            chunk.table in copy.drops,
                        ),
                        refusal=transaction.refusal,
                        aside=bad if keeps else None,
                    )
                    numbered = self._numbered(_few_bad(records, bad), transaction, sent.total())
                    sent[chunk.table] += transaction.send(numbered)
                    aside += bad
            done = copy.without_chunks(todo, marks.rows - len(aside), sent)
            published_state = publisher.published_state.with_copy(done).with_records(sent.total())
            published_state, entries = self._put_aside(published_state, aside)
            transaction.stand(published_state, *done.progress(todo), published_state.position_entry, *entries)

    def _publisher(self, token: str, *, is_large: bool = False) -> Publisher:
        """The publisher with a token if this process has it; otherwise a new one."""
        kept = self._kept.pop(self.log.where, None)
        if kept is not None and kept.token == token and not is_large:
            return kept
        if kept is not None:
            kept.close()
        return open_for_run(self.log, self.epoch, is_large=is_large)

    def _done(self, publisher: Publisher, *, keep: bool) -> Published:
        # Kept only now: one that has failed is of no use.
        if keep:
            self._kept[self.log.where] = publisher
        else:
            publisher.close()
        return Published(publisher.published_state, publisher.token)


@dataclass(frozen=True)
class CopyWork:
    """Some chunks of a copy.

    Attributes:
        copy: Its id.
        numbers: Of the chunks.
        tables: The tables as they are at the source.
    """

    copy: str
    numbers: Sequence[int]
    source: CopySource
    tables: Mapping[TableName, TableSchema] = field(default_factory=dict)


def _few_bad(records: Iterable[OutgoingRecord], bad: Sequence[PutAside]) -> Iterator[OutgoingRecord]:
    """Pass records on, as long as few rows beside them are put aside; otherwise it is the table that is left out."""
    yield from records
    if len(bad) > _MOST_BAD_ROWS:
        what = f"{bad[0].error_message}, and so it is with {len(bad) - 1:,} more rows"
        raise OperatorError(what, do="leave the column out by a rule, or compute another one in its place")


class _Marks:
    """Says how each row of a copy is marked: the first and the last of all, and those in between."""

    def __init__(self, copy: OpenPublishedCopy, *, is_last: bool) -> None:
        self._copy = copy
        self._has_begun = copy.rows > 0
        self._is_last = is_last
        self._left = 0
        self.is_last_chunk = False
        self.rows = 0

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on the batches of a chunk, and know where they end."""
        held: pa.RecordBatch | None = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            self.rows += batch.num_rows
            if held is not None:
                self._left = -1
                yield held
            held = batch
        if held is not None:
            self._left = held.num_rows
            yield held

    def next(self) -> str:
        """The mark of the next row."""
        self._left -= 1
        if not self._copy.is_first:
            return "incremental"
        is_end = self._is_last and self.is_last_chunk and self._left == 0
        mark = "last" if is_end else "true" if self._has_begun else "first"
        self._has_begun = True
        return mark


def _behind(part: Slice, published_state: PublishedState, *, where: str) -> Slice | None:
    """What of a slice was not published yet; None where all of it was."""
    if published_state.position >= part.end:
        return None
    if published_state.position < part.after:
        raise RetryableError(
            f"the pipeline stands at position {published_state.position}, before what is to be published next",
            where=where,
            do="see whether records that said so were deleted there; the next run goes on from where it stands",
        )
    if published_state.position == part.after:
        return part
    return part if part.is_large else part.take(published_state.position, _EVERYTHING, None)
