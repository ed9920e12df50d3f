"""The pipeline file: read with its secrets in place, or refused with every fault and its line at once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from penstock.apply.conflict_methods import (
    ConflictKind,
    ConflictRules,
    ErrorAction,
    ErrorRule,
    Method,
    Resolver,
    TableRules,
)
from penstock.apply.parameters import CommitSerialization
from penstock.change import Op, TableName
from penstock.config import PipelineConfig
from penstock.config.capture import SOURCES
from penstock.config.connections import ConnectionConfig, KafkaConfig
from penstock.config.pipeline import json_schema
from penstock.config.publish import FilesFormat
from penstock.config.rules import RulesConfig
from penstock.dialects.postgres.connection import conninfo, label
from penstock.errors import ConfigError
from penstock.pipeline_file import load, parse

GOOD = """\
version: 1
name: shop
connections:
  source:
    type: postgres
    url: postgresql://app@one/shop
  target:
    type: postgres
    url: postgresql://app@two/shop
capture:
  source: trigger_queue
  connection: source
  tables: [public.*]
apply:
  connection: target
"""

# What a file may name, as messages list it: a kind that is added needs no word here.
SOURCE_NAMES = ", ".join(repr(source.name) for source in SOURCES)
FORMAT_NAMES = " or ".join(", ".join(map(repr, get_args(FilesFormat))).rsplit(", ", 1))
DATABASE_NAMES = " or ".join(map(repr, get_args(ConnectionConfig.model_fields["type"].annotation)))


def read(text: str, **environment: str) -> PipelineConfig:
    return parse(text, name="p.yaml", environment=environment)


def faults(text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, **environment)
    return [line.removeprefix("p.yaml:") for line in str(caught.value).split("\n")]


GOOD_DATA = yaml.safe_load(GOOD)


def urls(source: str) -> dict[str, dict[str, str]]:
    """The connections, with this url for the source."""
    return {"source": {"type": "postgres", "url": source}, "target": {"type": "postgres", "url": "host=two"}}


def password_of(url: str) -> object:
    return conninfo_to_dict(url)["password"]


def with_url(url: str) -> str:
    return GOOD.replace("postgresql://app@one/shop", url)


PUBLISHING = GOOD[: GOOD.index("apply:")] + "publish:\n  to: files\n  path: archive\n"


def test_a_pipeline_may_publish_instead_of_applying(tmp_path: Path) -> None:
    config = parse(PUBLISHING, name="p.yaml", environment={}, folder=tmp_path)

    assert config.apply is None
    assert config.publish is not None
    assert (config.publish.path, config.publish.form) == (str(tmp_path / "archive"), "changes")


@pytest.mark.parametrize("path", ["/var/archive", "s3://bucket/archive?region=eu"])
def test_a_path_that_says_where_it_is_stays_as_it_is(path: str, tmp_path: Path) -> None:
    text = PUBLISHING.replace("path: archive", f"path: {path}")

    config = parse(text, name="p.yaml", environment={}, folder=tmp_path)

    assert config.publish is not None
    assert config.publish.path == path


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("  path: archive", "  path: ''", "16: publish.path: is empty"),
        ("path: archive", "path: https://a.example/b", "16: publish.path: no files can be kept in https://"),
        ("path: archive", "path: s3:///folder", "16: publish.path: the url of an object store names no bucket"),
        ("path: archive", "path: file://archive", "16: publish.path: the url of a folder must name it from the root"),
        ("path: archive", 'path: "a\\0b"', "16: publish.path: the path of a folder holds a zero byte"),
        ("path: archive", "path: ~nobody_here/a", "16: publish.path: the path of a folder begins with the home of"),
        ("to: files", "to: pulsar", "15: publish.to: must be 'files' or 'kafka', not 'pulsar'"),
        ("  path: archive", "  path: a\n  connection: target", "17: publish.connection: files are written to"),
        (
            "  path: archive",
            "  path: a\n  format: tsv",
            f"17: publish.format: must be {FORMAT_NAMES}, not 'tsv'",
        ),
        ("  path: archive\n", "", "14: publish.path: is missing"),
        ("  path: archive", "  path: a\n  format: debezium-json", "14: publish.debezium: is missing"),
        ("  path: archive", "  path: a\n  debezium: {prefix: a}", "17: publish.debezium: change files are no"),
    ],
)
def test_a_fault_of_publishing_is_told_with_its_line(old: str, new: str, fault: str) -> None:
    (found,) = faults(PUBLISHING.replace(old, new))

    assert found.startswith(fault)


TO_KAFKA = PUBLISHING[: PUBLISHING.index("publish:")].replace(
    "capture:",
    """\
  cluster: {type: kafka, settings: {bootstrap.servers: "one:9092"}}
