"""Values of PostgreSQL's types mean in an expression what they mean there, and are written as it writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Context, Decimal

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.change import TableName
from penstock.dialects.postgres.casts import text_sql
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.logical import in_postgres
from penstock.errors import ConfigError, OperatorError
from penstock.rules.stream import StreamRules
from penstock.schema import Column, TableSchema
from tests.hand_made import T, as_batch, insert
from tests.rules.made import as_seen, rule_of
from tests.stories.test_types import MADE, TYPES

NAME = TableName("public", "t")


def columns_of(connection: psycopg.Connection, types: Mapping[str, str]) -> Mapping[str, Column]:
    """Columns of these types, as the catalogue describes them."""
    connection.execute("DROP TABLE IF EXISTS t")
    connection.execute(f"CREATE TABLE t ({', '.join(f'{name} {kind}' for name, kind in types.items())})")
    return read_tables(connection, [NAME])[NAME].by_name


def texts_of(connection: psycopg.Connection, column: Column, values: list[str]) -> list[str]:
    """Canonical text of values that are given as SQL."""
    rows = " UNION ALL ".join(f"SELECT ({value})::{column.type} AS v" for value in values)
    return [row[0] for row in connection.execute(f"SELECT {text_sql(column, 'v')} FROM ({rows}) t").fetchall()]


def computed(column: Column, sql: str, *texts: str) -> list[str | None]:
    """What an expression over `v`, a column like this one, makes of texts; `refused` where it has no value."""
    table = TableSchema(NAME, (Column(**{**vars(column), "name": "v"}),))
    rule = rule_of(table, keep=["v"], add={"made": sql})
    made = []
    for text in texts:
        try:
            made += rule.rows(pa.RecordBatch.from_pylist([{"v": text}]))["made"].to_pylist()
        except OperatorError:
            made.append("refused")
    return made


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(MADE)
        connection.execute("SET intervalstyle = iso_8601; SET timezone = 'UTC'; SET extra_float_digits = 1")
        yield connection


def test_a_value_comes_out_of_an_expression_as_it_went_in_or_is_refused(connection: psycopg.Connection) -> None:
    columns = columns_of(connection, {f"c{n}": kind for n, kind in enumerate(TYPES)})
    changed = {}

    for column, (kind, values) in zip(columns.values(), TYPES.items(), strict=True):
        if kind in ("interval", "timetz"):
            with pytest.raises(ConfigError, match="which no column is made of"):
                computed(column, "v", "x")
            continue
        texts = texts_of(connection, column, values)
        made = computed(column, "v", *texts)
        changed |= {(kind, text): seen for text, seen in zip(texts, made, strict=True) if seen != text}

    long, last = "12345678901234567890.12345678901234567890", "294276-12-31T23:59:59.999999"
    assert changed == {
        # Without a scale, they get one of twelve digits.
        ("numeric", "0"): "0.000000000000",
        ("numeric", "1.0"): "1.000000000000",
        ("numeric", "1.00"): "1.000000000000",
        ("numeric", "-0.000001"): "-0.000001000000",
        # What would not be exact, or does not exist there.
        ("numeric", "1" + "0" * 200): "refused",
        ("numeric", long): "refused",
        ("numeric", "NaN"): "refused",
        ("numeric", "Infinity"): "refused",
        ("timestamp", last): "refused",
        ("timestamptz", f"{last}+00:00"): "refused",
    }


@pytest.mark.parametrize(
    ("kind", "expression", "values"),
    [
        ("integer", "v + 1 > 2 AND v % 2 = 0", ["1", "2", "-4"]),
        ("bigint", "v * 2", ["4000000000", "-1"]),
        ("numeric(10,2)", "v + 0.01", ["0.10", "99999999.99", "-0.01"]),
        ("numeric", "v > 0.1", ["0.1", "0.10000000001", "-5"]),
        ("double precision", "v * 2", ["0.1", "1e300", "1e-7", "123456789012345678", "-0", "'Infinity'", "0.00001"]),
        ("real", "v + v", ["0.1", "1e-7", "12345678", "500000", "'NaN'"]),
        ("char(5)", "v = 'ab'", ["'ab'", "'abc'"]),
        ("text", "upper(v) || '-' || length(v)", ["'äb'", "''", "'x\"y'"]),
        ("text", "v LIKE 'a%' OR v IN ('b', 'c') OR v IS NULL", ["'ab'", "'c'", "'B'", "NULL"]),
        ("boolean", "NOT v", ["true", "false", "NULL"]),
        ("date", "v >= DATE '2024-02-29'", ["'2024-02-29'", "'0044-03-15 BC'", "'-infinity'", "'infinity'"]),
        ("timestamp", "v + INTERVAL '1 day'", ["'2024-02-28 23:59:59.5'", "'0001-12-31 00:00 BC'"]),
        ("timestamptz", "v < TIMESTAMPTZ '2024-01-02 02:00:00+02'", ["'2024-01-01 23:59+00'", "'2024-01-02 00:00+00'"]),
        ("timestamptz", "v AT TIME ZONE 'Europe/Berlin'", ["'2024-07-01 00:00+00'", "'2024-01-01 00:00+00'"]),
        ("timestamptz", "CAST(v AS DATE)", ["'2024-07-01 23:30-02'", "'2024-07-01 20:00+00'", "'2024-07-01 02:00+00'"]),
        ("time", "v > TIME '12:00'", ["'24:00'", "'11:59:59.999999'"]),
        ("interval", "v > INTERVAL '29 days'", ["'1 mon'", "'28 days 23:00'", "'-1 year 14 mons'", "'1.5 hours'"]),
        ("uuid", "v = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", ["'A0EEBC999C0B4EF8BB6D6BB9BD380A11'"]),
        ("jsonb", "v ->> 'a' = 'x'", ['\'{"a": "x"}\'', "'{}'", "'{\"a\": null}'"]),
        ("money", "v > CAST(12 AS numeric)::money", ["12.5"]),
        ("positive", "v BETWEEN 1 AND 7", ["7", "8"]),
        ("mood", "v = 'sad'", ["'sad'", "'o k'"]),
        ("oid", "v > 5", ["4294967295"]),
    ],
)
def test_an_expression_says_what_the_database_would(
    connection: psycopg.Connection, kind: str, expression: str, values: list[str]
) -> None:
    (column,) = columns_of(connection, {"v": kind}).values()
    ours = "v > 12" if kind == "money" else expression
    rows = " UNION ALL ".join(f"SELECT ({value})::{kind} AS v" for value in values)
    connection.execute(f"CREATE TABLE made AS SELECT v, {expression} AS x FROM ({rows}) t")
    found = read_tables(connection, [TableName("public", "made")])[TableName("public", "made")].by_name
    query = f"SELECT {text_sql(found['v'], 'v')}, {text_sql(found['x'], 'x')} FROM made"
    texts, expected = zip(*connection.execute(query).fetchall(), strict=True)

    assert computed(column, ours, *texts) == list(expected)


def test_bytes_are_bytes() -> None:
    column = Column("v", "bytea", "bytea")
    assert computed(column, "octet_length(v)", "", "AP8Q") == ["0", "3"]
    assert computed(column, "v = '\\x00\\xFF\\x10'::BLOB", "AP8Q", "") == ["true", "false"]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("1", "integer"),
        ("CAST(1 AS BIGINT)", "bigint"),
        ("1.50", "numeric(3,2)"),
        ("CAST(1 AS HUGEINT)", "numeric"),
        ("CAST(1 AS FLOAT)", "real"),
        ("1 / 2", "double precision"),
        ("1 = 1", "boolean"),
        ("'x'", "text"),
        ("DATE '2024-01-02'", "date"),
        ("TIME '01:02:03'", "time without time zone"),
        ("TIMESTAMP '2024-01-02 03:04:05'", "timestamp without time zone"),
        ("TIMESTAMPTZ '2024-01-02 03:04:05+02'", "timestamp with time zone"),
        ("CAST('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' AS UUID)", "uuid"),
        ("CAST('[1]' AS JSON)", "json"),
        ("encode('x')", "bytea"),
    ],
)
def test_a_further_column_is_what_the_catalogue_would_say(connection: psycopg.Connection, sql: str, kind: str) -> None:
    table = TableSchema(NAME, (Column("v", "integer", "integer"),))
    made = in_postgres(rule_of(table, add={"made": sql}).table).by_name["made"]
    described = columns_of(connection, {"made": kind})["made"]

    assert made.type == kind
    for name in ("type", "base_type", "is_comparable", "is_exact", "is_key_usable", "is_integer", "is_decimal"):
        assert getattr(made, name) == getattr(described, name), name
    assert made.notation == described.notation
    for name in ("from_text", "staging_type", "cast_type"):
        assert made.native[name] == described.native[name], name


NUMBERS = st.integers(1, 38).flatmap(
    lambda precision: st.tuples(
        st.just(precision),
        st.integers(0, precision),
        st.lists(st.integers(-(10**precision) + 1, 10**precision - 1), min_size=1, max_size=5),
    )
)


def stored(connection: psycopg.Connection, column: Column, texts: Iterable[str | None]) -> list[str | None]:
    """What the target holds, as canonical text, once texts were written to a column like this one."""
    (like,) = in_postgres(TableSchema(NAME, (column,))).columns
    made = columns_of(connection, {"made": like.type})["made"]
    query = f"SELECT {text_sql(made, 'v')} FROM (SELECT (%s)::{made.type} AS v) t"
    return [None if text is None else connection.execute(query, [text]).fetchone()[0] for text in texts]  # type: ignore[index]


def read_back(connection: psycopg.Connection, column: Column, sql: str, texts: list[str]) -> None:
    """Make sure that what an expression makes of texts is what the target says of it: then `verify` says the truth."""
    table = TableSchema(NAME, (Column(**{**vars(column), "name": "v"}),))
    rule = rule_of(table, keep=["v"], add={"made": sql})
    rows, _ = rule.told_rows(pa.RecordBatch.from_pylist([{"v": text} for text in texts]))
    # A change goes another way than a row of the first copy.
    batch = as_batch([T(1, *(insert("t", v=text) for text in texts))])
    changes = as_seen(StreamRules({(NAME, rule.source.version): rule}).apply([batch]))
    made = rows["made"].to_pylist()

    assert [after["made"] for op, _, after in changes if op == "insert"] == made
    assert stored(connection, rule.table.by_name["made"], made) == made


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=NUMBERS)
def test_any_decimal_is_written_as_the_database_writes_it(
    connection: psycopg.Connection, numbers: tuple[int, int, list[int]]
) -> None:
    precision, scale, digits = numbers
    column = columns_of(connection, {"v": f"numeric({precision},{scale})"})["v"]
    texts = [format(Decimal(number).scaleb(-scale, Context(prec=60)), "f") for number in digits]

    assert computed(column, "v", *texts) == texts
    if precision < 38 or scale < precision:
        assert computed(column, "CAST(v AS VARCHAR)", *texts) == texts
    for sql in ("v", "-v", "v + 1", "v * 2", "CAST(v AS DOUBLE)", "CAST(v AS VARCHAR)", "v % 3"):
        read_back(connection, column, sql, texts)


VALUES = {
    "date": ("v", "v + 1", "CAST(v AS TIMESTAMP)", "v - INTERVAL 1 month"),
    "timestamp": ("v", "CAST(v AS DATE)", "v + INTERVAL 1 day", "CAST(v AS TIME)", "date_trunc('month', v)"),
    "timestamptz": ("v", "v AT TIME ZONE 'UTC'", "v - INTERVAL 1 hour"),
    "double precision": ("v", "v / 3", "-v", "CAST(v AS FLOAT)"),
    "real": ("v", "v * 7", "CAST(v AS DOUBLE)"),
    "bigint": ("v", "v / 7", "v % 7", "CAST(v AS HUGEINT) * 10", "CAST(v AS VARCHAR)"),
    "smallint": ("v", "v * 3", "CAST(v AS BOOLEAN)"),
    "time": ("v",),
}


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(sorted(VALUES)), data=st.data())
def test_any_value_that_an_expression_makes_is_the_same_at_the_target(
    connection: psycopg.Connection, kind: str, data: st.DataObject
) -> None:
    column = columns_of(connection, {"v": kind})["v"]
    drawn = {
        "date": st.integers(-2_440_588, 2_145_031_948).map(lambda n: f"DATE '1970-01-01' + ({n})"),
        "timestamp": st.integers(-210_860_000_000_000_000, 9_000_000_000_000_000_000).map(
            lambda n: (
                f"TIMESTAMP '1970-01-01' + make_interval(secs => {n // 1_000_000})"
                f" + ({n % 1_000_000}) * interval '1 us'"
            )
        ),
        "double precision": st.floats(width=64).map(lambda x: f"'{x}'"),
        "real": st.floats(width=32).map(lambda x: f"'{x}'"),
        "bigint": st.integers(-(2**63), 2**63 - 1).map(lambda n: f"'{n}'"),
        "smallint": st.integers(-(2**15), 2**15 - 1).map(lambda n: f"'{n}'"),
        "time": st.integers(0, 86_400_000_000).map(lambda n: f"'00:00'::time + ({n}) * interval '1 us'"),
    }
    drawn["timestamptz"] = drawn["timestamp"].map(lambda sql: f"({sql}) AT TIME ZONE 'UTC'")
    values = data.draw(st.lists(drawn[kind], min_size=1, max_size=4))

    texts = texts_of(connection, column, values)

    for sql in VALUES[kind]:
        read_back(connection, column, sql, texts)
