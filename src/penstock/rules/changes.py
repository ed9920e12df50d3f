"""The changes that a rule works on, and the rows that it evaluates expressions for, as arrays that line up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.change import Op
from penstock.errors import OperatorError

EDITED = (c.OP, c.SCHEMA_NAME, c.TABLE_NAME, c.TABLE_VERSION, c.KEY, c.BEFORE, c.AFTER)
"""The columns of the change stream that a rule changes."""

LOOKED_AT = (c.COMMIT_SCN, c.OP, c.KEY, c.BEFORE, c.AFTER)
"""Those that it looks at."""

_OPS = tuple(Op)


@cache
def _op_texts() -> pa.Array:
    # Not when this module is imported: the first array that pyarrow makes of a list imports pandas, and that takes a
    # fifth of the time that the imports of a command take.
    return pa.array([op.value for op in _OPS], pa.string())


@dataclass(frozen=True)
class Changes:
    """Changes of one table version, as the columns that a rule changes; the arrays line up.

    Attributes:
        row: Which change each of them was, counted from 0 in what was given; ascending.
        scn: Position of its transaction.
        op: What it is, as a number: its place in `Op`.
    """

    row: NDArray[np.int64]
    scn: NDArray[np.int64]
    op: NDArray[np.int32]
    key: pa.Array
    before: pa.Array
    after: pa.Array

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Changes:
        """The changes of a batch of the stream."""
        return cls(
            row=np.arange(batch.num_rows),
            scn=batch[c.COMMIT_SCN].to_numpy(),
            op=pc.index_in(batch[c.OP], _op_texts()).to_numpy(zero_copy_only=False),
            key=batch[c.KEY],
            before=batch[c.BEFORE],
            after=batch[c.AFTER],
        )

    def filter(self, mask: NDArray[np.bool_]) -> Changes:
        """Those for which the mask holds."""
        if mask.all():
            return self
        kept = pa.array(mask)
        return Changes(
            self.row[mask],
            self.scn[mask],
            self.op[mask],
            self.key.filter(kept),
            self.before.filter(kept),
            self.after.filter(kept),
        )

    def is_op(self, *ops: Op) -> NDArray[np.bool_]:
        """Which changes are one of these."""
        found = np.zeros(len(self.op), bool)
        for op in ops:
            found |= self.op == op_number(op)
        return found

    @property
    def op_texts(self) -> pa.Array:
        """What each change is, as the stream says it."""
        return _op_texts().take(pa.array(self.op))


def op_number(op: Op) -> int:
    """The number that stands for an operation in `Changes.op`."""
    return _OPS.index(op)


@dataclass(frozen=True)
class Seen:
    """Columns of the rows before and after each change, as far as expressions look at them.

    Attributes:
        old: Null where there is no old row.
        new: Of an update, what it set, and the old value of everything else.
        is_set: Which changes are updates that set the column.
    """

    old: Mapping[str, pa.Array]
    new: Mapping[str, pa.Array]
    is_set: Mapping[str, NDArray[np.bool_]]

    def filter(self, mask: NDArray[np.bool_]) -> Seen:
        """Those of changes for which the mask holds."""
        if mask.all():
            return self
        kept = pa.array(mask)
        return Seen(
            {name: values.filter(kept) for name, values in self.old.items()},
            {name: values.filter(kept) for name, values in self.new.items()},
            {name: values[mask] for name, values in self.is_set.items()},
        )

    def rows(self, changes: Changes, names: Iterable[str]) -> Rows:
        """The rows to evaluate expressions over these columns for: all old rows, then new rows.

        The new row of an update that sets none of these columns is left out: it shares the result of its old row.
        """
        names = list(names)
        # One entry per change: has it an old row, and does its new row have to be evaluated?
        has_old, is_update = changes.is_op(Op.UPDATE, Op.DELETE), changes.is_op(Op.UPDATE)
        is_asked = changes.is_op(Op.INSERT, Op.SNAPSHOT)
        for name in names:
            # Only updates: the change that moved a row in counts as an insert by now.
            is_asked |= self.is_set[name] & is_update
        olds, news = int(has_old.sum()), int(is_asked.sum())
        values = {
            name: pa.concat_arrays(
                [self.old[name].filter(pa.array(has_old)), self.new[name].filter(pa.array(is_asked))]
            )
            for name in names
        }
        # For each change, where its old and its new row stand among these rows; -1 for none.
        old_at = np.where(has_old, np.cumsum(has_old) - 1, -1)
        new_at = np.where(is_asked, olds + np.cumsum(is_asked) - 1, np.where(is_update, old_at, -1))
        return Rows(values, olds + news, old_at, new_at)


@dataclass(frozen=True)
class Rows:
    """Rows that expressions are evaluated for, old ones, then new ones; and which change each belongs to.

    Attributes:
        old_at, new_at: For each change, where its row stands; -1 where there is none.
    """

    values: Mapping[str, pa.Array]
    count: int
    old_at: NDArray[np.int64]
    new_at: NDArray[np.int64]

    def spread(self, met: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For each change, what was found of its old row and its new one; False where there is none."""
        # The False at the end is what an index of -1 finds.
        found = np.r_[met, False]
        return found[self.old_at], found[self.new_at]

    def of_changes(self, faults: Mapping[int, OperatorError]) -> dict[int, OperatorError]:
        """What is wrong with the row of each change, its new one first; by the changes' indexes."""
        is_bad = np.zeros(self.count + 1, bool)
        is_bad[list(faults)] = True
        changes = np.flatnonzero(is_bad[self.old_at] | is_bad[self.new_at]).tolist()
        return {n: faults[int(self.new_at[n] if is_bad[self.new_at[n]] else self.old_at[n])] for n in changes}

    def spread_texts(self, texts: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The same with texts, and null where there is no row."""
        return texts.take(_index(self.old_at)), texts.take(_index(self.new_at))


class Refused:
    """Changes for whose rows a rule has no value: each becomes a gap, so its transaction goes to the error queue."""

    def __init__(self) -> None:
        """None yet."""
        self._parts: list[Changes] = []

    def take(self, changes: Changes, faults: Mapping[int, OperatorError]) -> NDArray[np.bool_]:
        """Take changes, by their indexes, each with why; returns which are left."""
        is_left = ~np.isin(np.arange(len(changes.row)), list(faults))
        taken = changes.filter(~is_left)
        images = zip(taken.op.tolist(), taken.before.to_pylist(), taken.after.to_pylist(), strict=True)
        told = [
            {"reason": fault.what, "rule": fault.where, "operation": _OPS[op], "old": old, "new": new}
            for fault, (op, old, new) in zip([faults[n] for n in sorted(faults)], images, strict=True)
        ]
        nothing = pa.nulls(len(taken.row), pa.string())
        before = pa.array([json.dumps(one, ensure_ascii=False) for one in told], pa.string())
        op = np.full(len(taken.row), op_number(Op.GAP), np.int32)
        self._parts.append(replace(taken, op=op, key=nothing, before=before, after=nothing))
        return is_left

    def among(self, changes: Changes) -> Changes:
        """The gaps in their places among the changes that are left."""
        if not self._parts:
            return changes
        parts = [changes, *self._parts]
        order = np.argsort(np.concatenate([part.row for part in parts]))
        taken = pa.array(order)
        return Changes(
            np.concatenate([part.row for part in parts])[order],
            np.concatenate([part.scn for part in parts])[order],
            np.concatenate([part.op for part in parts])[order],
            *(
                pa.concat_arrays([getattr(part, name).cast(pa.string()) for part in parts]).take(taken)
                for name in ("key", "before", "after")
            ),
        )


def _index(at: NDArray[np.int64]) -> pa.Array:
    return pa.array(at, mask=at < 0)
