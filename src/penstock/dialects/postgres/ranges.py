"""What differs in a range of a table, looked at in two PostgreSQL databases."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from penstock.change import Image
from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.connection import literal, quote
from penstock.dialects.postgres.source.as_of import digest, row_counts_as_of, row_counts_now, rows_as_of, rows_now
from penstock.dialects.postgres.source.snapshots import Cut
from penstock.schema import Column, TableSchema
from penstock.snapshot.chunk import Chunk, Range
from penstock.verify.compare import Difference


@dataclass(frozen=True)
class Readers:
    """A session in each of the two databases."""

    source: ArrowReader
    target: ArrowReader


@dataclass(frozen=True)
class Origin:
    """How a table's rows were at the source at some position, as SQL.

    Attributes:
        rows: A query for the rows of a range; columns of canonical text.
        counts: A query for (digest, how many rows have it) of the whole table; for a table without primary key.
    """

    rows: Callable[[Sequence[Column], Chunk], str]
    counts: Callable[[Sequence[Column]], str]


def origin_as_of(table: TableSchema, set_name: str, cut: Cut) -> Origin:
    """A table's rows at an earlier position, put right from the log's images."""
    return Origin(
        rows=lambda columns, chunk: rows_as_of(table, columns, chunk, set_name, cut),
        counts=lambda columns: row_counts_as_of(table, columns, set_name, cut),
    )


@dataclass(frozen=True)
class Look:
    """What was found in a range.

    Attributes:
        chunk: The range, in an order of keys that both sides have.
        columns: Those that were compared.
        rows: How many rows the source has in it.
        differences: All of them. Where rows have no key, one difference stands for `counts` rows of the same digest.
        counts: How many rows each difference stands for.
    """

    chunk: Chunk
    columns: Sequence[str]
    rows: int
    differences: Sequence[Difference]
    counts: Sequence[int]

    @property
    def differing(self) -> int:
        """How many rows differ."""
        return sum(self.counts)


def look(readers: Readers, compared: Range, origin: Origin) -> Look:
    """Compare the rows of a range of a table."""
    shape = compared.shape
    # Ranges are cut by the source's key, also where the target has another one.
    target = replace(compared.target, primary_key=shape.primary_key)
    wanted, at_target = shared_columns(shape, target)
    chunk = _comparable(readers, compared.source, target, compared.chunk)
    if compared.rule is not None:
        now = rows_now(target, at_target, chunk)
        found = _look_through_rule(readers, compared, origin, chunk, now)
    elif shape.primary_key is None:
        found = _look_at_counts(readers, (origin.counts(wanted), row_counts_now(target, at_target)), chunk)
    else:
        key = [shape.by_name[name] for name in shape.primary_key.columns]
        now = rows_now(target, at_target, chunk)
        queries = _digests(origin.rows(wanted, chunk), wanted, key), _digests(now, at_target, key)
        found = _look_at_rows(readers, queries, key, chunk)
    rows, differences = found
    return Look(chunk, [c.name for c in wanted], rows, [d for d, _ in differences], [n for _, n in differences])


def shared_columns(shape: TableSchema, target: TableSchema) -> tuple[list[Column], list[Column]]:
    """The columns that both sides have, as the target is to have them and as it does."""
    columns = [column for column in shape.columns if column.name in target.by_name]
    return columns, [target.by_name[column.name] for column in columns]


def wanted_rows(readers: Readers, compared: Range, origin: Origin, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """Yield what the target is to hold of a range, in the columns that both sides have; canonical text."""
    columns = [column.name for column in shared_columns(compared.shape, compared.target)[0]]
    rule, doing = compared.rule, f"read table {compared.source.name}"
    if rule is None:
        query = origin.rows([compared.source.by_name[name] for name in columns], chunk)
        yield from readers.source.stream(query, doing=doing)
        return
    for batch in readers.source.stream(origin.rows(compared.source.columns, chunk), doing=doing):
        yield rule.rows(batch).select(columns)


def names_of_rows(rows: pa.RecordBatch, columns: Sequence[str]) -> list[str]:
    """What stands for each row in a `Difference` where a rule has made them and they have no key."""
    return [_name_of(row) for row in _rows(rows.select(columns))]


def _comparable(readers: Readers, source: TableSchema, target: TableSchema, chunk: Chunk) -> Chunk:
    """Make a range mean the same rows on both sides: which keys lie between two others depends on collations."""
    if chunk.is_bounded and _collations(readers.source, source) != _collations(readers.target, target):
        return replace(chunk, is_by_text=True)
    return chunk


def _collations(reader: ArrowReader, table: TableSchema) -> str:
    """Return the collations of a table's key: besides its types, they decide its order."""
    assert table.primary_key is not None
    names = ", ".join(literal(name) for name in table.primary_key.columns)
    found = reader.table(
        "SELECT coalesce(string_agg(concat_ws('/', CASE c.collname WHEN 'default' THEN d.own ELSE concat_ws('/',"
        " c.collname, c.collprovider, c.collcollate, to_jsonb(c) ->> 'colllocale') END,"
        " pg_collation_actual_version(c.oid)), ',' ORDER BY a.attname), '') AS text"
        " FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation, LATERAL (SELECT concat_ws('/', datcollate,"
        " to_jsonb(d) ->> 'datlocprovider', to_jsonb(d) ->> 'datlocale') AS own"
        " FROM pg_database d WHERE datname = current_database()) d"
        f" WHERE a.attrelid = {literal(quote(table.name.schema, table.name.name))}::regclass"
        f" AND a.attname IN ({names})",
        doing=f"compare table {table.name}",
    )
    return str(found["text"][0].as_py())


