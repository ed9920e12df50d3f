"""What a real connector sent for a story of SQL decodes to what the database itself says it held.

Where it does not, the connector lost it; each such loss is named here.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.change import Change, TableName
from penstock.errors import MalformedInputError
from penstock.formats.debezium.declared import DeclaredModes
from penstock.formats.debezium.decode import DataEvent, Decoded, DecodeSettings, RecordDecoder
from penstock.formats.debezium.envelope import Boundary, SkippedRecord
from penstock.formats.debezium.join import changes_of
from penstock.formats.debezium.record import TopicRecord, read_line
from penstock.logical import Kind, LogicalType
from tests.formats.debezium.events import DATA

FORMS = ["", "schemas.", "connect.", "iso.", "micro.", "nano."]

SHORT = {
    "smallint": LogicalType(Kind.INTEGER, bits=16),
    "integer": LogicalType(Kind.INTEGER, bits=32),
    "bigint": LogicalType(Kind.INTEGER, bits=64),
    "oid": LogicalType(Kind.INTEGER, bits=64),
    "real": LogicalType(Kind.FLOAT, bits=32),
    "double precision": LogicalType(Kind.FLOAT, bits=64),
    "money": LogicalType(Kind.DECIMAL, precision=19, scale=2),
    "numeric": LogicalType(Kind.DECIMAL),
    "public.amount": LogicalType(Kind.DECIMAL, precision=19, scale=2),
    "boolean": LogicalType(Kind.BOOLEAN),
    "bytea": LogicalType(Kind.BINARY),
    "bit": LogicalType(Kind.BITS),
    "bit varying": LogicalType(Kind.BITS),
    "date": LogicalType(Kind.DATE),
    "time without time zone": LogicalType(Kind.TIME),
    "time with time zone": LogicalType(Kind.TIMETZ),
    "timestamp without time zone": LogicalType(Kind.TIMESTAMP),
    "timestamp with time zone": LogicalType(Kind.TIMESTAMPTZ),
    "interval": LogicalType(Kind.INTERVAL),
}
"""PostgreSQL's types, of those whose values are not their own text in JSON."""

LOST = {
    "interval": "numbers of months are lost",
    "time with time zone": "the offset is lost",
    "character": "PostgreSQL's own text has no blanks at the end",
    "inet": "the length of the mask is written only where it is not that of one host",
    "name": "null",
    "public.mood[]": "null where one element is",
    "public.hstore": "JSON, not PostgreSQL's own text",
}
"""Types of which nothing more is expected, and why."""


def read(form: str) -> Iterator[TopicRecord]:
    name = f"postgres_3.6.{form}jsonl"
    for number, line in enumerate((DATA / name).read_bytes().splitlines(), 1):
        yield read_line(line, file=name, number=number)


@cache
def told() -> tuple[Mapping[str, Mapping[str, str]], Mapping[str, list[Any]]]:
    """The types of each table's columns, and the changes of each transaction, as the database says them."""
    tables: dict[str, dict[str, str]] = {}
    rows: dict[str, list[Any]] = defaultdict(list)
    for line in (DATA / "postgres_3.6.rows.jsonl").read_text().splitlines():
        one = json.loads(line)
        if "columns" in one:
            tables[one["table"]] = {column["name"]: column["type"] for column in one["columns"]}
        elif one["op"] != "snapshot":
            rows[str(one["xid"])].append(one)
    return tables, rows


def logical(spelling: str) -> LogicalType:
    if spelling.endswith("[]"):
        return LogicalType(Kind.ARRAY, element=logical(spelling[:-2]))
    base, number = re.sub(r"\(.*?\)", "", spelling), re.search(r"\((\d+)(?:,(-?\d+))?\)", spelling)
    known = SHORT.get(base, LogicalType(Kind.OTHER, name=base))
    if number is None:
        return known
    if known.kind is Kind.DECIMAL:
        # Debezium pads a negative scale with zeros.
        scale = int(number[2] or 0)
        return LogicalType(Kind.DECIMAL, precision=int(number[1]), scale=scale if scale >= 0 else 2048 + scale)
    sized = "length" if known.kind is Kind.BITS else "precision"
    return replace(known, **{sized: int(number[1])})


def declared() -> DecodeSettings:
    tables, _ = told()
    return DecodeSettings(
        columns={
            '"{}"."{}"'.format(*table.split(".", 1)): {name: str(logical(type_)) for name, type_ in columns.items()}
            for table, columns in tables.items()
        }
    )


def transactions(form: str, settings: DecodeSettings) -> Mapping[str, list[Change]]:
    decoder = RecordDecoder(settings)
    events: dict[str, dict[int, DataEvent]] = defaultdict(dict)
    for record in read(form):
        try:
            event = decoder.decode(record)
        except MalformedInputError as exc:
            # Of all values, only the infinite dates are refused.
            if "column d is a date outside" not in str(exc):
                raise
            continue
        if isinstance(event, DataEvent) and event.location.txn is not None:
            events[event.location.txn][event.location.total_order or 0] = event
    return {txn: list(changes_of([found[at] for at in sorted(found)])) for txn, found in events.items()}


