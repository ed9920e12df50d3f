"""DDL as changes: what apply is told of CREATE, ALTER and DROP, and decides about by `apply.ddl`.

What was altered is the difference between two descriptions of a table. An ALTER of Penstock's has the columns, and what
each was called before. The original's has none, so a target cannot follow it: the change goes to the error queue.
A CREATE that the content of its table follows begins the table anew: its rows go first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.change import Change, Op, TableName
from penstock.formats.dbwatcher.changes import TableEvent
from penstock.formats.dbwatcher.message import Action, ColumnMetadata
from penstock.formats.dbwatcher.metadata import FILLED, UNCLEAR, WAS, metadata_of, table_of
from penstock.schema import TableSchema
from penstock.text import printable

_DO = "alter the table at the target, then delete this entry"
_HOW = f"the message does not say what was altered: {_DO}"
_DECLARED = f"the pipeline file declares the table (capture.dbwatcher.tables): {_DO}"
_UNKNOWN = f"nothing says what the table was like before: {_DO}"
_OTHERWISE = "CREATE describes it otherwise than the CREATE before it"
_LONGEST_REASON = 200


def ddl_of(
    event: TableEvent,
    was: TableSchema | None,
    now: TableSchema | None,
    *,
    empties: bool = False,
    is_declared: bool = False,
) -> tuple[Change, ...]:
    """Return what apply is to be told.

    Args:
        was, now: The table as it was described before the message, and as it is since; None where nothing is known.
        empties: The content of the table follows, and rows of it may be at the target.
        is_declared: The pipeline file describes the table, whatever messages say.
    """
    changes = []
    if empties:
        changes.append(Change(0, Op.TRUNCATE, event.table, 0 if now is None else now.version, None, None))
    if event.action is Action.DROP:
        changes.append(_ddl(event.table, was, None, {}))
    elif event.action is Action.ALTER:
        changes.append(_altered(event, was, now, is_declared=is_declared))
    elif was is not None and now is not None and _columns(was) != _columns(now):
        # Where the rows are gone, a column that was renamed is as good as a new one.
        numbers = _by_name(was, now) if empties else None
        told = {} if numbers is not None else {"unlike": _OTHERWISE}
        changes.append(_ddl(event.table, was, now, told, numbers))
    return tuple(changes)


def _altered(event: TableEvent, was: TableSchema | None, now: TableSchema | None, *, is_declared: bool) -> Change:
    numbers, why = None, None
    if not event.metadata:
        why = _HOW
    elif is_declared:
        why = _DECLARED
    elif was is None or now is None:
        why = _UNKNOWN
    else:
        numbers, why = _numbers(event.metadata, was, now)
    told = {} if why is None else {"unlike": why}
    unclear = {one.name: printable(one.attributes[UNCLEAR][:_LONGEST_REASON]) for one in _marked(event, UNCLEAR)}
    if unclear:
        told["unclear"] = json.dumps(unclear)
    filled = {one.name: one.attributes[FILLED] for one in _marked(event, FILLED)}
    return _ddl(event.table, was, now, told, numbers, filled)


def _marked(event: TableEvent, attribute: str) -> Sequence[ColumnMetadata]:
    return [one for one in event.metadata if attribute in one.attributes]


def _numbers(
    metadata: Sequence[ColumnMetadata], was: TableSchema, now: TableSchema
) -> tuple[Mapping[str, int] | None, str | None]:
    """Return the numbers of the columns that the table has now, those that were there before having kept theirs.

    Where they cannot be told, the second value says why.
    """
    if all(WAS in one.attributes for one in metadata):
        before = {one.name: one.attributes[WAS] for one in metadata}
        if strangers := sorted({name for name in before.values() if name} - set(was.column_names)):
            named = ", ".join(repr(printable(name)) for name in strangers)
            return None, f"the message speaks of {named}, which the description before it does not have: {_DO}"
        return _counted(was, {name: before[name] for name in now.column_names}), None
    gone, new = (
        [name for name in one.column_names if name not in other.column_names] for one, other in ((was, now), (now, was))
    )
    if gone and new:
        lists = (", ".join(repr(printable(name)) for name in names) for names in (gone, new))
        what = "the message does not say whether {} became {}, or was dropped".format(*lists)
        return None, f"{what}: {_DO}"
    return _by_name(was, now), None


def _by_name(was: TableSchema, now: TableSchema) -> Mapping[str, int]:
    there = set(was.column_names)
    return _counted(was, {name: name if name in there else "" for name in now.column_names})


def _counted(was: TableSchema, before: Mapping[str, str]) -> Mapping[str, int]:
    """Number columns, each by what it was called before; a new one has a number of its own."""
    kept = {name: number for number, name in enumerate(was.column_names, 1)}
    return {name: kept[old] if old else len(kept) + number for number, (name, old) in enumerate(before.items(), 1)}


def _ddl(
    table: TableName,
    was: TableSchema | None,
    now: TableSchema | None,
    told: Mapping[str, str],
    numbers: Mapping[str, int] | None = None,
    filled: Mapping[str, str] | None = None,
) -> Change:
    """Return a change of DDL; a table that is not described now is dropped, unless `told` says what is unlike."""
    version = next((one.version for one in (now, was) if one is not None), 0)
    is_there = now is not None or "unlike" in told
    image = {
        "was_version": str(version if was is None else was.version),
        "is_version": str(version) if is_there else None,
        "was": _shape(table, was or now),
        "is": _shape(table, now, numbers, filled) if is_there else None,
        **told,
    }
    return Change(0, Op.DDL, table, version, {name: text for name, text in image.items() if name == "is" or text}, None)


def _shape(
    name: TableName,
    table: TableSchema | None,
    numbers: Mapping[str, int] | None = None,
    filled: Mapping[str, str] | None = None,
) -> str:
    """Write a table as `apply.ddl` reads it."""
    shape: dict[str, Any] = {"schema": name.schema, "name": name.name, "key": None, "columns": {}}
    if table is not None:
        numbers = numbers or {column: number for number, column in enumerate(table.column_names, 1)}
        shape["columns"] = {
            numbers[column.name]: {
                "name": column.name,
                "type": str(column.logical),
                "logical": str(column.logical),
                "is_nullable": column.is_nullable,
                **({"filled": filled[column.name]} if filled is not None and column.name in filled else {}),
            }
            for column in _as_told(table).columns
        }
        if table.primary_key is not None:
            shape["key"] = [numbers[one] for one in table.primary_key.columns]
    return json.dumps(shape)


def _as_told(table: TableSchema) -> TableSchema:
    """The table as messages describe it, which say less than a database does: only then can two be compared."""
    return table_of(table.name, metadata_of(table)) if table.columns else table


def _columns(table: TableSchema) -> Mapping[str, object]:
    """What counts of a table: its key, and of each column what it holds."""
    key = table.primary_key
    return {
        "": None if key is None else key.columns,
        **{column.name: (column.logical, column.is_nullable) for column in _as_told(table).columns},
    }
