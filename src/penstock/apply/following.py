"""DDL on the row path: tables of the target follow those of the source, by themselves or by a user's handler."""

from __future__ import annotations

from dataclasses import replace

from penstock.apply.conflicts import NOT_INSTANTIATED, TABLE_MISSING, ApplyError
from penstock.apply.ddl import Alteration, DdlPolicy, DdlRules, alteration
from penstock.apply.handlers.runner import Handlers
from penstock.apply.target import RowWriter, TargetCatalog, TargetTable
from penstock.change import Change, TableName, Transaction
from penstock.errors import OperatorError
from penstock.schema import TableSchema


class Following:
    """Carries out DDL through a session whose transaction the caller opens and closes."""

    def __init__(self, writer: RowWriter, rules: DdlRules, handlers: Handlers | None) -> None:
        """Have tables follow by `rules`; a handler that there is for DDL does it in place of us."""
        self._writer = writer
        self._rules = rules
        self._handlers = handlers

    def carry_out(self, change: Change, transaction: Transaction, catalog: TargetCatalog) -> TargetCatalog:
        """Have the table of the target follow that of the source.

        Returns:
            The target's tables as they are then, by which later changes go.

        Raises:
            ApplyError: It cannot be carried out, or the handler has failed.
            OperatorError: That a table was altered is to stop the process.
        """
        policy = self._rules.of(change.table)
        if policy is DdlPolicy.IGNORE:
            return catalog
        if policy is DdlPolicy.STOP:
            raise OperatorError(
                "the table was altered at the source, and `ddl: stop` ends the run here",
                where=f"table {change.table}",
                do="alter it at the target, set `ddl` to `ignore`, and run again; or set it to `apply`",
            )
        if self._handlers is not None and self._handlers.takes_ddl:
            return self._by_handler(self._handlers, change, transaction, catalog)
        table = copied_table(change.table, catalog)
        altered = self._writer.alter(table.name, alteration(change))
        return _with(catalog, {change.table: altered})

    def _by_handler(
        self, handlers: Handlers, change: Change, transaction: Transaction, catalog: TargetCatalog
    ) -> TargetCatalog:
        if change.table not in catalog.instantiated:
            raise not_instantiated(change.table)
        touched = {change.table}

        def execute(table: TableName, wanted: Alteration) -> None:
            touched.add(table)
            self._writer.alter(table, wanted)

        handlers.handle_ddl(change, transaction, execute)
        # What SQL of its own has done is seen only there.
        return _with(catalog, {name: self._writer.describe_anew(name) for name in sorted(touched)})


def copied_table(name: TableName, catalog: TargetCatalog) -> TargetTable:
    """Return a table that changes come for.

    Raises:
        ApplyError: The target has none of this name, or it was never copied.
    """
    table = catalog.tables.get(name)
    if table is None:
        raise ApplyError(TABLE_MISSING, f"table {name} does not exist at the target")
    if name not in catalog.instantiated:
        raise not_instantiated(name)
    return table


def not_instantiated(table: TableName) -> ApplyError:
    """What is wrong with changes of a table that this process has not copied."""
    return ApplyError(NOT_INSTANTIATED, f"table {table} was never copied to this target")


def _with(catalog: TargetCatalog, now: dict[TableName, TableSchema | None]) -> TargetCatalog:
    tables = dict(catalog.tables)
    for name, schema in now.items():
        if schema is None:
            tables.pop(name, None)
        elif name in tables:
            tables[name] = replace(tables[name], schema=schema)
    return replace(catalog, tables=tables)
