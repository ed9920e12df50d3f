"""How to make tables from what is known of them when their own database cannot be asked: from schemas alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from penstock.change import TableName
from penstock.dialects.postgres.blueprint import Blueprint, DdlPiece, Parts
from penstock.dialects.postgres.casts import staging_type
from penstock.dialects.postgres.connection import quote
from penstock.dialects.postgres.logical import in_postgres, is_finer, is_ours, spelling
from penstock.dialects.postgres.names import fits, split_name
from penstock.logical import Kind
from penstock.schema import Column, ForeignKey, TableSchema, Unique

_NAME = r'(?:"(?:[^"]|"")+"|[^\W\d]\w*)'
_QUALIFIED = re.compile(rf"(?P<name>{_NAME}\.{_NAME})(\([-0-9,]+\))?(\[\])?")


def blueprint_of(tables: Iterable[TableSchema]) -> Blueprint:
    """Say how to make tables, from schemas alone: an archive's, or those that rules make of a source's tables.

    Each table has the columns, what may be null, the keys and the foreign keys that its schema names; a foreign key
    whose parent is not there is left out by whoever carries the blueprint out. What a schema cannot say in full is left
    out here, with a note: expressions, exclusion constraints, partitions. A domain becomes the type below it. Any
    other type that is not PostgreSQL's own is asked for at the target: its definition is in no schema. A column of
    another kind of database, or of none, is made by its logical type.
    """
    given = list(tables)
    tables = [in_postgres(table) for table in given]
    names = _Names(tables)
    pieces = [DdlPiece(table.name, "table", table.name, None, None, _table_sql(table)) for table in tables]
    for table in tables:
        pieces += [_unique_piece(table, key, names) for key in table.all_uniques if key.columns]
    for table in tables:
        pieces += [_foreign_key_piece(table, key) for key in table.foreign_keys]
    users: dict[tuple[str, TableName], frozenset[TableName]] = {}
    for table in tables:
        for column in table.columns:
            if (name := _foreign_type(column)) is not None:
                users["type", name] = users.get(("type", name), frozenset()) | {table.name}
    return Blueprint(
        types=[(name, None, None) for _, name in sorted(users)],
        pieces=pieces,
        parts=Parts({}, {}, {}),
        calls=(),
        computed={},
        notes={table.name: [*_notes(made), *_reworded(table)] for table, made in zip(given, tables, strict=True)},
        users=users,
    )


def made_with_text(table: TableSchema, columns: Collection[str]) -> str:
    """The statements that make a table and its key, with some of its columns as text."""
    made = in_postgres(table)
    made = replace(made, columns=tuple(replace(c, type="text") if c.name in columns else c for c in made.columns))
    keys = [_unique_piece(made, key, _Names([made])).sql for key in made.all_uniques if key.columns]
    return "; ".join([f"CREATE SCHEMA IF NOT EXISTS {quote(table.name.schema)}", _table_sql(made), *keys])


def types_of(table: TableSchema) -> Mapping[str, str]:
    """What stands for the type of each column in the statement that makes a table."""
    return {column.name: _type_sql(column) for column in in_postgres(table).columns}


def named_type(text: str) -> TableName | None:
    """The type that a text names with its schema, or an array of which it names; None where it is anything else."""
    found = _QUALIFIED.fullmatch(text)
    return None if found is None else TableName(*split_name(found["name"]))


def completed(blueprint: Blueprint, tables: Sequence[TableSchema], *, has_identities: bool = False) -> Blueprint:
    """Say how to make tables, also those that a blueprint knows nothing of.

    A foreign key whose parent is called otherwise where the tables are made refers to it by that name.

    Args:
        has_identities: Identities are made by themselves, with sequences of the source's names; the server's own choice
            of a name may be that of another sequence.
    """
    if has_identities:
        tables = [
            replace(table, columns=tuple(replace(column, is_identity_always=False) for column in table.columns))
            for table in tables
        ]
    known = {piece.root for piece in blueprint.pieces}
    made = blueprint_of([table for table in tables if table.name not in known])
    keys = {
        (table.name, key.name): _foreign_key_piece(table, key)
        for table in tables
        if table.name in known
        for key in table.foreign_keys
    }

    def renamed(piece: DdlPiece) -> DdlPiece:
        found = keys.get((piece.table, piece.name or "")) if piece.kind == "foreign key" else None
        return piece if found is None or found.other == piece.other else found

    # Foreign keys come last, whoever's they are.
    pieces = [*map(renamed, blueprint.pieces), *made.pieces]
    there = {name for name, _, _ in blueprint.types}
    return replace(
        blueprint,
        types=[*blueprint.types, *(made_of for made_of in made.types if made_of[0] not in there)],
        pieces=sorted(pieces, key=lambda piece: piece.kind == "foreign key"),
        notes={**made.notes, **blueprint.notes},
        users={
            what: made.users.get(what, frozenset()) | blueprint.users.get(what, frozenset())
            for what in {*made.users, *blueprint.users}
        },
    )


class _Names:
    """The names of indexes: a schema holds each once, and tables too; another database may know no such rule."""

    def __init__(self, tables: Sequence[TableSchema]) -> None:
        self._taken = {table.name for table in tables}

    def take(self, schema: str, name: str) -> str | None:
        """Return the name while it is free, and not too long; None where the server has to find one."""
        wanted = TableName(schema, name)
        if wanted in self._taken or not fits(name):
            return None
        self._taken.add(wanted)
        return name


def _table_sql(table: TableSchema) -> str:
    columns = ", ".join(_column_sql(column) for column in table.columns)
    return f"CREATE TABLE {quote(table.name.schema, table.name.name)} ({columns})"


def _column_sql(column: Column) -> str:
    identity = " GENERATED ALWAYS AS IDENTITY" if column.is_identity_always and column.is_integer else ""
    return f"{quote(column.name)} {_type_sql(column)}{identity}{'' if column.is_nullable else ' NOT NULL'}"


def _type_sql(column: Column) -> str:
    if not _is_domain(column):
        return column.type
    # The type that is staged has the domain's length, but for two that are staged as another type.
    return column.base_type if column.base_type in ("bytea", "money") else staging_type(column)


def _is_domain(column: Column) -> bool:
    """Whether the type is a user's name for another one; a length may follow the name of any type."""
    return _is_qualified(column.type) and not column.type.startswith(column.base_type)


