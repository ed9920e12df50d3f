"""A role that may create things tries to have them run with another role's rights; it stays what it was."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest
from psycopg import sql

from penstock.apply.apply_errors import DDL_NOT_CARRIED_OUT
from penstock.apply.ddl import DdlPolicy, DdlRules, is_one_part
from penstock.apply.lane import ServerConfig
from penstock.apply.retry_policy import RetryPolicy
from penstock.cli.verify import VerifyProgress
from penstock.database import Renamed
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.connection import connect
from penstock.dialects.postgres.ownership import refuse_foreign, schema_faults
from penstock.dialects.postgres.post_data import read_post_data
from penstock.dialects.postgres.resources import sql_text
from penstock.dialects.postgres.source import capture
from penstock.dialects.postgres.source.change_log import PostgresChangeLog
from penstock.dialects.postgres.source.copy import PostgresChunkReader, PostgresCopyOrigin
from penstock.dialects.postgres.target.ledger_version import ledger_steps
from penstock.dialects.postgres.target.post_data_builder import PostgresPostDataBuilder
from penstock.errors import OperatorError, RetryableError
from penstock.pipeline.pipeline import Pipeline
from penstock.pipeline.report import Report
from penstock.snapshot.chunk import Chunk, CopySource
from tests.lab import Lab, table
from tests.stories.test_event_log import Log

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')"

EVIL = """
CREATE SCHEMA IF NOT EXISTS {role};
CREATE OR REPLACE FUNCTION {role}.rise() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
  IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN ALTER ROLE {role} SUPERUSER; END IF;
  RETURN true;
END $$;
CREATE OR REPLACE FUNCTION {role}.fire() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  PERFORM {role}.rise(); RETURN NEW;
END $$;
"""


@dataclass(frozen=True)
class Mallory:
    """An ordinary user of both servers, who may create schemas, and things in `public`."""

    name: str
    source: psycopg.Connection
    target: psycopg.Connection

    @property
    def is_superuser(self) -> bool:
        query = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        return any(one.execute(query).fetchone() == (True,) for one in (self.source, self.target))


@pytest.fixture
def mallory(lab: Lab) -> Iterator[Mallory]:
    name = f"mallory_{lab.source.info.dbname}"
    for connection in (lab.source, lab.target):
        database = connection.info.dbname
        connection.execute(f"CREATE ROLE {name} LOGIN; GRANT CREATE, TEMPORARY ON DATABASE {database} TO {name}")
        connection.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {name}")
        connection.execute(f"GRANT SET ON PARAMETER session_replication_role TO {name}")
    urls = [url.replace("postgres@", f"{name}@") for url in (lab.source_url, lab.target_url)]
    with psycopg.connect(urls[0], autocommit=True) as source, psycopg.connect(urls[1], autocommit=True) as target:
        for connection in (source, target):
            connection.execute(EVIL.format(role=name))
        yield Mallory(name, source, target)
    for connection in (lab.source, lab.target):
        connection.execute(f"ALTER ROLE {name} NOSUPERUSER; DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def run(pipeline: Pipeline) -> None:
    pipeline.run(Event(), Report(), until_caught_up=True)


COMMANDS: dict[str, Callable[[Pipeline], object]] = {
    "setup": Pipeline.setup,
    "run": run,
    "status": Pipeline.status,
    "verify": lambda pipeline: pipeline.verify(VerifyProgress(quiet=True)),
    "errors": lambda pipeline: pipeline.errors().entries(),
    "retry": lambda pipeline: list(pipeline.retry(["lab.1"])),
}


@pytest.fixture(autouse=True)
def _no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is refused at once; a test that fails should not wait for a minute."""
    monkeypatch.setattr(RetryPolicy, "insist", lambda _, work: work())


def plant_ledger(lab: Lab, mallory: Mallory) -> None:
    """What looks like the ledger that this version has made, and fires whenever it is read or written."""
    role = mallory.name
    for step in ledger_steps(mallory.target):
        mallory.target.execute(step.sql)
    for name in ("process", "lane", "dictionary", "error"):
        mallory.target.execute(
            f"CREATE TRIGGER fire BEFORE INSERT OR UPDATE ON penstock.{name}"
            f" FOR EACH ROW EXECUTE FUNCTION {role}.fire()"
        )
    mallory.target.execute(
        "ALTER TABLE penstock.instantiation RENAME TO behind;"
        f"CREATE VIEW penstock.instantiation AS SELECT * FROM penstock.behind WHERE (SELECT {role}.rise());"
        "ALTER TABLE penstock.error RENAME TO behind_error;"
        f"CREATE VIEW penstock.error AS SELECT * FROM penstock.behind_error WHERE (SELECT {role}.rise());"
        "GRANT ALL ON SCHEMA penstock TO public; GRANT ALL ON ALL TABLES IN SCHEMA penstock TO public;"
        "INSERT INTO penstock.process (name, source) VALUES ('lab', 'shop');"
        "INSERT INTO penstock.behind VALUES ('lab', 'public', 't', 0, '', 'READY')"
    )


@pytest.mark.parametrize("command", [*COMMANDS, "teardown"])
def test_a_ledger_that_somebody_else_made_beforehand(lab: Lab, mallory: Mallory, command: str) -> None:
    lab.source.execute(TABLE)
    lab.pipeline().setup()
    lab.target.execute("DROP SCHEMA penstock CASCADE; DROP TABLE t")
    plant_ledger(lab, mallory)

    with pytest.raises(OperatorError, match=f"role '{mallory.name}' could put code into schema 'penstock'"):
        (COMMANDS | {"teardown": Pipeline.teardown})[command](lab.pipeline())

    assert not mallory.is_superuser


def plant_capture(lab: Lab, mallory: Mallory) -> None:
    """What looks like the capture set that this version has made, with functions of another body."""
    role, name = mallory.name, lab.set_name
    plant_log(lab, mallory)
    replace_functions(lab, mallory)
    mallory.source.execute(
        f"ALTER TABLE {name}.captured RENAME TO behind;"
        f"CREATE VIEW {name}.captured AS SELECT * FROM {name}.behind WHERE (SELECT {role}.rise());"
        f"GRANT ALL ON SCHEMA {name} TO public; GRANT ALL ON ALL TABLES IN SCHEMA {name} TO public"
    )


def plant_log(lab: Lab, mallory: Mallory) -> None:
    for step in capture.log_steps(lab.set_name):
        psycopg.ClientCursor(mallory.source).execute(step.sql)
    mallory.source.execute(
        f"CREATE TRIGGER fire BEFORE INSERT ON {lab.set_name}.tick FOR EACH ROW EXECUTE FUNCTION {mallory.name}.fire()"
    )


