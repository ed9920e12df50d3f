"""Tables that are made from schemas alone, and read again."""

from __future__ import annotations

from dataclasses import replace

import psycopg

from penstock.change import TableName
from penstock.dialects.postgres.blueprint import Blueprint
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.from_schema import blueprint_of
from penstock.schema import TableSchema
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
