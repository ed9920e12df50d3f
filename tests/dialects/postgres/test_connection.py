"""A connection that does not come about: why, whether it may pass, and what to do."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.dialects.postgres.connection import _connect_error, connect, conninfo, database_of, label
from penstock.errors import OperatorError, PenstockError, RetryableError

FAILED = 'connection failed: connection to server at "192.0.2.1", port 5432 failed: '

SAID: dict[str, tuple[str, type[PenstockError], str]] = {
    "no such host": (
        "failed to resolve host 'db.invalid': [Errno -2] Name or service not known",
        RetryableError,
        "no host of this name is found",
    ),
    "refused": (f"{FAILED}Connection refused\n\tIs the server running?", RetryableError, "is up and reachable"),
    "all sessions taken": (f"{FAILED}FATAL:  sorry, too many clients already", RetryableError, "close other sessions"),
    "last sessions": (
        f"{FAILED}FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        RetryableError,
        "close other sessions",
    ),
    "no TLS": (f"{FAILED}server does not support SSL, but SSL was required", OperatorError, "sslmode"),
    "no root certificate": (
        f'{FAILED}root certificate file "/home/a/.postgresql/root.crt" does not exist\nEither provide the file, or',
        OperatorError,
        "sslrootcert",
    ),
    "another's certificate": (f"{FAILED}SSL error: certificate verify failed", OperatorError, "sslrootcert"),
    "no client's certificate": (
        f"{FAILED}FATAL:  connection requires a valid client certificate",
        OperatorError,
        "check the user",
    ),
}


@pytest.mark.parametrize(("text", "kind", "says"), SAID.values(), ids=SAID)
def test_what_libpq_says_is_told_as_what_to_do(text: str, kind: type[PenstockError], says: str) -> None:
    error = _connect_error(psycopg.OperationalError(text), "postgresql://app@db.invalid/shop")
    assert type(error) is kind
    assert says in str(error).lower()


def test_a_role_with_all_its_sessions_has_no_wrong_password(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as server:
        server.execute("CREATE ROLE busy LOGIN CONNECTION LIMIT 0")
        try:
            with pytest.raises(RetryableError, match=r'too many connections for role "busy".*Close other sessions'):
                connect(database.replace("postgres@", "busy@"), "test")
        finally:
            server.execute("DROP ROLE busy")


def test_a_server_without_tls_is_not_waited_for(database: str) -> None:
    with pytest.raises(OperatorError, match="See what sslmode"):
        connect(f"{database}?sslmode=require", "test")


SERVICES = """\
[other]
host=elsewhere
# the shop's
[shop]
host=db1
port=5433
user=app
dbname=orders
password=SECRET
options=-c work_mem=17MB
"""


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "services.conf"
    file.write_text(SERVICES)
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    return file


@pytest.mark.parametrize("url", ["service=shop", "postgresql:///?service=shop"])
def test_a_connection_by_service_is_called_what_its_file_says(services: Path, url: str) -> None:
    assert label(url) == "database orders on db1:5433 as app, service shop"
    assert label(f"{url}{'&' if '?' in url else ' '}host=db2") == "database orders on db2:5433 as app, service shop"
    assert database_of(url) == "orders"


def test_a_service_of_the_environment_is_named(services: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSERVICE", "shop")
    assert label("postgresql://") == "database orders on db1:5433 as app, service shop"


def test_a_service_that_is_in_no_file_is_named_as_such(services: Path) -> None:
    assert label("service=nowhere") == "service nowhere"


def test_the_settings_of_a_service_stay_beside_ours(services: Path) -> None:
    options = str(conninfo_to_dict(conninfo("service=shop", "test"))["options"])
    assert options.startswith("-c work_mem=17MB -c datestyle=ISO")


def test_a_service_that_does_not_answer_is_named(services: Path) -> None:
    services.write_text(SERVICES.replace("host=db1", "host=127.0.0.1").replace("port=5433", "port=1"))
    with pytest.raises(RetryableError, match=r"database orders on 127\.0\.0\.1:1 as app, service shop") as caught:
        connect("service=shop", "test")
    assert "SECRET" not in str(caught.value)
