"""Rows that are in the way of a first copy: Penstock did not copy them, or another process did."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from penstock.change import TableName
from penstock.database import DatabasePlan
from penstock.dialects.postgres.connection import WITHOUT_VIEWS, Connection, label, quote, speaking
from penstock.dialects.postgres.privileges import may
from penstock.dialects.postgres.target import ledger_entries
from penstock.dialects.postgres.target.resync import copied_by_others, only, tables_with_rows
from penstock.errors import OperatorError, PenstockError


def plan_rows(
    connection: Connection, url: str, plan: DatabasePlan, to_copy: Sequence[TableName], *, process: str, adopt: bool
) -> None:
    """Say which tables that are to be copied hold rows, or have these compared and kept where `adopt`."""
    suspects = _suspects(connection, to_copy)
    is_known = ledger_entries.may_read_copies(connection)
    others = copied_by_others(connection, process, suspects) if is_known else {}
    strange: list[TableName] = []
    for name in suspects:
        fault = _unreadable(connection, url, name)
        if name in others:
            what = f"table {name} holds rows that process {others[name]!r} copied"
            do = (
                "leave it out of capture.tables in one of the two pipeline files; or, if it is this pipeline that was"
                " renamed, give it the former name"
            )
            plan.refuse(name, OperatorError(what, where=label(url), do=do))
        elif fault is not None:
            plan.refuse(name, fault)
        elif _has_rows(connection, name) and adopt:
            plan.steps.append(ledger_entries.adoption(process, name))
        elif _has_rows(connection, name):
            strange.append(name)
    if strange:
        # Of four hundred tables with rows, one line is read.
        them = "it" if len(strange) == 1 else "them"
        hold = f"table {strange[0]} holds" if len(strange) == 1 else f"tables {', '.join(map(str, strange))} hold"
        do = f"have them compared and kept, by `penstock setup --adopt`; or empty {them}, or take {them} out of"
        fault = OperatorError(f"{hold} rows that penstock did not copy", where=label(url), do=f"{do} capture.tables")
        for name in strange:
            plan.refuse(name, fault)


def _suspects(connection: Connection, names: Sequence[TableName]) -> list[TableName]:
    """The tables that hold rows, as far as the user may read them; all of them where one cannot be read."""
    rows = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
        " AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')"
        " AND NOT row_security_active(c.oid) ORDER BY 1, 2",
        [[name.schema for name in names], [name.name for name in names]],
    )
    readable = [TableName(schema, name) for schema, name in rows]
    try:
        with connection.transaction():
            connection.execute(WITHOUT_VIEWS.replace("false", "true"))
            return tables_with_rows(connection, readable)
    except psycopg.Error:
        # Each is looked into by itself then, and says why.
        return readable


def _unreadable(connection: Connection, url: str, name: TableName) -> PenstockError | None:
    try:
        with speaking(f"read table {name}", url):
            _has_rows(connection, name)
    except OperatorError as exc:
        # One of its partitions may be a foreign table that leads nowhere.
        return OperatorError(exc.what, where=exc.where, do="fix that, or take it out of capture.tables")
    return None


def _has_rows(connection: Connection, name: TableName) -> bool:
    quoted = quote(name.schema, name.name)
    if not may(connection, "SELECT has_schema_privilege(%s, 'USAGE')", name.schema):
        return False
    if not may(connection, "SELECT has_table_privilege(%s, 'SELECT') AND NOT row_security_active(%s)", quoted, quoted):
        return False
    with connection.transaction():
        connection.execute(WITHOUT_VIEWS.replace("false", "true"))
        return connection.execute(f"SELECT FROM {only(connection, quoted)} LIMIT 1").fetchone() is not None