def replace_functions(lab: Lab, mallory: Mallory) -> None:
    mallory.source.execute(
        f"CREATE OR REPLACE FUNCTION {lab.set_name}.behind() RETURNS SETOF oid LANGUAGE sql AS"
        f" $$ SELECT NULL::oid WHERE NOT (SELECT {mallory.name}.rise()) $$"
    )


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ("errors", "retry")])
def test_a_capture_set_that_somebody_else_made_beforehand(lab: Lab, mallory: Mallory, command: str) -> None:
    lab.source.execute(TABLE)
    lab.pipeline().setup()
    lab.source.execute(f"DROP SCHEMA {lab.set_name} CASCADE; DROP EVENT TRIGGER IF EXISTS {lab.set_name}")
    plant_capture(lab, mallory)

    with pytest.raises(OperatorError, match=f"role '{mallory.name}' could put code into schema '{lab.set_name}'"):
        COMMANDS[command](lab.pipeline())

    assert not mallory.is_superuser


def test_a_capture_set_that_somebody_else_made_is_not_read_by_spark_s_source_either(lab: Lab, mallory: Mallory) -> None:
    plant_capture(lab, mallory)
    log = PostgresChangeLog(lab.source_url, lab.set_name)

    for _ in range(2):
        with pytest.raises(OperatorError, match="could put code"):
            log.tables()

    assert not mallory.is_superuser


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ("errors", "retry")])
def test_functions_that_their_owner_replaced_later(lab: Lab, mallory: Mallory, command: str) -> None:
    lab.source.execute(TABLE + f"; GRANT SELECT, TRIGGER ON t TO {mallory.name}")
    source_url = lab.source_url.replace("postgres@", f"{mallory.name}@")
    with Lab(source_url, lab.target_url) as theirs:
        theirs.pipeline().setup()
        replace_functions(theirs, mallory)

    with pytest.raises(OperatorError, match=f"role '{mallory.name}' could put code into .* has function "):
        COMMANDS[command](lab.pipeline())

    assert not mallory.is_superuser


def test_a_schema_that_is_made_while_setup_is_about_to(lab: Lab, mallory: Mallory) -> None:
    lab.source.execute(TABLE)
    pipeline = lab.pipeline()
    plan = pipeline.plan()
    plant_log(lab, mallory)
    mallory.source.execute(f"DELETE FROM {lab.set_name}.tick")

    with pytest.raises(OperatorError, match="already exists"):
        pipeline._carry_out(plan, printer="plan")

    assert not mallory.is_superuser
    assert lab.target.execute("SELECT FROM pg_namespace WHERE nspname = 'penstock'").fetchone() is None


OPERATOR = """
CREATE FUNCTION public.same(oid, {right}) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
  PERFORM {role}.rise(); RETURN $1 OPERATOR(pg_catalog.=) $2::oid;
END $$;
CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = {right}, FUNCTION = public.same)
"""


@pytest.mark.parametrize("by", ["setup", "printed script"])
def test_an_operator_that_was_made_before_setup(lab: Lab, mallory: Mallory, by: str) -> None:
    lab.source.execute(TABLE)
    plan = lab.pipeline().plan()
    for connection in (mallory.source, mallory.target):
        connection.execute(OPERATOR.format(role=mallory.name, right="regclass"))

    if by == "setup":
        lab.pipeline()._carry_out(plan, printer="plan")
    else:
        at_target, at_source = plan.sql().split("-- source:", 1)
        lab.target.execute(at_target)
        lab.source.execute("--" + at_source)

    assert not mallory.is_superuser
    assert lab.pipeline().plan().is_done


def test_a_printed_script_is_refused_to_a_superuser_whom_the_set_s_owner_could_trick(
    lab: Lab, mallory: Mallory
) -> None:
    lab.source.execute(TABLE + f"; GRANT SELECT, TRIGGER ON t TO {mallory.name}")
    source_url = lab.source_url.replace("postgres@", f"{mallory.name}@")
    with Lab(source_url, lab.target_url) as theirs:
        theirs.pipeline().setup()
        lab.source.execute(f"CREATE TABLE u (id int PRIMARY KEY); GRANT SELECT ON u TO {mallory.name}")
        script = theirs.pipeline().plan().sql().partition("-- source:")[2]
    mallory.source.execute(
        f"CREATE OR REPLACE FUNCTION {lab.set_name}.capture_all(rel regclass) RETURNS void LANGUAGE plpgsql AS"
        f" $$ BEGIN EXECUTE 'RESET ROLE'; PERFORM {mallory.name}.rise(); END $$"
    )

    with pytest.raises(psycopg.errors.RaiseException, match=f"{mallory.name}.; run it as that role"):
        lab.source.execute("--" + script)

    lab.source.execute("ROLLBACK")
    assert not mallory.is_superuser


def test_a_printed_script_of_a_plain_role_is_its_own_to_run(lab: Lab, mallory: Mallory) -> None:
    lab.source.execute(TABLE + f"; CREATE TABLE u (id int); GRANT SELECT, TRIGGER ON t, u TO {mallory.name}")
    with Lab(lab.source_url.replace("postgres@", f"{mallory.name}@"), lab.target_url) as theirs:
        script = "--" + theirs.pipeline().plan().sql().partition("-- source:")[2]

        with pytest.raises(psycopg.errors.RaiseException, match=f'belong to role "{mallory.name}": log in as it'):
            lab.source.execute(script)
        lab.source.execute("ROLLBACK")
        made = lab.source.execute("SELECT FROM pg_namespace WHERE nspname = %s", [theirs.set_name]).fetchone()
        mallory.source.execute(script)

        assert made is None
        assert theirs.pipeline().plan().source.steps == []


@pytest.fixture
def ours(lab: Lab, mallory: Mallory) -> Iterator[psycopg.Connection]:
    """A superuser's session beside a ledger of a superuser's."""
    lab.target.execute(f"CREATE SCHEMA penstock; {sql_text('ledger/tables')}; CREATE TABLE public.own (v int)")
    with connect(lab.target_url, "test") as connection:
        assert schema_faults(connection, "penstock") == []
        yield connection


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("ALTER SCHEMA penstock OWNER TO {role}", "the schema"),
        ("ALTER TABLE penstock.lane OWNER TO {role}", "table lane"),
        ("CREATE VIEW penstock.v AS SELECT 1; ALTER VIEW penstock.v OWNER TO {role}", "view v"),
        ("CREATE SEQUENCE penstock.s; ALTER SEQUENCE penstock.s OWNER TO {role}", "sequence s"),
        ("CREATE DOMAIN penstock.d AS int; ALTER DOMAIN penstock.d OWNER TO {role}", "type d"),
        ("CREATE FUNCTION penstock.f() RETURNS int RETURN 1; ALTER FUNCTION penstock.f OWNER TO {role}", "function f"),
        ("GRANT CREATE ON SCHEMA penstock TO {role}", "the right to create in it"),
        ("GRANT TRIGGER ON penstock.lane TO {role}", "the right to make triggers on table lane"),
        (
            "CREATE TRIGGER x BEFORE INSERT ON penstock.lane FOR EACH ROW EXECUTE FUNCTION {role}.fire()",
            "function fire, called by trigger x on lane",
        ),
        (
            "ALTER TABLE penstock.lane ADD x bool DEFAULT {role}.rise()",
            "function rise, called by a default of table lane",
        ),
        ("ALTER TABLE penstock.lane ADD CONSTRAINT x CHECK ({role}.rise())", "function rise, called by constraint x"),
        ("CREATE INDEX x ON penstock.lane (({role}.fixed(lane)))", "function fixed, called by relation x"),
        (
            "CREATE RULE x AS ON INSERT TO penstock.lane DO ALSO SELECT {role}.rise()",
            "function rise, called by rule x on lane",
        ),
        (
            "CREATE POLICY x ON penstock.lane USING ({role}.rise())",
            "function rise, called by policy x on lane",
        ),
    ],
)
def test_whatever_could_run_another_role_s_code_is_found(
    lab: Lab, mallory: Mallory, ours: psycopg.Connection, sql: str, found: str
) -> None:
    mallory.target.execute(
        f"CREATE FUNCTION {mallory.name}.fixed(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'"
    )
    lab.target.execute(sql.format(role=mallory.name))

    with pytest.raises(OperatorError, match="with your rights") as caught:
        refuse_foreign(ours, "penstock")

    assert f"it has {found} (database {lab.target.info.dbname} on 127.0.0.1:" in str(caught.value)
    lab.target.execute("DROP SCHEMA penstock CASCADE")


