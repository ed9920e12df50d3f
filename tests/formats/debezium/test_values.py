"""Values of every logical type, as they stand in events, are the canonical text of what the database held."""

from __future__ import annotations

import base64
import json
import struct as binary
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.change import TableName
from penstock.errors import MalformedInputError
from penstock.formats import temporal
from penstock.formats.debezium.declared import DeclaredModes, declared_reader, plain_reader
from penstock.formats.debezium.decode import DataEvent, DecodeSettings, RecordDecoder
from penstock.formats.debezium.numbers import decimal_text, float32_text, float_text, integer_reader
from penstock.formats.debezium.schema import ConnectSchema
from penstock.formats.debezium.source_types import check_type, told_of
from penstock.formats.debezium.types import logical_of, reader_of
from penstock.formats.debezium.value_reader import Reader, column_texts
from penstock.logical import Kind, LogicalType
from tests.formats.debezium.events import envelope, node, record, struct, text, with_schema

T, D, C = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."
DECIMAL = node("bytes", C + "Decimal", parameters={"scale": "2"})

ARRAY = r'{"a b","c\"\\","","null"}'

TYPED: list[tuple[dict[str, Any], Any, str | None]] = [
    (node("int8"), -128, "-128"),
    (node("int64"), -(2**63), "-9223372036854775808"),
    (node("boolean"), True, "true"),
    (node("boolean"), 0, "false"),
    (node("string"), "", ""),
    (node("string"), "😀\u0001/\u007f", "😀\u0001/\u007f"),
    (node("string"), None, None),
    (node("bytes"), "3q2+7wA=", "3q2+7wA="),
    (node("bytes"), "", ""),
    (DECIMAL, "gA==", "-1.28"),
    (DECIMAL, "/4A=", "-1.28"),
    (DECIMAL, "AA==", "0.00"),
    (DECIMAL, "/w==", "-0.01"),
    (DECIMAL, "AJiWfw==", "99999.99"),
    (node("bytes", C + "Decimal", parameters={"scale": "0"}), "A+w=", "1004"),
    (node("bytes", C + "Decimal", parameters={"scale": "0"}), "J+QbMka+ybFnmhVO", "12345678901234567890012345678"),
    (node("bytes", C + "Decimal", parameters={"scale": "-3"}), "BQ==", "5000"),
    (
        struct([("scale", "int32"), ("value", "bytes")], D + "VariableScaleDecimal"),
        {"scale": 1, "value": "Hw=="},
        "3.1",
    ),
    (node("int32", T + "Date"), 19782, "2024-02-29"),
    (node("int32", T + "Date"), -735160, "0044-03-15 BC"),
    (node("int32", C + "Date"), 2932897, "10000-01-01"),
    (node("int32", T + "Time"), 86400000, "24:00:00.000000"),
    (node("int32", C + "Time"), 1, "00:00:00.001000"),
    (node("int64", T + "MicroTime"), 49559123456, "13:45:59.123456"),
    (node("int64", T + "MicroTime"), -3020399000000, "-838:59:59.000000"),
    (node("int64", T + "NanoTime"), 49559123456789, "13:45:59.123456789"),
    (node("int64", T + "Timestamp"), 1709214359120, "2024-02-29T13:45:59.120000"),
    (node("int64", C + "Timestamp"), -1, "1969-12-31T23:59:59.999000"),
    (node("int64", T + "MicroTimestamp"), 1709214359100000, "2024-02-29T13:45:59.100000"),
    (node("int64", T + "MicroTimestamp"), 9223372036825200000, "infinity"),
    (node("int64", T + "MicroTimestamp"), -9223372036832400000, "-infinity"),
    (node("int64", T + "MicroTimestamp"), 9223372036825200, "2262-04-11T23:47:16.825200"),
    (node("int64", T + "Timestamp"), 9223372036825200, "infinity"),
    (node("int64", C + "Timestamp"), -9223372036832400, "-infinity"),
    (node("int64", T + "MicroTimestamp"), -63517824000000000, "0044-03-15T00:00:00.000000 BC"),
    (node("int64", T + "MicroTimestamp"), 253402300800000000, "10000-01-01T00:00:00.000000"),
    (node("int64", T + "NanoTimestamp"), 1709214359123456789, "2024-02-29T13:45:59.123456789"),
    (node("int64", T + "NanoTimestamp"), 2**63 - 1, "infinity"),
    (node("string", T + "ZonedTimestamp"), "2024-02-29T11:45:59.100000Z", "2024-02-29T11:45:59.100000+00:00"),
    (node("string", T + "ZonedTimestamp"), "2024-02-29T11:45:59Z", "2024-02-29T11:45:59.000000+00:00"),
    (node("string", T + "ZonedTimestamp"), "2024-02-29T13:45:59+02:00", "2024-02-29T11:45:59.000000+00:00"),
    (node("string", T + "ZonedTimestamp"), "2024-01-01T00:30:00.5+05:30", "2023-12-31T19:00:00.500000+00:00"),
    (node("string", T + "ZonedTimestamp"), "infinity", "infinity"),
    (node("string", T + "ZonedTimestamp"), "-0043-03-15T00:00:00.000000Z", "0044-03-15T00:00:00.000000+00:00 BC"),
    (node("string", T + "ZonedTimestamp"), "+12024-01-01T00:00:00Z", "12024-01-01T00:00:00.000000+00:00"),
    (node("string", T + "ZonedTime"), "11:45:59.123456Z", "11:45:59.123456+00:00"),
    (node("string", T + "ZonedTime"), "11:45:59+05:30", "11:45:59.000000+05:30"),
    (node("int32", T + "Year"), 2024, "2024"),
    (node("int64", T + "MicroDuration"), 37091106780000, "PT10303H5M6.78S"),
    (node("int64", T + "NanoDuration"), -1500000000, "PT-1.5S"),
    (node("string", T + "Interval"), "P1Y2M3DT4H5M6.78S", "P1Y2M3DT4H5M6.78S"),
    (node("string", T + "Interval"), "P0Y0M-3DT0H0M-0.5S", "P-3DT-0.5S"),
    (node("string", T + "Interval"), "P0Y0M0DT0H0M0S", "PT0S"),
    (node("string", T + "IsoDate"), "2024-02-29Z", "2024-02-29"),
    (node("string", T + "IsoTime"), "13:45:59.123Z", "13:45:59.123000"),
    (node("string", T + "IsoTimestamp"), "2024-02-29T13:45:59.1Z", "2024-02-29T13:45:59.100000"),
    (node("bytes", D + "Bits", parameters={"length": "9"}), "VQE=", "101010101"),
    (node("bytes", D + "Bits", parameters={"length": "2147483647"}), "VQE=", "101010101"),
    (node("bytes", D + "Bits", parameters={"length": "9"}), "", "000000000"),
    (node("bytes", D + "Bits", parameters={"length": "33"}), "AQ==", "0" * 32 + "1"),
    (
        node("bytes", D + "Bits", parameters={"length": "20", "__debezium.source.column.type": "VARBIT"}),
        "AQ==",
        "1",
    ),
    (node("float"), 3.4028235e38, "3.4028235e+38"),
    (node("string", D + "Json"), '{"b": null}', '{"b": null}'),
    (node("string", D + "Enum", parameters={"allowed": "sad,meh,ok,happy"}), "meh", "meh"),
    (node("string", D + "EnumSet", parameters={"allowed": "a,b,c"}), "a,b", "a,b"),
    (node("double"), 1.0e23, "1e+23"),
    (node("double"), "NaN", "NaN"),
    (node("float"), "Infinity", "Infinity"),
    (node("float"), 0.1, "0.1"),
    (node("double"), 100.0, "100"),
    (node("double"), 5, "5"),
    ({**node("map"), "keys": node("string"), "values": node("string")}, {"a": "1", "b": None}, '{"a":"1","b":null}'),
    ({**node("map"), "keys": node("int32"), "values": node("string")}, [[7, "z"]], '{"7":"z"}'),
    ({**node("array"), "items": node("int32")}, [1, None, 3], "[1,null,3]"),
    ({**node("array"), "items": node("string")}, ["a", 'b"', None], '["a","b\\"",null]'),
    ({**node("array"), "items": node("int32", T + "Date")}, [19782], '["2024-02-29"]'),
    ({**node("array"), "items": DECIMAL}, ["gA=="], '["-1.28"]'),
    (struct([("x", "double"), ("y", "double")], D + "geometry.Point"), {"x": 1.5, "y": -2.0}, "(1.5,-2)"),
    (
        struct([("wkb", "bytes"), ("srid", "int32")], D + "geometry.Geometry"),
        {"wkb": "AQEAAAAAAAAAAAD4PwAAAAAAAADA", "srid": 4326},
        "0101000020E6100000000000000000F83F00000000000000C0",
    ),
    (
        struct([("year", "int32"), ("month", "int8"), ("day", "int8")], T + "StructuredDate"),
        {"year": 2024, "month": 2, "day": 29, "specialValue": None},
        "2024-02-29",
    ),
    (
        struct([("year", "int32"), ("offsetSeconds", "int32")], T + "StructuredZonedTimestamp"),
        {
            "year": 2024,
            "month": 2,
            "day": 29,
            "hour": 13,
            "minute": 45,
            "second": 59,
            "nanos": 0,
            "offsetSeconds": 7200,
        },
        "2024-02-29T11:45:59.000000+00:00",
    ),
]


