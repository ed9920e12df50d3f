"""The stage on which faults are injected: two servers, proxies in front of them, a load, a run, and a witness."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import psutil
import psycopg

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.cluster import Cluster
from tests.faults.loads import Load, differences, journal_size, lost_and_doubled, make_tables, sessions
from tests.faults.proxy import Proxy
from tests.faults.witness import Witness, look
from tests.program import Program, Running, await_true

SETTINGS = {
    # Processes are killed here, not machines: what a server has written it finds again without fsync, but what it has
    # only told a client it must have written.
    "fsync": "off",
    "synchronous_commit": "on",
    # Crash recovery in no time.
    "checkpoint_timeout": "30s",
}

_PATIENCE_S = 150
"""The most that anything may take on a slow machine; a run that has not recovered by then never will."""


class Scene:
    """A pipeline at work under load, with a witness at the target, while the block runs."""

    def __init__(
        self,
        folder: Path,
        source: EmbeddedPostgres,
        target: EmbeddedPostgres,
        *,
        name: str,
        chance: random.Random,
        in_order: bool = False,
        cluster: Cluster | None = None,
        spark: Mapping[str, str] = {},
        target_tablespace: str | None = None,
    ) -> None:
        """Prepare; databases called `name` are made on both servers.

        Args:
            in_order: Apply with `commit_serialization: FULL`.
            cluster: Run Spark there instead of inside the driver.
            spark: Spark's own settings.
        """
        self.folder, self.chance, self.cluster = folder, chance, cluster
        self.source, self.target = source, target
        self.name = name
        self._in_order = in_order
        # What a killed run leaves behind goes with the folder.
        self._spark = {"spark.local.dir": str(folder), **spark}
        self._tablespace = target_tablespace
        self._stack = ExitStack()
        self._load: Load | None = None
        self.runs: list[Running] = []

    def __enter__(self) -> Scene:
        with ExitStack() as stack:
            self._make_databases()
            make_tables(self.source_url)
            self.source_proxy = stack.enter_context(Proxy(self.source.port))
            self.target_proxy = stack.enter_context(Proxy(self.target.port))
            self.program = self._write_program()
            done = self.program("setup")
            assert done.code == 0, done.err
            self.witness = Witness(self.target_url, in_order=self._in_order)
            stack.callback(self._end_runs)
            stack.callback(self._abandon_load)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, exc, trace)

    @property
    def source_url(self) -> str:
        return self.source.url(self.name)

    @property
    def target_url(self) -> str:
        return self.target.url(self.name)

    @property
    def in_order(self) -> bool:
        return self._in_order

    @in_order.setter
    def in_order(self, value: bool) -> None:
        """Takes effect with the next start of the run."""
        self._in_order = self.witness.in_order = value
        self.program = self._write_program()

    @property
    def run(self) -> Running:
        return self.runs[-1]

    def start(self) -> None:
        """Start `penstock run`; the first time the tables are copied, and the witness begins to look after that."""
        self.runs.append(self.program.start("run"))
        self.run.await_line("following", _PATIENCE_S)
        if len(self.runs) == 1:
            self._stack.enter_context(self.witness)

    def stop(self) -> None:
        """Tell the run to stop, and see that it does so in good order."""
        assert self.run.end() == 0, self.run.said

    def load(self, *scripts: str, rate: int = 300) -> None:
        """Write from now on, with these scripts instead of what wrote before."""
        self.end_load()
        self._load = Load(self.source, self.name, *scripts, rate=rate)
        self._load.start()

    def settle(self) -> None:
        """Stop writing, wait until all is applied, and compare."""
        self.end_load()
        written = journal_size(self.source_url)
        await_true(lambda: self.applied() >= written or not self.run.is_alive, _PATIENCE_S, lambda: self.run.said)
        # What the journal does not count may be on its way still, if a transaction was torn.
        await_true(lambda: not self._differences() or not self.run.is_alive, 10, self._tell)
        assert self._differences() == [], self._tell()
        assert self.error_entries() == 0, self._tell()
        assert "Traceback" not in self.run.said, self.run.said
        with psycopg.connect(self.source_url, autocommit=True) as source:
            # What the load itself breaks, the target is not to blame for.
            broken = look(source, in_order=True)
        assert not broken, f"at the source: {broken}"
        self.witness.assert_whole()

    def await_recovery(self) -> None:
        """Wait until as much is applied as has been written by now, whatever goes on being written."""
        await_true(lambda: _size(self.source_url) >= 0, _PATIENCE_S)
        written = _size(self.source_url)
        await_true(lambda: self.applied() >= written or not self.run.is_alive, _PATIENCE_S, lambda: self.run.said)
        assert self.run.is_alive, self.run.said

    def await_work(self, transactions: int = 20) -> None:
        """Wait until so many more transactions are at the target: the run is busy."""
        before = self.applied()
        await_true(lambda: self.applied() >= before + transactions, _PATIENCE_S, lambda: self.run.said)

    def pause(self, least: float, most: float) -> None:
        """Let a random time pass."""
        time.sleep(self.chance.uniform(least, most))

    def applied(self) -> int:
        """How many transactions of the load are at the target; -1 while it is away."""
        return _size(self.target_url)

    def error_entries(self) -> int:
        with psycopg.connect(self.target_url) as connection:
            row = connection.execute(
                "SELECT (SELECT count(*) FROM penstock.error) + (SELECT sum(errors + conflicts) FROM penstock.lane)"
            ).fetchone()
            assert row is not None
            return int(row[0])

    def sessions(self, server: EmbeddedPostgres, kind: str = "") -> list[int]:
        """The product's backends in one of the servers; `kind` is how the rest of their name begins."""
        return sessions(server.url(self.name), f"penstock {kind}")

    def driver(self) -> list[psutil.Process]:
        """The driver's own two processes: Python's and Java's."""
        python = psutil.Process(self.run.pid)
        return [python, *(child for child in python.children() if "java" in child.name())]

    def workers(self) -> list[psutil.Process]:
        """Python workers, without the daemons that start them."""
        daemons = [process for parent in self._parents() for process in _children(parent) if _is_daemon(process)]
        return [worker for daemon in daemons for worker in _children(daemon)]

    def waiting_worker(self) -> psutil.Process:
        """Wait for a worker whose target transaction waits for a lock."""
        found: list[psutil.Process] = []

        def find() -> bool:
            with psycopg.connect(self.target_url) as connection:
                waiting = connection.execute(
                    "SELECT client_port FROM pg_stat_activity"
                    " WHERE wait_event_type = 'Lock' AND application_name = 'penstock faults apply'"
                )
                ports = {self.target_proxy.client_port(port) for (port,) in waiting}
            for worker in self.workers():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any(end.laddr.port in ports for end in worker.net_connections("tcp")):
                        found.append(worker)
            return bool(found)

        await_true(find, _PATIENCE_S)
        return found[0]

    def processes(self) -> list[psutil.Process]:
        """Everything that belongs to the run."""
        root = psutil.Process(self.run.pid)
        found = [root, *root.children(recursive=True)]
        for executor in self.cluster.executors() if self.cluster else []:
            found += [executor, *executor.children(recursive=True)]
        return found

    def tally(self) -> tuple[int, int, int, int]:
        """Transactions written, applied, lost and doubled."""
        lost, doubled = lost_and_doubled(self.source_url, self.target_url)
        return journal_size(self.source_url), journal_size(self.target_url), lost, doubled

    def _parents(self) -> Sequence[psutil.Process]:
        return self.cluster.executors() if self.cluster else self.driver()[1:]

    def _differences(self) -> list[str]:
        return differences(self.source_url, self.target_url)

    def _tell(self) -> str:
        lost, doubled = lost_and_doubled(self.source_url, self.target_url)
        return f"{lost} lost, {doubled} doubled; {self._differences()}\n{self.run.said}"

    def _write_program(self) -> Program:
        source = f"postgresql://postgres@127.0.0.1:{self.source_proxy.port}/{self.name}"
        target = f"postgresql://postgres@127.0.0.1:{self.target_proxy.port}/{self.name}"
        serialization = "FULL" if self._in_order else "DEPENDENT_TRANSACTIONS"
        program = Program(self.folder, source, target, name="faults", commit_serialization=serialization)
        # Workers are found below the daemon that Spark starts: a prepared run forks its own, which have none.
        program.environment["PENSTOCK_CACHE"] = ""
        settings = {**self._spark, **({"master": self.cluster.url} if self.cluster else {})}
        with (self.folder / "pipeline.yaml").open("a") as file:
            if settings:
                file.write("spark:\n" + "".join(f'  {name}: "{value}"\n' for name, value in settings.items()))
        return program

    def _make_databases(self) -> None:
        for server, tablespace in ((self.source, None), (self.target, self._tablespace)):
            with psycopg.connect(server.url(), autocommit=True) as connection:
                connection.execute(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")
                where = f" TABLESPACE {tablespace}" if tablespace else ""
                connection.execute(f"CREATE DATABASE {self.name}{where}")

    def end_load(self) -> None:
        """Stop writing."""
        if self._load is not None:
            self._load.end()
            self._load = None

    def _abandon_load(self) -> None:
        if self._load is not None:
            self._load.terminate()

    def _end_runs(self) -> None:
        for run in self.runs:
            run.__exit__()


def _size(url: str) -> int:
    try:
        return journal_size(url)
    except psycopg.OperationalError:
        return -1


def _is_daemon(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "worker_daemon" in " ".join(process.cmdline())
    return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []
