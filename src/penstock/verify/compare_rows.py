"""Compares the rows of a range of a table on two sides, and says which of them differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from penstock.change import Image
from penstock.schema import TableSchema
from penstock.snapshot.chunk import Chunk, Range
from penstock.snapshot.rows import TableRows, checksum_of


@dataclass(frozen=True)
class Difference:
    """A row that is not the same on both sides.

    Attributes:
        kind: `missing` at the target, `extra` at the target, or `different`.
        key: Its key; a digest of the row where the table has none.
    """

    kind: str
    key: Image


@dataclass(frozen=True)
class ComparedRange:
    """What comparing the rows of a range has found.

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


def compare_rows(origin: TableRows, there: TableRows, compared: Range) -> ComparedRange:
    """Compare the rows of a range of a table.

    Args:
        origin: The rows of the table at the source, under its own names.
        there: The rows of `at_target(compared)`.
    """
    columns, chunk = shared_columns(compared), compared.chunk
    # Which keys lie between two others depends on collations: make a range mean the same rows on both sides.
    if chunk.is_bounded and origin.key_order() != there.key_order():
        chunk = replace(chunk, is_by_text=True)
    key = compared.shape.primary_key
    if compared.rule is not None:
        found = _compare_through_rule(origin, there, compared, columns, chunk)
    elif key is None:
        found = _compare_counts(origin, there, columns)
    else:
        found = _compare_by_key(origin, there, columns, key.columns, chunk)
    rows, differences = found
    return ComparedRange(chunk, columns, rows, [d for d, _ in differences], [n for _, n in differences])


def at_target(compared: Range) -> TableSchema:
    """The table at the target, for a comparison: ranges are cut by the source's key, also where it has another one."""
    return replace(compared.target, primary_key=compared.shape.primary_key)


def shared_columns(compared: Range) -> list[str]:
    """The columns that both sides have, as the target calls them."""
    return [column.name for column in compared.shape.columns if column.name in compared.target.by_name]


def wanted_rows(origin: TableRows, compared: Range, chunk: Chunk) -> Iterator[pa.RecordBatch]:
    """Yield what the target is to hold of a range, in the columns that both sides have; canonical text."""
    columns, rule = shared_columns(compared), compared.rule
    if rule is None:
        yield from origin.read(columns, chunk)
        return
    for batch in origin.read(compared.source.column_names, chunk):
        yield rule.rows(batch).select(columns)


def names_of_rows(rows: pa.RecordBatch, columns: Sequence[str]) -> list[str]:
    """What stands for each row in a `Difference` where a rule has made them and they have no key."""
    return [_name_of(row) for row in _rows(rows.select(columns))]


_Found: TypeAlias = tuple[int, list[tuple[Difference, int]]]


def _compare_by_key(
    origin: TableRows, there: TableRows, columns: Sequence[str], key: Sequence[str], chunk: Chunk
) -> _Found:
    left, right = (side.checksum(columns, chunk) for side in (origin, there))
    if left == right:
        return left.rows, []
    found, others = (_by_key(side.digests(columns, chunk)) for side in (origin, there))
    differences = [
        Difference("missing" if k not in others else "different", dict(zip(key, k, strict=True)))
        for k, value in found.items()
        if others.get(k) != value
    ]
    differences += [Difference("extra", dict(zip(key, k, strict=True))) for k in others if k not in found]
    return left.rows, [(difference, 1) for difference in differences]


def _compare_through_rule(
    origin: TableRows, there: TableRows, compared: Range, names: Sequence[str], chunk: Chunk
) -> _Found:
    """Compare rows in this process: only the rule says what the target should hold, no query at the source can.

    A row that the rule has no value for is at the target as it must be nowhere: so it is one that differs.
    """
    texts, rule = pa.schema([(name, pa.string()) for name in names]), compared.rule
    assert rule is not None
    made, refused = [], []
    for batch in origin.read(compared.source.column_names, chunk):
        rows, faults = rule.told_rows(batch)
        made.append(rows.select(names))
        refused.append(batch.take(pa.array(sorted(faults), pa.int64())))
    wanted = pa.Table.from_batches(made, texts)
    without_value = pa.Table.from_batches(refused) if any(batch.num_rows for batch in refused) else None
    others = pa.Table.from_batches((_as_text(batch, texts) for batch in there.read(names, chunk)), texts)
    key = compared.shape.primary_key
    order = [(name, "ascending") for name in (key.columns if key is not None else names)]
    if without_value is None and names and wanted.sort_by(order).equals(others.sort_by(order)):
        return len(wanted), []
    count = len(wanted) + (0 if without_value is None else len(without_value))
    if key is None:
        surplus = Counter(_rows(wanted))
        surplus.subtract(_rows(others))
        unknown = [] if without_value is None else [(_name_of(row), 1) for row in _rows(without_value)]
        return count, [
            *((Difference("missing", {"row": name}), n) for name, n in unknown),
            *(
                (Difference("missing" if n > 0 else "extra", {"row": _name_of(row)}), abs(n))
                for row, n in sorted(surplus.items(), key=repr)
                if n
            ),
        ]
    left, right = (dict(zip(_rows(rows.select(key.columns)), _rows(rows), strict=True)) for rows in (wanted, others))

    def named(values: tuple[str | None, ...]) -> Image:
        return dict(zip(key.columns, values, strict=True))

    # A step may give several rows the same key, of which the target can have one.
    often = Counter(_rows(wanted.select(key.columns))) if len(left) < len(wanted) else {}
    found = [
        Difference("missing" if k not in right else "different", named(k))
        for k, row in left.items()
        if right.get(k) != row
    ]
    found += [Difference("missing", named(k)) for k, n in often.items() for _ in range(n - 1)]
    if without_value is not None:
        keys = _rows(without_value.select(rule.at_source(key.columns)))
        found += [Difference("different" if k in right else "missing", named(k)) for k in keys]
        left |= dict.fromkeys(keys, ())
    found += [Difference("extra", named(k)) for k in right if k not in left]
    return count, [(difference, 1) for difference in found]


def _compare_counts(origin: TableRows, there: TableRows, columns: Sequence[str]) -> _Found:
    """Compare bucket by bucket how often each row occurs, then row by row where a bucket differs."""
    left, right = (side.bucket_checksums(columns) for side in (origin, there))
    rows = sum(found.rows for found in left.values())
    differing = [bucket for bucket in left.keys() | right.keys() if left.get(bucket) != right.get(bucket)]
    if not differing:
        return rows, []
    found, others = (side.digest_counts(columns, differing) for side in (origin, there))
    surplus = {row: found.get(row, 0) - others.get(row, 0) for row in sorted(found.keys() | others.keys())}
    return rows, [
        (Difference("missing" if n > 0 else "extra", {"row": row}), abs(n)) for row, n in surplus.items() if n
    ]


def _by_key(rows: pa.Table) -> dict[tuple[str, ...], str]:
    *keys, digests = (column.to_pylist() for column in rows.columns)
    return dict(zip(zip(*keys, strict=True), digests, strict=True))


def _as_text(batch: pa.RecordBatch, texts: pa.Schema) -> pa.RecordBatch:
    return batch.cast(texts) if texts.names else batch


def _rows(table: pa.Table | pa.RecordBatch) -> list[tuple[str | None, ...]]:
    if table.num_columns == 0:
        return [()] * table.num_rows
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _name_of(row: tuple[str | None, ...]) -> str:
    """Return a name for a row without a key; it takes the place of the digest that a database makes."""
    return checksum_of([repr(row)])
