"""Defaults, checks and indexes that are set, made or dropped at the source later arrive among the changes."""

from __future__ import annotations

import random

import pytest

from penstock.apply.apply_errors import CHECK_VIOLATED, DDL_NOT_CARRIED_OUT
from penstock.apply.lane import ServerConfig
from penstock.errors import OperatorError
from tests.lab import Lab, table
from tests.stories.test_ddl_applied import FOLLOWING, following, without_event_triggers

__all__ = ["following"]

FITTINGS = """
SELECT 'default', attname, pg_get_expr(adbin, adrelid) FROM pg_attrdef
  JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum WHERE adrelid = 't'::regclass
UNION ALL SELECT 'check', conname, pg_get_constraintdef(oid) FROM pg_constraint
  WHERE conrelid = 't'::regclass AND contype = 'c'
UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE tablename = 't' ORDER BY 1, 2
"""


def post_data(lab: Lab, side: str = "target") -> list[tuple[str, str, str]]:
    """What the table has, as its server words it."""
    return (lab.target if side == "target" else lab.source).execute(FITTINGS).fetchall()


def assert_same(lab: Lab) -> None:
    assert [entry.error_message for entry in lab.errors()] == []
    assert post_data(lab) == post_data(lab, "source")
    lab.assert_identical("t")


@pytest.mark.rule("A-148", "A-156")
@pytest.mark.parametrize(
    ("is_told", "use_set", "lanes"),
    [(True, True, 4), (False, False, 1)],
    ids=["event trigger, set path, four lanes", "comparison, row path, one lane"],
)
def test_they_follow_among_the_rows(following: Lab, is_told: bool, use_set: bool, lanes: int) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int, w text DEFAULT 'w', CONSTRAINT low CHECK (v > 0))")
    if not is_told:
        without_event_triggers(lab)
    statements = (
        "ALTER TABLE t ALTER v SET DEFAULT 7, ALTER w DROP DEFAULT",
        "ALTER TABLE t ALTER w SET DEFAULT 'it''s ' || upper('x')",
        # The check is in the way of what follows, until it goes at its own place.
        "ALTER TABLE t DROP CONSTRAINT low; INSERT INTO t VALUES (100, -1)",
        "DELETE FROM t WHERE id = 100; ALTER TABLE t ADD CONSTRAINT high CHECK (v < 1000)",
        "CREATE INDEX plain ON t (v, w DESC) INCLUDE (id)",
        "CREATE INDEX CONCURRENTLY partly ON t (lower(w)) WHERE v IS NOT NULL",
        "ALTER TABLE t RENAME v TO amount; ALTER TABLE t ALTER amount TYPE bigint",
        "DROP INDEX plain; CREATE INDEX plain ON t (w)",
        "ALTER INDEX partly RENAME TO part; ALTER TABLE t RENAME CONSTRAINT high TO upper",
        # A default that goes with its column's type, and a check that rows from before break.
        "ALTER TABLE t ALTER w DROP DEFAULT, ALTER w TYPE varchar(40), ALTER w SET DEFAULT 'short'",
        "INSERT INTO t VALUES (200, 5, 'x'); ALTER TABLE t ADD CONSTRAINT late CHECK (w <> 'x') NOT VALID",
        "DELETE FROM t WHERE id = 200; ALTER TABLE t VALIDATE CONSTRAINT late",
        "ALTER TABLE t ADD c int DEFAULT 3 CHECK (c > 0); CREATE INDEX ON t (c)",
        "DROP INDEX CONCURRENTLY part",
        "ALTER TABLE t DROP c",
    )
    for number, statement in enumerate(statements):
        for one in statement.split("; "):
            lab.source.execute(one)
        lab.source.execute(f"INSERT INTO t (id) VALUES ({number})")

    lab.apply(lanes=lanes, config=ServerConfig(ddl=FOLLOWING.ddl, use_set_path=use_set), shuffle=random.Random(3))

    assert_same(lab)