def value_of(column: Any, value: Any, *, settings: DecodeSettings | None = None) -> str | None:
    """What an insert of one column decodes to; the payload is taken as JSON text if it is a text of bytes."""
    payload = text(envelope("c", after={"v": "?"})).replace(b'"?"', value if isinstance(value, bytes) else text(value))
    raw = with_schema({}, {"v": column}).replace(b'"payload":{}', b'"payload":' + payload) if column else payload
    event = RecordDecoder(settings).decode(record(raw))
    assert isinstance(event, DataEvent)
    assert event.after is not None
    return event.after["v"]


@pytest.mark.parametrize(("column", "value", "expected"), TYPED)
def test_a_value_with_a_schema_is_canonical_text(column: Any, value: Any, expected: str | None) -> None:
    assert value_of(column, value) == expected


@pytest.mark.parametrize(("column", "value", "expected"), TYPED)
def test_a_schema_comes_back_as_it_was_written(column: Any, value: Any, expected: str | None) -> None:
    assert json.dumps(ConnectSchema.from_json(column).to_json()) == json.dumps(_in_order(column))


def _in_order(one: Any) -> Any:
    order = ["type", "items", "keys", "values", "fields", "optional", "name", "version", "parameters", "field"]
    inner = {key: _in_order(value) for key, value in one.items() if key in ("items", "keys", "values")}
    fields = {"fields": [_in_order(member) for member in one["fields"]]} if "fields" in one else {}
    return {key: {**one, **inner, **fields}[key] for key in order if key in one}


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        (node("int32"), 99999999999, "is not a whole number of 32 bits"),
        (node("int32"), "abc", "is not a whole number"),
        (node("int32"), 1.5, "is not a whole number"),
        (node("int32"), True, "is not a whole number"),
        (node("int64"), 2**64, "is not a whole number of 64 bits"),
        (node("int32", T + "Date"), -2147472692, "outside of what databases hold"),
        (node("int64", T + "Timestamp"), 2**62, "outside of what databases hold"),
        (node("string", T + "ZonedTimestamp"), "2024-02-31T00:00:00Z", "v"),
        (node("string", T + "ZonedTimestamp"), "secret", "is not a date and time"),
        (DECIMAL, "", "without bytes"),
        (DECIMAL, "se?ret", "is not base64"),
        (DECIMAL, True, "is not a decimal"),
        (node("bytes", C + "Decimal"), "AA==", "decimal without a scale"),
        (node("bytes", D + "Bits", parameters={"length": "1"}), "VQE=", "more bits than its type"),
        (node("string"), 5, "is not a text"),
        ({**node("array"), "items": node("int32")}, ["secret"], "is not a whole number"),
        (struct([("scale", "int32")], D + "VariableScaleDecimal"), {"scale": 10**9, "value": "AA=="}, "with its scale"),
    ],
)
def test_a_value_that_its_column_cannot_hold_is_refused_and_not_shown(column: Any, value: Any, says: str) -> None:
    with pytest.raises(MalformedInputError, match=says) as refused:
        value_of(column, value)
    assert "column v" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "digits", ["123456789012345678901234567890.10", "-1.28", "0.10", "7", "1E+2", "9" * 5000 + ".5"]
)
def test_a_decimal_that_is_a_number_keeps_every_digit(digits: str) -> None:
    expected = "100" if digits == "1E+2" else digits
    declared = DecodeSettings(declared={TableName("public", "t"): {"v": LogicalType(Kind.DECIMAL, scale=2)}})
    assert value_of(DECIMAL, digits.encode()) == expected
    assert value_of(None, digits.encode(), settings=declared) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'"MDk="', "MDk="),
        (b'"2024-02-29T11:45:59Z"', "2024-02-29T11:45:59Z"),
        (b"1.50", "1.50"),
        (b"1E400", "1E400"),
        (b"123456789012345678901234567890", "123456789012345678901234567890"),
        (b"true", "true"),
        (b"19782", "19782"),
        (b'{"a":[1.50,null]}', '{"a":[1.50,null]}'),
    ],
)
def test_without_schema_and_description_nothing_is_guessed(raw: bytes, expected: str) -> None:
    assert value_of(None, raw) == expected


