"""Connections: one way to open them, one way to name them in a message, without password or any other secret."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias
from urllib.parse import unquote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.dialects.postgres.errors import from_sqlstate, translate
from penstock.dialects.postgres.service_file import read_service
from penstock.dialects.postgres.session_check import (
    INSTEAD,
    POOLERS,
    check_query,
    differing,
    not_held,
    pools_transactions,
    repair_query,
    shares_sessions,
)
from penstock.errors import ConfigError, OperatorError, PenstockError

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

CANONICAL_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "xmloption": "content",
    "lc_monetary": "C",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    # Names and operators are looked up here only: any user may create objects in other schemas.
    "search_path": "pg_catalog,pg_temp",
    # Where row-level security would hide rows from this user, fail instead.
    "row_security": "off",
    # Limits that a role or database sets for interactive users would end our work half-way, again and again.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read\\ committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # Compiling a query of the catalogue takes many times as long as running it.
    "jit": "off",
    # Have the server notice within a minute that a client is gone without a word, and give up its locks.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""Session settings under which a type's text is canonical text, and nothing is left out; capture functions set those
they need."""

COPY_LOCK_WAIT = "30s"
"""How long the first copy waits for a table, at either side; it goes on without the table then, and comes back."""

WITHOUT_VIEWS = (
    "SELECT set_config(name, 'view', false) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind'"
)
"""Has a session refuse to read views. A session that reads tables of other roles by name needs that: their owner
may put a view in a table's place meanwhile, whose functions would run with the reader's rights (CVE-2024-7348). Minor
releases from before August 2024 cannot."""

RAW_FORM = "postgres copy text"
"""Rows as COPY writes and reads them under these settings."""

_REFUSALS = {
    # Before 'role', which one of these names.
    "too many connections": "53300",
    "too many clients": "53300",
    "connection slots": "53300",
    "password": "28P01",
    "pg_hba.conf": "28000",
    'role "': "28000",
    "certificate": "28000",
    "does not exist": "3D000",
    # PgBouncer's own.
    "no more connections allowed": "53300",
    "no such user": "28000",
    "no such database": "3D000",
}
"""What libpq's text says of a server that answered and refused, and the SQLSTATE it stands for."""

_NO_OPTIONS = ("unsupported startup parameter", "command-line options")
"""What a pooler says that does not pass settings on: PgBouncer, and RDS Proxy."""

_sessions_of_their_own: set[str] = set()
"""Urls that lead through a pooler of which this process knows that it pools by session."""

_NOT_TRUSTED = ("SSL was required", "certificate")
"""What libpq's text says of a server that could not give what `sslmode` asks for."""


def label(url: str) -> str:
    """Name a connection, redacted, without its password: `shop on db1:5432 as penstock`.

    Raises:
        ConfigError: The url is not one that libpq reads, or may be read in two ways.
    """
    parts = _parts(url)
    service = parts.get("service")
    if service and not parts.keys() & {"host", "hostaddr", "dbname", "user"}:
        # Its file is not here, or not readable.
        return f"service {service}"
    host = parts.get("host") or parts.get("hostaddr") or "localhost"
    port = f":{parts['port']}" if parts.get("port") else ""
    user = f" as {parts['user']}" if parts.get("user") else ""
    by = f", service {service}" if service else ""
    return f"database {parts.get('dbname') or parts.get('user') or 'default'} on {host}{port}{user}{by}"


def place_of(url: str) -> tuple[str, int, str]:
    """Host, port and database that a url names, or libpq's defaults; raises as `label`."""
    parts = _parts(url)
    host = str(parts.get("host") or parts.get("hostaddr") or "localhost").split(",")[0]
    port = str(parts.get("port") or "").split(",")[0].strip() or "5432"
    return host, int(port), str(parts.get("dbname") or parts.get("user") or "default")


def database_of(url: str) -> str | None:
    """What the database is called, as far as a url or its service says it; raises as `label`."""
    name = _parts(url).get("dbname")
    return None if name is None else str(name)


def secrets_of(url: str) -> list[str]:
    """Return the secrets that a url, or its service, holds; raises as `label`."""
    parts = _parts(url)
    return [str(parts[name]) for name in ("password", "sslpassword") if parts.get(name)]


def referring_url_of(url: str, prefix: str) -> tuple[str, dict[str, str]]:
    """Return a url whose password is a reference to the variable `<prefix>_PASSWORD`, and the password by that name.

    A url without a password, or with references already, stays as it is. Where a secret stands elsewhere than behind
    the user, all of the url becomes a reference to `<prefix>_URL`.

    Raises:
        ConfigError: The url is not one that libpq reads, or may be read in two ways.
    """
    if "${" in url or not secrets_of(url):
        return url, {}
    scheme, is_url, rest = url.partition("://")
    user, colon, behind = rest.partition(":")
    password, at, others = behind.partition("@")
    if is_url and colon and at and not {"/", "?", "@"} & set(user) and len(secrets_of(url)) == 1:
        return f"{scheme}://{user}:${{env:{prefix}_PASSWORD}}@{others}", {f"{prefix}_PASSWORD": unquote(password)}
    return f"${{env:{prefix}_URL}}", {f"{prefix}_URL": url}


