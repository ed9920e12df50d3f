"""Every case in `tests/data/event_log/*.yaml`: rows of a log in, one poll on a real server, events and statuses out.

A file holds `defaults`, `row_defaults`, `fixtures`, `keys` and `cases`; what a file leaves out of the first three is as
in `spec.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psycopg
import pytest
import yaml

from penstock.change import TableName
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.connection import quote
from penstock.dialects.postgres.source.event_log import PostgresEventLog
from penstock.dialects.postgres.source.event_log_setup import journal_step, log_step
from penstock.errors import MalformedInputError
from penstock.formats.xds.table_key import parse_key, write_key
from penstock.formats.xds.values import TimeSyntax
from penstock.position import Scn
from penstock.sources.event_log.channel import Answer, cycle
from penstock.sources.event_log.settings import EventLogSettings

FOLDER = Path(__file__).parent.parent / "data" / "event_log"

TYPES = {
    "int": "INTEGER",
    "string": "VARCHAR(200)",
    "octet": "BYTEA",
    "bool": "BOOLEAN",
    "decimal": "DECIMAL(10,2)",
    "timestamp": "TIMESTAMP",
    "text": "TEXT",
    "char": "CHAR(5)",
    "double": "DOUBLE PRECISION",
    "timestamptz": "TIMESTAMPTZ",
    "date": "DATE",
    "time": "TIME",
    "json": "JSON",
    "jsonb": "JSONB",
    "uuid": "UUID",
    "array": "INTEGER[]",
    "bigint": "BIGINT",
    "smallint": "SMALLINT",
}

_SHARED = ("defaults", "row_defaults", "fixtures")


def files() -> list[tuple[str, dict[str, Any]]]:
    paths = sorted(FOLDER.glob("*.yaml"), key=lambda path: (path.name != "spec.yaml", path.name))
    read = [(path.name, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in paths]
    first = read[0][1]
    return [(name, {key: first[key] for key in _SHARED} | content) for name, content in read]


FILES = files()
CASES = [
    pytest.param(content, case, id=f"{name}-{case['id']}")
    for name, content in FILES
    for case in content.get("cases", [])
]
KEYS = [pytest.param(key, id=f"{name}-{key['note']}") for name, content in FILES for key in content.get("keys", [])]


@pytest.fixture(scope="module")
def log_connection(source_server: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(source_server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE event_log_cases")
    with psycopg.connect(source_server.url("event_log_cases"), autocommit=True) as connection:
        yield connection


@pytest.mark.rule("E-5")
@pytest.mark.parametrize("key", KEYS)
def test_key_is_read_as_the_case_says(key: dict[str, Any]) -> None:
    try:
        parsed: list[list[str]] | None = [list(pair) for pair in parse_key(key["table_key"])]
    except MalformedInputError:
        parsed = None

    assert parsed == key["parsed"]
    assert parsed is None or [list(pair) for pair in parse_key(write_key([(a, b) for a, b in parsed]))] == parsed


@pytest.mark.rule("E-2", "E-3", "E-4", "E-6", "E-7", "E-8", "E-9", "E-10", "E-11", "E-12", "E-13", "E-14")
@pytest.mark.parametrize(("content", "case"), CASES)
def test_one_poll_yields_the_events_and_statuses_of_the_case(
    content: dict[str, Any], case: dict[str, Any], source_server: EmbeddedPostgres, log_connection: Any
) -> None:
    config = content["defaults"] | case.get("config", {})
    schema = config["schema"]
    make(log_connection, schema, content["fixtures"], case["tables"])
    settings = settings_of(config)
    for step in (journal_step("cases", settings.table), log_step(settings)):
        log_connection.execute(step.sql)
    # Logs of others may hold what ours refuses.
    loose = [f"ALTER {name} DROP NOT NULL" for name in ("event_type", "event_time", "table_name", "table_key")]
    log_connection.execute(f"ALTER TABLE {quote(schema)}.event_log ALTER event_type TYPE bigint, {', '.join(loose)}")
    for row in case["log"]:
        insert(log_connection, settings.table, content["row_defaults"] | row)
    log = PostgresEventLog(source_server.url("event_log_cases"), "cases", settings, [f"{schema}.*"])
    documents: list[list[str]] = []

    def sink(_: Scn, elements: Sequence[str]) -> list[Answer]:
        before = sum(map(len, documents))
        documents.append(list(elements))
        return [Answer(config["sink"].get(before + at, "success")) for at in range(1, len(elements) + 1)]

    cycle(log, settings, sink, now=datetime.fromisoformat(config["now"]))
    log.close()

    expected = case["expect"]
    sent = [element for document in documents for element in document]
    assert parsed("".join(sent)) == parsed(expected["xds"])
    assert statuses(log_connection, settings.table, case["log"]) == expected["status"]
    if "documents" in expected:
        assert [len(document) for document in documents] == expected["documents"]
    left = log_connection.execute("SELECT count(*) FROM penstock_cases_events.event").fetchone()
    assert left == (0,)


def settings_of(config: dict[str, Any]) -> EventLogSettings:
    return EventLogSettings(
        table=TableName(config["schema"], "event_log"),
        driver_user=config["driver_user"],
        username_case=config.get("force_username_case"),
        allow_loopback=config["allow_loopback"],
        future_events=config["future_events"],
        delete_processed=config["delete_processed"],
        keep_failed_rows=config["keep_failed_rows"],
        batch_size=config["batch_size"],
        query_limit=config["query_limit"],
        time_syntax=TimeSyntax(config["time_syntax"]),
        event_ids=config.get("event_ids", False),
    )


def make(connection: Any, schema: str, fixtures: dict[str, Any], tables: dict[str, Any]) -> None:
    """Make the tables of a case, parents first, with their rows."""
    connection.execute(f"DROP SCHEMA IF EXISTS {quote(schema)}, penstock_cases_events CASCADE")
    connection.execute(f"CREATE SCHEMA {quote(schema)}")
    for name in sorted(tables, key=lambda name: "parent" in fixtures[name]):
        fixture = fixtures[name]
        parts = [f"{quote(column)} {TYPES[type_]}" for column, type_ in fixture["columns"]]
        if fixture["key"]:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote, fixture['key']))})")
        parent = fixture.get("parent")
        if parent is not None and parent["table"] in tables:
            own, others = map(list, zip(*parent["columns"].items(), strict=True))
            references = f"{quote(schema, parent['table'])} ({', '.join(map(quote, others))})"
            parts.append(f"FOREIGN KEY ({', '.join(map(quote, own))}) REFERENCES {references}")
        connection.execute(f"CREATE TABLE {quote(schema, name)} ({', '.join(parts)})")
        for row in tables[name]:
            types = [type_ for _, type_ in fixture["columns"]]
            values = [value_of(type_, value) for type_, value in zip(types, row, strict=True)]
            marks = ", ".join(["%s"] * len(values))
            connection.execute(f"INSERT INTO {quote(schema, name)} VALUES ({marks})", values)


def value_of(type_: str, value: Any) -> Any:
    is_octets = type_ == "octet" and value is not None
    return bytes.fromhex(value.removeprefix("0x")) if is_octets else value


def insert(connection: Any, table: TableName, row: dict[str, Any]) -> None:
    names = ", ".join(row)
    marks = ", ".join(["%s"] * len(row))
    connection.execute(f"INSERT INTO {quote(table.schema, table.name)} ({names}) VALUES ({marks})", list(row.values()))


def statuses(connection: Any, table: TableName, rows: Sequence[dict[str, Any]]) -> dict[int, str]:
    found = dict(connection.execute(f"SELECT record_id, status FROM {quote(table.schema, table.name)}").fetchall())
    return {row["record_id"]: found.get(row["record_id"], "deleted") for row in rows}


def parsed(xds: str) -> Any:
    """Events as values: blanks between elements mean nothing, and nothing else is left out."""
    return tree(ElementTree.fromstring(f"<input>{xds}</input>"))


def tree(element: ElementTree.Element) -> Any:
    text = element.text or ""
    if element.tag == "association":
        text = text.strip()
    elif element.tag != "value":
        assert not text.strip()
        text = ""
    assert not (element.tail or "").strip()
    return element.tag, dict(element.attrib), text, [tree(child) for child in element]
