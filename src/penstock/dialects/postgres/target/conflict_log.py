"""The conflict log in a PostgreSQL target: how conflicts were resolved, without any value of a row.

An entry names the transaction and which of its changes it was; the row is in the source's log, while that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from psycopg.rows import dict_row

from penstock.apply.conflict_log import ConflictFilter, LoggedConflict
from penstock.apply.conflict_methods import Resolution
from penstock.change import TableName, Transaction
from penstock.dialects.postgres.connection import Connection

_TRIMMED = 10_000
"""So many entries are deleted in one transaction."""


def log_resolutions(
    connection: Connection, process: str, resolved: Sequence[tuple[Transaction, Sequence[Resolution]]]
) -> None:
    """Insert what was resolved in transactions, inside the open transaction that applies them."""
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO penstock.conflict (process, txn_id, commit_scn, message_number, op, schema_name, table_name,"
            " error_number, row_is, method, outcome, columns) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [
                [
                    process,
                    transaction.txn_id,
                    transaction.commit_scn,
                    one.message_number,
                    one.change.op.value,
                    one.change.table.schema,
                    one.change.table.name,
                    one.error_number,
                    one.row,
                    one.method,
                    one.outcome.value,
                    list(one.columns),
                ]
                for transaction, resolutions in resolved
                for one in resolutions
            ],
        )


def read_conflicts(connection: Connection, process: str, wanted: ConflictFilter) -> list[LoggedConflict]:
    """Return entries of the log, the newest first."""
    tables = connection.execute(
        "SELECT DISTINCT schema_name, table_name FROM penstock.conflict WHERE process = %s", [process]
    )
    meant = [name for name in (TableName(*row) for row in tables) if wanted.is_meant(name)]
    rows = connection.cursor(row_factory=dict_row).execute(
        "SELECT id, resolved_at, schema_name, table_name, op, error_number, row_is, method, outcome, columns, txn_id,"
        " commit_scn, message_number FROM penstock.conflict WHERE process = %(process)s"
        " AND (schema_name, table_name) IN (SELECT * FROM unnest(%(schemas)s::text[], %(names)s::text[]))"
        " AND resolved_at >= coalesce(%(since)s::timestamptz, '-infinity')"
        " AND resolved_at <= coalesce(%(until)s::timestamptz, 'infinity')"
        " AND (%(methods)s::text[] = '{}' OR method = ANY (%(methods)s))"
        " AND (%(outcomes)s::text[] = '{}' OR outcome = ANY (%(outcomes)s)) ORDER BY id DESC LIMIT %(most)s",
        {
            "process": process,
            "schemas": [name.schema for name in meant],
            "names": [name.name for name in meant],
            "since": wanted.since,
            "until": wanted.until,
            "methods": list(wanted.methods),
            "outcomes": list(wanted.outcomes),
            "most": wanted.most,
        },
    )
    return [LoggedConflict(table=TableName(row.pop("schema_name"), row.pop("table_name")), **row) for row in rows]


def trim_conflicts(connection: Connection, process: str, keep: timedelta) -> None:
    """Delete what was resolved longer ago, some at a time."""
    deleted = None
    while deleted != 0:
        # Ids grow with time, near enough: where none of the first ones is too old, no later one is.
        deleted = connection.execute(
            "DELETE FROM penstock.conflict WHERE process = %(process)s AND resolved_at < now() - %(keep)s"
            " AND id IN (SELECT id FROM penstock.conflict WHERE process = %(process)s ORDER BY id LIMIT %(most)s)",
            {"process": process, "keep": keep, "most": _TRIMMED},
        ).rowcount