def test_what_everybody_may_do_somebody_else_may(lab: Lab, ours: psycopg.Connection) -> None:
    lab.target.execute("GRANT CREATE ON SCHEMA penstock TO public")

    assert ["'public'" in str(fault) for fault in schema_faults(ours, "penstock")] == [True]


def test_a_role_trusts_superusers_itself_and_those_it_is_a_member_of(lab: Lab, mallory: Mallory) -> None:
    lab.target.execute(f"CREATE SCHEMA penstock; {sql_text('ledger/tables')}")
    lab.target.execute("CREATE SCHEMA penstock_own; CREATE SCHEMA penstock_group")
    group = f"group_{mallory.name}"
    lab.target.execute(f"CREATE ROLE {group}; ALTER SCHEMA penstock_group OWNER TO {group}")
    lab.target.execute(f"ALTER SCHEMA penstock_own OWNER TO {mallory.name}")
    try:
        with connect(lab.target_url.replace("postgres@", f"{mallory.name}@"), "test") as connection:
            assert schema_faults(connection, "penstock") == schema_faults(connection, "penstock_own") == []
            assert schema_faults(connection, "penstock_not_there") == []
            assert len(schema_faults(connection, "penstock_group")) == 1
            lab.target.execute(f"GRANT {group} TO {mallory.name}")
            assert schema_faults(connection, "penstock_group") == []
            # Who may become a superuser is as careful as one.
            lab.target.execute(f"GRANT postgres TO {mallory.name}")
            assert len(schema_faults(connection, "penstock_group")) == 1
            assert schema_faults(connection, "penstock") == []
            lab.target.execute(f"REVOKE postgres FROM {mallory.name}")
        # A superuser is not one of them under another role, which its code could leave.
        with connect(lab.target_url + f"?options=-c%20role%3D{mallory.name}", "test") as connection:
            assert len(schema_faults(connection, "penstock_own")) == 1
    finally:
        lab.target.execute(f"DROP OWNED BY {group} CASCADE; DROP ROLE {group}; DROP SCHEMA penstock CASCADE")