capture:""",
)
TO_KAFKA += "publish:\n  to: kafka\n  connection: cluster\n  debezium:\n    prefix: shop\n"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            'bootstrap.servers: "one:9092"',
            "bootstrap.servers: ",
            "connections.cluster.settings.bootstrap.servers: has no value",
        ),
        ("    prefix: shop\n", "    prefix: shop\n  retry_s:\n", "publish.retry_s: must be a number of seconds"),
        ("to: kafka", "to:", "publish.to: has no value"),
    ],
)
def test_what_has_no_value_is_told_once(old: str, new: str, fault: str) -> None:
    (found,) = faults(TO_KAFKA.replace(old, new))
    assert found.partition(": ")[2].startswith(fault)


def test_a_pipeline_may_publish_events_to_kafka() -> None:
    publish = read(TO_KAFKA).publish

    assert publish is not None
    assert publish.debezium is not None
    assert (publish.form, publish.debezium.connector, publish.debezium.schemas) == ("debezium-json", "postgresql", True)
    assert (publish.debezium.skipped_operations, publish.debezium.tombstones_on_delete) == ([], True)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("connection: cluster", "connection: target", "17: publish.connection: target is a database, and must be a"),
        ("connection: cluster", "connection: clustre", "17: publish.connection: no connection 'clustre'; did you mean"),
        ("  connection: cluster\n", "", "15: publish.connection: is missing"),
        ("  debezium:\n    prefix: shop\n", "", "15: publish.debezium: is missing"),
        ("    prefix: shop", "    connector: oracle", "18: publish.debezium.prefix: is missing"),
        ("prefix: shop", "prefix: a b", "19: publish.debezium.prefix: must be letters, digits, '.', '_' and '-'"),
        ("prefix: shop", "prefix: a\n    connector: sybase", "20: publish.debezium.connector: must be 'postgresql',"),
        (
            "prefix: shop",
            "prefix: a\n    skipped_operations: [x]",
            "20: publish.debezium.skipped_operations.0: must be",
        ),
        ("prefix: shop", "prefix: a\n    partitions: 0", "20: publish.debezium.partitions: must be greater than"),
        ("prefix: shop", "prefix: a\n    tombstones: no", "20: publish.debezium.tombstones: is not an option"),
        (
            "  debezium:",
            "  format: parquet\n  debezium:",
            "18: publish.format: must be 'debezium-json', 'debezium-avro', 'xds' or 'dbwatcher'",
        ),
        ("  debezium:", "  format: debezium-avro\n  debezium:", "19: publish.debezium.registry: is missing; Avro has"),
        (
            "prefix: shop",
            'prefix: a\n    registry: {url: "http://one:8081"}',
            "20: publish.debezium.registry: goes",
        ),
        ("  debezium:", "  path: here\n  debezium:", "18: publish.path: events are published to a cluster"),
        ("  debezium:", "  max_age_s: 1\n  debezium:", "18: publish.max_age_s: events do not wait for others"),
    ],
)
def test_a_fault_of_publishing_events_is_told_with_its_line(old: str, new: str, fault: str) -> None:
    (found,) = faults(TO_KAFKA.replace(old, new))

    assert found.startswith(fault)


RULES = (
    GOOD
    + """\
rules:
  include: [public.*]
  exclude: ["public.audit_*"]
  tables:
    public.*:
      to: sales.*
    public.customers:
      rename: {name: full_name}
      operations: [insert, update]
