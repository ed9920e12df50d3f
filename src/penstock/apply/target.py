"""The tables of a target, as apply sees them; `session` has how they are written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.apply.keys import RowKey, row_key
from penstock.apply.virtual_dependencies import NONE, VirtualDependencies
from penstock.change import Image, TableName
from penstock.position import START, Scn
from penstock.schema import ForeignKey, TableSchema


@dataclass(frozen=True)
class Unfollowed:
    """An alteration that waits in the error queue, after which the source calls other columns by some names.

    Attributes:
        entry: The entry to retry first.
        version: What was captured with this version of the table or a later one comes after it.
        columns: The names that mean other columns at the target.
    """

    entry: str
    version: int
    columns: frozenset[str]


@dataclass(frozen=True)
class TargetTable:
    """A table at the target, as apply sees it.

    Attributes:
        substitute_key: Columns that the user has named to find its rows by.
        unfollowed: The alterations of it that wait, in their order.
    """

    schema: TableSchema
    substitute_key: tuple[str, ...] = ()
    unfollowed: tuple[Unfollowed, ...] = ()

    def unfollowed_at(self, version: int) -> Unfollowed | None:
        """The last alteration that waits and comes before what was captured with a version."""
        return next((one for one in reversed(self.unfollowed) if one.version <= version), None)

    @cached_property
    def key(self) -> RowKey:
        """How its rows are found."""
        return row_key(self.schema, self.substitute_key)

    @property
    def name(self) -> TableName:
        """Its name."""
        return self.schema.name


@dataclass(frozen=True)
class TargetCatalog:
    """The target's tables, and from which position on each takes changes.

    Attributes:
        tables: By their names in the stream.
        instantiated: Changes at or before this position are already in the table.
        virtual: What depends on each other beyond the constraints of the tables.
        checks_all_references: Foreign keys are checked of every transaction, see `unchecked`.
    """

    tables: Mapping[TableName, TargetTable]
    instantiated: Mapping[TableName, Scn]
    virtual: VirtualDependencies = NONE
    checks_all_references: bool = False

    def unchecked(self, scn: int) -> Collection[ForeignKey]:
        """Return the foreign keys that are not checked of a transaction at a position.

        Those of which a table was copied as of this position or a later one: the other table does not stand there yet,
        so that a reference may hang for a moment, until it does.
        """
        ends = self.reference_positions
        if not len(ends) or scn > ends[-1]:
            return ()
        return frozenset(key for key, position in self._references.items() if scn <= position)

    @cached_property
    def reference_positions(self) -> NDArray[np.int64]:
        """The positions, ascending, behind each of which more foreign keys are checked than up to it."""
        return np.unique(np.fromiter(self._references.values(), np.int64, len(self._references)))

    @cached_property
    def _references(self) -> Mapping[ForeignKey, int]:
        """The foreign keys of all tables, each with the position up to which it is not checked."""
        if self.checks_all_references:
            return {}
        at = self.instantiated
        keys = {
            key for table in self.tables.values() for key in (*table.schema.foreign_keys, *table.schema.referenced_by)
        }
        return {key: max(at.get(key.child, START), at.get(key.parent, START)) for key in keys}

    def with_keys(self, keys: Mapping[TableName, tuple[str, ...]]) -> TargetCatalog:
        """The same tables, whose rows are found by substitute keys where there are any."""
        tables = {name: replace(table, substitute_key=keys.get(name, ())) for name, table in self.tables.items()}
        return replace(self, tables=tables)


@dataclass(frozen=True)
class RowMatch:
    """Which row a change is about.

    Attributes:
        key: Row key columns and their old values.
        old: Further columns and the values they must still have.
        only_one: Rows may be equal in every column; take any one of them.
    """

    key: Image
    old: Image
    only_one: bool = False


@dataclass(frozen=True)
class Unexpected:
    """Rows of one table that are not as the changes of a group expect them; the arrays line up.

    Attributes:
        changes: The indexes of the first changes of these rows, as `net_change` was given them.
        is_there: Whether a row has the key: one with other values or, for an insert, any. Otherwise it is missing, or
            another unique key is taken, or that is not told.
    """

    changes: NDArray[np.int64]
    is_there: NDArray[np.bool_]


ComparedRow = tuple[Image, list[str]]
"""A row, and the columns that it has otherwise than was expected of it."""
