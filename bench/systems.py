"""The systems that are compared: PostgreSQL's own logical replication, and Penstock."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil
import psycopg

from bench.workloads import Workload
from penstock.apply.progress import Progress
from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import PenstockError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline_file import load
from penstock.wiring import open_pipeline

FILE = """\
version: 1
name: bench
connections:
  source: {{type: postgres, url: "${{env:BENCH_SOURCE_URL}}"}}
  copy: {{type: postgres, url: "${{env:BENCH_COPY_URL}}"}}
capture: {{source: trigger_queue, connection: source, tables: ["public.*"], row_triggers: {row_triggers}}}
apply: {{connection: copy, parallelism: 2{apply}}}
"""


class System(Protocol):
    """Something that keeps a copy of a database."""

    name: str
    source: EmbeddedPostgres
    source_db: str
    target_db: str

    def prepare(self, workload: Workload) -> float:
        """Make the copy; returns the seconds that the first copy of all rows took."""

    def catch_up(self) -> float:
        """Apply what has been written since; returns seconds."""

    def follow(self) -> Callable[[], None]:
        """Go on applying until the returned function is called."""


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def copy_schema(workload: Workload, server: EmbeddedPostgres, database: str) -> None:
    execute(server.url(), f"DROP DATABASE IF EXISTS {database} WITH (FORCE)", f"CREATE DATABASE {database}")
    execute(server.url(database), "CREATE TABLE marker (id int PRIMARY KEY, at timestamptz NOT NULL);", workload.ddl)


class Native:
    """One subscription, as `CREATE SUBSCRIPTION` makes it, or with another streaming mode."""

    def __init__(self, source: EmbeddedPostgres, target: EmbeddedPostgres, *, streaming: str | None = None) -> None:
        self.name = "postgresql" if streaming is None else f"postgresql, streaming = {streaming}"
        self.source, self._target = source, target
        self._streaming = streaming
        self._key = f"native_{streaming or 'default'}"
        self.source_db = self.target_db = ""

    def prepare(self, workload: Workload) -> float:
        self.source_db, self.target_db = workload.name, f"{workload.name}_{self._key}"
        self.drop()
        copy_schema(workload, self._target, self.target_db)
        with suppress(psycopg.errors.DuplicateObject):
            execute(self.source.url(self.source_db), "CREATE PUBLICATION bench FOR ALL TABLES")
        options = f"slot_name = '{self.target_db}'" + (f", streaming = {self._streaming}" if self._streaming else "")
        began = time.monotonic()
        execute(
            self._target.url(self.target_db),
            f"CREATE SUBSCRIPTION {self.target_db} CONNECTION '{self.source.url(self.source_db)}'"
            f" PUBLICATION bench WITH ({options})",
        )
        with psycopg.connect(self._target.url(self.target_db), autocommit=True) as connection:
            while connection.execute("SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'").rowcount:
                time.sleep(0.02)
        seconds = time.monotonic() - began
        self._disable()
        execute(self._target.url(self.target_db), "VACUUM ANALYZE")
        return seconds

    def catch_up(self) -> float:
        with psycopg.connect(self.source.url(self.source_db)) as connection:
            row = connection.execute("INSERT INTO marker SELECT coalesce(max(id), 0) + 1 FROM marker RETURNING id")
            (marker,) = row.fetchone() or (0,)
        began = time.monotonic()
        execute(self._target.url(self.target_db), f"ALTER SUBSCRIPTION {self.target_db} ENABLE")
        with psycopg.connect(self._target.url(self.target_db), autocommit=True) as connection:
            while not connection.execute("SELECT FROM marker WHERE id = %s", [marker]).rowcount:
                time.sleep(0.02)
        seconds = time.monotonic() - began
        self._disable()
        return seconds

    def follow(self) -> Callable[[], None]:
        execute(self._target.url(self.target_db), f"ALTER SUBSCRIPTION {self.target_db} ENABLE")
        return self._disable

    def drop(self) -> None:
        with suppress(psycopg.Error):
            execute(self._target.url(self.target_db), f"DROP SUBSCRIPTION IF EXISTS {self.target_db}")

    def _disable(self) -> None:
        execute(self._target.url(self.target_db), f"ALTER SUBSCRIPTION {self.target_db} DISABLE")
        with psycopg.connect(self.source.url(), autocommit=True) as connection:
            while connection.execute(
                "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active", [self.target_db]
            ).rowcount:
                time.sleep(0.02)


class Ours:
    """A pipeline in this process, on a Spark session that all workloads share, as one that runs for days would."""

    name = "penstock"

    def __init__(
        self, source: EmbeddedPostgres, target: EmbeddedPostgres, *, rules: str = "", apply: str = "", label: str = ""
    ) -> None:
        """Apply from one server to another.

        Args:
            rules: What the pipeline file says of rules.
            apply: What it says more in the section `apply`, as a flow mapping goes on.
            label: A part of the names of its targets, where there are several of these.
        """
        self._label = label or ("ruled_" if rules else "")
        self._apply = apply
        self.source, self._target = source, target
        self._rules = rules
        if rules:
            self.name = "penstock, with rules"
        self._folder = tempfile.TemporaryDirectory()
        self.source_db = self.target_db = ""
        self._copies = 0

    @property
    def file(self) -> Path:
        """The pipeline file, for a run in a process of its own."""
        return Path(self._folder.name, "pipeline.yaml")

    def prepare(self, workload: Workload) -> float:
        if self.source_db == workload.name and self.file.exists():
            with suppress(PenstockError):
                self._pipeline().teardown()
            execute(self._target.url(), f"DROP DATABASE IF EXISTS {self.target_db} WITH (FORCE)")
        # A name of its own: workers keep sessions with databases they know.
        self._copies += 1
        self.source_db = workload.name
        self.target_db = f"{workload.name}_penstock_{self._label}{self._copies}"
        if self._rules:
            execute(self._target.url(), f"CREATE DATABASE {self.target_db}")
        else:
            copy_schema(workload, self._target, self.target_db)
        self.file.write_text(
            FILE.format(row_triggers=json.dumps(workload.row_triggers), apply=self._apply) + self._rules
        )
        self._pipeline().setup()
        clock = Clock()
        self._pipeline().run(threading.Event(), clock, until_caught_up=True)
        execute(self._target.url(self.target_db), "VACUUM ANALYZE")
        return clock.copied_s

    def catch_up(self) -> float:
        clock = Clock()
        self._pipeline().run(threading.Event(), clock, until_caught_up=True)
        return clock.progressed_at - clock.following_at

    def follow(self) -> Callable[[], None]:
        stop, clock = threading.Event(), Clock()
        thread = threading.Thread(target=lambda: self._pipeline().run(stop, clock))
        thread.start()
        while not clock.following_at:
            time.sleep(0.05)

        def end() -> None:
            stop.set()
            thread.join()

        return end

    def is_identical(self) -> bool:
        """Whether `verify` finds nothing that differs."""
        return self._pipeline().verify().is_identical

    def steps(self, workload: Workload) -> Iterator[tuple[str, float]]:
        """Set a pipeline up from nothing, catch up, verify and add a table; yields what each took, in seconds."""
        self._copies += 1
        self.source_db, self.target_db = workload.name, f"{workload.name}_penstock_{self._copies}"
        execute(self._target.url(), f"CREATE DATABASE {self.target_db}")
        self.file.write_text(FILE.format(row_triggers=json.dumps(workload.row_triggers), apply=self._apply))

        def run() -> None:
            self._pipeline().run(threading.Event(), until_caught_up=True)

        yield "setup", _timed(lambda: self._pipeline().setup())
        yield "first copy", _timed(run)
        workload.write(self.source, workload.name, seed=1)
        yield f"{len(workload.statements):,} changes", _timed(run)
        yield "verify", _timed(lambda: self._pipeline().verify())
        execute(self.source.url(self.source_db), "CREATE TABLE one_more (id int PRIMARY KEY)")
        yield "one more table", _timed(lambda: self._pipeline().setup())

    def _pipeline(self) -> Pipeline:
        # Set anew each time, for there may be several pipelines.
        os.environ["BENCH_SOURCE_URL"] = self.source.url(self.source_db)
        os.environ["BENCH_COPY_URL"] = self._target.url(self.target_db)
        return open_pipeline(load(self.file))


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


class Clock:
    """A listener that notes when what happened."""

    def __init__(self) -> None:
        self._copying_at = 0.0
        self.copied_s = 0.0
        self.following_at = 0.0
        self.progressed_at = 0.0

    def copying(self, chunks: int, tables: int) -> None:
        self._copying_at = time.monotonic()

    def copied(self, chunks: int, rows: int) -> None:
        self.copied_s = time.monotonic() - self._copying_at

    def following(self) -> None:
        self.following_at = time.monotonic()

    def queued(self, entry: object) -> None: ...

    def progressed(self, progress: Progress) -> None:
        self.progressed_at = time.monotonic()

    def waiting(self, progress: Progress) -> None: ...

    def retrying(self, error: Exception, left_s: float) -> None:
        print(f"trying again: {error}")

    def warned(self, text: str, event: str = "note", facts: object = None) -> None:
        print(text)

    def ended(self) -> None: ...

    def close(self) -> None: ...


class Meter:
    """CPU seconds of servers and of this program with all it started, and the highest memory of the latter."""

    def __init__(self, *servers: EmbeddedPostgres) -> None:
        self._servers = [psutil.Process(server.pid) for server in servers]
        self._us = psutil.Process()
        self._stop = threading.Event()
        self.peak_rss = 0
        self._began = self._cpu()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> tuple[float, float]:
        """Return CPU seconds and the highest memory in MB."""
        self._stop.set()
        self._thread.join()
        return self._cpu() - self._began, self.peak_rss / 1e6

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            rss = 0
            for process in self._ours():
                with suppress(psutil.Error):
                    rss += process.memory_info().rss
            self.peak_rss = max(self.peak_rss, rss)

    def _ours(self) -> list[psutil.Process]:
        found = [self._us]
        for process in self._us.children(recursive=True):
            with suppress(psutil.Error):
                if not process.name().startswith(("postgres", "pgbench")):
                    found.append(process)
        return found

    def _cpu(self) -> float:
        total = 0.0
        for process in self._ours():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        for postmaster in self._servers:
            times = postmaster.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
            for child in postmaster.children(recursive=True):
                with suppress(psutil.Error):
                    times = child.cpu_times()
                    total += times.user + times.system
        return total
