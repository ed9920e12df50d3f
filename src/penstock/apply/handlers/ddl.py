"""DDL as a handler sees it: which table it is of, what it was and is, and what the target would do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.apply.apply_errors import LCR_MALFORMED, ApplyError
from penstock.apply.ddl import (
    Alteration,
    ShapedColumn,
    alteration,
    columns_of,
    is_creation,
    is_drop,
    is_rename,
    name_before,
    statement_of,
)
from penstock.apply.handlers.lcr import ChangeOrigin, Lcr
from penstock.change import Change, TableName


class DdlLcr(Lcr):
    """DDL of one table. What is done to it concerns nobody else until it is executed."""

    def __init__(
        self, change: Change, origin: ChangeOrigin, execute: Callable[[TableName, Alteration], None] | None
    ) -> None:
        """Stand for a change of DDL; `execute` does to a table of the target what is not done yet."""
        super().__init__(name_before(change), origin)
        self._change = change
        self._execute = execute
        self._alteration: Alteration | None = None

    @property
    def command_type(self) -> str:
        """`CREATE TABLE`, `ALTER TABLE`, `RENAME TABLE` (which may alter it besides) or `DROP TABLE`."""
        if is_creation(self._change):
            return "CREATE TABLE"
        if is_drop(self._change):
            return "DROP TABLE"
        return "RENAME TABLE" if is_rename(self._change) else "ALTER TABLE"

    @property
    def ddl_text(self) -> str | None:
        """The statement at the source, with the source's names; None where no event trigger has told it."""
        return statement_of(self._change)

    @property
    def was(self) -> Sequence[ShapedColumn]:
        """The table's columns before, by the names that rules give them, in the source's order; none of a new one."""
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
            raise ApplyError(LCR_MALFORMED, f"expected an Alteration, not {type(wanted).__name__}", where=self._place)
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
        if self._execute is None:
            raise ApplyError(LCR_MALFORMED, "DDL can be executed inside a handler only", where=self._place)
        self._execute(self._table, self.alteration)

    def __repr__(self) -> str:
        """Name it without its statement, which may hold a value."""
        return f"<DdlLcr {self.command_type} {self._table}>"
