"""DDL as changes: what apply is told of CREATE, ALTER and DROP, and decides about by `apply.ddl`.

A message says that a table was altered, and not how; so a target cannot follow it, and `apply.ddl: apply` has the
change go to the error queue. A CREATE that the content of its table follows begins the table anew: its rows go first.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.change import Change, Op, TableName
from penstock.formats.dbwatcher.changes import TableEvent
from penstock.formats.dbwatcher.message import Action
from penstock.schema import TableSchema

_HOW = "the message does not say what was altered"
_OTHERWISE = "CREATE describes it otherwise than the CREATE before it"


def ddl_of(event: TableEvent, was: TableSchema | None, now: TableSchema | None, *, empties: bool) -> tuple[Change, ...]:
    """Return what apply is to be told.

    Args:
        was, now: The table as it was described before the message, and as it is since; None where nothing is known.
        empties: The content of the table follows, and rows of it may be at the target.
    """
    changes = []
    if empties:
        changes.append(Change(0, Op.TRUNCATE, event.table, 0 if now is None else now.version, None, None))
    if event.action is Action.DROP:
        changes.append(_ddl(event.table, was, {"is": None}))
    elif event.action is Action.ALTER:
        changes.append(_ddl(event.table, now, {"is": _shape(event.table, now), "unlike": _HOW}, was))
    elif was is not None and now is not None and was != now:
        changes.append(_ddl(event.table, now, {"is": _shape(event.table, now), "unlike": _OTHERWISE}, was))
    return tuple(changes)


def _ddl(
    table: TableName, version_of: TableSchema | None, told: dict[str, str | None], was: TableSchema | None = None
) -> Change:
    version = 0 if version_of is None else version_of.version
    image = {"was": _shape(table, was or version_of), **told}
    return Change(0, Op.DDL, table, version, image, None)


def _shape(name: TableName, table: TableSchema | None) -> str:
    """Write a table as `apply.ddl` reads it."""
    columns: dict[int, Any] = {}
    key = None
    if table is not None:
        columns = {
            number: {"name": column.name, "type": column.type, "is_nullable": column.is_nullable}
            for number, column in enumerate(table.columns, 1)
        }
        if table.primary_key is not None:
            key = [table.column_names.index(one) + 1 for one in table.primary_key.columns]
    return json.dumps({"schema": name.schema, "name": name.name, "key": key, "columns": columns})
