"""Connections: one way to open them, one way to name them in a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.dialects.postgres.errors import from_sqlstate, translate
from penstock.errors import ConfigError, PenstockError

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

CANONICAL_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "xmloption": "content",
    "standard_conforming_strings": "on",
    # Where row-level security would hide rows from this user, fail instead.
    "row_security": "off",
    # What a role or database limits for its interactive users would end our work half-way, again and again.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    # Have the server notice within a minute that a client is gone without a word, and give up its locks.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""Session settings under which a type's text is canonical text, and nothing is left out; capture functions set those
they need."""

RAW_FORM = "postgres copy text"
"""Rows as COPY writes and reads them under these settings."""

_REFUSALS = {
    "password": "28P01",
    "pg_hba.conf": "28000",
    'role "': "28000",
    "does not exist": "3D000",
}
"""What libpq's text says of a server that answered and refused, and the SQLSTATE it stands for."""


def label(url: str) -> str:
    """Name a connection without its password: `shop on db1:5432 as penstock`.

    Raises:
        ConfigError: The url is not one that libpq reads.
    """
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error as exc:
        raise ConfigError("connection url is not a libpq url", do="write postgresql://user@host:port/database") from exc
    host = parts.get("host") or parts.get("hostaddr") or "localhost"
    port = f":{parts['port']}" if parts.get("port") else ""
    user = f" as {parts['user']}" if parts.get("user") else ""
    return f"database {parts.get('dbname') or parts.get('user') or 'default'} on {host}{port}{user}"


def conninfo(url: str, application_name: str, settings: Mapping[str, str] = {}) -> str:
    """A connection string any libpq client takes: bounded waiting, dead peers noticed, canonical text.

    `settings` are further session settings, such as `{"enable_seqscan": "off"}`.
    """
    options = " ".join(f"-c {name}={value}" for name, value in {**CANONICAL_SETTINGS, **settings}.items())
    given = conninfo_to_dict(url)
    return make_conninfo(
        url,
        application_name=application_name,
        connect_timeout=given.get("connect_timeout") or 10,
        options=f"{given.get('options') or ''} {options}".strip(),
        client_encoding="UTF8",
        keepalives_idle=given.get("keepalives_idle") or 30,
        keepalives_interval=given.get("keepalives_interval") or 10,
        keepalives_count=given.get("keepalives_count") or 3,
        tcp_user_timeout=given.get("tcp_user_timeout") or 60_000,
    )


def connect(url: str, application_name: str) -> Connection:
    """Open a session with canonical text settings, autocommit, and no automatic prepared statements.

    Prepared plans are left out because a plan made while a staging table was small is wrong when it is large.

    Raises:
        RetryableError: The server does not answer.
        OperatorError: It answers, and refuses.
    """
    try:
        return psycopg.connect(conninfo(url, application_name), autocommit=True, prepare_threshold=None)
    except psycopg.Error as exc:
        raise _connect_error(exc, url) from exc


@contextmanager
def speaking(doing: str, url: str) -> Iterator[None]:
    """Turn any database error inside into ours, saying what was being done and where."""
    try:
        yield
    except psycopg.Error as exc:
        raise translate(exc, doing=doing, where=label(url)) from exc


def at_once(connection: Connection, *statements: str) -> list[int]:
    """Run statements as one transaction, sent as one query; returns how many rows each one touched.

    A client that is lost between two queries of a transaction leaves its locks behind until the server hears of it,
    and everybody who needs them waits. `connection` is outside a transaction, in autocommit mode.
    """
    cursor = connection.execute("; ".join(statements))
    counts = [cursor.rowcount]
    while cursor.nextset():
        counts.append(cursor.rowcount)
    return counts


def quote(*names: str) -> str:
    """Quote and join the parts of a name: `quote("public", "Order")` is `"public"."Order"`."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(value: str) -> str:
    """Quote a text constant."""
    return sql.Literal(value).as_string(None)


def _connect_error(exc: psycopg.Error, url: str) -> PenstockError:
    """The error for a connection that did not come about; libpq has no SQLSTATE for those, only its text."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    refused = next((line.split("FATAL:", 1)[1].strip() for line in lines if "FATAL:" in line), "")
    # The rest of libpq's line repeats host and port.
    reason = refused or next((line.rpartition("failed: ")[2] for line in lines if "failed: " in line), "no answer")
    for sign, sqlstate in _REFUSALS.items():
        if sign in str(exc):
            return from_sqlstate(sqlstate, doing="connect", where=label(url), reason=reason)
    return from_sqlstate(None, doing="connect", where=label(url), reason=reason)
