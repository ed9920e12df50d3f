"""How fast a backlog of TPC-B transactions is applied, and in how much memory.

Both servers, Spark and this program share the machine. The backlog is written by pgbench while the pipeline is
stopped; the clock starts when Spark is up and stops when everything is applied and committed.

    python bench/catchup.py --transactions 200000 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psutil
import psycopg

from penstock.apply.process import Progress
from penstock.config import load
from penstock.demo.servers import EmbeddedPostgres
from penstock.pipeline.pipeline import Pipeline
from penstock.wiring import open_pipeline

FILE = """\
version: 1
name: bench
connections:
  bank: {type: postgres, url: "${env:BENCH_BANK_URL}"}
  copy: {type: postgres, url: "${env:BENCH_COPY_URL}"}
capture: {source: trigger_queue, connection: bank, tables: ["public.*"]}
apply: {connection: copy, parallelism: 2}
"""


class Clock:
    """Notes when the first batch was asked for, and the highest memory of all our processes."""

    def __init__(self) -> None:
        self.started_at = 0.0
        self.peak_rss = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        us = psutil.Process()
        while not self._stop.wait(0.2):
            rss = 0
            for process in [us, *us.children(recursive=True)]:
                try:
                    if process.name() != "postgres":
                        rss += process.memory_info().rss
                except psutil.Error:
                    continue
            self.peak_rss = max(self.peak_rss, rss)

    def copying(self, chunks: int, tables: int) -> None: ...

    def copied(self, chunks: int, rows: int) -> None: ...

    def following(self) -> None:
        self.started_at = time.monotonic()

    def progressed(self, progress: Progress) -> None: ...

    def waiting(self, progress: Progress) -> None: ...

    def retrying(self, error: Exception, left_s: float) -> None:
        print(f"retrying: {error}")

    def warned(self, text: str) -> None:
        print(text)


def pgbench(server: EmbeddedPostgres, *arguments: str) -> None:
    subprocess.run([server.programs / "pgbench", *arguments, server.url()], check=True, capture_output=True)


def identical(bank: EmbeddedPostgres, copy: EmbeddedPostgres) -> bool:
    def digest(url: str, table: str) -> object:
        with psycopg.connect(url) as connection:
            query = f"SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM {table} t"
            return connection.execute(query).fetchone()

    tables = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
    return all(digest(bank.url(), table) == digest(copy.url(), table) for table in tables)


def round_(pipeline: Pipeline, bank: EmbeddedPostgres, copy: EmbeddedPostgres, transactions: int) -> dict[str, float]:
    pgbench(bank, "-n", "-c", "4", "-t", str(transactions // 4), "-M", "prepared")
    for server in (bank, copy):
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("CHECKPOINT")
    clock = Clock()
    progress = pipeline.run(threading.Event(), clock, until_caught_up=True)
    seconds = time.monotonic() - clock.started_at
    clock.end()
    return {
        "changes": progress.changes,
        "seconds": seconds,
        "changes_per_s": progress.changes / seconds,
        "peak_rss_mb": clock.peak_rss / 1e6,
        "verified": identical(bank, copy),
        "row_path_changes": progress.row_changes,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--transactions", type=int, default=200_000)
    arguments.add_argument("--scale", type=int, default=10)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    with EmbeddedPostgres() as bank, EmbeddedPostgres() as copy, tempfile.TemporaryDirectory() as folder:
        pgbench(bank, "-i", "-s", str(given.scale), "-q")
        os.environ |= {"BENCH_BANK_URL": bank.url(), "BENCH_COPY_URL": copy.url()}
        file = Path(folder, "pipeline.yaml")
        file.write_text(FILE)
        pipeline = open_pipeline(load(file))
        pipeline.setup()
        pipeline.run(threading.Event(), Clock(), until_caught_up=True)
        results = []
        for number in range(given.rounds):
            results.append(round_(pipeline, bank, copy, given.transactions))
            print(number, {k: round(v, 1) for k, v in results[-1].items()}, flush=True)
        median = statistics.median(result["changes_per_s"] for result in results)
        print(f"median {median:,.0f} row changes/s, peak {max(r['peak_rss_mb'] for r in results):,.0f} MB")


if __name__ == "__main__":
    main()