@pytest.mark.parametrize(
    ("kind", "modes", "value", "expected"),
    [
        (LogicalType(Kind.DECIMAL, precision=10, scale=2), DeclaredModes(), "MDk=", "123.45"),
        (LogicalType(Kind.DECIMAL), DeclaredModes(), {"scale": 1, "value": "Hw=="}, "3.1"),
        (LogicalType(Kind.DECIMAL, precision=9, scale=2), DeclaredModes(decimal="string"), "3.10", "3.10"),
        (LogicalType(Kind.DECIMAL), DeclaredModes(decimal="string"), "POSITIVE_INFINITY", "Infinity"),
        (LogicalType(Kind.DECIMAL), DeclaredModes(decimal="string"), "NAN", "NaN"),
        (LogicalType(Kind.DECIMAL, precision=9, scale=2), DeclaredModes(decimal="double"), 3.1, "3.1"),
        (LogicalType(Kind.DATE), DeclaredModes(), 19782, "2024-02-29"),
        (LogicalType(Kind.DATE), DeclaredModes(time="isostring"), "2024-02-29Z", "2024-02-29"),
        (LogicalType(Kind.TIME, precision=3), DeclaredModes(), 1, "00:00:00.001000"),
        (LogicalType(Kind.TIME, precision=0), DeclaredModes(time="adaptive_time_microseconds"), 1, "00:00:00.000001"),
        (LogicalType(Kind.TIMESTAMP), DeclaredModes(), 1, "1970-01-01T00:00:00.000001"),
        (LogicalType(Kind.TIMESTAMP, precision=3), DeclaredModes(), 1, "1970-01-01T00:00:00.001000"),
        (LogicalType(Kind.TIMESTAMP, precision=9), DeclaredModes(), 1, "1970-01-01T00:00:00.000000001"),
        (LogicalType(Kind.TIMESTAMP, precision=6), DeclaredModes(time="connect"), 1, "1970-01-01T00:00:00.001000"),
        (
            LogicalType(Kind.TIMESTAMP, precision=6),
            DeclaredModes(time="nanoseconds"),
            1,
            "1970-01-01T00:00:00.000000001",
        ),
        (LogicalType(Kind.TIMESTAMPTZ), DeclaredModes(), "2024-02-29T11:45:59Z", "2024-02-29T11:45:59.000000+00:00"),
        (LogicalType(Kind.INTERVAL), DeclaredModes(), 1500000, "PT1.5S"),
        (LogicalType(Kind.INTERVAL), DeclaredModes(), "P0Y0M1DT0H0M0S", "P1D"),
        (LogicalType(Kind.BINARY), DeclaredModes(), "3q2+7wA=", "3q2+7wA="),
        (LogicalType(Kind.BINARY), DeclaredModes(binary="base64-url-safe"), "3q2-7wA=", "3q2+7wA="),
        (LogicalType(Kind.BINARY), DeclaredModes(binary="hex"), "deadbeef00", "3q2+7wA="),
        (LogicalType(Kind.BITS, length=9), DeclaredModes(), "VQE=", "101010101"),
        (LogicalType(Kind.BITS, length=1), DeclaredModes(), True, "1"),
        (LogicalType(Kind.INTEGER, bits=64), DeclaredModes(), 7, "7"),
        (LogicalType(Kind.FLOAT, bits=64), DeclaredModes(), 1e7, "10000000"),
        (LogicalType(Kind.ARRAY, element=LogicalType(Kind.DATE)), DeclaredModes(), [19782, None], "{2024-02-29,NULL}"),
        (
            LogicalType(Kind.ARRAY, element=LogicalType(Kind.STRING)),
            DeclaredModes(),
            ["a b", 'c"\\', "", "null"],
            ARRAY,
        ),
        (LogicalType(Kind.ARRAY, element=LogicalType(Kind.BINARY)), DeclaredModes(), ["AQ=="], '{"\\\\x01"}'),
        (LogicalType(Kind.ARRAY, element=LogicalType(Kind.INTEGER, bits=32)), DeclaredModes(), [[1], [2]], "{{1},{2}}"),
        (LogicalType(Kind.JSON), DeclaredModes(), '{"b": null}', '{"b": null}'),
        (
            LogicalType(Kind.UUID),
            DeclaredModes(),
            "b68a35a7-17ad-35b3-af2a-ae46edb4545a",
            "b68a35a7-17ad-35b3-af2a-ae46edb4545a",
        ),
    ],
)
def test_what_the_file_tells_of_a_column_stands_for_a_schema(
    kind: LogicalType, modes: DeclaredModes, value: Any, expected: str
) -> None:
    settings = DecodeSettings(columns={"public.t": {"v": str(kind)}}, modes=modes)
    assert value_of(None, text(value), settings=settings) == expected


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (LogicalType(Kind.DECIMAL), "MDk=", "say what the source's column is as capture.debezium.columns"),
        (LogicalType(Kind.DECIMAL, precision=9, scale=2), "3.10", "decimal.handling.mode"),
        (LogicalType(Kind.INTEGER, bits=32), 99999999999, "is not a whole number"),
        (LogicalType(Kind.INTEGER, bits=32), "abc", "is not a whole number"),
        (LogicalType(Kind.DATE), "soon", "is not a date"),
    ],
)
def test_a_value_that_the_told_column_cannot_hold_is_refused(kind: LogicalType, value: Any, says: str) -> None:
    with pytest.raises(MalformedInputError, match=says):
        value_of(None, text(value), settings=DecodeSettings(columns={"public.t": {"v": str(kind)}}))