@pytest.fixture
def dumper(lab: Lab, mallory: Mallory) -> Iterator[str]:
    """Who owns the source's database."""
    name = f"dumper_{lab.source.info.dbname}"
    database = lab.source.info.dbname
    lab.source.execute(f"CREATE ROLE {name} LOGIN; ALTER DATABASE {database} OWNER TO {name}")
    # Not what this is about.
    lab.source.execute(f"DROP SCHEMA {mallory.name} CASCADE")
    yield name
    lab.source.execute(f"ALTER DATABASE {database} OWNER TO postgres; DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def dump(server: EmbeddedPostgres, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([server.programs / "pg_dump", url], capture_output=True, text=True, check=False)


def test_who_owns_the_database_can_dump_it_after_somebody_else_s_setup(
    lab: Lab, dumper: str, source_server: EmbeddedPostgres
) -> None:
    lab.source.execute(TABLE + f"; GRANT SELECT ON t TO {dumper}")
    url = lab.source_url.replace("postgres@", f"{dumper}@")
    assert dump(source_server, url).returncode == 0

    lab.pipeline().setup()

    assert lab.pipeline().plan().is_done
    dumped = dump(source_server, url)
    assert dumped.returncode == 0, dumped.stderr


def test_who_owns_the_database_reads_no_rows_of_tables_it_may_not_read(lab: Lab, dumper: str) -> None:
    lab.source.execute(TABLE + f"; GRANT SELECT ON t TO {dumper}")
    lab.pipeline().setup()
    lab.source.execute("UPDATE t SET v = 'b'; CREATE TABLE secret (id int PRIMARY KEY)")
    url = lab.source_url.replace("postgres@", f"{dumper}@")
    with psycopg.connect(url, autocommit=True) as session:
        assert session.execute(f"SELECT count(*) FROM {lab.set_name}.log").fetchone() == (1,)

        lab.pipeline().setup()

        assert lab.pipeline().plan().is_done
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(f"SELECT FROM {lab.set_name}.log")
        lab.source.execute(f"GRANT SELECT ON secret TO {dumper}; ALTER TABLE secret ENABLE ROW LEVEL SECURITY")
        assert lab.pipeline().plan().is_done
        lab.source.execute("ALTER TABLE secret DISABLE ROW LEVEL SECURITY")
        lab.pipeline().setup()
        assert session.execute(f"SELECT count(*) FROM {lab.set_name}.log").fetchone() == (1,)


def test_a_run_takes_what_the_database_s_owner_may_read_no_more(lab: Lab, dumper: str) -> None:
    lab.source.execute(TABLE + f"; GRANT SELECT ON t TO {dumper}")
    lab.pipeline().setup()
    lab.source.execute(f"REVOKE SELECT ON t FROM {dumper}; UPDATE t SET v = 'secret'")
    lab.pipeline()._source.follow()
    with (
        psycopg.connect(lab.source_url.replace("postgres@", f"{dumper}@"), autocommit=True) as session,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        session.execute(f"SELECT FROM {lab.set_name}.log")


def test_default_privileges_give_nobody_a_right_on_our_objects(lab: Lab, mallory: Mallory) -> None:
    for side in (lab.source, lab.target):
        for what in ("TABLES", "SEQUENCES", "SCHEMAS"):
            side.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {what} TO {mallory.name}, PUBLIC")
    lab.setup(TABLE)
    lab.source.execute("INSERT INTO t (id) VALUES (2)")
    lab.apply()
    assert lab.pipeline().setup().is_done

    for connection, schema in ((mallory.source, lab.set_name), (mallory.target, "penstock")):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"SELECT FROM {schema}.{'log' if schema == lab.set_name else 'process'}")
    for side in (lab.source, lab.target):
        for what in ("TABLES", "SEQUENCES", "SCHEMAS"):
            side.execute(f"ALTER DEFAULT PRIVILEGES REVOKE ALL ON {what} FROM {mallory.name}, PUBLIC")


@pytest.mark.parametrize(
    "definition",
    [
        pytest.param("CHECK (f(id) > 0)", id="a check"),
        pytest.param("g int GENERATED ALWAYS AS (f(id)) STORED", id="a generated column"),
        pytest.param("d int DEFAULT f(1)", id="a default, where the source has no such column"),
        pytest.param("n int); CREATE INDEX ON t (f(id)", id="an index"),
        pytest.param("e positive, a positive[]", id="a type's domain"),
        pytest.param("e pair[]", id="a domain inside a composite type"),
        pytest.param("e spans", id="a domain inside a range"),
        pytest.param("e filled", id="a domain's default, where the source has no such column"),
        pytest.param("CHECK (id @@ 1)", id="an operator"),
        pytest.param("q asking", id="a type that has the server run what a text says"),
        pytest.param(
            "n int); CREATE TRIGGER g BEFORE INSERT ON t EXECUTE FUNCTION fire(); "
            "ALTER TABLE t ENABLE ALWAYS TRIGGER g; SELECT (1",
            id="a trigger for every session",
        ),
        pytest.param(
            "n int); CREATE RULE g AS ON INSERT TO t DO ALSO SELECT f(1); "
            "ALTER TABLE t ENABLE REPLICA RULE g; SELECT (1",
            id="a rule for replication",
        ),
    ],
)
def test_code_of_other_roles_that_applying_runs_is_named(lab: Lab, mallory: Mallory, definition: str) -> None:
    role = mallory.name
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    mallory.target.execute(
        f"SET search_path = {role};"
        "CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1;"
        "CREATE FUNCTION b(int, int) RETURNS bool IMMUTABLE LANGUAGE sql RETURN true;"
        "CREATE OPERATOR @@ (LEFTARG = int, RIGHTARG = int, FUNCTION = b);"
        "CREATE DOMAIN positive AS int CHECK (f(VALUE) > 0);"
        "CREATE DOMAIN asking AS text CHECK (ts_rewrite('a', VALUE) IS NOT NULL);"
        "CREATE DOMAIN filled AS int DEFAULT f(1)"
    )
    lab.target.execute(
        f"CREATE TYPE {role}.pair AS (v {role}.positive);"
        f"CREATE TYPE {role}.span AS RANGE (subtype = {role}.positive, multirange_type_name = {role}.spans)"
    )
    lab.target.execute(
        f"SET search_path = public, {role}; CREATE TABLE t (id int PRIMARY KEY, {{}})".format(definition)
    )

    (note,) = [note for note in lab.pipeline().plan().target.notes if role in note]
    assert note.startswith(f"code of role {role!r} runs with the rights of 'postgres' when changes are applied: ")


def test_a_partition_key_that_calls_code_of_another_role_is_named(lab: Lab, mallory: Mallory) -> None:
    role = mallory.name
    lab.source.execute("CREATE TABLE t (id int)")
    mallory.target.execute(f"CREATE FUNCTION {role}.f(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1")
    lab.target.execute(f"CREATE TABLE t (id int) PARTITION BY LIST (({role}.f(id)))")

    (note,) = [note for note in lab.pipeline().plan().target.notes if role in note]
    assert f"when changes are applied: {role}.f(integer), called by partition key of public.t" in note


@pytest.mark.parametrize(
    "table",
    [
        "child (p int REFERENCES public.t); CREATE INDEX ON {0}.child (p) WHERE {0}.f(1) > 0",
        "child (p int REFERENCES public.t1); CREATE STATISTICS {0}.s ON p, ({0}.f(1)) FROM {0}.child",
        "parent (id int PRIMARY KEY); CREATE INDEX ON {0}.parent (id) WHERE {0}.f(1) > 0;"
        " GRANT REFERENCES ON {0}.parent TO PUBLIC",
    ],
    ids=["a child", "a child of a partition", "a parent"],
)
def test_code_of_other_roles_in_tables_that_foreign_keys_lead_to_is_named(
    lab: Lab, mallory: Mallory, table: str
) -> None:
    """Apply looks for parents and children itself, and while the server plans that, their owners' indexes run."""
    role = mallory.name
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    lab.target.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100);"
        f"GRANT REFERENCES ON t, t1 TO {role}"
    )
    mallory.target.execute(f"CREATE FUNCTION {role}.f(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1")
    mallory.target.execute(f"CREATE TABLE {role}." + table.format(role))
    if "parent" in table:
        lab.target.execute(f"ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES {role}.parent")

    (note,) = [note for note in lab.pipeline().plan().target.notes if f"{role}.f(" in note]
    assert note.startswith(f"code of role {role!r} runs with the rights of 'postgres' when changes are applied: ")


@pytest.mark.parametrize(
    "hidden", ["INDEX ON public.t (id) WHERE {}.f(1) > 0", "STATISTICS s ON id, ({}.f(1)) FROM public.t"]
)
def test_code_of_other_roles_that_reading_runs_is_named(lab: Lab, mallory: Mallory, hidden: str) -> None:
    role = mallory.name
    mallory.source.execute(
        "CREATE TABLE public.t (id int PRIMARY KEY CHECK (id > 0), d int DEFAULT 1);"
        f"CREATE FUNCTION {role}.f(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1"
    )
    assert not [note for note in lab.pipeline().plan().source.notes if role in note]
    mallory.source.execute("CREATE " + hidden.format(role))
    (note,) = [note for note in lab.pipeline().plan().source.notes if role in note]
    assert note.startswith(
        f"code of role {role!r} runs with the rights of 'postgres' when tables are copied and verified"
    )


def test_a_table_s_owner_has_the_server_run_what_a_text_says(lab: Lab, mallory: Mallory) -> None:
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    mallory.target.execute(
        "CREATE TABLE public.t (id int PRIMARY KEY DEFAULT random() * 9,"
        " v text CHECK (ts_rewrite('a', v) IS NOT NULL AND v <> ''))"
    )
    (note,) = [note for note in lab.pipeline().plan().target.notes if mallory.name in note]
    assert "ts_rewrite(tsquery,text), called by constraint t_v_check on public.t; if" in note


def test_a_domain_s_checks_stay_at_the_source(lab: Lab, mallory: Mallory) -> None:
    """They would run with the rights of who applies, and a built-in function can run what a text says."""
    mallory.source.execute(
        'CREATE DOMAIN public.d AS text COLLATE "C" NOT NULL CHECK ('
        " CASE WHEN current_setting('session_replication_role') = 'replica' THEN"
        " ts_rewrite('a', VALUE) IS NOT NULL ELSE true END);"
        "CREATE TABLE public.t (id int PRIMARY KEY, v public.d, a public.d[])"
    )
    lab.setup("CREATE TABLE o (id int)")
    mallory.source.execute(
        "INSERT INTO public.t VALUES (1, $$SELECT 'a'::tsquery, lo_from_bytea(4711, '')::text::tsquery$$)"
    )
    lab.apply()
    assert lab.errors() == []
    assert lab.target.execute("SELECT FROM pg_largeobject_metadata WHERE oid = 4711").fetchall() == []
    assert lab.target.execute("SELECT typnotnull FROM pg_type WHERE typname = 'd'").fetchall() == [(True,)]


