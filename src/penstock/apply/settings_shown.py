"""What a process is told by its file, as plain data: kept in the ledger for people to look at; nothing acts on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.apply.conflict_methods import ConflictRules
from penstock.apply.handlers.settings import HandlerSettings
from penstock.apply.parameters import Parameters
from penstock.apply.virtual_dependencies import VirtualDependencies
from penstock.change import Op, TableName


def settings_shown(
    *,
    tag: str | None,
    parameters: Parameters,
    keys: Mapping[TableName, tuple[str, ...]],
    conflicts: ConflictRules,
    handlers: HandlerSettings,
    virtual: VirtualDependencies,
) -> dict[str, Any]:
    """Return all of it, named as the columns of the ledger's views; tables have their names at the target."""
    return {
        "tag": tag,
        "precommit": None if handlers.precommit is None else handlers.precommit.name,
        "ddl": None if handlers.ddl is None else handlers.ddl.name,
        "message": None if handlers.message is None else handlers.message.name,
        "parameters": parameters.texts(),
        "keys": [_object(table) | {"columns": list(columns)} for table, columns in sorted(keys.items())],
        "handlers": list(_handlers(handlers)),
        "conflicts": list(_resolvers(conflicts)),
        "compared": list(_compared(conflicts)),
        "value_dependencies": [
            {"dependency_name": one.name, **_object(table), "columns": list(columns)}
            for one in virtual.values
            for table, columns in sorted(one.members.items())
        ],
        "object_dependencies": [
            {
                **_object(one.table),
                "parent_object_owner": one.parent.schema,
                "parent_object_name": one.parent.name,
            }
            for one in virtual.objects
        ],
    }


def _object(table: TableName) -> dict[str, Any]:
    return {"object_owner": table.schema, "object_name": table.name}


def _handlers(handlers: HandlerSettings) -> Iterator[dict[str, Any]]:
    for table, operations in sorted(handlers.tables.items()):
        for op, said in operations.items():
            made = _object(table) | {"operation_name": op.upper()}
            for one in said.statements:
                statements = [statement.text for statement in one.statements]
                yield made | {"handler_type": "STMT HANDLER", "handler_name": one.name, "statements": statements}
            for kind, function in (("PROCEDURE HANDLER", said.procedure), ("ERROR HANDLER", said.error)):
                if function is not None:
                    yield made | {"handler_type": kind, "handler_name": function.name, "statements": []}


def _resolvers(conflicts: ConflictRules) -> Iterator[dict[str, Any]]:
    for table, rules in sorted(conflicts.tables.items()):
        for one in rules.resolvers:
            yield _object(table) | {
                "operation_name": one.op.upper(),
                "row_is": one.row.value,
                "method_name": one.method.upper(),
                "resolution_column": one.by,
                "columns": [] if one.columns is None else list(one.columns),
            }


def _compared(conflicts: ConflictRules) -> Iterator[dict[str, Any]]:
    for table, rules in sorted(conflicts.tables.items()):
        for column, operations in sorted(rules.compared.items()):
            yield _object(table) | {
                "column_name": column,
                "compare_old_on_delete": _yes_or_no(Op.DELETE, operations),
                "compare_old_on_update": _yes_or_no(Op.UPDATE, operations),
            }


def _yes_or_no(op: Op, operations: Iterable[Op]) -> str:
    return "YES" if op in operations else "NO"
