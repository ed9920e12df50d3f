"""Many rows at once are compared, written and looked for as one by one, whatever they and their columns are like."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import psycopg
import pytest

from penstock.apply.target import ComparedRow, RowMatch, TargetTable
from penstock.change import Image, TableName
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.target.session import PostgresSession
from tests.program import await_true

TABLES = r"""
CREATE TYPE mood AS ENUM ('sad', 'hap''py "%s"');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN above_0 AS int CHECK (VALUE > 0);
CREATE TABLE numbers (k numeric PRIMARY KEY, v numeric, f float8, r real);
CREATE TABLE moods (k mood PRIMARY KEY, v mood[], p pair);
CREATE TABLE "w" ("number" int, c1 text, "we%ird ""col" text, "t" timestamptz, "W" bytea, PRIMARY KEY ("number", c1));
CREATE TABLE many (
  k above_0 PRIMARY KEY, j jsonb, s json, iv interval, b bit(3), vb varbit, c char(5), ts timestamp, d date, u uuid,
  bo bool, i inet, ra int4range, m money);
CREATE TABLE parted (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (100);
CREATE TABLE note (id int PRIMARY KEY, of numeric REFERENCES numbers);
"""

ROWS: dict[str, Sequence[Sequence[str | None]]] = {
    "numbers": [("1.0", "1.50", "NaN", "Infinity"), ("2", "NaN", "0.1", "1e-7"), ("NaN", None, None, None)],
    "moods": [("sad", r'{sad,"hap\'py \"%s\""}'.replace(r"\'", "'"), '(1,"x ""y")'), ('hap\'py "%s"', None, "(,)")],
    "w": [("1", "a", r"%s %% \ '", "2020-01-01 00:00:00+00", r"\x00ff"), ("2", "", None, "infinity", None)],
    "many": [
        (
            *("1", '{"a": 1}', '{"a":1}', "1 mon 2 days", "101", "1", "ab", "2020-01-01", "0044-03-15 BC"),
            *("00000000-0000-0000-0000-000000000001", "t", "10.0.0.0/8", "[1,5)", "1.00"),
        ),
        ("2", *[None] * 13),
    ],
    "parted": [("1", "a"), ("11", None)],
}


@pytest.fixture
def session(database: str) -> Iterator[PostgresSession]:
    with psycopg.connect(database) as connection:
        connection.execute(TABLES)
        for name, rows in ROWS.items():
            for row in rows:
                connection.execute(f'INSERT INTO "{name}" VALUES ({", ".join(["%s"] * len(row))})', row)
    made = PostgresSession(database, "test", None)
    yield made
    made.close()


def described(session: PostgresSession, name: str) -> TargetTable:
    (schema,) = read_tables(session.connection, [TableName("public", name)]).values()
    return TargetTable(schema)


def stored(session: PostgresSession, table: TargetTable) -> list[tuple[RowMatch, Image]]:
    """The key and the values of each row, as text that the database has written."""
    found = []
    for row in ROWS[table.name.name]:
        given = dict(zip(table.schema.column_names, row, strict=True))
        (image,) = session.lock_rows(table, RowMatch({name: given[name] for name in table.key.columns}, {}))
        found.append((RowMatch({name: image[name] for name in table.key.columns}, {}), image))
    return found


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_compared_and_written_as_one_by_one(session: PostgresSession, name: str) -> None:
    table = described(session, name)
    others = [column for column in table.schema.column_names if column not in table.key.columns]
    with session.transaction():
        rows = stored(session, table)
        expected: list[Image] = [*(image for _, image in rows), dict.fromkeys(others)]
        asked = [(table, RowMatch(key.key, {n: one[n] for n in others})) for key, _ in rows for one in expected]

        found = session.compare_many(asked)

        assert found == [session.compare_rows(*one) for one in asked]
        assert [not row[0][1] for row in found].count(True) >= len(rows)

    # Each row gets what the next one has.
    wanted = [(key, {n: rows[at - 1][1][n] for n in others}) for at, (key, _) in enumerate(rows)]
    with session.transaction():
        assert session.update_many([(table, key, values) for key, values in wanted]) == len(rows)
        assert [session.lock_rows(table, key) for key, _ in wanted] == [[{**key.key, **v}] for key, v in wanted]


def test_a_row_that_another_session_has_changed_is_compared_as_it_is_then(
    session: PostgresSession, database: str
) -> None:
    table = described(session, "parted")
    asked = [(table, RowMatch({"k": "1"}, {"v": "a"})), (table, RowMatch({"k": "11"}, {"v": None}))]
    for statement, expected in (
        ("UPDATE parted SET v = 'b' WHERE k = 1", [[({"k": "1", "v": "b"}, ["v"])], [({"k": "11", "v": None}, [])]]),
        ("DELETE FROM parted WHERE k = 1", [[], [({"k": "11", "v": None}, [])]]),
    ):
        found: list[list[ComparedRow]] = []

        def look() -> None:
            with session.transaction():
                found.extend(session.compare_many(asked))  # noqa: B023  # joined below

        with psycopg.connect(database) as other:
            other.execute(statement)
            looking = threading.Thread(target=look)
            looking.start()
            await_true(lambda: is_waiting(other), 30)  # called at once
        looking.join()
        assert found == expected


def is_waiting(connection: psycopg.Connection) -> bool:
    return connection.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)").fetchone() == (True,)


def test_parents_are_found_of_those_that_have_one(session: PostgresSession) -> None:
    (foreign_key,) = described(session, "note").schema.foreign_keys
    with session.transaction():
        assert session.find_parents(foreign_key, [["1.00"], ["3"], ["NaN"], ["1"]]) == [True, False, True, True]
