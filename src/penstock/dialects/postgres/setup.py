"""Planning what setup does in PostgreSQL databases, and checking what is there already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from penstock.apply.keys import row_key
from penstock.change import TableName
from penstock.dialects.base import DatabasePlan, Step, Uncaptured
from penstock.dialects.postgres import capture, ownership
from penstock.dialects.postgres.catalog import (
    catalog_names,
    computed_columns,
    current_user,
    is_superuser,
    list_tables,
    read_tables,
    table_oids,
    unlogged_tables,
)
from penstock.dialects.postgres.connection import WITHOUT_VIEWS, Connection, label, literal, quote, speaking
from penstock.dialects.postgres.privileges import may, missing_source_grants, missing_target_grants
from penstock.dialects.postgres.resources import sql_text
from penstock.dialects.postgres.resync import only
from penstock.errors import OperatorError, PenstockError
from penstock.schema import TableSchema
from penstock.sources.trigger_queue.patterns import TablePattern

_OLDEST = 14


@dataclass(frozen=True)
class Blueprint:
    """How to make tables like the source's in another PostgreSQL database.

    Attributes:
        types: (name, statement, extension) in the order they must be created; no statement, no way.
        tables: Statements that make each table with its partitions, by the table they belong to.
        keys: Statements for its keys, unique constraints and unique indexes.
        references: (table it refers to, statement) for its foreign keys.
        calls: Functions and operators that the tables call when rows are written to them, by kind and name.
        computed: The expressions of generated columns, by table and column.
    """

    types: Sequence[tuple[TableName, str | None, str | None]]
    tables: Mapping[TableName, Sequence[str]]
    keys: Mapping[TableName, Sequence[str]]
    references: Mapping[TableName, Sequence[tuple[TableName, str]]]
    calls: Sequence[tuple[str, TableName]]
    computed: Mapping[tuple[TableName, str], str]


def match_tables(connection: Connection, url: str, patterns: Sequence[str]) -> list[TableName]:
    """Return the tables that the patterns mean; where its root is meant too, a partition is left out.

    Raises:
        OperatorError: A pattern means no table.
    """
    roots = list_tables(connection)
    found, unknown = _matching(roots, patterns)
    if unknown:
        raise OperatorError(
            f"no table matches {', '.join(unknown)}",
            where=f"capture.tables, {label(url)}",
            do="names are taken as they stand in the catalogue, upper and lower case included",
        )
    return sorted(table for table in found if roots[table] == table or roots[table] not in found)


def plan_source(
    connection: Connection, url: str, pipeline: str, tables: Sequence[TableName], row_triggers: Sequence[str]
) -> DatabasePlan:
    """Plan the capture of `tables`; those that a pattern of `row_triggers` means by row triggers."""
    name = capture.set_name(pipeline)
    plan = DatabasePlan(label(url), faults=_faults_of(connection, url, name), preamble=ownership.preamble(name))
    if plan.faults:
        # What is there may be anybody's; nothing of it is read or run.
        return plan
    by_row, unknown = _matching(tables, row_triggers)
    if unknown:
        plan.faults.append(
            OperatorError(
                f"no captured table matches {', '.join(unknown)}",
                where=f"capture.row_triggers, {label(url)}",
                do="name tables that capture.tables means, spelled as in the catalogue; partitions go with their root",
            )
        )
    superuser = is_superuser(connection)
    tables = _without_unlogged(connection, plan, tables)
    has_log = capture.has_current_log(connection, name)
    if not has_log:
        plan.steps += ownership.schema_steps(connection, name) + capture.log_steps(name)
        plan.steps.append(ownership.seal_step(name))
    if superuser and not (has_log and capture.has_event_triggers(connection, name)):
        plan.steps.append(capture.event_trigger_step(name))
    if not (has_log and capture.has_current_tables(connection, name, tables, by_row)):
        plan.steps += capture.table_steps(name, tables, by_row)
    plan.steps += ownership.dump_steps(connection, name, tables, is_new=not has_log)
    if connection.execute("SELECT to_regclass('penstock.process')").fetchone() != (None,):
        plan.notes.append(
            "changes that penstock applies to this database are not captured again: their triggers are off"
        )
    if not superuser:
        plan.role = current_user(connection)
        plan.grants = list(missing_source_grants(connection, name, tables))
        plan.notes.append(
            "without a superuser's event trigger, new partitions are watched for TRUNCATE, and capture is quick again"
            " after an ALTER TABLE, only from when a run notices it, within half a minute"
        )
    plan.notes += _trigger_notes(connection, tables)
    plan.notes += ownership.hosted_code(connection, tables, is_read=True)
    return plan


def read_blueprint(connection: Connection, tables: Sequence[TableName]) -> Blueprint:
    """Read from the source how to make tables like these."""
    with catalog_names(connection):
        oids = table_oids(connection, tables)
        by_oid = {oid: name for name, oid in oids.items()}
        cursor = psycopg.RawCursor(connection)
        types = [
            (TableName(schema, name), statement, extension)
            for schema, name, statement, extension in cursor.execute(sql_text("types"), [list(by_oid)])
        ]
        rows = cursor.execute(sql_text("tables"), [list(by_oid)]).fetchall()
        found = cursor.execute(sql_text("calls"), [list(by_oid)]).fetchall()
        calls = [(kind, TableName(schema, name)) for kind, schema, name in found]
    names = {name: name for name in tables}
    made: dict[int, dict[TableName, list[tuple[TableName, str]]]] = {1: {}, 2: {}, 3: {}}
    for root, step, statement, parent_schema, parent_name in rows:
        parent = TableName(parent_schema, parent_name) if parent_name else by_oid[root]
        made[step].setdefault(names[by_oid[root]], []).append((parent, statement))
    return Blueprint(
        types=types,
        tables={name: [text for _, text in statements] for name, statements in made[1].items()},
        keys={name: [text for _, text in statements] for name, statements in made[2].items()},
        references=made[3],
        calls=calls,
        computed=computed_columns(connection, tables),
    )


def plan_target(
    connection: Connection,
    url: str,
    *,
    process: str,
    blueprint: Blueprint,
    source: Mapping[TableName, TableSchema],
    replaced: Sequence[TableName],
    adopt: bool,
) -> DatabasePlan:
    """Plan the ledger and the missing tables; check the tables that exist, without altering them.

    Args:
        replaced: Tables that were made anew at the source, whose copy is of the table before.
        adopt: Have rows that were not copied compared by the first copy, and kept, instead of refusing them.
    """
    plan = DatabasePlan(label(url), faults=_faults_of(connection, url, "penstock"))
    plan.preamble = ownership.preamble("penstock")
    if plan.faults:
        return plan
    existing = read_tables(connection, source)
    has_ledger = _is_ledger_current(connection)
    if not has_ledger:
        plan.steps += ownership.schema_steps(connection, "penstock")
        script = sql_text("ledger")
        plan.steps.append(Step("the ledger", script))
        plan.steps.append(
            Step(
                "a note of the version of the ledger", f"COMMENT ON SCHEMA penstock IS {literal(capture.stamp(script))}"
            )
        )
        plan.steps.append(ownership.seal_step("penstock"))
    plan.steps += ownership.dump_steps(connection, "penstock", list(source), is_new=not has_ledger)
    missing = [name for name in source if name not in existing]
    plan.steps += _schema_steps(connection, missing, blueprint)
    _plan_types(connection, plan, blueprint, missing)
    for name in missing:
        plan.steps += [Step(f"table {name}", sql, remedy=_make_it(name)) for sql in blueprint.tables[name]]
    for name in missing:
        plan.steps += [Step(f"keys of {name}", sql, remedy=_make_it(name)) for sql in blueprint.keys.get(name, ())]
    there = set(list_tables(connection))
    parents = set()
    for name in missing:
        for parent, sql in blueprint.references.get(name, ()):
            if parent in there or parent in missing:
                parents.add(parent)
                plan.steps.append(Step(f"foreign key of {name}", sql, remedy=_make_it(name)))
            else:
                plan.notes.append(
                    f"a foreign key of {name} is left out: {parent} is neither captured nor at the target"
                )
    copied, adopted = _copied(connection, process), _adopted(connection, process)
    for name, table in existing.items():
        _check_table(plan, source[name], table)
        if name in replaced and name in copied:
            forget = (
                f"DELETE FROM penstock.instantiation WHERE process = {literal(process)}"
                f" AND (schema_name, table_name) = ({literal(name.schema)}, {literal(name.name)})"
            )
            plan.steps.append(Step(f"forget the copy of {name}, which was made anew at the source", forget))
        if (name in replaced or name not in copied) and name not in adopted:
            in_the_way = _rows_in_the_way(connection, url, name)
            if adopt and in_the_way and _has_rows(connection, name):
                plan.steps.append(_adoption(process, name))
            else:
                plan.faults += in_the_way
    computed = computed_columns(connection, existing)
    for (name, column), expression in computed.items():
        if expression != (at_source := blueprint.computed.get((name, column), expression)):
            plan.notes.append(
                f"column {column!r} of table {name} is computed as {expression}, at the source as {at_source}:"
                " apply leaves it to the target, and `verify` will find other values"
            )
    plan.notes += ownership.hosted_code(connection, list(existing))
    if missing:
        calls = [*blueprint.calls, *(("type", name) for name, _, _ in blueprint.types)]
        plan.faults += ownership.called_code(connection, calls)
    if not is_superuser(connection):
        plan.role = current_user(connection)
        plan.grants = list(missing_target_grants(connection, existing, missing, parents & there))
    return plan


def _matching(tables: Iterable[TableName], patterns: Sequence[str]) -> tuple[set[TableName], list[str]]:
    """Return the tables that patterns mean, and the patterns that mean none of them."""
    found: set[TableName] = set()
    unknown = []
    for pattern in map(TablePattern.parse, patterns):
        matched = {table for table in tables if pattern.matches(table)}
        found |= matched
        if not matched:
            unknown.append(repr(pattern.text))
    return found, unknown


def _faults_of(connection: Connection, url: str, schema: str) -> list[PenstockError]:
    """What is wrong with a database as a whole."""
    faults: list[PenstockError] = []
    if connection.info.server_version < _OLDEST * 10_000:
        found = connection.info.parameter_status("server_version")
        what = f"PostgreSQL {found} is too old"
        faults.append(OperatorError(what, where=label(url), do=f"use PostgreSQL {_OLDEST} or later"))
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        what = "the database's encoding is SQL_ASCII, which does not say what its bytes mean"
        faults.append(OperatorError(what, where=label(url), do="use a database with a real encoding, best UTF8"))
    if capture.is_foreign(connection, schema):
        what = f"schema {schema!r} exists, and is not Penstock's"
        faults.append(OperatorError(what, where=label(url), do="rename it: Penstock keeps its own objects there"))
    else:
        faults += ownership.schema_faults(connection, schema)
    return faults


def _copied(connection: Connection, process: str) -> set[TableName]:
    """Tables that the process has copied, or begun to copy."""
    if connection.execute("SELECT to_regclass('penstock.instantiation')").fetchone() == (None,):
        return set()
    if not may(connection, "SELECT has_table_privilege('penstock.instantiation', 'SELECT')"):
        return set()
    rows = connection.execute(
        "SELECT schema_name, table_name FROM penstock.instantiation WHERE process = %s", [process]
    )
    return {TableName(schema, name) for schema, name in rows}


def _adopted(connection: Connection, process: str) -> set[TableName]:
    """Tables whose rows the first copy compares, and keeps where they are right."""
    if connection.execute("SELECT to_regclass('penstock.adoption')").fetchone() == (None,):
        return set()
    rows = connection.execute("SELECT schema_name, table_name FROM penstock.adoption WHERE process = %s", [process])
    return {TableName(schema, name) for schema, name in rows}


def _adoption(process: str, name: TableName) -> Step:
    return Step(
        f"adopt the rows that {name} holds: the first copy compares them, and writes those that differ",
        "INSERT INTO penstock.adoption (process, schema_name, table_name)"
        f" VALUES ({literal(process)}, {literal(name.schema)}, {literal(name.name)}) ON CONFLICT DO NOTHING",
    )


def _rows_in_the_way(connection: Connection, url: str, name: TableName) -> list[PenstockError]:
    advice = "take it out of capture.tables"
    try:
        with speaking(f"read table {name}", url):
            if not _has_rows(connection, name):
                return []
    except OperatorError as exc:
        # One of its partitions may be a foreign table that leads nowhere.
        return [OperatorError(exc.what, where=exc.where, do=f"mend that, or {advice}")]
    what = f"table {name} holds rows that penstock did not copy"
    do = f"have them compared and kept, by `penstock setup --adopt`; or empty it, or {advice}"
    return [OperatorError(what, where=label(url), do=do)]


def _has_rows(connection: Connection, name: TableName) -> bool:
    quoted = quote(name.schema, name.name)
    if not may(connection, "SELECT has_schema_privilege(%s, 'USAGE')", name.schema):
        return False
    if not may(connection, "SELECT has_table_privilege(%s, 'SELECT') AND NOT row_security_active(%s)", quoted, quoted):
        return False
    with connection.transaction():
        connection.execute(WITHOUT_VIEWS.replace("false", "true"))
        return connection.execute(f"SELECT FROM {only(connection, quoted)} LIMIT 1").fetchone() is not None


def _make_it(name: TableName) -> str:
    return f"create {name} at the target yourself, or take it out of capture.tables"


def _is_ledger_current(connection: Connection) -> bool:
    row = connection.execute("SELECT obj_description(to_regnamespace('penstock'), 'pg_namespace')").fetchone()
    return bool(row and row[0] == capture.stamp(sql_text("ledger")))


def _schema_steps(connection: Connection, missing: Iterable[TableName], blueprint: Blueprint) -> list[Step]:
    if not missing:
        return []
    wanted = {name.schema for name in missing} | {name.schema for name, statement, _ in blueprint.types if statement}
    found = {row[0] for row in connection.execute("SELECT nspname FROM pg_namespace")}
    return [Step(f"schema {name}", f"CREATE SCHEMA {quote(name)}") for name in sorted(wanted - found)]


def _plan_types(connection: Connection, plan: DatabasePlan, blueprint: Blueprint, missing: Sequence[TableName]) -> None:
    if not missing:
        return
    rows = connection.execute(
        "SELECT n.nspname, t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace"
    )
    found = {TableName(schema, name) for schema, name in rows}
    for name, statement, extension in blueprint.types:
        if name in found:
            continue
        if statement is not None:
            plan.steps.append(Step(f"type {name}", statement, remedy="create the type at the target yourself"))
        elif extension is not None:
            plan.faults.append(
                OperatorError(
                    f"type {name} is missing at the target",
                    where=plan.label,
                    do=f"install the extension it belongs to: CREATE EXTENSION {quote(extension)}",
                )
            )
        else:
            plan.faults.append(
                OperatorError(
                    f"type {name} is missing at the target and cannot be made from its definition",
                    where=plan.label,
                    do="create it there, then run setup again",
                )
            )


def _check_table(plan: DatabasePlan, source: TableSchema, target: TableSchema) -> None:
    """Compare a table that exists with what changes to it will need."""

    def fault(what: str, do: str) -> None:
        plan.faults.append(OperatorError(what, where=plan.label, do=do))

    name = source.name
    for column in source.columns:
        there = target.by_name.get(column.name)
        if there is None:
            fault(
                f"table {name} lacks column {column.name!r}",
                f"ALTER TABLE {quote(name.schema, name.name)} ADD COLUMN {quote(column.name)} {column.type};"
                " then give the rows that are there the values that the source's have, if it filled them."
                " If the source has renamed a column, rename it here instead",
            )
        elif there.base_type != column.base_type:
            fault(
                f"column {column.name!r} of table {name} is {there.type}, at the source it is {column.type}",
                "give it the source's type",
            )
        elif there.is_generated and not column.is_generated:
            fault(
                f"column {column.name!r} of table {name} is generated, at the source it is not",
                "make it a plain column",
            )
        elif _rounds(column.type, there.type):
            fault(
                f"column {column.name!r} of table {name} is {there.type}, at the source it is {column.type}:"
                " values would be rounded without a word",
                "give it the source's type",
            )
        elif there.type != column.type:
            plan.notes.append(
                f"column {column.name!r} of table {name} is {there.type}, at the source it is {column.type}:"
                " values that do not fit go to the error queue"
            )
    if row_key(source).is_declared and not row_key(target).is_declared:
        key = ", ".join(quote(column) for column in row_key(source).columns)
        fault(
            f"table {name} has no primary or unique key, at the source it has",
            f"ALTER TABLE {quote(name.schema, name.name)} ADD PRIMARY KEY ({key})",
        )
    if target.fires_triggers:
        plan.notes.append(f"table {name} has triggers that fire for apply too; its changes go row by row")
    for exclusion in target.exclusions:
        if exclusion.is_deferrable and not exclusion.columns:
            plan.notes.append(f"deferrable constraint {exclusion.name!r} of {name} cannot be checked by apply")


def _rounds(source: str, target: str) -> bool:
    """Whether a column of the target's type keeps fewer digits behind the point than one of the source's."""
    return _scale(target) < _scale(source)


def _scale(type_name: str) -> int:
    numeric = re.match(r"numeric\(\d+(?:,(-?\d+))?\)", type_name)
    if numeric:
        return int(numeric[1] or 0)
    time = re.match(r"(?:time|timestamp|interval)[^(]*\((\d)\)", type_name)
    return int(time[1]) if time else 16_383


def uncaptured_tables(connection: Connection, set_name: str, patterns: Sequence[str]) -> list[Uncaptured]:
    """Tables that patterns mean, and whose changes are not captured, with the reason."""
    roots = list_tables(connection)
    matched, _ = _matching(roots, patterns)
    matched = {table for table in matched if roots[table] == table or roots[table] not in matched}
    oids = table_oids(connection, matched)
    unlogged = set(unlogged_tables(connection, matched))
    captured = quote(set_name)
    rows = connection.execute(
        f"SELECT c.relid::bigint, c.mode, {captured}.captured_root(c.relid) <> c.relid FROM {captured}.captured_now c"
    ).fetchall()
    modes = {relid: "partition" if is_part else mode for relid, mode, is_part in rows}
    names = connection.execute(
        "SELECT DISTINCT c.definition ->> 'schema', c.definition ->> 'name', n.nspname, k.relname"
        f" FROM {captured}.captured c LEFT JOIN pg_class k ON k.oid = c.relid"
        " LEFT JOIN pg_namespace n ON n.oid = k.relnamespace"
        " WHERE c.mode NOT LIKE 'partition%' AND c.mode <> 'detached'"
    ).fetchall()
    known = {TableName(schema, name) for schema, name, _, _ in names}
    before = {TableName(schema, name): TableName(now, called) for schema, name, now, called in names if called}
    found = []
    for table in sorted(matched):
        mode = modes.get(oids.get(table, 0))
        if table in unlogged:
            found.append(Uncaptured(table, "it is unlogged; a crash empties it without a change"))
        elif mode is None and table in known:
            found.append(Uncaptured(table, "it was made anew, or renamed, after setup; run `penstock setup`"))
        elif mode is None:
            found.append(Uncaptured(table, "it was made after setup; run `penstock setup`"))
        elif mode == "detached" or (mode.startswith("partition") and roots[table] == table):
            found.append(Uncaptured(table, "it was a partition, and was detached; run `penstock setup`"))
    for table, now in sorted(before.items()):
        is_meant = any(TablePattern.parse(pattern).matches(table) for pattern in patterns)
        if is_meant and table not in roots and now not in matched:
            found.append(Uncaptured(table, f"it was renamed to {now}, which no pattern of capture.tables means"))
    return found


def _without_unlogged(connection: Connection, plan: DatabasePlan, tables: Sequence[TableName]) -> Sequence[TableName]:
    unlogged = set(unlogged_tables(connection, tables))
    if unlogged:
        names = ", ".join(map(str, sorted(unlogged)))
        plan.notes.append(f"{names}: unlogged, and so not captured: a crash empties it without a change")
    return [table for table in tables if table not in unlogged]


def _trigger_notes(connection: Connection, tables: Sequence[TableName]) -> list[str]:
    """Users' triggers that fire before the capture, and so may have their own writes captured first."""
    rows = connection.execute(
        "SELECT n.nspname, c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 66 = 0"
        " AND t.tgname COLLATE \"C\" < 'R_penstock' ORDER BY 1, 2, 3"
    )
    wanted = set(tables)
    return [
        f"trigger {trigger!r} on {TableName(schema, table)} fires before the capture: what it writes is captured first;"
        " rename it to sort after 'R_penstock' if that matters"
        for schema, table, trigger in rows
        if TableName(schema, table) in wanted
    ]
