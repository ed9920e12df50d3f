"""DDL as a handler sees it: which table it is of, what it was and is, and what the target would do about it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from penstock.apply.conflicts import LCR_MALFORMED, ApplyError
from penstock.apply.ddl import (
    Alteration,
    ShapedColumn,
    alteration,
    columns_of,
    is_drop,
    is_rename,
    name_before,
    statement_of,
)
from penstock.apply.handlers.lcr import Origin
from penstock.change import Change, TableName


class DdlExecutor(Protocol):
    """Carries out DDL on a handler's behalf, as the process itself would."""

    def execute(self, table: TableName, wanted: Alteration) -> None:
        """Do to a table of the target what is not done yet."""


class DdlLcr:
    """DDL of one table. What is done to it concerns nobody else until it is executed."""

    def __init__(self, change: Change, origin: Origin, executor: DdlExecutor | None) -> None:
        """Stand for a change of DDL."""
        self._change = change
        self._executor = executor
        self._table = name_before(change)
        self._alteration: Alteration | None = None
        self.origin = origin

    @property
    def command_type(self) -> str:
        """`ALTER TABLE`, `RENAME TABLE` (which may alter it besides) or `DROP TABLE`."""
        if is_drop(self._change):
            return "DROP TABLE"
        return "RENAME TABLE" if is_rename(self._change) else "ALTER TABLE"

    @property
    def object_owner(self) -> str:
        """The table's schema."""
        return self._table.schema

    @property
    def object_name(self) -> str:
        """The table's name."""
        return self._table.name

    @property
    def table(self) -> TableName:
        """The table, by its name at the target."""
        return self._table

    @property
    def source_database_name(self) -> str:
        """The name of the source in the pipeline file."""
        return self.origin.source

    @property
    def transaction_id(self) -> str:
        """The source's own id of the transaction."""
        return self.origin.txn_id

    def get_commit_scn(self) -> int:
        """The position of the transaction."""
        return self.origin.commit_scn

    def get_commit_time(self) -> datetime | None:
        """When the transaction was committed at the source, where that is known."""
        return self.origin.committed_at

    @property
    def ddl_text(self) -> str | None:
        """The statement at the source, with the source's names; None where no event trigger has told it."""
        return statement_of(self._change)

    @property
    def was(self) -> Sequence[ShapedColumn]:
        """The table's columns before, by the names that rules give them, in the source's order."""
        return columns_of(self._change, "was")

    @property
    def now(self) -> Sequence[ShapedColumn]:
        """The table's columns behind it; none where it was dropped."""
        return columns_of(self._change, "is")

    @property
    def alteration(self) -> Alteration:
        """What is to be done to the table of the target.

        Raises:
            ApplyError: The two versions do not tell it.
        """
        if self._alteration is None:
            self._alteration = alteration(self._change)
        return self._alteration

    def set_alteration(self, wanted: Alteration) -> None:
        """Have something else done, as with `dataclasses.replace(ddl.alteration, dropped=())`."""
        if not isinstance(wanted, Alteration):
            raise ApplyError(LCR_MALFORMED, f"an Alteration is wanted, not {type(wanted).__name__}", where=self._place)
        self._alteration = wanted

    def set_object_owner(self, schema: str) -> None:
        """Have it done to a table of another schema."""
        self._table = TableName(schema, self._table.name)

    def set_object_name(self, name: str) -> None:
        """Have it done to another table."""
        self._table = TableName(self._table.schema, name)

    def execute(self) -> None:
        """Do at the target what is not done yet, as without a handler; calls no handler, and commits nothing.

        Raises:
            ApplyError: It cannot be carried out; then nothing of it is done.
        """
        if self._executor is None:
            raise ApplyError(LCR_MALFORMED, "DDL can be executed inside a handler only", where=self._place)
        self._executor.execute(self._table, self.alteration)

    def __repr__(self) -> str:
        """Name it without its statement, which may hold a value."""
        return f"<DdlLcr {self.command_type} {self._table}>"

    @property
    def _place(self) -> str:
        return f"table {self._table}"