def test_code_that_waits_at_the_target_for_tables_that_setup_makes(lab: Lab, mallory: Mallory) -> None:
    """Functions are found by name, so whoever may create one there beforehand would have it called."""
    lab.source.execute(
        "CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1; CREATE TYPE mood AS ENUM ('sad');"
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (f(id)) STORED, m mood);"
        "CREATE UNIQUE INDEX ON t (f(id))"
    )
    lab.target.execute("CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1")
    assert lab.pipeline().plan().is_possible
    mallory.target.execute(
        "SET search_path = public; CREATE FUNCTION f(bigint) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1;"
        "CREATE TYPE mood AS ENUM ('sad')"
    )
    (fault,) = lab.pipeline().plan().target.faults
    assert f"would run code of role '{mallory.name}' with your rights: public.f(bigint), type public.mood" in str(fault)


VIEW = """
ALTER TABLE public.{table} RENAME TO gone;
CREATE FUNCTION public.rise() RETURNS int LANGUAGE plpgsql AS 'BEGIN CREATE ROLE {role}; RETURN 1; END';
CREATE VIEW public.{table} AS SELECT public.rise() AS id, '' AS v;
"""
"""A name is all that a later session knows a table by; and what a view calls runs with the rights of who reads it."""


def test_a_view_in_the_place_of_a_table_is_not_copied(lab: Lab, mallory: Mallory) -> None:
    role = f"risen_{mallory.name}"
    mallory.source.execute("CREATE TABLE public.t (id int PRIMARY KEY, v text); INSERT INTO public.t VALUES (1, 'x')")
    lab.pipeline().setup()
    schema = lab.pipeline()._source.describe([table("t")])[table("t")]
    origin = PostgresCopyOrigin(lab.source_url, lab.set_name)
    with origin.hold_snapshot() as held:
        mallory.source.execute(VIEW.format(table="t", role=role))
        for exported in (held.exported, None):
            reader = PostgresChunkReader(lab.source_url, lab.set_name, CopySource(held.text, exported))
            with pytest.raises(OperatorError, match="restricted"):
                list(reader.read_chunk(schema, ["id", "v"], Chunk(table("t"), 0)))
            if exported is not None:
                with pytest.raises(OperatorError, match="restricted"):
                    list(reader.read_raw(schema, ["id", "v"], Chunk(table("t"), 0)))
            reader.close()
    with pytest.raises(RetryableError, match=r"public\.t was dropped or renamed"):
        origin.cut_into_chunks([table("t")])
    assert lab.source.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchall() == []


@pytest.mark.parametrize("use_set", [True, False], ids=["set path", "row path"])
def test_a_view_in_the_place_of_a_parent_is_not_asked(lab: Lab, mallory: Mallory, use_set: bool) -> None:
    role = f"risen_{mallory.name}"
    lab.source.execute("CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p)")
    mallory.target.execute("CREATE TABLE public.p (id int PRIMARY KEY); GRANT REFERENCES ON public.p TO PUBLIC")
    lab.pipeline(["public.c"]).setup()
    lab.start()
    context = lab.context(ServerConfig(use_set_path=use_set))
    lab.context = lambda _: context  # type: ignore[method-assign]
    mallory.target.execute(VIEW.format(table="p", role=role))
    lab.source.execute("INSERT INTO p VALUES (1); INSERT INTO c VALUES (1, 1)")
    lab.apply()
    assert [entry.error_code for entry in lab.errors()] == ["55000"]
    assert lab.target.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchall() == []


def test_a_name_is_no_sql_in_what_is_printed(lab: Lab, mallory: Mallory) -> None:
    hidden = f"ALTER ROLE {mallory.name} SUPERUSER;"
    for name in (f"t\n{hidden}\n--", f"u\r{hidden}\u2028{hidden}\x1b[31m"):
        kind = sql.Identifier(f"of {name}")
        mallory.source.execute(sql.SQL("CREATE TYPE public.{} AS (id int)").format(kind))
        mallory.source.execute(
            sql.SQL("CREATE TABLE public.{} (id int, c public.{})").format(sql.Identifier(name), kind)
        )
    plan = lab.pipeline().plan()
    assert all(step.summary.isprintable() for step in (*plan.source.steps, *plan.target.steps))
    for side, script in zip((lab.target, lab.source), plan.sql().split("-- source:"), strict=True):
        psycopg.ClientCursor(side).execute("-- " + script)  # type: ignore[arg-type]
    assert not mallory.is_superuser
    assert lab.pipeline().plan().is_done


LIKE_CITEXT = """
CREATE TYPE cit;
CREATE FUNCTION cit_in(cstring) RETURNS cit IMMUTABLE STRICT LANGUAGE internal AS 'textin';
CREATE FUNCTION cit_out(cit) RETURNS cstring IMMUTABLE STRICT LANGUAGE internal AS 'textout';
CREATE TYPE cit (INPUT = cit_in, OUTPUT = cit_out, LIKE = text, CATEGORY = 'S', COLLATABLE = true);
CREATE FUNCTION cit_eq(cit, cit) RETURNS bool IMMUTABLE STRICT LANGUAGE internal AS 'texteq';
CREATE FUNCTION cit_lt(cit, cit) RETURNS bool IMMUTABLE STRICT LANGUAGE internal AS 'text_lt';
CREATE FUNCTION cit_cmp(cit, cit) RETURNS int IMMUTABLE STRICT LANGUAGE internal AS 'bttextcmp';
CREATE OPERATOR = (LEFTARG = cit, RIGHTARG = cit, FUNCTION = cit_eq, MERGES, COMMUTATOR = =);
CREATE OPERATOR < (LEFTARG = cit, RIGHTARG = cit, FUNCTION = cit_lt);
CREATE OPERATOR CLASS cit_ops DEFAULT FOR TYPE cit USING btree AS
  OPERATOR 1 <, OPERATOR 3 =, FUNCTION 1 cit_cmp(cit, cit);
CREATE DOMAIN word AS cit;
"""
"""A type as citext is one: its operators are in `public`, where others may create some of the same name."""

WORDS = """
CREATE TABLE p (k cit, w word PRIMARY KEY, v int, UNIQUE (k));
CREATE TABLE c (id int PRIMARY KEY, w word REFERENCES p, k word REFERENCES p (k) DEFERRABLE);
"""


