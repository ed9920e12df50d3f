"""The reader's part of apply: what each change depends on at the target.

Works on whole batches of the change stream and yields arrays of hashes, never rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.apply.coordinator import Dependencies
from penstock.apply.hashing import hash_name, hash_rows, hash_text, normalise_number
from penstock.apply.keys import row_key
from penstock.change import Op, TableName
from penstock.images import is_present, parse_images
from penstock.logical import Kind
from penstock.schema import Column, TableSchema


@dataclass(frozen=True)
class _Space:
    """One space of dependency values: a key of a table, or a whole table under the name of an index.

    Attributes:
        name: Rows of two tables meet in it when a foreign key joins them.
        columns: Columns of this table that hold the value; empty for one value per table.
        mentions: Columns whose change matters.
        is_written: Exclusive; a foreign key only refers.
        is_row_key: The space of the row key, which every update writes.
        skips_null: A value with a NULL in it meets no other.
    """

    name: str
    columns: tuple[str, ...]
    mentions: tuple[str, ...]
    is_written: bool = True
    is_row_key: bool = False
    skips_null: bool = True


def find_dependencies(
    batches: Iterable[pa.RecordBatch], txn_of: NDArray[np.int64], tables: Mapping[TableName, TableSchema]
) -> Dependencies:
    """Compute the dependency values of every change.

    Args:
        batches: Change-stream batches; only op, table and images are looked at.
        txn_of: For each row of all batches together, the index of its transaction.
        tables: Target tables by their names in the stream.

    Returns:
        The values; transactions whose rows or tables cannot be identified at the target are barriers.
    """
    spaces = _spaces_by_table(tables.values())
    # Lists of arrays that line up, one per table, space and side: transaction, hash, and whether it is written.
    txns, values, written, barriers = [], [], [], [np.zeros(0, np.int64)]
    offset = 0
    for batch in batches:
        for name, rows in _by_table(batch):
            # One entry per row of this table: the index of its transaction.
            txn = txn_of[offset : offset + batch.num_rows][rows]
            table = tables.get(name)
            if table is None or not spaces[table.name]:
                barriers.append(txn)
                continue
            changes = batch.take(pa.array(rows))
            is_row = pc.is_in(changes[c.OP], pa.array([Op.INSERT, Op.UPDATE, Op.DELETE]))
            is_row_change = is_row.to_numpy(zero_copy_only=False)
            # Changes of no single row, such as TRUNCATE, are barriers; only row changes are left in `txn`.
            barriers.append(txn[~is_row_change])
            txn = txn[is_row_change]
            for at, value, is_written in _TableItems(table, spaces[table.name], changes.filter(is_row)).items():
                txns.append(txn[at])
                values.append(value)
                written.append(np.full(len(at), is_written))
        offset += batch.num_rows
    empty = np.zeros(0, np.int64)
    return Dependencies(
        txn=np.concatenate([empty, *txns]),
        value=np.concatenate([empty.astype(np.uint64), *values]),
        is_written=np.concatenate([empty.astype(bool), *written]),
        barriers=np.unique(np.concatenate(barriers)),
    )


class _TableItems:
    """The dependency items of changes to one table."""

    def __init__(self, table: TableSchema, spaces: Sequence[_Space], batch: pa.RecordBatch) -> None:
        self._table = table
        self._spaces = spaces
        self._before, self._after = batch[c.BEFORE], batch[c.AFTER]
        # One entry per change in every array: what it is, then the values of the columns that spaces look at.
        op = batch[c.OP]
        self._is_insert = pc.equal(op, Op.INSERT).to_numpy(zero_copy_only=False)
        self._is_delete = pc.equal(op, Op.DELETE).to_numpy(zero_copy_only=False)
        self._is_update = pc.equal(op, Op.UPDATE).to_numpy(zero_copy_only=False)
        needed = sorted({name for space in self._spaces for name in space.columns})
        self._old_values = parse_images(self._before, needed)
        self._new_values = parse_images(self._after, needed)
        self._hashes: dict[tuple[str, bool], NDArray[np.uint64]] = {}
        self._changed: dict[str, NDArray[np.bool_]] = {}

    def items(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64], bool]]:
        """Yield (rows, values, is_written) per space and side of the change.

        `rows` are indexes of changes, ascending; `values` are their hashes.
        """
        for space in self._spaces:
            # Which changes touch the space with their old row, and which with their new one.
            is_changed = self._is_update & self._any_changed(space.mentions)
            old = self._is_delete | (self._is_update if space.is_row_key else is_changed)
            new = self._is_insert | is_changed
            for side, is_new in ((old, False), (new, True)):
                rows = np.flatnonzero(side & self._is_usable(space, is_new=is_new))
                if len(rows):
                    yield rows, self._values(space, is_new=is_new)[rows], space.is_written

    def _any_changed(self, columns: tuple[str, ...]) -> NDArray[np.bool_]:
        """Which changes set one of these columns."""
        changed = np.zeros(len(self._is_update), bool)
        for name in columns:
            if name not in self._changed:
                self._changed[name] = is_present(self._after, name).to_numpy(zero_copy_only=False)
            changed |= self._changed[name]
        return changed

    def _is_usable(self, space: _Space, *, is_new: bool) -> NDArray[np.bool_]:
        """Which changes have a value in the space: no NULL, where the space skips NULLs."""
        usable = np.ones(len(self._is_update), bool)
        if space.skips_null:
            for name in space.columns:
                usable &= self._column(name, is_new=is_new).is_valid().to_numpy(zero_copy_only=False)
        return usable

    def _values(self, space: _Space, *, is_new: bool) -> NDArray[np.uint64]:
        """The hash of each change's value in the space; one hash for all where the space has no columns."""
        if not space.columns:
            return np.full(len(self._is_update), hash_name(space.name))
        return hash_rows([self._column_hash(name, is_new=is_new) for name in space.columns], space.name)

    def _column_hash(self, name: str, *, is_new: bool) -> NDArray[np.uint64]:
        if (name, is_new) not in self._hashes:
            values = self._column(name, is_new=is_new)
            column = self._table.by_name[name]
            self._hashes[name, is_new] = hash_text(normalise_number(values) if column.is_decimal else values)
        return self._hashes[name, is_new]

    def _column(self, name: str, *, is_new: bool) -> pa.Array:
        """A column as it was before, or as it is after the change: unchanged columns are absent from `after`."""
        if not is_new:
            return self._old_values[name]
        takes_old = self._is_update & ~self._any_changed((name,))
        return pc.if_else(pa.array(takes_old), self._old_values[name], self._new_values[name])