@pytest.mark.parametrize("form", ["", "schemas."])
def test_changes_of_each_transaction_are_what_the_database_held(form: str) -> None:
    tables, rows = told()
    compared = 0
    for txn, found in transactions(form, declared()).items():
        expected = [one for one in rows[txn] if one["table"] != "public.extremes"]
        changes = [change for change in found if str(change.table) != "public.extremes"]
        assert [(change.op.value, str(change.table)) for change in changes] == [
            (one["op"], one["table"]) for one in expected
        ]
        for change, one in zip(changes, expected, strict=True):
            types = tables[one["table"]]
            for side, image in (("before", change.before), ("after", change.after)):
                for name, value in (image or {}).items():
                    if re.sub(r"\(.*?\)", "", types.get(name, "")) in LOST:
                        continue
                    held = one[side][name]
                    compared += 1
                    assert _same(value, held, types.get(name, "")), (txn, one["table"], name, value, held)
    assert compared > 700


def _same(value: str | None, held: str | None, type_: str) -> bool:
    if value is None or held is None:
        # replace.null.with.default wrote the default in the place of NULL, decimal.handling.mode NULL in that of NaN.
        is_nan = type_ == "numeric" and held in ("NaN", "Infinity", "-Infinity")
        return value == held or is_nan or (held is None and value in ("9", "said"))
    if type_ in ("numeric", "double precision"):
        # Zeros behind the point are lost, and two shortest texts may stand for one double.
        return value == held or float(value) == float(held)
    if type_.startswith("bit varying"):
        # Zeros in front are lost, or too many.
        return value.lstrip("0") == held.lstrip("0")
    return value == held or type_ == ""


@pytest.mark.parametrize("form", FORMS)
def test_every_record_is_known_for_what_it_is(form: str) -> None:
    decoder = RecordDecoder(DecodeSettings(modes=DeclaredModes()))
    kinds: dict[str, int] = defaultdict(int)
    for record in read(form):
        seen = decoder.location(record)
        if isinstance(seen, Boundary):
            kinds["boundary"] += 1
        else:
            kinds[seen.value if isinstance(seen, SkippedRecord) else seen.op] += 1

    assert kinds["boundary"] == 54
    assert kinds["message"] == 2
    assert kinds["tombstone"] == kinds["d"]


@pytest.mark.parametrize("form", ["", "schemas."])
def test_an_end_counts_exactly_the_events_that_are_there(form: str) -> None:
    decoder = RecordDecoder()
    counts: dict[tuple[str, str], int] = defaultdict(int)
    ends: list[Boundary] = []
    for record in read(form):
        seen = decoder.location(record)
        if isinstance(seen, Boundary):
            ends += [seen] if seen.is_end else []
        elif not isinstance(seen, SkippedRecord) and seen.txn is not None:
            counts[seen.txn, seen.source.collection] += 1

    tables = {(end.txn, name): count for end in ends for name, count in end.collections.items() if "$" not in name}
    assert tables == counts


@cache
def some() -> list[TopicRecord]:
    return [record for form in ("", "schemas.") for record in list(read(form))[::9] if record.value]


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_broken_bytes_are_refused_and_nothing_else_happens(data: st.DataObject) -> None:
    record = data.draw(st.sampled_from(some()))
    raw = bytearray(record.value or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        piece = data.draw(st.sampled_from([b"", b'"', b"}", b"{", b"null", b"7", b"1.5", b"\\", b",", b"[]", b"\xff"]))
        raw[at : at + data.draw(st.integers(0, 3))] = piece
    broken = TopicRecord(record.topic, record.key, bytes(raw), record.headers, file="f", line=1)
    decoded, where = _tried(broken)
    assert where == "f, line 1"
    if isinstance(decoded, DataEvent):
        images = (decoded.key, decoded.before, decoded.after)
        assert all(type(value) is str or value is None for image in images if image for value in image.values())


def _tried(record: TopicRecord) -> tuple[Decoded | None, str]:
    """What a record decodes to, or where the error says that it is not one."""
    try:
        return RecordDecoder().decode(record), record.where
    except MalformedInputError as exc:
        return None, exc.where.partition(", table")[0]


SPELLED = {
    "mysql": TableName("inventory", "customers"),
    "oracle": TableName("DEBEZIUM", "CUSTOMERS"),
    "sqlserver": TableName("dbo", "customers"),
    "db2": TableName("DB2INST1", "CUSTOMERS"),
}


def spelled(connector: str) -> Mapping[str, str]:
    """The types of a table's columns, as the database spells them."""
    for line in (DATA / f"{connector}_3.6.rows.jsonl").read_text().splitlines():
        one = json.loads(line)
        if "columns" in one:
            return {column["name"]: column["type"] for column in one["columns"]}
    raise AssertionError(connector)


def images(connector: str, form: str, settings: DecodeSettings) -> list[Any]:
    decoder, name = RecordDecoder(settings), f"{connector}_3.6.{form}jsonl"
    found = []
    for number, line in enumerate((DATA / name).read_bytes().splitlines(), 1):
        event = decoder.decode(read_line(line, file=name, number=number))
        if isinstance(event, DataEvent):
            found.append((event.location.op, event.key, event.before, event.after))
    return found


@pytest.mark.parametrize("connector", SPELLED)
def test_types_as_the_database_spells_them_say_what_schemas_say(connector: str) -> None:
    columns = {f"{SPELLED[connector].schema}.*": spelled(connector)}
    modes = DeclaredModes(arrays="postgres")

    without = images(connector, "", DecodeSettings(columns=columns, modes=modes))

    assert without == images(connector, "schemas.", DecodeSettings(modes=modes))
    assert len(without) >= 3
