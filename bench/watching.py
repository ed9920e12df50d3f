"""What a page with 50 watchers costs a run that catches up, by turns with none: `python -m bench.watching`."""

from __future__ import annotations

import json
import multiprocessing
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from multiprocessing.synchronize import Event

from bench.systems import Clock, Ours, execute
from bench.workloads import MIXED
from penstock.config.pipeline import PipelineConfig
from penstock.demo.servers import EmbeddedPostgres
from penstock.metrics import RunMetrics
from penstock.pipeline_file import load
from penstock.spark.session import start_session
from penstock.web.server import Door, WebServer, WebSettings
from penstock.wiring import open_pipeline

_WATCHERS = 50
_ROUNDS = 4
_SHARE = 2.0
"""Of the workload's transactions: enough to catch up for some ten seconds, as a page looks every few."""

_CHANGES = 9
"""Of each transaction."""

_SETTINGS = {"max_wal_size": "8GB"}


def main() -> None:
    """Write a backlog, and catch up with and without watchers, by turns; print rates, and their ratio."""
    subprocess.run([sys.executable, "-m", "penstock.spark.prepare", "--now"], check=True)
    rates: dict[str, list[float]] = defaultdict(list)
    with EmbeddedPostgres(settings=_SETTINGS) as source, EmbeddedPostgres(settings=_SETTINGS) as target:
        spark = start_session("bench", lanes=2)
        spark.sparkContext.parallelize(range(4), 4).count()
        execute(source.url(), f"CREATE DATABASE {MIXED.name}")
        MIXED.create(source, MIXED.name)
        ours = Ours(source, target)
        ours.prepare(MIXED)
        for number in range(2 * _ROUNDS):
            label = "50 watchers" if number % 4 in (1, 2) else "alone"
            config = load(ours.file)
            counted = RunMetrics(config.name)
            # The page is open before there is anything to catch up with, as pages are.
            with watchers(config, counted) if label != "alone" else nullcontext():
                MIXED.write(source, MIXED.name, seed=number + 1, share=_SHARE)
                for one in (source, target):
                    execute(one.url(), "CHECKPOINT")
                clock = Clock()
                observers = [counted] if label != "alone" else []
                open_pipeline(config).run(threading.Event(), clock, until_caught_up=True, observers=observers)
            seconds = clock.progressed_at - clock.following_at
            rates[label].append(int(MIXED.transactions * _SHARE) * _CHANGES / seconds)
            print(json.dumps({"workload": "watching", "system": label, "rate": rates[label][-1]}), flush=True)
    medians = {label: statistics.median(found) for label, found in rates.items()}
    print(json.dumps({"workload": "watching", "ratio": medians["50 watchers"] / medians["alone"], **medians}))


def _door() -> Door:
    return Door(WebSettings("127.0.0.1:0", is_reading_open=True))


@contextmanager
def watchers(config: PipelineConfig, counted: RunMetrics) -> Iterator[None]:
    """Have a page open in as many browsers, as far as the server knows, while the block runs."""
    server = WebServer(_door(), [config], open_pipeline, [counted])
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    with closing(server.door), closing(server):
        server.start()
        address = server.door.address.host, server.door.address.port
        process = context.Process(target=_watch, args=(address, config.name, ended), daemon=True)
        process.start()
        while server.watchers[0].watching < _WATCHERS:
            time.sleep(0.05)
        try:
            yield
        finally:
            ended.set()
            process.join()


def _watch(address: tuple[str, int], pipeline: str, ended: Event) -> None:
    streams = [socket.create_connection(address) for _ in range(_WATCHERS)]
    for stream in streams:
        stream.sendall(f"GET /events?pipeline={pipeline} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    while not ended.is_set():
        for stream in select.select(streams, [], [], 0.2)[0]:
            stream.recv(1 << 16)
    for stream in streams:
        stream.close()


if __name__ == "__main__":
    main()
