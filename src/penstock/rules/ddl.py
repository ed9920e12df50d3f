"""Rules for DDL: tables and their columns go by the names that they have at the target."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.change import Image, TableName
from penstock.rules.table_rule import TableRule


def shape_of(image: Image, part: str) -> dict[str, Any] | None:
    """The table before (`was`) or behind (`is`) a change of DDL; None where there is none any more."""
    found: dict[str, Any] | None = json.loads(image.get(part) or "null")
    return found


@dataclass(frozen=True)
class TransformedName:
    """What rules make of one version of a table.

    Attributes:
        rule: None: everything is called as it is at the source.
        called: What a table would be called that rules do not take; None where they take it.
    """

    rule: TableRule | None = None
    called: TableName | None = None


NO_NAMES: Mapping[TableName, TableName] = {}
"""All tables are called as they are at the source."""


def with_names(
    image: Image, was: TransformedName, now: TransformedName, tables: Mapping[TableName, TableName] = NO_NAMES
) -> Image:
    """Give table and columns of a change of DDL the names that rules give them; columns without one are left out.

    Args:
        tables: What rules call other tables, those that inherit from this one among them.
    """
    old, new = shape_of(image, "was"), shape_of(image, "is")
    if new is not None and "children" in new:
        new["children"] = [[*_called(TableName(*child), tables)] for child in new["children"]]
    made = {**image, "was": _named(old, was), "is": _named(new, now)}
    if old is None or new is None or _table(old) == _table(new):
        return made
    if was.called is not None and now.called is None:
        made["unlike"] = f"what was done to it as {_table(old)} was left out"
    elif now.called is None and _says(was.rule) != _says(now.rule):
        # What the target holds was made by the one rule, and is not what the other one would have made.
        made["unlike"] = f"rules say something else of it than of {_table(old)}"
    return made


def _named(shape: Mapping[str, Any] | None, named: TransformedName) -> str | None:
    if shape is None:
        return None
    made = dict(shape)
    if named.called is not None:
        made |= {"schema": named.called.schema, "name": named.called.name}
    elif named.rule is not None:
        names: Mapping[str, str] = named.rule.columns.names
        made |= {"schema": named.rule.table.name.schema, "name": named.rule.table.name.name}
        made["columns"] = {
            number: {**column, **_renamed(column["name"], names)}
            for number, column in shape["columns"].items()
            if column["name"] in names
        }
        if "fittings" in shape:
            made["fittings"] = [*_post_data(shape, names, has_step=named.rule.step is not None)]
    return json.dumps(made, ensure_ascii=False)


def _post_data(shape: Mapping[str, Any], names: Mapping[str, str], *, has_step: bool) -> Iterator[dict[str, Any]]:
    """Checks and indexes of columns that rules leave in; those of renamed columns are in the source's words only."""
    for one in shape["fittings"]:
        columns = [shape["columns"][str(number)]["name"] for number in one["columns"]]
        # A step may change the rows, so that a check of the source would refuse them.
        if not set(columns) <= set(names) or (has_step and one["kind"] == "check"):
            continue
        if one["has_row"]:
            yield {**one, "unworded": "it names the row as a whole, which the rules change"}
        elif any(names[name] != name for name in columns):
            yield {**one, "unworded": "its columns have other names here"}
        else:
            yield one


def _table(shape: Mapping[str, Any]) -> TableName:
    return TableName(shape["schema"], shape["name"])


def _renamed(name: str, names: Mapping[str, str]) -> dict[str, str]:
    # A statement of the source's calls it as it is there.
    return {"name": names[name]} if names[name] == name else {"name": names[name], "origin": name}


def _called(table: TableName, tables: Mapping[TableName, TableName]) -> tuple[str, str]:
    name = tables.get(table, table)
    return name.schema, name.name


def _says(rule: TableRule | None) -> tuple[Any, ...]:
    """What a rule makes of rows."""
    if rule is None:
        return ({}, (), None, None, {}, None)
    return (
        {name: new for name, new in rule.columns.names.items() if name != new},
        tuple(sorted(rule.columns.dropped)),
        rule.row_filter and rule.row_filter.sql,
        rule.operations and frozenset(rule.operations),
        {name: added.sql for name, added in rule.added.items()},
        rule.step,
    )