"""
)


def test_rules_know_the_lines_they_stand_in() -> None:
    rules = read(RULES).rules

    assert rules is not None
    assert rules.place("tables", "public.customers", "rename", "name") == (
        "p.yaml:23: rules.tables.public.customers.rename.name: "
    )
    assert read(GOOD).rules is None
    assert RulesConfig().place("exclude", 0) == "rules.exclude.0: "


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("    public.*:", "    public:", "20: rules.tables.public: 'public' is not a table pattern."),
        ("[public.*]\n  exclude", "[a]\n  exclude", "17: rules.include.0: 'a' is not a table pattern."),
        ("to: sales.*", "to: sales.all", "21: rules.tables.public.*.to: 'sales.all' gives all tables that 'public.*'"),
        ("to: sales.*", "to: sales.**", "21: rules.tables.public.*.to: 'sales.**' does not name a table."),
        ("to: sales.*", "to: sales", "21: rules.tables.public.*.to: 'sales' does not name a table."),
        ("to: sales.*", "too: sales.*", "21: rules.tables.public.*.too: is not an option; did you mean 'to'?"),
        ("rename: {name: full_name}", "step: a b", "23: rules.tables.public.customers.step: must be module:function"),
        ("rename: {name: full_name}", "keep: []", "23: rules.tables.public.customers.keep: "),
        ("rename: {name: full_name}", "add: {n: 5}", "23: rules.tables.public.customers.add.n: must be a valid string"),
        (
            "update]",
            "upsert]",
            "24: rules.tables.public.customers.operations.1: must be 'insert', 'update', 'delete' or",
        ),
    ],
)
def test_a_fault_of_rules_is_told_with_its_line(old: str, new: str, fault: str) -> None:
    assert old in RULES
    (found,) = faults(RULES.replace(old, new))

    assert found.startswith(fault)


def test_what_is_left_out_takes_its_default() -> None:
    apply = read(GOOD).apply

    assert apply.parallelism == 2
    assert apply.commit_serialization is CommitSerialization.DEPENDENT_TRANSACTIONS
    assert (apply.disable_on_error, apply.allow_duplicate_rows, apply.retry_s) == (False, True, "INFINITE")


def test_what_is_given_is_taken() -> None:
    given_options = "  parallelism: 8\n  commit_serialization: FULL\n  disable_on_error: true\n  retry_s: 0.5\n"

    apply = read(GOOD + given_options).apply

    assert (apply.parallelism, apply.disable_on_error, apply.retry_s) == (8, True, 0.5)
    assert apply.commit_serialization is CommitSerialization.FULL


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("version: 1", "version: 2", "1: version: must be 1, not 2"),
        ("version: 1\n", "", "1: version: is missing"),
        (
            "name: shop",
            "name: My-Shop",
            "2: name: must be lower-case letters, digits and underscores, at most 36, beginning with a letter,"
            " not 'My-Shop'",
        ),
        ("name: shop", "name: 7", "2: name: must be a valid string, not 7"),
        (
            "type: postgres",
            "type: odd",
            f"5: connections.source.type: must be {DATABASE_NAMES} or 'kafka', not 'odd'",
        ),
        ("    url: postgresql://app@one/shop\n", "", "4: connections.source.url: is missing"),
        ("    url:", "    uri:", "4: connections.source.url: is missing"),
        ("    url:", "    uri:", "6: connections.source.uri: is not an option; did you mean 'url'?"),
        ("  tables: [public.*]\n", "", "10: capture.tables: is missing"),
        ("[public.*]", "[]", "13: capture.tables: "),
        ("[public.*]", "[public.*, 5]", "13: capture.tables.1: must be a valid string, not 5"),
        (
            "connection: target",
            "connection: targets",
            "15: apply.connection: no connection 'targets'; did you mean 'target'?",
        ),
        ("connection: source", "connection: zzz", "12: capture.connection: no connection 'zzz'"),
        (
            "connection: target",
            "connection: target\n  parallel: 2",
            "16: apply.parallel: is not an option; did you mean 'parallelism'?",
        ),
        (
            "connection: target",
            "connection: target\n  parallelism: 0",
            "16: apply.parallelism: must be greater than or equal to 1, not 0",
        ),
        (
            "connection: target",
            "connection: target\n  parallelism: 65",
            "16: apply.parallelism: must be less than or equal to 64, not 65",
        ),
        (
            "connection: target",
            "connection: target\n  retry_s: -1",
            "16: apply.retry_s: must be a number of seconds from 0 on, or INFINITE",
        ),
        (
            "connection: target",
            "connection: target\n  commit_serialization: NONE",
            "16: apply.commit_serialization: must be 'FULL' or 'DEPENDENT_TRANSACTIONS', not 'NONE'",
        ),
        (
            "connection: target",
            "connection: target\n  dependencies:\n    values: {v: {public.*: [id]}}",
            "17: apply.dependencies.values.v.public.*: 'public.*' must name one table, schema.table, without * and ?",
        ),
        (
            "connection: target",
            "connection: target\n  dependencies:\n    values: {v: {public.a: [id, x], public.b: [a_id]}}",
            "17: apply.dependencies.values: 'v' names more columns of one table than of another; they line up",
        ),
        (
            "connection: target",
            "connection: target\n  dependencies:\n    values: {v: {public.a: []}}",
            "17: apply.dependencies.values.v.public.a: ",
        ),
        (
            "connection: target",
            "connection: target\n  dependencies:\n    values: {v: {}}",
            "17: apply.dependencies.values: 'v' names no table",
        ),
        (
            "connection: target",
            "connection: target\n  dependencies:\n    values: {v: {public.a: [x], '\"public\".a': [y]}}",
            "17: apply.dependencies.values: 'v' names a table twice",
        ),
        (
            "connection: target",
            "connection: target\n  dependencies:\n    values: {v: {public.a: [x, x]}}",
            "17: apply.dependencies.values: 'v' names a column of public.a twice",
        ),
        (
            "connection: target",
            "connection: target\n  dependencies:\n    objects: [{table: public.a, after: public.b},"
            " {table: public.b, after: public.c}, {table: public.c, after: public.a}]",
            "17: apply.dependencies.objects: follow each other in a circle: public.a after public.b after public.c"
            " after public.a",
        ),
        (
            "connection: target",
            "connection: target\n  dependencies:\n    objects: [{table: public.a, before: public.b}]",
            "17: apply.dependencies.objects.0.after: is missing",
        ),
        (
            "connection: target",
            "connection: target\n  maximum_scn: 0",
            "16: apply.maximum_scn: must be an integer from 1 to 9223372036854775807, or INFINITE",
        ),
        (
            "connection: target",
            "connection: target\n  time_limit: SOON",
            "16: apply.time_limit: must be an integer from 1 to 4294967295, or INFINITE",
        ),
        (
            "connection: target",
            "connection: target\n  startup_seconds: true",
            "16: apply.startup_seconds: must be an integer from 0 to 4294967295, or INFINITE",
        ),
        ("apply:", "apply_to:", "1: apply, or publish: is missing"),
        (
            "apply:",
            "publish: {to: files, path: a}\napply:",
            "14: publish: a pipeline has either apply or publish, not both",
        ),
        ("  connection: source\n", "", "10: capture.connection: is missing"),
        (
            "  connection: source\n",
            "  path: archive\n",
            "12: capture.path: capture.source trigger_queue has no path, but a connection",
        ),
        ("source: trigger_queue", "source: change_files", "10: capture.path: is missing"),
        (
            "source: trigger_queue\n",
            "source: change_files\n  path: a\n",
            "13: capture.connection: change files are read from capture.path, through no connection",
        ),
        (
            "source: trigger_queue\n  connection: source\n",
            "source: change_files\n  path: ' '\n",
            "12: capture.path: is empty",
        ),
        (
            "source: trigger_queue\n  connection: source\n",
            "source: change_files\n  path: a\n  row_triggers: [a.b]\n",
            "13: capture.row_triggers: an archive has no triggers",
        ),
        (
            "source: trigger_queue\n  connection: source\n",
            "source: change_files\n  path: a\n  documented: {prefix: REPL_}\n",
            "13: capture.documented: only trigger_queue has documented tables beside its log",
        ),
        (
            "source: trigger_queue\n  connection: source\n",
            "source: change_files\n  path: a\n  changes_of: everything\n",
            "13: capture.changes_of: an archive holds what its pipeline has captured",
        ),
        (
            "source: trigger_queue\n  connection: source\n  tables: [public.*]\napply:\n",
            "source: change_files\n  path: a\n  tables: [public.*]\napply:\n  first_copy: false\n",
            "15: apply.first_copy: only a pipeline from trigger_queue can begin with what the target holds",
        ),
        (
            "source: trigger_queue\n  connection: source\n  tables: [public.*]\napply:\n",
            "source: change_files\n  path: a\n  tables: [public.*]\napply:\n  ddl: apply\n",
            "15: apply.ddl: only a pipeline from trigger_queue or dbwatcher is told of DDL",
        ),
        (
            "source: trigger_queue\n",
            "source: trigger_queue\n  changes_of: nobody\n",
            "12: capture.changes_of: must be 'users' or 'everything', not 'nobody'",
        ),
        (
            "source: trigger_queue\n",
            "source: trigger_queue\n  changes_of: {only: [a], without: [b]}\n",
            "12: capture.changes_of: is users, everything, or one list of marks: only or without",
        ),
        (
            "source: trigger_queue\n",
            "source: trigger_queue\n  changes_of: {without: [a b]}\n",
            "12: capture.changes_of.without.0: must be letters, digits, '.', '_', ':' and '-', not 'a b'",
        ),
        (
            "source: trigger_queue\n",
            "source: trigger_queue\n  changes_of: {with: [a]}\n",
            "12: capture.changes_of.with: is not an option",
        ),
        ("source: trigger_queue", "source: a.b:c", "10: capture.path: is missing"),
        (
            "source: trigger_queue\n",
            "source: a:b\n  path: a\n",
            "13: capture.connection: a source of your own reads capture.path, through no connection",
        ),
        (
            "source: trigger_queue\n  connection: source\n",
            "source: a:b\n  path: a\n  row_triggers: [a.b]\n",
            "13: capture.row_triggers: a source of your own has no triggers",
        ),
        ("version: 1", "version: 1\nversion: 1", "2: version is given twice"),
        ("  connection: target", "  connection: target\n  connection: target", "16: apply.connection is given twice"),
    ],
)
def test_a_fault_is_told_with_its_line(old: str, new: str, fault: str) -> None:
    found = faults(GOOD.replace(old, new, 1))

    assert [line for line in found if line.startswith(fault)]


def test_a_setting_that_is_none_is_answered_with_the_nearest_of_any_part() -> None:
    source = "source: event_log\n  event_log: {table: a.log, keep_failed: true}"

    found = faults(GOOD.replace("source: trigger_queue", source))

    assert found == ["12: capture.event_log.keep_failed: is not an option; did you mean 'keep_failed_rows'?"]


FAULTS = {
    "version: 1": ("version: 9", "1: version: must be 1, not 9"),
    "name: shop": ("name: 5", "2: name: must be a valid string, not 5"),
    "postgresql://app@one/shop": (
        "postgresql://${env:NOBODY}@one/shop",
        "6: connections.source.url: environment variable NOBODY is not set",
    ),
    "source: trigger_queue": (
        "source: log",
        f"11: capture.source: must be {SOURCE_NAMES} or module:name, not 'log'",
    ),
    "[public.*]": (
        "[a.b, c]",
        "13: capture.tables.1: 'c' is not a table pattern. Write schema.table, with * and ? as you like;"
        ' a part with a dot in it in double quotes: "a.b".*',
    ),
    "connection: target": ("connection: [target]", "15: apply.connection: must be a valid string"),
}


@settings(deadline=None)
@given(st.sets(st.sampled_from(sorted(FAULTS)), min_size=1))
def test_all_faults_come_in_one_error_by_line(broken: set[str]) -> None:
    text = GOOD
    for good in broken:
        text = text.replace(good, FAULTS[good][0])

    found = faults(text)

    assert sorted(found) == sorted(FAULTS[good][1] for good in broken)
    assert [int(fault.split(":")[0]) for fault in found] == sorted(int(fault.split(":")[0]) for fault in found)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "1: a pipeline file is a mapping: version, name, connections, capture, apply or publish"),
        ("- version", "1: a pipeline file is a mapping: version, name, connections, capture, apply or publish"),
        ("just words", "1: a pipeline file is a mapping: version, name, connections, capture, apply or publish"),
        ("version: 1\nname: [a\n", "3: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("version: 1\n\tname: a\n", "2: not YAML: found character '\\t' that cannot start any token"),
    ],
)
def test_what_is_no_pipeline_file_at_all(text: str, fault: str) -> None:
    assert faults(text) == [fault]


def test_secrets_come_from_the_environment_and_from_files(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p\u00e4ss word\n\n")

    config = read(with_url(f"postgresql://${{env:WHO}}:${{file:{file}}}@one/shop"), WHO="ann")

    # One line break is the editor's, a second one is the owner's.
    assert config.connections["source"].url == "postgresql://ann:p%C3%A4ss%20word%0A@one/shop"


def test_a_secret_that_looks_like_a_reference_is_taken_as_it_is() -> None:
    config = read(with_url("postgresql://u:${env:PW}@one/shop"), PW="${env:OTHER}")

    assert password_of(config.connections["source"].url) == "${env:OTHER}"


FORMS = {
    "url": "postgresql://app:${env:PW}@one/shop",
    "parameter": "postgresql://app@one/shop?password=${env:PW}&sslmode=prefer",
    "key and value": "host=one user=app password=${env:PW} dbname=shop",
    "blank before the value": "host=one user=app dbname=shop password= ${env:PW}",
    "quoted": "password='${env:PW}' host='one' user=app dbname=shop",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
@example("TopSecret/9@evil")
@example("")
@example(" host=evil")
@example("' host='evil")
@example("\\' host=evil")
@example("?host=evil&password=a")
@example("a,b:7#%41+%%")
@example(" blanks at both ends ")
def test_a_password_is_itself_whatever_it_holds_and_is_not_shown(form: str, password: str) -> None:
    url = read(json.dumps(GOOD_DATA | {"connections": urls(form)}), PW=password).connections["source"].url
    other = read(json.dumps(GOOD_DATA | {"connections": urls(form)}), PW="other").connections["source"].url

    parts = conninfo_to_dict(conninfo(url, "test"))

    assert (parts["host"], parts["user"], parts["dbname"]) == ("one", "app", "shop")
    assert parts.get("password", "") == password
    assert label(url) == label(other) == "database shop on one as app"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
@example("/run/postgresql")
@example("a=1 host=evil")
def test_any_part_of_an_url_may_be_a_secret(name: str) -> None:
    form = "postgresql://${env:IT}@one/${env:IT}?application_name=${env:IT}"

    url = read(json.dumps(GOOD_DATA | {"connections": urls(form)}), IT=name).connections["source"].url

    assert conninfo_to_dict(url) == {"user": name, "dbname": name, "application_name": name, "host": "one"}


@pytest.mark.parametrize(
    "form", ["postgresql://app@one/shop?{}", "host=one user=app dbname=shop {}"], ids=["url", "key and value"]
)
def test_encryption_and_the_file_of_passwords_are_libpq_s(form: str) -> None:
    given = {"sslmode": "verify-full", "sslrootcert": "/etc/root.crt", "passfile": "/etc/pgpass"}
    text = form.format(("&" if "?" in form else " ").join(f"{key}={value}" for key, value in given.items()))

    parts = conninfo_to_dict(conninfo(read(with_url(text)).connections["source"].url, "test"))

    assert {key: parts.get(key) for key in (*given, "password")} == {**given, "password": None}


@given(
    st.text(st.sampled_from("Zx7/@?:%#=&, '\\"), min_size=1),
    st.sampled_from(["{}@one/shop", "{}@one", "{}@one:5/b?x=y"]),
)
@example("Zx/77", "{}@one/shop")
@example("7@Zx", "{}@one/shop")
@example("7/Zx?sslmode=x", "{}@one/shop")
def test_of_a_whole_url_that_was_put_together_wrongly_no_part_of_the_password_is_shown(
    password: str, form: str
) -> None:
    url = "postgresql://app:" + form.format(password)

    try:
        shown = label(url)
    except ConfigError as exc:
        # With what it was raised from, as PENSTOCK_TRACEBACK shows it.
        shown = f"{exc} {exc.__cause__} {exc.__context__}"

    assert not re.search("[Zx7]", shown)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("postgresql://${env:IT}", "app:Top/9@one/shop"),
        ("postgresql://${env:IT}", "app:T@p@one/shop"),
        ("postgresql://${env:IT}", "app:Top@one/shop"),
        ("postgresql://${env:IT}", "one:Top"),
        ("postgresql://${env:IT}@one/shop", "app:Top"),
        ("postgresql://one/${env:IT}", "shop?password=Top"),
        ("host=one dbname=${env:IT}", "postgresql://app:Top@one/shop"),
        ("host=one user=${env:IT}", "app password=Top"),
    ],
)
def test_a_secret_that_holds_more_than_its_place_takes_is_not_shown(url: str, secret: str) -> None:
    found = read(with_url(url), IT=secret).connections["source"].url

    with pytest.raises(ConfigError) as caught:
        label(found)

    assert "To" not in str(caught.value)
    assert "T@" not in str(caught.value)


@pytest.mark.parametrize("host", ["one", "10.0.0.1", "%2Frun%2Fpostgresql", "one,two", "one:5432,two:5433", "[::1]:5"])
def test_hosts_that_are_hosts(host: str) -> None:
    assert label(f"postgresql://app@{host}/shop").startswith("database shop on ")


@pytest.mark.parametrize("url", ["${env:BASE}/shop", "${env:BASE} user=app", "x${env:BASE}"])
def test_a_reference_that_is_neither_the_whole_nor_a_part(url: str) -> None:
    assert faults(with_url(url), BASE="postgresql://u:s3cret@one") == [
        "6: connections.source.url: a reference is the whole url, or one part of it:"
        " postgresql://user:${env:NAME}@host/database"
    ]


@pytest.mark.parametrize("url", ["${emv:NAME}", "postgresql://${env:NAME}@${NAME}/shop", "postgresql://${env:}@one"])
def test_what_looks_like_a_reference_and_is_none(url: str) -> None:
    said = "6: connections.source.url: a secret is written as ${env:NAME} or ${file:path}, and ${ begins something else"
    assert f"{said} here" in faults(with_url(url), NAME="shop")


def test_a_secret_that_no_connection_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "zero").write_bytes(b"s3c\0ret")

    found = faults(with_url(f"postgresql://${{env:A}}:${{file:{tmp_path}/zero}}@one/shop"), A="s3cret\udcff")

    assert found == [
        "6: connections.source.url: environment variable A is not UTF-8 text",
        f"6: connections.source.url: file '{tmp_path}/zero' holds a zero byte, which no connection can be given",
    ]


def test_every_missing_secret_is_named() -> None:
    found = faults(with_url("postgresql://${env:A}:${file:/nowhere/b}@${env:C}/shop"))

    assert found == [
        "6: connections.source.url: environment variable A is not set",
        "6: connections.source.url: cannot read file '/nowhere/b': no such file or directory",
        "6: connections.source.url: environment variable C is not set",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:s3cret@one/shop",
        "postgresql://:s3cret@one/shop",
        "postgresql://app:s3cret${env:MORE}@one/shop",
        "postgresql://one/shop?password=s3cret",
        "host=one password=s3cret",
        '"host=one password = s3cret"',
    ],
)
def test_a_password_in_the_file_is_refused_and_not_repeated(url: str) -> None:
    assert faults(with_url(url), MORE="x") == [
        "6: connections.source.url: a password stands in the file; write it as ${env:NAME} or ${file:path}"
    ]


def test_an_url_is_never_shown_whatever_is_wrong_with_it() -> None:
    assert faults(with_url("4711")) == ["6: connections.source.url: must be a valid string"]


def test_neither_faults_nor_the_config_show_a_secret() -> None:
    text = with_url("postgresql://u:${env:PW}@one/shop")

    found = faults(text.replace("name: shop", "name: 5").replace("connection: target", "connection: x"), PW="s3cret")

    assert "s3cret" not in "\n".join(found)
    assert "s3cret" not in repr(read(text, PW="s3cret"))


def test_a_file_is_read_from_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(with_url("postgresql://u:${env:PW}@one/shop"))

    assert load(path, {"PW": "x"}).connections["source"].url == "postgresql://u:x@one/shop"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: no such file or directory") as caught:
        load(tmp_path / "pipeline.yaml", {})

    assert caught.value.do == "name the pipeline file with -f, or write pipeline.yaml"


def test_a_fault_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(GOOD.replace("version: 1", "version: 2"))

    with pytest.raises(ConfigError) as caught:
        load(path, {})

    assert str(caught.value) == f"{path}:1: version: must be 1, not 2"


URL = "postgresql://u:s3cret@h/db"


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("    type: postgres\n    url: postgresql://app@one/shop\n", f"    {URL}\n"),
        f"version: 1\nname: shop\nconnections: {URL}\n",
        GOOD.replace("connection: source", f"connection: {URL}"),
        GOOD.replace("type: postgres", f"type: {URL}", 1),
    ],
    ids=["connection", "connections", "capture.connection", "type"],
)
def test_a_secret_in_the_wrong_place_is_not_repeated(text: str) -> None:
    assert "s3cret" not in "\n".join(faults(text))


def test_a_password_reference_in_a_conninfo_is_no_password() -> None:
    url = read(with_url("host=one password=${env:PW}"), PW="x").connections["source"].url
    assert url == "host=one password=x"


def test_the_passphrase_of_a_key_is_a_password() -> None:
    faults(with_url("host=one sslpassword=s3cret"))


def test_an_unknown_connection_comes_with_the_other_faults() -> None:
    found = faults(GOOD.replace("connection: target", "connection: targets\n  parallelism: 0"))
    assert len(found) == 2, found


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("name: shop", "name: !secret shop"),
        GOOD.replace("name: shop", "name: 2024-13-45"),
        GOOD + "# \x07\n",
        "a: &a [*a]\n",
    ],
    ids=["unknown tag", "impossible date", "control character", "alias of itself"],
)
def test_what_yaml_refuses_is_a_fault_with_its_line(text: str) -> None:
    faults(text)


@pytest.mark.parametrize("where", ["pipeline", "secret"])
def test_a_file_that_is_not_utf8(tmp_path: Path, where: str) -> None:
    path, secret = tmp_path / "pipeline.yaml", tmp_path / "secret"
    path.write_text(with_url(f"postgresql://u:${{file:{secret}}}@one/shop"))
    secret.write_text("x")
    (path if where == "pipeline" else secret).write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(path, {})


def test_the_published_schema_is_that_of_the_code() -> None:
    published = Path(__file__).parent.parent / "docs" / "pipeline.schema.json"
    assert published.read_text(encoding="utf-8") == json_schema(), "run scripts/write-schema"


def test_spark_s_own_settings_are_passed_on_as_spark_writes_them() -> None:
    text = GOOD + 'spark:\n  master: "spark://host:7077"\n  spark.executor.cores: 2\n  spark.shuffle.compress: false\n'
    assert read(text).spark_settings == {
        "spark.master": "spark://host:7077",
        "spark.executor.cores": "2",
        "spark.shuffle.compress": "false",
    }
    assert read(text).with_master("local[4]").spark_settings == read(text).spark_settings | {"spark.master": "local[4]"}
    assert "'executor.cores' is not one of Spark's settings" in faults(GOOD + "spark: {executor.cores: 2}\n")[0]


def test_a_secret_s_path_is_taken_from_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "etc", tmp_path / "elsewhere"
    for made in (folder, elsewhere):
        made.mkdir()
        (made / "password").write_text(f"of {made.name}\n")
    (folder / "pipeline.yaml").write_text(with_url("postgresql://u:${file:password}@one/shop"))
    monkeypatch.chdir(elsewhere)
    assert "of%20etc" in load(folder / "pipeline.yaml", {}).connections["source"].url
    monkeypatch.chdir(folder)
    assert "of%20etc" in load(Path("pipeline.yaml"), {}).connections["source"].url


@pytest.mark.parametrize(
    ("url", "what"),
    [("${env:SHOP_URL}", "environment variable SHOP_URL is empty"), ('""', "is empty"), ('" "', "is empty")],
)
@pytest.mark.parametrize("value", ["", " \n"])
def test_an_empty_url_is_not_taken_for_a_database(url: str, what: str, value: str) -> None:
    assert faults(with_url(url), SHOP_URL=value) == [f"6: connections.source.url: {what}"]


KAFKA = """
version: 1
name: shop
connections:
  events:
    type: kafka
    settings: {bootstrap.servers: "broker:9092", sasl.password: "%s"}
  target: {type: postgres, url: "postgresql://target/shop"}
