"""Penstock beside PostgreSQL's own logical replication, in one run: `make bench`.

Each system has a source server of its own, so that neither pays for the other's capture; pgbench writes the same
transactions to both, from the same seeds, while nothing is applied. Then the systems catch up one after the other, in
an order that alternates, and source and target are compared row by row. All figures are of one machine, at one time:
compare the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from bench import conflicts, debezium, files, publish, sink, start
from bench.systems import Meter, Native, Ours, System, execute
from bench.workloads import HOT, MIXED, MIXED_RULES, TABLES, WORKLOADS, Workload
from penstock.demo.servers import EmbeddedPostgres
from penstock.spark.session import start_session

RESULTS = Path(__file__).parent / "results" / "latest.json"
NATIVE_SETTINGS = {"wal_level": "logical", "max_wal_size": "8GB"}
OUR_SETTINGS = {"max_wal_size": "8GB"}
_PIECES = 5
"""In how many pieces of each protocol a backlog is written."""


def digest(url: str, tables: Sequence[str]) -> list[Any]:
    """Digest tables row by row, in no order."""
    with psycopg.connect(url) as connection:
        return [
            connection.execute(f"SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM {table} t").fetchone()
            for table in tables
        ]


def count_changes(workload: Workload, share: float) -> int:
    match workload.name:
        case "mixed":
            return int(workload.transactions * share) * 9
        case "hot":
            return int(workload.transactions * share) * 4
        case _:
            return len(workload.statements) * 50_000


class Bench:
    """The servers, and everything measured on them."""

    def __init__(self, rounds: int, share: float) -> None:
        self._rounds = rounds
        self._share = share
        self.results: list[dict[str, Any]] = []
        self._plain = EmbeddedPostgres(settings=NATIVE_SETTINGS)
        self._captured = EmbeddedPostgres(settings=OUR_SETTINGS)
        self._target = EmbeddedPostgres(settings=OUR_SETTINGS)
        self._servers = (self._plain, self._captured, self._target)
        self._ours = Ours(self._captured, self._target)
        self._natives = [Native(self._plain, self._target), Native(self._plain, self._target, streaming="off")]

    def __enter__(self) -> Bench:
        # As it is for every run of a user's but the first; in the background it would disturb what is measured.
        subprocess.run([sys.executable, "-m", "penstock.spark.prepare", "--now"], check=True)
        for server in self._servers:
            server.start()
        # Spark is to be as warm for the first workload as for the last; what it takes to start is measured by itself.
        spark = start_session("bench", lanes=2)
        spark.sparkContext.parallelize(range(4), 4).count()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.remove()

    def catch_up(self, workload: Workload) -> None:
        systems: list[System] = [self._ours, *self._natives]
        self._create(workload)
        self._first_copies(workload, systems)
        for number in range(self._rounds):
            kept = self._backlog(workload, number)
            for system in systems if number % 2 == 0 else reversed(systems):
                self._checkpoint()
                meter = Meter(*self._servers)
                seconds = system.catch_up()
                cpu_s, peak_rss_mb = meter.end()
                changes = count_changes(workload, self._share)
                source, target = system.source.url(system.source_db), self._target.url(system.target_db)
                self._note(
                    workload=workload.name,
                    system=system.name,
                    round=number,
                    changes=changes,
                    seconds=seconds,
                    changes_per_s=changes / seconds,
                    verified=digest(source, workload.tables) == digest(target, workload.tables),
                    source_tps_ratio=kept["simple"] if system is self._ours else None,
                    source_tps_ratio_prepared=kept.get("prepared") if system is self._ours else None,
                    cpu_s=cpu_s,
                    peak_rss_mb=peak_rss_mb if system is self._ours else None,
                )
        self._drop(workload)

    def lag(self, seconds: int) -> None:
        """Write at 200 transactions/s, and see when a marker committed at the source is seen at the target."""
        systems: list[System] = [self._ours, self._natives[0]]
        self._create(HOT)
        for system in systems:
            system.prepare(HOT)
        for system in systems:
            end = system.follow()
            load = subprocess.Popen(
                [
                    system.source.programs / "pgbench",
                    *("-n", "-c", "4", "-R", "200", "-T", str(seconds + 15), system.source.url(system.source_db)),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(10)
            lags = self._probe(system, seconds)
            load.terminate()
            load.wait()
            end()
            quantiles = statistics.quantiles(lags, n=100)
            self._note(workload="lag", system=system.name, round=0, p50_s=quantiles[49], p99_s=quantiles[98])
        self._drop(HOT)

    def cold_start(self) -> None:
        """Start `penstock run` as a user does, with one change waiting, and see when it is at the target.

        The first start finds nothing prepared, as on a new machine; the later ones what it has had prepared.
        """
        self._create(HOT)
        self._ours.prepare(HOT)
        with tempfile.TemporaryDirectory() as cache:
            # This program's own Spark leaves variables behind, which would keep the started ones from being prepared.
            own = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
            environment = {**own, "PENSTOCK_CACHE": ""}
            for number in range(2 * self._rounds):
                if number == self._rounds:
                    environment = {**own, "PENSTOCK_CACHE": cache}
                    prepare = [sys.executable, "-m", "penstock.spark.prepare", "--now"]
                    subprocess.run(prepare, env=environment, check=True)
                which = "nothing prepared" if number < self._rounds else "prepared"
                self._note(
                    workload="cold start",
                    system=f"penstock, {which}",
                    round=number % self._rounds,
                    seconds=self._start(number, environment),
                )

    def _start(self, number: int, environment: Mapping[str, str]) -> float:
        execute(self._captured.url(HOT.name), f"INSERT INTO marker VALUES ({number})")
        began = time.monotonic()
        command = [
            sys.executable,
            "-c",
            "from penstock.cli.main import main; main()",
            "-f",
            str(self._ours.file),
            "run",
        ]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        with psycopg.connect(self._target.url(self._ours.target_db), autocommit=True) as connection:
            while not connection.execute("SELECT FROM marker WHERE id = %s", [number]).rowcount:
                time.sleep(0.02)
        seconds = time.monotonic() - began
        run.terminate()
        run.wait()
        return seconds

    def growth(self) -> None:
        """Catch up with one, two and four times the backlog, and with one over ten times the rows, all by turns."""
        small, large = (replace(HOT, name=f"hot_{scale}", scale=scale) for scale in (1, 10))
        systems: dict[str, list[System]] = {}
        for workload in (small, large):
            self._create(workload)
            systems[workload.name] = [Ours(self._captured, self._target), Native(self._plain, self._target)]
            for system in systems[workload.name]:
                system.prepare(workload)
        for number in range(self._rounds):
            for workload, backlog in ((small, 1), (large, 1), (small, 2), (small, 4)):
                # How PostgreSQL's time grows with the backlog is not asked; what more rows cost the target's disk is.
                measured = systems[workload.name][: 2 if backlog == 1 else 1]
                for system in measured:
                    workload.write(system.source, workload.name, seed=number + 1, share=backlog * self._share)
                for system in measured if number % 2 == 0 else reversed(measured):
                    self._checkpoint()
                    self._note(
                        workload="growth",
                        system=system.name,
                        round=number,
                        backlog=backlog,
                        tables=workload.scale,
                        seconds=system.catch_up(),
                    )

    def many_tables(self) -> None:
        """Set up, copy, follow and compare 500 small tables, once."""
        TABLES.create(self._captured, TABLES.name)
        for step, seconds in self._ours.steps(TABLES):
            self._note(workload=TABLES.name, system=self._ours.name, round=0, step=step, seconds=seconds)
        source, target = self._captured.url(TABLES.name), self._target.url(self._ours.target_db)
        self.results[-1]["verified"] = digest(source, TABLES.tables) == digest(target, TABLES.tables)

    def _create(self, workload: Workload) -> None:
        for server in (self._plain, self._captured):
            workload.create(server, workload.name)

    def _checkpoint(self) -> None:
        for server in self._servers:
            execute(server.url(), "CHECKPOINT")

    def _first_copies(self, workload: Workload, systems: Sequence[System]) -> None:
        """Make the first copies of the tables, once per round; the last ones stay."""
        for number in range(self._rounds):
            for system in systems if number % 2 == 0 else reversed(systems):
                self._checkpoint()
                seconds = system.prepare(workload)
                with psycopg.connect(system.source.url(workload.name)) as connection:
                    rows = sum(
                        (connection.execute(f"SELECT count(*) FROM {table}").fetchone() or (0,))[0]
                        for table in workload.tables
                    )
                self._note(
                    workload=f"snapshot {workload.name}",
                    # A streaming mode plays no part in a first copy: those of both are samples of one system.
                    system=system.name if system is self._ours else self._natives[0].name,
                    round=number,
                    changes=rows,
                    seconds=seconds,
                    changes_per_s=rows / seconds,
                )

    def _backlog(self, workload: Workload, number: int) -> dict[str, float]:
        """Write the same backlog to both sources; returns how much of its speed capture leaves, by pgbench's protocol.

        It is written in pieces, by turns, so that a machine that is slow for a while is so to both.
        """
        for server in (self._plain, self._captured):
            execute(server.url(), "CHECKPOINT")
        protocols = ["simple"] if workload.statements else ["simple", "prepared"] * _PIECES
        seconds: Counter[tuple[EmbeddedPostgres, str]] = Counter()
        for piece, protocol in enumerate(protocols):
            order = (self._plain, self._captured) if (number + piece // 2) % 2 == 0 else (self._captured, self._plain)
            for server in order:
                seconds[server, protocol] += workload.write(
                    server,
                    workload.name,
                    seed=number * len(protocols) + piece + 1,
                    share=self._share / len(protocols),
                    protocol=protocol,
                )
        return {protocol: seconds[self._plain, protocol] / seconds[self._captured, protocol] for protocol in protocols}

    def _probe(self, system: System, seconds: int) -> list[float]:
        committed: dict[int, float] = {}
        lags: list[float] = []
        done = threading.Event()

        def write() -> None:
            with psycopg.connect(system.source.url(system.source_db), autocommit=True) as connection:
                for n in range(1, seconds * 20):
                    connection.execute("INSERT INTO marker (id) VALUES (%s)", [n])
                    committed[n] = time.monotonic()
                    time.sleep(0.05)
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        seen = 0
        with psycopg.connect(self._target.url(system.target_db), autocommit=True) as connection:
            while not done.is_set() or seen < len(committed):
                row = connection.execute("SELECT coalesce(max(id), 0) FROM marker").fetchone()
                now = time.monotonic()
                while row and seen < row[0]:
                    seen += 1
                    # The first sight may come before the writer has noted its commit.
                    while seen not in committed:
                        time.sleep(0.001)
                    lags.append(max(0.0, now - committed[seen]))
                time.sleep(0.005)
        writer.join()
        return lags

    def rules(self) -> None:
        """Catch up with and without rules, by turns."""
        self._create(MIXED)
        systems = [self._ours, Ours(self._captured, self._target, rules=MIXED_RULES)]
        for system in systems:
            system.prepare(MIXED)
        for number in range(self._rounds):
            MIXED.write(self._captured, MIXED.name, seed=number + 1, share=self._share)
            for system in systems if number % 2 == 0 else reversed(systems):
                self._checkpoint()
                seconds = system.catch_up()
                changes = count_changes(MIXED, self._share)
                self._note(
                    workload="rules",
                    system=system.name,
                    round=number,
                    changes=changes,
                    seconds=seconds,
                    changes_per_s=changes / seconds,
                    verified=system.is_identical(),
                )
        self._drop(MIXED)

    def conflicts(self) -> None:
        """Catch up with and without conflicts, by turns."""
        self._create(MIXED)
        for result in conflicts.measure(self._captured, self._target, self._rounds, self._share, self._checkpoint):
            self._note(**result)
        self._drop(MIXED)

    def change_files(self) -> None:
        """Write and read archives of change files."""
        for result in files.measure():
            self._note(**result)

    def debezium(self) -> None:
        """Decode Debezium events."""
        for result in debezium.measure():
            self._note(**result)

    def sink(self) -> None:
        """Apply a connector's topics, beside Debezium's JDBC sink."""
        for result in sink.measure():
            self._note(**result)

    def publish(self) -> None:
        """Publish change events."""
        for result in publish.measure():
            self._note(**result)

    def start(self) -> None:
        """Time commands with few tables and with many."""
        for result in start.measure(start.TABLES, self._rounds):
            self._note(**result)

    def _drop(self, workload: Workload) -> None:
        for native in self._natives:
            native.drop()
        for server in (self._plain, self._captured):
            execute(server.url(), f"DROP DATABASE {workload.name} WITH (FORCE)")

    def _note(self, **result: Any) -> None:
        self.results.append({key: value for key, value in result.items() if value is not None})
        shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in self.results[-1].items()}
        print("  ".join(f"{key} {value}" for key, value in shown.items()), flush=True)


def report(results: Sequence[dict[str, Any]]) -> None:
    """Print medians, and ratios to the better of PostgreSQL's modes."""
    print()
    for workload in dict.fromkeys(r["workload"] for r in results if "changes_per_s" in r):
        medians = {}
        for system in dict.fromkeys(r["system"] for r in results if r["workload"] == workload):
            rates = [r["changes_per_s"] for r in results if (r["workload"], r["system"]) == (workload, system)]
            medians[system] = statistics.median(rates)
        best = max((rate for system, rate in medians.items() if system != "penstock"), default=0)
        for system, rate in medians.items():
            ratio = f"{rate / best:6.2f} of PostgreSQL" if best and system == "penstock" else ""
            if workload == "rules":
                ratio = f"{rate / medians['penstock']:6.2f} of the same without" if system != "penstock" else ""
            print(f"{workload:16} {system:28} {rate:>10,.0f} rows/s  {ratio}")
        for key, how in (("source_tps_ratio", ""), ("source_tps_ratio_prepared", ", of prepared statements")):
            kept = [r[key] for r in results if r["workload"] == workload and key in r]
            if kept:
                print(f"{workload:16} source speed kept under capture{how} {statistics.median(kept):.2f}")
    for r in results:
        if r["workload"] == "lag":
            print(f"{'lag':16} {r['system']:28} p50 {r['p50_s']:.3f} s, p99 {r['p99_s']:.3f} s")
        if r["workload"] == "files":
            print(f"{'change files':16} {r['system']:28} {r['rate']:>10,.0f} changes/s")
        if r["workload"] == "debezium":
            print(f"{'debezium':16} {r['system']:28} {r['rate']:>10,.0f} events/s")
        if r["workload"] == "sink":
            print(f"{'sink':16} {r['system']:36} {r['rate']:>10,.0f} changes/s")
        if r["workload"] == "publish":
            print(f"{'publish':16} {r['system']:28} {r['rate']:>10,.0f} events/s")
        if r["workload"] == "start":
            print(start.line({"limit_s": None, **r}))
        if r["workload"] == TABLES.name:
            print(f"{len(TABLES.tables)} tables       {r['system']:28} {r['step']}: {r['seconds']:.1f} s")
    starts: dict[str, list[float]] = {}
    for r in results:
        if r["workload"] == "cold start":
            starts.setdefault(r["system"], []).append(r["seconds"])
    for system, seconds in starts.items():
        print(f"{'cold start':16} {system:28} {statistics.median(seconds):.1f} s to the first applied change")
    spoiled: dict[str, list[float]] = {}
    for r in results:
        if r["workload"] == "conflicts":
            spoiled.setdefault(r["system"], []).append(r["seconds"])
    for system, seconds in spoiled.items():
        times = statistics.median(seconds) / statistics.median(spoiled["clean"])
        print(f"{'conflicts':16} {system:28} {statistics.median(seconds):.2f} s, {times:.2f} times as long")
    grown: dict[tuple[str, int, int], list[float]] = {}
    for r in results:
        if r["workload"] == "growth":
            grown.setdefault((r["system"], r["backlog"], r["tables"]), []).append(r["seconds"])
    for (system, backlog, tables), seconds in grown.items():
        times = statistics.median(seconds) / statistics.median(grown[system, 1, 1])
        what = f"{statistics.median(seconds):.2f} s, {times:.2f} times as long"
        print(f"{'growth':16} {system:28} {backlog}x the backlog, {tables}x the rows: {what}")
    peaks = [r["peak_rss_mb"] for r in results if "peak_rss_mb" in r]
    if peaks:
        print(f"{'memory':16} {'penstock':28} driver and workers together at most {max(peaks):,.0f} MB")
    verdicts = [r["verified"] for r in results if "verified" in r]
    if verdicts:
        wrong = verdicts.count(False)
        print("every catch-up compared row by row: " + (f"{wrong} DIFFER" if wrong else "identical"))


