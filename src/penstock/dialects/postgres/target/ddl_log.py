"""The log of DDL in a PostgreSQL ledger: what was done to tables of the target, for people."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.apply.ddl_log import LoggedDdl
from penstock.change import TableName
from penstock.dialects.postgres.connection import Connection
from penstock.position import Scn


def write_ddl(connection: Connection, process: str, done: LoggedDdl) -> None:
    """Write down DDL, inside the transaction that carries it out."""
    connection.execute(
        "INSERT INTO penstock.ddl (process, txn_id, commit_scn, schema_name, table_name, outcome, done, is_loss)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
        [
            process,
            done.txn_id,
            done.commit_scn,
            done.table.schema,
            done.table.name,
            done.outcome,
            list(done.done),
            done.is_loss,
        ],
    )


def last_completed(connection: Connection, process: str) -> int:
    """Return the number of the last entry that a run has completed."""
    row = connection.execute(
        "SELECT coalesce(max(d.id), 0) FROM penstock.ddl d JOIN penstock.process p ON p.name = d.process"
        " WHERE p.name = %s AND d.commit_scn <= p.low_watermark",
        [process],
    ).fetchone()
    assert row is not None
    return int(row[0])


def read_ddl(connection: Connection, process: str, after: int, most: int) -> Sequence[tuple[int, LoggedDdl]]:
    """Return the entries behind one, with their numbers."""
    rows = connection.execute(
        "SELECT id, txn_id, commit_scn, schema_name, table_name, outcome, done, is_loss FROM penstock.ddl"
        " WHERE process = %s AND id > %s ORDER BY id LIMIT %s",
        [process, after, most],
    )
    return [
        (number, LoggedDdl(txn_id, Scn(scn), TableName(schema, name), outcome, tuple(done), is_loss))
        for number, txn_id, scn, schema, name, outcome, done, is_loss in rows
    ]
