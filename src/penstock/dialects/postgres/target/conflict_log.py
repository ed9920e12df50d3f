"""The conflict log in a PostgreSQL target: how conflicts were resolved, without any value of a row."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.apply.resolve import Resolution
from penstock.change import Transaction
from penstock.dialects.postgres.connection import Connection


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
