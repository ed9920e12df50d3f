"""What was read of the catalogue is read again once anything was altered, and not before."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from penstock.change import TableName
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.catalog_cache import CatalogCache, catalog_fingerprint
from penstock.dialects.postgres.connection import connect
from penstock.dialects.postgres.connector import PostgresConnector
from penstock.schema import TableSchema

T, U = TableName("public", "t"), TableName("public", "u")

MADE = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE address AS (street text);
CREATE DOMAIN small AS int;
CREATE SEQUENCE s;
CREATE TABLE t (id int PRIMARY KEY, m mood, a address, n small, note text, d date DEFAULT now());
CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t);
CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE FUNCTION number_of(mood) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
INSERT INTO t (id) SELECT generate_series(1, 100);
"""

ALTERED = [
    "ALTER TABLE t ADD COLUMN more int",
    "ALTER TABLE t DROP COLUMN note",
    "ALTER TABLE t RENAME COLUMN note TO remark",
    "ALTER TABLE t ALTER note TYPE varchar(20)",
    "ALTER TABLE u ALTER t SET NOT NULL",
    "ALTER TABLE t ALTER d DROP DEFAULT",
    "ALTER TABLE t RENAME TO renamed",
    "DROP TABLE u",
    "CREATE TABLE w (id int)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (id > 0)",
    "ALTER TABLE u ALTER CONSTRAINT u_t_fkey DEFERRABLE",
    "CREATE UNIQUE INDEX i ON t (note)",
    "ALTER INDEX t_pkey RENAME TO k",
    "ALTER TYPE mood ADD VALUE 'odd'",
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
    "ALTER TYPE address ADD ATTRIBUTE town text",
    "ALTER DOMAIN small ADD CHECK (VALUE < 7)",
    "ALTER SEQUENCE s INCREMENT 5",
    "CREATE TRIGGER r BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
    "ALTER TABLE t DISABLE TRIGGER ALL",
    "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY mine ON t USING (id > 0)",
    "CREATE STATISTICS st ON id, note FROM t",
    "GRANT SELECT ON t TO PUBLIC",
    "CREATE VIEW v AS SELECT * FROM t",
    "CREATE CAST (mood AS int) WITH FUNCTION number_of(mood)",
    "COMMENT ON TABLE t IS 'x'",
]


@pytest.mark.parametrize("statement", ALTERED)
def test_what_was_altered_is_seen(database: str, statement: str) -> None:
    with connect(database, "test") as connection, psycopg.connect(database, autocommit=True) as other:
        other.execute(MADE)
        before = catalog_fingerprint(connection)

        other.execute(statement)

        assert catalog_fingerprint(connection) != before


def test_rows_and_statistics_alter_nothing(database: str) -> None:
    with connect(database, "test") as connection, psycopg.connect(database, autocommit=True) as other:
        other.execute(MADE)
        other.execute("ANALYZE t")
        before = catalog_fingerprint(connection)

        other.execute("DELETE FROM t WHERE id > 3; INSERT INTO u VALUES (1, 1)")
        other.execute("SELECT nextval('s')")
        other.execute("VACUUM (FREEZE, ANALYZE) t")
        other.execute("ANALYZE")

        assert catalog_fingerprint(connection) == before


def test_tables_are_read_once_until_one_is_altered(database: str) -> None:
    asked: list[Sequence[TableName]] = []
    cache: CatalogCache[TableName, TableSchema] = CatalogCache()
    with connect(database, "test") as connection, psycopg.connect(database, autocommit=True) as other:
        other.execute(MADE)

        def read(names: Sequence[TableName]) -> dict[TableName, TableSchema]:
            asked.append(names)
            return read_tables(connection, names)

        gone = TableName("public", "gone")
        assert set(cache.read(connection, [T, gone], read)) == {T}
        assert set(cache.read(connection, [T, U, gone], read)) == {T, U}
        assert asked == [[T, gone], [U]]

        other.execute("CREATE TABLE gone (id int)")

        assert set(cache.read(connection, [gone, T], read)) == {gone, T}
        assert asked[2:] == [[gone, T]]


def test_a_side_describes_a_table_as_it_is_now(database: str) -> None:
    side = PostgresConnector(database, "test")
    with psycopg.connect(database, autocommit=True) as other:
        other.execute(MADE)
        before = side.describe([T])[T]

        other.execute("ALTER TABLE t ADD COLUMN more int")

        assert [c.name for c in side.describe([T])[T].columns] == [*(c.name for c in before.columns), "more"]
