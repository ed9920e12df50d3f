"""The rules of all tables, put to work on the change stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.change import NO_VERSION, Op, TableName
from penstock.rules.changes import EDITED, LOOKED_AT, Changes
from penstock.rules.ddl import TransformedName, shape_of, with_names
from penstock.rules.table_rule import TableRule


class StreamRules:
    """Puts each change through the rule of its table's version. Travels to tasks."""

    def __init__(
        self,
        rules: Mapping[tuple[TableName, int], TableRule],
        left_out: Mapping[tuple[TableName, int], TableName] | None = None,
    ) -> None:
        """Keep rules by the name and version of their table at the source; other tables pass as they are.

        Args:
            left_out: What versions of tables that are not processed would be called.
        """
        self._left_out = left_out or {}
        # A gap has no version, only the table's name.
        gaps = {(name, NO_VERSION): rule.numbered(NO_VERSION) for (name, _), rule in rules.items()}
        self._rules = {**gaps, **rules}

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the change stream as they become, in the same order; an empty one is left out.

        Raises:
            MalformedInputError: An image lacks a column that a rule has to look at.
            OperatorError: A condition or a computed column has no value for a row, or a step of the user's failed.
        """
        for batch in batches:
            made = self._apply(batch) if batch.num_rows else batch
            if made.num_rows:
                yield made

    def named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give what was altered, renamed or dropped the names that the rules give it; all else stays as it is."""
        is_ddl = pc.equal(batch[c.OP], Op.DDL)
        rows = batch.filter(is_ddl).select([c.SCHEMA_NAME, c.TABLE_NAME, c.TABLE_VERSION, c.BEFORE]).to_pylist()
        if not rows:
            return batch
        made = []
        tables = {name: rule.table.name for (name, _), rule in self._rules.items()}
        for row in rows:
            image = json.loads(row[c.BEFORE])
            versions = (int(image["was_version"]), int(image.get("is_version") or row[c.TABLE_VERSION]))
            shapes = (shape_of(image, "was"), shape_of(image, "is"))
            was, now = map(self._transformed_name, shapes, versions)
            made.append(json.dumps(with_names(image, was, now, tables), ensure_ascii=False))
        before = pc.replace_with_mask(batch[c.BEFORE], is_ddl, pa.array(made, pa.string()))
        columns = [before if name == c.BEFORE else batch[name] for name in batch.schema.names]
        return pa.record_batch(columns, schema=batch.schema)

    def _transformed_name(self, shape: Mapping[str, Any] | None, version: int) -> TransformedName:
        if shape is None:
            return TransformedName()
        key = TableName(shape["schema"], shape["name"]), version
        return TransformedName(self._rules.get(key), self._left_out.get(key))

    def _apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        versions, codes = _table_versions(batch)
        ruled = [(code, self._rules[version]) for code, version in enumerate(versions) if version in self._rules]
        if not ruled:
            return batch
        if len(versions) == 1:
            return ruled[0][1].changes(batch)
        # The parts stand one after the other, each with the numbers of its rows in the batch; then all are sorted.
        others = np.flatnonzero(~np.isin(codes, [code for code, _ in ruled]))
        numbers, parts = [others], [batch.select(EDITED).take(pa.array(others))]
        for code, rule in ruled:
            at = np.flatnonzero(codes == code)
            given = batch.select(LOOKED_AT).take(pa.array(at))
            made = rule.transform(Changes.of(given))
            numbers.append(at[made.row])
            parts.append(rule.edited(made))
        rows = np.concatenate(numbers)
        order = pa.array(np.argsort(rows))
        edited = pa.Table.from_batches(parts).combine_chunks().take(order).combine_chunks()
        kept = pa.array(np.sort(rows))
        columns = {name: _chunk(edited[name]) for name in EDITED}
        for name in batch.schema.names:
            if name not in columns:
                columns[name] = batch[name] if len(kept) == batch.num_rows else batch[name].take(kept)
        return pa.record_batch([columns[name] for name in batch.schema.names], schema=batch.schema)


def _table_versions(batch: pa.RecordBatch) -> tuple[list[tuple[TableName, int]], NDArray[np.int64]]:
    """The table versions that a batch names, and for each of its changes, which one of them."""
    schemas, names = batch[c.SCHEMA_NAME].dictionary_encode(), batch[c.TABLE_NAME].dictionary_encode()
    rows = np.stack([_numbers(schemas.indices), _numbers(names.indices), _numbers(batch[c.TABLE_VERSION])], axis=0)
    # Nearly always one schema and few tables: as one number, they are sorted faster.
    many = rows.max(axis=1) + 1
    code = (rows[0] * many[1] + rows[1]) * many[2] + rows[2]
    _, first, codes = np.unique(code, return_index=True, return_inverse=True)
    versions = [
        (
            TableName(schemas.dictionary[int(rows[0, at])].as_py(), names.dictionary[int(rows[1, at])].as_py()),
            int(rows[2, at]),
        )
        for at in first
    ]
    return versions, codes


def _numbers(values: pa.Array) -> NDArray[np.int64]:
    return np.asarray(values.to_numpy(zero_copy_only=False)).astype(np.int64)


def _chunk(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks)
