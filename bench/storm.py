"""A storm of errors or conflicts: `python -m bench.storm [--writers] [TRANSACTIONS]`.

Every one of so many single-row transactions (20,000) meets a row that somebody has changed, or breaks a check, or is
resolved by the file. A run in a process of its own catches up with each. Printed are transactions a second, from when
everything is ready until it has caught up, lines of the log, and the highest memory of the run's processes. With
`--writers` three sessions go on writing to the same rows at the target.

To compare two commits, run it with the `src` of each in PYTHONPATH, by turns.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg

from bench.systems import Meter, Ours, execute
from bench.workloads import Workload
from penstock.demo.servers import EmbeddedPostgres

_ROWS = 100_000

_TABLE = "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL, note text);"
_FILL = "INSERT INTO account SELECT n, 0, 'as it was' FROM generate_series(1, 100000) n;"
_UPDATE = "UPDATE account SET balance = balance + 1 WHERE id = i"
_CHANGED = "UPDATE account SET balance = -7"


@dataclass(frozen=True)
class Storm:
    """What each transaction does, what was done at the target before, and what the file says of it."""

    name: str
    transaction: str
    divergence: str
    conflicts: str = ""


STORMS = [
    Storm("row differs", _UPDATE, _CHANGED),
    Storm("row is missing", _UPDATE, "DELETE FROM account"),
    Storm(
        "check is broken",
        f"INSERT INTO account VALUES ({_ROWS} + i, i, 'new')",
        f"ALTER TABLE account ADD CHECK (id <= {_ROWS})",
    ),
    Storm("overwrite", _UPDATE, _CHANGED, "{on: update, method: overwrite}"),
    Storm("discard", _UPDATE, _CHANGED, "{on: update, method: discard}"),
    Storm("maximum", _UPDATE, _CHANGED, "{on: update, method: maximum, by: balance}"),
    Storm("delta", _UPDATE, _CHANGED, "{on: update, method: delta, columns: [balance]}"),
    Storm("record", _UPDATE, _CHANGED, "{on: update, method: record}"),
]


def measure(source: EmbeddedPostgres, target: EmbeddedPostgres, storm: Storm, count: int, *, writers: bool) -> str:
    """Return a line for one storm."""
    workload = Workload("storm", ("account",), _TABLE, _FILL, row_triggers=("public.*",))
    workload.create(source, workload.name)
    rules = f", tables: {{public.account: {{conflicts: [{storm.conflicts}]}}}}" if storm.conflicts else ""
    ours = Ours(source, target, apply=rules)
    ours.prepare(workload)
    execute(target.url(ours.target_db), storm.divergence, "VACUUM ANALYZE account")
    execute(
        source.url(workload.name),
        f"DO $$ BEGIN FOR i IN 1..{count} LOOP {storm.transaction}; COMMIT; END LOOP; END $$",
    )
    with _writing(target.url(ours.target_db), count if writers else 0):
        meter = Meter(source, target)
        ended = subprocess.run(
            [sys.executable, "-m", "penstock", "run", "-f", ours.file, "--until-caught-up", "--log-format", "json"],
            capture_output=True,
            text=True,
            env=os.environ,
            check=False,
        )
        _, peak_mb = meter.end()
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    at = {line["event"]: datetime.fromisoformat(line["time"]) for line in lines}
    done = next(line for line in lines if line["event"] == "run.caught_up")
    seconds = (at["run.caught_up"] - at["apply.started"]).total_seconds()
    said = sum(line["level"] == "WARNING" for line in lines)
    return (
        f"{storm.name:16} {seconds:7.1f} s {count / seconds:8,.0f}/s  {done['errors']:7,} errors"
        f" {done['resolved']:7,} resolved {said:7,} warnings {peak_mb:6,.0f} MB"
    )


@contextmanager
def _writing(url: str, count: int) -> Iterator[None]:
    """Have three sessions write to the first rows, a row at a time, if there are any to write to."""
    stop = threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute("UPDATE account SET note = 'local' WHERE id = %s", [chance.randint(1, count)])

    threads = [threading.Thread(target=write, args=[seed]) for seed in range(3 if count else 0)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def main() -> None:
    """Measure each storm, and print a line for it."""
    arguments = argparse.ArgumentParser(prog="bench.storm", description=__doc__.splitlines()[0])
    arguments.add_argument("transactions", type=int, nargs="?", default=20_000)
    arguments.add_argument("--writers", action="store_true", help="three sessions write to the same rows")
    arguments.add_argument("--only", default="", help="names of storms, with commas between them")
    given = arguments.parse_args()
    names = [name.strip() for name in given.only.split(",") if name]
    with EmbeddedPostgres() as source, EmbeddedPostgres() as target:
        os.environ["BENCH_SOURCE_URL"] = source.url("storm")
        for storm in STORMS:
            if not names or storm.name in names:
                print(measure(source, target, storm, given.transactions, writers=given.writers), flush=True)


if __name__ == "__main__":
    main()
