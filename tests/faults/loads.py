"""TPC-B and orders with items, as loads of which every single transaction can be found again.

Each transaction of either load also adds its writer and its number to a table without a key, `journal`: what is lost
is missing there, what is doubled is there twice, and a writer's numbers say in which order its transactions committed.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from bench.workloads import HOT, MIXED

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.watching import Watcher
from tests.program import await_true

CUSTOMERS = 2_000
SEEDED = 5 * CUSTOMERS
"""Orders and items that were there before the load; the load deletes some of these items, and none of its own."""

TABLES = (*HOT.tables, *MIXED.tables, "journal")

_JOURNAL = "INSERT INTO journal VALUES (:w, :number);\n"
_WRITER = "\\set w :writer + :client_id\n"
_COUNTED = "\\set number :number + 1\n"
"""Comes last: after a deadlock pgbench begins a script anew, with the variables as they are."""

_ROWS = """
INSERT INTO pgbench_branches SELECT n, 0 FROM generate_series(1, 4) n;
INSERT INTO pgbench_tellers SELECT n, 1 + (n - 1) / 10, 0 FROM generate_series(1, 40) n;
INSERT INTO pgbench_accounts SELECT n, 1 + (n - 1) / 5000, 0, '' FROM generate_series(1, 20000) n;
"""

_TPC_B = """
\\set aid random(1, 20000)
\\set bid random(1, 4)
\\set tid random(1, 40)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, now());
COMMIT;
"""

assert MIXED.script is not None
SCRIPTS = {
    name: _WRITER + script.replace("COMMIT;", _JOURNAL + "COMMIT;") + _COUNTED
    for name, script in (("tpc-b", _TPC_B), ("mixed", MIXED.script))
}

_writers = count(1000, 1000)


def make_tables(url: str) -> None:
    """Make and fill the tables of both loads."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(HOT.ddl + MIXED.ddl + "CREATE TABLE journal (writer int NOT NULL, number int NOT NULL);")
        connection.execute(_ROWS + MIXED.rows.replace("{n}", str(CUSTOMERS)))


class Load:
    """pgbench at work while the block runs; started again where the server it works on went away."""

    def __init__(
        self,
        server: EmbeddedPostgres,
        database: str,
        *scripts: str,
        rate: int = 300,
        clients: int = 4,
    ) -> None:
        """Run `scripts` of `SCRIPTS`, all if none is named; `rate` transactions per second."""
        self._server, self._database = server, database
        self._scripts = scripts or tuple(SCRIPTS)
        # Without a limit of tries: what a deadlock undoes is written all the same.
        self._options = ["-n", "-M", "prepared", "-c", str(clients), "-T", "86400", "--max-tries=0", "-R", str(rate)]
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="load", daemon=True)

    def __enter__(self) -> Load:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end() if kind is None else self.terminate()

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def end(self) -> None:
        """Stop writing; all that was committed is committed when this returns."""
        self.terminate()
        await_true(lambda: not sessions(self._server.url(self._database), "pgbench"))

    def terminate(self) -> None:
        """Stop writing; a commit that pgbench has sent already may still succeed afterwards."""
        self._ended.set()
        with self._changing:
            if self._process is not None:
                self._process.terminate()
        self._thread.join()

    def _work(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for name in self._scripts:
                Path(folder, name).write_text(SCRIPTS[name])
                files += ["-f", str(Path(folder, name))]
            while not self._ended.is_set():
                given = ["-D", f"writer={next(_writers)}", "-D", "number=1", "-D", f"n={CUSTOMERS}"]
                url = self._server.url(self._database)
                with self._changing:
                    if self._ended.is_set():
                        return
                    self._process = subprocess.Popen(
                        [self._server.programs / "pgbench", *self._options, *given, *files, url],
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                    )
                self._process.wait()
                self._ended.wait(0.3)


class Sweeps(Watcher):
    """Marks all accounts in one transaction, now and then, while the block runs: more than is done in a moment."""

    def __init__(self, url: str, *, every_s: float) -> None:
        super().__init__("sweeps")
        self._url = url
        self._every_s = every_s
        self.done = 0

    def watch(self, ended: threading.Event) -> None:
        """Sweep on until told to end."""
        with psycopg.connect(self._url, autocommit=True, application_name="sweeps") as connection:
            while not ended.wait(self._every_s):
                connection.execute("UPDATE pgbench_accounts SET filler = %s", [str(self.done)])
                self.done += 1


def sessions(url: str, application_name: str) -> list[int]:
    """The backends whose application name begins like this."""
    with psycopg.connect(url, autocommit=True) as connection:
        return [
            row[0]
            for row in connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, %s)"
                " AND datname = current_database() AND pid <> pg_backend_pid()",
                [application_name],
            )
        ]


def journal_size(url: str) -> int:
    """How many transactions of the loads a database holds."""
    with psycopg.connect(url, autocommit=True) as connection:
        return int(_one(connection, "SELECT count(*) FROM journal"))


def differences(source_url: str, target_url: str) -> list[str]:
    """Compare source and target, row for row, by nothing but SQL; says what differs."""
    found = []
    with psycopg.connect(source_url) as source, psycopg.connect(target_url) as target:
        for table in TABLES:
            query = f"SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM {table} t"
            here, there = source.execute(query).fetchone(), target.execute(query).fetchone()
            if here != there:
                found.append(f"{table}: {here} at the source, {there} at the target")
    return found


def lost_and_doubled(source_url: str, target_url: str) -> tuple[int, int]:
    """How many transactions the target lacks, and how many it has too often."""
    written, applied = (_journal(url) for url in (source_url, target_url))
    return (written - applied).total(), (applied - written).total()


def _journal(url: str) -> Counter[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return Counter(connection.execute("SELECT writer, number FROM journal"))


def _one(connection: psycopg.Connection, query: str) -> Any:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]