def test_an_index_that_is_only_called_otherwise_is_not_built_anew(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE INDEX one ON t (v)")
    lab.target.execute("CREATE INDEX one ON t (v)")
    before = lab.target.execute("SELECT 'one'::regclass::oid").fetchone()
    lab.source.execute("ALTER INDEX one RENAME TO two")
    lab.source.execute("ALTER TABLE t RENAME v TO amount")

    lab.apply(config=FOLLOWING)

    assert_same(lab)
    assert lab.target.execute("SELECT 'two'::regclass::oid").fetchone() == before


@pytest.mark.rule("A-157")
@pytest.mark.parametrize(
    ("ddl", "at_target", "number", "why", "fixed"),
    [
        (
            "CREATE SEQUENCE s; ALTER TABLE t ALTER v SET DEFAULT nextval('s')",
            "",
            DDL_NOT_CARRIED_OUT,
            "does not exist",
            "CREATE SEQUENCE s",
        ),
        (
            "ALTER TABLE t ADD CONSTRAINT few CHECK (v < 100)",
            "INSERT INTO t VALUES (9, 900)",
            CHECK_VIOLATED,
            "constraint 'few'",
            "DELETE FROM t WHERE id = 9",
        ),
        (
            "CREATE INDEX taken ON t (v)",
            "CREATE TABLE taken ()",
            DDL_NOT_CARRIED_OUT,
            "already exists",
            "DROP TABLE taken",
        ),
        (
            "CREATE INDEX other ON t (v)",
            "CREATE INDEX other ON t (v DESC)",
            DDL_NOT_CARRIED_OUT,
            "another index 'other'",
            "DROP INDEX other",
        ),
        (
            "ALTER TABLE t DROP CONSTRAINT made_up",
            "ALTER TABLE t RENAME CONSTRAINT made_up TO sys_c1000",
            DDL_NOT_CARRIED_OUT,
            "is called 'sys_c1000' here",
            "ALTER TABLE t DROP CONSTRAINT sys_c1000",
        ),
    ],
    ids=["no such sequence", "rows that break it", "a name that is taken", "another one", "called otherwise"],
)
def test_what_the_target_refuses_waits_until_a_person_has_mended_it(
    following: Lab, ddl: str, at_target: str, number: int, why: str, fixed: str
) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int CONSTRAINT made_up CHECK (v > 0))")
    lab.target.execute(at_target)
    lab.source.execute(f"BEGIN; INSERT INTO t VALUES (1, 1); {ddl}; COMMIT")
    lab.source.execute("INSERT INTO t VALUES (2, 2)")

    lab.apply(lanes=4, config=FOLLOWING)

    (entry,) = lab.errors()
    assert (entry.op, entry.table, entry.error_number) == ("ddl", table("t"), number)
    assert why in entry.error_message
    with pytest.raises(OperatorError, match=why):
        lab.retry(entry.id)
    lab.target.execute(fixed)
    assert lab.retry(entry.id) == [entry.id]
    assert_same(lab)


@pytest.mark.rule("A-152", "A-157")
def test_what_a_person_has_done_beforehand_is_done(following: Lab) -> None:
    lab = following
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v > 0)); CREATE INDEX gone ON t (v)")
    for connection in (lab.target, lab.source):
        connection.execute(
            "DROP INDEX IF EXISTS gone; CREATE INDEX made ON t (v); ALTER TABLE t DROP CONSTRAINT t_v_check;"
            "ALTER TABLE t ALTER v SET DEFAULT 1, ADD CONSTRAINT low CHECK (v > 5)"
        )

    lab.apply(config=FOLLOWING)

    assert_same(lab)


CODE = "CREATE FUNCTION theirs(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1'"

CALLING = {
    "ALTER TABLE t0 ALTER w SET DEFAULT query_to_xml('DROP TABLE u', true, true, '')::text": "query_to_xml",
    "ALTER TABLE t1 ADD c int DEFAULT theirs(1)": "theirs",
    "ALTER TABLE t2 ADD CONSTRAINT c CHECK (query_to_xml(w, true, true, '') IS NOT NULL)": "query_to_xml",
    "ALTER TABLE t3 ALTER v SET DEFAULT theirs(1)": "theirs",
    "CREATE INDEX i ON t4 (theirs(v))": "theirs",
    "ALTER TABLE t5 ADD CONSTRAINT c CHECK (theirs(v) > 0)": "theirs",
}