def _is_qualified(type_: str) -> bool:
    """Whether a type is not PostgreSQL's own: only then its schema is named."""
    return "." in type_


def _foreign_type(column: Column) -> TableName | None:
    """The type that the target must have already; None where it is PostgreSQL's own."""
    if not _is_qualified(column.base_type):
        return None
    schema, name = split_name(column.base_type.removesuffix("[]"))
    return TableName(schema, name)


def _unique_piece(table: TableSchema, key: Unique, names: _Names) -> DdlPiece:
    is_primary = key is table.primary_key
    name = names.take(table.name.schema, key.name)
    sql = _alter(table, name) + ("PRIMARY KEY" if is_primary else "UNIQUE")
    sql += f"{' NULLS NOT DISTINCT' if key.nulls_are_equal and not is_primary else ''} ({_list(key.columns)})"
    sql += _deferrable(key.is_deferrable)
    return DdlPiece(table.name, "primary key" if is_primary else "unique key", table.name, key.name, None, sql)


def _foreign_key_piece(table: TableSchema, key: ForeignKey) -> DdlPiece:
    parent = quote(key.parent.schema, key.parent.name)
    sql = (
        f"{_alter(table, key.name)}FOREIGN KEY ({_list(key.columns)})"
        f" REFERENCES {parent} ({_list(key.parent_columns)}){' MATCH FULL' if key.is_match_full else ''}"
        f"{_deferrable(key.is_deferrable)}"
    )
    return DdlPiece(table.name, "foreign key", table.name, key.name, key.parent, sql)


def _alter(table: TableSchema, name: str | None) -> str:
    named = f"CONSTRAINT {quote(name)} " if name else ""
    return f"ALTER TABLE {quote(table.name.schema, table.name.name)} ADD {named}"


def _list(columns: Iterable[str]) -> str:
    return ", ".join(map(quote, columns))


def _deferrable(is_deferrable: bool) -> str:
    return " DEFERRABLE INITIALLY DEFERRED" if is_deferrable else ""


def _reworded(table: TableSchema) -> Iterator[str]:
    """Which types of another database have no like here."""
    for column in table.columns:
        if column.logical.kind in (Kind.ENUM, Kind.OTHER) and not is_ours(column):
            name = column.logical.name or "an enum"
            yield f"table {table.name} is made with column {column.name!r} as text: the source has {name} there"
        if is_finer(column):
            yield (
                f"table {table.name} is made with column {column.name!r} as {spelling(column.logical)}, which rounds"
                " what the source may have beyond the sixth decimal of a second; a column of type text keeps it"
            )


def _notes(table: TableSchema) -> Iterator[str]:
    """What the table that is made will lack."""
    made = f"table {table.name} is made"
    for column in table.columns:
        if column.is_generated:
            yield f"{made} with column {column.name!r} as a plain one, which takes the values that the source computed"
        if _is_domain(column):
            yield f"{made} with column {column.name!r} as {_type_sql(column)}, without domain {column.type}"
    for key in table.all_uniques:
        if not key.columns:
            yield f"{made} without unique index {key.name!r}: its expression or condition is not known"
    for exclusion in table.exclusions:
        yield f"{made} without exclusion constraint {exclusion.name!r}: its index is not known"
    if table.is_partitioned:
        yield f"{made} without partitions; a TRUNCATE of one partition alone goes to the error queue"
