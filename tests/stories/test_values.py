"""Values whose type calls different texts equal, or has no = at all: they are told apart to the byte."""

from __future__ import annotations

import psycopg
import pytest

from penstock.apply.apply_errors import FOREIGN_KEY_VIOLATED, TYPE_DIFFERS, UNIQUE_VIOLATED
from penstock.apply.lane import ServerConfig
from penstock.errors import OperatorError
from tests.lab import Lab
from tests.snapshot.test_copy import copy

BOTH_PATHS = pytest.mark.parametrize("use_set", [True, False], ids=["set path", "row path"])


def errors_after_apply(lab: Lab, *, use_set: bool) -> list[int]:
    lab.apply(config=ServerConfig(use_set_path=use_set))
    return [entry.error_number for entry in lab.errors()]


@BOTH_PATHS
@pytest.mark.parametrize(
    ("kind", "value", "local"),
    [
        ("json", '{"a":1}', '{"a": 1}'),
        ("jsonb", '{"a":1.0}', '{"a":1.00}'),
        ("point", "(1,2)", "(1,3)"),
        ("box", "(2,2),(0,0)", "(4,1),(0,0)"),
        ("numeric", "1.0", "1.00"),
        ("tsquery", "'foo':A", "'foo':B"),
        ("bpchar", "ab ", "ab"),
        ("float8", "0", "-0"),
        ("interval", "P1M", "P30D"),
    ],
)
def test_a_local_change_is_a_conflict_however_alike(lab: Lab, use_set: bool, kind: str, value: str, local: str) -> None:
    lab.setup(f"CREATE TABLE t (id int PRIMARY KEY, v {kind}, n int)")
    lab.source.execute("INSERT INTO t VALUES (1, %s, 1), (2, %s, 1)", [value, value])
    lab.apply()
    lab.target.execute("UPDATE t SET v = %s WHERE id = 1", [local])
    lab.source.execute("UPDATE t SET n = 2")
    assert len(errors_after_apply(lab, use_set=use_set)) == 1
    assert lab.target.execute("SELECT n FROM t ORDER BY id").fetchall() == [(1,), (1,)]


@BOTH_PATHS
def test_a_key_that_is_not_unique_finds_the_row_that_is_meant(lab: Lab, use_set: bool) -> None:
    lab.setup("CREATE TABLE uq (a int NOT NULL, b int, j json, UNIQUE (a, b))")
    lab.source.execute("""INSERT INTO uq SELECT 1, NULL, format('{"x":%s}', x)::json FROM generate_series(1, 3) x""")
    lab.apply()
    lab.source.execute("DELETE FROM uq WHERE j ->> 'x' = '3'")
    assert errors_after_apply(lab, use_set=use_set) == []
    lab.assert_identical_text("uq")


