"""A shop of two tables: what pipelines from a connector's events are tried on."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import PenstockError
from penstock.pipeline.pipeline import Pipeline
from tests.kafka.broker import KafkaBroker
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
class Shop:
    broker: KafkaBroker
    worker: ConnectWorker
    source: EmbeddedPostgres
    target: EmbeddedPostgres


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


def pipeline(
    folder: Path, shop: Shop, name: str, target: str, *, debezium: str = "", kafka: str = "", apply: str = ""
) -> Path:
    """Write a pipeline file; `debezium`, `kafka` and `apply` are more settings of these parts, `a: 1, b: 2`."""
    kafka = kafka or f'bootstrap.servers: "{shop.broker.address}"'
    path = folder / "pipeline.yaml"
    path.write_text(f"""
version: 1
name: {name}
connections:
  events: {{type: kafka, settings: {{{kafka}}}}}
  target: {{type: postgres, url: "{target}"}}
capture:
  source: debezium
  connection: events
  debezium: {{prefix: {name}, {debezium}}}
  tables: ["public.*"]
apply: {{connection: target, {apply}}}
""")
    return path


def wait_for_copy(shop: Shop, engine: DebeziumEngine) -> None:
    """Wait until the connector reads the log, and what it has copied before is on its topics."""
    engine.wait_for_streaming()
    shop.broker.read(engine.topic("public.customers"), count=100)
    shop.broker.read(engine.topic("public.orders"), count=300)


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
