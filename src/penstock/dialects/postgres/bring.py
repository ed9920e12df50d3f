"""Bringing the rows of a range of a table to what they are at the source, without touching those that are the same."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.apply.target import TargetTable
from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.as_of import digest, digest_of_row
from penstock.dialects.postgres.ranges import Look, Origin, Readers, look, shared_columns, wanted_rows
from penstock.dialects.postgres.session import PostgresSession
from penstock.errors import OperatorError
from penstock.snapshot.chunk import Range


def bring(
    session: PostgresSession, readers: Readers, compared: Range, origin: Origin, *, clears_the_way: bool = False
) -> Look:
    """Compare a range, and write what differs, inside the open transaction of `session`.

    A row that differs keeps what the target alone has of it. Nobody else may write to the range meanwhile.

    Args:
        clears_the_way: Delete rows of other ranges that hold a value of a unique key of the source's which a row of
            this one needs. They are wrong, for the source has it here; so their own ranges are not done yet, and
            bring them. To be used where that is sure to come.

    Returns:
        What differed before.

    Raises:
        ApplyError, SpeculationError: As `PostgresSession.replace`.
    """
    found = look(readers, compared, origin)
    if not found.differences:
        return found
    shape, target = compared.shape, TargetTable(compared.target)
    if shape.primary_key is None:
        if compared.rule is not None:
            raise OperatorError(
                f"rows of table {target.name} cannot be brought: it has no key, and rules say what it holds",
                do="`penstock resync --all` copies it anew",
            )
        columns, _ = shared_columns(shape, compared.target)
        _bring_counts(session, readers.source, target, found, origin.rows(columns, found.chunk))
        return found
    key = list(shape.primary_key.columns)
    by_kind = {kind: [d.key for d in found.differences if d.kind == kind] for kind in ("missing", "extra", "different")}
    gone = _table_of([*by_kind["extra"], *by_kind["different"]], key)
    wanted = _ids(_table_of([*by_kind["missing"], *by_kind["different"]], key).to_batches(), key)
    rows = [
        batch.filter(pc.is_in(_ids([batch], key), wanted))
        for batch in wanted_rows(readers, compared, origin, found.chunk)
    ]
    texts = pa.schema([(name, pa.string()) for name in found.columns])
    clears = [unique.columns for unique in shape.all_uniques if unique.columns] if clears_the_way else []
    session.replace(target, gone, pa.Table.from_batches(rows, texts), clears_the_way=clears)
    return found


def _bring_counts(
    session: PostgresSession, at_source: ArrowReader, target: TargetTable, found: Look, rows_then: str
) -> None:
    """The same where rows have no key: so many of each."""
    counts = [(d.kind, str(d.key["row"]), n) for d, n in zip(found.differences, found.counts, strict=True)]
    missing = {row: n for kind, row, n in counts if kind == "missing"}
    columns = [target.schema.by_name[name] for name in found.columns]
    session.delete_equal(target, digest_of_row(columns), {row: n for kind, row, n in counts if kind == "extra"})
    query = f"SELECT r.*, {digest(columns, 'r')} FROM ({rows_then}) r"
    for batch in at_source.stream(query, doing=f"read table {found.chunk.table}"):
        taken: list[int] = []
        for place, row in enumerate(batch.columns[-1].to_pylist()):
            # As often as it is missing, from whichever of its equals comes first.
            taken += [place] * missing.pop(row, 0)
        if taken and all(column.is_generated for column in columns):
            session.load_defaults(target, len(taken))
        elif taken:
            picked = batch.take(pa.array(taken))
            session.load(target, pa.Table.from_arrays(picked.columns[:-1], found.columns))


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