def _spaces_by_table(tables: Iterable[TableSchema]) -> Mapping[TableName, Sequence[_Space]]:
    """List the spaces that changes to each table touch; none where the table has nothing to tell its rows apart."""
    known = [(table, list(_spaces(table))) for table in tables]
    # A value that one member of a space cannot hash would never meet the others' hashes; nor would one that is written
    # in another way, as a date is that refers to a timestamp.
    opaque = {space.name for table, spaces in known for space in spaces if not _is_hashable(table, space.columns)}
    written: dict[str, tuple[str, ...]] = {}
    for table, spaces in known:
        for space in spaces:
            kinds = tuple(_kind(table.by_name[name]) for name in space.columns)
            if written.setdefault(space.name, kinds) != kinds:
                opaque.add(space.name)
    return {
        table.name: [replace(space, columns=()) if space.name in opaque else space for space in spaces]
        for table, spaces in known
    }


def _spaces(table: TableSchema) -> Iterator[_Space]:
    key = row_key(table)
    if not key.columns:
        return
    if not key.is_declared:
        yield _Space(f"{table.name}", key.columns, key.columns, is_row_key=True, skips_null=False)
    for unique in table.all_uniques:
        if unique.columns:
            is_row_key = key.is_declared and unique.columns == key.columns
            yield _Space(
                _key_name(table.name, unique.columns),
                tuple(sorted(unique.columns)),
                unique.columns,
                is_row_key=is_row_key,
                # NULLs are ordinary values in a row key, and where the index keeps them apart.
                skips_null=not (is_row_key or unique.nulls_are_equal),
            )
        else:
            yield _Space(f"{table.name} {' '.join(unique.mentions)}", (), unique.mentions)
    for exclusion in table.exclusions:
        yield _Space(f"{table.name} {exclusion.name}", (), exclusion.columns or tuple(table.column_names))
    for foreign_key in table.foreign_keys:
        pairs = sorted(zip(foreign_key.parent_columns, foreign_key.columns, strict=True))
        yield _Space(
            _key_name(foreign_key.parent, foreign_key.parent_columns),
            tuple(child for _, child in pairs),
            foreign_key.columns,
            is_written=False,
        )


def _key_name(table: TableName, columns: tuple[str, ...]) -> str:
    return f"{table} ({', '.join(sorted(columns))})"


def _is_hashable(table: TableSchema, columns: tuple[str, ...]) -> bool:
    """Whether equal values of these columns have equal text once numbers are normalised."""
    found = (table.by_name[name] for name in columns)
    return all(column.is_comparable and (column.is_exact or column.is_decimal) for column in found)


def _kind(column: Column) -> str:
    """The way in which a column writes its values; two columns write equal values alike if it is the same."""
    if column.is_integer or column.is_decimal:
        return "number"
    is_text = column.logical.kind is Kind.STRING and not column.logical.is_padded
    return "text" if is_text else column.base_type


def _by_table(batch: pa.RecordBatch) -> Iterator[tuple[TableName, NDArray[np.int64]]]:
    """Yield each table of a batch with the rows that change it, in order."""
    schemas = batch[c.SCHEMA_NAME].dictionary_encode()
    names = batch[c.TABLE_NAME].dictionary_encode()
    # One number per row, the same for rows of the same table.
    code = schemas.indices.to_numpy().astype(np.int64) * len(names.dictionary) + names.indices.to_numpy()
    for value in np.unique(code):
        schema, name = divmod(int(value), len(names.dictionary))
        table = TableName(schemas.dictionary[schema].as_py(), names.dictionary[name].as_py())
        yield table, np.flatnonzero(code == value)
