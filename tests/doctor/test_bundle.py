"""`penstock doctor --bundle`: what a bug report needs, and no secret and no row value in any of its bytes."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path

import pytest
import yaml

from penstock.doctor.masking import Sieve, mask_urls, masked_file, secrets_of
from penstock.pipeline_file import parse
from tests.lab import Lab
from tests.program import Program

PASSWORD = "Tr0ub4dor&3/€"
ROW = "planted-row-value"

SECRETS = f"""\
spark: {{spark.hadoop.fs.s3a.secret.key: planted-spark-key}}
rules:
  tables:
    public.customer: {{rows: "name <> '{ROW}-in-rule'"}}
"""


@pytest.fixture
def program(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    # Spark is not started, so nothing of its start has to be prepared.
    monkeypatch.setattr("tests.program.prepared_start", str)
    return Program(tmp_path, lab.source_url, lab.target_url, name=lab.name)


def contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as bundle:
        return {name: bundle.read(name).decode() for name in bundle.namelist()}


def test_a_bundle_holds_no_secret_and_no_row_value(lab: Lab, program: Program) -> None:
    lab.setup(
        "CREATE TABLE customer (id int PRIMARY KEY, name text UNIQUE, note text DEFAULT 'planted-default',"
        " CHECK (note <> 'planted-check'))"
    )
    lab.target.execute(f"INSERT INTO customer VALUES (7, '{ROW}')")
    lab.target.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'refused: %', NEW.name; END $$;"
        " CREATE TRIGGER refuse BEFORE INSERT ON customer FOR EACH ROW WHEN (NEW.id > 7) EXECUTE FUNCTION refuse();"
        " ALTER TABLE customer ENABLE ALWAYS TRIGGER refuse"
    )
    # Later tables that setup leaves out, whose advice would repeat a default.
    lab.source.execute("CREATE TABLE later (id int PRIMARY KEY, code text DEFAULT 'planted-advice; planted')")
    lab.target.execute("CREATE TABLE later (id int PRIMARY KEY)")
    lab.source.execute(f"INSERT INTO customer VALUES (7, '{ROW}-7')")
    lab.source.execute(f"INSERT INTO customer VALUES (8, '{ROW}-8')")
    lab.apply()
    lab.ledger.set_status_of_last_run(f"refused: {ROW}", is_aborted=True)
    assert len(lab.errors()) == 2
    file = program.folder / "pipeline.yaml"
    file.write_text("# planted-comment\n" + file.read_text() + SECRETS)
    secret = f"{lab.source_url.replace('postgres@', 'postgres:Tr0ub4dor%263%2F%E2%82%AC@')}"

    done = program("doctor", "--json", "--bundle", "report.zip", env={"SHOP_URL": secret})

    assert done.code in (0, 1), done.err
    assert done.json["bundle"] == "report.zip"
    bundle = program.folder / "report.zip"
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    held = contents(bundle)
    whole = "\n".join(held.values())
    for planted in (PASSWORD, "Tr0ub4dor", "planted"):
        assert planted not in whole
        assert planted.encode() not in bundle.read_bytes()
    assert {"README.txt", "versions.json", "findings.json", "pipeline.yaml", "status.json", "plan.json"} <= set(held)
    assert json.loads(held["versions.json"])["penstock"]
    errors = json.loads(held["errors.json"])
    assert sorted((one["table"], one["op"], one["entries"]) for one in errors) == [("public.customer", "insert", 1)] * 2
    table, _ = json.loads(held["databases/shop.json"])["tables"]
    assert "lacks column 'code'" in held["plan.json"]
    assert [(column["name"], column["type"]) for column in table["columns"]] == [
        ("id", "integer"),
        ("name", "text"),
        ("note", "text"),
    ]
    settings = yaml.safe_load(held["pipeline.yaml"])
    assert settings["connections"]["shop"] == {"type": "postgres", "url": "${env:SHOP_URL}"}
    assert settings["spark"] == {"spark.hadoop.fs.s3a.secret.key": "***"}


def test_an_option_is_no_name_of_a_bundle(program: Program) -> None:
    refused = program("doctor", "--bundle", "--help")

    assert refused.code == 2
    assert "--bundle needs a file, and was given '--help'. Name one: --bundle bug.zip" in refused.err
    assert not (program.folder / "--help").exists()


def test_a_bundle_overwrites_no_file(program: Program) -> None:
    (program.folder / "mine.zip").write_text("mine")
    refused = program("doctor", "--bundle", "mine.zip")
    assert refused.code == 2
    assert "'mine.zip' exists" in refused.err
    assert (program.folder / "mine.zip").read_text() == "mine"


def test_a_file_that_cannot_be_used_is_bundled_without_its_secrets(program: Program) -> None:
    text = "version: 1\nconnections: {shop: {type: postgres, url: 'postgresql://u:planted@h/d'}}\n"
    (program.folder / "pipeline.yaml").write_text(text)
    assert program("doctor", "--bundle", "a.zip").code == 2
    assert "planted" not in "".join(contents(program.folder / "a.zip").values())

    (program.folder / "pipeline.yaml").write_text("version: [planted\n")
    assert program("doctor", "--bundle", "b.zip").code == 2
    assert "planted" not in "".join(contents(program.folder / "b.zip").values())


def test_settings_are_shown_and_what_may_be_a_secret_is_not() -> None:
    shown = yaml.safe_load(
        masked_file("""
