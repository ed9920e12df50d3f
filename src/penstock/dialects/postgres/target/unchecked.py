"""Constraints of the target that nothing checks: sessions of apply keep the server from it, and apply cannot do it all.

They are named, and left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import psycopg

from penstock.change import TableName
from penstock.dialects.postgres.blueprint import Blueprint
from penstock.dialects.postgres.catalog import catalog_names, table_oids
from penstock.dialects.postgres.connection import Connection
from penstock.schema import Exclusion, ForeignKey, TableSchema, Unique

_OF_PARTS_AND_PERIODS = """
WITH relation AS (
  SELECT r.oid, 0 AS level FROM unnest($1::oid[]) r (oid)
  UNION SELECT p.relid, p.level FROM unnest($1::oid[]) r (oid), pg_partition_tree(r.oid) p WHERE p.level > 0
)
SELECT DISTINCT CASE c.contype WHEN 'f' THEN 'foreign key' ELSE 'deferrable constraint' END, c.conname,
  n.nspname, k.relname,
  CASE WHEN coalesce((to_jsonb(c) ->> 'conperiod')::bool, false) AND c.contype = 'f' THEN 'it compares periods'
    WHEN r.oid = c.conrelid THEN 'it is of a single partition' ELSE 'it refers to a single partition' END
FROM relation r JOIN pg_constraint c ON r.oid IN (c.conrelid, c.confrelid)
JOIN pg_class k ON k.oid = c.conrelid JOIN pg_namespace n ON n.oid = k.relnamespace
WHERE c.conparentid = 0 AND coalesce((to_jsonb(c) ->> 'conenforced')::bool, true)
  AND (c.contype = 'f' OR c.contype IN ('p', 'u', 'x') AND c.condeferrable)
  AND (r.level > 0 OR c.contype = 'f' AND coalesce((to_jsonb(c) ->> 'conperiod')::bool, false))
ORDER BY 3, 4, 2
"""

_IS_OF_PERIODS = re.compile(r"FOREIGN KEY \(.*, PERIOD ")


def unchecked(
    connection: Connection,
    source: Mapping[TableName, TableSchema],
    existing: Mapping[TableName, TableSchema],
    blueprint: Blueprint | None,
) -> Iterator[str]:
    """Yield a sentence for each constraint of replicated tables that applied or copied rows may violate.

    Args:
        source: The source's tables, and those of them that exist here, by their names here.
        blueprint: What makes those that are missing; None where the source does not tell which constraints it has.
    """
    with catalog_names(connection):
        oids = list(table_oids(connection, existing).values())
        found = psycopg.RawCursor(connection).execute(_OF_PARTS_AND_PERIODS, [oids]).fetchall()
    for kind, name, schema, table, why in found:
        yield f"{kind} {name!r} of {TableName(schema, table)} cannot be checked by apply: {why}"
    for piece in blueprint.pieces if blueprint is not None else ():
        if piece.kind == "foreign key" and piece.root not in existing and _IS_OF_PERIODS.search(piece.sql):
            yield f"foreign key {piece.name!r} of {piece.table} cannot be checked by apply: it compares periods"
    named = {(name, TableName(schema, table)) for _, name, schema, table, _ in found}
    for table_name, there in existing.items():
        told = source[table_name]
        for key in (*there.foreign_keys, *(key for key in there.referenced_by if key.child not in source)):
            is_own = key.parent not in source or key.child not in source
            if blueprint is not None and key.child == table_name:
                is_own |= not any(_is_like_key(key, other) for other in told.foreign_keys)
            if is_own and (key.name, key.child) not in named:
                yield _of_changes_only(f"foreign key {key.name!r} of {key.child}")
        rules: list[Unique | Exclusion] = [*there.all_uniques, *there.exclusions]
        others: list[Unique | Exclusion] = [*told.all_uniques, *told.exclusions]
        for rule in rules if blueprint is not None else ():
            if rule.is_deferrable and rule.columns and not any(_is_like(rule, other) for other in others):
                yield _of_changes_only(f"deferrable constraint {rule.name!r} of {table_name}")


def _of_changes_only(what: str) -> str:
    return (
        f"{what} is checked when changes are applied, but not by the first copy and `verify --repair`: the source has"
        " none like it, so its rows may violate it"
    )


def _is_like_key(key: ForeignKey, other: ForeignKey) -> bool:
    return (key.columns, key.parent, key.parent_columns) == (other.columns, other.parent, other.parent_columns)


def _is_like(rule: Unique | Exclusion, other: Unique | Exclusion) -> bool:
    return type(rule) is type(other) and rule.equals.items() == other.equals.items()
