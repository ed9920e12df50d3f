"""Post-data objects: what applying changes does not need, and a copy does once an application writes to it.

These are defaults, identities, checks, indexes that are not unique, comments, and the sequences behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import psycopg

from penstock.change import TableName
from penstock.database import MissingObject, NativeForm, Renamed
from penstock.dialects.postgres.catalog import catalog_names, current_user, table_oids
from penstock.dialects.postgres.connection import Connection, literal, quote
from penstock.dialects.postgres.logical import DIALECT
from penstock.dialects.postgres.names import split_name
from penstock.dialects.postgres.objects import ORDER, CatalogObject, Objects, read_objects
from penstock.dialects.postgres.ownership import called_code
from penstock.dialects.postgres.resources import sql_text
from penstock.dialects.postgres.sequences import SequenceUse, drawn_by, read_uses


class PostDataKind(StrEnum):
    """What a post-data object is, as `plan` names it."""

    SEQUENCE = "sequence"
    OWNER = "owner"
    DEFAULT = "default"
    IDENTITY = "identity"
    CHECK = "check"
    INDEX = "index"
    COMMENT = "comment"
    SETTING = "setting"


class When(StrEnum):
    """When one is made: before the rows are there, beside changes once they are, or when an application comes."""

    SETUP = "setup"
    COPIED = "copied"
    CUTOVER = "cutover"


@dataclass(frozen=True)
class PostDataObject:
    """One of them, by the names of the target.

    Attributes:
        root: The table that is captured; `table` may be a partition of it.
        name: Of the column, constraint, index or sequence; empty for a table's comment.
        definition: What two databases are compared by.
        sql: The statement that makes it.
        calls: Functions, types and the like that it needs, as (kind, name).
        other: The index that this one becomes a part of; the sequence that is made, owned or drawn from; the table that
            one inherits from.
        object: What it is of the objects of its database: a setting, in a wide sense.
    """

    root: TableName
    table: TableName
    kind: PostDataKind
    name: str
    definition: str
    sql: str
    when: When = When.SETUP
    calls: tuple[tuple[str, TableName], ...] = ()
    other: TableName | None = None
    object: CatalogObject | None = None

    @property
    def key(self) -> tuple[TableName, PostDataKind, str]:
        """What it is found by."""
        return self.table, self.kind, self.name

    @property
    def summary(self) -> str:
        """What it is, in a few words."""
        match self.kind:
            case PostDataKind.SEQUENCE:
                return f"sequence {self.other}"
            case PostDataKind.OWNER:
                return f"sequence {self.other} as column {self.name!r} of {self.table} owns it"
            case PostDataKind.DEFAULT | PostDataKind.IDENTITY:
                return f"{self.kind} of column {self.name!r} of {self.table}"
            case PostDataKind.SETTING:
                return self.name
            case PostDataKind.COMMENT:
                return f"comment on {f'column {self.name!r} of ' if self.name else ''}{self.table}"
            case _:
                return f"{self.kind} {self.name} of {self.table}"


@dataclass(frozen=True)
class SequenceLink:
    """A sequence of the source, and a column of the target that is to go on where it stands.

    One that no column uses is linked to the target's of the same name, which stands in `table`; `column` is empty.

    Attributes:
        start: The first value of the source's.
    """

    source: TableName
    table: TableName
    column: str
    may_read: bool
    start: int


@dataclass(frozen=True)
class PostData(NativeForm):
    """What tables have, by the names of the target, and what cannot be brought there.

    Attributes:
        pieces: In the order in which they are made.
        left_out: What cannot be, with the reason.
        links: Which sequence each column goes on with.
        grants: SQL that a superuser of the source has to run before all of these may be read.
        objects: All that the tables are made of, and their schemas hold.
    """

    dialect = DIALECT

    pieces: Sequence[PostDataObject]
    left_out: Sequence[MissingObject]
    links: Sequence[SequenceLink]
    grants: Sequence[str] = ()
    objects: Objects | None = None


@dataclass(frozen=True)
class Found:
    """A post-data object as the catalogue has it; see sql/fittings.sql."""

    root: TableName
    level: int
    table: TableName
    kind: PostDataKind
    name: str
    definition: str
    is_valid: bool
    columns: Sequence[str]
    has_row: bool
    sequences: Sequence[TableName]
    is_nextval: bool
    of: TableName | None
    calls: tuple[tuple[str, TableName], ...]
    refused: Sequence[str]
    is_partitioned: bool

    @property
    def shown(self) -> str:
        """What it is, by the names of its own database."""
        return PostDataObject(self.root, self.table, self.kind, self.name, "", "").summary


def read_found(connection: Connection, tables: Sequence[TableName]) -> list[Found]:
    """Read what tables have, as it is."""
    with catalog_names(connection):
        by_oid = {oid: name for name, oid in table_oids(connection, tables).items()}
        rows = psycopg.RawCursor(connection).execute(sql_text("fittings"), [list(by_oid)]).fetchall()
    return [_found(by_oid[root], *row) for root, *row in rows]


def read_post_data(connection: Connection, tables: Sequence[Renamed]) -> PostData:
    """Read what tables of the source have, and say how to make it for what becomes of them."""
    renamed = {one.source: one for one in tables}
    found = read_found(connection, list(renamed))
    uses = read_uses(connection, list(renamed))
    placed = _placed(uses, renamed)
    identities = {(use.table, use.column): use.name for use in uses if use.how == "identity"}
    left_out: list[MissingObject] = []
    kept: list[Found] = []
    for one in found:
        if one.level and renamed[one.root].columns is not None:
            continue  # One table becomes of all partitions.
        reason = _reason(one, renamed[one.root], placed)
        if reason is None:
            kept.append(one)
        elif reason:
            left_out.append(MissingObject(renamed[one.root].table, one.shown, reason))
    indexes = {TableName(one.table.schema, one.name) for one in kept if one.kind is PostDataKind.INDEX}
    # Of an index that is left out nothing can be a part.
    kept = [replace(one, of=None) if one.of is not None and one.of not in indexes else one for one in kept]
    worded, lost = _worded(connection, kept, renamed)
    left_out += lost
    plain = [one for one in tables if one.columns is None and one.source == one.table]
    others = [one.table for one in tables if one not in plain]
    objects = read_objects(connection, [one.table for one in plain], uncompared=others)
    settings = [
        _setting(one) for one in sorted(objects.found, key=lambda one: ORDER.index(one.kind)) if is_setting(one)
    ]
    pieces = [
        # A check of the parent becomes one of the child.
        *(one for one in settings if one.object and one.object.kind == "inheritance"),
        *_sequences(uses, renamed, placed, {name for one in worded for name in one.sequences}),
        *(_object(one, renamed[one.root], placed, identities.get((one.table, one.name))) for one in worded),
        *_owners(uses, renamed, placed),
        *(one for one in settings if one.object and one.object.kind != "inheritance"),
    ]
    links = [
        SequenceLink(use.name, renamed[table].table, target, use.may_read, use.start)
        for (table, column), use in sorted(drawn_by(uses).items())
        if (target := _column(renamed[table], column)) is not None
    ]
    hidden = sorted({link.source for link in links if not link.may_read})
    user = quote(current_user(connection))
    grants = [
        *(f"GRANT USAGE ON SCHEMA {quote(schema)} TO {user}" for schema in _closed(connection, hidden)),
        *(f"GRANT SELECT ON SEQUENCE {quote(name.schema, name.name)} TO {user}" for name in hidden),
    ]
    schemas = {one.table.schema for one in plain}
    # One that nobody may read is no reason to refuse a cutover: tables do without it.
    free = [use for use in read_uses(connection, (), free_in=schemas) if use.may_read]
    links += [SequenceLink(use.name, use.table, use.column, use.may_read, use.start) for use in free]
    return PostData(pieces, left_out, links, grants, objects)


def is_setting(one: CatalogObject) -> bool:
    """Whether a copy gets an object by the statement that makes it."""
    return one.root is not None and one.made in list(When) and one.is_plain and one.make is not None


def _setting(one: CatalogObject) -> PostDataObject:
    assert one.root is not None
    assert one.table is not None
    parent = TableName(*split_name(one.name)) if one.kind == "inheritance" else None
    return PostDataObject(
        one.root,
        one.table,
        PostDataKind.SETTING,
        one.what,
        one.definition,
        one.make or "",
        When(one.made),
        other=parent,
        object=one,
    )


def _closed(connection: Connection, names: Sequence[TableName]) -> list[str]:
    """The schemas of these that the user may not use."""
    rows = psycopg.RawCursor(connection).execute(
        "SELECT nspname FROM pg_namespace WHERE nspname = ANY ($1::text[]) AND NOT has_schema_privilege(oid, 'USAGE')"
        " ORDER BY 1",
        [[name.schema for name in names]],
    )
    return [schema for (schema,) in rows.fetchall()]


def _found(root: TableName, *row: Any) -> Found:
    (
        level,
        schema,
        name,
        kind,
        own_name,
        definition,
        is_valid,
        columns,
        has_row,
        sequences,
        is_nextval,
        of_schema,
        of_name,
        calls,
        refused,
        is_partitioned,
    ) = row
    return Found(
        root,
        level,
        TableName(schema, name),
        PostDataKind(kind),
        own_name,
        definition,
        is_valid,
        columns,
        has_row,
        [TableName(*pair) for pair in sequences or ()],
        is_nextval,
        TableName(of_schema, of_name) if of_name else None,
        tuple((kind, TableName(schema, name)) for kind, schema, name in calls),
        refused,
        is_partitioned,
    )


def _column(renamed: Renamed, column: str) -> str | None:
    return column if renamed.columns is None else renamed.columns.get(column)


def _placed(uses: Sequence[SequenceUse], renamed: Mapping[TableName, Renamed]) -> dict[TableName, TableName]:
    """Return what sequences are called at the target: one beside its table stays beside it."""
    placed: dict[TableName, TableName] = {}
    for use in sorted(uses, key=lambda use: (renamed[use.table].table, use.column)):
        beside = use.table.schema == use.name.schema
        schema = renamed[use.table].table.schema if beside else use.name.schema
        placed.setdefault(use.name, TableName(schema, use.name.name))
    return placed


def _reason(one: Found, renamed: Renamed, placed: Mapping[TableName, TableName]) -> str | None:
    """Say why a post-data object is not brought; an empty text where nobody asks, None where it is brought."""
    dropped = [column for column in one.columns if _column(renamed, column) is None]
    if dropped:
        return (
            f"the rules drop {', '.join(map(repr, dropped))}"
            if one.kind in (PostDataKind.CHECK, PostDataKind.INDEX)
            else ""
        )
    if one.kind is PostDataKind.INDEX and not one.is_valid:
        return ""
    if one.refused:
        return f"it calls {', '.join(one.refused)}, which would run with the rights of whoever applies"
    if one.kind is PostDataKind.CHECK and renamed.has_step:
        return "a step of the rules may change the rows"
    if one.has_row and renamed.columns is not None:
        return "it names the row as a whole, which the rules change"
    moved = [name for name in one.sequences if placed.get(name, name) != name]
    if moved and not one.is_nextval:
        return f"it does more than draw from {moved[0]}, which has another name at the target"
    return None


def _worded(
    connection: Connection, found: Sequence[Found], renamed: Mapping[TableName, Renamed]
) -> tuple[list[Found], list[MissingObject]]:
    """Have the server put checks and indexes into the names that their columns have at the target.

    It does so for a temporary table whose columns are renamed, and which is gone afterwards: what stands in an
    expression is never taken for a name that it is not.
    """

    def needs_it(one: Found) -> bool:
        columns = renamed[one.root].columns
        named = one.kind in (PostDataKind.CHECK, PostDataKind.INDEX)
        return named and columns is not None and any(columns[column] != column for column in one.columns)

    wanted = [one for one in found if needs_it(one)]
    if not wanted:
        return list(found), []
    row = connection.execute("SELECT has_database_privilege(current_database(), 'TEMPORARY')").fetchone()
    if not (row and row[0]):
        reason = "its columns have other names at the target, and to have it reworded takes the right TEMPORARY here"
        lacks = [MissingObject(renamed[one.root].table, one.shown, reason) for one in wanted]
        return [one for one in found if one not in wanted], lacks
    # The server computes what depends on no row of it, even for a table that has none.
    foreign = {id(one): faults[0] for one in wanted if one.calls and (faults := called_code(connection, one.calls))}
    lacks = [
        MissingObject(
            renamed[one.root].table, one.shown, f"to have it reworded would run what is not trusted: {fault.what}"
        )
        for one in wanted
        if (fault := foreign.get(id(one))) is not None
    ]
    found = [one for one in found if id(one) not in foreign]
    wanted = [one for one in wanted if id(one) not in foreign]
    worded: dict[tuple[TableName, PostDataKind, str], str] = {}
    for root in dict.fromkeys(one.root for one in wanted):
        parts = [one for one in wanted if one.root == root]
        worded |= {
            (one.table, one.kind, one.name): definition
            for one, definition in zip(parts, _reworded(connection, renamed[root], parts), strict=True)
        }
    kept = [replace(one, definition=worded.get((one.table, one.kind, one.name), one.definition)) for one in found]
    return kept, lacks


def _reworded(connection: Connection, renamed: Renamed, parts: Sequence[Found]) -> list[str]:
    assert renamed.columns is not None
    clone = "pg_temp.penstock_clone"
    like = quote(renamed.source.schema, renamed.source.name)
    definitions = []
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL search_path = pg_catalog; CREATE TEMP TABLE penstock_clone (LIKE {like})")
        for number, part in enumerate(parts):
            what = f"ALTER TABLE {clone} ADD CONSTRAINT c{number}" if part.kind is PostDataKind.CHECK else ""
            psycopg.RawCursor(connection).execute(f"{what or f'CREATE INDEX i{number} ON {clone}'} {part.definition}")
        columns = [
            name
            for (name,) in connection.execute(
                f"SELECT attname FROM pg_attribute WHERE attrelid = '{clone}'::regclass AND attnum > 0 ORDER BY attnum"
            )
        ]
        # In two rounds: a name may pass from one column to another.
        for number, column in enumerate(columns):
            psycopg.RawCursor(connection).execute(
                f"ALTER TABLE {clone} RENAME COLUMN {quote(column)} TO {quote(f'penstock.{number}')}"
            )
        for number, column in enumerate(columns):
            if column in renamed.columns:
                psycopg.RawCursor(connection).execute(
                    f"ALTER TABLE {clone} RENAME COLUMN {quote(f'penstock.{number}')} TO"
                    f" {quote(renamed.columns[column])}"
                )
        for number, part in enumerate(parts):
            if part.kind is PostDataKind.CHECK:
                begin, query = (
                    "CHECK ",
                    (
                        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
                        f" WHERE conrelid = '{clone}'::regclass AND conname = 'c{number}'"
                    ),
                )
            else:
                begin, query = (
                    f"CREATE INDEX i{number} ON {clone} ",
                    f"SELECT pg_get_indexdef('pg_temp.i{number}'::regclass)",
                )
            row = connection.execute(query).fetchone()
            assert row is not None
            assert row[0].startswith(begin), "the server words it otherwise"
            definitions.append(row[0] if part.kind is PostDataKind.CHECK else row[0].removeprefix(begin))
    return definitions


def _sequences(
    uses: Sequence[SequenceUse],
    renamed: Mapping[TableName, Renamed],
    placed: Mapping[TableName, TableName],
    needed: set[TableName],
) -> list[PostDataObject]:
    made: dict[TableName, PostDataObject] = {}
    for use in sorted(uses, key=lambda use: (renamed[use.table].table, use.column)):
        target = renamed[use.table]
        wanted = use.how == "default" or (use.how == "owned" and _column(target, use.column) is not None)
        if wanted and use.name not in made and (use.how == "owned" or use.name in needed):
            name = placed[use.name]
            sql = f"CREATE SEQUENCE {quote(name.schema, name.name)} {use.options}"
            made[use.name] = PostDataObject(
                target.table, target.table, PostDataKind.SEQUENCE, str(name), use.options, sql, other=name
            )
    return list(made.values())


def _owners(
    uses: Sequence[SequenceUse], renamed: Mapping[TableName, Renamed], placed: Mapping[TableName, TableName]
) -> list[PostDataObject]:
    """The statements by which sequences go with the columns that own them."""
    found = []
    for use in uses:
        target = renamed[use.table]
        column = _column(target, use.column)
        # A sequence can be owned by a table of its own schema only.
        if use.how == "owned" and column is not None and placed[use.name].schema == target.table.schema:
            name, table = placed[use.name], target.table
            sql = f"ALTER SEQUENCE {quote(name.schema, name.name)} OWNED BY {quote(table.schema, table.name, column)}"
            found.append(PostDataObject(table, table, PostDataKind.OWNER, column, str(name), sql, other=name))
    return found


def _object(
    one: Found, renamed: Renamed, placed: Mapping[TableName, TableName], identity: TableName | None
) -> PostDataObject:
    table = renamed.table if one.level == 0 else one.table
    quoted = quote(table.schema, table.name)
    name, definition, when = one.name, one.definition, When.SETUP
    if one.kind in (PostDataKind.DEFAULT, PostDataKind.IDENTITY, PostDataKind.COMMENT) and name:
        name = _column(renamed, name) or name
    column = f"ALTER TABLE {quoted} ALTER COLUMN {quote(name)}"
    match one.kind:
        case PostDataKind.DEFAULT:
            if one.is_nextval:
                sequence = placed.get(one.sequences[0], one.sequences[0])
                # Where it has another name, the server's own wording of it is not known.
                same = sequence == one.sequences[0]
                definition = (
                    definition if same else f"nextval({literal(quote(sequence.schema, sequence.name))}::regclass)"
                )
            # A child has its own, and a partition that of its table.
            only = "" if one.is_partitioned else "ONLY "
            sql = f"ALTER TABLE {only}{quoted} ALTER COLUMN {quote(name)} SET DEFAULT {definition}"
        case PostDataKind.IDENTITY:
            sql = f"{column} {added_identity(definition, _named_otherwise(one, identity, placed))}"
        case PostDataKind.CHECK:
            # Rows from before a check that is not valid may break it, and have to be copied.
            when = When.SETUP if one.is_valid else When.CUTOVER
            sql = f"ALTER TABLE {quoted} ADD CONSTRAINT {quote(name)} {definition}"
            sql += "" if one.is_valid else " NOT VALID"
        case PostDataKind.INDEX:
            when = When.COPIED
            has_parts = one.is_partitioned and renamed.columns is None
            how = f"INDEX {quote(name)} ON ONLY" if has_parts else f"INDEX CONCURRENTLY {quote(name)} ON"
            sql = f"CREATE {how} {quoted} {definition}"
        case PostDataKind.COMMENT:
            on = f"COLUMN {quoted}.{quote(name)}" if name else f"TABLE {quoted}"
            sql = f"COMMENT ON {on} IS {literal(definition)}"
        case _:
            raise AssertionError(one.kind)
    other = placed.get(one.sequences[0], one.sequences[0]) if one.sequences else one.of
    return PostDataObject(renamed.table, table, one.kind, name, definition, sql, when, one.calls, other)


def _named_otherwise(one: Found, identity: TableName | None, placed: Mapping[TableName, TableName]) -> TableName | None:
    """The name of an identity's sequence, where the server would not give it that by itself."""
    if identity is None or identity.name == f"{one.table.name}_{one.name}_seq":
        return None
    return placed.get(identity, identity)


def added_identity(definition: str, sequence: TableName | None = None) -> str:
    """The end of the statement that makes a column an identity; `definition` is as sql/fittings.sql words it."""
    how, _, options = definition.partition(" INCREMENT")
    named = "" if sequence is None else f"SEQUENCE NAME {quote(sequence.schema, sequence.name)} "
    return f"ADD GENERATED {how} AS IDENTITY ({named}INCREMENT{options})"
