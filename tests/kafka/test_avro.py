"""Events in Avro, whose schemas are in a registry, make the target what events in JSON make it."""

import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock import schema_registry
from penstock.errors import OperatorError, PenstockError
from penstock.pipeline.pipeline import Pipeline
from tests.kafka.broker import Record
from tests.kafka.connect import DebeziumEngine, avro
from tests.kafka.registry import SchemaRegistry
from tests.kafka.shop import FIRST_ROWS, TABLES, Shop, made, pipeline, rows, wait_for_copy, wait_until, write

ALL_TYPES = """
CREATE TABLE kinds (
  id int PRIMARY KEY, s smallint, l bigint, r real, d double precision, n numeric(12,3), m numeric, b boolean,
  t text, c char(5), v bytea, dt date, tm time, ts timestamp, tz timestamptz, i interval, u uuid, j jsonb, a int[],
  w text[], bi bit(9)
);
INSERT INTO kinds VALUES (1, -7, 9007199254740993, 0.1, 1e300, -1.280, 123456789012345678901234567890.10, true,
  E'ä😀\\n"', 'x', '\\xdeadbeef00', '2024-02-29', '13:45:59.123456', '2024-02-29 13:45:59.1',
  '2024-02-29 13:45:59.1+02', '1 day 02:03:04', 'b68a35a7-17ad-35b3-af2a-ae46edb4545a', '{"b": null}',
  '{1,NULL,3}', '{a,NULL,"c d"}',
  '101010101');
INSERT INTO kinds (id) VALUES (2);
"""


def test_what_a_connector_sends_in_avro_makes_the_target_the_same(
    shop: Shop, registry: SchemaRegistry, tmp_path: Path, spark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hush")
    url = made(shop.source, "avro", TABLES + ALL_TYPES)
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("customers", "orders", "kinds"):
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        connection.execute(FIRST_ROWS)
    with DebeziumEngine(shop.worker, shop.broker, url, "avro", **avro(registry.url)) as engine:
        wait_for_copy(shop, engine)
        target = made(shop.target, "avro")
        registry.password = "reader:hush"
        given = f'url: "{registry.url}", user: reader, password: "${{env:REGISTRY_PASSWORD}}"'
        run = penstock.open(pipeline(tmp_path, shop, "avro", target, debezium=f"registry: {{{given}}}"))
        assert isinstance(run, Pipeline)
        run.setup()
        run.run(threading.Event(), until_caught_up=True)
        assert rows(target, "customers", "orders", "kinds") == rows(url, "customers", "orders", "kinds")

        registry.password = None
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE kinds SET s = 8, n = 7, v = NULL, a = '{}', w = NULL, j = '[]' WHERE id = 1")
            connection.execute("INSERT INTO kinds (id, a, w) VALUES (3, '{2}', '{x}')")
            connection.execute("ALTER TABLE kinds ADD COLUMN more text")
            connection.execute("UPDATE kinds SET more = 'm' WHERE id = 2")
        wait_for_end(shop, engine, write(url, 1000))
        with psycopg.connect(target, autocommit=True) as connection:
            connection.execute("ALTER TABLE kinds ADD COLUMN more text")
        progress = run.run(threading.Event(), until_caught_up=True)

        assert (progress.errors, progress.conflicts) == (0, 0)
        assert rows(target, "customers", "orders", "kinds") == rows(url, "customers", "orders", "kinds")


def test_a_registry_that_is_down_is_waited_for_and_told_once(
    shop: Shop, tmp_path: Path, spark: object, caplog: pytest.LogCaptureFixture
) -> None:
    url = made(shop.source, "avro_down", TABLES + FIRST_ROWS)
    with (
        SchemaRegistry() as registry,
        DebeziumEngine(shop.worker, shop.broker, url, "avro_down", **avro(registry.url)) as engine,
    ):
        wait_for_copy(shop, engine)
        target = made(shop.target, "avro_down")
        path = pipeline(tmp_path, shop, "avro_down", target, debezium=f'registry: {{url: "{registry.url}"}}')
        opened(path).setup()
        opened(path).run(threading.Event(), until_caught_up=True)
        wait_for_end(shop, engine, write(url, 1000))
        registry.stop()
        forget_schemas()

        with caplog.at_level("INFO", "penstock"), opened(path).start():
            wait_until(lambda: "the schema registry is out of reach" in caplog.text)
            time.sleep(2.5)
            registry.start()
            wait_until(lambda: rows(target) == rows(url))

    assert caplog.text.count("the schema registry is out of reach") == 1
    assert "connected again" in caplog.text


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b'{"op": "c"}', "it looks like JSON.*without capture.debezium.registry"),
        (b"plain", "not Avro with the id of a registered schema"),
        (struct.pack(">bI", 0, 999_999) + b"x", "does not know schema 999999"),
    ],
)
def test_bytes_that_are_no_avro_are_named_with_their_place(
    shop: Shop, registry: SchemaRegistry, tmp_path: Path, value: bytes, says: str
) -> None:
    name = f"no_avro_{len(value)}"
    topic = shop.broker.topic(f"{name}.public.t")
    shop.broker.produce([Record(topic, 0, 0, None, value)])
    path = pipeline(tmp_path, shop, name, shop.target.url(), debezium=f'registry: {{url: "{registry.url}"}}')

    with pytest.raises(PenstockError, match=says) as refused:
        opened(path).setup()

    assert f"topic {topic}, partition 0, offset 0" in str(refused.value)


def test_a_registry_that_refuses_the_credentials_is_told_from_one_that_is_down(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hush")
    topic = shop.broker.topic("refused.public.t")
    with SchemaRegistry() as registry:
        id_ = registry.register(f"{topic}-value", '"string"')
        shop.broker.produce([Record(topic, 0, 0, None, struct.pack(">bI", 0, id_) + b"\x02x")])
        registry.password = "reader:another"
        given = f'url: "{registry.url}", user: reader, password: "${{env:REGISTRY_PASSWORD}}"'
        path = pipeline(tmp_path, shop, "refused", shop.target.url(), debezium=f"registry: {{{given}}}")
        forget_schemas()

        with pytest.raises(OperatorError, match=r"refuses the credentials.*Correct user and password") as refused:
            opened(path).setup()

    assert "hush" not in str(refused.value)


def opened(path: Path) -> Pipeline:
    run = penstock.open(path)
    assert isinstance(run, Pipeline)
    return run


def forget_schemas() -> None:
    """Begin as a process of its own does, which has asked for no schema yet."""
    schema_registry._schema.cache_clear()


def wait_for_end(shop: Shop, engine: DebeziumEngine, xid: int) -> None:
    """Wait until the END of a transaction is on its topic, whatever it is written in."""

    def is_there(records: Sequence[Record]) -> bool:
        return any(b"END" in (each.value or b"") and f"{xid}:".encode() in (each.value or b"") for each in records)

    shop.broker.read(engine.transactions, until=is_there, timeout_s=60)
