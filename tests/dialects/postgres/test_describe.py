"""What the catalogue query says of columns and keys: text that nobody else's function has a hand in."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock.change import TableName
from penstock.dialects.postgres.casts import refers_sql, text_sql
from penstock.dialects.postgres.catalog import read_tables, table_oids
from penstock.dialects.postgres.resources import sql_text
from penstock.schema import TableSchema

MADE = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE address AS (street text);
CREATE DOMAIN feeling AS mood;
CREATE TYPE span AS RANGE (SUBTYPE = text);
CREATE FUNCTION lie(mood) RETURNS text LANGUAGE sql AS 'SELECT ''lie''::text';
CREATE FUNCTION lie(address) RETURNS text LANGUAGE sql AS 'SELECT ''lie''::text';
CREATE FUNCTION lie(address[]) RETURNS text LANGUAGE sql AS 'SELECT ''lie''::text';
CREATE FUNCTION lie(span) RETURNS text LANGUAGE sql AS 'SELECT ''lie''::text';
CREATE CAST (mood AS text) WITH FUNCTION lie(mood) AS IMPLICIT;
CREATE CAST (address AS text) WITH FUNCTION lie(address) AS IMPLICIT;
CREATE CAST (address[] AS text) WITH FUNCTION lie(address[]) AS IMPLICIT;
CREATE CAST (span AS text) WITH FUNCTION lie(span) AS IMPLICIT;
"""

# A type that may gain attributes of any type.
ALL_SETTINGS = [
    "bytea_output",
    "datestyle",
    "extra_float_digits",
    "intervalstyle",
    "lc_monetary",
    "quote_all_identifiers",
    "search_path",
    "timezone",
]

# type, a value, its canonical text, whether equal values have equal text, the settings that its text depends on
COLUMNS = [
    ("mood", "'glad'", "glad", True, []),
    ("feeling", "'glad'", "glad", True, []),
    ("mood[]", "'{glad}'", "{glad}", True, []),
    ("address", "ROW(NULL)", "()", False, ALL_SETTINGS),
    ("address", "NULL", None, False, ALL_SETTINGS),
    ("address[]", "ARRAY[ROW('x')::address]", "{(x)}", False, ALL_SETTINGS),
    ("span", "'[a,b)'", "[a,b)", False, []),
    ("bpchar", "'ab  '", "ab  ", False, []),
    ("bpchar", "NULL", None, False, []),
    ("char(4)", "'ab'", "ab", True, []),
    ("timetz", "'24:00-15:59:59'", "24:00:00.000000-15:59:59", True, []),
    ("timetz", "NULL", None, True, []),
    ("money", "'12.34'", "12.34", True, []),
    ("money", "'-92233720368547758.08'", "-92233720368547758.08", True, []),
    ("numeric", "1.0", "1.0", False, []),
    ("numeric(5,2)", "1", "1.00", True, []),
    ("int4range", "'[1,3)'", "[1,3)", True, []),
    ("numrange", "'[1.0,3)'", "[1.0,3)", False, []),
    ("tsquery", "'foo:A'", "'foo':A", False, []),
    ("point", "'(0.1,0.3)'", "(0.1,0.3)", False, ["extra_float_digits"]),
    ("box[]", "'{(1,1),(0.1,0.3)}'", "{(1,1),(0.1,0.3)}", False, ["extra_float_digits"]),
    ("regclass", "'pg_class'", "pg_class", False, ["quote_all_identifiers", "search_path"]),
    ("bytea[]", "'{abc}'", '{"\\\\x616263"}', True, ["bytea_output"]),
]


def table_oid(connection: psycopg.Connection[tuple[Any, ...]], table: str) -> int:
    name = TableName("public", table)
    return table_oids(connection, [name])[name]


def described(connection: psycopg.Connection[tuple[Any, ...]], table: str) -> TableSchema:
    name = TableName("public", table)
    return read_tables(connection, [name])[name]


