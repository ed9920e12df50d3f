"""Whatever is killed between a connector and the target, under load: nothing is lost, doubled or torn."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.faults.watching import Watcher
from tests.kafka import jars
from tests.kafka.broker import KafkaBroker
from tests.kafka.connect import ConnectWorker, DebeziumEngine
from tests.kafka.shop import Shop, made, pipeline, rows, schemas
from tests.program import COMMAND, Running, await_true, plain_environment, prepared_start

TABLES = """
CREATE TABLE debits (id int PRIMARY KEY, v int NOT NULL, n int NOT NULL);
CREATE TABLE credits (id int PRIMARY KEY, v int NOT NULL, n int NOT NULL);
CREATE TABLE journal (id int PRIMARY KEY, who int NOT NULL);
ALTER TABLE debits REPLICA IDENTITY FULL;
ALTER TABLE credits REPLICA IDENTITY FULL;
INSERT INTO debits SELECT g, 0, 0 FROM generate_series(1, 50) g;
INSERT INTO credits SELECT g, 0, 0 FROM generate_series(1, 50) g;
INSERT INTO journal VALUES (0, 0);
"""

TORN = """
SELECT (SELECT sum(v) FROM debits) + (SELECT sum(v) FROM credits),
       (SELECT sum(n) FROM debits) - (SELECT count(*) FROM journal) + 1,
       (SELECT sum(n) FROM credits) - (SELECT count(*) FROM journal) + 1
"""
"""Noughts between any two transactions of the load."""

KILLS = [pytest.param(10, id="10 kills each")]


class Load(Watcher):
    """Books amounts from one account to another, each with an entry in the journal, one transaction each."""

    def __init__(self, url: str, chance: random.Random) -> None:
        super().__init__("load")
        self._url, self._chance = url, chance
        self.booked = 0
        self.last = 0

    def watch(self, ended: threading.Event) -> None:
        with psycopg.connect(self._url) as connection:
            while not ended.wait(0.004):
                amount, one, other = (self._chance.randint(1, most) for most in (100, 50, 50))
                self.booked += 1
                for table, id_, sign in (("debits", one, 1), ("credits", other, -1)):
                    sql = f"UPDATE {table} SET v = v + %s, n = n + 1 WHERE id = %s"
                    connection.execute(sql, [sign * amount, id_])
                connection.execute("INSERT INTO journal VALUES (%s, %s)", [self.booked, one])
                row = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
                assert row is not None
                self.last = row[0]
                connection.commit()


class Witness(Watcher):
    """Looks at the target all the time, and fails at half a transaction."""

    def __init__(self, url: str) -> None:
        super().__init__("witness")
        self._url = url
        self.looks = 0

    def watch(self, ended: threading.Event) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not ended.wait(0.002):
                seen = connection.execute(TORN).fetchone()
                assert seen == (0, 0, 0), f"half a transaction: {seen}"
                self.looks += 1


class Scene:
    """A pipeline at work as a program of its own; it is ended with the block."""

    def __init__(self, folder: Path, shop: Shop, target: str, chance: random.Random) -> None:
        self.shop, self.chance = shop, chance
        self._folder = folder
        self._file = pipeline(folder, shop, "faults", target)
        self._environment = plain_environment() | {"PENSTOCK_CACHE": prepared_start()}

    def __enter__(self) -> "Scene":
        setup = self._begin("setup")
        assert setup.wait() == 0, setup.said
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.run.is_alive:
            self.run.kill()

    def start(self) -> None:
        self.run = self._begin("run")
        self.run.await_line("following", 150)

    def pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self.chance.uniform(least_s, most_s))

    def _begin(self, command: str) -> Running:
        return Running([*COMMAND, "-f", str(self._file), command], self._folder, self._environment)


def kill_run(scene: Scene) -> None:
    scene.run.kill()
    scene.pause(0, 1)
    scene.start()


def kill_connector(scene: Scene) -> None:
    scene.shop.worker.kill()
    scene.pause(0, 1)
    scene.shop.worker.start()


def kill_broker(scene: Scene) -> None:
    scene.shop.broker.kill()
    scene.pause(0, 3)
    scene.shop.broker.start()


def kill_task(scene: Scene) -> None:
    """Kill one of the Python processes in which Spark's tasks run."""
    await_true(lambda: bool(workers(scene)), 60)
    with contextlib.suppress(psutil.NoSuchProcess, IndexError):
        scene.chance.choice(workers(scene)).kill()


def workers(scene: Scene) -> list[psutil.Process]:
    """The children of Spark's Python daemons."""
    return [
        process
        for process in psutil.Process(scene.run.pid).children(recursive=True)
        if (parent := process.parent()) is not None
        and "python" in process.name()
        and "python" in parent.name()
        and parent.pid != scene.run.pid
    ]


FAULTS = (kill_run, kill_connector, kill_broker, kill_task)


@pytest.fixture
def own_shop(kafka_jars: Path, logical_server: EmbeddedPostgres, target_server: EmbeddedPostgres) -> Iterator[Shop]:
    """A broker and a worker that may be killed."""
    with (
        KafkaBroker(jars.broker_path(kafka_jars)) as broker,
        ConnectWorker(broker, jars.connect_path(kafka_jars)) as worker,
    ):
        yield Shop(broker, worker, logical_server, target_server)


@pytest.mark.soak
@pytest.mark.parametrize("kills", KILLS)
def test_killed_at_random_under_load_nothing_is_lost_doubled_or_torn(
    own_shop: Shop, tmp_path: Path, kills: int
) -> None:
    chance = random.Random(int(os.environ.get("PENSTOCK_SEED", "7")))
    url, target = made(own_shop.source, "faults", TABLES), made(own_shop.target, "faults_copy")
    strikes: list[Callable[[Scene], None]] = [strike for strike in FAULTS for _ in range(kills)]
    chance.shuffle(strikes)
    with DebeziumEngine(own_shop.worker, own_shop.broker, url, "faults", **schemas()) as engine:
        engine.wait_for_streaming()
        own_shop.broker.read(engine.topic("public.journal"), count=1)
        with Scene(tmp_path, own_shop, target, chance) as scene, Load(url, chance) as load, Witness(target) as witness:
            for strike in strikes:
                scene.pause(1, 3)
                strike(scene)
            # The load goes on for a while after the last one.
            scene.pause(3, 3)
            load.end()
            engine.wait_for(load.last, timeout_s=120)
            tables = ("debits", "credits", "journal")
            await_true(
                lambda: rows(target, *tables) == rows(url, *tables) or not scene.run.is_alive,
                150,
                lambda: scene.run.said,
            )
            assert rows(target, *tables) == rows(url, *tables), scene.run.said
            assert scene.run.end() == 0, scene.run.said
    assert "Traceback" not in scene.run.said
    assert load.booked > 100 * kills
    assert witness.looks > 100
    with psycopg.connect(target) as connection:
        assert connection.execute("SELECT count(*) FROM penstock.error").fetchone() == (0,)
