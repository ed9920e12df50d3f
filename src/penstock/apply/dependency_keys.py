"""Dependency keys: what each change depends on at the target.

Works on whole batches of the change stream and yields arrays of hashes, never rows.

An image may be partial: the log of a source may tell of a deleted row no more than its key. Then a change uses a
value of a space that nobody knows, and it depends on every use of that space that could meet it, see `_Uses`.

What the user says depends on each other beyond the constraints is found here, too (`virtual_dependencies`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.apply.blocked_keys import BlockedKeys, Use
from penstock.apply.coordinator import Dependencies
from penstock.apply.hashing import hash_name, hash_rows, hash_text, normalise_number
from penstock.apply.target import TargetTable
from penstock.apply.virtual_dependencies import NONE, ObjectDependency, VirtualDependencies
from penstock.change import MESSAGES, Op, TableName
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
        is_unique: Two rows cannot both have a value of it.
        skips_null: A value with a NULL in it meets no other.
        is_virtual: Of a value dependency, so no constraint tells who notices whom: every use of a value writes it.
    """

    name: str
    columns: tuple[str, ...]
    mentions: tuple[str, ...]
    is_written: bool = True
    is_row_key: bool = False
    is_unique: bool = True
    skips_null: bool = True
    is_virtual: bool = False


def find_dependencies(
    batches: Iterable[pa.RecordBatch],
    txn_of: NDArray[np.int64],
    tables: Mapping[TableName, TargetTable],
    virtual: VirtualDependencies = NONE,
) -> Dependencies:
    """Compute the dependency values of every change.

    Args:
        batches: Change-stream batches; only op, table and images are looked at.
        txn_of: For each row of all batches together, the index of its transaction.
        tables: Target tables by their names in the stream.
        virtual: What depends on each other beyond the constraints of these tables.

    Returns:
        The values; transactions whose rows or tables cannot be identified at the target are barriers.
    """
    return find_uses(batches, txn_of, tables, virtual).dependencies()


def find_uses(
    batches: Iterable[pa.RecordBatch],
    txn_of: NDArray[np.int64],
    tables: Mapping[TableName, TargetTable],
    virtual: VirtualDependencies = NONE,
) -> Uses:
    """Find which dependency values every change uses; see `find_dependencies`."""
    spaces, named = _spaces_by_table(tables, virtual), virtual.tables
    found = Uses(virtual)
    offset = 0
    for batch in batches:
        for name, rows in _by_table(batch):
            # One entry per row of this table: the index of its transaction.
            txn = txn_of[offset : offset + batch.num_rows][rows]
            if virtual.objects:
                found.touched[name].append(np.unique(txn))
            if name == MESSAGES:
                for kind, members in _by_kind(batch.take(pa.array(rows)), txn):
                    found.write(members, f"message {kind}")
                continue
            table = tables.get(name)
            if not spaces.get(name) and not (table is None and name in named):
                found.barriers.append(txn)
                continue
            changes = batch.take(pa.array(rows))
            is_row = pc.is_in(changes[c.OP], pa.array([Op.INSERT, Op.UPDATE, Op.DELETE, Op.SNAPSHOT]))
            is_row_change = is_row.to_numpy(zero_copy_only=False)
            # Changes of no single row, such as TRUNCATE, are barriers; only row changes are left in `txn`.
            found.barriers.append(txn[~is_row_change])
            txn = txn[is_row_change]
            if table is None:
                # How its columns write their values is not known, so it meets all that its value dependencies name.
                for space in spaces.get(name, ()):
                    found.write(txn, space.name)
                continue
            for use in _TableItems(table.schema, spaces[name], changes.filter(is_row)).uses():
                found.add(use, txn)
        offset += batch.num_rows
    return found


