"""What captured tables and their schemas are made of, an object a row, and in what a copy is not the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import psycopg

from penstock.change import TableName
from penstock.database import CatalogDifference
from penstock.dialects.postgres.catalog import catalog_names, current_user, table_oids
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.large_objects import (
    BRINGS_THEM,
    NOT_CAPTURED,
    LargeObjects,
    left_behind,
    read_large_objects,
)
from penstock.dialects.postgres.resources import sql_text

_OF_COLUMNS = ("column", "not null", "default", "identity", "storage", "compression", "statistics target", "options")

_NAMED = (
    "primary key",
    "unique key",
    "exclusion constraint",
    "foreign key",
    "check",
    "valid check",
    "index",
    "invalid index",
    "statistics target of index",
    "storage parameters of key",
    "trigger",
    "rule",
    "policy",
)

_WORDED = (
    *("table", "partition", "default", "check", "index", "primary key", "unique key", "exclusion constraint"),
    *("foreign key", "statistics", "trigger", "rule", "policy", "view", "materialized view", "function", "procedure"),
    *("domain check", "domain default", "type", "column"),
)
"""What the server puts into words; another version may choose others."""

ORDER = (
    *("schema", "collation", "type", "domain not null", "domain default", "sequence", "function", "procedure"),
    *("aggregate", "operator", "operator class", "text search dictionary", "text search configuration"),
    *("domain check", "table", "partition", "foreign table", "persistence", "column", "column order"),
    *("inheritance", "not null", "default", "identity", "owner of sequence", "check", "valid check"),
    *("primary key", "unique key", "exclusion constraint", "index"),
    *("invalid index", "storage parameters of key", "foreign key", "clustering", "replica identity"),
    *("storage parameters", "storage", "compression", "statistics target", "options", "statistics target of index"),
    *("statistics", "target of statistics", "view", "materialized view", "trigger", "rule", "row security", "policy"),
    *("comment", "owner", "grant", "default privileges"),
)
"""Kinds, in an order in which they can be made."""


_RENAMED = ("primary key", "unique key", "exclusion constraint", "foreign key", "check", "index")
"""What is known by its looks where it is called otherwise."""


_TOLD_BY_SOURCE = ("owner", "persistence")
"""What is said in the same words before it is there and after."""


@dataclass(frozen=True)
class CatalogObject:
    """One of them; see sql/objects.sql.

    Attributes:
        root: The table that is captured; None for what belongs to a schema.
        table: It, or a partition of it.
        name: Of a comment on a column of a type or of a view, the column's.
        holder: What an owner, a right or a comment belongs to.
    """

    root: TableName | None
    schema: str
    table: TableName | None
    kind: str
    name: str
    holder: str | None
    definition: str
    parent: str | None
    made: str
    is_plain: bool
    make: str | None
    change: str | None
    remove: str | None

    @cached_property
    def key(self) -> tuple[TableName | None, str, str, str]:
        """What it is found by."""
        return self.table, self.kind, self.name, self.holder or ""

    @property
    def label(self) -> str:
        """What those that belong to it call it."""
        return f"{self.kind} {self.name}".rstrip()

    @property
    def what(self) -> str:
        """What it is, in a few words; steps of setup and post-data objects say the same."""
        of = "" if self.table is None else f" of {self.table}"
        if self.holder is not None:
            held = str(self.table) if self.holder in ("table", "partition") else f"{self._held}{of}"
            word = f"rights of {self.name}" if self.kind == "grant" else self.kind
            if self.kind == "comment" and self.name:
                held = f"column {self.name!r} of {held}"
            return f"{word} {'of' if self.kind == 'owner' else 'on'} {held}"
        if self.kind in _OF_COLUMNS:
            return f"{self.kind} of column {self.name!r}{of}" if self.kind != "column" else f"column {self.name!r}{of}"
        if self.kind == "inheritance":
            return f"inheritance{of} from {self.name}"
        if self.kind == "owner of sequence":
            return f"sequence {self.name} as column {self.definition!r}{of} owns it"
        if self.kind in ("table", "partition"):
            return f"{self.kind} {self.table}"
        if self.kind in _NAMED:
            return f"{self.kind} {self.name}{of}"
        return f"{self.kind} {self.name}".rstrip() + of

    @property
    def _held(self) -> str:
        kind, _, name = (self.holder or "").partition(" ")
        return f"column {name!r}" if kind == "column" else self.holder or ""


@dataclass(frozen=True)
class Objects:
    """Those of one database.

    Attributes:
        version: The server's major version.
        user: Whose session has read them.
        uncompared: Tables that rules change, so that nothing here can be compared with theirs.
        large: Its large objects.
    """

    version: int
    user: str
    found: Sequence[CatalogObject]
    uncompared: Sequence[TableName] = ()
    large: LargeObjects = field(default_factory=LargeObjects)

    @cached_property
    def by_key(self) -> Mapping[tuple[TableName | None, str, str, str], CatalogObject]:
        """The same to look them up."""
        return {one.key: one for one in self.found}

    @cached_property
    def tables(self) -> Collection[TableName]:
        """The tables and partitions that there are."""
        return {one.table for one in self.found if one.table is not None and one.kind in ("table", "partition")}

    @cached_property
    def schemas(self) -> Collection[str]:
        """The schemas that were looked into."""
        return {one.schema for one in self.found if one.schema}


def read_objects(
    connection: Connection,
    tables: Sequence[TableName],
    schemas: Collection[str] = (),
    *,
    uncompared: Sequence[TableName] = (),
) -> Objects:
    """Read what those of the tables that exist are made of, and what their schemas, and `schemas`, hold besides."""
    with catalog_names(connection):
        by_oid = {oid: name for name, oid in table_oids(connection, tables).items()}
        cursor = psycopg.RawCursor(connection)
        rows = cursor.execute(sql_text("objects"), [list(by_oid), sorted(schemas)]).fetchall()
        user = current_user(connection)
        large = read_large_objects(connection, list(by_oid.values()))
    version = connection.info.server_version // 10_000
    return Objects(version, user, [_object(by_oid, *row) for row in rows], uncompared, large)


def compare(
    source: Objects,
    target: Objects,
    *,
    made: Collection[TableName],
    is_coming: Callable[[CatalogObject], bool] = lambda _: False,
) -> Iterator[CatalogDifference]:
    """Yield in what the target is not what the source is, in an order in which it can be made.

    Args:
        made: The tables that setup has made: of these it is told what only the target has. Others are somebody's own.
        is_coming: Whether something that the target lacks is going to be made.
    """
    there = target.by_key
    known = source.by_key
    taken = {_looks(one): one for one in target.found if one.kind in _RENAMED and one.key not in known}
    missing = {(one.table, one.label) for one in source.found if one.holder is None and one.key not in there}
    missing -= {(one.table, one.label) for one in source.found if one.holder is None and is_coming(one)}
    belongings: dict[tuple[TableName | None, str], list[CatalogObject]] = {}
    for one in source.found:
        if one.holder is not None and (one.table, one.holder) in missing:
            belongings.setdefault((one.table, one.holder), []).append(one)
    gone = {one.table for one in source.found if one.kind in ("table", "partition") and one.key not in there}
    renamed: set[CatalogObject] = set()
    parents = _indexes(source.found)
    parents_there = _indexes(
        one for one in target.found if one.key in known and known[one.key].definition == one.definition
    )
    alone = {one.table for one in target.found if one.kind == "table"}
    with_root = {*_with_root(source.found, there), *_with_root(target.found, known)}
    for one in sorted(source.found, key=_rank):
        if one.holder is not None and (one.table, one.holder) in missing:
            continue
        # Its name is quoted where it has to be.
        if one.kind == "grant" and one.name in (source.user, quote(source.user)):
            continue  # What the pipeline's own role needs there.
        if one.table in gone and one.kind in ("column", "column order", "not null"):
            continue
        # The server makes it with the partition, or with what it is a part of.
        if one.parent in parents and (one.table in gone or one.parent not in parents_there):
            continue
        if one.key in with_root:
            continue
        found = there.get(one.key)
        if found is None and is_coming(one):
            continue
        if found is None:
            called = taken.pop(_looks(one), None) if one.kind in _RENAMED else None
            if called is not None:
                renamed.add(called)
                sql = _renaming(one, called.name)
                yield CatalogDifference(
                    one.kind,
                    one.what,
                    one.table,
                    reason=f"it is called {called.name} there",
                    sql=sql,
                    schema=one.schema,
                )
            elif one.kind == "column order" or (one.kind == "persistence" and one.definition == "logged"):
                continue
            elif one.kind == "partition" and one.table in alone:
                reason = "it is a table of its own there"
                yield CatalogDifference(
                    one.kind, one.what, one.table, reason=reason, sql=one.change or "", schema=one.schema
                )
            else:
                with_it = [one, *sorted(belongings.get((one.table, one.label), ()), key=_rank)]
                yield _difference(one, "; ".join(each.make for each in with_it if each.make))
        elif found.definition != one.definition and _counts(one, found, source, target, made):
            yield _changed(one, found)
    stayed = left_behind(source.large, target.large)
    if stayed is not None:
        yield CatalogDifference("large object", stayed, None, reason=NOT_CAPTURED, sql=f"-- {BRINGS_THEM}")
    left_out = {*with_root, *(one.key for one in renamed)}
    yield from _besides(source, (one for one in target.found if one.root in made and one.key not in left_out))


def _besides(source: Objects, found: Iterable[CatalogObject]) -> Iterator[CatalogDifference]:
    """Yield what the source has not, of what the target has."""
    known = source.by_key
    labels = {(one.table, one.label) for one in source.found}
    for one in sorted(found, key=_rank, reverse=True):
        # A part of an index goes with that.
        if one.key in known or one.parent is not None or one.kind in ("owner", "table"):
            continue
        if one.holder is None or (one.table, one.holder) in labels:
            yield CatalogDifference(
                one.kind, one.what, one.table, sql=one.remove or "", is_extra=True, schema=one.schema
            )


def _indexes(found: Iterable[CatalogObject]) -> set[str | None]:
    """The names of indexes that are valid."""
    kinds = ("index", "primary key", "unique key", "exclusion constraint")
    return {f"{one.schema}.{one.name}" for one in found if one.kind in kinds}


def _with_root(
    found: Sequence[CatalogObject], others: Mapping[tuple[TableName | None, str, str, str], CatalogObject]
) -> Iterator[tuple[TableName | None, str, str, str]]:
    """Yield what a partition has as its table has it, where that is to be fixed for all of them at once."""
    own = {one.key: one for one in found if one.kind in ("column", "not null")}
    for one in own.values():
        root = (one.root, one.kind, one.name, "")
        if one.table != one.root and root in own:
            other = others.get(root)
            if other is None or other.definition != own[root].definition:
                yield one.key


def _looks(one: CatalogObject) -> tuple[TableName | None, str, str]:
    """What it is besides its name; of one that is a part of another, that."""
    is_unique = one.definition.startswith("CREATE UNIQUE")
    shape = f"{is_unique} {one.definition.partition(' ON ')[2]}" if one.kind == "index" else one.definition
    return one.table, one.kind, one.parent or shape


def _renaming(one: CatalogObject, called: str) -> str:
    if one.kind == "index" or one.table is None:
        return f"ALTER INDEX {quote(one.schema, called)} RENAME TO {quote(one.name)}"
    table = quote(one.table.schema, one.table.name)
    return f"ALTER TABLE {table} RENAME CONSTRAINT {quote(called)} TO {quote(one.name)}"


def _counts(
    one: CatalogObject, found: CatalogObject, source: Objects, target: Objects, made: Collection[TableName]
) -> bool:
    if one.kind == "column order":
        names, others = one.definition.split(", "), found.definition.split(", ")
        common = [name for name in names if name in others]
        return one.root in made and common != [name for name in others if name in names]
    return source.version == target.version or one.kind not in _WORDED


def _changed(one: CatalogObject, found: CatalogObject) -> CatalogDifference:
    sql = one.change or "; ".join(filter(None, (found.remove, one.make)))
    if one.kind == "column order":
        return _difference(one, "")
    if one.kind in _TOLD_BY_SOURCE:
        return _difference(one, sql)
    shown = one.kind in ("column", "not null", "storage", "compression", "replica identity", "identity")
    reason = f"it is {found.definition} there, {one.definition} at the source" if shown else "it is another one there"
    return CatalogDifference(one.kind, one.what, one.table, reason=reason, sql=sql, schema=one.schema)


def _difference(one: CatalogObject, sql: str) -> CatalogDifference:
    reason = f"it is {one.definition} at the source" if one.kind in _TOLD_BY_SOURCE else ""
    return CatalogDifference(one.kind, one.what, one.table, reason=reason, sql=sql, schema=one.schema)


def _rank(one: CatalogObject) -> int:
    return ORDER.index(one.kind)


def _object(by_oid: Mapping[int, TableName], *row: Any) -> CatalogObject:
    root, schema, table, kind, name, holder, definition, parent, made, is_plain, make, change, remove = row
    return CatalogObject(
        by_oid.get(root),
        schema,
        TableName(schema, table) if table is not None else None,
        kind,
        name,
        holder,
        definition or "",
        parent,
        made,
        is_plain,
        make,
        change,
        remove,
    )
