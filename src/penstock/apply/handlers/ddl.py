"""The handler of DDL: what whoever applies DDL calls instead of carrying a statement out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.apply.conflicts import LCR_MALFORMED, ApplyError
from penstock.apply.handlers.lcr import Origin
from penstock.apply.handlers.runner import Handlers
from penstock.apply.handlers.sql import Gate, HandlerSql
from penstock.change import TableName


@dataclass
class DdlLcr:
    """A statement of DDL as a handler sees it; what it sets here is what `execute` carries out.

    Attributes:
        ddl_text: The statement.
        command_type: What it does: `CREATE TABLE`.
        object_type: `TABLE`, `INDEX`...
        table: What it is about, by its name at the target.
        current_schema: The schema that names without one are of.
    """

    ddl_text: str
    command_type: str
    object_type: str
    table: TableName
    current_schema: str
    origin: Origin
    carry_out: Callable[[DdlLcr], None]
    _gate: Gate | None = None

    @property
    def object_owner(self) -> str:
        """The schema of what it is about."""
        return self.table.schema

    @property
    def object_name(self) -> str:
        """The name of what it is about."""
        return self.table.name

    def execute(self) -> None:
        """Carry the statement out as it is now, inside the transaction; calls no handler.

        Raises:
            ApplyError: The target refuses it, or the call that it was given to is over.
        """
        if self._gate is None:
            raise ApplyError(LCR_MALFORMED, "a statement can be executed inside a handler only")
        with self._gate.enter(), self._gate.savepoint():
            self.carry_out(self)


def handle_ddl(handlers: Handlers, lcr: DdlLcr) -> bool:
    """Give a statement to the handler of DDL, inside the open transaction, between `begin` and `end` of the handlers.

    Returns:
        False where there is no such handler: then the statement is to be carried out directly.

    Raises:
        ApplyError: The handler refuses the transaction.
    """
    function = handlers.settings.ddl
    if function is None:
        return False
    handlers.bar()
    gate = Gate(handlers.session)
    lcr._gate = gate
    sql = HandlerSql(gate, gate.savepoint)
    handlers.call(function, gate, lambda call: call(lcr, sql))
    return True
