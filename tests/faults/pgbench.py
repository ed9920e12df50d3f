"""pgbench as a load whose end can be checked exactly: every transaction adds one row to pgbench_history."""

from __future__ import annotations

import subprocess
from types import TracebackType

import psycopg

from penstock.demo.servers import EmbeddedPostgres

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")


def load_tables(server: EmbeddedPostgres, database: str, *, scale: int = 1) -> None:
    subprocess.run(
        [server.programs / "pgbench", "-i", "-q", "-s", str(scale), server.url(database)],
        check=True,
        capture_output=True,
    )


class Load:
    """pgbench at work until told to stop, at a rate that leaves the machine room for the rest."""

    def __init__(self, server: EmbeddedPostgres, database: str, *, rate: int = 300) -> None:
        options = ["-n", "-c", "4", "-T", "3600", "-R", str(rate)]
        self._process = subprocess.Popen(
            [server.programs / "pgbench", *options, server.url(database)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()


def assert_exact(source: psycopg.Connection, target: psycopg.Connection) -> None:
    """Nothing lost, nothing doubled: balances equal the history's sums on both sides, row for row the same."""
    for table in TABLES:
        query = f"SELECT r::text FROM {table} AS r ORDER BY 1"
        assert target.execute(query).fetchall() == source.execute(query).fetchall(), table
    history = "SELECT count(*), sum(delta) FROM pgbench_history"
    assert target.execute(history).fetchone() == source.execute(history).fetchone()
    delta = target.execute("SELECT coalesce(sum(delta), 0) FROM pgbench_history").fetchone()
    for table, column in (("accounts", "abalance"), ("branches", "bbalance"), ("tellers", "tbalance")):
        assert target.execute(f"SELECT sum({column}) FROM pgbench_{table}").fetchone() == delta, table
