"""Whatever is written of a value, it comes as that value or is refused: no column of a target makes another of it."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.formats.debezium.declared import DeclaredModes
from penstock.formats.debezium.decode import DataEvent, DecodeSettings, RecordDecoder
from penstock.logical import LogicalType
from tests.formats.debezium.events import envelope, node, record, text, with_schema

T, C = "io.debezium.time.", "org.apache.kafka.connect.data."
TABLES = {
    "oracle": TableName("DEBEZIUM", "CUSTOMERS"),
    "mysql": TableName("inventory", "t"),
    "sqlserver": TableName("dbo", "t"),
    "postgresql": TableName("public", "t"),
    "db2": TableName("DB2INST1", "T"),
}
TARGETS = [
    *("integer(16)", "integer(32)", "integer(64)", "decimal", "decimal(5,0)", "decimal(12,4)", "decimal(38,10)"),
    *("float(32)", "float(64)", "string", "binary", "date", "time", "time(0)", "time(3)", "timestamp", "timestamp(0)"),
    *("timestamp(3)", "timestamptz", "timestamptz(3)", "interval", "bits(1)", "bits(16)", "boolean", "json", "uuid"),
    *("array(integer(32))", "array(decimal(9,2))", "other('inet')"),
]
EPOCH = datetime(1970, 1, 1)


class Written(NamedTuple):
    """A value as a connector writes it: its type at the source, the schema, what stands in JSON, and what it is."""

    type: str
    schema: dict[str, Any]
    value: Any
    is_: str


def unit(mode: str, digits: int, *, is_clock: bool) -> int:
    if mode in ("connect", "microseconds", "nanoseconds"):
        return {"connect": 3, "microseconds": 6, "nanoseconds": 9}[mode]
    if mode == "adaptive_time_microseconds" and is_clock:
        return 6
    return 3 if digits <= 3 else 6 if digits <= 6 else 9


def own_mode(connector: str, mode: str | None) -> str:
    return mode or ("adaptive_time_microseconds" if connector == "mysql" else "adaptive")


def a_timestamp(connector: str, mode: str, digits: int, us: int) -> Written:
    us -= us % 10 ** max(0, 6 - digits)
    name = {"mysql": "datetime", "sqlserver": "datetime2"}.get(connector, "timestamp")
    canonical = (EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds")
    if mode == "isostring":
        return Written(f"{name}({digits})", node("string", T + "IsoTimestamp"), f"{canonical}Z", canonical)
    of = unit(mode, digits, is_clock=False)
    if of == 3:
        # What is finer is lost before it is written.
        us -= us % 1000
        canonical = (EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds")
    named = (C if mode == "connect" else T) + {3: "Timestamp", 6: "MicroTimestamp", 9: "NanoTimestamp"}[of]
    return Written(f"{name}({digits})", node("int64", named), us * 10**of // 10**6, canonical)


def a_time(connector: str, mode: str, digits: int, us: int) -> Written:
    us = us % 86_400_000_000
    us -= us % 10 ** max(0, 6 - digits)
    of = 0 if mode == "isostring" else unit(mode, digits, is_clock=True)
    us -= us % 1000 if of == 3 else 0
    canonical = (EPOCH + timedelta(microseconds=us)).time().isoformat(timespec="microseconds")
    if mode == "isostring":
        return Written(f"time({digits})", node("string", T + "IsoTime"), f"{canonical}Z", canonical)
    named = (C if mode == "connect" else T) + {3: "Time", 6: "MicroTime", 9: "NanoTime"}[of]
    return Written(f"time({digits})", node("int32" if of == 3 else "int64", named), us * 10**of // 10**6, canonical)


def a_decimal(mode: str, scale: int, unscaled: int) -> Written:
    type_, exact = f"decimal(18,{scale})", f"{Decimal(unscaled).scaleb(-scale):f}"
    if mode == "string":
        return Written(type_, node("string"), exact, exact)
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    data = base64.b64encode(unscaled.to_bytes(bits // 8 + 1, "big", signed=True)).decode()
    parameters = {"scale": str(scale), "connect.decimal.precision": "18"}
    return Written(type_, node("bytes", C + "Decimal", parameters=parameters), data, exact)


@st.composite
def written(draw: st.DrawFn, connector: str, time: str, decimals: str) -> Written:
    digits = draw(st.sampled_from([0, 3, 6, 7] if connector in ("oracle", "sqlserver") else [0, 3, 6]))
    us = draw(st.integers(0, 4_000_000_000_000_000))
    kinds = ["timestamp", "decimal", "date", "binary", "unsigned", "number", "text"]
    match draw(st.sampled_from(kinds if connector == "oracle" else [*kinds, "time"])):
        case "timestamp":
            return a_timestamp(connector, time, digits, us)
        case "time":
            return a_time(connector, time, digits, us)
        case "decimal":
            return a_decimal(decimals, draw(st.integers(1, 6)), draw(st.integers(-(10**17), 10**17)))
        case "date" if connector != "oracle":
            days, day = us // 86_400_000_000, (EPOCH + timedelta(microseconds=us)).date().isoformat()
            if time == "isostring":
                return Written("date", node("string", T + "IsoDate"), f"{day}Z", day)
            return Written("date", node("int32", (C if time == "connect" else T) + "Date"), days, day)
        case "binary":
            data = base64.b64encode(draw(st.binary(min_size=1, max_size=9))).decode()
            return Written("raw(9)" if connector == "oracle" else "varbinary(9)", node("bytes"), data, data)
        case "unsigned" if connector == "mysql":
            number = draw(st.integers(0, 2**64 - 1))
            wrapped = number if number < 2**63 else number - 2**64
            told = {"parameters": {"__debezium.source.column.type": "BIGINT UNSIGNED"}}
            return Written("bigint unsigned", node("int64", **told), wrapped, str(number))
        case "text":
            some = draw(st.text("abcXYZ =", min_size=1))
            return Written("varchar(20)", node("string"), some, some)
        case _:
            number = draw(st.integers(-(2**31), 2**31 - 1))
            return Written("int" if connector != "oracle" else "number(10,0)", node("int32"), number, str(number))


def read(connector: str, column: dict[str, Any] | None, value: Any, settings: DecodeSettings) -> str | None:
    """The canonical text that is read; None where it is refused."""
    payload = envelope("c", connector=connector, after={"v": value})
    raw = with_schema(payload, {"v": column}) if column else text(payload)
    try:
        event = RecordDecoder(settings).decode(record(raw))
    except MalformedInputError:
        return None
    assert isinstance(event, DataEvent)
    assert event.after is not None
    return event.after["v"]


@given(st.data(), st.sampled_from(sorted(TABLES)), st.sampled_from(["precise", "string"]))
def test_no_column_of_a_target_changes_a_value(data: st.DataObject, connector: str, decimals: Any) -> None:
    modes: list[Any] = [None, "connect", "isostring", "microseconds", "nanoseconds"]
    given_mode = data.draw(st.sampled_from(modes))
    one = data.draw(written(connector, own_mode(connector, given_mode), decimals))
    target = LogicalType.parse(data.draw(st.sampled_from(TARGETS)))
    modes_ = DeclaredModes(decimal=decimals, time=given_mode, arrays="postgres")
    settings = DecodeSettings(declared={TABLES[connector]: {"v": target}}, modes=modes_)
    told = DecodeSettings(columns={f'"{TABLES[connector].schema}".*': {"v": one.type}}, modes=modes_)

    assert read(connector, one.schema, one.value, DecodeSettings(modes=modes_)) == one.is_
    assert read(connector, None, one.value, told) == one.is_
    # Untold it stands as it is written, or is refused; what may have lost its sign is refused where it has room.
    untold = read(connector, None, one.value, settings)
    stands = {one.is_, str(one.value), None}
    if one.type == "bigint unsigned" and str(target) in ("decimal", "decimal(38,10)"):
        stands = {one.is_, None}
    if target.kind in ("float", "boolean", "bits"):
        assert untold is None or float(untold.replace("true", "1").replace("false", "0")) == float(one.value)
    else:
        assert untold in stands, (one, target)
