"""What a pipeline file says of handlers, held against the tables it is said of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from penstock.apply.handlers.settings import HandlerSettings
from penstock.apply.handlers.statement import BindSource, Statement
from penstock.change import TableName
from penstock.errors import OperatorError
from penstock.schema import TableSchema
from penstock.text import nearest


def handler_faults(
    settings: HandlerSettings,
    tables: Mapping[TableName, TableSchema],
    there: Mapping[TableName, TableSchema],
    *,
    where: str,
) -> list[OperatorError]:
    """Say which handlers are of tables that the pipeline does not have, or name columns that no change of it has.

    Args:
        tables: Of the pipeline as their changes tell of them, by their names at the target.
        there: The same tables at the target, as far as they are there.
        where: The target.
    """
    return [
        OperatorError(what, where=where, do="correct `apply.tables` in the pipeline file, where names are the target's")
        for name in settings.tables
        for what in _faults(settings, name, {**there, **tables})
    ]


def statement_faults(
    settings: HandlerSettings,
    ask: Callable[[Sequence[tuple[TableName, Statement]]], Sequence[str | None]],
    *,
    where: str,
) -> list[OperatorError]:
    """Say which statements the target cannot run; `ask` has it say why of each."""
    found = [
        (name, statement, f"{handler.place}, statement {number}")
        for name, by_op in settings.tables.items()
        for handlers in by_op.values()
        for handler in handlers.statements
        for number, statement in enumerate(handler.statements, start=1)
        if statement.call is None
    ]
    if not found:
        return []
    reasons = ask([(name, statement) for name, statement, _ in found])
    return [
        OperatorError(f"{place}: the target refuses it: {reason}", where=where, do="write tables as schema.table")
        for (_, _, place), reason in zip(found, reasons, strict=True)
        if reason is not None
    ]


def _faults(settings: HandlerSettings, name: TableName, tables: Mapping[TableName, TableSchema]) -> Iterator[str]:
    schema = tables.get(name)
    if schema is None:
        near = nearest(str(name), map(str, tables))
        yield f"apply.tables.{name}: the pipeline has no such table{near}"
        return
    for handlers in settings.tables[name].values():
        for handler in handlers.statements:
            added: set[str] = set()
            for number, statement in enumerate(handler.statements, start=1):
                for column in _columns(statement):
                    if column not in schema.by_name and column not in added:
                        near = nearest(column, schema.column_names)
                        yield f"{handler.place}, statement {number}: changes have no column {column!r}{near}"
                added |= _added(statement)


def _columns(statement: Statement) -> Iterator[str]:
    """The columns of the change that a statement names."""
    if statement.call is None:
        yield from (bind.name for bind in statement.binds if bind.source is not BindSource.ATTRIBUTE)
    elif statement.call.name in ("delete_column", "keep_columns"):
        yield from (name for name in statement.call.arguments if name is not None)
    elif statement.call.name == "rename_column" and statement.call.arguments[0] is not None:
        yield statement.call.arguments[0]


def _added(statement: Statement) -> set[str]:
    """The columns that the calls behind a statement find besides."""
    if statement.call is None or statement.call.name not in ("add_column", "rename_column"):
        return set()
    name = statement.call.arguments[statement.call.name == "rename_column"]
    return set() if name is None else {name}
