"""PostgreSQL -> Penstock -> Kafka -> others: what was committed is published by transactions, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from penstock.errors import OperatorError, PenstockError, RetryableError
from penstock.pipeline.report import Report
from penstock.pipeline.status import PipelineState
from tests.faults.pgbench import TABLES as PGBENCH
from tests.faults.pgbench import Load, load_tables
from tests.kafka import jars
from tests.kafka.broker import KafkaBroker
from tests.kafka.connect import ConnectWorker, JdbcSink, avro
from tests.kafka.published import Published, made, texts
from tests.kafka.registry import SchemaRegistry

SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, balance numeric(10,2), at timestamptz);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL REFERENCES customers, note text, doc jsonb);
INSERT INTO customers SELECT g, 'n' || g, g / 3.0, now() FROM generate_series(1, 50) g;
INSERT INTO orders SELECT g, 1 + g % 50, NULL, '{"a": 1}' FROM generate_series(1, 80) g;
"""


@pytest.mark.parametrize("with_schemas", [True, False], ids=["with schemas", "without"])
def test_what_is_published_makes_another_database_the_same(
    kafka: KafkaBroker,
    source_server: EmbeddedPostgres,
    target_server: EmbeddedPostgres,
    spark: object,
    tmp_path: Path,
    with_schemas: bool,
) -> None:
    name = f"bank_{'with' if with_schemas else 'without'}"
    made(source_server, name)
    load_tables(source_server, name)
    shop = Published.of(kafka, source_server, tmp_path, name, "", is_there=True, schemas=with_schemas)
    stop = threading.Event()
    running = threading.Thread(target=shop.publication.run, args=(stop,))
    running.start()
    target = made(target_server, name)
    # An empty table has no events yet; and without schemas nothing says of which type a column is.
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute(HISTORY if with_schemas else HISTORY + OTHERS)
    wait_until(lambda: shop.publication.status().to_copy == 0)
    consumer = shop.consumer(target)
    consumer.setup()
    with Load(source_server, name, rate=200):
        consumer.run(threading.Event(), until_caught_up=True)
        consumer.run(threading.Event(), until_caught_up=True)
    wait_until(lambda: shop.publication.status().backlog_changes == 0)
    stop.set()
    running.join()

    progress = consumer.run(threading.Event(), until_caught_up=True)

    assert (progress.errors, progress.conflicts) == (0, 0)
    assert texts(target, *PGBENCH) == texts(shop.url, *PGBENCH)
    status = shop.publication.status()
    with psycopg.connect(shop.url) as connection:
        history = connection.execute("SELECT count(*) FROM pgbench_history").fetchone()
    assert history is not None
    assert history[0] == status.transactions > 50


HISTORY = "CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler character(22));"

OTHERS = """
CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler character(84));
CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler character(88));
CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler character(84));
"""


@pytest.fixture
def shop(kafka: KafkaBroker, source_server: EmbeddedPostgres, tmp_path: Path, spark: object) -> Published:
    return Published.of(kafka, source_server, tmp_path, f"shop{time.monotonic_ns()}", SHOP, schemas=False)


def test_a_transaction_is_told_event_by_event_between_its_begin_and_its_end(shop: Published) -> None:
    shop.publish()
    with psycopg.connect(shop.url) as connection:
        connection.execute("INSERT INTO customers VALUES (51, 'x', 1.5, '2024-02-29T11:45:59.1+00')")
        connection.execute("UPDATE orders SET note = 'gone' WHERE id = 1")
        connection.execute("DELETE FROM orders WHERE id = 2")
        connection.execute("UPDATE orders SET id = 1000 WHERE id = 3")
        connection.execute("TRUNCATE orders")

    shop.publish()

    begin, end = (record.payload for record in shop.broker.read(f"{shop.name}.transaction"))
    (inserted,) = (record.payload for record in shop.events("customers") if record.payload["op"] != "r")
    of_orders = [record for record in shop.events("orders") if not (record.payload and record.payload["op"] == "r")]
    assert (begin["status"], end["status"], end["event_count"]) == ("BEGIN", "END", 6)
    assert {each["data_collection"]: each["event_count"] for each in end["data_collections"]} == {
        "public.customers": 1,
        "public.orders": 5,
    }
    assert begin["id"] == end["id"] == inserted["transaction"]["id"]
    assert inserted["after"] == {"id": 51, "name": "x", "balance": "AJY=", "at": "2024-02-29T11:45:59.100000Z"}
    assert (inserted["before"], inserted["source"]["snapshot"], inserted["source"]["db"]) == (None, "false", shop.name)
    assert [record.payload and record.payload["op"] for record in of_orders] == ["u", "d", None, "d", None, "c", "t"]
    assert [r.payload["transaction"]["total_order"] for r in of_orders if r.payload] == [2, 3, 4, 5, 6]
    assert of_orders[0].payload["before"]["note"] is None
    assert [record.key_json for record in of_orders[1:]] == [
        {"id": 2},
        {"id": 2},
        {"id": 3},
        {"id": 3},
        {"id": 1000},
        None,
    ]
    assert [dict(record.headers) for record in of_orders[3:6]] == [
        {"__debezium.newkey": b'{"id":1000}'},
        {"__debezium.newkey": b'{"id":1000}'},
        {"__debezium.oldkey": b'{"id":3}'},
    ]