def test_a_schema_that_says_string_leaves_the_type_to_the_description() -> None:
    settings = DecodeSettings(
        declared={TableName("public", "t"): {"v": LogicalType(Kind.DECIMAL, scale=2)}},
        modes=DeclaredModes(decimal="string"),
    )
    assert value_of(node("string"), b'"NEGATIVE_INFINITY"', settings=settings) == "-Infinity"


@pytest.mark.parametrize(
    ("column", "kind", "value", "expected"),
    [
        (node("boolean"), LogicalType(Kind.BITS, length=1), True, "1"),
        (node("bytes"), LogicalType(Kind.OTHER, name="line"), "ezEuMCwyLjAsMy4wfQ==", "{1.0,2.0,3.0}"),
        ({**node("array"), "items": node("int32")}, LogicalType(Kind.ARRAY), [1, None], "{1,NULL}"),
        ({**node("array"), "items": DECIMAL}, LogicalType(Kind.ARRAY), ["gA=="], "{-1.28}"),
        ({**node("array"), "items": node("bytes")}, LogicalType(Kind.ARRAY), ["AQ=="], '{"\\\\x01"}'),
        (
            node("int64", T + "NanoTimestamp"),
            LogicalType(Kind.TIMESTAMP, precision=6),
            1000,
            "1970-01-01T00:00:00.000001",
        ),
        (
            node("int64", T + "NanoTimestamp"),
            LogicalType(Kind.TIMESTAMP, precision=6),
            1001,
            "1970-01-01T00:00:00.000001001",
        ),
        (node("int64", T + "NanoTime"), LogicalType(Kind.TIME, precision=3), 10**9, "00:00:01.000000"),
    ],
)
def test_a_description_says_how_what_a_schema_types_is_written(
    column: Any, kind: LogicalType, value: Any, expected: str
) -> None:
    settings = DecodeSettings(declared={TableName("public", "t"): {"v": kind}})
    assert value_of(column, value, settings=settings) == expected


