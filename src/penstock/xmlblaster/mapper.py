"""`replication.mapper.*` and `actions=` as rules of a pipeline file.

The mapper looks a name up from the most specific key to the least: `schema.table.column`, `table.column`, `column`. A
pipeline file takes each setting of a table from the first entry that has it, as a whole. So the entry of a table
repeats what less specific keys say of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.xmlblaster.tables import pattern

Table = tuple[str, str]
"""Schema and name; the schema is empty where a key names none."""

PREFIX = "replication.mapper."


@dataclass
class Names:
    """How tables and columns are called at the target, by their names at the source.

    Attributes:
        schemas: New name by schema.
        tables: New name, without a schema, by table.
        columns: New names of columns, by table.
        excluded: Columns that are left out, by table.
        operations: The changes that reach the target, by table; all if it is absent.
        refused: By key: why it is not understood, or had no effect.
    """

    schemas: dict[str, str] = field(default_factory=dict)
    tables: dict[Table, str] = field(default_factory=dict)
    columns: dict[Table, dict[str, str]] = field(default_factory=dict)
    excluded: dict[Table, list[str]] = field(default_factory=dict)
    operations: dict[Table, list[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def target(self, schema: str, name: str) -> Table:
        """What a table is called at the target."""
        renamed = self.tables.get((schema, name), self.tables.get(("", name), name))
        return self.schemas.get(schema, schema), renamed


def read_names(properties: Mapping[str, str]) -> Names:
    """Read the mapper's properties.

    Args:
        properties: By what follows `replication.mapper.` in the key. PostgreSQL folds names to lower case.
    """
    names = Names()
    for rest, value in properties.items():
        kind, _, named = rest.partition(".")
        parts = named.lower().split(".")
        new = value.lower()
        most = {"schema": 1, "table": 2, "column": 3, "excludeColumn": 3}.get(kind)
        if most is None or not all(parts) or "${" in rest + value:
            names.refused[PREFIX + rest] = ""
        elif len(parts) > most:
            names.refused[PREFIX + rest] = "it names a catalog, which no message has, so it had no effect"
        elif kind == "excludeColumn":
            _exclude(names, PREFIX + rest, parts)
        elif not new or "." in new:
            names.refused[PREFIX + rest] = "the new name is empty or has a dot"
        elif kind == "schema":
            names.schemas[parts[0]] = new
        elif kind == "table":
            names.tables[_table(parts)] = new
        elif len(parts) == 1:
            names.refused[PREFIX + rest] = (
                "it renames a column in every table that has it, and a pipeline file refuses a table without it: write"
                " `rename` below each table that has the column, in rules.tables"
            )
        else:
            names.columns.setdefault(_table(parts[:-1]), {})[parts[-1]] = new
    return names


def _exclude(names: Names, key: str, parts: list[str]) -> None:
    if len(parts) < 3:
        names.refused[key] = "it had no effect: only schema, table and column together did"
    else:
        names.excluded.setdefault((parts[0], parts[1]), []).append(parts[2])


def _table(parts: list[str]) -> Table:
    return (parts[0], parts[1]) if len(parts) == 2 else ("", parts[0])


def table_rules(names: Names) -> dict[str, dict[str, Any]]:
    """The part `rules.tables`: single tables first, then a table in any schema, then whole schemas."""
    anywhere = {name for schema, name in (*names.tables, *names.columns) if not schema}
    single = [*names.tables, *names.columns, *names.excluded, *names.operations]
    # Of two patterns that match a table, only one gives it a name: such tables have an entry of their own.
    single += [(schema, name) for schema in names.schemas for name in sorted(anywhere)]
    rules = {pattern(*table): _rule(names, table) for table in dict.fromkeys(single) if table[0]}
    for name in sorted(anywhere):
        new = names.tables.get(("", name))
        rule: dict[str, Any] = {} if new is None else {"to": pattern("*", new)}
        if columns := names.columns.get(("", name)):
            rule["rename"] = columns
        rules[pattern("*", name)] = rule
    for schema, new in names.schemas.items():
        rules[pattern(schema, "*")] = {"to": pattern(new, "*")}
    return {name: rule for name, rule in rules.items() if rule}


def _rule(names: Names, table: Table) -> dict[str, Any]:
    rule: dict[str, Any] = {}
    operations = names.operations.get(table)
    if operations:
        rule["operations"] = operations
    dropped = names.excluded.get(table, [])
    if dropped:
        rule["drop"] = dropped
    inherited = names.columns.get(("", table[1]), {})
    # The mapper looks for an excluded column first.
    renamed = {old: new for old, new in {**inherited, **names.columns.get(table, {})}.items() if old not in dropped}
    if renamed != inherited:
        rule["rename"] = renamed
    target = names.target(*table)
    if target != table:
        rule["to"] = pattern(*target)
    return rule


def search_keys(properties: Mapping[str, str], names: Names, watched: list[Table], schema: str) -> dict[str, list[str]]:
    """`replication.searchable.[schema.]table=a,b` as `key` below `apply.tables`.

    Args:
        properties: Columns by what follows `replication.searchable.`; the names are the target's.
        names: How tables are called there.
        watched: The tables that are captured, if they are known.
        schema: Where a table without a schema lies, if it is not one of those.

    Returns:
        Columns by table, as the file names it; keys that cannot be read are in `names.refused`.
    """
    targets = [names.target(*table) for table in watched]
    keys: dict[str, list[str]] = {}
    for rest, value in properties.items():
        parts = rest.lower().split(".")
        columns = [column.strip().lower() for column in value.split(",") if column.strip()]
        if not columns or not all(parts) or len(parts) > 2 or "${" in rest + value:
            names.refused[f"replication.searchable.{rest}"] = ""
        elif len(parts) == 2:
            keys[pattern(*parts)] = columns
        else:
            found = [table for table in targets if table[1] == parts[0]] or [(schema, parts[0])]
            for table in found:
                # A key with a schema goes before one without.
                keys.setdefault(pattern(*table), columns)
    return keys