def _digests(rows: str, columns: Sequence[Column], key: Sequence[Column]) -> str:
    # By their numbers: a column may be called `digest`.
    keys = "".join(f"r.{quote(c.name)} AS k{n}, " for n, c in enumerate(key))
    return f"SELECT {keys}{digest(columns, 'r')} AS digest FROM ({rows}) r"


_Found: TypeAlias = tuple[int, list[tuple[Difference, int]]]


def _look_at_rows(readers: Readers, queries: tuple[str, str], key: Sequence[Column], chunk: Chunk) -> _Found:
    pairs = list(zip((readers.source, readers.target), queries, strict=True))
    left, right = (
        reader.table(
            "SELECT count(*) AS n, md5(coalesce(string_agg(digest, '' ORDER BY digest COLLATE \"C\"), '')) AS checksum"
            f" FROM ({query}) d",
            doing=f"compare table {chunk.table}",
        ).to_pylist()[0]
        for reader, query in pairs
    )
    if left == right:
        return left["n"], []
    names = [column.name for column in key]
    numbers = [f"k{n}" for n in range(len(key))]
    found, there = (
        _by_key(reader.table(query, doing=f"compare table {chunk.table}"), numbers) for reader, query in pairs
    )
    differences = [
        Difference("missing" if k not in there else "different", dict(zip(names, k, strict=True)))
        for k, value in found.items()
        if there.get(k) != value
    ]
    differences += [Difference("extra", dict(zip(names, k, strict=True))) for k in there if k not in found]
    return left["n"], [(difference, 1) for difference in differences]


def _look_through_rule(readers: Readers, compared: Range, origin: Origin, chunk: Chunk, now: str) -> _Found:
    """Compare rows in this process: only the rule says what the target should hold, no query at the source can."""
    names = [column.name for column in shared_columns(compared.shape, compared.target)[0]]
    texts = pa.schema([(name, pa.string()) for name in names])
    wanted = pa.Table.from_batches(wanted_rows(readers, compared, origin, chunk), texts)
    there = readers.target.table(now, doing=f"compare table {compared.target.name}").select(names).cast(texts)
    key = compared.shape.primary_key
    order = [(name, "ascending") for name in (key.columns if key is not None else names)]
    if names and wanted.sort_by(order).equals(there.sort_by(order)):
        return len(wanted), []
    if key is None:
        surplus = Counter(_rows(wanted))
        surplus.subtract(_rows(there))
        return len(wanted), [
            (Difference("missing" if n > 0 else "extra", {"row": _name_of(row)}), abs(n))
            for row, n in sorted(surplus.items(), key=repr)
            if n
        ]
    left, right = (dict(zip(_rows(rows.select(key.columns)), _rows(rows), strict=True)) for rows in (wanted, there))

    def named(values: tuple[str | None, ...]) -> Image:
        return dict(zip(key.columns, values, strict=True))

    found = [
        Difference("missing" if k not in right else "different", named(k))
        for k, row in left.items()
        if right.get(k) != row
    ]
    found += [Difference("extra", named(k)) for k in right if k not in left]
    return len(wanted), [(difference, 1) for difference in found]


def _rows(table: pa.Table | pa.RecordBatch) -> list[tuple[str | None, ...]]:
    if table.num_columns == 0:
        return [()] * table.num_rows
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _name_of(row: tuple[str | None, ...]) -> str:
    """Return a name for a row without a key; it takes the place of the digest that a database makes."""
    return hashlib.md5(repr(row).encode(), usedforsecurity=False).hexdigest()


def _look_at_counts(readers: Readers, queries: tuple[str, str], chunk: Chunk) -> _Found:
    """Compare bucket by bucket how often each row occurs, then row by row where a bucket differs."""
    pairs = list(zip((readers.source, readers.target), queries, strict=True))

    def buckets(reader: ArrowReader, query: str) -> dict[str, tuple[int, str]]:
        rows = reader.table(
            "SELECT left(digest, 2) AS bucket, sum(n)::bigint AS n, md5(string_agg(digest || ':' || n, ','"
            f' ORDER BY digest COLLATE "C")) AS checksum FROM ({query}) d GROUP BY 1',
            doing=f"compare table {chunk.table}",
        ).to_pylist()
        return {row["bucket"]: (row["n"], row["checksum"]) for row in rows}

    left, right = (buckets(reader, query) for reader, query in pairs)
    rows = sum(n for n, _ in left.values())
    differing = [bucket for bucket in left.keys() | right.keys() if left.get(bucket) != right.get(bucket)]
    if not differing:
        return rows, []
    wanted = ", ".join(f"'{bucket}'" for bucket in differing)

    def counts(reader: ArrowReader, query: str) -> dict[str, int]:
        found = reader.table(
            f"SELECT digest, n FROM ({query}) d WHERE left(digest, 2) IN ({wanted})",
            doing=f"compare table {chunk.table}",
        ).to_pylist()
        return {row["digest"]: row["n"] for row in found}

    found, there = (counts(reader, query) for reader, query in pairs)
    surplus = {row: found.get(row, 0) - there.get(row, 0) for row in sorted(found.keys() | there.keys())}
    return rows, [
        (Difference("missing" if n > 0 else "extra", {"row": row}), abs(n)) for row, n in surplus.items() if n
    ]


def _by_key(rows: pa.Table, names: Sequence[str]) -> dict[tuple[str, ...], str]:
    keys = zip(*(rows[name].to_pylist() for name in names), strict=True)
    return dict(zip(keys, rows["digest"].to_pylist(), strict=True))