def test_a_record_that_its_topic_does_not_take_is_put_aside_until_it_does(shop: Published) -> None:
    shop.publish()
    topic = f"{shop.name}.public.orders"
    shop.broker.set_topic(topic, "max.message.bytes", "3000")
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute("UPDATE orders SET note = repeat('x', 4000) WHERE id = 1")
        connection.execute("UPDATE orders SET note = 'small' WHERE id = 2")

    shop.publish()

    (entry,) = shop.publication.errors().entries()
    assert (str(entry.table), entry.error_number) == ("public.orders", 12899)
    assert "max.message.bytes" in entry.error_message
    assert "xxx" not in entry.error_message
    assert [r.payload["after"]["id"] for r in shop.events("orders") if r.payload["op"] == "u"] == [2]
    assert [one.outcome for one in shop.publication.retry(["1"], go_on=True)] == ["failed"]

    shop.broker.set_topic(topic, "max.message.bytes", "100000")
    assert [one.outcome for one in shop.publication.retry(["1"])] == ["applied"]
    assert shop.publication.errors().entries() == []
    assert [r.payload["after"]["id"] for r in shop.events("orders") if r.payload["op"] == "u"] == [2, 1]


def test_a_run_goes_on_beside_a_person_who_deletes_an_entry(shop: Published) -> None:
    shop.publish()
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute("UPDATE customers SET balance = 'NaN' WHERE id = 1")
    stop = threading.Event()
    running = threading.Thread(target=shop.publication.run, args=(stop,))
    running.start()
    wait_until(lambda: len(shop.publication.errors().entries()) == 1)

    shop.publication.errors().delete("1")
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute("UPDATE customers SET name = 'next' WHERE id = 2")

    wait_until(lambda: [r.payload["after"]["id"] for r in shop.events("customers") if r.payload["op"] == "u"] == [2])
    stop.set()
    running.join()
    assert shop.publication.errors().entries() == []


def test_the_rows_of_the_first_copy_are_marked_and_changes_that_it_holds_are_not_told_again(shop: Published) -> None:
    shop.execute("UPDATE customers SET name = 'before the copy'")

    shop.publish()

    marks = [record.payload["source"]["snapshot"] for table in ("customers", "orders") for record in shop.events(table)]
    assert (marks.count("first"), marks.count("last"), marks.count("true")) == (1, 1, 128)
    assert shop.ops("customers") == {"r": 50}
    assert {record.payload["after"]["name"] for record in shop.events("customers")} == {"before the copy"}


def test_a_table_that_comes_later_is_copied_before_its_changes(shop: Published) -> None:
    shop.publish()
    shop.execute("CREATE TABLE parts (id int PRIMARY KEY, name text); INSERT INTO parts VALUES (1, 'a'), (2, 'b')")
    shop.again().setup()
    shop.execute("UPDATE parts SET name = 'c' WHERE id = 1; UPDATE customers SET name = 'd' WHERE id = 1")

    shop.publish()
    shop.execute("DELETE FROM parts WHERE id = 2")
    shop.publish()

    told = [(r.payload["op"], r.payload["source"]["snapshot"]) for r in shop.events("parts") if r.payload]
    assert told == [("r", "incremental"), ("r", "incremental"), ("d", "false")]
    assert shop.ops("customers") == {"r": 50, "u": 1}


