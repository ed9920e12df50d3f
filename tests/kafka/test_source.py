"""PostgreSQL -> Debezium -> Kafka -> Penstock -> PostgreSQL: what a connector sends is applied by transactions."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import OperatorError, PenstockError
from penstock.pipeline.pipeline import Pipeline
from tests.kafka.broker import KafkaBroker, Record
from tests.kafka.connect import WITH_SCHEMAS, ConnectWorker, DebeziumEngine

TABLES = """
CREATE TABLE customers (
  id int PRIMARY KEY, name text NOT NULL, email text UNIQUE, balance numeric(10,2), at timestamptz
);
CREATE TABLE orders (
  id int PRIMARY KEY, customer int NOT NULL REFERENCES customers, total numeric(12,2), note text, doc jsonb
);
"""

FIRST_ROWS = """
INSERT INTO customers SELECT g, 'n' || g, 'e' || g, g / 3.0, now() FROM generate_series(1, 100) g;
INSERT INTO orders SELECT g, 1 + g % 100, g * 1.5, NULL, '{"a": 1}' FROM generate_series(1, 300) g;
"""


@dataclass
class Lab:
    broker: KafkaBroker
    worker: ConnectWorker
    source: EmbeddedPostgres
    target: EmbeddedPostgres


@pytest.fixture(scope="module")
def lab(
    kafka: KafkaBroker,
    connect_worker: ConnectWorker,
    logical_server: EmbeddedPostgres,
    target_server: EmbeddedPostgres,
) -> Lab:
    return Lab(kafka, connect_worker, logical_server, target_server)


def made(server: EmbeddedPostgres, name: str, sql: str = "") -> str:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        connection.execute(sql or "SELECT 1")
    return server.url(name)


def rows(url: str, *tables: str) -> list[list[tuple[str, ...]]]:
    with psycopg.connect(url) as connection:
        return [
            connection.execute(f"SELECT t::text FROM {table} t ORDER BY id").fetchall()
            for table in tables or ("customers", "orders")
        ]


def pipeline(folder: Path, lab: Lab, name: str, target: str) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(f"""
version: 1
name: {name}
connections:
  events: {{type: kafka, settings: {{bootstrap.servers: "{lab.broker.address}"}}}}
  target: {{type: postgres, url: "{target}"}}
capture:
  source: debezium
  connection: events
  debezium: {{prefix: {name}}}
  tables: ["public.*"]