def test_text_is_what_the_type_itself_writes(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(MADE)
        names = [f"c{n}" for n in range(len(COLUMNS))]
        columns = ", ".join(f"{name} {row[0]}" for name, row in zip(names, COLUMNS, strict=True))
        connection.execute(f"CREATE TABLE t ({columns}); INSERT INTO t VALUES ({', '.join(row[1] for row in COLUMNS)})")
        table = described(connection, "t")
        texts = ", ".join(text_sql(column, f"t.{column.name}") for column in table.columns)
        found = connection.execute(f"SELECT {texts} FROM t").fetchone()
        definition = (
            psycopg.RawCursor(connection)
            .execute(
                f"SELECT definition -> 'columns' FROM ({sql_text('describe')}) d", [[table_oid(connection, "t")], True]
            )
            .fetchone()
        )
    assert definition is not None
    assert [(row[0], c["settings"]) for row, c in zip(COLUMNS, definition[0], strict=True)] == [
        (row[0], row[4]) for row in COLUMNS
    ]
    assert found == tuple(row[2] for row in COLUMNS)
    assert [(row[0], column.is_exact) for row, column in zip(COLUMNS, table.columns, strict=True)] == [
        (row[0], row[3]) for row in COLUMNS
    ]


@pytest.mark.parametrize("kind", ["season", "varchar(5)", "numeric", "int"])
def test_keys_name_their_operators(database: str, kind: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"{MADE}; CREATE TYPE season AS ENUM ('spring')")
        connection.execute(f"CREATE TABLE p (a {kind}, b int, PRIMARY KEY (a, b))")
        connection.execute(f"CREATE TABLE c (x {kind} UNIQUE, y int, FOREIGN KEY (x, y) REFERENCES p)")
        child, parent = described(connection, "c"), described(connection, "p")
    equals = "OPERATOR(pg_catalog.=)"
    assert parent.primary_key is not None
    assert parent.primary_key.equals == {"a": equals, "b": equals}
    assert child.uniques[0].equals == {"x": equals}
    assert refers_sql(child.foreign_keys[0], "ab", "xy") == f"a {equals} x AND b {equals} y"
    assert parent.referenced_by == child.foreign_keys


def test_keys_name_a_function_where_a_cast_leaves_the_operator_open(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(MADE)
        connection.execute("CREATE TABLE p (a mood, b int, PRIMARY KEY (b, a)); CREATE TABLE d (a feeling UNIQUE)")
        connection.execute("CREATE TABLE c (x mood, y int, FOREIGN KEY (x, y) REFERENCES p (a, b))")
        child, parent, domain = (described(connection, name) for name in "cpd")
    equals = "pg_catalog.enum_eq ::public.mood"
    assert parent.primary_key is not None
    assert parent.primary_key.equals == {"b": "OPERATOR(pg_catalog.=)", "a": equals}
    assert domain.uniques[0].equals == {"a": equals}
    assert refers_sql(child.foreign_keys[0], "ab", "xy") == (
        "pg_catalog.enum_eq(a::public.mood, x::public.mood) AND b OPERATOR(pg_catalog.=) y"
    )
    assert parent.referenced_by == child.foreign_keys


def rows_handled(connection: psycopg.Connection[tuple[Any, ...]], tables: int) -> float:
    """How many rows all steps of a description of so many tables handle; each refers to the one before it."""
    connection.execute("DROP SCHEMA IF EXISTS many CASCADE")
    connection.execute("CREATE SCHEMA many")
    for n in range(tables):
        connection.execute(
            f"CREATE TABLE many.t{n} (id int PRIMARY KEY, a int REFERENCES many.t{max(n - 1, 0)}, m mood, b text,"
            " UNIQUE (a, b), CHECK (a > 0))"
        )
        connection.execute(f"CREATE TYPE many.e{n} AS ENUM ('x'); ALTER TABLE many.t{n} ADD COLUMN e many.e{n}")
    connection.execute("ANALYZE")
    oids = [
        row[0] for row in connection.execute("SELECT oid FROM pg_class WHERE relkind = 'r' AND relname ~ '^t[0-9]'")
    ]
    query = "EXPLAIN (ANALYZE, FORMAT JSON) " + sql_text("describe")
    row = psycopg.RawCursor(connection).execute(query, [oids, True]).fetchone()
    assert row is not None

    def count(node: dict[str, Any]) -> float:
        own = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
        return float(own * node["Actual Loops"] + sum(map(count, node.get("Plans", []))))

    return count(row[0][0]["Plan"])


def test_the_work_of_a_description_grows_with_its_tables_and_not_with_their_square(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(MADE)
        few, many = rows_handled(connection, 20), rows_handled(connection, 80)

    # Four times the tables. Some steps read a catalogue whole, whatever is asked for.
    assert many < 5 * few


def test_nobody_waits_for_a_partition_that_is_being_rewritten(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection, psycopg.connect(database) as holder:
        connection.execute(
            "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
            "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';"
            "CREATE TRIGGER own AFTER INSERT ON p1 FOR EACH ROW EXECUTE FUNCTION f();"
            "ALTER TABLE p1 ENABLE ALWAYS TRIGGER own"
        )
        holder.execute("LOCK TABLE ONLY p1 IN ACCESS EXCLUSIVE MODE")
        connection.execute("SET lock_timeout = '2s'")
        assert described(connection, "p").fires_triggers
