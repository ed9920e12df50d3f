"""How to make tables like the source's in another PostgreSQL database, and what that database lacks of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import psycopg

from penstock.change import TableName
from penstock.database import MissingPart, NativeForm
from penstock.dialects.postgres.catalog import catalog_names, computed_columns, table_oids
from penstock.dialects.postgres.connection import Connection, literal, quote
from penstock.dialects.postgres.logical import DIALECT
from penstock.dialects.postgres.needed import Needed, read_needed
from penstock.dialects.postgres.resources import sql_text


@dataclass(frozen=True)
class DdlPiece:
    """A statement that makes a table, or a part of one.

    Attributes:
        root: The table that it belongs to; a partition's is the topmost one.
        kind: `table`, `partition`, `index`, or what kind of constraint.
        table: The table or partition.
        name: Of the constraint or index; None for a table.
        other: The table that a partition is of, or that a foreign key refers to; the index that one is attached to.
        is_part: The server makes it by itself where a partition is made later.
    """

    root: TableName
    kind: str
    table: TableName
    name: str | None
    other: TableName | None
    sql: str
    is_part: bool = False

    @property
    def summary(self) -> str:
        """What it makes, in a few words that no other piece has."""
        match self.kind:
            case "table":
                return f"table {self.table}"
            case "partition":
                return f"partition {self.table} of {self.other}"
            case "foreign key":
                return f"foreign key {self.name} of {self.table} to {self.other}"
            case "attached index":
                return f"index {self.name} of {self.table} as a part of {self.other}"
            case _:
                return f"{self.kind} {self.name} of {self.table}"


@dataclass(frozen=True)
class Parts(NativeForm):
    """What tables gain without their definition changing.

    Attributes:
        keys: What each partitioned table, or partition, is partitioned by.
        partitions: (the table it is of, its bound) for each partition, parents first.
        labels: The labels of the enums that their columns are made of, in order.
    """

    dialect = DIALECT

    keys: Mapping[TableName, str]
    partitions: Mapping[TableName, tuple[TableName, str]]
    labels: Mapping[TableName, Sequence[str]]


@dataclass(frozen=True)
class Blueprint(NativeForm):
    """How to make tables like the source's in another PostgreSQL database.

    Attributes:
        types: (name, statement, extension) in the order they must be created; no statement, no way.
        pieces: What makes the tables, in the order it must be made.
        parts: What the tables have that may have come later.
        calls: Functions, operators and types that the tables call when rows are written to them, by kind and name.
        computed: The expressions of generated columns, by table and column.
        notes: What a table that is made will lack, by table.
        needed: What the tables need besides that is no server's own.
        users: The tables that need a type, a function or an operator, by its kind and name.
        made_of: The types beneath a domain, a composite type or a range, by what a column of it says as its type.
    """

    dialect = DIALECT

    types: Sequence[tuple[TableName, str | None, str | None]]
    pieces: Sequence[DdlPiece]
    parts: Parts
    calls: Sequence[tuple[str, TableName]]
    computed: Mapping[tuple[TableName, str], str]
    notes: Mapping[TableName, Sequence[str]] = field(default_factory=dict)
    needed: Sequence[Needed] = ()
    users: Mapping[tuple[str, TableName], frozenset[TableName]] = field(default_factory=dict)
    made_of: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def needed_by(self, kind: str, name: TableName) -> frozenset[TableName]:
        """The tables that need something; none where that is not known, and so all of them may."""
        return self.users.get((kind, name), frozenset())


@dataclass(frozen=True)
class MissingLabels:
    """Labels of an enum that the target lacks.

    Attributes:
        statements: What adds each of them, in this order.
        lost: Labels that the target has, and the source has not.
    """

    type: TableName
    labels: Sequence[str]
    statements: Sequence[str]
    lost: Sequence[str]

    def __str__(self) -> str:
        return f"type {self.type} lacks label{'s' if len(self.labels) > 1 else ''} {', '.join(map(repr, self.labels))}"


def read_blueprint(
    connection: Connection, tables: Sequence[TableName], types_of: Sequence[TableName] = ()
) -> Blueprint:
    """Read from the source how to make tables like these, and the types of the columns of others."""
    with catalog_names(connection):
        by_oid = {oid: name for name, oid in table_oids(connection, tables).items()}
        cursor = psycopg.RawCursor(connection)
        others = table_oids(connection, types_of)
        named = by_oid | {oid: name for name, oid in others.items()}
        types, users, made_of = _types(cursor, named)
        pieces = [
            DdlPiece(
                by_oid[root],
                kind,
                TableName(schema, name),
                own_name,
                TableName(other_schema, other_name) if other_name else None,
                statement,
                is_part,
            )
            for root, kind, schema, name, own_name, other_schema, other_name, is_part, statement in cursor.execute(
                sql_text("tables"), [list(by_oid)]
            )
        ]
        calls = cursor.execute(sql_text("calls"), [list(by_oid)]).fetchall()
        needed = read_needed(connection, named)
    users |= {
        (kind, TableName(schema, name)): frozenset(named[oid] for oid in oids) for kind, schema, name, oids in calls
    }
    return Blueprint(
        types=types,
        made_of=made_of,
        pieces=pieces,
        parts=read_parts(connection, tables, [name for name, _, _ in types]),
        calls=[(kind, TableName(schema, name)) for kind, schema, name, _ in calls],
        computed=computed_columns(connection, tables),
        needed=needed,
        users=users,
    )


def read_parts(
    connection: Connection, tables: Iterable[TableName], types: Collection[TableName] | None = None
) -> Parts:
    """Read the partitions of tables, and the labels of those of `types` that are enums.

    Args:
        types: By default those that the tables' columns are made of.
    """
    with catalog_names(connection):
        oids = {oid: name for name, oid in table_oids(connection, tables).items()}
        cursor = psycopg.RawCursor(connection)
        if types is None:
            types = [name for name, _, _ in _types(cursor, oids)[0]]
        rows = cursor.execute(sql_text("parts"), [list(oids)]).fetchall()
        labels = cursor.execute(
            "SELECT n.nspname, t.typname, array_agg(l.enumlabel ORDER BY l.enumsortorder) FROM pg_enum l"
            " JOIN pg_type t ON t.oid = l.enumtypid JOIN pg_namespace n ON n.oid = t.typnamespace"
            " WHERE (n.nspname, t.typname) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
            " GROUP BY 1, 2 ORDER BY 1, 2",
            [[name.schema for name in types], [name.name for name in types]],
        ).fetchall()
    return Parts(
        keys={TableName(schema, name): key for schema, name, key, *_ in rows if key},
        partitions={
            TableName(schema, name): (TableName(parent_schema, parent), bound)
            for schema, name, _, parent_schema, parent, bound in rows
            if parent
        },
        labels={TableName(schema, name): found for schema, name, found in labels},
    )


def lacking_partitions(source: Parts, target: Parts) -> tuple[list[TableName], list[TableName]]:
    """Return the partitions that the target lacks, where a table is partitioned by the same key on both sides.

    Returns:
        Those that can be made there, parents first; and those beside which the target has others than the source, so
        that one of them may take their rows already.
    """
    wanted: list[TableName] = []
    differing: list[TableName] = []
    bounds = set(source.partitions.values())
    there = set(target.partitions.values())
    strange = {parent for parent, bound in there if (parent, bound) not in bounds}
    for name, (parent, bound) in source.partitions.items():
        if parent in wanted:
            wanted.append(name)
        elif target.keys.get(parent) == source.keys[parent] and (parent, bound) not in there:
            (differing if parent in strange else wanted).append(name)
    return wanted, differing


def lacking_labels(source: Parts, target: Parts) -> list[MissingLabels]:
    """Return what the target's enums lack, and how to add it at the source's place."""
    found = []
    for name, labels in source.labels.items():
        there = target.labels.get(name, labels)
        lacking = [label for label in labels if label not in there]
        if lacking:
            statements = [_add_label(name, labels, labels.index(label), there) for label in lacking]
            found.append(MissingLabels(name, lacking, statements, [label for label in there if label not in labels]))
    return found


def reordered_labels(source: Parts, target: Parts) -> list[TableName]:
    """Return the enums whose labels stand in another order at the target, as far as both sides have them."""

    def common(labels: Sequence[str], others: Sequence[str]) -> list[str]:
        return [label for label in labels if label in others]

    return [
        name
        for name, there in target.labels.items()
        if name in source.labels and common(there, source.labels[name]) != common(source.labels[name], there)
    ]


def lacking_parts(source: Parts, target: Parts) -> list[MissingPart]:
    """Return what the target lacks: each partition, and each type with its labels."""
    wanted, _ = lacking_partitions(source, target)
    return [
        *(MissingPart(name, of=source.partitions[name][0]) for name in wanted),
        *(MissingPart(lack.type, labels=tuple(lack.labels)) for lack in lacking_labels(source, target)),
    ]


def read_made_of(connection: Connection, types: Collection[TableName]) -> Mapping[str, Sequence[str]]:
    """Read what types are made of, those of them that there are, as a `Blueprint` has it."""
    rows = connection.execute(
        "SELECT n.nspname, t.typname, t.oid FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace"
    )
    oids = [oid for schema, name, oid in rows if TableName(schema, name) in types]
    with catalog_names(connection):
        found = psycopg.RawCursor(connection).execute(sql_text("types"), [[], oids]).fetchall() if oids else []
    return {one: made_of for *_, called, made_of in found for one in called}


class _Types(NamedTuple):
    """The types that tables are made of, as a `Blueprint` has them."""

    types: list[tuple[TableName, str | None, str | None]]
    users: dict[tuple[str, TableName], frozenset[TableName]]
    made_of: dict[str, Sequence[str]]


def _types(cursor: psycopg.RawCursor, tables: Mapping[int, TableName]) -> _Types:
    found = _Types([], {}, {})
    for schema, name, statement, extension, oids, called, made_of in cursor.execute(
        sql_text("types"), [list(tables), []]
    ):
        type_ = TableName(schema, name)
        found.types.append((type_, statement, extension))
        found.users["type", type_] = frozenset(tables[oid] for oid in oids)
        if statement is not None:
            found.made_of.update(dict.fromkeys(called, made_of))
    return found


def _add_label(name: TableName, labels: Sequence[str], place: int, there: Collection[str]) -> str:
    """The statement that adds a label, once all that the source has before it are there."""
    if place:
        where = f" AFTER {literal(labels[place - 1])}"
    else:
        following = next((label for label in labels if label in there), None)
        where = f" BEFORE {literal(following)}" if following else ""
    return f"ALTER TYPE {quote(name.schema, name.name)} ADD VALUE IF NOT EXISTS {literal(labels[place])}{where}"