def main() -> None:
    arguments = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    names = [
        *WORKLOADS,
        "lag",
        "cold",
        "growth",
        TABLES.name,
        "files",
        "debezium",
        "publish",
        "sink",
        "rules",
        "conflicts",
        "start",
    ]
    arguments.add_argument("workloads", nargs="*", default=names, metavar="WORKLOAD", help=", ".join(names))
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--share", type=float, default=1.0, help="part of each backlog to write")
    arguments.add_argument("--lag-seconds", type=int, default=60)
    given = arguments.parse_args()
    unknown = set(given.workloads) - set(names)
    if unknown:
        arguments.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    with Bench(given.rounds, given.share) as bench:
        for name in given.workloads:
            if name in WORKLOADS:
                bench.catch_up(WORKLOADS[name])
        if "lag" in given.workloads:
            bench.lag(given.lag_seconds)
        if "cold" in given.workloads:
            bench.cold_start()
        if "growth" in given.workloads:
            bench.growth()
        if TABLES.name in given.workloads:
            bench.many_tables()
        if "rules" in given.workloads:
            bench.rules()
        if "conflicts" in given.workloads:
            bench.conflicts()
        if "start" in given.workloads:
            bench.start()
        if "files" in given.workloads:
            bench.change_files()
        if "debezium" in given.workloads:
            bench.debezium()
        if "publish" in given.workloads:
            bench.publish()
        if "sink" in given.workloads:
            bench.sink()
        report(bench.results)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(bench.results, indent=1) + "\n")
        if any(r.get("verified") is False for r in bench.results):
            sys.exit(1)


if __name__ == "__main__":
    main()
