"""A connection that does not come about: why, whether it may pass, and what to do."""

from __future__ import annotations

import psycopg
import pytest

from penstock.dialects.postgres.connection import _connect_error, connect
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
