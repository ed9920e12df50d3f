"""One rule, made for one version of a table: rows of the source's shape in, rows of the target's out."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.change import NO_VERSION, Op
from penstock.errors import OperatorError, PenstockError
from penstock.images import build_images, find_present, is_present, parse_images
from penstock.rules.changes import EDITED, Changes, Refused, Seen, op_number
from penstock.rules.columns import ColumnMap, append, lacking
from penstock.rules.expressions import Expression, evaluate
from penstock.rules.step import PythonStep
from penstock.schema import TableSchema

ROW_OPS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.SNAPSHOT)
"""What a change of one row may be; everything else is about the table, and has no image."""

_EDITED_SCHEMA = pa.schema([c.ARROW_SCHEMA.field(name) for name in EDITED])


@dataclass(frozen=True)
class TableRule:
    """What becomes of one version of a table. Travels to tasks.

    The order of work: rows (the filter), keep, drop, rename, add, the table's name, the user's own step.

    Attributes:
        source: The version of the table at the source.
        table: What the target is to have: its name, columns and keys, and the version that changes come out with.
        keeps_key: The primary key of both is the same columns, at most under other names: what is a range of keys at
            the source is the same range at the target.
        columns: Which columns are kept, and what they are called.
        row_filter: The condition of the setting `rows`: which rows are to be at the target.
        operations: Which changes reach it; None for all.
        added: Further columns by their names; each looks at the row as it is at the source.
        step: What is done last.
        refusal: Why no change of this version can be put through the rule.
        is_partition: The table is a part of the one that has the rule, and so has a TRUNCATE of its own.
    """

    source: TableSchema
    table: TableSchema
    keeps_key: bool
    columns: ColumnMap
    row_filter: Expression | None = None
    operations: Collection[str] | None = None
    added: Mapping[str, Expression] = field(default_factory=dict)
    step: PythonStep | None = None
    refusal: PenstockError | None = None
    is_partition: bool = False

    def numbered(self, version: int) -> TableRule:
        """The same rule, whose changes come out with another version."""
        return replace(self, table=replace(self.table, version=version))

    def changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what becomes of changes of this version of the table, in the same order; fewer may come out.

        Args:
            batch: Rows of the change stream (`change.ARROW_SCHEMA`).

        A change for whose row a condition or a column has no value becomes a gap, which says why.

        Raises:
            MalformedInputError: An image lacks a column that the rule has to look at.
            OperatorError: The user's step failed.
        """
        made = self.transform(Changes.of(batch))
        edited = self.edited(made)
        index = pa.array(made.row)
        columns = {name: edited[name] for name in edited.schema.names}
        for name in batch.schema.names:
            if name not in columns:
                columns[name] = batch[name] if len(index) == batch.num_rows else batch[name].take(index)
        return pa.record_batch([columns[name] for name in batch.schema.names], schema=batch.schema)

    def edited(self, made: Changes) -> pa.RecordBatch:
        """The columns of the stream, `EDITED`, of changes that `transform` made."""
        count = len(made.row)
        columns = {
            c.OP: made.op_texts,
            c.SCHEMA_NAME: pa.repeat(self.table.name.schema, count),
            c.TABLE_NAME: pa.repeat(self.table.name.name, count),
            # A gap names its table, and no version of it.
            c.TABLE_VERSION: pa.array(np.where(made.is_op(Op.GAP), NO_VERSION, self.table.version), pa.int32()),
            c.KEY: made.key,
            c.BEFORE: made.before,
            c.AFTER: made.after,
        }
        return pa.record_batch([columns[name] for name in EDITED], schema=_EDITED_SCHEMA)

    def transform(self, changes: Changes) -> Changes:
        """Do what `changes` does, without the columns of the stream that are the same for all."""
        is_row = changes.is_op(*ROW_OPS)
        if is_row.all():
            return self._transform_rows(changes)
        # What is about the table as a whole passes as it is: the old image of a gap is no row, but says why it is one.
        made = self._transform_rows(
            replace(changes, before=pc.if_else(pa.array(is_row), changes.before, pa.scalar(None, pa.string())))
        )
        others = np.isin(made.row, changes.row[~is_row])
        kept = changes.before.filter(pa.array(np.isin(changes.row, made.row[others])))
        return self._without_part(replace(made, before=_put(made.before, others, kept)))

    def _without_part(self, changes: Changes) -> Changes:
        """Make a TRUNCATE of a partition a gap: the target has one table for all of them, which it must not empty."""
        truncates = changes.is_op(Op.TRUNCATE)
        if not self.is_partition or not truncates.any():
            return changes
        reason = json.dumps({"reason": f"partition {self.source.name} was truncated"}, ensure_ascii=False)
        return replace(
            changes,
            op=np.where(truncates, np.int32(op_number(Op.GAP)), changes.op),
            before=pc.if_else(pa.array(truncates), reason, changes.before),
        )

    def _transform_rows(self, changes: Changes) -> Changes:
        if self.refusal is not None and changes.is_op(*ROW_OPS).any():
            raise self.refusal
        seen, refused = self._look(changes), Refused()
        if self.row_filter is not None:
            changes, seen = self._filter_rows(changes, seen, self.row_filter, refused)
        if self.operations is not None:
            is_left_in = ~changes.is_op(*(op for op in _CHOICES if op.value not in self.operations))
            changes, seen = changes.filter(is_left_in), seen.filter(is_left_in)
        # Further columns are computed from the row as it is at the source, and then written behind the others.
        changes, texts = self._computed(changes, seen, refused)
        before, after = self.columns.reshape(changes.before), self.columns.reshape(changes.after)
        for name, (old, new, is_set) in texts.items():
            before, after = append(before, name, old), append(after, name, new, is_set)
        changes = replace(changes, before=before, after=after, key=self._key(changes.key))
        if self.step is not None:
            changes = self._stepped(changes, self.step, refused)
        # An update that sets none of the columns that are left is no change any more.
        is_idle = changes.is_op(Op.UPDATE)
        if is_idle.any():
            is_idle &= pc.fill_null(pc.equal(changes.after, "{}"), False).to_numpy(zero_copy_only=False)
        return refused.among(changes.filter(~is_idle) if is_idle.any() else changes)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what becomes of rows of the table: the target's columns, of those rows that are to be there.

        Args:
            batch: Columns of canonical text under their names at the source.

        Raises:
            OperatorError: A condition or a computed column has no value for a row, or the user's step failed.
        """
        made, faults = self.told_rows(batch)
        for index in sorted(faults):
            raise faults[index] from None
        return made

    def told_rows(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, OperatorError]]:
        """Do what `rows` does, and leave out the rows that have no value; these by their index, each with why."""
        if self.refusal is not None:
            raise self.refusal
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        at, faults = np.arange(batch.num_rows), dict[int, OperatorError]()

        def keep(is_kept: NDArray[np.bool_], *sets: dict[str, pa.Array]) -> None:
            """Leave rows out of sets of columns that line up with `at`."""
            nonlocal at
            if not is_kept.all():
                at, mask = at[is_kept], pa.array(is_kept)
                for columns in sets:
                    columns.update({name: values.filter(mask) for name, values in columns.items()})

        def without(of: Mapping[int, OperatorError]) -> NDArray[np.bool_]:
            faults.update({int(at[index]): fault for index, fault in of.items()})
            return ~np.isin(np.arange(len(at)), list(of))

        if self.row_filter is not None:
            found = evaluate([self.row_filter], given, len(at))
            keep(without(found.faults) & _mask(pc.fill_null(found.values[0], False)), given)
        made = {new: given[name] for name, new in self.columns.names.items() if name in given}
        found = evaluate([*self.added.values()], given, len(at))
        made |= zip(self.added, found.values, strict=True)
        keep(without(found.faults), made)
        if self.step is not None:
            stepped = self.step(made)
            made = dict(stepped.values)
            keep(without(stepped.faults), made)
        return pa.record_batch(list(made.values()), names=list(made)), faults

    def at_source(self, columns: Sequence[str]) -> Sequence[str]:
        """Return what columns that are kept are called at the source."""
        was = {new: old for old, new in self.columns.names.items()}
        return [was[name] for name in columns]

    def _look(self, changes: Changes) -> Seen:
        """Read the columns that the filter and the further columns look at; one entry per change in each array."""
        # For each column the place in the file to blame: that of the first expression that looks at it.
        expressions = [*([] if self.row_filter is None else [self.row_filter]), *self.added.values()]
        places = {name: _plain(expression.place) for expression in reversed(expressions) for name in expression.inputs}
        if not places:
            return Seen({}, {}, {})
        is_update, is_new = pa.array(changes.is_op(Op.UPDATE)), pa.array(changes.is_op(Op.INSERT, Op.SNAPSHOT))
        old, given = parse_images(changes.before, list(places)), parse_images(changes.after, list(places))
        # Column by column, which changes have it in their new image, and which of these are updates.
        is_given = find_present(changes.after, given)
        is_set = {name: pc.and_(is_update, is_given[name]) for name in places}
        for name, place in places.items():
            self._refuse_absent(changes, changes.before, old, name, place)
            # An insert without the column says nothing of its value; an update without it leaves it as it was.
            is_lacking = pc.and_(is_new, pc.invert(is_given[name]))
            if pc.any(is_lacking, min_count=0).as_py():
                raise lacking(name, place, self._place(changes))
        is_kept = {name: pc.and_(is_update, pc.invert(is_given[name])) for name in places}
        new = {name: pc.if_else(is_kept[name], old[name], given[name]) for name in places}
        return Seen(old, new, {name: _mask(values) for name, values in is_set.items()})

    def _filter_rows(
        self, changes: Changes, seen: Seen, row_filter: Expression, refused: Refused
    ) -> tuple[Changes, Seen]:
        """Filter by the setting `rows` (a WHERE); what moves a row in becomes an insert, and out, a delete."""
        # One entry per change in `old` and `new`: does its old row, and its new row, meet the condition?
        rows = seen.rows(changes, row_filter.inputs)
        found = evaluate([row_filter], rows.values, rows.count)
        old, new = rows.spread(_mask(pc.fill_null(found.values[0], False)))
        if found.faults:
            is_left = refused.take(changes, rows.of_changes(found.faults))
            changes, seen, old, new = changes.filter(is_left), seen.filter(is_left), old[is_left], new[is_left]
        is_update = changes.is_op(Op.UPDATE)
        moves_in, moves_out = is_update & ~old & new, is_update & old & ~new
        # Kept is whatever is about the whole table, and every change of which one row at least is in the subset.
        is_kept = ~changes.is_op(*ROW_OPS) | (is_update & (old | new)) | (changes.is_op(Op.DELETE) & old)
        is_kept |= changes.is_op(Op.INSERT, Op.SNAPSHOT) & new
        if moves_in.any() or moves_out.any():
            changes = self._move(changes, moves_in, moves_out, _plain(row_filter.place))
        return changes.filter(is_kept), seen.filter(is_kept)

    def _move(self, changes: Changes, moves_in: NDArray[np.bool_], moves_out: NDArray[np.bool_], what: str) -> Changes:
        """Make inserts of the updates that move a row in, and deletes of those that move one out."""
        op, key = changes.op.copy(), changes.key
        op[moves_in], op[moves_out] = op_number(Op.INSERT), op_number(Op.DELETE)
        before = pc.if_else(pa.array(moves_in), pa.scalar(None, pa.string()), changes.before)
        after = pc.if_else(pa.array(moves_out), pa.scalar(None, pa.string()), changes.after)
        if moves_in.any():
            # `whole` has one entry per row that moves in, in order; the masks put them back in their places.
            part = changes.filter(moves_in)
            names = self.source.column_names
            whole = self._overlaid(part, names, what)
            mask = pa.array(moves_in)
            after = pc.replace_with_mask(after, mask, build_images(whole, {}))
            if key.null_count < len(key) and self.source.primary_key is not None:
                new_key = build_images({name: whole[name] for name in self.source.primary_key.columns}, {})
                key = pc.replace_with_mask(key, mask, new_key)
        return replace(changes, op=op, key=key, before=before, after=after)

    def _overlaid(self, updates: Changes, names: Sequence[str], what: str) -> dict[str, pa.Array]:
        """The new rows of updates: what the change set, and the old value of everything else."""
        old = self._values(updates, updates.before, names, what)
        new = parse_images(updates.after, names)
        is_set = find_present(updates.after, new)
        return {name: pc.if_else(is_set[name], new[name], old[name]) for name in names}

    def _computed(
        self, changes: Changes, seen: Seen, refused: Refused
    ) -> tuple[Changes, dict[str, tuple[pa.Array, pa.Array, pa.Array | None]]]:
        """The changes that have a value for each further column, and how these line up with them.

        Of each column its text in old and new images, and for which new ones it is set; None for all.
        """
        if not self.added:
            return changes, {}
        rows = seen.rows(changes, {name for expression in self.added.values() for name in expression.inputs})
        found = evaluate([*self.added.values()], rows.values, rows.count)
        spread = [rows.spread_texts(texts) for texts in found.values]
        if found.faults:
            is_left = refused.take(changes, rows.of_changes(found.faults))
            changes, mask = changes.filter(is_left), pa.array(is_left)
            spread = [(old.filter(mask), new.filter(mask)) for old, new in spread]
        is_update = changes.is_op(Op.UPDATE)
        made = {}
        for name, (old, new) in zip(self.added, spread, strict=True):
            is_set = pc.or_(pa.array(~is_update), _differ(old, new)) if is_update.any() else None
            made[name] = old, new, is_set
        return changes, made

    def _stepped(self, changes: Changes, step: PythonStep, refused: Refused) -> Changes:
        """Put old and new rows through the user's step, both alike, and write images of what comes out."""
        names = [*self.columns.names.values(), *self.added]
        what = _plain(step.place)
        has_old, is_update = changes.is_op(Op.UPDATE, Op.DELETE), changes.is_op(Op.UPDATE)
        is_new = changes.is_op(Op.INSERT, Op.SNAPSHOT)
        # Three runs of rows: old rows of updates and deletes, new rows of updates, rows of inserts. The step sees them
        # as one table.
        olds, updates, news = changes.filter(has_old), changes.filter(is_update), changes.filter(is_new)
        old = self._values(olds, olds.before, names, what)
        moved = self._overlaid(updates, names, what)
        new = self._values(news, news.after, names, what)
        parts = (old, moved, new)
        stepped = step({name: pa.concat_arrays([part[name] for part in parts]) for name in names})
        made = stepped.values
        # Cut what comes out at the same places.
        ends = np.cumsum([len(olds.row), len(updates.row), len(news.row)])
        old, moved, new = (
            {name: values.slice(start, end - start) for name, values in made.items()}
            for start, end in zip((0, *ends[:-1]), ends, strict=True)
        )
        # The old rows that line up with `moved`; a column is set where the step's two results differ.
        old_of_updates = {name: values.filter(pa.array(is_update[has_old])) for name, values in old.items()}
        is_set = {name: _differ(moved[name], old_of_updates[name]) for name in names}
        before = _put(changes.before, has_old, build_images(old, {}))
        after = _put(changes.after, is_update, build_images(moved, is_set))
        after = _put(after, is_new, build_images(new, {}))
        key = changes.key
        if key.null_count < len(key) and self.table.primary_key is not None:
            columns = self.table.primary_key.columns
            key = _put(key, has_old, build_images({name: old[name] for name in columns}, {}))
            key = _put(key, is_new, build_images({name: new[name] for name in columns}, {}))
        if not stepped.faults:
            return replace(changes, before=before, after=after, key=key)
        # For each row that went through the step, which change it is of.
        of_change = np.concatenate([np.flatnonzero(mask) for mask in (has_old, is_update, is_new)])
        is_left = refused.take(changes, {int(of_change[index]): fault for index, fault in stepped.faults.items()})
        return replace(changes, before=before, after=after, key=key).filter(is_left)

    def _key(self, key: pa.Array) -> pa.Array:
        """The key under its names at the target; null where the target's table has none of the source's."""
        if key.null_count == len(key):
            return key
        if self.table.primary_key is None:
            return pa.nulls(len(key), pa.string())
        return self._key_columns.reshape(key)

    @cached_property
    def _key_columns(self) -> ColumnMap:
        key = self.source.primary_key
        names = self.columns.names
        return ColumnMap({name: names[name] for name in (key.columns if key else ())}, ())

    def _values(self, changes: Changes, images: pa.Array, names: Sequence[str], place: str) -> Mapping[str, pa.Array]:
        """The values of columns that every image must have."""
        values = parse_images(images, names)
        for name in names:
            self._refuse_absent(changes, images, values, name, place)
        return values

    def _refuse_absent(
        self, changes: Changes, images: pa.Array, values: Mapping[str, pa.Array], name: str, place: str
    ) -> None:
        """Refuse images, other than null ones, that lack a column; one that is null is there."""
        if values[name].null_count == images.null_count:
            return
        unsure = images.filter(pc.and_(images.is_valid(), values[name].is_null()))
        if not pc.all(is_present(unsure, name), min_count=0).as_py():
            raise lacking(name, place, self._place(changes))

    def _place(self, changes: Changes) -> str:
        if not len(changes.scn):
            return f"table {self.source.name}"
        return f"table {self.source.name}, positions {changes.scn[0]} to {changes.scn[-1]}"


_CHOICES = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE)
"""Operations that a rule may leave out."""


def _put(images: pa.Array, mask: NDArray[np.bool_], others: pa.Array) -> pa.Array:
    """Images, with the others in place of those where the mask holds, one after the other."""
    return pc.replace_with_mask(images, pa.array(mask), others) if mask.any() else images


def _plain(place: str) -> str:
    return place.removesuffix(": ")


def _differ(left: pa.Array, right: pa.Array) -> pa.Array:
    """Whether texts differ; two nulls do not."""
    same = pc.fill_null(pc.equal(left, right), False)
    return pc.invert(pc.or_(same, pc.and_(left.is_null(), right.is_null())))


def _mask(values: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(values.to_numpy(zero_copy_only=False), bool)
