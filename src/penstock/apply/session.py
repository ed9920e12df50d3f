"""The session at the target that apply works through. A dialect implements it by one class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from penstock.apply.ddl import Alteration
from penstock.apply.ddl_log import LoggedDdl
from penstock.apply.handlers.sql import SqlRunner
from penstock.apply.ledger import LaneClaim, LaneLedger
from penstock.apply.net import NetChange
from penstock.apply.target import ComparedRow, RowMatch, TargetTable, Unexpected
from penstock.change import Image, TableName
from penstock.position import Scn
from penstock.schema import ForeignKey, TableSchema


class TargetSession(ABC):
    """One connection to the target, kept for many transactions. PostgreSQL's is `PostgresSession`.

    A database error is an `ApplyError`, a `ContentionError`, or one of the process. In the order of their users: what
    all need, the set path, the row path, DDL. The set path is for speed: a session may leave it out.
    """

    handler_sql: SqlRunner
    """SQL of users' handlers, inside the open transaction."""

    most_net_columns: int = 0
    """The most columns that a table may have whose changes `apply_net` takes; a wider one's go row by row.

    With 0 all do that have a column: the set path is never asked for.
    """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Begin; commit at the end of the block, or roll back if it raises."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """Inside a transaction: undo what the block did if it raises, and nothing else."""

    @abstractmethod
    def lane_ledger(self, claim: LaneClaim) -> LaneLedger:
        """Return the ledger of one lane, which writes through this session."""

    @abstractmethod
    def forget_tables(self) -> None:
        """Look up again what was known of tables: another session may have altered them."""

    def find_conflicts(self, nets: Sequence[NetChange]) -> list[Unexpected]:
        """Look, inside the open transaction, for rows that are not as net changes expect them.

        Returns:
            For each net change, what was found; there may be conflicts of other kinds.
        """
        raise NotImplementedError

    def apply_found(self, left_out: Sequence[NDArray[np.int64]], *, unchecked: Collection[ForeignKey]) -> None:
        """Write the net changes that `find_conflicts` has looked at in the same transaction, but for some rows.

        Args:
            left_out: For each net change, the first changes of these rows. Nothing is put in place or probed.

        Raises:
            SpeculationError: Rows were not as expected; nothing may be concluded but that the row path must run.
        """
        raise NotImplementedError

    def apply_net(self, nets: Sequence[NetChange], *, unchecked: Collection[ForeignKey]) -> None:
        """Write the net changes of a group by set statements, inside the open transaction.

        Raises:
            SpeculationError: Rows were not as expected; nothing may be concluded but that the row path must run.
        """
        raise NotImplementedError

    @abstractmethod
    def insert(self, table: TargetTable, values: Image) -> None:
        """Insert a row; columns left out take their defaults."""

    @abstractmethod
    def update(self, table: TargetTable, match: RowMatch, values: Image) -> int:
        """Set columns of the rows that match; returns how many there were."""

    @abstractmethod
    def delete(self, table: TargetTable, match: RowMatch) -> int:
        """Delete the rows that match; returns how many there were."""

    @abstractmethod
    def truncate(self, tables: Sequence[TargetTable]) -> None:
        """Empty several tables at once."""

    @abstractmethod
    def lock_rows(self, table: TargetTable, match: RowMatch) -> list[Image]:
        """Return up to two rows that have the key, whatever their other columns hold, and lock them."""

    @abstractmethod
    def compare_rows(self, table: TargetTable, match: RowMatch) -> list[ComparedRow]:
        """Return up to two rows that have the key, and lock them; each with the columns of `match.old` that differ."""

    @abstractmethod
    def compare_many(
        self, asked: Sequence[tuple[TargetTable, RowMatch]], *, lock: bool = True
    ) -> list[list[ComparedRow]]:
        """Do the same for many changes at once; each by a key that tells rows apart."""

    @abstractmethod
    def update_many(self, updates: Sequence[tuple[TargetTable, RowMatch, Image]]) -> int:
        """Set columns of as many different rows, each found by its key; returns how many there were."""

    @abstractmethod
    def order(self, table: TargetTable, match: RowMatch, column: str, value: str | None) -> int | None:
        """Compare a value with a column of the row with the key, by the column's type and collation.

        Returns:
            1 if the value is above the row's, 0 if they are equal, -1 if it is below; None if one of them is null.
        """

    @abstractmethod
    def shifted(self, table: TargetTable, match: RowMatch, column: str, old: str | None, new: str | None) -> str | None:
        """Return what a number of the row with the key is after it moved by `new` - `old`; None if one is null."""

    @abstractmethod
    def order_many(self, asked: Sequence[tuple[TargetTable, RowMatch, str, str | None]]) -> list[int | None]:
        """Do as `order` for many rows at once; None also of a row that is not there."""

    @abstractmethod
    def shifted_many(
        self, asked: Sequence[tuple[TargetTable, RowMatch, str, str | None, str | None]]
    ) -> list[str | None]:
        """Do as `shifted` for many rows at once; None also of a row that is not there."""

    @abstractmethod
    def do_rows_differ(self, table: TargetTable, match: RowMatch) -> bool:
        """Whether several rows match that are not equal in every column. Locks none."""

    @abstractmethod
    def is_reference_broken(self, foreign_key: ForeignKey, values: Sequence[str], *, is_child: bool) -> bool:
        """Whether a child holds these values and no parent does. The parent found is locked against removal.

        The values are the text of the child's columns, or of the parent's.
        """

    @abstractmethod
    def find_parents(self, foreign_key: ForeignKey, values: Sequence[Sequence[str]]) -> list[bool]:
        """Tell for each child's values whether a parent has them; those that are found are locked against removal."""

    @abstractmethod
    def is_unique_broken(self, table: TargetTable, image: Image) -> str | None:
        """Name a deferrable constraint that two rows now break, one of them with the values of `image`."""

    @abstractmethod
    def unfit_column(self, table: TargetTable, image: Image) -> str | None:
        """Name the first column that does not take its value of `image`; None where each one does."""

    @abstractmethod
    def rows_in_the_way(self, table: TargetTable, constraint: str, image: Image, *, lock: bool = False) -> list[Image]:
        """Return up to two rows that a constraint lets no row with the values of `image` stand beside.

        Whether a row of an expression index stands in the way cannot be told: there are none then.
        """

    @abstractmethod
    def alter(self, table: TableName, wanted: Alteration, commit_scn: Scn) -> TableSchema | None:
        """Do what is not done yet of an alteration; returns the table as it is then, None where it was dropped.

        What the ledger knows of a table goes with its name, and with the table.
        """

    @abstractmethod
    def drop(self, tables: Sequence[TableName]) -> None:
        """Drop tables together, those of them that there are; they may refer to each other."""

    @abstractmethod
    def note_ddl(self, done: LoggedDdl) -> None:
        """Write down what DDL has done to a table, for people."""

    @abstractmethod
    def describe_anew(self, table: TableName) -> TableSchema | None:
        """Describe a table as it is now, whatever was known of it; None where there is none."""