def _by_kind(messages: pa.RecordBatch, txn: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the transactions of messages by what kind they are of: those of one kind keep their order."""
    kinds = dict(parse_images(messages[c.BEFORE], ["kind"]))["kind"].dictionary_encode()
    codes = kinds.indices.fill_null(-1).to_numpy()
    for code, kind in enumerate(kinds.dictionary.to_pylist()):
        yield kind, txn[codes == code]


def fingerprint(tables: Mapping[TableName, TargetTable], virtual: VirtualDependencies) -> int:
    """A number that says by which keys marks were made: those that were made by others do not meet them."""
    spaces = _spaces_by_table(tables, virtual)
    text = repr([(str(name), [repr(space) for space in spaces[name]]) for name in sorted(spaces)])
    return int(hash_name(f"{text} {virtual!r}").view(np.int64))


class Uses:
    """The dependency values that transactions use, as `find_uses` finds them."""

    def __init__(self, virtual: VirtualDependencies) -> None:
        """Begin with none."""
        self._virtual = virtual
        # Lists of arrays that line up, one per table, space and side: transaction, hash, and whether it is written.
        self._txns: list[NDArray[np.int64]] = []
        self._values: list[NDArray[np.uint64]] = []
        self._written: list[NDArray[np.bool_]] = []
        self.barriers: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self.touched: dict[TableName, list[NDArray[np.int64]]] = defaultdict(list)
        self._spaces: dict[str, _Uses] = {}

    def write(self, members: NDArray[np.int64], value: str) -> None:
        """Have transactions write one value, which keeps them in order."""
        self._append(members, np.full(len(members), hash_name(value)), is_written=True)

    def add(self, use: _Use, txn: NDArray[np.int64]) -> None:
        """Take in the uses of a space by changes of which `txn` has the transactions."""
        self._append(txn[use.rows], use.values, is_written=use.space.is_written)
        self._spaces.setdefault(use.space.name, _Uses(use.space)).add(use, txn)

    def dependencies(self) -> Dependencies:
        """Return what keeps these transactions in order among each other."""
        found = Uses(self._virtual)
        for space_name, used in self._spaces.items():
            for kind, members in used.meetings():
                found.write(members, f"{space_name} {kind}")
        for dependency in self._virtual.objects:
            found.write(_following(dependency, self.touched), f"{dependency.table} after {dependency.parent}")
        empty = np.zeros(0, np.int64)
        return Dependencies(
            txn=np.concatenate([empty, *self._txns, *found._txns]),
            value=np.concatenate([empty.astype(np.uint64), *self._values, *found._values]),
            is_written=np.concatenate([empty.astype(bool), *self._written, *found._written]),
            barriers=np.unique(np.concatenate(self.barriers)),
        )

    def marks(self, count: int, *, with_roles: bool = True) -> BlockedKeys:
        """Return what keeps transactions in order with others, which are found elsewhere.

        Args:
            count: How many transactions there are.
            with_roles: Also the marks that only one with values that nobody knows would meet.
        """
        parts = [
            (txn, value, np.where(written, Use.WRITES, Use.REFERS))
            for txn, value, written in zip(self._txns, self._values, self._written, strict=True)
        ]

        def mark(members: NDArray[np.int64], value: str, use: Use) -> None:
            parts.append((members, np.full(len(members), hash_name(value)), np.full(len(members), use)))

        mark(np.arange(count), "barrier", Use.REFERS)
        mark(np.unique(np.concatenate(self.barriers)), "barrier", Use.WRITES)
        for name, used in self._spaces.items():
            for role, members, is_met in used.roles():
                if is_met or with_roles:
                    mark(members, f"{name} role {role}", Use.MEETS if is_met else Use.REFERS)
        for one in self._virtual.objects:
            for table, use in ((one.parent, Use.PARENT), (one.table, Use.CHILD)):
                for members in self.touched.get(table, ()):
                    mark(members, f"{one.table} after {one.parent}", use)
        txns, values, uses = zip(*parts, strict=True)
        return BlockedKeys.of(np.concatenate(txns), np.concatenate(values), np.concatenate(uses).astype(np.int8))

    def _append(self, txn: NDArray[np.int64], value: NDArray[np.uint64], *, is_written: bool) -> None:
        self._txns.append(txn)
        self._values.append(value)
        self._written.append(np.full(len(txn), is_written))


def _following(dependency: ObjectDependency, touched: Mapping[TableName, list[NDArray[np.int64]]]) -> NDArray[np.int64]:
    """The transactions that must keep their order because some change a table and earlier ones its parent.

    Each child is linked to all parents before it. So the last child holds together all parents before it, and each
    other child that has any parent before it hangs on the first one. Parents behind the last child are free, and so are
    children before the first parent.
    """
    parents, children = (
        np.unique(np.concatenate([np.zeros(0, np.int64), *touched.get(name, ())]))
        for name in (dependency.parent, dependency.table)
    )
    if not len(parents) or not len(children):
        return np.zeros(0, np.int64)
    return np.union1d(parents[parents < children[-1]], children[children > parents[0]])


@dataclass(frozen=True)
class _Use:
    """How the changes to one table use one space, with their old rows or with their new ones.

    Attributes:
        is_new: These are the values after the changes, else those before them.
        rows: Indexes of changes whose value is known, ascending.
        values: The hashes of these values.
        is_unknown: For each change, whether it uses a value that its images do not hold.
        is_moved: For each change, whether it takes or gives up its value; an update that leaves a row key as it is
            only touches it.
    """

    space: _Space
    is_new: bool
    rows: NDArray[np.int64]
    values: NDArray[np.uint64]
    is_unknown: NDArray[np.bool_]
    is_moved: NDArray[np.bool_]


class _Uses:
    """The transactions that use one space, by what they do there, with values that are known and others.

    A value that nobody knows may be any. It meets whatever would have another outcome, or another effect on it, if
    the two changed places, whatever the rows at the target are, see `_MEETS`.
    """

    def __init__(self, space: _Space) -> None:
        self._space = space
        # By role: the transactions that use a known value, and those that use another.
        self._known: dict[_Role, list[NDArray[np.int64]]] = defaultdict(list)
        self._unknown: dict[_Role, list[NDArray[np.int64]]] = defaultdict(list)

    def add(self, use: _Use, txn: NDArray[np.int64]) -> None:
        """Take in the uses by changes of which `txn` has the transactions."""
        role = _ROLES[use.space.is_written, use.is_new]
        is_moved = use.is_moved[use.rows]
        for known, rows in ((role, use.rows[is_moved]), (_Role.TOUCH, use.rows[~is_moved])):
            if len(rows):
                self._known[known].append(txn[rows])
        if use.is_unknown.any():
            self._unknown[role].append(txn[use.is_unknown])

    def meetings(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield sets of transactions that must keep their order because of values that nobody knows, each by a name."""
        for role, unknown in self._unknown.items():
            others = self._met_by(role)
            partners = [txns for other in others for txns in (*self._known[other], *self._unknown.get(other, ()))]
            if partners:
                yield f"unknown {role}", np.unique(np.concatenate([*unknown, *partners]))

    def roles(self) -> Iterator[tuple[_Role, NDArray[np.int64], bool]]:
        """Yield the transactions of each role; those that meet all of a role, with True, where they use any value."""
        for role in _Role:
            members = [*self._known.get(role, ()), *self._unknown.get(role, ())]
            if members:
                yield role, np.unique(np.concatenate(members)), False
        for role, unknown in self._unknown.items():
            for other in sorted(self._met_by(role)):
                yield other, np.unique(np.concatenate(unknown)), True

    def _met_by(self, role: _Role) -> Collection[_Role]:
        """The roles that a value that nobody knows, and that is used in this one, may meet."""
        if self._space.is_virtual:
            return set(_Role)
        return _MEETS[role] if self._space.is_unique else _MEETS[role] - {role}


class _Role(StrEnum):
    """What a row does with a value: it takes or gives up one of its own, or a reference to that of another row.

    An update that leaves its row's key as it is only touches it.
    """

    TAKE = "take"
    GIVE_UP = "give up"
    TOUCH = "touch"
    REFER = "refer"
    LEAVE = "leave"


# By whether the space is written, and whether it is the new row that uses it.
_ROLES = {
    (True, True): _Role.TAKE,
    (True, False): _Role.GIVE_UP,
    (False, True): _Role.REFER,
    (False, False): _Role.LEAVE,
}

# Two rows that give up values, or that refer to them or leave them, do not notice each other.
_MEETS = {
    _Role.TAKE: {_Role.TAKE, _Role.GIVE_UP, _Role.TOUCH, _Role.REFER},
    _Role.GIVE_UP: {_Role.TAKE, _Role.TOUCH, _Role.REFER, _Role.LEAVE},
    _Role.REFER: {_Role.TAKE, _Role.GIVE_UP},
    _Role.LEAVE: {_Role.GIVE_UP},
}


class _TableItems:
    """The dependency items of changes to one table."""

    def __init__(self, table: TableSchema, spaces: Sequence[_Space], batch: pa.RecordBatch) -> None:
        self._table = table
        self._spaces = spaces
        # The images before the changes, and those after them.
        self._images = (batch[c.BEFORE], batch[c.AFTER])
        # One entry per change in every array: what it is, then the values of the columns that spaces look at.
        op = batch[c.OP]
        self._is_insert = pc.equal(op, Op.INSERT).to_numpy(zero_copy_only=False)
        self._is_delete = pc.equal(op, Op.DELETE).to_numpy(zero_copy_only=False)
        self._is_update = pc.equal(op, Op.UPDATE).to_numpy(zero_copy_only=False)
        self._is_snapshot = pc.equal(op, Op.SNAPSHOT).to_numpy(zero_copy_only=False)
        needed = sorted({name for space in self._spaces for name in space.columns})
        self._parsed = tuple(dict(parse_images(images, needed)) for images in self._images)
        self._hashes: dict[tuple[str, bool], NDArray[np.uint64]] = {}
        self._changed: dict[str, NDArray[np.bool_]] = {}
        self._held: dict[tuple[str, bool], NDArray[np.bool_]] = {}

    def uses(self) -> Iterator[_Use]:
        """Yield the uses of each space, first those by old rows."""
        for space in self._spaces:
            # Which changes touch the space with their old row, and which with their new one. A row that is told as it
            # is now may have been there before, with the same row key and any other value.
            is_changed = self._is_update & self._any_changed(space.mentions)
            old = self._is_delete | (self._is_update if space.is_row_key or space.is_virtual else is_changed)
            if not space.is_row_key:
                old = old | self._is_snapshot
            new = self._is_insert | self._is_snapshot | is_changed
            for side, is_new in ((old, False), (new, True)):
                if not side.any():
                    continue
                is_known, is_null = self._is_known(space, is_new=is_new)
                rows = np.flatnonzero(side & is_known & ~is_null)
                is_unknown = side & ~is_known & ~is_null
                if len(rows) or is_unknown.any():
                    values = self._values(space, is_new=is_new)[rows]
                    yield _Use(space, is_new, rows, values, is_unknown, is_changed | ~self._is_update)

    def _any_changed(self, columns: tuple[str, ...]) -> NDArray[np.bool_]:
        """Which changes set one of these columns to another value than they hold for the old one."""
        changed = np.zeros(len(self._is_update), bool)
        for name in columns:
            if name not in self._changed:
                self._changed[name] = self._is_changed(name)
            changed |= self._changed[name]
        return changed

    def _is_changed(self, name: str) -> NDArray[np.bool_]:
        is_set: NDArray[np.bool_] = np.array(is_present(self._images[1], name).to_numpy(zero_copy_only=False), bool)
        at = np.flatnonzero(is_set & self._is_update)
        if len(at):
            # Of the updates that set it, those that name the value that it had.
            index = pa.array(at)
            old, new = (self._value(name, is_new=is_new).take(index) for is_new in (False, True))
            both_null = pc.and_(pc.is_null(old), pc.is_null(new))
            same = pc.or_(pc.fill_null(pc.equal(old, new), False), both_null)
            is_same: NDArray[np.bool_] = same.to_numpy(zero_copy_only=False)
            if is_same.any():
                is_set[at[is_same & self._is_held(name, is_new=False)[at]]] = False
        column = self._table.by_name.get(name)
        if column is not None and column.is_generated:
            # The target works it out, perhaps the target alone: whatever an update sets may change it.
            is_set |= self._is_update & ~self._is_held(name, is_new=False)
        return is_set

    def _is_known(self, space: _Space, *, is_new: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Of which changes the images hold the whole value in the space, and of which it is one that meets no other.

        The latter has a NULL in it, in a space that skips NULLs.
        """
        is_known, is_null = np.ones(len(self._is_update), bool), np.zeros(len(self._is_update), bool)
        for name in space.columns:
            is_held = self._is_held(name, is_new=is_new)
            if is_new:
                takes_old = self._takes_old(name)
                is_held = (
                    np.where(takes_old, self._is_held(name, is_new=False), is_held) if takes_old.any() else is_held
                )
            is_known &= is_held
            if space.skips_null:
                values = self._column(name, is_new=is_new)
                if values.null_count:
                    is_null |= is_held & values.is_null().to_numpy(zero_copy_only=False)
        return is_known, is_null

    def _is_held(self, name: str, *, is_new: bool) -> NDArray[np.bool_]:
        """Which images hold a column at all, be it null."""
        if (name, is_new) not in self._held:
            values, images = self._value(name, is_new=is_new), self._images[is_new]
            is_held = np.array(values.is_valid().to_numpy(zero_copy_only=False), bool)
            if values.null_count > images.null_count:
                at = np.flatnonzero(~is_held & images.is_valid().to_numpy(zero_copy_only=False))
                is_held[at] = is_present(images.take(pa.array(at)), name).to_numpy(zero_copy_only=False)
            self._held[name, is_new] = is_held
        return self._held[name, is_new]

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
        values = self._value(name, is_new=is_new)
        takes_old = self._takes_old(name) if is_new else None
        if takes_old is None or not takes_old.any():
            return values
        return pc.if_else(pa.array(takes_old), self._value(name, is_new=False), values)

    def _takes_old(self, name: str) -> NDArray[np.bool_]:
        """Of which changes the new row has a column as the old one had it."""
        takes_old: NDArray[np.bool_] = self._is_update & ~self._any_changed((name,))
        return takes_old

    def _value(self, name: str, *, is_new: bool) -> pa.Array:
        """A column as the images hold it; null where they do not."""
        parsed = self._parsed[is_new]
        if name not in parsed:
            parsed |= parse_images(self._images[is_new], [name])
        return parsed[name]


def _spaces_by_table(
    tables: Mapping[TableName, TargetTable], virtual: VirtualDependencies
) -> Mapping[TableName, Sequence[_Space]]:
    """List the spaces that changes to each table touch, by the table's name in the stream.

    None where a table of the target has nothing to tell its rows apart. A table that the target lacks has only those of
    value dependencies, without columns.
    """
    known = {name: list(_spaces(table)) for name, table in tables.items()}
    # A value that one member of a space cannot hash would never meet the others' hashes; nor would one that is written
    # in another way, as a date is that refers to a timestamp.
    opaque: set[str] = set()
    for space_name, name, columns in _members(virtual):
        if name not in tables:
            opaque.add(space_name)
        if name not in tables or known[name]:
            space = _Space(space_name, columns, columns, is_unique=False, is_virtual=True)
            known.setdefault(name, []).append(space)
    written: dict[str, tuple[str, ...]] = {}
    for name, table in tables.items():
        for space in known[name]:
            if not _is_hashable(table.schema, space.columns):
                opaque.add(space.name)
                continue
            kinds = tuple(_kind(table.schema.by_name[column]) for column in space.columns)
            if written.setdefault(space.name, kinds) != kinds:
                opaque.add(space.name)
    return {
        name: [replace(space, columns=()) if space.name in opaque else space for space in spaces]
        for name, spaces in known.items()
    }


def _members(virtual: VirtualDependencies) -> Iterator[tuple[str, TableName, tuple[str, ...]]]:
    """Yield the space, table and columns of each member of each value dependency; the columns line up."""
    for dependency in virtual.values:
        for name, columns in dependency.members.items():
            yield f"value dependency {dependency.name}", name, columns


def _spaces(target: TargetTable) -> Iterator[_Space]:
    table, key = target.schema, target.key
    if not key.columns:
        return
    if not key.is_declared:
        yield _Space(f"{table.name}", key.columns, key.columns, is_row_key=True, is_unique=False, skips_null=False)
    elif not any(set(unique.columns) == set(key.columns) for unique in table.all_uniques):
        yield _Space(
            _key_name(table.name, key.columns),
            key.columns,
            key.columns,
            is_row_key=True,
            is_unique=key.is_unique,
            skips_null=False,
        )
    for unique in table.all_uniques:
        if unique.columns:
            is_row_key = key.is_declared and set(unique.columns) == set(key.columns)
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
    # A column that a value dependency names may be gone since it was read.
    found = (table.by_name.get(name) for name in columns)
    return all(
        column is not None and column.is_comparable and (column.is_exact or column.is_decimal) for column in found
    )


def _kind(column: Column) -> str:
    """The way in which a column writes its values; two columns write equal values alike if it is the same."""
    if column.logical.kind is Kind.FLOAT:
        # 0.1 of 32 bits is no 0.1 of 64, and no decimal.
        return str(column.logical)
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