def test_arrays_are_written_as_postgresql_writes_them_if_that_is_wanted() -> None:
    column = {**node("array"), "items": node("string")}
    assert (
        value_of(column, ["a b", None], settings=DecodeSettings(modes=DeclaredModes(arrays="postgres")))
        == '{"a b",NULL}'
    )


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (node("int8"), LogicalType(Kind.INTEGER, bits=16)),
        (
            node("bytes", C + "Decimal", parameters={"scale": "2", "connect.decimal.precision": "10"}),
            LogicalType(Kind.DECIMAL, precision=10, scale=2),
        ),
        (node("bytes", C + "Decimal", parameters={"scale": "2046"}), LogicalType(Kind.DECIMAL)),
        (node("int64", T + "Timestamp"), LogicalType(Kind.TIMESTAMP, precision=3)),
        (node("string", D + "Enum", parameters={"allowed": "a,b"}), LogicalType(Kind.ENUM, values=("a", "b"))),
        ({**node("array"), "items": node("string")}, LogicalType(Kind.ARRAY, element=LogicalType(Kind.STRING))),
    ],
)
def test_a_schema_says_which_column_a_table_needs(column: Any, expected: LogicalType) -> None:
    assert logical_of(ConnectSchema.from_json(column)) == expected


def test_a_padded_scale_is_taken_back() -> None:
    padded = base64.b64encode((1200 * 10**2046).to_bytes(1024, "big")).decode()
    assert value_of(node("bytes", C + "Decimal", parameters={"scale": "2046"}), padded) == "1200"


