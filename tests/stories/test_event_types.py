"""Events of connectors, with and without schemas, into tables whose types are others than the source's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import PenstockError
from penstock.pipeline.pipeline import Pipeline
from tests.lab import Lab

REPORTED = Path(__file__).parents[1] / "data" / "debezium" / "reported"

PIPELINE = """
version: 1
name: {name}
connections: {{copy: {{type: postgres, url: "{url}"}}}}
capture:
  source: debezium
  path: events
  tables: ["*.*"]
  debezium: {debezium}
apply: {{connection: copy}}
"""

SOURCES: Mapping[str, Mapping[str, Any]] = {
    "mysql": {"db": "inv", "file": "binlog.000002", "server_id": 1, "row": 0},
    "postgresql": {"db": "src", "schema": "inv"},
    "sqlserver": {"db": "src", "schema": "inv"},
    "db2": {"db": "src", "schema": "inv"},
    "oracle": {"db": "src", "schema": "inv"},
}
TOPICS = {"sqlserver": "shop.src.inv.t"}


def an_event(connector: str, row: Mapping[str, Any], number: int = 1) -> dict[str, Any]:
    """A row of a snapshot of `inv.t`, without a schema."""
    source = {"version": "3.2.0.Final", "connector": connector, "name": "shop", "table": "t", "ts_ms": 1764000000000}
    source |= {**SOURCES[connector], "snapshot": "last", "pos": number, "lsn": number, "scn": str(number)}
    source |= {"commit_lsn": f"00000027:00000758:{number:04x}"}
    value = {"before": None, "after": row, "source": source, "op": "r", "ts_ms": 1, "transaction": None}
    topic = TOPICS.get(connector, "shop.inv.t")
    return {"topic": topic, "partition": 0, "key": {"id": row["id"]}, "value": value, "headers": []}


def opened(folder: Path, lab: Lab, events: str | Iterable[Mapping[str, Any]], **debezium: object) -> Pipeline:
    """A pipeline of events: a file of those that were reported, or events."""
    (folder / "events").mkdir(exist_ok=True)
    if isinstance(events, str):
        text = (REPORTED / f"{events}.events.jsonl").read_text()
    else:
        text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "events" / "0001.jsonl").write_text(text)
    given = json.dumps({"prefix": "shop", "settle_s": 0.1, **debezium})
    (folder / "copy.yaml").write_text(PIPELINE.format(name=lab.name, url=lab.target_url, debezium=given))
    pipeline = penstock.open(folder / "copy.yaml")
    assert isinstance(pipeline, Pipeline)
    return pipeline


def refusal(pipeline: Pipeline) -> str:
    """What `plan` finds and `setup` says."""
    faults = [str(fault) for fault in pipeline.plan().source.faults]
    with pytest.raises(PenstockError) as refused:
        pipeline.setup()
    assert all(fault in str(refused.value) for fault in faults)
    return "\n".join(faults)


def copied(pipeline: Pipeline) -> None:
    pipeline.setup()
    progress = pipeline.run(threading.Event(), until_caught_up=True)
    said = [entry.error_message for entry in pipeline.errors().entries()] if progress.errors else []
    assert not said, "; ".join(said)
    assert (progress.errors, progress.conflicts) == (0, 0)


def notes(pipeline: Pipeline) -> str:
    plan = pipeline.plan()
    return "\n".join([*plan.source.notes, *plan.target.notes])


def test_units_that_only_the_source_knows_are_asked_for_and_never_taken_from_the_target(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    lab.target.execute((REPORTED / "schemaless-units.target.sql").read_text())

    said = refusal(opened(tmp_path, lab, "schemaless-units"))

    assert "columns created, dur, price, flags" in said
    assert (
        "capture.debezium.columns: {inv.t: {created: 'datetime(3)', dur: 'time(PRECISION)',"
        " price: 'decimal(PRECISION,SCALE)', flags: 'bit(LENGTH)'}}" in said
    )

    types = {"created": "datetime", "dur": "time", "price": "decimal(10,2)", "flags": "bit(8)"}
    lab.target.execute("ALTER TABLE inv.t ALTER flags TYPE bit(8)")
    copied(opened(tmp_path, lab, "schemaless-units", columns={"inv.t": types}))

    rows = lab.target.execute("SELECT created::text, dur::text, price::text, flags::text FROM inv.t").fetchall()
    assert rows == [("2025-11-24 16:00:00", "00:00:10", "1.5000", "00000101")] * 2


def test_a_sample_with_schemas_tells_the_types(lab: Lab, tmp_path: Path, spark: object) -> None:
    lab.target.execute("CREATE SCHEMA inv; CREATE TABLE inv.t (id int PRIMARY KEY, u numeric(25))")
    (tmp_path / "sample.jsonl").write_text((REPORTED / "mysql-bigint-unsigned.events.jsonl").read_text())
    plain = [an_event("mysql", {"id": 1, "u": -1})]

    copied(opened(tmp_path, lab, plain, schema_sample="sample.jsonl"))

    assert lab.target.execute("SELECT u FROM inv.t").fetchall() == [(2**64 - 1,)]


def test_numbers_without_a_sign_come_whole_into_whatever_holds_them(lab: Lab, tmp_path: Path, spark: object) -> None:
    lab.target.execute("CREATE SCHEMA inv; CREATE TABLE inv.t (id bigint PRIMARY KEY, u numeric)")

    copied(opened(tmp_path, lab, "mysql-bigint-unsigned"))

    rows = lab.target.execute("SELECT u FROM inv.t ORDER BY id").fetchall()
    assert rows == [(2**64 - 1,), (2**64 - 2,)]


@pytest.mark.parametrize(("events", "column"), [("oracle-nanoseconds", "TS9"), ("sqlserver-100ns", "dt2")])
def test_what_is_finer_than_microseconds_is_told(lab: Lab, tmp_path: Path, events: str, column: str) -> None:
    pipeline = opened(tmp_path, lab, events)

    assert f"with column '{column}' as timestamp without time zone, which rounds" in notes(pipeline)


def test_a_text_column_keeps_what_is_finer_than_microseconds(lab: Lab, tmp_path: Path, spark: object) -> None:
    lab.target.execute(
        "CREATE SCHEMA dbo; CREATE TABLE dbo.t (id int PRIMARY KEY, dto text, dt2 text, t7 time, mny numeric(19,4),"
        " smd timestamp(3), rv bytea, uid text, vch text, old timestamptz)"
    )
    pipeline = opened(tmp_path, lab, "sqlserver-100ns")

    assert "column 't7' of table dbo.t is time without time zone, at the source it may have decimals" in notes(pipeline)
    copied(pipeline)

    assert lab.target.execute("SELECT dto, dt2 FROM dbo.t").fetchall() == [
        ("2024-05-11T02:00:00.2764895+00:00", "2025-11-24T16:00:00.1234567")
    ]


def test_arrays_of_types_that_only_the_target_knows_come_as_they_are(lab: Lab, tmp_path: Path, spark: object) -> None:
    made = (REPORTED / "schemaless-arrays.target.sql").read_text()
    # These two are of extensions, which a server need not have.
    made = made.replace("CREATE EXTENSION ltree; CREATE EXTENSION citext;", "")
    lab.target.execute(made.replace("lt ltree, ci citext", "lt text, ci text"))
    assert "columns vb, iv, mn, ba, dts:" in refusal(opened(tmp_path, lab, "schemaless-arrays"))

    types = {"vb": "bit varying", "iv": "interval", "mn": "money", "ba": "bytea[]", "dts": "date[]"}
    copied(opened(tmp_path, lab, "schemaless-arrays", columns={"inv.*": types}))

    rows = lab.target.execute("SELECT to_jsonb(t) - 'id' FROM inv.t t WHERE id > 9 ORDER BY id").fetchall()
    held = {name: value for (row,) in rows for name, value in row.items() if value is not None}
    assert held == {
        "ip": ["10.1.2.3"],
        "tr": ['["2026-01-01 00:00:00","2026-02-01 00:00:00")'],
        "jb": [{"a": 1}],
        "em": ["b c"],
        "vb": "101",
        "pt": "(1,2)",
        "lt": "a.b",
        "ci": "Ab",
        "dm": 5,
        "iv": "00:00:01",
        "mn": "$1.50",
        "u8": 5,
        "js": {"a": 1},
        "uu": "11111111-2222-3333-4444-555555555555",
        "mac": "08:00:2b:01:02:03",
        "ts": held["ts"],
        "cx": "t",
        "ba": ["\\x00ff", None],
        "nar": [123.45],
        "dts": ["2024-10-04"],
        "ny": 1.5,
        "tsz": held["tsz"],
    }


def test_columns_of_a_key_may_be_called_as_the_parts_of_a_message(lab: Lab, tmp_path: Path, spark: object) -> None:
    lab.target.execute(
        "CREATE SCHEMA inv; CREATE TABLE inv.t (schema int, payload int, op text, before int, after int, source int,"
        " PRIMARY KEY (schema, payload))"
    )

    copied(opened(tmp_path, lab, "schemaless-key-schema-payload"))

    assert lab.target.execute("SELECT schema, payload, op FROM inv.t").fetchall() == [(1, 3, "c")]


def test_values_that_speak_against_what_is_told_are_named(lab: Lab, tmp_path: Path) -> None:
    lab.target.execute(
        "CREATE SCHEMA inv; CREATE TABLE inv.t (id int PRIMARY KEY, at timestamp, n numeric, b bytea, s text)"
    )
    row = {"id": 1, "at": 1764000000000, "n": "12.50", "b": "deadbeef", "s": "AJY="}
    types = {"at": "timestamp(6)", "n": "decimal(10,2)", "b": "bytea"}

    said = refusal(opened(tmp_path, lab, [an_event("postgresql", row)], columns={"inv.t": types}))

    assert "column at of inv.t is not what it is said to be: read as microseconds, its values lie near 1970" in said
    assert "capture.debezium.decimals: string" in said
    assert "capture.debezium.binary: hex" in said
    assert "column s: their numbers and base64" in said
    assert "1764" not in said


def test_what_values_look_like_is_no_doubt_of_what_the_file_says(lab: Lab, tmp_path: Path, spark: object) -> None:
    row, types = {"id": 1, "b": "AAEC", "n": "1250"}, {"id": "int", "b": "blob", "n": "decimal(10,0)"}
    events = [an_event("mysql", row)]

    said = refusal(opened(tmp_path, lab, events, columns={"inv.t": types}))
    assert "capture.debezium.binary: hex, or bytes if they are base64 all the same" in said
    assert "capture.debezium.decimals: string, or precise if they are base64 all the same" in said

    copied(opened(tmp_path, lab, events, columns={"inv.t": types}, binary="bytes", decimals="precise"))
    assert lab.target.execute("SELECT b, n::text FROM inv.t").fetchall() == [(b"\0\1\2", "-2658700")]


def test_a_type_told_that_there_is_not_is_refused_with_its_place(lab: Lab, tmp_path: Path) -> None:
    row = {"id": 1}
    with pytest.raises(PenstockError, match=r"capture.debezium.columns: inv.t: id is 'intt', which is no type"):
        opened(tmp_path, lab, [an_event("mysql", row)], columns={"inv.t": {"id": "intt"}})


def test_a_table_is_made_of_what_is_told(lab: Lab, tmp_path: Path, spark: object) -> None:
    row = {"id": 1, "price": "AJY=", "at": 1764000000000, "u": -1, "b": "3q0="}
    types = {"id": "int", "price": "decimal(10,2)", "at": "datetime(3)", "u": "bigint unsigned", "b": "varbinary(9)"}

    copied(opened(tmp_path, lab, [an_event("mysql", row)], columns={"inv.t": types}))

    made = lab.target.execute(
        "SELECT string_agg(format_type(atttypid, atttypmod), ', ' ORDER BY attname) FROM pg_attribute"
        " WHERE attrelid = 'inv.t'::regclass AND attnum > 0"
    ).fetchone()
    assert made == ("timestamp(3) without time zone, bytea, integer, numeric(10,2), numeric(20,0)",)
    held = lab.target.execute("SELECT price::text, at::text, u::text, b FROM inv.t").fetchall()
    assert held == [("1.50", "2025-11-24 16:00:00", str(2**64 - 1), b"\xde\xad")]


def test_a_time_of_more_than_a_day_is_told_beforehand_and_the_advice_leads_on(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    pipeline = opened(tmp_path, lab, "mysql-time-over-24h.first-copy")
    assert "column 'tm' of inv.t: a TIME of MySQL's may be below zero, or of more than a day" in notes(pipeline)
    pipeline.setup()
    with pytest.raises(PenstockError) as refused:
        pipeline.run(threading.Event(), until_caught_up=True)
    widen = refused.value.do.partition("at the target: ")[2].partition("; or ")[0]
    assert widen == 'ALTER TABLE "inv"."t" ALTER COLUMN "tm" TYPE interval USING "tm"::interval'

    lab.target.execute(widen)

    pipeline = opened(tmp_path, lab, "mysql-time-over-24h.first-copy")
    assert "TIME of MySQL's" not in notes(pipeline)
    copied(pipeline)
    rows = lab.target.execute("SELECT tm::text FROM inv.t ORDER BY id").fetchall()
    assert rows == [("00:00:00.000005",), ("838:59:59",), ("00:00:00.000005",), ("00:00:00.000005",)]


def test_a_target_that_rounds_more_than_it_must_is_refused(lab: Lab, tmp_path: Path, spark: object) -> None:
    lab.target.execute(
        "CREATE SCHEMA dbo; CREATE TABLE dbo.t (id int PRIMARY KEY, dto timestamptz(3), dt2 timestamp(0), t7 time,"
        " mny numeric(19,2), smd timestamp(3), rv bytea, uid text, vch name, old timestamptz)"
    )
    pipeline = opened(tmp_path, lab, "sqlserver-100ns")

    faults = pipeline.plan().target.faults

    assert {str(fault).partition(" of ")[0] for fault in faults} == {
        "column 'dto'",
        "column 'dt2'",
        "column 'mny'",
        "column 'vch'",
    }
    for fault in faults:
        lab.target.execute(fault.do.partition(": ")[2])
    copied(opened(tmp_path, lab, "sqlserver-100ns"))


def test_a_key_that_would_be_rounded_is_refused_and_kept_as_text(lab: Lab, tmp_path: Path, spark: object) -> None:
    events = [an_event("sqlserver", {"id": 1, "at": 1764000000123456700 + n}) for n in range(2)]
    for event in events:
        event["key"] = {"at": event["value"]["after"]["at"]}
    types = {"inv.t": {"id": "int", "at": "datetime2(7)"}}

    (fault,) = opened(tmp_path, lab, events, columns=types).plan().target.faults

    assert "column 'at' of table inv.t, of a key, may have decimals of a second beyond the sixth" in str(fault)
    lab.target.execute(fault.do.partition(": ")[2])
    copied(opened(tmp_path, lab, events, columns=types))
    assert lab.target.execute("SELECT count(DISTINCT at) FROM inv.t").fetchone() == (2,)


def untold(events: str) -> list[dict[str, Any]]:
    """Events that were reported, without what their schemas tell of the source's types."""
    text = (REPORTED / f"{events}.events.jsonl").read_text()
    return [json.loads(line.replace("__debezium.source.column.type", "something.else")) for line in text.splitlines()]


