"""The change stream of plain rows, in bulk: each table's rows are decoded together, and put back in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import change as c
from penstock.change import Op
from penstock.images import build_images
from penstock.sources.db2_log.bulk_columns import Bools, Bytes, ColumnDecoder, ColumnValues, Ints
from penstock.sources.db2_log.catalog import Catalog
from penstock.sources.db2_log.framing import Level
from penstock.sources.db2_log.plain import OPS
from penstock.sources.db2_log.single_rows import RowDecoder

_OWN = (c.KEY, c.BEFORE, c.AFTER)


class PlainRowDecoder:
    """Decodes plain rows of every table of a catalogue."""

    def __init__(self, catalog: Catalog) -> None:
        """Decode with a catalogue; nothing of a table is worked out before it is met."""
        self._catalog = catalog
        self._decoder = cache(lambda number: ColumnDecoder(RowDecoder(catalog.tables[number], catalog)))

    def decode(self, data: Bytes, rows: Ints, one: Callable[[int], Mapping[str, Any]]) -> pa.RecordBatch:
        """Return what each row has of its own in the change stream: the operation, the table, the key, the images.

        Args:
            data: The buffer that the rows lie in.
            rows: As `plain.Plain.rows`; at least one.
            one: Decodes an odd row, by its place in `rows`; returns its columns, of those that are returned here.

        Raises:
            OperatorError: How values of a type are logged is not known.
        """
        # Rows of one version and one operation are decoded together; `places` says where each of them belongs.
        groups = rows[:, 2] * len(OPS) + rows[:, 3]
        places = np.argsort(groups, kind="stable")
        cuts = np.flatnonzero(np.diff(groups[places])) + 1
        parts, odd = [], []
        for part in np.split(places, cuts):
            images, is_odd = self._images(data, rows[part])
            parts.append(images)
            odd.append(part[is_odd])
        batch = _concat(parts).take(pa.array(np.argsort(places)))
        odds = np.sort(np.concatenate(odd))
        if not len(odds):
            return batch
        said = [one(int(place)) for place in odds]
        mask = np.zeros(len(rows), np.bool_)
        mask[odds] = True
        columns = [
            pc.replace_with_mask(batch[name], pa.array(mask), pa.array([row[name] for row in said], pa.string()))
            if name in _OWN
            else batch[name]
            for name in batch.schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _images(self, data: Bytes, rows: Ints) -> tuple[pa.RecordBatch, Bools]:
        number, op = int(rows[0, 2]), OPS[rows[0, 3]]
        table, count = self._catalog.tables[number], len(rows)
        decoder = self._decoder(number)
        is_odd = np.zeros(count, np.bool_)
        before = None if op is Op.INSERT else decoder.decode(data, rows[:, 4])
        after = None if op is Op.DELETE else decoder.decode(data, rows[:, 5])
        nothing = pa.nulls(count, pa.string())
        key = images_before = images_after = nothing
        if (before is None and op is not Op.INSERT) or (after is None and op is not Op.DELETE):
            is_odd[:] = True
        else:
            whole = before or after
            assert whole is not None
            for columns in (before, after):
                is_odd |= False if columns is None else columns.is_odd
            # Where LOB data lies out of the row, an insert needs it, and before 10.1 nobody knows what an update did.
            if after is not None and (op is Op.INSERT or self._catalog.form.level is not Level.V10):
                for is_out in after.is_out.values():
                    is_odd |= is_out
            is_odd |= _lacks(whole, table.key)
            if table.key:
                key = build_images({name: whole.values[name] for name in table.key}, {})
            images_before = nothing if before is None else build_images(before.values, _present(before))
            if after is not None:
                present = _present(after) if before is None else _changed(before, after)
                images_after = build_images(after.values, present)
        arrays = {
            c.OP: _same(op.value, count),
            c.SCHEMA_NAME: _same(table.name.schema, count),
            c.TABLE_NAME: _same(table.name.name, count),
            c.TABLE_VERSION: pa.array(np.full(count, table.number, np.int32)),
            c.KEY: key,
            c.BEFORE: images_before,
            c.AFTER: images_after,
        }
        return pa.RecordBatch.from_pydict(arrays), is_odd


def _lacks(columns: ColumnValues, key: Sequence[str]) -> Bools:
    """Tell which rows lack a column of the key, which lies out of them."""
    lacks = np.zeros(len(columns.is_odd), np.bool_)
    for name in key:
        if name in columns.is_out:
            lacks |= columns.is_out[name]
    return lacks


def _present(columns: ColumnValues) -> Mapping[str, pa.Array]:
    return {name: pa.array(~is_out) for name, is_out in columns.is_out.items() if is_out.any()}


def _changed(before: ColumnValues, after: ColumnValues) -> Mapping[str, pa.Array]:
    """Tell for each column in which rows its value is another one than before, or may be."""
    found = {}
    for name, new in after.values.items():
        old = before.values[name]
        # Null is equal to null alone.
        is_same = pc.or_(pc.fill_null(pc.equal(old, new), False), pc.and_(old.is_null(), new.is_null()))
        if name in after.is_out:
            is_same = pc.or_(pc.and_not(is_same, pa.array(before.is_out[name])), pa.array(after.is_out[name]))
        found[name] = pc.invert(is_same)
    return found


def _same(value: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), count)


def _concat(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    names = parts[0].schema.names
    return pa.RecordBatch.from_arrays([pa.concat_arrays([part[name] for part in parts]) for name in names], names)
