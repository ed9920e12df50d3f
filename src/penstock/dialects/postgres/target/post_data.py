"""Post-data objects that the target's tables lack: what setup makes, what is made later, what is left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from penstock.change import TableName
from penstock.database import DatabasePlan, MissingObject, SetupStep
from penstock.dialects.postgres.catalog import catalog_names
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.objects import Objects, read_objects
from penstock.dialects.postgres.ownership import called_code, others_sequences
from penstock.dialects.postgres.post_data import Found, PostData, PostDataKind, PostDataObject, When, read_found
from penstock.dialects.postgres.sequences import SequenceUse, read_uses
from penstock.dialects.postgres.target import differing, ledger_entries
from penstock.dialects.postgres.target.differing import PlannedObjects
from penstock.dialects.postgres.target.sequences import grants, read_links

_CATALOGS = {
    "function": ("pg_proc", "proname", "pronamespace"),
    "operator": ("pg_operator", "oprname", "oprnamespace"),
    "type": ("pg_type", "typname", "typnamespace"),
    "operator class": ("pg_opclass", "opcname", "opcnamespace"),
    "collation": ("pg_collation", "collname", "collnamespace"),
    "text search configuration": ("pg_ts_config", "cfgname", "cfgnamespace"),
    "relation": ("pg_class", "relname", "relnamespace"),
}


_DRAWING = (PostDataKind.DEFAULT, PostDataKind.OWNER)


@dataclass(frozen=True)
class TargetPostData:
    """What tables of the target have.

    Attributes:
        found: By table, kind and name.
        parts: (table, index that it is a part of) of the indexes of partitions.
        uses: The sequences of their columns.
        taken: The relations of whatever kind that have the name of something that is to be made; True for sequences
            that the user may move.
        own: The tables that the user may alter.
        objects: All that the tables are made of, and their schemas hold.
    """

    found: Mapping[tuple[TableName, PostDataKind, str], Found]
    parts: Collection[tuple[TableName, TableName]]
    uses: Sequence[SequenceUse]
    taken: Mapping[TableName, bool]
    own: Collection[TableName]
    objects: Objects

    def has(self, item: PostDataObject) -> bool:
        """Whether a post-data object is there already, in whatever wording."""
        match item.kind:
            case PostDataKind.SEQUENCE:
                return bool(item.other and self.taken.get(item.other))
            case PostDataKind.OWNER:
                return any((use.table, use.column, use.how) == (item.table, item.name, "owned") for use in self.uses)
            case PostDataKind.INDEX:
                if item.other is not None:
                    return (item.table, item.other) in self.parts
                there = self.found.get(item.key)
                return there is not None and (there.is_valid or there.is_partitioned)
            case PostDataKind.SETTING:
                return item.object is not None and item.object.key in self.objects.by_key
            case PostDataKind.IDENTITY | PostDataKind.DEFAULT:
                return any(
                    (item.table, kind, item.name) in self.found
                    for kind in (PostDataKind.IDENTITY, PostDataKind.DEFAULT)
                )
            case _:
                return item.key in self.found


def read_state(connection: Connection, post_data: PostData) -> TargetPostData:
    """Read what those of the tables have that exist."""
    roots = sorted({item.root for item in post_data.pieces})
    source = post_data.objects
    plain = source.tables if source is not None else ()
    found = read_found(connection, roots)
    wanted = {item.other for item in post_data.pieces if item.kind is PostDataKind.SEQUENCE and item.other}
    wanted |= {TableName(f.table.schema, f.name) for f in post_data.pieces if f.kind is PostDataKind.INDEX}
    taken = connection.execute(
        "SELECT n.nspname, c.relname, CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, 'UPDATE')"
        " ELSE false END FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN unnest(%s::text[], %s::text[]) w (schema, name) ON (n.nspname, c.relname) = (w.schema, w.name)",
        [[name.schema for name in wanted], [name.name for name in wanted]],
    )
    tables = {*roots, *(item.table for item in post_data.pieces)}
    own = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN unnest(%s::text[], %s::text[]) w (schema, name) ON (n.nspname, c.relname) = (w.schema, w.name)"
        " WHERE c.relkind IN ('r', 'p') AND pg_has_role(c.relowner, 'USAGE')",
        [[name.schema for name in tables], [name.name for name in tables]],
    )
    return TargetPostData(
        found={(one.table, one.kind, one.name): one for one in found},
        parts={(one.table, one.of) for one in found if one.of is not None},
        uses=read_uses(connection, roots),
        taken={TableName(schema, name): may_set for schema, name, may_set in taken.fetchall()},
        own={TableName(schema, name) for schema, name in own.fetchall()},
        objects=read_objects(connection, sorted(plain), source.schemas if source is not None else ()),
    )


def lacking(post_data: PostData, state: TargetPostData) -> list[PostDataObject]:
    """Return what tables lack, in the order in which it is made; tables that are not there lack everything."""
    return [item for item in post_data.pieces if not state.has(item)]


def obstacles(
    connection: Connection, post_data: Iterable[PostDataObject], made: Collection[TableName] = ()
) -> dict[PostDataObject, str]:
    """Say which post-data objects cannot be made, and why: they need what is missing, or what others could change.

    Args:
        made: Types that setup makes before them.
    """
    post_data = list(post_data)
    wanted = [item for item in post_data if item.calls]
    calls = sorted({call for item in wanted for call in item.calls if call[1] not in made})
    there = set(_existing(connection, calls))
    drawn = {item: item.other for item in post_data if item.kind in _DRAWING and item.other is not None}
    others = others_sequences(connection, drawn.values())
    found = {
        item: f"sequence {name} belongs to role {others[name]!r} here, and would be moved with the source's"
        for item, name in drawn.items()
        if name in others
    }
    # What belongs to trusted roles, which is the rule, is one question for all.
    is_suspect = bool(called_code(connection, there, is_free=True))
    for item in wanted:
        needed = [call for call in item.calls if call[1] not in made]
        missing = [f"{kind} {name}" for kind, name in needed if (kind, name) not in there]
        if missing:
            found[item] = f"the target has no {', no '.join(missing)}"
        elif is_suspect and (faults := called_code(connection, needed, is_free=True)):
            found[item] = str(faults[0].what)
    return found


def plan_post_data(
    connection: Connection,
    plan: DatabasePlan,
    post_data: PostData | None,
    *,
    process: str,
    missing: Collection[TableName],
    existing: Collection[TableName],
    types: Collection[TableName],
) -> None:
    """Plan what setup makes of post-data objects, and note what is made later, and what is left out.

    Tables that setup makes, or has made, get them; others are left as they are.

    Args:
        missing: Tables that setup is about to make.
        existing: Tables that are there.
        types: Types that setup is about to make.
    """
    if post_data is None:
        return
    made = ledger_entries.made(connection, process)
    state = read_state(connection, post_data)
    lack = lacking(post_data, state)
    linked = read_links(connection, post_data.links).values()
    closed = {use.name: use for use in linked if not (use.may_read and use.may_set)}
    plan.recommended += grants(connection, closed.values())
    why_not = obstacles(connection, lack, types)
    wanted = [piece for piece in lack if piece.root in missing or piece.root in made]
    why_not |= _without_sequences(connection, plan, wanted, state)
    lost: dict[TableName, list[PostDataObject]] = {}
    later: list[PostDataObject] = []
    steps: dict[str, tuple[PostDataObject, list[str]]] = {}
    for item in _without_lost(lack, why_not):
        is_new = item.root in missing
        if item.root in existing and (item.root not in made or item.root not in state.own):
            # Where settings differ, it is told once; a sequence that may not be moved has a grant recommended.
            if item.kind is not PostDataKind.SETTING and item.other not in closed:
                lost.setdefault(item.root, []).append(item)
        elif item.when is not When.SETUP:
            later.append(item)
        elif (sql := statement(item, is_new=is_new)) is not None:
            summary = f"comments on {item.table}" if item.kind is PostDataKind.COMMENT else item.summary
            steps.setdefault(summary, (item, []))[1].append(sql)
    for name in sorted(missing):
        plan.steps.append(ledger_entries.making(process, name))
    for summary, (item, statements) in steps.items():
        remedy = f"make it at the target yourself, and mind that table {item.root} is there then"
        is_setting = item.kind is PostDataKind.SETTING
        plan.steps.append(
            SetupStep(
                summary,
                "; ".join(statements),
                is_apart=item.root not in missing,
                remedy=remedy,
                is_optional=is_setting,
                tables=_users(item, post_data.pieces),
                refers=item.other if is_setting else None,
            )
        )
    plan.notes += [str(lack) for lack in post_data.left_out if lack.table in missing or lack.table in made]
    plan.notes += [f"{item.summary} is left out: {reason}" for item, reason in why_not.items()]
    plan.notes += list(_later(later))
    for name, pieces in sorted(lost.items()):
        named = ", ".join(_short(piece) for piece in pieces)
        plan.notes.append(f"table {name} was not made by setup, and is left as it is; the source's has, too: {named}")
    reasons = {lack.what: lack.reason for lack in post_data.left_out}
    reasons |= {item.summary: reason for item, reason in why_not.items()}
    reasons |= {item.summary: f"table {name} was not made by setup" for name, pieces in lost.items() for item in pieces}
    if post_data.objects is not None:
        made_yet = {item.summary for item in lack if item.summary not in reasons}
        made_yet |= {step.summary for step in plan.steps}
        building = {item.root for item in lack if item.kind is PostDataKind.INDEX}
        coming = PlannedObjects(made_yet, reasons, {*missing, *made})
        plan.differences += differing.planned(post_data.objects, state.objects, coming)
        for table, fault in differing.invalid_indexes(post_data.objects, state.objects, building, where=plan.label):
            if table is None:
                plan.faults.append(fault)
            else:
                plan.refuse(table, fault)


def _users(item: PostDataObject, all_of_them: Iterable[PostDataObject]) -> frozenset[TableName]:
    """The tables that need a post-data object: of a sequence, all that draw from it."""
    if item.kind is not PostDataKind.SEQUENCE:
        return frozenset({item.root})
    return frozenset(one.root for one in all_of_them if one.other == item.other)


def statement(item: PostDataObject, *, is_new: bool) -> str | None:
    """Return what makes a post-data object; None where the table that setup is about to make has it as it is.

    Args:
        is_new: Setup makes the table in the same transaction, with its identities.
    """
    if item.kind is not PostDataKind.IDENTITY or not is_new:
        return item.sql
    table, column = quote(item.table.schema, item.table.name), quote(item.name)
    # Whether the table's own statement has made it depends on who words that: the source, or rules.
    alter = f"ALTER TABLE {table} ALTER COLUMN {column}"
    return f"{alter} DROP IDENTITY IF EXISTS; {item.sql}"


def to_build(
    post_data: PostData, state: TargetPostData, made: Collection[TableName], when: Collection[When]
) -> list[PostDataObject]:
    """Return what tables that setup has made lack of what is made at a certain time."""
    return [
        item for item in lacking(post_data, state) if item.when in when and item.root in made and item.root in state.own
    ]


def left(
    post_data: PostData, state: TargetPostData, why_not: Mapping[PostDataObject, str], made: Collection[TableName]
) -> list[MissingObject]:
    """Return what the copy lacks and goes on to lack, with the reason."""
    found = list(post_data.left_out)
    for item in lacking(post_data, state):
        reason = why_not.get(item, "")
        if not reason and item.root not in made:
            reason = f"table {item.root} was not made by setup, and is left as it is"
        elif not reason and item.root not in state.own:
            reason = f"only the owner of {item.root} can make it"
        found.append(MissingObject(item.root, item.summary, reason))
    return found


def _without_lost(lack: Sequence[PostDataObject], why_not: dict[PostDataObject, str]) -> Iterator[PostDataObject]:
    """Yield what can be made; parts of an index that cannot be are left out with it."""
    lost = {TableName(f.table.schema, f.name) for f in why_not if f.kind is PostDataKind.INDEX}
    for item in lack:
        if item.kind is PostDataKind.INDEX and item.other in lost:
            continue
        if item not in why_not:
            yield item


def _without_sequences(
    connection: Connection, plan: DatabasePlan, wanted: Sequence[PostDataObject], state: TargetPostData
) -> dict[PostDataObject, str]:
    """Say which sequences cannot be made, and what is left out with them; plan the schemas that the others need."""
    rows = connection.execute("SELECT nspname, has_schema_privilege(oid, 'CREATE') FROM pg_namespace").fetchall()
    may_create: dict[str, bool] = dict(rows)
    planned = {step.summary for step in plan.steps}
    why_not: dict[PostDataObject, str] = {}
    lost: set[TableName] = set()
    for item in wanted:
        name = item.other
        if name is None:
            continue
        if item.kind is not PostDataKind.SEQUENCE:
            if name in lost and item.kind in (PostDataKind.DEFAULT, PostDataKind.OWNER):
                why_not[item] = f"sequence {name} is left out"
        elif name in state.taken:
            why_not[item] = f"the target has another {name}, which may not be moved"
        elif not may_create.get(name.schema, True):
            why_not[item] = f"no right to create anything in schema {name.schema!r}"
        elif name.schema not in may_create and f"schema {name.schema}" not in planned:
            planned.add(f"schema {name.schema}")
            plan.steps.append(SetupStep(f"schema {name.schema}", f"CREATE SCHEMA {quote(name.schema)}"))
        if item in why_not and item.kind is PostDataKind.SEQUENCE:
            lost.add(name)
    return why_not


def _later(post_data: Sequence[PostDataObject]) -> Iterator[str]:
    by_time: dict[tuple[TableName, When], list[str]] = {}
    for item in post_data:
        by_time.setdefault((item.root, item.when), []).append(_short(item))
    for (root, when), named in by_time.items():
        what = ", ".join(named)
        if when is When.COPIED:
            yield f"table {root}: `penstock run` builds once the rows are copied, beside the changes: {what}"
        else:
            yield f"table {root}: `penstock cutover` makes, since rows from before may not fit: {what}"


def _short(item: PostDataObject) -> str:
    of = "" if item.table == item.root else f" of {item.table}"
    match item.kind:
        case PostDataKind.DEFAULT | PostDataKind.IDENTITY | PostDataKind.COMMENT:
            return f"{item.kind} of {repr(item.name) if item.name else 'the table'}{of}"
        case PostDataKind.SETTING:
            return item.name.removesuffix(f" of {item.table}") + of
        case PostDataKind.SEQUENCE:
            return f"sequence {item.other}"
        case PostDataKind.OWNER:
            return f"owner of sequence {item.other}"
        case _:
            return f"{item.kind} {item.name}{of}"


def _existing(connection: Connection, calls: Iterable[tuple[str, TableName]]) -> Iterator[tuple[str, TableName]]:
    by_kind: dict[str, list[TableName]] = {}
    for kind, name in calls:
        by_kind.setdefault(kind, []).append(name)
    with catalog_names(connection):
        cursor = psycopg.RawCursor(connection)
        for kind, names in by_kind.items():
            catalog, name_column, namespace = _CATALOGS[kind]
            rows = cursor.execute(
                f"SELECT DISTINCT n.nspname, t.{name_column} FROM {catalog} t"
                f" JOIN pg_namespace n ON n.oid = t.{namespace}"
                f" WHERE (n.nspname, t.{name_column}) IN (SELECT * FROM unnest($1::text[], $2::text[]))",
                [[name.schema for name in names], [name.name for name in names]],
            ).fetchall()
            yield from ((kind, TableName(schema, name)) for schema, name in rows)
