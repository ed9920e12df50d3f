"""The demo: pgbench works on one server while Penstock copies it to another and follows.

One transaction is made to fail on purpose: it goes to the error queue while the rest flows, its cause is removed,
it is retried, and in the end both sides are compared row by row.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import psycopg

from penstock.apply.error_queue import ErrorEntry
from penstock.apply.progress import Progress
from penstock.config.pipeline import PipelineConfig
from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import PenstockError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.report import Report
from penstock.pipeline_file import load
from penstock.text import count
from penstock.verify.driver import VerifyResult
from penstock.wiring import open_pipeline

_FILE = """\
version: 1
name: demo
connections:
  bank: {type: postgres, url: "${env:PENSTOCK_DEMO_BANK_URL}"}
  copy: {type: postgres, url: "${env:PENSTOCK_DEMO_COPY_URL}"}
capture:
  source: trigger_queue
  connection: bank
  tables: ["public.*"]
apply:
  connection: copy
  parallelism: 2
"""

_ROLE = "penstock"
_SCALE = 5
_CLIENTS = 4


class Teller:
    """Tells the story line by line; the log says how the run is doing."""

    def __init__(self, say: Callable[[str], object]) -> None:
        """Give `say` each line."""
        self._say = say
        self.listener = Report()

    def tell(self, text: str) -> None:
        """Say what happens next."""
        self._say(f"- {text}")

    def show_error(self, entry: ErrorEntry) -> None:
        """Show the transaction that failed."""
        self.tell(
            f"in the error queue: {entry.id}, {count(entry.message_count, 'change')}, change {entry.message_number}"
            f" ({entry.op} {entry.table}) failed: {entry.error_message}"
        )

    def compared(self, ranges: int, of: int) -> None:
        """So many ranges are compared, out of so many."""

    def repaired(self, ranges: int, of: int) -> None:
        """So many ranges are the same now, out of so many that were not."""

    def warned(self, text: str) -> None:
        """Something a person should know, though it stops nothing."""
        self.listener.warned(text)


@dataclass(frozen=True)
class Ending:
    """How the demo ended."""

    progress: Progress
    seconds: float
    errors_left: int
    verified: VerifyResult


def play(
    say: Callable[[str], object],
    *,
    seconds: int,
    beside: Callable[[PipelineConfig], AbstractContextManager[object]] = lambda _: nullcontext(),
    wait: Callable[[], object] | None = None,
) -> Ending:
    """Play the demo, with pgbench at work for so many seconds; `say` is given the story line by line.

    Args:
        beside: Begins what goes on beside the story once the pipeline is set up, such as a page that shows it.
        wait: Returns when the reader has seen enough of the transaction that failed; None: go on at once.
    """
    teller = Teller(say)
    teller.tell("starting two PostgreSQL servers")
    with EmbeddedPostgres() as bank, EmbeddedPostgres() as copy, tempfile.TemporaryDirectory() as folder:
        _pgbench(bank, "-i", "-s", str(_SCALE), "-q")
        teller.tell(f"loaded pgbench's tables at scale {_SCALE} on port {bank.port}; the copy is on port {copy.port}")
        os.environ["PENSTOCK_DEMO_BANK_URL"] = bank.url()
        os.environ["PENSTOCK_DEMO_COPY_URL"] = copy.url()
        file = Path(folder, "pipeline.yaml")
        file.write_text(_FILE)
        _make_role(file, copy)
        os.environ["PENSTOCK_DEMO_COPY_URL"] = copy.url(user=_ROLE)
        teller.tell(f"penstock plan: role {_ROLE!r}, made by the lines that it prints, is not a superuser, and applies")
        pipeline = open_pipeline(load(file))
        assert isinstance(pipeline, Pipeline)
        pipeline.setup()
        teller.tell("penstock setup: capture and ledger installed, target tables created")
        try:
            with beside(pipeline.config), _Run(pipeline, teller.listener) as run:
                return _play(teller, pipeline, run, _Servers(bank, copy), seconds=seconds, wait=wait)
        except KeyboardInterrupt:
            teller.tell("stopping the run and both servers")
            raise


def _make_role(file: Path, copy: EmbeddedPostgres) -> None:
    pipeline = open_pipeline(load(file))
    assert isinstance(pipeline, Pipeline)
    with psycopg.connect(copy.url(), autocommit=True) as connection:
        for line in pipeline.plan().target.plain_role:
            psycopg.RawCursor(connection).execute(line.encode())


@dataclass(frozen=True)
class _Servers:
    bank: EmbeddedPostgres
    copy: EmbeddedPostgres


def _play(
    teller: Teller,
    pipeline: Pipeline,
    run: _Run,
    servers: _Servers,
    *,
    seconds: int,
    wait: Callable[[], object] | None,
) -> Ending:
    bank, copy = servers.bank, servers.copy
    teller.tell("penstock run: starting Spark, copying the tables")
    run.await_following()
    teller.tell(f"pgbench: TPC-B with {_CLIENTS} clients for {seconds} seconds")
    began = time.monotonic()
    failing = threading.Timer(seconds / 3, lambda: _make_one_fail(teller, bank, copy))
    try:
        failing.start()
        _pgbench(bank, "-n", "-c", str(_CLIENTS), "-T", str(seconds), "-M", "prepared")
    finally:
        failing.cancel()
    teller.tell("pgbench is done; catching up")
    run.await_caught_up()
    elapsed = time.monotonic() - began
    for entry in pipeline.errors().entries():
        teller.show_error(entry)
    if wait is not None:
        teller.tell("the page is yours until you press Enter: see there what differs, edit, try, retry")
        teller.tell(f"to change the copy by hand: psql {copy.url()}")
        wait()
    _empty_queue(teller, pipeline, copy)
    teller.tell("penstock verify: comparing every table, row by row")
    verified = pipeline.verify(teller)
    progress = run.end()
    return Ending(progress, elapsed, len(pipeline.errors().entries()), verified)


def _empty_queue(teller: Teller, pipeline: Pipeline, copy: EmbeddedPostgres) -> None:
    failed = [entry.id for entry in pipeline.errors().entries()]
    if not failed:
        teller.tell("the error queue is empty")
        return
    teller.tell("removing the cause: the row that somebody had put into the copy by hand")
    with psycopg.connect(copy.url(), autocommit=True) as connection:
        connection.execute("DELETE FROM pgbench_branches WHERE filler = 'by hand'")
    done = list(pipeline.retry(failed))
    teller.tell(f"penstock errors retry --all: {len(done)} applied")


def _make_one_fail(teller: Teller, bank: EmbeddedPostgres, copy: EmbeddedPostgres) -> None:
    teller.tell("on purpose: a row put into the copy by hand is in the way of a transaction of the bank")
    with psycopg.connect(copy.url(), autocommit=True) as connection:
        connection.execute("INSERT INTO pgbench_branches (bid, bbalance, filler) VALUES (1000, 0, 'by hand')")
    with psycopg.connect(bank.url()) as connection:
        connection.execute("INSERT INTO pgbench_branches (bid, bbalance) VALUES (1000, 0)")
        connection.execute("INSERT INTO pgbench_tellers (tid, bid, tbalance) VALUES (1000, 1000, 0)")


class _Run:
    """The pipeline at work in a thread of its own."""

    def __init__(self, pipeline: Pipeline, listener: Report) -> None:
        self._pipeline = pipeline
        self._listener = listener
        self._stop = threading.Event()
        self._result: Progress | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="run")

    def __enter__(self) -> _Run:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Stop it while its servers are there: it would wait for them to come back."""
        self._stop.set()
        self._thread.join()

    def await_following(self) -> None:
        """Wait until every table is copied."""
        self._await(lambda: (s := self._pipeline.status()).state == "running" and s.copied > 0 and s.to_copy == 0)

    def await_caught_up(self) -> None:
        """Wait until nothing is left to apply."""
        self._await(lambda: self._pipeline.status().backlog_changes == 0)

    def end(self) -> Progress:
        """Stop the run, and return what it has done."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _await(self, is_true: Callable[[], bool]) -> None:
        while self._error is None and not is_true():
            time.sleep(0.2)
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            self._result = self._pipeline.run(self._stop, self._listener)
        except PenstockError as exc:
            self._error = exc


def _pgbench(server: EmbeddedPostgres, *arguments: str) -> None:
    subprocess.run(
        [server.programs / "pgbench", *arguments, server.url()],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