apply: {{connection: target}}
""")
    return path


@pytest.mark.parametrize("identity", ["FULL", "DEFAULT"])
def test_what_a_connector_sends_makes_the_target_the_same(
    lab: Lab, tmp_path: Path, spark: object, identity: str
) -> None:
    name = f"shop_{identity.lower()}"
    url = made(lab.source, name, TABLES)
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("customers", "orders"):
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {identity}")
        connection.execute(FIRST_ROWS)
    with DebeziumEngine(lab.worker, lab.broker, url, name, **schemas()) as engine:
        wait_for_copy(lab, engine)
        target = made(lab.target, name)
        run = penstock.open(pipeline(tmp_path, lab, name, target))
        assert isinstance(run, Pipeline)
        run.setup()
        run.run(threading.Event(), until_caught_up=True)
        assert rows(target) == rows(url)
        for part in range(2):
            xid = write(url, 1000 * (part + 1))
            engine.wait_for(xid)
            # Each part by a run of its own, which begins at the offsets that the one before it has committed.
            progress = run.run(threading.Event(), until_caught_up=True)
            assert (progress.errors, progress.conflicts, progress.transactions) == (0, 0, 20)
            assert rows(target) == rows(url)
        assert run.status().backlog_changes == 0
        lab.broker.delete_topic(engine.transactions)
        with pytest.raises(OperatorError, match="transaction"):
            run.run(threading.Event(), until_caught_up=True)


def test_a_target_that_was_restored_goes_on_from_where_it_stands(lab: Lab, tmp_path: Path, spark: object) -> None:
    url = made(lab.source, "restored", TABLES + FIRST_ROWS)
    with DebeziumEngine(lab.worker, lab.broker, url, "restored", **schemas()) as engine:
        wait_for_copy(lab, engine)
        target = made(lab.target, "before")
        run = penstock.open(pipeline(tmp_path, lab, "restored", target))
        assert isinstance(run, Pipeline)
        run.setup()
        engine.wait_for(write(url, 1000))
        run.run(threading.Event(), until_caught_up=True)
        with psycopg.connect(lab.target.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'before'")
            connection.execute("CREATE DATABASE after TEMPLATE before")
        engine.wait_for(write(url, 2000))
        run.run(threading.Event(), until_caught_up=True)
        assert rows(target) == rows(url)
        # Offsets were committed for what this one does not have yet.
        older = penstock.open(pipeline(tmp_path, lab, "restored", lab.target.url("after")))
        assert isinstance(older, Pipeline)
        assert older.run(threading.Event(), until_caught_up=True).transactions == 20
        assert rows(lab.target.url("after")) == rows(url)


def test_a_table_that_is_made_while_changes_flow_is_followed_from_its_first_row(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    url = made(lab.source, "made", TABLES + FIRST_ROWS)
    with DebeziumEngine(lab.worker, lab.broker, url, "made", **schemas()) as engine:
        wait_for_copy(lab, engine)
        target = made(lab.target, "made")
        path = pipeline(tmp_path, lab, "made", target)
        run = penstock.open(path)
        assert isinstance(run, Pipeline)
        run.setup()
        engine.wait_for(write(url, 1000))
        stop = threading.Event()
        background = threading.Thread(target=follow, args=(run, stop, failures := []))
        background.start()
        wait_until(lambda: rows(target) == rows(url))
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE parts (id int PRIMARY KEY, name text)")
            connection.execute("INSERT INTO parts SELECT g, 'p' || g FROM generate_series(1, 10) g")
            connection.execute("UPDATE customers SET name = 'beside' WHERE id = 1")
            xid = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert xid is not None
        engine.wait_for(xid[0])
        background.join(60)
        assert not background.is_alive()
        assert [str(failure).split(" (")[0] for failure in failures] == ["public.parts does not exist at the target"]
        again = penstock.open(path)
        assert isinstance(again, Pipeline)
        again.setup()
        with psycopg.connect(url) as connection:
            connection.execute("ALTER TABLE customers ADD COLUMN level int")
            connection.execute("UPDATE customers SET level = 3 WHERE id = 2")
            connection.execute("DELETE FROM parts WHERE id = 3")
            xid = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert xid is not None
        engine.wait_for(xid[0])
        with psycopg.connect(target, autocommit=True) as connection:
            connection.execute("ALTER TABLE customers ADD COLUMN level int")
        progress = again.run(threading.Event(), until_caught_up=True)
        assert (progress.errors, progress.transactions) == (0, 2)
        assert rows(target, "customers", "orders", "parts") == rows(url, "customers", "orders", "parts")


SIGNALS = "CREATE SCHEMA ctl; CREATE TABLE ctl.signals (id text PRIMARY KEY, type text, data text);"

DAMAGE = """
UPDATE customers SET name = 'damaged', email = NULL WHERE id IN (50, 51);
DELETE FROM orders WHERE id BETWEEN 171 AND 190;
DELETE FROM customers WHERE id = 52;
"""
"""Rows that nothing at the source touches while the snapshot is made."""


@pytest.mark.rule("A-226")
@pytest.mark.parametrize("identity", ["FULL", "DEFAULT"])
def test_an_incremental_snapshot_beside_changes_brings_back_what_the_target_has_lost(
    lab: Lab, tmp_path: Path, spark: object, identity: str
) -> None:
    name = f"again_{identity.lower()}"
    url = made(lab.source, name, TABLES + SIGNALS)
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("customers", "orders"):
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {identity}")
        connection.execute(FIRST_ROWS)
    options = {"signal.data.collection": "ctl.signals", "incremental.snapshot.chunk.size": "40"}
    with DebeziumEngine(lab.worker, lab.broker, url, name, **schemas(), **options) as engine:
        wait_for_copy(lab, engine)
        target = made(lab.target, name)
        run = penstock.open(pipeline(tmp_path, lab, name, target))
        assert isinstance(run, Pipeline)
        run.setup()
        run.run(threading.Event(), until_caught_up=True)
        with psycopg.connect(target, autocommit=True) as connection:
            connection.execute(DAMAGE)
        write(url, 1000)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO ctl.signals VALUES ('again', 'execute-snapshot', %s)",
                ['{"data-collections": ["public.customers", "public.orders"], "type": "incremental"}'],
            )
        for part in range(2, 6):
            write(url, 1000 * part)
        # The chunk with the last row of the table that comes last.
        lab.broker.read(engine.topic("public.orders"), until=lambda records: any(map(is_last_of_snapshot, records)))
        engine.wait_for(write(url, 6000))

        progress = run.run(threading.Event(), until_caught_up=True)

        assert (progress.errors, progress.conflicts) == (0, 0)
        assert rows(target) == rows(url)
        assert run.status().backlog_changes == 0


def is_last_of_snapshot(record: Record) -> bool:
    payload = record.payload
    return bool(payload and payload["source"]["snapshot"] == "incremental" and payload["after"]["id"] > 100_000)


def wait_for_copy(lab: Lab, engine: DebeziumEngine) -> None:
    """Wait until the connector reads the log, and what it has copied before is on its topics."""
    engine.wait_for_streaming()
    lab.broker.read(engine.topic("public.customers"), count=100)
    lab.broker.read(engine.topic("public.orders"), count=300)


def follow(run: Pipeline, stop: threading.Event, failures: list[Exception]) -> None:
    try:
        run.run(stop)
    except PenstockError as exc:
        failures.append(exc)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def schemas() -> dict[str, str]:
    return {name.replace(".", "_"): value for name, value in WITH_SCHEMAS.items()}


def write(url: str, first: int) -> int:
    """Commit twenty transactions of several tables each; returns the id of the last one."""
    xid = 0
    with psycopg.connect(url) as connection:
        for n in range(20):
            connection.execute("INSERT INTO customers VALUES (%s, 'x', %s, 1.5, now())", [first + n, f"q{first + n}"])
            connection.execute("INSERT INTO orders VALUES (%s, %s, 9.99, 'hi', NULL)", [first + n, first + n])
            connection.execute("UPDATE orders SET total = total + 1, doc = NULL WHERE id = %s", [1 + n])
            connection.execute("UPDATE customers SET balance = balance * 2 WHERE id = %s", [1 + n])
            connection.execute("DELETE FROM orders WHERE id = %s", [first // 10 + n])
            if n % 5 == 0:
                connection.execute("UPDATE orders SET id = id + 100000 WHERE id = %s", [first // 20 + n])
            row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
            assert row is not None
            xid = row[0]
            connection.commit()
    return xid