@pytest.mark.parametrize("has_schemas", [True, False], ids=["with schemas", "without"])
def test_numbers_below_zero_that_may_be_unsigned_are_asked_for_where_the_target_says_so(
    lab: Lab, tmp_path: Path, spark: object, *, has_schemas: bool
) -> None:
    lab.target.execute("CREATE SCHEMA inv; CREATE TABLE inv.t (id bigint PRIMARY KEY, u numeric(20))")
    events = untold("mysql-bigint-unsigned") if has_schemas else [an_event("mysql", {"id": 1, "u": -1})]

    said = refusal(opened(tmp_path, lab, events))

    assert "column 'u' of inv.t holds values below zero, and events do not say whether it is unsigned" in said
    assert "capture.debezium.columns: {inv.t: {u: 'bigint unsigned'}}, or 'bigint' if it has a sign" in said
    assert not opened(tmp_path, lab, events, columns={"inv.t": {"u": "bigint"}}).plan().source.faults
    copied(opened(tmp_path, lab, events, columns={"inv.t": {"u": "bigint unsigned"}}))
    assert lab.target.execute("SELECT max(u) FROM inv.t").fetchall() == [(2**64 - 1,)]


def test_numbers_below_zero_that_may_be_unsigned_are_told(lab: Lab, tmp_path: Path, spark: object) -> None:
    pipeline = opened(tmp_path, lab, untold("mysql-bigint-unsigned"))
    assert "column 'u' of inv.t holds values below zero" in notes(pipeline)

    copied(opened(tmp_path, lab, untold("mysql-bigint-unsigned"), columns={"inv.t": {"u": "bigint unsigned"}}))

    assert lab.target.execute("SELECT max(u) FROM inv.t").fetchall() == [(2**64 - 1,)]


