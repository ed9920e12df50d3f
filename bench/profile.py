"""Where each second of a catch-up goes: `python -m bench.profile mixed`.

Catches up twice: once as a user's run does, and once in this process, without Spark, with a stopwatch on every step.
The steps of reading and netting happen in threads of their own beside those of the target, so they do not add up to the
whole; *waiting* is what the target's thread waits for them.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.lab import Lab

from bench.systems import Ours, execute
from bench.workloads import WORKLOADS
from penstock.apply import prefetch, server
from penstock.apply.lane import ServerConfig
from penstock.apply.task import apply_windows
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.target import staging
from penstock.dialects.postgres.target.lane_ledger import PostgresLaneLedger
from penstock.dialects.postgres.target.session import PostgresSession
from penstock.dialects.postgres.target.set_path import SetPath
from penstock.position import Limit
from penstock.sources.trigger_queue.queue import QueueReader
from penstock.spark.job import read_in_commit_order

SETTINGS = {"max_wal_size": "8GB"}


class Stopwatch:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[name] += time.monotonic() - began

    def watch(self, owner: Any, method: str, name: str) -> Any:
        """Patch a function so that its time is counted."""
        original: Callable[..., Any] = getattr(owner, method)

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.step(name):
                return original(*args, **kwargs)

        return patch.object(owner, method, watched)

    def watch_iterator(self, owner: Any, method: str, name: str) -> Any:
        """The same for a function that yields: only what it takes to make each item."""
        original: Callable[..., Iterator[Any]] = getattr(owner, method)

        def watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
            items = original(*args, **kwargs)
            while True:
                with self.step(name):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item

        return patch.object(owner, method, watched)


def profile(workload_name: str) -> dict[str, float]:
    """Catch up with a backlog of a workload, twice; returns seconds by step."""
    workload = WORKLOADS[workload_name]
    watch = Stopwatch()
    with EmbeddedPostgres(settings=SETTINGS) as source, EmbeddedPostgres(settings=SETTINGS) as target:
        workload.create(source, workload.name)
        ours = Ours(source, target)
        ours.prepare(workload)
        workload.write(source, workload.name, seed=1)
        for server_ in (source, target):
            execute(server_.url(), "CHECKPOINT")
        watch.seconds["a run, in all"] = ours.catch_up()
        workload.write(source, workload.name, seed=2)
        for server_ in (source, target):
            execute(server_.url(), "CHECKPOINT")
        with Lab(source.url(ours.source_db), target.url(ours.target_db), name="bench") as lab, ExitStack() as patches:
            lab.acquire("source", lanes=2)
            for item in _patches(watch):
                patches.enter_context(item)
            with watch.step("without Spark, in all"):
                _catch_up(lab, watch)
    return dict(watch.seconds)


def _patches(watch: Stopwatch) -> Iterator[Any]:
    yield watch.watch_iterator(QueueReader, "read", "source: read, decode")
    yield watch.watch(server, "net_change", "net")
    yield watch.watch(staging.pacsv, "write_csv", "target: write CSV")
    yield watch.watch(SetPath, "copy", "target: stage by COPY, with its CSV")
    yield watch.watch(SetPath, "expect", "target: DELETE, UPDATE, INSERT")
    yield watch.watch(SetPath, "expect_none", "target: check keys")
    yield watch.watch(PostgresLaneLedger, "record", "target: ledger")
    execute_ = PostgresSession.execute

    def counted(self: PostgresSession, statement: str, values: Any = ()) -> Any:
        with watch.step(f"target: {statement}" if statement in ("BEGIN", "COMMIT") else "target: other"):
            return execute_(self, statement, values)

    yield patch.object(PostgresSession, "execute", counted)
    original = prefetch.ahead

    def waiting(items: Any, **kwargs: Any) -> Iterator[Any]:
        made = original(items, **kwargs)
        is_outer = threading.current_thread() is threading.main_thread()
        while True:
            with watch.step("waiting for the next group" if is_outer else "netting waits for reading"):
                try:
                    item = next(made)
                except StopIteration:
                    return
            yield item

    yield patch.object(server, "ahead", waiting)


def _catch_up(lab: Lab, watch: Stopwatch) -> None:
    while True:
        with watch.step("source: list transactions"):
            part = lab.next_slice(Limit(max_changes=2**60, max_bytes=2**60))
        if part is None:
            return
        if len(part):
            context = lab.context(ServerConfig())
            rows = read_in_commit_order(lab.reader(), part, context)
            result = apply_windows(rows, lab.claim(0, part, moves_watermark=True), context)
            assert result.failure is None
            assert not result.errors
        lab.ledger.complete(part.end, part.last_committed_at, part.anchor)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="bench.profile", description=__doc__.splitlines()[0])
    arguments.add_argument("workload", choices=list(WORKLOADS))
    for name, seconds in sorted(profile(arguments.parse_args().workload).items(), key=lambda item: -item[1]):
        print(f"{seconds:8.3f} s  {name}")


if __name__ == "__main__":
    main()
