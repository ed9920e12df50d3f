"""What of a lane's stream the set path can take: which changes can be netted, and what is left of them then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import change as c
from penstock.apply.apply_errors import SpeculationError
from penstock.apply.conflict_methods import ConflictRules
from penstock.apply.group import Group
from penstock.apply.handlers.settings import HandlerSettings
from penstock.apply.net import NETTED, NetChange, net_change
from penstock.apply.netting import Netting
from penstock.apply.target import TargetCatalog
from penstock.change import NO_VERSION, Op, TableName
from penstock.errors import MalformedInputError
from penstock.images import mark_external
from penstock.schema import Dictionary


class Nettable:
    """Nets the changes of groups, and tells which can be. Threads may ask at once: what both work out is the same."""

    def __init__(
        self,
        catalog: TargetCatalog,
        dictionary: Dictionary,
        conflicts: ConflictRules,
        handlers: HandlerSettings,
        *,
        most_columns: int,
    ) -> None:
        """Net changes of the tables in the dictionary.

        Args:
            most_columns: The most columns that a table may have; changes of a wider one cannot be netted.
        """
        self._catalog = catalog
        self._dictionary = dictionary
        self._conflicts = conflicts
        self._handlers = handlers
        self._most_columns = most_columns
        self._nettings: dict[tuple[TableName, int], Netting | None] = {}

    def runs(self, group: Group) -> Iterator[tuple[Group, bool]]:
        """Cut a group where transactions that can be netted and others follow each other."""
        if len(group) == 0:
            return
        can_net = np.logical_and.reduceat(self.can_net(group), group.starts[:-1])
        ends = np.r_[np.flatnonzero(np.diff(can_net)) + 1, len(group)]
        first = 0
        for end in ends.tolist():
            yield group.part(first, end), bool(can_net[first])
            first = end

    def can_net(self, group: Group) -> NDArray[np.bool_]:
        """Tell for each change whether it can be netted, as far as its table and its operation say."""
        rows = group.rows
        is_row = _mask(pc.is_in(rows[c.OP], pa.array([Op.INSERT, Op.UPDATE, Op.DELETE, Op.SNAPSHOT])))
        is_insert = _mask(pc.equal(rows[c.OP], Op.INSERT))
        can_net = np.zeros(len(rows), bool)
        if self._handlers.precommit is not None:
            # It is called for each transaction, when that is in.
            return can_net
        for table, version, is_here in group.tables:
            netting = self._netting(table, version)
            if netting is not None:
                can_net |= is_here & (is_insert if netting.is_insert_only else is_row)
            taken_over = self._handlers.taken_over(table)
            if taken_over:
                can_net &= ~(is_here & _mask(pc.is_in(rows[c.OP], pa.array(sorted(taken_over)))))
        # A value that is not in its image is brought to the target by itself.
        is_external = mark_external(rows[c.AFTER])
        return can_net if is_external is None else can_net & ~_mask(is_external)

    def are_plain(self, group: Group) -> bool:
        """Whether nothing but rows of the target's tables is changed, by nobody but apply: no handler, no trigger."""
        ops = pc.is_in(group.rows[c.OP], pa.array([Op.INSERT, Op.UPDATE, Op.DELETE]))
        if self._handlers.precommit is not None or not pc.all(ops).as_py():
            return False
        for name, _, _ in group.tables:
            table = self._catalog.tables.get(name)
            if self._handlers.taken_over(name) or (table is not None and table.schema.fires_triggers):
                return False
        is_external = mark_external(group.rows[c.AFTER])
        return is_external is None or not pc.any(is_external).as_py()

    def nets(self, group: Group) -> Sequence[NetChange] | None:
        """Return the net changes of a group, table by table; None where they cannot be told."""
        nets: dict[TableName, NetChange] = {}
        for table, version, is_here in group.tables:
            netting = self._netting(table, version)
            if netting is None or table in nets:
                # Two versions of one table have different columns, so their images cannot be chained.
                return None
            try:
                rows = group.rows.select(NETTED)
                rows = rows if is_here.all() else rows.filter(pa.array(is_here))
                nets[table] = net_change(rows, netting)
            except (SpeculationError, MalformedInputError, pa.ArrowInvalid):
                # The row path reads the images one by one, and says which of them is wrong; images of more than
                # 2 GB together do not fit into one Arrow array.
                return None
        return list(nets.values())

    def _netting(self, table: TableName, version: int) -> Netting | None:
        if version == NO_VERSION:
            return None
        if (table, version) not in self._nettings:
            target = self._catalog.tables.get(table)
            netting = None
            if target is not None and table in self._catalog.instantiated:
                netting = Netting(self._dictionary.get(table, version), target, self._conflicts)
            is_wide = netting is not None and len(netting.table.schema.columns) > self._most_columns
            waiting = target.unfollowed_at(version) if target is not None else None
            is_possible = netting is not None and netting.is_possible and not is_wide
            is_possible &= waiting is None or not waiting.columns
            self._nettings[table, version] = netting if is_possible else None
        return self._nettings[table, version]


def _mask(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(values.to_numpy(), bool)
