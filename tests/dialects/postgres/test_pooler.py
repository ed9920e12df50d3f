"""Behind a pooler: what was asked of a session holds, or the pooler is named, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from penstock.dialects.postgres import connection as module
from penstock.dialects.postgres.arrow import ArrowReader
from penstock.dialects.postgres.connection import CANONICAL_SETTINGS, connect
from penstock.dialects.postgres.session_check import differing
from penstock.errors import OperatorError
from tests.lab import Lab
from tests.pooler import PgBouncer
from tests.program import Program


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_sessions_of_their_own", set())


@pytest.fixture
def by_session(database: str) -> Iterator[str]:
    """A url that leads through a pool of sessions, to a database with settings of its own."""
    with psycopg.connect(database, autocommit=True) as server:
        for setting in ("datestyle = 'SQL, DMY'", "search_path = public", "statement_timeout = '1h'"):
            server.execute(f'ALTER DATABASE "{server.info.dbname}" SET {setting}')
    with PgBouncer(database, "session") as pooler:
        yield pooler.url()


def shown(connection: Any, setting: str) -> str:
    return str(connection.execute("SELECT current_setting(%s)", [setting]).fetchone()[0])


def test_in_a_pool_of_sessions_what_the_pooler_dropped_is_set(by_session: str) -> None:
    url = f"{by_session}?options=-c%20work_mem%3D17MB"
    with connect(url, "test") as connection:
        assert connection.execute("SELECT date '2026-03-04'::text").fetchone() == ("2026-03-04",)
        assert shown(connection, "search_path") == "pg_catalog,pg_temp"
        assert shown(connection, "statement_timeout") == "0"
        assert shown(connection, "default_transaction_isolation") == "read committed"
        # The url's own settings got lost with ours.
        assert shown(connection, "work_mem") == "17MB"
        assert shown(connection, "transaction_timeout") == "0"


def test_a_session_that_only_reads_has_its_settings_too(by_session: str) -> None:
    with closing(ArrowReader(by_session, "test", {"enable_seqscan": "off"})) as reader:
        row = reader.table("SELECT date '2026-03-04'::text d, current_setting('enable_seqscan') s", doing="read")
        assert row.to_pylist() == [{"d": "2026-03-04", "s": "off"}]


def test_a_pool_of_sessions_that_is_nearly_empty_is_no_pool_of_transactions(database: str) -> None:
    with PgBouncer(database, "session", size=1) as pooler, connect(pooler.url(), "test") as connection:
        assert shown(connection, "datestyle").startswith("ISO")


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("kind", [connect, ArrowReader], ids=["", "only reading"])
def test_a_pool_of_transactions_is_refused_by_name(database: str, mode: str, kind: Any) -> None:
    with PgBouncer(database, mode) as pooler, pytest.raises(OperatorError) as caught:
        kind(pooler.url(), "test")
    said = str(caught.value)
    assert said.startswith("the connection goes through a pooler in transaction mode (PgBouncer,")
    assert "Connect to the server itself, or to a pool in session mode (PgBouncer: pool_mode = session" in said


def test_a_pooler_that_refuses_settings_is_named_with_what_to_write(database: str) -> None:
    with PgBouncer(database, "session", takes_options=False) as pooler, pytest.raises(OperatorError) as caught:
        connect(pooler.url(), "test")
    said = str(caught.value)
    assert "a pooler (PgBouncer, pgcat, RDS Proxy or the like) does not pass settings on" in said
    assert "ignore_startup_parameters = options,extra_float_digits" in said


@pytest.mark.parametrize(
    "text",
    [
        "FATAL:  unsupported startup parameter in options: datestyle",
        "FATAL:  Feature not supported: RDS Proxy currently doesn't support command-line options.",
    ],
)
def test_other_poolers_that_refuse_settings_are_named_too(text: str) -> None:
    error = module._connect_error(psycopg.OperationalError(text), "postgresql://app@db.invalid/shop")
    assert type(error) is OperatorError
    assert "does not pass settings on" in error.what


def test_a_server_itself_is_asked_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    run = psycopg.Connection.execute

    def execute(self: Any, query: Any, *arguments: Any, **more: Any) -> Any:
        asked.append(query)
        return run(self, query, *arguments, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    with connect(database, "test"):
        assert len(asked) == 1


@pytest.mark.parametrize("value", ["5000ms", "90000ms", "1500ms", "7200000ms"])
def test_a_setting_that_the_server_spells_in_another_unit_is_the_same(
    database: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired = []
    monkeypatch.setattr("penstock.dialects.postgres.arrow.repair", lambda *given: repaired.append(given))
    with closing(ArrowReader(database, "test", {"lock_timeout": value})):
        assert repaired == []


def test_a_login_trigger_does_not_change_what_was_asked_for(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as server:
        server.execute(
            "CREATE FUNCTION at_login() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM set_config('datestyle', 'SQL, DMY', false); END $$;"
            "CREATE EVENT TRIGGER at_login ON login EXECUTE FUNCTION at_login()"
        )
    with connect(database, "test") as connection:
        assert shown(connection, "datestyle") == "ISO, DMY"


def test_each_setting_that_differs_is_found() -> None:
    held = [value.replace("\\", "") for name, value in CANONICAL_SETTINGS.items() if not name.startswith("tcp_")]
    assert differing(CANONICAL_SETTINGS, held) == []
    for place, name in enumerate(name for name in CANONICAL_SETTINGS if not name.startswith("tcp_")):
        for other in ("something else", None):
            assert differing(CANONICAL_SETTINGS, [*held[:place], other, *held[place + 1 :]]) == [name]


def test_a_pipeline_between_two_poolers_copies_what_is_there(lab: Lab, tmp_path: Any) -> None:
    lab.source.execute(f"ALTER DATABASE {lab.source.info.dbname} SET datestyle = 'SQL, DMY'")
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, d date); INSERT INTO t VALUES (1, '2026-03-04')")
    with PgBouncer(lab.source_url, "session") as source, PgBouncer(lab.target_url, "session") as target:
        program = Program(tmp_path, source.url(), target.url(), name="lab")
        assert program("setup").code == 0
        assert program("run", "--until-caught-up").code == 0
        lab.source.execute("INSERT INTO t VALUES (2, '2026-05-06')")
        assert program("run", "--until-caught-up").code == 0
        compared = program("verify", "--json")
    assert compared.code == 0, compared.out + compared.err
    lab.assert_identical("t")
    assert len(lab.rows("t")) == 2
