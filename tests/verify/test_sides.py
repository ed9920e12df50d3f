"""A target compared with a source that is no database: only canonical text and digests of it are the same on both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.demo.servers import EmbeddedPostgres
from penstock.dialects.postgres.catalog import read_tables
from penstock.dialects.postgres.target.compared import PostgresComparedTarget
from penstock.logical import LogicalType
from penstock.position import Scn
from penstock.schema import Column, TableSchema, Unique
from penstock.snapshot.chunk import Chunk, Range
from penstock.snapshot.rows import digest_of
from penstock.verify.driver import CompareContext, LocalJobs, VerifyListener, VerifyResult, verify
from penstock.verify.task import Comparer
from tests.lab import Lab, table
from tests.verify.plain_rows import PlainSource, Row
from tests.verify.test_compare import Nobody

SQL = """
CREATE TABLE t (id int PRIMARY KEY, v varchar(30), raw bytea, price numeric(8,2), seen timestamptz);
CREATE TABLE k (a text, b boolean);
"""
KEY = Unique("t_pkey", ("id",), ("id",))
TYPES = {"id": "integer(32)", "v": "string(30)", "raw": "binary", "price": "decimal(8,2)", "seen": "timestamptz"}
T = TableSchema(table("t"), tuple(Column.of(name, LogicalType.parse(kind)) for name, kind in TYPES.items()), KEY)
K = TableSchema(table("k"), (Column.of("a", LogicalType.parse("string")), Column.of("b", LogicalType.parse("boolean"))))
ODD = ["", " ", 'a "quoted" (text)', "back\\slash", "comma,", "line\nbreak", "Grüße \u00a0 \U0001f600"]

T_ROWS: list[Row] = [
    {
        "id": str(n),
        "v": ODD[n % len(ODD)] if n % 3 else None,
        "raw": "AP8Q",
        "price": f"{n}.50",
        "seen": "2024-01-02T03:04:05.600000+00:00",
    }
    for n in range(1, 41)
]
K_ROWS: list[Row] = [{"a": ODD[n % len(ODD)], "b": "true" if n % 2 else None} for n in range(30)]


def compare(lab: Lab, *, repair: bool = False) -> VerifyResult:
    target = read_tables(lab.target, [T.name, K.name])
    comparer = Comparer(PlainSource({T.name: T_ROWS, K.name: K_ROWS}), PostgresComparedTarget(lab.target_url, lab.name))
    listener: VerifyListener = Nobody()
    return verify(
        # By numbers these ranges would hold other rows than by text.
        [*Chunk.between(T.name, [["2"], ["33"]]), *Chunk.between(K.name, [])],
        LocalJobs(CompareContext(comparer, {of.name: Range(of, target[of.name], Chunk(of.name, 0)) for of in (T, K)})),
        listener,
        consistency_point=lambda: Scn(0),
        tick=lambda: Scn(0),
        is_running=lambda: False,
        repair=repair,
    )


def fill(connection: psycopg.Connection, name: str, rows: Sequence[Row]) -> None:
    for row in rows:
        values = ["decode(%s, 'base64')" if column == "raw" else "%s" for column in row]
        connection.execute(f"INSERT INTO {name} VALUES ({', '.join(values)})", list(row.values()))


def test_rows_that_are_the_same_are_so_by_their_text(lab: Lab) -> None:
    lab.setup(SQL)
    fill(lab.target, "t", T_ROWS)
    fill(lab.target, "k", K_ROWS)

    result = compare(lab)

    assert result.is_identical
    assert {found.table.name: found.rows for found in result.tables} == {"t": 40, "k": 30}


def test_what_differs_is_named_and_brought(lab: Lab) -> None:
    lab.setup(SQL)
    fill(lab.target, "t", T_ROWS[:-1])
    fill(lab.target, "k", [*K_ROWS[1:], K_ROWS[3]])
    lab.target.execute("UPDATE t SET price = price + 1 WHERE id = 4; INSERT INTO t (id) VALUES (50)")

    by_table = {found.table.name: found for found in compare(lab).tables}

    named = sorted((found.kind, found.key["id"]) for found in by_table["t"].differences)
    assert named == [("different", "4"), ("extra", "50"), ("missing", "40")]
    assert Counter(found.kind for found in by_table["k"].differences) == {"missing": 1, "extra": 1}

    repaired = compare(lab, repair=True)

    assert repaired.is_identical
    assert {found.table.name: found.repaired for found in repaired.tables} == {"t": 3, "k": 2}
    assert lab.target.execute("SELECT price::text FROM t WHERE id IN (4, 40, 50) ORDER BY id").fetchall() == [
        ("4.50",),
        ("40.50",),
    ]


TEXTS = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.sampled_from(ODD)


ROWS = st.lists(st.lists(TEXTS, min_size=3, max_size=3), min_size=1, max_size=20)


@given(ROWS)
@settings(max_examples=40, deadline=None)
def test_postgresql_digests_as_the_definition_says(
    source_server: EmbeddedPostgres, rows: list[list[str | None]]
) -> None:
    with psycopg.connect(source_server.url()) as connection:
        for row in rows:
            made = connection.execute(
                "SELECT md5(convert_to(ROW(%s::text, %s::text, %s::text)::text, 'UTF8'))", row
            ).fetchone()
            assert made == (digest_of(row),)