capture:
  source: debezium
  connection: %s
  tables: ["public.*"]
  debezium: {prefix: shop}
apply: {connection: target}
"""


def test_secrets_of_a_kafka_cluster_come_from_outside() -> None:
    config = parse(KAFKA % ("${env:WORD}", "events"), name="pipeline.yaml", environment={"WORD": "hush"})
    cluster = config.connections["events"]
    assert isinstance(cluster, KafkaConfig)
    assert cluster.client_settings == {"bootstrap.servers": "broker:9092", "sasl.password": "hush"}
    assert "hush" not in repr(config)


@pytest.mark.parametrize(
    ("word", "connection", "told"),
    [
        ("hush", "events", "7: connections.events.settings.sasl.password: a secret stands in the file"),
        ("${env:NONE}", "events", "7: connections.events.settings.sasl.password: environment variable NONE is not set"),
        ("${env:WORD}", "target", "11: capture.connection: target is a database, and must be a Kafka cluster"),
    ],
)
def test_what_is_wrong_with_a_kafka_cluster_is_told_with_its_line(word: str, connection: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(KAFKA % (word, connection), name="pipeline.yaml", environment={"WORD": "quiet"})
    assert f"pipeline.yaml:{told}" in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "quiet" not in str(caught.value)


REGISTRY = KAFKA.replace("{prefix: shop}", "{prefix: shop, registry: %s}") % ("${env:WORD}", "events", "%s")


def test_the_password_of_a_schema_registry_comes_from_outside() -> None:
    given = '{url: "https://registry:8081/", user: penstock, password: "${env:WORD}", ca_file: ca.pem}'
    config = parse(REGISTRY % given, name="p.yaml", environment={"WORD": "hush"}, folder=Path("/etc/shop"))
    assert config.capture.debezium is not None
    registry = config.capture.debezium.registry
    assert registry is not None
    assert (registry.url, registry.user, registry.password) == ("https://registry:8081", "penstock", "hush")
    assert registry.ca_file == "/etc/shop/ca.pem"
    assert "hush" not in repr(config)


@pytest.mark.parametrize(
    ("registry", "told"),
    [
        ("{user: a, password: '${env:WORD}'}", "registry.url: is missing"),
        ("{url: 'registry:8081'}", "registry.url: is not http://host:port or https://host:port"),
        ("{url: 'http://r:99999'}", "registry.url: is not http://host:port or https://host:port"),
        ("{url: 'http://a:hush@r'}", "registry.url: holds more than a place; user and password are settings"),
        ("{url: 'http://r', user: a, password: hush}", "registry.password: a secret stands in the file"),
        ("{url: 'http://r', user: a, password: '${env:NO}'}", "registry.password: environment variable NO is not set"),
        ("{url: 'http://r', user: a}", "registry: user and password go together"),
        ("{url: 'http://r', password: [hush]}", "registry.password: must be a valid string"),
        ("{url: 'http://r', pasword: hush}", "registry.pasword: is not an option; did you mean 'password'?"),
    ],
)
def test_what_is_wrong_with_a_schema_registry_is_told_with_its_line(registry: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(REGISTRY % registry, name="p.yaml", environment={"WORD": "quiet"})
    assert f"p.yaml:13: capture.debezium.{told}" in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "quiet" not in str(caught.value)


def test_files_of_events_have_no_schema_registry() -> None:
    text = (REGISTRY % "{url: 'http://r'}").replace("connection: events", "path: events")
    with pytest.raises(ConfigError, match=r"13: capture\.debezium\.registry: files hold JSON"):
        parse(text, name="p.yaml", environment={"WORD": "quiet"})


CONFLICTS = """\
  tables:
    public.emp:
      compare_old_values: {name: [delete], "*": [update]}
      conflicts:
        - {on: update, columns: [sal, comm], method: maximum, by: sal}
        - {on: update, columns: [bal], method: delta}
        - {on: insert, method: overwrite}
        - {on: update, row: missing, method: overwrite}
        - {on: delete, row: missing, method: ignore}
      on_error: [{error: 23505, then: ignore}, {error: any, then: retry_transaction, times: 5, delay_s: 1.5}]