@given(st.integers(), st.integers(-20, 40))
def test_any_decimal_keeps_its_value_and_scale(unscaled: int, scale: int) -> None:
    made = decimal_text(unscaled, scale)
    digits = tuple(int(digit) for digit in str(abs(unscaled)))
    assert Decimal(made).compare_total(Decimal((unscaled < 0, digits, -scale))) == 0 or scale < 0
    assert Decimal(made) == Decimal((unscaled < 0, digits, -scale))
    assert len(made.partition(".")[2]) == max(scale, 0)


@given(st.floats(allow_nan=False))
def test_any_float_reads_back_the_same(number: float) -> None:
    assert float(float_text(number)) == number


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_any_float_of_32_bits_reads_back_the_same(number: float) -> None:
    assert binary.pack("f", float(float32_text(number))) == binary.pack("f", number)


@given(st.dates())
def test_any_date_is_that_of_the_calendar(day: date) -> None:
    assert temporal.date_text(day.toordinal() - 719_163) == day.isoformat()
    assert temporal.iso_date_text(day.isoformat()) == day.isoformat()


@given(st.integers(-(10**14), 10**15), st.sampled_from([3, 6, 9]))
def test_any_time_is_the_same_from_numbers_and_from_text(seconds_us: int, digits: int) -> None:
    value = seconds_us * 10**digits // 10**6
    made = temporal.timestamp_text(value, digits)
    if made.endswith("BC") or len(made.partition("-")[0]) > 4:
        return
    expected = datetime(1970, 1, 1) + timedelta(microseconds=value * 10**6 // 10**digits)
    assert made[:26] == expected.isoformat(timespec="microseconds")
    assert temporal.iso_timestamp_text(made, is_instant=False) == made
    assert temporal.iso_timestamp_text(made + "Z", is_instant=True) == made + "+00:00"


_EDGES = [
    edge * 10**digits + step
    for edge in (-62_135_596_800, 0, 253_402_300_800)
    for digits in (3, 6)
    for step in (-1, 0, 1)
]


@pytest.mark.parametrize(
    "reader",
    [
        integer_reader(16),
        integer_reader(64, is_unsigned=True),
        *(
            reader_of(ConnectSchema("int64", T + name))
            for name in ("Timestamp", "MicroTimestamp", "NanoTimestamp", "MicroTime")
        ),
        *(
            declared_reader(LogicalType(Kind.TIMESTAMP, precision=digits), DeclaredModes(), "postgresql")
            for digits in (0, 3, 6, 9)
        ),
        plain_reader(LogicalType(Kind.INTEGER, bits=32), DeclaredModes()),
    ],
)
@given(
    values=st.lists(
        st.one_of(
            st.integers(-(2**15), 2**15),
            st.integers(-(2**63), 2**63),
            st.sampled_from(_EDGES),
            st.none(),
            st.booleans(),
            st.text(),
        ),
        min_size=1,
    )
)
def test_any_column_reads_as_its_values_do(reader: Reader, values: list[Any]) -> None:
    def one_by_one() -> list[str | None]:
        return [None if value is None else reader(value) for value in values]

    def at_once() -> list[str | None]:
        return list(column_texts(reader, values))

    assert _outcome(at_once) == _outcome(one_by_one)


def _outcome(read: Callable[[], list[str | None]]) -> list[str | None] | str:
    try:
        return read()
    except ValueError as exc:
        return str(exc)


@given(*[st.integers(-99, 99)] * 5, st.integers(-(10**12), 10**12))
def test_any_interval_comes_back(years: int, months: int, days: int, hours: int, minutes: int, nanos: int) -> None:
    second = f"{'-' if nanos < 0 else ''}{abs(nanos) // 10**9}.{abs(nanos) % 10**9:09}"
    made = temporal.duration_text(f"P{years}Y{months}M{days}DT{hours}H{minutes}M{second}S")
    assert temporal.duration_text(made) == made
    assert (f"{years}Y" in made) == bool(years)


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (node("int64", T + "NanoTime"), 10**9, "00:00:01.000000"),
        (node("int64", T + "NanoTime"), 86399999999900, "23:59:59.9999999"),
        (node("int64", T + "NanoTimestamp"), 123456000, "1970-01-01T00:00:00.123456"),
        (node("int64", T + "NanoTimestamp"), 1764000000123456700, "2025-11-24T16:00:00.1234567"),
        (node("string", T + "ZonedTimestamp"), "2024-02-29T11:45:59.123456000Z", "2024-02-29T11:45:59.123456+00:00"),
        (
            node("string", T + "ZonedTimestamp"),
            "2024-02-29T11:45:59.12345670+01:00",
            "2024-02-29T10:45:59.1234567+00:00",
        ),
        (node("string", T + "IsoTime"), "11:45:59.1234560Z", "11:45:59.123456"),
        (node("string", T + "ZonedTime"), "11:45:59.120000000Z", "11:45:59.120000+00:00"),
    ],
)
def test_nanoseconds_have_one_text(column: Any, value: Any, expected: str) -> None:
    assert value_of(column, value) == expected


