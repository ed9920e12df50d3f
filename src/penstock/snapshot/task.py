"""The task that copies a few chunks: rows go from source to target inside it, not through Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.apply.apply_errors import VALUE_MALFORMED, ApplyError, ContentionError, SpeculationError
from penstock.apply.parameters import OnBadRow
from penstock.apply.target import TargetTable
from penstock.apply.task import Target
from penstock.change import Image, TableName
from penstock.database import LockedError
from penstock.errors import FencedError, MalformedInputError, OperatorError, TableError
from penstock.logical import Kind
from penstock.schema import Column, TableSchema
from penstock.snapshot.chunk import Chunk, CopySource, Range
from penstock.snapshot.rows import RowsAside
from penstock.stream import Reader, TableVersion


class ChunkReader(Protocol):
    """Reads chunks at the source, one after the other, as of one snapshot. Opens its session when first needed."""

    def read_chunk(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk, as of the source's snapshot; columns of canonical text."""

    def raw_form(self, table: TableSchema) -> str | None:
        """Name of the form in which `read_raw` yields a table's rows; None where it cannot."""

    def count_rows(self, table: TableSchema, chunk: Chunk) -> int:
        """Return how many rows a chunk has."""

    def read_raw(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> Iterator[bytes]:
        """Yield the same rows as blocks of bytes, which a target that takes this form can write as they are.

        A session must still hold the snapshot.
        """

    def adopt(self, compared: Range, session: ChunkLoader) -> int:
        """Bring the rows of a chunk that differ at a target that holds rows already.

        Returns:
            How many rows the chunk has at the source.
        """

    def close(self) -> None:
        """Close the session."""


class ChunkLoader(ABC):
    """What copying needs of a target session, which takes rows in bulk and replaces those that differ."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Begin; commit at the end of the block, or roll back if it raises."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """Undo what the block did if it raises, and nothing else."""

    @abstractmethod
    def unfit_column(self, table: TargetTable, image: Image) -> str | None:
        """Name the first column that does not take its value of `image`; None where each one does."""

    @abstractmethod
    def replace(
        self, table: TargetTable, gone: pa.Table, rows: pa.Table, *, clears_the_way: Collection[tuple[str, ...]]
    ) -> None:
        """Delete the rows that have these keys, and insert rows; columns that only the target has keep their values.

        Args:
            gone: Key columns, of canonical text.
            rows: Whole rows, of canonical text.
            clears_the_way: Columns of unique keys: rows that hold such a value of one that is inserted are deleted,
                too, where the target has no columns of its own.

        Raises:
            ApplyError: The target refuses a row.
            SpeculationError: It did not take every row, as where a trigger of its own keeps one away.
        """

    @abstractmethod
    def delete_equal(self, table: TargetTable, columns: Sequence[str], counts: Mapping[str, int]) -> None:
        """Delete so many of the rows whose columns have a digest."""

    @abstractmethod
    def load(self, table: TargetTable, rows: pa.Table) -> None:
        """Insert rows that need no further check."""

    @abstractmethod
    def load_defaults(self, table: TargetTable, rows: int) -> None:
        """Insert so many rows of which the target makes every column itself."""

    @property
    @abstractmethod
    def raw_form(self) -> str:
        """Name of the form that `load_raw` takes."""

    @abstractmethod
    def load_raw(self, table: TargetTable, columns: Sequence[str], blocks: Iterable[bytes]) -> int:
        """Insert rows as they come, and return how many there were."""

    @abstractmethod
    def rows_aside(self) -> RowsAside:
        """Open a session that reads beside this one."""

    @abstractmethod
    def open_chunk(self, process: str, epoch: int, chunk: Chunk) -> bool | None:
        """Lock a chunk's mark; False when it is done already, None when this run is over or it is not a chunk."""

    @abstractmethod
    def close_chunk(self, process: str, chunk: Chunk, rows: int) -> None:
        """Mark a chunk as done."""

    @abstractmethod
    def widening(self, table: TargetTable, source: Column) -> str | None:
        """Return the statement that makes a column hold all that the source's may; None where no type is wider."""

    @abstractmethod
    def put_row_aside(self, process: str, table: TargetTable, row: Image, error: ApplyError) -> None:
        """Put a row that the target refuses into the error queue, behind the table's copy; a retry writes it."""


class SourceAccess(Protocol):
    """How a task reaches the source: its changes, and the rows of a first copy. It travels to tasks."""

    def reader(self, source: str, tables: Sequence[TableVersion], *, follows: Collection[TableName]) -> Reader:
        """Return a reader of what is of the tables that it follows, by their names or those of their roots.

        Args:
            source: What the column of that name says.
            tables: Every version that a change may name.
        """

    def chunk_reader(self, source: CopySource) -> ChunkReader:
        """Return a reader; it travels no further."""


class TargetAccess(Target):
    """How a task reaches the target: to apply changes, and to copy."""

    @abstractmethod
    def loader(self, epoch: int) -> ChunkLoader:
        """Return this worker's session for a run of the process."""


@dataclass(frozen=True)
class CopyContext:
    """What is the same for all chunks of a run.

    Attributes:
        adopted: Tables whose rows at the target are compared, and kept where they are as they must be.
        on_bad_row: What becomes of a row that the target refuses; one of an adopted table ends the copy.
    """

    process: str
    epoch: int
    source: SourceAccess
    target: TargetAccess
    source_tables: Mapping[TableName, TableSchema]
    target_tables: Mapping[TableName, TargetTable]
    adopted: Collection[TableName] = ()
    on_bad_row: OnBadRow = OnBadRow.STOP


def copy_chunks(chunks: Sequence[Chunk], source: CopySource, context: CopyContext) -> int:
    """Copy chunks in one target transaction; returns the number of rows, without those of an earlier attempt.

    Raises:
        FencedError: Another run of the process has taken over.
        TableError: A table cannot be read, or does not take a row of the source; or another session keeps it locked.
    """
    session = context.target.loader(context.epoch)
    with closing(context.source.chunk_reader(source)) as reader:
        try:
            with session.transaction():
                return sum(_copy(chunk, source, context, reader, session) for chunk in chunks)
        except ApplyError:
            # Once more, to find the row: so nothing is paid for it where all is well.
            with session.transaction():
                return sum(_copy(chunk, source, context, reader, session, sifts=True) for chunk in chunks)


def _copy(
    chunk: Chunk,
    source: CopySource,
    context: CopyContext,
    reader: ChunkReader,
    session: ChunkLoader,
    *,
    sifts: bool = False,
) -> int:
    """Copy a chunk; `sifts`: find the rows that the target refuses, and do with them what the context says."""
    is_todo = session.open_chunk(context.process, context.epoch, chunk)
    if is_todo is None:
        raise FencedError("another run has taken over", where=f"copy of {chunk.table}, chunk {chunk.number}")
    if not is_todo:
        return 0
    with about(chunk.table):
        rows = _load(chunk, source, context, reader, session, sifts=sifts)
    session.close_chunk(context.process, chunk, rows)
    return rows


@contextmanager
def about(table: TableName) -> Iterator[None]:
    """Raise what is in the way of a table as a `TableError`, which keeps no other one from being copied."""
    try:
        yield
    except (OperatorError, MalformedInputError, LockedError) as exc:
        raise exc if isinstance(exc, TableError) else TableError.of(exc, (table.schema, table.name)) from exc
    except ContentionError as exc:
        if not exc.is_lock:
            raise
        raise TableError.of(exc, (table.schema, table.name)) from exc


def _load(
    chunk: Chunk,
    source: CopySource,
    context: CopyContext,
    reader: ChunkReader,
    session: ChunkLoader,
    *,
    sifts: bool,
) -> int:
    """Write a chunk's rows; returns how many there are."""
    table, target = context.source_tables[chunk.table], context.target_tables[chunk.table]
    columns = [c.name for c in table.columns if not target.schema.by_name[c.name].is_generated]
    rows = 0
    try:
        if chunk.table in context.adopted:
            rows = reader.adopt(Range(table, target.schema, chunk), session)
        elif not columns:
            rows = reader.count_rows(table, chunk)
            session.load_defaults(target, rows)
        elif sifts:
            sieve = _Sieve(session, context, target)
            for batch in reader.read_chunk(table, columns, chunk):
                rows += sieve.load(pa.Table.from_batches([batch]))
        elif source.exported is not None and _is_raw(table, target, columns, reader, session):
            rows = session.load_raw(target, columns, reader.read_raw(table, columns, chunk))
        else:
            for batch in reader.read_chunk(table, columns, chunk):
                session.load(target, pa.Table.from_batches([batch]))
                rows += batch.num_rows
    except ApplyError as exc:
        if sifts:
            told = table.by_name.get(exc.column or "") if exc.is_of_value else None
            widening = None if told is None else session.widening(target, told)
            raise _refused(target, exc, widening) from exc
        raise
    except SpeculationError as exc:
        raise OperatorError(
            f"cannot copy table {chunk.table}: the target did not take every row of the source ({exc.what})",
            do="see whether a trigger or rule of its own keeps rows away, or take the table out of capture.tables",
        ) from exc
    return rows


def _is_raw(
    table: TableSchema, target: TargetTable, columns: Sequence[str], reader: ChunkReader, session: ChunkLoader
) -> bool:
    """Whether rows may go to the target as they come: the text of each column means the same in both databases."""
    there = target.schema.by_name
    return reader.raw_form(table) == session.raw_form and all(
        there[name].notation == table.by_name[name].notation for name in columns
    )


class _Sieve:
    """Loads rows, and parts those that the target refuses from the rest."""

    def __init__(self, session: ChunkLoader, context: CopyContext, target: TargetTable) -> None:
        self._session = session
        self._context = context
        self._target = target

    def load(self, rows: pa.Table) -> int:
        """Load rows, all at once if that can be; returns how many were loaded.

        Raises:
            ApplyError: The target refuses one, and such rows are not put aside.
        """
        try:
            with self._session.savepoint():
                self._session.load(self._target, rows)
        except ApplyError as exc:
            if len(rows) > 1:
                middle = len(rows) // 2
                return self.load(rows.slice(0, middle)) + self.load(rows.slice(middle))
            self._refuse(rows.to_pylist()[0], exc)
            return 0
        return len(rows)

    def _refuse(self, row: Image, error: ApplyError) -> None:
        if error.column is None and error.may_be_of_value:
            column = self._session.unfit_column(self._target, row)
            if column is not None:
                error = error.with_column(column, self._target.schema.by_name[column].type)
        if self._context.on_bad_row is not OnBadRow.PUT_ASIDE:
            raise error
        self._session.put_row_aside(self._context.process, self._target, row, error)


def _refused(target: TargetTable, error: ApplyError, widening: str | None) -> OperatorError:
    altered = "alter the table" if error.column is None else f"alter column {error.column!r}"
    altered += " at the target so that it takes what the source holds; or "
    if widening is not None:
        altered = f"widen column {error.column!r} at the target: {widening}; or "
    elif _is_no_text(target, error):
        altered = ""
    return OperatorError(
        f"cannot copy table {target.name}: the target refuses a row: {error.what}",
        where=f"key of the table: {', '.join(target.key.columns)}" if target.key.is_declared else "",
        do=f"{altered}change the value by a rule; or set"
        " apply.on_bad_row to put_aside, which has such rows wait in the error queue; or take the table out of"
        " capture.tables; then run again",
    )


def _is_no_text(target: TargetTable, error: ApplyError) -> bool:
    """Whether a column of text refuses what no text can be: no other column of text would take it."""
    column = target.schema.by_name.get(error.column or "")
    return column is not None and column.logical.kind is Kind.STRING and error.number == VALUE_MALFORMED
