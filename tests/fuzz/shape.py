"""What a database holds at the moment, as far as statements can be about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from penstock.dialects.postgres.connection import quote
from tests.fuzz.world import SCHEMAS

_CATALOG = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relispartition, c.relpersistence,
  (SELECT jsonb_agg(jsonb_build_object('name', a.attname, 'type', format_type(a.atttypid, NULL),
      'full', format_type(a.atttypid, a.atttypmod), 'generated', a.attgenerated <> '', 'identity', a.attidentity,
      'kind', t.typtype, 'typid', t.oid::bigint, 'inherited', a.attinhcount > 0, 'notnull', a.attnotnull)
      ORDER BY a.attnum)
   FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT jsonb_agg(a.attname) FROM pg_index i
   JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
   WHERE i.indrelid = c.oid AND i.indisprimary),
  (SELECT jsonb_agg(k.conname) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype <> 't'),
  (SELECT jsonb_agg(format('%%I.%%I', xn.nspname, x.relname)) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
   JOIN pg_namespace xn ON xn.oid = x.relnamespace WHERE i.indrelid = c.oid),
  (SELECT jsonb_agg(t.tgname) FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal),
  (SELECT p.partstrat FROM pg_partitioned_table p WHERE p.partrelid = c.oid),
  (SELECT jsonb_agg(format('%%I.%%I', pn.nspname, p.relname)) FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
   JOIN pg_namespace pn ON pn.oid = p.relnamespace WHERE i.inhrelid = c.oid),
  (SELECT jsonb_agg(r.rulename) FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.rulename <> '_RETURN')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%s) AND c.relkind IN ('r', 'p', 'f', 'v') ORDER BY 2, 3
"""
_MADE_TYPES = """
SELECT n.nspname, t.typname, t.typtype, t.oid::bigint,
  (SELECT jsonb_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid),
  (SELECT jsonb_agg(jsonb_build_array(a.attname, format_type(a.atttypid, NULL)) ORDER BY a.attnum) FROM pg_attribute a
   WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
  format_type(t.typbasetype, NULL)
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_class c ON c.oid = t.typrelid
WHERE n.nspname = ANY (%s) AND (t.typtype IN ('e', 'd') OR t.typtype = 'c' AND c.relkind = 'c') ORDER BY 1, 2
"""


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    full: str
    generated: bool
    identity: str
    kind: str
    typid: int
    inherited: bool
    notnull: bool

    @property
    def sql(self) -> str:
        return quote(self.name)


@dataclass(frozen=True)
class Relation:
    schema: str
    name: str
    kind: str
    is_partition: bool
    persistence: str
    columns: Sequence[Column]
    primary_key: Sequence[str]
    constraints: Sequence[str]
    indexes: Sequence[str]
    triggers: Sequence[str]
    strategy: str | None
    parents: Sequence[str]
    rules: Sequence[str]

    @property
    def sql(self) -> str:
        return quote(self.schema, self.name)

    @property
    def writable(self) -> list[Column]:
        return [c for c in self.columns if not c.generated and c.identity != "a"]


@dataclass(frozen=True)
class MadeType:
    schema: str
    name: str
    kind: str
    oid: int
    labels: Sequence[str]
    attributes: Sequence[tuple[str, str]]
    base: str

    @property
    def sql(self) -> str:
        return quote(self.schema, self.name)


@dataclass
class Shape:
    """What a database holds."""

    relations: list[Relation] = field(default_factory=list)
    types: list[MadeType] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, connection: psycopg.Connection[Any]) -> Shape:
        relations = []
        for row in connection.execute(_CATALOG, [SCHEMAS]):
            columns = [Column(**given) for given in row[6] or []]
            lists = [given or [] for given in (*row[7:11], row[12], row[13])]
            relations.append(
                Relation(row[1], row[2], row[3], row[4], row[5], columns, *lists[:4], row[11], lists[4], lists[5])
            )
        types = [
            MadeType(schema, name, kind, oid, labels or [], attributes or [], base)
            for schema, name, kind, oid, labels, attributes, base in connection.execute(_MADE_TYPES, [SCHEMAS])
        ]
        functions = [
            row[0]
            for row in connection.execute(
                "SELECT format('%%I.%%I', n.nspname, p.proname)"
                " FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
                " WHERE n.nspname = ANY (%s) AND p.prorettype = 'int'::regtype AND pronargs = 1 ORDER BY 1",
                [SCHEMAS],
            )
        ]
        return cls(relations, types, functions)
