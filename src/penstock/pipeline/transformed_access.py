"""A source as tasks see it through rules: what they read has the names, columns and rows that the output is to have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.change import NO_VERSION, TableName
from penstock.errors import OperatorError
from penstock.rules.stream import StreamRules
from penstock.rules.table_rule import TableRule
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk, CopySource, Range
from penstock.snapshot.task import ChunkLoader, ChunkReader, SourceAccess
from penstock.stream import Reader, Slice, TableVersion


@dataclass(frozen=True, kw_only=True)
class TransformedTable(TableSchema):
    """A table as the output is to have it.

    Attributes:
        captured: The table at the source.
        rule: What becomes of its rows; None where they pass as they are.
    """

    captured: TableSchema
    rule: TableRule | None = field(compare=False)

    @classmethod
    def of(cls, captured: TableSchema, shape: TableSchema, rule: TableRule | None) -> TransformedTable:
        """A table of this shape, which a captured one becomes."""
        parts: dict[str, Any] = {name: getattr(shape, name) for name in TableSchema.__dataclass_fields__}
        return cls(**parts, captured=captured, rule=rule)


@dataclass(frozen=True)
class TransformedVersion(TableVersion):
    """A version of a table as the output is to have it.

    Attributes:
        captured: The version at the source.
        rule: What becomes of its changes; None where they pass as they are.
        is_taken: Whether its changes are processed at all.
        called: What it would be called where they are not.
    """

    captured: TableVersion
    rule: TableRule | None
    is_taken: bool
    called: TableName | None = None

    @property
    def is_left_out(self) -> bool:
        """Whether rules leave its table out."""
        return not self.is_taken

    @property
    def is_partition(self) -> bool:
        """Whether it is one at the source, where the changes of partitions get their root's name, too."""
        return self.captured.is_partition

    @property
    def number(self) -> int:
        """That of the version at the source; `table.version` says besides what rules have made of it."""
        return self.captured.number


@dataclass(frozen=True)
class TransformedReader:
    """Implements `stream.Reader`."""

    inner: Reader
    rules: StreamRules

    def open(self) -> None:
        """Open what the first `read` would have to wait for."""
        self.inner.open()

    @property
    def leaves_out(self) -> bool:
        """Whether fewer changes may be read than a slice counts; a rule may leave out any."""
        return True

    def read(self, part: Slice, *, with_key: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield what becomes of the changes of a slice; see `stream.Reader.read`."""
        read = self.inner.read(part, with_key=with_key)
        return self.rules.apply(map(self.rules.named, read) if part.has_ddl else read)


@dataclass(frozen=True)
class TransformedAccess:
    """Implements `snapshot.task.SourceAccess`."""

    inner: SourceAccess

    def reader(
        self, source: str, tables: Sequence[TableVersion], *, follows: Collection[TableName]
    ) -> TransformedReader:
        """Return a reader of what is of the tables that it follows, by the names that the output knows them by."""
        versions = [version for version in tables if isinstance(version, TransformedVersion)]
        followed = {
            version.captured.table.name
            for version in versions
            if version.is_taken and (version.table.name in follows or version.root in follows)
        }
        reader = self.inner.reader(source, [version.captured for version in versions], follows=followed)
        rules: dict[tuple[TableName, int], TableRule] = {}
        for version in sorted(versions, key=lambda version: version.number):
            if version.rule is not None:
                table = version.captured.table
                rules[table.name, table.version] = version.rule
                # A gap names its table, and no version of it.
                rules[table.name, NO_VERSION] = version.rule
        left_out = {
            (v.captured.table.name, v.captured.table.version): v.called for v in versions if v.called is not None
        }
        return TransformedReader(reader, StreamRules(rules, left_out))

    def chunk_reader(self, source: CopySource) -> TransformedChunkReader:
        """Return a reader of chunks."""
        return TransformedChunkReader(self.inner.chunk_reader(source))


class TransformedChunkReader:
    """Implements `snapshot.task.ChunkReader`."""

    def __init__(self, inner: ChunkReader) -> None:
        """Read by another reader, which knows the tables as the source does."""
        self._inner = inner

    def read_chunk(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield what becomes of the rows of a chunk."""
        captured, rule = _origin(table)
        chunk = replace(chunk, table=captured.name)
        if rule is None:
            yield from self._inner.read_chunk(captured, columns, chunk)
            return
        for batch in self._inner.read_chunk(captured, captured.column_names, chunk):
            _refuse_lacking(rule, batch.schema.names)
            made = rule.rows(batch)
            # Rows of an earlier time may lack what the table has now.
            yield made.select([name for name in columns if name in made.schema.names])

    def count_rows(self, table: TableSchema, chunk: Chunk) -> int:
        """Return how many rows become of a chunk."""
        captured, rule = _origin(table)
        if rule is None:
            return self._inner.count_rows(captured, replace(chunk, table=captured.name))
        return sum(batch.num_rows for batch in self.read_chunk(table, table.column_names, chunk))

    def raw_form(self, table: TableSchema) -> str | None:
        """Name of the form in which `read_raw` yields a table's rows; None where a rule has to see them."""
        captured, rule = _origin(table)
        return self._inner.raw_form(captured) if rule is None else None

    def read_raw(self, table: TableSchema, columns: Sequence[str], chunk: Chunk) -> Iterator[bytes]:
        """Yield the rows of a table that no rule has to see."""
        captured, _ = _origin(table)
        return self._inner.read_raw(captured, columns, replace(chunk, table=captured.name))

    def adopt(self, compared: Range, session: ChunkLoader) -> int:
        """Bring what becomes of the rows of a chunk, where it differs."""
        meant = all_rows(compared.source, compared.target)
        return self._inner.adopt(replace(meant, chunk=replace(compared.chunk, table=meant.chunk.table)), session)

    def close(self) -> None:
        """Close the session."""
        self._inner.close()


def all_rows(source: TableSchema, target: TableSchema) -> Range:
    """All rows of a table, by the source's own names, with the rule that they go through to the target."""
    captured, rule = _origin(source)
    return Range(captured, target, Chunk(captured.name, 0), rule)


def _refuse_lacking(rule: TableRule, there: Sequence[str]) -> None:
    asked = {name for one in (rule.row_filter, *rule.added.values()) if one is not None for name in one.inputs}
    lacking = sorted(asked - set(there))
    if lacking:
        raise OperatorError(
            f"rows of table {rule.source.name} were copied before it had {', '.join(map(repr, lacking))}, which its"
            " rules look at",
            do="take that out of the rules, or begin with a later copy",
        )


def _origin(table: TableSchema) -> tuple[TableSchema, TableRule | None]:
    return (table.captured, table.rule) if isinstance(table, TransformedTable) else (table, None)