@BOTH_PATHS
def test_an_identity_that_is_always_generated_is_updated(lab: Lab, use_set: bool) -> None:
    lab.setup("CREATE TABLE t (a int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
    lab.source.execute("INSERT INTO t (v) VALUES ('x'), ('y')")
    lab.apply()
    lab.source.execute("UPDATE t SET a = DEFAULT")
    assert errors_after_apply(lab, use_set=use_set) == []
    assert lab.rows("t") == [(3, "x"), (4, "y")]


@BOTH_PATHS
@pytest.mark.parametrize(
    ("before", "value", "after", "using"),
    [
        ("bytea", "\\x00ff", "text", "v::text"),
        ("text", "abcd", "bytea", "v::bytea"),
        ("timestamp", "2026-01-02 03:04:05", "text", "v::text"),
        ("timestamptz", "2026-01-02 03:04:05+00", "timestamp", "v AT TIME ZONE 'UTC'"),
        ("money", "12.34", "text", "v::text"),
        ("real", "0.1", "float8", "v::float8"),
        ("float8", "0.123456789012345678", "numeric", "v::numeric"),
        ("bit(8)", "00000101", "int", "v::int"),
        ("bpchar", "a  ", "text", "v::text"),
        ("interval[]", "{1 day}", "text[]", "v::text[]"),
        ('"char"', "5", "int", "v::int"),
    ],
)
def test_a_type_that_both_sides_change_while_changes_wait(
    lab: Lab, use_set: bool, before: str, value: str, after: str, using: str
) -> None:
    lab.setup(f"CREATE TABLE t (id int PRIMARY KEY, v {before}); CREATE TABLE o (id int PRIMARY KEY)")
    lab.apply()
    lab.source.execute("INSERT INTO t VALUES (1, %s)", [value])
    for side in (lab.source, lab.target):
        side.execute(f"ALTER TABLE t ALTER v TYPE {after} USING {using}")
    lab.source.execute("INSERT INTO o VALUES (1)")
    assert errors_after_apply(lab, use_set=use_set) == [TYPE_DIFFERS]
    lab.assert_identical("o")
    (entry,) = lab.errors()
    assert entry.error_message.startswith("column 'v' was ")
    assert value not in entry.error_message
    with pytest.raises(OperatorError, match="still cannot be applied"):
        lab.retry(entry.id)

    # The way out that it names.
    lab.target.execute(f"ALTER TABLE t ALTER v TYPE {before} USING NULL")
    lab.retry(entry.id)
    lab.target.execute(f"ALTER TABLE t ALTER v TYPE {after} USING {using}")
    lab.assert_identical_text("t")


@BOTH_PATHS
@pytest.mark.parametrize(
    ("before", "value", "after", "using"),
    [
        ("int", "5", "bigint", "v"),
        ("int", "5", "numeric", "v"),
        ("varchar(9)", "ab", "text", "v"),
        ("json", '{"a":1}', "jsonb", "v::jsonb"),
        ("mood", "sad", "text", "v::text"),
        ("int[]", "{1,2}", "text[]", "v::text[]"),
    ],
)
def test_a_type_whose_text_says_the_same(
    lab: Lab, use_set: bool, before: str, value: str, after: str, using: str
) -> None:
    lab.setup(f"CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE t (id int PRIMARY KEY, v {before})")
    lab.apply()
    lab.source.execute("INSERT INTO t VALUES (1, %s)", [value])
    for side in (lab.source, lab.target):
        side.execute(f"ALTER TABLE t ALTER v TYPE {after} USING {using}")
    assert errors_after_apply(lab, use_set=use_set) == []
    lab.assert_identical_text("t")


@BOTH_PATHS
def test_an_enum_that_a_cast_makes_a_text(lab: Lab, use_set: bool) -> None:
    """Which = is meant between two of them is open then."""
    lab.setup("CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TABLE t (id int PRIMARY KEY, m mood, n int)")
    lab.source.execute("INSERT INTO t VALUES (1, 'sad', 1), (2, 'sad', 1)")
    lab.apply()
    for side in (lab.source, lab.target):
        side.execute("CREATE CAST (mood AS text) WITH INOUT AS IMPLICIT")
    lab.target.execute("UPDATE t SET m = 'glad' WHERE id = 2")
    with lab.session() as writer:
        writer.execute("UPDATE t SET n = 2; UPDATE t SET m = 'glad' WHERE id = 1")
    lab.source.execute("UPDATE t SET n = 3, m = 'sad' WHERE id = 1")
    assert len(errors_after_apply(lab, use_set=use_set)) == 2
    lab.target.execute("UPDATE t SET m = 'sad' WHERE id = 2")
    lab.retry(*(entry.id for entry in lab.errors()))
    lab.assert_identical("t")


MADE_TEXTS = """
    CREATE TYPE mood AS ENUM ('sad', 'glad', 'mad');
    CREATE DOMAIN temper AS mood;
    CREATE TYPE pair AS (a int, b text);
    CREATE TYPE span AS RANGE (subtype = int4);
"""

KEYS_THAT_A_CAST_MAKES_A_TEXT = {
    "an enum as key": ("mood", "m mood PRIMARY KEY", "sad", "glad"),
    "an enum in a key": ("mood", "m mood, k int DEFAULT 1, PRIMARY KEY (k, m)", "sad", "glad"),
    "a domain over an enum as key": ("mood", "m temper PRIMARY KEY", "sad", "glad"),
    "a nullable enum in a key": ("mood", "k int NOT NULL DEFAULT 1, m mood, UNIQUE (k, m)", "sad", "glad"),
    "an enum in a deferrable key": (
        "mood",
        "id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, m mood UNIQUE DEFERRABLE",
        "sad",
        "glad",
    ),
    "an enum that excludes": ("mood", "m mood PRIMARY KEY, EXCLUDE USING hash (m WITH =) DEFERRABLE", "sad", "glad"),
    "an enum without a key": ("mood", "m mood", "sad", "glad"),
    "a row as key": ("pair", "m pair PRIMARY KEY", "(1,x)", "(2,x)"),
    "a range as key": ("span", "m span PRIMARY KEY", "[1,2)", "[3,4)"),
    "an array as key": ("mood[]", "m mood[] PRIMARY KEY", "{sad}", "{glad}"),
}


def make_a_text_of(lab: Lab, kind: str) -> None:
    for side in (lab.source, lab.target):
        side.execute(f"CREATE CAST ({kind} AS text) WITH INOUT AS IMPLICIT")


@BOTH_PATHS
@pytest.mark.parametrize(
    ("kind", "columns", "one", "other"), KEYS_THAT_A_CAST_MAKES_A_TEXT.values(), ids=KEYS_THAT_A_CAST_MAKES_A_TEXT
)
def test_a_key_that_a_cast_makes_a_text(lab: Lab, use_set: bool, kind: str, columns: str, one: str, other: str) -> None:
    """Which = its rows are to be found by is open then, and each statement must name one that is not."""
    lab.setup(f"{MADE_TEXTS} CREATE TABLE t ({columns}, n int)")
    lab.source.execute("INSERT INTO t (m, n) VALUES (%s, 1)", [one])
    lab.apply()
    make_a_text_of(lab, kind)

    lab.source.execute("UPDATE t SET n = 2")
    lab.source.execute("UPDATE t SET m = %s", [other])
    with lab.session() as writer:
        writer.execute("INSERT INTO t (m, n) VALUES (%s, 3)", [one])
        writer.execute("UPDATE t SET n = n + 1")
    with lab.session() as writer:
        writer.execute("DELETE FROM t WHERE n = 4")
        # There and gone again: it had to be legal while it was there.
        writer.execute("INSERT INTO t (m, n) VALUES (%s, 5)", [one])
        writer.execute("UPDATE t SET n = n + 1")
        writer.execute("DELETE FROM t WHERE n = 6")

    assert errors_after_apply(lab, use_set=use_set) == []
    lab.assert_identical("t")
    assert len(lab.rows("t")) == 1


@BOTH_PATHS
def test_values_that_swap_in_a_deferrable_key_that_a_cast_makes_a_text(lab: Lab, use_set: bool) -> None:
    lab.setup(f"{MADE_TEXTS} CREATE TABLE t (id int PRIMARY KEY, m mood UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    lab.source.execute("INSERT INTO t VALUES (1, 'sad'), (2, 'glad')")
    lab.apply()
    make_a_text_of(lab, "mood")
    lab.target.execute("INSERT INTO t VALUES (9, 'mad')")
    with lab.session() as writer:
        writer.execute("UPDATE t SET m = 'glad' WHERE id = 1; UPDATE t SET m = 'sad' WHERE id = 2")
    lab.source.execute("INSERT INTO t VALUES (3, 'mad')")
    assert errors_after_apply(lab, use_set=use_set) == [UNIQUE_VIOLATED]
    assert lab.rows("t") == [(1, "glad"), (2, "sad"), (9, "mad")]


@BOTH_PATHS
def test_a_reference_that_a_cast_makes_a_text(lab: Lab, use_set: bool) -> None:
    """The server's own check of it fails from then on; what was written before is applied all the same."""
    lab.setup(f"""{MADE_TEXTS}
        CREATE TABLE p (m mood PRIMARY KEY);
        CREATE TABLE c (id int PRIMARY KEY, m mood REFERENCES p)""")
    lab.source.execute("INSERT INTO p VALUES ('sad'), ('glad'), ('mad')")
    lab.apply()
    lab.source.execute("INSERT INTO c VALUES (1, 'sad')")
    lab.source.execute("INSERT INTO c VALUES (2, 'glad'), (3, NULL)")
    lab.source.execute("DELETE FROM p WHERE m = 'mad'")
    lab.target.execute("DELETE FROM p WHERE m = 'glad'")
    make_a_text_of(lab, "mood")
    assert errors_after_apply(lab, use_set=use_set) == [FOREIGN_KEY_VIOLATED]
    assert lab.rows("c") == [(1, "sad")]
    assert lab.rows("p") == [("sad",)]


@BOTH_PATHS
def test_a_date_that_refers_to_a_timestamp(lab: Lab, use_set: bool) -> None:
    lab.setup("CREATE TABLE p (at timestamp PRIMARY KEY);CREATE TABLE c (id int PRIMARY KEY, d date REFERENCES p)")
    lab.source.execute("INSERT INTO p VALUES ('2024-01-02'), ('2024-01-02 03:04')")
    lab.source.execute("INSERT INTO c VALUES (1, '2024-01-02')")
    lab.apply()
    lab.source.execute("DELETE FROM p WHERE at > '2024-01-02'")
    assert errors_after_apply(lab, use_set=use_set) == []
    lab.assert_identical("p", "c")


@BOTH_PATHS
def test_an_operator_of_anybody_s_is_not_run(lab: Lab, use_set: bool) -> None:
    lab.setup("CREATE TABLE t (id varchar(9) PRIMARY KEY, v varchar(9), n numeric)")
    lab.source.execute("INSERT INTO t VALUES ('a', 'x', 1.0), ('b', 'y', 2)")
    lab.apply()
    lab.target.execute("""
        CREATE TABLE seen (what text);
        CREATE FUNCTION evil(varchar, varchar) RETURNS bool LANGUAGE plpgsql AS $$
          BEGIN INSERT INTO public.seen VALUES ('ran'); RETURN true; END $$;
        CREATE FUNCTION evil(numeric, numeric) RETURNS bool LANGUAGE plpgsql AS $$
          BEGIN INSERT INTO public.seen VALUES ('ran'); RETURN true; END $$;
        CREATE OPERATOR public.= (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = evil);
        CREATE OPERATOR public.<> (LEFTARG = numeric, RIGHTARG = numeric, FUNCTION = evil)
    """)
    lab.target.execute(
        psycopg.sql.SQL("ALTER DATABASE {} SET search_path = public, pg_catalog").format(
            psycopg.sql.Identifier(lab.target.info.dbname)
        )
    )
    lab.source.execute("UPDATE t SET v = 'z', n = 3 WHERE id = 'a'; DELETE FROM t WHERE id = 'b'")
    assert errors_after_apply(lab, use_set=use_set) == []
    lab.target.execute("SET search_path = pg_catalog")
    assert lab.target.execute("SELECT * FROM public.seen").fetchall() == []
    lab.target.execute("SET search_path = public")
    assert lab.target.execute("SELECT count(*) FROM t").fetchone() == (1,)


def test_an_operator_of_anybody_s_is_not_run_by_copy_comparison_repair_or_retry(lab: Lab) -> None:
    lab.source.execute("CREATE TABLE t (id varchar(9) PRIMARY KEY, v varchar(9), n numeric UNIQUE)")
    lab.source.execute("INSERT INTO t SELECT n, 'x', n FROM generate_series(1, 9) n")
    lab.pipeline().setup()
    lab.target.execute("CREATE TABLE public.seen (what text)")
    for kind in ("varchar", "numeric", "text"):
        lab.target.execute(
            f"CREATE FUNCTION public.evil({kind}, {kind}) RETURNS bool LANGUAGE plpgsql AS $$"
            " BEGIN INSERT INTO public.seen VALUES ('ran'); RETURN true; END $$"
        )
        for operator in ("=", "<>", "<", ">", "<=", ">="):
            made = f"CREATE OPERATOR public.{operator} (LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = public.evil)"
            lab.target.execute(made)
    lab.target.execute(f"ALTER DATABASE {lab.target.info.dbname} SET search_path = public, pg_catalog")
    pipeline = lab.pipeline()

    copy_all(lab)
    assert pipeline.verify().is_identical
    lab.target.execute("DELETE FROM t WHERE id OPERATOR(pg_catalog.=) '3'; UPDATE t SET v = 'y'")
    assert pipeline.verify(repair=True).is_identical
    lab.acquire()
    lab.target.execute("DELETE FROM t WHERE id OPERATOR(pg_catalog.=) '4'")
    lab.source.execute("UPDATE t SET v = 'z' WHERE id = '4'; UPDATE t SET n = 90 WHERE id = '5'")
    lab.apply()
    (entry,) = lab.errors()
    lab.target.execute("INSERT INTO t VALUES ('4', 'x', 4)")
    assert lab.retry(entry.id) == [entry.id]

    assert lab.target.execute("SELECT * FROM public.seen").fetchall() == []
    lab.assert_identical_text("t")


def copy_all(lab: Lab) -> None:
    """Run the first copy of every table, and let the process go again."""
    lab.acquire()
    copy(lab, *(name.name for name in sorted(x.table.name for x in lab.log.tables() if not x.is_partition)))
    lab.ledger.close()


@BOTH_PATHS
def test_an_array_s_null_is_one_whatever_the_target_is_set_to(lab: Lab, use_set: bool) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v text[])")
    lab.target.execute(f"ALTER DATABASE {lab.target.info.dbname} SET array_nulls = off")
    lab.source.execute("INSERT INTO t VALUES (1, ARRAY['NULL', NULL, 'null']), (2, ARRAY[NULL::text])")
    lab.source.execute("UPDATE t SET v = v || NULL::text WHERE id = 1")
    assert errors_after_apply(lab, use_set=use_set) == []
    lab.assert_identical("t")


@BOTH_PATHS
def test_a_value_that_the_target_cannot_take_stops_nobody_else(lab: Lab, use_set: bool) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v regtype, j json); CREATE TABLE o (id int PRIMARY KEY)")
    lab.source.execute("CREATE SCHEMA hidden; CREATE TYPE hidden.secret AS ENUM ()")
    lab.source.execute("INSERT INTO t VALUES (1, 'hidden.secret')")
    # As deep as a writer's own stack allows, and that is more than apply's statement has left.
    lab.source.execute("INSERT INTO t VALUES (2, NULL, (repeat('[', 6000) || repeat(']', 6000))::json)")
    lab.target.execute(f"ALTER DATABASE {lab.target.info.dbname} SET max_stack_depth = '500kB'")
    lab.source.execute("INSERT INTO o VALUES (1)")
    lab.apply(config=ServerConfig(use_set_path=use_set))
    lab.assert_identical("o")
    assert [entry.error_code for entry in lab.errors()] == ["3F000", "54001"]
    assert not any("hidden" in entry.error_message for entry in lab.errors())


@pytest.mark.parametrize(
    "columns", ["", "n int GENERATED ALWAYS AS (7) STORED"], ids=["a table without columns", "all columns generated"]
)
@pytest.mark.parametrize("rows", [1, 200])
def test_rows_without_a_value_are_as_many_at_the_target(lab: Lab, columns: str, rows: int) -> None:
    lab.setup(f"CREATE TABLE t ({columns})")
    lab.source.execute("INSERT INTO t SELECT FROM generate_series(1, %s)", [rows])
    lab.apply()
    assert lab.target.execute("SELECT count(*) FROM t").fetchone() == (rows,)
    assert lab.errors() == []