@pytest.mark.parametrize(
    ("type_", "made", "most"),
    [
        ("TINYINT UNSIGNED", "smallint", 255),
        ("SMALLINT UNSIGNED", "integer", 65535),
        ("MEDIUMINT UNSIGNED", "integer", 2**24 - 1),
        ("INT UNSIGNED", "bigint", 2**32 - 1),
        ("BIGINT UNSIGNED", "numeric(20,0)", 2**64 - 1),
        ("SERIAL", "numeric(20,0)", 2**64 - 1),
    ],
)
def test_unsigned_numbers_get_a_type_that_holds_the_largest(
    lab: Lab, tmp_path: Path, spark: object, type_: str, made: str, most: int
) -> None:
    row = {"id": 1, "u": most if most < 2**63 else most - 2**64}

    copied(opened(tmp_path, lab, [an_event("mysql", row)], columns={"inv.t": {"id": "int", "u": type_}}))

    assert lab.target.execute(
        "SELECT u, format_type(atttypid, atttypmod) FROM inv.t, pg_attribute"
        " WHERE attrelid = 'inv.t'::regclass AND attname = 'u'"
    ).fetchall() == [(most, made)]


def test_bits_of_any_number_are_a_bit_varying_whose_first_zeros_are_said_to_be_lost(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    pipeline = opened(tmp_path, lab, "varbit-without-length")
    assert "column 'vb' of inv.t: events do not tell zeros at the beginning of a bit varying" in notes(pipeline)

    copied(pipeline)

    made = lab.target.execute(
        "SELECT DISTINCT vb::text, pg_typeof(vb)::text FROM inv.t WHERE vb IS NOT NULL"
    ).fetchall()
    assert made == [("101", "bit varying")]


def test_bits_with_a_length_are_told_apart_from_a_bit_varying_where_the_target_has_one(
    lab: Lab, tmp_path: Path, spark: object
) -> None:
    text = (REPORTED / "varbit-without-length.events.jsonl").read_text().replace("2147483647", "16")
    events = [json.loads(line) for line in text.splitlines()]
    lab.target.execute("CREATE SCHEMA inv; CREATE TABLE inv.t (id int PRIMARY KEY, vb bit varying(16))")
    assert "else write capture.debezium.columns: {inv.t: {vb: 'bit varying'}}" in notes(opened(tmp_path, lab, events))

    told = opened(tmp_path, lab, events, columns={"inv.t": {"vb": "bit varying"}})

    assert "else write capture.debezium.columns" not in notes(told)
    copied(told)
    assert lab.target.execute("SELECT DISTINCT vb::text FROM inv.t WHERE vb IS NOT NULL").fetchall() == [("101",)]
