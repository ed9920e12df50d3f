"""The net effect of a group of transactions on one table: first before image, last after image of each row.

Netting hides what happened in between, so it is only done where nothing that apply would notice can be hidden:
the images of each row must form a chain, and images that exist only in between and might have broken a constraint
of the target are handed on as probes. Images may be partial; what they tell has to fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.apply.apply_errors import SpeculationError
from penstock.apply.hashing import hash_rows, hash_text, normalise_number
from penstock.apply.netting import Netting
from penstock.apply.row_history import RowEvents, RowHistory, follow
from penstock.apply.target import TargetTable
from penstock.change import Op
from penstock.images import find_present, is_complete, parse_images

Columns = Mapping[str, pa.Array]
Masks = Mapping[str, NDArray[np.bool_]]

Places = Mapping[str, NDArray[np.int64]]
"""Column by column, for each of some rows, the change that tells its value; -1 where none does."""

_NONE: Places = {}

_FIRST = ""
"""Stands among the columns of places for the first change of each row; no column has this name."""

NETTED = (c.COMMIT_SCN, c.OP, c.BEFORE, c.AFTER)
"""The columns of the change stream that netting looks at."""

_MOST_PARTS = 16
"""Rows of one kind of change that tell of different columns need statements of their own: so many at most."""


@dataclass(frozen=True)
class NetUpdate:
    """Rows to update, of which the same columns are known.

    Attributes:
        old: Old images, as far as they are known; the key is.
        new: For the same rows, new values of the columns that changed in any of them, or may have.
    """

    old: pa.Table
    new: pa.Table


@dataclass(frozen=True)
class NetChange:
    """Rows to delete, update and insert in one table, as columns of canonical text.

    Rows of one kind are in several parts where different columns of them are known.

    Attributes:
        deletes: Old images, as far as they are known; the key is.
        inserts: New images; the target fills in what they lack.
        puts: New images of rows that are there already, or not.
        deleted_by, updated_by, inserted_by: For each part, and each row of it, the index of the row's first change.
        chains: Two arrays that line up: the index of a change, and that of the first change of its row. A change that
            moves a row to another key is there twice.
        compares_key_text: Values that the key's index calls equal, as 1.0 and 1.00, must be written alike, too.
        probes: Images that no row has in the end, but that had to be legal in between.
        are_probes_absent: For each probe, whether no row may be left with its key.
    """

    table: TargetTable
    deletes: Sequence[pa.Table]
    updates: Sequence[NetUpdate]
    inserts: Sequence[pa.Table]
    puts: Sequence[pa.Table]
    probes: pa.Table
    are_probes_absent: pa.Array
    deleted_by: Sequence[NDArray[np.int64]] = ()
    updated_by: Sequence[NDArray[np.int64]] = ()
    inserted_by: Sequence[NDArray[np.int64]] = ()
    chains: tuple[NDArray[np.int64], NDArray[np.int64]] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    compares_key_text: bool = True


def net_change(rows: pa.Table, netting: Netting) -> NetChange:
    """Net the changes of one table version.

    Args:
        rows: Inserts, updates, deletes and rows of snapshots of that table, in commit order; their columns `NETTED`.
        netting: A possible one; if insert-only, there are only inserts.

    Raises:
        SpeculationError: The images do not chain, or hold a case only the row path decides.
    """
    return _Net(rows, netting).result()


class _Net:
    def __init__(self, rows: pa.Table, netting: Netting) -> None:
        self._netting = netting
        rows = rows.combine_chunks()
        op = rows[c.OP]
        # An update that changed nothing is no change to apply.
        is_idle = pc.and_(pc.equal(op, Op.UPDATE), pc.fill_null(pc.equal(rows[c.AFTER], "{}"), False))
        # For each change that is left, its index among all.
        self._index = np.arange(len(rows))
        if pc.any(is_idle).as_py():
            self._index = np.flatnonzero(~_mask(is_idle))
            rows = rows.filter(pc.invert(is_idle)).combine_chunks()
        # From here on every array has one entry per change that is left, in commit order.
        self._count = len(rows)
        self._scn = rows[c.COMMIT_SCN].to_numpy()
        before, after = _array(rows[c.BEFORE]), _array(rows[c.AFTER])
        self._is_insert, self._is_delete, self._is_update, self._is_put = (
            _mask(pc.equal(rows[c.OP], op)) for op in (Op.INSERT, Op.DELETE, Op.UPDATE, Op.SNAPSHOT)
        )
        # Column by column: the value before each change, and the value that the change sets; null where there is none.
        names = netting.source.column_names
        self._old = parse_images(before, names, are_all=True)
        changed = parse_images(after, names, are_all=True)
        # Column by column, which changes tell the value before them, and which set one.
        self._tells_old = dict(_told(before, self._old))
        given = self._given(after, changed)
        key = set(netting.table.key.columns)
        self._is_set = {
            name: is_given & (self._is_update if name in key else self._is_update | self._is_put)
            for name, is_given in given.items()
        }
        self._refuse_self_updates(changed, given)
        self._forget_uncompared()
        self._new, self._tells_new = self._overlay(changed, given)

    def result(self) -> NetChange:
        if self._netting.is_insert_only:
            everything = np.arange(self._count)
            inserts = {
                name: everything if told.all() else np.where(told, everything, -1)
                for name, told in self._tells_new.items()
            }
            return self._build(inserts={**inserts, _FIRST: everything}, chains=(everything, everything))
        self._check_keys()
        events = self._events()
        # Two arrays with one entry per key: did its row exist before all changes, does it exist after them?
        existed, exists = events.has_before[events.is_first], events.has_after[events.is_last]
        # The same: is the first change one that puts a row, be there one or not?
        is_put = self._is_put[events.row[events.is_first]]
        if (is_put & ~exists).any():
            raise SpeculationError("a row of a snapshot is gone again")
        self._check_existence(events)
        trails = self._trails(events)
        self._check_chain(trails)
        probes, are_absent = self._probes(events, existed, exists, trails)
        # A row that existed and is gone is deleted by its first old image; one that still exists is updated. Deletes
        # and updates come in the order of their keys.
        first_row, last_row = events.row[events.is_first], events.row[events.is_last]
        deleted, updated = np.flatnonzero(existed & ~exists), np.flatnonzero(existed & exists)
        deleted, updated = (keys[self._key_order(first_row[keys])] for keys in (deleted, updated))
        # In commit order: rows that the source inserted one after the other become neighbours at the target too.
        inserted, put = np.flatnonzero(~existed & exists & ~is_put), np.flatnonzero(is_put)
        inserted, put = (keys[np.argsort(last_row[keys])] for keys in (inserted, put))
        first = _by_column(trails, lambda trail: trail.first) | {_FIRST: first_row}
        last = _by_column(trails, lambda trail: trail.after[events.is_last])
        inserts = _at(last | {_FIRST: first_row}, inserted)
        return self._build(
            deletes=_at(first, deleted),
            updates=(_at(first, updated), _at(last, updated)),
            inserts=inserts,
            puts=_at(last, put),
            probes=probes,
            are_absent=are_absent,
            chains=(events.row, first_row[np.cumsum(events.is_first) - 1]),
        )

    def _given(self, after: pa.Array, changed: Columns) -> Masks:
        """Column by column, which changes have it in their new image."""
        is_new = self._is_insert | self._is_put
        # New rows are mostly whole, which is told for all of them at once.
        of_new = _told(_where(is_new, after), _each(changed, is_new)) if is_new.any() else None
        if of_new is not None and not self._is_update.any():
            return of_new
        of_updates = find_present(_where(self._is_update, after), _each(changed, self._is_update))
        given = {name: _mask(values) for name, values in of_updates.items()}
        return given if of_new is None else {name: of_new[name] | values for name, values in given.items()}

    def _refuse_self_updates(self, changed: Columns, given: Masks) -> None:
        for name, values in changed.items():
            both = self._is_update & given[name] & self._tells_old[name]
            if both.any() and pc.any(pc.and_(pa.array(both), _same(values, self._old[name]))).as_py():
                raise SpeculationError("a column was set to the value it had")

    def _forget_uncompared(self) -> None:
        """Old values that are not compared may not be those at the target: take them as not told."""
        for op, is_here in ((Op.UPDATE, self._is_update), (Op.DELETE, self._is_delete)):
            for name in self._netting.uncompared(op) if is_here.any() else ():
                self._tells_old[name] = self._tells_old[name] & ~is_here

    def _overlay(self, changed: Columns, given: Masks) -> tuple[Columns, Masks]:
        """The new row, which is what the change set and the old value of everything else; and which changes tell it."""
        new, tells = {}, {}
        for name, values in changed.items():
            keeps = self._is_update & ~given[name]
            new[name] = _where(keeps, self._old[name], values)
            tells[name] = np.where(keeps, self._tells_old[name], given[name]) if keeps.any() else given[name]
        return new, tells

    def _check_keys(self) -> None:
        """Each change must tell which row it is about."""
        for name in self._netting.table.key.columns:
            is_told = np.where(self._is_update | self._is_delete, self._tells_old[name], self._tells_new[name])
            if not is_told.all():
                raise SpeculationError("a change does not tell its key")

    def _events(self) -> RowEvents:
        """What happened under each key, in order; a key change is an end under one key and a start under another."""
        # One entry per change: does it change the key?
        key = self._netting.table.key.columns
        moves = np.zeros(self._count, bool)
        for name in key:
            moves |= self._is_set[name]
        if moves.any():
            if not self._netting.can_move:
                raise SpeculationError("a key changed in a table with columns of its own")
            if not all(told[moves].all() for told in self._tells_new.values()):
                raise SpeculationError("a row whose key changed is not known whole")
        # Hashes of the key before and after each change, and the indexes of all changes and of those that move a row.
        old_key, new_key = self._key_hash(self._old, key), self._key_hash(self._new, key)
        rows, moved = np.arange(self._count), np.flatnonzero(moves)
        # One event per change under its old key (without one, under its new one), then one per move under the new key.
        # `order` keeps commit order: change n has 2n, and the arrival under a new key that it causes 2n + 1.
        is_new = self._is_insert | self._is_put
        events = RowEvents.sorted(
            key=np.r_[np.where(is_new, new_key, old_key), new_key[moved]],
            order=np.r_[2 * rows, 2 * moved + 1],
            row=np.r_[rows, moved],
            has_before=np.r_[~is_new, np.zeros(len(moved), bool)],
            has_after=np.r_[~self._is_delete & ~moves, np.ones(len(moved), bool)],
        )
        return events.putting(self._is_put)

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

    def _trails(self, events: RowEvents) -> Sequence[tuple[RowHistory, Sequence[str]]]:
        """What is known of each column; columns that the same changes tell share a trail."""
        alike: dict[tuple[bytes, bytes], list[str]] = {}
        for name, tells_old in self._tells_old.items():
            alike.setdefault((tells_old.tobytes(), self._tells_new[name].tobytes()), []).append(name)
        return [
            (follow(events, tells_old=self._tells_old[names[0]], tells_new=self._tells_new[names[0]]), names)
            for names in alike.values()
        ]

    def _check_existence(self, events: RowEvents) -> None:
        """A row must be there where the change before has left one, and only there."""
        # Events that have one before them under the same key; that one is their neighbour, at `follows - 1`.
        follows = np.flatnonzero(~events.is_first)
        if (events.has_after[follows - 1] != events.has_before[follows]).any():
            raise SpeculationError("a row appears or vanishes between two changes")
        self._check_referred(events, follows)

    def _check_chain(self, trails: Iterable[tuple[RowHistory, Sequence[str]]]) -> None:
        """Each value before a change must be the one that the changes before it have left.

        This also catches two keys with one hash: their images differ.
        """
        for trail, names in trails:
            earlier, later = pa.array(trail.earlier), pa.array(trail.later)
            for name in names:
                if not _are_all(_same(self._new[name].take(earlier), self._old[name].take(later))):
                    raise SpeculationError("a before image is not the after image before it")

    def _check_referred(self, events: RowEvents, follows: NDArray[np.int64]) -> None:
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
        self,
        events: RowEvents,
        existed: NDArray[np.bool_],
        exists: NDArray[np.bool_],
        trails: Sequence[tuple[RowHistory, Sequence[str]]],
    ) -> tuple[pa.Table, NDArray[np.bool_]]:
        """Images that are gone again in the end, where a constraint might have noticed them."""
        # One entry per event: does it leave an image that a later event of its key replaces or removes?
        is_hidden = events.has_after & ~events.is_last
        # For each event the number of its key. Then one entry per key: rows that came and went, and rows for which a
        # constraint may have noticed what was there in between.
        key_of = np.cumsum(events.is_first) - 1
        is_transient = ~existed & ~exists
        matters = is_transient.copy()
        if is_hidden.any() and self._netting.sensitive:
            # One entry per event: the row is gone for a while, or a column that a constraint looks at is set.
            vanishes = events.has_before & ~events.has_after & ~events.is_last
            is_set = np.logical_or.reduce([self._is_set[name] for name in self._netting.sensitive])
            np.logical_or.at(matters, key_of, vanishes | is_set[events.row])
        probed = np.flatnonzero(is_hidden & (matters[key_of] | self._netting.is_stricter))
        found = {}
        for name, rows in _at(_by_column(trails, lambda trail: trail.after), probed).items():
            if (rows >= 0).all():
                found[name] = rows
            elif self._netting.is_stricter or name in self._netting.sensitive:
                raise SpeculationError("an image in between is not known whole")
        return _take(self._new, found), is_transient[key_of][probed]

    def _build(
        self,
        *,
        deletes: Places = _NONE,
        updates: tuple[Places, Places] = (_NONE, _NONE),
        inserts: Places = _NONE,
        puts: Places = _NONE,
        probes: pa.Table | None = None,
        are_absent: NDArray[np.bool_] | None = None,
        chains: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> NetChange:
        deleted, updated, inserted = list(_parts(deletes)), list(_parts(*updates)), list(_parts(inserts))
        return NetChange(
            table=self._netting.table,
            deletes=[_take(self._old, part) for (part,) in deleted],
            updates=[self._net_update(old, new) for old, new in updated],
            inserts=[_take(self._new, part) for (part,) in inserted],
            deleted_by=[self._index[part[_FIRST]] for (part,) in deleted],
            updated_by=[self._index[part[_FIRST]] for part, _ in updated],
            inserted_by=[self._index[part[_FIRST]] for (part,) in inserted],
            puts=[_take(self._new, part) for (part,) in _parts(puts)],
            probes=_take(self._new, dict.fromkeys(self._new, np.zeros(0, int))) if probes is None else probes,
            are_probes_absent=pa.array(np.zeros(0, bool) if are_absent is None else are_absent),
            chains=(self._index[chains[0]], self._index[chains[1]]),
            compares_key_text=not self._netting.conflicts.compare_key_only,
        )

    def _net_update(self, old_at: Places, new_at: Places) -> NetUpdate:
        old, new = _take(self._old, old_at), _take(self._new, new_at)
        names = set(old.column_names)
        changed = [name for name in new.column_names if name not in names or not _are_all(_same(new[name], old[name]))]
        return NetUpdate(old, new.select(changed))


def _told(images: pa.Array, parsed: Columns) -> Masks:
    """Column by column, which images have it."""
    if is_complete(images, parsed):
        return dict.fromkeys(parsed, _mask(images.is_valid()))
    return {name: _mask(values) for name, values in find_present(images, parsed).items()}


def _by_column(
    trails: Iterable[tuple[RowHistory, Sequence[str]]], pick: Callable[[RowHistory], NDArray[np.int64]]
) -> dict[str, NDArray[np.int64]]:
    """What is picked of each column's trail; columns that share a trail share what is picked."""
    return {name: rows for trail, names in trails for rows in [pick(trail)] for name in names}


