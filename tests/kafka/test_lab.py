"""The lab itself: what other tests take for granted of Kafka, Debezium, its JDBC sink, and the registry."""

from __future__ import annotations

import io
import json
import struct
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest

from tests.conftest import create_database, drop_database, numbers
from tests.kafka import jars
from tests.kafka.broker import KafkaBroker, Record
from tests.kafka.connect import ConnectWorker, DebeziumEngine, JdbcSink, avro, writing
from tests.kafka.registry import SchemaRegistry

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (
  b text, a int, customer int NOT NULL REFERENCES customers, total numeric(10, 2), PRIMARY KEY (a, b)
);
INSERT INTO customers VALUES (1, 'Anne'), (2, 'Ben');
INSERT INTO orders VALUES ('x', 1, 1, 9.90);
"""
prefixes = (f"lab{number}" for number in count(1))


class Session:
    """A connector that has seen a first copy and three transactions, and all that it wrote."""

    def __init__(self, engine: DebeziumEngine, broker: KafkaBroker, url: str) -> None:
        self.engine = engine
        with writing(url) as (connection, self.many):
            connection.execute("INSERT INTO customers VALUES (3, 'Chloé')")
            connection.execute("INSERT INTO orders VALUES ('y', 2, 3, 1.50), ('z', 2, 3, NULL)")
            connection.execute("UPDATE customers SET name = 'Ann' WHERE id = 1")
            connection.execute("DELETE FROM orders WHERE (a, b) = (1, 'x')")
        with writing(url) as (connection, self.moved):
            connection.execute("UPDATE orders SET a = 7 WHERE b = 'y'")
        with writing(url) as (connection, self.emptied):
            connection.execute("TRUNCATE orders")
        self.boundaries = engine.wait_for(self.emptied)
        self.customers = broker.read(engine.topic("public.customers"), count=4)
        self.orders = broker.read(engine.topic("public.orders"), count=9)

    def of(self, xid: int) -> list[Record]:
        """The events of a transaction, in its order; without tombstones."""
        events = [each for each in [*self.customers, *self.orders] if (each.payload or {}).get("transaction")]
        mine = [each for each in events if each.payload["transaction"]["id"].startswith(f"{xid}:")]
        return sorted(mine, key=lambda each: each.payload["transaction"]["total_order"])

    def end_of(self, xid: int) -> Any:
        (end,) = [
            each.payload
            for each in self.boundaries
            if each.payload["status"] == "END" and each.payload["id"].startswith(f"{xid}:")
        ]
        return end


@pytest.fixture(scope="module")
def session(logical_server: Any, kafka: KafkaBroker, connect_worker: ConnectWorker) -> Iterator[Session]:
    name = f"logical{next(numbers)}"
    create_database(logical_server, name)
    url = logical_server.url(name)
    with psycopg.connect(url) as connection:
        connection.execute(TABLES)
    with DebeziumEngine(connect_worker, kafka, url, next(prefixes)) as engine:
        engine.wait_for_streaming()
        yield Session(engine, kafka, url)
    drop_database(logical_server, name)


def test_rows_that_were_there_come_first_and_belong_to_no_transaction(session: Session) -> None:
    first = [each.payload for each in [*session.customers[:2], session.orders[0]]]

    assert [event["op"] for event in first] == ["r", "r", "r"]
    assert {event["transaction"] for event in first} == {None}
    assert [event["after"]["id"] for event in first[:2]] == [1, 2]
    assert {event["source"]["snapshot"] for event in first} >= {"first", "last"}


def test_a_transaction_over_two_tables_has_its_order_and_its_counts(session: Session) -> None:
    events = [each.payload for each in session.of(session.many)]

    assert [(event["op"], event["source"]["table"]) for event in events] == [
        ("c", "customers"),
        ("c", "orders"),
        ("c", "orders"),
        ("u", "customers"),
        ("d", "orders"),
    ]
    assert [event["transaction"]["data_collection_order"] for event in events] == [1, 1, 2, 2, 3]
    end = session.end_of(session.many)
    counts = {each["data_collection"]: each["event_count"] for each in end["data_collections"]}
    assert (end["event_count"], counts) == (5, {"public.customers": 2, "public.orders": 3})


def test_a_new_key_is_a_delete_a_tombstone_and_a_create_with_headers(session: Session) -> None:
    last = [each for each in session.orders if each.payload is None or each.payload["transaction"] is not None][-4:]
    deleted, tombstone, created, _ = last

    assert (deleted.payload["op"], tombstone.value, created.payload["op"]) == ("d", None, "c")
    assert deleted.key == tombstone.key == b'{"a":2,"b":"y"}'
    assert created.key == b'{"a":7,"b":"y"}'
    assert dict(deleted.headers)["__debezium.newkey"] == created.key
    assert dict(tombstone.headers)["__debezium.newkey"] == created.key
    assert dict(created.headers)["__debezium.oldkey"] == deleted.key
    assert session.end_of(session.moved)["event_count"] == 2


def test_an_emptied_table_is_an_event_without_a_key(session: Session) -> None:
    (event,) = session.of(session.emptied)

    assert (event.key, event.payload["op"], event.payload["source"]["table"]) == (None, "t", "orders")


def test_a_connector_that_was_killed_sends_again_what_it_had_not_noted(
    kafka_jars: Path, kafka: KafkaBroker, logical_database: str
) -> None:
    with psycopg.connect(logical_database) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (0)")
    settings = {"offset.flush.interval.ms": "600000"}
    with ConnectWorker(kafka, jars.connect_path(kafka_jars), settings=settings) as worker:
        engine = DebeziumEngine(worker, kafka, logical_database, next(prefixes))
        engine.start()
        kafka.read(engine.topic("public.t"), count=1)
        # Its end in good order is when it notes what it has sent, for the only time here.
        engine.stop()
        engine.start()
        with writing(logical_database) as (connection, xid):
            connection.execute("INSERT INTO t VALUES (1), (2)")
        engine.wait_for(xid)

        worker.kill()
        with writing(logical_database) as (connection, later):
            connection.execute("INSERT INTO t VALUES (3)")
        worker.start()
        engine.wait_for(later)

        events = kafka.read(engine.topic("public.t"), count=6)
        engine.remove()
    assert Counter(each.payload["after"]["id"] for each in events) == {0: 1, 1: 2, 2: 2, 3: 1}
    repeated = [each.payload for each in events if each.payload["after"]["id"] == 1]
    assert repeated[0]["transaction"] == repeated[1]["transaction"]


def test_topics_outlive_a_broker_that_was_killed(kafka: KafkaBroker) -> None:
    topic = kafka.topic("killed", partitions=2)
    kafka.produce([Record(topic, number % 2, 0, None, str(number).encode()) for number in range(10)])

    kafka.kill()
    kafka.start()

    assert [each.value for each in kafka.read(topic) if each.partition == 1] == [b"1", b"3", b"5", b"7", b"9"]


def test_a_topic_can_be_cut_and_deleted(kafka: KafkaBroker) -> None:
    topic = kafka.topic("cut")
    kafka.produce([Record(topic, 0, 0, b"k", None, [("h", b"x"), ("h", None)])] * 3)

    kafka.delete_records(topic, before=2)

    assert [each.offset for each in kafka.read(topic)] == [2]
    assert kafka.read(topic)[0].headers == (("h", b"x"), ("h", None))
    kafka.delete_topic(topic)
    assert topic not in kafka.topics()


def test_retention_cuts_a_topic(kafka: KafkaBroker) -> None:
    topic = kafka.topic("retained", retention_ms="1", segment_bytes="1048576", segment_ms="1")
    kafka.produce([Record(topic, 0, 0, None, b"old")])
    kafka.produce([Record(topic, 0, 0, None, b"new")])

    kafka.program.wait_until(lambda: kafka.oldest(topic) > 0)


def test_the_sink_applies_what_the_connector_wrote_in_avro(
    kafka: KafkaBroker,
    connect_worker: ConnectWorker,
    sink_worker: ConnectWorker,
    registry: SchemaRegistry,
    logical_database: str,
    database: str,
) -> None:
    with psycopg.connect(logical_database) as connection, psycopg.connect(database, autocommit=True) as copy:
        connection.execute(TABLES)
        copy.execute("CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL)")
    formats = avro(registry.url)
    with DebeziumEngine(connect_worker, kafka, logical_database, next(prefixes), **formats) as engine:
        engine.wait_for_streaming()
        topic = engine.topic("public.customers")
        with JdbcSink(sink_worker, database, f"sink-{engine.name}", [topic], **formats) as sink:
            with psycopg.connect(logical_database) as connection:
                connection.execute("UPDATE customers SET name = 'Ann' WHERE id = 1")
                connection.execute("DELETE FROM orders")
                connection.execute("DELETE FROM customers WHERE id = 2")

            sink.wait_until(lambda: _rows(database, "customers") == [(1, "Ann")])

    value = registry.schema(registry.subjects()[f"{topic}-value"][0])
    events = [each for each in kafka.read(topic) if each.value is not None]
    updated = next(each.value for each in events if _decode(each.value, registry)["op"] == "u")
    assert _decode(updated, registry)["after"] == {"id": 1, "name": "Ann"}
    assert value["connect.name"] == f"{topic}.Envelope"


def test_confluents_client_is_told_what_the_registry_does_not_know(
    kafka: KafkaBroker,
    connect_worker: ConnectWorker,
    sink_worker: ConnectWorker,
    registry: SchemaRegistry,
    logical_database: str,
    database: str,
) -> None:
    with psycopg.connect(logical_database) as connection, psycopg.connect(database, autocommit=True) as copy:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        copy.execute("CREATE TABLE t (id int PRIMARY KEY)")
    formats = avro(registry.url)
    name = next(prefixes)
    topic = kafka.topic(f"{name}.public.t")
    lost = registry.register(f"{topic}-key", {"type": "record", "name": "Lost", "fields": []})
    kafka.produce([Record(topic, 0, 0, struct.pack(">bI", 0, lost), None)])
    registry.forget(lost)
    only_known = {f"{part}.converter.auto.register.schemas": "false" for part in ("key", "value")}

    sink = JdbcSink(sink_worker, database, f"sink-{name}", [topic], **formats)
    sink.start()
    sink.wait_until(lambda: sink.failure() is not None)
    engine = DebeziumEngine(connect_worker, kafka, logical_database, name, **formats, **only_known)
    engine.start()
    engine.wait_until(lambda: connect_worker.state(name)[0] == "FAILED")

    assert f"Schema {lost} not found" in str(sink.failure())
    assert "error code: 40403" in str(sink.failure())
    assert "error code: 40401" in str(connect_worker.state(name)[1])
    sink.stop()
    engine.remove()


def test_the_registry_answers_as_confluents(registry: SchemaRegistry) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    schema_id = registry.register("answers-value", schema)

    assert _ask(registry, f"/schemas/ids/{schema_id}") == {"schema": json.dumps(schema)}
    assert _ask(registry, "/subjects/answers-value/versions/latest")["id"] == schema_id
    assert _ask(registry, f"/schemas/guids/{registry.guid(schema_id)}") == {"schema": json.dumps(schema)}
    assert _ask(registry, "/subjects/answers-value/versions/9")["error_code"] == 40402
    assert _ask(registry, "/subjects/none/versions/latest")["error_code"] == 40401
    assert _ask(registry, "/schemas/ids/9999")["error_code"] == 40403


def test_the_registry_serves_only_who_has_its_password(registry: SchemaRegistry) -> None:
    registry.password = "reader:secret"
    try:
        assert _ask(registry, "/subjects")["error_code"] == 401
    finally:
        registry.password = None


def test_what_was_fetched_is_what_the_lock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"broker org.pcollections:pcollections:4.0.2 {'0' * 64}\n")
    monkeypatch.setattr(jars, "LOCK", lock)
    monkeypatch.setattr(jars, "_run_ivy", lambda *args: (args[2].mkdir(), _touch(args[2])))

    with pytest.raises(RuntimeError, match=r"pcollections:4\.0\.2 is not the file that jars\.lock describes"):
        jars.fetch(tmp_path / "cache")


def _touch(folder: Path) -> None:
    (folder / "pcollections-4.0.2.jar").write_bytes(b"another")


def _rows(url: str, table: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall())


def _decode(content: bytes | None, registry: SchemaRegistry) -> Any:
    assert content is not None
    magic, schema_id = struct.unpack(">bI", content[:5])
    assert magic == 0
    return fastavro.schemaless_reader(io.BytesIO(content[5:]), registry.schema(schema_id), None)


def _ask(registry: SchemaRegistry, path: str) -> Any:
    try:
        with urllib.request.urlopen(registry.url + path) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        return json.loads(exc.read())