UNSIGNED = {"__debezium.source.column.type": "BIGINT UNSIGNED"}


def test_a_number_without_a_sign_is_what_the_source_has() -> None:
    assert value_of(node("int64", parameters=UNSIGNED), -1) == str(2**64 - 1)
    assert value_of(node("int64", parameters=UNSIGNED), 5) == "5"
    assert logical_of(ConnectSchema.from_json(node("int64", parameters=UNSIGNED))) == LogicalType.parse("decimal(20,0)")
    told = DecodeSettings(columns={"public.*": {"v": "BIGINT(20) UNSIGNED"}})
    assert value_of(None, -2, settings=told) == value_of(node("int64"), -2, settings=told) == str(2**64 - 2)


def test_a_text_whose_type_is_propagated_is_the_decimal_that_it_is() -> None:
    named = {"type": "DECIMAL", "length": "10", "scale": "2"}
    column = node("string", parameters={f"__debezium.source.column.{name}": one for name, one in named.items()})
    assert value_of(column, "1.50") == "1.50"
    assert str(logical_of(ConnectSchema.from_json(column))) == "decimal(10,2)"


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        ("timestamp", 1764000000000),
        ("timestamp(3)", "2024-02-29T11:45:59Z"),
        ("timestamptz", 1764000000000),
        ("time", 10_000_000),
        ("date", 19782),
        ("interval", 1500000),
        ("decimal(12,4)", "AJY="),
        ("integer(32)", "1250"),
        ("binary", "3q2+7wA="),
        ("bits(16)", "BQ=="),
        ("string", 1764000000000),
        ("array(decimal(9,2))", ["AJY="]),
        ("array(date)", [19782]),
    ],
)
def test_what_nobody_tells_is_not_read_by_the_column_of_the_target(expected: str, value: Any) -> None:
    settings = DecodeSettings(declared={TableName("public", "t"): {"v": LogicalType.parse(expected)}})
    with pytest.raises(MalformedInputError, match="say what the source's column is"):
        value_of(None, text(value), settings=settings)


