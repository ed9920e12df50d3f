"""A session that is kept from one use to the next, and never one that is not as it was."""

from __future__ import annotations

import psycopg
import pytest

from penstock.dialects.postgres.connection import Connection, connect
from penstock.dialects.postgres.kept_session import KeptSession


def kept(url: str) -> KeptSession:
    return KeptSession(url, lambda: connect(url, "kept"))


def process(connection: Connection) -> int:
    return connection.info.backend_pid


def test_the_next_use_has_the_same_session(database: str) -> None:
    session = kept(database)
    with session.use() as connection:
        first = process(connection)
    with session.use() as connection:
        assert process(connection) == first


def test_two_uses_at_once_have_two_sessions_and_one_is_kept(database: str) -> None:
    session = kept(database)
    with session.use() as one, session.use() as other:
        assert process(one) != process(other)
        inner = process(other)
    assert one.closed
    with session.use() as connection:
        assert process(connection) == inner


def test_what_was_set_meanwhile_is_as_it_was(database: str) -> None:
    session = kept(database)
    with session.use() as connection:
        connection.execute("SET lock_timeout = '1s'; SET search_path = public; SET datestyle = 'SQL, DMY'")
        first = process(connection)
    with session.use() as connection:
        assert process(connection) == first
        found = [connection.execute(f"SHOW {name}").fetchone() for name in ("lock_timeout", "search_path", "datestyle")]
        assert found == [("0",), ("pg_catalog,pg_temp",), ("ISO, DMY",)]


def test_a_session_that_the_server_has_ended_is_opened_anew(database: str) -> None:
    session = kept(database)
    with session.use() as connection:
        first = process(connection)
    with psycopg.connect(database, autocommit=True) as admin:
        assert admin.execute("SELECT pg_terminate_backend(%s, 5000)", [first]).fetchone() == (True,)
    with session.use() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert process(connection) != first


def test_a_session_that_failed_or_is_in_a_transaction_is_not_used_again(database: str) -> None:
    session = kept(database)
    with pytest.raises(psycopg.errors.UndefinedTable), session.use() as failed:
        failed.execute("SELECT FROM nothing")
    assert failed.closed
    with session.use() as open_:
        open_.execute("BEGIN")
    assert open_.closed
