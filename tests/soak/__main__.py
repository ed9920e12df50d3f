"""Let faults happen to runs under load, at random, for as long as asked; say what came of it.

The run is local or on a cluster, in the source's order or not, under one load or both, with a backlog or without. After
every fault source and target are compared. Exits with 1 if a transaction was lost, doubled or torn, went to the error
queue, or if a run did not recover by itself.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.cluster import QUICK_TO_NOTICE, Cluster
from tests.faults.faults import Fault, faults_for, strike
from tests.faults.loads import SCRIPTS
from tests.faults.scene import SETTINGS, Scene
from tests.soak.memory import Memory, Sampler, rows

STAGES = (("local", False), ("local", True), ("cluster", False), ("cluster", True))
"""Where the run is, and whether transactions commit in order: by turns, each with databases and a run of its own."""

CALM = Fault("none", lambda scene: scene.pause(5, 10))
"""`--fault none`: rounds in which nothing happens, one after the other on the same run."""

_SHORTEST_S, _LONGEST_S = 30, 1800


@dataclass
class Totals:
    """What has happened so far."""

    rounds: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    looks: int = 0
    written: int = 0
    applied: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    errors: int = 0
    failures: list[str] = field(default_factory=list)
    memory: dict[str, Memory] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.torn or self.errors or self.failures)

    def add(self, scene: Scene) -> None:
        """Count what a stage came to."""
        written, applied, lost, doubled = scene.tally()
        self.written += written
        self.applied += applied
        self.lost += lost
        self.doubled += doubled
        self.torn += len(scene.witness.torn)
        self.looks += scene.witness.looks
        self.errors += scene.error_entries()

    def report(self) -> str:
        """The table at the end."""
        facts = [
            ("rounds", ", ".join(f"{number} {name}" for name, number in sorted(self.rounds.items()))),
            *((f"  {name}", str(number)) for name, number in self.faults.most_common()),
            ("transactions written", f"{self.written:,}"),
            ("applied", f"{self.applied:,}"),
            ("lost", str(self.lost)),
            ("doubled", str(self.doubled)),
            ("torn", f"{self.torn}, in {self.looks:,} snapshots"),
            ("error-queue entries", str(self.errors)),
            ("failures", str(len(self.failures))),
        ]
        headings = ["memory, MB", "processes", "begin", "max", "end", "slope MB/h", "over minutes"]
        lines = [f"{name:<36}{value}" for name, value in facts]
        for row in [headings, *rows(self.memory)]:
            lines.append(f"{row[0]:<36}" + "".join(f"{cell:>14}" for cell in row[1:]))
        return "\n".join(lines)


class Soak:
    """Stage after stage until the time is up."""

    def __init__(self, chance: random.Random, minutes: float, only: list[str]) -> None:
        self._chance = chance
        self._until = time.monotonic() + minutes * 60
        self._is_calm = only == [CALM.name]
        self._stage_s = min(_LONGEST_S, max(_SHORTEST_S, minutes * 60 / len(STAGES)))
        self._only = only
        if self._is_calm:
            # To see what a run comes to that goes on and on.
            self._stage_s = minutes * 60
        self._bags = {where: self._bag(where) for where in ("local", "cluster")}
        self.totals = Totals()
        self.is_interrupted = False

    def run(self) -> None:
        """Go on until the time is up, or something went wrong."""
        with EmbeddedPostgres(settings=SETTINGS) as source, EmbeddedPostgres(settings=SETTINGS) as target:
            for number in count():
                # After a pair of stages, so that half of the time is in order.
                is_over = time.monotonic() >= self._until and (number % 2 == 0 or self._is_calm)
                if is_over or self.totals.failures or self.is_interrupted:
                    return
                where, in_order = STAGES[number % len(STAGES)]
                say(f"stage {number}: {where}, {'FULL' if in_order else 'DEPENDENT_TRANSACTIONS'}")
                self._stage(source, target, where, in_order=in_order)

    def _stage(self, source: EmbeddedPostgres, target: EmbeddedPostgres, where: str, *, in_order: bool) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cluster = stack.enter_context(Cluster(folder)) if where == "cluster" else None
            scene = stack.enter_context(
                Scene(
                    folder,
                    source,
                    target,
                    name="soak",
                    chance=self._chance,
                    in_order=in_order,
                    cluster=cluster,
                    spark=QUICK_TO_NOTICE if cluster else {},
                )
            )
            try:
                scene.load()
                scene.start()
                with Sampler(lambda: _processes(scene)) as sampler:
                    self._rounds(scene, where)
                scene.settle()
                scene.stop()
            except KeyboardInterrupt:
                self.is_interrupted = True
                with suppress(Exception):
                    scene.settle()
            except Exception:
                self.totals.failures.append(traceback.format_exc())
                say(self.totals.failures[-1])
                # What is only late is not lost.
                with suppress(Exception):
                    scene.settle()
            for role, memory in sampler.roles.items():
                self.totals.memory.setdefault(role, Memory()).by_process.update(memory.by_process)
            self.totals.add(scene)

    def _rounds(self, scene: Scene, where: str) -> None:
        ends = time.monotonic() + self._stage_s
        while time.monotonic() < ends:
            fault = next(self._bags[where])
            # While a run starts, a backlog would grow beyond measure.
            backlog = self._chance.random() < 0.3 and not fault.restarts
            scripts = self._chance.choice([("tpc-b",), ("mixed",), tuple(SCRIPTS)])
            rate = self._chance.choice([100, 300, 500])
            began = time.monotonic()
            self.totals.rounds["FULL" if scene.in_order else "DEPENDENT_TRANSACTIONS"] += 1
            self.totals.faults[fault.name] += 1
            strike(scene, fault, *scripts, rate=rate, backlog=backlog)
            took = time.monotonic() - began
            say(f"{fault.name}; {' and '.join(scripts)}{', a backlog' if backlog else ''}; {took:.1f} s")

    def _bag(self, where: str) -> Iterator[Fault]:
        """Every kind once in random order, and again."""
        kinds = [fault for fault in (*faults_for(where), CALM) if fault.name in self._only] or faults_for(where)
        while True:
            yield from self._chance.sample(kinds, len(kinds))


def _processes(scene: Scene) -> Iterator[tuple[str, psutil.Process]]:
    try:
        python, *java = scene.driver()
        yield "driver, Python", python
        yield from (("driver, Java", process) for process in java)
        yield from (("worker, Python", process) for process in scene.workers())
        if scene.cluster is not None:
            yield from (("executor, Java", process) for process in scene.cluster.executors())
    except psutil.NoSuchProcess:
        # The run was killed, or is not there yet.
        return


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier soak, to choose the same faults again")
    parser.add_argument(
        "--fault", action="append", default=[], help="only this kind, or `none`; may be given several times"
    )
    given = parser.parse_args()
    seed = random.randrange(1 << 30) if given.seed is None else given.seed
    say(f"seed {seed}, {given.minutes:g} minutes")
    # Told to stop either way, it ends the servers and runs that it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    soak = Soak(random.Random(seed), given.minutes, given.fault)
    try:
        soak.run()
    except KeyboardInterrupt:
        soak.is_interrupted = True
    if soak.is_interrupted:
        say("told to stop")
    print(f"\nseed {seed}\n{soak.totals.report()}", flush=True)
    if not soak.totals.is_clean:
        return 1
    return 130 if soak.is_interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
