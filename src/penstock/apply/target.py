"""What apply needs of a target: its tables, and a session that writes them. Dialects implement it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.apply.ddl import Alteration
from penstock.apply.ddl_log import LoggedDdl
from penstock.apply.handlers.sql import SqlRunner
from penstock.apply.keys import RowKey, row_key
from penstock.apply.virtual_dependencies import NONE, VirtualDependencies
from penstock.change import Image, TableName
from penstock.position import START, Scn
from penstock.schema import ForeignKey, TableSchema

if TYPE_CHECKING:
    from penstock.apply.net import NetChange


@dataclass(frozen=True)
class TargetTable:
    """A table at the target, as apply sees it.

    Attributes:
        substitute_key: Columns that the user has named to find its rows by.
    """

    schema: TableSchema
    substitute_key: tuple[str, ...] = ()

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


class RowWriter(Protocol):
    """Writes single rows. A database error is an `ApplyError`, a `ContentionError`, or one of the process."""

    def transaction(self) -> AbstractContextManager[None]:
        """Begin; commit at the end of the block, or roll back if it raises."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Inside a transaction: undo what the block did if it raises, and nothing else."""

    def insert(self, table: TargetTable, values: Image) -> None:
        """Insert a row; columns left out take their defaults."""

    def update(self, table: TargetTable, match: RowMatch, values: Image) -> int:
        """Set columns of the rows that match; returns how many there were."""

    def delete(self, table: TargetTable, match: RowMatch) -> int:
        """Delete the rows that match; returns how many there were."""

    def truncate(self, tables: Sequence[TargetTable]) -> None:
        """Empty several tables at once."""

    def alter(self, table: TableName, wanted: Alteration, commit_scn: Scn) -> TableSchema | None:
        """Do what is not done yet of an alteration; returns the table as it is then, None where it was dropped.

        What the ledger knows of a table goes with its name, and with the table.
        """

    def drop(self, tables: Sequence[TableName]) -> None:
        """Drop tables together, those of them that there are; they may refer to each other."""

    def note_ddl(self, done: LoggedDdl) -> None:
        """Write down what DDL has done to a table, for people."""

    def describe_anew(self, table: TableName) -> TableSchema | None:
        """Describe a table as it is now, whatever was known of it; None where there is none."""

    def lock_rows(self, table: TargetTable, match: RowMatch) -> list[Image]:
        """Return up to two rows that have the key, whatever their other columns hold, and lock them."""

    def compare_rows(self, table: TargetTable, match: RowMatch) -> list[ComparedRow]:
        """Return up to two rows that have the key, and lock them; each with the columns of `match.old` that differ."""

    def compare_many(
        self, asked: Sequence[tuple[TargetTable, RowMatch]], *, lock: bool = True
    ) -> list[list[ComparedRow]]:
        """Do the same for many changes at once; each by a key that tells rows apart."""

    def update_many(self, updates: Sequence[tuple[TargetTable, RowMatch, Image]]) -> int:
        """Set columns of as many different rows, each found by its key; returns how many there were."""

    def order(self, table: TargetTable, match: RowMatch, column: str, value: str | None) -> int | None:
        """Compare a value with a column of the row with the key, by the column's type and collation.

        Returns:
            1 if the value is above the row's, 0 if they are equal, -1 if it is below; None if one of them is null.
        """

    def shifted(self, table: TargetTable, match: RowMatch, column: str, old: str | None, new: str | None) -> str | None:
        """Return what a number of the row with the key is after it moved by `new` - `old`; None if one is null."""

    def order_many(self, asked: Sequence[tuple[TargetTable, RowMatch, str, str | None]]) -> list[int | None]:
        """Do as `order` for many rows at once; None also of a row that is not there."""

    def shifted_many(
        self, asked: Sequence[tuple[TargetTable, RowMatch, str, str | None, str | None]]
    ) -> list[str | None]:
        """Do as `shifted` for many rows at once; None also of a row that is not there."""

    def do_rows_differ(self, table: TargetTable, match: RowMatch) -> bool:
        """Whether several rows match that are not equal in every column. Locks none."""

    def is_reference_broken(self, foreign_key: ForeignKey, values: Sequence[str], *, is_child: bool) -> bool:
        """Whether a child holds these values and no parent does. The parent found is locked against removal.

        The values are the text of the child's columns, or of the parent's.
        """

    def find_parents(self, foreign_key: ForeignKey, values: Sequence[Sequence[str]]) -> list[bool]:
        """Tell for each child's values whether a parent has them; those that are found are locked against removal."""

    def is_unique_broken(self, table: TargetTable, image: Image) -> str | None:
        """Name a deferrable constraint that two rows now break, one of them with the values of `image`."""

    def unfit_column(self, table: TargetTable, image: Image) -> str | None:
        """Name the first column that does not take its value of `image`; None where each one does."""

    def rows_in_the_way(self, table: TargetTable, constraint: str, image: Image, *, lock: bool = False) -> list[Image]:
        """Return up to two rows that a constraint lets no row with the values of `image` stand beside.

        Whether a row of an expression index stands in the way cannot be told: there are none then.
        """


class TargetSession(RowWriter, SqlRunner, Protocol):
    """One connection to the target, kept for many transactions."""

    @property
    def most_net_columns(self) -> int:
        """The most columns that a table may have whose changes `apply_net` takes; a wider one's go row by row."""

    def forget_tables(self) -> None:
        """Look up again what was known of tables: another session may have altered them."""

    def find_conflicts(self, nets: Sequence[NetChange]) -> list[Unexpected]:
        """Look, inside the open transaction, for rows that are not as net changes expect them.

        Returns:
            For each net change, what was found; there may be conflicts of other kinds.
        """

    def apply_found(self, left_out: Sequence[NDArray[np.int64]], *, unchecked: Collection[ForeignKey]) -> None:
        """Write the net changes that `find_conflicts` has looked at in the same transaction, but for some rows.

        Args:
            left_out: For each net change, the first changes of these rows. Nothing is put in place or probed.

        Raises:
            SpeculationError: Rows were not as expected; nothing may be concluded but that the row path must run.
        """

    def apply_net(self, nets: Sequence[NetChange], *, unchecked: Collection[ForeignKey]) -> None:
        """Write the net changes of a group by set statements, inside the open transaction.

        Raises:
            SpeculationError: Rows were not as expected; nothing may be concluded but that the row path must run.
        """
