"""Whatever the target says of one change goes to the error queue with it, and all others are applied."""

from __future__ import annotations

import pytest
from psycopg.abc import Buffer
from psycopg.types.string import StrDumper

from penstock.apply import lane_writer
from penstock.apply.lane import ServerConfig
from penstock.dialects.postgres import connection
from penstock.dialects.postgres.connection import Connection
from penstock.dialects.postgres.target import session
from penstock.errors import OperatorError, RetryableError
from tests.lab import Lab

REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.v LIKE 'SECRET%' THEN RAISE EXCEPTION 'no' USING ERRCODE = '{}'; END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION refuse();
ALTER TABLE t ENABLE ALWAYS TRIGGER refuse;
"""


@pytest.fixture(params=[True, False], ids=["set path", "row path"])
def config(request: pytest.FixtureRequest) -> ServerConfig:
    return ServerConfig(use_set_path=request.param)


def write(lab: Lab) -> None:
    """Three transactions, of which the second is refused."""
    lab.source.execute("INSERT INTO t VALUES (1, 'first')")
    lab.source.execute("INSERT INTO t VALUES (2, 'SECRET')")
    lab.source.execute("INSERT INTO t VALUES (3, 'last')")


@pytest.mark.rule("A-147")
@pytest.mark.parametrize("sqlstate", ["XX000", "53200", "54000", "57P01", "08006", "28000", "42501", "F0000", "ZZ999"])
def test_a_trigger_may_raise_whatever_it_likes(lab: Lab, config: ServerConfig, sqlstate: str) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.target.execute(REFUSING.format(sqlstate))
    write(lab)

    lab.apply(config=config)

    (entry,) = lab.errors()
    assert (str(entry.table), entry.op, entry.error_code) == ("public.t", "insert", sqlstate)
    assert "SECRET" not in entry.error_message
    assert lab.rows("t") == [(1, "first"), (3, "last")]


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03", "57014"])
def test_what_is_always_in_the_way_is_not_waited_for_without_end(
    lab: Lab, config: ServerConfig, sqlstate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_writer, "_CONTENTION_RETRIES", 2)
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.target.execute(REFUSING.format(sqlstate))
    write(lab)

    lab.apply(config=config)

    (entry,) = lab.errors()
    assert (str(entry.table), entry.message_number, entry.error_number) == ("public.t", 1, 60)
    assert lab.rows("t") == [(1, "first"), (3, "last")]


@pytest.mark.rule("A-147")
@pytest.mark.parametrize("sqlstate", ["53100", "25006", "58030"])
def test_a_server_that_takes_no_change_at_all_ends_the_lane(lab: Lab, config: ServerConfig, sqlstate: str) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lab.target.execute(REFUSING.format(sqlstate))
    write(lab)

    with pytest.raises(RetryableError):
        lab.apply(config=config)

    assert lab.errors() == []


def test_a_table_that_may_not_be_written_ends_the_lane(lab: Lab, config: ServerConfig) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    name = f"writer_{lab.target.info.dbname}"
    lab.target.execute(
        f"CREATE ROLE {name} LOGIN; GRANT SET ON PARAMETER session_replication_role TO {name};"
        f"GRANT USAGE ON SCHEMA penstock TO {name}; GRANT ALL ON ALL TABLES IN SCHEMA penstock TO {name}"
    )
    lab.target_url = lab.target_url.replace("postgres@", f"{name}@")
    write(lab)

    with pytest.raises(OperatorError, match="permission denied"):
        lab.apply(config=config)

    assert lab.errors() == []


class Failing(StrDumper):
    """An adapter that does not take every text."""

    def dump(self, obj: str) -> Buffer | None:
        if obj == "SECRET":
            raise LookupError(obj)
        return super().dump(obj)


def test_an_adapter_of_the_drivers_may_raise_anything(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(url: str, application_name: str) -> Connection:
        made = connection.connect(url, application_name)
        made.adapters.register_dumper(str, Failing)
        return made

    monkeypatch.setattr(session, "connect", connect)
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    write(lab)

    lab.apply(config=ServerConfig(use_set_path=False))

    (entry,) = lab.errors()
    assert str(entry.table) == "public.t"
    assert entry.error_message.startswith("the driver does not take a value of the change (LookupError)")
    assert "column 'v'" in entry.error_message
    assert "SECRET" not in entry.error_message
