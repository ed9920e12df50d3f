"""Large objects: what rows refer to by an oid, and no table holds. No trigger sees them change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from penstock.change import TableName
from penstock.database import NativeForm, NotCompared
from penstock.dialects.postgres.catalog import table_oids
from penstock.dialects.postgres.connection import Connection
from penstock.dialects.postgres.logical import DIALECT
from penstock.text import count

BRINGS_THEM = "pg_dump --data-only -b --exclude-table-data='*.*' SOURCE | psql TARGET"
"""The command that brings them, under the ids that they have; -b is called so in all versions."""

NOT_CAPTURED = f"no table holds them, and no change of them is captured; `{BRINGS_THEM}` copies them as they are then"


@dataclass(frozen=True)
class LargeObjects(NativeForm):
    """Those of one database.

    Attributes:
        columns: Columns of captured tables that may refer to one.
    """

    dialect = DIALECT

    ids: frozenset[int] = frozenset()
    columns: Sequence[str] = ()


def read_large_objects(connection: Connection, tables: Collection[TableName]) -> LargeObjects:
    """Read which there are, and which columns of tables may refer to them: those of type oid, or a domain of it."""
    (ids,) = connection.execute(
        "SELECT coalesce(array_agg(oid::int8), '{}') FROM pg_catalog.pg_largeobject_metadata"
    ).fetchone() or ([],)
    if not ids:
        return LargeObjects()
    columns = connection.execute(
        "SELECT format('column %%L of %%s.%%s', a.attname, n.nspname, c.relname) FROM pg_catalog.pg_attribute a"
        " JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_catalog.pg_type t ON t.oid = a.atttypid"
        " WHERE a.attrelid = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped"
        " AND 'pg_catalog.oid'::regtype IN (t.oid, t.typbasetype) ORDER BY n.nspname, c.relname, a.attnum",
        [list(table_oids(connection, tables).values())],
    ).fetchall()
    return LargeObjects(frozenset(ids), [name for (name,) in columns])


def left_behind(source: LargeObjects, target: LargeObjects) -> str | None:
    """Say which large objects of the source the target lacks; None if it has all of them."""
    lacking = len(source.ids - target.ids)
    return f"{count(lacking, 'large object')}{_referred(source)}" if lacking else None


def unseen(source: LargeObjects, target: LargeObjects) -> list[NotCompared]:
    """Say what of the source's large objects a comparison of rows does not see."""
    if not source.ids:
        return []
    stayed = left_behind(source, target)
    if stayed is not None:
        return [NotCompared(f"{stayed}, not at the target: {NOT_CAPTURED}", is_lacking=True)]
    return [
        NotCompared(f"the contents of {count(len(source.ids), 'large object')}{_referred(source)}", is_lacking=False)
    ]


def _referred(source: LargeObjects) -> str:
    return f", to which {', '.join(source.columns)} may refer" if source.columns else ""