@pytest.mark.rule("A-157")
def test_code_that_would_run_with_the_rights_of_the_run_is_refused(following: Lab) -> None:
    lab = following
    names = [f"t{n}" for n in range(len(CALLING))]
    lab.setup(
        "CREATE TABLE u (id int);" + ";".join(f"CREATE TABLE {t} (id int PRIMARY KEY, v int, w text)" for t in names)
    )
    lab.target.execute("CREATE ROLE ddl_other")
    try:
        lab.source.execute(CODE)
        lab.target.execute(f"{CODE}; ALTER FUNCTION theirs(int) OWNER TO ddl_other")
        for ddl in CALLING:
            lab.source.execute(ddl)
        lab.source.execute("INSERT INTO u VALUES (2)")

        lab.apply(config=FOLLOWING)

        found = [(entry.error_number, str(entry.table)) for entry in lab.errors()]
        assert found == [(DDL_NOT_CARRIED_OUT, f"public.{name}") for name in names]
        for entry, why in zip(lab.errors(), CALLING.values(), strict=True):
            assert why in entry.error_message
        made = lab.target.execute(
            "SELECT count(*) FROM pg_attrdef WHERE adrelid::regclass::text LIKE 't_'"
            " UNION ALL SELECT count(*) FROM pg_constraint WHERE conname = 'c'"
            " UNION ALL SELECT count(*) FROM pg_class WHERE relname IN ('i', 'penstock_clone')"
        ).fetchall()
        assert made == [(0,), (0,), (0,)]
        assert lab.rows("u") == [(2,)]
    finally:
        lab.target.execute("DROP OWNED BY ddl_other; DROP ROLE ddl_other")


def test_a_default_whose_sequence_is_only_called_otherwise_is_not_set(following: Lab) -> None:
    """A target that has no such sequence has nothing to follow."""
    lab = following
    lab.setup("CREATE SCHEMA far; CREATE TABLE t (id serial PRIMARY KEY, v int)")
    lab.target.execute("CREATE SCHEMA IF NOT EXISTS far; ALTER TABLE t ALTER id DROP DEFAULT; DROP SEQUENCE t_id_seq")
    lab.source.execute(
        "ALTER SEQUENCE t_id_seq RENAME TO other; ALTER TABLE t ADD c int; INSERT INTO t VALUES (1, 1, 1)"
    )
    lab.source.execute("ALTER TABLE t ALTER id TYPE bigint; ALTER TABLE t SET SCHEMA far")
    lab.source.execute("INSERT INTO far.t VALUES (2, 2, 2)")

    lab.apply(config=FOLLOWING)

    assert [entry.error_message for entry in lab.errors()] == []
    lab.assert_identical("far.t")


def test_indexes_of_partitions_follow_their_root(following: Lab) -> None:
    lab = following
    lab.setup(
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)"
    )
    lab.source.execute("CREATE INDEX i ON t (v); ALTER TABLE t ALTER v SET DEFAULT 5, ADD CONSTRAINT c CHECK (v > 0)")
    lab.source.execute("CREATE INDEX of_its_own ON t1 (v, id); INSERT INTO t (id) VALUES (1)")

    lab.apply(config=FOLLOWING)

    assert_same(lab)
    query = "SELECT count(*) FROM pg_indexes WHERE tablename = 't1' AND indexdef LIKE '%(v)'"
    assert lab.target.execute(query).fetchone() == (1,)


def test_by_default_nothing_follows_and_a_version_more_is_no_change(lab: Lab) -> None:
    lab.setup("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v > 0))")
    before = post_data(lab)
    lab.source.execute("ALTER TABLE t ALTER v SET DEFAULT 5; CREATE INDEX i ON t (v); INSERT INTO t (id) VALUES (1)")
    lab.apply()
    assert lab.errors() == []
    assert post_data(lab) == before
    lab.assert_identical("t")
