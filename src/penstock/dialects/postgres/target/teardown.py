"""What teardown does at the target, in the ledger: which steps remove a process from it, and when it refuses."""

from __future__ import annotations

from penstock.database import SetupStep
from penstock.dialects.postgres.connection import Connection, label, literal
from penstock.dialects.postgres.target import ledger_version, run_lock
from penstock.errors import OperatorError
from penstock.text import count


def teardown_steps(connection: Connection, url: str, process: str) -> list[SetupStep]:
    """The steps that remove a process from the ledger, and the ledger with the last one.

    Raises:
        OperatorError: The process is running, its error queue holds transactions, or a later version of Penstock
            made the ledger.
    """
    if not ledger_version.exists(connection):
        return []
    newer = ledger_version.newer_fault(connection)
    if newer is not None:
        raise newer
    if not run_lock.is_free(connection, process):
        raise OperatorError(
            f"process {process!r} is running{run_lock.holder(connection, process)}",
            where=label(url),
            do="stop `penstock run` first, or end that session if it is not Penstock's",
        )
    row = connection.execute(
        "SELECT (SELECT count(*) FROM penstock.error WHERE process = %(name)s),"
        " (SELECT count(*) FROM penstock.process WHERE name <> %(name)s),"
        " (SELECT count(*) FROM penstock.process WHERE name = %(name)s)",
        {"name": process},
    ).fetchone()
    assert row is not None
    errors, others, known = row
    if errors:
        raise OperatorError(
            f"the error queue of {process!r} holds {count(errors, 'transaction')}",
            where=label(url),
            do="`penstock errors retry --all` or `penstock errors delete --all` first",
        )
    if others:
        name = literal(process)
        # No foreign key has these go with the process. Ledgers of earlier versions lack some of them.
        loose = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'penstock'::regnamespace AND relkind = 'r'"
            " AND relname = ANY (%s) ORDER BY 1",
            [["adoption", "made", "parameter", "stop_request"]],
        ).fetchall()
        forgotten = "; ".join(
            f"DELETE FROM penstock.{table} WHERE {column} = {name}"
            for table, column in [*((table, "process") for (table,) in loose), ("process", "name")]
        )
        return [SetupStep(f"process {process}", forgotten)] if known else []
    tables = (
        *(
            "error_action",
            "error_change",
            "error_mark",
            "held",
            "error",
            "dictionary",
            "conflict",
            "ddl",
            "emptied",
            "adoption",
            "made",
            "parameter",
            "stop_request",
            "chunk",
            "instantiation",
            "applied",
            "table_count",
            "lane",
        ),
        "process",
    )
    # Ledgers of earlier versions have fewer tables.
    drops = [SetupStep(f"table penstock.{table}", f"DROP TABLE IF EXISTS penstock.{table}") for table in tables]
    views = SetupStep("views of the ledger", f"DROP VIEW IF EXISTS {ledger_version.named_views()}")
    return [views, *drops, SetupStep("schema penstock", "DROP SCHEMA penstock")]