def _at(places: Places, keys: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """The places of some of the rows; what columns have shared they go on sharing."""
    taken: dict[int, NDArray[np.int64]] = {}
    return {name: taken.setdefault(id(rows), rows[keys]) for name, rows in places.items()}


def _parts(*sides: Places) -> Iterator[tuple[Places, ...]]:
    """Split rows where different columns of them are known, and yield, part by part, the known columns of each side."""
    shared = {id(rows): rows for side in sides for rows in side.values()}
    if not shared or not len(next(iter(shared.values()))):
        return
    known = {at: rows >= 0 for at, rows in shared.items()}
    mixed = [mask for mask in known.values() if not mask.all() and mask.any()]
    # For each row, which of the parts it is in.
    part_of = np.zeros(len(next(iter(known.values()))), int)
    if mixed:
        patterns, part_of = np.unique(np.column_stack(mixed), axis=0, return_inverse=True)
        if len(patterns) > _MOST_PARTS:
            raise SpeculationError("rows tell of too many different columns")
    for part in range(int(part_of.max()) + 1):
        rows = np.flatnonzero(part_of == part)
        here = [_at({name: at for name, at in side.items() if known[id(at)][rows[0]]}, rows) for side in sides]
        if not all(side.keys() - {_FIRST} for side in here):
            raise SpeculationError("nothing is known of a row")
        yield tuple(here)


def _each(columns: Columns, mask: NDArray[np.bool_]) -> Columns:
    """Values where the mask holds, else null, column by column."""
    return {name: _where(mask, values) for name, values in columns.items()}


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


def _take(columns: Columns, places: Places) -> pa.Table:
    """The values that stand at the places of each column."""
    indexes: dict[int, pa.Array | None] = {}
    taken = {}
    for name, rows in places.items():
        if name == _FIRST:
            continue
        if id(rows) not in indexes:
            is_all = len(rows) == len(columns[name]) and (rows == np.arange(len(rows))).all()
            indexes[id(rows)] = None if is_all else pa.array(rows)
        index = indexes[id(rows)]
        taken[name] = columns[name] if index is None else columns[name].take(index)
    return pa.table(taken)


def _mask(values: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(
        values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)
    )


def _array(values: pa.ChunkedArray) -> pa.Array:
    if values.num_chunks == 1:
        return values.chunk(0)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, pa.string())
