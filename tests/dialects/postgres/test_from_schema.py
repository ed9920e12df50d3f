"""Tables that are made from schemas alone, and read again."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from penstock.change import TableName
from penstock.database import SourceTables, UncopiedRows
from penstock.dialects.postgres.blueprint import Blueprint
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.from_schema import blueprint_of
from penstock.dialects.postgres.logical import in_postgres
from penstock.logical import Kind, LogicalType
from penstock.schema import Column, TableSchema
from tests.lab import Lab

CUSTOMER, ORDER, ODD = (TableName("public", name) for name in ("customer", "Order", "odd"))

TABLES = """
CREATE TABLE customer (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name varchar(40) NOT NULL, mail text, born date,
  balance numeric(12,2), tags text[] NOT NULL, data jsonb, raw bytea, seen timestamp(3) with time zone,
  CONSTRAINT one_mail UNIQUE NULLS NOT DISTINCT (mail), UNIQUE (name, born) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "Order" (
  customer bigint, "No." smallint, parent_of bigint, parent_no smallint,
  CONSTRAINT "its key" PRIMARY KEY (customer, "No."),
  CONSTRAINT buyer FOREIGN KEY (customer) REFERENCES customer DEFERRABLE,
  CONSTRAINT part_of FOREIGN KEY (parent_of, parent_no) REFERENCES "Order" MATCH FULL);
"""


def tables(connection: psycopg.Connection, *names: TableName) -> dict[TableName, TableSchema]:
    return read_tables(connection, names)


def make(connection: psycopg.Connection, blueprint: Blueprint) -> None:
    for piece in blueprint.pieces:
        connection.execute(piece.sql)


def test_what_is_made_is_described_as_the_source_is(lab: Lab) -> None:
    lab.source.execute(TABLES)
    described = tables(lab.source, CUSTOMER, ORDER)

    # The child first: foreign keys come when all tables are there.
    blueprint = blueprint_of([described[ORDER], described[CUSTOMER]])
    make(lab.target, blueprint)

    assert tables(lab.target, CUSTOMER, ORDER) == described
    assert (blueprint.types, [note for notes in blueprint.notes.values() for note in notes]) == ([], [])


def test_what_a_schema_cannot_say_is_noted_and_foreign_types_are_asked_for(lab: Lab) -> None:
    lab.source.execute(
        """CREATE TYPE "My ""mood""." AS ENUM ('good'); CREATE DOMAIN feeling AS "My ""mood""." ;
        CREATE DOMAIN price AS numeric(8,2);
        CREATE TABLE odd (id int PRIMARY KEY, mood "My ""mood""."[], price price NOT NULL,
          double int GENERATED ALWAYS AS (id * 2) STORED, feeling feeling, EXCLUDE USING btree (price WITH =));
        CREATE UNIQUE INDEX dear ON odd (id) WHERE price > 0"""
    )
    lab.target.execute("""CREATE TYPE "My ""mood""." AS ENUM ('good')""")
    described = tables(lab.source, ODD)

    blueprint = blueprint_of(described.values())
    make(lab.target, blueprint)

    assert blueprint.types == [(TableName("public", 'My "mood".'), None, None)]
    made = tables(lab.target, ODD)[ODD]
    assert [(c.name, c.type, c.is_nullable) for c in made.columns] == [
        ("id", "integer", False),
        ("mood", 'public."My ""mood""."[]', True),
        ("price", "numeric(8,2)", False),
        ("double", "integer", True),
        ("feeling", 'public."My ""mood""."', True),
    ]
    noted = " ".join(blueprint.notes[ODD])
    for what in ("'double'", "domain public.price", "'dear'", "exclusion constraint"):
        assert what in noted


def test_a_name_that_two_tables_give_their_keys_is_found_anew(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE customer (id int PRIMARY KEY); CREATE TABLE odd (id int PRIMARY KEY)")
    described = tables(lab.source, CUSTOMER, ODD)

    def named(table: TableSchema) -> TableSchema:
        assert table.primary_key is not None
        return replace(table, primary_key=replace(table.primary_key, name="PRIMARY"))

    make(lab.target, blueprint_of(named(table) for table in described.values()))

    made = tables(lab.target, CUSTOMER, ODD)
    assert {table.primary_key and table.primary_key.columns for table in made.values()} == {("id",)}


SPELLED = {
    "boolean": "boolean",
    "integer(8)": "smallint",
    "integer(24)": "integer",
    "integer(64)": "bigint",
    "decimal": "numeric",
    "decimal(10,2)": "numeric(10,2)",
    "float(32)": "real",
    "float(64)": "double precision",
    "string": "text",
    "string(20)": "character varying(20)",
    "string(3,padded)": "character(3)",
    "string(padded)": "bpchar",
    "binary": "bytea",
    "date": "date",
    "time(3)": "time(3) without time zone",
    "timetz": "time with time zone",
    "timestamp(9)": "timestamp without time zone",
    "timestamptz(0)": "timestamp(0) with time zone",
    "interval": "interval",
    "json": "json",
    "uuid": "uuid",
    "xml": "xml",
    "bits(8)": "bit(8)",
    "bits": "bit varying",
    "array(decimal(5,1))": "numeric(5,1)[]",
    "enum('a','b')": "text",
    "other('GEOMETRY')": "text",
}


def test_a_table_of_no_database_is_made_of_logical_types(lab: Lab) -> None:
    columns = tuple(Column.of(name, LogicalType.parse(name), is_nullable=name != "uuid") for name in SPELLED)
    told = TableSchema(ODD, columns)

    blueprint = blueprint_of([told])
    make(lab.target, blueprint)

    made = tables(lab.target, ODD)[ODD]
    assert {column.name: column.type for column in made.columns} == SPELLED
    assert [column.name for column in made.columns if not column.is_nullable] == ["uuid"]
    # What the target says of it is what the table was told to be, in PostgreSQL's words.
    for ours, described in zip(in_postgres(told).columns, made.columns, strict=True):
        for fact in ("cast_type", "staging_type", "from_text"):
            assert ours.native[fact] == described.native[fact], (ours.name, fact)
        for fact in ("type", "base_type", "notation"):
            if described.logical.kind is not Kind.ARRAY or fact != "notation":
                assert getattr(ours, fact) == getattr(described, fact), (ours.name, fact)
    assert [note.partition(" is made with column ")[2].partition(", ")[0] for note in blueprint.notes[ODD]] == [
        "'timestamp(9)' as timestamp without time zone",
        "\"enum('a','b')\" as text: the source has an enum there",
        "\"other('GEOMETRY')\" as text: the source has GEOMETRY there",
    ]


def test_what_postgresql_holds_is_told_to_other_databases(lab: Lab) -> None:
    lab.source.execute(
        """CREATE TYPE mood AS ENUM ('good'); CREATE DOMAIN price AS numeric(8,2); CREATE DOMAIN raw AS bytea;
        CREATE TABLE odd (a mood, b price, c raw, d varchar(3)[], e money, f inet, g timestamptz(3), h char(4))"""
    )

    held = [str(column.logical) for column in tables(lab.source, ODD)[ODD].columns]

    assert held == [
        "other('public.mood')", "decimal(8,2)", "binary", "array(string(3))", "decimal(19,2)", "other('inet')",
        "timestamptz(3)", "string(4,padded)",
    ]  # fmt: skip
    assert tables(lab.source, ODD)[ODD].by_name["b"].is_domain


@pytest.mark.parametrize(
    "type_", ["int); CREATE TABLE public.injected (id int", "int REFERENCES public.customer", "public.mood DEFAULT 'x'"]
)
def test_what_a_schema_calls_a_type_is_no_other_sql(lab: Lab, type_: str) -> None:
    """Whoever writes an archive has no right at the target."""
    lab.source.execute(TABLES)
    described = tables(lab.source, CUSTOMER, ORDER)
    first, *others = described[CUSTOMER].columns
    forged = replace(described[CUSTOMER], columns=(replace(first, type=type_, base_type=type_), *others))

    wanted = SourceTables({CUSTOMER: forged, ORDER: described[ORDER]}, None)
    plan = lab.pipeline()._target.plan(wanted, uncopied_rows=UncopiedRows.REFUSED)

    assert any(
        f"{type_!r} of column 'id' is the name of no type" in str(fault) for fault in plan.table_faults[CUSTOMER]
    )
    assert ORDER not in plan.table_faults