def _parts(url: str) -> dict[str, Any]:
    """What a url says, and the service that it names; once it is sure that no part of a password is shown.

    libpq ends a password at the first `@` and a host at the first `/`, so of a password that holds one of them, and was
    not percent-encoded, it takes a part for the host or the database: names that are shown.
    """
    advice = "write postgresql://user:password@host:port/database, with %40 for '@', %2F for '/', %3F for '?' in a part"
    is_clear = True
    scheme, is_url, rest = url.partition("://")
    if is_url and scheme.strip() in ("postgresql", "postgres"):
        user, at, others = rest.partition("@")
        is_clear = "@" not in others and not (at and ("/" in user or "?" in user))
    try:
        parts = conninfo_to_dict(url)
        service = parts.get("service") or os.environ.get("PGSERVICE")
        if service:
            parts = {**read_service(str(service)), **parts, "service": service}
    except (psycopg.Error, UnicodeError):
        # Its text repeats what it could not read.
        parts = None
    if parts is None or not is_clear or not _is_plausible(parts):
        raise ConfigError("connection url is not a libpq url, or may be read in two ways", do=advice)
    return parts


def _is_plausible(parts: Mapping[str, Any]) -> bool:
    """Whether what a label shows can be what it is called; else a password may have come along in one secret."""
    host, port, user, database = (str(parts.get(name) or "") for name in ("host", "port", "user", "dbname"))
    service = str(parts.get("service") or "")
    return (
        all(_is_host(one) for one in host.split(","))
        and all(not one.strip() or one.strip().isdecimal() for one in port.split(","))
        and ":" not in user
        and not re.search(r"://|password\s*=", f"{user} {database} {service}", re.IGNORECASE)
    )


def _is_host(host: str) -> bool:
    """Whether a text may be a host: a name, an address, or the folder of a socket."""
    is_folder = host.startswith(("/", "@"))
    return is_folder or (not re.search(r"[/@?\s]", host) and (":" not in host or _is_address(host)))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def conninfo(url: str, application_name: str, settings: Mapping[str, str] = {}) -> str:
    """A connection string any libpq client takes: bounded waiting, dead peers noticed, canonical text.

    `settings` are further session settings, such as `{"enable_seqscan": "off"}`.
    """
    options = " ".join(f"-c {name}={value}" for name, value in asked(settings).items())
    given = _parts(url)
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


def asked(settings: Mapping[str, str] = {}) -> Mapping[str, str]:
    """The settings that a session is asked for; values as they stand in `options`."""
    return {**CANONICAL_SETTINGS, **settings}


def repair(url: str, settings: Mapping[str, str] = {}) -> str:
    """A query that gives a session what was asked for, where that got lost on the way."""
    return repair_query(asked(settings), str(_parts(url).get("options") or ""))


def connect(url: str, application_name: str) -> Connection:
    """Open a session with canonical text settings, autocommit, and no automatic prepared statements.

    Prepared plans are left out because a plan made while a staging table was small is wrong when it is large.

    Raises:
        RetryableError: The server does not answer.
        OperatorError: It answers, and refuses; or a pooler is between that gives no session.
    """
    whole = conninfo(url, application_name)
    try:
        connection = psycopg.connect(whole, autocommit=True, prepare_threshold=None)
        try:
            _check(connection, url, whole)
        except BaseException:
            connection.close()
            raise
    except psycopg.Error as exc:
        raise _connect_error(exc, url) from exc
    return connection


def plainly(url: str) -> Connection:
    """Open a session as any other program has it, with the settings that the server gives by itself.

    Raises:
        psycopg.Error: It cannot be opened.
    """
    return psycopg.connect(make_conninfo(url, application_name="penstock doctor", connect_timeout=3), autocommit=True)


def _check(connection: Connection, url: str, whole: str) -> None:
    """Make sure that a connection is a session, and has the settings that were asked for; see `session_check`."""
    pid, _, held = _row(connection, check_query(asked()))
    # A pooler has process ids of its own to cancel by.
    if pid != connection.info.backend_pid and url not in _sessions_of_their_own:
        if shares_sessions(connection, whole, pid):
            raise pools_transactions(label(url))
        _sessions_of_their_own.add(url)
    if differing(asked(), held):
        _repair(connection, url)


def hold_settings(connection: Connection, url: str) -> None:
    """Give a session that was used before the settings that were asked for; one of `connect`, outside a transaction.

    Raises:
        OperatorError: It does not keep them.
    """
    *_, held = _row(connection, check_query(asked()))
    if differing(asked(), held):
        _repair(connection, url)


def _repair(connection: Connection, url: str) -> None:
    connection.execute(repair(url))
    *_, held = _row(connection, check_query(asked()))
    if lost := differing(asked(), held):
        raise not_held(lost, label(url))


def _row(connection: Connection, query: str) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row


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
    and other sessions that need them wait. `connection` is outside a transaction, in autocommit mode.
    """
    cursor = connection.execute("; ".join(statements))
    counts = [cursor.rowcount]
    while cursor.nextset():
        counts.append(cursor.rowcount)
    return counts


def set_tag(connection: Connection, tag: str | None) -> None:
    """Have what a session writes while `session_replication_role` is `replica` carry an origin mark."""
    connection.execute("SELECT set_config('penstock.tag', %s, false)", [tag or ""])


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
    if "failed to resolve host" in str(exc):
        reason = "no host of this name is found"
    if any(sign in str(exc) for sign in _NO_OPTIONS):
        what = f"cannot connect: a pooler ({POOLERS}) does not pass settings on: {reason}"
        return OperatorError(what, where=label(url), do=INSTEAD)
    if not refused and any(sign in str(exc) for sign in _NOT_TRUSTED):
        do = "see what sslmode and sslrootcert in the url ask for, and what the server has"
        return OperatorError(f"cannot connect: {reason}", where=label(url), do=do)
    for sign, sqlstate in _REFUSALS.items():
        if sign in str(exc):
            return from_sqlstate(sqlstate, doing="connect", where=label(url), reason=reason)
    return from_sqlstate(None, doing="connect", where=label(url), reason=reason)