@pytest.mark.parametrize("use_set", [True, False], ids=["set path", "row path"])
def test_an_operator_that_stands_nearer_than_a_key_s_own(lab: Lab, mallory: Mallory, use_set: bool) -> None:
    for side in (lab.source, lab.target):
        side.execute(LIKE_CITEXT)
    lab.setup(WORDS)
    for side in (mallory.source, mallory.target):
        side.execute("CREATE TABLE public.hit (n int); GRANT INSERT ON public.hit TO public")
        for left, right in (("word", "cit"), ("cit", "word"), ("word", "word"), ("text", "cit"), ("cit", "text")):
            side.execute(
                f"CREATE FUNCTION public.evil({left}, {right}) RETURNS bool LANGUAGE plpgsql AS"
                " $$ BEGIN INSERT INTO public.hit VALUES (1); RETURN true; END $$;"
                f"CREATE OPERATOR public.= (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.evil)"
            )
    lab.source.execute("INSERT INTO p VALUES ('a', 'a', 1), ('b', 'b', 1), ('d', 'd', 1)")
    lab.source.execute("INSERT INTO c VALUES (1, 'a', 'a'), (2, 'b', 'b')")
    lab.source.execute("UPDATE p SET v = 2; UPDATE c SET w = 'd', k = 'd' WHERE id = 2")
    lab.source.execute("DELETE FROM p WHERE v = 2 AND k < 'd' AND NOT k < 'b'")
    lab.apply(config=ServerConfig(use_set_path=use_set))

    lab.assert_identical("p", "c")
    assert lab.errors() == []
    for side in (lab.source, lab.target):
        assert side.execute("SELECT FROM hit").rowcount == 0


WAITING = """
CREATE DOMAIN public.d AS text CHECK ({role}.rise());
CREATE TYPE public.pair AS (v public.d);
"""
"""What a text can name at the target, and runs its maker's code for whoever reads a value of it."""

TOLD_BY_A_TEXT = "record_in('(x)'::cstring, to_regtype('public.pair')::oid, -1) IS NULL"


def test_a_check_that_names_a_type_of_the_target_in_a_text_is_left_out(lab: Lab, mallory: Mallory) -> None:
    lab.source.execute(
        f"CREATE DOMAIN small AS int CHECK ({TOLD_BY_A_TEXT});"
        f"CREATE TABLE t (id int PRIMARY KEY, v small, CONSTRAINT told CHECK ({TOLD_BY_A_TEXT}))"
    )
    mallory.target.execute(WAITING.format(role=mallory.name))
    notes = lab.pipeline().plan().target.notes
    why = (
        "it calls record_in(cstring,oid,integer), to_regtype(text), which would run with the rights of whoever applies"
    )
    assert f"check told of public.t is left out: {why}" in notes
    lab.setup("")
    lab.source.execute("INSERT INTO t VALUES (1, 1)")

    lab.apply()

    assert lab.errors() == []
    assert lab.target.execute("SELECT FROM pg_constraint WHERE conname IN ('told', 'small_check')").fetchall() == []
    assert not mallory.is_superuser


def test_a_type_that_only_an_expression_names_is_asked_about(lab: Lab, mallory: Mallory) -> None:
    lab.source.execute(
        "CREATE DOMAIN d AS text; CREATE DOMAIN e AS text CHECK (VALUE::d <> 'x');"
        "CREATE TABLE t (id int PRIMARY KEY, v text, g text GENERATED ALWAYS AS (upper(v::d)) STORED);"
        "CREATE TABLE u (id int PRIMARY KEY, v e, CONSTRAINT named CHECK (v::d <> 'y'))"
    )
    mallory.target.execute(WAITING.format(role=mallory.name))

    plan = lab.pipeline().plan().target

    said = f"would run code of role '{mallory.name}' with your rights"
    (fault,) = plan.table_faults[table("t")]
    assert f"{said}: {mallory.name}.rise(), type public.d" in str(fault)
    assert any(note.startswith("check named of public.u is left out: ") and said in note for note in plan.notes)
    (made,) = [step.sql for step in plan.steps if step.summary == "type public.e"]
    assert "CHECK" not in made


def test_a_function_that_is_another_one_at_the_target_is_told_nothing(lab: Lab, mallory: Mallory) -> None:
    """The source's owner says what a function of the target's is called with, and cannot know what it does there."""
    lab.source.execute(
        "CREATE FUNCTION perform(text) RETURNS bool IMMUTABLE LANGUAGE sql RETURN true;"
        "CREATE TABLE t (id int PRIMARY KEY, v text DEFAULT perform('DROP TABLE u')::text, CHECK (perform(v)))"
    )
    lab.target.execute(
        "CREATE FUNCTION perform(text) RETURNS bool LANGUAGE plpgsql AS 'BEGIN EXECUTE $1; RETURN true; END'"
    )

    notes = lab.pipeline().plan().target.notes

    why = "it calls public.perform(text), which would run with the rights of whoever applies"
    assert f"check t_v_check of public.t is left out: {why}" in notes
    assert f"default of column 'v' of public.t is left out: {why}" in notes


@pytest.fixture
def following(lab: Lab) -> Iterator[Lab]:
    """A lab whose log tells of DDL."""
    with Lab(lab.source_url, lab.target_url, with_ddl=True) as made:
        yield made


CARRIED = {
    "ALTER TABLE t0 ALTER v TYPE public.d": "type public.d of column 'v'",
    "ALTER TABLE t1 ADD c public.d DEFAULT 'x'": "type public.d of column 'c'",
    "ALTER TABLE t2 ADD c public.d[]": "type public.d[] of column 'c'",
    "ALTER TABLE t3 ADD c public.checked DEFAULT 'x'": "type public.checked of column 'c'",
    "ALTER TABLE t4 ALTER k TYPE text": "type text of column 'k'",
    "ALTER TABLE t5 ADD c text DEFAULT ('x'::public.d)::text || 'y'": "the default of column 'c'",
    f"ALTER TABLE t6 ADD CONSTRAINT told CHECK ({TOLD_BY_A_TEXT})": "check 'told' calls record_in(cstring,oid,integer)",
    "CREATE INDEX folded ON t7 (id) WHERE public.fold(1) > 0": "index 'folded'",
    "ALTER TABLE t8 ADD CONSTRAINT \"it's\" CHECK (public.fold(1) > 0 AND v <> '')": 'check "it\'s"',
}


def test_a_sequence_of_somebody_else_s_is_not_moved_with_the_source_s(following: Lab, mallory: Mallory) -> None:
    lab, role = following, mallory.name
    for side in (lab.source, lab.target):
        side.execute("CREATE SCHEMA till; CREATE SEQUENCE till.number")
    lab.target.execute(f"ALTER SEQUENCE till.number OWNER TO {role}")
    lab.source.execute("CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT nextval('till.number'), m int)")
    why = f"sequence till.number belongs to role '{role}' here, and would be moved with the source's"
    assert f"default of column 'n' of public.t is left out: {why}" in lab.pipeline().plan().target.notes

    lab.setup("")
    lab.source.execute("ALTER TABLE t ALTER m SET DEFAULT nextval('till.number')")
    lab.source.execute("INSERT INTO t VALUES (1)")
    lab.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY)))

    assert f"which belongs to role '{role}', and would be moved" in lab.errors()[0].error_message
    assert lab.target.execute("SELECT FROM pg_attrdef WHERE adrelid = 't'::regclass").fetchall() == []
    lab.target.execute("ALTER SEQUENCE till.number OWNER TO postgres")
    entries = [entry.id for entry in lab.errors()]
    assert lab.retry(*entries) == entries
    lab.assert_identical("t")