"""


@pytest.mark.rule("A-86", "A-99", "A-102")
def test_what_is_said_of_conflicts() -> None:
    config = read(GOOD + "  compare_key_only: true\n  conflict_granularity: row\n" + CONFLICTS)

    assert config.apply is not None
    assert config.apply.conflict_rules == ConflictRules(
        compare_key_only=True,
        resolves_rows=True,
        tables={
            TableName("public", "emp"): TableRules(
                compared={"name": frozenset({Op.DELETE}), "*": frozenset({Op.UPDATE})},
                resolvers=(
                    Resolver(Op.UPDATE, ConflictKind.EXISTS, Method.MAXIMUM, ("sal", "comm"), "sal"),
                    Resolver(Op.UPDATE, ConflictKind.EXISTS, Method.DELTA, ("bal",)),
                    Resolver(Op.INSERT, ConflictKind.EXISTS, Method.OVERWRITE),
                    Resolver(Op.UPDATE, ConflictKind.MISSING, Method.OVERWRITE),
                    Resolver(Op.DELETE, ConflictKind.MISSING, Method.DISCARD),
                ),
                on_error=(
                    ErrorRule("23505", ErrorAction.IGNORE),
                    ErrorRule(None, ErrorAction.RETRY_TRANSACTION, 5, 1.5),
                ),
            )
        },
    )
    assert read(GOOD).apply.conflict_rules == ConflictRules()  # type: ignore[union-attr]


@pytest.mark.rule("A-89", "A-90", "A-99", "A-102")
@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("conflicts: [{on: update, columns: [a], method: maximum}]", "by is missing"),
        ("conflicts: [{on: update, columns: [a], method: maximum, by: b}]", "by names 'b', which must be one of"),
        ("conflicts: [{on: update, columns: [a], method: overwrite, by: a}]", "by is for maximum and minimum"),
        ("conflicts: [{on: insert, row: missing, method: overwrite}]", "an insert looks for no row"),
        ("conflicts: [{on: insert, method: delta, columns: [a]}]", "method must be one of overwrite, discard, record"),
        ("conflicts: [{on: delete, row: missing, method: overwrite}]", "method must be one of discard, record"),
        ("conflicts: [{on: delete, method: overwrite, columns: [a]}]", "columns must not be given"),
        ("conflicts: [{on: update, method: record, columns: [a]}]", "columns must not be given"),
        ("conflicts: [{on: update, method: newest}]", "must be 'overwrite', 'discard', 'ignore'"),
        ("conflicts: [{on: update, columns: [], method: discard}]", "columns"),
        (
            "conflicts: [{on: update, columns: [a, b], method: discard}, {on: update, columns: [b], method: delta}]",
            "column 'b' is in two lists of update, row exists",
        ),
        (
            "conflicts: [{on: update, columns: [a], method: discard}, {on: update, method: overwrite}]",
            "two lists of update, row exists, and one of them has all columns",
        ),
        ("conflicts: [{on: update, columns: [a, a], method: discard}]", "names a column twice"),
        ("compare_old_values: {name: [insert]}", "must be 'update' or 'delete'"),
        ("on_error: [{error: often, then: ignore}]", "must be a number of the error queue, an SQLSTATE"),
        ("on_error: [{error: any, then: ignore, times: 2}]", "times and delay_s are for retry"),
        ("on_error: [{error: any, then: retry, delay_s: 300}]", "retry waits inside the open transaction, for 240 s"),
        ("on_error: [{error: any, then: give_up}]", "must be 'abend', 'record'"),
        ("conflict: []", "apply.tables.public.emp.conflict: is not an option; did you mean 'conflicts'"),
    ],
)
def test_what_cannot_be_said_of_conflicts(said: str, fault: str) -> None:
    (found,) = faults(f"{GOOD}  tables:\n    public.emp:\n      {said}\n")

    assert fault in found
    assert found.startswith(("17: apply.tables.public.emp", "18: apply.tables.public.emp"))


@pytest.mark.parametrize("name", ["emp", "public.*", "a.b.c"])
def test_apply_tables_names_one_table(name: str) -> None:
    (found,) = faults(f'{GOOD}  tables:\n    "{name}": {{}}\n')

    assert found.startswith(f"17: apply.tables.{name}: ")
