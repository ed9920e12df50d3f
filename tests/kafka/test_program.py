"""`penstock run` as a program that publishes under load, killed whole, again and again."""

from __future__ import annotations

import random
from pathlib import Path

import psycopg

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.pgbench import Load, load_tables
from tests.kafka.broker import KafkaBroker
from tests.kafka.published import Published, made
from tests.program import COMMAND, Running, await_true, plain_environment


def test_a_program_that_is_killed_under_load_publishes_each_transaction_once(
    kafka: KafkaBroker, source_server: EmbeddedPostgres, spark: object, tmp_path: Path
) -> None:
    made(source_server, "killed_bank")
    load_tables(source_server, "killed_bank")
    bank = Published.of(kafka, source_server, tmp_path, "killed_bank", "", is_there=True, schemas=False)
    # What the load writes is all behind the first copy.
    bank.publish()
    command = [*COMMAND, "run", "-f", str(tmp_path / "killed_bank.yaml")]
    environment = {"PENSTOCK_CACHE": ""}
    ends = f"{bank.name}.transaction"
    with Load(source_server, "killed_bank", rate=150):
        for _ in range(2):
            kill_while_it_publishes(kafka, ends, Running(command, tmp_path, plain_environment() | environment))
    bank.publish()

    told = [record.payload["after"] for record in bank.events("pgbench_history") if record.payload["op"] == "c"]
    with psycopg.connect(bank.url) as connection:
        written = connection.execute("SELECT tid, bid, aid, delta FROM pgbench_history").fetchall()
        (balance,) = connection.execute("SELECT sum(abalance) FROM pgbench_accounts").fetchone() or (0,)
    assert sorted((row["tid"], row["bid"], row["aid"], row["delta"]) for row in told) == sorted(written)
    changed = [r.payload for r in bank.events("pgbench_accounts") if r.payload and r.payload["op"] == "u"]
    assert sum(each["after"]["abalance"] - each["before"]["abalance"] for each in changed) == balance
    assert len(changed) == len(written) > 100
    boundaries = [record.payload for record in kafka.read(ends)]
    assert [each["status"] for each in boundaries] == ["BEGIN", "END"] * len(written)
    assert all(each["event_count"] == 4 for each in boundaries[1::2])


def kill_while_it_publishes(kafka: KafkaBroker, topic: str, run: Running) -> None:
    before = len(kafka.read(topic)) if topic in kafka.topics() else 0
    with run:
        await_true(lambda: len(kafka.read(topic)) > before or not run.is_alive, 180, lambda: run.said)
        assert run.is_alive, run.said
        await_true(lambda: random.random() < 0.2)
        run.kill()
