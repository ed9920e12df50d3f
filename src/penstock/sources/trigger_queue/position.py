"""Slices of a trigger queue, and positions as Spark's offsets.

Which position (SCN) a transaction has, its database says: `dialects.postgres.source.change_log`, in `_read_page`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from penstock.errors import MalformedInputError
from penstock.origins import Origins
from penstock.position import Anchor, Scn
from penstock.stream import Slice


@dataclass(frozen=True)
class QueueSlice(Slice):
    """A slice whose rows are found by the ids that the source's server gave the transactions.

    Attributes:
        txn_ids: Those ids, one for each transaction.
        tag_codes: The place of each transaction's origin mark in `tags`; below 0 for those that no apply process wrote.
        tags: The marks; empty for an apply process that sets none.
        ddl_scns: The positions of those that altered a table, where that is asked for.
    """

    PER_TRANSACTION: ClassVar[tuple[str, ...]] = (*Slice.PER_TRANSACTION, "txn_ids", "tag_codes")

    txn_ids: NDArray[np.int64] = field(kw_only=True)
    tag_codes: NDArray[np.int32] = field(kw_only=True)
    tags: tuple[str, ...] = ()
    ddl_scns: frozenset[int] = frozenset()

    @property
    def has_ddl(self) -> bool:
        """Whether one of its transactions altered a table."""
        return not self.ddl_scns.isdisjoint(self.commit_scns.tolist()) if self.ddl_scns else False

    def until_ddl(self) -> Self:
        """The transactions before the first one that altered a table; that one alone where it is the first."""
        if not self.has_ddl:
            return self
        first = int(np.argmax(np.isin(self.commit_scns, list(self.ddl_scns))))
        return self._cut(0, max(first, 1))

    def without_empty(self) -> Self:
        """Leave out the transactions that changed no row. Positions stay."""
        is_taken = self.changes > 0
        if is_taken.all():
            return self
        return replace(self, **{name: getattr(self, name)[is_taken] for name in self.PER_TRANSACTION})

    def of(self, origins: Origins) -> Self:
        """Leave out the transactions that are not of `origins`. Positions stay: they do not depend on who reads."""
        taken = [*(origins.takes(tag or None, by_apply=True) for tag in self.tags), origins.takes(None, by_apply=False)]
        if all(taken):
            return self
        # The code -1 finds the last entry.
        is_taken = np.array(taken)[self.tag_codes]
        return replace(self, **{name: getattr(self, name)[is_taken] for name in self.PER_TRANSACTION})


def offset_json(position: Scn, anchor: Anchor) -> dict[str, Any]:
    """Write a position as a Spark offset that a person can read, with the cut that it is held against."""
    return {"commit_scn": int(position), "cut": int(anchor.scn), "mark": anchor.mark}


def offset_position(offset: dict[str, Any]) -> tuple[Scn, Anchor | None]:
    """Read what `offset_json` wrote; offsets of earlier versions have no cut.

    Raises:
        MalformedInputError: It is something else.
    """
    if isinstance(offset, dict):
        scn, cut, mark = (offset.get(name) for name in ("commit_scn", "cut", "mark"))
        if type(scn) is int and scn >= 0:
            if cut is None and mark is None:
                return Scn(scn), None
            if type(cut) is int and 0 <= cut <= scn and type(mark) is str:
                return Scn(scn), Anchor(Scn(cut), mark)
    raise MalformedInputError(
        "offset of a trigger queue must be {'commit_scn': integer, 'cut': integer, 'mark': text}", where=repr(offset)
    )
