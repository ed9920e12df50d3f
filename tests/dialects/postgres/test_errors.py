"""What an error means: of a change's statement, and of work of the process's own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from penstock.dialects.postgres.connection import Connection, connect
from penstock.dialects.postgres.errors import FailureScope, from_sqlstate, is_data_error, refused, translate, whose
from penstock.errors import OperatorError, PenstockError, RetryableError

ENDED = {
    "25P03": "a transaction was idle for too long",
    "25P04": "a transaction took too long",
    "57P05": "a session was idle for too long",
    "57P01": "an administrator ended the session",
    "57014": "the statement was cancelled",
    "08006": "the connection is lost",
}

CLASSES = """
01 02 03 08 09 0A 0B 0F 0L 0P 0Z 10 20 21 22 23 24 25 26 27 28 2B 2D 2F 34 38 39 3B 3D 3F 40 42 44 53 54 55 57 58 72 F0
HV P0 XX ZZ
"""
"""Every class that PostgreSQL's manual lists, and one that only a user's function raises."""

OF_THE_SERVER = {"53100": "disk full", "58030": "input or output error", "25006": "read-only"}
IN_THE_WAY = {"40001": "serialization", "40P01": "deadlock", "55P03": "lock", "57014": "cancelled"}


@pytest.mark.parametrize("sqlstate", ENDED, ids=ENDED.values())
def test_a_session_that_was_ended_is_tried_again(sqlstate: str) -> None:
    error = from_sqlstate(sqlstate, doing="apply", where="copy@db", reason="it is over")
    assert type(error) is RetryableError
    assert str(error) == "cannot apply: it is over (copy@db)"
    assert not is_data_error(sqlstate)


@pytest.mark.parametrize(("sqlstate", "kind"), [("28P01", OperatorError), ("42501", OperatorError)])
def test_what_a_person_has_to_mend_stops(sqlstate: str, kind: type[PenstockError]) -> None:
    assert type(from_sqlstate(sqlstate, doing="apply", where="copy@db", reason="no")) is kind


@pytest.fixture(scope="module")
def connection(source_server: object) -> Iterator[Connection]:
    with connect(source_server.url(), "errors") as made:  # type: ignore[attr-defined]
        yield made


def raised(connection: Connection, statement: str, *values: object) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is the question
        connection.execute(statement, values)
    return caught.value


def raising(sqlstate: str) -> str:
    # As plain text: 00 and classes below are no errors to RAISE otherwise.
    return f"DO $$ BEGIN RAISE EXCEPTION 'odd' USING ERRCODE = '{sqlstate}'; END $$"


@pytest.mark.parametrize("class_", CLASSES.split())
def test_while_the_connection_lives_an_error_of_any_class_is_the_changes(connection: Connection, class_: str) -> None:
    exc = raised(connection, raising(f"{class_}Z99"))
    assert isinstance(exc, psycopg.Error)
    assert exc.sqlstate == f"{class_}Z99"
    assert whose(exc, is_connected=True) is FailureScope.CHANGE
    assert whose(exc, is_connected=False) is FailureScope.PROCESS
    assert refused(exc).code == f"{class_}Z99"


@pytest.mark.parametrize("sqlstate", ["53200", "54000", "57P01", "08006", "XX000", "XX001", "3D000", "42501", "28P01"])
def test_what_would_be_the_servers_is_the_changes_where_the_connection_lives(
    connection: Connection, sqlstate: str
) -> None:
    assert whose(raised(connection, raising(sqlstate)), is_connected=not connection.closed) is FailureScope.CHANGE


@pytest.mark.parametrize("sqlstate", OF_THE_SERVER, ids=OF_THE_SERVER.values())
def test_a_server_that_takes_no_change_at_all_is_the_processs(connection: Connection, sqlstate: str) -> None:
    exc = raised(connection, raising(sqlstate))
    assert isinstance(exc, psycopg.Error)
    assert whose(exc, is_connected=True) is FailureScope.PROCESS
    assert isinstance(translate(exc, doing="apply", where="copy"), RetryableError)


@pytest.mark.parametrize("sqlstate", IN_THE_WAY, ids=IN_THE_WAY.values())
def test_another_session_in_the_way_is_tried_again(connection: Connection, sqlstate: str) -> None:
    assert whose(raised(connection, raising(sqlstate)), is_connected=True) is FailureScope.CONTENTION


def test_a_right_that_lacks_is_the_processs(connection: Connection) -> None:
    connection.execute("CREATE ROLE without_rights; CREATE TABLE public.kept (id int); SET ROLE without_rights")
    try:
        assert whose(raised(connection, "SELECT FROM public.kept"), is_connected=True) is FailureScope.PROCESS
    finally:
        connection.execute("RESET ROLE; DROP TABLE public.kept; DROP ROLE without_rights")


def test_a_session_that_is_ended_is_the_processs(source_server: object, connection: Connection) -> None:
    with connect(source_server.url(), "ended") as ended:  # type: ignore[attr-defined]
        connection.execute("SELECT pg_terminate_backend(%s)", [ended.info.backend_pid])
        exc = raised(ended, "SELECT 1")
    # By what the server said, also where the driver has not seen yet that the connection is gone.
    assert whose(exc, is_connected=True) is FailureScope.PROCESS


UNSENT = {
    "a zero byte": ("SECRET\0", "a text holds a zero byte (NUL), which PostgreSQL does not store"),
    "a zero byte in an array": (["SECRET\0"], "a text holds a zero byte (NUL), which PostgreSQL does not store"),
    "half a surrogate pair": ("SECRET\ud800", "a text holds half of a surrogate pair, which UTF-8 cannot write"),
    "no type": (object(), "the driver does not take a value of the change (ProgrammingError)"),
}


@pytest.mark.parametrize("unsent", UNSENT.values(), ids=UNSENT)
def test_what_the_driver_does_not_send_is_the_changes_and_no_value_is_told(
    connection: Connection, unsent: tuple[object, str]
) -> None:
    value, told = unsent
    exc = raised(connection, "SELECT %s", value)
    assert whose(exc, is_connected=not connection.closed) is FailureScope.CHANGE
    assert str(refused(exc)) == told


def test_a_zero_byte_that_a_copy_sends_is_called_what_the_driver_calls_it(connection: Connection) -> None:
    connection.execute("CREATE TEMPORARY TABLE copied (v text)")
    with (
        pytest.raises(psycopg.errors.CharacterNotInRepertoire) as caught,
        connection.cursor().copy("COPY copied FROM STDIN") as copy,
    ):
        copy.write(b"SECRET\0\n")
    error = refused(caught.value)
    assert (str(error), error.code) == ("a text holds a zero byte (NUL), which PostgreSQL does not store", "22021")


def test_the_drivers_own_error_is_not_tried_again_elsewhere_either(connection: Connection) -> None:
    exc = raised(connection, "SELECT %s", "\0")
    assert isinstance(exc, psycopg.Error)
    error = translate(exc, doing="write", where="copy")
    assert type(error) is OperatorError
    assert json.loads(error.to_json())["what"].startswith("cannot write: a text holds a zero byte")
