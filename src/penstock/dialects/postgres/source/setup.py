"""What capture installs at a PostgreSQL source, and what is not captured there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from penstock.change import TableName
from penstock.database import DatabasePlan, Uncaptured, transactions
from penstock.dialects.postgres import ownership
from penstock.dialects.postgres.catalog import (
    current_user,
    is_superuser,
    list_tables,
    table_oids,
    unlogged_tables,
)
from penstock.dialects.postgres.checks import faults_of
from penstock.dialects.postgres.connection import Connection, label, quote
from penstock.dialects.postgres.privileges import missing_source_grants, plan_grants
from penstock.dialects.postgres.source import capture, documented
from penstock.dialects.postgres.target import ledger_version
from penstock.errors import OperatorError
from penstock.patterns import TablePattern, nearest_table
from penstock.sources.trigger_queue.config import DocumentedConfig


def match_tables(connection: Connection, url: str, patterns: Sequence[str]) -> list[TableName]:
    """Return the tables that the patterns mean; where its root is meant too, a partition is left out.

    Raises:
        OperatorError: A pattern means no table.
    """
    roots = list_tables(connection)
    found, unknown = _matching(roots, patterns)
    if unknown:
        raise OperatorError(
            f"no table matches {', '.join(map(repr, unknown))}",
            where=f"capture.tables, {label(url)}",
            do="names are taken as they stand in the catalogue, upper and lower case included; take a pattern out whose"
            " tables were dropped" + nearest_table(unknown[0], roots),
        )
    return sorted(_topmost(found, roots))


def unmatched(connection: Connection, patterns: Sequence[str]) -> Sequence[str]:
    """Return the patterns that mean no table now."""
    return _matching(list_tables(connection), patterns)[1]


def meant_tables(connection: Connection, patterns: Sequence[str]) -> set[TableName]:
    """Return the same tables, also where a pattern means none any more."""
    roots = list_tables(connection)
    found, _ = _matching(roots, patterns)
    return _topmost(found, roots)


def plan_source(
    connection: Connection,
    url: str,
    pipeline: str,
    tables: Sequence[TableName],
    row_triggers: Sequence[str],
    *,
    of_apply: bool,
    wanted: DocumentedConfig | None = None,
) -> DatabasePlan:
    """Plan the capture of `tables`; those that a pattern of `row_triggers` means by row triggers.

    Args:
        of_apply: Also of what apply processes write to them.
        wanted: The documented tables that there are to be beside the log; None: none.
    """
    name = capture.set_name(pipeline)
    plan = DatabasePlan(label(url), faults=faults_of(connection, url, name), preamble=ownership.preamble(name))
    newer = capture.newer_fault(connection, name)
    if newer is not None:
        plan.faults.append(newer)
    plan.faults += _publications(connection, url, name)
    if wanted is not None and not plan.faults:
        plan.faults += documented.faults_of(connection, url, name, wanted)
    if plan.faults:
        # The schema may be another role's, or of another version: read and run nothing in it.
        return plan
    subscriptions = _subscriptions(connection)
    # No statement trigger fires for what the worker of a subscription writes.
    by_row = set(tables) if of_apply and subscriptions else _by_row(plan, url, tables, row_triggers)
    superuser = is_superuser(connection)
    tables = _without_unlogged(connection, plan, tables)
    has_log = capture.has_current_log(connection, name)
    if not has_log:
        plan.steps += ownership.schema_steps(connection, name) + capture.log_steps(
            name, is_upgrade=capture.is_installed(connection, name)
        )
        plan.steps.append(ownership.seal_step(name))
    if superuser and not (has_log and capture.has_event_triggers(connection, name)):
        plan.steps.append(capture.event_trigger_step(name))
    to_capture = capture.tables_not_current(connection, name, tables, by_row, of_apply=of_apply) if has_log else tables
    is_new = documented.add_to(plan, connection, name, wanted) or not has_log
    plan.steps += capture.table_steps(name, to_capture, by_row, of_apply=of_apply)
    if wanted is not None:
        plan.steps += documented.list_steps(connection, name, tables)
    plan.steps += ownership.dump_steps(connection, name, tables, is_new=is_new)
    if ledger_version.exists(connection) and not of_apply:
        plan.notes.append(
            "changes that penstock applies to this database are not captured again; capture.changes_of says otherwise"
        )
    plan.notes += [
        f"what subscription {one!r} writes to this database is not captured; capture.changes_of says otherwise"
        for one in subscriptions
        if not of_apply
    ]
    if of_apply and has_log and to_capture and not capture.captured_of_apply(connection, name):
        plan.notes.append(
            "what apply processes have written to this database until now was not captured; where it is wanted,"
            " `penstock resync TABLE` copies it"
        )
    if not superuser:
        plan.role = current_user(connection)
        if len(transactions(plan.steps)) > 1:
            plan.preamble.append(ownership.refuse_superuser(plan.role))
        plan_grants(plan, missing_source_grants(connection, name, tables, of_apply=of_apply))
        plan.notes.append(
            "without a superuser's event trigger, new partitions are watched for TRUNCATE, and capture is quick again"
            " after an ALTER TABLE, only from when a run notices it, within half a minute"
        )
    plan.notes += _trigger_notes(connection, tables)
    plan.notes += ownership.hosted_code(connection, tables, ownership.Doing.COPYING)
    return plan


def _publications(connection: Connection, url: str, set_name: str) -> Iterator[OperatorError]:
    """Yield the publications that would publish the capture set's own tables.

    These have no replica identity, unless somebody gave the log one, so the server refuses to change or delete rows of
    them; and the subscription of another database would stop at the first row of a table that it does not have.
    """
    rows = connection.execute(
        "SELECT pubname FROM pg_publication WHERE puballtables AND (pubupdate OR pubdelete) AND NOT EXISTS ("
        "SELECT FROM pg_class WHERE oid = to_regclass(%s) AND relreplident = 'f') ORDER BY 1",
        [f"{quote(set_name)}.log"],
    )
    for (name,) in rows.fetchall():
        yield OperatorError(
            f"publication {name!r} is for all tables, and would publish those of the capture set",
            where=label(url),
            do="drop its subscriptions, and then it; one that is FOR TABLE or FOR TABLES IN SCHEMA may stay",
        )


def _subscriptions(connection: Connection) -> list[str]:
    rows = connection.execute(
        "SELECT subname FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid"
        " WHERE d.datname = current_database() ORDER BY 1"
    )
    return [name for (name,) in rows.fetchall()]


def _by_row(plan: DatabasePlan, url: str, tables: Sequence[TableName], row_triggers: Sequence[str]) -> set[TableName]:
    """The tables that patterns mean; a pattern that means none is a fault of the plan."""
    by_row, unknown = _matching(tables, row_triggers)
    if unknown:
        plan.faults.append(
            OperatorError(
                f"no captured table matches {', '.join(map(repr, unknown))}",
                where=f"capture.row_triggers, {label(url)}",
                do="name tables that capture.tables means, spelled as in the catalogue; partitions go with their root",
            )
        )
    return by_row


def _topmost(found: Collection[TableName], roots: Mapping[TableName, TableName]) -> set[TableName]:
    return {table for table in found if roots[table] == table or roots[table] not in found}


def _matching(tables: Iterable[TableName], patterns: Sequence[str]) -> tuple[set[TableName], list[str]]:
    """Return the tables that patterns mean, and the patterns that mean none of them."""
    found: set[TableName] = set()
    unknown = []
    for pattern in map(TablePattern.parse, patterns):
        matched = {table for table in tables if pattern.matches(table)}
        found |= matched
        if not matched:
            unknown.append(pattern.text)
    return found, unknown


def uncaptured_tables(
    connection: Connection, set_name: str, patterns: Sequence[str], *, of_apply: bool
) -> list[Uncaptured]:
    """Tables that patterns mean, and whose changes are not captured, with the reason.

    Args:
        of_apply: What apply processes write is wanted, too.
    """
    roots = list_tables(connection)
    matched, _ = _matching(roots, patterns)
    matched = _topmost(matched, roots)
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
    applied = capture.captured_of_apply(connection, set_name) if of_apply else set()
    found = []
    for table in sorted(matched):
        mode = modes.get(oids.get(table, 0))
        if table in unlogged:
            found.append(
                Uncaptured(
                    table,
                    "it is unlogged; a crash empties it without a change:"
                    " take it out (rules.exclude), or ALTER TABLE ... SET LOGGED, then `penstock setup`",
                )
            )
        elif mode is None and table in known:
            reason = "it was made anew, or renamed, after setup; run `penstock setup`"
            found.append(Uncaptured(table, reason, awaits_setup=True))
        elif mode is None:
            reason = "it was made after setup, or setup has left it out; run `penstock setup`"
            found.append(Uncaptured(table, reason, awaits_setup=True))
        elif mode == "detached" or (mode.startswith("partition") and roots[table] == table):
            reason = "it was a partition, and was detached; run `penstock setup`"
            found.append(Uncaptured(table, reason, awaits_setup=True))
        elif of_apply and oids.get(table) not in applied:
            found.append(Uncaptured(table, "as far as apply processes write to it; run `penstock setup`"))
    for table, now in sorted(before.items()):
        is_meant = any(TablePattern.parse(pattern).matches(table) for pattern in patterns)
        if is_meant and table not in roots and now not in matched:
            reason = f"it was renamed to {now}, which no pattern of capture.tables means"
            found.append(Uncaptured(table, reason, is_there=False))
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
