"""Whether a session has the settings that were asked for, and whether it is one at all.

Settings travel in libpq's `options`, and a pooler between us and the server may drop them; and one that pools by
transaction gives each transaction another session of the server, where no setting, lock or temporary table lasts. So
each connection asks once, in one query, what holds (ADR 71).
"""

from __future__ import annotations

import re
import select
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus, TransactionStatus

from penstock.errors import OperatorError

POOLERS = "PgBouncer, pgcat, RDS Proxy or the like"
INSTEAD = (
    "connect to the server itself, or to a pool in session mode (PgBouncer: pool_mode = session, and"
    " ignore_startup_parameters = options,extra_float_digits); see docs/postgresql.md#poolers"
)

_WITHOUT_TIME_LIMIT = (
    "CASE WHEN pg_catalog.current_setting('server_version_num')::pg_catalog.int4 OPERATOR(pg_catalog.>=) 170000"
    " THEN pg_catalog.set_config('transaction_timeout', '0', false) END"
)
"""Switches off the one limit that cannot be an option of a connection: servers before 17 would refuse it."""

_OF_THE_NETWORK = "tcp_keepalives_"
"""Settings that a server may not be able to keep, as over a socket of its own machine; no text depends on them."""

_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}

_ANSWER_S = 3.0
"""How long a second session is waited for; a pool that has none left is one of sessions, and full."""


def check_query(asked: Mapping[str, str]) -> str:
    """A query for one row: the server's process id, nothing, and an array of the settings as they are.

    It works under any search path: names in it cannot stand for what a user has made.
    """
    values = ", ".join(f"pg_catalog.current_setting({_literal(name)}, true)" for name in _compared(asked))
    return f"SELECT pg_catalog.pg_backend_pid() AS pid, {_WITHOUT_TIME_LIMIT} AS without_limit, ARRAY[{values}] AS held"


def differing(asked: Mapping[str, str], held: Sequence[str | None]) -> list[str]:
    """Return the settings that are not as asked; `held` is what `check_query` found."""
    return [name for name, value in zip(_compared(asked), held, strict=True) if not _is_same(name, asked[name], value)]


def repair_query(asked: Mapping[str, str], options: str) -> str:
    """A query that gives a session the settings that were asked for, and those that the url's own options name."""
    named = {**_read_options(options), **{name: _unescaped(value) for name, value in asked.items()}}
    sets = ", ".join(
        f"pg_catalog.set_config({_literal(name)}, {_literal(value)}, false) AS {sql.Identifier(name).as_string(None)}"
        for name, value in named.items()
        if not name.startswith(_OF_THE_NETWORK)
    )
    return f"SELECT {sets}"


def not_held(settings: Sequence[str], where: str) -> OperatorError:
    """The error for settings that a session does not take."""
    return OperatorError(
        f"the session does not keep the settings it was asked for: {', '.join(settings)}",
        where=where,
        do=f"see what changes them after a connection is made: a login trigger, or a pooler. {INSTEAD}",
    )


def pools_transactions(where: str) -> OperatorError:
    """The error for a connection that is no session."""
    return OperatorError(
        f"the connection goes through a pooler in transaction mode ({POOLERS}): each transaction may get another"
        " session of the server, in which no setting, lock or temporary table lasts",
        where=where,
        do=INSTEAD,
    )


def shares_sessions(first: psycopg.Connection[Any], conninfo: str, pid: int) -> bool:
    """Whether a pooler gives another connection the session that `first` is using, between two transactions of it.

    Args:
        first: A connection outside of a transaction.
        pid: The process that has served its last one.

    Raises:
        psycopg.Error: There is no second connection.
    """
    with closing(psycopg.connect(conninfo, autocommit=True)) as second:
        # Held open: whoever has this process now, keeps it.
        second.pgconn.send_query(b"BEGIN; SELECT pg_catalog.pg_backend_pid()")
        second.pgconn.flush()
        if not select.select([second.pgconn.socket], [], [], _ANSWER_S)[0]:
            return False
        found = None
        while (result := second.pgconn.get_result()) is not None:
            if result.status == ExecStatus.FATAL_ERROR:
                # It lets nobody begin a transaction: each statement gets another session.
                return True
            found = result.get_value(0, 0) if result.status == ExecStatus.TUPLES_OK else found
        assert first.info.transaction_status == TransactionStatus.IDLE
        now = first.execute("SELECT pg_catalog.pg_backend_pid()").fetchone()
        return found == str(pid).encode() or now != (pid,)


def _compared(asked: Mapping[str, str]) -> list[str]:
    return [name for name in asked if not name.startswith(_OF_THE_NETWORK)]


def _is_same(name: str, asked: str, held: str | None) -> bool:
    if held is not None and name == "datestyle":
        # Behind the comma is the order in which it reads what is not ISO.
        held = held.partition(",")[0]
    asked = _unescaped(asked)
    return held is not None and (held == asked or (_as_us(held) is not None and _as_us(held) == _as_us(asked)))


def _as_us(value: str) -> int | None:
    """A length of time in microseconds, however it is spelled: the server shows 5000ms as 5s."""
    found = re.fullmatch(r"(\d+)\s*(us|ms|s|min|h|d)", value)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def _unescaped(value: str) -> str:
    """A value as the server takes it out of `options`, where a backslash stands before a blank."""
    return re.sub(r"\\(.)", r"\1", value)


def _read_options(options: str) -> dict[str, str]:
    """The settings that a text of options names."""
    found = re.findall(r"(?:-c\s*|--)([\w.-]+)=((?:\\.|\S)*)", options)
    return {name.replace("-", "_"): _unescaped(value) for name, value in found}


def _literal(value: str) -> str:
    return sql.Literal(value).as_string(None)
