"""The net effect of a group of transactions on one table: first before image, last after image of each row.

Netting hides what happened in between, so it is only done where nothing that apply would notice can be hidden:
the images of each row must form a chain, and images that exist only in between and might have broken a constraint
of the target are handed on as probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.apply.conflicts import SpeculationError
from penstock.apply.hashing import hash_rows, hash_text, normalise_number
from penstock.apply.netting import Netting
from penstock.apply.target import TargetTable
from penstock.change import Op
from penstock.images import find_present, is_complete, parse_images

Columns = Mapping[str, pa.Array]

NETTED = (c.COMMIT_SCN, c.OP, c.BEFORE, c.AFTER)
"""The columns of the change stream that netting looks at."""


@dataclass(frozen=True)
class NetChange:
    """Rows to delete, update and insert in one table, as columns of canonical text.

    Attributes:
        deletes: Old images.
        updates_old: Old images of the rows to update.
        updates_new: For the same rows, new values of the columns that changed in any of them.
        inserts: New images.
        probes: Images that no row has in the end, but that had to be legal in between.
        are_probes_absent: For each probe, whether no row may be left with its key.
    """

    table: TargetTable
    deletes: pa.Table
    updates_old: pa.Table
    updates_new: pa.Table
    inserts: pa.Table
    probes: pa.Table
    are_probes_absent: pa.Array


def net_change(rows: pa.Table, netting: Netting) -> NetChange:
    """Net the changes of one table version.

    Args:
        rows: Inserts, updates and deletes of that table, in commit order; their columns `NETTED`.
        netting: A possible one; if insert-only, there are only inserts.

    Raises:
        SpeculationError: The images do not chain, are partial, or hold a case only the row path decides.
    """
    return _Net(rows, netting).result()


class _Net:
    def __init__(self, rows: pa.Table, netting: Netting) -> None:
        self._netting = netting
        rows = rows.combine_chunks()
        op = rows[c.OP]
        # An update that changed nothing is no change to apply.
        is_idle = pc.and_(pc.equal(op, Op.UPDATE), pc.fill_null(pc.equal(rows[c.AFTER], "{}"), False))
        if pc.any(is_idle).as_py():
            rows = rows.filter(pc.invert(is_idle)).combine_chunks()
        # From here on every array has one entry per change that is left, in commit order.
        self._count = len(rows)
        self._scn = rows[c.COMMIT_SCN].to_numpy()
        before, after = _array(rows[c.BEFORE]), _array(rows[c.AFTER])
        self._is_insert = _mask(pc.equal(rows[c.OP], Op.INSERT))
        self._is_delete = _mask(pc.equal(rows[c.OP], Op.DELETE))
        self._is_update = ~self._is_insert & ~self._is_delete
        # Column by column: the value before each change, and the value that the change sets; null where there is none.
        names = netting.source.column_names
        self._old = parse_images(before, names, are_all=True)
        changed = parse_images(after, names, are_all=True)
        inserted = after.filter(pa.array(self._is_insert))
        if not (
            is_complete(before, self._old)
            and is_complete(inserted, {name: changed[name].filter(pa.array(self._is_insert)) for name in names})
        ):
            raise SpeculationError("an image is partial")
        # Column by column, which changes are updates that set it; then the whole new row of every change.
        of_updates = {name: _where(self._is_update, values) for name, values in changed.items()}
        is_set = find_present(_where(self._is_update, after), of_updates)
        self._is_set = {name: _mask(values) for name, values in is_set.items()}
        self._new = self._overlay(changed)

    def result(self) -> NetChange:
        everything = np.arange(self._count)
        nothing = everything[:0]
        if self._netting.is_insert_only:
            return self._build(
                deletes=nothing,
                updates_old=nothing,
                updates_new=nothing,
                inserts=everything,
                probes=nothing,
                are_absent=np.zeros(0, bool),
            )
        events = self._events()
        first, last = events.is_first, events.is_last
        self._check_chain(events)
        # Two arrays with one entry per key: did its row exist before all changes, does it exist after them?
        existed, exists = events.has_before[first], events.has_after[last]
        # For the same keys: which change came first, and which came last.
        first_row, last_row = events.row[first], events.row[last]
        probes, are_absent = self._probes(events, existed, exists)
        # A row that existed and is gone is deleted by its first old image; one that still exists is updated.
        deleted, updated = first_row[existed & ~exists], first_row[existed & exists]
        in_key_order = self._key_order(updated)
        return self._build(
            deletes=deleted[self._key_order(deleted)],
            updates_old=updated[in_key_order],
            updates_new=last_row[existed & exists][in_key_order],
            # In commit order: rows that the source inserted one after the other become neighbours at the target too.
            inserts=np.sort(last_row[~existed & exists]),
            probes=probes,
            are_absent=are_absent,
        )

    def _overlay(self, changed: Columns) -> Columns:
        """The whole new row: what the change set, and the old value of everything else."""
        new = {}
        for name, values in changed.items():
            is_set = pa.array(self._is_set[name])
            if pc.any(pc.and_(is_set, _same(values, self._old[name]))).as_py():
                raise SpeculationError("a column was set to the value it had")
            keeps = self._is_update & ~self._is_set[name]
            new[name] = _where(keeps, self._old[name], values)
        return new

    def _events(self) -> _Events:
        """What happened under each key, in order; a key change is an end under one key and a start under another."""
        # One entry per change: does it change the key?
        key = self._netting.table.key.columns
        moves = np.zeros(self._count, bool)
        for name in key:
            moves |= self._is_set[name]
        if moves.any() and not self._netting.can_move:
            raise SpeculationError("a key changed in a table with columns of its own")
        # Hashes of the key before and after each change, and the indexes of all changes and of those that move a row.
        old_key, new_key = self._key_hash(self._old, key), self._key_hash(self._new, key)
        rows, moved = np.arange(self._count), np.flatnonzero(moves)
        # One event per change under its old key (an insert: under its new one), then one per move under the new key.
        # `order` keeps commit order: change n has 2n, and the arrival under a new key that it causes 2n + 1.
        return _Events.sorted(
            key=np.r_[np.where(self._is_insert, new_key, old_key), new_key[moved]],
            order=np.r_[2 * rows, 2 * moved + 1],
            row=np.r_[rows, moved],
            has_before=np.r_[~self._is_insert, np.zeros(len(moved), bool)],
            has_after=np.r_[~self._is_delete & ~moves, np.ones(len(moved), bool)],
        )

    def _key_hash(self, image: Columns, key: tuple[str, ...]) -> NDArray[np.uint64]:
        by_name = self._netting.table.schema.by_name
        return hash_rows(
            [hash_text(normalise_number(image[name]) if by_name[name].is_decimal else image[name]) for name in key], ""
        )

    def _key_order(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Put rows in the order of their old keys, so that the target finds neighbours one after the other.

        Where keys are no integers, in commit order.
        """
        key = self._netting.table.key.columns
        if not all(self._netting.table.schema.by_name[name].is_integer for name in key):
            return np.argsort(rows)
        index = pa.array(rows)
        # The key's columns as numbers, the last column first, as lexsort wants them.
        try:
            values = [self._old[name].take(index).cast(pa.int64()).fill_null(0).to_numpy() for name in reversed(key)]
        except pa.ArrowInvalid:
            # The source has another type there.
            return np.argsort(rows)
        return np.lexsort(values)

    def _check_chain(self, events: _Events) -> None:
        """Each before image must equal the after image before it, or both be missing.

        This also catches two keys with one hash: their images differ.
        """
        # Events that have one before them under the same key; that one is their neighbour, at `follows - 1`.
        follows = np.flatnonzero(~events.is_first)
        if (events.has_after[follows - 1] != events.has_before[follows]).any():
            raise SpeculationError("a row appears or vanishes between two changes")
        # The pairs of neighbours between which the row exists; then, for each pair, its two changes.
        linked = follows[events.has_before[follows]]
        earlier, later = pa.array(events.row[linked - 1]), pa.array(events.row[linked])
        for name, old in self._old.items():
            if not _are_all(_same(self._new[name].take(earlier), old.take(later))):
                raise SpeculationError("a before image is not the after image before it")
        self._check_referred(events, follows)

    def _check_referred(self, events: _Events, follows: NDArray[np.int64]) -> None:
        """A value that others refer to must not be gone between two transactions: the target may have children."""
        columns = self._netting.referred_to
        if not columns or not len(follows):
            return
        # One entry per pair of neighbours: do they belong to two transactions, and does either take away a value that
        # other rows may refer to?
        is_new_transaction = self._scn[events.row[follows]] != self._scn[events.row[follows - 1]]
        is_set = np.logical_or.reduce([self._is_set[name] for name in columns if name in self._is_set])
        is_gone = ~events.has_before[follows] | is_set[events.row[follows]] | is_set[events.row[follows - 1]]
        if (is_new_transaction & is_gone).any():
            raise SpeculationError("a value that other rows may refer to was not there for a while")

    def _probes(
        self, events: _Events, existed: NDArray[np.bool_], exists: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Images that are gone again in the end, where a constraint might have noticed them."""
        # One entry per event: does it leave an image that a later event of its key replaces or removes?
        is_hidden = events.has_after & ~events.is_last
        if not is_hidden.any():
            return events.row[:0], is_hidden[:0]
        # For each event the number of its key. Then one entry per key: rows that came and went, and rows for which a
        # constraint may have noticed what was there in between.
        key_of = np.cumsum(events.is_first) - 1
        is_transient = ~existed & ~exists
        matters = is_transient.copy()
        if self._netting.sensitive:
            # One entry per event: the row is gone for a while, or a column that a constraint looks at is set.
            vanishes = events.has_before & ~events.has_after & ~events.is_last
            is_set = np.logical_or.reduce([self._is_set[name] for name in self._netting.sensitive])
            np.logical_or.at(matters, key_of, vanishes | is_set[events.row])
        probed = is_hidden & (matters[key_of] | self._netting.is_stricter)
        return events.row[probed], is_transient[key_of][probed]

    def _build(
        self,
        *,
        deletes: NDArray[np.int64],
        updates_old: NDArray[np.int64],
        updates_new: NDArray[np.int64],
        inserts: NDArray[np.int64],
        probes: NDArray[np.int64],
        are_absent: NDArray[np.bool_],
    ) -> NetChange:
        new = _take(self._new, updates_new)
        old = _take(self._old, updates_old)
        changed = [name for name in new.column_names if not _are_all(_same(new[name], old[name]))]
        return NetChange(
            table=self._netting.table,
            deletes=_take(self._old, deletes),
            updates_old=old,
            updates_new=new.select(changed),
            inserts=_take(self._new, inserts),
            probes=_take(self._new, probes),
            are_probes_absent=pa.array(are_absent),
        )


@dataclass(frozen=True)
class _Events:
    """Changes by key and, under each key, in order; one entry per event in each array.

    Attributes:
        row: Which change it is.
        has_before, has_after: Whether a row has this key before it, and after it.
        is_first, is_last: Whether it is the first, and the last, of its key.
    """

    row: NDArray[np.int64]
    has_before: NDArray[np.bool_]
    has_after: NDArray[np.bool_]
    is_first: NDArray[np.bool_]
    is_last: NDArray[np.bool_]

    @classmethod
    def sorted(
        cls,
        *,
        key: NDArray[np.uint64],
        order: NDArray[np.int64],
        row: NDArray[np.int64],
        has_before: NDArray[np.bool_],
        has_after: NDArray[np.bool_],
    ) -> _Events:
        # Sorted by key, then by order; `differs` has one entry per pair of neighbours.
        by_key = np.lexsort((order, key))
        key = key[by_key]
        differs = key[1:] != key[:-1]
        is_any = np.ones(min(len(key), 1), bool)
        return cls(
            row=row[by_key],
            has_before=has_before[by_key],
            has_after=has_after[by_key],
            is_first=np.r_[is_any, differs],
            is_last=np.r_[differs, is_any],
        )


def _same(left: pa.Array, right: pa.Array) -> pa.Array:
    """Compare texts; two nulls are the same."""
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(pc.equal(left, right), False), both_null)


def _where(mask: NDArray[np.bool_], values: pa.Array, other: pa.Array | None = None) -> pa.Array:
    """Values where the mask holds, else the other ones, or null. Copies nothing where all come from one side."""
    if mask.all():
        return values
    if other is not None and not mask.any():
        return other
    return pc.if_else(pa.array(mask), values, other)


def _are_all(values: pa.Array | pa.ChunkedArray) -> bool:
    return bool(pc.all(values, min_count=0).as_py())


def _take(columns: Columns, rows: NDArray[np.int64]) -> pa.Table:
    count = len(next(iter(columns.values()))) if columns else 0
    if len(rows) == count and (rows == np.arange(count)).all():
        return pa.table(dict(columns))
    index = pa.array(rows)
    return pa.table({name: values.take(index) for name, values in columns.items()})


def _mask(values: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(
        values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)
    )


def _array(values: pa.ChunkedArray) -> pa.Array:
    if values.num_chunks == 1:
        return values.chunk(0)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, pa.string())
