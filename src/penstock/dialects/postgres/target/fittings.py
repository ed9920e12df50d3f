"""What the target's tables lack of the source's fittings: what setup makes, what is made later, what is left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from penstock.change import TableName
from penstock.dialects.base import DatabasePlan, Lack, Step
from penstock.dialects.postgres.catalog import catalog_names
from penstock.dialects.postgres.connection import Connection, quote
from penstock.dialects.postgres.fittings import Fitting, Fittings, Found, Kind, When, read_found
from penstock.dialects.postgres.objects import Objects, read_objects
from penstock.dialects.postgres.ownership import called_code
from penstock.dialects.postgres.sequences import SequenceUse, read_uses
from penstock.dialects.postgres.target import differing, ledger_entries
from penstock.dialects.postgres.target.differing import Coming

_CATALOGS = {
    "function": ("pg_proc", "proname", "pronamespace"),
    "operator": ("pg_operator", "oprname", "oprnamespace"),
    "type": ("pg_type", "typname", "typnamespace"),
    "operator class": ("pg_opclass", "opcname", "opcnamespace"),
    "collation": ("pg_collation", "collname", "collnamespace"),
    "text search configuration": ("pg_ts_config", "cfgname", "cfgnamespace"),
    "relation": ("pg_class", "relname", "relnamespace"),
}


@dataclass(frozen=True)
class State:
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

    found: Mapping[tuple[TableName, Kind, str], Found]
    parts: Collection[tuple[TableName, TableName]]
    uses: Sequence[SequenceUse]
    taken: Mapping[TableName, bool]
    own: Collection[TableName]
    objects: Objects

    def has(self, fitting: Fitting) -> bool:
        """Whether a fitting is there already, in whatever wording."""
        match fitting.kind:
            case Kind.SEQUENCE:
                return bool(fitting.other and self.taken.get(fitting.other))
            case Kind.OWNER:
                return any(
                    (use.table, use.column, use.how) == (fitting.table, fitting.name, "owned") for use in self.uses
                )
            case Kind.INDEX:
                if fitting.other is not None:
                    return (fitting.table, fitting.other) in self.parts
                there = self.found.get(fitting.key)
                return there is not None and (there.is_valid or there.is_partitioned)
            case Kind.SETTING:
                return fitting.object is not None and fitting.object.key in self.objects.by_key
            case Kind.IDENTITY | Kind.DEFAULT:
                return any((fitting.table, kind, fitting.name) in self.found for kind in (Kind.IDENTITY, Kind.DEFAULT))
            case _:
                return fitting.key in self.found


def read_state(connection: Connection, fittings: Fittings) -> State:
    """Read what those of the tables have that exist."""
    roots = sorted({fitting.root for fitting in fittings.pieces})
    source = fittings.objects
    plain = source.tables if source is not None else ()
    found = read_found(connection, roots)
    wanted = {fitting.other for fitting in fittings.pieces if fitting.kind is Kind.SEQUENCE and fitting.other}
    wanted |= {TableName(f.table.schema, f.name) for f in fittings.pieces if f.kind is Kind.INDEX}
    taken = connection.execute(
        "SELECT n.nspname, c.relname, CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, 'UPDATE')"
        " ELSE false END FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN unnest(%s::text[], %s::text[]) w (schema, name) ON (n.nspname, c.relname) = (w.schema, w.name)",
        [[name.schema for name in wanted], [name.name for name in wanted]],
    )
    tables = {*roots, *(fitting.table for fitting in fittings.pieces)}
    own = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN unnest(%s::text[], %s::text[]) w (schema, name) ON (n.nspname, c.relname) = (w.schema, w.name)"
        " WHERE c.relkind IN ('r', 'p') AND pg_has_role(c.relowner, 'USAGE')",
        [[name.schema for name in tables], [name.name for name in tables]],
    )
    return State(
        found={(one.table, one.kind, one.name): one for one in found},
        parts={(one.table, one.of) for one in found if one.of is not None},
        uses=read_uses(connection, roots),
        taken={TableName(schema, name): may_set for schema, name, may_set in taken.fetchall()},
        own={TableName(schema, name) for schema, name in own.fetchall()},
        objects=read_objects(connection, sorted(plain), source.schemas if source is not None else ()),
    )


def lacking(fittings: Fittings, state: State) -> list[Fitting]:
    """Return what tables lack, in the order in which it is made; tables that are not there lack everything."""
    return [fitting for fitting in fittings.pieces if not state.has(fitting)]


def obstacles(
    connection: Connection, fittings: Iterable[Fitting], made: Collection[TableName] = ()
) -> dict[Fitting, str]:
    """Say which fittings cannot be made, and why: they need what is not here, or what another role could change.

    Args:
        made: Types that setup makes before them.
    """
    wanted = [fitting for fitting in fittings if fitting.calls]
    calls = sorted({call for fitting in wanted for call in fitting.calls if call[1] not in made})
    there = set(_existing(connection, calls))
    found = {}
    # What belongs to trusted roles, which is the rule, is one question for all.
    is_suspect = bool(called_code(connection, there, is_free=True))
    for fitting in wanted:
        needed = [call for call in fitting.calls if call[1] not in made]
        missing = [f"{kind} {name}" for kind, name in needed if (kind, name) not in there]
        if missing:
            found[fitting] = f"the target has no {', no '.join(missing)}"
        elif is_suspect and (faults := called_code(connection, needed, is_free=True)):
            found[fitting] = str(faults[0].what)
    return found


def plan_fittings(
    connection: Connection,
    plan: DatabasePlan,
    fittings: Fittings | None,
    *,
    process: str,
    missing: Collection[TableName],
    existing: Collection[TableName],
    types: Collection[TableName],
) -> None:
    """Plan what setup makes of fittings, and note what is made later, and what is left out.

    Tables that setup makes, or has made, get them; others are left as they are.

    Args:
        missing: Tables that setup is about to make.
        existing: Tables that are there.
        types: Types that setup is about to make.
    """
    if fittings is None:
        return
    made = ledger_entries.made(connection, process)
    state = read_state(connection, fittings)
    lack = lacking(fittings, state)
    why_not = obstacles(connection, lack, types)
    wanted = [piece for piece in lack if piece.root in missing or piece.root in made]
    why_not |= _without_sequences(connection, plan, wanted, state)
    lost: dict[TableName, list[Fitting]] = {}
    later: list[Fitting] = []
    steps: dict[str, tuple[Fitting, list[str]]] = {}
    for fitting in _without_lost(lack, why_not):
        is_new = fitting.root in missing
        if fitting.root in existing and (fitting.root not in made or fitting.root not in state.own):
            if fitting.kind is not Kind.SETTING:  # Where these differ, it is told once.
                lost.setdefault(fitting.root, []).append(fitting)
        elif fitting.when is not When.SETUP:
            later.append(fitting)
        elif (sql := statement(fitting, is_new=is_new)) is not None:
            summary = f"comments on {fitting.table}" if fitting.kind is Kind.COMMENT else fitting.summary
            steps.setdefault(summary, (fitting, []))[1].append(sql)
    for name in sorted(missing):
        plan.steps.append(ledger_entries.making(process, name))
    for summary, (fitting, statements) in steps.items():
        remedy = f"make it at the target yourself, and mind that table {fitting.root} is there then"
        is_setting = fitting.kind is Kind.SETTING
        plan.steps.append(
            Step(
                summary,
                "; ".join(statements),
                is_apart=fitting.root not in missing,
                remedy=remedy,
                is_optional=is_setting,
                tables=_users(fitting, fittings.pieces),
                refers=fitting.other if is_setting else None,
            )
        )
    plan.notes += [str(lack) for lack in fittings.left_out if lack.table in missing or lack.table in made]
    plan.notes += [f"{fitting.summary} is left out: {reason}" for fitting, reason in why_not.items()]
    plan.notes += list(_later(later))
    for name, pieces in sorted(lost.items()):
        named = ", ".join(_short(piece) for piece in pieces)
        plan.notes.append(f"table {name} was not made by setup, and is left as it is; the source's has, too: {named}")
    reasons = {lack.what: lack.reason for lack in fittings.left_out}
    reasons |= {fitting.summary: reason for fitting, reason in why_not.items()}
    reasons |= {
        fitting.summary: f"table {name} was not made by setup" for name, pieces in lost.items() for fitting in pieces
    }
    if fittings.objects is not None:
        made_yet = {fitting.summary for fitting in lack if fitting.summary not in reasons}
        made_yet |= {step.summary for step in plan.steps}
        building = {fitting.root for fitting in lack if fitting.kind is Kind.INDEX}
        coming = Coming(made_yet, reasons, {*missing, *made})
        plan.differences += differing.planned(fittings.objects, state.objects, coming)
        for table, fault in differing.invalid_indexes(fittings.objects, state.objects, building, where=plan.label):
            if table is None:
                plan.faults.append(fault)
            else:
                plan.refuse(table, fault)


def _users(fitting: Fitting, all_of_them: Iterable[Fitting]) -> frozenset[TableName]:
    """The tables that need a fitting: of a sequence, all that draw from it."""
    if fitting.kind is not Kind.SEQUENCE:
        return frozenset({fitting.root})
    return frozenset(one.root for one in all_of_them if one.other == fitting.other)


def statement(fitting: Fitting, *, is_new: bool) -> str | None:
    """Return what makes a fitting; None where the table that setup is about to make has it as it is.

    Args:
        is_new: Setup makes the table in the same transaction, with its identities.
    """
    if fitting.kind is not Kind.IDENTITY or not is_new:
        return fitting.sql
    table, column = quote(fitting.table.schema, fitting.table.name), quote(fitting.name)
    # Whether the table's own statement has made it depends on who words that: the source, or rules.
    alter = f"ALTER TABLE {table} ALTER COLUMN {column}"
    return f"{alter} DROP IDENTITY IF EXISTS; {fitting.sql}"


def to_build(fittings: Fittings, state: State, made: Collection[TableName], when: Collection[When]) -> list[Fitting]:
    """Return what tables that setup has made lack of what is made at a certain time."""
    return [
        fitting
        for fitting in lacking(fittings, state)
        if fitting.when in when and fitting.root in made and fitting.root in state.own
    ]


def left(fittings: Fittings, state: State, why_not: Mapping[Fitting, str], made: Collection[TableName]) -> list[Lack]:
    """Return what the copy lacks and goes on to lack, with the reason."""
    found = list(fittings.left_out)
    for fitting in lacking(fittings, state):
        reason = why_not.get(fitting, "")
        if not reason and fitting.root not in made:
            reason = f"table {fitting.root} was not made by setup, and is left as it is"
        elif not reason and fitting.root not in state.own:
            reason = f"only the owner of {fitting.root} can make it"
        found.append(Lack(fitting.root, fitting.summary, reason))
    return found


def _without_lost(lack: Sequence[Fitting], why_not: dict[Fitting, str]) -> Iterator[Fitting]:
    """Yield what can be made; parts of an index that cannot be are left out with it."""
    lost = {TableName(f.table.schema, f.name) for f in why_not if f.kind is Kind.INDEX}
    for fitting in lack:
        if fitting.kind is Kind.INDEX and fitting.other in lost:
            continue
        if fitting not in why_not:
            yield fitting


def _without_sequences(
    connection: Connection, plan: DatabasePlan, wanted: Sequence[Fitting], state: State
) -> dict[Fitting, str]:
    """Say which sequences cannot be made, and what is left out with them; plan the schemas that the others need."""
    rows = connection.execute("SELECT nspname, has_schema_privilege(oid, 'CREATE') FROM pg_namespace").fetchall()
    may_create: dict[str, bool] = dict(rows)
    planned = {step.summary for step in plan.steps}
    why_not: dict[Fitting, str] = {}
    lost: set[TableName] = set()
    for fitting in wanted:
        name = fitting.other
        if name is None:
            continue
        if fitting.kind is not Kind.SEQUENCE:
            if name in lost and fitting.kind in (Kind.DEFAULT, Kind.OWNER):
                why_not[fitting] = f"sequence {name} is left out"
        elif name in state.taken:
            why_not[fitting] = f"the target has another {name}, which may not be moved"
        elif not may_create.get(name.schema, True):
            why_not[fitting] = f"no right to create anything in schema {name.schema!r}"
        elif name.schema not in may_create and f"schema {name.schema}" not in planned:
            planned.add(f"schema {name.schema}")
            plan.steps.append(Step(f"schema {name.schema}", f"CREATE SCHEMA {quote(name.schema)}"))
        if fitting in why_not and fitting.kind is Kind.SEQUENCE:
            lost.add(name)
    return why_not


def _later(fittings: Sequence[Fitting]) -> Iterator[str]:
    by_time: dict[tuple[TableName, When], list[str]] = {}
    for fitting in fittings:
        by_time.setdefault((fitting.root, fitting.when), []).append(_short(fitting))
    for (root, when), named in by_time.items():
        what = ", ".join(named)
        if when is When.COPIED:
            yield f"table {root}: `penstock run` builds once the rows are copied, beside the changes: {what}"
        else:
            yield f"table {root}: `penstock cutover` makes, since rows from before may not fit: {what}"


def _short(fitting: Fitting) -> str:
    of = "" if fitting.table == fitting.root else f" of {fitting.table}"
    match fitting.kind:
        case Kind.DEFAULT | Kind.IDENTITY | Kind.COMMENT:
            return f"{fitting.kind} of {repr(fitting.name) if fitting.name else 'the table'}{of}"
        case Kind.SETTING:
            return fitting.name.removesuffix(f" of {fitting.table}") + of
        case Kind.SEQUENCE:
            return f"sequence {fitting.other}"
        case Kind.OWNER:
            return f"owner of sequence {fitting.other}"
        case _:
            return f"{fitting.kind} {fitting.name}{of}"


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
