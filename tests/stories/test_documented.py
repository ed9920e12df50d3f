"""What ITEMS shows of the documented test cases, and what readers do with it: they delete what they have sent."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.lab import Lab

SCHEMA = """
CREATE TABLE t (id int PRIMARY KEY, name varchar(40), amount numeric(12,3), ts timestamp, flag boolean, photo bytea);
CREATE TABLE nopk (a int, b text);
CREATE SCHEMA s2;
CREATE TABLE s2.t (id int PRIMARY KEY, name text);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, pid int REFERENCES parent ON DELETE CASCADE);
CREATE TABLE "Mixed Case" ("Id" int PRIMARY KEY, "a""b" text);
CREATE TABLE other (id int PRIMARY KEY, pad char(5), ip inet, net cidr, tz timestamptz, t time, tt timetz, d date);
CREATE TYPE mood AS ENUM ('a<b', 'ok');
CREATE DOMAIN code AS char(3);
CREATE TABLE odd (id int PRIMARY KEY, m mood, a timestamp[], c code, j jsonb, g int GENERATED ALWAYS AS (id * 2) STORED,
  r int4range, iv interval, mo money, f float8, bi bit(3), o tstzrange);
INSERT INTO t VALUES (1, 'first', 44.500, '2024-01-02 03:04:05.678', true, '\\x00ff10');
INSERT INTO t (id, name) VALUES (2, 'n');
INSERT INTO parent VALUES (1);
INSERT INTO child VALUES (10, 1);
INSERT INTO nopk VALUES (1, NULL), (1, NULL);
"""


COLUMNS = [
    "repl_key",
    "trans_key",
    "dbid",
    "tablename",
    "guid",
    "db_action",
    "db_catalog",
    "db_schema",
    "content",
    "oldcontent",
    "version",
]


def col(name: str, value: str | None) -> str:
    return f'<col name="{name}" type="null"/>' if value is None else f'<col name="{name}">{value}</col>'


def b64(name: str, value: bytes) -> str:
    return f'<col name="{name}" encoding="base64">{base64.b64encode(value).decode()}</col>'


def row(id_: int, name: str | None, amount: str | None = None, rest: bool = False) -> str:
    """The image of a row of `t`; with `rest` that of the first row, otherwise the rest is NULL."""
    image = col("id", str(id_)) + col("name", name) + col("amount", amount)
    if rest:
        return image + col("ts", "2024-01-02 03:04:05.678") + col("flag", "true") + b64("photo", b"\x00\xff\x10")
    return image + col("ts", None) + col("flag", None) + col("photo", None)


# Number and name of a documented case: (transactions, rows of ITEMS as action, table, CONTENT, OLDCONTENT).
CASES: dict[str, tuple[list[str], list[tuple[str, str, str | None, str | None]]]] = {
    "1 every type": (
        ["DELETE FROM t", "INSERT INTO t VALUES (1, 'first', 44.500, '2024-01-02 03:04:05.678', true, '\\x00ff10')"],
        [
            ("DELETE", "public.t", None, row(1, "first", "44.500", rest=True)),
            ("DELETE", "public.t", None, row(2, "n")),
            ("INSERT", "public.t", row(1, "first", "44.500", rest=True), None),
        ],
    ),
    "2 an insert leaves NULL out": (
        ["INSERT INTO t (id, name) VALUES (3, 'n')"],
        [("INSERT", "public.t", col("id", "3") + col("name", "n"), None)],
    ),
    "3 an empty text is not NULL": (
        ["INSERT INTO t (id, name) VALUES (3, '')"],
        [("INSERT", "public.t", col("id", "3") + '<col name="name"></col>', None)],
    ),
    "4 markup": (
        ["INSERT INTO t (id, name) VALUES (3, 'a<b & c')"],
        [("INSERT", "public.t", col("id", "3") + col("name", "<![CDATA[a<b & c]]>"), None)],
    ),
    "5 the end of CDATA, and a backslash": (
        ["INSERT INTO t (id, name) VALUES (3, 'x]]>y\\z')"],
        [("INSERT", "public.t", col("id", "3") + '<col name="name" encoding="base64">eF1dPnlceg==</col>', None)],
    ),
    "6 control characters": (
        ["INSERT INTO t (id, name) VALUES (3, E'tab\\there\\rcr\\x01end')"],
        [
            (
                "INSERT",
                "public.t",
                col("id", "3") + '<col name="name" encoding="base64">dGFiCWhlcmUNY3IBZW5k</col>',
                None,
            )
        ],
    ),
    "6b TAB and LF alone": (
        ["INSERT INTO t (id, name) VALUES (3, E'a\\tb\\nc')"],
        [("INSERT", "public.t", col("id", "3") + col("name", "a\tb\nc"), None)],
    ),
    "7 blanks, quotes and letters of any kind": (
        ["INSERT INTO t (id, name) VALUES (3, '  \"q\" ''s'' äß€😀  ')"],
        [("INSERT", "public.t", col("id", "3") + col("name", "  \"q\" 's' äß€😀  "), None)],
    ),
    "8 an update has both rows whole": (
        ["UPDATE t SET amount = 33 WHERE id = 1"],
        [("UPDATE", "public.t", row(1, "first", "33.000", rest=True), row(1, "first", "44.500", rest=True))],
    ),
    "9 an update to NULL": (
        ["UPDATE t SET name = NULL, amount = NULL WHERE id = 1"],
        [("UPDATE", "public.t", row(1, None, None, rest=True), row(1, "first", "44.500", rest=True))],
    ),
    "10 an update that changes nothing": (
        ["UPDATE t SET name = name WHERE id = 2"],
        [("UPDATE", "public.t", row(2, "n"), row(2, "n"))],
    ),
    "11 another key": (
        ["UPDATE t SET id = 20 WHERE id = 2"],
        [("UPDATE", "public.t", row(20, "n"), row(2, "n"))],
    ),
    "12 a delete": (["DELETE FROM t WHERE id = 2"], [("DELETE", "public.t", None, row(2, "n"))]),
    "13 no row": (["UPDATE t SET name = 'x' WHERE id = 9999"], []),
    "14 three changes of one row": (
        ["INSERT INTO t (id) VALUES (30); UPDATE t SET name = 'x' WHERE id = 30; DELETE FROM t WHERE id = 30"],
        [
            ("INSERT", "public.t", col("id", "30"), None),
            ("UPDATE", "public.t", row(30, "x"), row(30, None)),
            ("DELETE", "public.t", None, row(30, "x")),
        ],
    ),
    "16 a savepoint": (
        [
            "INSERT INTO parent VALUES (101); SAVEPOINT a; INSERT INTO parent VALUES (102); ROLLBACK TO a;"
            " INSERT INTO parent VALUES (103)"
        ],
        [("INSERT", "public.parent", col("id", "101"), None), ("INSERT", "public.parent", col("id", "103"), None)],
    ),
    "17 a rollback": (["INSERT INTO parent VALUES (101); ROLLBACK"], []),
    "18 equal rows": (
        ["INSERT INTO nopk VALUES (1, NULL), (1, NULL)"],
        [("INSERT", "public.nopk", col("a", "1"), None)] * 2,
    ),
    "18b a row of NULLs alone": (
        ["INSERT INTO nopk VALUES (NULL, NULL)"],
        [("INSERT", "public.nopk", col("a", None) + col("b", None), None)],
    ),
    "19 equal rows are changed": (
        ["UPDATE nopk SET b = 'x' WHERE a = 1"],
        [("UPDATE", "public.nopk", col("a", "1") + col("b", "x"), col("a", "1") + col("b", None))] * 2,
    ),
    "20 a table of the same name": (
        ["INSERT INTO s2.t VALUES (1, 's2')"],
        [("INSERT", "s2.t", col("id", "1") + col("name", "s2"), None)],
    ),
    "21 names with quotes": (
        ["INSERT INTO \"Mixed Case\" VALUES (1, 'v')"],
        [("INSERT", "public.Mixed Case", col("Id", "1") + col("a&quot;b", "v"), None)],
    ),
    "22 parent and child": (
        ["INSERT INTO parent VALUES (2); INSERT INTO child VALUES (20, 2)"],
        [
            ("INSERT", "public.parent", col("id", "2"), None),
            ("INSERT", "public.child", col("id", "20") + col("pid", "2"), None),
        ],
    ),
    "23 a delete that cascades": (
        ["DELETE FROM parent WHERE id = 1"],
        [
            ("DELETE", "public.parent", None, col("id", "1")),
            ("DELETE", "public.child", None, col("id", "10") + col("pid", "1")),
        ],
    ),
    "24 an upsert that updates": (
        ["INSERT INTO t (id) VALUES (2) ON CONFLICT (id) DO UPDATE SET name = 'u'"],
        [("UPDATE", "public.t", row(2, "u"), row(2, "n"))],
    ),
    "25 an upsert that does nothing": (["INSERT INTO t (id) VALUES (2) ON CONFLICT DO NOTHING"], []),
    "27 a truncate": (["TRUNCATE nopk"], [("TRUNCATE", "public.nopk", None, None)]),
    "28 many bytes, without line breaks": (
        ["INSERT INTO t (id, photo) VALUES (3, decode(repeat('00', 120), 'hex'))"],
        [("INSERT", "public.t", col("id", "3") + b64("photo", bytes(120)), None)],
    ),
    "29 a session in another zone": (
        ["SET TimeZone = 'Asia/Kolkata'", "INSERT INTO t (id, ts) VALUES (3, '2024-01-02 03:04')"],
        [("INSERT", "public.t", col("id", "3") + col("ts", "2024-01-02 03:04:00"), None)],
    ),
    "values as their types write them": (
        [
            "INSERT INTO other VALUES (1, 'ab', '10.0.0.1', '10.0.0.0/32', '2024-01-02 03:04:05.5+05:30', '03:04',"
            " '03:04:05.25+05:30', '0044-03-15 BC'),"
            " (2, '', 'fe80::1/64', NULL, 'infinity', '23:59:59.123456', '00:00+02', 'infinity')"
        ],
        [
            (
                "INSERT",
                "public.other",
                col("id", "1") + col("pad", "ab   ") + col("ip", "10.0.0.1") + col("net", "10.0.0.0/32")
                + col("tz", "2024-01-01 21:34:05.5+00") + col("t", "03:04:00") + col("tt", "03:04:05.25+05:30")
                + col("d", "0044-03-15 BC"),
                None,
            ),
            (
                "INSERT",
                "public.other",
                col("id", "2") + col("pad", "     ") + col("ip", "fe80::1/64") + col("tz", "infinity")
                + col("t", "23:59:59.123456") + col("tt", "00:00:00+02") + col("d", "infinity"),
                None,
            ),
        ],
    ),
    "values of other types": (
        [
            "INSERT INTO odd (id, m, a, c, j, r, iv, mo, f, bi, o) VALUES (1, 'a<b', '{2024-01-02 03:04}', 'x',"
            " '{\"a\":1}', '[1,3)', '1 day 2:00', '12.5', 0.1, '101', '[2024-01-01 00:00+02,)')"
        ],
        [
            (
                "INSERT",
                "public.odd",
                col("id", "1") + col("m", "<![CDATA[a<b]]>") + col("a", '{"2024-01-02 03:04:00"}') + col("c", "x  ")
                + col("j", '{"a": 1}') + col("g", "2") + col("r", "[1,3)") + col("iv", "P1DT2H") + col("mo", "12.50")
                + col("f", "0.1") + col("bi", "101") + col("o", '["2023-12-31 22:00:00+00",)'),
                None,
            ),
        ],
    ),
}  # fmt: skip


def documented(lab: Lab, schema: str = SCHEMA, settings: str = "{prefix: REPL_}") -> None:
    """Make tables at the source, and set the pipeline up with the documented tables."""
    lab.capture_settings = f"  documented: {settings}\n"
    lab.source.execute(schema)
    lab.pipeline(["*.*"]).setup()
    # Without the CREATE of each table. To take it would move the log, which `Lab.start` follows from its beginning.
    lab.source.execute(f"DELETE FROM {lab.set_name}.announced")


def items(connection: psycopg.Connection, *columns: str) -> list[tuple[Any, ...]]:
    return connection.execute(f"SELECT {', '.join(columns)} FROM REPL_ITEMS ORDER BY REPL_KEY").fetchall()


@pytest.fixture(scope="module")
def many(source_server: Any, target_server: Any) -> Iterator[Lab]:
    """One database for all cases: each begins with the same rows, and its own are rolled back or taken back."""
    from tests.conftest import lab_between

    with lab_between(source_server, target_server) as made:
        documented(made)
        yield made


@pytest.mark.parametrize("name", CASES)
def test_items_show_the_documented_cases(many: Lab, name: str) -> None:
    statements, expected = CASES[name]
    connection = many.source
    with psycopg.connect(many.source_url) as user:
        for statement in statements:
            user.execute(statement)
            user.commit()

    found = items(connection, "db_action", "db_schema || '.' || tablename", "content", "oldcontent")
    keys = [key for (key,) in items(connection, "repl_key")]
    transactions = [txn for (txn,) in items(connection, "trans_key")]

    connection.execute("DELETE FROM repl_items")
    connection.execute('TRUNCATE t, nopk, s2.t, parent, child, "Mixed Case", other, odd')
    connection.execute(SCHEMA[SCHEMA.index("INSERT INTO t") :])
    connection.execute("DELETE FROM repl_items")
    assert found == expected
    assert keys == sorted(set(keys))
    assert len(set(transactions)) == len([one for one in statements if expected and not one.startswith("SET")])


def test_the_columns_are_those_of_the_document(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO t VALUES (1)")

    cursor = lab.source.execute("SELECT * FROM REPL_ITEMS")
    key, txn, dbid, *rest = cursor.fetchall()[0]

    assert [one.name for one in cursor.description or []] == COLUMNS
    assert key > 0
    assert txn.isdecimal()
    assert dbid == lab.source.info.dbname
    assert rest == ["t", None, "INSERT", None, "public", col("id", "1"), None, "0.0"]


def test_every_change_of_a_large_statement_has_a_key_of_its_own(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY, v text)")

    lab.source.execute("INSERT INTO t SELECT i, i::text FROM generate_series(1, 500) i")
    lab.source.execute("UPDATE t SET v = v || 'x'")
    lab.source.execute("DELETE FROM t")

    found = items(lab.source, "repl_key", "db_action", "content", "oldcontent")
    assert [key for key, *_ in found] == sorted({key for key, *_ in found})
    image = [col("id", str(i)) + col("v", str(i)) for i in range(1, 501)]
    changed = [col("id", str(i)) + col("v", f"{i}x") for i in range(1, 501)]
    assert [one[1:] for one in found] == [
        *(("INSERT", one, None) for one in image),
        *(("UPDATE", new, old) for new, old in zip(changed, image, strict=True)),
        *(("DELETE", None, one) for one in changed),
    ]


def test_the_statements_of_the_original_read_and_acknowledge(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    for i in range(5):
        lab.source.execute("INSERT INTO t VALUES (%s), (%s)", [2 * i, 2 * i + 1])
    recommended = """
        SELECT i.*, r.first FROM REPL_ITEMS i JOIN (
          SELECT TRANS_KEY, MIN(REPL_KEY) AS first FROM REPL_ITEMS GROUP BY TRANS_KEY ORDER BY first LIMIT 2
        ) r ON r.TRANS_KEY = i.TRANS_KEY ORDER BY r.first, i.REPL_KEY"""

    newest = lab.source.execute("SELECT MAX(REPL_KEY) FROM REPL_ITEMS").fetchone()
    seen = []
    while group := lab.source.execute(recommended).fetchall():
        seen += [one[8] for one in group]
        for txn in dict.fromkeys(one[1] for one in group):
            assert lab.source.execute("DELETE FROM REPL_ITEMS WHERE TRANS_KEY = %s", [txn]).rowcount == 2

    assert newest is not None
    assert newest[0] is not None
    assert seen == [col("id", str(i)) for i in range(10)]
    assert lab.source.execute("SELECT MAX(REPL_KEY) FROM REPL_ITEMS").fetchone() == (None,)


def test_one_row_is_acknowledged_by_its_key_and_for_good(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO t SELECT generate_series(1, 100)")
    keys = [key for (key,) in items(lab.source, "repl_key")]

    first = lab.source.execute("DELETE FROM repl_items WHERE repl_key = %s", [keys[50]]).rowcount
    again = lab.source.execute("DELETE FROM repl_items WHERE repl_key = %s", [keys[50]]).rowcount

    assert (first, again) == (1, 0)
    assert [key for (key,) in items(lab.source, "repl_key")] == keys[:50] + keys[51:]


def test_a_reader_that_rolls_back_finds_its_rows_again(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO t VALUES (1)")

    with psycopg.connect(lab.source_url) as reader:
        assert reader.execute("DELETE FROM repl_items").rowcount == 1
        reader.rollback()

    assert items(lab.source, "content") == [(col("id", "1"),)]


def test_a_transaction_that_commits_late_appears_with_its_lower_keys(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0), (2, 0)")
    with psycopg.connect(lab.source_url) as late, psycopg.connect(lab.source_url) as early:
        late.execute("UPDATE t SET v = 1 WHERE id = 1")
        early.execute("UPDATE t SET v = 2 WHERE id = 2")
        early.commit()
        first = items(lab.source, "repl_key", "content")
        lab.source.execute("DELETE FROM repl_items")
        late.execute("UPDATE t SET v = 3 WHERE id = 2")
        late.commit()

    second = items(lab.source, "repl_key", "content", "oldcontent")

    assert [content for _, content in first] == [col("id", "2") + col("v", "2")]
    assert [one[1:] for one in second] == [
        (col("id", "1") + col("v", "1"), col("id", "1") + col("v", "0")),
        (col("id", "2") + col("v", "3"), col("id", "2") + col("v", "2")),
    ]
    assert second[0][0] < first[0][0] < second[1][0]


def test_the_log_is_kept_for_readers_of_items_and_freed_behind_them(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO t SELECT generate_series(1, 100)")
    held = lab.log.consumers()

    lab.source.execute("DELETE FROM repl_items")

    assert [(one.consumer.name, one.consumer.target, one.transactions) for one in held] == [("repl_items", "public", 1)]
    assert held[0].size_bytes > 0
    assert [one.transactions for one in lab.log.consumers()] == [0]
    assert lab.source.execute(f"SELECT count(*) FROM {lab.set_name}.log").fetchone() == (0,)
    assert lab.source.execute(f"SELECT count(*) FROM {lab.set_name}.acknowledged").fetchone() == (0,)


def test_a_run_does_not_free_what_items_still_shows(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.start()
    lab.source.execute("INSERT INTO t VALUES (1)")
    list(lab.changes())
    assert lab.state is not None
    own = lab.state.history.consumer.id
    end = lab.log.tick()

    lab.log.free(end, own)
    assert items(lab.source, "content") == [(col("id", "1"),)]
    lab.source.execute("DELETE FROM repl_items")

    assert {one.position for one in lab.log.consumers()} == {end}
    assert lab.source.execute(f"SELECT count(*) FROM {lab.set_name}.log").fetchone() == (0,)


def test_readers_do_not_free_what_a_run_has_not_read(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.start()
    lab.source.execute("INSERT INTO t SELECT generate_series(1, 100)")

    lab.source.execute("DELETE FROM repl_items")

    assert items(lab.source, "content") == []
    assert len(list(lab.changes())) == 100


def test_a_reader_does_not_cut_off_a_transaction_that_is_open(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(lab.source_url) as late:
        late.execute("INSERT INTO t VALUES (1)")
        lab.source.execute("INSERT INTO t VALUES (2)")
        lab.source.execute("DELETE FROM repl_items")
        late.commit()

    assert items(lab.source, "content") == [(col("id", "1"),)]


def test_what_a_reader_writes_itself_is_not_acknowledged_with_the_rest(lab: Lab) -> None:
    documented(lab, "CREATE TABLE t (id int PRIMARY KEY)")
    lab.source.execute("INSERT INTO t VALUES (1)")

    with psycopg.connect(lab.source_url) as reader:
        reader.execute("DELETE FROM repl_items")
        reader.execute("INSERT INTO t VALUES (2)")
        reader.commit()
    lab.source.execute("DELETE FROM repl_items WHERE trans_key = '0'")

    assert items(lab.source, "content") == [(col("id", "2"),)]
    assert lab.source.execute("DELETE FROM repl_items").rowcount == 1
    assert lab.source.execute(f"SELECT count(*) FROM {lab.set_name}.log").fetchone() == (0,)
