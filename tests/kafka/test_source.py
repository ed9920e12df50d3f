"""PostgreSQL -> Debezium -> Kafka -> Penstock -> PostgreSQL: what a connector sends is applied by transactions."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock.errors import OperatorError
from penstock.pipeline.pipeline import Pipeline
from penstock.sources.debezium import tracker
from penstock.sources.debezium.log import Partition
from penstock.sources.debezium.scan import Stretch
from penstock.sources.debezium.tracker import Tracker
from tests.kafka.broker import Record
from tests.kafka.connect import DebeziumEngine
from tests.kafka.shop import (
    FIRST_ROWS,
    TABLES,
    Shop,
    follow,
    made,
    pipeline,
    rows,
    schemas,
    wait_for_copy,
    wait_until,
    write,
)


@pytest.mark.parametrize(("identity", "looks_in_tasks"), [("FULL", False), ("DEFAULT", True)])
def test_what_a_connector_sends_makes_the_target_the_same(
    shop: Shop, tmp_path: Path, spark: object, monkeypatch: pytest.MonkeyPatch, identity: str, looks_in_tasks: bool
) -> None:
    looked_at: list[Stretch] = []
    look_ahead = Tracker._look_ahead

    def noted(
        self: Tracker, positions: Mapping[Partition, int], stretches: Sequence[Stretch]
    ) -> Mapping[Partition, int]:
        looked_at.extend(stretches)
        return look_ahead(self, positions, stretches)

    monkeypatch.setattr(Tracker, "_look_ahead", noted)
    if looks_in_tasks:
        monkeypatch.setattr(tracker, "_FAR", 1)
        monkeypatch.setattr(tracker, "_STRETCH", 50)
    name = f"shop_{identity.lower()}"
    url = made(shop.source, name, TABLES)
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("customers", "orders"):
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {identity}")
        connection.execute(FIRST_ROWS)
    with DebeziumEngine(shop.worker, shop.broker, url, name, **schemas()) as engine:
        wait_for_copy(shop, engine)
        target = made(shop.target, name)
        run = penstock.open(pipeline(tmp_path, shop, name, target))
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
        assert bool(looked_at) == looks_in_tasks
        shop.broker.delete_topic(engine.transactions)
        with pytest.raises(OperatorError, match="transaction"):
            run.run(threading.Event(), until_caught_up=True)


def test_a_target_that_was_restored_goes_on_from_where_it_stands(shop: Shop, tmp_path: Path, spark: object) -> None:
    url = made(shop.source, "restored", TABLES + FIRST_ROWS)
    with DebeziumEngine(shop.worker, shop.broker, url, "restored", **schemas()) as engine:
        wait_for_copy(shop, engine)
        target = made(shop.target, "before")
        run = penstock.open(pipeline(tmp_path, shop, "restored", target))
        assert isinstance(run, Pipeline)
        run.setup()
        engine.wait_for(write(url, 1000))
        run.run(threading.Event(), until_caught_up=True)
        with psycopg.connect(shop.target.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'before'")
            connection.execute("CREATE DATABASE after TEMPLATE before")
        engine.wait_for(write(url, 2000))
        run.run(threading.Event(), until_caught_up=True)
        assert rows(target) == rows(url)
        # Offsets were committed for what this one does not have yet.
        older = penstock.open(pipeline(tmp_path, shop, "restored", shop.target.url("after")))
        assert isinstance(older, Pipeline)
        assert older.run(threading.Event(), until_caught_up=True).transactions == 20
        assert rows(shop.target.url("after")) == rows(url)


def test_a_table_that_is_made_while_changes_flow_is_followed_from_its_first_row(
    shop: Shop, tmp_path: Path, spark: object
) -> None:
    url = made(shop.source, "made", TABLES + FIRST_ROWS)
    with DebeziumEngine(shop.worker, shop.broker, url, "made", **schemas()) as engine:
        wait_for_copy(shop, engine)
        target = made(shop.target, "made")
        path = pipeline(tmp_path, shop, "made", target)
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
    shop: Shop, tmp_path: Path, spark: object, identity: str
) -> None:
    name = f"again_{identity.lower()}"
    url = made(shop.source, name, TABLES + SIGNALS)
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("customers", "orders"):
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {identity}")
        connection.execute(FIRST_ROWS)
    options = {"signal.data.collection": "ctl.signals", "incremental.snapshot.chunk.size": "40"}
    with DebeziumEngine(shop.worker, shop.broker, url, name, **schemas(), **options) as engine:
        wait_for_copy(shop, engine)
        target = made(shop.target, name)
        run = penstock.open(pipeline(tmp_path, shop, name, target))
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
        shop.broker.read(engine.topic("public.orders"), until=lambda records: any(map(is_last_of_snapshot, records)))
        engine.wait_for(write(url, 6000))

        progress = run.run(threading.Event(), until_caught_up=True)

        assert (progress.errors, progress.conflicts) == (0, 0)
        assert rows(target) == rows(url)
        assert run.status().backlog_changes == 0


def is_last_of_snapshot(record: Record) -> bool:
    payload = record.payload
    return bool(payload and payload["source"]["snapshot"] == "incremental" and payload["after"]["id"] > 100_000)