connections:
  a: {type: postgres, url: "postgresql://u:${file:secret}@h/d"}
  k: {type: kafka, settings: {bootstrap.servers: "b:9092", ssl.key.location: planted, sasl.password: "${env:P}"}}
capture: {tables: ["public.*"], log: {warn_gb: 5}}
on_error: {webhook: "https://u:planted@hooks.example/planted?x=planted", signature_key: planted}
publish: {path: "s3://bucket/planted"}
rules: {tables: {public.t: {rows: "a = 'planted' AND b = 3"}}}
""")
    )
    assert "planted" not in str(shown)
    assert shown["connections"]["a"]["url"] == "***"
    assert shown["connections"]["k"]["settings"] == {
        "bootstrap.servers": "b:9092",
        "ssl.key.location": "***",
        "sasl.password": "${env:P}",
    }
    assert shown["capture"] == {"tables": ["public.*"], "log": {"warn_gb": 5}}
    assert shown["on_error"]["webhook"] == "https://hooks.example/***"
    assert shown["rules"]["tables"]["public.t"]["rows"] == "a = '***' AND b = 3"
    assert mask_urls("see spark://h:7077 and http://h/p") == "see spark://h:7077 and http://h/***"


def test_passwords_of_clusters_and_registries_are_taken_out() -> None:
    text = """
version: 1
name: events
connections:
  k: {type: kafka, settings: {bootstrap.servers: "b:9092", sasl.username: u, sasl.password: "${env:KAFKA}"}}
  t: {type: postgres, url: "postgresql://u@h/d"}
capture:
  source: debezium
  connection: k
  tables: ["*.*"]
  debezium: {prefix: p, registry: {url: "http://h:1", user: u, password: "${env:REGISTRY}"}}
apply: {connection: t}
"""
    # As references, neither is a text that could be a url.
    environment = {"KAFKA": "a=b://c", "REGISTRY": "c=d"}
    config = parse(text, name="x", environment=environment)
    assert {"a=b://c", "c=d"} <= set(secrets_of(config, text, environment, lambda _: ()))


def test_the_sieve_finds_a_secret_however_it_is_spelled() -> None:
    sieve = Sieve(['a"b/c', "abc", ""])
    assert sieve.clean('a"b/c a%22b%2Fc a\\"b/c abc') == "*** *** *** abc"