@pytest.mark.rule("A-157")
def test_ddl_that_would_run_code_of_another_role_at_the_target(following: Lab, mallory: Mallory) -> None:
    """What it names is harmless at the source; what has those names at the target is somebody else's."""
    lab, role = following, mallory.name
    names = [f"t{n}" for n in range(len(CARRIED))]
    lab.setup(
        "CREATE TYPE kind AS ENUM ('a');"
        + ";".join(f"CREATE TABLE {t} (id int PRIMARY KEY, v text, k kind)" for t in names)
    )
    fold = "CREATE FUNCTION public.fold(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN {} RETURN 1; END'"
    lab.source.execute("CREATE DOMAIN d AS text; CREATE DOMAIN checked AS text;" + fold.format(""))
    mallory.target.execute(WAITING.format(role=role) + fold.format(f"PERFORM {role}.rise();"))
    lab.target.execute(f"CREATE DOMAIN checked AS text CHECK ({role}.rise()); ALTER TYPE kind OWNER TO {role}")
    mallory.target.execute(
        f"CREATE FUNCTION {role}.shown(public.kind) RETURNS text LANGUAGE plpgsql AS"
        f" 'BEGIN PERFORM {role}.rise(); RETURN 1; END';"
        f"CREATE CAST (public.kind AS text) WITH FUNCTION {role}.shown AS ASSIGNMENT"
    )
    for name, ddl in zip(names, CARRIED, strict=True):
        lab.source.execute(f"INSERT INTO {name} VALUES (1, 'v', 'a')")
        lab.source.execute(ddl)
    lab.source.execute("CREATE TABLE last (id int PRIMARY KEY)")

    lab.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY)))

    assert not mallory.is_superuser
    found = {str(entry.table): entry for entry in lab.errors() if entry.op == "ddl"}
    assert {entry.error_number for entry in found.values()} == {DDL_NOT_CARRIED_OUT}
    for name, why in zip(names, CARRIED.values(), strict=True):
        message = found[f"public.{name}"].error_message
        assert why in message
        assert f"'{role}'" in message or "whoever applies" in message


def test_ddl_with_types_of_trusted_roles_is_carried_out(following: Lab, mallory: Mallory) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text)")
    for side in (lab.source, lab.target):
        side.execute(
            "CREATE DOMAIN d AS varchar(9) CHECK (VALUE <> ''); CREATE TYPE kind AS ENUM ('a');"
            "CREATE FUNCTION shown(kind) RETURNS int LANGUAGE sql RETURN 1;"
            "CREATE CAST (kind AS int) WITH FUNCTION shown"
        )
    # Of somebody else's, and between types of which the table has one only.
    mallory.target.execute(
        f"CREATE TYPE {mallory.name}.own AS (v int);"
        f"CREATE FUNCTION {mallory.name}.shown(public.kind) RETURNS {mallory.name}.own LANGUAGE sql RETURN ROW(1);"
        f"CREATE CAST (public.kind AS {mallory.name}.own) WITH FUNCTION {mallory.name}.shown"
    )
    lab.source.execute("INSERT INTO t VALUES (1, 'v'); ALTER TABLE t ADD k kind DEFAULT 'a'")
    lab.source.execute("ALTER TABLE t ALTER v TYPE d; ALTER TABLE t ADD w d; ALTER TABLE t ALTER w SET DEFAULT 'w'")
    lab.source.execute("ALTER TABLE t ADD CHECK (k <> 'a'::kind OR v <> ''); INSERT INTO t VALUES (2, 'w')")

    lab.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY)))

    assert [entry.error_message for entry in lab.errors()] == []
    lab.assert_identical("t")


def test_what_is_built_when_the_rows_are_there_is_asked_about_anew(lab: Lab, mallory: Mallory) -> None:
    """What was a trusted role's when `setup` looked may be somebody else's by then."""
    fold = "CREATE FUNCTION public.fold(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN {} RETURN 1; END'"
    for side in (lab.source, lab.target):
        side.execute(fold.format(""))
    lab.setup(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE INDEX folded ON t (id) WHERE fold(1) > 0;"
        "ALTER TABLE t ADD CONSTRAINT late CHECK (fold(1) > 0) NOT VALID"
    )
    lab.target.execute("DROP FUNCTION fold")
    mallory.target.execute(fold.format(f"PERFORM {mallory.name}.rise();"))

    post_data = read_post_data(lab.source, [Renamed(table("t"), table("t"))])
    with closing(PostgresPostDataBuilder(lab.target_url, "lab", post_data)) as post_data_builder:
        built = list(post_data_builder.build([table("t")], is_last=True))
        lacks = {lack.what: lack.reason for lack in post_data_builder.lacks()}

    assert built == []
    assert set(lacks) == {"index folded of public.t", "check late of public.t"}
    assert all(f"would run code of role '{mallory.name}'" in reason for reason in lacks.values())
    assert not mallory.is_superuser


MADE = "CREATE TABLE public.injected ()"


def rewrite(lab: Lab, change: Callable[[dict[str, Any]], None]) -> None:
    """Give the last DDL in the log other words, as the capture set's owner can, who has no right at the target."""
    query = f"SELECT seq, before FROM {lab.set_name}.log WHERE op = 'A' ORDER BY seq DESC LIMIT 1"
    row = lab.source.execute(query).fetchone()
    assert row is not None
    seq, image = row[0], json.loads(row[1])
    now = json.loads(image["is"])
    change(now)
    image["is"] = json.dumps(now)
    lab.source.execute(f"UPDATE {lab.set_name}.log SET before = %s WHERE seq = %s", [json.dumps(image), seq])


def _last(now: dict[str, Any], **said: str) -> None:
    now["columns"][max(now["columns"], key=int)].update(said)


FORGED: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
    "a type": (
        "ADD c int",
        lambda now: _last(now, type=f"int; {MADE}; SELECT 1"),
        "the target has no type",
    ),
    "a type and more of its column": (
        "ADD c int",
        lambda now: _last(now, type="int REFERENCES public.u"),
        "the target has no type",
    ),
    "a collation": (
        "ADD c text",
        lambda now: _last(now, collation=f'"C"; {MADE}; SELECT 1'),
        "the target has no collation",
    ),
    "a default": (
        "ALTER v SET DEFAULT 'x'",
        lambda now: _last(now, default=f"1; {MADE}"),
        "the default of column 'v' is more than one expression",
    ),
    "a default and another column": (
        "ALTER v SET DEFAULT 'x'",
        lambda now: _last(now, default="'x', ADD COLUMN c text DEFAULT pg_read_file('PG_VERSION')"),
        "the default of column 'v' is more than one expression",
    ),
    "a default that ends its bracket": (
        "ADD c text DEFAULT 'x'",
        lambda now: _last(now, default=f"'x'); {MADE}; SELECT (1"),
        "the default of column 'c' is more than one expression",
    ),
    "a check": (
        "ADD CONSTRAINT k CHECK (v <> 'q')",
        lambda now: now["fittings"][0].update(definition=f"CHECK (true); {MADE}"),
        "check 'k' is more than one expression",
    ),
    "an index": (
        "ADD CONSTRAINT k CHECK (v <> 'q')",
        lambda now: now["fittings"][0].update(kind="index", definition=f"USING btree (id); {MADE} --"),
        "index 'k' is more than one expression",
    ),
}


