"""What a user gets wrong, one after the other: one clear line each, the right exit code, nothing half done."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from penstock.demo.servers import EmbeddedPostgres
from tests.lab import Lab
from tests.program import Done, Program

PASSWORD = "s3kr1t-passw0rd"

TABLES = """
CREATE TABLE customer (id int PRIMARY KEY, name varchar(20), CONSTRAINT n CHECK (name <> ''));
CREATE TABLE item (customer int REFERENCES customer, no int, PRIMARY KEY (customer, no));
"""


def assert_refused(done: Done, code: int, *texts: str) -> None:
    assert done.code == code, done.out + done.err
    for text in texts:
        assert text in done.err, done.err
    assert "Traceback" not in done.err
    assert PASSWORD not in done.out + done.err


def is_untouched(connection: psycopg.Connection) -> bool:
    row = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'penstock%'").fetchone()
    return row == (0,)


def grants_of(plan: Done, side: str) -> Sequence[str]:
    return plan.json[side]["missing_grants"]


@pytest.fixture
def shop(lab: Lab, program: Program) -> Program:
    lab.source.execute(TABLES)
    return program


@pytest.fixture
def role(lab: Lab, source_server: EmbeddedPostgres, target_server: EmbeddedPostgres) -> Iterator[str]:
    """An ordinary user of both servers, who may do nothing yet."""
    name = f"ordinary_{lab.name}"
    for connection in (lab.source, lab.target):
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
    yield name
    for connection in (lab.source, lab.target):
        connection.execute(f"DROP OWNED BY {name} CASCADE")
        connection.execute(f"DROP ROLE {name}")


def test_every_fault_of_the_file_is_named_at_once_with_its_line(program: Program) -> None:
    text = (program.folder / "pipeline.yaml").read_text()
    text = text.replace("version: 1", "version: 2").replace("trigger_queue", "triger_queue")
    text = text.replace("connection: copy", "connection: kopy\n  paralelism: 2")
    (program.folder / "pipeline.yaml").write_text(text)

    done = program("setup")

    assert_refused(
        done,
        2,
        "pipeline.yaml:1: version: must be 1, not 2",
        "pipeline.yaml:7: capture.source: must be 'trigger_queue'",
        "pipeline.yaml:12: apply.connection: no connection 'kopy'; did you mean 'copy'?",
        "pipeline.yaml:13: apply.paralelism: is not an option; did you mean 'parallelism'?",
    )
    assert len(done.err.strip().splitlines()) == 4


def test_a_file_that_is_no_yaml(program: Program) -> None:
    (program.folder / "pipeline.yaml").write_text("version: 1\nname: [shop\nconnections: {}\n")
    assert_refused(program("setup"), 2, "pipeline.yaml:3: not YAML")


def test_no_file(program: Program) -> None:
    (program.folder / "pipeline.yaml").unlink()
    assert_refused(program("run"), 2, "cannot read 'pipeline.yaml': no such file or directory", "-f")
    assert_refused(program("-f", "other.yaml", "run"), 2, "'other.yaml'")


def test_an_unknown_option_or_command(program: Program) -> None:
    assert program("run", "--until-coughed-up").code == 2
    assert program("rum").code == 2
    assert_refused(program("errors", "retry"), 2, "--all")


def test_an_environment_variable_that_is_not_set(program: Program) -> None:
    del program.environment["COPY_URL"]
    assert_refused(
        program("plan"), 2, "pipeline.yaml:5: connections.copy.url: environment variable COPY_URL is not set"
    )


def test_a_password_in_the_file(program: Program) -> None:
    text = (program.folder / "pipeline.yaml").read_text()
    url = f"postgresql://me:{PASSWORD}@localhost/shop"
    (program.folder / "pipeline.yaml").write_text(text.replace("${env:SHOP_URL}", url))
    assert_refused(program("plan"), 2, "pipeline.yaml:4: connections.shop.url: a password stands in the file")


def test_a_pattern_that_means_no_table(shop: Program, lab: Lab) -> None:
    text = (shop.folder / "pipeline.yaml").read_text()
    (shop.folder / "pipeline.yaml").write_text(text.replace("['public.*']", "['public.item', 'public.Custmer']"))
    said = "no table matches 'public.Custmer'", "capture.tables", lab.source.info.dbname, "mean 'public.customer'?"
    assert_refused(shop("setup"), 3, *said)
    assert is_untouched(lab.source)
    assert is_untouched(lab.target)


def test_a_wrong_password(shop: Program, lab: Lab, role: str, source_server: EmbeddedPostgres) -> None:
    rules = source_server.hba.read_text()
    source_server.hba.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{rules}")
    source_server.reload()
    try:
        url = lab.source_url.replace("postgres@", f"{role}:{quote('wrong ' + PASSWORD)}@")
        done = shop("setup", env={"SHOP_URL": url})
        assert_refused(done, 3, "password authentication failed", role, "Check the user and the password")
        assert "wrong" not in done.err
    finally:
        source_server.hba.write_text(rules)
        source_server.reload()


def test_a_database_that_does_not_exist(shop: Program, lab: Lab) -> None:
    done = shop("setup", env={"COPY_URL": lab.target_url + "_not"})
    assert_refused(done, 3, '_not" does not exist', "Create the database")
    assert is_untouched(lab.source)


def test_a_url_that_is_none(shop: Program) -> None:
    done = shop("setup", env={"COPY_URL": f"postgres//x:{PASSWORD}"})
    assert_refused(done, 2, "not a libpq url", "connections.copy.url")


@pytest.mark.parametrize("command", ["plan", "setup", "run", "status", "verify"])
def test_a_url_with_a_password_that_is_not_encoded(program: Program, command: str) -> None:
    done = program(command, env={"SHOP_URL": "postgresql://cap:Top/Sec@ret@127.0.0.1/shop"})
    assert_refused(done, 2, "may be read in two ways", "connections.shop.url", "%40")
    assert not re.search("Top|Sec|ret", done.err + done.out)


@pytest.mark.parametrize("side", ["SHOP_URL", "COPY_URL"])
def test_a_server_that_is_down_at_start_is_tried_again_and_then_named(program: Program, lab: Lab, side: str) -> None:
    lab.setup(TABLES)
    text = (program.folder / "pipeline.yaml").read_text()
    (program.folder / "pipeline.yaml").write_text(text + "  retry_s: 1.5\n")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        url = f"postgresql://postgres@127.0.0.1:{port}/{lab.name}"
        done = program("run", env={side: url})
        assert_refused(
            done,
            4,
            f":{port}",
            "trying again for",
            "Connection refused",
            "after trying for 1.5 s",
            "Check that the server is up",
        )
        assert len(done.err.strip().splitlines()) == 2, done.err
        done = program("status", env={side: url})
        # Without its source it says what the ledger knew last, without its target nothing.
        shown = done.out if side == "SHOP_URL" else done.err
        assert done.code == 4
        assert f":{port}" in shown
        assert "Connection refused" in shown


def test_no_java(program: Program, lab: Lab, tmp_path: Path) -> None:
    lab.setup(TABLES)
    lab.ledger.close()
    done = program("run", env={"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert_refused(done, 3, "no Java found", "openjdk-17-jre-headless")


def test_a_java_that_is_too_old(program: Program, lab: Lab, tmp_path: Path) -> None:
    lab.setup(TABLES)
    lab.ledger.close()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    assert_refused(program("run", env={"JAVA_HOME": str(tmp_path)}), 3, "Java 11 is too old", "openjdk-17")


def test_missing_privileges_are_named_as_grants_that_suffice(shop: Program, lab: Lab, role: str) -> None:
    database = lab.source.info.dbname
    # Row-level security would let this user see none of the rows.
    lab.source.execute("ALTER TABLE item ENABLE ROW LEVEL SECURITY")
    lab.source.execute(f"REVOKE ALL ON DATABASE {database} FROM public")
    lab.source.execute(f"GRANT CONNECT ON DATABASE {database} TO {role}")
    urls = {
        "SHOP_URL": lab.source_url.replace("postgres@", f"{role}@"),
        "COPY_URL": lab.target_url.replace("postgres@", f"{role}@"),
    }

    refused = shop("setup", env=urls)
    assert_refused(refused, 3, "missing privilege", f'GRANT CREATE ON DATABASE "{database}" TO "{role}"')
    assert is_untouched(lab.source)
    assert is_untouched(lab.target)

    plan = shop("plan", "--json", env=urls)
    assert f'ALTER ROLE "{role}" BYPASSRLS' in grants_of(plan, "source")
    for statement in grants_of(plan, "source"):
        lab.source.execute(statement)
    for statement in grants_of(plan, "target"):
        lab.target.execute(statement)
    done = shop("setup", env=urls)
    assert done.code == 0, done.err
    lab.source.execute("INSERT INTO customer VALUES (1, 'a'); INSERT INTO item VALUES (1, 1)")
    lab.source.execute(f"ALTER ROLE {role} NOBYPASSRLS")
    assert_refused(shop("run", "--until-caught-up", env=urls), 3, "row-level security")
    lab.source.execute(f"ALTER ROLE {role} BYPASSRLS")
    ran = shop("run", "--until-caught-up", env=urls)
    assert ran.code == 0, ran.err
    lab.assert_identical("customer", "item")


def test_tables_that_keys_lead_to_need_rights_though_they_are_not_captured(
    shop: Program, lab: Lab, role: str, tmp_path: Path
) -> None:
    # At the target: above a table that setup makes, above one that is there, and below that one.
    for connection in (lab.source, lab.target):
        connection.execute("CREATE TABLE country (id int PRIMARY KEY); INSERT INTO country VALUES (1)")
        connection.execute("CREATE TABLE city (id int PRIMARY KEY, country int REFERENCES country)")
        connection.execute("CREATE TABLE visit (city int REFERENCES city)")
    lab.source.execute("CREATE TABLE river (id int PRIMARY KEY, country int REFERENCES country)")
    lab.target.execute(f"ALTER TABLE city OWNER TO {role}")
    path = tmp_path / "pipeline.yaml"
    path.write_text(path.read_text().replace("public.*", "public.city', 'public.river"))
    urls = {"COPY_URL": lab.target_url.replace("postgres@", f"{role}@")}

    for statement in grants_of(shop("plan", "--json", env=urls), "target"):
        lab.target.execute(statement)
    assert shop("setup", env=urls).code == 0
    lab.source.execute("INSERT INTO city VALUES (1, 1), (2, 1); INSERT INTO river VALUES (1, 1)")
    lab.source.execute("DELETE FROM city WHERE id = 2; UPDATE city SET country = NULL; UPDATE river SET country = NULL")
    ran = shop("run", "--until-caught-up", env=urls)
    assert ran.code == 0, ran.err
    lab.assert_identical("city", "river")


@pytest.mark.parametrize(
    ("at_target", "texts"),
    [
        pytest.param(
            "CREATE TABLE customer (id int, name varchar(20)); CREATE TABLE item (customer int, no int)",
            ["table public.customer has no primary or unique key", "public.item", "ADD PRIMARY KEY", '("id")'],
            id="a table without key",
        ),
        pytest.param(
            "CREATE TABLE customer (id int PRIMARY KEY)",
            ["table public.customer lacks column 'name'", 'ADD COLUMN "name" character varying(20)'],
            id="a column is missing",
        ),
        pytest.param(
            "CREATE TABLE customer (id text PRIMARY KEY, name varchar(20))",
            ["column 'id' of table public.customer is text, at the source it is integer"],
            id="another type",
        ),
        pytest.param(
            "CREATE TABLE prices (at timestamp(3), price numeric(9))",
            [
                "column 'at' of table public.prices is timestamp(3) without time zone, at the source it is timestamp",
                "column 'price' of table public.prices is numeric(9,0), at the source it is numeric(9,2)",
                "values would be rounded or cut without a word",
            ],
            id="fewer digits",
        ),
    ],
)
def test_a_target_table_that_cannot_take_the_changes(
    shop: Program, lab: Lab, at_target: str, texts: Sequence[str]
) -> None:
    lab.source.execute("CREATE TABLE prices (at timestamp, price numeric(9,2))")
    lab.target.execute(at_target)
    assert_refused(shop("setup"), 3, *texts, lab.target.info.dbname)
    assert_refused(shop("plan", "--print-sql"), 3, *texts)
    plan = shop("plan", "--json")
    assert plan.code == 3
    assert not plan.json["target"]["faults"]
    assert [one["table"] for one in plan.json["left_out"] if one["reasons"]]


def test_a_column_that_the_target_computes_another_way_is_named(shop: Program, lab: Lab) -> None:
    columns = (
        "id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a + {}) STORED, same int GENERATED ALWAYS AS (a) STORED"
    )
    lab.source.execute(f"CREATE TABLE sums ({columns.format(1)})")
    lab.target.execute(f"CREATE TABLE sums ({columns.format(2)})")
    said = "column 'b' of table public.sums is computed as (a + 2), at the source as (a + 1)"
    plan = shop("plan")
    assert plan.code == 0
    assert said in plan.out
    assert "'same'" not in plan.out
    assert said in shop("setup").err


def test_a_target_table_that_holds_rows_is_not_copied_over(shop: Program, lab: Lab) -> None:
    lab.source.execute("INSERT INTO customer VALUES (1, 'a')")
    lab.target.execute(TABLES)
    lab.target.execute("INSERT INTO customer VALUES (9, 'mine')")
    refused = "public.customer", "holds rows that penstock did not copy", lab.target.info.dbname
    assert_refused(shop("setup"), 3, *refused)
    assert [one["table"] for one in shop("plan", "--json").json["left_out"]] == ["public.customer"]

    lab.target.execute("DELETE FROM customer")
    assert shop("setup").code == 0
    lab.target.execute("INSERT INTO customer VALUES (9, 'mine')")
    assert_refused(shop("run", "--until-caught-up"), 3, *refused)
    assert lab.target.execute("SELECT id FROM customer").fetchall() == [(9,)]


def test_changes_that_the_target_cannot_hold_wait_in_the_error_queue(shop: Program, lab: Lab) -> None:
    lab.target.execute(TABLES.replace("varchar(20)", "varchar(5)"))
    lab.source.execute("CREATE TABLE gone (id int PRIMARY KEY); CREATE TABLE lost (id int PRIMARY KEY)")
    assert "values that do not fit go to the error queue" in shop("setup").err
    assert shop("run", "--until-caught-up").code == 0

    lab.source.execute("INSERT INTO customer VALUES (1, 'far too long for it')")
    lab.source.execute("INSERT INTO gone VALUES (1)")
    lab.source.execute("DROP TABLE gone")
    lab.source.execute("INSERT INTO lost VALUES (1)")
    lab.target.execute("DROP TABLE lost")
    lab.source.execute("INSERT INTO customer VALUES (2, 'fits')")
    ran = shop("run", "--until-caught-up")

    assert ran.code == 5, ran.err
    assert lab.target.execute("SELECT id FROM customer").fetchall() == [(2,)]
    assert lab.target.execute("SELECT id FROM gone").fetchall() == [(1,)]
    entries = shop("errors", "list", "--json").json
    assert [(e["table"], e["error_number"]) for e in entries] == [("public.customer", 12899), ("public.lost", 942)]
    assert "too long" not in " ".join(e["error_message"] for e in entries)
    verified = shop("verify")
    assert verified.code == 1
    assert "not compared: public.lost does not exist at the target" in verified.out
