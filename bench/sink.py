"""The same topics of a Debezium connector, applied by Penstock and by Debezium's own JDBC sink, one after the other.

Both have the connector's first snapshot in place, then wait until all later events are on the topics. What is measured
is from the moment at which the sink's task runs, or Penstock begins, until the last row is at the target.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
from tests.kafka import jars
from tests.kafka.broker import KafkaBroker
from tests.kafka.connect import WITH_SCHEMAS, ConnectWorker, DebeziumEngine, JdbcSink

from penstock.demo.servers import EmbeddedPostgres
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline_file import load
from penstock.wiring import open_pipeline

_TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers")
_SCHEMA_OPTIONS = {name.replace(".", "_"): value for name, value in WITH_SCHEMAS.items()}
_SINKS: dict[str, dict[str, str]] = {
    "Debezium's JDBC sink": {},
    "Debezium's JDBC sink, large batches": {
        "batch_size": "3000",
        "use_reduction_buffer": "true",
        "consumer_override_max_poll_records": "3000",
    },
}

_FILE = """\
version: 1
name: bench
connections:
  events: {{type: kafka, settings: {{bootstrap.servers: "{broker}"}}}}
  copy: {{type: postgres, url: "{target}"}}
capture: {{source: debezium, connection: events, tables: ["public.*"], debezium: {{prefix: bench, before_image: full}}}}
apply: {{connection: copy, parallelism: 2}}
"""


def measure(transactions: int = 40_000) -> Iterator[dict[str, Any]]:
    """Apply the events of so many transactions of pgbench's; yields what was measured."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        settings = {"wal_level": "logical", "max_wal_size": "8GB"}
        source = stack.enter_context(EmbeddedPostgres(settings=settings))
        target = stack.enter_context(EmbeddedPostgres(settings={"max_wal_size": "8GB"}))
        fetched = jars.fetch(jars.folder())
        broker = stack.enter_context(KafkaBroker(jars.broker_path(fetched)))
        worker = stack.enter_context(ConnectWorker(broker, jars.connect_path(fetched)))
        sinks = stack.enter_context(ConnectWorker(broker, jars.sink_path(fetched)))
        url = _made(source, "bench")
        _pgbench(source, url, "-i", "-q", "-s", "1")
        _execute(url, "ALTER TABLE pgbench_history ADD COLUMN id bigserial PRIMARY KEY")
        for table in _TABLES:
            _execute(url, f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        # An event in each, so that every topic is there for the sinks to be told of.
        _pgbench(source, url, "-t", "1")
        engine = stack.enter_context(DebeziumEngine(worker, broker, url, "bench", **_SCHEMA_OPTIONS))
        engine.wait_for_streaming()
        engine.wait_for(_last(url), timeout_s=300)

        ours = _pipeline(folder, broker, _made(target, "penstock"))
        ours.setup()
        ours.run(threading.Event(), until_caught_up=True)
        topics = [engine.topic(f"public.{table}") for table in _TABLES]
        theirs = {}
        for number, (name, options) in enumerate(_SINKS.items()):
            sink_url = _made(target, f"sink{number}")
            # As at the source: the sink's own tables would lack types that it does not know.
            _pgbench(target, sink_url, "-i", "-I", "t", "-q")
            _execute(sink_url, "ALTER TABLE pgbench_history ADD COLUMN id bigserial PRIMARY KEY")
            for table, key in (("accounts", "aid"), ("branches", "bid"), ("tellers", "tid")):
                _execute(sink_url, f"ALTER TABLE pgbench_{table} ADD PRIMARY KEY ({key})")
            theirs[name] = JdbcSink(sinks, sink_url, f"sink{number}", topics, **options), sink_url
            with theirs[name][0]:
                _wait(lambda at=sink_url: _digest(at) == _digest(url))  # type: ignore[misc]

        _pgbench(source, url, "-t", str(transactions // 4), "-c", "4")
        engine.wait_for(_last(url), timeout_s=600)
        last = _end(url)
        began = time.monotonic()
        ours.run(threading.Event(), until_caught_up=True)
        found = _noted("penstock", transactions, began)
        yield found | {"verified": _digest(target.url("penstock")) == _digest(url)}
        for name, (sink, sink_url) in theirs.items():
            with sink:
                began = time.monotonic()
                _wait(lambda at=sink_url: _end(at) == last)  # type: ignore[misc]
                found = _noted(name, transactions, began)
                # Another topic may be a little behind.
                _wait(lambda at=sink_url: _digest(at) == _digest(url))  # type: ignore[misc]
            yield found | {"verified": True}


def _noted(system: str, transactions: int, began: float) -> dict[str, Any]:
    return {"workload": "sink", "system": system, "rate": transactions * 4 / (time.monotonic() - began)}


def _pipeline(folder: Path, broker: KafkaBroker, target: str) -> Pipeline:
    path = folder / "pipeline.yaml"
    path.write_text(_FILE.format(broker=broker.address, target=target))
    pipeline = open_pipeline(load(path))
    assert isinstance(pipeline, Pipeline)
    return pipeline


def _made(server: EmbeddedPostgres, name: str) -> str:
    _execute(server.url(), f"CREATE DATABASE {name}")
    return server.url(name)


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def _pgbench(server: EmbeddedPostgres, url: str, *options: str) -> None:
    command: list[str | Path] = [server.programs / "pgbench", "-n", *options, url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _last(url: str) -> int:
    """Commit a transaction that every other one lies before; returns its id."""
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE pgbench_branches SET filler = clock_timestamp()::text WHERE bid = 1")
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert row is not None
    return int(row[0])


def _end(url: str) -> Any:
    """How far a copy is: how many transactions have come, and whether the last one has."""
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT filler, (SELECT count(*) FROM pgbench_history) FROM pgbench_branches WHERE bid = 1"
        ).fetchone()


def _digest(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return [
            connection.execute(f"SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM {table} t").fetchone()
            for table in _TABLES
        ]


def _wait(is_so: Callable[[], bool], timeout_s: float = 600) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)
