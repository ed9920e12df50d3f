"""SQL in, exact changes out, in order: what the trigger queue delivers."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from penstock import change as c
from tests.lab import Lab

SCHEMA = """
CREATE TABLE t (id int PRIMARY KEY, name text, amount numeric);
CREATE TABLE nopk (a int, b text);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, pid int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
CREATE SCHEMA "Sales Dept";
CREATE TABLE "Sales Dept"."Emp loyee" ("Id" int PRIMARY KEY, "a""b" text, "by" text);
CREATE TABLE part (id int, r text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE TABLE part_high PARTITION OF part FOR VALUES FROM (10) TO (20);
CREATE TABLE gen (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (v * 2) STORED);
"""

# name: (statements, one transaction each) -> (operation, table, key, before, after)
STORIES = {
    "insert": (
        ["INSERT INTO t VALUES (1, 'first', 44.500)"],
        [("insert", "t", {"id": "1"}, None, {"id": "1", "name": "first", "amount": "44.500"})],
    ),
    "null and empty text differ": (
        ["INSERT INTO t VALUES (1, '', NULL)"],
        [("insert", "t", {"id": "1"}, None, {"id": "1", "name": "", "amount": None})],
    ),
    "an update holds what changed": (
        ["INSERT INTO t VALUES (1, 'a', 1)", "UPDATE t SET amount = 2 WHERE id = 1"],
        [
            ("insert", "t", {"id": "1"}, None, {"id": "1", "name": "a", "amount": "1"}),
            ("update", "t", {"id": "1"}, {"id": "1", "name": "a", "amount": "1"}, {"amount": "2"}),
        ],
    ),
    "a number's new scale is a change": (
        ["INSERT INTO t VALUES (1, 'a', 1.0)", "UPDATE t SET amount = 1.00"],
        [
            ("insert", "t", {"id": "1"}, None, {"id": "1", "name": "a", "amount": "1.0"}),
            ("update", "t", {"id": "1"}, {"id": "1", "name": "a", "amount": "1.0"}, {"amount": "1.00"}),
        ],
    ),
    "an update that changes nothing": (
        ["INSERT INTO t VALUES (1, 'a', 1)", "UPDATE t SET name = name"],
        [
            ("insert", "t", {"id": "1"}, None, {"id": "1", "name": "a", "amount": "1"}),
            ("update", "t", {"id": "1"}, {"id": "1", "name": "a", "amount": "1"}, {}),
        ],
    ),
    "key change": (
        ["INSERT INTO t VALUES (1, 'a', 1)", "UPDATE t SET id = 20 WHERE id = 1"],
        [
            ("insert", "t", {"id": "1"}, None, {"id": "1", "name": "a", "amount": "1"}),
            ("update", "t", {"id": "1"}, {"id": "1", "name": "a", "amount": "1"}, {"id": "20"}),
        ],
    ),
    "some keys of a statement change": (
        ["INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1)", "UPDATE t SET id = id + 10 * (id - 1), amount = 5"],
        [
            ("insert", "t", {"id": "1"}, None, {"id": "1", "name": "a", "amount": "1"}),
            ("insert", "t", {"id": "2"}, None, {"id": "2", "name": "b", "amount": "1"}),
            ("update", "t", {"id": "1"}, {"id": "1", "name": "a", "amount": "1"}, {"amount": "5"}),
            ("update", "t", {"id": "2"}, {"id": "2", "name": "b", "amount": "1"}, {"id": "12", "amount": "5"}),
        ],
    ),
    "delete": (
        ["INSERT INTO t VALUES (1, 'a', 1)", "DELETE FROM t"],
        [
            ("insert", "t", {"id": "1"}, None, {"id": "1", "name": "a", "amount": "1"}),
            ("delete", "t", {"id": "1"}, {"id": "1", "name": "a", "amount": "1"}, None),
        ],
    ),
    "a statement that touches no row": (["UPDATE t SET name = 'x' WHERE id = 9"], []),
    "rolled back": (["BEGIN; INSERT INTO t VALUES (1, 'a', 1); ROLLBACK"], []),
    "a savepoint rolled back leaves a hole, not a change": (
        [
            "BEGIN; INSERT INTO t VALUES (1, NULL, 1); SAVEPOINT s; INSERT INTO t VALUES (2, NULL, 2);"
            " ROLLBACK TO s; INSERT INTO t VALUES (3, NULL, 3); COMMIT"
        ],
        [
            ("insert", "t", {"id": "1"}, None, {"id": "1", "name": None, "amount": "1"}),
            ("insert", "t", {"id": "3"}, None, {"id": "3", "name": None, "amount": "3"}),
        ],
    ),
    "upsert": (
        [
            "INSERT INTO t VALUES (1, 'a', 1)",
            "INSERT INTO t VALUES (1, 'b', 1) ON CONFLICT (id) DO UPDATE SET name = 'c'",
        ],
        [
            ("insert", "t", {"id": "1"}, None, {"id": "1", "name": "a", "amount": "1"}),
            ("update", "t", {"id": "1"}, {"id": "1", "name": "a", "amount": "1"}, {"name": "c"}),
        ],
    ),
    "upsert that does nothing": (
        ["INSERT INTO t VALUES (1, 'a', 1)", "INSERT INTO t VALUES (1, 'b', 1) ON CONFLICT DO NOTHING"],
        [("insert", "t", {"id": "1"}, None, {"id": "1", "name": "a", "amount": "1"})],
    ),
    "no key": (
        ["INSERT INTO nopk VALUES (1, NULL), (1, NULL)", "UPDATE nopk SET b = 'x'"],
        [
            ("insert", "nopk", None, None, {"a": "1", "b": None}),
            ("insert", "nopk", None, None, {"a": "1", "b": None}),
            ("update", "nopk", None, {"a": "1", "b": None}, {"b": "x"}),
            ("update", "nopk", None, {"a": "1", "b": None}, {"b": "x"}),
        ],
    ),
    "truncate": (
        ["INSERT INTO nopk VALUES (1, 'a')", "TRUNCATE nopk"],
        [("insert", "nopk", None, None, {"a": "1", "b": "a"}), ("truncate", "nopk", None, None, None)],
    ),
    "a cascade follows the row that caused it": (
        ["INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (10, 1)", "DELETE FROM parent"],
        [
            ("insert", "parent", {"id": "1"}, None, {"id": "1"}),
            ("insert", "child", {"id": "10"}, None, {"id": "10", "pid": "1"}),
            ("delete", "parent", {"id": "1"}, {"id": "1"}, None),
            ("delete", "child", {"id": "10"}, {"id": "10", "pid": "1"}, None),
        ],
    ),
    "names with blanks, capitals, quotes and keywords": (
        [
            "INSERT INTO \"Sales Dept\".\"Emp loyee\" VALUES (1, 'v', 'w')",
            'UPDATE "Sales Dept"."Emp loyee" SET "by" = NULL',
        ],
        [
            ("insert", "Emp loyee", {"Id": "1"}, None, {"Id": "1", 'a"b': "v", "by": "w"}),
            ("update", "Emp loyee", {"Id": "1"}, {"Id": "1", 'a"b': "v", "by": "w"}, {"by": None}),
        ],
    ),
    "partitions are changed through their root, or directly": (
        [
            "INSERT INTO part VALUES (1, 'a')",
            "INSERT INTO part_high VALUES (11, 'b')",
            "UPDATE part SET r = 'c' WHERE id = 11",
            "UPDATE part SET id = 12 WHERE id = 1",
            "TRUNCATE part_high",
            "TRUNCATE part",
        ],
        [
            ("insert", "part", {"id": "1"}, None, {"id": "1", "r": "a"}),
            ("insert", "part", {"id": "11"}, None, {"id": "11", "r": "b"}),
            ("update", "part", {"id": "11"}, {"id": "11", "r": "b"}, {"r": "c"}),
            ("delete", "part", {"id": "1"}, {"id": "1", "r": "a"}, None),
            ("insert", "part", {"id": "12"}, None, {"id": "12", "r": "a"}),
            ("truncate", "part_high", None, None, None),
            ("truncate", "part", None, None, None),
        ],
    ),
    "generated and identity columns": (
        ["INSERT INTO gen (v) VALUES (3)", "UPDATE gen SET v = 4"],
        [
            ("insert", "gen", {"id": "1"}, None, {"id": "1", "v": "3", "twice": "6"}),
            ("update", "gen", {"id": "1"}, {"id": "1", "v": "3", "twice": "6"}, {"v": "4", "twice": "8"}),
        ],
    ),
}


@pytest.mark.rule(
    "C-1",
    "C-3",
    "C-8",
    "C-10",
    "C-11",
    "C-12",
    "C-13",
    "C-16",
    "C-17",
    "C-18",
    "C-19",
    "C-21",
    "C-22",
    "C-23",
    "C-24",
    "C-25",
    "C-27",
)
@pytest.mark.parametrize("row_triggers", [[], ["*.*"]], ids=["by statement", "by row"])
@pytest.mark.parametrize("story", STORIES)
def test_story(lab: Lab, story: str, row_triggers: list[str]) -> None:
    lab.row_triggers = row_triggers
    statements, expected = STORIES[story]
    lab.setup(SCHEMA, ["public.*", "Sales Dept.*"])

    for statement in statements:
        lab.source.execute(statement)

    found = [
        (row[c.OP], row[c.TABLE_NAME], _read(row[c.KEY]), _read(row[c.BEFORE]), _read(row[c.AFTER]))
        for row in lab.changes()
    ]
    assert found == expected


@pytest.mark.rule("C-14", "C-15")
def test_positions_grow_and_transactions_stay_whole(lab: Lab) -> None:
    lab.setup(SCHEMA)

    lab.source.execute("INSERT INTO t VALUES (1, 'a', 1)")
    lab.source.execute("BEGIN; INSERT INTO t VALUES (2, 'b', 2); UPDATE t SET amount = 3; COMMIT")

    rows = list(lab.changes())
    assert [(row[c.COMMIT_SCN], row[c.CHANGE_SEQ], row[c.TXN_CHANGES]) for row in rows] == [
        (1, 0, 1),
        (2, 0, 3),
        (2, 1, 3),
        (2, 2, 3),
    ]
    assert rows[1][c.TXN_ID] == rows[2][c.TXN_ID] != rows[0][c.TXN_ID]
    assert all(row[c.SOURCE] == "shop" and row[c.COMMITTED_AT] is not None for row in rows)


@pytest.mark.rule("C-36")
def test_two_sets_capture_one_table_each_for_itself(lab: Lab) -> None:
    lab.setup(SCHEMA)
    with Lab(lab.source_url, lab.target_url, name="other") as other:
        other.pipeline(["public.t"]).setup()

        lab.source.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1)")
        lab.source.execute("UPDATE t SET id = id + 10")
        lab.source.execute("INSERT INTO nopk VALUES (1, 'x')")

        changed = [(row[c.OP], row[c.KEY], row[c.AFTER]) for row in other.changes()]
        assert changed == [(row[c.OP], row[c.KEY], row[c.AFTER]) for row in lab.changes() if row[c.TABLE_NAME] == "t"]
        assert len(changed) == 4


def test_what_another_trigger_writes_comes_after_the_change_that_caused_it(lab: Lab) -> None:
    lab.source.execute(
        SCHEMA
        + """
        CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN UPDATE t SET name = upper(name) WHERE id = NEW.id; RETURN NULL; END $$;
        CREATE TRIGGER shout AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION shout();
        """
    )
    lab.setup("")

    lab.source.execute("INSERT INTO t VALUES (1, 'a', 1)")

    assert [(row[c.OP], _read(row[c.AFTER])) for row in lab.changes()] == [
        ("insert", {"id": "1", "name": "a", "amount": "1"}),
        ("update", {"name": "A"}),
    ]


def test_ordinary_users_need_no_right_on_the_log(lab: Lab) -> None:
    lab.setup(SCHEMA)
    lab.source.execute("CREATE ROLE clerk; GRANT INSERT, UPDATE, DELETE, SELECT ON t TO clerk")

    with lab.session() as clerk:
        clerk.execute("SET ROLE clerk")
        clerk.execute("INSERT INTO t VALUES (1, 'a', 1)")
        clerk.execute("UPDATE t SET id = 2")

    assert [row[c.OP] for row in lab.changes()] == ["insert", "update"]
    lab.source.execute("DROP OWNED BY clerk; DROP ROLE clerk")


@pytest.mark.rule("C-29")
def test_session_settings_do_not_change_the_text(lab: Lab) -> None:
    lab.setup(
        "CREATE TABLE x (id int PRIMARY KEY, d date, ts timestamp, tz timestamptz, iv interval, f float8, b bytea,"
        " r tstzrange, m money, z timetz)"
    )
    values = (
        "'2024-01-02', '2024-01-02 03:04:05.6', '2024-01-02 03:04:05+00', '1 mon 2 days', 0.1, '\\x00ff',"
        " '[2024-01-02 00:00+00,)', 12.5, '03:04:05+02'"
    )

    lab.source.execute(f"INSERT INTO x VALUES (1, {values})")
    lab.source.execute(
        "SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard'; SET timezone = 'Asia/Kolkata';"
        " SET extra_float_digits = -5; SET bytea_output = 'escape';"
        " SET standard_conforming_strings = off; SET escape_string_warning = off"
    )
    lab.source.execute("INSERT INTO x SELECT 2, d, ts, tz, iv, f, b, r, m, z FROM x")
    lab.source.execute("RESET ALL")

    first, second = (_read(row[c.AFTER]) for row in lab.changes())
    assert first["ts"] == "2024-01-02T03:04:05.600000"
    assert first["tz"] == "2024-01-02T03:04:05.000000+00:00"
    assert first["iv"] == "P1M2D"
    assert first["b"] == "AP8="
    assert first["z"] == "03:04:05.000000+02:00"
    assert {k: v for k, v in first.items() if k != "id"} == {k: v for k, v in second.items() if k != "id"}


@pytest.mark.rule("C-39")
def test_ddl_rebuilds_the_capture_in_the_same_transaction(lab: Lab) -> None:
    lab.setup(SCHEMA)

    lab.source.execute("INSERT INTO t VALUES (1, 'a', 1)")
    lab.source.execute(
        "BEGIN; ALTER TABLE t ADD city text; INSERT INTO t VALUES (2, 'b', 2, 'Rome'); ALTER TABLE t DROP name;"
        " UPDATE t SET city = 'Oslo' WHERE id = 2; COMMIT"
    )

    rows = list(lab.changes())
    assert [_read(row[c.AFTER]) for row in rows] == [
        {"id": "1", "name": "a", "amount": "1"},
        {"id": "2", "name": "b", "amount": "2", "city": "Rome"},
        {"city": "Oslo"},
    ]
    versions = [row[c.TABLE_VERSION] for row in rows]
    assert versions == sorted(set(versions))


@pytest.mark.rule("C-42")
def test_a_dropped_table_s_changes_are_still_delivered(lab: Lab) -> None:
    lab.setup(SCHEMA)

    lab.source.execute("INSERT INTO nopk VALUES (1, 'a')")
    lab.source.execute("DROP TABLE nopk")

    assert [(row[c.TABLE_NAME], _read(row[c.AFTER])) for row in lab.changes()] == [("nopk", {"a": "1", "b": "a"})]


def test_applied_changes_are_not_captured_again(lab: Lab) -> None:
    lab.setup(SCHEMA)

    lab.source.execute("SET session_replication_role = replica; INSERT INTO t VALUES (1, 'a', 1)")

    assert list(lab.changes()) == []


def _read(text: str | None) -> dict[str, str | None] | None:
    return None if text is None else json.loads(text)


def test_every_row_of_a_large_statement_comes_in_the_order_of_the_work(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, name text)")

    lab.source.execute("INSERT INTO t SELECT n, E'line\\n\\ttab ' || n FROM generate_series(1, 150) n")
    lab.source.execute("UPDATE t SET id = -id, name = CASE WHEN id % 2 = 0 THEN name END")
    lab.source.execute("UPDATE t SET name = repeat('x', 5000) WHERE id >= -3")
    lab.source.execute("DELETE FROM t")

    rows = [(row[c.OP], _read(row[c.BEFORE]), _read(row[c.AFTER])) for row in lab.changes()]
    first = [{"id": str(n), "name": f"line\n\ttab {n}"} for n in range(1, 151)]
    assert rows[:150] == [("insert", None, row) for row in first]
    changed = [{"id": f"-{n}"} | ({} if n % 2 == 0 else {"name": None}) for n in range(1, 151)]
    assert rows[150:300] == [("update", *pair) for pair in zip(first, changed, strict=True)]
    second = [old | new for old, new in zip(first, changed, strict=True)]
    long = {"name": "x" * 5000}
    assert rows[300:303] == [("update", row, long) for row in second[:3]]
    last = [row | long for row in second[:3]] + second[3:]
    assert sorted(rows[303:], key=repr) == sorted((("delete", row, None) for row in last), key=repr)


@pytest.mark.parametrize("size", [1, 100])
def test_values_that_come_and_go(lab: Lab, size: int) -> None:
    lab.setup(
        "CREATE TYPE pair AS (a int, b int); CREATE TABLE x (id int PRIMARY KEY, i int, n numeric,"
        " m numeric(8,2) NOT NULL, t text, p pair, a int[])"
    )
    lab.source.execute(f"INSERT INTO x (id, m) SELECT n, 1 FROM generate_series(1, {size}) n")
    for change in (
        "i = 1, n = 'NaN', t = '', p = ROW(NULL, NULL), a = '{}'",
        "i = 1, n = 'NaN', t = '', p = ROW(NULL, NULL), a = '{}'",
        "i = NULL, n = 1.0, m = 2, t = NULL, p = NULL, a = NULL",
        "n = 1.00, m = 2.00",
    ):
        lab.source.execute(f"UPDATE x SET {change}")

    found = [_read(row[c.AFTER]) for row in lab.changes() if row[c.OP] == "update"]
    expected = [
        {"i": "1", "n": "NaN", "t": "", "p": "(,)", "a": "{}"},
        {},
        {"i": None, "n": "1.0", "m": "2.00", "t": None, "p": None, "a": None},
        {"n": "1.00"},
    ]
    assert found == [image for image in expected for _ in range(size)]


def test_a_writer_s_search_path_has_no_say_in_what_the_capture_runs(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, name text, at timestamptz, price numeric)")
    lab.source.execute(
        """
        CREATE SCHEMA evil;
        CREATE FUNCTION evil.boom(int, int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE ''called''; END';
        CREATE FUNCTION evil.boom(text, text) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE ''called''; END';
        CREATE FUNCTION evil.boom(bigint, bigint) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE ''called''; END';
        CREATE FUNCTION evil.row_number() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
        CREATE FUNCTION evil.to_json(text) RETURNS json LANGUAGE sql AS $$ SELECT '"evil"'::json $$;
        CREATE OPERATOR evil.= (FUNCTION = evil.boom, LEFTARG = int, RIGHTARG = int);
        CREATE OPERATOR evil.= (FUNCTION = evil.boom, LEFTARG = text, RIGHTARG = text);
        CREATE OPERATOR evil.= (FUNCTION = evil.boom, LEFTARG = bigint, RIGHTARG = bigint);
        CREATE OPERATOR evil.>= (FUNCTION = evil.boom, LEFTARG = int, RIGHTARG = int);
        CREATE DOMAIN evil.text AS pg_catalog.text CHECK (false);
        CREATE TABLE evil.n (id int); CREATE TABLE evil.o (id int);
        """
    )

    with lab.session() as session:
        session.execute("SET search_path = evil, public, pg_catalog")
        session.execute("INSERT INTO public.t VALUES (1, 'a', '2024-01-01 00:00+00', 1)")
        session.execute("INSERT INTO public.t SELECT n, 'a', now(), n FROM generate_series(2, 100) n")
        session.execute("UPDATE public.t SET name = 'b'")
        session.execute("UPDATE public.t SET name = 'c' WHERE id OPERATOR(pg_catalog.=) 7")
        session.execute("DELETE FROM public.t")

    assert [row[c.OP] for row in lab.changes()] == ["insert"] * 100 + ["update"] * 101 + ["delete"] * 100
    names = {_read(row[c.AFTER]).get("name") for row in lab.changes() if row[c.AFTER]}
    assert names == {"a", "b", "c"}


@pytest.mark.parametrize("by_row", [False, True], ids=["statement triggers", "row triggers"])
def test_large_rows_are_captured_beside_small_ones(lab: Lab, by_row: bool) -> None:
    """Rows that may not fit into one image take a way of their own."""
    lab.row_triggers = ["public.t"] if by_row else []
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text, n numeric)")
    huge = "repeat(md5('x'), 600000)"
    lab.source.execute(
        f"INSERT INTO t SELECT n, CASE n WHEN 11 THEN {huge} ELSE 'small' END FROM generate_series(1, 12) n"
    )
    lab.source.execute(f"INSERT INTO t VALUES (20, {huge}), (21, 'small'); INSERT INTO t VALUES (22, {huge})")
    lab.source.execute("UPDATE t SET n = 1")
    lab.source.execute("UPDATE t SET n = 2 WHERE id = 22; UPDATE t SET v = 'small' WHERE id = 20")
    lab.source.execute(f"UPDATE t SET v = {huge} WHERE id = 21; DELETE FROM t WHERE id IN (1, 2)")
    lab.source.execute("UPDATE t SET n = 3 WHERE false; DELETE FROM t WHERE false; INSERT INTO t SELECT 1 WHERE false")
    lab.source.execute("DELETE FROM t WHERE id = 22; DELETE FROM t WHERE id IN (3, 21)")
    ops = [row["op"] for row in lab.changes()]
    assert Counter(ops) == {"insert": 15, "update": 15 + 3, "delete": 5}
    lab.apply()
    assert lab.errors() == []
    lab.assert_identical("t")


@pytest.mark.soak
def test_rows_that_are_too_large_together_are_captured_each(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v bytea)")
    lab.source.execute("INSERT INTO t SELECT n, decode(repeat('00', 420000000), 'hex') FROM generate_series(1, 2) n")
    changes = lab.source.execute(
        f"SELECT op, length(after) > 500000000 FROM {lab.set_name}.log ORDER BY seq"
    ).fetchall()
    assert changes == [("I", True), ("I", True)]


@pytest.mark.soak
def test_rows_that_no_value_can_hold_leave_a_gap_and_the_writer_alone(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v bytea, w bytea); CREATE TABLE o (id int)")
    # 420 MB are 560 MB of text, which fit; twice as many do not.
    lab.source.execute("INSERT INTO t SELECT 1, h, h FROM (SELECT decode(repeat('00', 420 * 1000 * 1000), 'hex') h) x")
    lab.source.execute("INSERT INTO o VALUES (1)")
    (gap, other) = lab.changes()
    assert (gap["op"], gap["table_name"], other["op"]) == ("gap", "t", "insert")
    assert "could not be put into words" in gap["before"]
