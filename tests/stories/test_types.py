"""Every built-in type, at the ends of its range, arrives as it left: copied, by the set path and by the row path."""

from __future__ import annotations

import psycopg
import pytest

from penstock.apply.lane import ServerConfig
from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.connection import RAW_FORM
from penstock.snapshot.chunk import Chunk, CopySource
from penstock.snapshot.task import CopyContext, copy_chunks
from tests.conftest import create_database, drop_database, numbers
from tests.lab import Lab, table

TEXTS = [
    "''",
    "'a'",
    "E'q\"\\\\ \\n\\t\\r\\x01 é 😀 \\u2028'",
    "'null'",
    "'{\"a\":null}'",
    "'\\N'",
    "'\\.'",
    "repeat('x', 9000)",
]

# type: values, as SQL
TYPES: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "numeric": [
        "0",
        "1.0",
        "1.00",
        "-0.000001",
        "1e200",
        "12345678901234567890.12345678901234567890",
        "'NaN'",
        "'Infinity'",
    ],
    "numeric(10,2)": ["0.1", "-99999999.99"],
    "real": ["0.1", "1e-37", "'-0'", "'NaN'", "'-Infinity'", "3.4028235e38"],
    "double precision": ["0.1", "1e-300", "'-0'", "'NaN'", "'Infinity'", "1.7976931348623157e308"],
    "money": ["12.5", "-0.01"],
    "text": TEXTS,
    "varchar(10)": ["''", "'äöü'", "'0123456789'"],
    "char(5)": ["''", "'ab'", "'abcde'"],
    '"char"': ["'x'", "''"],
    "name": ["'Some Name'"],
    "bytea": ["''", "'\\x00ff10'", "decode(repeat('00', 200), 'hex')"],
    "date": ["'0001-01-01'", "'4713-01-01 BC'", "'5874897-12-31'", "'infinity'", "'-infinity'", "'2024-02-29'"],
    "time": ["'00:00'", "'24:00'", "'23:59:59.999999'"],
    "timetz": ["'00:00+00'", "'12:34:56.7+05:30'", "'24:00-15:59:59'"],
    "timestamp": [
        "'2024-01-02 03:04:05.678'",
        "'4713-01-01 00:00 BC'",
        "'294276-12-31 23:59:59.999999'",
        "'-infinity'",
    ],
    "timestamptz": [
        "'2024-01-02 03:04:05.678+02'",
        "'4713-01-02 00:00+00 BC'",
        "'294276-12-31 23:59:59.999999+00'",
        "'infinity'",
    ],
    "interval": ["'1 mon'", "'30 days'", "'-1 year 2 mons -3 days 04:05:06.7'", "'178000000 years'"],
    "json": ['\'{"b": 1,  "a":1.0}\'', "'null'", "'[]'"],
    "jsonb": ['\'{"b": 1, "a": 1.0}\'', '\'{"b": 1, "a": 1.00}\'', "'null'"],
    "jsonpath": ["'$.a[*]'"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "inet": ["'10.0.0.1/8'", "'::1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "macaddr8": ["'08:00:2b:01:02:03:04:05'"],
    "bit(4)": ["B'1010'"],
    "bit varying": ["B''", "B'101'"],
    "point": ["'(1,2)'", "'(1e-300,0.1)'"],
    "line": ["'{1,2,3}'"],
    "lseg": ["'[(0,0),(1,1)]'"],
    "box": ["'(2,2),(0,0)'", "'(4,1),(0,0)'"],
    "path": ["'((0,0),(1,1))'", "'[(0,0),(1,1)]'"],
    "polygon": ["'((0,0),(1,1),(1,0))'"],
    "circle": ["'<(0,0),2>'"],
    "tsvector": ["'a:1 b:2A'"],
    "tsquery": ["'a & !b'"],
    "pg_lsn": ["'16/B374D848'"],
    "pg_snapshot": ["'10:20:10,14'"],
    "oid": ["4294967295"],
    "regclass": ["'pg_class'"],
    "xid8": ["'42'"],
    "tid": ["'(1,2)'"],
    "int2vector": ["'1 2 3'"],
    "int4range": ["'[1,5)'", "'empty'", "'(,)'"],
    "numrange": ["'[1.0,2.50]'"],
    "tstzrange": ["'[2024-01-02 03:04+02,)'"],
    "daterange": ["'[2024-01-02,infinity)'"],
    "int4multirange": ["'{}'", "'{[1,3),[5,6)}'"],
    "integer[]": ["'{}'", "'{1,NULL,3}'", "'[0:1]={5,6}'"],
    "text[]": [r"""'{{a,b},{c,"d \" e"}}'""", '\'{NULL,"NULL",""}\''],
    "numeric[]": ["'{1.0,1.00}'"],
    "timestamptz[]": ["'{2024-01-02 03:04+02,infinity}'"],
    "bytea[]": ["ARRAY['\\x00ff'::bytea]"],
    "char(3)[]": ["'{a,abc}'"],
    "bit(4)[]": ["'{1010}'"],
    "mood": ["'sad'", "'o k'"],
    "mood[]": ["'{sad,\"o k\"}'"],
    "address": ["ROW('s \"x\", y', 5, '2024-01-01 00:00+00')", "ROW(NULL, NULL, NULL)"],
    "address[]": ["ARRAY[ROW('a', 1, NULL)::address]"],
    "positive": ["7"],
    "short": ["'abc'"],
    "floats": ["'[0.1,2]'"],
}

MADE = """
CREATE TYPE mood AS ENUM ('sad', 'o k');
CREATE TYPE address AS (street text, zip int, at timestamptz);
CREATE DOMAIN positive AS int NOT NULL CHECK (VALUE > 0);
CREATE DOMAIN short AS varchar(3);
CREATE TYPE floats AS RANGE (SUBTYPE = float8, SUBTYPE_DIFF = float8mi);
"""


def everything(types: list[str]) -> str:
    """A table with a key and one without, each with a column of every type."""
    columns = ", ".join(f'"c%s {n}" {name}' for n, name in enumerate(types))
    return f"CREATE TABLE keyed (id int PRIMARY KEY, {columns}); CREATE TABLE keyless (n int, {columns});"


@pytest.fixture(params=[18, 16], ids=["from 18", "from 16"])
def typed(request: pytest.FixtureRequest, source_server: EmbeddedPostgres, target_server: EmbeddedPostgres) -> object:
    source = source_server if request.param == 18 else request.getfixturevalue("old_server")
    name = f"types{next(numbers)}"
    create_database(source, name)
    create_database(target_server, name)
    with Lab(source.url(name), target_server.url(name)) as lab:
        yield lab
    drop_database(source, name)
    drop_database(target_server, name)


@pytest.mark.parametrize("raw_form", [RAW_FORM, "of another database"])
def test_every_type(typed: Lab, monkeypatch: pytest.MonkeyPatch, raw_form: str) -> None:
    """Copied as COPY writes it, or as canonical text."""
    monkeypatch.setattr("penstock.dialects.postgres.target.session.RAW_FORM", raw_form)
    lab = typed
    types = [*TYPES, *(["xml"] if _has_xml(lab.source) and _has_xml(lab.target) else [])]
    values = TYPES | {"xml": ["'<a b=\"c\">é</a>'", "'text only'"]}
    lab.source.execute(MADE + everything(types))
    most = max(len(values[name]) for name in types)
    # A domain that refuses nulls always has a value.
    given = [
        [(values[name] + (["NULL"] if name != "positive" else ["8"]))[row % (len(values[name]) + 1)] for name in types]
        for row in range(most + 1)
    ]
    for row, literals in enumerate(given[:3]):
        _insert(lab, row, types, literals)
    lab.pipeline().setup()
    lab.start()
    lab.target.execute("TRUNCATE penstock.instantiation CASCADE")
    _copy(lab, "keyed", "keyless")
    lab.assert_identical_text("keyed", "keyless")

    for row, literals in enumerate(given):
        if row >= 3:
            _insert(lab, row, types, literals)
    for n, _ in enumerate(types):
        lab.source.execute(
            f'UPDATE keyed SET "c%s {n}" = (SELECT "c%s {n}" FROM keyed k WHERE k.id = keyed.id / 2) WHERE id > 4'
        )
    lab.apply(lanes=3)
    assert [e.error_message for e in lab.errors()] == []
    lab.assert_identical_text("keyed", "keyless")

    for n, _ in enumerate(types):
        lab.source.execute(
            f'UPDATE keyless SET "c%s {n}" = (SELECT "c%s {n}" FROM keyed WHERE id = n % 4) WHERE n % 2 = 1'
        )
    lab.source.execute(
        "UPDATE keyed SET id = id + 100 WHERE id < 4; DELETE FROM keyless WHERE n % 3 = 0;"
        " DELETE FROM keyed WHERE id % 2 = 0"
    )
    lab.apply(config=ServerConfig(use_set_path=False))
    assert [e.error_message for e in lab.errors()] == []
    lab.assert_identical_text("keyed", "keyless")


def _insert(lab: Lab, row: int, types: list[str], literals: list[str]) -> None:
    casts = ", ".join(f"({literal})::{name}" for literal, name in zip(literals, types, strict=True))
    lab.source.execute(f"INSERT INTO keyed VALUES ({row}, {casts})")
    lab.source.execute(f"INSERT INTO keyless VALUES ({row}, {casts}), ({row}, {casts})")


def _copy(lab: Lab, *names: str) -> None:
    """Copy tables as the snapshot's task does, without Spark."""
    from penstock.dialects.postgres.source.copy import PostgresCopyOrigin

    context = lab.context(ServerConfig())
    assert lab.state is not None
    captured = {x.table.name: x.table for x in lab.log.tables()}
    origin = PostgresCopyOrigin(lab.source_url, lab.set_name)
    with origin.hold_snapshot() as held:
        chunks = [Chunk(table(name), 0) for name in names]
        lab.ledger.begin_copies(chunks, held)
        copy = CopyContext(lab.name, lab.state.epoch, lab.access(), context.target, captured, context.catalog.tables)
        for chunk in chunks:
            copy_chunks([chunk], CopySource(held.text, held.exported), copy)
    lab.ledger.finish_copies()


def _has_xml(connection: psycopg.Connection) -> bool:
    try:
        connection.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


@pytest.mark.parametrize("use_set", [True, False], ids=["set path", "row path"])
@pytest.mark.parametrize("name", ['100% "sure" %s', "a.b\\c", ",}é", "select", "%I"])
def test_names_that_mean_something_elsewhere(lab: Lab, name: str, use_set: bool) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    lab.setup(
        f'CREATE SCHEMA {quoted}; CREATE TABLE {quoted}.{quoted} ({quoted} int PRIMARY KEY, {quoted[:-1]} 2" numeric);'
        f"CREATE TABLE child (id int PRIMARY KEY, {quoted} int REFERENCES {quoted}.{quoted} DEFERRABLE)",
        tables=["*.*"],
    )
    lab.source.execute(
        f"INSERT INTO {quoted}.{quoted} VALUES (1, 1.0), (2, 2.0), (3, 3.0); INSERT INTO child VALUES (1, 1), (2, 2);"
    )
    lab.source.execute(f"UPDATE {quoted}.{quoted} SET {quoted} = 4 WHERE {quoted} = 3; DELETE FROM child WHERE id = 2")
    lab.source.execute(f'UPDATE {quoted}.{quoted} SET {quoted[:-1]} 2" = 7; UPDATE child SET {quoted} = 4')
    lab.apply(config=ServerConfig(use_set_path=use_set), lanes=2)
    assert [e.error_message for e in lab.errors()] == []
    lab.assert_identical(f"{quoted}.{quoted}", "child")