def test_a_first_copy_that_is_cut_short_goes_on_as_of_the_same_moment(
    kafka: KafkaBroker,
    source_server: EmbeddedPostgres,
    target_server: EmbeddedPostgres,
    spark: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.dialects.postgres.source.copy._CHUNK_BYTES", 64 * 1024)
    monkeypatch.setattr("penstock.dialects.postgres.source.copy._SAMPLED_PERCENT", 100)
    monkeypatch.setattr("penstock.sinks.events.copy._AT_ONCE", 1)
    monkeypatch.setattr("penstock.snapshot.chunk._BUNDLE_CHUNKS", 1)
    rows = "INSERT INTO customers SELECT g, repeat('x', 100), 0, now() FROM generate_series(51, 4000) g;"
    shop = Published.of(kafka, source_server, tmp_path, "cut_short", SHOP + rows, schemas=False)
    stop = threading.Event()
    shop.publication.run(stop, StopsAfter(stop, chunks=3))
    first = shop.ops("customers")
    assert 0 < first["r"] < 4000
    assert shop.publication.status().to_copy == 2
    shop.execute("UPDATE customers SET name = 'later' WHERE id % 3 = 0; DELETE FROM customers WHERE id > 3900")
    shop.execute("INSERT INTO customers VALUES (0, 'new', 0, NULL)")

    shop.publish()

    rows_told = [
        record.payload for record in shop.events("customers") if record.payload and record.payload["op"] == "r"
    ]
    assert sorted(row["after"]["id"] for row in rows_told) == list(range(1, 4001))
    assert not any(row["after"]["name"] == "later" for row in rows_told)
    marks = [
        record.payload["source"]["snapshot"]
        for t in ("orders", "customers")
        for record in shop.events(t)
        if record.payload
    ]
    assert (marks.count("first"), marks.count("last")) == (1, 1)
    target = made(target_server, "cut_short")
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute(SHOP.partition("INSERT")[0])
    consumer = shop.consumer(target)
    consumer.setup()
    progress = consumer.run(threading.Event(), until_caught_up=True)
    assert (progress.errors, progress.conflicts) == (0, 0)
    assert texts(target, "customers", "orders") == texts(shop.url, "customers", "orders")


class StopsAfter(Report):
    """Tells a run to stop when so many chunks were copied."""

    def __init__(self, stop: threading.Event, *, chunks: int) -> None:
        super().__init__()
        self._stop, self._left = stop, chunks

    def copied(self, chunks: int, rows: int) -> None:
        self._left -= chunks
        if self._left <= 0:
            self._stop.set()


@pytest.mark.parametrize("form", ["json", "avro"])
def test_debeziums_own_sink_and_penstock_make_the_same_table(
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    sink_worker: ConnectWorker,
    source_server: EmbeddedPostgres,
    target_server: EmbeddedPostgres,
    spark: object,
    tmp_path: Path,
    form: str,
) -> None:
    asked = {"registry": {"url": registry.url}} if form == "avro" else {}
    name = f"sunk_{form}"
    shop = Published.of(kafka, source_server, tmp_path, name, SHOP, form=f"debezium-{form}", **asked)
    target = made(target_server, name, SHOP.partition("CREATE TABLE orders")[0])
    formats = avro(registry.url) if form == "avro" else {}
    with JdbcSink(sink_worker, target, f"sink-{name}", [shop.topic("customers")], **formats) as sink:
        shop.publish()
        sink.wait_until(lambda: len(texts(target, "customers")[0]) == 50)
        shop.execute("UPDATE customers SET balance = balance * 2, at = NULL WHERE id < 20")
        shop.execute("DELETE FROM orders WHERE customer > 48; DELETE FROM customers WHERE id = 49")
        shop.execute("UPDATE customers SET id = id + 1000 WHERE id = 50")
        shop.execute("INSERT INTO customers VALUES (60, E'\\U0001F600 \"\\\\', NULL, NULL)")
        shop.execute("DELETE FROM customers WHERE id = 60")

        shop.publish()

        sink.wait_until(lambda: texts(target, "customers") == texts(shop.url, "customers"))
        assert sink.failure() is None
    consumer = shop.consumer(made(target_server, f"{name}_own"), **asked)
    consumer.setup()
    consumer.run(threading.Event(), until_caught_up=True)
    assert texts(target_server.url(f"{name}_own"), "customers", "orders") == texts(shop.url, "customers", "orders")


def test_a_broker_that_is_away_for_a_while_costs_nothing(
    kafka_jars: Path, source_server: EmbeddedPostgres, spark: object, tmp_path: Path
) -> None:
    with KafkaBroker(jars.broker_path(kafka_jars)) as broker:
        shop = Published.of(broker, source_server, tmp_path, "away", SHOP, schemas=False)
        stop = threading.Event()
        running = threading.Thread(target=shop.publication.run, args=(stop,))
        running.start()
        wait_until(lambda: shop.publication.status().to_copy == 0)
        broker.kill()
        for n in range(20):
            shop.execute("UPDATE customers SET name = %s WHERE id = %s", f"away {n}", 1 + n)
        time.sleep(3)
        assert running.is_alive()

        broker.start()

        wait_until(lambda: shop.publication.status().backlog_changes == 0)
        stop.set()
        running.join()
        assert [r.payload["after"]["name"] for r in shop.events("customers") if r.payload["op"] == "u"] == [
            f"away {n}" for n in range(20)
        ]
        broker.kill()
        with pytest.raises(RetryableError, match="Kafka cannot"):
            shop.publication.status()


def test_credentials_are_not_told(
    kafka: KafkaBroker, source_server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sinks.events.kafka._ANSWER_S", 3.0)
    monkeypatch.setenv("WORD", "tiger")
    secret = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}
    with pytest.raises(PenstockError, match="Kafka cannot list topics") as caught:
        Published.of(
            kafka, source_server, tmp_path, "secret", SHOP, connection=secret | {"sasl.password": "${env:WORD}"}
        )
    assert "tiger" not in str(caught.value)


def test_a_source_that_was_set_up_anew_is_not_taken_for_the_one_that_was_published(shop: Published) -> None:
    shop.publish()
    shop.execute("DROP SCHEMA penstock_" + shop.name + " CASCADE")
    found = shop.publication.status()
    assert found.state is PipelineState.NOT_SET_UP
    assert "stream of events was filled from a capture set that is not in this database" in str(found.refused)

    with pytest.raises(OperatorError, match="stream of events was filled"):
        shop.again().setup()


def wait_until(is_so: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)
