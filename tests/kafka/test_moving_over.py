"""Moving over from Debezium's JDBC sink, as docs/migrate/debezium-jdbc-sink.md has it."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg

from penstock.pipeline_file import load
from penstock.wiring import open_pipeline
from tests.kafka.connect import ConnectWorker, DebeziumEngine, JdbcSink
from tests.kafka.shop import FIRST_ROWS, TABLES, Shop, made, pipeline, rows, schemas, wait_for_copy, write


def test_penstock_takes_the_place_of_debezium_s_sink(
    shop: Shop, sink_worker: ConnectWorker, spark: object, tmp_path: Path
) -> None:
    source = made(shop.source, "sink_moves", TABLES + FIRST_ROWS)
    # Upserts come topic by topic, so a sink's tables have no foreign keys.
    target = made(shop.target, "sink_moved", TABLES.replace("REFERENCES customers", ""))
    before = DebeziumEngine(shop.worker, shop.broker, source, "sink_moves", **schemas())
    topics = [before.topic("public.customers"), before.topic("public.orders")]
    with before:
        with JdbcSink(sink_worker, target, "sink_moves_sink", topics) as sink:
            wait_for_copy(shop, before)
            write(source, 1000)
            sink.wait_until(lambda: rows(target) == rows(source))
        # The sink is stopped; the application goes on.
        write(source, 2000)
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute("TRUNCATE customers, orders")
    with DebeziumEngine(shop.worker, shop.broker, source, "sink_moves_anew", **schemas()) as connector:
        connector.wait_for_streaming()
        xid = write(source, 3000)
        connector.wait_for(xid)
        moved = open_pipeline(load(pipeline(tmp_path, shop, connector.name, target)))
        moved.setup()
        moved.run(threading.Event(), until_caught_up=True)
        assert rows(target) == rows(source)
        connector.wait_for(write(source, 4000))
        moved.run(threading.Event(), until_caught_up=True)

    assert rows(target) == rows(source)
    assert moved.status().errors == 0