@pytest.mark.parametrize(
    ("pair", "written"),
    [({"a": "1", "b c": None}, '"a"=>"1", "b c"=>NULL'), ('{"a\\"":"1"}', '"a\\""=>"1"'), ('"a"=>"1"', '"a"=>"1"')],
)
@pytest.mark.parametrize("name", ["hstore", "public.hstore"])
def test_pairs_are_written_as_the_target_reads_them(name: str, pair: Any, written: str) -> None:
    settings = DecodeSettings(declared={TableName("public", "t"): {"v": LogicalType(Kind.OTHER, name=name)}})
    assert value_of(None, text(pair), settings=settings) == written


@pytest.mark.parametrize(
    ("connector", "spelled", "logical"),
    [
        ("mysql", "INT(11)", "integer(32)"),
        ("mysql", "int(10) unsigned", "integer(64)"),
        ("mysql", "bigint(20) UNSIGNED ZEROFILL", "decimal(20,0)"),
        ("mariadb", "DATETIME", "timestamp(0)"),
        ("mysql", "timestamp", "timestamptz(0)"),
        ("mysql", "decimal(10,2) unsigned", "decimal(10,2)"),
        ("mysql", "decimal", "decimal(10,0)"),
        ("mysql", "ENUM('a','b')", "enum('a','b')"),
        ("oracle", "DATE", "timestamp(0)"),
        ("oracle", "NUMBER(10,-2)", "decimal(10,-2)"),
        ("oracle", "NUMBER", "decimal"),
        ("oracle", "VARCHAR2(50 CHAR)", "string"),
        ("oracle", "TIMESTAMP(9) WITH LOCAL TIME ZONE", "timestamptz(9)"),
        ("oracle", "INTERVAL DAY(3) TO SECOND(6)", "interval"),
        ("sqlserver", "datetime2", "timestamp(7)"),
        ("sqlserver", "money", "decimal(19,4)"),
        ("sqlserver", "nvarchar(max)", "string"),
        ("sqlserver", "timestamp", "binary"),
        ("db2", "TIMESTAMP", "timestamp(6)"),
        ("db2", "CHAR(8) FOR BIT DATA", "binary"),
        ("postgresql", "timestamp(3) without time zone", "timestamp(3)"),
        ("postgresql", "numeric(5,-2)", "decimal(5,-2)"),
        ("postgresql", "date[]", "array(date)"),
        ("postgresql", "inet", "other('inet')"),
        ("", "decimal(10,2)", "decimal(10,2)"),
    ],
)
def test_a_type_means_what_it_means_to_its_own_database(connector: str, spelled: str, logical: str) -> None:
    assert str(told_of(spelled, connector, DeclaredModes()).logical) == logical


@pytest.mark.parametrize("name", ["money", "bit"])
def test_a_name_that_each_database_has_for_another_type_is_refused_of_an_event_that_does_not_say_whose_it_is(
    name: str,
) -> None:
    with pytest.raises(ValueError, match="the event does not say its connector; write"):
        told_of(name, "", DeclaredModes())
    check_type(name, DeclaredModes())


def test_a_type_of_ones_own_is_not_taken_for_text() -> None:
    # A domain's values are those of its type, of which base64 says too little.
    with pytest.raises(ValueError, match="of a domain the type that it is of"):
        told_of("public.amount", "postgresql", DeclaredModes())