@pytest.mark.parametrize("forged", FORGED)
def test_what_a_log_calls_a_type_or_an_expression_is_no_other_sql_at_the_target(following: Lab, forged: str) -> None:
    lab, (ddl, change, why) = following, FORGED[forged]
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)")
    lab.source.execute(f"ALTER TABLE t {ddl}")
    rewrite(lab, change)

    lab.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY)))

    assert lab.target.execute("SELECT to_regclass('public.injected')").fetchone() == (None,)
    (entry,) = lab.errors()
    assert entry.error_number == DDL_NOT_CARRIED_OUT
    assert why in str(entry.error_message)


def test_what_is_usual_is_one_expression() -> None:
    usual = (
        *("'a, b; --'::text", "E'it\\'s; \\\\'", "nextval('s'::regclass)", "ARRAY['a'::text, 'b'::text]", '"a,b" > 1'),
        *("CHECK (((v)::text = ANY ((ARRAY['a'::character varying])::text[])))", "'{\"a\": [1, 2]}'::jsonb", "- 1"),
        *("USING btree (id, lower(v)) INCLUDE (v) WITH (fillfactor='70') WHERE (id > 0)", "'don''t'::text", "a[1:2]"),
    )
    other = ("1, 2", "1; 2", "(1", "1)", "1 -- x", "1 /* x */", "'a", '"a', "$$a$$", "[1)", "a) + (b")
    assert [text for text in usual if not is_one_part(text)] == []
    assert [text for text in other if is_one_part(text)] == []


def test_a_default_of_a_new_column_is_asked_about_before_it_is_set(following: Lab, mallory: Mallory) -> None:
    """The server reads a literal when it parses it; what that has run is not taken back with the transaction."""
    lab, role = following, mallory.name
    lab.setup("CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("CREATE TYPE pair AS (v text)")
    mallory.target.execute(
        f"CREATE SEQUENCE {role}.runs; SELECT nextval('{role}.runs');"
        f"CREATE FUNCTION {role}.note(text) RETURNS bool LANGUAGE plpgsql AS"
        f" 'BEGIN PERFORM nextval(''{role}.runs''); RETURN true; END';"
        f"CREATE DOMAIN public.d AS text CHECK ({role}.note(VALUE)); CREATE TYPE public.pair AS (v public.d)"
    )
    lab.source.execute("ALTER TABLE t ADD c text DEFAULT ('(x)'::pair)::text")

    lab.apply(config=ServerConfig(ddl=DdlRules(DdlPolicy.APPLY)))

    assert mallory.target.execute(f"SELECT last_value FROM {role}.runs").fetchone() == (1,)
    (entry,) = lab.errors()
    said = str(entry.error_message)
    assert f"the default of column 'c': what is to be made or altered would run code of role '{role}'" in said
    assert "give that to a role you trust, or do it at the target yourself, and retry" in said


@pytest.fixture
def log(lab: Lab, tmp_path: Path) -> Log:
    return Log(lab, tmp_path)


@pytest.mark.parametrize(
    ("doing", "sql"),
    [
        (
            "rows of the event log are read and get their status: {role}.fire(), called by trigger z on",
            "ALTER TABLE indirect.event_log OWNER TO {role};"
            "CREATE TRIGGER z AFTER UPDATE ON indirect.event_log FOR EACH ROW EXECUTE FUNCTION {role}.fire()",
        ),
        (
            "what tables and views hold is read: {role}.rise(), called by rule",
            "CREATE VIEW {role}.inner_one AS SELECT 1 AS pk, {role}.rise() AS x;"
            "CREATE VIEW indirect.v AS SELECT * FROM {role}.inner_one; ALTER VIEW {role}.inner_one OWNER TO {role}",
        ),
    ],
    ids=["a trigger on the log", "a view behind a view"],
)
def test_code_of_other_roles_that_reading_an_event_log_runs_is_named(
    log: Log, mallory: Mallory, doing: str, sql: str
) -> None:
    role = mallory.name
    publication = log.publication(", keys: {indirect.v: [pk]}")
    publication.setup()
    assert not [note for note in publication.plan().source.notes if role in note]
    log.lab.source.execute(f"GRANT ALL ON SCHEMA indirect TO {role};" + sql.format(role=role))

    (note,) = [note for note in publication.plan().source.notes if role in note]

    assert note.startswith(f"code of role {role!r} runs with the rights of 'postgres' when {doing.format(role=role)}")


def test_a_cast_of_a_type_in_an_event_log_is_not_called(log: Log, mallory: Mallory) -> None:
    role = mallory.name
    publication = log.publication()
    publication.setup()
    mallory.source.execute(
        f"CREATE TYPE {role}.kind AS ENUM ('usr'); CREATE FUNCTION {role}.shown({role}.kind) RETURNS text"
        f" LANGUAGE plpgsql AS 'BEGIN PERFORM {role}.rise(); RETURN NULL; END';"
        f"CREATE CAST ({role}.kind AS text) WITH FUNCTION {role}.shown"
    )
    log.lab.source.execute(
        f"ALTER TABLE indirect.event_log ALTER table_name TYPE {role}.kind USING 'usr', ALTER old_value"
        f" TYPE {role}.kind USING NULL"
    )
    log.write(4, "idu=1")

    publication.run(Event(), until_caught_up=True)

    assert log.told == [("delete", "idu=1")]
    assert not mallory.is_superuser


def test_a_plan_with_rules_runs_no_code_of_a_table_s_owner(lab: Lab, mallory: Mallory) -> None:
    """To have a check put into other names, the server was given it, and computes what depends on no row of it."""
    role = mallory.name
    mallory.source.execute(
        f"CREATE SEQUENCE {role}.runs; SELECT nextval('{role}.runs');"
        f"CREATE FUNCTION {role}.fold(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        f" 'BEGIN PERFORM nextval(''{role}.runs''); RETURN 1; END';"
        f"CREATE TABLE public.t (id int PRIMARY KEY, v int, CONSTRAINT own CHECK ({role}.fold(1) > 0 AND v > 0)"
        f" NOT VALID, CHECK (v < 9)); CREATE INDEX folded ON public.t (v) WHERE {role}.fold(1) > 0"
    )
    before = mallory.source.execute(f"SELECT last_value FROM {role}.runs").fetchone()
    lab.apply_settings = "rules: {tables: {public.t: {rename: {v: w}}}}\n"

    notes = lab.pipeline().plan().target.notes

    assert mallory.source.execute(f"SELECT last_value FROM {role}.runs").fetchone() == before
    for what in ("check own of public.t", "index folded of public.t"):
        (note,) = [note for note in notes if what in note]
        assert f"would run code of role '{role}'" in note
    assert not [note for note in notes if "t_v_check" in note]
