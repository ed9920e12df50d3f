"""Bringing the rows of a range of a table to what they are at the source, without touching those that are the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.apply.target import TargetTable
from penstock.snapshot.chunk import Chunk, Range
from penstock.snapshot.rows import TableRows
from penstock.snapshot.task import ChunkLoader
from penstock.verify.compare_rows import ComparedRange, compare_rows, names_of_rows, wanted_rows


def bring(
    writer: ChunkLoader, origin: TableRows, there: TableRows, compared: Range, *, clears_the_way: bool = False
) -> ComparedRange:
    """Compare a range, and write what differs, inside the open transaction of `writer`.

    A row that differs keeps its values in columns that only the target has. No other session may write to the range
    meanwhile.

    Args:
        origin: The rows at the source, and `there` those at the target, as `compare_rows` takes them.
        clears_the_way: Delete rows of other ranges that hold a value of a unique key of the source's which a row of
            this one needs. Those rows are wrong, because the source has the value here; their own ranges are still to
            come, and bring them back. Only where those ranges are sure to come.

    Returns:
        What differed before.

    Raises:
        ApplyError, SpeculationError: As `ChunkLoader.replace`.
    """
    found = compare_rows(origin, there, compared)
    if not found.differences:
        return found
    shape, target = compared.shape, TargetTable(compared.target)
    if shape.primary_key is None:
        if compared.rule is None:
            surplus, named = _without_rule(origin, found)
        else:
            surplus, named = _through_rule(origin, there, compared, found)
        _bring_counts(writer, target, found, surplus, named)
        return found
    key = list(shape.primary_key.columns)
    by_kind = {kind: [d.key for d in found.differences if d.kind == kind] for kind in ("missing", "extra", "different")}
    gone = _table_of([*by_kind["extra"], *by_kind["different"]], key)
    wanted = _ids(_table_of([*by_kind["missing"], *by_kind["different"]], key).to_batches(), key)
    rows = [batch.filter(pc.is_in(_ids([batch], key), wanted)) for batch in wanted_rows(origin, compared, found.chunk)]
    texts = pa.schema([(name, pa.string()) for name in found.columns])
    clears = [unique.columns for unique in shape.all_uniques if unique.columns] if clears_the_way else []
    writer.replace(target, gone, pa.Table.from_batches(rows, texts), clears_the_way=clears)
    return found


_Named: TypeAlias = Iterable[tuple[pa.RecordBatch, Sequence[str]]]
"""Rows of the source, and for each of them what stands for it in a `Difference`."""


def _without_rule(origin: TableRows, found: ComparedRange) -> tuple[Mapping[str, int], _Named]:
    """How many rows of each digest the target has too many of, and the source's rows; rows are named by digests."""

    def rows() -> _Named:
        for batch in origin.read_with_digests(found.columns, found.chunk):
            yield pa.RecordBatch.from_arrays(batch.columns[:-1], found.columns), batch.columns[-1].to_pylist()

    return _surplus(found), rows()


def _through_rule(
    origin: TableRows, there: TableRows, compared: Range, found: ComparedRange
) -> tuple[Mapping[str, int], _Named]:
    """The same where a rule makes the rows, so that no query yields their names: they are named here."""
    extra, gone = _surplus(found), {}
    for batch in there.read_with_digests(found.columns, Chunk(compared.target.name, 0)):
        for name, its_digest in zip(names_of_rows(batch, found.columns), batch.columns[-1].to_pylist(), strict=True):
            if name in extra:
                gone[its_digest] = extra[name]
    wanted = wanted_rows(origin, compared, found.chunk)
    return gone, ((batch, names_of_rows(batch, found.columns)) for batch in wanted)


def _surplus(found: ComparedRange) -> dict[str, int]:
    return {str(d.key["row"]): n for d, n in zip(found.differences, found.counts, strict=True) if d.kind == "extra"}


def _bring_counts(
    writer: ChunkLoader, target: TargetTable, found: ComparedRange, gone: Mapping[str, int], rows: _Named
) -> None:
    """The same where rows have no key: so many of each.

    Args:
        gone: How many rows to delete of each digest.
        rows: All rows that the target is to hold.
    """
    missing = {
        str(d.key["row"]): n for d, n in zip(found.differences, found.counts, strict=True) if d.kind == "missing"
    }
    writer.delete_equal(target, found.columns, gone)
    for batch, names in rows:
        taken: list[int] = []
        for place, name in enumerate(names):
            # As often as it is missing, from whichever of its equals comes first.
            taken += [place] * missing.pop(name, 0)
        if taken and all(target.schema.by_name[name].is_generated for name in found.columns):
            writer.load_defaults(target, len(taken))
        elif taken:
            writer.load(target, pa.Table.from_batches([batch]).take(pa.array(taken)))


def _table_of(keys: Sequence[object], names: Sequence[str]) -> pa.Table:
    return pa.Table.from_pylist(list(keys), pa.schema([(name, pa.string()) for name in names]))


def _ids(batches: Sequence[pa.RecordBatch], key: Sequence[str]) -> pa.Array:
    """One string for the key of each row, which no other key has: each value behind its length."""
    ids: list[pa.Array] = []
    for batch in batches:
        values = [batch.column(name).cast(pa.string()) for name in key]
        parts = [part for value in values for part in (pc.binary_length(value).cast(pa.string()), value)]
        ids.append(pc.binary_join_element_wise(*parts, ":"))
    return pa.concat_arrays(ids) if ids else pa.array([], pa.string())
